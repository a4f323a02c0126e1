"""Edges between what a run is made of, what it is, and what it made: written in the transaction of the fact."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from jurat.platform.db import tables as t
from jurat.platform.db.chunks import chunks
from jurat.platform.db.clock import now
from jurat.platform.db.insert import insert_new
from jurat.platform.provenance.records import Edge, Node


def add(connection: sa.Connection, edges: Iterable[Edge]) -> None:
    """Those that are not there yet."""
    at = now(connection)
    rows = [
        {"src_kind": e.src.kind, "src": e.src.id, "dst_kind": e.dst.kind, "dst": e.dst.id, "role": e.role,
         "run_id": e.run_id, "at": e.at or at}
        for e in edges
    ]  # fmt: skip
    insert_new(connection, t.edge, rows)


def segment_node(run_id: str, no: int) -> Node:
    return Node(kind="segment", id=f"{run_id}/{no}")


def of_checkpoints(connection: sa.Connection, run_pk: int, rows: Sequence[Mapping[str, Any]]) -> None:
    """rows: of the table ``checkpoint``."""
    run_id = connection.execute(sa.select(t.run.c.id).where(t.run.c.pk == run_pk)).scalar_one()
    made = []
    for row in rows:
        node = Node(kind="checkpoint", id=row["digest"])
        at = int(row["at"])
        made.append(Edge(src=segment_node(run_id, row["segment"]), dst=node, role="generated", run_id=run_id, at=at))
        if row["parent"]:
            parent = Node(kind="checkpoint", id=row["parent"])
            made.append(Edge(src=parent, dst=segment_node(run_id, row["segment"]), role="began", run_id=run_id, at=at))
    add(connection, made)


def into(connection: sa.Connection, nodes: Sequence[Node]) -> list[Edge]:
    """Edges that end in one of these."""
    return _found(connection, nodes, t.edge.c.dst_kind, t.edge.c.dst)


def out_of(connection: sa.Connection, nodes: Sequence[Node]) -> list[Edge]:
    """Edges that begin in one of these."""
    return _found(connection, nodes, t.edge.c.src_kind, t.edge.c.src)


def of_run(connection: sa.Connection, run_id: str) -> list[Edge]:
    query = sa.select(t.edge).where(t.edge.c.run_id == run_id)
    return [_edge(row) for row in connection.execute(query).mappings()]



def _found(connection: sa.Connection, nodes: Sequence[Node], kind: sa.Column[Any], ident: sa.Column[Any]) -> list[Edge]:
    by_kind: dict[str, list[str]] = {}
    for node in nodes:
        by_kind.setdefault(node.kind, []).append(node.id)
    out = []
    for of_kind, ids in sorted(by_kind.items()):
        for some in chunks(ids):
            query = sa.select(t.edge).where(kind == of_kind, ident.in_(some))
            out += [_edge(row) for row in connection.execute(query).mappings()]
    return sorted(out, key=lambda e: (e.at, e.src, e.dst, e.role))


def _edge(row: sa.RowMapping) -> Edge:
    return Edge(
        src=Node(kind=row["src_kind"], id=row["src"]), dst=Node(kind=row["dst_kind"], id=row["dst"]), role=row["role"],
        run_id=row["run_id"], at=row["at"],
    )  # fmt: skip
