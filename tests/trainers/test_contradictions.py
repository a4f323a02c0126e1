"""Keys that contradict each other are told like any other fault of a recipe: at the door, with their place."""

from __future__ import annotations

import subprocess
import sys

import pytest

from jurat.api import recipes
from jurat.platform.errors import ConfigError
from jurat.trainers.contradictions import ALONE
from jurat.trainers.samples import ESTIMATORS

TOP = """\
model: m
data: {train: {source: generated}}
"""
STAGED = """\
updates_per_step: 2
optim:
  kl_clip: {target: 0.1}
stages:
  - {name: sft, steps: 1, algorithm: sft, optim: {lr: 1.0e-4}}
  - name: rl
    steps: 1
    algorithm:
      name: grpo
      corrections:
        - {name: reject}
        - name: tis
          low: 0.1
"""


def refused(tmp_path, text, *given):
    (tmp_path / "r.yaml").write_text(TOP + text)
    with pytest.raises(ConfigError) as caught:
        recipes.load(str(tmp_path / "r.yaml"), given)
    where = caught.value.where.removeprefix(f"{tmp_path}/")
    return caught.value.what, where, caught.value.fix


def test_the_stage_and_the_line_are_named(tmp_path):
    what, where, fix = refused(tmp_path, STAGED)
    assert where == "r.yaml:15"
    assert what == ("algorithm.corrections.1.low is not read by algorithm.corrections.1.name 'tis' (stage rl, line 15)")
    assert fix == "leave it out: tis reads high, level"


def test_what_a_stage_has_of_the_recipe_has_its_line_there(tmp_path):
    what, where, _ = refused(tmp_path, STAGED.replace("updates_per_step: 2\n", "").replace("low: 0.1", "high: 3.0"))
    assert where == "r.yaml:4" and what.endswith("it would do nothing (stage rl, line 4)")


def test_an_override_is_named(tmp_path):
    what, where, _ = refused(tmp_path, "algorithm: grpo\n", "algorithm.credit.gate=false")
    assert where == "--set algorithm.credit.gate=false"
    assert what.startswith("algorithm.credit.gate is about rewards of steps") and "line" not in what


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("algorithm: {normalise: {over: window}}", "algorithm.normalise.over 'window' does nothing"),
        ("algorithm: {name: raft, normalise: {over: batch}}", "algorithm.normalise.over 'batch' does nothing"),
        ("algorithm: kto\nprompts_per_step: 1", "algorithm.name 'kto' makes its reference point"),
        (
            "stages: [{name: a, steps: 1, algorithm: sft, allocation: neyman}]",
            "allocation is about samples of a prompt",
        ),
        ("allocation: neyman\nreward: {members: [{use: length, role: style}]}", "allocation.name 'neyman' goes by"),
        ("engine: {balance: {samples: [9, 16]}}", "the run begins with 8"),
    ],
)
def test_all_that_keys_alone_tell(tmp_path, text, what):
    assert refused(tmp_path, text)[0].startswith(what)


@pytest.mark.parametrize(
    "text",
    [
        "algorithm: {normalise: {over: window}, shaping: {clip: [-1, 1]}}",
        "algorithm: {normalise: {over: running}, kl: {coef: 0.1, place: reward}}",
        "algorithm: {normalise: {over: running}, advantage: rloo}",
        "algorithm: {normalise: {over: running}}\nallocation: difficulty",
    ],
)
def test_normalised_rewards_that_are_felt(tmp_path, text):
    (tmp_path / "r.yaml").write_text(TOP + text)
    recipes.load(str(tmp_path / "r.yaml"))


def test_torch_is_not_waited_for(tmp_path):
    (tmp_path / "r.yaml").write_text(TOP + STAGED)
    code = f"""
import sys
from jurat.api.cli import run
assert run(["train", {str(tmp_path / "r.yaml")!r}]) == 2
assert "torch" not in sys.modules
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert told.returncode == 0 and "r.yaml:15" in told.stderr, told.stderr


def test_what_is_said_to_be_told_by_a_sample_alone_is_a_rule():
    assert set(ALONE) <= set(ESTIMATORS)
