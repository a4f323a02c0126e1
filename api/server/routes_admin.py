"""Keys, and what is asked of the service itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter, Request, Response

from jurat import __version__
from jurat.api.server import shapes, strict
from jurat.api.server.problems import KINDS, MEDIA_TYPE, Problem, example, responses
from jurat.api.server.prometheus import MEDIA_TYPE as MEDIA_TYPE_OF_METRICS
from jurat.api.server.prometheus import family
from jurat.api.server.service import Admin, CanRead, Here
from jurat.api.server.shapes import tell
from jurat.platform import access
from jurat.platform.access import Key
from jurat.platform.db.tables import REVISIONS
from jurat.platform.errors import ConfigError, JuratError
from jurat.platform.runs import alarms, leases

router = strict.routes("keys")
outside = APIRouter(tags=["service"])


def _told(key: Key) -> dict[str, Any]:
    return {
        **{name: getattr(key, name) for name in Key.__slots__ if name not in ("run_id", "epoch")},
        "scopes": list(key.scopes),
    }


@router.get("/api-keys", summary="Keys, without their secrets", responses=responses())
def list_keys(service: Here, who: Admin) -> Response:
    return tell({"api_keys": [_told(key) for key in service.store.read(access.keys)]})


@router.post("/api-keys", status_code=201, summary="Make a key; it is shown this once", responses=responses())
def create_key(asked: shapes.NewKey, request: Request, service: Here, who: Admin) -> Response:
    """No Idempotency-Key: the answer holds a secret, which is kept nowhere."""
    try:
        kept, key = service.writer.call(lambda c: access.make_key(c, asked.name, asked.scopes, seconds=asked.seconds))
    except ConfigError as error:
        raise Problem(
            "invalid",
            f"{error.what}. {error.fix}",
            errors=[{"pointer": "/scopes", "code": "unknown-scope", "message": error.what}],
        ) from None
    service.audit(who.name, "create key", kept.key_id, request.scope["state"]["request_id"], "done")
    service.keys.forget()
    return tell({**_told(kept), "key": key}, 201)


@router.delete("/api-keys/{key_id}", status_code=204, summary="Revoke a key", responses=responses())
def revoke_key(key_id: str, request: Request, service: Here, who: Admin) -> Response:
    if not service.writer.call(lambda c: access.revoke(c, key_id)):
        raise Problem("not-found", "there is no such key, or it was revoked before")
    service.keys.forget()
    service.audit(who.name, "revoke key", key_id, request.scope["state"]["request_id"], "done")
    return Response(status_code=204)


@outside.get("/healthz", summary="The process answers")
def healthz() -> Response:
    return tell({"ok": True})


@outside.get("/readyz", summary="The store answers", responses={503: {"description": "It does not"}})
def readyz(service: Here) -> Response:
    try:
        service.store.read(lambda connection: connection.exec_driver_sql("SELECT 1"))
    except JuratError:
        return tell({"ok": False}, 503)
    return tell({"ok": True, "launcher": service.launcher is not None and service.launcher.alive()})


@outside.get("/version", summary="What runs here")
def version() -> Response:
    return tell({"jurat": __version__, "schema": REVISIONS[-1], "api": "v1"})


@outside.get("/metrics", summary="Counts, for Prometheus", responses=responses())
def metrics(service: Here, who: CanRead) -> Response:
    """Text format 0.0.4. Runs and leases are counted from their rows."""

    def read(connection: sa.Connection) -> tuple[dict[str, int], int, int, int, list[str], int]:
        return (
            leases.states(connection), leases.live(connection), leases.leased_gpus(connection), leases.stalled(connection),
            leases.going(connection), alarms.open_count(connection),
        )  # fmt: skip

    states, live, gpus, stalled, going, open_alarms = service.store.read(read)
    spools = [path for run in going for path in (service.store.runs_folder / run).glob("spool*.jsonl")]
    gauges = {
        "jurat_leases": ("Live leases: the slots in use.", live),
        "jurat_leased_gpus": ("GPUs of runs with a live lease, by their recipes.", gpus),
        "jurat_runs_stalled": ("Running runs that took no step for too long.", stalled),
        "jurat_alarms_open": ("Alarms that are open and not acknowledged.", open_alarms),
        "jurat_writer_waiting": ("Jobs that wait for the database's writer.", service.writer.waiting),
        "jurat_spool_files": ("Files of facts that wait beside runs that are not over.", len(spools)),
        "jurat_spool_bytes": ("Their size.", sum(_size(path) for path in spools)),
    }
    lines = [*family("jurat_runs", "gauge", "Runs by state.", {(("state", name),): n for name, n in states.items()})]
    for name, (about, value) in gauges.items():
        lines += family(name, "gauge", about, {(): value})
    lines += family("jurat_writer_commits_total", "counter", "Transactions.", {(): service.writer.commits})
    return Response("\n".join([*lines, *service.requests.exposition(), ""]), media_type=MEDIA_TYPE_OF_METRICS)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # drained meanwhile
        return 0


@outside.get("/openapi.json", include_in_schema=False)
def openapi(request: Request) -> Response:
    return Response(json.dumps(request.app.openapi()), media_type="application/json")


@outside.get("/problems/{kind}", summary="What a problem's type means")
def problem(kind: str) -> Response:
    if kind not in KINDS:
        raise Problem("not-found", "there is no problem of that type")
    return Response(json.dumps({**example(kind), "request_id": "", "instance": ""}), media_type=MEDIA_TYPE)
