"""Alembic's entry: runs inside the connection and transaction that ``jurat.platform.db.upgrade`` opened.

Developers: ``alembic revision --autogenerate`` and ``alembic check`` open ``JURAT_DATABASE`` (default ./.jurat/jurat.db).
"""

import os
from pathlib import Path

import sqlalchemy as sa
from alembic import context

from jurat.platform.db.engine import connect, sqlite_url, writing
from jurat.platform.db.tables import VERSION_TABLE, metadata


def _run(connection: sa.Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        version_table=VERSION_TABLE,
        render_as_batch=connection.dialect.name == "sqlite",
        transactional_ddl=False,  # the caller's transaction holds every step
    )
    context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    _run(given)
else:
    with writing(connect(os.environ.get("JURAT_DATABASE") or sqlite_url(Path(".jurat/jurat.db").absolute()))) as opened:
        _run(opened)
