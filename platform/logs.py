"""Logging for people: one line an event, whatever hostile text it carries."""

from __future__ import annotations

import logging
import sys
import unicodedata
from typing import TextIO

_KEPT = frozenset("\n\t")


def printable(text: str, *, newlines: bool = True, limit: int | None = None) -> str:
    """Text that a terminal only shows: escapes, controls, bidirectional marks and lone surrogates become ``\\x1b``,
    ``\\u202e``. ``newlines`` False: line ends too. ``limit``: characters kept, with the number left out said."""
    dropped = 0
    if limit is not None and len(text) > limit:
        dropped = len(text) - limit
        text = text[:limit]
    kept = _KEPT if newlines else frozenset()
    shown = "".join(c if c in kept or unicodedata.category(c) not in _UNSAFE else _escape(c) for c in text)
    return f"{shown}... ({dropped} more characters)" if dropped else shown


_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp", "Co", "Cn"})
"""Unicode categories that move a cursor, hide or reorder text, or have no shape."""


def _escape(character: str) -> str:
    named = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(character)
    if named:
        return named
    return (
        f"\\x{ord(character):02x}" if ord(character) < 256 else character.encode("ascii", "backslashreplace").decode()
    )


class OneLine(logging.Formatter):
    """``12:03:04 warning ledger: text``, line ends and controls escaped; tracebacks keep their lines."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message, newlines=False, limit=4000)
        record.levelname = record.levelname.lower()
        record.name = record.name.removeprefix("jurat.").removeprefix("platform.")
        return super().formatMessage(record)


def configure(level: int | str = logging.WARNING, *, stream: TextIO | None = None) -> None:
    """Send jurat's log to ``stream`` (standard error). Calling it again replaces what it set, nothing else."""
    logger = logging.getLogger("jurat")
    for handler in [h for h in logger.handlers if isinstance(h.formatter, OneLine)]:
        logger.removeHandler(handler)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(OneLine())
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
