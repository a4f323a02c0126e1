"""The token cursor that the parser's parts share."""

from __future__ import annotations

from jurat.verifiers.math.digits import Token
from jurat.verifiers.math.limits import MAX_DEPTH, TooLarge, Unparseable
from jurat.verifiers.math.tree import Node

END: Token = ("end", "", 0)


class Cursor:
    """Position in a token list, and the contexts that change what a token means."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.size = len(tokens)
        self.pos = 0
        self.depth = 0
        self.in_bars = 0
        self.in_integral = 0
        self.in_builder = 0

    def peek(self, ahead: int = 0) -> Token:
        at = self.pos + ahead
        return self.tokens[at] if at < self.size else END

    def next(self) -> Token:
        token = self.peek()
        self.pos += 1
        return token

    def at(self, kind: str, value: str | None = None) -> bool:
        token = self.peek()
        return token[0] == kind and (value is None or token[1] == value)

    def accept(self, kind: str, value: str | None = None) -> bool:
        if self.at(kind, value):
            self.pos += 1
            return True
        return False

    def expect(self, kind: str, value: str | None = None) -> Token:
        if not self.at(kind, value):
            raise Unparseable(f"expected_{value or kind}")
        return self.next()

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooLarge("depth")

    def expression(self, power: int) -> Node:
        raise NotImplementedError

    def items(self, closers: frozenset[str]) -> list[tuple[str, Node]]:
        raise NotImplementedError

    def prefix(self) -> Node:
        raise NotImplementedError

    def exponent(self) -> Node:
        raise NotImplementedError

    def identifier(self, name: str) -> Node:
        raise NotImplementedError

    def implicit(self, left: Node, space: int) -> Node:
        raise NotImplementedError

    def starts_factor(self, kind: str, value: str) -> bool:
        raise NotImplementedError
