"""Pages by keys: an order in which nulls come last, and what comes after a row of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa


@dataclass(frozen=True, slots=True)
class Key:
    """One key of an order. Nulls come last, whatever the direction."""

    column: sa.ColumnElement[Any]
    descending: bool
    nulls: bool = True
    """False: it has none, and an index can serve."""


def ordering(keys: Sequence[Key]) -> list[sa.ColumnElement[Any]]:
    made: list[sa.ColumnElement[Any]] = []
    for key in keys:
        made += [sa.case((key.column.is_(None), 1), else_=0)] if key.nulls else []
        made.append(key.column.desc() if key.descending else key.column.asc())
    return made


def after(keys: Sequence[Key], values: Sequence[Any]) -> sa.ColumnElement[bool]:
    """Rows that come after the one with these values of the keys; the last key breaks all ties."""
    options: list[sa.ColumnElement[bool]] = []
    equal: list[sa.ColumnElement[bool]] = []
    for key, value in zip(keys, values, strict=True):
        if value is None:
            equal.append(key.column.is_(None))
            continue
        later = key.column < value if key.descending else key.column > value
        options.append(sa.and_(*equal, sa.or_(later, key.column.is_(None)) if key.nulls else later))
        equal.append(key.column == value)
    return sa.or_(sa.false(), *options)
