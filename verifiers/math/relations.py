"""Equality of statements: assignments, equations, inequalities, chains."""

from __future__ import annotations

from collections.abc import Callable

from jurat.verifiers.math import modular, points, polynomials, values
from jurat.verifiers.math.limits import TooLarge, Undefined
from jurat.verifiers.math.names import Assignment, assignment, assignments, is_name, last_exact, stem
from jurat.verifiers.math.sets import INEQUALITIES, NotReal, equal_sets, interval_of, real_set
from jurat.verifiers.math.tree import Node, num, replace, sub, symbols, walk
from jurat.verifiers.math.verdict import Context, Outcome

Judge = Callable[[Node, Node, Context], Outcome]
_FLIP = {
    "<": ">",
    ">": "<",
    "<=": ">=",
    ">=": "<=",
    "=": "=",
    "!=": "!=",
    "~": "~",
    "equiv": "equiv",
    "cong": "cong",
    "perp": "perp",
    "parallel": "parallel",
}


def equal_relations(a: Node, b: Node, context: Context, judge: Judge) -> Outcome:
    """Two relation nodes; `judge` compares parts."""
    named = equal_assignments([a], [b], context, judge)
    if named is not None and named.equal:
        return named
    if set(a.value) <= {"=", "~"} and set(b.value) <= {"=", "~"}:
        equation = equal_equations(a, b, context)
        return equation if named is None or equation.equal else named
    if a.value == b.value and a.value[0] in ("in", "notin"):
        if a.args[0] != b.args[0]:
            return Outcome(False, "different_names")
        return judge(a.args[1], b.args[1], context)
    if (INEQUALITIES | {"in"}) & set(a.value) and (INEQUALITIES | {"in"}) & set(b.value):
        inequality = equal_inequalities(a, b, context, judge)
        if inequality.equal is not None:
            return inequality
    return equal_chains(a, b, context, judge)


def equal_assignments(a: list[Node], b: list[Node], context: Context, judge: Judge) -> Outcome | None:
    """Named values on both sides: equal by name, in any order. None where one side is no assignment."""
    left = assignments(Node("list", ",", tuple(a)))
    right = assignments(Node("list", ",", tuple(b)))
    if left is None or right is None:
        return None
    if len(left) != len(right):
        return Outcome(False, "number_of_values")
    left, right = _values_of_one_name(left, right), _values_of_one_name(right, left)
    unused = list(right)
    certified = True
    for name, value in left:
        for other in unused:
            if other.name != name and (name.kind != "app" or stem(other.name) != stem(name)):
                continue
            outcome = judge(value, other.value, context)
            if outcome.equal:
                certified &= outcome.certified
                unused.remove(other)
                break
        else:
            same_name = any(other.name == name for other in right)
            return Outcome(False, "assigned_value" if same_name else "different_names")
    return Outcome(True, "assigned_values", certified)


def _values_of_one_name(named: list[Assignment], other: list[Assignment]) -> list[Assignment]:
    """x_1 = 1, x_2 = 2 as two values of x, where the other side gives all its values to x."""
    names = {pair.name for pair in other}
    if len(names) != 1 or len({pair.name for pair in named}) < 2:
        return named
    name = next(iter(names))
    if name.kind != "sym" or any(pair.name.kind != "sym" or stem(pair.name) != name.value for pair in named):
        return named
    return [Assignment(name, pair.value) for pair in named]


def equal_equations(a: Node, b: Node, context: Context) -> Outcome:
    """L1 = R1 and L2 = R2 are one equation if the differences are proportional, or have proportional numerators."""
    if len(a.args) != 2 or len(b.args) != 2:
        return Outcome(False, "chains_differ", False)
    scalars = all(
        side.kind not in ("tuple", "set", "list", "matrix", "setop", "space", "cases", "family", "text")
        for side in (*a.args, *b.args)
    )
    if not scalars:
        return Outcome(False, "sides_differ", False)
    f, g = sub(*a.args), sub(*b.args)
    if symbols(f) != symbols(g):
        return Outcome(False, "different_names")
    try:
        same, pure = modular.proportional(f, g, context.seed, context.steps)
    except (TooLarge, Undefined):
        return Outcome(None, "equation_too_large", False)
    if same:
        return Outcome(True, "equation_proportional", False)
    if pure:
        found = polynomials.fractions([f, g], context.steps)
        if found is None:
            polynomial = not any(has_symbolic_denominator(side) for side in (f, g))
            return Outcome(False if polynomial else None, "equation_modular", polynomial)
        (t1, _), (t2, _) = (reduced(*pair) for pair in found)
        if t1 == 0 or t2 == 0:
            return Outcome(bool(t1 == 0 and t2 == 0), "equation_trivial")
        scaled = t1 * t2.leading_coefficient() == t2 * t1.leading_coefficient()  # type: ignore[attr-defined]
        return Outcome(bool(scaled), "equation_exact")
    return points.constant_ratio(f, g, context)


def has_symbolic_denominator(node: Node) -> bool:
    return any(
        (n.kind == "div" and symbols(n.args[1])) or (n.kind == "pow" and symbols(n.args[0]) and n.args[1].kind != "num")
        for n in walk(node)
    )


def are_roots(equation: Node, found: list[Node], context: Context) -> bool:
    """Whether `found` are exactly the distinct roots of a polynomial equation in one unknown with rational
    coefficients."""
    fraction = polynomials.fractions([sub(*equation.args)], context.steps)
    if fraction is None:
        return False
    top, bottom = reduced(*fraction[0])
    unknown = Node("sym", next(iter(symbols(equation))))
    if top.total_degree() < 1 or polynomials.distinct_roots(top) != len(found):  # type: ignore[attr-defined]
        return False
    difference = sub(*equation.args)
    if any(values.equal_values(x, y, context).equal is not False for i, x in enumerate(found) for y in found[:i]):
        return False
    del bottom
    return all(values.is_zero(replace(difference, {unknown: value}), context) for value in found)


def reduced(top: object, bottom: object) -> tuple[object, object]:
    common = top.gcd(bottom)  # type: ignore[attr-defined]
    return (top / common, bottom / common) if common != 0 else (top, bottom)  # type: ignore[operator]


def equal_inequalities(a: Node, b: Node, context: Context, judge: Judge) -> Outcome:
    left, right = symbols(a), symbols(b)
    if left != right:
        return Outcome(False, "different_names")
    try:
        return equal_sets(real_set(a, context), real_set(b, context), context)
    except (NotReal, Undefined):
        pass
    x, y = interval_of(a), interval_of(b)
    if x is not None and y is not None:
        outcome = judge(x, y, context)
        if outcome.equal:
            return outcome
    if len(a.args) == 2 and len(b.args) == 2:
        op_a, op_b = a.value[0], b.value[0]
        f = sub(*a.args)
        for flip in (False, True):
            if (op_a if not flip else _FLIP.get(op_a)) != op_b:
                continue
            g = sub(*b.args)
            try:
                same, _ = modular.proportional(f, g, context.seed, context.steps)
            except (TooLarge, Undefined):
                continue
            if same and _ratio_sign(f, g, context) == (-1 if flip else 1):
                return Outcome(True, "inequality_proportional", False)
    return Outcome(None, "inequality", False)


def _ratio_sign(f: Node, g: Node, context: Context) -> int:
    """Sign of the constant f / g, read at rational points."""
    names = sorted(symbols(f))
    for shift in range(2, 8):
        table = {Node("sym", name): num(3 * i + shift, 1) for i, name in enumerate(names)}
        x, y = points.sign_of(replace(f, table), context), points.sign_of(replace(g, table), context)
        if x and y:
            return x * y
    return 0


def equal_chains(a: Node, b: Node, context: Context, judge: Judge) -> Outcome:
    """f(2) < f(1) < f(4), a | b, x = y mod n: side by side, either way round."""
    if len(a.args) != len(b.args):
        return Outcome(False, "chain_length", False)
    for operators, sides in (
        (b.value, b.args),
        (tuple(_FLIP.get(o, "") for o in reversed(b.value)), tuple(reversed(b.args))),
    ):
        if operators == a.value:
            outcomes = [judge(x, y, context) for x, y in zip(a.args, sides, strict=True)]
            if all(o.equal for o in outcomes):
                return Outcome(True, "same_chain", all(o.certified for o in outcomes))
    return Outcome(False, "chains_differ", False)


def chain_value(node: Node) -> Node | None:
    """The value that a chain of closed expressions ends in: 7 + 5 = 12. None for an equation in unknowns."""
    if node.kind != "rel" or not set(node.value) <= {"=", "~"} or ("=" not in node.value and len(node.args) > 2):
        return None
    last = last_exact(node)
    if symbols(last) or any(symbols(side) for side in node.args[1:]):
        return None
    if symbols(node.args[0]) and len(node.args) < 3 and not is_name(node.args[0]):
        return None
    return last


__all__ = ["assignment", "chain_value", "equal_assignments", "equal_relations"]
