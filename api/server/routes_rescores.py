"""What another version of a verifier would have said of stored rollouts: asked for, looked at, and its drift report."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import Query, Request, Response

from jurat.api.server import filters, reader, shapes, strict
from jurat.api.server.problems import Problem, responses
from jurat.api.server.service import CanLaunch, CanRead, CanReadData, Here, Service, once, run_named
from jurat.api.server.shapes import tell
from jurat.platform.errors import ConfigError
from jurat.platform.provenance import blobs, versions
from jurat.platform.runs import rescores

router = strict.routes("rescores")


def _told(found: rescores.Rescore) -> dict[str, Any]:
    kept = asdict(found)
    return {key: value for key, value in kept.items() if key not in ("lease_owner", "lease_until")}


def _named(service: Service, name: str) -> rescores.Rescore:
    """By its whole id. Raises Problem."""
    try:
        found = service.store.read(lambda connection: rescores.find(connection, name))
    except ConfigError:
        found = None
    if found is None or found.id != name:
        raise Problem("not-found", "there is no such re-scoring")
    return found


@router.post("/rescores", summary="Judge stored rollouts by another version of a verifier",
             responses=responses("conflict", "bad-filter"))  # fmt: skip
def ask(asked: shapes.NewRescore, request: Request, service: Here, who: CanLaunch) -> Response:
    """Both versions are registered ones, by NAME@NUMBER or digest; the new one has to be what is installed here. The same
    question has the same id: asked again it goes on, or is answered anew for the rollouts that have come since."""
    if service.rescorings is None:
        raise Problem("unavailable", "this service re-scores nothing")
    started = service.rescorings

    def do() -> Response:
        ids = [run_named(service, run).id for run in asked.runs]
        filters.compile_filter(asked.filter, reader.FIELDS)
        named = asked.from_version, asked.to_version
        old, new = service.store.read(lambda connection: [versions.version(connection, each).digest for each in named])
        selection = rescores.Selection(
            runs=tuple(ids), where=asked.filter, sample=asked.sample, stratify=tuple(asked.stratify), seed=asked.seed,
            threshold=asked.threshold, again=asked.again,
        )  # fmt: skip
        made = service.writer.call(
            lambda connection: rescores.ask(connection, old, new, selection.as_json(), by=who.name)
        )
        words = ["--from", old, "--to", new, *(word for run in ids for word in ("--runs", run))]
        words += ["--where", asked.filter, "--stratify", ",".join(asked.stratify), "--seed", str(asked.seed)]
        words += ["--threshold", repr(asked.threshold), *(["--again"] if asked.again else [])]
        words += ["--sample", str(asked.sample)] if asked.sample is not None else []
        started.start(made.id, words, service.settings.database)
        service.audit(who.name, "rescore", made.id, request.scope["state"]["request_id"], "started")
        return tell(_told(made), 202, {"Location": f"/api/v1/rescores/{made.id}"})

    return once(request, who, do)


@router.get("/rescores", summary="The last hundred re-scorings, newest first", responses=responses())
def list_rescores(service: Here, who: CanRead) -> Response:
    return tell({"rescores": [_told(each) for each in service.store.read(rescores.listed)]})


@router.get("/rescores/{rescore}", summary="How far a re-scoring is", responses=responses())
def get_rescore(rescore: str, service: Here, who: CanRead) -> Response:
    """``state``: queued, running, interrupted, finished or failed; ``done`` of ``total`` rollouts."""
    return tell(_told(_named(service, rescore)))


@router.get("/rescores/{rescore}/report", summary="Its drift report", responses=responses("conflict"))
def report(
    rescore: str, service: Here, who: CanReadData, format: Annotated[Literal["json", "html"], Query()] = "json"
) -> Response:
    """With texts of rollouts. ``html``: one page that loads nothing and runs nothing."""
    found = _named(service, rescore)
    if found.report is None:
        raise Problem("conflict", f"there is no report yet: the re-scoring is {found.state}")
    made = service.store.read(lambda connection: blobs.get_json(connection, found.report))
    if format == "json":
        return tell(made)
    from jurat.api.rescore_page import POLICY, page

    return Response(page(made), 200, {"Content-Security-Policy": POLICY}, media_type="text/html; charset=utf-8")
