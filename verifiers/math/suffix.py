"""Words and currency signs after a value: percent, degrees, scale words, ordinals and units.

Any other plural noun after a number is a counted thing ("9 marbles"), whatever it is: a unit of its own name, dropped
by the conversion `unit_dropped`. Words for numbers, parts, changes and denials (`words.py`) are never units.

Either every word is understood or none is: `suffix` returns None with nothing consumed, and the answer is then no
number.
"""

from __future__ import annotations

from jurat.verifiers.math import units, words
from jurat.verifiers.math.cursor import Cursor
from jurat.verifiers.math.limits import Unparseable
from jurat.verifiers.math.numerals import based
from jurat.verifiers.math.tree import INF, Node, mul, neg, num

ORDINAL_KEY: units.Key = ((("#th", 1),), 1, 1)
_ONE = num(1)
_MAX_ADJECTIVES = 2
_NO_UNIT = frozenset(
    (*words.CHANGING, *words.SCALES, *words.NUMBER_WORDS, *words.PARTS, *words.PLURAL_PARTS, *words.COUNTS)
)


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
        if word == "and" and left.kind == "num" and left.value[1] == 1 and (part := self.and_a_part()) is not None:
            return Node("add", None, (left, part))
        if word in words.JOINS:
            return None
        if left.kind == "qty":
            return self.qualified(left)
        if word in words.POWERS and (left.kind in ("sym", "const") or self.tokens[self.pos - 1][0] in ("num", "word", "close")):
            self.pos += 1
            return Node("pow", None, (left, num(words.POWERS[word])))
        if (word in words.PLURAL_PARTS or word in words.PARTS) and left.kind == "num":
            return self.part(left)
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
                elif word in _NO_UNIT or "illion" in word or not word.isalpha():
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

    def part(self, count: Node) -> Node | None:
        """Three eighths, 5 twelfths, one third: a number and the word of a fraction."""
        word = self.peek()[1].lower()
        bottom = words.PARTS.get(word) if count == _ONE else words.PLURAL_PARTS.get(word)
        if bottom is None or count.value[1] != 1 or self.tokens[self.pos - 1][0] not in ("num", "word", "id", "op"):
            return None
        self.pos += 1
        return Node("div", None, (count, num(bottom)))

    def and_a_part(self) -> Node | None:
        """The rest of "two and a half", "2 and three quarters"; nothing is consumed where it is something else."""
        start = self.pos
        self.pos += 1
        count = self.count()
        self.accept("op", "-")
        part = self.part(count) if count is not None and self.at("word") else None
        if part is None:
            self.pos = start
        return part

    def count(self) -> Node | None:
        """A count before the word of a fraction: a, 3, three."""
        kind, value, _ = self.peek()
        if value.lower() == "a" or (kind == "num" and value.isdigit()):
            self.pos += 1
            return _ONE if value.lower() == "a" else num(int(value))
        spelled = self.spelled() if kind == "word" else []
        return num(words.number(spelled) or 0) if spelled else None

    def spelled(self) -> list[str]:
        """The number words from here: "twenty-one", "three hundred and five".

        Raises:
            Unparseable: a hyphen joins words that make no number ("ten-four"), so it is no minus either.
        """
        found: list[str] = []
        while True:
            kind, value, _ = self.peek()
            if kind == "word" and value.lower() != "and" and words.number([*found, value]) is not None:
                found.append(self.next()[1])
            elif (
                (kind, value.lower()) == ("word", "and")
                and found
                and self.peek(1)[0] == "word"
                and words.number([*found, value, self.peek(1)[1]]) is not None
                and self.peek(2)[1].lower() not in words.PLURAL_PARTS
            ):
                found += [self.next()[1], self.next()[1]]
            elif found and kind == "op" and value == "-" and self.peek(1)[0] == "word":
                following = self.peek(1)[1].lower()
                if following in words.PARTS or following in words.PLURAL_PARTS:
                    self.pos += 1
                    return found
                if following not in words.NUMBER_WORDS and following not in words.SCALES:
                    return found
                if found[-1].lower() not in words.TENS or not 0 < words.NUMBER_WORDS.get(following, 0) < 10:
                    raise Unparseable("hyphen")
                if self.peek()[2] or self.peek(1)[2]:
                    raise Unparseable("hyphen")
                self.pos += 1
            else:
                return found

    def word_value(self) -> Node:
        """A word where a value is expected: a number word, a sign, "half of", or infinity."""
        spelled = self.spelled()
        if spelled:
            return num(words.number(spelled) or 0)
        word = self.peek()[1]
        low = word.lower()
        if low in words.SIGNS and self.starts_value(1):
            self.pos += 1
            value = self.expression(30)
            return neg(value) if words.SIGNS[low] == "-" else value
        if low in words.MULTIPLES:
            of = self.peek(1)[1].lower() == "of"
            if self.starts_value(1 + of):
                self.pos += 1 + of
                return mul(num(*words.MULTIPLES[low]), self.expression(30))
        if low in words.PARTS and self.peek(1)[0] in ("end", "sep", "close"):
            self.pos += 1
            return num(1, words.PARTS[low])
        if low == "a" and self.peek(1)[1].lower() in words.PARTS:
            self.pos += 1
            if (part := self.part(_ONE)) is not None:
                return part
        if word in ("USD", "EUR", "GBP") and self.peek(1)[0] == "num":
            self.pos += 1
            bases, _ = units.UNITS[word]
            return Node("qty", (bases, 1, 1), (self.expression(40),))
        if low == "infinity":
            self.pos += 1
            return INF
        if len(word) == 1 and word.isalpha():
            self.pos += 1
            return Node("sym", word)
        raise Unparseable(f"word:{word[:20]}")

    def starts_value(self, ahead: int) -> bool:
        kind, value, _ = self.peek(ahead)
        return (
            kind in ("num", "const", "open", "cur")
            or (kind == "id" and value != "a")
            or (kind == "cmd" and value in ("frac", "sqrt"))
            or (kind == "word" and (value.lower() in words.NUMBER_WORDS or value.lower() == "infinity"))
        )
