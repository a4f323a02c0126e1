"""The typed tree that answers are parsed into.

One node shape for all kinds: `Node(kind, value, args)`; equal trees are equal tuples and hash alike.

| kind | value | args |
|---|---|---|
| num | (p, q, places): p/q in lowest terms; places = decimals shown, None if exact notation | |
| const | "pi", "e", "i", "inf" | |
| sym | name with its subscript and primes: "x", "x_1", "\\alpha", "f'" | |
| add, mul | | terms, factors |
| neg, pow, div | | operands |
| pm | "+-" or "-+" | (b) for a sign, (a, b) for a sum |
| fn | known function: sin, log, root, abs, floor, fact, binom, ... | arguments |
| app | name of an unknown function | arguments |
| big | "sum", "prod", "int", "lim" | (variable, low, high, body); missing bounds are `NONE` |
| percent, degree | | (value) |
| qty | unit key of `units.py` | (value) |
| based | (digits, base) | |
| tuple | opening and closing delimiter, "()", "[]", "(]", "[)", "<>" | elements |
| list | ",", "and" or "or" | elements |
| set | | elements |
| family | | (expression, condition...) |
| setop | "cup", "cap", "minus" | operands |
| space | "R", "Z", "Q", "N", "C", "empty" | |
| rel | tuple of operators | sides |
| and | | statements |
| matrix | (rows, columns) | entries by row |
| cases | | (value, condition) pairs as `pair` |
| ratio | | parts |
| time | (minutes after midnight or None, hour, minute, second, "am", "pm" or "") | |
| text | normalised words | |
| choice | letter | |
| dots | | |
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple


class Node(NamedTuple):
    """One node. `value` is plain data (str, int, tuple), so that a tree is JSON."""

    kind: str
    value: Any = None
    args: tuple[Node, ...] = ()


NONE = Node("none")
DOTS = Node("dots")
EMPTY = Node("space", "empty")
INF = Node("const", "inf")
PI = Node("const", "pi")
I_UNIT = Node("const", "i")

SCALARS = frozenset(
    ("num", "const", "sym", "add", "mul", "neg", "pow", "div", "fn", "app", "big", "percent", "degree", "based", "qty")
)
"""Kinds which stand for one value."""


def num(p: int, q: int = 1, places: int | None = None) -> Node:
    """A rational p/q that is already in lowest terms, q > 0."""
    return Node("num", (p, q, places))


def add(*args: Node) -> Node:
    flat: list[Node] = []
    for arg in args:
        flat.extend(arg.args if arg.kind == "add" else (arg,))
    return Node("add", None, tuple(flat))


def mul(*args: Node) -> Node:
    flat: list[Node] = []
    for arg in args:
        flat.extend(arg.args if arg.kind == "mul" else (arg,))
    return Node("mul", None, tuple(flat))


def neg(arg: Node) -> Node:
    if arg.kind == "num":
        p, q, places = arg.value
        return Node("num", (-p, q, places))
    if arg.kind in ("qty", "percent", "degree"):  # -$5 is minus five, in dollars
        return Node(arg.kind, arg.value, (neg(arg.args[0]),))
    return Node("neg", None, (arg,))


def sub(a: Node, b: Node) -> Node:
    return Node("add", None, (a, neg(b)))


def walk(node: Node) -> Iterator[Node]:
    """Every node, parents first, without recursion."""
    stack = [node]
    while stack:
        top = stack.pop()
        yield top
        stack.extend(top.args)


def symbols(node: Node) -> frozenset[str]:
    """Names that are free in the tree: bound variables of sums and integrals are left out."""
    if node.kind == "sym":
        return frozenset((node.value,))
    if node.kind == "app":
        names = {node.value}
    elif node.kind == "big" and node.args[0].kind == "sym":
        inner = symbols(node.args[3]) - {node.args[0].value}
        return inner | symbols(node.args[1]) | symbols(node.args[2])
    else:
        names = set()
    for arg in node.args:
        names |= symbols(arg)
    return frozenset(names)


def replace(node: Node, table: dict[Node, Node]) -> Node:
    """The tree with every subtree found in `table` exchanged."""
    if node in table:
        return table[node]
    if not node.args:
        return node
    return Node(node.kind, node.value, tuple(replace(arg, table) for arg in node.args))
