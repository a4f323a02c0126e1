"""Text to tokens in one linear pass.

A token is `(kind, value, space)`: space is 0 none, 1 a space, 2 a thin-space macro, 3 a negative space before it.
Kinds:

    num   digits as written ("12", "3.50")        id    one symbol ("x", "\\alpha")      word  a word of text
    fn    known function                           const inf, pi                          op    + - * / ^ cup
    rel   relation                                 open, close, bar                       sep   , ;
    cmd   frac, sqrt, sum, ...                     begin, end  environment                row   \\\\    cell  &
    cur   currency                                 deco  \\vec, \\angle ...                space set: named set
    dots

`\\text{...}` is lexed by the same rules, only that letter runs there are words. Digits are joined into one number
here, once: thousands groups, decimal commas, mixed use. Commas between digits are ambiguous, so the reading is a
parameter.
"""

from __future__ import annotations

import re

from jurat.verifiers.math import macros, units, words
from jurat.verifiers.math.digits import Token, join_digits
from jurat.verifiers.math.limits import MAX_DIGITS, MAX_TOKENS, TooLarge, Unparseable

_TOKEN = re.compile(
    r"(?P<space>[ \t\r\n~]+)"
    r"|(?P<num>\d+\.\d+(?:[eE][+-]?\d+(?![\w.]))?|\d+\.(?!\.|\d)|\.\d+|\d+(?:[eE][+-]?\d+(?![\w.]))?)"
    r"|\\(?P<macro>[A-Za-z]+)\*?"
    r"|\\(?P<sign>.)"
    r"|(?P<dots>\.\.\.+)"
    r"|(?P<letters>[^\W\d_]+)"
    r"|(?P<rel><=>|=>|<=|>=|!=|==|<|>|=|->|:=)"
    r"|(?P<op>\*\*|[-+*/^_!'%])"
    r"|(?P<other>.)",
    re.DOTALL,
)
_REL = {
    "<=": "<=",
    ">=": ">=",
    "!=": "!=",
    "==": "=",
    "<": "<",
    ">": ">",
    "=": "=",
    "->": "to",
    ":=": "=",
    "=>": "=>",
    "<=>": "<=>",
}
_OTHER = {"(": ("open", "("), ")": ("close", ")"), "[": ("open", "["), "]": ("close", "]"), "{": ("open", "{"),
    "}": ("close", "}"),
          "|": ("bar", "|"), ",": ("sep", ","), ";": ("sep", ";"), ":": ("op", ":"), "&": ("cell", "&"),
          "?": ("word", "?"),
          '"': ("quote", '"'), ".": ("dot", "."), "@": ("op", "@")}  # fmt: skip
_SIGNS = {"{": ("open", "\\{"), "}": ("close", "\\}"), "%": ("op", "%"), "$": ("cur", "dollar"), "|": ("bar", "||"),
    "&": ("word", "and"),
          "\\": ("row", "\\\\")}  # fmt: skip
_VOWELS = frozenset("aeiouyAEIOUY")
_WORD_AHEAD = re.compile(r" +[a-z]{4,}")
_SIGNED_SET = re.compile(r"\s*[\^_]\s*(?:\{\s*)?([+-]|>\s*0|<\s*0)\s*\}?")
_ROW_SKIP = re.compile(r"\\\\\s*\[[^\]\\]{0,12}\]")


def tokenize(text: str, commas: str = "auto") -> list[Token]:
    """Tokens of a canonical text.

    `commas` says how a comma between top-level digits is read: "auto" (thousands group, or decimal after a lone zero,
    or list), "list", "decimal".

    Raises:
        Unparseable: unknown macro or character, digits apart ("4 2").
        TooLarge: too many tokens or digits.
    """
    tokens = _Scanner(text).run()
    if len(tokens) > MAX_TOKENS:
        raise TooLarge("tokens")
    return join_digits(tokens, commas)


class _Scanner:
    __slots__ = ("code", "end", "out", "pos", "space", "text")

    def __init__(self, text: str) -> None:
        self.text, self.pos, self.end, self.space = text, 0, len(text), 0
        self.out: list[Token] = []
        self.code = "\\" not in text and ("*" in text or "sqrt" in text)

    def run(self) -> list[Token]:
        self.scan(self.end, prose=False)
        return self.out

    def emit(self, kind: str, value: str) -> None:
        self.out.append((kind, value, self.space))
        self.space = 0

    def scan(self, end: int, prose: bool) -> None:
        match_at, text = _TOKEN.match, self.text
        while self.pos < end:
            match = match_at(text, self.pos, end)
            assert match is not None
            self.pos = match.end()
            kind, value = match.lastgroup, match.group(match.lastgroup or 0)
            if kind == "space":
                self.space = self.space or 1
            elif kind == "num":
                if len(value) > MAX_DIGITS:
                    raise TooLarge("digits")
                self.emit("num", value)
            elif kind == "letters":
                self.letters(value, prose)
            elif kind == "macro":
                self.macro(value, end, prose)
            elif kind == "op":
                self.emit("op", "^" if value == "**" else value)
            elif kind == "rel":
                self.emit("rel", _REL[value])
            elif kind == "dots":
                self.emit("dots", "...")
            elif kind == "sign":
                self.sign(value)
            elif value in _OTHER:
                new_kind, new_value = _OTHER[value]
                if new_kind == "dot":
                    if not self.dot(end, prose):
                        raise Unparseable("stray_point")
                elif new_kind != "quote":
                    self.emit(new_kind, new_value)
            else:
                raise Unparseable(f"unknown_character:{value}")
            if len(self.out) > MAX_TOKENS:
                raise TooLarge("tokens")

    def dot(self, end: int, prose: bool) -> bool:
        """A point which is not part of a number: abbreviations and sentence ends in prose, `\\left.` and `\\right.`."""
        if self.text.startswith(("\\overline", "\\dot", "\\bar"), self.pos) and not self.text.startswith(
            "\\dots", self.pos
        ):
            self.emit("num", "0.")
            return True
        if self.out and self.out[-1][0] in ("word", "num", "close", "id", "op", "const"):
            previous = self.out[-1]
            if previous[0] == "word" and (self.pos >= end or not self.text[self.pos].isalpha()):
                return True  # "approx.", "p.m."
            if previous[0] in ("word", "id") and self.pos < end and self.text[self.pos].isalpha():
                self.out[-1] = ("word", previous[1], previous[2])
                self.out.append(("word", ".", 0))  # "p.m": joined by the parser's clock rule
                return True
            self.out.append(("stop", ".", 0))
            return True
        return prose

    def letters(self, run: str, prose: bool) -> None:
        if prose:
            if run in macros.FUNCTIONS and run in ("sin", "cos", "tan", "log", "ln", "cis", "gcd", "lcm", "det"):
                self.emit("fn", macros.FUNCTIONS[run])
            else:
                self.emit("word", run)
            return
        if len(run) == 1:
            if not run.isascii():
                raise Unparseable(f"unknown_character:{run}")
            self.emit("const" if self.code and run == "I" else "id", "i" if self.code and run == "I" else run)
            return
        if (
            run in ("min", "sec", "deg")
            and self.out
            and self.out[-1][0] == "num"
            and self.text[self.pos : self.pos + 1] not in ("(", "{", "_")
        ):
            self.emit("word", run)
        elif run in macros.PLAIN_FUNCTIONS:
            self.emit("fn", macros.FUNCTIONS[run])
        elif run == "pi":
            self.emit("const", "pi")
        elif run in ("oo", "inf", "infty"):
            self.emit("const", "inf")
        elif run.lower() in ("nan", "none", "null"):
            raise Unparseable("not_a_number")
        elif is_word(run):
            self.emit("word", run)
        elif (
            len(run) <= 3
            and run in units.SHORT_UNITS
            and self.out
            and self.out[-1][0] in ("num", "close", "const", "word")
        ):
            self.emit("word", run)
        elif (
            len(run) == 3
            and run.islower()
            and self.space
            and self.out
            and self.out[-1][0] in ("num", "word")
            and _WORD_AHEAD.match(self.text, self.pos)
        ):
            self.emit("word", run)  # "24 red marbles"
        elif run[:3] in ("and",) and run[3:4].isupper():
            self.emit("word", "and")
            self.letters(run[3:], prose)
        elif run[:2] == "or" and run[2:3].isupper():
            self.emit("word", "or")
            self.letters(run[2:], prose)
        elif (
            name := next(
                (n for n in ("sqrt", "sin", "cos", "tan", "cot", "sec", "csc", "log", "ln") if run.startswith(n)), ""
            )
        ) and len(run) == len(name) + 1:
            self.emit("fn", macros.FUNCTIONS[name])
            self.letters(run[len(name) :], prose)
        elif not run.isascii():
            self.emit("word", run)
        else:
            for letter in run:
                self.emit("id", letter)

    def sign(self, char: str) -> None:
        if char in macros.SPACES:
            self.space = max(self.space, macros.SPACES[char]) if char != " " else self.space or 1
        elif char == "\\":
            skip = _ROW_SKIP.match(self.text, self.pos - 2)
            if skip:
                self.pos = skip.end()
            self.emit("row", "\\\\")
        elif char in _SIGNS:
            self.emit(*_SIGNS[char])
        elif char in "()[]/":
            self.space = self.space or 1
        elif char in "_#":
            self.emit("op", char)
        elif char in "'`\"^~=.-":
            raise Unparseable(f"unknown_macro:\\{char}")
        else:
            raise Unparseable(f"unknown_macro:\\{char}")

    def macro(self, name: str, end: int, prose: bool) -> None:
        if name in macros.SKIPPED:
            if name in ("left", "right", "middle") and self.text.startswith(".", self.pos):
                self.pos += 1
        elif name in macros.COMMANDS:
            self.emit("cmd", macros.COMMANDS[name])
        elif name in macros.TEXTS:
            self.group(end, prose=True, math_letter=name in ("mathrm", "mathit", "mathsf"))
        elif name in macros.SPACES:
            self.space = self.space or macros.SPACES[name]
        elif name in macros.MACRO_FUNCTIONS:
            self.emit("fn", macros.FUNCTIONS[name])
        elif name in macros.RELATIONS:
            self.emit("rel", macros.RELATIONS[name])
        elif name in macros.OPERATORS:
            self.emit("op", macros.OPERATORS[name])
        elif name in macros.CONSTANTS:
            self.emit("const", macros.CONSTANTS[name])
        elif name in macros.OPENING:
            opening = macros.OPENING[name]
            self.emit("bar" if opening in ("|", "||") else "open", opening)
        elif name in macros.CLOSING:
            closing = macros.CLOSING[name]
            self.emit("bar" if closing in ("|", "||") else "close", closing)
        elif name in macros.BARS:
            self.emit("bar", "mid" if name == "mid" else macros.BARS[name])
        elif name in macros.GREEK:
            self.emit("id", "\\" + macros.GREEK_ALIASES.get(name, name))
        elif name in ("circ", "degree", "textdegree"):
            self.emit("op", "degree" if name != "circ" else "circ")
        elif name == "prime":
            self.emit("op", "'")
        elif name in ("ldots", "dots", "cdots", "dotsc", "dotsb", "dotsm", "vdots", "ddots", "hdots", "dotso"):
            self.emit("dots", "...")
        elif name in ("land", "wedge", "lor", "vee"):
            self.emit("word", "and" if name in ("land", "wedge") else "or")
        elif name == "cr":
            self.emit("row", "\\\\")
        elif name in ("colon",):
            self.emit("op", ":")
        elif name in ("mathbb", "Bbb"):
            self.named_set(end)
        elif name in ("R", "Z", "Q", "N", "C", "Reals"):
            self.emit("space", macros.SETS[name])
        elif name in ("operatorname", "DeclareMathOperator"):
            self.operator(end)
        elif name in macros.WRAPPERS:
            self.group(end, prose=prose)
        elif name in macros.DROPPED_ARGUMENT:
            self.argument(end)
        elif name in macros.DROPPED_FIRST:
            self.argument(end)
            self.group(end, prose=prose)
        elif name in macros.DECORATIONS:
            self.emit("deco", name)
        elif name in macros.PREFIX_NAMES:
            self.emit("deco", name)
        elif name in macros.CURRENCIES:
            self.emit("cur", macros.CURRENCIES[name])
        elif name in ("cent", "cents", "textcent"):
            self.emit("word", "cents")
        elif name in ("percent",):
            self.emit("op", "%")
        elif name in ("begin", "end"):
            env = self.argument(end).strip().rstrip("*")
            if name == "begin" and env in ("array", "tabular"):
                self.argument(end)
            self.emit(name, env)
        elif name.startswith("quad") and name[4:]:  # "\\quad" run together with the next name
            self.space = self.space or 1
            self.letters(name[4:], prose)
        elif name in ("forall", "exists", "lnot", "neg", "qed"):
            self.emit("word", name)
        else:
            raise Unparseable(f"unknown_macro:\\{name}")

    def argument(self, end: int) -> str:
        """The raw text of a braced argument (or one character), consumed."""
        text = self.text
        while self.pos < end and text[self.pos] == " ":
            self.pos += 1
        if self.pos >= end or text[self.pos] != "{":
            if self.pos < end:
                self.pos += 1
                return text[self.pos - 1 : self.pos]
            return ""
        close = matching_brace(text, self.pos, end)
        inner = text[self.pos + 1 : close]
        self.pos = close + 1
        return inner

    def group(self, end: int, prose: bool, math_letter: bool = False) -> None:
        """The tokens of a braced argument, without its braces where they do not matter."""
        text = self.text
        while self.pos < end and text[self.pos] == " ":
            self.pos += 1
        if self.pos >= end:
            raise Unparseable("missing_argument")
        if text[self.pos] != "{":
            return
        close = matching_brace(text, self.pos, end)
        inner = text[self.pos + 1 : close]
        if math_letter and len(inner.strip()) == 1 and inner.strip().isalpha():
            self.emit("id", inner.strip())
        elif prose:
            self.pos += 1
            self.space = self.space or int(inner[:1] == " ")
            self.scan(close, prose=True)
        else:
            self.emit("open", "{")
            self.pos += 1
            self.scan(close, prose=False)
            self.emit("close", "}")
        self.pos = close + 1

    def named_set(self, end: int) -> None:
        name = self.argument(end).strip()
        if name not in macros.SETS:
            raise Unparseable(f"unknown_set:{name}")
        signed = _SIGNED_SET.match(self.text, self.pos, end)
        if signed and name in ("R", "Reals", "Z"):
            self.pos = signed.end()
            self.emit("space", macros.SETS[name] + signed[1][0].replace(">", "+").replace("<", "-"))
        else:
            self.emit("space", macros.SETS[name])

    def operator(self, end: int) -> None:
        name = self.argument(end).replace("\\,", "").strip()
        if name in macros.FUNCTIONS:
            self.emit("fn", macros.FUNCTIONS[name])
        elif name.isalpha() and name.isascii():
            self.emit("id", name)
        else:
            raise Unparseable("unknown_operator")


def is_word(run: str) -> bool:
    """Whether a letter run in mathematics is a word and no product of letters: vocabulary, units, or word-like and
    long."""
    low = run.lower()
    if low in words.VOCABULARY and (not run.isupper() or low in words.JOINS):
        return len(run) > 2 or low in words.SHORT_WORDS
    if run in units.LONG_UNITS or low in units.LONG_UNITS:
        return True
    if len(run) < 4 or (run.isupper() and len(run) < 5) or not run[1:].islower():
        return len(run) >= 3 and run.isalpha() and run[1:].islower() and run[0].isupper() and bool(_VOWELS & set(run))
    vowels = sum(c in _VOWELS for c in run)
    return vowels > 0 and list(low) != sorted(set(low))


def matching_brace(text: str, start: int, end: int) -> int:
    """Index of the brace that closes the one at `start`. Raises Unparseable when there is none."""
    depth, i = 0, start
    while i < end:
        char = text[i]
        if char == "\\":
            i += 2
            continue
        if char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                return i
        i += 1
    raise Unparseable("unbalanced_braces")


def render(tokens: list[Token]) -> str:
    """The normal form of a token list: equal for texts which differ in markup only."""
    out: list[str] = []
    last = ""
    for kind, value, _ in tokens:
        if last and last[-1].isalnum() and value[:1].isalnum():
            out.append(" ")
        text = {
            "cmd": "\\" + value,
            "fn": value,
            "const": value,
            "begin": f"\\begin{{{value}}}",
            "end": f"\\end{{{value}}}",
        }.get(kind, value)
        out.append(text)
        last = text
    return "".join(out)
