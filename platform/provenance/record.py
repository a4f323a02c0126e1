"""All that the database says of a run, as JSON, and back: what a bundle holds, and what a run's folder keeps of itself.

A record that is taken in speaks of its own run alone. What it says of things that runs have in common is written only where
they are not known yet and, as far as a digest can be found again, only where it is what its digest says; what is known stays
as it is, and names of verifiers keep their numbers.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from jurat.platform.canonical import digest
from jurat.platform.db import tables as t
from jurat.platform.db.chunks import chunks
from jurat.platform.db.clock import now
from jurat.platform.db.insert import insert_new
from jurat.platform.errors import DataError, NameTaken
from jurat.platform.identity import Identity
from jurat.platform.provenance import edges, environment, folders, secrets, versions
from jurat.platform.provenance.lineage import made_of
from jurat.platform.provenance.records import Edge, Node
from jurat.platform.runs import events
from jurat.platform.runs.records import RunInfo
from jurat.platform.runs.states import ENDED

FORMAT = 1
OF_RUN = ("run_label", "segment", "run_event", "checkpoint", "evaluation", "data_part", "verdict_stat", "command")
"""Tables whose rows are the run's, in the order in which they are put back."""
SHARED = {
    "verifier_version": "verifier_version", "reward_spec": "reward_spec", "dataset_version": "dataset_version",
    "model_version": "model_version", "environment": "environment",
}  # fmt: skip
"""Kind of node -> table of what several runs may have in common, by digest."""
_LOCAL = ("pk", "run_pk", "lease_owner", "lease_until", "heartbeat_at", "desired", "deadline")
"""Columns of a row that mean something in its own database only."""


def read(connection: sa.Connection, run: RunInfo) -> dict[str, Any]:
    """Everything but metric points, which are a table of their own (``tables.points``)."""
    out: dict[str, Any] = {"format": FORMAT, "folder": str(run.folder)}
    row = connection.execute(sa.select(t.run).where(t.run.c.pk == run.pk)).mappings().one()
    out["run"] = _kept(row)
    out["run"]["recipe"] = secrets.redacted(out["run"]["recipe"])
    for name in OF_RUN:
        table = t.metadata.tables[name]
        query = sa.select(table).where(table.c.run_pk == run.pk).order_by(*table.primary_key.columns)
        out[name] = [_kept(row) for row in connection.execute(query).mappings()]
    back = made_of(connection, run)
    joins = {*back.edges, *edges.of_run(connection, run.id)}
    out["edge"] = [
        {"src_kind": e.src.kind, "src": e.src.id, "dst_kind": e.dst.kind, "dst": e.dst.id, "role": e.role,
         "run_id": e.run_id, "at": e.at}
        for e in sorted(joins, key=lambda e: (e.src, e.dst, e.role))
    ]  # fmt: skip
    for kind, name in SHARED.items():
        ids = sorted(node.id for node in back.nodes if node.kind == kind)
        out[name] = _by(connection, t.metadata.tables[name], "digest", ids)
    digests = [row["digest"] for row in out["verifier_version"]]
    out["reward_member"] = _by(connection, t.reward_member, "reward_digest", [r["digest"] for r in out["reward_spec"]])
    out["verifier_observation"] = _by(connection, t.verifier_observation, "run_id", [run.id])
    named = sa.select(t.verifier.c.name, t.verifier.c.kind, t.verifier_release.c.version_digest)
    named = named.join(t.verifier_release, t.verifier_release.c.verifier_pk == t.verifier.c.pk)
    rows = connection.execute(named.where(t.verifier_release.c.version_digest.in_(digests))).mappings()
    out["verifier"] = sorted((dict(row) for row in rows), key=lambda r: (r["name"], r["version_digest"]))
    wanted = {row["source"] for row in out["verifier_version"]} | {row["patch"] for row in out["environment"]}
    wanted |= {row["vector"] for row in out["verifier_observation"]}
    blobs = _by(connection, t.blob, "digest", sorted(name for name in wanted if name))
    out["blob"] = [{**row, "content": base64.b64encode(row["content"]).decode()} for row in blobs]
    return out


def _kept(row: sa.RowMapping) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in _LOCAL}


def _by(connection: sa.Connection, table: sa.Table, column: str, values: Sequence[str]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for some in chunks(values):
        query = sa.select(table).where(table.c[column].in_(some))
        out += [_kept(row) for row in connection.execute(query.order_by(*table.primary_key.columns)).mappings()]
    return out


def write(connection: sa.Connection, record: Mapping[str, Any], folder: Path) -> int:
    """Put a run's record into a database that has no run of its name; its pk. ``folder``: where its files are now.

    Raises DataError for what is no record, NameTaken.
    """
    try:
        return _write(connection, record, folder)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"not a record of a run: {type(error).__name__}: {error}", where=str(folder)) from None


def _write(connection: sa.Connection, record: Mapping[str, Any], folder: Path) -> int:
    if record["format"] != FORMAT:
        raise DataError(f"the record has format {record['format']!r}, this version reads {FORMAT}", where=str(folder))
    run_id = str(record["run"]["id"])
    if connection.execute(sa.select(t.run.c.pk).where(t.run.c.id == run_id)).first() is not None:
        raise NameTaken(f"there is a run {run_id!r} already", where=str(folder), fix="import it into another --home")
    own = [
        _row(t.edge, row) for row in record["edge"] if _own(row, run_id, {c["digest"] for c in record["checkpoint"]})
    ]
    _shared(connection, record, run_id, own)
    insert_new(connection, t.edge, _unclaimed(connection, own))
    given = _row(t.run, record["run"])
    state = given["state"]
    if going := given["ended"] is None or state not in ENDED:  # nobody works on a copy, nor begins to, whatever it says
        given |= {"state": "interrupted", "ended": given["started"] or given["created"]}
    pk = connection.execute(sa.insert(t.run).values(**given).returning(t.run.c.pk)).scalar_one()
    was = Path(record["folder"])
    for name in OF_RUN:
        table = t.metadata.tables[name]
        rows = [{**_row(table, row), "run_pk": pk} for row in record[name]]
        if name == "checkpoint":
            rows = [{**row, "path": _moved(row["path"], was, folder)} for row in rows]
        insert_new(connection, table, rows)
    if going:
        payload = {"from": state, "to": "interrupted", "detail": "taken in as it was while it went on"}
        events.add(connection, int(pk), "state", payload, at=now(connection))
    return int(pk)


# ---- what runs have in common ------------------------------------------------------------------------------------


def _own(row: Mapping[str, Any], run_id: str, checkpoints: set[str]) -> bool:
    """Whether an edge says what the run was made of, or which of its checkpoints it made."""
    segments, kind, named = f"{run_id}/", row["dst_kind"], str(row["dst"])
    if row["run_id"] != run_id:
        return False
    if kind == "checkpoint":
        return named in checkpoints and row["src_kind"] == "segment" and str(row["src"]).startswith(segments)
    return (kind == "run" and named == run_id) or (kind == "segment" and named.startswith(segments))


def _unclaimed(connection: sa.Connection, own: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Without those that say of a checkpoint which another run here recorded that this one made it."""
    made = [row["dst"] for row in own if row["dst_kind"] == "checkpoint"]
    known = _known(connection, t.checkpoint.c.digest, made)
    return [row for row in own if row["dst_kind"] != "checkpoint" or row["dst"] not in known]


def _shared(
    connection: sa.Connection, record: Mapping[str, Any], run_id: str, own: Sequence[Mapping[str, Any]]
) -> None:
    for name, found in _FOUND.items():
        for row in record[name]:
            if found(row) not in (None, row["digest"]):
                raise ValueError(f"{str(row['digest'])[:19]}... is not the digest of what it stands for")
    at = now(connection)
    used = {(row["src_kind"], row["src"]) for row in own}

    def of(name: str) -> list[Mapping[str, Any]]:
        return [row for row in record[name] if (name, row["digest"]) in used]

    seen = [row for row in record["verifier_observation"] if row["run_id"] == run_id]
    rewards = _new(connection, t.reward_spec, of("reward_spec"))
    fresh = {row["digest"] for row in rewards}
    members = [_row(t.reward_member, row) for row in record["reward_member"] if row["reward_digest"] in fresh]
    named = {row["version_digest"] for row in (*members, *seen)}
    judges = _new(connection, t.verifier_version, [row for row in record["verifier_version"] if row["digest"] in named])
    places = _new(connection, t.environment, of("environment"))
    contents = _contents(record["blob"])
    wanted = {row["source"] for row in judges} | {row["patch"] for row in places} | {row["vector"] for row in seen}
    blobs = [{"digest": name, "media_type": str(kind), "size": len(content), "content": content, "created": at}
             for name, (kind, content) in contents.items() if name in wanted]  # fmt: skip
    insert_new(connection, t.blob, blobs)
    # Its code stays open until a process here has found the same digest: then ``versions.register`` writes its own facts.
    local = {"code": "", "status": "active", "status_reason": "", "status_at": None, "status_by": "", "created": at}
    insert_new(connection, t.verifier_version, [{**row, **local} for row in judges])
    insert_new(connection, t.reward_spec, [{**row, "created": at} for row in rewards])
    insert_new(connection, t.reward_member, members)
    edges.add(connection, [
        Edge(src=Node(kind="verifier_version", id=row["version_digest"]), role=f"member:{row['label']}",
             dst=Node(kind="reward_spec", id=row["reward_digest"])) for row in members
    ])  # fmt: skip
    insert_new(connection, t.environment, [{**row, "created": at} for row in places])
    for table in (t.model_version, t.dataset_version):
        insert_new(connection, table, [{**row, "created": at} for row in _new(connection, table, of(table.name))])
    for row in seen:
        said = contents.get(row["vector"])
        if said and versions.behaviour([tuple(case) for case in json.loads(said[1])]) != row["behaviour_digest"]:
            raise ValueError("an observation is not what its digest says")
        connection.execute(sa.insert(t.verifier_observation).values(**_row(t.verifier_observation, row)))


def _contents(rows: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, bytes]]:
    """{digest: (media type, bytes)}"""
    out = {}
    for row in rows:
        content = base64.b64decode(row["content"], validate=True)
        if digest(content) != row["digest"]:
            raise ValueError("a blob is not what its digest says")
        out[str(row["digest"])] = (str(row["media_type"]), content)
    return out


def _known(connection: sa.Connection, column: sa.Column[Any], values: Sequence[str]) -> set[str]:
    return {
        found
        for some in chunks(values)
        for found in connection.execute(sa.select(column).where(column.in_(some))).scalars()
    }


def _new(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Those whose digest is not known here."""
    known = _known(connection, table.c.digest, [row["digest"] for row in rows])
    return [_row(table, row) for row in rows if row["digest"] not in known]


def _version(row: Mapping[str, Any]) -> str | None:
    """None for one that an older schema knew by its digest alone, or that was taken in where it is from."""
    if not row["code"]:
        return None
    parts = {key: row[key] for key in ("code", "config", "deps", "weights")}
    return Identity(**parts, nodes={}).digest


def _environment(row: Mapping[str, Any]) -> str:
    if row["git_commit"] != row["attrs"]["git_commit"]:
        raise ValueError("an environment has two commits")
    return environment.named(row["attrs"])


def _model(row: Mapping[str, Any]) -> str | None:
    return folders.digest_of(row["manifest"]) if row["manifest"] else None


def _dataset(row: Mapping[str, Any]) -> str:
    """Its digest is over the problems, which are not here; that it says one thing of itself can be seen."""
    said = row["manifest"]
    if any(
        t.visible(str(said.get(key, ""))) != row[column] for key, column in (("source", "name"), ("split", "split"))
    ):
        raise ValueError("a data set has two names")
    if said.get("rows", 0) != row["rows"]:
        raise ValueError("a data set has two sizes")
    return str(said["digest"])


_FOUND: Mapping[str, Callable[[Mapping[str, Any]], str | None]] = {
    "verifier_version": _version, "environment": _environment, "model_version": _model, "dataset_version": _dataset,
}  # fmt: skip
"""What each digest is over, as far as it is in the record; a reward's is over what its verifiers were bound to, which is not."""


# ---- rows --------------------------------------------------------------------------------------------------------


def _row(table: sa.Table, row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that the table has. What is no column is refused: a record says nothing that is not kept."""
    names = {column.name for column in table.columns} - {*_LOCAL}
    if unknown := sorted(set(row) - names):
        raise ValueError(f"{table.name} has no column {unknown[0]!r}")
    return dict(row)


def _moved(path: str, was: Path, folder: Path) -> str:
    """Where a checkpoint is now: inside the run's folder, whatever was said."""
    inside = Path(path)
    if ".." in inside.parts:
        raise ValueError("a checkpoint lies outside the run's folder")
    if inside.is_relative_to(was):
        return str(folder / inside.relative_to(was))
    parts = [part for part in inside.parts if part != inside.anchor]
    return str(folder.joinpath(*parts[parts.index("checkpoints") if "checkpoints" in parts else -1 :]))
