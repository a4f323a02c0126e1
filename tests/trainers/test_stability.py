"""Controllers by hand, against verl's KL controller, and through their JSON state."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from jurat.engine.optim import AdamW
from jurat.platform.recipe import Optim
from jurat.trainers.advantages import grpo
from jurat.trainers.stability import AdaptiveKL, KLClip, Moments, ResumeGuard, RewardNormaliser


def through_json(state):
    return json.loads(json.dumps(state, allow_nan=False))


# ---- KL coefficient ----


@pytest.mark.vectors("kl_controller")
def test_adaptive_kl_like_verl(case, tolerance):
    inputs = case["inputs"]
    made = dict(coef=inputs["init_kl_coef"], target=inputs["target_kl"], horizon=inputs["horizon"])
    control = AdaptiveKL(**made)
    for row in case["outputs"]["trace"]:
        control.update(row["current_kl"], row["n_steps"])
        assert control.coef == pytest.approx(row["value_after"], rel=tolerance, abs=tolerance)
        resumed = AdaptiveKL(**made)
        resumed.restore(through_json(control.state()))
        assert resumed == control
        control = resumed


def test_adaptive_kl_by_hand():
    control = AdaptiveKL(coef=0.5, target=6.0, horizon=100)
    control.update(6.6, 50)  # 10 % too far, half a horizon
    assert control.coef == pytest.approx(0.525)
    control.update(1000.0, 50)
    assert control.coef == pytest.approx(0.525 * 1.1)
    control.update(0.0, 10**9)
    assert control.coef == pytest.approx(0.525 * 1.1 * 0.1)


def test_a_kl_that_is_no_number_moves_no_coefficient_and_an_infinite_one_counts_as_far():
    control = AdaptiveKL(coef=0.5, target=6.0, horizon=100)
    control.update(math.nan, 50)
    assert control.coef == 0.5
    control.update(math.inf, 50)
    assert control.coef == pytest.approx(0.5 * 1.1)
    control.update(-math.inf, 50)
    assert control.coef == pytest.approx(0.5 * 1.1 * 0.9)


# ---- clipping ----


def test_the_clip_tightens_while_the_policy_moves_fast():
    clip = KLClip(norm=1.0, target=0.01, low=0.1, high=2.0, decay=0.5)
    assert clip.limit == 1.0
    clip.observe(0.02)
    assert clip.limit == 0.5
    clip.observe(0.04)
    assert clip.limit == pytest.approx(0.01 / 0.03)
    clip.observe(100.0)
    assert clip.limit == 0.1
    for _ in range(60):
        clip.observe(0.0)
    assert clip.limit == 2.0
    clip.observe(math.nan)
    assert clip.limit == 2.0


@given(st.lists(st.floats(-1, 10), max_size=20), st.floats(-1, 10))
def test_the_clip_goes_on_from_its_state_and_keeps_its_bounds(seen, following):
    clip, resumed = KLClip(norm=3.0, target=0.1), KLClip(norm=3.0, target=0.1)
    for kl in seen:
        clip.observe(kl)
    resumed.restore(through_json(clip.state()))
    for one in (clip, resumed):
        one.observe(following)
    assert clip == resumed
    assert 0.3 - 1e-12 <= clip.limit <= 3.0


def test_the_guard_stands_for_the_first_steps_after_a_resume():
    guard = ResumeGuard(steps=2, quantile=0.5, factor=2.0, history=3)
    for norm in (100.0, 1.0, math.inf, 2.0, 3.0):
        assert guard.limit == math.inf
        guard.observe(norm)
    resumed = ResumeGuard(steps=2, quantile=0.5, factor=2.0, history=3)
    resumed.restore(through_json(guard.state()))
    assert resumed.limit == 4.0
    resumed.observe(50.0)
    assert resumed.limit == 4.0  # the norm of a guarded step is no measure for the next
    resumed.observe(60.0)
    assert resumed.limit == math.inf
    resumed.observe(5.0)
    assert resumed.state() == {"norms": [2.0, 3.0, 5.0]}


def test_a_guard_without_history_guards_nothing():
    guard = ResumeGuard()
    guard.restore(through_json(ResumeGuard().state()))
    assert guard.limit == math.inf


def test_steps_without_a_gradient_are_no_measure():
    guard = ResumeGuard(steps=1, quantile=1.0)
    for norm in (0.0, math.nan, 2.0, 0.0):
        guard.observe(norm)
    assert guard.state() == {"norms": [2.0]}


def longest_step_after_a_resume(*, guarded, gradient=1.0, second_moments=1.0, steps=5):
    """After 40 gradients of norm about 1; those after the resume are ``gradient`` times as long, and the second moments
    of the checkpoint ``second_moments`` times what they were."""
    draw, settings = torch.Generator().manual_seed(0), Optim(lr=1.0, clip_norm=1e9)
    before, after = (
        AdamW(torch.zeros(400), torch.zeros(400), num_matrix=0, optim=settings, total=99) for _ in range(2)
    )
    guard, resumed = ResumeGuard(), ResumeGuard()
    for _ in range(40):
        before.grad.copy_(torch.randn(400, generator=draw) / 20)
        guard.observe(before.step()["grad_norm"])
    after.tensors()["exp_avg"].copy_(before.tensors()["exp_avg"])
    after.tensors()["exp_avg_sq"].copy_(second_moments * before.tensors()["exp_avg_sq"])
    after.restore(before.counters())
    resumed.restore(through_json(guard.state()))
    moved = []
    for _ in range(steps):
        was = after.master.clone()
        after.grad.copy_(gradient * torch.randn(400, generator=draw) / 20)
        resumed.observe(after.step(clip_norm=min(1e9, resumed.limit) if guarded else None)["grad_norm"])
        moved.append(float((after.master - was).norm()))
    return max(moved)


def test_the_guard_bounds_the_step_where_gradients_are_not_those_of_before():
    usual = longest_step_after_a_resume(guarded=False)
    assert longest_step_after_a_resume(guarded=False, gradient=1000.0) > 2.5 * usual
    assert longest_step_after_a_resume(guarded=True, gradient=1000.0) < 1.05 * usual


def test_the_guard_does_not_mend_moments():
    """What Adam makes of usual gradients with second moments that are too small no clipping of gradients bounds."""
    alone, guarded = (longest_step_after_a_resume(guarded=g, second_moments=1e-4) for g in (False, True))
    assert alone == pytest.approx(guarded, rel=0.02)
    assert guarded > 20 * longest_step_after_a_resume(guarded=False)


# ---- rewards ----

rewards = st.lists(st.floats(-5, 5), min_size=1, max_size=6).map(np.array)
batches = st.lists(st.lists(st.tuples(rewards, st.sampled_from(["v1", "v2"])), min_size=1, max_size=4), max_size=4)
MODES = ("group", "batch", "window", "running")


def normalised(normaliser, groups, keys):
    return [found.standard(group) for found, group in zip(normaliser.moments(groups, keys), groups, strict=True)]


def test_normalising_by_hand():
    groups, keys = [np.array([1.0, 3.0]), np.array([5.0])], ["v1", "v1"]
    by_group = normalised(RewardNormaliser(over="group"), groups, keys)
    np.testing.assert_allclose(by_group[0], np.array([-1, 1]) / (math.sqrt(2) + 1e-6))
    assert by_group[1].tolist() == [0]
    for over in ("batch", "window", "running"):
        got = np.concatenate(normalised(RewardNormaliser(over=over), groups, keys))
        np.testing.assert_allclose(got, np.array([-2, 0, 2]) / (2 + 1e-6), err_msg=over)
    # Of 1, 3, 5 a window of 2 keeps 5 and the 7 that comes.
    window = RewardNormaliser(over="window", window=2)
    normalised(window, groups, keys)
    np.testing.assert_allclose(normalised(window, [np.array([7.0])], ["v1"])[0], 1 / (math.sqrt(2) + 1e-6))
    running = RewardNormaliser(over="running")
    normalised(running, groups, keys)
    np.testing.assert_allclose(normalised(running, [np.array([7.0])], ["v1"])[0], 3 / (math.sqrt(20 / 3) + 1e-6))


@pytest.mark.parametrize("over", ["batch", "window", "running"])
def test_verifiers_and_their_versions_are_apart(over):
    normaliser = RewardNormaliser(over=over)
    normalised(normaliser, [np.array([100.0, 300.0])], ["v1"])
    got = normalised(normaliser, [np.array([0.0, 1.0]), np.array([50.0])], ["v2", "v3"])
    np.testing.assert_allclose(got[0], np.array([-0.5, 0.5]) / (math.sqrt(0.5) + 1e-6))
    assert got[1].tolist() == [0]


@pytest.mark.parametrize("over", MODES)
def test_equal_rewards_carry_nothing(over):
    for group in normalised(RewardNormaliser(over=over), [np.full(3, 0.1), np.full(2, 0.1)], ["v1", "v1"]):
        assert abs(group).max() < 1e-9


def test_a_spread_that_is_rounding_counts_as_one():
    """Else a greedy baseline beside a group of equal rewards would be a million away."""
    moments = Moments()
    moments.add(np.full(3, 0.1))
    assert moments.standard(np.array([0.1, 0.0, 1.0])) == pytest.approx([0.0, -0.1, 0.9])
    assert Moments().standard(np.array([0.5])) == [0.5]
    assert Moments().standard(np.zeros(0)).tolist() == []


grid = st.integers(0, 10).map(lambda n: n / 10)
groups_of = st.lists(st.lists(grid, min_size=1, max_size=6).map(np.array), min_size=1, max_size=5)


@pytest.mark.parametrize("over", MODES)
@given(before=groups_of, groups=groups_of)
def test_group_relative_advantages_do_not_see_it(over, before, groups):
    """The map is one and the same within a group: divided by its std a group stays what it was, and one without
    spread has advantages of exactly 0."""
    normaliser = RewardNormaliser(over=over, window=8)
    normalised(normaliser, before, ["v"] * len(before))
    for raw, scaled in zip(groups, normalised(normaliser, groups, ["v"] * len(groups)), strict=True):
        np.testing.assert_allclose(grpo(scaled), grpo(np.round(raw, 1)) * np.ptp(raw).astype(bool), atol=2e-4)
        if np.ptp(raw) == 0:
            assert not grpo(scaled).any()


@pytest.mark.parametrize("over", MODES)
@given(batches, batches)
def test_a_normaliser_goes_on_from_its_state(over, before, after):
    straight, resumed = RewardNormaliser(over=over, window=7), RewardNormaliser(over=over, window=7)

    def feed(normaliser, all_batches):
        return [normalised(normaliser, [g for g, _ in batch], [k for _, k in batch]) for batch in all_batches]

    feed(straight, before)
    resumed.restore(through_json(straight.state()))
    for one, other in zip(feed(straight, after), feed(resumed, after), strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)
    assert straight.state() == resumed.state()


@given(st.lists(rewards, min_size=1, max_size=6))
def test_merged_moments_are_those_of_all_values(parts):
    moments = Moments()
    for part in parts:
        moments.add(part)
    flat = np.concatenate(parts)
    assert moments.count == len(flat)
    assert moments.mean == pytest.approx(flat.mean(), abs=1e-9)
    assert moments.std == pytest.approx(flat.std(ddof=1) if len(flat) > 1 else 0.0, abs=1e-9)
