"""Connections: SQLite in WAL with explicit transactions, or any other SQLAlchemy URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from jurat.platform.errors import ConfigError, RunFailed


def sqlite_url(path: Path) -> str:
    return sa.URL.create("sqlite", database=str(path)).render_as_string(hide_password=False)


def connect(url: str, *, busy_seconds: float = 10.0) -> sa.Engine:
    """An engine; nothing is opened yet. ``busy_seconds``: how long a statement waits for another's lock.

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
    (_sqlite_events if sqlite else _server_events)(engine, busy_seconds)
    return engine


def _without_password(url: str) -> str:
    head, at, tail = url.rpartition("@")
    return f"{head.partition('://')[0]}://...@{tail}" if at else url


def _sqlite_events(engine: sa.Engine, busy_seconds: float) -> None:
    @event.listens_for(engine, "connect")
    def _opened(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # transactions are begun below, not by the driver
        cursor = connection.cursor()
        # FULL: a commit survives a power cut, so that a checkpoint never outruns its record.
        for pragma in (
            f"busy_timeout={int(busy_seconds * 1000)}",
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
            "temp_store=MEMORY",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begun(connection: sa.Connection) -> None:
        # A write takes its lock at once: a reader that turns writer half way could only fail.
        writes = connection.get_execution_options().get("jurat_writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _server_events(engine: sa.Engine, busy_seconds: float) -> None:
    if engine.dialect.name != "postgresql":
        return

    @event.listens_for(engine, "connect")
    def _opened(connection: Any, _record: Any) -> None:
        before, connection.autocommit = connection.autocommit, True
        connection.execute(f"SET lock_timeout = {int(busy_seconds * 1000)}")
        connection.execute(f"SET statement_timeout = {int(busy_seconds * 3000)}")
        connection.autocommit = before


@contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """One consistent snapshot."""
    with engine.connect() as connection, connection.begin():
        yield connection


@contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """One transaction, committed at the end; rolled back if the block raises."""
    with engine.connect() as connection:
        connection = connection.execution_options(jurat_writes=True)
        with connection.begin():
            yield connection


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
