"""Credit of steps against hand-made numbers, reference vectors, and what a policy could gain by adding steps."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jurat.platform.types import Step
from jurat.trainers.advantages import reward_to_go, rloo
from jurat.trainers.credit import (
    CREDITS,
    Solution,
    at_ends,
    by_step,
    gated,
    min_returns,
    minimum,
    over_steps,
    process_sum,
    remax_steps,
    shaped,
    shaped_rewards,
    shaping,
    softmin_weights,
    step_ends,
)


def close(got, wanted, tolerance=1e-12):
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


def solution(scores, ends=None, num_tokens=None, outcome=0.0):
    """Two tokens a step and one after the last, unless said otherwise."""
    ends = [2 * k + 1 for k in range(len(scores))] if ends is None else ends
    num_tokens = 2 * len(scores) + 1 if num_tokens is None else num_tokens
    return Solution(
        scores=np.array(scores, float), ends=np.array(ends, dtype=np.int64), num_tokens=num_tokens, outcome=outcome
    )


def step(start, end, score=1.0):
    return Step(start=start, end=end, status="partial", score=score)


# ---- characters to tokens ----


def test_the_last_character_of_a_step_names_its_last_token():
    # "2+2=4\nso 4" as tokens "2+2", "=4", "\n", "so", " 4", and a stop token without text.
    char_ends = np.array([3, 5, 6, 8, 10, 10])
    assert step_ends([step(0, 5), step(6, 10)], char_ends).tolist() == [1, 4]
    # A step that ends inside a token has that token.
    assert step_ends([step(0, 4), step(4, 7)], char_ends).tolist() == [1, 3]
    assert step_ends([], char_ends).tolist() == []


def test_a_step_without_a_score_joins_the_next():
    char_ends = np.array([3, 5, 6, 8, 10])
    made = Solution.of([step(0, 5, None), step(6, 8, 0.5)], char_ends, outcome=1.0)
    assert (made.scores.tolist(), made.ends.tolist(), made.num_tokens, made.outcome) == ([0.5], [3], 5, 1.0)
    turned = Solution.of([step(6, 99, 0.5), step(0, 5, 0.25)], char_ends, outcome=1.0)
    assert (turned.scores.tolist(), turned.ends.tolist()) == ([0.25, 0.5], [1, 4])
    empty = Solution.of([], np.array([], dtype=np.int64), outcome=0.0)
    assert all(rule([empty, empty])[0].shape == (0,) for rule in CREDITS.values())


@given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.data())
def test_every_step_ends_in_a_token_that_reaches_its_end(widths, data):
    char_ends = np.cumsum(widths)
    ends = sorted(data.draw(st.lists(st.integers(1, int(char_ends[-1])), max_size=6)))
    tokens = step_ends([step(0, end) for end in ends], char_ends)
    for end, token in zip(ends, tokens, strict=True):
        assert char_ends[token] >= end > (char_ends[token - 1] if token else 0)


def test_placing_by_hand():
    two = solution([1.0, 0.5], ends=[1, 2], num_tokens=5)
    assert at_ends(two.scores, two).tolist() == [0, 1, 0.5, 0, 0]
    assert over_steps(two.scores, two).tolist() == [1, 1, 0.5, 0, 0]
    both_in_one = solution([1.0, 0.5], ends=[1, 1], num_tokens=3)
    assert at_ends(both_in_one.scores, both_in_one).tolist() == [0, 1.5, 0]


# ---- rules by hand ----


def test_process_sum_by_hand():
    # Pooled 1, 0, 0.5: mean 0.5, std 0.5.
    first, second = process_sum([solution([1.0, 0.0]), solution([0.5])], eps=0.0)
    close(first, [0, 0, -1, -1, 0])
    close(second, [0, 0, 0])
    flat = process_sum([solution([0.5]), solution([0.5])], eps=0.0)
    assert [a.tolist() for a in flat] == [[0, 0, 0], [0, 0, 0]]


def test_minimum_by_hand():
    # Worst steps 0.2 and 0.6: each is compared with the other's.
    first, second = minimum([solution([0.9, 0.2, 0.8]), solution([0.6, 0.7])])
    close(first, [-0.4, -0.4, -0.4, -0.4, 0.2, 0.2, 0])
    close(second, [0.4, 0.4, 0.5, 0.5, 0])


def test_shaped_by_hand():
    # The others' outcomes are 0 and 1; the second step was made from a state worth 0.8.
    first, second = shaped([solution([0.8, 0.1], outcome=1.0), solution([0.3], outcome=0.0)])
    close(first, [1, 1, 0.2, 0.2, 0.9])
    close(second, [-1, -1, -0.3])


def test_remax_and_function_by_hand():
    one = solution([1.0, 0.0])
    close(remax_steps(one, 0.5), [0.5, 0.5, -0.5, -0.5, 0])
    close(by_step(one), [1, 1, 0, 0, 0])
    close(by_step(one, baseline=0.5), [0.5, 0.5, -0.5, -0.5, 0])


def test_the_gate_takes_what_a_wrong_solution_earned_by_its_steps():
    wrong = gated(solution([1.0, -0.5]), right=False)
    assert wrong.scores.tolist() == [0, -0.5]
    assert gated(solution([1.0, -0.5]), right=True).scores.tolist() == [1, -0.5]
    assert (by_step(wrong) <= 0).all()
    assert (process_sum([wrong, solution([1.0])])[0] <= 0).all()


@pytest.mark.parametrize("rule", CREDITS)
def test_without_steps_only_shaping_has_something_to_say(rule):
    """It knows the outcome."""
    group = [solution([], num_tokens=2, outcome=1.0), solution([], num_tokens=1, outcome=0.0)]
    wanted = [[1, 1], [-1]] if rule == "shaped" else [[0, 0], [0]]
    assert [a.tolist() for a in CREDITS[rule](group)] == wanted


@pytest.mark.parametrize("rule", ["min", "shaped"])
def test_a_group_of_one_has_nothing_to_be_compared_with(rule):
    assert CREDITS[rule]([solution([0.5, 1.0], outcome=1.0)])[0].tolist() == [0] * 5


# ---- what could be gained ----

score = st.floats(0, 1)
steps = st.lists(score, min_size=1, max_size=6)


def first_return(rewards):
    return reward_to_go(np.array(rewards))[0]


@given(steps, st.integers(0, 6), st.integers(1, 5), st.sampled_from([0.0, 1.0]), score)
def test_shaping_pays_nothing_for_added_steps_whatever_their_score(scores, place, count, outcome, added):
    longer = scores[:place] + [added] * count + scores[place:]
    others = solution([0.5], outcome=1.0)
    before, after = shaped([solution(s, outcome=outcome) for s in (scores, longer)] + [others])[:2]
    # Both stand in one group, so both start from the mean outcome of the others: equal for equal outcomes.
    close(before[0], after[0])
    for start in (0.0, 0.3):
        potentials = np.array([start, *longer, 0.0])
        close(shaped_rewards(potentials, outcome).sum(), outcome - start)


@given(steps, st.integers(0, 6), st.integers(1, 5), st.floats(0, 1, exclude_max=True), st.floats(0.1, 1))
def test_discounting_makes_added_steps_cost(scores, place, count, start, gamma):
    def total(middle):
        rewards = shaped_rewards(np.array([start, *middle, 0.0]), 1.0, gamma)
        return float((rewards * gamma ** np.arange(len(rewards))).sum())

    assert total(scores[:place] + [1.0] * count + scores[place:]) <= total(scores) + 1e-12


@given(steps, st.integers(0, 6), st.integers(1, 5))
def test_the_hard_minimum_never_rises_by_added_right_steps(scores, place, count):
    longer = scores[:place] + [1.0] * count + scores[place:]
    assert min_returns(np.array(longer))[0] <= min_returns(np.array(scores))[0] == min(scores)


def test_the_soft_minimum_of_pure_does_rise_by_added_right_steps():
    returns = [min_returns(np.array([0.5] + [1.0] * count), 0.1)[0] for count in (0, 1, 10, 100)]
    assert returns == sorted(returns) and returns[0] == 0.5
    assert returns[1] > 0.503 and returns[3] > 0.7


def test_the_sum_rises_by_added_right_steps():
    """Which is why it wants exact checks and the gate."""
    padded = process_sum([solution([0.5] + [1.0] * 4), solution([0.5])])
    plain = process_sum([solution([0.5]), solution([0.5])])
    assert padded[0][0] > plain[0][0]


@given(st.lists(steps, min_size=2, max_size=5), st.randoms())
def test_the_order_of_solutions_does_not_matter(scores, random):
    group = [solution(s, outcome=float(i % 2)) for i, s in enumerate(scores)]
    order = list(range(len(group)))
    random.shuffle(order)
    for rule in CREDITS.values():
        straight, shuffled = rule(group), rule([group[i] for i in order])
        for place, i in enumerate(order):
            close(shuffled[place], straight[i], 1e-9)


@given(st.lists(steps, min_size=2, max_size=5), st.integers(1, 4))
def test_tokens_after_the_last_step_change_nothing_before_it(scores, more):
    group = [solution(s, outcome=float(i % 2)) for i, s in enumerate(scores)]
    longer = [replace(s, num_tokens=s.num_tokens + more) for s in group]
    for rule in CREDITS.values():
        for a, b in zip(rule(group), rule(longer), strict=True):
            close(b[: len(a)], a)


def test_shaping_of_an_uninformed_potential_is_leave_one_out():
    """Scores that only repeat the start's value leave RLOO at every token."""
    outcomes = np.array([1.0, 0.0, 0.0, 1.0])
    starts = outcomes - rloo(outcomes)
    group = [solution([b, b], outcome=r) for r, b in zip(outcomes, starts, strict=True)]
    for got, wanted in zip(shaped(group), rloo(outcomes), strict=True):
        close(got, np.full(5, wanted))


@pytest.mark.parametrize("rule", ["sum", "min", "shaped"])
def test_equal_solutions_of_equal_steps_have_no_advantage_at_all(rule):
    group = [solution([0.1, 0.1, 0.1], outcome=0.1) for _ in range(3)]
    for one in CREDITS[rule](group):
        assert not one[:1].any()


# ---- reference vectors ----


@pytest.mark.vectors("process_grpo")
def test_process_supervision(case, tolerance):
    inputs, params = case["inputs"], case["params"]
    group = [
        solution(scores, ends, inputs["T"])
        for scores, ends in zip(inputs["step_rewards"], inputs["step_end_index"], strict=True)
    ]
    got = process_sum(group, scale=params["normalise_std"], eps=params["epsilon"])
    close(np.array(got), case["outputs"]["advantages"], tolerance)


@pytest.mark.vectors("process_pure")
def test_pure(case, tolerance):
    scores, temperature = np.array(case["inputs"]["step_rewards"]), case["params"]["temperature"]
    outputs = case["outputs"]
    if temperature == 0:
        close(min_returns(scores), outputs["min_future"], tolerance)
        return
    weights = softmin_weights(scores, temperature)
    returns = min_returns(scores, temperature)
    close(weights, outputs["weights"], tolerance)
    close(weights * scores, outputs["transformed"], tolerance)
    close(returns, outputs["reward_to_go"], tolerance)
    close(returns[0], outputs["first_return"], tolerance)
    close(min_returns(scores)[0], outputs["hard_min"], tolerance)


@pytest.mark.vectors("process_shaping")
def test_potential_based_shaping(case, tolerance):
    potentials, outcome = np.array(case["inputs"]["potentials"]), case["inputs"]["outcome"]
    gamma, outputs = case["params"]["gamma"], case["outputs"]
    rewards = shaped_rewards(potentials, outcome, gamma)
    close(shaping(potentials, gamma), outputs["shaping"], tolerance)
    close(rewards, outputs["shaped_rewards"], tolerance)
    close(reward_to_go(rewards, gamma)[0], outputs["shaped_return"], tolerance)
    plain = reward_to_go(np.append(np.zeros(len(rewards) - 1), outcome), gamma)[0]
    close(plain, outputs["unshaped_return"], tolerance)
    assert outputs["difference_equals_minus_phi0"] == 0.0
    close(reward_to_go(rewards, gamma)[0] - plain, -potentials[0], tolerance)


@pytest.mark.vectors("process_remax")
def test_remax_with_steps(case, tolerance):
    inputs = case["inputs"]
    one = solution(inputs["step_rewards"], inputs["step_end_index"], inputs["T"])
    close(remax_steps(one, inputs["greedy_total_reward"]), case["outputs"]["advantages"], tolerance)


# ---- shaped, with less of what follows ----


def test_shaped_by_lambda_by_hand():
    """Outcomes 1 and 0; potentials .5, .8, 1 and .5, .8, .1. Lambda 0: what each step adds. Lambda 1: the outcome less where it was."""
    pair = [solution([0.5, 0.8, 1.0], outcome=1.0), solution([0.5, 0.8, 0.1], outcome=0.0)]
    first, second = shaped(pair, 0.0)
    close(first, [0.5, 0.5, 0.3, 0.3, 0.2, 0.2, 0.0])  # from 0, the other's outcome
    close(second, [-0.5, -0.5, 0.3, 0.3, -0.7, -0.7, -0.1])
    close(shaped(pair, 1.0)[1], shaped(pair)[1])
    half = shaped(pair, 0.5)[0]
    close(half[[4, 2, 0]], [0.2, 0.3 + 0.5 * 0.2, 0.5 + 0.5 * 0.4])


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=6), st.floats(0, 1), st.integers(0, 6),
    st.sampled_from([0.0, 0.3, 0.7, 1.0]),
)  # fmt: skip
def test_a_step_that_adds_nothing_gets_nothing_for_itself(scores, outcome, at, lam):
    """Padding with a step that leaves the potential where it is: at lambda 0 it earns 0, and nobody else's credit changes but by
    lambda to the power of the steps between."""
    at = min(at, len(scores))
    before = scores[at - 1] if at else None
    if before is None:
        return
    padded = [*scores[:at], before, *scores[at:]]
    other = solution([0.5], outcome=0.0)
    plain = shaped([solution(scores, outcome=outcome), other], 0.0)[0]
    longer = shaped([solution(padded, outcome=outcome), other], 0.0)[0]
    close(longer[2 * at : 2 * at + 2], [0.0, 0.0], 1e-9)
    close(np.delete(longer, [2 * at, 2 * at + 1]), plain, 1e-9)
    whole = shaped([solution(padded, outcome=outcome), other], lam)[0]
    assert np.abs(whole).max() <= 2.0 + len(padded)


def test_cutting_a_right_step_in_two_raises_nothing():
    """Step-count invariance: the whole of a solution is worth what it was, and so is every token, at lambda 1."""
    other = solution([0.5], outcome=0.0)
    once = shaped([solution([0.6, 0.9], outcome=1.0), other])[0]
    twice = shaped([solution([0.6, 0.9, 0.9], ends=[1, 2, 3], num_tokens=5, outcome=1.0), other])[0]
    assert twice[:3] == pytest.approx(once[:3]) and twice[3] <= once[3]
    one, two = (
        minimum([solution(s, ends=e, num_tokens=5), solution([0.5])])[0]
        for s, e in (([1.0, 1.0], [1, 3]), ([1.0] * 3, [1, 2, 3]))
    )
    assert two == pytest.approx(one)
