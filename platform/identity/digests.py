"""Digests of values and of files: sha256 of canonical JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jurat.platform.errors import ConfigError

SCHEMA = 1


def sha256_of(value: Any) -> str:
    """sha256 of canonical JSON. Floats are refused inside: code values carry them as hexadecimal text."""
    text = json.dumps(as_json(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return "sha256:" + hashlib.sha256(text.encode("ascii")).hexdigest()


def as_json(value: Any) -> Any:
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"keys are strings, got {next(key for key in value if not isinstance(key, str))!r}")
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    raise TypeError(f"JSON cannot hold {type(value).__name__} {value!r:.80}")


_WEIGHED: dict[tuple[int, int, int, int, int], str] = {}


def weights_digest(paths: tuple[str | Path, ...]) -> str:
    """Digest of the manifest (relative path, size, sha256) of every file. Raises ConfigError for a missing path."""
    manifest = []
    for given in paths:
        root = Path(given)
        if not root.exists():
            raise ConfigError(f"weights {str(given)!r} do not exist", where="weights", fix="give a file or folder")
        files = sorted(p for p in root.rglob("*") if p.is_file()) if root.is_dir() else [root]
        manifest += [
            [p.relative_to(root if root.is_dir() else root.parent).as_posix(), p.stat().st_size, _file(p)]
            for p in files
        ]
    return sha256_of({"schema": SCHEMA, "kind": "weights", "files": manifest})


def _file(path: Path) -> str:
    """sha256 of a file; hashed once for as long as its inode, size and times stay."""
    stat = path.stat()
    key = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    if key not in _WEIGHED:
        with path.open("rb") as stream:
            _WEIGHED[key] = hashlib.file_digest(stream, "sha256").hexdigest()
    return _WEIGHED[key]
