"""Outcome verifiers that are rules about text. Each is linear in the completion and exact about what it measures."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Literal

from jurat.platform.types import Finish, Problem, Verdict


def exact(problem: Problem, completion: str, *, strip: bool = True, case: bool = True) -> Verdict:
    """Whether the whole completion is the reference; white space at the ends (``strip``) and case (if False) aside."""
    read, gold = (completion.strip(), problem.reference.strip()) if strip else (completion, problem.reference)
    if not gold:
        return Verdict.of("bad_gold", why="the reference is empty")
    if not read:
        return Verdict.of("no_answer", why="the completion is empty")
    same = read == gold if case else read.casefold() == gold.casefold()
    return Verdict.of("correct" if same else "incorrect", read=read[:200], why="text_equal" if same else "text_differs")


_NUMBER = re.compile(r"[-+\u2212]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,3})?(?:\s*/\s*\d+)?")
MAX_DIGITS = 400


def number(problem: Problem, completion: str, *, tolerance: float = 0.0, relative: bool = False) -> Verdict:
    """Whether the last number of the completion equals the reference, exactly or within ``tolerance``.

    Numbers are read as rationals (``0.1`` is 1/10; ``3/4``; ``1,000``; ``2e3``), so there is no rounding. With
    ``relative`` the tolerance is a share of the reference's size.
    """
    gold = _rational(problem.reference.strip())
    if gold is None:
        return Verdict.of("bad_gold", why=f"the reference {problem.reference[:80]!r} is not a number")
    found = None
    for found in _NUMBER.finditer(completion, max(0, len(completion) - 64_000)):  # noqa: B007
        pass
    if found is None:
        return Verdict.of("no_answer", why="no number in the completion")
    read = found.group()
    value = _rational(read)
    if value is None:
        return Verdict.of(
            "too_large" if len(read) > MAX_DIGITS else "unparseable", read=read[:200], why="number_unreadable"
        )
    allowed = Fraction(tolerance) * (abs(gold) if relative else 1)
    same = abs(value - gold) <= allowed
    why = "rational_exact" if value == gold else "within_tolerance" if same else "rational_differs"
    return Verdict.of("correct" if same else "incorrect", read=read[:200], why=why, certified=not tolerance)


def _rational(text: str) -> Fraction | None:
    match = _NUMBER.fullmatch(text)
    if match is None or len(text) > MAX_DIGITS:
        return None
    plain = text.replace(",", "").replace("\u2212", "-").replace(" ", "")
    try:
        return Fraction(plain)
    except (ValueError, ZeroDivisionError):
        return None


def length(
    problem: Problem,
    completion: str,
    *,
    min: int = 0,
    max: int = 4096,
    unit: Literal["characters", "words", "lines"] = "characters",
    finish: Finish = "stop",
) -> Verdict:
    """Whether the completion ended by itself and holds between ``min`` and ``max`` characters, words or lines."""
    count = {"characters": len, "words": lambda t: len(t.split()), "lines": lambda t: len(t.splitlines())}[unit](
        completion
    )
    if finish == "length":
        return Verdict.of("incorrect", read=str(count), why="cut_at_limit")
    why = "too_short" if count < min else "too_long" if count > max else "length_within"
    return Verdict.of("correct" if why == "length_within" else "incorrect", read=str(count), why=why, certified=True)
