"""Metrics to other trackers: what they get is what the run's record has, and nothing that they do reaches the loop."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from jurat.platform.config import override, validate
from jurat.platform.errors import ConfigError
from jurat.platform.runs.store import Store
from jurat.platform.types import StepReport
from jurat.trainers import launch, trackers
from screens import Screen

RECIPE = {
    "model": "tiny-random",
    "data": {
        "train": {"source": "generated:plain", "levels": [1], "size": 20},
        "held_out": {"source": "generated:plain", "levels": [1], "size": 4, "split": "held_out"},
    },
    "sampling": {"max_new_tokens": 4}, "engine": {"dtype": "float32", "threads": 1},
    "evaluate": {"final_problems": 4, "samples": 2}, "steps": 3, "prompts_per_step": 2,
    "allocation": {"samples_per_prompt": 2},
}  # fmt: skip


class Kept:
    """A tracker that keeps what it hears; ``before`` is called first, and may wait or raise."""

    def __init__(self, before=lambda: None):
        self.points, self.ended, self.begun, self.before = [], [], [], before

    def begin(self, run, params, known):
        self.before()
        self.begun.append((dict(params), known))
        return "its-name"

    def log(self, points):
        self.before()
        self.points += points

    def end(self, state):
        self.ended.append(state)


@pytest.fixture
def record(tmp_path):
    """A run in a store, without a process."""
    store = Store.open(None, tmp_path)
    recipe = validate(RECIPE, where="test")
    yield store.create_run(recipe=recipe, recipe_digest="", reward_digest="", meta={}, run_id="r")
    store.close()


def follow(run, tracker, monkeypatch, steps, during=lambda: None):
    """What a person was told, of a run with these steps."""
    monkeypatch.setitem(trackers.KINDS, "kept", lambda: tracker)
    screen = Screen()
    with trackers.Trackers(["kept"], run, screen, lambda: {"digest.reward": "sha256:1"}) as told:
        told.start(run_id="r", stage="", recipe=None, first_step=0, last_step=9)
        for step in steps:
            told.step(
                StepReport(step=step, version=step + 1, metrics={"x": step / 2}, updates=(), seconds={"save": 0.1})
            )
        during()
        told.state = "finished"
    assert [report.step for report in screen.steps] == list(steps)
    return screen.notes


def test_a_tracker_that_hangs_holds_nothing_up(record, monkeypatch):
    """All steps go by while its first call hangs; what is beyond the queue is counted."""
    go = threading.Event()
    tracker = Kept(lambda: go.wait(30))
    monkeypatch.setattr(trackers, "MAX_POINTS", 200)
    notes = follow(record, tracker, monkeypatch, range(300), during=go.set)
    assert [point.step for point in tracker.points] == list(range(200)) and tracker.ended == ["finished"]
    assert tracker.points[7].named() == {"x": 3.5, "seconds/save": 0.1}
    assert notes == ["100 steps or evaluations did not reach kept; jurat has them all"]
    assert tracker.begun == [({"digest.reward": "sha256:1"}, "")]
    follow(record, again := Kept(), monkeypatch, [300])
    assert again.begun[0][1] == "its-name"


def test_a_tracker_that_fails_is_tried_again_and_said_once(record, monkeypatch):
    failures = iter([OSError("no route\nto host"), ValueError("x"), None, OSError("y")])
    done = threading.Event()

    def before():
        error = next(failures, None)
        if error is not None:
            raise error

    tracker = Kept(before)
    log = tracker.log
    tracker.log = lambda points: (log(points), len(tracker.points) == 5 and done.set())
    monkeypatch.setattr(trackers, "PAUSES", (0.01, 0.02))
    notes = follow(record, tracker, monkeypatch, range(5), during=lambda: done.wait(30))
    assert [point.step for point in tracker.points] == list(range(5))
    assert notes == ["kept takes no metrics: no route to host; training goes on, they wait"]


def test_a_tracker_that_never_answers_loses_at_the_end(record, monkeypatch):
    monkeypatch.setattr(trackers, "CLOSE_SECONDS", 0.05)
    hangs = threading.Event()
    notes = follow(record, Kept(lambda: hangs.wait(30)), monkeypatch, range(3))
    hangs.set()
    assert notes == ["3 steps or evaluations did not reach kept; jurat has them all"]


def test_what_is_not_installed_names_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    recipe = validate(override(RECIPE, {"tracking.log_to": ["wandb"]}), where="test")
    with pytest.raises(ConfigError, match="which is not installed") as refused:
        launch.train(recipe, home=tmp_path, base=tmp_path, reporter=Screen())
    assert "[wandb]" in refused.value.fix and not list((tmp_path / "runs").glob("*"))


# ---- the trackers themselves ---------------------------------------------------------------------------------------


def trained(home: Path, name: str) -> tuple[Mapping[tuple[str, int], float], Mapping[str, str]]:
    """A run that is stopped after two steps and gone on with: (the numbers of its record, digests of what it is made of)."""
    recipe = validate(override(RECIPE, {"tracking.log_to": [name]}), where="test")
    first, second = Screen(stop=2), Screen()
    assert launch.train(recipe, home=home, base=home, reporter=first, run_id="r").state == "interrupted"
    assert launch.train(None, home=home, base=home, reporter=second, resume="r").state == "finished"
    assert not [note for note in [*first.notes, *second.notes] if f"{name} takes no" in note or "did not reach" in note]
    store = Store.open(None, home)
    run = store.run("r")
    numbers = {(each.name, each.step): each.value for each in store.metrics(run)}
    store.close()
    return numbers, {"digest.reward": run.meta["rewards"][0]}


@pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None and not os.environ.get("CI"), reason="no tensorboard"
)
def test_tensorboard_has_the_record(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    numbers, digests = trained(tmp_path, "tensorboard")
    read = EventAccumulator(str(tmp_path / "runs" / "r" / "tensorboard" / "main")).Reload()
    found = {(tag, each.step): each.value for tag in read.Tags()["scalars"] for each in read.Scalars(tag)}
    own = {key: value for key, value in found.items() if not key[0].startswith("held_out/")}
    assert own == pytest.approx(numbers, rel=1e-6, nan_ok=True) and len({step for _, step in own}) == 3
    assert ("held_out/accuracy", 3) in found
    said = read.Tensors("jurat/text_summary")[0].tensor_proto.string_val[0].decode()
    assert f"| digest.reward | `{digests['digest.reward']}` |" in said and "digest.data.train" in said


@pytest.mark.soak
def test_mlflow_has_the_record(tmp_path, monkeypatch):
    """With the package, and its file store or the server that MLFLOW_TRACKING_URI names."""
    client = pytest.importorskip("mlflow.tracking", reason="no mlflow")
    if "MLFLOW_TRACKING_URI" not in os.environ:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", str(tmp_path))
    numbers, digests = trained(tmp_path, "mlflow")
    asked = client.MlflowClient()
    [run] = asked.search_runs([asked.get_experiment_by_name(str(tmp_path)).experiment_id])
    assert run.info.status == "FINISHED" and run.info.run_name == "r" and run.data.tags["jurat.run"] == "r"
    assert run.data.params["digest.reward"] == digests["digest.reward"] and run.data.params["seed"] == "0"
    assert {"digest.environment", "digest.model", "digest.data.train"} < set(run.data.params)
    found = {
        (name, each.step): each.value
        for name in run.data.metrics if not name.startswith("held_out/")
        for each in asked.get_metric_history(run.info.run_id, name)
    }  # fmt: skip
    assert found == pytest.approx(
        {(name.replace("+", "_"), step): v for (name, step), v in numbers.items()}, nan_ok=True
    )
    assert "held_out/accuracy" in run.data.metrics
    name = run.info.run_id
    for steps in ((1, 2, 3), (2, 3, 4)):  # two crashes: what is done again is told once
        again = trackers.MLflow()
        again.begin(SimpleNamespace(id="r", project="", lease_epoch=1), {}, name)
        for step in steps:
            again.log(
                [trackers.Point(stage="", first_step=1, step=step, at=9.0, values={"x": 1.0, "reward/mean": 0.5})]
            )
    for metric in ("reward/mean", "x"):
        told = [each.step for each in asked.get_metric_history(name, metric)]
        assert sorted(told) == ([0, 1, 2, 3, 4] if metric != "x" else [3, 4])


def logged(data: bytes) -> list[bytes]:
    """Records of a log in LevelDB's format, after W&B's 7 bytes: blocks of 32 kB; crc, length, kind (1 whole, 2 to 4 parts)."""
    out, at, part = [], 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        part += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            out, part = [*out, part], b""
    return out


@pytest.mark.soak
def test_wandb_has_the_record_offline(tmp_path, monkeypatch):
    """With the package, offline: the file that it would send has every number of the record, under the run's name."""
    pytest.importorskip("wandb", reason="no wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    numbers, digests = trained(tmp_path, "wandb")
    found, config, ids = {}, {}, set()
    for file in sorted((tmp_path / "runs" / "r").rglob("*.wandb")):
        for data in logged(file.read_bytes()):
            told = wandb_internal_pb2.Record.FromString(data)
            config |= {each.key: each.value_json for each in [*told.run.config.update, *told.config.update]}
            ids |= {told.run.run_id} - {""}
            row = {each.key or "/".join(each.nested_key): float(each.value_json) for each in told.history.item}
            found |= {
                (name, int(row["step"])): value
                for name, value in row.items()
                if not name.startswith(("_", "held_out/"))
            }
    found = {key: value for key, value in found.items() if key[0] != "step"}
    assert found == pytest.approx(numbers, nan_ok=True) and ids == {"r"}
    assert config["digest.reward"] == f'"{digests["digest.reward"]}"'
