r"""Where the gold answer stands in a text: four stated rules, and refusal of prose that none of them reads.

| rule     | reads                                                                                            |
|----------|--------------------------------------------------------------------------------------------------|
| `plain`  | the text as it is                                                                                |
| `hashes` | what follows the last ``####``, to the end of its line; commas between thousands are dropped     |
| `boxed`  | what the last ``\boxed{...}`` (or ``\fbox``) holds, braces balanced                              |
| `auto`   | `hashes` if there is a ``####``, else `boxed` if there is a box, else `plain` unless it is prose |
"""

from __future__ import annotations

import re
from typing import Literal

Rule = Literal["auto", "plain", "hashes", "boxed"]

_THOUSANDS = re.compile(r"[-+]?\$?\d{1,3}(,\d{3})+(\.\d+)?")
_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mbox)\s*\{[^{}]*\}")
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_WORD = re.compile(r"[^\W\d_]{2,}")
_BOX = re.compile(r"\\f?boxed\s*\{|\\fbox\s*\{")

MAX_PLAIN_WORDS = 2
"""A plain answer in `auto` may hold this many words outside ``\\text{}``: ``June 20``, ``Evelyn``; more is prose."""


class Prose(ValueError):
    """Said of a text that no rule of ``auto`` reads: it may demonstrate, but has no gold."""


def read_gold(text: str, rule: Rule) -> tuple[str, Rule]:
    """(gold, rule that read it). Raises ValueError saying why there is none: Prose, where ``auto`` finds no rule for it."""
    if rule == "auto":
        rule = "hashes" if "####" in text else "boxed" if _BOX.search(text) else "plain"
        if rule == "plain" and is_prose(text):
            raise Prose("the answer is prose without #### or \\boxed{}: no rule says which part is the gold")
    gold = (_after_hashes(text) if rule == "hashes" else _in_last_box(text) if rule == "boxed" else text).strip()
    if not gold:
        raise ValueError("the gold answer is empty")
    return gold, rule


def is_prose(text: str) -> bool:
    """True for several lines or more than two words outside LaTeX commands and ``\\text{}``."""
    bare = _COMMAND.sub(" ", _TEXT.sub(" ", text.strip()))
    return "\n" in bare or len(_WORD.findall(bare)) > MAX_PLAIN_WORDS


def _after_hashes(text: str) -> str:
    _, mark, rest = text.rpartition("####")
    if not mark:
        raise ValueError("there is no #### in the answer")
    line = rest.strip().partition("\n")[0].strip()
    return line.replace(",", "") if _THOUSANDS.fullmatch(line) else line


def _in_last_box(text: str) -> str:
    found = list(_BOX.finditer(text))
    if not found:
        raise ValueError("there is no \\boxed{} in the answer")
    depth, start = 1, found[-1].end()
    for at in range(start, len(text)):
        if text[at] in "{}" and text[at - 1] != "\\":
            depth += 1 if text[at] == "{" else -1
            if depth == 0:
                return text[start:at]
    raise ValueError("the last \\boxed{ is not closed")
