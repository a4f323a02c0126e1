"""Inserts that leave alone what is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

_CHUNK = 500
"""Rows of one INSERT: stays under SQLite's limit of bound parameters."""


def insert_new(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert the rows whose key is not there yet."""
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    for first in range(0, len(rows), _CHUNK):
        connection.execute(make(table).on_conflict_do_nothing(), list(rows[first : first + _CHUNK]))


def insert_first(connection: sa.Connection, table: sa.Table, row: Mapping[str, Any]) -> bool:
    """Whether the row was inserted: False where its key is there, also by who commits at this moment."""
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    one = next(iter(table.primary_key.columns))
    return connection.execute(make(table).values(**row).on_conflict_do_nothing().returning(one)).first() is not None
