"""Where a number came from: what a thing was made of, what was made of it, what a bad verifier taints, how two runs differ."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import sqlalchemy as sa
from fastapi import Query, Response

from jurat.api.server import strict
from jurat.api.server.problems import Problem, responses
from jurat.api.server.search import bounded
from jurat.api.server.service import CanRead, Here, run_named
from jurat.api.server.shapes import tell
from jurat.platform.provenance import lineage
from jurat.platform.provenance.records import Node
from jurat.platform.provenance.verify import verify

router = strict.routes("provenance")

Kind = Literal[
    "run",
    "segment",
    "checkpoint",
    "verifier_version",
    "reward_spec",
    "dataset_version",
    "model_version",
    "environment",
    "export",
    "rescore",
    "data_part",
]


def _told(walk: lineage.Walk) -> dict[str, Any]:
    return {
        "roots": [_node(node) for node in walk.roots],
        "nodes": [{**_node(node), "facts": _facts(facts)} for node, facts in walk.nodes.items()],
        "edges": [{"from": _node(edge.src), "to": _node(edge.dst), "role": edge.role} for edge in walk.edges],
        "cut": walk.cut,
    }


def _node(node: Node) -> dict[str, str]:
    return {"kind": node.kind, "id": node.id}


def _facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Without where things lie on this machine."""
    return {key: value for key, value in facts.items() if key not in ("path", "folder", "host")}


def _known(connection: sa.Connection, kind: str, named: str) -> Node:
    """By a whole id; a path is none. Raises Problem."""
    node = Node(kind=kind, id=named)
    if len(named) > 200 or "\x00" in named or (kind == "segment" and not re.fullmatch(r"[^/]+/\d{1,9}", named)):
        raise Problem("not-found", f"there is no {kind.replace('_', ' ')} of that id")
    if not lineage.facts(connection, [node]).get(node):
        raise Problem("not-found", f"there is no {kind.replace('_', ' ')} of that id")
    return node


@router.get(
    "/provenance/affected", summary="All that a bad verifier version taints", responses=responses("query-too-slow")
)
def affected(service: Here, who: CanRead, verifier_version: Annotated[str, Query(max_length=100)]) -> Response:
    """Rewards, segments, their checkpoints, runs that began from these, exports; and how many verdicts it gave in each run."""
    with bounded(service.store) as connection:
        node = _known(connection, "verifier_version", verifier_version)
        walk, judged = lineage.affected(connection, node), lineage.judged(connection, node.id)
        used = lineage.uses(connection, node)
    return tell({**_told(walk), "runs": [run["id"] for run in used], "judged": judged})


@router.get(
    "/provenance/{kind}/{id:path}",
    summary="What a thing was made of, or what was made of it",
    responses=responses("query-too-slow"),
)
def provenance(
    kind: Kind,
    id: str,
    service: Here,
    who: CanRead,
    direction: Literal["back", "forward"] = "back",
    depth: Annotated[int, Query(ge=1, le=100)] = 100,
) -> Response:
    with bounded(service.store) as connection:
        return tell(_told(lineage.walk(connection, [_known(connection, kind, id)], direction, depth=depth)))


@router.get(
    "/runs:diff",
    summary="How two runs differ: config, reward, data, environment, metrics",
    responses=responses("query-too-slow"),
)
def diff(
    service: Here, who: CanRead, a: Annotated[str, Query(max_length=64)], b: Annotated[str, Query(max_length=64)]
) -> Response:
    one, two = run_named(service, a), run_named(service, b)
    with bounded(service.store) as connection:
        return tell(lineage.difference(connection, one, two))


@router.post("/runs/{run}:verify", summary="Hash everything of a run that is here", responses=responses())
def verify_run(run: str, service: Here, who: CanRead) -> Response:
    """The chain of its events, its metric points, its parts and its checkpoints; each fault names what was changed."""
    found = run_named(service, run)
    report = verify(service.store, found)
    faults = [fault.replace(str(found.folder) + "/", "") for fault in report.faults]
    return tell(
        {
            "whole": report.whole,
            "events": report.events,
            "points": report.points,
            "parts": report.parts,
            "checkpoints": report.checkpoints,
            "faults": faults,
        }
    )
