"""What every command shares: the home folder, clean text, errors, tables and JSON.

Imports only the standard library and typer: each command starts with it.
"""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from jurat.platform.errors import JuratError
    from jurat.platform.runs.store import Store

HOME_VARIABLE = "JURAT_HOME"
DEFAULT_HOME = ".jurat"

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, nothing else there.")]

Database = Annotated[
    str | None,
    typer.Option(
        envvar="JURAT_DATABASE", help="SQLAlchemy URL, if the recipe's tracking.database is not the default.",
        show_default=False,
    ),
]  # fmt: skip

_home: Path | None = None
"""What ``--home`` said for the command that runs now."""


def set_home(path: Path | None) -> None:
    """Called by the root of the command line with the value of ``--home``."""
    global _home
    _home = path


def home() -> Path:
    """The folder of the store, runs, models and logs: ``--home``, else JURAT_HOME, else ``./.jurat``. Absolute."""
    return (_home or Path(os.environ.get(HOME_VARIABLE) or DEFAULT_HOME)).expanduser().absolute()


@contextmanager
def store(database: str | None) -> Iterator[Store]:
    """The store of the home folder. Looking never makes a new one."""
    folder = home()
    if database is None and not (folder / "jurat.db").exists():
        from jurat.platform.errors import ConfigError

        raise ConfigError(
            "there are no runs here", where=str(folder), fix="jurat train tiny makes one; --home names another folder"
        )
    from jurat.platform.runs.store import Store

    opened = Store.open(database, folder)
    try:
        yield opened
    finally:
        opened.close()


_owner = False
"""Whether this process is the command line's own, and not a program that calls it."""


def own_process() -> None:
    """Called once by ``main``: this process may be started anew. A stream that cannot write a character escapes it."""
    global _owner
    _owner = True
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def owns_process() -> bool:
    return _owner


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


def error_json(error: JuratError) -> dict[str, Any]:
    """An error as JSON, for standard output under ``--json``."""
    told = {"what": clean(error.what), "where": clean(error.where), "fix": clean(error.fix)}
    return {**told, "exit_code": error.exit_code}


def fail(error: JuratError, *, as_json: bool = False) -> None:
    """Tell an error on stderr in three parts: what, where, how to fix. Under ``--json`` stdout gets it too."""
    tell = f"jurat: {clean(error.what)}\n"
    tell += f"  where: {clean(error.where)}\n" if error.where else ""
    tell += f"  fix:   {clean(error.fix)}\n" if error.fix else ""
    sys.stderr.write(tell)
    sys.stderr.flush()
    if as_json:
        print_json({"error": error_json(error)})


def console(*, stderr: bool = False) -> Console:
    """A rich console that never reads markup or emoji codes in what it prints."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)


def note(text: str) -> None:
    """One line for a person, on stderr."""
    sys.stderr.write(clean(text) + "\n")
    sys.stderr.flush()


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[int] = ()) -> None:
    """A plain aligned table on stdout; columns in ``right`` are flushed right. Cells are cleaned.

    In a terminal the last column is cut where the line would wrap; in a file or a pipe nothing is.
    """
    cells = [[clean("" if cell is None else cell, 200) for cell in row] for row in rows]
    widths = [max([len(head), *(len(row[i]) for row in cells)]) for i, head in enumerate(headers)]
    if sys.stdout.isatty():
        room = max(12, shutil.get_terminal_size().columns - sum(widths[:-1]) - 2 * (len(widths) - 1))
        widths[-1] = min(widths[-1], room)
        cells = [[*row[:-1], clean(row[-1], room)] for row in cells]
    at_right = set(right)

    def line(row: Sequence[str]) -> str:
        parts = [
            cell.rjust(w) if i in at_right else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(parts).rstrip()

    for row in ([h.upper() for h in headers], *cells):
        sys.stdout.write(line(row) + "\n")
