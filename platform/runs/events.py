"""Events of a run: appended, numbered, each with a digest over itself and the one before it.

A trigger refuses to change or delete one. Who edits the file itself breaks the chain, and ``broken`` names the first
event that is not what was written.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import sqlalchemy as sa

from jurat.platform.db import tables as t
from jurat.platform.runs import alarms
from jurat.platform.runs.records import Event

Row = Mapping[str, Any]
SEALED, SEALING = "sealed", "sealing"
"""``sealing`` is said before the run ends, so that the chain of its events holds it: without a seal after it one was cut off."""
OWN = frozenset({
    "state", "command", "stalled", "deleted", "collected", "scrubbed", SEALING, SEALED, "reward_change_accepted", "canary_drift",
    "nondeterministic",
})  # fmt: skip
"""Kinds that this store says of a run by ``add``. A ledger may be told any other, and none of these comes from outside."""


def link(
    before: str, *, seq: int, uid: str, segment: int | None, at: int, kind: str, payload: Mapping[str, Any]
) -> str:
    """The digest of an event whose predecessor has digest ``before`` ('' for the first)."""
    said = [before, seq, uid, segment, at, kind, normal(t.plain(payload))]
    text = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def normal(value: Any) -> Any:
    """One spelling of a number: PostgreSQL gives 1e22 back as a whole number."""
    if isinstance(value, float) and value.is_integer():
        return int(Decimal(repr(value)))
    if isinstance(value, dict):
        return {key: normal(item) for key, item in value.items()}
    return [normal(item) for item in value] if isinstance(value, list) else value


def insert(connection: sa.Connection, run_pk: int, rows: Sequence[Row]) -> None:
    """rows: uid, segment, at, kind, payload. They get the next numbers in order; a known uid is left out."""
    e = t.run_event.c
    connection.execute(sa.select(t.run.c.pk).where(t.run.c.pk == run_pk).with_for_update())
    known = set(
        connection.execute(sa.select(e.uid).where(e.run_pk == run_pk, e.uid.in_([r["uid"] for r in rows]))).scalars()
    )
    last = connection.execute(
        sa.select(e.seq, e.digest).where(e.run_pk == run_pk).order_by(e.seq.desc()).limit(1)
    ).first()
    seq, before = (int(last.seq), str(last.digest)) if last is not None else (0, "")
    made = []
    for row in {row["uid"]: row for row in rows if row["uid"] not in known}.values():
        seq += 1
        before = link(before, seq=seq, **{key: row[key] for key in ("uid", "segment", "at", "kind", "payload")})
        made.append({"run_pk": run_pk, "seq": seq, **row, "digest": before})
    if made:
        connection.execute(sa.insert(t.run_event), made)
    for row in made:
        alarms.hear(connection, run_pk, row["kind"], row["payload"], row["at"])


def add(
    connection: sa.Connection,
    run_pk: int,
    kind: str,
    payload: Mapping[str, Any],
    *,
    at: int,
    segment: int | None = None,
) -> None:
    """One event that happens now, whoever else may have said the like before."""
    row = {
        "uid": f"{kind}-{secrets.token_hex(8)}",
        "segment": segment,
        "at": at,
        "kind": kind,
        "payload": dict(payload),
    }
    insert(connection, run_pk, [row])


def read(connection: sa.Connection, run_pk: int, *, after: int, limit: int | None) -> list[Event]:
    e = t.run_event.c
    found = connection.execute(
        sa.select(t.run_event).where(e.run_pk == run_pk, e.seq > after).order_by(e.seq).limit(limit)
    ).mappings()
    return [Event(**{key: row[key] for key in Event.__slots__}) for row in found]


def broken(events: Iterable[Event]) -> str:
    """What is wrong with a run's events, whole and in order; '' if nothing is."""
    before, expected = "", 1
    for event in events:
        if event.seq != expected:
            return f"event {expected} is missing: the next one is {event.seq}"
        said = {key: getattr(event, key) for key in ("seq", "uid", "segment", "at", "kind", "payload")}
        found = link(before, **said)
        if found != event.digest:
            return f"event {event.seq} ({event.kind}) was changed: its digest is {found[:19]}..., recorded was {event.digest[:19]}..."
        before, expected = event.digest, expected + 1
    return ""
