"""Families over the integers: { pi/2 + 2 k pi | k in Z }, and set-builders that stay symbolic."""

from __future__ import annotations

from collections.abc import Callable

from jurat.verifiers.math.exact import rational
from jurat.verifiers.math.tree import Node, num, replace, sub, symbols
from jurat.verifiers.math.values import equal_values
from jurat.verifiers.math.verdict import Context, Outcome

Judge = Callable[[Node, Node, Context], Outcome]
_K = Node("sym", " k")


def equal_families(a: Node, b: Node, context: Context, judge: Judge) -> Outcome:
    """Equal heads after the parameter is renamed; or progressions with one period up to sign whose starts differ by
    whole periods."""
    x, y = _renamed(a), _renamed(b)
    if x is None or y is None:
        same = len(a.args) == len(b.args) and all(
            judge(p, q, context).equal for p, q in zip(a.args, b.args, strict=True)
        )
        return Outcome(same, "set_builder", False)
    (heads_a, space_a), (heads_b, space_b) = x, y
    if space_a != space_b:
        return Outcome(False, "different_parameters", False)
    if len(heads_a) != len(heads_b):
        return Outcome(False, "number_of_families", False)
    left = list(heads_b)
    for head in heads_a:
        for other in left:
            if _same(head, other, space_a, context, judge):
                left.remove(other)
                break
        else:
            return Outcome(False, "families_differ", False)
    return Outcome(True, "families", False)


def _renamed(node: Node) -> tuple[tuple[Node, ...], str] | None:
    head, *conditions = node.args
    memberships = [
        c
        for c in conditions
        if c.kind == "rel" and c.value == ("in",) and c.args[0].kind == "sym" and c.args[1].kind == "space"
    ]
    if len(memberships) != 1 or len(conditions) != 1:
        return None
    if head.kind == "rel" and head.value == ("=",):
        head = head.args[1]
    heads = head.args if head.kind in ("list", "set") else (head,)
    parameter = memberships[0].args[0]
    return tuple(replace(h, {parameter: _K}) for h in heads), str(memberships[0].args[1].value)


def _same(a: Node, b: Node, space: str, context: Context, judge: Judge) -> bool:
    if judge(a, b, context).equal:
        return True
    if space != "Z" or symbols(a) != {_K.value} or symbols(b) != {_K.value}:
        return False
    at = [[replace(tree, {_K: num(k)}) for k in (0, 1, 2)] for tree in (a, b)]
    periods = [sub(values[1], values[0]) for values in at]
    for values, period in zip(at, periods, strict=True):  # linear in k
        if not equal_values(sub(values[2], values[1]), period, context).equal:
            return False
    ratio = Node("div", None, (periods[0], periods[1]))
    if not any(equal_values(ratio, num(s), context).equal for s in (1, -1)):
        return False
    shift = Node("div", None, (sub(at[0][0], at[1][0]), periods[0]))
    value = rational(shift, context.steps)
    if value is not None:
        return value == int(value.p // value.q) if hasattr(value, "p") else value.denominator == 1
    return any(equal_values(shift, num(k), context).equal for k in range(-4, 5))
