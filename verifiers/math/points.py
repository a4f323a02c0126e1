"""Expressions with symbols at seeded random points, by balls.

One real point where both are defined and their enclosures are disjoint proves that they differ. Agreement at every
point is numerical evidence. The seed is a hash of both texts, so that a verdict repeats.
"""

from __future__ import annotations

import random
from typing import Any

from jurat.verifiers.math.backend import FLINT
from jurat.verifiers.math.ball import Evaluator, NoValue, Precision, disjoint
from jurat.verifiers.math.exact import rational
from jurat.verifiers.math.limits import Undefined
from jurat.verifiers.math.tree import Node, symbols, walk
from jurat.verifiers.math.verdict import Context, Outcome

if FLINT:
    from flint import acb, fmpq
else:
    from jurat.verifiers.math.slow_ball import acb, fmpq

NUM_POINTS = 6
BITS = 160


def agree(a: Node, b: Node, context: Context) -> Outcome:
    """Equality of two expressions over the reals (over the integers, for symbols under factorials and the like)."""
    names = sorted(symbols(a) | symbols(b))
    if any(n.kind == "app" for tree in (a, b) for n in walk(tree)):
        return Outcome(None, "unknown_function", False)
    integers = integer_names(a) | integer_names(b)
    has_log = any(n.kind == "fn" and n.value == "log" for tree in (a, b) for n in walk(tree))
    for base in ("10", "e") if has_log else ("10",):
        outcome = _agree(a, b, names, integers, base, context)
        if outcome.equal:
            if base == "e":
                context.flag("log_base")
            break
    return outcome


def _agree(a: Node, b: Node, names: list[str], integers: frozenset[str], base: str, context: Context) -> Outcome:
    rng = random.Random(context.seed)
    positive = _domain(a, b, names, integers, base, rng, 1, context)
    if positive.equal is not True:
        return positive
    negative = _domain(a, b, names, integers, base, rng, -1, context)
    if negative.equal is False:
        return negative
    if negative.equal is None and not integers:
        context.flag("positive_domain")
    return positive


def _domain(
    a: Node,
    b: Node,
    names: list[str],
    integers: frozenset[str],
    base: str,
    rng: random.Random,
    sign: int,
    context: Context,
) -> Outcome:
    for at in _boundaries(a, b, names) if sign > 0 else ():
        evaluate = Evaluator(context.steps, at, base)
        try:
            with Precision(BITS):
                if disjoint(evaluate(a), evaluate(b)):
                    return Outcome(False, "point_disjoint", FLINT)
        except (NoValue, OverflowError, Undefined):
            return Outcome(None, "no_value", False)
    agreed = tried = 0
    while agreed < NUM_POINTS and tried < 3 * NUM_POINTS:
        tried += 1
        try:
            with Precision(BITS):
                at = {name: _draw(name in integers, tried, rng, sign) for name in names}
                evaluate = Evaluator(context.steps, at, base, real=sign < 0)
                x, y = evaluate(a), evaluate(b)
                if not (x.is_finite() and y.is_finite()):
                    continue
                if sign < 0 and not (x.imag.is_zero() and y.imag.is_zero()):
                    continue
                if disjoint(x, y):
                    return Outcome(False, "point_disjoint", FLINT)
                if narrow(x) and narrow(y):
                    agreed += 1
        except (NoValue, OverflowError):
            return Outcome(None, "no_value", False)
        except Undefined:
            continue
    if agreed < NUM_POINTS // 2:
        return Outcome(None, "no_points", False)
    return Outcome(True, f"identity_numeric_{agreed}", False)


def _boundaries(a: Node, b: Node, names: list[str]) -> list[dict[str, Any]]:
    """The numbers that conditions of cases compare the one symbol with, and numbers on both sides of each."""
    if len(names) != 1 or not any(tree.kind == "cases" for tree in (a, b)):
        return []
    found = {
        n.value[:2]
        for tree in (a, b)
        for part in walk(tree)
        if part.kind == "rel"
        for n in walk(part)
        if n.kind == "num"
    }
    return [
        {names[0]: acb(fmpq(7 * p + shift * q, 7 * q))} for p, q in sorted(found)[:8] for shift in (0, 1, -1, 40, -40)
    ]


def narrow(x: Any) -> bool:
    """Relative width below 2^-40."""
    gap = x.rel_accuracy_bits() if hasattr(x, "rel_accuracy_bits") else BITS
    return bool(gap > 40 or (abs(x) < 1e-20))


def _draw(integer: bool, tried: int, rng: random.Random, sign: int) -> Any:
    if integer:
        return acb(rng.randint(2, 4 + 3 * tried))
    return acb(fmpq(sign * rng.randint(1, 40 + 40 * (tried % 3)), rng.choice((7, 11, 13, 17, 19, 23, 29))))


def integer_names(node: Node) -> frozenset[str]:
    """Symbols that can only mean integers here: under factorials, binomials, floors, bounds of sums, exponents of
    negative numbers."""
    found: frozenset[str] = frozenset()
    for part in walk(node):
        if part.kind == "fn" and part.value in ("fact", "fact2", "binom", "gcd", "lcm"):
            found |= symbols(part)
        elif part.kind == "big":
            found |= symbols(part.args[1]) | symbols(part.args[2])
        elif part.kind == "pow" and symbols(part.args[1]) and not symbols(part.args[0]) and _is_negative(part.args[0]):
            found |= symbols(part.args[1])
    return found


def _is_negative(node: Node) -> bool:
    if node.kind == "neg":
        return True
    return node.kind == "num" and node.value[0] < 0


def constant_ratio(f: Node, g: Node, context: Context) -> Outcome:
    """Whether f / g is one non-zero constant at every point: equations f = 0 and g = 0 are then the same."""
    names = sorted(symbols(f) | symbols(g))
    if any(n.kind == "app" for tree in (f, g) for n in walk(tree)) or not names:
        return Outcome(None, "unknown_function", False)
    integers = integer_names(f) | integer_names(g)
    rng = random.Random(context.seed)
    first: Any = None
    agreed = 0
    for tried in range(1, 3 * NUM_POINTS):
        try:
            with Precision(BITS):
                at = {name: _draw(name in integers, tried, rng, 1) for name in names}
                evaluate = Evaluator(context.steps, at)
                x, y = evaluate(f), evaluate(g)
                if not (x.is_finite() and y.is_finite()) or x.contains(0) or y.contains(0):
                    continue
                ratio = x / y
                if first is None:
                    first = ratio
                elif disjoint(first, ratio):
                    return Outcome(False, "ratio_not_constant", FLINT)
                agreed += 1
        except (NoValue, OverflowError):
            return Outcome(None, "no_value", False)
        except Undefined:
            continue
        if agreed >= NUM_POINTS:
            break
    if agreed < NUM_POINTS // 2:
        return Outcome(None, "no_points", False)
    return Outcome(True, f"equation_numeric_{agreed}", False)


def sign_of(node: Node, context: Context) -> int | None:
    """Sign of a closed real expression, or None."""
    value = rational(node, context.steps)
    if value is not None:
        return int(value > 0) - int(value < 0)
    try:
        for bits in (64, 256):
            with Precision(bits):
                x = Evaluator(context.steps)(node)
                if x.imag.contains(0) and (x.real > 0 or x.real < 0):
                    return 1 if x.real > 0 else -1
    except (NoValue, Undefined, OverflowError):
        return None
    return None
