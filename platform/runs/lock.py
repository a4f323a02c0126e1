"""One process works on a run. The system drops the lock when the process dies, so a stale one never blocks.

A POSIX record lock, not ``flock``: a forked worker does not inherit it, so an orphan cannot keep a dead trainer's
run. Such a lock is lost when any descriptor of the file is closed in the process that holds it; hence the table of held
ones.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jurat.platform.errors import FencedOut, RunFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    pid: int
    host: str
    since: float
    """Unix seconds."""


_TRIES = 10

_held: dict[tuple[int, Path], Holder] = {}
"""(pid, lock file) of the locks this process holds; the pid, because a forked child sees its parent's table."""


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[Holder]:
    """Hold the run in ``folder``. Raises FencedOut naming who has it; RunFailed if the folder cannot be written."""
    path = folder.resolve() / "lock"
    mine = Holder(pid=os.getpid(), host=socket.gethostname(), since=time.time())
    if (os.getpid(), path) in _held:
        raise _fenced(folder, _held[os.getpid(), path])
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise RunFailed(f"cannot lock the run: {error}", where=str(path), fix="make the folder writable") from None
    try:
        tries = _TRIES
        while not _try_lock(descriptor):
            tries -= 1
            if not tries:
                raise _fenced(folder, _read(folder))
            time.sleep(0.02)  # someone who only looks holds a shared lock for a moment
        _held[os.getpid(), path] = mine
        # Who holds it, for people; the lock itself is what counts, so a full disk is no reason to stop.
        with contextlib.suppress(OSError):
            _holder_file(folder).write_text(
                json.dumps({"pid": mine.pid, "host": mine.host, "since": mine.since}), "utf-8"
            )
        yield mine
    finally:
        _held.pop((os.getpid(), path), None)
        os.close(descriptor)


def holder(folder: Path) -> Holder | None:
    """Who works on the run now; None if nobody does."""
    path = folder.resolve() / "lock"
    if (os.getpid(), path) in _held:
        return _held[os.getpid(), path]
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError:
        return _read(folder)  # not ours to know: what the last holder said stands
    try:
        return None if _try_lock(descriptor, shared=True) else _read(folder)
    finally:
        os.close(descriptor)


def _holder_file(folder: Path) -> Path:
    return folder / "holder.json"


def _read(folder: Path) -> Holder:
    try:
        value = json.loads(_holder_file(folder).read_text("utf-8"))
        return Holder(pid=int(value["pid"]), host=str(value["host"]), since=float(value["since"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Holder(pid=0, host="unknown", since=0.0)


def _fenced(folder: Path, by: Holder) -> FencedOut:
    return FencedOut(
        f"run {folder.name} is held by process {by.pid} on {by.host}",
        where=str(folder),
        fix=f"wait for it or stop it (kill -INT {by.pid}: it saves a checkpoint first), then resume",
    )


if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int, *, shared: bool = False) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _try_lock(descriptor: int, *, shared: bool = False) -> bool:
        try:
            fcntl.lockf(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
