"""What a wrong recipe is answered with: the key, where it was written, what was given, what was expected, what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest

from jurat.platform.config import override, parse_yaml, validate
from jurat.platform.errors import SET_UP, ConfigError, install
from jurat.platform.recipe import DPO, KTO, OFFLINE, SFT, Credit, Dapo, Neyman, PolicyGradient, Recipe

TOP = "model: m\ndata:\n  train: {source: generated}\n"


SAMPLING = "grpo, dr_grpo, dapo, remax, rloo, reinforce_pp, ppo, gspo, cispo, raft, opo, maxrl"


def read(more: str = "", given: Sequence[str] | Mapping[str, Any] = ()) -> Recipe:
    value, lines = parse_yaml(TOP + more, where="r.yaml")
    return validate(override(value, given), where="r.yaml", lines=lines, given=given)


def refused(more: str = "", given: Sequence[str] | Mapping[str, Any] = ()) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read(more, given)
    return caught.value


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        # a wrong choice: the nearest, and all of them
        (
            "algorithm: {loss: cliped}",
            "algorithm.loss: 'cliped' is none of clipped, gspo, cispo, plain (line 4). Did you mean 'clipped'?",
            "write algorithm.loss: clipped",
        ),
        (
            "optim: {schedule: cosin}",
            "optim.schedule: 'cosin' is none of constant, linear, cosine (line 4). Did you mean 'cosine'?",
            "write optim.schedule: cosine",
        ),
        (
            "engine: {dtype: x}",
            "engine.dtype: 'x' is none of bfloat16, float32 (line 4)",
            "write engine.dtype: one of bfloat16, float32",
        ),
        (
            "algorithm: {corrections: [{name: tiss}]}",
            "algorithm.corrections.0.name: 'tiss' is none of tis, icepop, decoupled, reject, off_policy_mask (line 4). "
            "Did you mean 'tis'?",
            "write algorithm.corrections.0.name: tis",
        ),
        (
            "allocation: {name: neymann}",
            "allocation.name: 'neymann' is none of uniform, neyman, difficulty, dapo, until_mixed (line 4). "
            "Did you mean 'neyman'?",
            "write allocation.name: neyman",
        ),
        # a wrong kind of value, or one out of bounds
        (
            "steps: many",
            "steps: got 'many', expected a whole number (line 4)",
            "give steps a whole number, or leave it out for its default, 100",
        ),
        (
            "steps: 2.5",
            "steps: got 2.5, expected a whole number (line 4)",
            "give steps a whole number, or leave it out for its default, 100",
        ),
        (
            "steps:",
            "steps: got nothing, expected a whole number (line 4)",
            "give steps a whole number, or leave it out for its default, 100",
        ),
        (
            "optim: {lr: 0}",
            "optim.lr: got 0, expected more than 0 (line 4)",
            "give optim.lr more than 0, or leave it out for its default, 1e-06",
        ),
        (
            "engine: {activation_checkpointing: maybe}",
            "engine.activation_checkpointing: got 'maybe', expected true or false (line 4)",
            "give engine.activation_checkpointing true or false, or leave it out for its default, false",
        ),
        (
            "algorithm: {kl: 0.1}",
            "algorithm.kl: got 0.1, expected a mapping of keys (line 4)",
            "give algorithm.kl the keys coef, place, estimator, target, horizon",
        ),
        (
            "reward: {members: {use: x}}",
            "reward.members: got {'use': 'x'}, expected a list (line 4)",
            "give reward.members a list",
        ),
        (
            "allocation: {name: difficulty, samples: [1, 0, 3, 4, 5]}",
            "allocation.samples.1: got 0, expected at least 1 (line 4)",
            "give allocation.samples.1 at least 1",
        ),
        (
            "algorithm: {shaping: {clip: [1]}}",
            "algorithm.shaping.clip: got [1], expected a list of 2 (line 4)",
            "give algorithm.shaping.clip a list of 2",
        ),
        (
            "algorithm: {shaping: {clip: [1, 0]}}",
            "algorithm.shaping.clip: clip needs low < high, got [1.0, 0.0] (line 4)",
            "change algorithm.shaping.clip so that this holds",
        ),
        (
            "engine: {max_lag: yes}",
            "engine.max_lag: got true, expected a whole number (line 4)",
            "give it a whole number, or leave it out for its default",
        ),
        (
            "engine: {hang_seconds: true}",
            "engine.hang_seconds: got true, expected a number (line 4)",
            "give it a number, or leave it out for its default",
        ),
        # names that a recipe chooses, and keys that are names
        (
            "engine: {pools: {main: {cpu: 1}}}",
            "unknown key 'engine.pools.main.cpu' (line 4). Did you mean 'cpus'?",
            "write engine.pools.main.cpus",
        ),
        (
            "engine: {pools: [main]}",
            "engine.pools: got ['main'], expected a mapping of names to the keys cpus, gpus, spare (line 4)",
            "write it as {NAME: {KEY: VALUE}}, or leave it out",
        ),
        (
            "engine: {pools: {main: 3}}",
            "engine.pools.main: got 3, expected a mapping of keys (line 4)",
            "give engine.pools.main the keys cpus, gpus, spare",
        ),
        (
            "engine: {pools: {}}",
            "engine.pools: got {}, expected a mapping of names to the keys cpus, gpus, spare (line 4)",
            "write it as {NAME: {KEY: VALUE}}, or leave it out",
        ),
        (
            "engine: {balance: {judge_worker: [1, 2]}}",
            "unknown key 'engine.balance.judge_worker' (line 4). Did you mean 'judge_workers'?",
            "write engine.balance.judge_workers",
        ),
        (
            "engine: {balance: {samples: []}}",
            "engine.balance.samples: got [], expected a list of 2 (line 4)",
            "give engine.balance.samples a list of 2",
        ),
        *(
            (
                f"engine: {{ray: {address!r}}}",
                f"engine.ray: {address!r} is no address of a Ray cluster, expected host:port, auto or local (line 4)",
                "give host:port with the port of ray start --head (6379, if it was not told another), auto, or local",
            )
            for address in ("localhost", "127.0.0.1:99999", "h:0", ":1", "ray://h:1", "")
        ),
        # a key that is unknown, elsewhere, or missing; names of alternatives are no part of a key
        *(
            (
                f"algorithm: {{name: {name}, {wrong}: 1}}",
                f"unknown key 'algorithm.{wrong}' (line 4). Did you mean {right!r}?",
                f"write algorithm.{right}",
            )
            for name, wrong, right in [
                ("ppo", "critik", "critic"),
                ("remax", "clip_hihg", "clip_high"),
                ("gspo", "shapping", "shaping"),
                ("dpo", "betta", "beta"),
                ("kto", "desirabel", "desirable"),
            ]
        ),
        *(
            (
                f"optim: {{{wrong}: 1}}",
                f"unknown key 'optim.{wrong}' (line 4). Did you mean {right!r}?",
                f"write optim.{right}",
            )
            for wrong, right in [("beta", "betas"), ("epsilon", "eps")]
        ),
        # a key of another choice is never suggested to itself; those that read it are named
        *(
            (text, f"{key} is not read by {name} (line 4)", f"leave it out: {key.rpartition('.')[2]} is read by {by}")
            for text, key, name, by in [
                ("algorithm: {name: sft, clip_low: 0.1}", "algorithm.clip_low", "sft", SAMPLING),
                (
                    "algorithm: {name: grpo, beta: 0.1}",
                    "algorithm.beta",
                    "grpo",
                    "dpo, kto, or write algorithm.kl.coef",
                ),
                ("algorithm: {name: sft, beta: 0.1}", "algorithm.beta", "sft", "dpo, kto"),
                ("allocation: {name: uniform, min_samples: 2}", "allocation.min_samples", "uniform", "neyman"),
            ]
        ),
        (
            "stages: [{name: a, steps: 1, algorithm: {name: sft, clip_low: 0.1}}]",
            "stages.0.algorithm.clip_low is not read by sft (stage a, line 4)",
            f"leave it out: clip_low is read by {SAMPLING}",
        ),
        (
            "algorithm: {name: sft, clip_lo: 1}",
            "unknown key 'algorithm.clip_lo' of sft (line 4)",
            "keys of sft there: name, max_solution_tokens",
        ),
        # names of other tools
        (
            "algorithm: {name: ipo}",
            f"algorithm.name: 'ipo' is none of {SAMPLING}, sft, dpo, kto (line 4). It is {{name: dpo, kind: ipo}}",
            "write algorithm: {name: dpo, kind: ipo}",
        ),
        (
            "algorithm: orpo",
            f"algorithm: 'orpo' is none of {SAMPLING}, sft, dpo, kto (line 4)",
            f"write algorithm: one of {SAMPLING}, sft, dpo, kto",
        ),
        (
            "algorithm: {num_generations: 4}",
            "unknown key 'algorithm.num_generations' (line 4). Did you mean 'allocation.samples_per_prompt'?",
            "write it as allocation.samples_per_prompt, counted from the top of the recipe",
        ),
        (
            "allocation: {name: until_mixed, samples_per_prompt: 8, max_samples: 4}",
            "allocation: needs samples_per_prompt <= max_samples, got 8, 4 (line 4)",
            "change allocation so that this holds",
        ),
        (
            "temprature: 1",
            "unknown key 'temprature' (line 4). Did you mean 'sampling.temperature'?",
            "write it as sampling.temperature, counted from the top of the recipe",
        ),
        (
            "algorithm: {estimator: k1}",
            "unknown key 'algorithm.estimator' (line 4). Did you mean 'algorithm.kl.estimator'?",
            "write it as algorithm.kl.estimator, counted from the top of the recipe",
        ),
        ("stages: [{name: a}]", "stages.0.steps is missing (stage a, line 4)", "add stages.0.steps"),
        # stages say which one
        (
            "stages:\n- {name: sft, steps: 1, algorithm: sft}\n- {name: rl, steps: 1, algorithm: {name: dapo, lose: x}}",
            "unknown key 'stages.1.algorithm.lose' (stage rl, line 6). Did you mean 'loss'?",
            "write stages.1.algorithm.loss",
        ),
        (
            "stages: [{name: rl, steps: 1, learning_rate: 1, temperature: 2}]",
            "unknown key 'stages.0.learning_rate' (stage rl, line 4). Did you mean 'stages.0.optim.lr'?\n  "
            "unknown key 'stages.0.temperature' (stage rl, line 4). Did you mean 'stages.0.sampling.temperature'?",
            "write it as stages.0.optim.lr, counted from the top of the recipe; "
            "write it as stages.0.sampling.temperature, counted from the top of the recipe",
        ),
        (
            "stages: [{name: rl, steps: 1, model: x}]",
            "unknown key 'stages.0.model' (stage rl, line 4). Did you mean 'model'?",
            "write it as model, counted from the top of the recipe",
        ),
    ],
)
def test_wrong_in_the_file(text: str, what: str, fix: str) -> None:
    error = refused(text)
    assert (error.what, error.fix) == (what, fix)
    assert error.where == f"r.yaml:{4 + text.count(chr(10))}"


def test_daop() -> None:
    names = "grpo, dr_grpo, dapo, remax, rloo, reinforce_pp, ppo, gspo, cispo, raft, opo, maxrl, sft, dpo, kto"
    hint = f"'daop' is none of {names} (line 4). Did you mean 'dapo'?"
    assert refused("algorithm: daop").what == f"algorithm: {hint}"
    assert refused("algorithm: {name: daop}").what == f"algorithm.name: {hint}"
    assert refused("algorithm: daop").fix == "write algorithm: dapo"


def test_what_a_recipe_needs_whole() -> None:
    with pytest.raises(ConfigError) as caught:
        validate({}, where="r.yaml")
    assert caught.value.what == "model is missing\n  data is missing"
    assert "add data, with its keys: train, held_out" in caught.value.fix
    assert "jurat recipes show quickstart" in caught.value.fix


@pytest.mark.parametrize(
    ("given", "what", "where"),
    [
        (["optim.lr=-1"], "optim.lr: got -1, expected more than 0", "--set optim.lr=-1"),
        (["optim.lrr=1"], "unknown key 'optim.lrr'. Did you mean 'lr'?", "--set optim.lrr=1"),
        (["algorithm={name: sft, x: 1}"], "unknown key 'algorithm.x' of sft", "--set algorithm={name: sft, x: 1}"),
        (["data.held_out.size=3"], "data.held_out.source is missing", "--set data.held_out.size=3"),
        (["stages.3.steps=5"], "stages: got {'3': {'steps': 5}}, expected a list", "--set stages.3.steps=5"),
        (["model.x=2"], "'model' holds 'm', which has no keys", "--set model.x"),
        (["data.train.levels=[1]", "data.train.levels.2=5"], "'2' is no place in a list of 1", "--set data.train.levels.2"),
        (["data.train.levels=[1]", "data.train.levels.x=5"], "'x' is no place in a list of 1", "--set data.train.levels.x"),
        (["steps=0", "seed=x"],
         "steps: got 0, expected at least 1\n  seed: got 'x', expected a whole number (--set seed=x)", "--set steps=0"),
        (["engine.balance={samples: [8, 1]}"], "engine.balance.samples: needs lowest <= highest, got [8, 1]",
         "--set engine.balance={samples: [8, 1]}"),
        (["engine.placement={judge: b}"], "engine.placement.judge: no pool 'b', pools has main",
         "--set engine.placement={judge: b}"),
        (["engine.vllm_url=http://h:1"], "engine.vllm_url: a server goes with engine.sampler: vllm, and this one is 'own'",
         "--set engine.vllm_url=http://h:1"),
        (["engine.pools.main.spare=true"], "engine.pools: all pools are spare, so no role has a place",
         "--set engine.pools.main.spare=true"),
        ({"optim.lr": "x"}, "optim.lr: got 'x', expected a number", "overrides 'optim.lr'"),
    ],
)  # fmt: skip
def test_wrong_by_an_override(given: Any, what: str, where: str) -> None:
    """The file is not blamed for what --set did."""
    error = refused("", given)
    assert (error.what, error.where) == (what, where)
    assert error.fix


def test_extras_come_from_the_checkout() -> None:
    assert install("plot") == "make setup, or pip install -e '.[plot]' in the checkout of jurat"
    assert install("hub") == "pip install -e '.[hub]' in the checkout of jurat"


def test_make_setup_installs_what_is_said(root: Path) -> None:
    assert f"EXTRAS ?= {','.join(SET_UP)}\n" in (root / "Makefile").read_text()


def test_every_algorithm_samples_or_is_offline() -> None:
    sampling = set(get_args(PolicyGradient.model_fields["name"].annotation))
    every = {
        name for part in (PolicyGradient, SFT, DPO, KTO) for name in get_args(part.model_fields["name"].annotation)
    }
    assert (sampling | OFFLINE, sampling & OFFLINE) == (every, set())


def test_each_fault_has_its_own_place() -> None:
    error = refused("steps: x\n", ["seed=y"])
    assert error.where == "r.yaml:4"
    assert "expected a whole number (line 4)\n  seed: got 'y', expected a whole number (--set seed=y)" in error.what


def test_a_bare_name_is_an_algorithm_or_an_allocation() -> None:
    recipe = read(
        "algorithm: dapo\nallocation: neyman\nstages: [{name: a, steps: 1, algorithm: sft, allocation: dapo}]"
    )
    assert recipe.algorithm == PolicyGradient(name="dapo")
    assert recipe.allocation == Neyman(name="neyman")
    assert recipe.stages[0].algorithm is not None and recipe.stages[0].algorithm.name == "sft"
    assert recipe.stages[0].allocation == Dapo(name="dapo")
    assert read("algorithm: {credit: sum}", ["algorithm.credit.weight=2"]).algorithm == PolicyGradient(
        credit=Credit(name="sum", weight=2.0)
    )
    assert read("algorithm: dapo", ["algorithm.loss=gspo"]).algorithm == PolicyGradient(name="dapo", loss="gspo")
    assert read("algorithm: {loss: plain}").algorithm == PolicyGradient(loss="plain")
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe


def test_the_schema_takes_a_bare_name_too() -> None:
    properties = Recipe.model_json_schema()["properties"]
    assert {"type": "string", "enum": ["uniform", "neyman", "difficulty", "dapo", "until_mixed"]} in properties[
        "allocation"
    ]["oneOf"]
    credit = Recipe.model_json_schema()["$defs"]["PolicyGradient"]["properties"]["credit"]["anyOf"]
    assert {"type": "string", "enum": ["outcome", "sum", "min", "shaped", "function"]} in credit
    stage = Recipe.model_json_schema()["$defs"]["Stage"]["properties"]["algorithm"]["anyOf"][0]
    assert any(each.get("type") == "string" and "dapo" in each["enum"] for each in stage["oneOf"])
