"""Keys that contradict each other are told like any other fault of a recipe: at the door, with their place."""

from __future__ import annotations

import subprocess
import sys

import pytest

from jurat.api import recipes
from jurat.platform.errors import ConfigError
from jurat.platform.recipe import Engine, Recipe
from jurat.trainers.contradictions import ALONE, refuse_contradictions, unread
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


def given(tmp_path, text, *assignments):
    (tmp_path / "r.yaml").write_text(TOP + text)
    return str(tmp_path / "r.yaml"), assignments


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


@pytest.mark.parametrize(
    ("text", "what", "key"),
    [
        ("engine: {ranks: 2, path: fast}", "engine.path: fast learns in one process", "engine.path"),
        ("engine: {ranks: 3, tp: 2}", "3 ranks cannot be cut into groups of 2", "engine.tp"),
        ("engine: {tp: 2}", "1 ranks cannot be cut into groups of 2", "engine.tp"),
        ("engine: {ranks: 2, compile: true}", "compiled layers learn in one process", "engine.compile"),
        ("engine: {path: fast, compile: true}", "engine.compile compiles the transformers model", "engine.compile"),
        ("engine: {ranks: 2, offload: true}", "engine.offload moves slices", "engine.offload"),
        ("engine: {device: cuda, offload: true}", "engine.offload moves slices", "engine.offload"),
        ("engine: {ranks: 2, tp: 2}\nlora: {}", "adapters (lora) are cut over ranks", "engine.tp"),
        ("engine: {judges: 3}", "engine.judges 3 are processes of a cluster", "engine.judges"),
        ("engine: {vllm_memory: 4}", "engine.vllm_memory is read by engine.sampler: vllm", "engine.vllm_memory"),
        (
            "engine: {sampler: vllm, vllm_url: 'http://h:1', vllm_memory: 4}",
            "engine.vllm_memory is of a vLLM in this process",
            "engine.vllm_memory",
        ),
        (
            "engine: {device: cuda, sampler: vllm, offload: true, max_lag: 1}",
            "engine.offload moves slices",
            "engine.offload",
        ),
    ],
)
@pytest.mark.parametrize("home", ["local", "ray"])
def test_what_an_engine_cannot_honour_is_told_before_anything_starts(tmp_path, home, text, what, key):
    """Alike in both homes but for what only one of them has, and in a stage that is not the first."""
    if "judges" in text and home == "ray":
        assert recipes.load(*given(tmp_path, text, "engine.home=ray"))[0].engine.judges == 3
        return
    lora = ", lora: {}" if "lora" in text else ""
    stages = f"stages: [{{name: a, steps: 1}}, {{name: b, steps: 1{lora}}}]"
    for whole in (text, text.partition("\n")[0] + "\n" + stages):
        said, where, fix = refused(tmp_path, whole, f"engine.home={home}")
        assert said.startswith(what) and fix
        assert where.startswith("r.yaml:") or where == key, where


def test_a_pool_without_a_role_is_refused_on_ray(tmp_path):
    text = "engine: {home: ray, pools: {main: {}, judges: {cpus: 2}, extra: {spare: true}}"
    said, where, fix = refused(tmp_path, text + "}")
    assert said.startswith("no role is placed in pool judges, which would stand idle")
    assert "engine.placement.judge: judges" in fix
    recipes.load(*given(tmp_path, text + ", placement: {judge: judges}}"))


@pytest.mark.parametrize(
    ("engine", "cores", "said"),
    [
        ({}, 1, []),
        ({"threads": 2}, 2, []),
        ({"threads": 512}, 2, ["engine.threads is 512, and this process may use 2 processors"]),
        ({"pools": {"main": {"cpus": 2}}}, 2, ["engine.pools: of a cluster, and not read with engine.home: local"]),
        (
            {"pools": {"main": {}, "j": {}}, "placement": {"judge": "j"}, "threads": 3}, 2,
            ["engine.pools and engine.placement: of a cluster", "engine.threads is 3"],
        ),
        ({"home": "ray", "threads": 8}, 2, []),  # of its machine, which is not known here
        ({"home": "ray", "threads": 8, "pools": {"main": {"cpus": 4}}}, 2, ["engine.threads is 8, and the pool of the sampler has 4"]),
    ],
)  # fmt: skip
def test_what_does_nothing_on_this_machine_is_said(engine, cores, said):
    found = unread(Engine(**engine), cores)
    assert len(found) == len(said)
    for got, wanted in zip(found, said, strict=True):
        assert got.startswith(wanted)
        assert "set engine.threads:" in got or "engine.home: ray" in got


def test_the_stage_whose_adapters_do_not_go_with_tp_is_enough(tmp_path):
    text = "engine: {ranks: 2, tp: 2}\nstages: [{name: a, steps: 1}, {name: b, steps: 1, lora: {}}]"
    assert refused(tmp_path, text)[0].startswith("adapters (lora)")
    recipes.load(*given(tmp_path, text.replace(", lora: {}", "")))


def test_what_the_record_of_a_run_repeats_is_no_contradiction(tmp_path):
    """It gives every key."""
    found, _ = recipes.load(*given(tmp_path, "engine: {sampler: vllm, vllm_url: 'http://h:1'}"))
    refuse_contradictions(Recipe.model_validate(found.model_dump(mode="json")))


@pytest.mark.parametrize("seconds", [0.01, 1.9])
def test_ranks_have_time_to_say_that_they_get_on(tmp_path, seconds):
    assert "hang_seconds" in refused(tmp_path, f"engine: {{hang_seconds: {seconds}}}")[0]


@pytest.mark.parametrize("name", ["remax", "opo"])
@pytest.mark.parametrize("corrections", ["[]", "[reject]", "[off_policy_mask]"])
def test_a_plain_gradient_of_an_old_policy_needs_a_ratio(tmp_path, name, corrections):
    names = [each for each in corrections.strip("[]").split(",") if each]
    listed = ", ".join(f"{{name: {each}}}" for each in names)
    text = f"algorithm: {{name: {name}, corrections: [{listed}]}}\nengine: {{max_lag: %d}}"
    what, where, fix = refused(tmp_path, text % 1)
    assert what.startswith(f"algorithm.name {name!r} with algorithm.loss 'plain'") and "engine.max_lag 1" in what
    assert where == "r.yaml:3" and "leave it out" in fix
    recipes.load(*given(tmp_path, text % 0))
    recipes.load(*given(tmp_path, (text % 1).replace(f"[{listed}]", "[{name: icepop}]")))
    recipes.load(*given(tmp_path, f"algorithm: {name}\nengine: {{max_lag: 1}}"))


@pytest.mark.parametrize("algorithm", ["{name: raft, corrections: []}", "{name: grpo, corrections: []}"])
def test_who_imitates_or_clips_may_do_without(tmp_path, algorithm):
    recipes.load(*given(tmp_path, f"algorithm: {algorithm}\nengine: {{max_lag: 1}}"))


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
