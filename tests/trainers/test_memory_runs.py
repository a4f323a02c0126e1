"""Peaks by phase and the limits that a run moves are in its checkpoints, and go on after a stop."""

import json
from pathlib import Path

import pytest

from jurat.engine import checkpoint as checkpointing
from jurat.platform.config import validate
from jurat.platform.errors import ConfigError
from jurat.platform.memory import recorded
from jurat.trainers import launch, prepare
from screens import Screen

TINY = {
    "model": "tiny-random",
    "data": {"train": {"source": "generated:plain", "levels": [1], "size": 60}},
    "sampling": {"max_new_tokens": 6},
    "engine": {"dtype": "float32", "threads": 1, "balance": {"samples": [2, 8]}},
    "steps": 4,
    "prompts_per_step": 4,
    "allocation": {"samples_per_prompt": 4},
    "checkpoint": {"every": 2},
}


def fail():
    raise KeyboardInterrupt


def test_they_go_on_after_a_stop(tmp_path):
    recipe, screen = validate(TINY, where="test"), Screen(after={3: fail})
    with pytest.raises(KeyboardInterrupt):
        launch.train(recipe, home=tmp_path, base=tmp_path, reporter=screen, run_id="r")
    assert any("moves limits by the clock" in note for note in screen.notes)
    folder = tmp_path / "runs/r/checkpoints/main"
    first = recorded(folder / "step-000002")
    phases = ["batch", "score", "update", "publish"]
    assert [(peak.step, peak.phase) for peak in first] == [(step, phase) for step in range(2) for phase in phases]
    assert all(10 << 20 < peak.bytes["host"] < 64 << 30 for peak in first)

    state = json.loads((folder / "step-000002/state.json").read_text())
    assert state["source"]["balance"]["knobs"] == {"samples": [4, 0, 0]}
    state["source"]["balance"]["knobs"]["samples"] = [3, -1, 0]  # as if it had been moved
    (folder / "step-000002/state.json").write_text(json.dumps(state))
    manifest = json.loads((folder / "step-000002/manifest.json").read_text())
    manifest["files"]["state.json"] = checkpointing.digest_of(folder / "step-000002/state.json")
    (folder / "step-000002/manifest.json").write_text(json.dumps(manifest))

    rest = Screen()
    outcome = launch.train(None, home=tmp_path, base=tmp_path, reporter=rest, resume="r")
    again = recorded(Path(outcome.checkpoint))
    assert again[: len(first)] == first
    assert [peak.step for peak in again if peak.phase == "update"] == [0, 1, 2, 3]
    assert again[len(first) - 1].step == 1  # what was lost with steps 2 and 3 is measured anew
    assert [report.metrics["balance/samples"] for report in (*screen.steps[:2], *rest.steps)] == [4, 4, 3, 3]
    for report in rest.steps:
        assert 0 <= report.metrics["utilisation/sampler"] <= 1 and report.metrics["queue/sampler"] > 0


def test_a_run_that_cannot_fit_ends_before_it_begins(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "machine_bytes", lambda: 400 << 20)
    recipe = validate(TINY, where="test")
    with pytest.raises(ConfigError, match=r"it needs .* MiB on this machine .* there are 400 MiB"):
        launch.train(recipe, home=tmp_path, base=tmp_path, reporter=Screen(), run_id="r")
    assert not list((tmp_path / "runs").glob("r*"))
    with pytest.raises(ConfigError, match="there are 400 MiB") as caught:
        launch.dry_run(recipe, home=tmp_path, base=tmp_path)
    assert caught.value.fix.endswith("or --over-memory, to train all the same: the sum is a bound")


def test_a_bound_may_be_passed_over(tmp_path, monkeypatch):
    """It is said, and the run goes on; so when it is resumed."""
    monkeypatch.setattr(prepare, "machine_bytes", lambda: 400 << 20)
    recipe, screen = validate({**TINY, "steps": 2}, where="test"), Screen(stop=1)
    plan = launch.dry_run(recipe, home=tmp_path, base=tmp_path, over_memory=True)
    assert [note for note in plan["notes"] if "there are 400 MiB" in note]
    assert plan["stages"][0]["memory_bytes"] > 400 << 20
    first = launch.train(recipe, home=tmp_path, base=tmp_path, reporter=screen, run_id="r", over_memory=True)
    assert first.state == "interrupted" and any("there are 400 MiB" in note for note in screen.notes)
    with pytest.raises(ConfigError, match="there are 400 MiB"):
        launch.train(None, home=tmp_path, base=tmp_path, reporter=Screen(), resume="r")
    again = launch.train(None, home=tmp_path, base=tmp_path, reporter=Screen(), resume="r", over_memory=True)
    assert again.state == "finished"
