"""What a run recorded: events, segments, checkpoints, evaluations, metrics. Metrics may be written by whoever may."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Annotated, Literal

import sqlalchemy as sa
from fastapi import Path as PathParameter
from fastapi import Query, Request, Response

from jurat.api.server import pages, search, shapes, strict
from jurat.api.server.access import Principal
from jurat.api.server.facts import is_fact
from jurat.api.server.problems import Problem, responses
from jurat.api.server.routes_runs import PageSize, PageToken, RunId
from jurat.api.server.service import CanRead, CanWrite, Here, caller, denied, no_run, principal_of, run_named
from jurat.api.server.shapes import number, tell
from jurat.platform.db import tables as t
from jurat.platform.db.writer import Busy
from jurat.platform.errors import ConfigError, DataError, FencedOut
from jurat.platform.runs import alarms, events, ingest, leases, ledger, metrics, rollups
from jurat.platform.runs.records import Point, RunInfo
from jurat.platform.runs.repository import evaluation_to_json

router = strict.routes("records")

AlarmState = Literal["open", "acked", "closed"]
AlarmId = Annotated[int, PathParameter(ge=1, lt=2**53)]


@router.post(
    "/runs/{run}/metrics:batch",
    summary="Record metrics",
    responses=responses("too-many-requests", "too-large", "conflict", "stale-epoch"),
)
async def add_metrics(run: RunId, asked: shapes.MetricBatch, request: Request, service: Here) -> Response:
    """All or nothing, and harmless when sent again: a point that is there is left alone. At most 10,000 points."""
    names, steps, values = columns(asked)
    request.scope["state"]["rows"] = len(names)
    who = await caller(request)
    if not (who.may("runs:write") or who.holds(run)):
        denied(request, who, "the key may not write to this run")

    def add(connection: sa.Connection) -> int:
        found = ingest.place(connection, run)
        if found is None or found.deleted_at is not None:
            raise no_run()
        if who.epoch is not None and found.lease_epoch != who.epoch:
            raise leases.fenced(run, who.epoch, found._asdict())
        if found.state in ("finished", "cancelled"):
            raise Problem("conflict", f"the run is {found.state}: its records are closed")
        segment = asked.segment
        if segment is None:
            segment = found.newest if found.newest is not None else newest_segment(connection, found.run_pk, found.at)
        else:
            ingest.check_segments(connection, found.run_pk, {segment})
        ingest.gather(
            connection, found.run_pk, names, steps, values, segment, found.at, limit=ingest.MAX_NAMES
        )  # fmt: skip
        return len(names)

    stored = await asyncio.wrap_future(service.writer.submit(add, ingest.settle))
    return tell({"stored": stored})


@router.post(
    "/runs/{run}/facts",
    summary="What a process that trains records",
    responses=responses("too-many-requests", "too-large", "stale-epoch"),
)
async def add_facts(run: RunId, asked: shapes.Facts, request: Request, service: Here) -> Response:
    """For the process that holds the run, with the token that it was given: each write carries its epoch."""

    def admitted() -> tuple[Principal, RunInfo]:
        who = principal_of(request)
        if not who.holds(run):
            denied(request, who, "facts are recorded by the process that holds the run, with its token")
        return who, run_named(service, run)

    who, found = await asyncio.to_thread(admitted)
    request.scope["state"]["rows"] = len(asked.ops)
    for place, op in enumerate(asked.ops):
        if not is_fact(op, found.folder):
            raise Problem(
                "invalid",
                f"/ops/{place} is no fact",
                errors=[{"pointer": f"/ops/{place}", "code": "no-fact", "message": "not a fact"}],
            )

    def add(connection: sa.Connection) -> int:
        try:
            ledger.insert(connection, found.pk, asked.ops, epoch=who.epoch)
        except FencedOut:
            raise
        except (*ledger.UNFIT, sa.exc.CompileError, DataError) as error:
            raise Problem("invalid", f"a fact cannot be recorded: {type(error).__name__}") from None
        return len(asked.ops)

    stored = await asyncio.wrap_future(service.writer.submit(add))
    return tell({"stored": stored})


@router.get("/runs/{run}/events", summary="What happened, in order", responses=responses("bad-page-token"))
def list_events(
    run: RunId, service: Here, who: CanRead, page_size: PageSize = 50, page_token: PageToken = None
) -> Response:
    found = run_named(service, run)
    asked = f"events\x00{run}\x00{page_size}"
    after = 0 if page_token is None else int(pages.unseal(service.secret, asked, page_token, 1)[0] or 0)
    rows = service.store.read(lambda c: events.read(c, found.pk, after=after, limit=page_size + 1))
    shown = [
        {"seq": e.seq, "at": e.at, "kind": e.kind, "segment": e.segment, "payload": e.payload} for e in rows[:page_size]
    ]
    token = pages.seal(service.secret, asked, [rows[page_size - 1].seq]) if len(rows) > page_size else None
    return tell({"events": shown, "next_page_token": token})


@router.get("/runs/{run}/segments", summary="Processes that trained it", responses=responses())
def list_segments(run: RunId, service: Here, who: CanRead) -> Response:
    found = run_named(service, run)
    return tell({"segments": [{name: getattr(s, name) for name in s.__slots__} for s in service.store.segments(found)]})


@router.get("/runs/{run}/checkpoints", summary="Checkpoints that count", responses=responses())
def list_checkpoints(run: RunId, service: Here, who: CanRead) -> Response:
    found = run_named(service, run)
    made = service.store.checkpoints(found)
    return tell({"checkpoints": [
        {"digest": c.ref.digest, "step": c.ref.step, "stage": c.stage, "segment": c.segment,
        "parent": c.ref.parent or None, "at": c.at}
        for c in made
    ]})  # fmt: skip


@router.get("/runs/{run}/alarms", summary="Signs that a reward is hacked or broken", responses=responses())
def list_alarms(run: RunId, service: Here, who: CanRead, state: AlarmState | None = None) -> Response:
    """Newest first, with evidence and the rollouts to look at. An open one is told again as `acked` once somebody has seen it."""
    found = run_named(service, run)
    return tell({"alarms": service.store.read(lambda connection: alarms.of_run(connection, found.pk, state=state))})


@router.post("/runs/{run}/alarms/{alarm}:ack", summary="Say that an alarm was seen", responses=responses())
def ack_alarm(run: RunId, alarm: AlarmId, service: Here, who: CanWrite) -> Response:
    found = run_named(service, run)
    try:
        made = service.writer.call(lambda connection: alarms.acknowledge(connection, found.pk, alarm, by=who.name))
    except ConfigError as error:
        raise Problem("not-found", error.what) from None
    return tell(made)


@router.get("/runs/{run}/evaluations", summary="Held-out measurements", responses=responses())
def list_evaluations(run: RunId, service: Here, who: CanRead) -> Response:
    found = run_named(service, run)
    return tell(
        {
            "evaluations": [
                {"segment": m.segment, "at": m.at, **evaluation_to_json(m.result)}
                for m in service.store.evaluations(found)
            ]
        }
    )


@router.get("/runs/{run}/verifier-stats", summary="What each verifier said, by step", responses=responses())
def verifier_stats(run: RunId, service: Here, who: CanRead) -> Response:
    found = run_named(service, run)
    return tell(
        {"stats": [{name: getattr(s, name) for name in s.__slots__} for s in service.store.verdict_stats(found)]}
    )


def columns(asked: shapes.MetricBatch) -> tuple[list[str], list[int], list[float]]:
    """Names, steps and values. Raises Problem."""
    if (asked.rows is None) == (asked.names is None):
        raise Problem("invalid", "give rows, or names, steps and values")
    if asked.rows is not None:
        names, steps = [row.name for row in asked.rows], [row.step for row in asked.rows]
        values = [row.value for row in asked.rows]
    else:
        names, steps, values = asked.names or [], asked.steps or [], asked.values or []
        if not len(names) == len(steps) == len(values):
            raise Problem("invalid", "names, steps and values have unequal lengths")
        if steps and not 0 <= min(steps) <= max(steps) <= 1 << 53:
            raise Problem(
                "invalid",
                "a step is a whole number from 0 to 2^53",
                errors=[{"pointer": "/steps", "code": "range", "message": "out of range"}],
            )
    shown = {name: t.visible(name) for name in set(names)}
    return [shown[name] for name in names], steps, values


def newest_segment(connection: sa.Connection, run_pk: int, at: int) -> int:
    """The newest segment of a run; a first one for a run that no trainer of ours works on."""
    c = t.segment.c
    found = connection.execute(sa.select(sa.func.max(c.no)).where(c.run_pk == run_pk)).scalar()
    if found is not None:
        return int(found)
    row = {
        "run_pk": run_pk,
        "no": 0,
        "stage": "",
        "stage_index": 0,
        "first_step": 0,
        "started": at,
        "host": "",
        "pid": 0,
        "reward_digest": "",
        "versions": {},
    }
    connection.execute(sa.insert(t.segment).values(**row))
    return 0


# ---- metrics, read -----------------------------------------------------------------------------------------------


@router.get("/runs/{run}/metrics", summary="The last value of each metric", responses=responses())
def last_metrics(
    run: RunId, service: Here, who: CanRead, names: Annotated[str, Query(max_length=8192)] = ""
) -> Response:
    """With the least and the most of all values; `names`, joined by commas, chooses some."""
    found = run_named(service, run)
    wanted = [name.strip() for name in names.split(",") if name.strip()] or None
    search.refuse_unknown(service.store, wanted or (), "names")
    latest = service.store.read(lambda c: metrics.latest(c, [found.pk], wanted))[found.pk]
    made = {
        name: {"step": v.step, "at": v.at, "value": number(v.value), "min": number(v.least), "max": number(v.most)}
        for name, v in sorted(latest.items())
    }
    return tell({"metrics": made})


@router.get("/runs/{run}/metrics/{name:path}", summary="One metric by step", responses=responses("bad-page-token"))
def history(
    run: RunId,
    name: str,
    service: Here,
    who: CanRead,
    first: Annotated[int | None, Query(alias="from", ge=0, le=1 << 53)] = None,
    last: Annotated[int | None, Query(alias="to", ge=0, le=1 << 53)] = None,
    max_points: Annotated[
        int | None, Query(ge=1, le=10_000, description="At most about so many: means with the least and the most.")
    ] = None,
    page_size: Annotated[int, Query(ge=1, le=25_000)] = 1000,
    page_token: PageToken = None,
) -> Response:
    found = run_named(service, run)
    search.refuse_unknown(service.store, [name], "name", "not-found")
    if max_points is not None:
        buckets, slow = service.store.read(
            lambda c: (
                rollups.downsampled(c, found.pk, name, first=first, last=last, buckets=max_points),
                rollups.behind(c, found.pk, name),
            )
        )
        with suppress(Busy):  # another reader will ask again
            for series in slow:
                service.writer.leave(partial(rollups.fill, series=series), f"the rollup of {name!r} of run {run}")
        return tell({"name": name, "buckets": [
            {"stage": b.stage, "first_step": b.first_step, "last_step": b.last_step, "count": b.count,
            "mean": number(b.mean),
             "min": number(b.least), "max": number(b.most), "last": number(b.last)} for b in buckets
        ]})  # fmt: skip
    asked = f"history\x00{run}\x00{name}\x00{first}\x00{last}"
    after: tuple[int, int] | None = None
    if page_token is not None:
        stage, step = pages.unseal(service.secret, asked, page_token, 2)
        after = (int(stage or 0), int(step or 0))
    points: list[Point] = service.store.read(
        lambda c: metrics.history(c, found.pk, name, first=first, last=last, after=after, limit=page_size + 1)
    )
    shown = points[:page_size]
    token = None
    if len(points) > page_size:
        index = {s.stage: s.stage_index for s in service.store.segments(found)}
        token = pages.seal(service.secret, asked, [index[shown[-1].stage], shown[-1].step])
    told = [
        {"stage": p.stage, "segment": p.segment, "step": p.step, "at": p.at, "value": number(p.value)} for p in shown
    ]
    return tell({"name": name, "points": told, "next_page_token": token})
