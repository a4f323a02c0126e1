"""Advantages against hand-made numbers, reference vectors and their own identities."""

import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from jurat.trainers.advantages import (
    ADVANTAGES,
    best_of_n,
    dr_grpo,
    gae,
    grpo,
    maxrl,
    normalise,
    normalise_then_sum,
    opo,
    reinforce_pp,
    reinforce_pp_baseline,
    remax,
    reward_to_go,
    rloo,
    weighted_sum,
    whiten,
)
from jurat.trainers.aggregation import AGGREGATIONS

PARITY = Path(os.environ.get("JURAT_PARITY", Path(__file__).parents[3] / "shared" / "parity"))
FILES = (
    "adv_grpo",
    "adv_dr_grpo",
    "adv_rloo",
    "adv_opo_rfpp_baseline",
    "adv_remax",
    "adv_reinforce_pp",
    "adv_gae",
    "trl_advantages",
    "group_estimator_stats",
    "unequal_groups",
)


def close(got, wanted, tolerance):
    np.testing.assert_allclose(
        np.asarray(got, np.float64), np.asarray(wanted, np.float64), rtol=tolerance, atol=tolerance
    )


def batch(case, name="token_level_rewards"):
    """Rewards [rows, T] and mask [rows, T] of a case of verl's."""
    return np.array(case["inputs"][name], np.float64), np.array(case["inputs"]["response_mask"], bool)


def rows_of_groups(case):
    index = np.array(case["inputs"]["index"])
    return [np.flatnonzero(index == name) for name in dict.fromkeys(index.tolist())]


def test_the_vectors_are_whole():
    if not PARITY.exists():
        pytest.skip(f"no reference vectors at {PARITY} (set JURAT_PARITY)")
    assert all((PARITY / f"{file}.json").exists() for file in FILES)
    tests = "".join(path.read_text() for path in Path(__file__).parent.rglob("test_*.py"))
    unknown = [path.name for path in PARITY.glob("*.json") if path.stem not in tests]
    if unknown:
        pytest.skip(f"vectors of functions that no test knows: {', '.join(unknown)}")


# ---- by hand ----


def test_by_hand():
    rewards = np.array([1.0, 0.0, 0.0, 1.0])
    np.testing.assert_allclose(dr_grpo(rewards), [0.5, -0.5, -0.5, 0.5])
    np.testing.assert_allclose(rloo(rewards), [2 / 3, -2 / 3, -2 / 3, 2 / 3])
    np.testing.assert_allclose(grpo(rewards), np.array([0.5, -0.5, -0.5, 0.5]) / (np.sqrt(1 / 3) + 1e-6))
    np.testing.assert_allclose(maxrl(np.array([1.0, 0.0, 0.0, 0.0])), [3, -1, -1, -1])
    # Lengths 1, 1, 2 and rewards 1, 0, 0: the baseline is 1/4.
    np.testing.assert_allclose(opo(np.array([1.0, 0.0, 0.0]), np.array([1, 1, 2])), [0.75, -0.25, -0.25])
    np.testing.assert_allclose(remax(np.array([1.0, 0.0]), 1.0), [0.0, -1.0])


def test_best_of_n_takes_all_that_tie_and_none_where_nothing_is_worse():
    assert best_of_n(np.array([0.2, 0.9, 0.9])).tolist() == [0, 1, 1]
    assert best_of_n(np.array([0.0, 0.0])).tolist() == [0, 0]
    assert best_of_n(np.array([1.0, 1.0])).tolist() == [0, 0]
    assert best_of_n(np.array([1.0]), baseline=0.4).tolist() == [1]
    assert best_of_n(np.array([0.0]), baseline=0.4).tolist() == [0]


@pytest.mark.parametrize("mean", [[0.0, 0.0], [-1.0, 1.0], [-1.0, -1.0]])
def test_maxrl_has_no_signal_where_the_mean_is_not_positive(mean):
    assert maxrl(np.array(mean)).tolist() == [0, 0]


@pytest.mark.parametrize("rule", ADVANTAGES)
def test_a_group_of_one_has_no_advantage(rule):
    assert ADVANTAGES[rule](np.array([1.0])).tolist() == [0.0]
    assert ADVANTAGES[rule](np.array([])).tolist() == []


def test_a_group_of_one_is_compared_with_the_baseline_that_was_brought():
    one = np.array([1.0])
    assert dr_grpo(one, baseline=0.25) == rloo(one, baseline=0.25) == opo(one, np.array([7]), baseline=0.25) == 0.75
    assert grpo(one, baseline=0.25) == 0.75 / (1 + 1e-6)
    assert maxrl(one, baseline=0.25) == 3.0
    assert opo(one, np.array([7])) == 0
    # Larger groups have their own.
    assert dr_grpo(np.array([1.0, 0.0]), baseline=0.9).tolist() == [0.5, -0.5]


def test_returns_by_hand():
    rewards = np.array([0.0, 1.0, 2.0])
    assert reward_to_go(rewards).tolist() == [3, 3, 2]
    assert reward_to_go(rewards, 0.5).tolist() == [1, 2, 2]
    hole = np.array([True, False, True])
    assert reward_to_go(rewards, 0.5, hole).tolist() == [1, 0, 2]
    assert reward_to_go(np.array([])).tolist() == []
    advantages, returns = gae(rewards, np.array([0.5, 0.5, 1.0]), gamma=1.0, lam=0.5)
    # deltas 0, 1.5, 1
    assert advantages.tolist() == [1.0, 2.0, 1.0]
    assert returns.tolist() == [1.5, 2.5, 2.0]


def test_whiten_by_hand():
    low, high = whiten([np.array([1.0, 9.0]), np.array([3.0])], [np.array([True, False]), np.array([True])])
    np.testing.assert_allclose(low, [-1 / np.sqrt(2 + 1e-8), 0])
    np.testing.assert_allclose(high, [1 / np.sqrt(2 + 1e-8)])
    np.testing.assert_allclose(whiten([np.array([1.0, 3.0])], ddof=0)[0], [-1, 1], rtol=1e-7)
    assert whiten([]) == []
    assert whiten([np.array([5.0])])[0].tolist() == [0]


def test_reinforce_pp_by_hand():
    # Returns 1, 1 and -1 over three tokens: mean 1/3, variance 4/3.
    scale = np.sqrt(4 / 3 + 1e-8)
    first, second = reinforce_pp([np.array([0.0, 1.0]), np.array([-1.0])])
    np.testing.assert_allclose(first, np.array([2 / 3, 2 / 3]) / scale)
    np.testing.assert_allclose(second, np.array([-4 / 3]) / scale)
    # Centred 0.5 over two tokens and -0.5 over one: mean 1/6, variance 1/3.
    got = reinforce_pp_baseline([np.array([1.0, 0.0])], [np.array([2, 1])])[0]
    np.testing.assert_allclose(got, np.array([1 / 3, -2 / 3]) / np.sqrt(1 / 3 + 1e-8))


def test_several_rewards_by_hand():
    # The second member does not apply to the first sample; of the others it is -1, 1 over sqrt 2.
    part, root = np.array([[1.0, np.nan], [0.0, 0.0], [0.0, 1.0]]), np.sqrt(2)
    summed = np.array([2 / 3, -1 / 3, -1 / 3]) * np.sqrt(3) + np.array([0, -1, 1]) / root
    got = normalise_then_sum([part], np.array([1.0, 1.0]), eps=1e-12)[0]
    np.testing.assert_allclose(got, summed / summed.std(ddof=1))
    assert weighted_sum(part, np.array([0.5, 2.0])).tolist() == [0.5, 0, 2]
    pair, apart = [np.array([1.0, 0.0]), np.array([4.0])], np.sqrt(13 / 3)
    np.testing.assert_allclose(normalise(pair, "batch", eps=0.0)[0], np.array([0.5, -0.5]) / apart)
    assert [a.tolist() for a in normalise(pair, "none")] == [[0.5, -0.5], [0]]


@given(st.floats(-1e6, 1e6), st.integers(1, 9), st.integers(1, 3))
def test_equal_rewards_have_no_advantage_at_all(value, n, length):
    """Not even that of a rounding error: such samples are not sent through the model."""
    equal, lengths = np.full(n, value), np.full(n, length)
    for name, rule in ADVANTAGES.items():
        assert not rule(equal).any(), name
    assert not opo(equal, np.arange(1, n + 1)).any()
    assert not reinforce_pp_baseline([equal, equal], [lengths, lengths])[1].any()
    assert not np.concatenate(reinforce_pp([np.array([0.0, value])] * n)).any()
    assert not normalise([equal, equal], "batch")[0].any()
    assert not normalise_then_sum([np.stack([equal, equal / 3], axis=1)] * 2, np.array([0.7, 0.3]))[0].any()


def test_a_sample_without_tokens_is_no_weight_in_the_batch():
    pair, lengths = np.array([1.0, 0.0]), np.array([2, 1])
    alone = reinforce_pp_baseline([pair], [lengths])[0]
    both = reinforce_pp_baseline([pair, np.array([0.5, 0.5])], [lengths, np.array([0, 0])])
    np.testing.assert_allclose(both[0], alone)
    empty_first = reinforce_pp_baseline([np.array([1.0, 0.0, 0.5])], [np.array([0, 1, 1])])[0]
    np.testing.assert_allclose(empty_first[1:], np.array([-1, 1]) / np.sqrt(2), rtol=1e-6)


def test_groups_of_one_do_not_disturb_what_is_compared():
    pair, lengths = np.array([1.0, 0.0]), np.array([2, 3])
    alone = reinforce_pp_baseline([pair], [lengths])[0]
    first, second = reinforce_pp_baseline([np.array([5.0]), pair], [np.array([4]), lengths])
    assert first.tolist() == [0]
    np.testing.assert_array_equal(second, alone)
    parts = [np.array([[1.0, 0.0], [0.0, 0.5]]), np.array([[1.0, 1.0]])]
    both = normalise_then_sum(parts, np.array([1.0, 1.0]))
    np.testing.assert_array_equal(both[0], normalise_then_sum(parts[:1], np.array([1.0, 1.0]))[0])
    assert both[1].tolist() == [0]


def test_one_large_member_does_not_drown_the_other_when_each_is_normalised_first():
    part, weights = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.3]]), np.array([0.4, 0.6])
    loud = part * np.array([100.0, 1.0])
    same = normalise_then_sum([part], weights)[0]
    np.testing.assert_allclose(normalise_then_sum([loud], weights)[0], same, rtol=1e-4)
    assert same.argmax() == 1
    assert normalise([weighted_sum(loud, weights)])[0].argmax() == 0


# ---- properties ----

numbers = st.floats(-2, 2)
rewards_of_a_group = st.lists(st.floats(0, 1), min_size=2, max_size=16).map(np.array)


@given(rewards_of_a_group, st.randoms())
def test_order_does_not_matter_and_centred_rules_sum_to_zero(rewards, random):
    order = list(range(len(rewards)))
    random.shuffle(order)
    for name, rule in ADVANTAGES.items():
        advantages = rule(rewards)
        np.testing.assert_allclose(rule(rewards[order]), advantages[order], rtol=1e-9, atol=1e-9)
        if name != "best_of_n":
            assert abs(advantages.sum()) < 1e-6 * max(1.0, np.abs(advantages).max())


@given(rewards_of_a_group, st.integers(1, 50))
def test_opo_with_equal_lengths_is_dr_grpo(rewards, length):
    np.testing.assert_allclose(opo(rewards, np.full(len(rewards), length)), dr_grpo(rewards), atol=1e-12)


def test_leave_one_out_is_what_it_says():
    rewards = np.array([0.3, 0.9, 0.1])
    others = [(0.9 + 0.1) / 2, (0.3 + 0.1) / 2, (0.3 + 0.9) / 2]
    np.testing.assert_allclose(rloo(rewards), rewards - others)


@given(arrays(np.float64, 6, elements=numbers), arrays(np.float64, 6, elements=numbers), st.integers(0, 6))
def test_observation_tokens_anywhere_change_nothing(rewards, values, place):
    longer, worth = np.insert(rewards, place, 7.0), np.insert(values, place, -7.0)
    mask = np.insert(np.ones(6, dtype=bool), place, False)
    np.testing.assert_array_equal(reward_to_go(longer, 0.9, mask)[mask], reward_to_go(rewards, 0.9))
    for got, wanted in zip(gae(longer, worth, 0.9, 0.8, mask), gae(rewards, values, 0.9, 0.8), strict=True):
        np.testing.assert_array_equal(got[mask], wanted)
        assert got[~mask] == 0


@given(arrays(np.float64, 7, elements=numbers), arrays(np.float64, 7, elements=numbers), st.floats(0, 1))
def test_gae_at_its_two_ends(rewards, values, gamma):
    advantages, returns = gae(rewards, values, gamma, lam=1.0)
    np.testing.assert_allclose(returns, reward_to_go(rewards, gamma), atol=1e-9)
    advantages, _ = gae(rewards, values, gamma, lam=0.0)
    np.testing.assert_allclose(advantages, rewards + gamma * np.append(values[1:], 0) - values, atol=1e-12)


@given(st.lists(arrays(np.float64, st.integers(1, 5), elements=numbers), min_size=2, max_size=6), st.randoms())
def test_whitening_is_of_the_batch_whatever_its_order(values, random):
    order = list(range(len(values)))
    random.shuffle(order)
    straight, shuffled = whiten(values), whiten([values[i] for i in order])
    for place, i in enumerate(order):
        np.testing.assert_allclose(shuffled[place], straight[i], atol=1e-6)
    flat = np.concatenate(straight)
    assert abs(flat.mean()) < 1e-6 and flat.var(ddof=1) < 1 + 1e-9


# ---- reference vectors; verl keeps the raw reward of a group of one, which is a baseline of 0 here ----


def by_group(case, rule):
    rewards, mask = batch(case)
    totals, out = rewards.sum(axis=1), np.zeros_like(rewards)
    for rows in rows_of_groups(case):
        out[rows] = rule(totals[rows], rows, mask)[:, None] * mask[rows]
    return out


@pytest.mark.vectors("adv_grpo", "adv_dr_grpo")
def test_grpo_like_verl(case, tolerance):
    eps = case["params"]["epsilon"]
    scaled = case["params"]["norm_adv_by_std_in_grpo"]
    got = by_group(case, lambda r, *_: grpo(r, baseline=0.0, eps=eps) if scaled else dr_grpo(r, baseline=0.0))
    close(got, case["outputs"]["advantages"], tolerance)


@pytest.mark.vectors("adv_rloo")
def test_rloo_like_verl(case, tolerance):
    """Of verl's two forms the vectorised one gives a group of one 0, as ours."""
    raw = None if "vectorized" in case["reference"]["function"] else 0.0
    close(by_group(case, lambda r, *_: rloo(r, baseline=raw)), case["outputs"]["advantages"], tolerance)


@pytest.mark.vectors("adv_opo_rfpp_baseline")
def test_opo_and_reinforce_pp_baseline_like_verl(case, tolerance):
    rewards, mask = batch(case)
    if "opo" in case["reference"]["function"]:
        got = by_group(case, lambda r, rows, m: opo(r, m[rows].sum(axis=1), baseline=0.0))
    else:
        rows = rows_of_groups(case)
        groups = [rewards[r].sum(axis=1) for r in rows]
        found = reinforce_pp_baseline(groups, [mask[r].sum(axis=1) for r in rows], [0.0] * len(rows))
        got = np.zeros_like(rewards)
        for r, advantages in zip(rows, found, strict=True):
            got[r] = advantages[:, None] * mask[r]
    close(got, case["outputs"]["advantages"], tolerance)


@pytest.mark.vectors("adv_remax")
def test_remax_like_verl(case, tolerance):
    rewards, mask = batch(case)
    for row, greedy in enumerate(case["inputs"]["reward_baselines"]):
        returns = reward_to_go(rewards[row], mask=mask[row])
        close(returns[mask[row]], np.array(case["outputs"]["returns"][row])[mask[row]], tolerance)
        got = remax(returns, greedy)[mask[row]]
        close(got, np.array(case["outputs"]["advantages"][row])[mask[row]], tolerance)


@pytest.mark.vectors("adv_reinforce_pp")
def test_reinforce_pp_like_verl(case, tolerance):
    rewards, mask = batch(case)
    got = reinforce_pp(list(rewards), case["params"]["gamma"], list(mask))
    close(got, case["outputs"]["advantages"], tolerance)
    returns = [reward_to_go(r, case["params"]["gamma"], m) for r, m in zip(rewards, mask, strict=True)]
    close(np.array(returns)[mask], np.array(case["outputs"]["returns"])[mask], tolerance)


@pytest.mark.vectors("adv_gae")
def test_gae_like_verl(case, tolerance):
    rewards, mask = batch(case)
    values, _ = batch(case, "values")
    pairs = [gae(r, v, **case["params"], mask=m) for r, v, m in zip(rewards, values, mask, strict=True)]
    advantages, returns = (list(part) for part in zip(*pairs, strict=True))
    close(np.array(advantages)[mask], np.array(case["outputs"]["advantages_raw"])[mask], tolerance)
    close(np.array(returns)[mask], np.array(case["outputs"]["returns"])[mask], tolerance)
    whitened = np.array(whiten(advantages, list(mask)))
    close(whitened[mask], np.array(case["outputs"]["advantages_whitened"])[mask], tolerance)


@pytest.mark.vectors("trl_advantages")
def test_several_rewards_like_trl(case, tolerance):
    """Rows without any reward are excluded here before advantages are made, and 0 there."""
    parts = np.array(case["inputs"]["rewards_per_func"], np.float64)
    weights, size = np.array(case["inputs"]["reward_weights"]), case["inputs"]["num_generations"]
    eps, scale = case["params"]["epsilon"], case["params"]["scale_rewards"]
    scored = ~np.isnan(parts).all(axis=1)
    rows = [r[scored[r]] for r in np.arange(len(parts)).reshape(-1, size)]
    if case["params"]["multi_objective_aggregation"] == "normalize_then_sum":
        found = normalise_then_sum([parts[r] for r in rows], weights, eps)
    else:
        sums = [weighted_sum(parts[r], weights) for r in rows]
        close(np.concatenate(sums), np.array(case["outputs"]["rewards"], np.float64)[scored], tolerance)
        found = normalise(sums, scale, eps)
    got = np.zeros(len(parts))
    for r, advantages in zip(rows, found, strict=True):
        got[r] = advantages
    close(got, case["outputs"]["advantages"], tolerance)
    if scale != "batch" and "sum_then" in case["id"]:
        flat = [bool((abs(advantages) < 1e-9).all()) for advantages in found]
        assert np.repeat(flat, size).tolist() == case["outputs"]["is_std_zero"]


@pytest.mark.vectors("group_estimator_stats")
def test_exact_moments_under_bernoulli_rewards(case, tolerance):
    """Expectations over every outcome of the group, by the number right."""
    p, n = case["inputs"]["p"], case["inputs"]["n"]
    rules = {"mean_centred": dr_grpo, "rloo": rloo, "std_normalised": lambda r: grpo(r, eps=1e-300)}
    for name, rule in rules.items():
        right = wrong = square = 0.0
        for k in range(n + 1):
            chance = math.comb(n, k) * p**k * (1 - p) ** (n - k)
            advantages = rule(np.array([1.0] * k + [0.0] * (n - k)))
            square += chance * float((advantages**2).mean())
            right += chance * k / n * (advantages[0] if k else 0.0) / p
            wrong += chance * (n - k) / n * (advantages[-1] if k < n else 0.0) / (1 - p)
        wanted = case["outputs"][name]
        close([right, wrong, square], [wanted[x] for x in ("E_A_given_1", "E_A_given_0", "E_A2")], tolerance)
        close(right - wrong, wanted["signal_scale_E1_minus_E0"], tolerance)


@pytest.mark.vectors("unequal_groups")
def test_each_prompt_counts_once_under_prompt_mean(case, tolerance):
    groups = [np.array(group) for group in case["inputs"]["group_rewards"]]
    advantages = [rloo(group) for group in groups]
    close(np.concatenate(advantages), np.concatenate(case["outputs"]["rloo_advantages"]), tolerance)
    atoms = [i for i, group in enumerate(groups) for _ in group]
    for mode, name in (("prompt-mean", "prompt_mean"), ("token-mean", "flat_mean")):
        weights = AGGREGATIONS[mode]([np.ones(1)] * len(atoms), atoms, 1)
        got = [float(w[0]) * a for w, a in zip(weights, np.concatenate(advantages), strict=True)]
        exact = tolerance if weights[0].dtype == np.float64 else 2e-5
        close(got, np.concatenate(case["outputs"][f"sequence_coefficient_{name}"]), exact)
        share = [sum(float(w[0]) for w, a in zip(weights, atoms, strict=True) if a == i) for i in range(len(groups))]
        key = "prompt_weight_wanted" if mode == "prompt-mean" else "prompt_weight_under_flat_mean"
        close(share, case["outputs"][key], exact)
