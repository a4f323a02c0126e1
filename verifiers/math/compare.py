"""Equality of two trees of any kind: the type gate, the containers, and the search through the conversion table."""

from __future__ import annotations

from collections.abc import Sequence

from jurat.verifiers.math import linear, sets
from jurat.verifiers.math.convert import rewrites
from jurat.verifiers.math.exact import rational
from jurat.verifiers.math.families import equal_families
from jurat.verifiers.math.limits import TooLarge
from jurat.verifiers.math.names import assignments, stem
from jurat.verifiers.math.relations import equal_assignments, equal_relations
from jurat.verifiers.math.signs import has_signs
from jurat.verifiers.math.tree import EMPTY, SCALARS, Node
from jurat.verifiers.math.values import equal_infinities, equal_values
from jurat.verifiers.math.verdict import Context, Outcome

_MAX_CONVERSIONS = 4
_MAX_PAIRINGS = 1600
_PLAIN = frozenset(("num", "const", "sym", "add", "mul", "neg", "pow", "div", "fn", "app", "big"))


def equal(a: Node, b: Node, context: Context, depth: int = 0) -> Outcome:
    """Whether gold `a` and answer `b` are equal, directly or after conversions.

    Raises:
        Undefined, TooLarge: of the scalar stages.
    """
    context.steps.spend()
    if depth == 0 and "matrix" in context.kinds:
        a, b = linear.evaluated(a, context), linear.evaluated(b, context)
    direct = same_kind(a, b, context)
    if direct.equal or depth >= _MAX_CONVERSIONS:
        return direct
    best = direct
    for name, x, y in rewrites(a, b, context):
        if (x, y) == (a, b):
            continue
        if x is y:  # the conversion itself has decided
            return Outcome(True, name, False, (name,))
        if x.kind == y.kind == "realset":
            found = sets.equal_sets(x.value, y.value, context)
        else:
            found = equal(x, y, context, depth + 1)
        if found.equal:
            return found._replace(conversions=(name, *found.conversions))
        if best.reason == "type_mismatch" or (best.equal is None and found.equal is False and found.certified):
            best = found._replace(conversions=(name, *found.conversions))
    return best


def same_kind(a: Node, b: Node, context: Context) -> Outcome:
    """Equality without conversion; `type_mismatch` for two kinds that are not compared."""
    x, y = a.kind, b.kind
    if x in _PLAIN and y in _PLAIN:
        if "pm" in context.kinds and (has_signs(a) or has_signs(b)):
            return Outcome(a == b, "signs_differ" if a != b else "same_tree", a == b)
        return equal_values(a, b, context)
    if (
        (x in _PLAIN or y in _PLAIN)
        and (infinite := equal_infinities(a, b)) is not None
        and x in SCALARS
        and y in SCALARS
    ):
        return infinite
    if x == y:
        handler = _HANDLERS.get(x)
        if handler is not None:
            return handler(a, b, context)
        return Outcome(a == b, "same_tree" if a == b else f"{x}_differs", a == b)
    if {x, y} == {"set", "space"} or {x, y} == {"space", "list"}:
        return Outcome(False, "finite_set")
    return Outcome(False, "type_mismatch", False)


def _inner(a: Node, b: Node, context: Context) -> Outcome:
    return equal(a.args[0], b.args[0], context, 1)


def _quantity(a: Node, b: Node, context: Context) -> Outcome:
    if a.value != b.value:
        return Outcome(False, "unit_mismatch")
    return _inner(a, b, context)


def _based(a: Node, b: Node, context: Context) -> Outcome:
    if a.value == b.value:
        return Outcome(True, "base_digits")
    same = rational(a, context.steps) == rational(b, context.steps)
    return Outcome(bool(same), "base_value")


def _tuple(a: Node, b: Node, context: Context) -> Outcome:
    if a.value != b.value:
        return Outcome(False, "delimiters")
    if len(a.args) != len(b.args):
        return Outcome(False, "length")
    if len(a.args) == 2 and a.value in ("(]", "[)"):
        for x, y in zip(a.args, b.args, strict=True):
            outcome = equal(x, y, context, 3)
            if not outcome.equal:
                return outcome
        return Outcome(True, "interval_ends")
    return _ordered(a.args, b.args, context)


def _ordered(xs: Sequence[Node], ys: Sequence[Node], context: Context) -> Outcome:
    certified, conversions, reason = True, (), "elements"
    undecided: Outcome | None = None
    for x, y in zip(xs, ys, strict=True):
        outcome = equal(x, y, context, 1)
        if outcome.equal is False:
            return Outcome(False, f"element:{outcome.reason}", outcome.certified)
        if outcome.equal is None:
            undecided = outcome
        certified &= outcome.certified
        conversions += outcome.conversions  # type: ignore[assignment]
        reason = outcome.reason
    if undecided is not None:
        return undecided
    return Outcome(True, f"elements:{reason}", certified, tuple(dict.fromkeys(conversions)))


def _list(a: Node, b: Node, context: Context) -> Outcome:
    if any(n.kind == "dots" for n in (*a.args, *b.args)):
        if len(a.args) != len(b.args):
            return Outcome(False, "sequences_differ", False)
        return _ordered(a.args, b.args, context)
    if "or" in (a.value, b.value) and a.value != b.value and (_at_once(a) or _at_once(b)):
        return Outcome(False, "and_or")
    named = equal_assignments(list(a.args), list(b.args), context, _judge)
    if named is not None:
        return named
    if all(n.kind in ("rel", "list") or sets.is_interval(n) for n in (*a.args, *b.args)):
        try:
            return sets.equal_sets(sets.real_set(a, context), sets.real_set(b, context), context)
        except sets.NotReal:
            pass
        ordered = any(n.kind == "rel" and sets.INEQUALITIES & set(n.value) for n in a.args)
        if ordered and "or" in (a.value, b.value) and a.value != b.value:
            return Outcome(False, "and_or")
    xs, ys = a.args, b.args
    if len(xs) != len(ys):  # solutions said twice
        distinct = _distinct(xs, context), _distinct(ys, context)
        if min(map(len, distinct)) > 1:
            xs, ys = distinct
    return _unordered(xs, ys, context)


def _at_once(node: Node) -> bool:
    """Whether the parts of a list hold together, so that "or" would say something else: propositions (p and q), or
    values of different names (x = 1 and y = 2). Values of one name are alternatives, however they are joined."""
    if node.value == "and" and all(arg.kind == "sym" for arg in node.args):
        return True
    named = assignments(node) if node.value != "or" and all(arg.kind == "rel" for arg in node.args) else None
    return named is not None and len({stem(name) for name, _ in named}) > 1


def _set(a: Node, b: Node, context: Context) -> Outcome:
    return _unordered(_distinct(a.args, context), _distinct(b.args, context), context)


def _distinct(args: Sequence[Node], context: Context) -> tuple[Node, ...]:
    seen: dict[object, Node] = {}
    for arg in args:
        seen.setdefault(_key(arg, context), arg)
    return tuple(seen.values())


def _unordered(xs: Sequence[Node], ys: Sequence[Node], context: Context) -> Outcome:
    """A pairing of equal elements, by exact key first; equality is transitive, so a greedy pairing is a right one."""
    if len(xs) != len(ys):
        return Outcome(False, "number_of_elements")
    certified, conversions = True, ()
    keyed: dict[object, list[Node]] = {}
    for y in ys:
        keyed.setdefault(_key(y, context), []).append(y)
    rest: list[Node] = []
    for x in xs:
        same = keyed.get(_key(x, context))
        if same:
            same.pop()
        else:
            rest.append(x)
    left = [y for ys_of in keyed.values() for y in ys_of]
    if len(rest) ** 2 > _MAX_PAIRINGS:
        raise TooLarge("pairings")
    undecided = False
    for x in rest:
        for y in left:
            outcome = equal(x, y, context, 1)
            if outcome.equal:
                certified &= outcome.certified
                conversions += outcome.conversions  # type: ignore[assignment]
                left.remove(y)
                break
            undecided |= outcome.equal is None
        else:
            return Outcome(None if undecided else False, "element_missing", not undecided)
    return Outcome(True, "elements_unordered", certified, tuple(dict.fromkeys(conversions)))


def _key(node: Node, context: Context) -> object:
    if node.kind in _PLAIN:
        value = rational(node, context.steps)
        if value is not None:
            return str(value)
    if node.kind == "tuple":
        return (node.value, *(_key(arg, context) for arg in node.args))
    return node


def _matrix(a: Node, b: Node, context: Context) -> Outcome:
    if a.value != b.value:
        return Outcome(False, "matrix_shape")
    return _ordered(a.args, b.args, context)


def _cases(a: Node, b: Node, context: Context) -> Outcome:
    return _unordered(a.args, b.args, context)


def _pair(a: Node, b: Node, context: Context) -> Outcome:
    return _ordered(a.args, b.args, context)


def _ratio(a: Node, b: Node, context: Context) -> Outcome:
    if len(a.args) != len(b.args):
        return Outcome(False, "ratio_length")
    certified = True
    for x, y in zip(a.args[1:], b.args[1:], strict=True):
        outcome = equal_values(Node("mul", None, (a.args[0], y)), Node("mul", None, (b.args[0], x)), context)
        if not outcome.equal:
            return outcome._replace(reason=f"ratio:{outcome.reason}")
        certified &= outcome.certified
    return Outcome(True, "ratio", certified)


def _time(a: Node, b: Node, context: Context) -> Outcome:
    if a.value == b.value:
        return Outcome(True, "clock_time")
    (h1, m1, s1, half1), (h2, m2, s2, half2) = a.value, b.value
    if bool(half1) != bool(half2) and (h1 > 12 or h2 > 12):
        same = _minutes(a.value) == _minutes(b.value) and s1 == s2
        return Outcome(same, "clock_time")
    return Outcome((h1, m1, s1, half1) == (h2, m2, s2, half2), "clock_time")


def _minutes(value: tuple[int, int, int, str]) -> int:
    hour, minute, _, half = value
    return (hour % 12 + (12 if half == "pm" else 0) if half else hour) * 60 + minute


def _setop(a: Node, b: Node, context: Context) -> Outcome:
    if a == b:
        return Outcome(True, "same_tree")
    try:
        return sets.equal_sets(sets.real_set(a, context), sets.real_set(b, context), context)
    except sets.NotReal:
        pass
    if a.value == b.value and a.value != "minus":
        return _unordered(_operands(a), _operands(b), context)
    return Outcome(False, "sets_differ", False)


def _operands(node: Node) -> tuple[Node, ...]:
    out: list[Node] = []
    for arg in node.args:
        out.extend(_operands(arg) if arg.kind == "setop" and arg.value == node.value else (arg,))
    return tuple(out)


def _relation(a: Node, b: Node, context: Context) -> Outcome:
    return equal_relations(a, b, context, _judge)


def _family(a: Node, b: Node, context: Context) -> Outcome:
    return equal_families(a, b, context, _judge)


def _text(a: Node, b: Node, context: Context) -> Outcome:
    xs, ys = a.value.split(), b.value.split()
    return Outcome(len(xs) == len(ys) and all(map(_same_word, xs, ys)), "text")


def _same_word(x: str, y: str) -> bool:
    """Equal but for case, or the plural of a common noun (a name keeps its "s": Mars)."""
    if x.lower() == y.lower():
        return True
    short, long = sorted((x, y), key=len)
    return x.islower() and y.islower() and len(short) > 2 and long == short + "s" and not long.endswith("ss")


def _judge(a: Node, b: Node, context: Context) -> Outcome:
    return equal(a, b, context, 1)


_HANDLERS = {
    "percent": _inner, "degree": _inner, "qty": _quantity, "based": _based, "tuple": _tuple, "list": _list,
    "set": _set, "matrix": _matrix,
    "cases": _cases, "pair": _pair, "ratio": _ratio, "time": _time, "setop": _setop, "rel": _relation,
    "family": _family, "text": _text,
}  # fmt: skip

__all__ = ["EMPTY", "equal"]
