"""Verifiers and reward specs as they are registered, their status, and verdicts by a registered version."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from fastapi import Request, Response

from jurat.api.server import pages, shapes, strict
from jurat.api.server.problems import Problem, responses
from jurat.api.server.routes_runs import PageSize, PageToken
from jurat.api.server.service import CanRead, CanVouch, Here, denied, etag, principal_of, refuse_stale, unchanged
from jurat.api.server.shapes import tell
from jurat.platform.db import tables as t
from jurat.platform.provenance import versions

router = strict.routes("verifiers")

_V, _R, _N = t.verifier_version.c, t.verifier_release.c, t.verifier.c
_TOLD = (
    "digest",
    "version",
    "code",
    "config",
    "deps",
    "weights",
    "abi",
    "args",
    "deterministic",
    "status",
    "status_reason",
    "status_at",
    "status_by",
    "created",
)


@router.get("/verifiers", summary="Registered verifiers, by name", responses=responses("bad-page-token"))
def list_verifiers(service: Here, who: CanRead, page_size: PageSize = 50, page_token: PageToken = None) -> Response:
    asked = f"verifiers\x00{page_size}"
    versions = sa.select(sa.func.count()).where(_R.verifier_pk == _N.pk).scalar_subquery()
    query = sa.select(_N.name, _N.kind, _N.created, versions.label("versions")).order_by(_N.name).limit(page_size + 1)
    if page_token is not None:
        query = query.where(_N.name > str(pages.unseal(service.secret, asked, page_token, 1)[0]))
    rows = service.store.read(lambda c: [dict(row) for row in c.execute(query).mappings()])
    token = pages.seal(service.secret, asked, [rows[page_size - 1]["name"]]) if len(rows) > page_size else None
    return tell({"verifiers": rows[:page_size], "next_page_token": token})


@router.get("/verifiers/{name}/versions", summary="Versions of a verifier, newest first", responses=responses())
def list_versions(name: str, service: Here, who: CanRead) -> Response:
    joined = t.verifier_version.join(t.verifier_release, _R.version_digest == _V.digest).join(
        t.verifier, _N.pk == _R.verifier_pk
    )
    query = (
        sa.select(_R.ordinal, *(_V[column] for column in _TOLD))
        .select_from(joined)
        .where(_N.name == name)
        .order_by(_R.ordinal.desc())
    )
    rows = service.store.read(lambda c: [dict(row) for row in c.execute(query).mappings()])
    if not rows:
        raise Problem("not-found", "no verifier of that name is registered")
    return tell({"name": name, "versions": rows})


def _version(connection: sa.Connection, digest: str) -> dict[str, Any]:
    row = connection.execute(sa.select(*(_V[column] for column in _TOLD)).where(_V.digest == digest)).mappings().first()
    if row is None:
        raise Problem("not-found", "no version of that digest is registered")
    names = connection.execute(
        sa.select(_N.name, _R.ordinal)
        .join(t.verifier_release, _R.verifier_pk == _N.pk)
        .where(_R.version_digest == digest)
        .order_by(_N.name)
    )
    return {**row, "names": [{"name": found.name, "ordinal": found.ordinal} for found in names]}


@router.get("/verifier-versions/{digest}", summary="One version", responses=responses())
def get_version(digest: str, request: Request, service: Here, who: CanRead) -> Response:
    body = service.store.read(lambda c: _version(c, digest))
    number = body["status_at"] or 0
    if unchanged(request, number):
        return Response(status_code=304, headers={"ETag": etag(number)})
    return tell(body, 200, {"ETag": etag(number)})


@router.get("/verifier-versions/{digest}/observations", summary="What it said of the canary cases, newest first",
            responses=responses())  # fmt: skip
def list_observations(digest: str, service: Here, who: CanRead) -> Response:
    """The last 100: at registration, at each start of a segment, and every so many steps of a run. Equal ``behaviour_digest``:
    it said the same of each case."""

    def read(connection: sa.Connection) -> list[dict[str, Any]]:
        _version(connection, digest)
        return [{k: v for k, v in row.items() if k != "pk"} for row in versions.observations(connection, digest)]

    return tell({"verifier_version": digest, "observations": service.store.read(read)})


@router.patch("/verifier-versions/{digest}", summary="Deprecate or quarantine a version, or take that back",
              responses=responses("stale-version", "version-required"))  # fmt: skip
def change_version(digest: str, asked: shapes.StatusChange, request: Request, service: Here, who: CanVouch) -> Response:
    """A reward that uses a quarantined version is not launched."""
    before = service.store.read(lambda c: _version(c, digest))
    refuse_stale(request, before["status_at"] or 0)

    def change(connection: sa.Connection) -> dict[str, Any]:
        if _version(connection, digest)["status_at"] != before["status_at"]:
            raise Problem("stale-version", "it has changed since; read it again")
        versions.set_status(connection, digest, asked.status, asked.reason, by=who.name)
        return _version(connection, digest)

    body = service.writer.call(change)
    service.audit(who.name, f"{asked.status} verifier", digest, request.scope["state"]["request_id"], "done")
    return tell(body, 200, {"ETag": etag(body["status_at"])})


@router.get("/reward-specs/{digest}", summary="One reward spec: its members and their versions", responses=responses())
def get_spec(digest: str, service: Here, who: CanRead) -> Response:
    def read(connection: sa.Connection) -> dict[str, Any]:
        row = connection.execute(sa.select(t.reward_spec).where(t.reward_spec.c.digest == digest)).mappings().first()
        if row is None:
            raise Problem("not-found", "no reward spec of that digest is registered")
        m = t.reward_member.c
        members = connection.execute(
            sa.select(t.reward_member).where(m.reward_digest == digest).order_by(m.position)
        ).mappings()
        return {
            **row,
            "members": [{key: value for key, value in member.items() if key != "reward_digest"} for member in members],
        }

    return tell(service.store.read(read))


@router.post(
    "/verify",
    summary="Judge completions by a registered version",
    responses=responses("quarantined-verifier", "reward-drift", "too-large"),
)
def verify(asked: shapes.Verify, request: Request, service: Here) -> Response:
    """Refused where the verifier that is installed here is not that version. At most 256 at once."""
    who = principal_of(request)
    if not (who.may("runs:read") or who.may("data:read")):
        denied(request, who, "the key may not ask for verdicts")
    if service.judges is None:
        raise Problem("unavailable", "this service judges nothing")
    items = [(item.gold, item.completion, item.prompt) for item in asked.items]
    return tell({"verifier": asked.verifier, "verdicts": service.judges.judge(service.store, asked.verifier, items)})
