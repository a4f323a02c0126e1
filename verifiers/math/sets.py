"""Sets of real numbers: unions of intervals and points with exact ends.

A set is its sorted ends and one truth value for each piece: before the first end, at it, between it and the next, ...
Boolean operations work on the pieces once two sets have the same ends.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

from jurat.verifiers.math import polynomials
from jurat.verifiers.math.backend import FLINT
from jurat.verifiers.math.ball import Evaluator, NoValue, Precision
from jurat.verifiers.math.limits import MAX_ITEMS, TooLarge, Undefined
from jurat.verifiers.math.names import is_name
from jurat.verifiers.math.points import sign_of
from jurat.verifiers.math.tree import INF, Node, mul, neg, num, replace, sub, symbols
from jurat.verifiers.math.values import equal_values, infinity_sign
from jurat.verifiers.math.verdict import Context, Outcome

INEQUALITIES = frozenset(("<", ">", "<=", ">=", "!="))
_T = Node("sym", " t")


class NotReal(Exception):
    """The statement is no set of real numbers that this module can read."""


class End(NamedTuple):
    """An end point: its expression (None for an irrational root) and a float near it."""

    node: Node | None
    near: float
    ball: Any = None


class RealSet(NamedTuple):
    ends: tuple[End, ...]
    pieces: tuple[bool, ...]
    """2 * len(ends) + 1 truth values."""


NOTHING = RealSet((), (False,))
REALS = RealSet((), (True,))


def equal_sets(a: RealSet, b: RealSet, context: Context) -> Outcome:
    a, b = tidy(a), tidy(b)
    if a.pieces != b.pieces or len(a.ends) != len(b.ends):
        return Outcome(False, "interval_pieces")
    certified = True
    for x, y in zip(a.ends, b.ends, strict=True):
        outcome = _same_end(x, y, context)
        if not outcome.equal:
            return Outcome(outcome.equal, "interval_ends", outcome.certified)
        certified &= outcome.certified
    return Outcome(True, "interval_algebra", certified)


def tidy(s: RealSet) -> RealSet:
    """Without ends at which nothing changes."""
    ends: list[End] = []
    pieces = [s.pieces[0]]
    for i, end in enumerate(s.ends):
        at, after = s.pieces[2 * i + 1], s.pieces[2 * i + 2]
        if not (pieces[-1] == at == after):
            ends.append(end)
            pieces += [at, after]
    return RealSet(tuple(ends), tuple(pieces))


def combine(a: RealSet, b: RealSet, operation: Callable[[bool, bool], bool], context: Context) -> RealSet:
    ends: list[End] = []
    i = j = 0
    left, right = [a.pieces[0]], [b.pieces[0]]
    while i < len(a.ends) or j < len(b.ends):
        if len(ends) > MAX_ITEMS:
            raise TooLarge("interval_ends")
        order = -1 if j >= len(b.ends) else 1 if i >= len(a.ends) else _order(a.ends[i], b.ends[j], context)
        ends.append(a.ends[i] if order <= 0 else b.ends[j])
        if order <= 0:
            left += a.pieces[2 * i + 1 : 2 * i + 3]
            i += 1
        else:
            left += [left[-1], left[-1]]
        if order >= 0:
            right += b.pieces[2 * j + 1 : 2 * j + 3]
            j += 1
        else:
            right += [right[-1], right[-1]]
    return RealSet(tuple(ends), tuple(operation(x, y) for x, y in zip(left, right, strict=True)))


def complement(s: RealSet) -> RealSet:
    return RealSet(s.ends, tuple(not piece for piece in s.pieces))


def _same_end(x: End, y: End, context: Context) -> Outcome:
    if abs(x.near - y.near) > 1e-6 * max(1.0, abs(x.near), abs(y.near)):
        return Outcome(False, "ends_apart")
    if x.node is not None and y.node is not None:
        return equal_values(x.node, y.node, context)
    with Precision(192):
        return Outcome(bool(_ball(x, context).overlaps(_ball(y, context))), "ends_numeric", False)


def _ball(end: End, context: Context) -> Any:
    return end.ball if end.node is None else Evaluator(context.steps)(end.node)


def _order(x: End, y: End, context: Context) -> int:
    if abs(x.near - y.near) > 1e-6 * max(1.0, abs(x.near), abs(y.near)):
        return -1 if x.near < y.near else 1
    if _same_end(x, y, context).equal:
        return 0
    sign = sign_of(sub(x.node, y.node), context) if x.node is not None and y.node is not None else None
    if sign is None:
        raise NotReal
    return sign


def end_at(node: Node, context: Context) -> End:
    try:
        with Precision(128):
            value = Evaluator(context.steps)(node)
            if not value.is_finite() or not value.imag.contains(0):
                raise NotReal
            return End(node, float(value.real.mid()))
    except (NoValue, OverflowError) as error:
        raise NotReal from error


def interval(low: Node, high: Node, delimiters: str, context: Context) -> RealSet:
    below, above = infinity_sign(low), infinity_sign(high)
    if below not in (0, -1) or above not in (0, 1):
        raise NotReal
    if (below and delimiters[0] == "[") or (above and delimiters[1] == "]"):
        if delimiters not in ("[]", "[)", "(]"):
            raise NotReal
        if (below and delimiters[0] == "[") or (above and delimiters[1] == "]"):
            raise NotReal
    left = REALS if below else ray(low, ">=" if delimiters[0] == "[" else ">", context)
    right = REALS if above else ray(high, "<=" if delimiters[1] == "]" else "<", context)
    if not below and not above:
        order = _order(left.ends[0], right.ends[0], context)
        if order > 0 or (order == 0 and delimiters != "[]"):
            raise NotReal
    return combine(left, right, lambda x, y: x and y, context)


def ray(end: Node, operator: str, context: Context) -> RealSet:
    """{t : t operator end}"""
    pieces = {"<": (True, False, False), "<=": (True, True, False), ">": (False, False, True),
    ">=": (False, True, True),
              "=": (False, True, False), "!=": (True, False, True)}[operator]  # fmt: skip
    return RealSet((end_at(end, context),), pieces)


def real_set(node: Node, context: Context) -> RealSet:
    """The set that a statement describes.

    Raises:
        NotReal: it describes none that this module can read.
    """
    kind, args = node.kind, node.args
    if kind == "tuple" and len(args) == 2 and node.value in ("()", "[]", "[)", "(]"):
        return interval(args[0], args[1], node.value, context)
    if kind == "space":
        if node.value == "R":
            return REALS
        if node.value == "empty":
            return NOTHING
        raise NotReal
    if kind == "set":
        total = NOTHING
        for arg in args:
            total = combine(total, ray(arg, "=", context), lambda x, y: x or y, context)
        return total
    if kind == "setop":
        left, right = real_set(args[0], context), real_set(args[1], context)
        if node.value == "cup":
            return combine(left, right, lambda x, y: x or y, context)
        if node.value == "cap":
            return combine(left, right, lambda x, y: x and y, context)
        return combine(left, right, lambda x, y: x and not y, context)
    if kind == "rel":
        if node.value == ("in",):
            return real_set(args[1], context)
        if node.value == ("notin",):
            return complement(real_set(args[1], context))
        return relation_set(node, context)
    if kind == "list" and len(args) > 1:
        return listed(node, context)
    raise NotReal


def listed(node: Node, context: Context) -> RealSet:
    """Inequalities joined by "or" (union), "and" (both at once) or commas (both; a union where nothing satisfies
    both). Intervals are united whatever joins them: "increasing on (0, 1) and (2, 3)"."""
    if not all(
        (arg.kind == "rel" and INEQUALITIES & set(arg.value)) or arg.kind == "list" or is_interval(arg)
        for arg in node.args
    ):
        raise NotReal
    sets = [real_set(arg, context) for arg in node.args]
    union = both = sets[0]
    for other in sets[1:]:
        union = combine(union, other, lambda x, y: x or y, context)
        both = combine(both, other, lambda x, y: x and y, context)
    if node.value == "or" or is_interval(node.args[0]) or (node.value == "," and not any(tidy(both).pieces)):
        return union
    return both


def is_interval(node: Node) -> bool:
    return node.kind == "setop" or (
        node.kind == "tuple"
        and len(node.args) == 2
        and (node.value in ("[)", "(]") or any(infinity_sign(a) for a in node.args))
    )


def relation_set(node: Node, context: Context) -> RealSet:
    variable = unknown(node)
    if variable is None or not INEQUALITIES & set(node.value):
        raise NotReal
    node = replace(node, {variable: _T})
    if symbols(node) != {_T.value}:
        raise NotReal
    total = REALS
    for left, operator, right in zip(node.args, node.value, node.args[1:], strict=False):
        if operator not in INEQUALITIES and operator != "=":
            raise NotReal
        total = combine(total, solve(left, operator, right, context), lambda x, y: x and y, context)
    return total


def unknown(node: Node) -> Node | None:
    """What an inequality is about: its only symbol, or the one side that is a name (f(x))."""
    named = [side for side in node.args if is_name(side) and side.kind != "const" and side.kind != "fn"]
    if len(set(named)) == 1 and all(not symbols(side) for side in node.args if side != named[0]):
        return named[0]
    names = symbols(node)
    return Node("sym", next(iter(names))) if len(names) == 1 else None


_FLIP = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}


def solve(left: Node, operator: str, right: Node, context: Context) -> RealSet:
    """{t : left operator right} for one unknown: isolated, linear, |linear|, or a rational function with rational "
    "coefficients."""
    if left == _T and _T.value not in symbols(right):
        return excluded(right, operator, context)
    if right == _T and _T.value not in symbols(left):
        return excluded(left, _FLIP[operator], context)
    for a, b, op in ((left, right, operator), (right, left, _FLIP[operator])):
        if a.kind == "fn" and a.value == "abs" and _T.value not in symbols(b):
            inner = a.args[0]
            above, below = solve(inner, op, b, context), solve(inner, _FLIP[op], neg(b), context)
            both = op in ("<", "<=", "!=")
            if (sign_of(b, context) or 0) < 0:
                return NOTHING if op in ("<", "<=", "=") else REALS
            return combine(above, below, (lambda x, y: x and y) if both else (lambda x, y: x or y), context)
    difference = sub(left, right)
    at = [replace(difference, {_T: num(k)}) for k in (0, 1)]
    slope = sub(at[1], at[0])
    try:
        if equal_values(difference, Node("add", None, (mul(slope, _T), at[0])), context).equal:
            sign = sign_of(slope, context)
            if not sign:
                raise NotReal
            return ray(neg(Node("div", None, (at[0], slope))), operator if sign > 0 else _FLIP[operator], context)
    except (Undefined, TooLarge):
        pass
    return by_roots(difference, operator, context)


def excluded(end: Node, operator: str, context: Context) -> RealSet:
    """t operator end, where end may be infinite or a list of values (t != 1, 2)."""
    sign = infinity_sign(end)
    if sign:
        if (operator in ("<", "<=", "!=") and sign == 1) or (operator in (">", ">=", "!=") and sign == -1):
            return REALS
        raise NotReal
    values = end.args if end.kind in ("list", "set") else (end,)
    total = REALS if operator == "!=" else NOTHING
    if len(values) > 1 and operator not in ("!=", "="):
        raise NotReal
    for value in values:
        piece = ray(value, operator, context)
        total = combine(total, piece, (lambda x, y: x and y) if operator == "!=" else (lambda x, y: x or y), context)
    return total


def by_roots(difference: Node, operator: str, context: Context) -> RealSet:
    """Signs of a rational function between its real roots and poles."""
    found = polynomials.fractions([difference], context.steps)
    if found is None or not FLINT:
        raise NotReal
    roots: list[tuple[End, bool]] = []
    top, bottom = found[0]
    for poly, pole in ((top, False), (bottom, True)):
        for ball in polynomials.real_roots(poly, context.steps):
            node = polynomials.rational_near(ball, poly)
            roots.append((End(node, float(ball.mid()), ball), pole))
    roots.sort(key=lambda r: r[0].near)
    ends: list[End] = []
    poles: list[bool] = []
    for end, pole in roots:
        if ends and _order(ends[-1], end, context) == 0:
            poles[-1] |= pole
        else:
            ends.append(end)
            poles.append(pole)
    nears = [end.near for end in ends]
    samples = [0.0] if not ends else [nears[0] - 1, *((x + y) / 2 for x, y in pairwise(nears)), nears[-1] + 1]
    pieces: list[bool] = []
    for i, sample in enumerate(samples):
        if i:
            pieces.append(not poles[i - 1] and operator in ("<=", ">=", "="))
        p, q = sample.as_integer_ratio()
        sign = sign_of(replace(difference, {_T: num(p, q)}), context)
        if sign is None:
            raise NotReal
        pieces.append({"<": sign < 0, "<=": sign < 0, ">": sign > 0, ">=": sign > 0, "=": False, "!=": True}[operator])
    return RealSet(tuple(ends), tuple(pieces))


def interval_of(node: Node) -> Node | None:
    """a < x <= b as the interval (a, b], for symbolic ends; None for anything else."""
    if node.kind != "rel":
        return None
    if node.value == ("in",) and is_name(node.args[0]):
        return node.args[1]
    if len(node.args) == 3 and is_name(node.args[1]):
        low, high = node.args[0], node.args[2]
        ops = node.value
        if set(ops) <= {">", ">="}:
            low, high, ops = high, low, tuple(_FLIP[o] for o in reversed(ops))
        if set(ops) <= {"<", "<="}:
            return Node("tuple", ("[" if ops[0] == "<=" else "(") + ("]" if ops[1] == "<=" else ")"), (low, high))
    if len(node.args) == 2 and node.value[0] in ("<", "<=", ">", ">="):
        left, right = node.args
        op = node.value[0]
        if not is_name(left) and is_name(right):
            left, right, op = right, left, _FLIP[op]
        if is_name(left) and not (symbols(left) & symbols(right)):
            if op in ("<", "<="):
                return Node("tuple", "(" + ("]" if op == "<=" else ")"), (neg(INF), right))
            return Node("tuple", ("[" if op == ">=" else "(") + ")", (right, INF))
    return None
