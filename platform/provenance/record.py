"""All that the database says of a run, as JSON, and back: what a bundle holds, and what a run's folder keeps of itself."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from jurat.platform.canonical import digest
from jurat.platform.db import tables as t
from jurat.platform.db.insert import insert_new
from jurat.platform.errors import DataError, NameTaken
from jurat.platform.provenance import edges, secrets
from jurat.platform.provenance.lineage import walk
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
    numbers = [segment["no"] for segment in out["segment"]]
    back = walk(connection, [edges.segment_node(run.id, no) for no in numbers], "back")
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
    for first in range(0, len(values), 400):
        query = sa.select(table).where(table.c[column].in_(values[first : first + 400]))
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
    for row in record["blob"]:
        content = base64.b64decode(row["content"], validate=True)
        if digest(content) != row["digest"]:
            raise ValueError("a blob is not what its digest says")
        insert_new(connection, t.blob, [{**_row(t.blob, row), "content": content}])
    for name in (*SHARED.values(), "reward_member"):
        table = t.metadata.tables[name]
        insert_new(connection, table, [_row(table, row) for row in record[name]])
    _releases(connection, record["verifier"])
    for row in record["verifier_observation"]:
        connection.execute(sa.insert(t.verifier_observation).values(**_row(t.verifier_observation, row)))
    insert_new(connection, t.edge, [_row(t.edge, row) for row in record["edge"]])
    given = _row(t.run, record["run"])
    if given["ended"] is None or given["state"] not in ENDED:  # nobody works on a copy, nor begins to, whatever it says
        given |= {"state": "interrupted", "ended": given["started"] or given["created"]}
    pk = connection.execute(sa.insert(t.run).values(**given).returning(t.run.c.pk)).scalar_one()
    was = Path(record["folder"])
    for name in OF_RUN:
        table = t.metadata.tables[name]
        rows = [{**_row(table, row), "run_pk": pk} for row in record[name]]
        if name == "checkpoint":
            rows = [{**row, "path": _moved(row["path"], was, folder)} for row in rows]
        insert_new(connection, table, rows)
    return int(pk)


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


def _releases(connection: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    n, rel = t.verifier.c, t.verifier_release.c
    for row in rows:
        insert_new(connection, t.verifier, [{"name": row["name"], "kind": row["kind"], "created": 0}])
        pk = connection.execute(sa.select(n.pk).where(n.name == row["name"])).scalar_one()
        here = sa.select(rel.ordinal).where(rel.verifier_pk == pk)
        if connection.execute(here.where(rel.version_digest == row["version_digest"])).first() is None:
            last = connection.execute(sa.select(sa.func.max(rel.ordinal)).where(rel.verifier_pk == pk)).scalar() or 0
            values = {"verifier_pk": pk, "ordinal": last + 1, "version_digest": row["version_digest"]}
            connection.execute(sa.insert(t.verifier_release).values(**values))
