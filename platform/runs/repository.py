"""All SQL of runs: functions of an open connection. Whoever calls them owns the transaction.

Inserts are idempotent: a fact that is already there is left alone, so that a spool may be drained twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from jurat.platform.db import tables as t
from jurat.platform.runs.records import Event, Measured, Part, Point, RunInfo, Saved, Segment, VerdictStat
from jurat.platform.runs.states import ENDED, State, sources
from jurat.platform.types import CheckpointRef, Estimate, Evaluation

Row = Mapping[str, Any]

_CHUNK = 500
"""Rows of one INSERT: stays under SQLite's limit of bound parameters."""


def insert_new(connection: sa.Connection, table: sa.Table, rows: Sequence[Row]) -> None:
    """Insert the rows whose key is not there yet."""
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    for first in range(0, len(rows), _CHUNK):
        connection.execute(make(table).on_conflict_do_nothing(), list(rows[first : first + _CHUNK]))


# ---- runs --------------------------------------------------------------------------------------------------------


def _run(row: sa.RowMapping, runs_folder: Path) -> RunInfo:
    kept = {key: row[key] for key in RunInfo.__slots__ if key != "folder"}
    return RunInfo(**kept, folder=runs_folder / row["id"])


def insert_run(connection: sa.Connection, row: Row) -> bool:
    """False if the id is taken."""
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    done = connection.execute(make(t.run).values(**row).on_conflict_do_nothing().returning(t.run.c.pk))
    return done.scalar() is not None


def find_runs(connection: sa.Connection, prefix: str, runs_folder: Path) -> list[RunInfo]:
    """The run of that id alone, else those whose id begins with ``prefix``."""
    found = connection.execute(
        sa.select(t.run).where(t.run.c.id.startswith(prefix, autoescape=True)).limit(50)
    ).mappings()
    runs = [_run(row, runs_folder) for row in found]
    return [run for run in runs if run.id == prefix] or runs


def list_runs(connection: sa.Connection, runs_folder: Path, *, limit: int | None, state: str | None) -> list[RunInfo]:
    """Newest first."""
    query = sa.select(t.run).order_by(t.run.c.created.desc(), t.run.c.pk.desc())
    if state is not None:
        query = query.where(t.run.c.state == state)
    return [_run(row, runs_folder) for row in connection.execute(query.limit(limit)).mappings()]


def run_ids(connection: sa.Connection) -> list[str]:
    return list(connection.execute(sa.select(t.run.c.id)).scalars())


def move_run(connection: sa.Connection, run_pk: int, state: State, detail: str, at: int) -> str | None:
    """Enter ``state`` if the move is legal and return the state before; None (and nothing written) if it is not."""
    before = connection.execute(sa.select(t.run.c.state).where(t.run.c.pk == run_pk).with_for_update()).scalar()
    times: dict[str, Any] = {"ended": at if state in ENDED else None}
    if state == "running":
        times["started"] = sa.func.coalesce(t.run.c.started, at)
    moved = connection.execute(
        sa.update(t.run)
        .where(t.run.c.pk == run_pk, t.run.c.state.in_(sorted(sources(state))))
        .values(state=state, detail=t.visible(detail), version=t.run.c.version + 1, **times)
    )
    return before if moved.rowcount else None


# ---- segments ----------------------------------------------------------------------------------------------------


def insert_segment(connection: sa.Connection, run_pk: int, row: Row) -> int:
    """The number of the new segment."""
    connection.execute(sa.select(t.run.c.pk).where(t.run.c.pk == run_pk).with_for_update())
    last = connection.execute(sa.select(sa.func.max(t.segment.c.no)).where(t.segment.c.run_pk == run_pk)).scalar()
    no = 0 if last is None else int(last) + 1
    connection.execute(sa.insert(t.segment).values(run_pk=run_pk, no=no, **row))
    return no


def end_segment(connection: sa.Connection, run_pk: int, no: int, ending: str, at: int) -> None:
    """Only the first end counts."""
    connection.execute(
        sa.update(t.segment)
        .where(t.segment.c.run_pk == run_pk, t.segment.c.no == no, t.segment.c.ended.is_(None))
        .values(ended=at, ending=t.visible(ending))
    )


def segments(connection: sa.Connection, run_pk: int) -> list[Segment]:
    found = connection.execute(
        sa.select(t.segment).where(t.segment.c.run_pk == run_pk).order_by(t.segment.c.no)
    ).mappings()
    return [Segment(**{key: row[key] for key in Segment.__slots__}) for row in found]


# ---- facts -------------------------------------------------------------------------------------------------------


def insert_events(connection: sa.Connection, run_pk: int, rows: Sequence[Row]) -> None:
    """rows: uid, segment, at, kind, payload. They get the next numbers in order; a known uid is left out."""
    connection.execute(sa.select(t.run.c.pk).where(t.run.c.pk == run_pk).with_for_update())
    known = set(
        connection.execute(
            sa.select(t.run_event.c.uid).where(
                t.run_event.c.run_pk == run_pk, t.run_event.c.uid.in_([r["uid"] for r in rows])
            )
        ).scalars()
    )
    last = (
        connection.execute(sa.select(sa.func.max(t.run_event.c.seq)).where(t.run_event.c.run_pk == run_pk)).scalar()
        or 0
    )
    new = {row["uid"]: row for row in rows if row["uid"] not in known}
    numbered = [{"run_pk": run_pk, "seq": int(last) + place, **row} for place, row in enumerate(new.values(), start=1)]
    if numbered:
        connection.execute(sa.insert(t.run_event), numbered)


def insert_metrics(connection: sa.Connection, run_pk: int, rows: Sequence[Row]) -> None:
    """rows: segment, step, at, name, value."""
    names = sorted({t.visible(row["name"]) for row in rows})
    keys: dict[str, int] = {}
    for first in range(0, len(names), _CHUNK):
        some = names[first : first + _CHUNK]
        query = sa.select(t.metric_key.c.name, t.metric_key.c.pk).where(t.metric_key.c.name.in_(some))
        found = {name: pk for name, pk in connection.execute(query)}
        if new := [{"name": name} for name in some if name not in found]:
            insert_new(connection, t.metric_key, new)
            found = {name: pk for name, pk in connection.execute(query)}
        keys |= found
    insert_new(
        connection,
        t.metric_point,
        [
            {
                "run_pk": run_pk,
                "key_pk": keys[t.visible(row["name"])],
                "segment": row["segment"],
                "step": row["step"],
                "at": row["at"],
                "value": None if math.isnan(row["value"]) else row["value"],
            }
            for row in rows
        ],
    )


def insert_facts(connection: sa.Connection, table: sa.Table, run_pk: int, rows: Iterable[Row]) -> None:
    """Rows of a table whose columns they name, run_pk aside."""
    insert_new(connection, table, [{"run_pk": run_pk, **row} for row in rows])


def events(connection: sa.Connection, run_pk: int, *, after: int, limit: int | None) -> list[Event]:
    e = t.run_event.c
    found = connection.execute(
        sa.select(t.run_event).where(e.run_pk == run_pk, e.seq > after).order_by(e.seq).limit(limit)
    ).mappings()
    return [Event(**{key: row[key] for key in Event.__slots__}) for row in found]


def metrics(
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
        sa.select(m.stage, m.segment, m.step, m.at, t.metric_key.c.name, m.value)
        .join(t.metric_key, t.metric_key.c.pk == m.key_pk)
        .where(m.run_pk == run_pk)
        .order_by(m.stage_index, m.step, t.metric_key.c.name)
    )
    if names is not None:
        query = query.where(t.metric_key.c.name.in_(names))
    if stage is not None:
        query = query.where(m.stage == stage)
    if after is not None:
        index, step = after
        query = query.where(sa.or_(m.stage_index > index, sa.and_(m.stage_index == index, m.step > step)))
    return [
        Point(**{**row, "value": math.nan if row["value"] is None else row["value"]})
        for row in connection.execute(query).mappings()
    ]


def last_metrics(connection: sa.Connection, run_pk: int) -> list[Point]:
    """The newest canonical step's points."""
    m = t.canonical_metric_point.c
    newest = connection.execute(
        sa.select(m.stage_index, m.step)
        .where(m.run_pk == run_pk)
        .order_by(m.stage_index.desc(), m.step.desc())
        .limit(1)
    ).first()
    return (
        [] if newest is None else metrics(connection, run_pk, names=None, stage=None, after=(newest[0], newest[1] - 1))
    )


def checkpoints(connection: sa.Connection, run_pk: int, *, all_rows: bool) -> list[Saved]:
    """By (stage, step); ``all_rows``: those of superseded segments too."""
    c = t.canonical_checkpoint.c
    if all_rows:
        base = t.checkpoint.join(
            t.segment, sa.and_(t.segment.c.run_pk == t.checkpoint.c.run_pk, t.segment.c.no == t.checkpoint.c.segment)
        )
        query = sa.select(t.checkpoint, t.segment.c.stage, t.segment.c.stage_index).select_from(base)
        query = query.where(t.checkpoint.c.run_pk == run_pk).order_by(t.checkpoint.c.pk)
    else:
        query = sa.select(t.canonical_checkpoint).where(c.run_pk == run_pk).order_by(c.stage_index, c.step, c.pk)
    return [
        Saved(
            ref=CheckpointRef(**{key: row[key] for key in CheckpointRef.__slots__}),
            stage=row["stage"],
            segment=row["segment"],
            at=row["at"],
        )
        for row in connection.execute(query).mappings()
    ]


def evaluations(connection: sa.Connection, run_pk: int) -> list[Measured]:
    """Canonical, by (stage, step, name); one measured again keeps the newest."""
    e = t.canonical_evaluation.c
    query = sa.select(t.canonical_evaluation).where(e.run_pk == run_pk).order_by(e.stage_index, e.step, e.name, e.pk)
    newest = {(row["stage_index"], row["step"], row["name"]): row for row in connection.execute(query).mappings()}
    return [
        Measured(result=evaluation_from_json(row["result"]), segment=row["segment"], at=row["at"])
        for row in newest.values()
    ]


def parts(connection: sa.Connection, run_pk: int, *, kind: str, step: int | None, canonical: bool) -> list[Part]:
    """By (stage, step)."""
    view = t.canonical_data_part
    if not canonical:
        everything = sa.select(t.data_part, t.segment.c.stage, t.segment.c.stage_index).join(
            t.segment, sa.and_(t.segment.c.run_pk == t.data_part.c.run_pk, t.segment.c.no == t.data_part.c.segment)
        )
        view = everything.subquery()  # type: ignore[assignment]
    c = view.c
    query = (
        sa.select(view).where(c.run_pk == run_pk, c.kind == kind).order_by(c.stage_index, c.step_min, c.segment, c.path)
    )
    if step is not None:
        query = query.where(c.step_min <= step, c.step_max >= step)
    return [Part(**{key: row[key] for key in Part.__slots__}) for row in connection.execute(query).mappings()]


def verdict_stats(connection: sa.Connection, run_pk: int) -> list[VerdictStat]:
    v = t.canonical_verdict_stat.c
    query = sa.select(t.canonical_verdict_stat).where(v.run_pk == run_pk).order_by(v.stage_index, v.step, v.member)
    return [
        VerdictStat(**{key: row[key] for key in VerdictStat.__slots__}) for row in connection.execute(query).mappings()
    ]


# ---- evaluations as JSON -----------------------------------------------------------------------------------------


def evaluation_to_json(result: Evaluation) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, Estimate):
            return {"value": value.value, "low": value.low, "high": value.high}
        if isinstance(value, Mapping):
            return {str(key): plain(item) for key, item in value.items()}
        return value

    return {name: plain(getattr(result, name)) for name in Evaluation.__slots__}


def evaluation_from_json(value: Mapping[str, Any]) -> Evaluation:
    def number(item: Any) -> Any:
        return float(item) if item in ("nan", "inf", "-inf") else item

    def estimate(item: Mapping[str, Any]) -> Estimate:
        return Estimate(value=number(item["value"]), low=number(item["low"]), high=number(item["high"]))

    value = {"final": value["greedy"] is not None, "losses": {}, **value}  # records of before there were losses
    made: dict[str, Any] = {}
    for name in Evaluation.__slots__:
        item = value[name]
        if name == "pass_at":
            made[name] = {int(k): estimate(v) for k, v in item.items()}
        elif name == "losses":
            made[name] = {k: number(v) for k, v in item.items()}
        else:
            made[name] = estimate(item) if isinstance(item, Mapping) else number(item)
    return Evaluation(**made)
