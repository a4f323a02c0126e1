"""A digest over all rows of a run that has finished, kept as its event ``sealed``: what no part and no event holds is held
by it. Metric points, segments, checkpoints, evaluations, parts, verdict counts, the edges into the run and its segments,
and when and by which recipe and reward it was made, then cannot be changed unnoticed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import sqlalchemy as sa

from jurat.platform.canonical import digest
from jurat.platform.db import tables as t
from jurat.platform.db.clock import now
from jurat.platform.provenance import points
from jurat.platform.runs import events
from jurat.platform.runs.records import Event, RunInfo
from jurat.platform.runs.store import Store

SOON = 60_000_000
"""Microseconds after its end in which a run may still get its seal."""
COLUMNS = {
    "segment": ("no", "stage", "stage_index", "first_step", "started", "ended", "ending", "host", "pid", "reward_digest",
                "versions", "epoch", "environment_digest", "model_digest", "from_checkpoint", "to_step"),
    "checkpoint": ("segment", "step", "digest", "parent", "at"),
    "evaluation": ("segment", "name", "step", "accuracy", "result", "at"),
    "data_part": ("segment", "kind", "step_min", "step_max", "path", "digest", "rows", "bytes", "schema_version", "at"),
    "verdict_stat": ("segment", "step", "member", "verifier", "version_digest", "n", "scored", "score_sum", "seconds_sum",
                     "seconds_max", "statuses"),
    "edge": ("src_kind", "src", "dst_kind", "dst", "role"),
    "run": ("id", "created", "recipe_digest", "reward_digest"),
}  # fmt: skip
"""Columns of a table never change: a seal of before would break; it holds what tables it names.
A checkpoint's place is this machine's; its ``meta`` is in its manifest."""


def seal(store: Store, run: RunInfo) -> None:
    """Of a run whose rows change no more: they are read before anything is locked, as a run has millions."""
    made = store.read(lambda connection: rows(connection, run.pk))
    store.write(lambda connection: events.add(connection, run.pk, events.SEALED, made, at=now(connection)))


def rows(connection: sa.Connection, run_pk: int) -> Mapping[str, str]:
    """{table: digest of its rows}. The same in a store that took the run in."""
    made = {name: _of_table(connection, t.metadata.tables[name], run_pk) for name in COLUMNS}
    return {**made, "metric_point": _of_points(connection, run_pk)}


MISSING = "the run is not sealed: its process was killed at its very end, and jurat runs seal mends it; or the seal was removed"


def missing(connection: sa.Connection, run: RunInfo) -> bool:
    """A finished run whose seal was announced and is not there; its process is not at it any more."""
    return _missing(connection, run, _last(connection, run))


def _missing(connection: sa.Connection, run: RunInfo, last: Event | None) -> bool:
    late = now(connection) - (run.ended or 0) >= SOON
    return last is not None and last.kind == events.SEALING and run.state == "finished" and late


def broken(connection: sa.Connection, run: RunInfo) -> list[str]:
    """The tables that say something else than when the run was sealed. A run that went on, or whose rows ``jurat gc``
    collected, is held to nothing."""
    last = _last(connection, run)
    if _missing(connection, run, last):
        return [MISSING]
    if last is None or last.kind != events.SEALED or run.state != "finished":
        return []
    found = rows(connection, run.pk)
    return [f"{name}: its rows are not those that the run was sealed with (event {last.seq})"
            for name, then in sorted(last.payload.items()) if found.get(name) != then]  # fmt: skip


def _last(connection: sa.Connection, run: RunInfo) -> Event | None:
    told = events.read(connection, run.pk, after=0, limit=None)
    kinds = (events.SEALED, events.SEALING, "collected")
    return next((event for event in reversed(told) if event.kind in kinds), None)


def _of_table(connection: sa.Connection, table: sa.Table, run_pk: int) -> str:
    kept = [table.c[name] for name in COLUMNS[table.name]]
    query = sa.select(*kept).where(_of_run(table, run_pk))
    said = [events.normal([[column.name, row[place]] for place, column in enumerate(kept)])
            for row in connection.execute(query)]  # fmt: skip
    return digest(sorted(said, key=digest))


def _of_run(table: sa.Table, run_pk: int) -> sa.ColumnElement[bool]:
    if table is t.run:
        return t.run.c.pk == run_pk
    if table is t.edge:  # those of its checkpoints follow from their rows, and exports are made later
        run_id = sa.select(t.run.c.id).where(t.run.c.pk == run_pk).scalar_subquery()
        return sa.and_(t.edge.c.run_id == run_id, t.edge.c.dst_kind.in_(["segment", "run"]))
    held: sa.ColumnElement[bool] = table.c.run_pk == run_pk
    if table is t.data_part:  # verdicts of later versions come when the run has long finished
        held = sa.and_(held, table.c.kind != "rescore")
    return held


def _of_points(connection: sa.Connection, run_pk: int) -> str:
    """Column by column: a run has millions."""
    table, hashed = points.table(connection, run_pk), hashlib.sha256()
    for name in ("segment", "step", "value", "at", "name"):
        column = table.column(name)
        if name == "name":
            hashed.update("\0".join(column.to_pylist()).encode("utf-8"))
            continue
        values: Any = column.to_numpy()
        hashed.update(
            np.ascontiguousarray(np.nan_to_num(values, nan=-1.5e308) if name == "value" else values).tobytes()
        )
    return "sha256:" + hashed.hexdigest()
