"""Rubbish goes, and nothing that the lineage of anything needs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from jurat.platform import access
from jurat.platform.db import tables as t
from jurat.platform.errors import DataError
from jurat.platform.provenance import blobs, folders, lineage
from jurat.platform.provenance.records import Node
from jurat.platform.provenance.verify import verify
from jurat.platform.runs.gc import Rubbish, collect
from jurat.platform.runs.ledger import RunLedger
from jurat.platform.runs.records import RunInfo
from jurat.platform.runs.store import Store, now
from jurat.platform.types import CheckpointRef

DAY = 86_400


def checkpoint(run: RunInfo, step: int) -> CheckpointRef:
    folder = run.folder / "checkpoints/main" / f"step-{step:06d}"
    folder.mkdir(parents=True)
    (folder / "weights.bin").write_bytes(run.id.encode() * (step + 1))
    files = {"weights.bin": folders.file_digest(folder / "weights.bin")}
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "step": step, "files": files}))
    return CheckpointRef(path=str(folder), digest=folders.file_digest(folder / "manifest.json"), step=step)


@pytest.fixture
def made(store: Store, recipe: Any, batch: Any, step_report: Any) -> Callable[..., tuple[RunInfo, list[str]]]:
    """A finished run of two steps with two checkpoints: (run, their digests)."""

    def make(name: str, **more: Any) -> tuple[RunInfo, list[str]]:
        run = store.create_run(recipe=recipe, recipe_digest="", reward_digest="", meta={}, run_id=name, **more)
        lease = store.take(run)
        segment = store.start_segment(run, first_step=0, lease=lease)
        refs = [checkpoint(run, step) for step in (1, 2)]
        with RunLedger(store, run, "", segment, run.folder, lease=lease) as ledger:
            for step in range(2):
                ledger.record_batch(batch(step))
                ledger.record_advantages(step, {"a": np.ones(3, np.float32)}, {"a": 1.0})
                ledger.record_step(step_report(step))
                ledger.record_checkpoint(refs[step])
        store.end(lease, "finished")
        return store.run(name), [ref.digest for ref in refs]

    return make


def delete(store: Store, run: RunInfo, days: float) -> None:
    at = now() - int(days * DAY * 1e6)
    store.write(lambda c: c.execute(sa.update(t.run).where(t.run.c.pk == run.pk).values(deleted_at=at)))


def old(path: Path, data: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (time.time() - 2 * DAY,) * 2)
    return path


def test_what_a_deleted_run_leaves(store: Store, made: Any) -> None:
    parent, (first, second) = made("parent")
    child, _ = made("child", parent_run="parent", from_checkpoint=second)
    delete(store, parent, 29)
    assert collect(store) == []
    delete(store, parent, 31)
    before = {path for path in parent.folder.rglob("*") if path.is_file()}
    told = collect(store, dry_run=True)
    assert [(each.kind, each.name) for each in told] == [("run", "parent")] and told[0].bytes > 0
    assert {path for path in parent.folder.rglob("*") if path.is_file()} == before
    assert collect(store) == told and collect(store) == []
    kept = parent.folder / "checkpoints/main/step-000002"
    assert {path for path in parent.folder.rglob("*") if path.is_file()} == set(kept.iterdir())
    assert store.read(lambda c: lineage.whole_checkpoint(c, second)).path == str(kept)
    with pytest.raises(DataError, match="its folder is gone"):
        store.read(lambda c: lineage.whole_checkpoint(c, first))
    found = store.read(lambda c: lineage.walk(c, [Node(kind="run", id="child")], "back"))
    assert Node(kind="checkpoint", id=second) in found.nodes and Node(kind="segment", id="parent/0") in found.nodes
    assert store.metrics(parent) == [] and store.parts(parent, kind=None) == [] and store.part_statuses(parent) == {}
    assert store.events(parent)[-1].kind == "collected"
    assert verify(store, parent).faults == () and len(store.checkpoints(parent)) == 2
    assert len(store.metrics(child)) > 0 and verify(store, child).faults == ()
    delete(store, child, 31)
    assert {each.name for each in collect(store)} == {"parent", "child"}  # nobody needs the checkpoint any more
    assert not parent.folder.exists() and not child.folder.exists()


def test_a_fork_that_is_made_meanwhile_keeps_its_checkpoint(
    store: Store, made: Any, recipe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, (_, second) = made("parent")
    delete(store, parent, 31)
    write = store.write

    def late(job: Any) -> Any:
        monkeypatch.undo()
        store.create_run(recipe=recipe, recipe_digest="", reward_digest="", meta={}, run_id="child", parent_run="parent",
                         from_checkpoint=second)  # fmt: skip
        return write(job)

    monkeypatch.setattr(store, "write", late)
    assert [each.name for each in collect(store)] == ["parent"]
    assert store.read(lambda c: lineage.whole_checkpoint(c, second)).digest == second
    kept = parent.folder / "checkpoints/main/step-000002"
    assert {path for path in parent.folder.rglob("*") if path.is_file()} == set(kept.iterdir())
    assert store.metrics(parent) == [] and store.events(parent)[-1].kind == "collected" and collect(store) == []


def test_what_no_record_names(store: Store, made: Any, new_run: Any) -> None:
    run, _ = made("run")
    going = new_run()
    rollouts = run.folder / "rollouts" / "main"
    part = Path(store.parts(run)[0].path)
    loose = old(rollouts / "step-000009.parquet")
    draft = old(rollouts / "step-000010.parquet.abc.tmp")
    learnt = old(run.folder / "advantages" / "main" / "step-000009.parquet.abc.tmp")
    for named in store.parts(run, kind=None):
        os.utime(run.folder / named.path, (time.time() - 2 * DAY,) * 2)
    fresh = rollouts / "step-000011.parquet"
    fresh.write_bytes(b"y")
    theirs = old(going.folder / "rollouts" / "main" / "step-000001.parquet")  # its trainer will take it up
    cut = old(store.runs_folder / ".import-ab" / "record.json").parent
    os.utime(cut, (time.time() - 2 * DAY,) * 2)
    (run.folder / ".import").touch()  # its row is there, whatever was not done after it
    halved = old(store.runs_folder / "halved" / ".import").parent
    os.utime(halved, (time.time() - 2 * DAY,) * 2)
    (run.folder / "spool.jsonl").write_text("{}\n")  # rows of some of these may be in it
    assert [each.kind for each in collect(store, dry_run=True)] == ["draft"] * 2
    (run.folder / "spool.jsonl").unlink()
    found = {(each.kind, each.name) for each in collect(store)}
    assert found == {("part", f"run/{path.relative_to(run.folder)}") for path in (loose, draft, learnt)} | {
        ("draft", ".import-ab"),
        ("draft", "halved"),
    }
    assert len(store.parts(run, kind=None)) == 4
    assert fresh.exists() and theirs.exists() and (run.folder / part).exists() and not cut.exists()
    assert verify(store, run).faults == ()


def test_contents_that_nothing_refers_to(store: Store) -> None:
    used, loose, fresh = (store.write(lambda c, d=data: blobs.put(c, d, "text/plain")) for data in (b"a", b"b", b"c"))
    version = {"digest": "sha256:v", "version": "", "code": "", "config": "", "deps": {}, "weights": "", "abi": "",
               "args": {}, "source": used, "created": 0}  # fmt: skip
    store.write(lambda c: c.execute(sa.insert(t.verifier_version).values(**version)))
    for digest in (used, loose):
        store.write(lambda c, d=digest: c.execute(sa.update(t.blob).where(t.blob.c.digest == d).values(created=1)))
    for seconds in (-2.0 * DAY, 60.0):
        store.write(lambda c, s=seconds: access.make_key(c, "t", [], seconds=s, run_id="r", epoch=1))
    again = store.write(lambda c: blobs.put(c, b"d", "text/plain"))
    store.write(lambda c: c.execute(sa.update(t.blob).where(t.blob.c.digest == again).values(created=1)))
    assert store.write(lambda c: blobs.put(c, b"d", "text/plain")) == again  # whoever puts it is about to refer to it
    told = collect(store, dry_run=True)
    assert [each.kind for each in told] == ["blob", "token"] and told[0] == Rubbish(kind="blob", name=loose, bytes=1)
    assert collect(store) == told
    assert store.read(lambda c: [blobs.get(c, d) for d in (used, loose, fresh)]) == [b"a", None, b"c"]
    assert store.read(lambda c: c.execute(sa.select(sa.func.count()).select_from(t.api_key)).scalar()) == 1
