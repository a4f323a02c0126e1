"""All SQL of runs: functions of an open connection. Whoever calls them owns the transaction.

Inserts are idempotent: a fact that is already there is left alone, so that a spool may be drained twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from jurat.platform.db import tables as t
from jurat.platform.db.clock import now
from jurat.platform.db.insert import insert_new
from jurat.platform.provenance import edges, secrets, versions
from jurat.platform.provenance.records import Ingredients
from jurat.platform.recipe import Recipe
from jurat.platform.runs import bloom, events, metrics, search
from jurat.platform.runs.leases import run_of
from jurat.platform.runs.records import Measured, Part, RunInfo, Saved, Segment, VerdictStat
from jurat.platform.runs.states import LIMITS, Limits, State
from jurat.platform.types import CheckpointRef, Estimate, Evaluation

Row = Mapping[str, Any]


# ---- runs --------------------------------------------------------------------------------------------------------


def new_run(
    connection: sa.Connection,
    run_id: str,
    *,
    recipe: Recipe,
    recipe_digest: str,
    reward_digest: str = "",
    meta: Mapping[str, Any] | None = None,
    state: State = "created",
    project: str = "",
    priority: int = 0,
    max_restarts: int = 0,
    max_runtime: float | None = None,
    parent_run: str | None = None,
    from_checkpoint: str | None = None,
    tags: Mapping[str, Any] | None = None,
    by: str = "",
    limits: Limits = LIMITS,
) -> bool:
    """A run that nobody works on yet: ``created``, or ``queued`` for a launcher to claim. False if the id is taken.

    ``reward_digest`` '': the process that starts it finds it. ``parent_run``, ``from_checkpoint``: what it is forked from.
    """
    at = now(connection)
    whole = recipe.model_dump(mode="json")
    row = {
        "id": run_id, "name": t.visible(recipe.name), "state": state, "detail": "", "version": 1, "recipe": whole,
        "recipe_digest": recipe_digest, "reward_digest": reward_digest, "meta": secrets.redacted_meta(meta or {}),
        "created": at,
        "project": t.visible(project), "priority": priority, "max_restarts": max_restarts, "max_runtime": max_runtime,
        "parent_run": parent_run, "from_checkpoint": from_checkpoint,
        "deadline": at + int((limits.of(state) or 0) * 1_000_000),
    }  # fmt: skip
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    done = connection.execute(make(t.run).values(**row).on_conflict_do_nothing().returning(t.run.c.pk))
    pk = done.scalar()
    if pk is None:
        return False
    search.label(connection, pk, "param", secrets.redacted(search.flattened(whole)))
    if tags:
        search.label(connection, pk, "tag", secrets.redacted(dict(tags)))
    if parent_run is not None:
        versions.forked(connection, run_id, parent_run, from_checkpoint)
    if state != "created":
        events.add(connection, pk, "state", {"from": "created", "to": state, "detail": "", "by": by}, at=at)
    return True


def pin_reward(
    connection: sa.Connection, run_pk: int, *, rewards: Sequence[str], verifiers: Mapping[str, str], change: str
) -> None:
    """The reward that the run is held to; a change of it is an event."""
    c = t.run.c
    before = connection.execute(sa.select(c.meta).where(c.pk == run_pk).with_for_update()).scalar_one()
    meta = {**before, "rewards": list(rewards), "verifiers": dict(verifiers)}
    values = {"meta": meta, "reward_digest": rewards[-1], "version": c.version + 1}
    connection.execute(sa.update(t.run).where(c.pk == run_pk).values(**values))
    if change:
        payload = {"before": before.get("rewards"), "now": list(rewards), "difference": change}
        events.add(connection, run_pk, "reward_change_accepted", payload, at=now(connection))


def find_runs(connection: sa.Connection, prefix: str, runs_folder: Path) -> list[RunInfo]:
    """The run of that id alone, else those whose id begins with ``prefix``."""
    found = connection.execute(
        sa.select(t.run).where(t.run.c.id.startswith(prefix, autoescape=True)).order_by(t.run.c.id).limit(50)
    ).mappings()
    runs = [run_of(row, runs_folder) for row in found]
    return [run for run in runs if run.id == prefix] or runs


def list_runs(connection: sa.Connection, runs_folder: Path, *, limit: int | None, state: str | None) -> list[RunInfo]:
    """Newest first."""
    query = sa.select(t.run).order_by(t.run.c.created.desc(), t.run.c.pk.desc())
    if state is not None:
        query = query.where(t.run.c.state == state)
    return [run_of(row, runs_folder) for row in connection.execute(query.limit(limit)).mappings()]


def run_ids(connection: sa.Connection) -> list[str]:
    return list(connection.execute(sa.select(t.run.c.id)).scalars())


# ---- segments ----------------------------------------------------------------------------------------------------


def insert_segment(connection: sa.Connection, run_pk: int, row: Row, made_of: Ingredients | None = None) -> int:
    """The number of the new segment. ``made_of`` is registered and joined to it in the same transaction."""
    connection.execute(sa.select(t.run.c.pk).where(t.run.c.pk == run_pk).with_for_update())
    last = connection.execute(sa.select(sa.func.max(t.segment.c.no)).where(t.segment.c.run_pk == run_pk)).scalar()
    no = 0 if last is None else int(last) + 1
    made: dict[str, str | None] = {}
    if made_of is not None:
        run_id = connection.execute(sa.select(t.run.c.id).where(t.run.c.pk == run_pk)).scalar_one()
        made = versions.record(connection, run_id, no, made_of)
    connection.execute(sa.insert(t.segment).values(run_pk=run_pk, no=no, **row, **made))
    if no:
        metrics.superseded(connection, run_pk)
    return no


def end_segment(connection: sa.Connection, run_pk: int, no: int, ending: str, at: int) -> None:
    """Only the first end counts."""
    reached = sa.select(sa.func.max(t.metric_latest.c.step)).where(
        t.metric_latest.c.run_pk == run_pk, t.metric_latest.c.segment == no
    )
    connection.execute(
        sa.update(t.segment)
        .where(t.segment.c.run_pk == run_pk, t.segment.c.no == no, t.segment.c.ended.is_(None))
        .values(ended=at, ending=t.visible(ending), to_step=reached.scalar_subquery() + 1)
    )


def segments(connection: sa.Connection, run_pk: int) -> list[Segment]:
    found = connection.execute(
        sa.select(t.segment).where(t.segment.c.run_pk == run_pk).order_by(t.segment.c.no)
    ).mappings()
    return [Segment(**{key: row[key] for key in Segment.__slots__}) for row in found]


# ---- facts -------------------------------------------------------------------------------------------------------


def insert_checkpoints(connection: sa.Connection, run_pk: int, rows: Sequence[Row]) -> None:
    """With the edges that say what made them."""
    insert_facts(connection, t.checkpoint, run_pk, rows)
    edges.of_checkpoints(connection, run_pk, rows)


def insert_facts(connection: sa.Connection, table: sa.Table, run_pk: int, rows: Iterable[Row]) -> None:
    """Rows of a table whose columns they name, run_pk aside."""
    insert_new(connection, table, [{"run_pk": run_pk, **row} for row in rows])


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


def parts(
    connection: sa.Connection,
    run_pk: int,
    *,
    kind: str | None,
    step: int | None,
    canonical: bool,
    holding: str | None = None,
) -> list[Part]:
    """By (stage, step). ``holding``: only those that may have the rollout of this id."""
    view = t.canonical_data_part
    if not canonical:
        everything = sa.select(t.data_part, t.segment.c.stage, t.segment.c.stage_index).join(
            t.segment, sa.and_(t.segment.c.run_pk == t.data_part.c.run_pk, t.segment.c.no == t.data_part.c.segment)
        )
        view = everything.subquery()  # type: ignore[assignment]
    c = view.c
    query = sa.select(view).where(c.run_pk == run_pk).order_by(c.stage_index, c.step_min, c.segment, c.path)
    if kind is not None:
        query = query.where(c.kind == kind)
    if step is not None:
        query = query.where(c.step_min <= step, c.step_max >= step)
    may_hold: Callable[[bytes], bool] | None = None
    if holding is not None:
        place, may_hold = bloom.asked(holding)
        i = t.part_index.c
        blocks = sa.func.length(i.ids, type_=sa.Integer) // bloom.BLOCK
        first = 1 + bloom.BLOCK * (sa.literal(place, sa.Integer) % blocks)
        query = query.add_columns(sa.func.substr(i.ids, first, bloom.BLOCK, type_=t.Bytes).label("block"))
        query = query.outerjoin(t.part_index, sa.and_(i.run_pk == c.run_pk, i.path == c.path))
    return [
        Part(**{key: row[key] for key in Part.__slots__})
        for row in connection.execute(query).mappings()
        if may_hold is None or row["block"] is None or may_hold(row["block"])
    ]


def part_statuses(connection: sa.Connection, run_pk: int) -> dict[str, dict[str, int]]:
    """{path of a part of rollouts: {status of the first member: rows}} of those that are indexed."""
    i = t.part_index.c
    return {path: found for path, found in connection.execute(sa.select(i.path, i.statuses).where(i.run_pk == run_pk))}


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

    value = {"final": value["greedy"] is not None, "members": {}, "losses": {}, **value}  # older records lack them
    made: dict[str, Any] = {}
    for name in Evaluation.__slots__:
        item = value[name]
        if name == "pass_at":
            made[name] = {int(k): estimate(v) for k, v in item.items()}
        elif name in ("members", "losses"):
            made[name] = {k: number(v) for k, v in item.items()}
        else:
            made[name] = estimate(item) if isinstance(item, Mapping) else number(item)
    return Evaluation(**made)
