"""Steps into the verdict of a solution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from jurat.platform.types import Status, Step, Verdict
from jurat.verifiers.steps.split import Span

Score = Literal["all", "share"]


def step_of(span: Span, right: bool | None, why: str) -> Step:
    """``right`` None: not checkable, without a score."""
    status: Status = "abstained" if right is None else "correct" if right else "incorrect"
    return Step(start=span.start, end=span.end, status=status, score=None if right is None else float(right), why=why)


def whole(
    steps: Sequence[Step],
    *,
    score: Score = "all",
    undecided: Literal["abstained", "correct"] = "abstained",
    fault: str = "",
    evidence: Mapping[str, Any],
) -> Verdict:
    """``all``: 1 if no step is incorrect, else 0; ``share``: of the steps with a score those that are correct. ``fault``: what makes
    the whole wrong, whatever its steps. ``undecided``: of a solution no step of which has a score."""
    checked = [step.score for step in steps if step.score is not None]
    wrong = next((number for number, step in enumerate(steps, 1) if step.status == "incorrect"), None)
    told = {**evidence, "checked": len(checked), "steps": len(steps), "first_error": wrong}
    if wrong is None and not fault:
        if not checked and (undecided == "abstained" or not steps):
            return Verdict.of("abstained", why="no step can be checked", steps=tuple(steps), evidence=told)
        why = f"{len(checked)} of {len(steps)} steps checked, none wrong"
        return Verdict.of("correct", why=why, steps=tuple(steps), evidence=told)
    why = fault or f"step {wrong}: {steps[(wrong or 1) - 1].why}"
    share = sum(checked) / len(checked) if checked else 0.0
    if score == "share" and not fault and share > 0.0:
        return Verdict.of("partial", share, why=why, steps=tuple(steps), evidence=told)
    return Verdict.of("incorrect", why=why, steps=tuple(steps), evidence=told)
