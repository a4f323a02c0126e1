"""Keys, idempotent requests and the audit trail of the service. All SQL of them; what they mean over HTTP is ``api/``'s.

A key is ``jurat_<key id>_<secret>``: 256 random bits, of which the sha256 is kept, so a slow hash would only cost time.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from jurat.platform.db import tables as t
from jurat.platform.db.clock import now
from jurat.platform.db.insert import insert_first
from jurat.platform.errors import ConfigError

SCOPES = ("runs:read", "runs:write", "runs:launch", "verifiers:write", "data:read", "admin")
_SHAPE = re.compile(r"jurat_([0-9a-z]{12})_([A-Za-z0-9_-]{43})")
_BY, _MADE = "by", "made"
"""Among the headers of a request that is not answered: the service that does what it asks, and the run that it made."""
_USED_EVERY = 60_000_000
"""Microseconds between two notes of a key's use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key as it may be shown: the secret is nowhere."""

    key_id: str
    name: str
    scopes: tuple[str, ...]
    run_id: str | None
    """Set for a run token, which is good for this run and epoch alone."""
    epoch: int | None
    created: int
    expires: int | None
    last_used: int | None
    revoked_at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a request with an idempotency key was answered; ``status`` None while the first one is in flight."""

    route: str
    body_sha256: str
    status: int | None
    headers: Mapping[str, str] | None
    body: bytes | None

    @property
    def made(self) -> str | None:
        """The run that a request made which has no answer yet."""
        return (self.headers or {}).get(_MADE) if self.status is None else None


def _key(row: sa.RowMapping) -> Key:
    kept = {name: row[name] for name in Key.__slots__}
    return Key(**{**kept, "scopes": tuple(kept["scopes"])})


def make_key(
    connection: sa.Connection,
    name: str,
    scopes: Sequence[str],
    *,
    seconds: float | None = None,
    run_id: str | None = None,
    epoch: int | None = None,
) -> tuple[Key, str]:
    """(the key, its whole text, which is never to be had again). ``seconds``: until it expires. Raises ConfigError."""
    if wrong := [scope for scope in scopes if scope not in SCOPES]:
        raise ConfigError(f"no scope is called {wrong[0]!r}", where="scopes", fix=", ".join(SCOPES))
    at = now(connection)
    key_id = "".join(secrets.choice("0123456789abcdefghijklmnopqrstuvwxyz") for _ in range(12))
    secret = secrets.token_urlsafe(32)
    row = {
        "key_id": key_id, "secret_sha256": _hash(secret), "name": t.visible(name), "scopes": list(scopes), "run_id": run_id,
        "epoch": epoch, "created": at, "expires": None if seconds is None else at + int(seconds * 1e6),
    }  # fmt: skip
    connection.execute(sa.insert(t.api_key).values(**row))
    found = connection.execute(sa.select(t.api_key).where(t.api_key.c.key_id == key_id)).mappings().one()
    return _key(found), f"jurat_{key_id}_{secret}"


def check_key(connection: sa.Connection, text: str) -> Key | None:
    """The key whose text this is, if it is still good; None for anything else, in the same time. Needs no write."""
    shape = _SHAPE.fullmatch(text)
    key_id, secret = (shape[1], shape[2]) if shape else ("", "")
    row = connection.execute(sa.select(t.api_key).where(t.api_key.c.key_id == key_id)).mappings().first()
    expected = row["secret_sha256"] if row is not None else _hash("")
    same = hmac.compare_digest(_hash(secret), expected)
    if row is None or not same or row["revoked_at"] is not None:
        return None
    if row["expires"] is not None and row["expires"] <= now(connection):
        return None
    return _key(row)


def note_use(connection: sa.Connection, key_id: str) -> None:
    """At most once a minute does this write."""
    c, at = t.api_key.c, now(connection)
    due = sa.or_(c.last_used.is_(None), c.last_used < at - _USED_EVERY)
    connection.execute(sa.update(t.api_key).where(c.key_id == key_id, due).values(last_used=at))


def keys(connection: sa.Connection) -> list[Key]:
    """Of people and programs, oldest first; run tokens are left out."""
    c = t.api_key.c
    rows = connection.execute(sa.select(t.api_key).where(c.run_id.is_(None)).order_by(c.created, c.key_id)).mappings()
    return [_key(row) for row in rows]


def any_key(connection: sa.Connection) -> bool:
    """Whether the service has keys, so that it asks for one."""
    c = t.api_key.c
    query = sa.select(c.key_id).where(c.run_id.is_(None), c.revoked_at.is_(None)).limit(1)
    return connection.execute(query).first() is not None


def revoke(connection: sa.Connection, key_id: str) -> bool:
    """False if there is no such key, or it was revoked before."""
    c = t.api_key.c
    done = connection.execute(
        sa.update(t.api_key).where(c.key_id == key_id, c.revoked_at.is_(None)).values(revoked_at=now(connection))
    )
    return bool(done.rowcount)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


# ---- idempotent requests -----------------------------------------------------------------------------------------


def begin_request(
    connection: sa.Connection,
    principal: str,
    key: str,
    *,
    route: str,
    body_sha256: str,
    by: str = "",
    seconds: float = 86_400.0,
) -> Answer | None:
    """None: this is the first request with the key, and ``answer_request`` or ``drop_request`` is to follow. Else what is
    known of the first: whether it was the same request is for the caller to compare. Expired ones are forgotten.

    ``by``: the service that does what is asked, for ``drop_open``."""
    c, at = t.idempotency.c, now(connection)
    connection.execute(sa.delete(t.idempotency).where(c.expires < at))
    row = {
        "principal": principal, "key": key, "route": route, "body_sha256": body_sha256, "created": at,
        "expires": at + int(seconds * 1e6), "headers": {_BY: by},
    }  # fmt: skip
    if insert_first(connection, t.idempotency, row):
        return None
    found = (
        connection.execute(sa.select(t.idempotency).where(c.principal == principal, c.key == key)).mappings().first()
    )
    if found is None:  # dropped since: it may be made again
        return Answer(route=route, body_sha256=body_sha256, status=None, headers=None, body=None)
    return Answer(**{name: found[name] for name in Answer.__slots__})


def note_made(connection: sa.Connection, principal: str, key: str, run_id: str) -> None:
    """In the transaction that makes the run: should its answer never be kept, the key still stands for this run."""
    c = t.idempotency.c
    here = (c.principal == principal, c.key == key, c.status.is_(None))
    before = connection.execute(sa.select(c.headers).where(*here)).scalar() or {}
    connection.execute(sa.update(t.idempotency).where(*here).values(headers={**before, _MADE: run_id}))


def drop_open(connection: sa.Connection, by: str) -> None:
    """When the service ``by`` starts: what its former process began, and did not do, may be asked for again."""
    c = t.idempotency.c
    for row in connection.execute(sa.select(c.principal, c.key, c.headers).where(c.status.is_(None))).all():
        if (row.headers or {}).get(_BY) == by:
            drop_request(connection, row.principal, row.key)


def answer_request(
    connection: sa.Connection, principal: str, key: str, *, status: int, headers: Mapping[str, str], body: bytes
) -> None:
    """What every further request with the key is told."""
    c = t.idempotency.c
    connection.execute(
        sa.update(t.idempotency)
        .where(c.principal == principal, c.key == key)
        .values(status=status, headers=dict(headers), body=body)
    )


def drop_request(connection: sa.Connection, principal: str, key: str) -> None:
    """It failed and may be made again; one that made a run is kept."""
    c = t.idempotency.c
    here = (c.principal == principal, c.key == key, c.status.is_(None))
    if _MADE not in (connection.execute(sa.select(c.headers).where(*here)).scalar() or {}):
        connection.execute(sa.delete(t.idempotency).where(*here))


# ---- audit -------------------------------------------------------------------------------------------------------


def audit(
    connection: sa.Connection, *, principal: str, action: str, target: str, request_id: str, outcome: str
) -> None:
    """One row, which nobody changes."""
    row = {"principal": principal, "action": action, "target": target, "request_id": request_id, "outcome": outcome}
    values: dict[str, Any] = {name: t.visible(text)[:500] for name, text in row.items()}
    connection.execute(sa.insert(t.audit).values(at=now(connection), **values))
