"""Rows out of JSONL and Parquet files, each with its place; what cannot be a row is reported with its place too.

Every byte is hostile: lines have a longest length, text must be UTF-8 without NUL or lone surrogates, and JSON may
hold neither NaN nor a key twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jurat.datasets.manifest import FileStamp
from jurat.platform.errors import DataError

MAX_LINE_BYTES = 8 << 20
"""A longer line is a bad row: no problem is that long, and it would be held in memory several times."""
SUFFIXES = (".jsonl", ".parquet")


@dataclass(frozen=True, slots=True)
class Row:
    where: str
    """``gsm8k/train.jsonl:17``: folder, file and line (row, for Parquet), from 1."""
    value: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that was not taken, and why. Example: ``BadRow("gsm8k/train.jsonl:17", "the gold answer is empty")``."""

    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


def find_files(path: Path) -> tuple[Path, ...]:
    """The data files at a path: itself, or those directly in a folder by name. Raises DataError."""
    if path.is_dir():
        found = tuple(sorted(p for p in path.iterdir() if p.suffix in SUFFIXES and p.is_file()))
        if not found:
            raise DataError("the folder holds no .jsonl or .parquet file", where=str(path))
        return found
    if not path.is_file():
        raise DataError("no such data file", where=str(path), fix="give a .jsonl or .parquet file, or a folder of them")
    if path.suffix not in SUFFIXES:
        raise DataError(f"cannot read {path.suffix or 'a file without suffix'} files", where=str(path),
                        fix="convert it to .jsonl (one JSON object a line) or .parquet")  # fmt: skip
    return (path,)


def stamp(path: Path) -> FileStamp:
    """Size and sha256 of a file as it is now."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    return FileStamp(path=label(path), bytes=path.stat().st_size, sha256=f"sha256:{found}")


def label(path: Path) -> str:
    """Folder and name: enough for a person, and equal on another machine."""
    return f"{path.resolve().parent.name}/{path.name}"


def read_rows(path: Path) -> Iterator[Row | BadRow]:
    """Rows of one file in order; blank lines are no rows. Raises DataError if the file cannot be read at all."""
    try:
        yield from _parquet(path) if path.suffix == ".parquet" else _jsonl(path)
    except OSError as error:
        raise DataError(f"cannot read the data file: {error}", where=str(path)) from None


def _jsonl(path: Path) -> Iterator[Row | BadRow]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            where = f"{label(path)}:{number}"
            if len(line) > MAX_LINE_BYTES:
                while not line.endswith(b"\n") and (line := file.readline(MAX_LINE_BYTES)):
                    pass
                yield BadRow(where, f"the line is longer than {MAX_LINE_BYTES >> 20} MiB")
                continue
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if not line.strip():
                continue
            try:
                yield Row(where, parse_object(line))
            except ValueError as error:
                yield BadRow(where, str(error))


def parse_object(line: bytes) -> dict[str, Any]:
    """One JSON object from UTF-8 bytes. Raises ValueError saying what it is instead."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: byte 0x{line[error.start]:02x} at {error.start}") from None
    try:
        value = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_repeats)
    except RecursionError:
        raise ValueError("not usable JSON: nested too deep") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(value, dict):
        raise ValueError(f"a row is a JSON object, got {type(value).__name__}")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"not JSON: {name} is no JSON number")


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {twice!r} is given twice")
    return made


def _parquet(path: Path) -> Iterator[Row | BadRow]:
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                columns = [(name, batch.column(i)) for i, name in enumerate(batch.schema.names)]
                for i in range(batch.num_rows):
                    number += 1
                    where = f"{label(path)}:{number}"
                    try:
                        yield Row(where, _no_repeats([(name, column[i].as_py()) for name, column in columns]))
                    except UnicodeDecodeError as error:
                        yield BadRow(where, f"not UTF-8: {error}")
                    except ValueError as error:
                        yield BadRow(where, str(error))
    except pyarrow.ArrowException as error:
        raise DataError(f"not a readable Parquet file: {error}", where=f"{path}, after row {number}") from None
