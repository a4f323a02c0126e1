"""A lag on Ray, where sampler and learner overlap in processes of their own: lockstep has the numbers of one process; else each
sample is trained once by the versions of its spans, through a checkpoint, a resume and a sampler that dies."""

import importlib.util

import pytest

from jurat.engine.ray import needs_ray
from jurat.platform.config import override, validate
from jurat.platform.runs.rollouts import read
from jurat.platform.runs.store import Store
from jurat.trainers import launch
from jurat.trainers.metrics import is_timed
from screens import Screen

if importlib.util.find_spec("ray") is None:
    pytest.skip("needs Ray: pip install 'ray[default]'", allow_module_level=True)

needs_ray()
import ray  # noqa: E402 (what it reads when it is imported must stand)

RECIPE = {
    "model": "tiny-random",
    "data": {"train": {"source": "generated:plain", "levels": [1], "size": 40}},
    "reward": {"members": [{"use": "problem"}, {"use": "fluency"}]},
    "algorithm": {"name": "grpo"},
    "optim": {"lr": 1e-3},
    "sampling": {"max_new_tokens": 6},
    "engine": {
        "dtype": "float32", "threads": 1, "max_lag": 1, "lockstep": True,
        "pools": {"draws": {"cpus": 1}, "main": {"cpus": 1}}, "placement": {"sampler": "draws"},
    },
    "steps": 4,
    "prompts_per_step": 3,
    "allocation": {"samples_per_prompt": 4},
    "seed": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster():
    ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level="FATAL")
    yield
    ray.shutdown()


def train(home, after=None, resume=None, **changes):
    """(rollouts in order, step reports, notes)"""
    recipe = None if resume else validate(override(RECIPE, changes), where="test")
    screen = Screen(after)
    launch.train(recipe, home=home, base=home, reporter=screen, resume=resume, run_id=None if resume else "r")
    store = Store.open(None, home)
    rows = read(store, store.run("r"), limit=None).records
    store.close()
    return sorted(rows, key=lambda row: (row.step, row.scored.rollout.id)), screen.steps, screen.notes


def numbers(rows, steps):
    return [
        (row.step, r.id, r.tokens.tolist(), r.sampler_logprobs.tolist(), [(s.start, s.end, s.version) for s in r.spans])
        for row in rows
        for r in [row.scored.rollout]
    ], [{k: v for k, v in step.metrics.items() if not is_timed(k)} for step in steps]


def check_once(rows, lag):
    assert [row.step for row in rows] == [step for step in range(4) for _ in range(12)]
    assert len({row.scored.rollout.id for row in rows}) == len(rows)
    for row in rows:
        rollout = row.scored.rollout
        assert [*range(rollout.num_completion_tokens)] == [t for s in rollout.spans for t in range(s.start, s.end)]
        assert all(max(0, row.step - lag) <= span.version <= row.step for span in rollout.spans)


@pytest.mark.parametrize("lag", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_lockstep_has_the_numbers_of_one_process(cluster, tmp_path, lag):
    alone = train(tmp_path / "alone", **{"engine.max_lag": lag})
    rows, steps, _ = train(tmp_path / "ray", **{"engine.max_lag": lag, "engine.home": "ray"})
    assert numbers(rows, steps) == numbers(*alone[:2])
    assert [step.metrics["lag/max"] for step in steps] == [min(step, lag) for step in range(4)]


FREE = {"engine.home": "ray", "engine.lockstep": False, "sampling.max_new_tokens": 60, "checkpoint.every": 1}


def test_stopped_with_rows_in_flight_it_goes_on_from_them(cluster, tmp_path):
    first, steps, _ = train(tmp_path, after=2, **FREE)
    assert len(steps) == 2
    rows, steps, _ = train(tmp_path, resume="r")
    assert [step.step for step in steps] == [2, 3]
    check_once(rows, 1)
    assert numbers(rows, ())[0][: len(first)] == numbers(first, ())[0]
    assert any(span.version < row.step for row in rows for span in row.scored.rollout.spans)


@pytest.mark.soak
@pytest.mark.parametrize("fault", ["sampler.mid_decode:30", "sampler.mid_decode:70"])
def test_a_sampler_that_dies_is_made_again_with_the_version_last_published(cluster, tmp_path, monkeypatch, fault):
    monkeypatch.setenv("JURAT_FAULT", fault)
    rows, _, notes = train(tmp_path, **FREE)
    assert any("the sampler" in note and "took over" in note for note in notes)
    check_once(rows, 1)
