"""A Pratt parser from tokens to the typed tree: expressions.

Binding powers, loosest first: ratio 10, set operations 15, sums 20, products 30, implicit products 40, signs 30 (so
-2^2 = -(2^2)), powers and postfix signs 60. `a/bc` is a/(bc), but a plain fraction binds its digits: `1/2x` is x/2.
"""

from __future__ import annotations

from jurat.verifiers.math import units, words
from jurat.verifiers.math.brackets import Brackets
from jurat.verifiers.math.cursor import Cursor
from jurat.verifiers.math.functions import Functions
from jurat.verifiers.math.limits import Unparseable
from jurat.verifiers.math.literals import Literals
from jurat.verifiers.math.numerals import based, decimal
from jurat.verifiers.math.suffix import Suffix
from jurat.verifiers.math.tree import I_UNIT, INF, Node, add, mul, neg, num, replace, sub, walk

_INFIX = {
    ":": 10, "cup": 15, "cap": 16, "minus": 15, "+": 20, "-": 20, "+-": 20, "-+": 20, "*": 30, "/": 30, "div": 30,
    "mod": 30, "star": 35, "oplus": 35, "otimes": 35, "ominus": 35, "odot": 35, "diamond": 35, "circ": 38,
}  # fmt: skip
IMPLICIT = 40
_STARTS = frozenset(("num", "id", "fn", "const", "deco", "cur"))
_START_COMMANDS = frozenset(("frac", "binom", "sqrt", "sum", "prod", "int", "opaque_int", "lim", "bar", "dot", "root"))


class Expressions(Suffix, Brackets, Literals, Functions, Cursor):
    """Everything below a relation: one value, set, tuple or matrix."""

    def expression(self, power: int = 0) -> Node:
        self.deeper()
        left = self.prefix()
        while True:
            kind, value, space = self.peek()
            if kind == "op":
                if value in ("!", "%", "^", "degree", "_", "'"):
                    left = self.postfix(left)
                    continue
                binding = _INFIX.get(value, 0)
                if not binding or binding <= power or (value == ":" and self.in_builder):
                    break
                self.pos += 1
                left = self.infix(left, value, binding)
            elif kind == "id" and value == "x" and self.is_times(left):
                if power >= 30:
                    break
                self.pos += 1
                left = mul(left, self.expression(30))
            elif (
                kind == "word"
                and value.lower() == "to"
                and left.kind in ("num", "ratio")
                and self.peek(1)[0] == "num"
                and power < 10
            ):
                self.pos += 1
                left = self.infix(left, ":", 10)
            elif kind == "word" and value.lower() in words.OPERATORS and self.starts_value(1):
                operator = words.OPERATORS[value.lower()]
                if _INFIX[operator] <= power:
                    break
                self.pos += 1
                left = self.infix(left, operator, _INFIX[operator])
            elif kind == "word" or kind == "cur":
                if power >= 30:
                    break
                after = self.suffix(left)
                if after is None:
                    break
                left = after
            elif (
                kind == "cmd"
                and value == "frac"
                and left.kind == "num"
                and (measured := self.unit_fraction(left)) is not None
            ):
                left = measured
            elif left.kind == "qty" and kind == "num":
                left = self.compound(left)
            elif (kind, value) == ("fn", "fact") and self.peek(1)[0] in ("end", "sep", "close", "rel"):  # 4 factorial
                self.pos += 1
                left = Node("fn", "fact", (left,))
            elif self.starts_factor(kind, value):
                if power >= IMPLICIT:
                    break
                left = self.implicit(left, space)
            else:
                break
        self.depth -= 1
        return left

    # prefix

    def prefix(self) -> Node:
        kind, value, _ = self.next()
        if kind == "num":
            return self.number(value)
        if kind == "id" and value in "aA" and self.peek()[1].lower() in words.PARTS and self.at("word"):
            if (part := self.part(num(1))) is not None:  # a half
                return part
        if kind == "id":
            return self.identifier(value)
        if kind == "op":
            if value == "-":
                return neg(self.expression(30 if self.peek()[0] != "op" else 29))
            if value == "+":
                return self.expression(30)
            if value in ("+-", "-+"):
                return Node("pm", value, (self.expression(30),))
            raise Unparseable(f"unexpected_{value}")
        if kind == "fn":
            return self.function(value)
        if kind == "const":
            return Node("const", value)
        if kind == "open":
            return self.bracket(value)
        if kind == "close" and value in ("]", "["):
            return self.reversed_interval()
        if kind == "bar":
            return self.bars(value)
        if kind == "cmd":
            return self.command(value)
        if kind == "space":
            if value == "R+":
                return Node("tuple", "()", (num(0), INF))
            if value == "R-":
                return Node("tuple", "()", (neg(INF), num(0)))
            return Node("space", value)
        if kind == "begin":
            return self.environment(value)
        if kind == "cur":
            return self.money(value)
        if kind == "deco":
            return self.decorated(value)
        if kind == "dots":
            return Node("dots")
        if kind == "word":
            self.pos -= 1
            return self.word_value()
        raise Unparseable(f"unexpected_{value or kind}")

    # infix and postfix

    def infix(self, left: Node, op: str, binding: int) -> Node:
        if op == "+":
            return add(left, self.expression(20))
        if op == "-":
            return sub(left, self.expression(20))
        if op in ("+-", "-+"):
            return Node("pm", op, (left, self.expression(20)))
        if op == "*":
            return mul(left, self.expression(30))
        if op in ("/", "div"):
            plain = self.peek()[0] == "num" and left.kind == "num"
            return derivative(left, self.expression(45 if plain else 39))
        if op == ":":
            right = self.expression(10)
            return Node("ratio", None, (*left.args, right) if left.kind == "ratio" else (left, right))
        if op == "mod":
            return Node("fn", "mod", (left, self.expression(30)))
        if op in ("cup", "cap", "minus"):
            return Node("setop", op, (left, self.expression(binding)))
        return Node("app", op, (left, self.expression(binding)))

    def implicit(self, left: Node, space: int) -> Node:
        kind, value, _ = self.peek()
        before = self.tokens[self.pos - 1]
        if kind == "num" and (
            left.kind == "num" or not (before[0] in ("id", "const") or before[:2] in (("close", ")"), ("op", "!")))
        ):
            raise Unparseable("digits_apart")
        if (
            (kind, value) == ("cmd", "frac")
            and left.kind == "num"
            and left.value[1] == 1
            and left.value[2] is None
            and self.tokens[self.pos - 1][0] == "num"
        ):
            right = self.prefix()
            if right.kind == "div" and all(a.kind == "num" and a.value[1] == 1 and a.value[0] > 0 for a in right.args):
                top, bottom = right.args
                if top.value[0] < bottom.value[0]:
                    return add(left, right)
            while self.peek()[0] == "op" and self.peek()[1] in ("!", "%", "^"):
                right = self.postfix(right)
            return mul(left, right)
        return mul(left, self.expression(IMPLICIT))

    def starts_factor(self, kind: str, value: str) -> bool:
        if kind in _STARTS:
            return not (kind == "id" and value == "d" and self.in_integral and self.peek(1)[0] == "id")
        if kind == "open":
            return value != "<"
        if kind == "cmd":
            return value in _START_COMMANDS
        if kind == "bar":
            return not self.in_bars and value != "mid" and not self.in_builder
        return kind == "begin"

    def is_times(self, left: Node) -> bool:
        """3 x 10^8: the letter x between numbers."""
        return (
            left.kind == "num"
            and self.peek(1)[0] == "num"
            and self.tokens[self.pos - 1][0] == "num"
            and (self.peek()[2] > 0 or self.peek(1)[1] == "10")
        )

    def postfix(self, left: Node) -> Node:
        op = self.next()[1]
        if op == "!":
            if self.accept("op", "!"):
                return Node("fn", "fact2", (left,))
            return Node("fn", "fact", (left,))
        if op == "%":
            if left.kind == "percent":
                raise Unparseable("percent_of_percent")
            return Node("percent", None, (left,))
        if op == "degree":
            return Node("degree", None, (left,))
        if op == "_":
            if left.kind == "num" and left.value[1] == 1 and left.value[0] >= 0:
                digits = self.tokens[self.pos - 2][1]
                if digits == ")":
                    digits = self.tokens[self.pos - 3][1]
                return based(digits, self.subscript())
            raise Unparseable("subscript")
        if op == "^":
            return self.raised(left)
        raise Unparseable(f"unexpected_{op}")

    def raised(self, left: Node) -> Node:
        if self.at("op", "circ") or self.at("op", "degree"):
            self.pos += 1
            return Node("degree", None, (left,))
        if (
            self.at("open", "{")
            and self.peek(1)[0] == "op"
            and self.peek(1)[1] in ("circ", "degree")
            and self.peek(2)[:2] == ("close", "}")
        ):
            self.pos += 3
            return Node("degree", None, (left,))
        ordinal = 1 if self.at("open", "{") else 0
        if self.peek(ordinal)[:2] == ("word", "o"):
            self.pos += 1 + 2 * ordinal
            return Node("degree", None, (left,))
        if self.peek(ordinal)[0] == "word" and self.peek(ordinal)[1].lower() in words.ORDINAL:
            self.pos += 1 + 2 * ordinal
            return self.ordinal(left)
        if left.kind == "qty":  # cm^2 after the whole unit was read
            raise Unparseable("power_of_quantity")
        return Node("pow", None, (left, self.exponent()))

    def exponent(self) -> Node:
        kind, value, _ = self.peek()
        if kind == "open" and value in ("{", "("):
            self.pos += 1
            return self.bracket(value)
        if kind == "op" and value in ("-", "+"):
            self.pos += 1
            inner = self.exponent()
            return neg(inner) if value == "-" else inner
        if kind == "num":
            self.pos += 1
            node = decimal(value)
            if self.accept("op", "^"):
                return Node("pow", None, (node, self.exponent()))
            return node
        if kind in ("id", "const", "cmd", "fn", "bar"):
            self.deeper()
            node = self.prefix()
            self.depth -= 1
            if self.at("op", "^") and kind in ("id", "const"):
                self.pos += 1
                return Node("pow", None, (node, self.exponent()))
            return node
        raise Unparseable("exponent")

    def command(self, name: str) -> Node:
        self.deeper()
        try:
            if name == "frac":
                return derivative(self.argument(), self.argument())
            if name == "binom":
                return Node("fn", "binom", (self.argument(), self.argument()))
            if name == "sqrt":
                index = num(2)
                if self.accept("open", "["):
                    index = self.expression(0)
                    self.expect("close", "]")
                return Node("fn", "root", (index, self.argument(whole=True)))
            if name in ("sum", "prod", "int", "lim"):
                return self.big(name)
            if name == "emptyset":
                return Node("space", "empty")
            if name in ("bar", "dot"):
                return self.decorated(name)
            raise Unparseable(f"unexpected_{name}")
        finally:
            self.depth -= 1

    def argument(self, whole: bool = False) -> Node:
        """A TeX argument: a group, or one token; of digits the first one unless `whole`."""
        kind, value, space = self.peek()
        if kind == "num":
            if whole or len(value) == 1:
                self.pos += 1
                return decimal(value)
            if not value.isdigit():
                raise Unparseable("fraction_argument")
            self.tokens[self.pos] = ("num", value[1:], 0)
            return decimal(value[0])
        if kind in ("end", "close", "sep", "rel", "op"):
            raise Unparseable("missing_argument")
        if kind == "open" and value in ("(", "[") and not whole:
            raise Unparseable("fraction_argument")
        if kind == "id":
            self.pos += 1
            return I_UNIT if value == "i" else Node("const", "e") if value == "e" else Node("sym", value)
        return self.prefix()

    def big(self, name: str) -> Node:
        """Sum, product, integral or limit with its bounds and body."""
        none = Node("none")
        variable = low = high = none
        for _ in range(2):
            if self.accept("op", "_"):
                at = self.argument(whole=True) if name == "int" else self.bound()
                if at.kind == "rel" and len(at.args) == 2 and at.args[0].kind in ("sym", "const"):
                    variable, low = at.args
                    if name == "lim" and at.value != ("to",):
                        raise Unparseable("limit")
                else:
                    low = at
            elif self.accept("op", "^"):
                high = self.exponent()
        if name == "int":
            self.in_integral += 1
            body = self.expression(0)
            self.in_integral -= 1
            self.expect("id", "d")
            variable = Node("sym", self.expect("id")[1])
        else:
            body = self.expression(25)
        if variable == I_UNIT:  # sum over i: the letter is an index here
            body, high = _unimaginary(body), _unimaginary(high)
            variable = Node("sym", "i")
        return Node("big", name, (variable, low, high, body))

    def bound(self) -> Node:
        self.expect("open", "{")
        node = self.items(frozenset("}"))
        self.expect("close", "}")
        if len(node) != 1:
            raise Unparseable("bounds")
        return node[0][1]

    def decorated(self, name: str) -> Node:
        """\\vec{v}, \\angle ABC, \\overline{AB}: one name; a conjugate when numbers are under the bar."""
        if self.at("open", "{"):
            start = self.pos
            inner = self.prefix()
            text = " ".join(t[1] for t in self.tokens[start + 1 : self.pos - 1])
            if name == "bar" and inner.kind != "sym" and not any(n.kind in ("sym", "list") for n in walk(inner)):
                return Node("fn", "conj", (inner,))
            return Node("sym", f"{name} {text}")
        letters = ""
        while self.at("id") or (self.at("num") and letters):
            letters += self.next()[1] + " "
        if not letters:
            raise Unparseable("name")
        return Node("sym", f"{name} {letters.strip()}")

    def money(self, currency: str) -> Node:
        key: units.Key = (((currency, 1),), 1, 1)
        value = self.expression(IMPLICIT)
        while self.at("word") and self.peek()[1].lower() in words.SCALES:
            value = mul(value, num(words.SCALES[self.next()[1].lower()]))
        if value.kind == "qty":
            raise Unparseable("two_units")
        return Node("qty", key, (value,))


_DIFFERENTIALS = (Node("sym", "d"), Node("sym", "\\partial"))


def derivative(top: Node, bottom: Node) -> Node:
    """top / bottom; of dy/dx, d^2y/dx^2 and their kin the differentials are symbols of their own, so that no d
    cancels."""
    mark = next((d for d in _DIFFERENTIALS if _begins(top, d) and _begins(bottom, d)), None)
    if mark is None or bottom == mark or bottom.kind == "pow":
        return Node("div", None, (top, bottom))
    return Node("div", None, (_differential(top), _differential(bottom)))


def _begins(node: Node, mark: Node) -> bool:
    first = node.args[0] if node.kind == "mul" else node
    return first == mark or (first.kind == "pow" and first.args[0] == mark)


def _differential(node: Node) -> Node:
    """d y z as the symbol "d y" times z."""
    if node.kind != "mul":
        return node
    first, name, *rest = node.args
    order = f"^{first.args[1].value}" if first.kind == "pow" else ""
    mark = (first.args[0] if first.kind == "pow" else first).value
    bare = name.args[0] if name.kind == "pow" else name
    if bare.kind not in ("sym", "app"):
        return node
    one = Node("sym", f"{mark}{order} {bare.value}")
    return mul(replace(name, {bare: one}), *rest)


def _unimaginary(node: Node) -> Node:
    if node == I_UNIT:
        return Node("sym", "i")
    return Node(node.kind, node.value, tuple(_unimaginary(a) for a in node.args)) if node.args else node
