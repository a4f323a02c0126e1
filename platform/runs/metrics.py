"""Metrics: few rows out of many.

A point is one row of a table without row ids, written by ``ingest``; the newest value of each key of each run is one row
of ``metric_latest``, which searches read. Of several segments that took one step the newest counts: ``spans`` says
which steps of a segment do, so that reading is a walk along the primary key.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa

from jurat.platform.db import tables as t
from jurat.platform.db.chunks import chunks
from jurat.platform.errors import ConfigError, nearest
from jurat.platform.runs.ingest import known, numbers
from jurat.platform.runs.records import Point, Segment

_p, _l, _k = t.metric_point.c, t.metric_latest.c, t.metric_key.c


_named: weakref.WeakKeyDictionary[sa.Engine, dict[int, str]] = weakref.WeakKeyDictionary()
"""Number -> name of those that were read. Names are never removed."""


class Latest(NamedTuple):
    """The newest value of one key of one run, and its extremes. A tuple: a page of runs has a hundred thousand."""

    step: int
    at: int
    value: float
    least: float
    most: float


# ---- the newest --------------------------------------------------------------------------------------------------


def number_of(connection: sa.Connection, name: str) -> int | None:
    """The number of a name, if any run has it."""
    names = known(connection)
    if name not in names and not connection.get_execution_options().get("jurat_writes"):
        names |= numbers(connection, [name])
    return names.get(name)


def refuse_unknown(connection: sa.Connection, names: Iterable[str], *, where: str) -> None:
    """Raises ConfigError for a name that no run has, with the nearest: else a misspelt one is an empty answer. Where nothing
    was recorded yet, every name may still come."""
    missing = next((name for name in names if number_of(connection, name) is None), None)
    if missing is not None and (there := connection.execute(sa.select(_k.name)).scalars().all()):
        raise ConfigError(
            f"no run has a metric {missing[:80]!r}.{nearest(missing[:80], there)}", where=where,
            fix="GET /runs/RUN/metrics lists those of a run",
        )  # fmt: skip


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


def newest_faults(connection: sa.Connection, run_pk: int) -> list[str]:
    """What ``metric_latest`` holds and the points do not say. Where several segments took steps, points that count no more may
    have widened its extremes, and the newest of a metric may be one that came late: these are no faults."""
    counts = {span.segment: span for span in _ordered_spans(connection, run_pk)}
    c = t.canonical_metric_point.c
    bounds = sa.select(c.key_pk, sa.func.min(c.value), sa.func.max(c.value)).where(c.run_pk == run_pk)
    extremes = {key: (least, most) for key, least, most in connection.execute(bounds.group_by(c.key_pk))}
    held = {row.key_pk: row for row in connection.execute(sa.select(t.metric_latest).where(_l.run_pk == run_pk))}
    names, out = _names(connection, extremes.keys() | held.keys()), []
    for key in sorted(extremes.keys() | held.keys()):
        row = held.get(key)
        span = counts.get(row.segment) if row is not None else None
        if row is not None and (span is None or (span.last is not None and row.step >= span.last)):
            continue
        rows = sa.select(c.segment, c.step, c.at, c.value).where(c.run_pk == run_pk, c.key_pk == key)
        newest = connection.execute(rows.order_by(c.stage_index.desc(), c.step.desc()).limit(1)).first()
        same = row is not None and newest is not None and (row.segment, row.step, row.at, row.value) == tuple(newest)
        if row is not None and same and row.value is not None:
            least, most = extremes[key]
            exact = (row.least, row.most) == (least, most)
            same = exact or (len(counts) > 1 and row.least <= least and row.most >= most)
        if not same:
            out.append(f"metric {names[key]!r}: what searches read of it (metric_latest) is not what its points say")
    return out


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
    key = numbers(connection, [name]).get(name)
    out: list[Point] = []
    if key is None:
        return out
    for span, low, high in stretches(connection, run_pk, first, last, after):
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


def stretches(
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


def latest(
    connection: sa.Connection, run_pks: Sequence[int], names: Sequence[str] | None
) -> dict[int, dict[str, Latest]]:
    """{run pk: {name: its newest value}} of many runs at once; ``names`` None: all they have."""
    keys: dict[int, str] = {}
    query = sa.select(_l.run_pk, _l.key_pk, _l.step, _l.at, _l.value, _l.least, _l.most)
    if names is not None:
        keys = {pk: name for name, pk in numbers(connection, list(names)).items()}
        query = query.where(_l.key_pk.in_(sorted(keys)))
    out: dict[int, dict[str, Latest]] = {pk: {} for pk in run_pks}
    for some in chunks(run_pks):
        rows = connection.execute(query.where(_l.run_pk.in_(some))).all()
        keys |= _names(connection, {row.key_pk for row in rows} - keys.keys())
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
    keys = None if names is None else sorted(numbers(connection, list(names)).values())
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
    known |= _names(connection, {key for rows in found.values() for key, _ in rows} - known.keys())
    return {pk: {known[key]: value for key, value in found.get(pk, ())} for pk in run_pks}


def _names(connection: sa.Connection, keys: Set[int]) -> dict[int, str]:
    """{number: name}"""
    out: dict[int, str] = {}
    for some in chunks(sorted(keys)):
        out |= {key: name for key, name in connection.execute(sa.select(_k.pk, _k.name).where(_k.pk.in_(some)))}
    return out


def names_of(connection: sa.Connection, run_pk: int) -> list[str]:
    """Every metric that a run has, sorted."""
    query = sa.select(_k.name).join(t.metric_latest, _l.key_pk == _k.pk).where(_l.run_pk == run_pk).order_by(_k.name)
    return list(connection.execute(query).scalars())
