"""Outcome verifiers that read an answer and compare it with the reference: math, exact, choice, number."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

from jurat.platform.types import Problem, Verdict

Form = Literal["answer", "text"]
_TAIL = 64_000
"""Characters at the end of a completion in which an answer is looked for."""


def math(
    problem: Problem,
    completion: str,
    *,
    form: Form = "text",
    gold_form: Form = "answer",
    order: Sequence[str] = (),
    markers: Sequence[str] = (),
    off: Sequence[str] = (),
    reject_flags: Sequence[str] = (),
    decimal_digits: int = 10,
    accept_uncertified: bool = True,
    symbolic: bool = False,
) -> Verdict:
    """Whether the final answer of the completion equals the reference, as mathematics.

    ``form`` "answer": the completion is a bare answer. ``order`` and ``markers``: which extraction rules are tried
    (``math/extract.py``). ``off``: conversions switched off (``math/convert.py``). ``reject_flags``: flags that make a
    right answer wrong. ``symbolic``: ask SymPy last, which takes the whole verdict into a killable process.
    """
    from jurat.verifiers.math import DEFAULT_ORDER, Policy, compare, judge_text

    policy = Policy(
        off=frozenset(off), reject_flags=frozenset(reject_flags), decimal_digits=decimal_digits,
        accept_uncertified=accept_uncertified, symbolic=symbolic,
    )  # fmt: skip
    if form == "answer":
        found = compare(problem.reference, completion, policy=policy)
    else:
        given = {key: tuple(value) for key, value in (("order", order), ("markers", markers)) if value}
        extraction = dataclasses.replace(DEFAULT_ORDER, **given) if given else DEFAULT_ORDER  # type: ignore[arg-type]
        text_gold = gold_form == "text"
        found = judge_text(problem.reference, completion, extraction=extraction, policy=policy, gold_is_text=text_gold)
    read = found.extracted if found.extracted is not None else completion if form == "answer" else ""
    evidence = {
        "gold_norm": found.gold_norm, "answer_norm": found.answer_norm, "gold_type": found.gold_type,
        "answer_type": found.answer_type, "conversions": list(found.conversions), "span": list(found.span or ()),
    }  # fmt: skip
    kept = {key: value[:500] if isinstance(value, str) else value for key, value in evidence.items() if value}
    return Verdict.of(
        found.status,  # type: ignore[arg-type]
        read=read[:500],
        why=found.reason[:200],
        certified=found.certified,
        flags=found.flags,
        evidence=kept,
    )


def exact(problem: Problem, completion: str, *, strip: bool = True, case: bool = True) -> Verdict:
    """Whether the whole completion is the reference; white space at the ends (``strip``) and case (if False) aside."""
    read, gold = (completion.strip(), problem.reference.strip()) if strip else (completion, problem.reference)
    if not gold:
        return Verdict.of("bad_gold", why="the reference is empty")
    if not read:
        return Verdict.of("no_answer", why="the completion is empty")
    same = read == gold if case else read.casefold() == gold.casefold()
    return Verdict.of("correct" if same else "incorrect", read=read[:200], why="text_equal" if same else "text_differs")


# ---- number ------------------------------------------------------------------------------------------------------

_NUMBER = re.compile(r"[-+\u2212]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,3}(?!\d))?(?:/\d+)?")
MAX_DIGITS = 400


def number(problem: Problem, completion: str, *, tolerance: float = 0.0, relative: bool = False) -> Verdict:
    """Whether the last number of the completion equals the reference, exactly or within ``tolerance``.

    Numbers, the tolerance too, are read as rationals (``0.1`` is 1/10; ``3/4``; ``1,000``; ``2e3``): no rounding. With
    ``relative`` the tolerance is a share of the reference's size. A percent sign or unit after it is not read.
    """
    gold = _rational(problem.reference.strip())
    if gold is None:
        return Verdict.of("bad_gold", why=f"the reference {problem.reference[:80]!r} is not a number")
    read = ""
    for found in _NUMBER.finditer(completion, max(0, len(completion) - _TAIL)):
        read = found.group()
    if not read:
        return Verdict.of("no_answer", why="no number in the completion")
    if len(read) > MAX_DIGITS:
        return Verdict.of("too_large", read=read[:80], why=f"a number of {len(read)} characters")
    value = _rational(read)
    if value is None:
        return Verdict.of("unparseable", read=read, why="division by zero")
    allowed = Fraction(str(tolerance)) * (abs(gold) if relative else 1)
    same = abs(value - gold) <= allowed
    why = "rational_exact" if value == gold else "within_tolerance" if same else "rational_differs"
    return Verdict.of("correct" if same else "incorrect", read=read, why=why, certified=True)


def _rational(text: str) -> Fraction | None:
    if len(text) > MAX_DIGITS or _NUMBER.fullmatch(text) is None:
        return None
    top, _, bottom = text.replace(",", "").replace("\u2212", "-").partition("/")
    try:
        return Fraction(top) / Fraction(bottom or "1")
    except ZeroDivisionError:
        return None


# ---- choice ------------------------------------------------------------------------------------------------------

_MARKED = re.compile(
    r"(?:\b(?i:answer|choice|option)\b(?:\s+is)?\s*:?|\\boxed\s*\{(?:\\text(?:bf)?\s*\{)?|####|<answer>)"
    r"\s*[*_]{0,2}[(\[]?([A-Za-z])(?![A-Za-z'])"
)
_ALONE = re.compile(r"\s*[*_]{0,2}[(\[]?([A-Za-z])[)\].:]?[*_]{0,2}(?:[.:\s)][^\n]{0,400})?\s*")
_LETTER = re.compile(r"\s*[(\[]?([A-Za-z])[)\].:]?\s*")


def choice(problem: Problem, completion: str, *, letters: str = "ABCDE") -> Verdict:
    """Whether the letter chosen is the reference's, in either case.

    Read: the last marked one ("answer: B", a box, ``####``, ``<answer>``), else a completion that begins with the
    letter alone ("B", "(B) because ...").
    """
    gold = _LETTER.fullmatch(problem.reference)
    if gold is None or gold.group(1).upper() not in letters.upper():
        return Verdict.of("bad_gold", why=f"the reference {problem.reference[:40]!r} is none of {letters}")
    tail = completion[-_TAIL:]
    marked = [found for found in _MARKED.finditer(tail) if found.group(1).upper() in letters.upper()]
    if marked:
        read, why = marked[-1].group(1).upper(), "marked"
    elif (alone := _ALONE.fullmatch(tail)) is not None and alone.group(1).upper() in letters.upper():
        # "A man walks": a lower-case word after an article is prose, not a choice.
        if re.match(r"\s*[AI]\s+[a-z]", tail):
            return Verdict.of("no_answer", why="no letter is marked as the answer")
        read, why = alone.group(1).upper(), "alone"
    else:
        return Verdict.of("no_answer", why="no letter is marked as the answer")
    flags = ("several_answers",) if len({found.group(1).upper() for found in marked}) > 1 else ()
    same = read == gold.group(1).upper()
    return Verdict.of("correct" if same else "incorrect", read=read, why=why, flags=flags)
