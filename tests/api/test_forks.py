"""``jurat runs fork``, ``gc`` and ``scrub`` at the command line, on a run that was trained for real."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from jurat.platform.runs.store import Store
from jurat.trainers import launch
from screens import Screen


@pytest.fixture
def home(trained: Any, tmp_path: Path) -> Path:
    """A copy of the home in which ``small-1`` was trained."""
    return Path(shutil.copytree(trained.home, tmp_path / "copy"))


def test_a_fork_begins_with_its_parents_weights(jurat: Any, home: Path) -> None:
    told = jurat(
        "runs", "fork", "small-1", "--set", "stages.1.steps=1", "--run-id", "child", "--home", home, "--json"
    ).json
    assert (told["run"], told["parent"], told["state"]) == ("child", "small-1", "created")
    outcome = launch.train(None, home=home, base=home, reporter=Screen(), resume="child")
    store = Store.open(None, home)
    parent, child = store.run("small-1"), store.run("child")
    assert (outcome.state, outcome.step, child.state) == ("finished", 1, "finished")
    assert [(segment.stage, segment.from_checkpoint) for segment in store.segments(child)] == [
        ("grpo", told["from_checkpoint"])
    ]
    ends, begins = (
        {
            m.result.name: m.result.accuracy.value
            for m in store.evaluations(run)
            if (m.result.stage, m.result.step) == at
        }
        for run, at in ((parent, ("grpo", 8)), (child, ("grpo", 0)))
    )
    assert begins and begins.items() <= ends.items()  # the same weights on the same problems
    assert store.events(child)[-1].kind == "sealed"
    store.close()
    affected = jurat("lineage", "affected", told["from_checkpoint"], "--home", home, "--json").json
    assert {node["id"] for node in affected["nodes"] if node["kind"] == "run"} == {"child"}
    for words, said in (
        (("--set", "stages.1.steps=0"), 2),
        (("--checkpoint", "sha256:none"), 2),
        (("--run-id", "child"), 2),
    ):
        assert jurat("runs", "fork", "small-1", *words, "--home", home).code == said, words


def test_a_finished_run_is_held_to_its_seal(jurat: Any, home: Path) -> None:
    import sqlalchemy as sa

    assert jurat("runs", "verify", "small-1", "--home", home).code == 0
    store = Store.open(None, home)
    store.write(lambda c: c.execute(sa.text("UPDATE metric_point SET value = value + 0.001 WHERE step = 3")))
    store.close()
    done = jurat("runs", "verify", "small-1", "--home", home, "--json")
    assert done.code == 1 and done.json["faults"][0].startswith("metric_point: its rows are not those")


def test_gc_and_scrub(jurat: Any, home: Path) -> None:
    assert jurat("scrub", "small-1", "--home", home, "--json").json == {"run": "small-1", "changed": [], "left": []}
    assert jurat("gc", "--dry-run", "--home", home, "--json").json == {"removed": [], "bytes": 0, "dry_run": True}
    assert "0 things" in jurat("gc", "--home", home).err
    held = json.loads((home / "runs/small-1/record.json").read_text())
    assert held["run"]["id"] == "small-1" and jurat("runs", "verify", home / "runs/small-1").code == 0
