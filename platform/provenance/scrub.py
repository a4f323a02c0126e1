"""Secrets that a run's record holds after all, taken out of everything that may be changed; what may not be is named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa

from jurat.platform.db import tables as t
from jurat.platform.db.clock import now
from jurat.platform.provenance import blobs, secrets
from jurat.platform.runs import events, search
from jurat.platform.runs.records import RunInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrubbed:
    changed: tuple[str, ...]
    """What was rewritten."""
    left: tuple[str, ...]
    """What holds a secret and cannot be changed: events, whose digests stand on one another."""


def scrub(connection: sa.Connection, run: RunInfo) -> Scrubbed:
    """Blot secrets out of a run's recipe, meta, labels, environments with their patches, checkpoints' meta and commands, and
    note that as an event. The run's spec digest stays what it was: it is of the recipe as it was run."""
    changed: list[str] = []
    c = t.run.c
    row = (
        connection.execute(sa.select(c.recipe, c.meta, c.detail).where(c.pk == run.pk).with_for_update())
        .mappings()
        .one()
    )
    tracking = row["recipe"].get("tracking")
    made = {"recipe": secrets.redacted(row["recipe"]), "meta": secrets.redacted_meta(row["meta"]),
            "detail": secrets.blotted(row["detail"])}  # fmt: skip
    if tracking:  # without its address the run is not found again
        made["recipe"]["tracking"] = tracking
    for name in made:
        if made[name] != row[name]:
            connection.execute(
                sa.update(t.run).where(c.pk == run.pk).values({name: made[name], "version": c.version + 1})
            )
            changed.append(name)
    changed += _labels(connection, run.pk)
    changed += _environments(connection, run.id)
    for table, column, what in ((t.checkpoint, "meta", "checkpoint"), (t.command, "args", "command")):
        for found in connection.execute(sa.select(table.c.pk, table.c[column]).where(table.c.run_pk == run.pk)):
            if (new := secrets.redacted(found[1])) != found[1]:
                connection.execute(sa.update(table).where(table.c.pk == found[0]).values({column: new}))
                changed.append(f"{what} {found[0]}")
    left = [
        f"event {event.seq} ({event.kind})"
        for event in events.read(connection, run.pk, after=0, limit=None)
        if secrets.redacted(event.payload) != event.payload
    ]
    if changed:
        events.add(connection, run.pk, "scrubbed", {"what": changed}, at=now(connection))
    return Scrubbed(changed=tuple(changed), left=tuple(left))


def _labels(connection: sa.Connection, run_pk: int) -> list[str]:
    changed = []
    kinds: tuple[Literal["param", "tag"], ...] = ("param", "tag")
    for kind in kinds:
        for key, text in search.labels(connection, run_pk, kind).items():
            new = secrets.redacted(text, key)
            if new != text:
                search.label(connection, run_pk, kind, {key: new})
                changed.append(f"{kind} {secrets.blotted(key)}")
    return changed


def _environments(connection: sa.Connection, run_id: str) -> list[str]:
    """An environment's digest says what it was made of, so it keeps it; its patch becomes another blob."""
    e, v, changed = t.environment.c, t.edge.c, []
    used = sa.select(v.src).where(v.src_kind == "environment", v.run_id == run_id)
    for row in connection.execute(sa.select(t.environment).where(e.digest.in_(used))).mappings().all():
        attrs: dict[str, Any] = {**row["attrs"], "argv": secrets.words(row["attrs"].get("argv") or [])}
        patch = row["patch"]
        text = (blobs.get(connection, patch) or b"").decode("utf-8", "surrogateescape") if patch else ""
        clean = secrets.blotted_code(text)
        if secrets.PRIVATE_KEY.search(clean):
            clean, attrs["patch_left_out"] = "", "it held a private key"
        if (clean, attrs) == (text, {"argv": [], **row["attrs"]}):
            continue
        new = blobs.put(connection, clean.encode("utf-8", "surrogateescape"), "text/x-patch") if clean else None
        connection.execute(sa.update(t.environment).where(e.digest == row["digest"]).values(attrs=attrs, patch=new))
        if patch is not None and patch != new:
            if not connection.execute(sa.select(e.digest).where(e.patch == patch)).first():
                connection.execute(sa.delete(t.blob).where(t.blob.c.digest == patch))
        changed.append(f"environment {row['digest'][:19]}...")
    return changed
