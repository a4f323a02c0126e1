"""A run's provenance as PROV-JSON (W3C submission of 2013): what it was made of are entities, its segments activities.

Only what the record says; names are qualified by ``jurat:``, digests without their colon.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from jurat.platform.db import tables as t
from jurat.platform.provenance import edges
from jurat.platform.provenance.lineage import made_of, walk
from jurat.platform.provenance.records import Node
from jurat.platform.runs.records import RunInfo

NAMESPACE = "urn:jurat:provenance:"
_ACTIVITY, _AGENT = "segment", "agent"


def document(connection: sa.Connection, run: RunInfo) -> dict[str, Any]:
    """All that the run's segments used and made, back to its beginnings: equal for equal records."""
    back = made_of(connection, run)
    made = edges.out_of(connection, back.roots)
    nodes = {**back.nodes, **walk(connection, [edge.dst for edge in made], "back", depth=0).nodes}
    out: dict[str, Any] = {"prefix": {"jurat": NAMESPACE}}

    def put(kind: str, name: str, value: Mapping[str, Any]) -> None:
        out.setdefault(kind, {})[name] = dict(value)

    for node, said in sorted(nodes.items()):
        if node.kind == _ACTIVITY:
            put("activity", _name(node), _activity(said))
        else:
            put("entity", _name(node), {"prov:type": _typed(f"jurat:{node.kind}"), **_attributes(said)})
    owners = sa.select(t.segment.c.no, t.segment.c.owner, t.segment.c.host).where(t.segment.c.run_pk == run.pk)
    for row in connection.execute(owners.order_by(t.segment.c.no)):
        agent = f"jurat:{_AGENT}/{_plain(row.owner or row.host)}"
        put("agent", agent, {"prov:type": _typed("prov:SoftwareAgent")})
        activity = _name(edges.segment_node(run.id, row.no))
        put("wasAssociatedWith", f"_:a{row.no}", {"prov:activity": activity, "prov:agent": agent})
    joins = sorted({*back.edges, *made}, key=lambda e: (e.src, e.dst, e.role))
    for place, edge in enumerate(joins):
        kind, value = _relation(edge.src, edge.dst)
        put(
            kind,
            f"_:r{place}",
            {**value, "prov:role" if kind in ("used", "wasGeneratedBy") else "jurat:role": edge.role},
        )
    for one, two in itertools.pairwise(back.roots):
        put(
            "wasInformedBy",
            f"_:i{two.id.rpartition('/')[2]}",
            {"prov:informed": _name(two), "prov:informant": _name(one)},
        )
    return out


def _relation(src: Node, dst: Node) -> tuple[str, dict[str, str]]:
    if dst.kind == _ACTIVITY:
        return "used", {"prov:activity": _name(dst), "prov:entity": _name(src)}
    if src.kind == _ACTIVITY:
        return "wasGeneratedBy", {"prov:entity": _name(dst), "prov:activity": _name(src)}
    return "wasDerivedFrom", {"prov:generatedEntity": _name(dst), "prov:usedEntity": _name(src)}


def _activity(said: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {"prov:type": _typed("jurat:segment")}
    if said.get("started"):
        out["prov:startTime"] = _time(said["started"])
    if said.get("ended"):
        out["prov:endTime"] = _time(said["ended"])
    return {
        **out,
        **_attributes({k: said[k] for k in ("stage", "first_step", "to_step", "ending", "epoch") if k in said}),
    }


def _attributes(said: Mapping[str, Any]) -> dict[str, Any]:
    """Scalars only, as PROV-JSON has no others."""
    return {
        f"jurat:{key}": value
        for key, value in sorted(said.items())
        if isinstance(value, (str, int, float)) and value != ""
    }


def _typed(name: str) -> dict[str, str]:
    return {"$": name, "type": "prov:QUALIFIED_NAME"}


def _name(node: Node) -> str:
    return f"jurat:{node.kind}/{_plain(node.id)}"


def _plain(text: str) -> str:
    return "".join(char if char.isalnum() or char in "-._/" else "-" for char in text)


def _time(micros: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(micros // 1_000_000)) + f".{micros % 1_000_000:06d}+00:00"
