"""Equality of two scalars, by the cheapest method that decides."""

from __future__ import annotations

from typing import Any

from jurat.verifiers.math import modular, points, polynomials
from jurat.verifiers.math.backend import FLINT
from jurat.verifiers.math.ball import Evaluator, NoValue, Precision, disjoint
from jurat.verifiers.math.exact import rational
from jurat.verifiers.math.limits import MAX_PROOF_BITS, PRECISIONS, TooLarge, Undefined
from jurat.verifiers.math.separation import separation
from jurat.verifiers.math.tree import Node, sub, symbols, walk
from jurat.verifiers.math.verdict import Context, Outcome

_ATOMIC = frozenset(("sym", "const", "app"))


def equal_values(a: Node, b: Node, context: Context) -> Outcome:
    """Whether two scalar trees have one value.

    Undecided is left to trees with a limit, an integral or a sum, and to enclosures that stay too wide: an expression
    without a value (a set under a sine, a function nobody defined) is not equal to anything but itself, so that
    nonsense is no way out of a verdict.

    Raises:
        Undefined: one of them has none. TooLarge: the bounds of `limits.py`.
    """
    outcome = _equal_values(a, b, context)
    if (
        outcome.equal is None
        and outcome.reason in _VALUELESS
        and not any(n.kind == "big" for t in (a, b) for n in walk(t))
    ):
        return Outcome(False, outcome.reason, False)
    return outcome


_VALUELESS = frozenset(("no_value", "no_method", "no_points", "unknown_function"))


def _equal_values(a: Node, b: Node, context: Context) -> Outcome:
    steps = context.steps
    try:
        left, right = rational(a, steps), rational(b, steps)
    except TooLarge:
        left = right = None
    if left is not None and right is not None:
        return Outcome(bool(left == right), "rational_exact")
    infinite = equal_infinities(a, b)
    if infinite is not None:
        return infinite
    names_a, names_b = symbols(a), symbols(b)
    if not names_a and not names_b:
        if a == b:
            return Outcome(True, "same_tree", not _undefined(a, context))
        return _closed(a, b, left, right, context)
    return _symbolic(a, b, context)


def equal_infinities(a: Node, b: Node) -> Outcome | None:
    signs = [infinity_sign(a), infinity_sign(b)]
    if signs == [0, 0]:
        return None
    return Outcome(signs[0] == signs[1], "infinity")


def infinity_sign(node: Node) -> int:
    """1 or -1 for plus or minus infinity, 2 for an expression that holds one, 0 for a finite expression."""
    if node.kind == "const":
        return 1 if node.value == "inf" else 0
    if node.kind == "neg" and node.args[0].kind == "const" and node.args[0].value == "inf":
        return -1
    if node.kind in ("num", "sym"):
        return 0
    return (
        2
        if any(n.kind == "const" and n.value == "inf" for n in walk(node) if n is not node) and node.kind != "big"
        else 0
    )


def _undefined(node: Node, context: Context) -> bool:
    """Raises Undefined for 1/0; True where no method tells."""
    try:
        with Precision(PRECISIONS[0]):
            Evaluator(context.steps)(node)
    except (NoValue, OverflowError):
        return True
    return False


def _closed(a: Node, b: Node, left: Any, right: Any, context: Context) -> Outcome:
    """Two numbers: balls at rising precision, then a separation bound."""
    bases = ("10", "e") if _has_log(a) or _has_log(b) else ("10",)
    outcome = Outcome(None, "no_value", False)
    for base in bases:
        try:
            outcome = _closed_at(a, b, base, context)
        except (NoValue, OverflowError):
            outcome = _structural(a, b, context)
        if outcome.equal:
            if base != bases[0]:
                context.flag("log_base")
            break
    return outcome


def _closed_at(a: Node, b: Node, log_base: str, context: Context) -> Outcome:
    evaluate = Evaluator(context.steps, log_base=log_base)
    wide, huge = True, False
    for bits in PRECISIONS:
        with Precision(bits):
            x, y = evaluate(a), evaluate(b)
            if disjoint(x, y):
                return Outcome(False, f"ball_disjoint_{bits}", FLINT)
            wide = not (x.is_finite() and y.is_finite()) or not _tight(x, y, bits)
            huge = not wide and float_exponent(x) > bits - 100
        if bits == PRECISIONS[0] and not wide:
            bound = separation(sub(a, b), context.steps) if FLINT else None
            if bound is not None and bound <= MAX_PROOF_BITS:
                return _proved(a, b, bound, evaluate)
    if wide or huge:  # too large for its units to be seen at any precision tried
        same, pure = modular.difference(a, b, context.seed, context.steps)
        if same or pure:
            return Outcome(same, "identity_modular" if same else "residues_differ", not same)
        return Outcome(None, "balls_too_wide", False)
    return Outcome(True, f"numeric_{PRECISIONS[-1]}", False)


def _tight(x: Any, y: Any, bits: int) -> bool:
    """Whether the enclosures are narrow for the precision, relative to the values."""
    size = max(float_exponent(x), float_exponent(y))
    return float_exponent((x - y).rad() if hasattr(x, "rad") else x - y) < max(size, -bits // 2) - bits // 3


def float_exponent(x: Any) -> int:
    """About log2 |x|, as an integer; very negative for zero."""
    upper = abs(x).upper() if hasattr(abs(x), "upper") else abs(x)
    mantissa, exponent = upper.man_exp() if upper.is_finite() else (1, 10**9)
    return int(mantissa).bit_length() + int(exponent) if mantissa else -(10**9)


def _proved(a: Node, b: Node, bound: int, evaluate: Evaluator) -> Outcome:
    """The difference of two algebraic numbers at the precision where small means zero."""
    bits = bound + 64
    for _ in range(3):
        with Precision(bits):
            gap = evaluate(a) - evaluate(b)
            exponent = float_exponent(gap)
            if not gap.contains(0):
                return Outcome(False, f"ball_disjoint_{bits}")
            if exponent < -bound:
                return Outcome(True, f"separation_bound_{bound}")
        bits += exponent + bound + 64
        if bits > 4 * MAX_PROOF_BITS:
            break
    return Outcome(True, "numeric_separation", False)


def _has_log(node: Node) -> bool:
    return any(n.kind == "fn" and n.value == "log" for n in walk(node))


def _structural(a: Node, b: Node, context: Context) -> Outcome:
    same, _ = modular.difference(a, b, context.seed, context.steps)
    return Outcome(True, "identity_modular", False) if same else Outcome(None, "no_method", False)


def _symbolic(a: Node, b: Node, context: Context) -> Outcome:
    same, pure = modular.difference(a, b, context.seed, context.steps)
    if pure:
        if not same:
            return Outcome(False, "rational_function_modular")
        found = polynomials.fractions([a, b], context.steps)
        if found is None:
            return Outcome(True, "schwartz_zippel_120", False)
        (t1, b1), (t2, b2) = found
        return Outcome(bool(t1 * b2 == t2 * b1), "rational_function_exact")
    if same:
        return Outcome(True, "identity_modular", False)
    if a.kind in _ATOMIC and b.kind in _ATOMIC and a.kind == b.kind:
        return Outcome(False, "different_names")
    return points.agree(a, b, context)


def approximates(decimal: Node, exact: Node, digits: int, context: Context) -> bool:
    """Whether a long decimal literal is a rounding of an exact value: half a unit of its last place, or the noise of
    a double."""
    p, q, places = decimal.value
    if places is None:
        return False
    shown = len(str(abs(p) * 10**places // q))
    if places > 1000 or max(shown, 0) < digits:
        return False
    try:
        value = rational(exact, context.steps)
        with Precision(192):
            true = Evaluator(context.steps)(exact)
            if not true.is_finite():
                return False
            literal = Evaluator(context.steps)(decimal)
            gap = abs(true - literal)
            half = Evaluator(context.steps)(Node("num", (1, 2 * 10**places, None)))
            if not gap > abs(half):
                return True
            if 15 <= shown <= 18:
                return bool(gap < abs(true) * abs(Evaluator(context.steps)(Node("num", (1, 4 * 10**14, None)))))
    except (NoValue, Undefined, TooLarge, OverflowError):
        return False
    del value
    return False


def is_zero(node: Node, context: Context) -> bool:
    """Proved or probable zero; False where it is not decided."""
    return equal_values(node, Node("num", (0, 1, None)), context).equal is True
