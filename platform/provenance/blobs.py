"""Small contents by digest: canonical sources, patches, reports. All SQL of them."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa

from jurat.platform.canonical import digest
from jurat.platform.db import tables as t
from jurat.platform.db.clock import now
from jurat.platform.db.insert import insert_new

JSON = "application/json"


_YOUNG = 3_600_000_000
"""Microseconds: one that was put less long ago is not written to again. ``jurat gc`` leaves those of a day."""


def put(connection: sa.Connection, content: bytes, media_type: str) -> str:
    """The digest, ``sha256:`` over the bytes; the content is kept once, and is new again: a collector that is at work has
    either removed it before this, or leaves it."""
    named, at, b = digest(content), now(connection), t.blob.c
    created = connection.execute(sa.select(b.created).where(b.digest == named)).scalar()
    if created is not None and created > at - _YOUNG:
        return named
    if (
        created is not None
        and connection.execute(sa.update(t.blob).where(b.digest == named).values(created=at)).rowcount
    ):
        return named
    row = {"digest": named, "media_type": media_type, "size": len(content), "content": content, "created": at}
    insert_new(connection, t.blob, [row])
    return named


def put_json(connection: sa.Connection, value: Any) -> str:
    text = json.dumps(t.plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return put(connection, text.encode("utf-8"), JSON)


def get(connection: sa.Connection, named: str) -> bytes | None:
    found = connection.execute(sa.select(t.blob.c.content).where(t.blob.c.digest == named)).scalar()
    return None if found is None else bytes(found)


def get_json(connection: sa.Connection, named: str | None) -> Any:
    """None where there is no such blob."""
    content = get(connection, named) if named else None
    return None if content is None else json.loads(content)
