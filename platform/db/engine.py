"""Connections: SQLite in WAL with explicit transactions, or any other SQLAlchemy URL."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError
from sqlalchemy.pool import StaticPool

from jurat.platform.errors import ConfigError, RunFailed


def sqlite_url(path: Path) -> str:
    return sa.URL.create("sqlite", database=str(path)).render_as_string(hide_password=False)


def connect(url: str, *, busy_seconds: float = 10.0, durable: bool = True) -> sa.Engine:
    """An engine; nothing is opened yet. ``busy_seconds``: how long a statement waits for another's lock. ``durable``: a
    commit survives a power cut; without it the last ones may be lost then, though not by a killed process.

    Raises ConfigError for a URL that is not one, or whose driver is absent.
    """
    try:
        parsed = sa.make_url(url)
        if parsed.drivername in {"postgres", "postgresql"}:
            parsed = parsed.set(drivername="postgresql+psycopg")
        sqlite = parsed.get_backend_name() == "sqlite"
        engine = sa.create_engine(parsed, **({} if sqlite else {"pool_pre_ping": True}))
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        raise ConfigError(
            f"cannot use the database URL: {error}",
            where=_without_password(url),
            fix="for example sqlite:////path/jurat.db, or postgresql://user@host/name with the extra jurat[postgres]",
        ) from None
    (_sqlite_events if sqlite else _server_events)(engine, busy_seconds, durable)
    return engine


def in_memory() -> sa.Engine:
    """SQLite in this process's memory, gone with the engine: for a record that is only looked at."""
    engine = sa.create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    _sqlite_events(engine, 1.0, durable=False)
    return engine


def _without_password(url: str) -> str:
    head, at, tail = url.rpartition("@")
    return f"{head.partition('://')[0]}://...@{tail}" if at else url


LOOK_SECONDS = 1.0
"""Between two looks whether the file is still the one that was opened."""


class _SameFile:
    """A file that is removed or replaced goes on being written, where nobody will ever read it: that is refused."""

    def __init__(self, engine: sa.Engine) -> None:
        name = engine.url.database or ""
        self._path = None if name in ("", ":memory:") or name.startswith("file:") else Path(name)
        self._opened: tuple[int, int] | None = None
        self._next = 0.0

    def keep(self) -> None:
        """What is there now is the file."""
        if self._path is not None and self._opened is None:
            self._opened = self._found()

    def check(self) -> None:
        """Raises OperationalError."""
        if self._opened is None or time.monotonic() < self._next:
            return
        if self._found() != self._opened:
            said = sqlite3.OperationalError("the database's file was removed or replaced: restart what uses it")
            raise OperationalError("BEGIN", {}, said)
        self._next = time.monotonic() + LOOK_SECONDS

    def _found(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path or "")
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino


def _sqlite_events(engine: sa.Engine, busy_seconds: float, durable: bool) -> None:
    file = _SameFile(engine)

    @event.listens_for(engine, "do_connect")
    def _opens(*_: Any) -> None:
        file.check()

    @event.listens_for(engine, "connect")
    def _opened(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # transactions are begun below, not by the driver
        cursor = connection.cursor()
        # FULL where durable: a checkpoint never outruns its record.
        for pragma in (
            f"busy_timeout={int(busy_seconds * 1000)}",
            "journal_mode=WAL",
            f"synchronous={'FULL' if durable else 'NORMAL'}",
            "foreign_keys=ON",
            "temp_store=MEMORY",
            "cache_size=-65536",
            f"journal_size_limit={64 << 20}",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()
        file.keep()

    @event.listens_for(engine, "begin")
    def _begun(connection: sa.Connection) -> None:
        file.check()
        # A write takes its lock at once: a reader that turns writer half way could only fail.
        writes = connection.get_execution_options().get("jurat_writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _server_events(engine: sa.Engine, busy_seconds: float, durable: bool) -> None:
    if engine.dialect.name != "postgresql":
        return

    from jurat.platform.db import arrays

    @event.listens_for(engine, "connect")
    def _opened(connection: Any, _record: Any) -> None:
        arrays.register(connection)
        before, connection.autocommit = connection.autocommit, True
        connection.execute(f"SET lock_timeout = {int(busy_seconds * 1000)}")
        connection.execute(f"SET statement_timeout = {int(busy_seconds * 3000)}")
        if not durable:
            connection.execute("SET synchronous_commit = off")
        connection.autocommit = before


@contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """One consistent snapshot, however many statements look at it."""
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            connection.execution_options(isolation_level="REPEATABLE READ")
        with connection.begin():
            yield connection


_AFTER = "jurat_after_commit"
_GATHERED = "jurat_gathered"


@contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """One transaction, committed at the end; rolled back if the block raises."""
    with engine.connect() as connection:
        connection = connection.execution_options(jurat_writes=True)
        connection.info[_AFTER] = after = list[Callable[[], None]]()
        connection.info[_GATHERED] = list[Any]()
        with connection.begin():
            yield connection
        for call in after:
            call()


def on_commit(connection: sa.Connection, call: Callable[[], None]) -> None:
    """Call when the transaction of ``writing`` is committed; never, if it is rolled back."""
    connection.info[_AFTER].append(call)


def gathered(connection: sa.Connection) -> list[Any]:
    """What callers within the transaction of ``writing`` left to be written together, before it is committed."""
    found: list[Any] = connection.info[_GATHERED]
    return found


@contextmanager
def nested(connection: sa.Connection) -> Iterator[None]:
    """A part of a transaction that is undone alone if the block raises, and what it left for the commit with it."""
    left = [(kept, len(kept)) for kept in (connection.info[_AFTER], connection.info[_GATHERED])]
    try:
        with connection.begin_nested():
            yield
    except BaseException:
        for kept, before in left:
            del kept[before:]
        raise


def first_contact(engine: sa.Engine) -> None:
    """Open the database once, so that a wrong path or an unreachable server is one clear RunFailed."""
    try:
        with reading(engine) as connection:
            connection.exec_driver_sql("SELECT 1")
    except DBAPIError as error:
        raise RunFailed(
            f"cannot open the database: {str(error.orig).strip()}",
            where=engine.url.render_as_string(hide_password=True),
            fix="check that the file is a jurat database in a folder you may write to, or that the server runs",
        ) from None
