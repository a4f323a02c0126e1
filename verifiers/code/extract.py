"""The program in a completion, by stated rules; where none fits the completion is refused with the reason.

1. Only the text after the last thinking end tag counts; thinking that never ended holds no program.
2. Fenced blocks (three or more backticks or tildes) are read as in Markdown: a fence closes with the same characters, at
   least as many; one may begin an item of a list, and one that is tagged as Python's may also end a line of prose. The
   program is the last block tagged ``python``, ``py``, ``python3`` or ``py3``; where there is none, the last block, if it
   has no tag. A last block in another language is refused.
3. A block that the end of the text leaves open is the program if the model ended there by itself, and refused where it
   was cut off: an earlier block never takes its place. A fence without a tag that opens nothing, or prose after a block
   tagged as Python's, is a slip of a model that ended by itself.
4. Without any block the whole text is the program only where the spec says ``unfenced``; nothing is guessed.

Each rule leaves its name in ``why``, each oddity a flag.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from jurat.platform.types import Finish, Status

MAX_PROGRAM = 256 * 1024
"""Characters of a program; more is ``too_large``."""
MAX_COMPLETION = 1_000_000
"""Characters of a completion."""
MAX_TAG = 40
"""Characters of the tag, with white space after it, of a fence that ends a line of prose."""
_THINK_END = re.compile(
    r"</(?:think|thinking|thought|reasoning|scratchpad)>|<\|end_of_thought\|>|<\|/think\|>|◁/think▷", re.I
)
_THINK = re.compile(r"<(?:think|thinking|thought|reasoning|scratchpad)>|<\|begin_of_thought\|>|◁think▷", re.I)
_FENCE = re.compile(r"([ \t]*+)(`{3,}+|~{3,}+)([^\r\n]*+)\r?\Z")
_LISTED = re.compile(r"[ \t]*+(?:[-*+]|\d{1,9}[.)])[ \t]++(?=`{3}|~{3})")
_LATE = re.compile(r"(?:python|py)3?[ \t]*+\r?\Z", re.IGNORECASE)
_TAG = re.compile(r"[ \t]*\{?\.?([\w.+#-]*)")
_PYTHON = re.compile(r"(?:python|py)(?:3(?:\.\d+)?)?\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted:
    """A program, or why there is none. Example: ``Extracted(program="print(3)\\n", why="python_block")``."""

    program: str | None
    why: str
    """The rule: ``python_block``, ``untagged_block``, ``unfenced``; or what is wrong."""
    status: Status = "correct"
    """What a completion without a program is: ``no_answer``, ``unparseable`` or ``too_large``."""
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. ``closed``: its closing fence is there."""

    tag: str
    text: str
    closed: bool


def extract(completion: str, *, finish: Finish = "stop", unfenced: bool = False) -> Extracted:
    """The program in ``completion``; ``finish`` other than ``stop`` says that it was cut off."""
    if len(completion) > MAX_COMPLETION:
        return _refused("too_large", f"a completion of {len(completion)} characters, over {MAX_COMPLETION}")
    ends = [found.end() for found in _THINK_END.finditer(completion)]
    text = completion[ends[-1] :] if ends else completion
    found = list(blocks(text))
    opened = _THINK.search(text)
    if opened and "```" not in text[: opened.start()] and "~~~" not in text[: opened.start()]:
        return _refused("no_answer", "the thinking never ended")
    if not found:
        if not unfenced:
            return _refused("no_answer", "no fenced block")
        if finish != "stop":
            return _refused("unparseable", "cut off before the program ended")
        return _taken(text, "unfenced", ())
    python = [block for block in found if _PYTHON.match(block.tag)]
    slips = finish == "stop" and not found[-1].closed and not found[-1].tag
    if slips and len(found) > 1 and (python or not found[-1].text.strip()):
        found.pop()
    last = found[-1]
    chosen = last if not last.closed and (not last.tag or _PYTHON.match(last.tag)) else python[-1] if python else last
    if chosen.tag and not _PYTHON.match(chosen.tag):
        return _refused("unparseable", f"the last block is {chosen.tag[:20]}, not python")
    if not chosen.closed and finish != "stop":
        return _refused("unparseable", "cut off before the block ended")
    flags = [
        flag
        for flag, holds in (
            ("unclosed_block", not chosen.closed),
            ("untagged_block", not chosen.tag),
            ("several_blocks", len(python or found) > 1),
            ("block_after_program", chosen is not last),
        )
        if holds
    ]
    return _taken(chosen.text, "python_block" if chosen.tag else "untagged_block", tuple(flags))


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a Markdown text, in order; their lines lose the indentation of the opening fence."""
    inside: list[str] | None = None
    indent, mark, tag = 0, "", ""
    margin: int | None = None
    for line in text.split("\n"):
        fence = _FENCE.match(line) if "```" in line or "~~~" in line else None
        if inside is None:
            item = _LISTED.match(line) if fence is None else None
            if item is not None:
                fence = _FENCE.match(line[item.end() :])
            if fence is None and "```" in line and (late := _LATE.search(line, max(0, len(line) - MAX_TAG))):
                start = len(line[: late.start()].rstrip("`"))
                fence = _FENCE.match(line[start:])
            # A backtick in the info string makes it inline code.
            if fence is not None and not (fence[2][0] == "`" and "`" in fence[3]):
                found = _TAG.match(fence[3])
                indent, mark, tag = item.end() if item else len(fence[1]), fence[2], found[1] if found else ""
                margin = None if item else indent
                inside = []
        elif fence is not None and _closes(fence, mark, indent):
            yield Block(tag, _joined(inside), True)
            inside = None
        else:
            if margin is None and line.strip():  # of an item: some models indent its text as its fence, some do not
                margin = indent if line[:indent].isspace() else 0
            inside.append(_dedented(line, margin or 0))
    if inside is not None:
        yield Block(tag, _joined(inside), False)


def _closes(fence: re.Match[str], mark: str, indent: int) -> bool:
    same = fence[2][0] == mark[0] and len(fence[2]) >= len(mark)
    # What ends the answer, or begins or ends emphasis, often stands behind it without a space; Python has no such lines.
    return same and fence[3].strip()[:1] in ("", "<", "*") and len(fence[1]) <= indent + 3


def _dedented(line: str, indent: int) -> str:
    head = line[:indent]
    return line[len(head) - len(head.lstrip(" \t")) :] if indent else line


def _joined(lines: list[str]) -> str:
    return "".join(line.removesuffix("\r") + "\n" for line in lines)


def _taken(program: str, why: str, flags: tuple[str, ...]) -> Extracted:
    if not program.strip():
        return _refused("no_answer", "the program is empty")
    if len(program) > MAX_PROGRAM:
        return _refused("too_large", f"a program of {len(program)} characters, over {MAX_PROGRAM}")
    try:
        program.encode("utf-8")
    except UnicodeEncodeError:
        return _refused("unparseable", "the program holds half a surrogate pair")
    return Extracted(program=program, why=why, flags=flags)


def _refused(status: Status, why: str) -> Extracted:
    return Extracted(program=None, why=why, status=status)
