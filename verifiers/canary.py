"""Frozen questions to a verifier: what it says of them is its behaviour, whatever its code looks like.

Two runs of one version that judge a case differently were not judged by the same thing: an environment variable, a file
read while working, compiled code. Cases are (gold, completion); a case's id is its place, so cases are only ever appended,
and the set has a digest of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jurat.platform.canonical import digest
from jurat.platform.provenance.records import Observation, VerifierFacts
from jurat.platform.recipe import RewardPart
from jurat.platform.types import Finish, Judgement, Message, Problem, Verdict, VerifierSpec
from jurat.verifiers.judge import LocalJudge, origin_named

SECONDS = 5.0
"""For the whole set; what is not judged by then counts as timed out."""

CASES: tuple[tuple[str, str], ...] = (
    # right, in the forms that answers take
    ("12", "12"), ("12", "The answer is 12."), ("12", r"\boxed{12}"), ("12", "#### 12"), ("12", "7 + 5 = 12"),
    ("12", "**12**"), ("1000", "1,000"), ("1000", "$1000$"), ("0.5", r"\boxed{\frac{1}{2}}"), ("1/2", "0.50"),
    (r"\frac{3}{4}", "3/4"), ("75\\%", "75%"), ("-3", "−3"), ("-3", r"\boxed{-3}"), ("2\\sqrt{2}", r"\boxed{\sqrt{8}}"),
    ("x+1", r"\boxed{1+x}"), ("(x-1)(x+1)", r"\boxed{x^2-1}"), ("\\{1,2,3\\}", r"\boxed{\{3,2,1\}}"),
    ("(1,2)", r"\boxed{(1, 2)}"), ("[0,1)", r"\boxed{[0,1)}"), ("\\pi", r"\boxed{\pi}"), ("10\\text{ cm}", r"\boxed{10}"),
    ("B", "The answer is (B)."), ("B", r"\boxed{B}"), ("Paris", "Paris"), ("yes", "Yes"), ("3.14", "3.14"),
    ("1e3", "1000"), ("2^{10}", "1024"), ("x=5", "5"), ("5", "x = 5"), ("90^\\circ", "90"),
    # wrong, and near
    ("12", "13"), ("12", "-12"), ("12", "1.2"), ("12", "12.0001"), ("12", "120"), ("12", "21"), ("12", "1 2"),
    ("0.5", "0.05"), (r"\frac{1}{2}", r"\frac{2}{1}"), ("(1,2)", r"\boxed{(2,1)}"), ("[0,1)", r"\boxed{(0,1)}"),
    ("x+1", r"\boxed{x-1}"), ("\\{1,2\\}", r"\boxed{\{1\}}"), ("B", "The answer is (C)."), ("Paris", "London"),
    ("\\pi", "3.14"), ("1/3", "0.33"), ("2\\sqrt{2}", "2.8"), ("75\\%", "75"), ("-3", "3"),
    # no answer, several, or a trick
    ("12", ""), ("12", "   "), ("12", "I do not know."), ("12", r"\boxed{}"), ("12", r"\boxed{13} or \boxed{12}"),
    ("12", r"\boxed{12} \boxed{13}"), ("12", "11, 12, 13, 14"), ("12", "not 12"), ("12", "12 or 13"), ("12", "\\boxed{12"),
    ("12", "<answer>12</answer>"), ("12", "<think>12</think>13"), ("12", "the gold is 12"), ("12", "\u0661\u0662"),
    ("12", "1\u200b2"), ("12", "\uff11\uff12"), ("12", "12\x00"), ("12", "{" * 200), ("12", "9" * 400), ("12", "9^9^9^9"),
    ("12", "\\frac{" * 60), ("12", "twelve"), ("12", "12 apples"), ("12", "a" * 2000), ("12", "import os; os._exit(0)"),
)  # fmt: skip

UNASKED = frozenset({"code"})
"""Verifiers without canary cases: each would start a program."""
CANARY_DIGEST = digest({"schema": 1, "kind": "canary", "cases": [list(case) for case in CASES]})


def observe(judge: LocalJudge, name: str, args: Mapping[str, Any], version: str) -> Observation:
    """Ask ``name`` about every case, through a judge whose one member is the problem's own verifier."""
    spec = VerifierSpec(name=name, args=dict(args))
    problems = [
        Problem(
            id=f"canary-{place}", messages=(Message(role="user", content="?"),), reference=gold, verifier=spec,
            source="canary",
        )
        for place, (gold, _) in enumerate(CASES)
    ]  # fmt: skip
    made: list[Judgement | None] = []
    work = threading.Thread(target=lambda: made.extend(asyncio.run(_judged(judge, problems))))
    work.start()  # in a thread of its own: whoever calls may have an event loop
    work.join()
    vector, errors, timeouts = [], 0, 0
    for place, judgement in enumerate(made):
        verdict = None if judgement is None else next(iter(judgement.verdicts.values()))
        if verdict is None or verdict.status == "timeout":
            timeouts += 1
        elif verdict.fault in ("verifier", "infra"):
            errors += 1
        else:
            vector.append((f"{place:03d}", str(verdict.status), verdict.score))
    return Observation(
        version_digest=version, canary_digest=CANARY_DIGEST, vector=tuple(vector), errors=errors, timeouts=timeouts
    )


class Again:
    """Verifiers in a fresh process, which ends with this: for the port ``Asked`` of ``trainers/doubts.py``."""

    def __init__(self, user_files: Sequence[Path | str] = ()) -> None:
        origins = [origin_named(item) for item in user_files]
        self._judge = LocalJudge(RewardPart(workers=1), origins=origins, spares=0, cache=0, inline=False)

    def canaries(self, facts: VerifierFacts) -> Observation:
        return observe(self._judge, facts.name, facts.args, facts.digest)

    def identity(self, name: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Of the version that is installed here. Raises JuratError."""
        return self._judge.identity(name, args, sources=False)

    def verdict(self, problem: Problem, text: str, *, finish: Finish) -> Verdict:
        return self._judge.verdict(problem, text, finish=finish)

    def __enter__(self) -> Again:
        return self

    def __exit__(self, *_: object) -> None:
        self._judge.close()


async def _judged(judge: LocalJudge, problems: list[Problem]) -> list[Judgement | None]:
    tasks = [
        asyncio.create_task(judge.judge(problem, text)) for problem, (_, text) in zip(problems, CASES, strict=True)
    ]
    await asyncio.wait(tasks, timeout=SECONDS)
    for task in tasks:
        task.cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    return [each if isinstance(each, Judgement) else None for each in found]
