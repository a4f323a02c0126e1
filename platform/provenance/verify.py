"""Is the record of a run whole? Its events, its metrics, its parts, its checkpoints: what differs is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jurat.platform.provenance import folders, seal
from jurat.platform.provenance.lineage import damaged
from jurat.platform.runs import events, ingest
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
    """Walk the chain of events; hold metric points to their fingerprints, and the rows of a finished run to its seal; hash
    every part and every checkpoint that is there, superseded ones too."""
    told = store.events(run)
    faults = [broken] if (broken := events.broken(told)) else []
    moves = [event for event in told if event.kind == "state"]
    if moves and moves[-1].payload.get("to") != run.state:
        faults.append(f"the run is {run.state}, its last event says {moves[-1].payload.get('to')}: an event is missing")
    faults += store.read(lambda connection: seal.broken(connection, run))
    points, changed = store.read(lambda connection: ingest.faults(connection, run.pk))
    faults += changed
    faults += verify_parts(store, run)
    saved = store.checkpoints(run, all_rows=True)
    there = [each for each in saved if Path(each.ref.path).is_dir()]
    by_path = {each.ref.path: each for each in there}  # a step that was taken again replaced the folder of the first
    faults += [fault for each in by_path.values() for fault in _checkpoint(Path(each.ref.path), each.ref.digest)]
    return Report(
        events=len(told),
        points=points,
        parts=len(store.parts(run, kind=None, canonical=False)),
        checkpoints=len(by_path),
        faults=tuple(faults),
    )


def _checkpoint(path: Path, recorded: str) -> Iterator[str]:
    manifest = path / "manifest.json"
    if not manifest.is_file():
        yield f"{path}: manifest.json is missing"
        return
    found = folders.file_digest(manifest)
    if found != recorded:
        yield f"{manifest}: its digest is {found[:19]}..., recorded was {recorded[:19]}..."
    elif wrong := damaged(path):
        yield f"{path}: {wrong}"
