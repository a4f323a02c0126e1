"""PPO with a critic: advantages and returns by hand, what a critic takes with it, whole runs and resumed ones."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, load_file

from jurat.engine import models
from jurat.platform.config import validate
from jurat.platform.recipe import Critic
from jurat.platform.types import (
    Allocation,
    Group,
    Judgement,
    Problem,
    Reward,
    Rollout,
    Sample,
    Scored,
    VerifierSpec,
    Visit,
)
from jurat.trainers.advantages import reward_to_go
from jurat.trainers.aggregation import token_mean
from jurat.trainers.algorithms import build_algorithm
from jurat.trainers.losses.clipped import Clipped
from jurat.trainers.losses.value import ValueLoss
from jurat.trainers.metrics import value_metrics
from jurat.trainers.packing import pack
from jurat.trainers.presets import filled

PROBLEM = Problem(id="p", messages=(), reference="1", verifier=VerifierSpec(name="math"))


def recipe(**algorithm):
    value = {"model": "m", "data": {"train": {"source": "generated"}}, "algorithm": {"name": "ppo", **algorithm}}
    return filled(validate(value, where="test"))


def scored(index, reward, length, finish="stop"):
    mask = np.array([False] * 2 + [True] * length)
    rollout = Rollout(
        id=f"r{index}", problem=PROBLEM, visit=0, index=index, tokens=np.arange(2 + length), loss_mask=mask,
        sampler_logprobs=mask * np.float32(-1.0), spans=(), text="", char_ends=np.arange(1, length + 1), finish=finish,
    )  # fmt: skip
    return Scored(rollout=rollout, judgement=Judgement(verdicts={}, reward=Reward(value=reward)))


def group(*members):
    visit = Visit(problem=PROBLEM, visit=0, position=0)
    return Group(visit=visit, scored=members, allocation=Allocation(samples=len(members), reason=""))


def column(groups, rows):
    """[N] numbers of each sample as a column of scores, in order."""
    made = {}
    for each, row in zip((s for g in groups for s in g.scored), rows, strict=True):
        made[each.rollout.id] = np.concatenate([np.zeros(2), np.asarray(row)]).astype(np.float32)
    return made


def learnt(samples, name):
    return [getattr(s, name)[s.loss_mask].tolist() for s in samples]


def test_the_name_stands_for_gae_and_a_critic():
    made = build_algorithm(recipe(critic={"clip": 0.25}))
    assert dict(made.objectives) == {"policy": Clipped(low=0.2, high=0.2), "critic": ValueLoss(0.25)}
    assert made.estimator == "gae" and made.aggregation is token_mean
    assert made.needs == {"proximal_logprobs": "policy", "values": "critic"}
    full = recipe()
    assert (full.updates_per_step, full.algorithm.critic) == (4, Critic())
    assert recipe(advantage="rloo").algorithm.critic is None
    build_algorithm(recipe(advantage="rloo"))


def test_one_sample_per_prompt_is_enough():
    value = {"model": "m", "data": {"train": {"source": "generated"}}, "algorithm": {"name": "ppo"}}
    build_algorithm(validate({**value, "allocation": {"samples_per_prompt": 1}}, where="test"))


def test_by_hand():
    """Values 1/2, 1/4 and reward 1; value 1/2 and reward 0: deltas -1/4, 3/4 and -1/2."""
    made = build_algorithm(recipe(critic={"lam": 0.5}))
    groups = [group(scored(0, 1.0, 2)), group(scored(1, 0.0, 1, finish="length"))]
    values = column(groups, [[0.5, 0.25], [0.5]])
    old = column(groups, [[-1.0, -1.0], [-1.0]])
    samples = made.samples(groups, {"values": values, "proximal_logprobs": old})
    for got, wanted in zip(learnt(samples, "advantages"), [[0.0, 1.0], [-1.0]], strict=True):
        assert got == pytest.approx(wanted, abs=1e-6)
    assert learnt(samples, "returns") == [[0.625, 1.0], [0.0]]  # the completion that was cut: nothing is bootstrapped
    assert learnt(samples, "values") == [[0.5, 0.25], [0.5]]
    assert all(not s.returns[:2].any() and not s.advantages[:2].any() for s in samples)


def test_excluded_samples_have_no_part():
    made = build_algorithm(recipe())
    groups = [group(scored(0, 1.0, 2), scored(1, None, 3), scored(2, 0.0, 1))]
    zeros = column(groups, [[0] * 2, [0] * 3, [0]])
    kept = {name: array for name, array in zeros.items() if name != "r1"}
    samples = made.samples(groups, {"values": kept, "proximal_logprobs": kept})
    assert [s.rollout_id for s in samples] == ["r0", "r2"]
    assert learnt(samples, "returns") == [[1.0, 1.0], [0.0]]


def test_the_kl_is_in_the_rewards_of_tokens():
    made = build_algorithm(recipe(kl={"coef": 0.1, "place": "reward"}))
    groups = [group(scored(0, 1.0, 3))]
    zeros = column(groups, [[0.0] * 3])
    scores = {"values": zeros, "proximal_logprobs": zeros, "ref_logprobs": column(groups, [[-2.0] * 3])}
    (sample,) = made.samples(groups, scores)  # the sampler is 1 nat above the reference at every token
    assert sample.returns[2:].tolist() == pytest.approx([0.7, 0.8, 0.9])


lengths = st.lists(st.tuples(st.integers(1, 6), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=6)


@pytest.mark.parametrize("kl", [0.0, 0.25])
@given(shape=lengths, seed=st.integers(0, 99))
def test_without_values_it_is_reinforce_pp_and_its_reward_to_go(kl, shape, seed):
    """gamma = lambda = 1, V = 0, unequal lengths; and with any V returns are the same, as lambda = 1 trusts rewards."""
    draw = np.random.default_rng(seed)
    groups = [group(*(scored(i, reward, n) for i, (n, reward) in enumerate(shape)))]
    part = {"kl": {"coef": kl, "place": "reward"}}
    common = {
        "ref_logprobs": column(groups, [draw.normal(size=n) for n, _ in shape]),
        "proximal_logprobs": column(groups, [np.zeros(n) for n, _ in shape]),
    }
    ppo = build_algorithm(recipe(**part))
    samples = ppo.samples(groups, {**common, "values": column(groups, [np.zeros(n) for n, _ in shape])})
    plain = build_algorithm(recipe(**part, advantage="reinforce_pp")).samples(groups, common)
    assert learnt(samples, "advantages") == learnt(plain, "advantages")
    for sample, (n, reward), each in zip(samples, shape, groups[0].scored, strict=True):
        tokens = np.zeros(n)
        tokens[-1] = reward
        tokens -= kl * (-1.0 - common["ref_logprobs"][each.rollout.id][2:])
        np.testing.assert_allclose(sample.returns[2:], reward_to_go(tokens), atol=1e-5)
    other = ppo.samples(groups, {**common, "values": column(groups, [draw.normal(size=n) for n, _ in shape])})
    for a, b in zip(samples, other, strict=True):
        np.testing.assert_allclose(a.returns, b.returns, atol=1e-5)


def test_the_critic_learns_from_samples_that_teach_the_policy_nothing():
    mask = np.array([False, True])
    zero, one = np.zeros(2, np.float32), mask.astype(np.float32)
    same = Sample(
        tokens=np.arange(2), loss_mask=mask, sampler_logprobs=zero, weights=one, advantages=zero,
        values=zero, returns=one, atom=0,
    )  # fmt: skip
    assert pack([same], Clipped(low=0.2, high=0.2), token_mean, ranks=1, tokens=9).rounds == ()
    (round_,) = pack([same], ValueLoss(), token_mean, ranks=1, tokens=9).rounds
    loss, _ = ValueLoss()(round_[0].values, round_[0])
    assert float(loss) == 0.5


def test_what_a_critic_explains():
    mask = np.array([False, True, True])

    def sample(values, returns):
        made = [np.array([0.0, *row], np.float32) for row in (values, returns)]
        return Sample(
            tokens=np.arange(3), loss_mask=mask, sampler_logprobs=made[0], weights=made[0], advantages=made[0],
            values=made[0], returns=made[1], atom=0,
        )  # fmt: skip

    found = value_metrics([sample([0.5, 0.5], [1.0, 1.0]), sample([0.0, 0.0], [0.0, 0.0])])
    assert found == {"critic/value": 0.25, "critic/return": 0.5, "critic/explained_variance": 0.75}
    assert value_metrics([sample([0.5, 0.25], [1.0, 1.0])])["critic/explained_variance"] == 0.0
    assert value_metrics([]) == {}


# ---- whole runs ----

TINY = {
    "model": "tiny-random",
    "data": {"train": {"source": "generated:plain", "levels": [1], "size": 40}},
    "optim": {"lr": 1e-3, "schedule": "linear"},
    "sampling": {"max_new_tokens": 6},
    "engine": {"dtype": "float32", "threads": 1},
    "steps": 3,
    "prompts_per_step": 4,
    "allocation": {"samples_per_prompt": 2},
    "updates_per_step": 2,
    "checkpoint": {"every": 1, "keep": 9},
    "algorithm": {"name": "ppo", "critic": {"lr": 2e-3, "warmup_steps": 1}, "kl": {"coef": 0.05, "place": "reward"}},
}


def files(checkpoint):
    """Bytes of weights and optimiser of each role."""
    return {
        path.relative_to(checkpoint).as_posix(): path.read_bytes() for path in Path(checkpoint).rglob("*.safetensors")
    }


@pytest.mark.parametrize("path", ["fast", "simple"])
def test_a_run_that_was_stopped_equals_one_that_was_not(path, launched, tmp_path):
    recipe = {**TINY, "engine": {**TINY["engine"], "path": path}}
    done, whole = launched(tmp_path / "whole", recipe)
    first, _ = launched(tmp_path / "again", recipe, stop=2)
    assert (done.state, first.state, first.step) == ("finished", "interrupted", 2)
    again, rest = launched(tmp_path / "again", resume=first.run)
    assert (again.state, [report.step for report in rest.steps]) == ("finished", [2])
    assert files(done.checkpoint) == files(again.checkpoint)
    assert set(files(done.checkpoint)) == {
        f"{r}/{f}.safetensors" for r in ("policy", "critic") for f in ("model", "optimizer")
    }

    roles = [[update.role for update in report.updates] for report in whole.steps]
    assert roles == [["critic"] * 2, *[["policy", "critic"] * 2] * 2]
    rates = [u.metrics["lr"] for report in whole.steps for u in report.updates if u.role == "policy"]
    assert rates == pytest.approx([1e-3, 0.75e-3, 0.5e-3, 0.25e-3])  # its schedule begins when it does
    warm = files(Path(done.checkpoint).parent / "step-000001")
    begun = load_file(models.resolve("tiny-random", tmp_path / "whole") / "model.safetensors")
    policy, critic = (load(warm[f"{role}/model.safetensors"]) for role in ("policy", "critic"))
    assert all(torch.equal(policy[name], tensor) for name, tensor in begun.items())
    assert critic.keys() - policy.keys() == {"score.weight"}
    assert not any(torch.equal(critic[name], tensor) for name, tensor in begun.items() if "proj" in name)
    metrics = whole.steps[0].metrics
    assert metrics["critic/value"] == 0.0 and "policy/loss" not in metrics
    assert not {"critic/entropy", "critic/logprob_diff_mean"} & metrics.keys()
    assert whole.steps[1].metrics["critic/value"] != 0.0


def test_a_later_stage_goes_on_with_the_critic_of_the_one_before(launched, tmp_path):
    """sft has none: the critic of a begins with a zero head. b takes over a's."""
    stages = [
        {"name": "sft", "steps": 1, "algorithm": {"name": "sft"}},
        {"name": "a", "steps": 2},
        {"name": "b", "steps": 2, "algorithm": {**TINY["algorithm"], "critic": {"warmup_steps": 0}}},
    ]
    done, screen = launched(tmp_path, {**TINY, "stages": stages})
    assert done.state == "finished"
    values = [report.metrics.get("critic/value") for report in screen.steps]
    assert values[0] is None and values[1] == 0.0 and values[3] != 0.0
