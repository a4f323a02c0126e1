"""Facts that the database would not take, kept as JSON lines beside the run until it does.

Appending and draining work on different files, so that a slow database never holds up an append. Facts are idempotent:
a process killed between the commit and the removal of the file drains it again, to no effect.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jurat.platform.faults import point

Op = dict[str, Any]
"""One fact: ``{"op": "metric", ...}``, JSON values only."""

_CHUNK = 1000
"""Facts per transaction while draining."""

_open_spools: dict[Path, Spool] = {}
_guard = threading.Lock()


class Spool:
    """The spool of one run's folder, shared by the ledgers of this process: get it by ``Spool.of``."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "spool.jsonl"
        self._draining = folder / "spool.draining.jsonl"
        self._rejected = folder / "spool.rejected.jsonl"
        self._appending = threading.Lock()
        self._drain = threading.Lock()

    @classmethod
    def of(cls, folder: Path) -> Spool:
        with _guard:
            return _open_spools.setdefault(folder.resolve(), cls(folder))

    def empty(self) -> bool:
        return not self.path.exists() and not self._draining.exists()

    def append(self, ops: Sequence[Op]) -> None:
        """Durable on return. Raises OSError, and then none of them is there."""
        with self._appending:
            _append(self.path, ops)

    def reject(self, op: Op, why: str) -> None:
        """Keep a fact that no database will ever take, for a person to see. Raises OSError."""
        with self._appending:
            _append(self._rejected, [{"why": why, **op}])

    def drain(self, apply: Callable[[Sequence[Op]], None]) -> int:
        """Hand every fact to ``apply``, oldest first, and forget it; how many there were. Raises what ``apply`` raises,
        and then nothing is forgotten."""
        drained = 0
        with self._drain:
            while True:
                if not self._draining.exists():
                    with self._appending:
                        if not self.path.exists():
                            return drained
                        os.replace(self.path, self._draining)
                ops = _read(self._draining)
                for first in range(0, len(ops), _CHUNK):
                    apply(ops[first : first + _CHUNK])
                point("spool.before_forget")
                self._draining.unlink()
                drained += len(ops)


def _append(path: Path, ops: Sequence[Op]) -> None:
    data = "".join(json.dumps(op, separators=(",", ":")) + "\n" for op in ops).encode("ascii")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        end = os.lseek(descriptor, 0, os.SEEK_END)
        if end:
            # A line torn by a killed process or a full disk must not swallow the next one.
            os.lseek(descriptor, end - 1, os.SEEK_SET)
            if os.read(descriptor, 1) != b"\n":
                data = b"\n" + data
        os.lseek(descriptor, end, os.SEEK_SET)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, end)
            raise
    finally:
        os.close(descriptor)


def _read(path: Path) -> list[Op]:
    ops = []
    for line in path.read_bytes().split(b"\n"):
        try:
            value = json.loads(line)
        except ValueError:
            continue  # empty, or torn when its writer was killed: nobody was told that it was kept
        if isinstance(value, dict):
            ops.append(value)
    return ops
