"""Metrics: many small rows in, few rows out. All SQL of them.

A name is interned once (``metric_key``) and its number kept in memory; a point is one row of a table without row ids;
the newest value of each key of each run is one row of ``metric_latest``, which searches read. A point that is there is
left alone, so that a batch may come twice. Of several segments that took one step the newest counts: ``spans`` says
which steps of a segment do, so that reading is a walk along the primary key.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa

from jurat.platform.db import tables as t
from jurat.platform.db.engine import on_commit
from jurat.platform.db.insert import insert_new
from jurat.platform.errors import DataError
from jurat.platform.runs.records import Point, Segment

Row = Mapping[str, Any]
_p, _l, _k = t.metric_point.c, t.metric_latest.c, t.metric_key.c

MAX_NAMES = 5000
"""Of one run."""
MAX_NAME = 250
"""Characters."""
_IN = 500
"""Values of one IN: stays under SQLite's limit of bound parameters."""

_keys: weakref.WeakKeyDictionary[sa.Engine, dict[str, int]] = weakref.WeakKeyDictionary()
"""Names that are committed, as far as this process knows, by database. Names are never removed."""

_named: weakref.WeakKeyDictionary[sa.Engine, dict[int, str]] = weakref.WeakKeyDictionary()
"""The same by number, of those that were read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A stretch of steps of one metric, as one row. Numbers are of the values that are numbers."""

    stage: str
    first_step: int
    last_step: int
    count: int
    mean: float
    least: float
    most: float
    last: float


class Latest(NamedTuple):
    """The newest value of one key of one run, and its extremes. A tuple: a page of runs has a hundred thousand."""

    step: int
    at: int
    value: float
    least: float
    most: float


# ---- writing -----------------------------------------------------------------------------------------------------


def insert(connection: sa.Connection, run_pk: int, rows: Sequence[Row]) -> None:
    """rows: segment, step, at, name, value (float). The segments are there already."""
    points = [(row["segment"], row["step"], row["at"], t.visible(row["name"]), _stored(row["value"])) for row in rows]
    insert_points(connection, run_pk, points)


def insert_points(
    connection: sa.Connection, run_pk: int, points: Sequence[tuple[int, int, int, str, float | None]]
) -> None:
    """(segment, step, at, name, value or None for NaN) of each. One call is one batch: all of it or, if it raises, none.

    Raises DataError where a segment is not there, or the run would have more than ``MAX_NAMES`` names.
    """
    if not points:
        return
    _check_segments(connection, run_pk, {point[0] for point in points})
    keys = intern(connection, {point[3] for point in points})
    made = [(run_pk, keys[name], segment, step, at, value) for segment, step, at, name, value in points]
    newest: dict[int, tuple[int, int, int, int, int, float | None, float | None, float | None]] = {}
    for _, key, segment, step, at, value in made:
        old = newest.get(key)
        least, most = (value, value) if old is None else (_least(old[6], value), _most(old[7], value))
        if old is None or (segment, step) >= (old[2], old[3]):
            newest[key] = (run_pk, key, segment, step, at, value, least, most)
        else:
            newest[key] = (*old[:6], least, most)
    latest = sorted(newest.values())
    if connection.dialect.name == "postgresql":
        _insert_postgres(connection, made, latest)
    else:
        connection.exec_driver_sql(_POINT, made)
        connection.exec_driver_sql(_LATEST.format(values="(?,?,?,?,?,?,?,?)"), latest)
    last = max(point[2] for point in points)
    connection.execute(
        sa.update(t.run)
        .where(t.run.c.pk == run_pk, sa.or_(t.run.c.last_step_at.is_(None), t.run.c.last_step_at < last))
        .values(last_step_at=last)
    )


_POINT = "INSERT OR IGNORE INTO metric_point (run_pk, key_pk, segment, step, at, value) VALUES (?,?,?,?,?,?)"
_COLUMNS = "run_pk, key_pk, segment, step, at, value, least, most"
_LATEST = (
    f"INSERT INTO metric_latest ({_COLUMNS}) VALUES {{values}} ON CONFLICT (run_pk, key_pk) DO UPDATE SET "
    + ", ".join(
        f"{column} = CASE WHEN (excluded.segment, excluded.step) >= (metric_latest.segment, metric_latest.step) "
        f"THEN excluded.{column} ELSE metric_latest.{column} END"
        for column in ("segment", "step", "at", "value")
    )
    + ", least = CASE WHEN metric_latest.least <= excluded.least OR excluded.least IS NULL THEN metric_latest.least "
    "ELSE excluded.least END, most = CASE WHEN metric_latest.most >= excluded.most OR excluded.most IS NULL "
    "THEN metric_latest.most ELSE excluded.most END"
)


_POINT_ARRAYS = (
    "INSERT INTO metric_point (run_pk, key_pk, segment, step, at, value) SELECT * FROM unnest("
    "%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::float8[]) ON CONFLICT DO NOTHING"
)
_LATEST_ARRAYS = _LATEST.replace(
    "VALUES {values}",
    "SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::float8[], "
    "%s::float8[], %s::float8[])",
)


def _insert_postgres(
    connection: sa.Connection, points: Sequence[tuple[Any, ...]], latest: Sequence[tuple[Any, ...]]
) -> None:
    """Columns as arrays: one statement each, however many rows."""
    driver: Any = connection.connection.driver_connection
    with driver.cursor(binary=True) as cursor:
        for statement, rows in ((_POINT_ARRAYS, points), (_LATEST_ARRAYS, latest)):
            cursor.execute(statement, [list(column) for column in zip(*rows, strict=True)])


def _check_segments(connection: sa.Connection, run_pk: int, wanted: set[int]) -> None:
    c = t.segment.c
    there = set(connection.execute(sa.select(c.no).where(c.run_pk == run_pk, c.no.in_(sorted(wanted)))).scalars())
    if wanted - there:
        raise DataError(f"the run has no segment {min(wanted - there)}", where="metrics", fix="start a segment first")


def intern(connection: sa.Connection, names: set[str]) -> dict[str, int]:
    """The number of each name; new ones are added. Raises DataError for a name that is empty or too long."""
    known = _keys.setdefault(connection.engine, {})
    out = {name: known[name] for name in names if name in known}
    missing = sorted(names - out.keys())
    if not missing:
        return out
    for name in missing:
        if not 0 < len(name) <= MAX_NAME:
            raise DataError(f"a metric's name has 1 to {MAX_NAME} characters, got {len(name)}", where=name[:80])
    found = _numbers(connection, missing)
    if new := [{"name": name} for name in missing if name not in found]:
        insert_new(connection, t.metric_key, new)
        found |= _numbers(connection, [row["name"] for row in new])
    on_commit(connection, lambda: known.update(found))  # until then they may be undone
    return out | found


def _numbers(connection: sa.Connection, names: Sequence[str]) -> dict[str, int]:
    out: dict[str, int] = {}
    for first in range(0, len(names), _IN):
        query = sa.select(_k.name, _k.pk).where(_k.name.in_(names[first : first + _IN]))
        out |= {name: pk for name, pk in connection.execute(query)}
    return out


def number_of(connection: sa.Connection, name: str) -> int | None:
    """The number of a name, if any run has it."""
    known = _keys.setdefault(connection.engine, {})
    if name not in known:
        known |= _numbers(connection, [name]) if not connection.get_execution_options().get("jurat_writes") else {}
    return known.get(name)


def count_names(connection: sa.Connection, run_pk: int) -> int:
    """Of one run; a service refuses more than ``MAX_NAMES``."""
    return int(connection.execute(sa.select(sa.func.count()).where(_l.run_pk == run_pk)).scalar_one())


def superseded(connection: sa.Connection, run_pk: int) -> None:
    """A new segment takes steps again: the newest value of each key whose newest was of such a step is found anew."""
    counts = {span.segment: span for span in _ordered_spans(connection, run_pk)}
    held = connection.execute(sa.select(_l.key_pk, _l.segment, _l.step).where(_l.run_pk == run_pk)).all()
    c = t.canonical_metric_point.c
    for key, segment, step in held:
        span = counts.get(segment)
        if span is not None and (span.last is None or step < span.last):
            continue
        connection.execute(sa.delete(t.metric_latest).where(_l.run_pk == run_pk, _l.key_pk == key))
        rows = sa.select(c.segment, c.step, c.at, c.value).where(c.run_pk == run_pk, c.key_pk == key)
        newest = connection.execute(rows.order_by(c.stage_index.desc(), c.step.desc()).limit(1)).first()
        if newest is not None:
            of_all = rows.subquery().c
            least, most = connection.execute(sa.select(sa.func.min(of_all.value), sa.func.max(of_all.value))).one()
            connection.execute(
                sa.insert(t.metric_latest).values(
                    run_pk=run_pk, key_pk=key, segment=newest.segment, step=newest.step, at=newest.at,
                    value=newest.value, least=least, most=most,
                )
            )  # fmt: skip


def _stored(value: float) -> float | None:
    return None if math.isnan(value) else value


def _least(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else min(one, other)


def _most(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else max(one, other)


def _read(value: float | None) -> float:
    return math.nan if value is None else value


# ---- which steps of which segment count --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Steps ``first <= step < last`` of a stage are those of this segment; ``last`` None: all from ``first``."""

    segment: int
    stage: str
    stage_index: int
    first: int
    last: int | None


def spans(segments: Sequence[Segment]) -> list[Span]:
    """The stretches that count, in the order of training. Pure: what the views ``canonical_*`` say, row by row.

    A segment's steps count up to where a later one of its stage began; not at all if an earlier stage was taken up again.
    """
    out = []
    for each in segments:
        later = [other for other in segments if other.no > each.no]
        if any(other.stage_index < each.stage_index for other in later):
            continue
        ends = [other.first_step for other in later if other.stage_index == each.stage_index]
        last = min(ends, default=None)
        if last is None or last > 0:
            out.append(Span(segment=each.no, stage=each.stage, stage_index=each.stage_index, first=0, last=last))
    return sorted(out, key=lambda span: (span.stage_index, span.segment))


# ---- reading -----------------------------------------------------------------------------------------------------


def points(
    connection: sa.Connection,
    run_pk: int,
    *,
    names: Sequence[str] | None,
    stage: str | None,
    after: tuple[int, int] | None,
) -> list[Point]:
    """Canonical points by (stage, step, name); ``after``: only later than this (stage index, step)."""
    m = t.canonical_metric_point.c
    query = (
        sa.select(m.stage, m.segment, m.step, m.at, _k.name, m.value)
        .join(t.metric_key, _k.pk == m.key_pk)
        .where(m.run_pk == run_pk)
        .order_by(m.stage_index, m.step, _k.name)
    )
    if names is not None:
        query = query.where(_k.name.in_(names))
    if stage is not None:
        query = query.where(m.stage == stage)
    if after is not None:
        index, step = after
        query = query.where(sa.or_(m.stage_index > index, sa.and_(m.stage_index == index, m.step > step)))
    return [Point(**{**row, "value": _read(row["value"])}) for row in connection.execute(query).mappings()]


def last_points(connection: sa.Connection, run_pk: int) -> list[Point]:
    """The newest canonical step's points."""
    m = t.canonical_metric_point.c
    newest = connection.execute(
        sa.select(m.stage_index, m.step)
        .where(m.run_pk == run_pk)
        .order_by(m.stage_index.desc(), m.step.desc())
        .limit(1)
    ).first()
    if newest is None:
        return []
    return points(connection, run_pk, names=None, stage=None, after=(newest[0], newest[1] - 1))


def _ordered_spans(connection: sa.Connection, run_pk: int) -> list[Span]:
    c = t.segment.c
    rows = connection.execute(sa.select(t.segment).where(c.run_pk == run_pk).order_by(c.no)).mappings()
    return spans([Segment(**{key: row[key] for key in Segment.__slots__}) for row in rows])


def history(
    connection: sa.Connection,
    run_pk: int,
    name: str,
    *,
    first: int | None = None,
    last: int | None = None,
    after: tuple[int, int] | None = None,
    limit: int = 1000,
) -> list[Point]:
    """One metric's canonical points in the order of training: a keyset page. ``first``, ``last``: steps, both included.

    ``after``: (stage index, step) of the last point of the page before.
    """
    key = _numbers(connection, [name]).get(name)
    out: list[Point] = []
    if key is None:
        return out
    for span, low, high in _stretches(connection, run_pk, first, last, after):
        query = sa.select(_p.step, _p.at, _p.value).where(
            _p.run_pk == run_pk, _p.key_pk == key, _p.segment == span.segment, _p.step >= low
        )
        if high is not None:
            query = query.where(_p.step <= high)
        for row in connection.execute(query.order_by(_p.step).limit(limit - len(out))):
            out.append(
                Point(
                    stage=span.stage, segment=span.segment, step=row.step, at=row.at, name=name, value=_read(row.value)
                )
            )
        if len(out) >= limit:
            break
    return out


def _stretches(
    connection: sa.Connection, run_pk: int, first: int | None, last: int | None, after: tuple[int, int] | None
) -> list[tuple[Span, int, int | None]]:
    """(span, lowest step, highest step) of what is asked for."""
    out = []
    for span in _ordered_spans(connection, run_pk):
        low = max(span.first, first or 0)
        if after is not None:
            if span.stage_index < after[0]:
                continue
            low = max(low, after[1] + 1) if span.stage_index == after[0] else low
        ends = [end for end in (last, None if span.last is None else span.last - 1) if end is not None]
        high = min(ends, default=None)
        if high is None or low <= high:
            out.append((span, low, high))
    return out


def downsampled(
    connection: sa.Connection,
    run_pk: int,
    name: str,
    *,
    first: int | None = None,
    last: int | None = None,
    buckets: int = 500,
) -> list[Bucket]:
    """One metric in at most about ``buckets`` rows of equal width in steps, in the order of training; no point is left out.

    The least, most and mean of a bucket are of every point in it, so that a spike is seen however wide the buckets are.
    """
    key = _numbers(connection, [name]).get(name)
    if key is None:
        return []
    of_key = (_p.run_pk == run_pk, _p.key_pk == key)
    stretches: list[tuple[Span, int, int]] = []
    for span, low, high in _stretches(connection, run_pk, first, last, None):
        within = [*of_key, _p.segment == span.segment, _p.step >= low]
        if high is not None:
            within.append(_p.step <= high)
        ends = connection.execute(sa.select(sa.func.min(_p.step), sa.func.max(_p.step)).where(*within)).one()
        if ends[0] is not None:
            stretches.append((span, int(ends[0]), int(ends[1])))
    steps = sum(high - low + 1 for _, low, high in stretches)
    width = max(1, -(-steps // max(1, buckets)))
    out = []
    for span, low, high in stretches:
        place = (_p.step - low) // width
        inside = (*of_key, _p.segment == span.segment)
        query = (
            sa.select(
                sa.func.min(_p.step), sa.func.max(_p.step), sa.func.count(_p.value), sa.func.avg(_p.value),
                sa.func.min(_p.value), sa.func.max(_p.value),
            )
            .where(*inside, _p.step >= low, _p.step <= high)
            .group_by(place)
            .order_by(sa.func.min(_p.step))
        )  # fmt: skip
        rows = connection.execute(query).all()
        closing = [row[1] for row in rows]
        last_of: dict[int, float | None] = {}
        for begin in range(0, len(closing), _IN):
            at = sa.select(_p.step, _p.value).where(*inside, _p.step.in_(closing[begin : begin + _IN]))
            last_of |= {step: value for step, value in connection.execute(at)}
        for begin, end, count, mean, least, most in rows:
            out.append(
                Bucket(
                    stage=span.stage, first_step=begin, last_step=end, count=count, mean=_read(mean), least=_read(least),
                    most=_read(most), last=_read(last_of[end]),
                )
            )  # fmt: skip
    return out


def latest(
    connection: sa.Connection, run_pks: Sequence[int], names: Sequence[str] | None
) -> dict[int, dict[str, Latest]]:
    """{run pk: {name: its newest value}} of many runs at once; ``names`` None: all they have."""
    keys: dict[int, str] = {}
    query = sa.select(_l.run_pk, _l.key_pk, _l.step, _l.at, _l.value, _l.least, _l.most)
    if names is not None:
        keys = {pk: name for name, pk in _numbers(connection, list(names)).items()}
        query = query.where(_l.key_pk.in_(sorted(keys)))
    out: dict[int, dict[str, Latest]] = {pk: {} for pk in run_pks}
    for first in range(0, len(run_pks), _IN):
        rows = connection.execute(query.where(_l.run_pk.in_(run_pks[first : first + _IN]))).all()
        if unknown := sorted({row.key_pk for row in rows} - keys.keys()):
            for low in range(0, len(unknown), _IN):
                some = sa.select(_k.pk, _k.name).where(_k.pk.in_(unknown[low : low + _IN]))
                keys |= {pk: name for pk, name in connection.execute(some)}
        nan = math.nan
        for run_pk, key, step, at, value, least, most in rows:
            out[run_pk][keys[key]] = Latest(
                step,
                at,
                nan if value is None else value,
                nan if least is None else least,
                nan if most is None else most,
            )
    return out


def values(
    connection: sa.Connection, run_pks: Sequence[int], names: Sequence[str] | None
) -> dict[int, dict[str, float | None]]:
    """{run pk: {name: its newest value, None for NaN}} of many runs; ``names`` None: all. Less than ``latest`` tells, in a
    third of the time: a page of runs has a hundred thousand. Raises what the driver raises."""
    keys = None if names is None else sorted(_numbers(connection, list(names)).values())
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "postgresql":  # two arrays a run: no row a value
        chosen = "" if keys is None else " AND key_pk = ANY(%s)"
        with driver.cursor(binary=True) as cursor:
            cursor.execute(
                f"SELECT run_pk, array_agg(key_pk), array_agg(value) FROM metric_latest WHERE run_pk = ANY(%s){chosen} "
                "GROUP BY run_pk",
                [list(run_pks), *([] if keys is None else [keys])],
            )
            found = {pk: list(zip(*arrays, strict=True)) for pk, *arrays in cursor}
    else:
        chosen = "" if keys is None else f" AND key_pk IN ({','.join('?' * len(keys))})"
        query = f"SELECT key_pk, value FROM metric_latest WHERE run_pk = ?{chosen}"
        found = {pk: driver.execute(query, [pk, *(keys or ())]).fetchall() for pk in run_pks}
    known = _named.setdefault(connection.engine, {})
    unknown = sorted({key for rows in found.values() for key, _ in rows} - known.keys())
    for low in range(0, len(unknown), _IN):
        some = sa.select(_k.pk, _k.name).where(_k.pk.in_(unknown[low : low + _IN]))
        known |= {key: name for key, name in connection.execute(some)}
    return {pk: {known[key]: value for key, value in found.get(pk, ())} for pk in run_pks}


def names_of(connection: sa.Connection, run_pk: int) -> list[str]:
    """Every metric that a run has, sorted."""
    query = sa.select(_k.name).join(t.metric_latest, _l.key_pk == _k.pk).where(_l.run_pk == run_pk).order_by(_k.name)
    return list(connection.execute(query).scalars())
