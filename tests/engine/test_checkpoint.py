"""Checkpoints: whole or absent, found again bit for bit, honest about damage and full disks."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
import torch

from jurat.engine import checkpoint
from jurat.engine.checkpoint import FolderCheckpoints
from jurat.engine.learner import LocalLearner, StagingLearner
from jurat.engine.simple.learner import SimpleNetwork
from jurat.platform.errors import RunFailed
from jurat.platform.recipe import Optim

SOURCE = {"cursor": ["p1", "p2"], "planned": {"3": [1, 2]}, "allocator": {"mean": 0.25}}


@pytest.fixture
def build(make, tmp_path):
    folder = tmp_path / "model"
    make.llama().save_pretrained(folder)
    (folder / "tokenizer.json").write_text('{"a": 1}')

    def built() -> LocalLearner:
        return LocalLearner(SimpleNetwork(make.llama(), dtype=torch.float32), Optim(lr=1e-2), total=8, source=folder)

    return built


async def train(learner, make, *seeds):
    for seed in seeds:
        await learner.update(((make.microbatch([(5, (3, 4))], seed=seed),),), make.surrogate())


async def test_round_trip_is_bit_equal(build, make, tmp_path):
    straight, first, second = build(), build(), build()
    await train(straight, make, 0, 1, 2)
    await train(first, make, 0)
    store = FolderCheckpoints(tmp_path / "run", parent="sha256:aa", meta={"reward": "sha256:bb", "é": 1})
    ref = await store.save(step=1, learners={"policy": first}, source=SOURCE)
    found = checkpoint.latest(tmp_path / "run")
    assert (found.path, found.digest, found.step, found.parent, found.meta) == (
        ref.path, ref.digest, 1, "sha256:aa", {"reward": "sha256:bb", "é": 1},
    )  # fmt: skip
    assert checkpoint.state_of(Path(found.path)) == SOURCE
    await checkpoint.load_into(Path(found.path), {"policy": second})
    await train(second, make, 1, 2)
    assert torch.equal(straight.network.master, second.network.master)
    with pytest.raises(RunFailed, match="no learner 'critic'"):
        await checkpoint.load_into(Path(found.path), {"critic": second})


class Written:
    """A learner that writes at once."""

    def __init__(self, learner):
        self.save, self.checkpoint_bytes = learner.save, learner.checkpoint_bytes


async def test_a_staged_checkpoint_is_what_was_there_when_it_was_begun(build, make, tmp_path):
    """As learners on GPUs write: the update that follows does not reach it, and its bytes are those of one written at once."""
    learner = build()
    staging = StagingLearner(learner.network, Optim(lr=1e-2), total=8, source=learner.source)
    await train(staging, make, 0)
    at_once = await FolderCheckpoints(tmp_path / "a").save(step=1, learners={"policy": Written(staging)}, source=SOURCE)
    writing = await FolderCheckpoints(tmp_path / "b").begin(step=1, learners={"policy": staging}, source=SOURCE)
    assert not writing.done()
    await train(staging, make, 1)
    later = await writing
    assert later.digest == at_once.digest
    moved = await FolderCheckpoints(tmp_path / "c").save(step=1, learners={"policy": staging}, source=SOURCE)
    assert moved.digest != later.digest


async def test_nothing_there(tmp_path):
    assert checkpoint.latest(tmp_path / "none") is None


async def test_digest_of_a_checkpoint_depends_on_its_content_alone(build, make, tmp_path):
    learner = build()
    one = await FolderCheckpoints(tmp_path / "a").save(step=1, learners={"policy": learner}, source=SOURCE)
    two = await FolderCheckpoints(tmp_path / "b").save(step=1, learners={"policy": learner}, source=SOURCE)
    await train(learner, make, 0)
    three = await FolderCheckpoints(tmp_path / "c").save(step=1, learners={"policy": learner}, source=SOURCE)
    assert one.digest == two.digest != three.digest


@pytest.mark.parametrize("file", ["policy/model.safetensors", "policy/optimizer.safetensors", "policy/tokenizer.json",
                                  "policy/learner.json", "state.json"])  # fmt: skip
async def test_a_damaged_byte_is_named_and_the_one_before_used(build, tmp_path, file):
    store = FolderCheckpoints(tmp_path)
    for step in (1, 2):
        await store.save(step=step, learners={"policy": build()}, source=SOURCE)
    path = tmp_path / "step-000002" / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    said: list[str] = []
    assert checkpoint.latest(tmp_path, report=said.append).step == 1
    assert len(said) == 1 and "step-000002" in said[0] and f"{file} is damaged" in said[0]


@pytest.mark.parametrize(
    ("spoil", "wrong"),
    [
        (lambda p: (p / "policy/model.safetensors").unlink(), "policy/model.safetensors is missing"),
        (lambda p: (p / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda p: (p / "manifest.json").write_text("{"), "manifest.json cannot be read"),
        (lambda p: (p / "manifest.json").write_text("[]"), "manifest.json cannot be read"),
        (lambda p: (p / "manifest.json").write_text('{"format": 9}'), "format 9, this version reads 1"),
        (lambda p: (p / "manifest.json").write_text('{"format": 1, "files": {}}'), "manifest.json cannot be read"),
    ],
)
async def test_incomplete_ones_are_named(build, tmp_path, spoil, wrong):
    await FolderCheckpoints(tmp_path).save(step=3, learners={"policy": build()}, source=SOURCE)
    spoil(tmp_path / "step-000003")
    said: list[str] = []
    assert checkpoint.latest(tmp_path, report=said.append) is None
    assert wrong in said[0]


async def test_the_last_ones_are_kept(build, tmp_path):
    store, learner = FolderCheckpoints(tmp_path, keep=2), build()
    for step in (1, 2, 3):
        await store.save(step=step, learners={"policy": learner}, source=SOURCE)
    assert sorted(path.name for path in tmp_path.glob("*step*")) == ["step-000002", "step-000003"]
    again = await store.save(step=3, learners={"policy": learner}, source={"cursor": []})
    assert sorted(path.name for path in tmp_path.glob("*step*")) == ["step-000002", "step-000003"]
    assert checkpoint.state_of(Path(again.path)) == {"cursor": []}


async def test_disk_full_before_writing(build, tmp_path, monkeypatch):
    store, learner = FolderCheckpoints(tmp_path), build()
    await store.save(step=1, learners={"policy": learner}, source=SOURCE)
    usage = namedtuple("usage", "total used free")(10**9, 10**9, 10**6)
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(RunFailed, match=r"no room for a checkpoint: \d+ MiB are needed and 0 MiB free"):
        await store.save(step=2, learners={"policy": learner}, source=SOURCE)
    assert checkpoint.latest(tmp_path).step == 1


async def test_disk_full_while_writing(build, tmp_path, monkeypatch):
    store, learner = FolderCheckpoints(tmp_path), build()
    await store.save(step=1, learners={"policy": learner}, source=SOURCE)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFailed, match="No space left on device") as caught:
        await store.save(step=2, learners={"policy": learner}, source=SOURCE)
    assert "the last checkpoint is intact" in str(caught.value)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir() if "step" in path.name] == ["step-000001"]
    assert checkpoint.latest(tmp_path).step == 1


class Writer:
    """A learner that stages: its file is written when the event loop is free, or it fails at once."""

    checkpoint_bytes = 0

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.wrote = error, False

    async def stage(self, folder: Path):
        if self.error:
            raise self.error
        folder.mkdir(parents=True)

        async def write() -> None:
            await asyncio.sleep(0.01)
            (folder / "model.safetensors").write_bytes(b"1")
            self.wrote = True

        return write()


async def test_a_draft_goes_only_when_nobody_writes_into_it(tmp_path):
    store, policy = FolderCheckpoints(tmp_path), Writer()
    critic = Writer(OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(RunFailed, match="No space left on device"):
        await store.begin(step=1, learners={"policy": policy, "critic": critic}, source=SOURCE)
    assert policy.wrote and not list(tmp_path.iterdir())
    ref = await store.save(step=2, learners={"policy": Writer(), "critic": Writer()}, source=SOURCE)
    assert sorted(json.loads((Path(ref.path) / "manifest.json").read_text())["files"]) == [
        "critic/model.safetensors", "policy/model.safetensors", "state.json",
    ]  # fmt: skip


KILLED = """
import asyncio, sys, torch
from pathlib import Path
from jurat.engine.checkpoint import FolderCheckpoints
from jurat.engine.learner import LocalLearner
from jurat.engine.simple.learner import SimpleNetwork
from jurat.platform.recipe import Optim
from transformers import AutoModelForCausalLM
model = Path(sys.argv[1])
learner = LocalLearner(SimpleNetwork(AutoModelForCausalLM.from_pretrained(model)), Optim(), total=4, source=model)
store = FolderCheckpoints(Path(sys.argv[2]))
asyncio.run(store.save(step=2, learners={"policy": learner}, source={}))
"""


@pytest.mark.parametrize(
    ("point", "newest"),
    [("checkpoint.mid_write", 1), ("checkpoint.before_rename", 1), ("checkpoint.after_rename", 2)],
)
async def test_killed_at_a_fault_point(build, tmp_path, point, newest):
    learner, run = build(), tmp_path / "run"
    store = FolderCheckpoints(run)
    await store.save(step=1, learners={"policy": learner}, source=SOURCE)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "model"), str(run)],
        env={**os.environ, "JURAT_FAULT": point}, capture_output=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    said: list[str] = []
    assert checkpoint.latest(run, report=said.append).step == newest
    assert said == []
    await store.save(step=3, learners={"policy": learner}, source=SOURCE)
    assert not list(run.glob(".step-*"))


async def test_export_loads_in_plain_transformers(build, make, tmp_path):
    from transformers import AutoModelForCausalLM

    learner = build()
    await train(learner, make, 0)
    ref = await FolderCheckpoints(tmp_path / "run").save(step=1, learners={"policy": learner}, source=SOURCE)
    checkpoint.export(Path(ref.path), tmp_path / "out")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert theirs.dtype == torch.bfloat16
    for name, tensor in theirs.named_parameters():
        assert torch.equal(tensor, learner.network.views()[name].bfloat16())
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
