"""The conversion table: what may count as equal though the types differ. Named, ordered, switchable by
`Policy(off={...})`.

A conversion rewrites a pair of trees into one that may be comparable; it decides nothing itself. All work both ways
round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, permutations

from jurat.verifiers.math import points, units, values
from jurat.verifiers.math.exact import rational
from jurat.verifiers.math.names import Assignment, assignment, assignments, is_name, stem
from jurat.verifiers.math.numerals import based_value
from jurat.verifiers.math.relations import are_roots, chain_value
from jurat.verifiers.math.sets import NotReal, RealSet, interval_of, real_set
from jurat.verifiers.math.signs import expand, has_signs
from jurat.verifiers.math.suffix import ORDINAL_KEY
from jurat.verifiers.math.tree import I_UNIT, PI, SCALARS, Node, mul, num, replace, symbols
from jurat.verifiers.math.verdict import Context

Pair = tuple[Node, Node]
Rule = Callable[[Node, Node, Context], Iterator[Pair]]
_COLLECTIONS = frozenset(("list", "set"))
_CONSTANT_NAMES = frozenset(("C", "K", "k", "c", "A", "B", "D", "C_1", "C_2", "c_1", "c_2", "E", "M", "N"))


@dataclass(frozen=True, slots=True)
class Conversion:
    name: str
    what: str
    rule: Rule
    kinds: str = ""
    """Kinds of the first tree for which the rule can fire; any kind if empty."""


def rewrites(gold: Node, answer: Node, context: Context) -> Iterator[tuple[str, Node, Node]]:
    """Every pair that the enabled conversions offer, in the order of the table, gold and answer both ways round."""
    for conversion, forward, backward in _applicable(gold.kind, answer.kind):
        if conversion.name in context.policy.off:
            continue
        if forward:
            for g, a in conversion.rule(gold, answer, context):
                yield conversion.name, g, a
        if backward and gold != answer:
            for a, g in conversion.rule(answer, gold, context):
                yield conversion.name, g, a


@lru_cache(maxsize=4096)
def _applicable(gold: str, answer: str) -> tuple[tuple[Conversion, bool, bool], ...]:
    """The conversions for two kinds: which, and whether each may fire from gold to answer and back."""
    found = []
    for conversion in TABLE:
        kinds = conversion.kinds.split()
        forward, backward = not kinds or gold in kinds, not kinds or answer in kinds
        if forward or backward:
            found.append((conversion, forward, backward))
    return tuple(found)


def _before_rounding(chain: Node) -> Node:
    """A chain up to its first approximation sign: x = 1/3 of x = 1/3 ~ 0.3."""
    at = next((i for i, operator in enumerate(chain.value) if operator == "~"), len(chain.value))
    return Node("rel", chain.value[:at], chain.args[: at + 1])


def _assignment_value(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    """x = 5 for 5; a chain must agree with itself. Between two assignments only the last sides count."""
    if a.kind == "rel" and b.kind != "rel":
        named = assignment(a)
        if named is not None and not consistent(_before_rounding(a), context):
            context.flag("inconsistent_chain")
            return
        if named is not None and not (b.kind in ("list", "set", "tuple") and assignments(b) is not None):
            yield named.value, b


def _chain_value(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    if a.kind != "rel" or (b.kind == "rel" and assignment(b) is None):
        return
    value = chain_value(a)
    if value is None or assignment(a) is not None:
        return
    if not consistent(a, context):
        context.flag("inconsistent_chain")
        return
    other = assignment(b)
    yield value, b if other is None else other.value


def consistent(chain: Node, context: Context) -> bool:
    """Whether the rational sides of a chain agree, up to rounding at the digits shown: 12/7 = 1.71 is, 3 + 3 = 2 "
    "is not."""
    known = []
    for side in chain.args:
        value = rational(side, context.steps) if not symbols(side) and side.kind != "qty" else None
        if value is not None:
            known.append((value, side))
    for (x, _), (y, side) in pairwise(known):
        if x == y:
            continue
        places = side.value[2] if side.kind == "num" else None
        if side.kind == "num" and not (abs(x - y) * 2 * 10 ** (places or 0) <= 1 and places):
            return False
        if side.kind != "num":
            return False
    return True


def _equation_roots(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    """x^2 = 4 for x = 2, x = -2: every root once, and no other value."""
    if a.kind != "rel" or a.value != ("=",) or len(symbols(a)) != 1 or assignment(a) is not None:
        return
    named = assignments(b)
    if named is not None:
        if {name for name, _ in named} != {Node("sym", next(iter(symbols(a))))}:
            return
        found = [value for _, value in named]
    elif b.kind in ("list", "set"):
        found = list(b.args)
    else:
        return
    if (
        0 < len(found) < 25
        and all(value.kind in SCALARS and not symbols(value) for value in found)
        and are_roots(a, found, context)
    ):
        yield b, b


def _membership(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    if a.kind == "rel" and a.value == ("in",) and b.kind != "rel" and is_name(a.args[0]):
        yield a.args[1], b


def _relation_set(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    """An inequality, or several, against a set of real numbers."""
    if not _sets_of_reals(a) or b.kind in SCALARS or b.kind in ("text", "matrix", "cases", "time", "ratio"):
        return
    if a.kind == b.kind and a.kind in ("tuple", "rel"):
        return
    try:
        x, y = real_set(a, context), real_set(b, context)
    except NotReal:
        x_node, y_node = interval_of(a), interval_of(b) or b
        if x_node is not None and y_node.kind == "tuple":
            yield x_node, y_node
        return
    yield _as_node(x), _as_node(y)


def _sets_of_reals(node: Node) -> bool:
    if node.kind == "rel":
        return bool({"<", ">", "<=", ">=", "!=", "in", "notin"} & set(node.value))
    if node.kind == "list":
        return all(_sets_of_reals(arg) for arg in node.args)
    return node.kind in ("setop", "space") or (node.kind == "tuple" and len(node.args) == 2 and node.value != "<>")


def _as_node(s: RealSet) -> Node:
    return Node("realset", s)


def _set_braces(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    if a.kind == "set" and b.kind == "list":
        yield a, Node("set", None, b.args)
    if (a.kind == "setop" and b.kind in _COLLECTIONS) or (a.kind == "setop" and b.kind == "setop"):
        finite = _finite_union(a)
        if finite is not None and b.kind in _COLLECTIONS:
            yield finite, Node("set", None, b.args)


def _finite_union(node: Node) -> Node | None:
    if node.kind == "set":
        return node
    if node.kind == "setop" and node.value == "cup":
        left, right = _finite_union(node.args[0]), _finite_union(node.args[1])
        if left is not None and right is not None:
            return Node("set", None, left.args + right.args)
    return None


def _tuple_parentheses(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    if (
        a.kind == "tuple"
        and a.value in ("()", "<>")
        and b.kind == "list"
        and b.value in (",", "and")
        and assignments(b) is None
        and len(a.args) == len(b.args)
    ):
        yield a, Node("tuple", a.value, b.args)


def _bracket_list(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    if a.kind == "tuple" and a.value == "[]" and b.kind in _COLLECTIONS:
        yield Node(b.kind, b.value, a.args), b


def _vector_brackets(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    if (
        a.kind == b.kind == "tuple"
        and len(a.args) == len(b.args)
        and {a.value, b.value} in ({"<>", "()"}, {"<>", "[]"})
    ):
        yield Node("tuple", "()", a.args), Node("tuple", "()", b.args)
    elif a.kind == b.kind == "tuple" and len(a.args) == len(b.args) > 2 and {a.value, b.value} == {"()", "[]"}:
        yield Node("tuple", "()", a.args), Node("tuple", "()", b.args)


def _vector_matrix(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    if a.kind != "matrix":
        return
    rows, columns = a.value
    if (
        b.kind == "tuple"
        and len(b.args) == len(a.args)
        and 1 in (rows, columns)
        and b.value in ("()", "[]", "<>")
        and b.args[0].kind != "tuple"
    ):
        yield Node("tuple", "()", a.args), Node("tuple", "()", b.args)
    elif (
        b.kind in ("tuple", "list")
        and len(b.args) == rows
        and all(r.kind == "tuple" and len(r.args) == columns for r in b.args)
    ):
        yield a, Node("matrix", (rows, columns), tuple(cell for row in b.args for cell in row.args))


def _singleton_set(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    if a.kind == "set" and len(a.args) == 1 and (b.kind in SCALARS or b.kind == "tuple"):
        yield a.args[0], b


def _plus_minus(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    if "pm" in context.kinds and (has_signs(a) or has_signs(b)):
        x, y = expand(a), expand(b)
        if (x, y) != (a, b):
            yield x, y


def _percent_value(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    if a.kind == "percent" and b.kind in SCALARS and b.kind not in ("percent", "qty", "degree"):
        yield Node("div", None, (a.args[0], num(100))), b


def _percent_dropped(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    """A dropped percent sign: 50 for 50%. Only above 1: 0.5 says 50%, so it cannot say 0.5% as well."""
    if a.kind == "percent" and b.kind in SCALARS and b.kind not in ("percent", "qty", "degree"):
        value = None if symbols(b) else rational(b, context.steps)
        if value is None or abs(value) > 1:
            yield a.args[0], b


def _degree_dropped(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    if a.kind == "degree" and b.kind in SCALARS and b.kind not in ("percent", "qty", "degree"):
        yield a.args[0], b
    elif (
        a.kind in ("add", "neg", "mul", "div")
        and any(n.kind == "degree" for n in a.args)
        and b.kind in SCALARS
        and b.kind not in ("percent", "qty")
    ):
        yield _without_degrees(a), _without_degrees(b) if b.kind != "degree" else b.args[0]


def _without_degrees(node: Node) -> Node:
    """90 degrees - x is read as 90 - x; angles inside functions keep their degrees."""
    if node.kind == "degree":
        return node.args[0]
    if node.kind in ("add", "neg", "mul", "div"):
        return Node(node.kind, node.value, tuple(_without_degrees(arg) for arg in node.args))
    return node


def _degree_radian(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    if (
        a.kind == "degree"
        and b.kind in SCALARS
        and b.kind not in ("percent", "degree")
        and any(n == PI for n in _walk(b))
    ):
        yield (
            Node("div", None, (mul(a.args[0], PI), num(180))),
            b.args[0] if b.kind == "qty" and b.value == ((("rad", 1),), 1, 1) else b,
        )


def _walk(node: Node) -> Iterator[Node]:
    stack = [node]
    while stack:
        top = stack.pop()
        yield top
        stack.extend(top.args)


def _unit_dropped(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    if a.kind == "qty" and a.value != ORDINAL_KEY and b.kind in SCALARS and b.kind not in ("qty", "percent", "degree"):
        if b.kind == "mul" and b.args[-1].kind == "sym" and units.lookup(b.args[-1].value):
            return  # `letter_unit` reads it
        yield a.args[0], b


def _ordinal(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    if a.kind == "qty" and a.value == ORDINAL_KEY and b.kind in SCALARS and b.kind not in ("qty", "percent", "degree"):
        yield a.args[0], b


def _unit_converted(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    if a.kind == b.kind == "qty" and a.value != b.value and a.value[0] == b.value[0] and a.value[0]:
        yield mul(a.args[0], num(*a.value[1:])), mul(b.args[0], num(*b.value[1:]))


def _unit_generic(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    """ "square units" for square centimetres."""
    if a.kind == b.kind == "qty" and len(a.value[0]) == len(b.value[0]) == 1 and a.value[0][0][0] == "unit":
        if a.value[0][0][1] == b.value[0][0][1] or a.value[0][0][1] == 1:
            yield a.args[0], b.args[0]


def _letter_unit(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    """5 m, where the letter was read as a symbol: against a quantity in that unit, or against the bare number."""
    if a.kind != "mul" or len(a.args) < 2 or a.args[-1].kind != "sym" or any(symbols(x) for x in a.args[:-1]):
        return
    unit = units.lookup(a.args[-1].value)
    if unit is None or len(a.args[-1].value) > 2:
        return
    value = a.args[0] if len(a.args) == 2 else Node("mul", None, a.args[:-1])
    if b.kind == "qty":
        yield Node("qty", units.combine([(*unit, 1)]), (value,)), b
    elif b.kind == "num" and a.args[-1].value in ("m", "g", "s", "h", "L"):
        yield value, b


def _base_dropped(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    if a.kind == "based" and b.kind == "num" and b.value[1] == 1 and a.value[0] == str(b.value[0]):
        yield b, b


def _base_value(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    if a.kind == "based" and b.kind in SCALARS and b.kind not in ("qty", "percent", "degree"):
        yield num(*based_value(a)), b if b.kind != "based" else num(*based_value(b))


def _ratio_fraction(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    if a.kind == "ratio" and len(a.args) == 2 and b.kind in SCALARS:
        yield Node("div", None, a.args), b


def _time_ratio(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    if a.kind == "time" and b.kind in ("ratio",) and not a.value[3] and len(b.args) == 2:
        yield Node("ratio", None, (num(a.value[0]), num(a.value[1]))), b


def _named_tuple(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    """x = 1, y = 2 against (1, 2) or 1, 2: values in the order of the names; a list where one name has several "
    "values."""
    if (
        a.kind == "rel"
        and b.kind == "list"
        and (pair := assignment(a)) is not None
        and pair.name.kind == pair.value.kind == "tuple"
    ):
        if len(pair.name.args) == len(pair.value.args) and assignments(b) is not None:
            yield (
                Node(
                    "list",
                    ",",
                    tuple(Node("rel", ("=",), p) for p in zip(pair.name.args, pair.value.args, strict=True)),
                ),
                b,
            )
        return
    if a.kind not in ("list", "tuple", "rel") or b.kind not in ("list", "tuple", "set"):
        return
    named = assignments(a)
    if named is None or (a.kind == "rel" and len(named) < 2) or assignments(b) is not None:
        return
    found = tuple(value for _, value in _in_order_of_names(named))
    if len({stem(name) for name, _ in named}) == 1:
        yield (
            Node("list", ",", found),
            Node("list", ",", b.args) if b.kind == "tuple" and len({n for n, _ in named}) > 1 else b,
        )
    elif b.kind in ("tuple", "list"):
        yield Node("tuple", "()", found), Node("tuple", "()", b.args)


def _in_order_of_names(named: list[Assignment]) -> list[Assignment]:
    """Neighbours of the alphabet (x and y; a, b, c) stand for coordinates in its order, however they are listed; of
    other names (x and p) the order given is all there is."""
    names = [name.value for name, _ in named if name.kind == "sym" and len(name.value) == 1]
    letters = sorted(map(ord, names))
    if names and len(names) == len(named) and letters == list(range(letters[0], letters[0] + len(letters))):
        return sorted(named, key=lambda pair: str(pair.name.value))
    return named


def _equal_alternatives(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    """26/36 or 13/18: one value said in two ways."""
    if a.kind == "list" and a.value == "or" and b.kind in SCALARS:
        first = a.args[0]
        if all(
            arg.kind in SCALARS and values.equal_values(first, arg, context).equal
            for arg in a.args[1:]
            if arg.kind in SCALARS and first.kind in SCALARS
        ):
            if all(arg.kind in SCALARS for arg in a.args):
                yield first, b


def _long_decimal(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    if b.kind == "num" and b.value[2] and a.kind in SCALARS and not symbols(a) and not (a.kind == "num" and a.value[2]):
        if values.approximates(b, a, context.policy.decimal_digits, context):
            yield b, b
    elif a.kind == "add" and b.kind == "add" and len(a.args) == len(b.args) == 2:  # -1.9999999999999996+7i
        i = Node("const", "i")
        x, y = a.args, b.args
        if any(n == i for n in _walk(b)) and all(_long_part(p, q, context) for p, q in zip(x, y, strict=True)):
            yield a, a


def _long_part(a: Node, b: Node, context: Context) -> bool:
    if a == b:
        return True
    if a.kind in ("const", "mul") and b.kind in ("const", "mul"):
        return values.equal_values(a, b, context).equal is True
    return b.kind == "num" and values.approximates(b, a, context.policy.decimal_digits, context)


def _imaginary_j(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    """3 + 4j, as engineers write it."""
    if "j" in symbols(b) and "j" not in symbols(a) and I_UNIT in _walk(a):
        yield a, replace(b, {Node("sym", "j"): I_UNIT})


def _cases_function(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    """|x| for its cases, by points; the ends of the cases are among the points."""
    if a.kind == "cases" and (b.kind in SCALARS or (b.kind == "cases" and len(a.args) == len(b.args))) and symbols(b):
        if points.agree(a, b, context).equal:
            yield b, b


def _constant_renamed(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    """x^2/2 + C against x^2/2 + K."""
    left, right = symbols(a), symbols(b)
    mine, theirs = sorted(left - right), sorted(right - left)
    if (
        not mine
        or len(mine) != len(theirs)
        or len(mine) > 2
        or not (set(mine) | set(theirs) <= _CONSTANT_NAMES)
        or not left & right
    ):
        return
    for order in permutations(theirs):
        yield replace(a, {Node("sym", m): Node("sym", t) for m, t in zip(mine, order, strict=True)}), b


def _ellipsis(a: Node, b: Node, context: Context) -> Iterator[Pair]:
    """1, 2, ..., 10 written out, where three terms before or integers on both sides fix the step."""
    if a.kind in ("list", "set", "tuple") and b.kind == a.kind and (_has_dots(a) or _has_dots(b)):
        x, y = _written_out(a), _written_out(b)
        if x is not None and y is not None:
            yield x, y


def _has_dots(node: Node) -> bool:
    return any(arg.kind == "dots" for arg in node.args)


def _written_out(node: Node) -> Node | None:
    if not _has_dots(node):
        return node
    at = next(i for i, arg in enumerate(node.args) if arg.kind == "dots")
    before, after = node.args[:at], node.args[at + 1 :]
    if len(before) < 2 or not after or any(arg.kind != "num" or arg.value[1] != 1 for arg in (*before, *after)):
        return None
    steps = {y.value[0] - x.value[0] for x, y in pairwise(before)}
    step = steps.pop()
    if steps or step == 0:
        return None
    first, last = before[0].value[0], after[0].value[0]
    if (last - first) % step or not 0 <= (last - first) // step < 200:
        return None
    return Node(node.kind, node.value, (*(num(k) for k in range(first, last, step)), *after))


TABLE: tuple[Conversion, ...] = (
    Conversion("assignment_value", "x = 5 for 5", _assignment_value, "rel"),
    Conversion("chain_value", "7 + 5 = 12 for 12", _chain_value, "rel"),
    Conversion("equation_roots", "x^2 = 4 for x = 2 or x = -2", _equation_roots, "rel"),
    Conversion("membership", "x in S for S", _membership, "rel"),
    Conversion("relation_set", "x >= 2 for [2, oo)", _relation_set, "rel list setop space tuple"),
    Conversion("set_braces", "1, 2 for {1, 2}", _set_braces, "set setop"),
    Conversion("tuple_parentheses", "1, 2 for (1, 2)", _tuple_parentheses, "tuple"),
    Conversion("bracket_list", "[1, 2] for 1, 2", _bracket_list, "tuple"),
    Conversion("vector_brackets", "<1, 2> for (1, 2)", _vector_brackets, "tuple"),
    Conversion("vector_matrix", "a column for a tuple, nested lists for a matrix", _vector_matrix, "matrix"),
    Conversion("singleton_set", "{5} for 5", _singleton_set, "set"),
    Conversion("plus_minus", "+-2 for 2, -2", _plus_minus),
    Conversion("named_tuple", "x = 1, y = 2 for (1, 2)", _named_tuple, "list tuple rel"),
    Conversion("percent_value", "50% for 0.5", _percent_value, "percent"),
    Conversion("percent_dropped", "50% for 50", _percent_dropped, "percent"),
    Conversion("degree_dropped", "30 degrees for 30", _degree_dropped, "degree add neg mul div"),
    Conversion("degree_radian", "30 degrees for pi/6", _degree_radian, "degree"),
    Conversion("unit_dropped", "5 cm for 5", _unit_dropped, "qty"),
    Conversion("ordinal", "4th for 4", _ordinal, "qty"),
    Conversion("unit_converted", "5 m for 500 cm", _unit_converted, "qty"),
    Conversion("unit_generic", "15 square units for 15 square cm", _unit_generic, "qty"),
    Conversion("letter_unit", "5 m for 5", _letter_unit, "mul"),
    Conversion("base_dropped", "1011 for 1011 in base 2", _base_dropped, "based"),
    Conversion("base_value", "11 for 1011 in base 2", _base_value, "based"),
    Conversion("ratio_fraction", "3:4 for 3/4", _ratio_fraction, "ratio"),
    Conversion("time_ratio", "7:32 is a clock time or a ratio", _time_ratio, "time"),
    Conversion("equal_alternatives", "26/36 or 13/18 for 13/18", _equal_alternatives, "list"),
    Conversion("long_decimal", "0.3333333333 for 1/3", _long_decimal),
    Conversion("imaginary_j", "3 + 4j for 3 + 4i", _imaginary_j, "add mul const neg div"),
    Conversion("cases_function", "|x| for its cases", _cases_function, "cases"),
    Conversion("constant_renamed", "x + C for x + K", _constant_renamed, "add mul div fn rel"),
    Conversion("ellipsis", "1, 2, ..., 10 for 1, 2, 3, ..., 10", _ellipsis, "list set tuple"),
)
NAMES = frozenset(conversion.name for conversion in TABLE)
