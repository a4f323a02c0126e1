"""The verifier ``code``: whether a program that a model wrote does what the problem's cases say (``verifiers/code``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from jurat.platform.types import Finish, Problem, Verdict

SOURCES = tuple(sorted(str(path) for path in (Path(__file__).parent / "sandbox").glob("*.py")))
"""Files whose content belongs to the verifier's identity: a part of them runs in processes that no import reaches."""


def code(
    problem: Problem,
    completion: str,
    *,
    score: Literal["all", "share"] = "all",
    unfenced: bool = False,
    seconds: float = 5.0,
    total_seconds: float = 30.0,
    memory_mb: int = 1024,
    output_kb: int = 1024,
    level: Literal["auto", "ns", "seccomp", "rlimits"] = "auto",
    strict: bool = True,
    preload: Sequence[str] = (),
    retries: int = 2,
    finish: Finish = "stop",
) -> Verdict:
    """Whether the program in the completion passes the cases in the reference, run in the sandbox (docs/code.md).

    ``score``: 1 only if all cases pass, or the share of them. ``unfenced``: text without a fenced block is the program.
    ``seconds`` (wall and processor) and ``memory_mb`` of one run, ``output_kb`` of each stream, ``total_seconds`` of all
    runs together. ``level``, ``strict``: how programs must be kept apart. ``preload``: modules they find loaded, the only
    installed packages that they can import. ``retries``: after failures that are the sandbox's own.
    """
    from jurat.verifiers.code.verifier import Options, judge_completion

    options = Options(
        score=score, seconds=seconds, total_seconds=total_seconds, memory_mb=memory_mb, output_kb=output_kb, level=level,
        strict=strict, preload=tuple(preload), retries=retries,
    )  # fmt: skip
    return judge_completion(problem, completion, options, finish=finish, unfenced=unfenced)


def ready(args: Mapping[str, Any]) -> None:
    """Raises ConfigError where programs may not or cannot run here as these arguments say: before anything is judged."""
    from jurat.verifiers.code.verifier import check_ready

    check_ready(args)
