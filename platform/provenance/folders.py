"""Digests of folders of large files; each is hashed once for as long as its inode, size and times stay."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from jurat.platform.canonical import digest
from jurat.platform.runs.disk import opened

_CACHED_FROM = 1 << 20
"""Bytes: smaller files are hashed each time."""


def manifest(folder: Path, cache: Path | None = None) -> tuple[str, Mapping[str, str]]:
    """(digest, {relative path: sha256}) of a folder's regular files; hidden ones are left out. ``cache``: a JSON file of
    what is known. Raises OSError."""
    known = _read(cache)
    files, fresh = {}, dict(known)
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in relative.parts):
            files[relative.as_posix()] = _digest(path, fresh)
    if cache is not None and fresh != known:
        with suppress(OSError):  # only time is lost
            cache.parent.mkdir(parents=True, exist_ok=True)
            draft = cache.with_name(f"{cache.name}.{os.getpid()}.tmp")
            draft.write_text(json.dumps(fresh), "utf-8")
            os.replace(draft, cache)
    return digest_of(files), files


def digest_of(files: Mapping[str, str]) -> str:
    """Of a folder with these files: {relative path: sha256}."""
    return digest({"schema": 1, "kind": "folder", "files": files})


def file_digest(path: Path) -> str:
    with opened(path) as stream:
        return "sha256:" + hashlib.file_digest(stream, "sha256").hexdigest()


def _digest(path: Path, known: dict[str, str]) -> str:
    stat = path.stat()
    if stat.st_size < _CACHED_FROM:
        return file_digest(path)
    key = f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}"
    if key not in known:
        known[key] = file_digest(path)
    return known[key]


def _read(cache: Path | None) -> dict[str, str]:
    if cache is None or not cache.is_file():
        return {}
    try:
        value = json.loads(cache.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(k): str(v) for k, v in value.items()} if isinstance(value, dict) else {}
