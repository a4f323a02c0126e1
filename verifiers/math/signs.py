"""Plus-minus: the values that an expression with signs stands for."""

from __future__ import annotations

from itertools import product

from jurat.verifiers.math.limits import MAX_SIGNS, TooLarge
from jurat.verifiers.math.tree import Node, add, neg, sub, walk


def has_signs(node: Node) -> bool:
    return any(n.kind == "pm" for n in walk(node))


def expand(node: Node) -> Node:
    """The node without plus-minus: a list of values, or a container whose elements are expanded in place."""
    if not has_signs(node):
        return node
    if node.kind in ("list", "set"):
        out: list[Node] = []
        for arg in node.args:
            opened = expand(arg)
            out.extend(opened.args if opened.kind == "list" else (opened,))
        return Node(node.kind, node.value, tuple(out))
    if node.kind == "rel":
        return Node("rel", node.value, tuple(expand(arg) for arg in node.args))
    marks = [n.value for n in walk(node) if n.kind == "pm"]
    if len(marks) > MAX_SIGNS:
        raise TooLarge("signs")
    if "-+" in marks:  # upper signs together, lower signs together
        choices = [[s if m == "+-" else -s for m in marks] for s in (1, -1)]
    else:
        choices = [list(c) for c in product((1, -1), repeat=len(marks))]
    return Node("list", ",", tuple(_choose(node, iter(c)) for c in choices))


def _choose(node: Node, signs: object) -> Node:
    if node.kind == "pm":
        sign = next(signs)  # type: ignore[call-overload]
        args = [_choose(arg, signs) for arg in node.args]
        if len(args) == 1:
            return args[0] if sign > 0 else neg(args[0])
        return add(*args) if sign > 0 else sub(*args)
    if not node.args:
        return node
    return Node(node.kind, node.value, tuple(_choose(arg, signs) for arg in node.args))
