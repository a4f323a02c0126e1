"""Names of algorithms, what they stand for, how a recipe overrides them, and what cannot go together."""

import math
from pathlib import Path

import numpy as np
import pytest

from jurat.platform.config import validate
from jurat.platform.errors import ConfigError
from jurat.platform.recipe import Dapo, Recipe, Uniform
from jurat.platform.types import (
    Allocation,
    Group,
    Judgement,
    Problem,
    Reward,
    Rollout,
    Scored,
    Step,
    Verdict,
    VerifierSpec,
    Visit,
)
from jurat.trainers.advantages import grpo, reinforce_pp, rloo
from jurat.trainers.aggregation import prompt_mean, seq_mean_token_mean, token_mean
from jurat.trainers.algorithms import build_algorithm
from jurat.trainers.contradictions import READ
from jurat.trainers.losses.cispo import CISPO
from jurat.trainers.losses.clipped import Clipped
from jurat.trainers.losses.gspo import GSPO
from jurat.trainers.losses.plain import Plain
from jurat.trainers.presets import PRESETS, filled


def recipe(**given) -> Recipe:
    value = {"model": "m", "data": {"train": {"source": "generated"}}, "sampling": {"max_new_tokens": 20}, **given}
    return validate(value, where="test")


def algorithm(**given):
    return build_algorithm(recipe(**given))


def named(name, **fields):
    return {"algorithm": {"name": name, **fields}}


def sample(index, score, length, *, steps=(), right=None):
    problem = Problem(id="p", messages=(), reference="1", verifier=VerifierSpec(name="math"))
    mask = np.array([False] * 2 + [True] * length)
    rollout = Rollout(
        id=f"r{index}", problem=problem, visit=0, index=index, tokens=np.arange(2 + length), loss_mask=mask,
        sampler_logprobs=mask * np.float32(-1.0), spans=(), text="x" * length, char_ends=np.arange(1, length + 1), finish="stop",
    )  # fmt: skip
    verdict = Verdict(status="partial", score=score if right is None else float(right))
    reward = Reward(value=score, parts={}, steps=tuple(steps))
    return Scored(rollout=rollout, judgement=Judgement(verdicts={"math": verdict}, reward=reward))


def group(*scored, baseline=None, evidence=None):
    return Group(
        visit=Visit(problem=scored[0].rollout.problem, visit=0, position=0), scored=scored, baseline=baseline,
        allocation=Allocation(samples=len(scored), reason="", evidence=evidence or {}),
    )  # fmt: skip


def advantages(made, groups, scores=None):
    """Advantage of the completion tokens of each sample."""
    return [s.advantages[s.loss_mask].tolist() for s in made.samples(groups, scores or {})]


# ---- names ----


@pytest.mark.parametrize(
    ("name", "estimator", "loss", "aggregation"),
    [
        ("grpo", "grpo", Clipped(low=0.2, high=0.2), token_mean),
        ("rloo", "rloo", Clipped(low=0.2, high=0.2), prompt_mean),
        ("dapo", "grpo", Clipped(low=0.2, high=0.28), token_mean),
        ("remax", "remax", Plain(), prompt_mean),
        ("gspo", "grpo", GSPO(low=3e-4, high=4e-4), seq_mean_token_mean),
        ("cispo", "grpo", CISPO(low=math.inf, high=4.0), token_mean),
        ("raft", "best_of_n", Plain(), token_mean),
        ("reinforce_pp", "reinforce_pp", Clipped(low=0.2, high=0.2), token_mean),
        ("ppo", "gae", Clipped(low=0.2, high=0.2), token_mean),
    ],
)
def test_a_name_stands_for_its_paper(name, estimator, loss, aggregation):
    made = algorithm(**named(name))
    assert (made.estimator, made.objectives["policy"], made.aggregation) == (estimator, loss, aggregation)


def test_every_preset_builds_and_filling_twice_changes_nothing():
    for name in PRESETS:
        once = filled(recipe(**named(name)))
        assert filled(once) == once == filled(Recipe.model_validate(once.model_dump()))
        build_algorithm(once)


def test_dapo_is_four_independent_switches():
    made = filled(recipe(**named("dapo")))
    part = made.algorithm
    assert (part.clip_low, part.clip_high) == (0.2, 0.28)
    assert isinstance(made.allocation, Dapo) and made.updates_per_step == 4
    assert part.aggregation == "token-mean"
    assert (part.shaping.scale, part.shaping.offset, part.shaping.overlong.cache) == (2.0, -1.0, 4)
    without = filled(
        recipe(
            **named("dapo", clip_high=0.2, aggregation="seq-mean-token-mean", shaping={}),
            allocation={"name": "uniform", "samples_per_prompt": 6}, updates_per_step=1,
        )
    )  # fmt: skip
    part = without.algorithm
    assert (part.clip_high, part.aggregation, part.shaping.overlong) == (0.2, "seq-mean-token-mean", None)
    assert (without.allocation.name, without.allocation.samples_per_prompt, without.updates_per_step) == (
        "uniform",
        6,
        1,
    )


def test_stages_are_filled_each_by_its_own_name():
    made = filled(
        recipe(
            stages=[
                {"name": "a", "steps": 1, "algorithm": {"name": "dapo"}},
                {"name": "b", "steps": 1, "algorithm": {"name": "remax"}, "updates_per_step": 1},
            ]
        )
    )
    a, b = (stage for _, stage in made.staged())
    assert (a.allocation.name, a.updates_per_step, a.algorithm.clip_high) == ("dapo", 4, 0.28)
    assert (b.allocation.samples_per_prompt, b.algorithm.advantage) == (1, "remax")


def test_a_misspelt_name_gets_its_neighbour():
    with pytest.raises(ConfigError, match=r"'daop' is none of .*dapo"):
        recipe(**named("daop"))


# ---- rewards to advantages ----


def test_shaping_comes_before_the_baseline():
    made = algorithm(**named("rloo", shaping={"scale": 2.0, "offset": -1.0, "overlong": {"cache": 4}}))
    found = advantages(made, [group(sample(0, 1.0, 3), sample(1, 1.0, 18), sample(2, 0.0, 2))])
    wanted = rloo(np.array([1.0, 0.5, -1.0]))
    assert [a[0] for a in found] == pytest.approx(wanted)
    assert all(len(set(a)) == 1 for a in found)
    assert list(made.optimised([group(sample(0, 1.0, 18))]).values()) == [0.5]


def test_remax_takes_off_the_greedy_reward_even_for_one_sample():
    made = algorithm(**named("remax"))
    found = advantages(made, [group(sample(0, 1.0, 2), baseline=sample(-1, 0.25, 3))])
    assert found == [[0.75, 0.75]]


def test_one_sample_uses_what_the_past_leads_to_expect():
    made = algorithm(**named("rloo", shaping={"scale": 2.0}), allocation={"name": "difficulty"})
    assert advantages(made, [group(sample(0, 1.0, 1), evidence={"baseline": 0.75})]) == [[0.5]]
    assert advantages(made, [group(sample(0, 1.0, 1))]) == [[0.0]]


def test_kl_in_the_reward():
    made = algorithm(**named("rloo", kl={"coef": 0.1, "place": "reward"}))
    assert made.needs == {"ref_logprobs": "reference"}
    assert made.objectives["policy"].kl_coef == 0.0
    pair = group(sample(0, 1.0, 2), sample(1, 0.0, 4))
    scores = {"ref_logprobs": {s.rollout.id: s.rollout.loss_mask * np.float32(-2.0) for s in pair.scored}}
    found = advantages(made, [pair], scores)  # the sampler is 1 nat above the reference at every token
    assert [a[0] for a in found] == pytest.approx([1.0 - 0.2 - (0.0 - 0.4), -(1.0 - 0.2 - (0.0 - 0.4))])
    token = algorithm(**named("reinforce_pp", kl={"coef": 0.1, "place": "reward"}))
    wanted = reinforce_pp([np.array([-0.1, 0.9]), np.array([-0.1, -0.1, -0.1, -0.1])])
    for got, exact in zip(advantages(token, [pair], scores), wanted, strict=True):
        assert got == pytest.approx(exact)


def test_excluded_samples_have_no_part():
    out = sample(1, 0.0, 2)
    out = Scored(rollout=out.rollout, judgement=Judgement(verdicts={}, reward=Reward(value=None)))
    found = advantages(algorithm(**named("grpo")), [group(sample(0, 1.0, 2), out, sample(2, 0.0, 2))])
    assert [a[0] for a in found] == pytest.approx(grpo(np.array([1.0, 0.0])))


def steps(*scores):
    return [Step(start=i, end=i + 1, status="partial", score=s) for i, s in enumerate(scores)]


def test_credit_of_steps():
    """Two solutions of three one-token steps; the second goes wrong at its last."""
    pair = group(sample(0, 1.0, 3, steps=steps(0.5, 0.8, 1.0)), sample(1, 0.0, 3, steps=steps(0.5, 0.8, 0.1)))
    judged = {"reward": {"members": [{"use": "problem"}, {"use": "steps", "role": "process"}]}}
    shaped = advantages(algorithm(**named("rloo", credit={"name": "shaped"}), **judged), [pair])
    assert shaped[0] == pytest.approx([1.0, 0.5, 0.2]) and shaped[1] == pytest.approx([-1.0, -0.5, -0.8])
    function = advantages(
        algorithm(**named("rloo", credit={"name": "function", "weight": 0.5, "gate": False}), **judged), [pair]
    )
    assert function[0] == pytest.approx([1.25, 1.4, 1.5]) and function[1] == pytest.approx([-0.75, -0.6, -0.95])
    gated = advantages(algorithm(**named("rloo", credit={"name": "function", "weight": 0.5}), **judged), [pair])
    assert gated == [function[0], pytest.approx([-1.0, -1.0, -1.0])]
    plain = advantages(algorithm(**named("rloo")), [pair])
    assert plain == [[1.0] * 3, [-1.0] * 3]


# ---- what cannot go together ----


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {**named("grpo"), "allocation": {"samples_per_prompt": 1}},
            r"algorithm.name 'grpo'.*allocation.samples_per_prompt is 1",
        ),
        ({**named("remax"), "updates_per_step": 2}, r"algorithm.loss 'plain'.*updates_per_step"),
        (named("remax", loss="clipped"), r"algorithm.loss 'clipped' needs algorithm.clip_low and algorithm.clip_high"),
        (named("gspo", dual_clip=3.0), r"algorithm.dual_clip.*algorithm.loss is 'gspo'"),
        (named("maxrl", shaping={"offset": -1.0}), r"'maxrl' divides by the mean reward.*algorithm.shaping"),
        (named("grpo", shaping={"overlong": {"cache": 30}}), r"overlong.cache 30 exceeds sampling.max_new_tokens 20"),
        (
            named("grpo", corrections=[{"name": "icepop", "low": 3.0}]),
            r"corrections\.0.low 3.0 is not below its high 2.0",
        ),
        (
            named("grpo", corrections=[{"name": "tis"}, {"name": "reject"}, {"name": "decoupled"}]),
            r"algorithm.corrections has 'tis' and 'decoupled'.*more than once",
        ),
        (named("grpo", credit={"name": "shaped"}), r"algorithm.credit.name 'shaped'.*reward.members has role process"),
        (named("grpo", clip_low=-0.1), r"clip_low.*more than 0"),
        (named("grpo", advantage="gae"), r"algorithm.advantage 'gae' .* algorithm.critic is not given"),
        (named("grpo", critic={}), r"algorithm.critic is read by advantage 'gae' .* algorithm.advantage is 'grpo'"),
        (named("ppo", advantage="rloo", critic={}), r"algorithm.critic .* algorithm.advantage is 'rloo'"),
        ({**named("ppo", critic={"warmup_steps": 5}), "steps": 5}, r"critic.warmup_steps 5 .* none of steps 5"),
        (named("ppo", credit={"name": "sum"}), r"algorithm.credit.name 'sum' .* algorithm.advantage 'gae'"),
        (
            {**named("ppo"), "allocation": {"name": "difficulty", "single": "greedy"}},
            r"allocation.single 'greedy' .* algorithm.advantage 'gae'",
        ),
        (named("ppo", loss="plain"), r"algorithm.name 'ppo' with algorithm.loss 'plain'.*updates_per_step"),
        (named("ppo", critic={"lam": 1.5}), r"lam.*at most 1"),
        (named("ppo", critic=None), r"algorithm.advantage 'gae' .* algorithm.critic is not given"),
        # keys that would do nothing
        (named("grpo", loss="plain", clip_high=0.3), r"algorithm.clip_high .* algorithm.loss 'plain'"),
        (named("raft", clip_low=0.3), r"algorithm.clip_low .* algorithm.loss 'plain'"),
        (
            named("grpo", corrections=[{"name": "tis", "low": 0.1}]),
            r"corrections\.0.low .*corrections\.0.name 'tis'",
        ),
        (named("grpo", corrections=[{"name": "decoupled", "high": 3.0}]), r"corrections\.0.high .*name 'decoupled'"),
        (named("grpo", corrections=[{"name": "icepop", "limit": 3.0}]), r"corrections\.0.limit .*name 'icepop'"),
        (
            named("grpo", corrections=[{"name": "tis"}, {"name": "off_policy_mask", "level": "sequence"}]),
            r"corrections\.1.level .*corrections\.1.name 'off_policy_mask'",
        ),
        (named("grpo", shaping={"free_tokens": 9}), r"shaping.free_tokens .* algorithm.shaping.per_token, which is 0"),
        (named("grpo", shaping={"scale": 0.0}), r"algorithm.shaping.scale 0 .* algorithm.shaping.offset"),
        (named("grpo", credit={"weight": 0.5}), r"algorithm.credit.weight .* algorithm.credit.name 'outcome'"),
        (named("grpo", credit={"name": "shaped", "gate": False}), r"algorithm.credit.gate .*credit.name 'shaped'"),
        (named("grpo", kl={"coef": 0.1, "estimator": "k1"}), r"kl.estimator 'k1' .* algorithm.kl.place 'loss'"),
        (
            named("grpo", kl={"coef": 0.1, "place": "reward", "estimator": "k2"}),
            r"kl.estimator 'k2' .* algorithm.kl.place 'reward'",
        ),
    ],
)
def test_what_makes_no_sense_names_both_keys(given, said):
    with pytest.raises(ConfigError, match=said):
        algorithm(**given)


def test_every_key_of_a_correction_that_is_read_is_taken():
    given = {"low": 0.1, "high": 3.0, "level": "sequence", "divergence": "k1", "limit": 0.3}
    for name, keys in READ.items():
        plain = algorithm(**named("grpo", corrections=[{"name": name}]))
        for key in keys:
            assert algorithm(**named("grpo", corrections=[{"name": name, key: given[key]}])) != plain, (name, key)


def test_a_plain_loss_takes_no_clip_bounds_from_its_preset():
    assert algorithm(**named("grpo", loss="plain")).objectives["policy"] == Plain()


def test_corrections_reach_the_loss():
    made = algorithm(**named("grpo", corrections=[{"name": "tis", "high": 3.0}, {"name": "reject", "limit": 0.5}]))
    tis, reject = made.objectives["policy"].corrections
    assert (tis.low, tis.high, tis.outside) == (0.0, 3.0, "clip")
    assert (reject.low, reject.high, reject.level) == (-math.inf, 0.5, "token")
    (both,) = (
        algorithm(**named("grpo", corrections=[{"name": "reject", "divergence": "k1", "limit": 0.5}]))
        .objectives["policy"]
        .corrections
    )
    assert (both.low, both.high) == (-0.5, 0.5)
    assert made.objectives["policy"].token_local


def test_the_table_in_the_documents_names_every_preset():
    page = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()
    assert {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")} == set(PRESETS)


def test_numbers_alone_keep_the_allocation_of_the_preset():
    def given(algorithm, allocation):
        value = {"model": "m", "data": {"train": {"source": "generated"}}, "algorithm": algorithm}
        made = filled(validate({**value, "allocation": allocation}, where="test"))
        assert filled(made) == made
        return made.allocation

    assert given("dapo", {"samples_per_prompt": 4}) == Dapo(name="dapo", samples_per_prompt=4)
    assert given("dapo", {}) == given("dapo", "dapo") == Dapo(name="dapo")
    assert given("dapo", {"name": "uniform", "samples_per_prompt": 4}) == Uniform(samples_per_prompt=4)
    assert given("remax", {}) == Uniform(samples_per_prompt=1)
    assert given("grpo", {"samples_per_prompt": 4}) == Uniform(samples_per_prompt=4)
