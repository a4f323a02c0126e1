"""What a step claims: the equalities and inequalities in its text, as pairs of expressions with their places.

A run is a longest piece of text that reads as one expression: numbers, single letters, operators, brackets, LaTeX commands. Words
end it, but for nouns after a number (``3 apples + 2 apples``), ``of`` after a fraction or a share, and ``x`` between numbers. Two
runs with a relation between them are a claim; a chain ``a = b = c`` is two. ``<<48/2=24>>`` is a claim of its own, and for the
text around it as if it were not there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

MAX_CLAIMS = 64
"""Of one step; a step that claims more is judged by the first."""
MAX_RUN = 600
"""Characters of one expression."""
MAX_DEPTH = 8
"""Brackets within brackets."""
MAX_UNCLOSED = 8
"""Brackets of one step that open no expression; what stands after them is not read."""

_ANNOTATION = re.compile(r"<<([^<>\n]{1,300})>>")
_TOKEN = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<num>\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
    r"|(?P<rel>\\(?:approx|leq?|geq?|lt|gt|equiv)\b|<=|>=|=>|->|=+|≈|≃|≅|≤|≥|<|>|→|⇒|⟹)"
    r"|(?P<op>\*\*|//|[-+*/^]|[−–—×÷·∙⋅✕]|\\(?:times|cdot|div|ast)\b|±|\\pm\b)"
    r"|(?P<cmd>\\(?:[A-Za-z]+|.))"
    r"|(?P<word>[^\W\d_]+(?:['’][^\W\d_]+)?)"
    r"|(?P<open>[(\[{])|(?P<close>[)\]}])"
    r"|(?P<money>[$€£¥])|(?P<percent>%)|(?P<other>.)",
    re.DOTALL,
)
_BULLET = re.compile(r"\A\s*[-*•](?=\s)|\A\s*(?:step\s*)?\d{1,3}\s*[.:)](?=\s)", re.IGNORECASE)
_OPERATORS = {
    "**": "^", "//": "/", "−": "-", "–": "-", "—": "-", "×": "*", "·": "*", "∙": "*", "⋅": "*", "✕": "*", "÷": "/", "\\times": "*",
    "\\cdot": "*", "\\ast": "*", "\\div": "/", "\\pm": "±",
}  # fmt: skip
_SIGNS = frozenset(("-", "−", "–", "+", "±", "\\pm"))
_RELATIONS = {
    "==": "=", "===": "=", "≈": "~", "≃": "~", "≅": "~", "\\approx": "~", "\\le": "<=", "\\leq": "<=", "≤": "<=", "\\ge": ">=",
    "\\geq": ">=", "≥": ">=", "\\lt": "<", "\\gt": ">", "\\equiv": "=",
}  # fmt: skip
ARROWS = frozenset(("=>", "->", "→", "⇒", "⟹"))
_MATH = frozenset(("\\frac", "\\dfrac", "\\tfrac", "\\sqrt", "\\pi", "\\left", "\\right"))
_SKIPPED = frozenset(("\\,", "\\;", "\\!", "\\:", "\\ ", "\\$", "\\quad"))
_NOT_NOUNS = frozenset(
    "a an and or but so then thus hence therefore is are was were be equals equal gives get gets we he she it they if when since "
    "because let for to in at by on with from this that the which where as per each every there total totals times more less than".split()
)


class Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Run:
    """One expression: ``text`` as the math engine reads it, without units and money signs."""

    start: int
    end: int
    text: str
    plain: bool
    """Numbers, ``+ - * / ^ %`` and round brackets alone, every product spelt out."""
    names: frozenset[str]
    units: tuple[str, ...]
    """Words after its numbers, lower case, in order; '' for a number without one."""

    @property
    def shown(self) -> str:
        return f"{self.text} {self.units[0]}" if len(self.units) == 1 and self.units[0] else self.text


@dataclass(frozen=True, slots=True)
class Claim:
    left: Run
    relation: str
    """``=``, ``~``, ``<``, ``>``, ``<=`` or ``>=``"""
    right: Run

    @property
    def span(self) -> tuple[int, int]:
        return self.left.start, self.right.end


@dataclass(frozen=True, slots=True)
class Said:
    """Of one step."""

    claims: tuple[Claim, ...]
    """In order of their place."""
    first: Run | None
    """An expression with nothing but a relation before it: what a step that begins with ``=`` gives to the one before."""
    relation: str
    last: Run | None
    """An expression with nothing after it: what the next step may go on from."""


def said(text: str, start: int, end: int) -> Said:
    """The claims of ``text[start:end]``; places are in ``text``."""
    claims: list[Claim] = []
    piece = _BULLET.sub(lambda match: " " * len(match.group()), text[start:end])
    for match in _ANNOTATION.finditer(piece) if "<<" in piece else ():
        at = start + match.start(1)
        claims += _pairs(_runs(_tokens(match.group(1), at)))[0]
    if claims:
        piece = _ANNOTATION.sub(lambda match: " " * (match.end() - match.start()), piece)
    tokens = _tokens(piece, start)
    more, first, relation, last = _pairs(_runs(tokens))
    claims = sorted([*claims, *more], key=lambda claim: claim.span)[:MAX_CLAIMS]
    return Said(tuple(claims), first, relation, last)


def _tokens(text: str, at: int) -> list[Token]:
    return [
        Token(match.lastgroup or "", match.group(), at + match.start(), at + match.end())
        for match in _TOKEN.finditer(text)
        if match.lastgroup != "space" and match.group() not in _SKIPPED
    ]


Piece = Run | Token


def _pairs(pieces: list[Piece]) -> tuple[list[Claim], Run | None, str, Run | None]:
    """Claims; a run at the head after a relation, and that relation; a run at the very end."""
    claims: list[Claim] = []
    for place in range(1, len(pieces) - 1):
        a, sign, b = pieces[place - 1], pieces[place], pieces[place + 1]
        if not (isinstance(sign, Token) and sign.kind == "rel" and isinstance(a, Run) and isinstance(b, Run)):
            continue
        after = pieces[place + 2] if place + 2 < len(pieces) else _END
        if sign.text not in ARROWS and not _begins_late(pieces, place - 1, a.start) and not _cut(after, b.end):
            claims.append(Claim(a, _RELATIONS.get(sign.text, sign.text), b))
    first, relation = None, ""
    if len(pieces) > 1 and isinstance(pieces[0], Token) and pieces[0].kind == "rel" and isinstance(pieces[1], Run):
        if pieces[0].text not in ARROWS:
            first, relation = pieces[1], _RELATIONS.get(pieces[0].text, pieces[0].text)
    last = pieces[-1] if pieces and isinstance(pieces[-1], Run) else None
    return claims, first, relation, last


def _begins_late(pieces: list[Piece], place: int, at: int) -> bool:
    """Whether an expression is the end of one, of which words hide the rest (``Ann's 7 + Bob's 8 = 15``)."""
    back = place - 1
    if back >= 0 and _cut(pieces[back], at):
        return True
    while back >= 0 and isinstance(word := pieces[back], Token) and word.kind == "word" and word.text not in ("x", "X"):
        back -= 1
    return (
        back >= 0
        and back < place - 1
        and isinstance(sign := pieces[back], Token)
        and (sign.kind == "op" or sign.text in ("x", "X"))
    )


def _cut(beside: Piece, at: int) -> bool:
    """Whether the expression that begins or ends ``at`` went on, into what is not read (``12 pieces/house * 60``, ``11:00``)."""
    if isinstance(beside, Run):
        return True
    touches = at in (beside.start, beside.end) and beside.kind == "word"
    touches |= at == beside.end and beside.text in (":", ",")
    return touches or beside.kind in ("op", "open", "cmd") or beside.text in ("x", "X", ")", "]")


def _runs(tokens: list[Token]) -> list[Piece]:
    """Runs and the tokens between them."""
    out: list[Piece] = []
    place = unclosed = 0
    while place < len(tokens):
        reader = _Reader(tokens, place)
        if unclosed < MAX_UNCLOSED and reader.expression():
            out.append(reader.run())
            place = reader.place
        else:
            unclosed += tokens[place].kind == "open"
            out.append(tokens[place])
            place += 1
    return out


class _Reader:
    """Reads one run from ``place`` on, as far as it goes."""

    def __init__(self, tokens: list[Token], place: int) -> None:
        self.tokens, self.first, self.place = tokens, place, place
        self.out: list[str] = []
        self.units: list[str] = []
        self.names: set[str] = set()
        self.plain = True
        self.money = ""
        """What stands before the number that is read."""

    def run(self) -> Run:
        return Run(
            self.tokens[self.first].start, self.tokens[self.place - 1].end, "".join(self.out), self.plain,
            frozenset(self.names), tuple(self.units),
        )  # fmt: skip

    def look(self, ahead: int = 0) -> Token:
        at = self.place + ahead
        return self.tokens[at] if at < len(self.tokens) else _END

    def expression(self, depth: int = 0) -> bool:
        """operand (operator operand)*; False, and nothing read, where none begins here."""
        if not self.operand(depth):
            return False
        while self.tokens[self.place - 1].end - self.tokens[self.first].start < MAX_RUN:
            mark = self.mark()
            if not (self.operator() and self.operand(depth)):
                self.back(mark)
                return True
        return True

    def mark(self) -> tuple[int, int, int, bool, frozenset[str]]:
        return self.place, len(self.out), len(self.units), self.plain, frozenset(self.names)

    def back(self, mark: tuple[int, int, int, bool, frozenset[str]]) -> None:
        self.place, outs, units, self.plain, names = mark
        self.names = set(names)
        del self.out[outs:], self.units[units:]

    def operator(self) -> bool:
        token = self.look()
        if token.kind == "op":
            sign = _OPERATORS.get(token.text, token.text)
        elif (
            token.kind == "word" and token.text.lower() == "of" and self.out[-1:] and self.out[-1][-1] in "%0123456789)"
        ):
            sign = "*"
        elif (
            token.kind == "word"
            and token.text in ("x", "X")
            and self.look(1).kind in ("num", "money", "open")
            and self.numeric()
        ):
            sign = "*"
        elif self.adjacent(token):
            self.plain = False  # a product that is not spelt out
            return True
        else:
            return False
        return self.took(sign)

    def numeric(self) -> bool:
        return self.out[-1][-1] in "%0123456789)"

    def adjacent(self, token: Token) -> bool:
        """``2x``, ``2(3 + 4)``, ``(a)(b)``: two factors side by side."""
        before = self.tokens[self.place - 1]
        if token.start != before.end and not (before.kind == "num" and token.kind == "cmd"):
            return False
        if token.kind == "open":
            return token.text == "(" and before.kind in ("num", "close", "word")
        if token.kind == "word":
            return len(token.text) == 1 and before.kind in ("num", "close")
        return token.kind == "cmd" and token.text in _MATH and token.text not in ("\\left", "\\right")

    def operand(self, depth: int) -> bool:
        mark = self.mark()
        begins = (
            self.place == self.first and self.place and self.tokens[self.place - 1].kind in ("word", "num", "close")
        )
        while not begins and (token := self.look()).kind == "op" and token.text in _SIGNS:
            sign = _OPERATORS.get(token.text, token.text)
            if sign == "±":
                self.plain = False
            if sign != "+":
                self.out.append(sign)
            self.place += 1
        self.money = self.look().text
        if self.look().kind == "money":
            self.place += 1
        token = self.look()
        if token.kind == "num":
            return self.number(token)
        if token.kind == "word" and len(token.text) == 1 and self.is_name(token):
            self.names.add(token.text)
            self.plain = False
            return self.took(token.text)
        if token.kind == "open" and token.text in "([" and depth < MAX_DEPTH:
            read = self.bracket(depth)
        else:
            read = token.kind == "cmd" and token.text in _MATH and depth < MAX_DEPTH and self.command(token, depth)
        if not read:
            self.back(mark)
        return read

    def took(self, text: str) -> bool:
        self.out.append(text)
        self.place += 1
        return True

    def number(self, token: Token) -> bool:
        after = self.look(1)
        if after.kind == "word" and after.start == token.end and after.text.lower() in ("st", "nd", "rd", "th"):
            return False
        digits, money = token.text.replace(",", ""), self.money
        self.took(digits)
        joined = int(self.look().text.lower() == "and")  # 3 1/2, 3 and 1/2
        top, over, bottom = (self.look(joined + ahead) for ahead in range(3))
        if digits.isdigit() and top.text.isdigit() and over.text == "/" and bottom.text.isdigit():
            if int(top.text[:9]) < int(bottom.text[:9]):
                self.out[-1] = f"({digits}+{top.text}/{bottom.text})"
                self.place += joined + 3
        if self.look().kind == "percent":
            self.took("%")
        if self.look().kind == "money" and self.look(1).kind != "num":
            self.place += 1
        self.units.append(self.noun() or ("dollars" if money == "$" else ""))
        return True

    def noun(self) -> str:
        """Words after a number, where an expression goes on after them or a relation follows: read, and not part of it."""
        words: list[str] = []
        while (token := self.look(len(words))).kind == "word" and len(words) < 3:
            lower = token.text.lower()
            if lower in _NOT_NOUNS or lower == "of" or len(lower) == 1:
                break
            words.append(lower)
        after = self.look(len(words))
        goes_on = after.kind in ("op", "rel", "close", "end")
        goes_on |= after.text in ("x", "X") and self.look(len(words) + 1).kind in ("num", "money", "open")
        if words and after.kind == "op" and self.look(len(words) + 1).kind not in ("num", "money", "open"):
            goes_on = False  # 3-year, km/h: no operator
        if words and not goes_on and len(words) == 1 and words[0] in UNITS:
            self.place += 1
            return words[0]
        if not words or not goes_on:
            return ""
        self.place += len(words)
        return words[0]

    def is_name(self, token: Token) -> bool:
        """A single letter that stands in mathematics: beside an operator, a relation or a bracket."""
        before = self.tokens[self.place - 1] if self.place else _END
        after = self.look(1)
        if before.kind == "num" and before.end == token.start:
            return True
        if token.text in ("a", "A", "I"):
            return before.kind in ("op", "rel") or after.kind in ("op", "rel")
        if after.text == "(" and after.start == token.end and token.text not in "fghFGP":
            return True
        return before.kind in ("op", "rel", "open") or after.kind in ("op", "rel", "close")

    def bracket(self, depth: int) -> bool:
        opened = self.look().text
        self.took("(")
        if opened != "(":
            self.plain = False
        if not self.expression(depth + 1) or self.look().kind != "close":
            return False
        self.took(")")
        if self.look().kind == "percent":
            self.took("%")
        return True

    def command(self, token: Token, depth: int) -> bool:
        self.plain = False
        if token.text in ("\\left", "\\right"):
            self.place += 1
            return token.text == "\\left" and self.look().kind == "open" and self.sized(depth)
        self.took(token.text)
        for _ in range({"\\frac": 2, "\\dfrac": 2, "\\tfrac": 2, "\\sqrt": 1}.get(token.text, 0)):
            if self.look().text != "{":
                return False
            self.took("{")
            if not self.expression(depth + 1) or self.look().text != "}":
                return False
            self.took("}")
        return True

    def sized(self, depth: int) -> bool:
        self.took("(")
        if not self.expression(depth + 1) or self.look().text != "\\right":
            return False
        self.place += 1
        return self.look().kind == "close" and self.took(")")


_END = Token("end", "", -1, -1)

UNITS = {
    **dict.fromkeys(("second", "seconds", "sec", "secs"), ("time", 1)),
    **dict.fromkeys(("minute", "minutes", "min", "mins"), ("time", 60)),
    **dict.fromkeys(("hour", "hours", "hr", "hrs"), ("time", 3600)),
    **dict.fromkeys(("day", "days"), ("time", 86400)),
    **dict.fromkeys(("week", "weeks"), ("time", 604800)),
    **dict.fromkeys(("mm", "millimeter", "millimeters", "millimetre", "millimetres"), ("length", 1)),
    **dict.fromkeys(("cm", "centimeter", "centimeters", "centimetre", "centimetres"), ("length", 10)),
    **dict.fromkeys(("meter", "meters", "metre", "metres"), ("length", 1000)),
    **dict.fromkeys(("km", "kilometer", "kilometers", "kilometre", "kilometres"), ("length", 1_000_000)),
    **dict.fromkeys(("inch", "inches"), ("customary length", 1)),
    **dict.fromkeys(("foot", "feet", "ft"), ("customary length", 12)),
    **dict.fromkeys(("yard", "yards"), ("customary length", 36)),
    **dict.fromkeys(("mile", "miles"), ("customary length", 63360)),
    **dict.fromkeys(("gram", "grams"), ("mass", 1)),
    **dict.fromkeys(("kg", "kilogram", "kilograms"), ("mass", 1000)),
    **dict.fromkeys(("ml", "milliliter", "milliliters", "millilitre", "millilitres"), ("volume", 1)),
    **dict.fromkeys(("liter", "liters", "litre", "litres"), ("volume", 1000)),
    **dict.fromkeys(("cup", "cups"), ("customary volume", 1)),
    **dict.fromkeys(("pint", "pints"), ("customary volume", 2)),
    **dict.fromkeys(("quart", "quarts"), ("customary volume", 4)),
    **dict.fromkeys(("gallon", "gallons"), ("customary volume", 16)),
    **dict.fromkeys(("ounce", "ounces", "oz"), ("customary mass", 1)),
    **dict.fromkeys(("pound", "pounds", "lb", "lbs"), ("customary mass", 16)),
    **dict.fromkeys(("cent", "cents"), ("money", 1)),
    **dict.fromkeys(("dollar", "dollars"), ("money", 100)),
}  # fmt: skip
"""Noun -> (dimension, how many of its smallest unit here)."""


def words_before(text: str, start: int, end: int) -> Iterator[str]:
    """Lower-case words of ``text[start:end]``."""
    for match in re.finditer(r"[^\W\d_]+", text[start:end]):
        yield match.group().lower()
