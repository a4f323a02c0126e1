"""A recipe over two ranks is the recipe over one: the same samples, the same losses; it resumes at another count."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jurat.platform.config import override
from jurat.platform.memory import recorded
from jurat.platform.runs.rollouts import read
from jurat.platform.runs.store import Store

VOWELS = """
import jurat

@jurat.verifier("vowels", version="1")
def vowels(problem, completion):
    return sum(letter in "aeiou" for letter in completion) % 4 / 3
"""
"""Something that a model with random weights gets right now and then: groups must be mixed to have a gradient."""
TINY = {
    "model": "tiny-random",
    "data": {"train": {"source": "generated:plain", "levels": [1], "size": 40}},
    "algorithm": {"name": "grpo", "aggregation": "prompt-mean", "kl": {"coef": 0.05}},
    "verifiers": ["vowels.py"],
    "reward": {"members": [{"use": "vowels"}]},
    "optim": {"lr": 1e-4},
    "sampling": {"max_new_tokens": 6},
    "engine": {"dtype": "float32", "threads": 1, "ranks": 1},
    "steps": 3,
    "prompts_per_step": 4,
    "updates_per_step": 2,
    "tokens_per_microbatch": 150,
    "allocation": {"samples_per_prompt": 4},
}


@pytest.fixture
def train(launched):
    def run(home, changes):
        home.mkdir()
        (home / "vowels.py").write_text(VOWELS)
        outcome, screen = launched(home, override(TINY, changes))
        store = Store.open(None, home)
        rows = [r.scored.rollout.tokens.tolist() for r in read(store, store.run(outcome.run), limit=None).records]
        return outcome, rows, screen.steps

    return run


PPO = {"algorithm": {"name": "ppo", "critic": {"lr": 1e-4}}}
ADAPTERS = {"lora": {"rank": 4}, "optim.lr": 1e-3}


@pytest.mark.parametrize(
    "changes", [{}, pytest.param(PPO, marks=pytest.mark.soak), pytest.param(ADAPTERS, marks=pytest.mark.soak)]
)
def test_two_ranks_train_as_one(train, tmp_path, changes):
    _, rows, steps = train(tmp_path / "one", changes)
    outcome, rows_of_two, steps_of_two = train(tmp_path / "two", changes | {"engine.ranks": 2, "checkpoint.every": 1})
    assert outcome.state == "finished" and rows == rows_of_two
    for one, two in zip(steps, steps_of_two, strict=True):
        for name, value in one.metrics.items():
            learnt = name.startswith(("policy/", "critic/"))
            if learnt and not name.endswith("/forwarded_tokens"):  # the fast path shares prompts
                assert two.metrics[name] == pytest.approx(value, rel=1e-3, abs=1e-6), name
        assert [u.tokens for u in one.updates] == [u.tokens for u in two.updates]
    store = Store.open(None, tmp_path / "two")
    saved = [each.ref for each in store.checkpoints(store.run(outcome.run))]  # each written while the next step went on
    assert [ref.step for ref in saved] == [1, 2, 3] and saved[-1].path == outcome.checkpoint
    ranks = [peak.bytes["rank"] for peak in recorded(Path(outcome.checkpoint)) if peak.phase == "step"]
    assert len(ranks) == 3 and all(100 << 20 < held < 8 << 30 for held in ranks)


@pytest.mark.soak
@pytest.mark.parametrize("point", ["checkpoint.mid_write:2", "checkpoint.before_rename:2", "checkpoint.after_rename:2"])
def test_killed_while_ranks_write_a_checkpoint(tmp_path, point):
    """Training goes on meanwhile, and dies with the driver; a resume ends with the weights of a run left alone."""
    recipe = override(TINY, {"engine.ranks": 2, "checkpoint.every": 1, "verifiers": [str(tmp_path / "vowels.py")]})
    (tmp_path / "vowels.py").write_text(VOWELS)
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))

    def run(home, *arguments, **extra):
        return subprocess.run(
            [sys.executable, "-m", "jurat", "--home", str(tmp_path / home), "train", *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1", **extra}, capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    def weights(home):
        return (tmp_path / home / "runs/k/checkpoints/main/step-000003/policy/model.safetensors").read_bytes()

    begun = [str(tmp_path / "recipe.yaml"), "--run-id", "k"]
    assert run("alone", *begun).returncode == 0
    struck = run("struck", *begun, JURAT_FAULT=point)
    assert struck.returncode == -signal.SIGKILL, struck.stderr
    resumed = run("struck", "--resume", "k")
    assert resumed.returncode == 0, resumed.stderr
    assert weights("struck") == weights("alone")
