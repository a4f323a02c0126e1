"""Known functions and their arguments: sin 2x, log_2 8, sqrt(x), max{a, b}."""

from __future__ import annotations

from jurat.verifiers.math import words
from jurat.verifiers.math.cursor import Cursor
from jurat.verifiers.math.limits import Unparseable
from jurat.verifiers.math.numerals import decimal
from jurat.verifiers.math.tree import PI, Node, neg, num, walk

_TRIG = {name: f"arc{name}" for name in ("sin", "cos", "tan", "cot", "sec", "csc")} | {
    "sinh": "arsinh",
    "cosh": "arcosh",
    "tanh": "artanh",
}
_MANY = frozenset(("gcd", "lcm", "max", "min", "binom", "mod"))


class Functions(Cursor):
    def function(self, name: str) -> Node:
        exponent: Node | None = None
        base: Node | None = None
        for _ in range(2):
            if exponent is None and self.at("op", "^"):
                self.pos += 1
                exponent = self.power_of_function()
            elif base is None and self.at("op", "_"):
                self.pos += 1
                base = self.base_argument()
        if self.at("op", "'"):
            raise Unparseable("derivative_of_function")
        if (
            base is None
            and name == "log"
            and self.peek()[:2] in (("num", "2"), ("num", "10"))
            and self.peek(1)[:2] == ("open", "(")
        ):
            base = decimal(self.next()[1])  # log2(8)
        if exponent == num(-1) and name in _TRIG:
            name, exponent = _TRIG[name], None
        args = self.arguments(name)
        node = self.known(name, base, args)
        return node if exponent is None else Node("pow", None, (node, exponent))

    def power_of_function(self) -> Node:
        """sin^318 is TeX for (sin 18)^3: digits split where no argument would be left."""
        kind, value, _ = self.peek()
        if (
            kind == "num"
            and value.isdigit()
            and len(value) > 1
            and not (self.starts_factor(*self.peek(1)[:2]) or self.peek(1)[:2] == ("op", "_"))
        ):
            self.tokens[self.pos] = ("num", value[1:], 0)
            return decimal(value[0])
        return self.exponent()

    def base_argument(self) -> Node:
        if self.at("open", "{"):
            return self.prefix()
        kind, value, _ = self.next()
        if kind == "num":
            return decimal(value)
        if kind == "id":
            return self.identifier(value)
        raise Unparseable("subscript")

    def arguments(self, name: str) -> tuple[Node, ...]:
        kind, value, _ = self.peek()
        if kind == "open" and value in ("(", "[", "{", "\\{"):
            if value == "{":
                node = self.prefix()
                return node.args if node.kind == "list" and name in _MANY else (node,)
            self.pos += 1
            closer = {"(": ")", "[": "]", "\\{": "\\}"}[value]
            found = [node for _, node in self.items(frozenset((closer,)))]
            self.expect("close", closer)
            if not found or (len(found) > 1 and name not in _MANY and name not in ("log", "det")):
                raise Unparseable("arguments")
            return tuple(found)
        if kind in ("end", "close", "sep", "rel"):
            raise Unparseable("missing_argument")
        arg = self.product_argument()
        if self.at("op", "/") and self.peek(1)[0] == "num" and any(n == PI for n in walk(arg)):
            self.pos += 1
            arg = Node("div", None, (arg, self.expression(45)))
        return (arg,)

    def product_argument(self) -> Node:
        """sin 2x: the implicit product up to the next function or operator."""
        if self.at("op", "-"):
            self.pos += 1
            return neg(self.product_argument())
        left = self.expression(45)
        if self.at("word") and self.peek()[1].lower() in words.DEGREE:
            self.pos += 1
            return Node("degree", None, (left,))
        while True:
            kind, value, space = self.peek()
            if (
                kind == "fn"
                or not self.starts_factor(kind, value)
                or (kind == "open" and value in ("(", "[") and left.kind != "num")
            ):
                return left
            left = self.implicit(left, space)

    def known(self, name: str, base: Node | None, args: tuple[Node, ...]) -> Node:
        if base is not None:
            if name != "log":
                raise Unparseable("subscript_of_function")
            return Node("fn", "logb", (base, args[0]))
        if name == "exp":
            return Node("pow", None, (Node("const", "e"), args[0]))
        if name in ("lg", "lb"):
            return Node("fn", "logb", (num(10 if name == "lg" else 2), args[0]))
        if name == "log" and len(args) == 2:
            return Node("fn", "logb", (args[1], args[0]))
        if name == "sqrt":
            return Node("fn", "root", (num(2), args[0]))
        if name == "cbrt":
            return Node("fn", "root", (num(3), args[0]))
        if name in ("max", "min", "gcd", "lcm") and len(args) == 1 and args[0].kind in ("set", "list", "tuple"):
            args = args[0].args
        if name == "binom" and len(args) != 2:
            raise Unparseable("arguments")
        return Node("fn", name, args)
