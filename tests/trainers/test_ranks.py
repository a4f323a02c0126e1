"""A recipe over two ranks is the recipe over one: the same samples, the same losses; it resumes at another count."""

from __future__ import annotations

from pathlib import Path

import pytest

from jurat.platform.config import override, validate
from jurat.platform.memory import recorded
from jurat.platform.runs.rollouts import read
from jurat.platform.runs.store import Store
from jurat.trainers import launch

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


class Screen:
    """A Reporter that keeps the steps."""

    def __init__(self):
        self.steps = []

    def start(self, **said): ...

    def step(self, report):
        self.steps.append(report)

    def evaluation(self, result): ...

    def note(self, text): ...


def train(home, changes):
    home.mkdir()
    (home / "vowels.py").write_text(VOWELS)
    screen = Screen()
    outcome = launch.train(validate(override(TINY, changes), where="test"), home=home, base=home, reporter=screen)
    store = Store.open(None, home)
    rows = [r.scored.rollout.tokens.tolist() for r in read(store, store.run(outcome.run), limit=None).records]
    return outcome, rows, screen.steps


def test_two_ranks_train_as_one(tmp_path):
    _, rows, steps = train(tmp_path / "one", {})
    outcome, rows_of_two, steps_of_two = train(tmp_path / "two", {"engine.ranks": 2})
    assert outcome.state == "finished" and rows == rows_of_two
    for one, two in zip(steps, steps_of_two, strict=True):
        for name, value in one.metrics.items():
            if name.startswith("policy/") and name != "policy/forwarded_tokens":  # the fast path shares prompts
                assert two.metrics[name] == pytest.approx(value, rel=1e-3, abs=1e-6), name
        assert [u.tokens for u in one.updates] == [u.tokens for u in two.updates]
    ranks = [peak.bytes["rank"] for peak in recorded(Path(outcome.checkpoint)) if peak.phase == "step"]
    assert len(ranks) == 3 and all(100 << 20 < held < 8 << 30 for held in ranks)
