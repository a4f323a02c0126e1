"""Peaks by phase and the limits that a run moves are in its checkpoints, and go on after a stop."""

import json
from pathlib import Path

import pytest

from jurat.engine import checkpoint as checkpointing
from jurat.platform.config import validate
from jurat.platform.errors import ConfigError
from jurat.platform.memory import recorded
from jurat.trainers import launch, prepare

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


class Screen:
    """A Reporter that keeps what it hears, and fails at step ``fail``."""

    def __init__(self, fail=None):
        self.fail, self.steps, self.notes = fail, [], []

    def start(self, **said): ...

    def step(self, report):
        self.steps.append(report)
        if report.step == self.fail:
            raise KeyboardInterrupt

    def evaluation(self, result): ...

    def note(self, text):
        self.notes.append(text)


def test_they_go_on_after_a_stop(tmp_path):
    recipe, screen = validate(TINY, where="test"), Screen(fail=2)
    with pytest.raises(KeyboardInterrupt):
        launch.train(recipe, home=tmp_path, base=tmp_path, reporter=screen, run_id="r")
    assert any("moves limits by the clock" in note for note in screen.notes)
    folder = tmp_path / "runs/r/checkpoints/main"
    first = recorded(folder / "step-000002")
    phases = ["wait", "score", "update", "publish"]
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
    with pytest.raises(ConfigError, match="there are 400 MiB"):
        launch.dry_run(recipe, home=tmp_path, base=tmp_path)
