"""The math verifier gives the same verdict in the main thread, another thread, an event loop and a worker process."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from jurat.platform.recipe import Member, RewardPart
from jurat.verifiers.judge import build_judge
from jurat.verifiers.verdicts import problem_of, verdict_to_json

PAIRS = [
    (r"\frac{1}{2}", r"so \boxed{0.5}"),
    ("x^2-1", "The answer is $(x-1)(x+1)$."),
    (r"\sqrt{8}", r"\boxed{2\sqrt2}"),
    ("(1,2]", r"\boxed{1<x\le 2}"),
    ("42", "I do not know."),
    ("42", r"\boxed{\frac{42}}"),
    ("1", r"\boxed{9**9**9**9}"),
    ("", "7"),
    (r"e^{-50}", r"\boxed{e^{-60}}"),
]
PROBLEMS = [(problem_of(gold), text) for gold, text in PAIRS]


def said(verdict) -> dict:
    return {key: value for key, value in verdict_to_json(verdict).items() if key != "seconds"}


def test_equal_everywhere():
    part = RewardPart(members=(Member(use="problem"),))
    with build_judge(part, cache=0) as inline, build_judge(part, cache=0) as pooled:
        for use in [pooled._use("math", {})]:
            use.call = None  # as for a verifier that is not bounded: every call goes to a worker process
        here = [said(inline.verdict(*pair)) for pair in PROBLEMS]

        there: list[dict] = []
        thread = threading.Thread(target=lambda: there.extend(said(inline.verdict(*pair)) for pair in PROBLEMS))
        thread.start()
        thread.join()

        async def looped() -> list[dict]:
            made = [await inline.judge(*pair, finish="stop") for pair in PROBLEMS]
            return [said(judgement.verdicts["problem"]) for judgement in made]

        verdicts = [pooled.verdict(*pair) for pair in PROBLEMS]
        assert {verdict.isolation for verdict in verdicts} == {"process"}
        assert here == there == asyncio.run(looped()) == [said(verdict) for verdict in verdicts]
    assert [item["status"] for item in here[:3]] == ["correct"] * 3 and here[8]["status"] == "incorrect"


def test_sympy_is_asked_in_a_process_that_can_be_killed():
    pytest.importorskip("sympy")
    part = RewardPart(members=(Member(use="math", args={"symbolic": True}),))
    problem = problem_of("1")
    with build_judge(part, spares=0, cache=0) as judge:
        end = time.monotonic() + 120
        while (verdict := judge.verdict(problem, r"\boxed{\lim_{x\to0}\frac{\sin x}{x}}")).status != "correct":
            # SymPy takes a moment to be imported in its child; until then it cannot tell.
            assert verdict.status == "undecided" and time.monotonic() < end, verdict.why
            time.sleep(0.1)
        assert (verdict.why, verdict.certified, verdict.isolation) == ("sympy", False, "process")
