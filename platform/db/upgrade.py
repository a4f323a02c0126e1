"""The schema: created and upgraded by Alembic from the migrations inside the package."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from jurat.platform.db.engine import reading, writing
from jurat.platform.db.tables import REVISIONS, VERSION_TABLE
from jurat.platform.errors import SchemaError

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
    waits. Raises SchemaError if the database is newer than this version of jurat.
    """
    with reading(engine) as connection:
        found = revision(connection)
    if found == REVISIONS[-1]:
        return found
    _refuse_newer(found, engine)
    from alembic import command
    from alembic.config import Config

    with writing(engine) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY})
        found = revision(connection)
        _refuse_newer(found, engine)
        if found != REVISIONS[-1]:
            config = Config()
            config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    return found


def _refuse_newer(found: str | None, engine: sa.Engine) -> None:
    if found is not None and found not in REVISIONS:
        raise SchemaError(
            f"the database has schema {found!r}, this version of jurat knows {REVISIONS[0]} to {REVISIONS[-1]}",
            where=engine.url.render_as_string(hide_password=True),
            fix="use the newer jurat that wrote it (pip install -U jurat), or another --home",
        )
