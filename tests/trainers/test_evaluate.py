"""Estimates: unbiased pass@k by enumeration, intervals that cover, nothing counted twice."""

from itertools import combinations

import numpy as np
import pytest

from jurat.platform.randomness import generator
from jurat.platform.types import Judgement, Problem, Reward, Rollout, Scored, Verdict, VerifierSpec
from jurat.trainers.evaluate import bootstrap, pass_at_k, summarise, wilson


@pytest.mark.parametrize("n", range(1, 7))
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_one(n):
    for correct in range(n + 1):
        for k in range(1, n + 1):
            outcomes = [True] * correct + [False] * (n - correct)
            subsets = list(combinations(outcomes, k))
            assert pass_at_k(n, correct, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_wilson_by_hand():
    estimate = wilson(8, 10)
    assert (estimate.value, round(estimate.low, 4), round(estimate.high, 4)) == (0.8, 0.4902, 0.9433)
    assert wilson(0, 20).low == 0.0
    assert wilson(20, 20).high == 1.0


def test_bootstrap_covers_the_true_mean_about_95_times_in_100():
    rng = generator("cover")
    covered = 0
    for _ in range(300):
        rates = rng.beta(0.5, 0.5, 100)
        estimate = bootstrap(rng.binomial(8, rates) / 8)
        covered += estimate.low <= 0.5 <= estimate.high
    assert 0.90 <= covered / 300 <= 0.99


def test_ratio_of_sums_and_degenerate_cases():
    assert bootstrap(np.array([4.0, 0.0]), np.array([8.0, 2.0])).value == pytest.approx(0.4)
    assert bootstrap(np.array([])).value == 0.0
    same = bootstrap(np.ones(50))
    assert same.value == 1.0
    assert 0.9 < same.low < 1.0
    assert bootstrap(np.zeros(5), np.zeros(5)).high == 1.0


def test_accuracy_is_the_mean_score_and_pass_at_k_counts_whole_ones():
    problem = Problem(id="p", messages=(), reference="", verifier=VerifierSpec(name="v"))

    def judged(score):
        rollout = Rollout(
            id="r", problem=problem, visit=0, index=0, tokens=np.zeros(2, dtype=np.int64),
            loss_mask=np.array([False, True]), sampler_logprobs=np.zeros(2, dtype=np.float32), spans=(), text="x",
            char_ends=np.array([1]), finish="stop",
        )  # fmt: skip
        verdicts = {"v": Verdict(status="partial", score=score)}
        return Scored(rollout=rollout, judgement=Judgement(verdicts=verdicts, reward=Reward(value=score)))

    found = summarise("held_out", "", 0, [[judged(0.5), judged(1.0)], [judged(0.5), judged(0.5)]], [judged(0.5)] * 2, 0)
    assert (found.accuracy.value, found.greedy.value) == (0.625, 0.5)
    assert (found.pass_at[1].value, found.pass_at[2].value) == (0.25, 0.5)
