"""From one checkpoint each algorithm lifts held-out accuracy on generated arithmetic beyond its 95 % interval."""

import pytest

from jurat.platform.config import validate
from jurat.trainers import launch
from screens import Screen

BASE = {
    "data": {
        "train": {"source": "generated:plain", "levels": [1, 2], "size": 242},
        "held_out": {"source": "generated:plain", "levels": [1, 2], "size": 68, "split": "held_out"},
    },
    "sampling": {"max_new_tokens": 6},
    "engine": {"dtype": "float32", "threads": 1},
    "evaluate": {"final_problems": 68, "samples": 8},
    "allocation": {"samples_per_prompt": 8},
}

OWN = {
    "dapo": {"allocation": {"name": "dapo"}, "updates_per_step": 2},
    # as many samples of more prompts: a critic learns from prompts, and compares no groups
    "ppo": {"prompts_per_step": 32, "allocation": {"samples_per_prompt": 2}, "updates_per_step": 2},
}


def train(home, **given):
    return launch.train(validate({**BASE, **given}, where="test"), home=home, base=home, reporter=Screen())


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A model that has seen too few demonstrations: about a tenth of its samples are right."""
    home = tmp_path_factory.mktemp("start")
    done = train(
        home, model="tiny-random", algorithm={"name": "sft"}, steps=80, prompts_per_step=32, optim={"lr": 1e-3}
    )
    return f"{done.checkpoint}/policy"


def long(algorithm, steps):
    return pytest.param(algorithm, steps, marks=pytest.mark.soak)


@pytest.mark.parametrize(
    ("algorithm", "steps"),
    [
        long({"name": "grpo"}, 400),
        long({"name": "rloo"}, 400),
        long({"name": "remax"}, 700),
        ({"name": "dapo"}, 200),  # the widest margin
        long({"name": "dapo"}, 400),
        long({"name": "ppo", "critic": {"lr": 1e-3}}, 250),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_it_lifts_held_out_accuracy(algorithm, steps, start, tmp_path):
    settings = {"prompts_per_step": 8, "optim": {"lr": 2e-4}, **OWN.get(algorithm["name"], {})}
    done = train(tmp_path, model=start, algorithm=algorithm, steps=steps, **settings)
    before, after = (evaluation.accuracy for evaluation in done.evaluations)
    told = [f"{each.value:.3f} [{each.low:.3f}, {each.high:.3f}]" for each in (before, after)]
    print(f"{algorithm['name']}: held out {' -> '.join(told)}")  # pytest -rP shows it
    assert before.value < 0.2
    assert after.low > before.high, (before, after)
