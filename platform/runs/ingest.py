"""Metric points in. What the callers of a transaction bring is gathered as columns and written at its end by two statements.

A point that is there is left alone, so that a batch may come twice; only what was new enters ``metric_latest``, which
searches read, and ``metric_series``: how many points each (run, name, segment) has, and their fingerprints XORed, by which
``jurat runs verify`` finds a point that was changed. Names are interned once and their numbers kept in memory.

No foreign key guards a point: checked row by row they were half of what a point costs. Its segment is looked up once a
batch, and its name once a process.
"""

from __future__ import annotations

import itertools
import math
import sqlite3
import weakref
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from jurat.platform.db import tables as t
from jurat.platform.db.arrays import packed
from jurat.platform.db.chunks import chunks
from jurat.platform.db.clock import clock
from jurat.platform.db.engine import gathered, on_commit
from jurat.platform.db.insert import insert_new
from jurat.platform.errors import DataError

Wholes = NDArray[np.int64]
Reals = NDArray[np.float64]
_k, _s = t.metric_key.c, t.metric_series.c

MAX_NAMES = 5000
"""Of one run, where a service writes for people."""
MAX_NAME = 250
"""Characters."""
_CHUNK = 100_000
"""Points read at once."""
_RUNS = 1000
"""Runs whose names are remembered."""

_keys: weakref.WeakKeyDictionary[sa.Engine, dict[str, int]] = weakref.WeakKeyDictionary()
_named: weakref.WeakKeyDictionary[sa.Engine, OrderedDict[int, frozenset[int]]] = weakref.WeakKeyDictionary()
"""The numbers of the names that a run has, as far as this process knows, by database and run."""


class Columns(NamedTuple):
    """Points, one a place."""

    run: Wholes
    key: Wholes
    segment: Wholes
    step: Wholes
    at: Wholes
    value: Reals

    def take(self, places: Any) -> Columns:
        return Columns(*(column[places] for column in self))


class Place(NamedTuple):
    """Where a batch is to go."""

    run_pk: int
    id: str
    state: str
    deleted_at: int | None
    lease_owner: str | None
    lease_epoch: int
    at: int
    """The database's time."""
    newest: int | None
    """Segment."""


def place(connection: sa.Connection, run_id: str) -> Place | None:
    """A run, which nobody takes over until the transaction ends. Locked as ``settle`` will update it: two who first shared it
    would wait for one another."""
    found = connection.execute(_place(connection.dialect.name), {"run": run_id}).first()
    return None if found is None else Place(*found)


@cache
def _place(dialect: str) -> sa.Select[Any]:
    """Built once: to build it took as long as to run it."""
    r, s = t.run.c, t.segment.c
    newest = sa.select(sa.func.max(s.no)).where(s.run_pk == r.pk).scalar_subquery().label("newest")
    columns = (r.pk, r.id, r.state, r.deleted_at, r.lease_owner, r.lease_epoch, clock(dialect).label("at"), newest)
    asked = sa.select(*columns).where(r.id == sa.bindparam("run"))
    return asked.with_for_update(key_share=True, of=t.run)


# ---- gathering ---------------------------------------------------------------------------------------------------


def insert_points(
    connection: sa.Connection, run_pk: int, points: Sequence[tuple[int, int, int, str, float | None]]
) -> None:
    """(segment, step, at, name, value or None for NaN) of each. One call is one batch: all of it or, if it raises, none.

    Raises DataError where a segment is not there; TypeError and OverflowError for what is no number of 64 bits.
    """
    if not points:
        return
    segments, steps, times, names, values = zip(*points, strict=True)
    check_segments(connection, run_pk, set(segments))
    gather(connection, run_pk, names, steps, [np.nan if v is None else v for v in values], segments, times)
    settle(connection)


def gather(
    connection: sa.Connection,
    run_pk: int,
    names: Sequence[str],
    steps: Iterable[int],
    values: Iterable[float],
    segments: Sequence[int] | int,
    times: Sequence[int] | int,
    *,
    limit: int | None = None,
) -> None:
    """Points to be written by ``settle``. The segments are there already. ``limit``: names that the run may have.

    Raises DataError for a name that is unfit, or one too many.
    """
    keys = intern(connection, set(names))
    if limit is not None:
        _refuse_names(connection, run_pk, frozenset(keys.values()), limit)
    count = len(names)
    made = Columns(
        np.full(count, run_pk), _wholes(keys[name] for name in names), _spread(segments, count), _wholes(steps),
        _spread(times, count), np.frombuffer(array("d", values), np.float64),
    )  # fmt: skip
    gathered(connection).append(made)


def _wholes(values: Iterable[int]) -> Wholes:
    return np.frombuffer(array("q", values), np.int64)


def _spread(values: Sequence[int] | int, count: int) -> Wholes:
    return np.full(count, values) if isinstance(values, int) else _wholes(values)


def check_segments(connection: sa.Connection, run_pk: int, wanted: set[int]) -> None:
    """Raises DataError for one that is not there."""
    c = t.segment.c
    there = set(connection.execute(sa.select(c.no).where(c.run_pk == run_pk, c.no.in_(sorted(wanted)))).scalars())
    if wanted - there:
        raise DataError(f"the run has no segment {min(wanted - there)}", where="metrics", fix="start a segment first")


def _refuse_names(connection: sa.Connection, run_pk: int, keys: frozenset[int], limit: int) -> None:
    seen = _named.setdefault(connection.engine, OrderedDict())
    if keys <= seen.get(run_pk, frozenset()):
        return
    query = sa.select(_s.key_pk).where(_s.run_pk == run_pk).distinct()
    waiting = (made.key[made.run == run_pk].tolist() for made in gathered(connection))
    all_of_them = keys.union(connection.execute(query).scalars(), *waiting)
    if len(all_of_them) > limit:
        raise DataError(f"a run may have {limit} metrics", where="names", fix="fold numbers of one kind into one name")

    def remember() -> None:
        seen[run_pk] = all_of_them
        seen.move_to_end(run_pk)
        while len(seen) > _RUNS:
            seen.popitem(last=False)

    on_commit(connection, remember)


# ---- names -------------------------------------------------------------------------------------------------------


def known(connection: sa.Connection) -> dict[str, int]:
    """Name -> number of those that are committed, as far as this process knows. Names are never removed."""
    return _keys.setdefault(connection.engine, {})


def intern(connection: sa.Connection, names: set[str]) -> dict[str, int]:
    """The number of each name; new ones are added. Raises DataError for a name that is empty or too long."""
    there = known(connection)
    out = {name: there[name] for name in names if name in there}
    if len(out) == len(names):
        return out
    missing = sorted(names - out.keys())
    for name in missing:
        if not 0 < len(name) <= MAX_NAME:
            raise DataError(f"a metric's name has 1 to {MAX_NAME} characters, got {len(name)}", where=name[:80])
    found = numbers(connection, missing)
    if new := [{"name": name} for name in missing if name not in found]:
        insert_new(connection, t.metric_key, new)
        found |= numbers(connection, [row["name"] for row in new])
    on_commit(connection, lambda: there.update(found))  # until then they may be undone
    return out | found


def numbers(connection: sa.Connection, names: Sequence[str]) -> dict[str, int]:
    """Of the names that are there."""
    out: dict[str, int] = {}
    for some in chunks(names):
        query = sa.select(_k.name, _k.pk).where(_k.name.in_(some))
        out |= {name: pk for name, pk in connection.execute(query)}
    return out


# ---- fingerprints ------------------------------------------------------------------------------------------------


def fingerprints(points: Columns) -> NDArray[np.uint64]:
    """64 bits of each point's segment, step, time and value: splitmix64 (Steele, Lea, Flood 2014), chained. Against decay
    and stray edits, not against an author who computes it anew. -0.0 counts as 0.0, as SQLite keeps it."""
    real = np.where(np.isnan(points.value), np.nan, points.value) + 0.0
    made = np.zeros(len(real), np.uint64)
    for part in (points.segment, points.step, points.at, real):
        made = made + part.view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        made = (made ^ (made >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        made = (made ^ (made >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        made ^= made >> np.uint64(31)
    return made


def faults(connection: sa.Connection, run_pk: int) -> tuple[int, list[str]]:
    """How many points a run has, and which of its series are not as they were recorded. Called first in a transaction."""
    if connection.dialect.name == "postgresql":  # the points and what is recorded of them, of one moment
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    p, found = t.metric_point.c, dict[tuple[int, int], tuple[int, int]]()
    query = sa.select(p.run_pk, p.key_pk, p.segment, p.step, p.at, p.value).where(p.run_pk == run_pk)
    rows = connection.execute(query, execution_options={"stream_results": True})
    while chunk := rows.fetchmany(_CHUNK):
        run, key, segment, step, at, values = zip(*chunk, strict=True)
        real = array("d", (math.nan if value is None else value for value in values))
        wholes = [_wholes(column) for column in (run, key, segment, step, at)]
        folded = fold(Columns._make([*wholes, np.frombuffer(real, np.float64)]))
        for _, k, s, count, digest, _ in zip(*(column.tolist() for column in folded.series), strict=True):
            before = found.get((k, s), (0, 0))
            found[k, s] = (before[0] + count, before[1] ^ digest)
    recorded = {
        (key, segment): (points, digest)
        for key, segment, points, digest in connection.execute(
            sa.select(_s.key_pk, _s.segment, _s.points, _s.digest).where(_s.run_pk == run_pk)
        )
    }
    names = dict(connection.execute(sa.select(_k.pk, _k.name)).all())  # type: ignore[arg-type]
    out = []
    for series in sorted(found.keys() | recorded.keys()):
        there, was = found.get(series, (0, 0)), recorded.get(series, (0, 0))
        if there != was:
            how = "their values differ" if there[0] == was[0] else f"{was[0]} were recorded"
            name = names.get(series[0], series[0])
            out.append(f"metric {name!r} of segment {series[1]}: {there[0]} points are there, {how}")
    return sum(count for count, _ in found.values()), out


class _Folded(NamedTuple):
    """The rows that new points make."""

    latest: tuple[NDArray[Any], ...]
    """run, key, segment, step, at, value, least, most: one a (run, key)."""
    series: tuple[NDArray[Any], ...]
    """run, key, segment, points, digest, least step: one a (run, key, segment)."""
    times: tuple[NDArray[Any], ...]
    """run, newest time."""


def _begins(differs: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Places where a stretch of equal rows begins; ``differs``: of each row but the first, from the one before."""
    made = np.ones(len(differs) + 1, np.bool_)
    made[1:] = differs
    return np.flatnonzero(made)


def fold(points: Columns) -> _Folded:
    """Points, not empty, no two at one place."""
    sorted_ = points.take(np.lexsort((points.step, points.segment, points.key, points.run)))
    run, key, segment, step, at, value = sorted_
    same = (run[1:] == run[:-1]) & (key[1:] == key[:-1])
    first = _begins(~same)
    last = np.append(first[1:], len(run)) - 1
    least, most = np.fmin.reduceat(value, first), np.fmax.reduceat(value, first)
    begin = _begins(~(same & (segment[1:] == segment[:-1])))
    count = np.diff(np.append(begin, len(run)))
    digest = np.bitwise_xor.reduceat(fingerprints(sorted_), begin).view(np.int64)
    of_run = _begins(run[1:] != run[:-1])
    return _Folded(
        latest=(run[last], key[last], segment[last], step[last], at[last], value[last], least, most),
        series=(run[begin], key[begin], segment[begin], count, digest, step[begin]),
        times=(run[of_run], np.maximum.reduceat(at, of_run)),
    )


# ---- writing -----------------------------------------------------------------------------------------------------


def settle(connection: sa.Connection) -> None:
    """Write what was gathered."""
    waiting: list[Columns] = gathered(connection)
    if not waiting:
        return
    points = waiting[0] if len(waiting) == 1 else Columns(*map(np.concatenate, zip(*waiting, strict=True)))
    waiting.clear()
    postgres = connection.dialect.name == "postgresql"
    new = (_insert_postgres if postgres else _insert_sqlite)(connection, points)
    if len(new.run):
        (_fold_postgres if postgres else _fold_sqlite)(connection, fold(new))


_POINT = "INSERT INTO metric_point (run_pk, key_pk, segment, step, at, value)"
_SQLITE_POINT = f"{_POINT} VALUES (?,?,?,?,?,?) ON CONFLICT DO NOTHING"  # a NaN is bound as NULL
_POSTGRES_POINTS = f"""
WITH made AS ({_POINT} SELECT a, b, c, d, e, NULLIF(f, 'NaN') FROM unnest(%s, %s, %s, %s, %s, %s) AS x (a, b, c, d, e, f)
  ON CONFLICT DO NOTHING RETURNING run_pk, key_pk, segment, step), counted AS (SELECT count(*) AS n FROM made)
SELECT n, CASE WHEN n BETWEEN 1 AND %s - 1 THEN (SELECT array_agg(ARRAY[run_pk, key_pk, segment, step]) FROM made) END
FROM counted
"""
_LATEST = "INSERT INTO metric_latest (run_pk, key_pk, segment, step, at, value, least, most)"
_TO_LATEST = (
    "ON CONFLICT (run_pk, key_pk) DO UPDATE SET "
    + ", ".join(
        f"{column} = CASE WHEN (excluded.segment, excluded.step) >= (metric_latest.segment, metric_latest.step) "
        f"THEN excluded.{column} ELSE metric_latest.{column} END"
        for column in ("segment", "step", "at", "value")
    )
    + ", least = CASE WHEN metric_latest.least <= excluded.least OR excluded.least IS NULL THEN metric_latest.least "
    "ELSE excluded.least END, most = CASE WHEN metric_latest.most >= excluded.most OR excluded.most IS NULL "
    "THEN metric_latest.most ELSE excluded.most END"
)
_SERIES = "INSERT INTO metric_series (run_pk, key_pk, segment, points, digest, rolled)"
_TO_SERIES = (
    "ON CONFLICT (run_pk, key_pk, segment) DO UPDATE SET points = metric_series.points + excluded.points, "
    "digest = (metric_series.digest | excluded.digest) & ~(metric_series.digest & excluded.digest), "
    "rolled = CASE WHEN metric_series.rolled < excluded.rolled THEN metric_series.rolled ELSE excluded.rolled END"
)
_SQLITE_FOLDS = (
    f"{_LATEST} VALUES (?,?,?,?,?,?,?,?) {_TO_LATEST}",
    f"{_SERIES} VALUES (?,?,?,?,?,?) {_TO_SERIES}",
    "UPDATE run SET last_step_at = ?2 WHERE pk = ?1 AND (last_step_at IS NULL OR last_step_at < ?2)",
)
_POSTGRES_FOLD = f"""
WITH a AS ({_LATEST} SELECT a, b, c, d, e, NULLIF(f, 'NaN'), NULLIF(g, 'NaN'), NULLIF(h, 'NaN')
  FROM unnest(%s, %s, %s, %s, %s, %s, %s, %s) AS x (a, b, c, d, e, f, g, h) {_TO_LATEST}),
b AS ({_SERIES} SELECT * FROM unnest(%s, %s, %s, %s, %s, %s) {_TO_SERIES})
UPDATE run SET last_step_at = x.at FROM unnest(%s, %s) AS x (pk, at)
WHERE run.pk = x.pk AND (last_step_at IS NULL OR last_step_at < x.at)
"""


def _insert_sqlite(connection: sa.Connection, points: Columns) -> Columns:
    """The points that were new."""
    with _sqlite(connection) as cursor:
        insert = cursor.execute
        made = [insert(_SQLITE_POINT, row).rowcount > 0 for row in _rows(points)]
    return points if all(made) else points.take(np.array(made))


def _fold_sqlite(connection: sa.Connection, folded: _Folded) -> None:
    with _sqlite(connection) as cursor:
        for statement, columns in zip(_SQLITE_FOLDS, folded, strict=True):
            cursor.executemany(statement, _rows(columns))


@contextmanager
def _sqlite(connection: sa.Connection) -> Iterator[sqlite3.Cursor]:
    """A cursor of the driver, whose errors are SQLAlchemy's."""
    cursor: Any = connection.connection.cursor()
    try:
        yield cursor
    except sqlite3.Error as error:
        raise sa.exc.DBAPIError.instance(_POINT, (), error, sqlite3.Error, dialect=connection.dialect) from error
    finally:
        cursor.close()


def _rows(columns: Iterable[NDArray[Any]]) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.tolist() for column in columns), strict=True)


def _insert_postgres(connection: sa.Connection, points: Columns) -> Columns:
    """The points that were new."""
    count, made = connection.exec_driver_sql(_POSTGRES_POINTS, (*map(packed, points), len(points.run))).one()
    if made is None:
        return points if count else points.take(slice(0, 0))
    new = set(map(tuple, made))
    kept = []
    for at, row in enumerate(_rows(points[:4])):
        if row in new:
            new.remove(row)  # the first of two in one batch is the one that was stored
            kept.append(at)
    return points.take(kept)


def _fold_postgres(connection: sa.Connection, folded: _Folded) -> None:
    connection.exec_driver_sql(
        _POSTGRES_FOLD, tuple(packed(column) for column in itertools.chain.from_iterable(folded))
    )
