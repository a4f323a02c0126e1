"""Words and currency signs after a value: percent, degrees, scale words, ordinals and units.

Either every word is understood or none is: `suffix` returns None with nothing consumed, and the answer is then no
number.
"""

from __future__ import annotations

from jurat.verifiers.math import units, words
from jurat.verifiers.math.cursor import Cursor
from jurat.verifiers.math.limits import Unparseable
from jurat.verifiers.math.numerals import based
from jurat.verifiers.math.tree import INF, Node, mul, num

ORDINAL_KEY: units.Key = ((("#th", 1),), 1, 1)
_ONE = num(1)
_MAX_ADJECTIVES = 2


class Suffix(Cursor):
    def suffix(self, left: Node) -> Node | None:
        kind, value, space = self.peek()
        if left.kind not in (
            "num",
            "mul",
            "div",
            "add",
            "neg",
            "pow",
            "fn",
            "const",
            "sym",
            "qty",
            "degree",
            "percent",
        ):
            return None
        if kind == "cur":
            if left.kind == "qty":
                return None
            self.pos += 1
            return Node("qty", (((value, 1),), 1, 1), (left,))
        word = value.lower()
        if word in words.JOINS:
            return None
        if left.kind == "qty":
            return self.qualified(left)
        if word in words.PERCENT:
            self.pos += 1
            return Node("percent", None, (left,))
        if word == "per" and self.peek(1)[1].lower() == "cent":
            self.pos += 2
            return Node("percent", None, (left,))
        if word in words.DEGREE:
            self.pos += 1
            left = Node("degree", None, (left,))
            return self.qualified(left) or left
        if word == "base" and left.kind == "num" and self.peek(1)[0] in ("num", "word"):
            digits = self.tokens[self.pos - 1][1]
            self.pos += 1
            return based(digits, self.next()[1])
        if word in words.SCALES and left.kind in ("num", "mul", "div", "add"):
            self.pos += 1
            return mul(left, num(words.SCALES[word]))
        if word in words.ORDINAL and left.kind == "num" and not space:
            self.pos += 1
            return self.ordinal(left)
        return self.units(left)

    def compound(self, left: Node) -> Node:
        """5 feet 3 inches: one quantity, in the first unit."""
        bases, p, q = left.value
        right = self.expression(29)
        if right.kind != "qty" or right.value[0] != bases or not bases:
            raise Unparseable("two_quantities")
        factor = units.F(right.value[1], right.value[2]) / units.F(p, q)
        if factor >= 1:
            raise Unparseable("two_quantities")
        return Node(
            "qty",
            left.value,
            (Node("add", None, (left.args[0], mul(right.args[0], num(factor.numerator, factor.denominator)))),),
        )

    def ordinal(self, left: Node) -> Node:
        """12th, 4^{th}; a noun may follow ("12th grade")."""
        if (
            self.at("word")
            and self.peek()[1].lower() not in words.CHANGING | frozenset(words.JOINS)
            and self.peek(1)[0] in ("end", "sep")
        ):
            self.pos += 1
        return Node("qty", ORDINAL_KEY, (left,))

    def qualified(self, left: Node) -> Node | None:
        """Neutral words after a quantity: "$5 each", "30 degrees in total"."""
        start = self.pos
        while self.at("word") and self.peek()[1].lower() in words.NEUTRAL:
            self.pos += 1
        if self.pos == start:
            return (
                self.units(left)
                if left.kind == "qty" and self.at("word") and self.peek()[1].lower() in ("per",)
                else None
            )
        return left

    def units(self, left: Node) -> Node | None:
        """A unit phrase: "square inches", "m/s^2", "red apples left in all"."""
        start = self.pos
        parts: list[tuple[tuple[tuple[str, int], ...], units.F, int]] = []
        prefix, sign, adjectives = 1, 1, 0
        while True:
            kind, value, _ = self.peek()
            if kind == "word" or (kind == "id" and sign == -1 and units.lookup(value)):
                word = value.lower()
                if word in words.JOINS:
                    break
                self.pos += 1
                unit = units.lookup(value)
                if word == "in" and not (not parts and self.peek()[0] in ("end", "sep", "rel", "close", "op")):
                    unit = None
                if word in ("square", "sq", "cubic", "cu") and self.at("word"):
                    prefix = 2 if word.startswith("s") else 3
                elif word in ("squared", "cubed") and parts:
                    bases, factor, power = parts[-1]
                    parts[-1] = (bases, factor, power * (2 if word == "squared" else 3))
                elif word == "per" or (word in ("a", "an") and parts):
                    sign = -1
                elif unit is not None:
                    parts.append((*unit, prefix * sign))
                    prefix = sign = 1
                elif word in words.NEUTRAL:
                    pass
                elif word in words.CHANGING or word in words.SCALES or word in words.NUMBER_WORDS or not word.isalpha():
                    self.pos = start
                    return None
                elif self.is_noun(word, left, sign):
                    parts.append((*units.noun(word), prefix * sign))
                    prefix = sign = 1
                elif adjectives < _MAX_ADJECTIVES and self.noun_ahead():
                    adjectives += 1
                else:
                    self.pos = start
                    return None
            elif kind == "op" and value == "^" and parts:
                self.pos += 1
                power_node = self.power_of_unit()
                bases, factor, power = parts[-1]
                parts[-1] = (bases, factor, power * power_node)
            elif (
                kind == "op"
                and value == "/"
                and parts
                and (self.peek(1)[0] == "word" or (self.peek(1)[0] == "id" and units.lookup(self.peek(1)[1])))
            ):
                self.pos += 1
                sign = -1
            elif (
                kind == "op" and value == "*" and parts and self.peek(1)[0] == "word" and units.lookup(self.peek(1)[1])
            ):
                self.pos += 1
            elif kind == "stop":
                self.pos += 1
            else:
                break
        if prefix != 1 or sign != 1:
            self.pos = start
            return None
        if not parts:
            return left
        if left.kind == "qty":
            outer, p, q = left.value
            parts.append((outer, units.F(p, q), 1))
            left = left.args[0]
        return Node("qty", units.combine(parts), (left,))

    def unit_fraction(self, left: Node) -> Node | None:
        """10 \\frac{\\text{m}}{\\text{s}}"""
        start = self.pos
        keys: list[units.Key] = []
        self.pos += 1
        for _ in range(2):
            self.accept("open", "{")
            if not self.at("word"):
                break
            part = self.units(num(1))
            if part is None or part.kind != "qty":
                break
            keys.append(part.value)
            self.accept("close", "}")
        if len(keys) != 2:
            self.pos = start
            return None
        (top, p, q), (bottom, r, s) = keys
        return Node("qty", units.combine([(top, units.F(p, q), 1), (bottom, units.F(r, s), -1)]), (left,))

    def is_noun(self, word: str, left: Node, sign: int) -> bool:
        plural = len(word) > 2 and word.endswith("s") and not word.endswith("ss")
        return plural or ((left == _ONE or sign == -1) and not self.at("word"))

    def noun_ahead(self) -> bool:
        """Whether the next word is a unit or a plural noun, so that this one is an adjective."""
        kind, value, _ = self.peek()
        word = value.lower()
        return (
            kind == "word"
            and word not in words.CHANGING
            and (units.lookup(value) is not None or (word.endswith("s") and not word.endswith("ss")))
        )

    def power_of_unit(self) -> int:
        braced = self.accept("open", "{")
        minus = self.accept("op", "-")
        digits = self.expect("num")[1]
        if braced:
            self.expect("close", "}")
        if not digits.isdigit() or len(digits) > 1:
            raise Unparseable("power_of_unit")
        return -int(digits) if minus else int(digits)

    def word_value(self) -> Node:
        """A word where a value is expected: a number word or infinity."""
        spelled: list[str] = []
        while (
            self.at("word")
            and self.peek()[1].lower() not in ("and", "or")
            and words.number([*spelled, self.peek()[1]]) is not None
        ):
            spelled.append(self.next()[1])
        if spelled:
            return num(words.number(spelled) or 0)
        word = self.peek()[1]
        if word in ("USD", "EUR", "GBP") and self.peek(1)[0] == "num":
            self.pos += 1
            bases, _ = units.UNITS[word]
            return Node("qty", (bases, 1, 1), (self.expression(40),))
        if word.lower() == "infinity":
            self.pos += 1
            return INF
        if len(word) == 1 and word.isalpha():
            self.pos += 1
            return Node("sym", word)
        raise Unparseable(f"word:{word[:20]}")
