"""Runs: made, found, changed, and asked to pause, resume, cancel or make a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import sqlalchemy as sa
from fastapi import Query, Request, Response

from jurat.api import forking
from jurat.api.server import launching, search, shapes, strict
from jurat.api.server.problems import Problem, responses
from jurat.api.server.service import (
    CanLaunch,
    CanRead,
    CanWrite,
    Here,
    Service,
    etag,
    masked,
    noted,
    once,
    refuse_stale,
    run_named,
    unchanged,
)
from jurat.api.server.shapes import tell
from jurat.platform.canonical import digest
from jurat.platform.db import tables as t
from jurat.platform.db.clock import now
from jurat.platform.errors import ConfigError, DataError, NameTaken, RunFailed
from jurat.platform.provenance import secrets
from jurat.platform.recipe import Recipe
from jurat.platform.runs import events, leases
from jurat.platform.runs import search as find
from jurat.platform.runs.records import RunInfo
from jurat.platform.runs.states import LEASED

router = strict.routes("runs")

Filter = Annotated[
    str, Query(max_length=8192, description="For example `state = running AND metrics.reward/mean > 0.5`.")
]
OrderBy = Annotated[str, Query(max_length=1024, description='For example `metrics."reward/mean" desc, created`.')]
PageSize = Annotated[int, Query(ge=1, le=1000)]
PageToken = Annotated[str | None, Query(max_length=4096, description="As the page before gave it.")]
FieldMask = Annotated[str | None, Query(max_length=1024, alias="fields", description="Names, joined by commas.")]
Metrics = Annotated[
    str,
    Query(
        max_length=8192, alias="metrics", description="Metrics whose last values are told, joined by commas; `*`: all."
    ),
]
RunId = str
MAX_TAGS = 64


def _named(text: str) -> list[str]:
    return [name for name in (each.strip() for each in text.split(",")) if name]


@router.get("/recipes", summary="Recipes that can be launched", responses=responses())
def recipes(service: Here, who: CanRead) -> Response:
    return tell({"recipes": sorted(launching.registered(service.settings.recipes))})


@router.post("/runs", status_code=201, response_model=shapes.Run, summary="Launch a run",
             responses=responses("quarantined-verifier", "conflict", "in-flight", "key-reused"))  # fmt: skip
def create_run(asked: shapes.NewRun, request: Request, service: Here, who: CanLaunch) -> Response:
    """The run is queued; the launcher takes it up. With an `Idempotency-Key` the same request makes one run."""

    def make() -> Response:
        recipe, base = launching.resolve(
            asked, service.settings.recipes, service.settings.home, service.settings.database
        )
        service.store.read(lambda connection: launching.refuse_unregistered(connection, asked))
        launching.refuse_quarantined(service.store, recipe, base)
        expected = {"reward": asked.reward_spec or "", "verifiers": dict(asked.verifiers)}
        meta = {"base": str(base), "launched_by": who.name, "expected": expected}
        given = {
            "project": asked.project, "priority": asked.priority, "max_restarts": asked.max_restarts,
            "max_runtime": asked.max_runtime, "tags": asked.tags, "by": who.name,
        }  # fmt: skip
        try:  # the reward is found by the process that starts it
            run = service.store.create_run(
                recipe=recipe,
                recipe_digest=digest(recipe),
                reward_digest="",
                meta=meta,
                run_id=asked.id,
                state="queued",
                also=noted(request, who),
                **given,
            )
        except ConfigError as error:
            raise Problem("conflict" if isinstance(error, NameTaken) else "invalid", error.what) from None
        if service.launcher is not None:
            service.launcher.wake()
        service.audit(who.name, "create run", run.id, request.scope["state"]["request_id"], "done")
        return _made(service, run)

    return once(request, who, make, lambda run: _made(service, service.store.run(run)))


@router.post("/runs/{run}:fork", status_code=201, response_model=shapes.Run,
             summary="Launch a run from a checkpoint of this one",
             responses=responses("quarantined-verifier", "conflict", "in-flight", "key-reused"))  # fmt: skip
def fork_run(run: RunId, asked: shapes.Fork, request: Request, service: Here, who: CanLaunch) -> Response:
    """Its lineage goes on through the checkpoint. With an `Idempotency-Key` the same request makes one run.

    A run that was started at the command line with verifiers, files or addresses of its own is forked there alone (409).
    """
    found = run_named(service, run)
    _refuse_imported(found)

    def make() -> Response:
        config = dict(launching.flat(asked.config))
        launching.refuse_paths(config)
        try:
            base = launching.refuse_of_a_person(found, service.settings.recipes, service.settings.home)

            def check(own: Recipe, new: Recipe) -> None:
                launching.refuse_foreign(own, new, service.settings.home)
                launching.refuse_quarantined(service.store, new, Path(base or found.meta.get("base") or "."))

            made = forking.fork(
                service.store, found, checkpoint=asked.checkpoint, run_id=asked.id, state="queued",
                config={**config, "tracking.database": service.settings.database},
                check=check, also=noted(request, who),
                meta={"launched_by": who.name, **({} if base is None else {"base": str(base)})},
                priority=asked.priority, max_restarts=asked.max_restarts, max_runtime=asked.max_runtime, tags=asked.tags, by=who.name,
                **({} if asked.project is None else {"project": asked.project}),
            )  # fmt: skip
        except (ConfigError, DataError) as error:
            raise Problem("conflict" if isinstance(error, NameTaken) else "invalid", error.what[:2000]) from None
        except (TypeError, ValueError, KeyError, AttributeError):
            raise Problem("invalid", "a key of config has a value of another kind") from None
        if service.launcher is not None:
            service.launcher.wake()
        service.audit(who.name, "fork run", made.id, request.scope["state"]["request_id"], "done")
        return _made(service, made)

    return once(request, who, make, lambda run: _made(service, service.store.run(run)))


def _made(service: Service, run: RunInfo) -> Response:
    body = search.whole(service.store, run)
    return tell(body, 201, {"Location": f"/api/v1/runs/{run.id}", "ETag": etag(body["version"])})


def _refuse_imported(run: RunInfo) -> None:
    """The recipe of a bundle is what somebody wrote: it is run by people at the command line, or not at all."""
    if run.meta.get("imported"):
        raise Problem("conflict", "the run was imported: it is looked at, and goes on at the command line alone")


def set_tags(connection: sa.Connection, run_pk: int, tags: Mapping[str, Any]) -> None:
    find.label(connection, run_pk, "tag", secrets.redacted(dict(tags)))
    if len(find.labels(connection, run_pk, "tag")) > MAX_TAGS:
        raise Problem(
            "invalid",
            f"a run may have {MAX_TAGS} tags",
            errors=[{"pointer": "/tags", "code": "too-many", "message": f"more than {MAX_TAGS}"}],
        )


@router.get(
    "/runs",
    response_model=shapes.Runs,
    summary="Find runs",
    responses=responses("bad-filter", "bad-order", "bad-page-token", "query-too-slow"),
)
def list_runs(
    service: Here,
    who: CanRead,
    filter_: Annotated[
        str,
        Query(
            max_length=8192,
            alias="filter",
            description="For example `state = running AND NOT (project = 'x' OR metrics.reward/mean < 0.5)`.",
        ),
    ] = "",
    order_by: OrderBy = "",
    page_size: PageSize = 50,
    page_token: PageToken = None,
    fields: FieldMask = None,
    metrics: Metrics = "",
    count: Literal["exact"] | None = None,
) -> Response:
    """Newest first unless `order_by` says otherwise. What is not asked for is not read: name `metrics` and `fields`."""
    wanted = set(masked(dict.fromkeys(search.KNOWN), fields, default=search.DEFAULT, known=search.KNOWN))
    return tell(
        search.search(
            service.store, service.secret, filter_=filter_, order_by=order_by, page_size=page_size,
            page_token=page_token,
            fields=frozenset(wanted), metrics=_named(metrics), count=count is not None,
        ),
        long="runs",
    )  # fmt: skip


@router.get("/runs/{run}", response_model=shapes.Run, summary="One run", responses=responses())
def get_run(
    run: RunId, request: Request, service: Here, who: CanRead, fields: FieldMask = None, metrics: Metrics = ""
) -> Response:
    """Answers 304 where `If-None-Match` names the version that it has."""
    found = run_named(service, run)
    if unchanged(request, found.version) and not metrics:
        return Response(status_code=304, headers={"ETag": etag(found.version)})
    wanted = masked(dict.fromkeys(search.KNOWN), fields, default=search.DEFAULT, known=search.KNOWN)
    body = search.one(service.store, run, recipe="recipe" in wanted, metrics=_named(metrics))
    shown = {name: value for name, value in body.items() if name in wanted or name in ("id", "metrics")}
    return tell(shown, 200, {"ETag": etag(body["version"])})


@router.patch("/runs/{run}", response_model=shapes.Run, summary="Change tags, project, priority or restarts",
              responses=responses("stale-version", "version-required"))  # fmt: skip
def change_run(run: RunId, asked: shapes.RunChange, request: Request, service: Here, who: CanWrite) -> Response:
    found = run_named(service, run)
    refuse_stale(request, found.version)
    given = asked.model_dump(exclude_unset=True, exclude={"tags"})
    if any(value is None for value in given.values()):
        raise Problem("invalid", "a value cannot be null")

    def change(connection: sa.Connection) -> None:
        moved = connection.execute(
            sa.update(t.run)
            .where(t.run.c.pk == found.pk, t.run.c.version == found.version)
            .values(version=t.run.c.version + 1, **given)
        )
        if not moved.rowcount:
            raise Problem("stale-version", "it has changed since; read it again")
        set_tags(connection, found.pk, dict(asked.tags or {}))

    service.writer.call(change)
    service.audit(who.name, "change run", run, request.scope["state"]["request_id"], "done")
    body = search.one(service.store, run)
    return tell(body, 200, {"ETag": etag(body["version"])})


@router.delete("/runs/{run}", status_code=204, summary="Hide a run that is over; its records stay",
               responses=responses("stale-version", "version-required", "conflict"))  # fmt: skip
def delete_run(run: RunId, request: Request, service: Here, who: CanWrite) -> Response:
    found = run_named(service, run)
    refuse_stale(request, found.version)
    if found.ended is None:
        raise Problem("conflict", f"the run is {found.state}: cancel it first")

    def hide(connection: sa.Connection) -> None:
        moved = connection.execute(
            sa.update(t.run)
            .where(t.run.c.pk == found.pk, t.run.c.version == found.version, t.run.c.ended.is_not(None))
            .values(deleted_at=now(connection), version=t.run.c.version + 1)
        )
        if not moved.rowcount:
            raise Problem("stale-version", "it has changed since; read it again")
        events.add(connection, found.pk, "deleted", {"by": who.name}, at=now(connection))

    service.writer.call(hide)
    service.audit(who.name, "delete run", run, request.scope["state"]["request_id"], "done")
    return Response(status_code=204)


# ---- commands ----------------------------------------------------------------------------------------------------


def _command(kind: str, run: RunId, request: Request, service: Here, who: Any) -> Response:
    found = run_named(service, run)
    if kind == "resume":
        _refuse_imported(found)

    def ask() -> Response:
        try:
            state = service.writer.call(lambda connection: leases.command(connection, found.pk, kind, by=who.name))
        except RunFailed as error:
            raise Problem("conflict", f"{error.what}. {error.fix}" if error.fix else error.what) from None
        service.audit(who.name, f"{kind} run", run, request.scope["state"]["request_id"], "done")
        if service.launcher is not None:
            service.launcher.wake()
        body = search.one(service.store, run)
        return tell(body, 202 if state in LEASED else 200, {"ETag": etag(body["version"])})

    return once(request, who, ask)


_ASKED = {
    **responses("conflict", "in-flight", "key-reused"),
    202: {"model": shapes.Run, "description": "It was asked of the process that trains"},
}


@router.post("/runs/{run}:cancel", response_model=shapes.Run, summary="Stop for good", responses=_ASKED)
def cancel_run(run: RunId, request: Request, service: Here, who: CanLaunch) -> Response:
    return _command("cancel", run, request, service, who)


@router.post(
    "/runs/{run}:pause", response_model=shapes.Run, summary="Stop at a checkpoint, to be resumed", responses=_ASKED
)
def pause_run(run: RunId, request: Request, service: Here, who: CanLaunch) -> Response:
    return _command("pause", run, request, service, who)


@router.post(
    "/runs/{run}:resume", response_model=shapes.Run, summary="Go on from the newest checkpoint", responses=_ASKED
)
def resume_run(run: RunId, request: Request, service: Here, who: CanLaunch) -> Response:
    return _command("resume", run, request, service, who)


@router.post(
    "/runs/{run}:checkpoint",
    response_model=shapes.Run,
    summary="Make a checkpoint at the end of this step",
    responses=_ASKED,
)
def checkpoint_run(run: RunId, request: Request, service: Here, who: CanLaunch) -> Response:
    return _command("checkpoint", run, request, service, who)


@router.get("/runs/{run}/commands", summary="What was asked of a run", responses=responses())
def list_commands(run: RunId, service: Here, who: CanRead) -> Response:
    found = run_named(service, run)
    made = service.store.read(lambda connection: leases.commands(connection, found.pk))
    return tell(
        {
            "commands": [
                {"id": c.pk, "kind": c.kind, "at": c.at, "by": c.by, "acked_at": c.acked_at, "result": c.result}
                for c in made
            ]
        }
    )
