"""The time that deadlines are held against: the database server's, or this machine's where the database is a file."""

from __future__ import annotations

import time

import sqlalchemy as sa

_SERVER = sa.text("SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)")


def now(connection: sa.Connection) -> int:
    """UTC epoch microseconds. Clients' clocks are stored, never compared."""
    if connection.dialect.name == "postgresql":
        return int(connection.execute(_SERVER).scalar_one())
    return time.time_ns() // 1000
