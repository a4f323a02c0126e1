"""The final answer in a raw completion.

Default order, documented once. Only the text after the last thinking end tag counts; an opened tag that is never
closed leaves no answer. Text after a chat end marker (`<|im_end|>`, `<|endoftext|>`, ...) is another turn and is cut
off. Then:

1. explicit markers: `<answer>..</answer>`, `\\boxed{..}` (not empty), `#### ..`, "final answer is .."; the last one wins;
   boxes side by side ("\\boxed{1} and \\boxed{2}") are one list;
2. the last "answer is ..", "answer: ..", to the end of its line or sentence;
3. the whole text, if it is short and reads as one answer: " 12", "12.", "7 + 5 = 12", "12 apples";
4. the last mathematics between dollars, or the last number in prose, whichever ends later (flag `last_number`).

A value that the words beside it deny, bound, change or leave open ("not \\boxed{7}", "at most 7", "6 or 7", "half of
7", "7? No.") is no answer (flag `not_asserted`); what a retraction puts in its place is ("7. Correction: 8."); see
`standing.py`. HTML comments, struck-out text, comments in code blocks and boxes behind a TeX comment sign are not
read. By convention a lone number in prose counts whatever it counts ("step 7"), the last of several `<answer>` tags
or boxes wins, and text glued to a closed box is ignored.

Every scan is linear in the text and reads its last `MAX_TAIL_CHARS` characters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from jurat.verifiers.math import standing
from jurat.verifiers.math.lexer import is_word
from jurat.verifiers.math.limits import MAX_TAIL_CHARS
from jurat.verifiers.math.macros import PLAIN_FUNCTIONS
from jurat.verifiers.math.reading import read
from jurat.verifiers.math.words import CONSTANTS

_THINK_END = re.compile(
    r"</(?:think|thinking|thought|reasoning|scratchpad)>|<\|end_of_thought\|>|<\|/think\|>|◁/think▷", re.IGNORECASE
)
_THINK_START = re.compile(
    r"<(?:think|thinking|thought|reasoning|scratchpad)>|<\|begin_of_thought\|>|◁think▷", re.IGNORECASE
)
_TURN = re.compile(
    r"<\|(?:im_start|im_end|endoftext|end_of_text|eot_id|start_header_id)\|>|</s>|<end_of_turn>|<start_of_turn>"
)
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![A-Za-z])\s*")
_HASHES = re.compile(r"####[ \t]*([^\n]*)")
_TAG_OPEN = re.compile(r"<answer>", re.IGNORECASE)
_TAG_CLOSE = re.compile(r"</answer>", re.IGNORECASE)
_FINAL = re.compile(r"final\s+answer\s*(?:is|=|:)\s*(?:therefore\s+)?:?", re.IGNORECASE)
_ANCHOR = re.compile(
    r"\b(?:answer|result)\s*(?:\([^()\n]{0,40}\)\s*)?(?:is|was|=|:|are|should\s+be|would\s+be|equals)\s*:?|\bans(?:wer)?\s*[:=]",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"(?:[.!?](?=\s|$)|\n)")
_MATH = re.compile(r"\$\$|\$|\\\(|\\\)|\\\[|\\\]")
_NUMBER = re.compile(
    r"(?<![\w.\\^_{])(?:[-−–]\s?|[+])?(?:\\?[$€£]\s?)?(?:\d{1,3}(?:[, ]\d{3})+(?:\.\d+)?|\d+(?:[.,]\d+)?|\.\d+)"
    r"(?:\s?/\s?\d+)?(?:\s?(?:\\?%|percent\b|pct\b|°|million\b|billion\b|thousand\b|hundred\b|dozen\b))?"
)
_BETWEEN = re.compile(
    r"(?:[^A-Za-z]|\\[A-Za-z]+|\b(?:and|or|text|quad|papers?|bins?|for|part|parts|a|b|c|y|x|[a-z]_?\d)\b)*",
    re.IGNORECASE,
)
_QUOTES = re.compile(r"^(?:\\\\?\")+|(?:\\\\?\")\.?$")
_MAX_BETWEEN = 60
_STRUCK = re.compile(r"~~(?=\S)[^~\n]{1,200}~~")
_CODE_BLOCK = re.compile(r"```[^`]*```")
_COMMENT_LINE = re.compile(r"(?m)^[ \t]*(?:#|//)[^\n]*")
_MARKUP = re.compile(r"[$*`()]|\\[()]")
_DENIED = re.compile(r"\s*(?:\w+\s+){0,2}(?:not|never|neither)\b", re.IGNORECASE)
_PROSE_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}(?![A-Za-z({])")
_HEDGE = re.compile(
    r"(?:\bbetween\s+)?\d[\d,.]*\s*\\?[%$]?\s*(?:[A-Za-z]+\s+)?(?:\bor\b|(?<=\s)/\s|\bor maybe\b)\s*(?:[A-Za-z]+\s+){0,2}\\?[$]?\s*$"
)
_DENIAL = re.compile(r"(?:\b(?:not|never|neither|nor|cannot)|n['’]t)\s+(?:\w{1,20}\s+){0,2}\$?-?\Z", re.IGNORECASE)
"""A denial that ends where a number begins: the number is what the answer is said not to be."""
_POINT = re.compile(r"\((?:\s*-?[\d./]{1,30}\s*,){1,8}\s*-?[\d./]{1,30}\s*\)")
_DISCOURSE = re.compile(r"(?:so|thus|hence|then|therefore|we get|we have)\b[,:]?\s+", re.IGNORECASE)
_MAX_BOXES = 64
_SHORT = 400


@dataclass(frozen=True, slots=True)
class Extraction:
    """Which rules are tried, in order. A marker group "last" takes the last of all explicit markers."""

    order: tuple[str, ...] = ("last", "answer_is", "whole", "last_expression")
    markers: tuple[str, ...] = ("tags", "boxed", "hashes", "final_answer_is")
    think: bool = True
    """Skip everything up to the last thinking end tag."""

    def __post_init__(self) -> None:
        known = {"last", "answer_is", "whole", "last_expression", *_MARKERS}
        unknown = [name for name in (*self.order, *self.markers) if name not in known]
        if unknown:
            raise ValueError(f"unknown extraction rule {unknown[0]!r}; known: {', '.join(sorted(known))}")


@dataclass(frozen=True, slots=True)
class Extracted:
    """A bare answer, where it lies in the completion, the rule that found it, and flags."""

    text: str
    start: int
    end: int
    rule: str
    flags: tuple[str, ...] = ()


def extract(text: str, extraction: Extraction | None = None) -> Extracted | None:
    """The final answer of a completion, or None. See the module for the order."""
    rules = extraction or DEFAULT_ORDER
    base = max(0, len(text) - MAX_TAIL_CHARS)
    tail = text[base:]
    if rules.think:
        ends = [m.end() for m in _THINK_END.finditer(tail)]
        start = ends[-1] if ends else 0
        opened = [m.start() for m in _THINK_START.finditer(tail) if m.start() >= start]
        if opened:  # thinking that never ended
            return None
        base, tail = base + start, tail[start:]
    turn = _TURN.search(tail)
    while turn is not None and not tail[: turn.start()].strip():
        base, tail = base + turn.end(), tail[turn.end() :]
        turn = _TURN.search(tail)
    if turn is not None:
        tail = tail[: turn.start()]
    tail = _shown(tail)
    for rule in rules.order:
        if rule == "last":
            found = max(
                (f for name in rules.markers if (f := _MARKERS[name](tail)) is not None),
                key=lambda f: f.end,
                default=None,
            )
        else:
            found = _MARKERS[rule](tail)
        if found is not None:
            found = _after_retraction(tail, found) if rule in ("last", "answer_is") else found
            return Extracted(found.text, base + found.start, base + found.end, found.rule, found.flags)
    return None


def _shown(text: str) -> str:
    """The text with what no reader sees as an answer blanked out: HTML comments, struck-out text, and comment lines
    of code blocks. Positions stay."""
    if "<!--" in text:
        parts, at = [], 0
        while (opened := text.find("<!--", at)) >= 0 and (closed := text.find("-->", opened)) >= 0:
            parts += [text[at:opened], " " * (closed + 3 - opened)]
            at = closed + 3
        text = "".join(parts) + text[at:]
    if "~~" in text:
        text = _STRUCK.sub(_blank, text)
    if "```" in text:
        text = _CODE_BLOCK.sub(lambda block: _COMMENT_LINE.sub(_blank, block.group()), text)
    return text


def _blank(match: re.Match[str]) -> str:
    return " " * len(match.group())


def _after_retraction(text: str, found: Extracted) -> Extracted:
    """The answer, or what the words after it put in its place; a denied answer is handed on with its denial, so that
    it is no number."""
    if found.rule != "boxed" and not text[found.end :].strip(" .$*)}\n"):
        return found
    at = standing.retraction(text, found.end)
    if at is not None:
        span = standing.correction(text, at)
        part = _last_expression(text[slice(*span)], anchored=True) if span else None
        if span and part is not None:
            return Extracted(part.text, span[0] + part.start, span[0] + part.end, found.rule, part.flags)
        return _unasserted(text, found.start, min(len(text), at + 40), found.rule)
    if standing.denied_after(text, found.end) or (found.rule == "boxed" and standing.denied_before(text, found.start)):
        return _unasserted(text, max(0, found.start - 40), min(len(text), found.end + 40), found.rule)
    return found


def _unasserted(text: str, start: int, end: int, rule: str) -> Extracted:
    """A value with the words that deny, bound or retract it: no answer, but for a gold that says the same words."""
    return Extracted(text[start:end].strip(), start, end, rule, ("hedge", "not_asserted"))


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The last match, in one pass."""
    match = None
    for match in pattern.finditer(text):  # noqa: B007
        pass
    return match


# explicit markers


@dataclass(frozen=True, slots=True)
class _Box:
    content: str
    start: int
    end: int


def boxes(text: str) -> list[_Box]:
    """Closed, non-empty boxes in order; `\\boxed 5` takes one token."""
    found: list[_Box] = []
    at = 0
    budget = 4 * len(text) + 1000
    for match in [*_BOX.finditer(text)][-_MAX_BOXES:]:
        if match.start() < at:
            continue
        i = match.end()
        if i < len(text) and text[i] == "{":
            depth, j = 0, i
            while j < len(text):
                char = text[j]
                if char == "\\":
                    j += 2
                    continue
                if char == "{":
                    depth += 1
                elif char == "}":
                    depth -= 1
                    if depth == 0:
                        break
                j += 1
            budget -= j - i
            if budget < 0:
                break
            if j >= len(text) or depth:
                continue
            content, end = text[i + 1 : j], j + 1
        else:
            token = re.compile(r"[-+]?[\w.]+").match(text, i)
            if token is None:
                continue
            content, end = token.group(), token.end()
        at = end
        if content.strip(" \n\t~\\,;."):
            found.append(_Box(content, match.start(), end))
    return found


def _boxed(text: str) -> Extracted | None:
    if "\\boxed" not in text and "\\fbox" not in text and "\\framebox" not in text:
        return None
    found = boxes(text)
    if not found:
        return None
    while len(found) > 1 and text[found[-2].end : found[-1].start].strip(" $") == "%":  # a comment of TeX
        found.pop()
    group = [found[-1]]
    for box in reversed(found[:-1]):
        between = text[box.end : group[0].start]
        if len(between) > _MAX_BETWEEN or not joins(between):
            break
        group.insert(0, box)
    inner = [_inner(box.content) for box in group]
    distinct = list(dict.fromkeys(inner))
    flags = (
        ("multiple_boxes",)
        if len({b.content.strip() for b in found}) > len(set(distinct)) and len(found) > len(group)
        else ()
    )
    if len(distinct) == 1:
        after = _after_box(text, group[-1].end)
        return Extracted(distinct[0] + after, group[0].start, group[-1].end, "boxed", flags)
    separator = " \\text{ or } " if re.search(r"\bor\b", text[group[0].end : group[-1].start]) else ", "
    return Extracted(separator.join(distinct), group[0].start, group[-1].end, "boxed", flags)


def _inner(content: str) -> str:
    nested = boxes(content)
    return (
        nested[-1].content if len(nested) == 1 and nested[0].start == 0 and nested[0].end == len(content) else content
    )


def joins(between: str) -> bool:
    """Whether the text between two boxes makes them one list: separators, "and", "or", short labels; no sentence of
    its own."""
    plain = between.strip()
    if not plain.strip(" $,;\n\\()[].+&~"):
        return "\n\n" not in between and ". " not in between
    if re.search(
        r"\b(?:either|but|not|then|so|thus|hence|therefore|wait|final|answer)\b", plain, re.IGNORECASE
    ) or re.search(r"[.!?]\s", plain):
        return False
    return bool(re.search(r"\b(?:and|or)\b", plain))


_UNIT_AFTER = re.compile(r"\s{0,20}\$?\s{0,20}(\\?%|percent|pct|percentage)(?![A-Za-z])")


def _after_box(text: str, end: int) -> str:
    match = _UNIT_AFTER.match(text, end)
    return "\\%" if match else ""


def _hashes(text: str) -> Extracted | None:
    last = _last(_HASHES, text)
    if last is None or not last[1].strip():
        return None
    return _cleaned(text, last.start(1), last.end(1), "hashes")


def _tags(text: str) -> Extracted | None:
    opened = _last(_TAG_OPEN, text)
    if opened is None:
        return None
    closed = _TAG_CLOSE.search(text, opened.end())
    end = closed.start() if closed else len(text)
    content = text[opened.end() : end]
    inner = _boxed(content)
    if inner is not None:
        return Extracted(inner.text, opened.end() + inner.start, opened.end() + inner.end, "tags", inner.flags)
    return _cleaned(text, opened.end(), end, "tags")


def _final_answer_is(text: str) -> Extracted | None:
    last = _last(_FINAL, text)
    if last is None:
        return None
    return _phrase(text, last.end(), "final_answer_is")


def _answer_is(text: str) -> Extracted | None:
    last = _last(_ANCHOR, text)
    if last is None:
        return None
    return _phrase(text, last.end(), "answer_is")


def _phrase(text: str, start: int, rule: str) -> Extracted | None:
    """The rest of the sentence after an anchor; a box inside it, or mathematics at its beginning, is the answer."""
    while start < len(text) and text[start] in " \t\n:*":
        start += 1
    end = start
    for match in _SENTENCE_END.finditer(text, start):
        end = match.start()
        if (
            text[start:end].count("$") % 2 == 0
            and text[start:end].count("{") <= text[start:end].count("}")
            and not text.startswith("\\]", start)
        ):
            if text[start:end].lstrip().startswith(("\\[", "$$")) and not text[start:end].rstrip().endswith(
                ("\\]", "$$")
            ):
                continue
            break
    else:
        end = len(text)
    content = text[start:end]
    if not content.strip(" *$.,:"):
        return None
    anchor = text.rfind("\n", 0, start) + 1
    lead = text[anchor:start].rstrip(" \t:*")
    if standing.denied_before(lead, len(lead)) or standing.opens_with_denial(content):
        return _unasserted(text, max(anchor, start - 60), end, rule)
    if not _reads(content):
        kept = standing.asserted(content)
        if kept != content:
            start += content.find(kept) if kept in content else 0
            content = kept
            end = start + len(kept) if text.startswith(kept, start) else end
            if _reads(content):
                return Extracted(content.strip().strip("*`").strip(), start, end, rule)
    if _DENIED.match(content):
        return _cleaned(text, start, end, rule)
    box = _boxed(content)
    if box is not None:
        return Extracted(box.text, start + box.start, start + box.end, rule, box.flags)
    whole = _cleaned(text, start, end, rule)
    if whole is not None and _reads(whole.text) and not (text.startswith("!", end) and whole.text[-1:].isdigit()):
        return whole
    if text.startswith("!", end) and whole is not None and whole.text[-1:].isdigit():
        return Extracted(whole.text + "!", start, end + 1, rule)
    part = _last_expression(content, anchored=True)
    if part is None:
        return whole
    if whole is not None and "not_asserted" in part.flags:
        return Extracted(whole.text, start, end, rule, part.flags)
    return Extracted(part.text, start + part.start, start + part.end, rule, part.flags)


def _reads(text: str) -> bool:
    node = read(text).node
    return node is not None and node.kind != "text"


def _cleaned(text: str, start: int, end: int, rule: str) -> Extracted | None:
    content = _QUOTES.sub("", text[start:end].strip().strip("*`").strip())
    return Extracted(content, start, end, rule) if content else None


# without a marker


def _whole(text: str) -> Extracted | None:
    content = text.strip()
    opening = _DISCOURSE.match(content)
    if opening:
        content = content[opening.end() :]
    if not content or len(content) > _SHORT:
        return None
    reading = read(content)
    if reading.node is None or reading.kind == "text" or (is_prose(content) and reading.key not in CONSTANTS):
        lines = [line for line in content.splitlines() if line.strip()]
        if (
            len(lines) != 1
            and lines
            and _reads(lines[0].strip())
            and not any(c.isdigit() for line in lines[1:] for c in line)
        ):
            at = text.find(lines[0])
            return Extracted(lines[0].strip(), at, at + len(lines[0]), "whole")
        return None
    at = text.find(content)
    return Extracted(content, at, at + len(content), "whole")


def is_prose(text: str) -> bool:
    """Two or more plain words that no unit, function or label explains: a sentence, though its letters could be a
    product."""
    if "\\text" in text or "\\mathrm" in text:
        return False
    runs = _PROSE_WORD.findall(text)
    return (
        sum(run not in PLAIN_FUNCTIONS and not is_word(run) and run not in ("pi", "oo") for run in runs) > 1
        and " " in text
    )


def _last_expression(text: str, anchored: bool = False) -> Extracted | None:
    """The last mathematics between delimiters or the last number in prose, whichever ends later."""
    text = standing.asserted_here(text)
    math = _last_math(text)
    number = _last(_NUMBER, text)
    while (
        number is not None
        and number.end() < len(text)
        and text[number.end()].isalpha()
        and not _unit_follows(text, number.end())
    ):
        number = None
    if math is not None and (number is None or number.end() <= math.end):
        lead = text[max(0, math.start - 80) : math.start].replace("$", "").replace("*", "")
        if standing.doubted(text, math.start, math.end) or _HEDGE.search(lead):
            return _unasserted(text, max(0, math.start - 60), min(len(text), math.end + 30), "last_expression")
        return math
    if number is None or not (
        anchored or "=" in text or any(c.isalpha() for c in text)
    ):  # digits in a row are no sentence
        return None
    before = max(0, number.start() - 60)
    hedge = _HEDGE.search(text, before, number.start()) or _DENIAL.search(text[:number.start()], before)
    if hedge is None and (
        standing.doubted(text, number.start(), number.end())
        or _HEDGE.search(_MARKUP.sub("", text[before : number.start()]))
    ):
        return _unasserted(text, before, min(len(text), number.end() + 30), "last_expression")
    if hedge is not None:
        return Extracted(text[hedge.start() : number.end()], hedge.start(), number.end(), "last_expression", ("hedge",))
    for point in _POINT.finditer(text):
        if point.start() < number.start() and number.end() < point.end():
            return Extracted(point.group(), point.start(), point.end(), "last_expression")
    content = number.group().strip()
    return Extracted(content, number.start(), number.end(), "last_expression", ("last_number",))


def _unit_follows(text: str, at: int) -> bool:
    run = re.compile(r"[^\W\d_]+").match(text, at)
    return run is not None and len(run.group()) <= 4


def _last_math(text: str) -> Extracted | None:
    """Content of the last pair of `$`, `$$`, `\\(`..`\\)` or `\\[`..`\\]`."""
    marks = [m for m in _MATH.finditer(text) if not (m.group() == "$" and m.start() and text[m.start() - 1] == "\\")]
    open_at: tuple[str, int] | None = None
    last: tuple[int, int] | None = None
    closers = {"$": "$", "$$": "$$", "\\(": "\\)", "\\[": "\\]"}
    for mark in marks:
        token = mark.group()
        if open_at is None:
            if token in closers:
                open_at = (token, mark.end())
        elif token == closers[open_at[0]]:
            if text[open_at[1] : mark.start()].strip():
                last = (open_at[1], mark.start())
            open_at = None
    if last is None:
        return None
    start, end = last
    after = _UNIT_AFTER.match(text, end + 1)
    content = text[start:end].strip() + ("\\%" if after else "")
    if after:
        end = after.end()
    return Extracted(content, start, end, "last_expression")


_MARKERS = {
    "tags": _tags,
    "boxed": _boxed,
    "hashes": _hashes,
    "final_answer_is": _final_answer_is,
    "answer_is": _answer_is,
    "whole": _whole,
    "last_expression": _last_expression,
}
DEFAULT_ORDER = Extraction()

_CHOICE_ANCHOR = re.compile(r"(?:answer|choice|option)\s*(?:is|:)?\s*\(?([A-Ja-j])\)?(?![A-Za-z])", re.IGNORECASE)
_CHOICE_START = re.compile(r"\s*\(?([A-J])\)?(?:[.):,]|\s*$)")
_CHOICE_WORD = re.compile(r"(?<![A-Za-z])\(?([B-HJ])\)?(?![A-Za-z'])")


_OTHER_CHOICE = re.compile(r"\s*(?:or|and|/|,|&)?\s*(?:\([A-J]\)|(?<=or )[A-J]\b|(?<=and )[A-J]\b)")


def choice_letter(text: str, extraction: Extraction | None = None) -> Extracted | None:
    """The chosen letter of a completion that marks it with words only: "the answer is B", "B. because ...", "... B
    ..."."""
    tail = text[-MAX_TAIL_CHARS:]
    ends = [m.end() for m in _THINK_END.finditer(tail)] if (extraction or DEFAULT_ORDER).think else []
    base = len(text) - len(tail) + (ends[-1] if ends else 0)
    tail = text[base:]
    last = _last(_CHOICE_ANCHOR, tail)
    match = last or _CHOICE_START.match(tail)
    if match is None:
        last = _last(_CHOICE_WORD, tail)
        match = last
    if match is None:
        return None
    start, end = match.start(1), match.end(1)
    if (
        _OTHER_CHOICE.match(tail, match.end())
        or standing.denied_after(tail, end)
        or standing.denied_before(tail, start)
        or standing.retraction(tail, end) is not None
    ):
        return _unasserted(text, base + max(0, start - 40), min(len(text), base + end + 40), "choice_letter")
    return Extracted(match[1], base + match.start(1), base + match.end(1), "choice_letter")


def gold_box(text: str) -> str | None:
    """The boxed content of a gold text; one box that is never closed runs to the end of the text."""
    found = _boxed(text)
    if found is not None:
        return found.text
    opened = _last(_BOX, text)
    if opened is None or not text.startswith("{", opened.end()):
        return None
    return text[opened.end() + 1 :].strip()
