"""The time that deadlines are held against: the database server's, or this machine's where the database is a file."""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa

_SERVER: sa.ColumnElement[int] = sa.cast(
    sa.extract("epoch", sa.func.clock_timestamp(type_=sa.DateTime(timezone=True))) * 1_000_000, sa.BigInteger
)

_LOCAL = sa.bindparam("clock", callable_=lambda: time.time_ns() // 1000, type_=sa.BigInteger)


def clock(dialect: str) -> sa.ColumnElement[Any]:
    """UTC epoch microseconds, as a column that is read at each execution. Clients' clocks are stored, never compared."""
    return _SERVER if dialect == "postgresql" else _LOCAL


def now(connection: sa.Connection) -> int:
    """``clock``, read now."""
    if connection.dialect.name == "postgresql":
        return int(connection.execute(sa.select(_SERVER)).scalar_one())
    return time.time_ns() // 1000
