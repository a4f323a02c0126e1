"""What is named on the left of an equals sign, and the value on its right."""

from __future__ import annotations

from typing import NamedTuple

from jurat.verifiers.math.tree import Node, walk

_EQUAL = frozenset(("=", "~"))


class Assignment(NamedTuple):
    name: Node
    value: Node


def is_name(node: Node) -> bool:
    """x, x_1, f(x), |AB|, NO/BO, A:B, \\angle ABC, (p, q): something that is called by its name, not computed."""
    kind = node.kind
    if kind in ("sym", "app"):
        return node.value != "pmod"
    if kind == "const":
        return node.value in ("i", "e")
    if kind == "mul":
        return all(
            (a.kind == "sym" and (_capital(a) or "angle" in a.value)) or (a.kind == "sym" and a.value == "m")
            for a in node.args
        )
    if kind in ("div", "ratio"):
        return all(is_name(a) and (a.kind != "sym" or _capital(a)) for a in node.args)
    if kind == "tuple":
        return all(a.kind == "sym" for a in node.args)
    if kind == "fn":
        return (node.value in ("abs", "norm", "dim", "deg", "arg", "Re", "Im") and is_name(node.args[0])) or (
            node.value in ("max", "min", "det", "tr", "rank", "gcd", "lcm")
            and bool(node.args)
            and all(not _closed(a) for a in node.args)
        )
    return False


def _capital(node: Node) -> bool:
    return node.kind == "sym" and (node.value[0].isupper() or " " in node.value)


def _closed(node: Node) -> bool:
    return not any(n.kind in ("sym", "app") for n in walk(node))


def assignment(node: Node) -> Assignment | None:
    """name = ... = value (the last side; before the first approximation sign, unless there is nothing else)."""
    if node.kind != "rel" or not _EQUAL.issuperset(node.value):
        return None
    sides = node.args
    if is_name(sides[0]):
        return Assignment(sides[0], last_exact(node))
    if len(sides) == 2 and sides[1].kind == "sym" and _closed(sides[0]):
        return Assignment(sides[1], sides[0])
    return None


def last_exact(node: Node) -> Node:
    """The last side of a chain before its first approximation sign."""
    for at, operator in enumerate(node.value):
        if operator == "~":
            return node.args[at] if at else node.args[1]
    return node.args[-1]


def assignments(node: Node) -> list[Assignment] | None:
    """Named values of a list: "x=1, y=2"; "a=4, -8, -10" gives the name to each value."""
    items = node.args if node.kind in ("list", "set", "tuple") else (node,)
    found: list[Assignment] = []
    name: Node | None = None
    for item in items:
        single = assignment(item)
        if single is not None:
            name = single.name
            if single.value.kind == "list":
                found.extend(Assignment(name, value) for value in single.value.args)
            else:
                found.append(single)
        elif name is not None and item.kind != "rel":
            found.append(Assignment(name, item))
        else:
            return None
    return found


def stem(name: Node) -> str:
    """x_1 and x_2 are values of x; W(n) and W(x) are values of W."""
    if name.kind in ("sym", "app"):
        return str(name.value).split("_")[0]
    return repr(name)
