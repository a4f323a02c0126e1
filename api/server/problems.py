"""Errors over HTTP: RFC 9457 problems. None carries SQL, a path of this machine, a traceback or a secret."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field

from jurat.platform.db.writer import Busy
from jurat.platform.errors import ConfigError, DataError, FencedOut, JuratError, ModelError, RewardDrift, SchemaError

MEDIA_TYPE = "application/problem+json"


@dataclass(frozen=True, slots=True)
class Kind:
    status: int
    title: str


KINDS: Mapping[str, Kind] = {
    "bad-request": Kind(400, "The request cannot be read"),
    "bad-json": Kind(400, "The body is not JSON"),
    "bad-filter": Kind(400, "The filter cannot be read"),
    "bad-order": Kind(400, "The order cannot be read"),
    "bad-page-token": Kind(400, "The page token does not belong to this query"),
    "unauthenticated": Kind(401, "A key is needed"),
    "forbidden": Kind(403, "The key may not do this"),
    "foreign-origin": Kind(403, "The request comes from another site"),
    "not-found": Kind(404, "There is no such thing"),
    "method-not-allowed": Kind(405, "The resource does not do this"),
    "conflict": Kind(409, "The resource is in another state"),
    "in-flight": Kind(409, "The first request with this key goes on"),
    "quarantined-verifier": Kind(409, "The reward uses a quarantined verifier"),
    "reward-drift": Kind(409, "The reward is not the one that was asked for"),
    "stale-epoch": Kind(409, "Another process has taken the run over"),
    "stale-version": Kind(412, "The resource has changed since it was read"),
    "too-large": Kind(413, "The body is too large"),
    "unsupported-media-type": Kind(415, "The body is of another type"),
    "misdirected": Kind(421, "This service has another name"),
    "invalid": Kind(422, "A value is not allowed"),
    "key-reused": Kind(422, "The idempotency key was used for another request"),
    "version-required": Kind(428, "Say which version is meant"),
    "too-many-requests": Kind(429, "Too many requests"),
    "headers-too-large": Kind(431, "The headers are too large"),
    "internal": Kind(500, "The service failed"),
    "unavailable": Kind(503, "The store does not answer"),
    "query-too-slow": Kind(503, "The query takes too long"),
    "no-room": Kind(507, "The disk is full"),
}
"""Every ``type`` there is, without its prefix ``/problems/``."""


class Problem(Exception):
    """Raised anywhere below a route; the app answers with it."""

    def __init__(
        self,
        kind: str,
        detail: str,
        *,
        errors: Sequence[Mapping[str, Any]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """``kind``: a key of KINDS. ``errors``: {pointer, code, message} each, where one place of the request is at fault."""
        super().__init__(detail)
        self.kind, self.detail, self.errors, self.headers = kind, detail, [dict(e) for e in errors], dict(headers or {})

    @property
    def status(self) -> int:
        return KINDS[self.kind].status

    def body(self, request_id: str, instance: str = "") -> dict[str, Any]:
        said = {
            "type": f"/problems/{self.kind}",
            "title": KINDS[self.kind].title,
            "status": self.status,
            "detail": self.detail,
        }
        return {**said, "instance": instance, "request_id": request_id, "errors": self.errors}


class PlaceAtFault(BaseModel):
    pointer: str = Field(description="JSON pointer into the body, or the name of a parameter or header.")
    code: str
    message: str


class ProblemBody(BaseModel):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    request_id: str
    errors: list[PlaceAtFault]


def example(kind: str) -> dict[str, Any]:
    return Problem(kind, KINDS[kind].title + ".").body("req_0000000000000000", "/api/v1/runs")


def responses(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """For OpenAPI: the problems that an operation may answer with, one example each."""
    made: dict[int | str, dict[str, Any]] = {}
    for kind in sorted({*kinds, "bad-request", "unauthenticated", "forbidden", "not-found", "invalid", "internal"}):
        entry = made.setdefault(
            KINDS[kind].status,
            {"description": KINDS[kind].title, "model": ProblemBody, "content": {MEDIA_TYPE: {"examples": {}}}},
        )
        entry["content"][MEDIA_TYPE]["examples"][kind] = {"value": example(kind)}
    return made


def of_error(error: JuratError) -> Problem:
    """What one of ours says over HTTP: its sentence without the place, which is a path of this machine."""
    said = f"{error.what}. {error.fix}" if error.fix else error.what
    if isinstance(error, FencedOut):
        return Problem("stale-epoch", error.what)
    if isinstance(error, RewardDrift):
        return Problem("reward-drift", error.what)
    if isinstance(error, (ConfigError, DataError, ModelError)):
        return Problem("invalid", said)
    if isinstance(error, SchemaError):
        return Problem("unavailable", error.what)
    if isinstance(error, Busy):
        return Problem("too-many-requests", error.what, headers={"Retry-After": "1"})
    return Problem("unavailable", "the store does not answer", headers={"Retry-After": "5"})
