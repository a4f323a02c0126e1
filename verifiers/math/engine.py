"""From two texts to a verdict."""

from __future__ import annotations

import time
from dataclasses import replace as with_fields
from functools import lru_cache

from jurat.platform.errors import JuratError
from jurat.verifiers.math import extract as extraction_rules
from jurat.verifiers.math.backend import warn_once
from jurat.verifiers.math.compare import equal
from jurat.verifiers.math.extract import DEFAULT_ORDER, Extraction, extract
from jurat.verifiers.math.limits import TooLarge, Undefined
from jurat.verifiers.math.reading import Reading, choice_of_answer, choice_of_gold, read, same_selection, selection
from jurat.verifiers.math.tree import SCALARS, Node, walk
from jurat.verifiers.math.verdict import (
    BAD_GOLD,
    CORRECT,
    DEFAULT,
    INCORRECT,
    NO_ANSWER,
    TOO_LARGE,
    UNDECIDED,
    UNPARSEABLE,
    Context,
    MathVerdict,
    Outcome,
    Policy,
)

_COLLECTIONS = frozenset(("list", "set", "tuple"))
_ARITHMETIC = frozenset(("add", "mul", "pow"))


class GoldError(JuratError, ValueError):
    """A worked solution holds no gold answer."""


def compare(gold: str, answer: str, *, policy: Policy = DEFAULT) -> MathVerdict:
    """Verdict on a bare answer against a bare gold answer. Never raises on any text."""
    return _cached(gold, answer, policy)


def judge_text(
    gold: str,
    completion: str,
    *,
    extraction: Extraction = DEFAULT_ORDER,
    policy: Policy = DEFAULT,
    gold_is_text: bool = False,
) -> MathVerdict:
    """Verdict on a raw completion.

    Args:
        gold: a bare answer; with `gold_is_text` a text from which the gold is extracted like an answer (a gold with
        a box always is).
    """
    start = time.perf_counter()
    if gold_is_text or "\\boxed" in gold:
        gold = gold_of_text(gold)
    letter = choice_of_gold(read(gold)) if len(gold) < 40 else ""
    found = extract(completion, extraction)
    if letter and (found is None or found.rule not in ("boxed", "tags", "hashes", "final_answer_is")):
        found = extraction_rules.choice_letter(completion, extraction) or found
    if found is None and 0 < len(bare := completion.strip()) < 80 and "\n" not in bare and read(gold).kind == "text":
        found = extraction_rules.Extracted(bare, 0, len(completion), "whole")
    if found is None:
        bad = read(gold).node is None
        return MathVerdict(status=BAD_GOLD if bad else NO_ANSWER, reason="unparseable_gold" if bad else "no_answer",
                           gold_norm=read(gold).norm,
                           gold_type=read(gold).kind, seconds=time.perf_counter() - start)  # fmt: skip
    if "not_asserted" in found.flags and read(gold).kind not in ("", "text"):
        return MathVerdict(status=NO_ANSWER, reason="not_asserted", gold_norm=read(gold).norm, gold_type=read(gold).kind,
                           flags=found.flags, extracted=found.text, span=(found.start, found.end),
                           seconds=time.perf_counter() - start)  # fmt: skip
    verdict = compare(gold, found.text, policy=policy)
    flags = (*verdict.flags, *found.flags)
    if verdict.status == CORRECT and policy.reject_flags & set(flags):
        verdict = with_fields(verdict, status=INCORRECT, reason="rejected_flag")
    return with_fields(
        verdict, flags=flags, extracted=found.text, span=(found.start, found.end), seconds=time.perf_counter() - start
    )


def gold_of_text(text: str) -> str:
    """The gold of a text which may be a bare answer, an answer between dollars, or a worked solution."""
    boxed = extraction_rules.gold_box(text)
    if boxed is not None:
        return boxed
    reading = read(text)
    if reading.node is not None and reading.kind != "text":
        return text
    found = extract(text)
    return (
        text
        if found is None
        or (reading.kind == "text" and found.rule == "last_expression" and len(text) < 80 and "$" not in text)
        else found.text
    )


def gold_from_solution(text: str) -> str:
    """The gold answer of a worked solution: what follows the last `####` on its line, else the content of the last
    `\\boxed{}`.

    Raises:
        GoldError: neither is there, or it is empty.
    """
    hashes = text.rfind("####")
    if hashes >= 0:
        gold = text[hashes + 4 :].split("\n", 1)[0].strip()
        if gold:
            return gold
        raise GoldError("gold answer after '####' is empty; expected '#### 42' at the end of the solution")
    boxes = extraction_rules.boxes(text)
    if boxes:
        return boxes[-1].content.strip()
    tail = text[-80:].replace("\n", " ")
    raise GoldError(
        f"no gold answer in solution ending {tail!r}; expected '#### 42' or '\\boxed{{42}}' "
        "(fix: give the column that holds the answer)"
    )


class _Cache:
    """LRU of verdicts. Undecided ones are not kept."""

    def __init__(self, function: object, size: int) -> None:
        from collections import OrderedDict
        from threading import Lock

        self.function, self.size = function, size
        self.kept: OrderedDict[tuple[str, str, Policy], MathVerdict] = OrderedDict()
        self.lock = Lock()
        self.hits = self.misses = 0

    def __call__(self, gold: str, answer: str, policy: Policy) -> MathVerdict:
        key = (gold, answer, policy)
        with self.lock:
            kept = self.kept.get(key)
            if kept is not None:
                self.kept.move_to_end(key)
                self.hits += 1
                return kept
            self.misses += 1
        verdict: MathVerdict = self.function(gold, answer, policy)  # type: ignore[operator]
        if verdict.status != UNDECIDED and len(gold) + len(answer) < 4096:
            with self.lock:
                self.kept[key] = verdict
                if len(self.kept) > self.size:
                    self.kept.popitem(last=False)
        return verdict

    def clear(self) -> None:
        with self.lock:
            self.kept.clear()


def _compare(gold: str, answer: str, policy: Policy) -> MathVerdict:
    start = time.perf_counter()
    warn_once()
    g = read(gold)
    if g.node is None or g.undefined:
        return MathVerdict(status=BAD_GOLD, reason=f"gold:{g.error or 'undefined'}", gold_norm=g.norm)
    a = read(answer)
    context = Context(policy, start, seed=f"{g.norm}\x00{a.norm}", kinds=g.kinds | a.kinds)
    try:
        outcome = _decide(g, a, context)
    except TooLarge as error:
        outcome = Outcome(None, f"too_large:{error}", False)
        if a.node is not None and a.norm != g.norm:
            return _verdict(g, a, context, outcome, TOO_LARGE)
    except Undefined as error:
        outcome = Outcome(False, f"undefined:{error}")
    except RecursionError:
        return _verdict(g, a, context, Outcome(None, "too_large:recursion", False), TOO_LARGE)
    if (
        outcome.equal is None
        and policy.symbolic
        and g.kind in SCALARS
        and a.kind in SCALARS
        and g.node is not None
        and a.node is not None
    ):
        from jurat.verifiers.math.symbolic import SYMPY

        if SYMPY.equal(g.node, a.node):
            outcome = Outcome(True, "sympy", False)
    if outcome.equal is None and a.node is None:
        return _verdict(g, a, context, outcome, TOO_LARGE if a.large else UNPARSEABLE)
    if outcome.equal and not outcome.certified and not policy.accept_uncertified:
        outcome = outcome._replace(equal=None)
    status = UNDECIDED if outcome.equal is None else CORRECT if outcome.equal else INCORRECT
    _flag_forms(g, a, context)
    if status == CORRECT and policy.reject_flags & set(context.flags):
        return _verdict(g, a, context, outcome._replace(reason="rejected_flag"), INCORRECT)
    return _verdict(g, a, context, outcome, status)


def _decide(g: Reading, a: Reading, context: Context) -> Outcome:
    assert g.node is not None
    if a.node is not None and g.norm == a.norm:
        return Outcome(True, "canonical_equal") if not a.undefined else Outcome(False, "undefined")
    letter = choice_of_gold(g)
    if letter:
        chosen = choice_of_answer(a)
        if chosen:
            return Outcome(chosen == letter, "choice")
    letters, chosen_letters = selection(g), selection(a)
    if len(letters[0]) > 1 and chosen_letters[0]:
        return Outcome(same_selection(letters, chosen_letters), "selection")
    if g.key and g.key == a.key and (g.kind == "text" or a.kind == "text"):
        return Outcome(True, "text_equal")
    if a.node is None:
        stated = _stated(a.raw)
        if stated is not None and (inner := read(stated)).node is not None:
            return _decide(g, inner, context)
        return Outcome(None, a.error, False)
    if a.undefined:
        return Outcome(False, "undefined")
    outcome = equal(g.node, a.node, context)
    if not outcome.equal and (g.comma or a.comma):
        for x, y in _comma_readings(g, a):
            other = equal(x, y, context)
            if other.equal:
                return other._replace(conversions=("comma", *other.conversions))
    if not outcome.equal and a.kind == "text" and g.kind != "text":
        stated = _stated(a.raw)
        if stated is not None and (inner := read(stated)).node is not None and inner.kind != "text":
            return _decide(g, inner, context)
    return outcome


def _comma_readings(g: Reading, a: Reading) -> list[tuple[Node, Node]]:
    """A comma between digits is read by the other side: a list against a list, a decimal comma against a number."""
    pairs: list[tuple[Node, Node]] = []
    for mine, other, flip in ((g, a, False), (a, g, True)):
        if not mine.comma or other.node is None:
            continue
        mode = "list" if other.kind in _COLLECTIONS else "decimal"
        if mode == "decimal" and mine.kind != "list":
            continue
        again = read(mine.raw, mode).node
        if (
            again is not None
            and again != mine.node
            and (mode == "list" or (again.kind in SCALARS and (flip or _long_fraction(again))))
        ):
            pairs.append((other.node, again) if flip else (again, other.node))
    return pairs


def _long_fraction(node: Node) -> bool:
    """2,74 may be a decimal; 1,2 is two numbers."""
    return all(n.kind != "num" or n.value[2] is None or n.value[2] >= 2 for n in walk(node))


def _stated(text: str) -> str | None:
    """ "..., so the answer is 23" inside what was handed over as a bare answer."""
    found = extract(text, _STATED) if len(text) < 4096 else None
    return None if found is None or found.text.strip() == text.strip() else found.text


_STATED = Extraction(order=("last", "answer_is"), markers=("boxed", "final_answer_is"), think=False)


def _flag_forms(g: Reading, a: Reading, context: Context) -> None:
    if g.node is None or a.node is None:
        return
    if a.kind == "list" and a.node.value == "or" and g.kind in SCALARS:
        context.flag("hedge")
    if "big" in a.kinds and "big" not in g.kinds:
        context.flag("unevaluated")
    elif (
        g.kind == "num"
        and a.kind in ("add", "mul", "pow", "fn")
        and (a.kind in _ARITHMETIC or a.node.value in ("fact", "binom", "det"))
    ):
        context.flag("unevaluated")


def _verdict(g: Reading, a: Reading, context: Context, outcome: Outcome, status: str) -> MathVerdict:
    return MathVerdict(
        status=status,
        reason=outcome.reason,
        certified=outcome.certified and outcome.equal is not None,
        gold_norm=g.norm,
        answer_norm=a.norm,
        gold_type=g.kind,
        answer_type=a.kind,
        conversions=outcome.conversions,
        flags=tuple(context.flags),
        seconds=time.perf_counter() - context.start,
    )


_cached = _Cache(_compare, 16384)


def cache_info() -> dict[str, int]:
    """Hits and misses of the verdict cache and of the reading cache."""
    readings = read.cache_info()
    return {
        "verdict_hits": _cached.hits,
        "verdict_misses": _cached.misses,
        "reading_hits": readings.hits,
        "reading_misses": readings.misses,
    }


def clear_caches() -> None:
    _cached.clear()
    read.cache_clear()


__all__ = ["GoldError", "compare", "gold_from_solution", "judge_text", "lru_cache"]
