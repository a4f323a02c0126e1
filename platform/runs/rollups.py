"""One metric in few rows. Long stretches are read from rollups, which hold what every point of a bucket comes to.

    level 18   |                      2**18 steps                     | ...
    level 12   | 4096 |      |      |  ...                              each made from the one below
    level  6   64 steps a bucket                                        made from the points
    rolled     steps below it are good at every level; a late point lowers it (``ingest``), ``fill`` raises it again

They are filled when somebody looks and finds them far behind, never by who writes a point. A bucket keeps the least, the
most and the last value, so that a spike is seen however far one looks from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa

from jurat.platform.db import tables as t
from jurat.platform.runs.ingest import numbers
from jurat.platform.runs.metrics import Span, stretches

_p, _r, _s = t.metric_point.c, t.metric_rollup.c, t.metric_series.c

LEVELS = (6, 12, 18)
BEHIND = 1 << 12
"""Steps without a rollup that a reader puts up with."""
AT_ONCE = 1 << 17
"""Steps that one ``fill`` takes: a quarter of a second of the writer."""
HUGE = 1e290
"""A value beyond it counts as infinite in a mean: PostgreSQL refuses a sum that overflows."""


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


@dataclass(frozen=True, slots=True)
class _Part:
    """What some points of a bucket come to; ``total`` without the huge ones."""

    first_step: int
    last_step: int
    count: int
    total: float | None
    least: float | None
    most: float | None
    last: float | None


class Series(NamedTuple):
    """The points of one name in one segment."""

    run_pk: int
    key: int
    segment: int


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

    A bucket begins at a multiple of its width. ``first``, ``last``: steps, both included.
    """
    key = numbers(connection, [name]).get(name)
    found: list[tuple[Span, int, int]] = []
    for span, low, high in stretches(connection, run_pk, first, last, None) if key is not None else ():
        assert key is not None
        ends = _ends(connection, Series(run_pk, key, span.segment), low, high)
        if ends is not None:
            found.append((span, *ends))
    width = max(1, -(-sum(high - low + 1 for _, low, high in found) // max(1, buckets)))
    level = max((each for each in LEVELS if 1 << each <= width), default=0)
    width = -(-width >> level) << level
    out = []
    for span, low, high in found:
        assert key is not None
        parts: dict[int, _Part] = {}
        for place, part in _parts(connection, Series(run_pk, key, span.segment), low, high + 1, width, level):
            parts[place] = _joined(parts[place], part) if place in parts else part
        out += [_bucket(span.stage, parts[place]) for place in sorted(parts)]
    return out


def _ends(connection: sa.Connection, series: Series, low: int, high: int | None) -> tuple[int, int] | None:
    """The first and the last step of those that are there, both included. Two walks of one row: min() and max() together
    are a walk over all."""
    within = [_p.run_pk == series.run_pk, _p.key_pk == series.key, _p.segment == series.segment, _p.step >= low]
    if high is not None:
        within.append(_p.step <= high)
    query = sa.select(_p.step).where(*within).limit(1)
    first = connection.execute(query.order_by(_p.step)).scalar()
    last = connection.execute(query.order_by(_p.step.desc())).scalar()
    return None if first is None or last is None else (int(first), int(last))


def _parts(
    connection: sa.Connection, series: Series, low: int, high: int, width: int, level: int
) -> Iterator[tuple[int, _Part]]:
    """(place, part) of the steps ``low <= step < high``."""
    begin = end = low
    if level:
        begin, end = -(-low >> level) << level, min(high, _rolled(connection, series)) >> level << level
    if begin >= end:
        yield from _of_points(connection, series, low, high, width)
        return
    yield from _of_points(connection, series, low, begin, width)
    yield from _of_rollups(connection, series, begin, end, width, level)
    yield from _of_points(connection, series, end, high, width)


def _rolled(connection: sa.Connection, series: Series, *, lock: bool = False) -> int:
    query = sa.select(_s.rolled).where(
        _s.run_pk == series.run_pk, _s.key_pk == series.key, _s.segment == series.segment
    )
    return int(connection.execute(query.with_for_update() if lock else query).scalar() or 0)


def _grouped_points(series: Series, low: int, high: int, width: int) -> sa.Select[Any]:
    """place, then a part's columns."""
    place = (_p.step // width).label("place")
    of_series = (_p.run_pk == series.run_pk, _p.key_pk == series.key, _p.segment == series.segment)
    small = sa.case((_p.value.between(-HUGE, HUGE), _p.value))
    g = (
        sa.select(
            place, sa.func.min(_p.step).label("first_step"), sa.func.max(_p.step).label("last_step"),
            sa.func.count(_p.value).label("count"), sa.func.sum(small).label("total"),
            sa.func.min(_p.value).label("least"), sa.func.max(_p.value).label("most"),
        )
        .where(*of_series, _p.step >= low, _p.step < high)
        .group_by(place)
        .subquery()
    )  # fmt: skip
    # Not a join: without statistics PostgreSQL would walk the series once a bucket.
    return sa.select(
        *g.c, sa.select(_p.value).where(*of_series, _p.step == g.c.last_step).scalar_subquery().label("last")
    )


def _grouped_rollups(series: Series, low: int, high: int, width: int, level: int) -> sa.Select[Any]:
    """place, then a part's columns; ``low``, ``high`` and ``width`` are multiples of ``2**level``."""
    place = (_r.bucket // (width >> level)).label("place")
    of_level = (
        _r.run_pk == series.run_pk, _r.key_pk == series.key, _r.segment == series.segment, _r.level == level,
    )  # fmt: skip
    g = (
        sa.select(
            place, sa.func.min(_r.first_step).label("first_step"), sa.func.max(_r.last_step).label("last_step"),
            sa.cast(sa.func.sum(_r.count), sa.BigInteger).label("count"), sa.func.sum(_r.total).label("total"),
            sa.func.min(_r.least).label("least"), sa.func.max(_r.most).label("most"),
        )
        .where(*of_level, _r.bucket >= low >> level, _r.bucket < high >> level)
        .group_by(place)
        .subquery()
    )  # fmt: skip
    newest = sa.select(_r.last).where(*of_level, _r.bucket == g.c.last_step // (1 << level)).scalar_subquery()
    return sa.select(*g.c, newest.label("last"))


def _of_points(
    connection: sa.Connection, series: Series, low: int, high: int, width: int
) -> Iterator[tuple[int, _Part]]:
    if low < high:
        for place, *part in connection.execute(_grouped_points(series, low, high, width)):
            yield int(place), _Part(*part)


def _of_rollups(
    connection: sa.Connection, series: Series, low: int, high: int, width: int, level: int
) -> Iterator[tuple[int, _Part]]:
    for place, *part in connection.execute(_grouped_rollups(series, low, high, width, level)):
        yield int(place), _Part(*part)


def _joined(one: _Part, other: _Part) -> _Part:
    """Of two parts of a bucket that share no step."""
    totals = _there(one.total, other.total)
    return _Part(
        first_step=min(one.first_step, other.first_step),
        last_step=max(one.last_step, other.last_step),
        count=one.count + other.count,
        total=sum(totals) if totals else None,
        least=min(_there(one.least, other.least), default=None),
        most=max(_there(one.most, other.most), default=None),
        last=max(one, other, key=lambda part: part.last_step).last,
    )


def _there(*values: float | None) -> list[float]:
    return [value for value in values if value is not None]


def _bucket(stage: str, part: _Part) -> Bucket:
    least, most, last = (math.nan if each is None else each for each in (part.least, part.most, part.last))
    if least < -HUGE or most > HUGE:
        mean = (math.inf if most > HUGE else 0.0) + (-math.inf if least < -HUGE else 0.0)
    else:
        mean = math.nan if part.total is None else part.total / part.count
    return Bucket(
        stage=stage, first_step=part.first_step, last_step=part.last_step, count=part.count, mean=mean, least=least,
        most=most, last=last,
    )  # fmt: skip


# ---- filling -----------------------------------------------------------------------------------------------------


def behind(connection: sa.Connection, run_pk: int, name: str) -> list[Series]:
    """Series whose rollups are so far behind that ``fill`` is worth it."""
    key = numbers(connection, [name]).get(name)
    rows = connection.execute(sa.select(_s.segment, _s.rolled).where(_s.run_pk == run_pk, _s.key_pk == key)).all()
    out = []
    for segment, rolled in rows:
        series = Series(run_pk, int(key or 0), segment)
        ends = _ends(connection, series, rolled, None)
        if ends is not None and ends[1] - rolled > BEHIND:
            out.append(series)
    return out


def fill(connection: sa.Connection, series: Series) -> None:
    """Make the rollups of the next ``AT_ONCE`` steps, whole buckets alone. Whoever writes a point of the series meanwhile
    waits, or is seen: each holds the series' row while it changes ``rolled``."""
    rolled = _rolled(connection, series, lock=True)
    ends = _ends(connection, series, rolled, None)
    end = 0 if ends is None else min(ends[1], rolled + AT_ONCE) >> LEVELS[0] << LEVELS[0]
    if end <= rolled:
        return
    columns = ["run_pk", "key_pk", "segment", "level", "bucket", *_Part.__slots__]
    for place, level in enumerate(LEVELS):
        low, high = rolled >> level << level, end >> level << level
        connection.execute(
            sa.delete(t.metric_rollup).where(
                _r.run_pk == series.run_pk, _r.key_pk == series.key, _r.segment == series.segment, _r.level == level,
                _r.bucket >= low >> level,
            )
        )  # fmt: skip
        if place == 0:
            made = _grouped_points(series, low, high, 1 << level).subquery()
        else:
            made = _grouped_rollups(series, low, high, 1 << level, LEVELS[place - 1]).subquery()
        fixed = [sa.literal(value, sa.BigInteger) for value in (*series, level)]
        connection.execute(sa.insert(t.metric_rollup).from_select(columns, sa.select(*fixed, *made.c)))
    of_series = sa.and_(_s.run_pk == series.run_pk, _s.key_pk == series.key, _s.segment == series.segment)
    connection.execute(sa.update(t.metric_series).where(of_series).values(rolled=end))
