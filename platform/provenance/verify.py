"""Is the record of a run whole? Its events, its metrics, its parts, its checkpoints: what differs is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from jurat.platform.canonical import digest
from jurat.platform.provenance import blobs, folders, seal, versions
from jurat.platform.provenance.lineage import NO_WEIGHTS, damaged, made_of
from jurat.platform.runs import events, ingest, metrics
from jurat.platform.runs.records import RunInfo
from jurat.platform.runs.rollouts import verify_parts
from jurat.platform.runs.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    events: int
    points: int
    """Of metrics."""
    parts: int
    checkpoints: int
    """Of which a folder is there: a run keeps its last ones only."""
    faults: tuple[str, ...]

    @property
    def whole(self) -> bool:
        return not self.faults


def verify(store: Store, run: RunInfo) -> Report:
    """Walk the chain of events; hold metric points to their fingerprints, what searches read to the points, and the rows of
    a finished run to its seal; hash every part and every checkpoint that is there, superseded ones too."""
    told = store.events(run)
    faults = [broken] if (broken := events.broken(told)) else []
    moves = [event for event in told if event.kind == "state"]
    if moves and moves[-1].payload.get("to") != run.state:
        faults.append(f"the run is {run.state}, its last event says {moves[-1].payload.get('to')}: an event is missing")
    faults += store.read(lambda connection: seal.broken(connection, run))
    faults += store.read(lambda connection: list(_contents(connection, run)))
    points, changed = store.read(lambda connection: ingest.faults(connection, run.pk))
    faults += changed
    faults += store.read(lambda connection: metrics.newest_faults(connection, run.pk))
    faults += verify_parts(store, run)
    saved = store.checkpoints(run, all_rows=True)
    there = [each for each in saved if Path(each.ref.path).is_dir()]
    by_path = {each.ref.path: each for each in there}  # a step that was taken again replaced the folder of the first
    light = bool(run.meta.get(NO_WEIGHTS))
    faults += [fault for e in by_path.values() for fault in _checkpoint(Path(e.ref.path), e.ref.digest, light)]
    return Report(
        events=len(told),
        points=points,
        parts=len(store.parts(run, kind=None, canonical=False)),
        checkpoints=len(by_path),
        faults=tuple(faults),
    )


def _contents(connection: sa.Connection, run: RunInfo) -> Iterator[str]:
    """Rewards, sources of verifiers and patches that are not what their digest says."""
    for node, said in made_of(connection, run).nodes.items():
        if node.kind == "reward_spec" and (wrong := versions.unlike(connection, node.id)):
            yield f"{node.kind} {node.id}: {wrong}"
        named = said.get({"verifier_version": "source", "environment": "patch"}.get(node.kind, ""))
        content = blobs.get(connection, named) if named else None
        if named and content is None:
            yield f"{node.kind} {node.id}: its content {named[:19]}... is missing"
        elif named and content is not None and digest(content) != named:
            yield f"{node.kind} {node.id}: its content is not what its digest {named[:19]}... says"


def _checkpoint(path: Path, recorded: str, without_weights: bool) -> Iterator[str]:
    manifest = path / "manifest.json"
    if not manifest.is_file():
        yield f"{path}: manifest.json is missing"
        return
    found = folders.file_digest(manifest)
    if found != recorded:
        yield f"{manifest}: its digest is {found[:19]}..., recorded was {recorded[:19]}..."
    elif wrong := damaged(path, without_weights=without_weights):
        yield f"{path}: {wrong}"
