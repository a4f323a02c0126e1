"""One answer, read once: canonical text, normal form, tree, and what it may be besides (a choice, a text, a clock
time)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from jurat.verifiers.math import words
from jurat.verifiers.math.canonical import canonical
from jurat.verifiers.math.exact import rational
from jurat.verifiers.math.lexer import render, tokenize
from jurat.verifiers.math.limits import MAX_STEPS, Steps, TooLarge, Undefined, Unparseable
from jurat.verifiers.math.numerals import based, decimal
from jurat.verifiers.math.statements import parse
from jurat.verifiers.math.tree import Node, walk

_TEXT_MACRO = re.compile(
    r"\\(?:text|mbox|hbox|textbf|textit|textrm|textnormal|texttt|textsf|mathrm|mathbf|mathit|mathsf|operatorname|bf|rm|emph)\b\s*"
)
_SPACING = re.compile(r"\\[,;:!> ()\[\]]|\\q?quad\b|~")
_PROSE = re.compile(r"[\w\s.,;:'\"()?!&%$/+=*#-]*")
_CODE = re.compile(r"__|[A-Za-z]\(|[\"']\w+[\"'],|\w=\w+\(")
_LETTER = re.compile(r"[^\W\d_]")
_SIMPLE = re.compile(r"[+-]?\d{1,300}(?:\.\d{1,300})?")
_LABEL = re.compile(r"\(?\s*([A-Za-z])\s*(?:(\))|[.:](?!\d)|$)\s*")
_OPTION = re.compile(r"^(?:the\s+)?(?:correct\s+)?(?:option|choice|answer)\s*(?:is)?\s*:?\s*", re.IGNORECASE)
_OTHER_LABEL = re.compile(r"\(([A-Ja-j])\)|(?:^|[\s,;])([A-J])[.):](?:\s|$)")
_CHOICE_GOLD = re.compile(r"\(([A-Ja-j])\)|([A-J])\.?")
_SELECTION = re.compile(r"\(?[A-J]\)?(?:(?:\s*,\s*|\s*and\s*|\s*&\s*|\s*)\(?[A-J]\)?){0,9}")
_CLOCK = re.compile(r"(\d{1,2})(?::(\d{2})(?::(\d{2}))?)?\s*(a\.?m\.?|p\.?m\.?|noon)?", re.IGNORECASE)
_HEX = re.compile(r"\(?([0-9A-Z]{1,40})\)?_\{?\s*(1[1-9]|2\d|3[0-6])\s*\}?")
_DENIAL = re.compile(r"\b(?:not|wrong|incorrect|false|never|isn't|no)\b", re.IGNORECASE)
_COMMA_NUMBER = re.compile(r"\d,\d")


_NUM = frozenset(("num",))


@dataclass(frozen=True, slots=True)
class Reading:
    """What was understood of one bare answer."""

    raw: str
    norm: str = ""
    node: Node | None = None
    error: str = ""
    """Rule that failed, when `node` is None."""
    large: bool = False
    key: str = ""
    """Words and signs without markup, lower case (single letters keep theirs)."""
    comma: bool = False
    """A comma stands between two digits: other readings exist."""
    undefined: bool = False
    kinds: frozenset[str] = frozenset()
    """Kinds of all nodes."""

    @property
    def kind(self) -> str:
        return self.node.kind if self.node is not None else ""


@lru_cache(maxsize=8192)
def read(raw: str, commas: str = "auto") -> Reading:
    """Reads a bare answer; never raises on any text."""
    if len(raw) < 300 and _SIMPLE.fullmatch(raw):
        sign, digits = (-1, raw[1:]) if raw[0] == "-" else (1, raw.lstrip("+"))
        p, q, places = decimal(digits).value
        return Reading(raw, norm=raw.lstrip("+"), node=Node("num", (sign * p, q, places)), key=raw, kinds=_NUM)
    try:
        text = canonical(raw)
    except Unparseable as error:
        return Reading(raw, error=str(error))
    except TooLarge as error:
        return Reading(raw, error=str(error), large=True)
    key = plain(text)
    comma = bool(_COMMA_NUMBER.search(text)) or "{,}" in text
    clock = clock_time(key) or hexadecimal(text)
    norm = text
    try:
        tokens = tokenize(text, commas)
        norm = render(tokens)
        node = clock or parse(tokens)
    except Unparseable as error:
        words_node = prose(text, key)
        if words_node is None:
            return Reading(raw, norm=norm, error=str(error), key=key)
        node = words_node
    except TooLarge as error:
        return Reading(raw, norm=norm, error=str(error), large=True, key=key)
    except RecursionError:
        return Reading(raw, norm=norm, error="depth", large=True, key=key)
    if node.kind in ("mul", "sym", "text") and key in words.CONSTANTS:
        node = words.CONSTANTS[key]
    undefined = False
    try:
        rational(node, Steps(MAX_STEPS))
    except Undefined:
        undefined = True
    except (TooLarge, RecursionError):
        pass
    kinds = frozenset(n.kind for n in walk(node))
    return Reading(raw, norm, node, key=key, comma=comma, undefined=undefined, kinds=kinds)


def plain(text: str) -> str:
    """The text without text macros, braces, quotes and spacing: what a reader sees, in lower case."""
    text = shown_words(text)
    return text if len(text) == 1 else text.lower()


def shown_words(text: str) -> str:
    if "\\" in text:
        text = _SPACING.sub(" ", _TEXT_MACRO.sub("", text))
    text = text.replace("{", "").replace("}", "").replace('"', "").replace("\\$", "$")
    return " ".join(text.split()).rstrip(" .,;").lstrip(" ,;")


_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_DASH = re.compile(r"(?<=[^\W\d_]) - (?=[^\W\d_]{2})")
_SIGNED_WORDS = re.compile(
    r"(?P<word>[^\W\d_]+(?:'[^\W\d_]+)?)"
    r"|(?P<number>\.\d+|\d+(?:[.,:/]\d+)*)"
    r"|(?P<group>\([^()]*\))"
    r"|(?P<sign>[-+*/=%$#&!])"
)
_BEFORE_A_NOUN = re.compile(r"\s+(?!(?:and|or|is|was)\b)[^\W\d_]{2,}", re.IGNORECASE)


def prose(text: str, key: str) -> Node | None:
    """A text node, where the answer is words and nothing that looks like code: its words in their case, its numbers,
    and every sign that is no hyphen. "slope -2" keeps its minus, "x-intercept" and "well-known" lose the hyphen."""
    shown = shown_words(text)
    if (
        key in ("nan", "n/a")
        or "\\" in key
        or not _PROSE.fullmatch(key)
        or _CODE.search(text)
        or not _LETTER.search(key)
    ):
        return None
    kept = list(signed_words(shown))
    if not any(len(word) > 1 and word.isalpha() for word in kept):
        return None
    return Node("text", " ".join(kept))


def signed_words(text: str) -> Iterator[str]:
    text = _DASH.sub(", ", text)
    for match in _SIGNED_WORDS.finditer(text):
        token, start, end = match.group(), match.start(), match.end()
        if match.lastgroup == "group":
            inner = list(signed_words(token[1:-1]))
            alone = any(len(word) > 1 and word[0].isalpha() for word in inner)  # a remark, not a point
            yield from inner if alone else ("(" + token[1:-1].replace(" ", "") + ")",)
        elif match.lastgroup == "sign":
            hyphen = token in "-/" and text[start - 1 : start].isalpha() and text[end : end + 1].isalpha()
            if not hyphen and not (token == "!" and not text[end:].strip()):
                yield "and" if token == "&" else token
        elif match.lastgroup == "word" and token.lower() in words.ARTICLES:
            article = token != "A" or not text[:start].strip()
            if not (article and _BEFORE_A_NOUN.match(text, end)):
                yield token
        else:
            yield token.replace(",", "") if _GROUPED.fullmatch(token) else token


def hexadecimal(text: str) -> Node | None:
    """A3_{16}: letters as digits, where the base allows them."""
    if "_" not in text or len(text) > 80:
        return None
    match = _HEX.fullmatch(_TEXT_MACRO.sub("", text).replace("{", "").replace("}", ""))
    if match is None or match[1].isdigit():
        return None
    try:
        return based(match[1], match[2])
    except Unparseable:
        return None


def clock_time(key: str) -> Node | None:
    if not key or not key[0].isdigit() or len(key) > 16:
        return None
    match = _CLOCK.fullmatch(key)
    if match is None or (match[2] is None and match[4] is None):
        return None
    hour, minute, second = int(match[1]), int(match[2] or 0), int(match[3] or 0)
    half = (match[4] or "").replace(".", "").lower()
    if hour > 24 or minute > 59 or second > 59 or (half and not 1 <= hour <= 12):
        return None
    return Node("time", (hour, minute, second, "pm" if half == "noon" else half))


def choice_of_gold(reading: Reading) -> str:
    """The letter of a multiple-choice gold: "(b)", "\\text{C}", "B"; "" for anything else."""
    match = _CHOICE_GOLD.fullmatch(_bare(reading.raw))
    return (match[1] or match[2]).upper() if match else ""


def choice_of_answer(reading: Reading) -> str:
    """The letter that an answer chooses: "B", "(b)", "B. because ...", "(B) 3x = 7"; "" where it names none or
    several. By convention a bare small letter chooses too ("b", and "e" and "i", for a gold that is a letter A to
    J)."""
    text = _OPTION.sub("", _bare(reading.raw))
    match = _LABEL.match(text)
    if match is None or (
        match[2] and not text.startswith("(") and len(text) > match.end() and not text[match.end() - 1].isspace()
    ):
        return ""
    if text.startswith("(") and not match[2]:
        return ""
    letter, rest = match[1].upper(), text[match.end() :]
    if any((a or b).upper() != letter for a, b in _OTHER_LABEL.findall(rest)) or _DENIAL.search(rest):
        return ""
    return letter


def selection(reading: Reading) -> tuple[str, bool]:
    """The letters of a multi-select answer as written ("AC", "A, C", "(A) and (C)"), and whether something separates
    them; "" for anything else."""
    text = _bare(reading.raw)
    if not _SELECTION.fullmatch(text):
        return "", False
    letters = "".join(c for c in text.replace("and", "") if c.isupper())
    return letters, letters != text


def same_selection(gold: tuple[str, bool], answer: tuple[str, bool]) -> bool:
    """Whether the same letters are chosen. A gold out of alphabetical order is a ranking, and runs of three or more
    letters (ABC) are names: there the order counts. A selection has no order; nothing is chosen twice."""
    (xs, apart), (ys, apart_too) = gold, answer
    if list(xs) != sorted(xs) or not (apart or apart_too or len(xs) < 3):
        return xs == ys
    return sorted(xs) == sorted(ys)


def _bare(raw: str) -> str:
    text = raw.strip()
    if "\\" in text:
        text = _SPACING.sub(" ", _TEXT_MACRO.sub("", text))
    return " ".join(text.replace("{", "").replace("}", "").replace("$", "").replace("*", "").split()).strip(" .")
