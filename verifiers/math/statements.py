"""Statements: relation chains, lists, and the whole answer."""

from __future__ import annotations

from jurat.verifiers.math.brackets import LINES
from jurat.verifiers.math.digits import Token
from jurat.verifiers.math.limits import MAX_ITEMS, TooLarge, Unparseable
from jurat.verifiers.math.parser import Expressions
from jurat.verifiers.math.tree import SCALARS, Node, symbols

_ORDER = frozenset(("<", ">", "<=", ">=", "!="))
_INTEGER_SPACES = (Node("space", "Z"), Node("space", "N"))


class Statements(Expressions):
    def items(self, closers: frozenset[str]) -> list[tuple[str, Node]]:
        """Statements separated by commas, semicolons, "and" and "or": (separator before it, statement)."""
        found: list[tuple[str, Node]] = []
        separator = ""
        while not (self.at("close") and self.peek()[1] in closers) and self.peek()[0] not in ("end", "cell", "row"):
            found.append((separator, self.statement()))
            if len(found) > MAX_ITEMS:
                raise TooLarge("items")
            separator = self.separator()
            if not separator:
                return found
        if separator and self.peek()[0] not in ("cell", "row"):
            raise Unparseable("trailing_separator")
        return found

    def separator(self) -> str:
        kind, value, _ = self.peek()
        if kind == "sep":
            self.pos += 1
            kind, following, _ = self.peek()
            if kind == "word" and following.lower() in ("and", "or"):
                self.pos += 1
                return "or" if following.lower() == "or" else value
            return value
        if kind == "op" and value in ("cup", "cap"):  # between inequalities; sets were joined as operands
            self.pos += 1
            return "or" if value == "cup" else "and"
        if kind == "word" and value.lower() in ("and", "or"):
            self.pos += 1
            return value.lower()
        return ""

    def statement(self) -> Node:
        """One expression, or a chain of relations."""
        left = self.named() or self.expression(0)
        if not self.at("rel"):
            return self.modulo(left)
        operators: list[str] = []
        sides = [left]
        while self.at("rel"):
            operator = self.next()[1]
            if operator == "not":
                operator = {"=": "!=", "in": "notin", "equiv": "nequiv"}.get(self.expect("rel")[1], "")
                if not operator:
                    raise Unparseable("negated_relation")
            operators.append(operator)
            sides.append(self.expression(16 if operator in _ORDER else 0))
        return self.modulo(Node("rel", tuple(operators), tuple(sides)))

    def modulo(self, node: Node) -> Node:
        if self.accept("cmd", "pmod"):
            return Node("app", "pmod", (node, self.argument(whole=True)))
        return node

    def named(self) -> Node | None:
        """W(n) = ..., P(A) = ...: on the left of a relation any letter may be a function."""
        if not (self.at("id") and self.peek(1)[:2] == ("open", "(") and self.peek()[1] != "C"):
            return None
        depth, at = 0, self.pos + 1
        while at < self.size:
            kind, value, _ = self.tokens[at]
            if kind == "open":
                depth += 1
            elif kind == "close":
                depth -= 1
                if depth == 0:
                    break
            elif kind == "rel":
                return None
            at += 1
        if self.tokens[at + 1 : at + 2] and self.tokens[at + 1][0] == "rel":
            return self.application(self.next()[1])
        return None


def parse(tokens: list[Token]) -> Node:
    """The tree of a whole answer.

    Raises:
        Unparseable: with the rule that failed; TooLarge: depth, items, matrix size, digits.
    """
    if not tokens:
        raise Unparseable("empty")
    tokens = iso_brackets(list(tokens))
    parser = Statements(lines_to_commas(tokens))
    while parser.at("rel", "=") or parser.at("rel", "~"):  # "= 5"
        parser.pos += 1
    found = parser.items(frozenset())
    if len(found) == 1 and parser.accept("cmd", "over"):
        below = parser.items(frozenset())
        if len(below) != 1:
            raise Unparseable("over")
        found = [("", Node("div", None, (found[0][1], below[0][1])))]
    parser.accept("stop")
    if not parser.at("end") or parser.pos < parser.size:
        kind, value, _ = parser.peek()
        raise Unparseable(f"word:{value[:20]}" if kind == "word" else f"unexpected_{value or kind}")
    return assemble(found)


def assemble(found: list[tuple[str, Node]]) -> Node:
    """One node for the statements of an answer."""
    nodes = [node for _, node in found]
    if not nodes:
        raise Unparseable("empty")
    separators = {separator for separator, _ in found[1:]}
    if len(nodes) == 1:
        return family_of_product(nodes[0])
    conditions = [node for node in nodes[1:] if is_integer_membership(node)]
    if conditions and all(is_integer_membership(node) for node in nodes[-len(conditions) :]):
        heads = nodes[: -len(conditions)]
        head = heads[0] if len(heads) == 1 else Node("list", ",", tuple(heads))
        names = frozenset[str]().union(*(symbols(c.args[0]) for c in conditions))
        if names & symbols(head):
            return Node("family", None, (head, *conditions))
    if ";" in separators and separators != {";"}:
        groups: list[list[Node]] = [[nodes[0]]]
        for separator, node in found[1:]:
            if separator == ";":
                groups.append([])
            groups[-1].append(node)
        nodes = [group[0] if len(group) == 1 else Node("tuple", "()", tuple(group)) for group in groups]
    if (
        nodes[0].kind == "rel" and nodes[0].value == ("!=",) and all(node.kind in SCALARS for node in nodes[1:])
    ):  # x != 1, 2
        nodes[1:] = [Node("rel", ("!=",), (nodes[0].args[0], node)) for node in nodes[1:]]
    return joined(separators, found, nodes)


def joined(separators: set[str], found: list[tuple[str, Node]], nodes: list[Node]) -> Node:
    """A list by its separators; "and" binds its inequalities closer than "or"."""
    if separators == {"and", "or"} and all(node.kind == "rel" and _ORDER & set(node.value) for node in nodes):
        groups: list[list[Node]] = [[nodes[0]]]
        for separator, node in found[1:]:
            if separator == "or":
                groups.append([])
            groups[-1].append(node)
        return Node("list", "or", tuple(g[0] if len(g) == 1 else Node("list", "and", tuple(g)) for g in groups))
    return Node("list", "or" if "or" in separators else "and" if separators == {"and"} else ",", tuple(nodes))


def is_integer_membership(node: Node) -> bool:
    return node.kind == "rel" and node.value == ("in",) and node.args[1] in _INTEGER_SPACES


def family_of_product(node: Node) -> Node:
    """k\\pi (k \\in Z) was read as a product."""
    target = node.args[-1] if node.kind == "rel" and node.value == ("=",) else node
    if target.kind == "mul" and is_integer_membership(target.args[-1]):
        rest = target.args[:-1]
        head = rest[0] if len(rest) == 1 else Node("mul", None, rest)
        return Node("family", None, (head, target.args[-1]))
    if target.kind == "add" and target.args[-1].kind == "mul" and is_integer_membership(target.args[-1].args[-1]):
        last = target.args[-1]
        head = Node("add", None, (*target.args[:-1], Node("mul", None, last.args[:-1])))
        return Node("family", None, (head, last.args[-1]))
    return node


def iso_brackets(tokens: list[Token]) -> list[Token]:
    """]0,1[ in the ISO notation becomes (0,1); other tokens stay."""
    stack: list[str] = []
    for at, (kind, value, space) in enumerate(tokens):
        if kind == "close" and value == "]" and "[" not in stack and "(" not in stack:
            tokens[at] = ("open", "(", space)
            stack.append("(")
        elif kind == "open" and value in ("[", "(", "{", "\\{"):
            closing = (
                value == "["
                and stack
                and stack[-1] in ("[", "(")
                and (at + 1 == len(tokens) or tokens[at + 1][0] in ("op", "sep", "close"))
            )
            if closing and not (
                at + 1 < len(tokens) and tokens[at + 1][:2] in (("op", "-"), ("op", "+"), ("op", "+-"))
            ):
                tokens[at] = ("close", ")", space)
                stack.pop()
            else:
                stack.append(value)
        elif kind == "close" and stack:
            stack.pop()
    return tokens


def lines_to_commas(tokens: list[Token]) -> list[Token]:
    """Row breaks outside environments separate statements."""
    if not any(kind in ("row", "cell") for kind, _, _ in tokens):
        return tokens
    depth, out = 0, []
    environments: list[str] = []
    for token in tokens:
        depth += {"begin": 1, "end": -1}.get(token[0], 0)
        if token[0] == "begin":
            environments.append(token[1])
        elif token[0] == "end" and environments:
            environments.pop()
        elif token[0] == "cell" and environments and environments[-1] in LINES:
            continue
        out.append(("sep", ",", token[2]) if token[0] == "row" and depth == 0 else token)
    return out
