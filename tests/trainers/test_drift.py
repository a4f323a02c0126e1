"""Statistics of drift against definitions worked out pair by pair."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jurat.platform.errors import ConfigError
from jurat.trainers import drift

PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=25)


@given(PAIRS)
@settings(max_examples=100, deadline=None)
def test_rank_correlations_are_what_pairs_say(pairs: list[tuple[int, int]]) -> None:
    one, two = (np.array(side, float) for side in zip(*pairs, strict=True))
    signs = [(np.sign(a - c), np.sign(b - d)) for (a, b), (c, d) in combinations(pairs, 2)]
    score = sum(x * y for x, y in signs)
    spread = math.sqrt(sum(x != 0 for x, _ in signs)) * math.sqrt(sum(y != 0 for _, y in signs))
    tau, rho = drift.kendall(one, two), drift.spearman(one, two)
    if not spread:
        assert math.isnan(tau) and math.isnan(rho)
        return
    assert tau == pytest.approx(score / spread, abs=1e-12)
    ranks = [
        np.array([(side < x).sum() + ((side == x).sum() + 1) / 2 for x in side]) for side in (one, two)
    ]  # the mean place among equals
    assert rho == pytest.approx(np.corrcoef(*ranks)[0, 1], abs=1e-9)


@given(st.integers(0, 30), st.integers(0, 30))
@settings(max_examples=60, deadline=None)
def test_mcnemar_is_the_exact_binomial(up: int, down: int) -> None:
    n = up + down
    tail = sum(Fraction(math.comb(n, k), 2**n) for k in range(min(up, down) + 1))
    assert drift.mcnemar(up, down) == pytest.approx(float(min(Fraction(1), 2 * tail)), rel=1e-9)


def test_mcnemar_of_many_goes_over_smoothly() -> None:
    below, above = drift.mcnemar(2450, 2550), drift.mcnemar(2451, 2551)
    assert below == pytest.approx(above, rel=0.01)


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.3, 0.5, 1.0, math.nan]), st.sampled_from([0.0, 0.5, 1.0, math.nan]))))
@settings(max_examples=60, deadline=None)
def test_flips_are_counted(pairs: list[tuple[float, float]]) -> None:
    old, new = np.array([a for a, _ in pairs], float), np.array([b for _, b in pairs], float)
    told = [(a >= 0.5, b >= 0.5) for a, b in pairs if not math.isnan(a) and not math.isnan(b)]
    found = drift.flips(old, new, 0.5)
    counted = (found.both, found.up, found.down, found.neither)
    assert counted == tuple(told.count(each) for each in [(True, True), (False, True), (True, False), (False, False)])
    said = found.as_json()
    assert found.n == len(told) and said["all"]["n"] == found.up + found.down
    assert said["all"]["low"] <= said["all"]["rate"] <= said["all"]["high"]


def test_the_interval_is_of_prompts_not_of_samples() -> None:
    """Eight equal samples of a prompt tell as much as one."""
    drawn = np.random.default_rng(0).normal(0.1, 1.0, 400)
    each = drift.mean_shift(drawn, np.arange(400), seed=3)
    eight = drift.mean_shift(np.repeat(drawn, 8), np.repeat(np.arange(400), 8), seed=3)
    assert each[0] == pytest.approx(drawn.mean()) == pytest.approx(eight[0])
    assert eight[2] - eight[1] == pytest.approx(each[2] - each[1], rel=0.1)
    assert each[2] - each[1] == pytest.approx(2 * 1.96 * drawn.std() / 20, rel=0.1)
    assert drift.mean_shift(drawn, np.arange(400), seed=3) == each


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_a_decile_holds_what_its_name_says(values: list[int]) -> None:
    names = drift.deciles(np.array(values))
    assert len(set(names)) <= 10
    for value, name in zip(values, names, strict=True):
        low, _, high = name.partition("-")
        assert int(low) <= value <= int(high or low)


def test_a_gate_is_one_comparison() -> None:
    metrics = {"flip_rate": 0.006, "kendall": None, "n": 10.0}
    assert drift.Gate.of("flip_rate>0.005", metrics).fails(metrics) == "flip_rate>0.005: flip_rate is 0.006"
    assert drift.Gate.of(" flip_rate >= 0.6 % ", metrics).fails(metrics)
    assert not drift.Gate.of("flip_rate>6e-3", metrics).fails(metrics)
    assert "could not be measured" in drift.Gate.of("kendall<0.9", metrics).fails(metrics)
    with pytest.raises(ConfigError, match="Did you mean 'flip_rate'"):
        drift.Gate.of("flip_rates>1", metrics)
    for text in (
        "flip_rate",
        "flip_rate>",
        "flip_rate>n",
        "1>0",
        "flip_rate>1 or n>0",
        "__import__('os')>1",
        "flip_rate>nan",
    ):
        with pytest.raises(ConfigError, match="not a condition"):
            drift.Gate.of(text, metrics)


def test_the_verdict_says_what_kept_it_from_better() -> None:
    none = {"flip_rate": 0.0, "abs_mean_shift": 0.0, "decided_change": 0.0, "advantage_sign_rate": None}
    assert drift.verdict(none) == ("compatible", [])
    assert drift.verdict({**none, "flip_rate": 0.005}) == ("minor", ["flip_rate"])
    assert drift.verdict({**none, "flip_rate": 0.005, "decided_change": 0.5}) == ("breaking", ["decided_change"])
