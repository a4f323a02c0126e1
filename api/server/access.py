"""Who may call: API keys, requests that must not be done twice, and the record of what was refused or changed.

All SQL of the tables ``api_key``, ``idempotency`` and ``audit``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from jurat.api.server import keys
from jurat.api.server.problems import Problem
from jurat.platform.db import tables as t
from jurat.platform.db.engine import reading, writing
from jurat.platform.runs.store import now

log = logging.getLogger(__name__)

CACHE_SECONDS = 5.0
"""How long a key that was found is believed without another look: another process's revocation takes this long."""
USED_EVERY = 60_000_000
"""Microseconds between two notes of a key's last use."""
IDEMPOTENT_SECONDS = 86_400
IN_FLIGHT_SECONDS = 120
"""After this a first request that never answered is taken for dead with its process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who calls."""

    name: str
    """``local``, ``key:<key id>`` or ``run:<run>``."""
    scopes: frozenset[str]
    run: keys.RunToken | None = None

    def may(self, scope: str) -> bool:
        return scope in self.scopes or "admin" in self.scopes


LOCAL = Principal(name="local", scopes=frozenset(keys.SCOPES))


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    key_id: str
    name: str
    scopes: tuple[str, ...]
    created: int
    expires: int | None
    last_used: int | None
    revoked_at: int | None


class Keys:
    """Kept keys. Safe to use from several threads."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, sa.RowMapping]] = {}

    def any(self) -> bool:
        """Whether there is one that has not been revoked."""
        with reading(self._engine) as connection:
            return connection.execute(sa.select(t.api_key.c.key_id).where(t.api_key.c.revoked_at.is_(None)).limit(1)).first() is not None

    def create(self, name: str, scopes: Sequence[str], *, seconds: float | None = None) -> tuple[ApiKey, str]:
        """(what is kept, the key itself). Raises ConfigError for a scope there is not."""
        kept, made, at = keys.check_scopes(scopes), keys.make(), now()
        row = {
            "key_id": made.key_id, "secret_sha256": made.secret_sha256, "name": t.visible(name), "scopes": list(kept),
            "created": at, "expires": None if seconds is None else at + int(seconds * 1e6),
        }  # fmt: skip
        with writing(self._engine) as connection:
            connection.execute(sa.insert(t.api_key).values(**row))
        return self.one(made.key_id), made.key

    def one(self, key_id: str) -> ApiKey:
        found = [key for key in self.all() if key.key_id == key_id]
        if not found:
            raise Problem("not-found", "there is no such key")
        return found[0]

    def all(self) -> list[ApiKey]:
        """Oldest first."""
        with reading(self._engine) as connection:
            rows = connection.execute(sa.select(t.api_key).order_by(t.api_key.c.created, t.api_key.c.key_id)).mappings().all()
        return [ApiKey(**{n: tuple(row[n]) if n == "scopes" else row[n] for n in ApiKey.__slots__}) for row in rows]

    def revoke(self, key_id: str) -> ApiKey:
        with writing(self._engine) as connection:
            k = t.api_key.c
            connection.execute(sa.update(t.api_key).where(k.key_id == key_id, k.revoked_at.is_(None)).values(revoked_at=now()))
        with self._lock:
            self._known.pop(key_id, None)
        return self.one(key_id)

    def principal(self, key: str) -> Principal | None:
        """Who shows this key; None for one that is unknown, wrong, revoked or past its time."""
        parts = keys.split(key)
        if parts is None:
            return None
        row = self._row(parts[0])
        # compared also where there is no such key, in the same time
        right = keys.same(parts[1], row["secret_sha256"] if row is not None else "0" * 64)
        if row is None or not right or row["revoked_at"] is not None or (row["expires"] or 1 << 62) < now():
            return None
        self._note_use(row)
        return Principal(name=f"key:{parts[0]}", scopes=frozenset(row["scopes"]))

    def _row(self, key_id: str) -> sa.RowMapping | None:
        with self._lock:
            at, found = self._known.get(key_id, (0.0, None))
        if found is not None and time.monotonic() - at < CACHE_SECONDS:
            return found
        with reading(self._engine) as connection:
            found = connection.execute(sa.select(t.api_key).where(t.api_key.c.key_id == key_id)).mappings().first()
        if found is not None:
            with self._lock:
                self._known[key_id] = (time.monotonic(), found)
        return found

    def _note_use(self, row: sa.RowMapping) -> None:
        at = now()
        if at - (row["last_used"] or 0) < USED_EVERY:
            return
        with self._lock:
            self._known.pop(row["key_id"], None)
        with writing(self._engine) as connection:
            k = t.api_key.c
            before = sa.or_(k.last_used.is_(None), k.last_used < at - USED_EVERY)
            connection.execute(sa.update(t.api_key).where(k.key_id == row["key_id"], before).values(last_used=at))


# ---- idempotency -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class Idempotency:
    """Answers kept by (principal, key) for a day."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def begin(self, principal: str, key: str, route: str, body_sha256: str) -> Answer | None:
        """None: the request is new, and ours to do. An answer: it was done. Raises Problem for a key that was used for
        another request, or whose first request goes on."""
        at = now()
        row = {
            "principal": principal, "key": key, "route": route, "body_sha256": body_sha256, "created": at,
            "expires": at + IDEMPOTENT_SECONDS * 1_000_000,
        }  # fmt: skip
        i = t.idempotency.c
        mine = sa.and_(i.principal == principal, i.key == key)
        with writing(self._engine) as connection:
            connection.execute(sa.delete(t.idempotency).where(i.expires < at))
            connection.execute(sa.delete(t.idempotency).where(mine, i.status.is_(None), i.created < at - IN_FLIGHT_SECONDS * 1_000_000))
        try:
            with writing(self._engine) as connection:
                connection.execute(sa.insert(t.idempotency).values(**row))
            return None
        except IntegrityError:
            pass
        with reading(self._engine) as connection:
            found = connection.execute(sa.select(t.idempotency).where(mine)).mappings().first()
        if found is not None and (found["route"], found["body_sha256"]) != (route, body_sha256):
            raise Problem("key-reused", "this Idempotency-Key was used for another request",
                          errors=[{"pointer": "Idempotency-Key", "code": "key-reused", "message": "take a new one"}])  # fmt: skip
        if found is None or found["status"] is None:
            raise Problem("in-flight", "the first request with this key goes on", headers={"Retry-After": "1"})
        return Answer(status=found["status"], headers=found["headers"], body=bytes(found["body"]))

    def done(self, principal: str, key: str, answer: Answer) -> None:
        i = t.idempotency.c
        with writing(self._engine) as connection:
            connection.execute(
                sa.update(t.idempotency)
                .where(i.principal == principal, i.key == key)
                .values(status=answer.status, headers=dict(answer.headers), body=answer.body)
            )

    def forget(self, principal: str, key: str) -> None:
        """The request failed before it did anything: it may be sent again."""
        i = t.idempotency.c
        with writing(self._engine) as connection:
            connection.execute(sa.delete(t.idempotency).where(i.principal == principal, i.key == key, i.status.is_(None)))


# ---- audit -------------------------------------------------------------------------------------------------------


class Audit:
    """What was refused and what was changed, by whom. Texts are kept without control characters and cut."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def note(self, principal: str, action: str, target: str, request_id: str, outcome: str) -> None:
        row = {"principal": principal, "action": action, "target": target, "request_id": request_id, "outcome": outcome}
        kept = {name: blotted(value)[:200] for name, value in row.items()}
        with writing(self._engine) as connection:
            connection.execute(sa.insert(t.audit).values(at=now(), **kept))

    def all(self, limit: int = 1000) -> list[dict[str, Any]]:
        """Newest first."""
        with reading(self._engine) as connection:
            return [dict(row) for row in connection.execute(sa.select(t.audit).order_by(t.audit.c.pk.desc()).limit(limit)).mappings()]


def blotted(text: str) -> str:
    """Without keys and without control characters: for logs and the audit."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in keys.SHAPE.sub("jurat_[...]", t.visible(text)))
