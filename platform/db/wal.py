"""SQLite's write-ahead log, kept from growing without end.

SQLite's own checkpoints never wait, so the file starts anew only in a moment when nobody reads: readers that overlap for
ever, or one that holds an old snapshot, let it grow until the disk is full. Over ``SOFT`` bytes the writer asks for a
checkpoint that waits a moment for the readers and empties the file. Over ``HARD`` bytes it takes no more work until the
reader is gone: what trains spools meanwhile, and one who reads does not stop everybody.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

log = logging.getLogger(__name__)

SOFT, HARD = 64 << 20, 192 << 20
WAIT_SECONDS = 0.25
"""For readers to go on to the newest state; others wait to write as long."""
EVERY_SECONDS = 1.0


class WriteAheadLog:
    """Of one engine; of another database than a file of SQLite it is always empty. Used from one thread, ``full`` from any."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        file = engine.url.database if engine.dialect.name == "sqlite" else None
        self._path = Path(f"{file}-wal") if file and file != ":memory:" else None
        self._next, self._blind = 0.0, False
        self.full = False
        """Over ``HARD`` bytes, as a reader holds an old snapshot."""

    def size(self) -> int:
        """0 where it cannot be told, too: that is no reason to write nothing."""
        try:
            return 0 if self._path is None else self._path.stat().st_size
        except FileNotFoundError:
            return 0
        except OSError as error:
            if not self._blind:
                self._blind = True
                log.warning("the size of the write-ahead log is not known: %s", error)
            return 0

    def tend(self) -> None:
        """After a commit, and from time to time while it is full."""
        size, was = self.size(), self.full
        if size >= SOFT and time.monotonic() >= self._next:
            try:
                self._checkpoint()
            except (SQLAlchemyError, sqlite3.Error) as error:
                log.warning("no checkpoint of the write-ahead log: %s", error)
            self._next = time.monotonic() + EVERY_SECONDS
            size = self.size()
        self.full = size >= HARD
        if self.full and not was:
            log.warning(
                "the write-ahead log has %d MiB, as somebody reads an old state for long: nothing is written until they end",
                size >> 20,
            )
        elif was and not self.full:
            log.warning("the write-ahead log has %d MiB again: writing goes on", size >> 20)

    def pause(self) -> float | None:
        """Seconds until ``tend`` is due; None: not before the next commit."""
        return max(0.0, self._next - time.monotonic()) if self.full else None

    def _checkpoint(self) -> None:
        with closing(self._engine.raw_connection()) as connection:
            cursor = connection.cursor()
            (before,) = cursor.execute("PRAGMA busy_timeout").fetchone()
            cursor.execute(f"PRAGMA busy_timeout={int(WAIT_SECONDS * 1000)}")
            try:
                cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                cursor.execute(f"PRAGMA busy_timeout={before}")
                cursor.close()
