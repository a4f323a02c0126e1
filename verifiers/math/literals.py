"""Numbers and names in an expression: decimals, recurring and mixed numbers, symbols with their indices, unknown functions."""

from __future__ import annotations

from jurat.verifiers.math.cursor import Cursor
from jurat.verifiers.math.limits import Unparseable
from jurat.verifiers.math.numerals import decimal, integer, recurring
from jurat.verifiers.math.tree import I_UNIT, Node, add

_APPLIED = frozenset("f g h F G H".split())


class Literals(Cursor):
    def number(self, text: str) -> Node:
        if "." in text:
            repeated = self.recurring_part(text)
            if repeated is not None:
                return repeated
        node = decimal(text)
        top, slash, bottom = self.peek()[1], self.peek(1)[:2], self.peek(2)[1]
        if text.isdigit() and slash == ("op", "/") and top.isdigit() and bottom.isdigit():  # mixed: 2 1/3
            self.pos += 3
            return self.mixed(node, integer(top), integer(bottom))
        return node

    def recurring_part(self, text: str) -> Node | None:
        """0.1\\overline{6}, 0.1(6), 0.\\dot{3}, 0.333..."""
        kind, value, space = self.peek()
        if kind == "cmd" and value in ("bar", "dot"):
            self.pos += 1
            block = self.digits_argument()
            if value == "dot" and self.at("num") and self.peek(1)[:2] == ("cmd", "dot"):
                block += self.next()[1]
                self.pos += 1
                block += self.digits_argument()
            elif value == "dot" and self.accept("cmd", "dot"):
                block += self.digits_argument()
            return recurring(text, block)
        if kind == "cmd" and value == "recurring" and not text.endswith("."):
            block = ""
            while self.accept("cmd", "recurring"):
                block += self.next()[1] if self.at("num") and self.peek(1)[:2] == ("cmd", "recurring") else ""
            return recurring(text[:-1], text[-1] + block)
        if (
            kind == "open"
            and value == "("
            and not space
            and self.peek(1)[0] == "num"
            and self.peek(2)[:2] == ("close", ")")
        ):
            block = self.peek(1)[1]
            if block.isdigit():
                self.pos += 3
                return recurring(text, block)
        if kind == "dots":
            fraction = text.split(".")[1]
            for size in range(1, len(fraction) // 2 + 1):
                block = fraction[-size:]
                repeats = 3 if size == 1 else 2
                if fraction.endswith(block * repeats):
                    self.pos += 1
                    lead = fraction[: len(fraction) - size * repeats]
                    while lead.endswith(block):
                        lead = lead[:-size]
                    return recurring(text.split(".")[0] + "." + lead, block)
            raise Unparseable("truncated_decimal")
        return None

    def digits_argument(self) -> str:
        braced = self.accept("open", "{")
        digits = self.expect("num")[1]
        if braced:
            self.expect("close", "}")
        if not digits.isdigit():
            raise Unparseable("recurring_digits")
        return digits

    def mixed(self, whole: Node, top: Node, bottom: Node) -> Node:
        if not bottom.value[0]:
            raise Unparseable("zero_denominator")
        if top.value[0] >= bottom.value[0]:
            raise Unparseable("improper_mixed_number")
        return add(whole, Node("div", None, (top, bottom)))

    def identifier(self, name: str) -> Node:
        if self.at("op", "'"):
            while self.accept("op", "'"):
                name += "'"
        elif self.at("op", "^") and self.peek(1)[:2] in (("op", "'"), ("open", "{")):
            name += self.prime_exponent()
        if self.at("op", "_"):
            self.pos += 1
            index = self.subscript()
            if (
                name in ("C", "A", "P")
                and index.isdigit()
                and int(index) > 1
                and (chosen := self.chosen(int(index))) is not None
            ):
                return Node("fn", "binom" if name == "C" else "perm", (decimal(index), chosen))
            name += "_" + index
            while self.accept("op", "'"):
                name += "'"
        if self.at("open", "(") and not self.peek()[2] and (name[0] in _APPLIED or "'" in name):
            return self.application(name)
        if name == "C" and self.at("open", "(") and (pair := self.pair_ahead()):
            return Node("fn", "binom", pair)
        if name == "i":
            return I_UNIT
        if name == "e":
            return Node("const", "e")
        return Node("sym", name)

    def chosen(self, total: int) -> Node | None:
        """The upper index of C_5^2."""
        braced = self.peek(1)[:2] == ("open", "{")
        kind, value, _ = self.peek(1 + braced)
        if (
            self.at("op", "^")
            and kind == "num"
            and value.isdigit()
            and int(value) <= total
            and (not braced or self.peek(3)[:2] == ("close", "}"))
        ):
            self.pos += 2 + 2 * braced
            return decimal(value)
        return None

    def prime_exponent(self) -> str:
        """x^{\\prime\\prime} or x^'"""
        at = self.pos + 1
        braced = self.peek(1)[0] == "open"
        at += braced
        marks = ""
        while at < self.size and self.tokens[at][:2] == ("op", "'"):
            marks += "'"
            at += 1
        if marks and (not braced or (self.tokens[at : at + 1][:1] and self.tokens[at][:2] == ("close", "}"))):
            self.pos = at + braced
            return marks
        return ""

    def pair_ahead(self) -> tuple[Node, Node] | None:
        """The two arguments of C(n, k), or None with nothing consumed."""
        start, depth = self.pos, self.depth
        self.pos += 1
        found = self.items(frozenset(")"))
        if len(found) == 2 and self.accept("close", ")"):
            return found[0][1], found[1][1]
        self.pos, self.depth = start, depth
        return None

    def application(self, name: str) -> Node:
        self.expect("open", "(")
        args = tuple(node for _, node in self.items(frozenset(")")))
        self.expect("close", ")")
        return Node("app", name, args)

    def subscript(self) -> str:
        """The text of a subscript; the underscore is consumed."""
        if not self.accept("open", "{"):
            kind, value, _ = self.next()
            if kind not in ("num", "id", "const", "word", "op", "space"):
                raise Unparseable("subscript")
            return value
        parts: list[str] = []
        depth = 1
        while True:
            kind, value, _ = self.next()
            if kind == "end":
                raise Unparseable("subscript")
            if value in ("{", "}") and kind in ("open", "close"):
                depth += 1 if kind == "open" else -1
                if depth == 0:
                    break
            parts.append(value)
        if not parts:
            raise Unparseable("subscript")
        return " ".join(parts)
