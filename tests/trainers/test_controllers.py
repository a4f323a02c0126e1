"""The controllers as a recipe asks for them: what they refuse, what the loop feeds them, and a run that goes on from them."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from jurat.engine import checkpoint as checkpointing
from jurat.engine.tensorfile import digest_of, load_tensors
from jurat.platform.config import validate
from jurat.platform.errors import ConfigError, RunFailed
from jurat.platform.runs.rollouts import read
from jurat.platform.runs.store import Store
from jurat.platform.types import (
    Allocation,
    Group,
    Judgement,
    Problem,
    Reward,
    Rollout,
    Scored,
    UpdateReport,
    Verdict,
    VerifierSpec,
    Visit,
)
from jurat.trainers.algorithms import build_algorithm
from jurat.trainers.controllers import Controllers, build_controllers
from jurat.trainers.losses.clipped import Clipped
from jurat.trainers.stability import AdaptiveKL, KLClip, ResumeGuard, RewardNormaliser


def recipe(algorithm=None, **given):
    value = {
        "model": "m",
        "data": {"train": {"source": "generated"}},
        "algorithm": {"name": "grpo", **(algorithm or {})},
        **given,
    }
    return validate(value, where="test")


def controllers(algorithm=None, **given):
    return build_controllers(recipe(algorithm, **given), reward="sha256:r")


def sample(name, reward, length=3):
    problem = Problem(id="p", messages=(), reference="1", verifier=VerifierSpec(name="math"))
    mask = np.array([False] * 2 + [True] * length)
    rollout = Rollout(
        id=name, problem=problem, visit=0, index=0, tokens=np.arange(2 + length), loss_mask=mask,
        sampler_logprobs=mask * np.float32(-1.0), spans=(), text="x" * length, char_ends=np.arange(1, length + 1), finish="stop",
    )  # fmt: skip
    verdict = Verdict(status="partial", score=reward)
    return Scored(rollout=rollout, judgement=Judgement(verdicts={"math": verdict}, reward=Reward(value=reward)))


def group(*rewards, greedy=None, expected=None, name="g"):
    scored = tuple(sample(f"{name}{i}", reward) for i, reward in enumerate(rewards))
    return Group(
        visit=Visit(problem=scored[0].rollout.problem, visit=0, position=0),
        scored=scored,
        baseline=None if greedy is None else sample(f"{name}*", greedy),
        allocation=Allocation(
            samples=len(rewards), reason="", evidence={} if expected is None else {"baseline": expected}
        ),
    )


def rewards_of(groups):
    return [[s.judgement.reward.value for s in each.scored] for each in groups]


def report(role="policy", *, skipped=False, tokens=5, **metrics):
    return UpdateReport(role=role, metrics=metrics, tokens=tokens, forwarded_tokens=tokens, skipped=skipped)


# ---- what a recipe asks for ----


def test_nothing_asked_for_changes_nothing():
    made, batch = controllers(), (group(1.0, 0.0),)
    assert made.normalised(batch) == batch
    assert made.clip_norm is None
    made.observe(report(grad_norm=1.0))
    assert made.steer(None, 0) == {}
    assert made.kl is None


def test_each_key_reaches_its_controller():
    made = controllers(
        {
            "kl": {"coef": 0.1, "target": 3.0, "horizon": 50},
            "advantage": "rloo",
            "normalise": {"over": "window", "window": 9},
        },
        optim={
            "clip_norm": 0.5,
            "kl_clip": {"target": 0.01, "low": 0.2, "high": 2.0},
            "resume_guard": {"steps": 4, "quantile": 0.5, "factor": 2.0},
        },
        updates_per_step=2,
    )
    assert made.kl == AdaptiveKL(0.1, 3.0, 50)
    assert made.normaliser == RewardNormaliser("window", 9)
    assert made.clip == KLClip(0.5, 0.01, 0.2, 2.0)
    assert made.guard == ResumeGuard(4, 0.5, 2.0)
    assert made.reward == "sha256:r"
    assert controllers({"kl": {"coef": 0.1}}).kl is None  # it stays as it is
    assert controllers({"name": "sft"}, optim={"resume_guard": {}}).guard == ResumeGuard()
    assert controllers({"name": "dapo"}, optim={"kl_clip": {"target": 0.01}}).clip is not None  # 4 updates a step


@pytest.mark.parametrize(
    ("algorithm", "given", "said"),
    [
        ({"kl": {"target": 6.0}}, {}, r"algorithm.kl.target 6.0 steers algorithm.kl.coef, which is 0"),
        ({"kl": {"coef": 0.1, "horizon": 9}}, {}, r"algorithm.kl.horizon 9 .*algorithm.kl.target"),
        ({"normalise": {"window": 9}}, {}, r"algorithm.normalise.window 9 .*algorithm.normalise.over"),
        ({"name": "maxrl", "normalise": {"over": "batch"}}, {}, r"algorithm.advantage 'maxrl'.*algorithm.normalise.over"),
        (
            {"credit": {"name": "shaped"}, "normalise": {"over": "batch"}},
            {},
            r"algorithm.credit.name 'shaped'.*algorithm.normalise.over 'batch'",
        ),
        ({}, {"optim": {"kl_clip": {"target": 0.01}}}, r"optim.kl_clip .*updates_per_step x epochs = 1"),
        ({"name": "sft"}, {"optim": {"kl_clip": {"target": 0.01}}}, r"optim.kl_clip .*algorithm.name 'sft' samples nothing"),
        (
            {},
            {"optim": {"kl_clip": {"target": 0.01, "low": 2.0}}, "epochs": 2},
            r"optim.kl_clip.low 2.0 exceeds optim.kl_clip.high 1.0",
        ),
        ({"kl": {"target": -1.0}}, {}, r"kl.target"),
        ({"normalise": {"over": "bathc"}}, {}, r"normalise.over"),
    ],
)  # fmt: skip
def test_what_would_do_nothing_is_refused_and_names_both_keys(algorithm, given, said):
    with pytest.raises(ConfigError, match=said):
        controllers(algorithm, **given)


# ---- rewards ----


def test_rewards_are_normalised_and_those_judged_stay():
    made = controllers({"advantage": "dr_grpo", "normalise": {"over": "batch"}, "shaping": {"scale": 10.0}})
    batch = (group(1.0, None, 3.0), group(5.0))
    found = made.normalised(batch)
    assert rewards_of(batch) == [[1.0, None, 3.0], [5.0]]
    assert rewards_of(found) == [[pytest.approx(-1.0, abs=1e-5), None, 0.0], [pytest.approx(1.0, abs=1e-5)]]
    assert found[0].scored[0].judgement.verdicts == batch[0].scored[0].judgement.verdicts
    algorithm = build_algorithm(
        recipe({"advantage": "dr_grpo", "normalise": {"over": "batch"}, "shaping": {"scale": 10.0}})
    )
    by_group = [list(algorithm.optimised([each]).values()) for each in found]
    assert by_group == [pytest.approx([-10.0, 0.0], abs=1e-4), pytest.approx([10.0], abs=1e-4)]
    made_of = [s.advantages[-1] for s in algorithm.samples(found, {})]
    assert made_of == pytest.approx([-5.0, 5.0, 0.0], abs=1e-4)  # shaped after it, and one alone is 0


@pytest.mark.parametrize("over", ["batch", "window", "running", "group"])
def test_a_greedy_sample_and_an_expected_reward_are_on_the_scale_of_the_samples(over):
    made = controllers({"advantage": "rloo", "normalise": {"over": over}})
    (one, other) = made.normalised((group(0.0, 1.0, greedy=1.0), group(1.0, 0.0, expected=1.0)))
    assert one.baseline.judgement.reward.value == one.scored[1].judgement.reward.value
    assert other.allocation.evidence["baseline"] == other.scored[0].judgement.reward.value


@pytest.mark.parametrize("over", ["batch", "window", "running", "group"])
def test_remax_with_one_sample_has_a_finite_advantage_of_the_right_sign(over):
    algorithm = {"name": "remax", "normalise": {"over": over}}
    made, rule = controllers(algorithm), build_algorithm(recipe(algorithm))
    batch = (group(1.0, greedy=0.0, name="a"), group(1.0, greedy=1.0, name="b"))  # no spread among the samples
    worse, same = (s.advantages[-1] for s in rule.samples(made.normalised(batch), {}))
    assert worse == pytest.approx(1.0)
    assert same == 0.0


@pytest.mark.parametrize("over", ["none", "group", "batch", "window", "running"])
def test_an_empty_batch_and_one_of_excluded_samples_are_no_measure(over):
    made = controllers({"advantage": "rloo", "normalise": {"over": over}})
    fresh = made.state()
    assert made.normalised(()) == ()
    assert rewards_of(made.normalised((group(None, None), group(None)))) == [[None, None], [None]]
    (alone,) = made.normalised((group(0.25),))
    assert made.normaliser.over == "none" or rewards_of([alone]) == [[0.0]]
    assert json.loads(json.dumps(fresh, allow_nan=False)) == fresh


def test_another_reward_has_moments_of_its_own():
    made = controllers({"advantage": "rloo", "normalise": {"over": "running"}})
    made.normalised((group(100.0, 300.0),))
    other = build_controllers(recipe({"advantage": "rloo", "normalise": {"over": "running"}}), reward="sha256:other")
    other.restore(made.state(), [].append)
    assert rewards_of(other.normalised((group(0.0, 1.0),)))[0] == pytest.approx(
        [-math.sqrt(0.5), math.sqrt(0.5)], rel=1e-5
    )


# ---- KL ----


def scores_of(groups, away):
    """Log-probs of a reference that is ``away`` nats per token below the sampler."""
    return {
        "ref_logprobs": {
            s.rollout.id: s.rollout.sampler_logprobs - away * s.rollout.loss_mask for g in groups for s in g.scored
        }
    }


@pytest.mark.parametrize("place", ["loss", "reward"])
def test_the_coefficient_is_steered_in_the_loss_and_in_the_reward(place):
    part = {"name": "rloo", "kl": {"coef": 0.1, "place": place, "target": 1.0, "horizon": 10}}
    made, base = controllers(part), build_algorithm(recipe(part))
    groups = (group(1.0, 0.0),)
    samples = base.samples(groups, scores_of(groups, 0.5))
    assert base.reference_kl(samples) == pytest.approx(1.5)  # 3 tokens
    assert made.steer(base.reference_kl(samples), 2) == {"kl/reference": pytest.approx(1.5), "policy/kl_coef": 0.1}
    moved = base.with_kl(made.kl.coef)
    assert made.kl.coef == pytest.approx(0.1 * (1 + 0.2 * 2 / 10))
    if place == "loss":
        assert moved.objectives["policy"] == Clipped(low=0.2, high=0.2, kl_coef=made.kl.coef)
        assert moved.kl_in_reward == 0.0
    else:
        assert moved.objectives == base.objectives
        assert moved.kl_in_reward == made.kl.coef
    assert base.with_kl(0.1) == base


def test_a_fixed_coefficient_shows_its_kl_and_none_of_it_where_there_is_no_reference():
    part = {"kl": {"coef": 0.1}}
    made, rule = controllers(part), build_algorithm(recipe(part))
    assert made.steer(rule.reference_kl(()), 0) == {}  # an empty batch
    assert made.steer(2.0, 4) == {"kl/reference": 2.0}
    assert (
        build_algorithm(recipe()).reference_kl(rule.samples((group(1.0, 0.0),), scores_of((group(1.0, 0.0),), 1)))
        is None
    )
    sft = build_algorithm(recipe({"name": "sft"}))
    assert sft.with_kl(0.0) is sft
    assert sft.reference_kl(sft.samples((group(1.0),), {})) is None


def test_without_a_measure_the_coefficient_stays():
    made = controllers({"kl": {"coef": 0.1, "target": 1.0, "horizon": 10}})
    assert made.steer(None, 0) == {"policy/kl_coef": 0.1}
    made.steer(math.nan, 4)
    assert made.kl.coef == 0.1


# ---- the clip norm ----


def test_the_limit_is_the_smaller_one():
    made = Controllers(norm=1.0, clip=KLClip(1.0, target=0.01, decay=0.0), guard=ResumeGuard(steps=1, quantile=1.0))
    assert made.clip_norm == 1.0
    made.observe(report(grad_norm=0.3, kl_sampler=0.02))
    assert made.clip_norm == 0.5
    again = Controllers(norm=1.0, clip=KLClip(1.0, target=0.01, decay=0.0), guard=ResumeGuard(steps=1, quantile=1.0))
    notes = []
    again.restore(json.loads(json.dumps(made.state(), allow_nan=False)), notes.append)
    assert again.clip_norm == 0.3
    assert notes[0].startswith("optim.resume_guard: gradients are clipped at 0.3 at most for the first 1 updates")
    again.observe(report(grad_norm=9.0, kl_sampler=0.1))
    assert again.clip_norm == pytest.approx(0.1)
    wide = Controllers(norm=1.0, clip=KLClip(1.0, target=0.01, high=3.0, decay=0.0))
    wide.observe(report(grad_norm=1.0, kl_sampler=0.0))
    assert wide.clip_norm == 3.0


@pytest.mark.parametrize(
    "silent",
    [
        report(skipped=True, grad_norm=math.nan, kl_sampler=math.inf),
        report(tokens=0, grad_norm=0.0, kl_sampler=0.0),
        report("critic", grad_norm=7.0),
    ],
    ids=["skipped", "nothing to learn from", "critic"],
)
def test_updates_that_say_nothing(silent):
    made = Controllers(clip=KLClip(1.0, target=0.01), guard=ResumeGuard())
    made.observe(report(grad_norm=1.0, kl_sampler=0.02))
    before = made.state()
    made.observe(silent)
    assert made.state() == before


measured = st.one_of(st.none(), st.floats(-1, 50))
updates = st.tuples(st.floats(1e-6, 1e6), st.floats(-0.1, 10), st.booleans())
steps = st.lists(
    st.tuples(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=3), max_size=3), measured, st.lists(updates, max_size=3)),
    max_size=4,
)  # fmt: skip


@pytest.mark.parametrize("over", ["group", "batch", "window", "running"])
@given(before=steps, after=steps)
def test_they_go_on_from_their_state(over, before, after):
    """All but the guard, which is there for that moment."""

    def made():
        return controllers(
            {"kl": {"coef": 0.1, "target": 1.0, "horizon": 10}, "advantage": "rloo", "normalise": {"over": over}},
            optim={"kl_clip": {"target": 0.01}},
            updates_per_step=2,
        )

    def feed(one, steps):
        said = []
        for rewards, kl, reports in steps:
            said.append(rewards_of(one.normalised([group(*each) for each in rewards])))
            for norm, moved, skipped in reports:
                said.append(one.clip_norm)
                one.observe(report(skipped=skipped, grad_norm=norm, kl_sampler=moved))
            said.append(one.steer(kl, 4))
        return said

    straight, resumed = made(), made()
    feed(straight, before)
    resumed.restore(json.loads(json.dumps(straight.state(), allow_nan=False)), [].append)
    assert feed(straight, after) == feed(resumed, after)
    assert straight.state() == resumed.state()


def test_a_checkpoint_from_before_they_were_there():
    made, notes = controllers({"advantage": "rloo", "normalise": {"over": "running"}}, optim={"resume_guard": {}}), []
    fresh = made.state()
    made.restore(None, notes.append)
    made.restore({}, notes.append)
    assert (made.state(), made.clip_norm, notes) == (fresh, 1.0, [])


# ---- whole runs ----

TINY = {
    "model": "tiny-random",
    "data": {"train": {"source": "generated:plain", "levels": [1], "size": 60}},
    "reward": {"members": [{"use": "fluency"}]},  # of random text some is whole, most is not
    "optim": {"lr": 3e-3},
    "sampling": {"max_new_tokens": 6},
    "engine": {"dtype": "float32", "threads": 1},
    "steps": 6,
    "prompts_per_step": 4,
    "updates_per_step": 2,
    "allocation": {"samples_per_prompt": 4},
}


@pytest.fixture
def run(launched):
    def made(home: Path, *, stop=None, **changes):
        return launched(home, {**TINY, **changes}, stop=stop, run_id="r")

    return made


def tensors(outcome):
    folder = Path(outcome.checkpoint) / "policy"
    return [load_tensors(folder / file, dtype=torch.float32) for file in ("model.safetensors", "optimizer.safetensors")]


def same(one, other):
    return all(torch.equal(a[name], b[name]) for a, b in zip(one, other, strict=True) for name in a)


STEERED = {
    "algorithm": {
        "name": "rloo",
        "kl": {"coef": 0.05, "target": 0.02, "horizon": 40},
        "normalise": {"over": "running"},
    },
    "optim": {"lr": 3e-3, "kl_clip": {"target": 1e-3, "low": 1e-4}},
}


@pytest.mark.parametrize("place", ["loss", "reward"])
def test_a_steered_run_resumes_bit_equal(place, run, launched, tmp_path):
    steered = {**STEERED, "algorithm": {**STEERED["algorithm"], "kl": {**STEERED["algorithm"]["kl"], "place": place}}}
    whole, screen = run(tmp_path / "whole", **steered)
    first, begun = run(tmp_path / "parts", stop=3, **steered)
    assert (first.state, first.step) == ("interrupted", 3)
    second, rest = launched(tmp_path / "parts", resume="r")
    assert same(tensors(whole), tensors(second))
    state, again = (checkpointing.state_of(Path(each.checkpoint))["controllers"] for each in (whole, second))
    assert state == again
    assert state["kl"]["coef"] == pytest.approx(screen.steps[-1].metrics["policy/kl_coef"], rel=0.2)
    assert state["normaliser"]["running"][whole_reward(whole)][0] == 6 * 16
    for name in (
        "policy/kl_coef",
        "policy/clip_norm",
        "kl/reference",
        "reward/optimised",
        "policy/loss",
        "reward/mean",
    ):
        values = [each.metrics[name] for each in screen.steps]
        assert values == [each.metrics[name] for each in (*begun.steps, *rest.steps)], name
        assert len(set(values)) > 2, (name, values)  # it moves, or nothing was shown
    store = Store.open(None, tmp_path / "whole")
    recorded = {row.scored.judgement.reward.value for row in read(store, store.run("r"), limit=None).records}
    store.close()
    assert recorded == {0.0, 1.0}  # as judged


def test_the_guard_stands_for_the_first_updates_after_a_resume(run, launched, tmp_path):
    guard = {"optim": {"lr": 3e-3, "resume_guard": {"steps": 3, "quantile": 0.5, "factor": 0.1}}}
    whole, screen = run(tmp_path / "whole", **guard)
    assert {each.metrics["policy/clip_norm"] for each in screen.steps} == {1.0}
    run(tmp_path / "parts", stop=3, **guard)
    second, rest = launched(tmp_path / "parts", resume="r")
    taught, after = (
        [update for each in steps for update in each.updates if update.tokens]
        for steps in (screen.steps[:3], rest.steps)
    )
    before = [update.metrics["grad_norm"] for update in taught]
    limit = 0.1 * float(np.quantile(before, 0.5))
    assert len(after) > 3
    assert [u.metrics["clip_norm"] for u in after] == pytest.approx([limit] * 3 + [1.0] * (len(after) - 3))
    said = f"optim.resume_guard: gradients are clipped at {limit:.3g} at most for the first 3"
    assert any(note.startswith(said) for note in rest.notes)
    assert not same(tensors(whole), tensors(second))  # what it is for; without the key they are equal, bit for bit
    kept = checkpointing.state_of(Path(second.checkpoint))["controllers"]["guard"]["norms"]
    assert kept == [*before, *(update.metrics["grad_norm"] for update in after[3:])]


def test_a_checkpoint_without_their_state_goes_on(run, launched, tmp_path):
    """Those written before there were controllers."""
    whole, _ = run(tmp_path / "whole", steps=2)
    first, _ = run(tmp_path / "parts", stop=1, steps=2)
    folder = Path(first.checkpoint)
    state, manifest = (json.loads((folder / name).read_text()) for name in ("state.json", "manifest.json"))
    del state["source"]["controllers"]
    (folder / "state.json").write_text(json.dumps(state))
    manifest["files"]["state.json"] = digest_of(folder / "state.json")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    second, _ = launched(tmp_path / "parts", resume="r")
    assert second.state == "finished"
    assert same(tensors(whole), tensors(second))


def test_a_recipe_reaches_every_schedule_and_given_completions_have_no_sampler(run, tmp_path):
    stages = [
        {
            "name": name,
            "steps": 3,
            "algorithm": {"name": "sft"},
            "optim": {"lr": 8e-4, "schedule": name, "warmup_steps": 2},
        }
        for name in ("constant", "linear", "cosine")
    ]
    _, screen = run(tmp_path, stages=stages)
    rates = [update.metrics["lr"] / 8e-4 for each in screen.steps for update in each.updates]
    cosine = [0.5 + 0.5 * math.cos(math.pi * k / 4) for k in range(4)]
    assert rates == pytest.approx([0.5, 1, 1, 1, 1, 1, 0.5, 1, 1, 0.75, 0.5, 0.25, 0.5, 1, *cosine])
    for each in screen.steps:
        assert not {name for name in each.metrics if "logprob_diff" in name or "kl" in name or "clip_norm" in name}
        assert each.metrics["policy/entropy"] > 0


def test_non_finite_updates_are_counted_over_the_updates_of_a_step(run, tmp_path):
    with pytest.raises(RunFailed, match=r"3 updates in a row had a non-finite loss or gradient"):
        run(tmp_path, optim={"lr": 1e30, "resume_guard": {}}, algorithm={"name": "sft"}, allocation={})
    store = Store.open(None, tmp_path)
    assert store.run("r").state == "failed"
    store.close()


def whole_reward(outcome):
    return checkpointing.open_checkpoint(Path(outcome.checkpoint)).meta["reward"]
