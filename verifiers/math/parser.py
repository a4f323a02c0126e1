"""A Pratt parser from tokens to the typed tree: expressions.

Binding powers, loosest first: ratio 10, set operations 15, sums 20, products 30, implicit products 40, signs 30 (so
-2^2 = -(2^2)), powers and postfix signs 60. `a/bc` is a/(bc), but a plain fraction binds its digits: `1/2x` is x/2.
"""

from __future__ import annotations

from jurat.verifiers.math import units, words
from jurat.verifiers.math.brackets import Brackets
from jurat.verifiers.math.cursor import Cursor
from jurat.verifiers.math.limits import MAX_DIGITS, TooLarge, Unparseable
from jurat.verifiers.math.numerals import based, decimal, integer, recurring
from jurat.verifiers.math.suffix import Suffix
from jurat.verifiers.math.tree import I_UNIT, INF, PI, Node, add, mul, neg, num, sub, walk

_INFIX = {":": 10, "cup": 15, "cap": 16, "minus": 15, "+": 20, "-": 20, "+-": 20, "-+": 20, "*": 30, "/": 30,
    "div": 30, "mod": 30,
          "star": 35, "oplus": 35, "otimes": 35, "ominus": 35, "odot": 35, "diamond": 35, "circ": 38}  # fmt: skip
IMPLICIT = 40
_STARTS = frozenset(("num", "id", "fn", "const", "deco", "cur"))
_START_COMMANDS = frozenset(("frac", "binom", "sqrt", "sum", "prod", "int", "opaque_int", "lim", "bar", "dot", "root"))
_TRIG = {"sin": "arcsin", "cos": "arccos", "tan": "arctan", "cot": "arccot", "sec": "arcsec", "csc": "arccsc",
         "sinh": "arsinh", "cosh": "arcosh", "tanh": "artanh"}  # fmt: skip
_APPLIED = frozenset("f g h F G H".split())
_MANY = frozenset(("gcd", "lcm", "max", "min", "binom", "mod"))


class Expressions(Suffix, Brackets, Cursor):
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

    # functions

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
            return Node("div", None, (left, self.expression(45 if plain else 39)))
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
                return Node("div", None, (self.argument(), self.argument()))
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


def _unimaginary(node: Node) -> Node:
    if node == I_UNIT:
        return Node("sym", "i")
    return Node(node.kind, node.value, tuple(_unimaginary(a) for a in node.args)) if node.args else node


def check_digits(text: str) -> None:
    if len(text) > MAX_DIGITS:
        raise TooLarge("digits")
