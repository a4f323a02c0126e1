"""The schema: created and upgraded by Alembic from the migrations inside the package."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

import sqlalchemy as sa

from jurat.platform.db.engine import reading
from jurat.platform.db.tables import REVISIONS, VERSION_TABLE
from jurat.platform.errors import RunFailed, SchemaError

_ADVISORY = 0x6A75726174  # "jurat": PostgreSQL's lock against two upgrades at once


def migrations_folder() -> Path:
    """Where the migrations lie: in the checkout or in the installed wheel."""
    import jurat.migrations

    return Path(next(iter(jurat.migrations.__path__)))


def revision(connection: sa.Connection) -> str | None:
    """The schema's revision; None for an empty database."""
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()


def upgrade(engine: sa.Engine) -> str | None:
    """Bring the schema to the newest revision and return the one it had. Does nothing if it is there.

    One transaction, taken before the revision is read: an upgrade cut short leaves nothing behind, and a second process
    waits. A SQLite file that holds runs is copied first, to ``<file>.schema-<revision>``. Raises SchemaError if the
    database is newer than this version of jurat.
    """
    with reading(engine) as connection:
        found = revision(connection)
    if found == REVISIONS[-1]:
        return found
    _refuse_newer(found, engine)
    from alembic import command
    from alembic.config import Config

    if found is not None:
        _copy_beside(engine, found)
    with engine.connect() as connection:
        sqlite = connection.dialect.name == "sqlite"
        if sqlite:  # a table that others refer to is made anew; a transaction cannot turn this off
            _pragma(connection, "foreign_keys=OFF")
        try:
            connection = connection.execution_options(jurat_writes=True)
            with connection.begin():
                if not sqlite:
                    connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY})
                    connection.execute(sa.text("SET LOCAL statement_timeout = 0"))
                found = revision(connection)
                _refuse_newer(found, engine)
                if found != REVISIONS[-1]:
                    config = Config()
                    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
                    config.attributes["connection"] = connection
                    command.upgrade(config, "head")
                    if sqlite and (wrong := connection.exec_driver_sql("PRAGMA foreign_key_check").first()):
                        raise RunFailed(
                            f"the upgrade is undone: a row of table {wrong[0]} refers to a row of {wrong[2]} that is not there",
                            where=engine.url.render_as_string(hide_password=True),
                            fix="restore the database from a copy; a row was removed by hand",
                        )
        finally:
            if sqlite:
                _pragma(connection, "foreign_keys=ON")
    return found


def is_empty(engine: sa.Engine) -> bool:
    """Whether there is no schema yet."""
    with reading(engine) as connection:
        return revision(connection) is None


def refuse_other(engine: sa.Engine) -> None:
    """For a server, which leaves upgrades to people. Raises SchemaError unless the schema is this version's."""
    with reading(engine) as connection:
        found = revision(connection)
    _refuse_newer(found, engine)
    if found != REVISIONS[-1]:
        raise SchemaError(
            f"the database has schema {found or 'none'}, this version of jurat needs {REVISIONS[-1]}",
            where=engine.url.render_as_string(hide_password=True),
            fix="stop what uses it, then: jurat db upgrade (a copy of a SQLite file is kept)",
        )


def back_up(engine: sa.Engine, path: Path) -> None:
    """A whole copy of a SQLite database while it is in use. Raises RunFailed if ``path`` is there or is not writable."""
    if engine.dialect.name != "sqlite":
        raise RunFailed("only a SQLite database is copied by jurat", where=engine.url.render_as_string(hide_password=True),
                        fix="pg_dump copies a PostgreSQL database")  # fmt: skip
    if path.exists():
        raise RunFailed("the file is there already", where=str(path), fix="choose another name")
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with contextlib.closing(sqlite3.connect(str(engine.url.database))) as source:
            source.execute("VACUUM INTO ?", (str(draft),))
        os.replace(draft, path)
    except (sqlite3.Error, OSError) as error:
        draft.unlink(missing_ok=True)
        raise RunFailed(
            f"cannot copy the database: {error}", where=str(path), fix="look for room on the disk"
        ) from None


def _copy_beside(engine: sa.Engine, found: str) -> None:
    file = engine.url.database
    if engine.dialect.name != "sqlite" or not file or file == ":memory:":
        return
    copy, fresh = Path(f"{file}.schema-{found}"), Path(f"{file}.schema-{found}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    back_up(engine, fresh)
    with contextlib.closing(sqlite3.connect(fresh)) as copied:
        of = copied.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()
    if of == (found,):  # else another process has upgraded it meanwhile, and made its copy
        os.replace(fresh, copy)
    fresh.unlink(missing_ok=True)


def _pragma(connection: sa.Connection, text: str) -> None:
    driver = connection.connection.driver_connection
    assert driver is not None
    driver.execute(f"PRAGMA {text}")


def _refuse_newer(found: str | None, engine: sa.Engine) -> None:
    if found is not None and found not in REVISIONS:
        raise SchemaError(
            f"the database has schema {found!r}, this version of jurat knows {REVISIONS[0]} to {REVISIONS[-1]}",
            where=engine.url.render_as_string(hide_password=True),
            fix="use the newer jurat that wrote it (pip install -U jurat), or another --home",
        )
