"""Brackets of every kind: grouping, tuples, intervals, sets, bars, and LaTeX environments."""

from __future__ import annotations

from jurat.verifiers.math.cursor import Cursor
from jurat.verifiers.math.limits import MAX_MATRIX, TooLarge, Unparseable
from jurat.verifiers.math.tree import EMPTY, Node

_CLOSERS = {"(": frozenset((")", "]")), "[": frozenset(("]", ")")), "{": frozenset(("}",)),
    "\\{": frozenset(("\\}",)), "<": frozenset((">",)),
            "floor": frozenset(("floor",)), "ceil": frozenset(("ceil",))}  # fmt: skip
_MATRICES = frozenset(
    ("pmatrix", "bmatrix", "matrix", "smallmatrix", "array", "Bmatrix", "psmallmatrix", "bsmallmatrix", "tabular")
)
_CASES = frozenset(("cases", "dcases", "rcases"))
LINES = frozenset(
    (
        "align",
        "aligned",
        "gather",
        "gathered",
        "split",
        "eqnarray",
        "equation",
        "alignat",
        "displaymath",
        "math",
        "center",
    )
)
_CONDITION_WORDS = frozenset(("if", "when", "for", "where"))


class Brackets(Cursor):
    def bracket(self, opening: str) -> Node:
        """What follows an opening bracket that was just consumed."""
        self.deeper()
        bars, self.in_bars = self.in_bars, 0
        builder, self.in_builder = self.in_builder, 0
        integral, self.in_integral = self.in_integral, 0
        node = self.set_body() if opening == "\\{" else self.bracket_body(opening)
        self.in_bars, self.in_builder, self.in_integral = bars, builder, integral
        self.depth -= 1
        return node

    def bracket_body(self, opening: str) -> Node:
        closers = _CLOSERS[opening]
        found = self.items(closers)
        if opening == "{" and self.peek()[:2] in (("cmd", "over"), ("cmd", "choose")):
            infix = self.next()[1]
            below = self.items(closers)
            if len(found) != 1 or len(below) != 1:
                raise Unparseable(infix)
            self.expect("close", "}")
            pair = (found[0][1], below[0][1])
            return Node("div", None, pair) if infix == "over" else Node("fn", "binom", pair)
        kind, closing, _ = self.next()
        if kind != "close" or closing not in closers:
            raise Unparseable("unbalanced_brackets")
        nodes = tuple(node for _, node in found)
        if not nodes:
            raise Unparseable("empty_brackets")
        if opening in ("floor", "ceil"):
            if len(nodes) != 1:
                raise Unparseable("floor")
            return Node("fn", opening, nodes)
        if len(nodes) == 1 and (opening, closing) in (("(", ")"), ("{", "}"), ("[", "]")):
            return nodes[0] if opening != "[" or nodes[0].kind not in ("tuple", "list") else Node("tuple", "[]", nodes)
        if opening == "{":
            return Node("list", "or" if any(s == "or" for s, _ in found) else ",", nodes)
        if any(s == "or" for s, _ in found):
            raise Unparseable("or_in_tuple")
        delimiters = {"<": "<>"}.get(opening, opening + closing)
        return Node("tuple", delimiters, nodes)

    def set_body(self) -> Node:
        """The elements of a set, or "expression | conditions"."""
        if self.accept("close", "\\}"):
            return EMPTY
        self.in_builder = 1
        found = self.items(frozenset(("\\}",)))
        if self.at("bar") or self.at("op", ":"):
            self.pos += 1
            self.in_builder = 0
            conditions = self.items(frozenset(("\\}",)))
            self.expect("close", "\\}")
            if len(found) != 1 or not conditions:
                raise Unparseable("set_builder")
            return built(found[0][1], [node for _, node in conditions], any(s == "or" for s, _ in conditions))
        self.in_builder = 0
        self.expect("close", "\\}")
        return Node("set", None, tuple(node for _, node in found))

    def bars(self, bar: str) -> Node:
        """|x|, ||v||"""
        self.deeper()
        self.in_bars += 1
        node = self.expression(0)
        self.in_bars -= 1
        if not self.accept("bar", bar):
            raise Unparseable("unbalanced_bars")
        self.depth -= 1
        if node.kind == "matrix":
            return Node("fn", "det", (node,))
        return Node("fn", "norm" if bar == "||" or node.kind == "tuple" else "abs", (node,))

    def reversed_interval(self) -> Node:
        raise Unparseable("unbalanced_brackets")

    def environment(self, name: str) -> Node:
        self.deeper()
        rows = self.rows(name)
        self.depth -= 1
        if name in _CASES:
            return self.cases(rows)
        if name in LINES:
            nodes = tuple(cell for row in rows for cell in row)
            return nodes[0] if len(nodes) == 1 else Node("list", ",", nodes)
        if name not in _MATRICES and name not in ("vmatrix", "Vmatrix"):
            raise Unparseable(f"unknown_environment:{name[:20]}")
        columns = len(rows[0]) if rows else 0
        if not columns or any(len(row) != columns for row in rows):
            raise Unparseable("ragged_matrix")
        if len(rows) > MAX_MATRIX or columns > MAX_MATRIX:
            raise TooLarge("matrix")
        matrix = Node("matrix", (len(rows), columns), tuple(cell for row in rows for cell in row))
        return Node("fn", "det", (matrix,)) if name == "vmatrix" else matrix

    def rows(self, name: str) -> list[list[Node]]:
        rows: list[list[Node]] = [[]]
        while True:
            kind, value, _ = self.peek()
            if kind == "end":
                if value != name:
                    raise Unparseable("unbalanced_environment")
                self.pos += 1
                break
            if kind == "row":
                self.pos += 1
                rows.append([])
            elif kind == "cell":
                self.pos += 1
            elif name in _CASES and kind == "word" and value.lower() in _CONDITION_WORDS:
                self.pos += 1
            elif name in _CASES and kind == "word" and value.lower() in ("otherwise", "else"):
                self.pos += 1
                rows[-1].append(Node("text", "otherwise"))
            else:
                found = [node for _, node in self.items(frozenset())]
                if not found:
                    raise Unparseable("empty_cell")
                if name in _CASES or name in LINES:
                    rows[-1].extend(found)
                else:
                    rows[-1].append(found[0] if len(found) == 1 else Node("list", ",", tuple(found)))
        return [row for row in rows if row]

    def cases(self, rows: list[list[Node]]) -> Node:
        if all(len(row) == 1 for row in rows):  # a system of equations
            return Node("list", ",", tuple(row[0] for row in rows))
        if any(len(row) != 2 for row in rows):
            raise Unparseable("cases")
        return Node("cases", None, tuple(Node("pair", None, tuple(row)) for row in rows))


def built(head: Node, conditions: list[Node], either: bool) -> Node:
    """A set-builder as a family over integers, or as the relation that its variable satisfies."""
    if head.kind == "rel" and head.value == ("in",):
        if head.args[1] in (Node("space", "R"), Node("space", "C")):
            head = head.args[0]
        else:
            conditions = [head, *conditions]
            head = head.args[0]
    conditions = [
        c for c in conditions if not (c.kind == "rel" and c.value == ("in",) and c.args[1] == Node("space", "R"))
    ] or conditions
    if head.kind == "sym" and all(c.kind == "rel" and c.value != ("in",) for c in conditions):
        return conditions[0] if len(conditions) == 1 else Node("list", "or" if either else ",", tuple(conditions))
    return Node("family", None, (head, *conditions))
