"""What every command shares: the home folder, clean text, tables, JSON on stdout and everything for people on stderr or stdout.

Imports only the standard library and typer: each command starts with it.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

HOME_VARIABLE = "JURAT_HOME"
DEFAULT_HOME = ".jurat"

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, nothing else there.")]

_home: Path | None = None
"""What ``--home`` said for the command that runs now."""


def set_home(path: Path | None) -> None:
    """Called by the root of the command line with the value of ``--home``."""
    global _home
    _home = path


def home() -> Path:
    """The folder of the store, runs, models and logs: ``--home``, else JURAT_HOME, else ``./.jurat``. Absolute."""
    return (_home or Path(os.environ.get(HOME_VARIABLE) or DEFAULT_HOME)).expanduser().absolute()


def clean(text: object, limit: int | None = None) -> str:
    """``text`` fit for a terminal: control, bidirectional and invisible characters become visible escapes.

    Models, data sets and verifiers write what they like; a terminal obeys what it reads. Line feeds are kept unless
    ``limit`` is given, which makes one line of at most so many characters.
    """
    said = str(text)
    if limit is not None:
        said = " ".join(said.split())
        said = said if len(said) <= limit else said[: max(0, limit - 1)] + "…"
    return "".join(_shown(char) for char in said)


def _shown(char: str) -> str:
    if char == "\n" or (char.isprintable() and not _is_invisible(ord(char))):
        return char
    code = ord(char)
    return {"\t": "    ", "\r": "\\r"}.get(char) or (f"\\x{code:02x}" if code < 256 else f"\\u{{{code:x}}}")


def _is_invisible(code: int) -> bool:
    """Tags and variation selectors, which ``str.isprintable`` lets pass."""
    return 0xFE00 <= code <= 0xFE0F or 0xE0000 <= code <= 0xE01EF


def print_json(value: Any) -> None:
    """One line of JSON on stdout; numbers that JSON lacks (NaN, infinity) become null."""
    sys.stdout.write(json.dumps(_jsonable(value), ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()


def _jsonable(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict) or hasattr(value, "items"):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_jsonable(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if hasattr(value, "item"):
        return _jsonable(value.item())  # a numpy scalar
    return str(value)


def console(*, stderr: bool = False) -> Console:
    """A rich console that never reads markup or emoji codes in what it prints."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)


def note(text: str) -> None:
    """One line for a person, on stderr."""
    sys.stderr.write(clean(text) + "\n")
    sys.stderr.flush()


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[int] = ()) -> None:
    """A plain aligned table on stdout; columns in ``right`` are flushed right. Cells are cleaned."""
    cells = [[clean("" if cell is None else cell, 200) for cell in row] for row in rows]
    widths = [max([len(head), *(len(row[i]) for row in cells)]) for i, head in enumerate(headers)]
    at_right = set(right)

    def line(row: Sequence[str]) -> str:
        parts = [cell.rjust(w) if i in at_right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))]
        return "  ".join(parts).rstrip()

    for row in ([h.upper() for h in headers], *cells):
        sys.stdout.write(line(row) + "\n")
