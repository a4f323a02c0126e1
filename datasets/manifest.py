"""What a set of problems is, in one small record: enough to say later that it was this one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jurat.platform.canonical import digest
from jurat.platform.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStamp:
    """One file as it was read. Example: ``FileStamp(path="gsm8k/train.jsonl", bytes=4491937, sha256="sha256:…")``."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Identity and origin of a loaded set. Two sets with one digest hold the same problems, in whatever order.

    Example: ``Manifest(digest="sha256:…", rows=7473, source="gsm8k/train.jsonl", split="train", …)``
    """

    digest: str
    """Over the sorted ids."""
    rows: int
    """Problems kept."""
    skipped: int
    """Bad rows left out, each listed in ``ProblemSet.skipped``."""
    source: str
    split: str
    template: Mapping[str, Any]
    """How a question becomes messages: ``system``, ``prefix``, ``suffix``."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The field map, for files and Hub sets."""
    selection: Mapping[str, Any] = field(default_factory=dict)
    """``fraction``, ``size``, ``seed``, ``levels``: which part of the source this is."""
    levels: Mapping[str, int] = field(default_factory=dict)
    """Problems per level, where they have one."""
    files: tuple[FileStamp, ...] = ()
    licence: str | None = None
    """As stated by the source; None where it states none."""
    left_out_columns: tuple[str, ...] = ()
    """Columns whose values JSON cannot hold (images, bytes)."""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Manifest:
        """The inverse of ``to_json``. Raises DataError naming the keys that are missing or unknown."""
        known = {f.name: f for f in dataclasses.fields(cls)}
        required = {n for n, f in known.items() if f.default is f.default_factory is dataclasses.MISSING}
        if wrong := sorted((set(value) - set(known)) | (required - set(value))):
            raise DataError(f"not a manifest of this version: keys {wrong} are unknown or missing", where="manifest")
        given = dict(value)
        given["files"] = tuple(FileStamp(**stamp) for stamp in given.get("files", ()))
        given["left_out_columns"] = tuple(given.get("left_out_columns", ()))
        return cls(**given)


def ids_digest(ids: Iterable[str]) -> str:
    """One digest of a set of ids; their order does not matter."""
    return digest(sorted(ids))
