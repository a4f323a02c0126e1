"""A text cut into steps. Spans are in characters of the text as it was written, so that they meet the tokens' offsets."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Literal, NamedTuple

VERSION = "1"
"""Of the cuts: part of the version of every verifier that uses them."""
MAX_STEPS = 512
"""A text of more steps is cut after so many; what follows belongs to no step."""

How = Literal["auto", "tags", "numbered", "lines", "equations"]
_TAG = re.compile(r"<step\b[^<>]{0,40}>(.*?)(?:</step\s*>|(?=<step\b)|\Z)", re.DOTALL | re.IGNORECASE)
_NUMBER = re.compile(
    r"^[ \t]*(?:\*\*|#{1,6} )?(?:step[ \t]*\d{1,3}[ \t]*[.:)\-]|\d{1,3}[.):](?=[ \t]))", re.MULTILINE | re.IGNORECASE
)
_LINE = re.compile(r"[^\n]+")
_SENTENCE = re.compile(r"[^\n]+?(?:[.;](?=\s)|,(?=\s+(?:so|then|thus|therefore|hence)\b)|\n|\Z)", re.IGNORECASE)


class Span(NamedTuple):
    start: int
    end: int


def split(text: str, how: How = "auto") -> list[Span]:
    """The steps of ``text``, in order, none empty, none over another.

    tags: ``<step>...</step>``, an open one up to the next; numbered: from one ``Step 3:``, ``3.`` or ``3)`` at the head of a line
    to the next, with what stands before the first; lines: each that is not blank; equations: as lines, cut at the end of
    sentences too; auto: tags if there are any, else numbers if there are two, else lines.
    """
    if how == "auto":
        how = "tags" if _TAG.search(text) else "numbered" if len(_NUMBER.findall(text, 0, 1 << 16)) > 1 else "lines"
    found = [span for raw in _CUTS[how](text) if (span := _trimmed(text, raw)).start < span.end]
    return found[:MAX_STEPS]


def _trimmed(text: str, span: Span) -> Span:
    start, end = span
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return Span(start, end)


def _tags(text: str) -> list[Span]:
    return [Span(*match.span(1)) for match in _TAG.finditer(text)]


def _numbered(text: str) -> list[Span]:
    heads = [match.start() for match in _NUMBER.finditer(text)]
    if not heads:
        return _lines(text)
    ends = [*heads, len(text)]
    return [Span(0, heads[0]), *(Span(a, b) for a, b in pairwise(ends))]


def _lines(text: str) -> list[Span]:
    return [Span(*match.span()) for match in _LINE.finditer(text)]


def _sentences(text: str) -> list[Span]:
    return [Span(*match.span()) for match in _SENTENCE.finditer(text)]


_CUTS: Mapping[str, Callable[[str], list[Span]]] = {
    "tags": _tags, "numbered": _numbered, "lines": _lines, "equations": _sentences,
}  # fmt: skip
