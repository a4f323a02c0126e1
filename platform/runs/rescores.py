"""Re-scorings: verdicts of another verifier version on stored rollouts. The table ``rescore``, and the parts of kind ``rescore``.

A part of rollouts has at most a few such parts for each version, under ``rescores/VERSION/``: each holds verdicts of rollouts
that no other of them has, so that one (rollout, version) is judged once whoever asks, and no verdict is ever written over.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import pyarrow as pa
import sqlalchemy as sa

from jurat.platform.canonical import digest
from jurat.platform.db import tables as t
from jurat.platform.db.clock import now
from jurat.platform.db.insert import insert_new
from jurat.platform.errors import ConfigError, FencedOut, RunFailed, nearest
from jurat.platform.provenance import edges
from jurat.platform.provenance.records import Edge, Node
from jurat.platform.runs import rollouts
from jurat.platform.runs.records import Part, RunInfo
from jurat.platform.runs.repository import insert_facts
from jurat.platform.runs.store import Store
from jurat.platform.types import Verdict

State = Literal["queued", "running", "interrupted", "finished", "failed"]
KIND = "rescore"
LEASE_SECONDS = 120.0
"""Renewed with every part, and between them every few seconds."""
SCHEMA = pa.schema(
    [
        ("rollout_id", pa.string()),
        ("segment", pa.int32()),
        ("step", pa.int64()),
        ("verdict", rollouts.VERDICT),  # its member is ''
    ]
)
_r = t.rescore.c


STRATIFY = ("source", "length", "step", "difficulty")
"""What a sample may be spread over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which stored rollouts, and how they are compared: with the two versions it is what a re-scoring is known by."""

    runs: tuple[str, ...]
    where: str = ""
    """A filter of rollouts, as of ``GET /runs/{run}/rollouts``."""
    sample: int | None = None
    """About so many, in whole groups: the first with which the number is reached in each stratum."""
    stratify: tuple[str, ...] = ("source", "length")
    seed: int = 0
    threshold: float = 0.5
    """Scores from it on pass."""
    again: bool = False
    """Judge with the old version too: what differs from the stored verdicts is the environment's doing."""

    def __post_init__(self) -> None:
        if wrong := sorted(set(self.stratify) - set(STRATIFY)):
            what = f"no stratum is called {wrong[0]!r}.{nearest(wrong[0], STRATIFY)}"
            raise ConfigError(what, where="stratify", fix=", ".join(STRATIFY))
        if not self.runs:
            raise ConfigError("no run is named", where="runs", fix="name at least one")

    def as_json(self) -> dict[str, Any]:
        made = asdict(self)
        return {**made, "runs": sorted(set(self.runs)), "stratify": sorted(self.stratify)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rescore:
    """One question about stored rollouts, and how far its answer is. Times are UTC epoch microseconds."""

    id: str
    """By the versions and the selection: the same question has the same id."""
    from_version: str
    to_version: str
    selection: Mapping[str, Any]
    state: State
    detail: str
    """Why it failed."""
    done: int
    """Samples, of ``total``."""
    total: int | None
    lease_owner: str | None
    lease_until: int | None
    report: str | None
    """Digest of the blob."""
    verdict: str | None
    created: int
    created_by: str
    ended: int | None


def id_of(from_version: str, to_version: str, selection: Mapping[str, Any]) -> str:
    asked = {"schema": 1, "kind": KIND, "from": from_version, "to": to_version, "selection": dict(selection)}
    return f"x-{digest(asked).removeprefix('sha256:')[:16]}"


def owner() -> str:
    """Names this process; another of this machine is asked whether it lives."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


# ---- the table ---------------------------------------------------------------------------------------------------


def ask(
    connection: sa.Connection, from_version: str, to_version: str, selection: Mapping[str, Any], *, by: str = ""
) -> Rescore:
    """The row of this question; a new one is ``queued``, and one that ended is again, for rollouts that came since."""
    name, at = id_of(from_version, to_version, selection), now(connection)
    row = {
        "id": name, "from_version": from_version, "to_version": to_version, "selection": dict(selection),
        "state": "queued", "created": at, "created_by": t.visible(by),
    }  # fmt: skip
    insert_new(connection, t.rescore, [row])
    free = sa.or_(_r.lease_until.is_(None), _r.lease_until < at)
    connection.execute(sa.update(t.rescore).where(_r.id == name, free).values(state="queued", detail=""))
    return find(connection, name)


def take(connection: sa.Connection, name: str, by: str) -> None:
    """This process works on it from now on. Raises RunFailed where another one does."""
    row = connection.execute(sa.select(t.rescore).where(_r.id == name).with_for_update()).mappings().one()
    at = now(connection)
    if row["lease_owner"] and (row["lease_until"] or 0) >= at and _lives(row["lease_owner"]):
        raise RunFailed(
            f"re-scoring {name} is being done by {row['lease_owner'].rpartition(':')[0]}", where=name,
            fix="wait for it; a process that died is replaced at once on its machine, elsewhere in two minutes",
        )  # fmt: skip
    until = at + int(LEASE_SECONDS * 1e6)
    connection.execute(
        sa.update(t.rescore)
        .where(_r.id == name)
        .values(state="running", detail="", lease_owner=by, lease_until=until, ended=None, done=0, total=None)
    )


def _lives(holder: str) -> bool:
    """False only for a process of this machine that is gone."""
    host, pid, _ = holder.rsplit(":", 2)
    if host != socket.gethostname():
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def beat(connection: sa.Connection, name: str, by: str, *, done: int, total: int) -> None:
    """The lease goes on. Raises FencedOut where another process took it over."""
    until = now(connection) + int(LEASE_SECONDS * 1e6)
    held = sa.update(t.rescore).where(_r.id == name, _r.lease_owner == by)
    if not connection.execute(held.values(lease_until=until, done=done, total=total)).rowcount:
        raise FencedOut(f"re-scoring {name} was taken over", where=name, fix="let the other process finish it")


def end(
    connection: sa.Connection,
    name: str,
    by: str,
    state: State,
    *,
    detail: str = "",
    report: str | None = None,
    verdict: str | None = None,
) -> None:
    """Only by the process that holds it. A report of before stays where there is no new one."""
    values: dict[str, Any] = {"state": state, "ended": now(connection), "lease_owner": None, "lease_until": None}
    values |= {"detail": t.visible(detail), **({} if report is None else {"report": report, "verdict": verdict})}
    connection.execute(sa.update(t.rescore).where(_r.id == name, _r.lease_owner == by).values(**values))


def never_began(connection: sa.Connection, name: str, detail: str) -> None:
    """Its process ended without taking it."""
    values = {"state": "failed", "detail": t.visible(detail), "ended": now(connection)}
    connection.execute(sa.update(t.rescore).where(_r.id == name, _r.state == "queued").values(**values))


def find(connection: sa.Connection, named: str) -> Rescore:
    """By id or a beginning that only one has. A lease that lapsed is told as ``interrupted``. Raises ConfigError."""
    query = sa.select(t.rescore).where(_r.id.startswith(named, autoescape=True)).order_by(_r.id).limit(2)
    rows = connection.execute(query).mappings().all() if named else []
    if len(rows) != 1:
        known = list(connection.execute(sa.select(_r.id).limit(1000)).scalars())
        what = (
            f"several re-scorings begin with {named!r}" if rows else f"no re-scoring {named!r}.{nearest(named, known)}"
        )
        raise ConfigError(what, where="re-scoring", fix="jurat rescore --from V7 --to V8 --runs RUN makes one")
    return _told(rows[0], now(connection))


def listed(connection: sa.Connection, *, limit: int = 100) -> list[Rescore]:
    """Newest first."""
    rows = connection.execute(sa.select(t.rescore).order_by(_r.created.desc(), _r.id).limit(limit)).mappings().all()
    at = now(connection)
    return [_told(row, at) for row in rows]


def _told(row: sa.RowMapping, at: int) -> Rescore:
    lapsed = row["state"] == "running" and (row["lease_until"] or 0) < at
    return Rescore(**{key: row[key] for key in Rescore.__slots__} | ({"state": "interrupted"} if lapsed else {}))


# ---- parts -------------------------------------------------------------------------------------------------------


def folder_of(version: str) -> str:
    return f"{rollouts.RESCORES}/{version.removeprefix('sha256:')[:16]}/"


def parts(store: Store, run: RunInfo, version: str) -> dict[tuple[int, int], list[Part]]:
    """(segment, step) -> the parts with this version's verdicts on its rollouts."""
    found: dict[tuple[int, int], list[Part]] = {}
    for part in store.parts(run, kind=KIND):
        if part.path.startswith(folder_of(version)):
            found.setdefault((part.segment, part.step_min), []).append(part)
    return found


def write(store: Store, run: RunInfo, part: Part, version: str, verdicts: Mapping[str, Verdict], rescore: str) -> Part:
    """A part of verdicts {rollout id: verdict} on the rollouts of ``part``, with its row and its edge. Raises OSError."""
    rows = [
        {
            "rollout_id": name,
            "segment": part.segment,
            "step": part.step_min,
            "verdict": rollouts.verdict_row("", verdict),
        }
        for name, verdict in verdicts.items()
    ]
    notes = {"jurat.schema": rollouts.SCHEMA_VERSION, "jurat.run": run.id, "jurat.version": version}
    notes |= {"jurat.segment": part.segment, "jurat.step": part.step_min, "jurat.of": part.digest}
    schema = SCHEMA.with_metadata({key: str(value) for key, value in notes.items()})
    table = pa.Table.from_pylist(rows, schema=schema)
    name = f"{folder_of(version)}{part.stage or 'main'}/step-{part.step_min:06d}-seg{part.segment}.parquet"
    path, digested, size = rollouts.write_part(run.folder, table, name)

    def catalogue(connection: sa.Connection) -> dict[str, Any]:
        place = {"segment": part.segment, "step": part.step_min, "rows": len(rows), "at": now(connection)}
        row = rollouts.part_row(path, digested, size, kind=KIND, **place)
        insert_facts(connection, t.data_part, run.pk, [row])
        made = Node(kind="data_part", id=digested)
        edges.add(connection, [Edge(src=Node(kind=KIND, id=rescore), dst=made, role="verdicts")])
        return row

    row = store.write(catalogue)
    kept = {key: row[key] for key in Part.__slots__ if key != "stage"}
    return Part(stage=part.stage, **kept)


def joined(connection: sa.Connection, found: Rescore, runs: Sequence[RunInfo]) -> None:
    """Edges: both versions, and the runs whose rollouts were read, to the re-scoring."""
    here = Node(kind=KIND, id=found.id)
    joins = [
        Edge(src=Node(kind="verifier_version", id=version), dst=here, role=role)
        for version, role in ((found.from_version, "from"), (found.to_version, "to"))
    ]
    joins += [Edge(src=Node(kind="run", id=run.id), dst=here, role="rollouts") for run in runs]
    edges.add(connection, joins)
