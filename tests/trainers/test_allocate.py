"""Sample counts: reference vectors, exact budgets, past only, and which rules leave the gradient's mean alone."""

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jurat.platform.config import validate
from jurat.platform.errors import ConfigError
from jurat.platform.types import (
    Allocation,
    Group,
    Judgement,
    Message,
    Problem,
    Reward,
    Rollout,
    Scored,
    Verdict,
    VerifierSpec,
    Visit,
)
from jurat.trainers.advantages import grpo, rloo
from jurat.trainers.aggregation import prompt_mean, token_mean
from jurat.trainers.algorithms import build_algorithm
from jurat.trainers.allocate import bias, build_allocator
from jurat.trainers.allocation.mixed import mixed, mixed_share, rollouts_per_mixed_group
from jurat.trainers.allocation.neyman import counts, gain, relaxed, variance
from jurat.trainers.allocation.posterior import FLAT, Beta, fit_prior

PARITY = Path(os.environ.get("JURAT_PARITY", Path(__file__).parents[3] / "shared" / "parity"))


def vectors(name):
    path = PARITY / f"{name}.json"
    if not path.exists():
        pytest.skip(f"no reference vectors at {PARITY} (set JURAT_PARITY)")
    document = json.loads(path.read_text())
    assert document["cases"]
    return document["cases"], document["tolerance"]


def close(got, want, tolerance):
    assert abs(got - want) <= tolerance * (1 + abs(want)), (got, want)


# ---- the rules as a run has them -----------------------------------------------------------------------------------


def recipe(allocation, **overrides):
    value = {"model": "m", "data": {"train": {"source": "generated"}}, "allocation": allocation, **overrides}
    return validate(value, where="test")


def rule(name, **options):
    return build_allocator(recipe({"name": name, **options}))


def problem(name):
    return Problem(
        id=name, messages=(Message(role="user", content=name),), reference="1", verifier=VerifierSpec(name="math")
    )


def visit(name, position=0):
    return Visit(problem=problem(name), visit=0, position=position)


def scored(name, score, *, tokens=4, reward="score", members=1):
    """One sample whose outcome is ``score``; ``reward`` is what it trains on, None if excluded."""
    mask = np.array([False] + [True] * tokens)
    verdict = Verdict(status="error" if score is None else "partial", score=score)
    verdicts = {f"m{k}": verdict for k in range(members)}
    return Scored(
        rollout=Rollout(
            id=name, problem=problem(name), visit=0, index=0, tokens=np.zeros(1 + tokens, dtype=np.int64),
            loss_mask=mask, sampler_logprobs=mask * np.float32(-1), spans=(), text="x" * tokens,
            char_ends=np.arange(1, 1 + tokens), finish="stop",
        ),
        judgement=Judgement(verdicts=verdicts, reward=Reward(value=score if reward == "score" else reward)),
    )  # fmt: skip


def group(name, *scores, position=0, **options):
    return Group(
        visit=visit(name, position),
        scored=tuple(scored(name, score, **options) for score in scores),
        allocation=Allocation(samples=len(scores), reason="test"),
    )


# ---- counts --------------------------------------------------------------------------------------------------------


def test_counts_by_hand():
    assert counts([0.16, 0.01], [1.0, 1.0], budget=12, least=2, most=12) == [9, 3]  # n - 1 = 8 : 2 = sqrt(16 : 1)
    assert counts([1.0, 1.0], [4.0, 1.0], budget=16, least=2, most=12) == [3, 4]  # 2 : 3, nearest to 1 : 2 that fits
    assert counts([0.0, 0.25], [1.0, 1.0], budget=10, least=2, most=6) == [4, 6]  # no gain, but the budget is spent
    assert gain(0.12, 2.0, 3) == pytest.approx(0.12 / (2 * 3) / 2)


def test_counts_reference_vectors():
    cases, tolerance = vectors("allocation_variance_optimal")
    for case in cases:
        given, wanted, centre = case["inputs"], case["outputs"], case["params"]["c"]
        v = [p * (1 - p) * g for p, g in zip(given["p"], given["length_or_gradnorm_sq"], strict=True)]
        bounds = {"budget": given["budget"], "least": given["min_n"], "most": given["max_n"], "centre": centre}
        ones = [1.0] * len(v)
        found = counts(v, ones, **bounds)
        assert sum(found) == given["budget"]
        close(variance(v, found, centre), wanted["optimal_value"], tolerance["float64"])
        if len(wanted["integer_optima"]) == wanted["tie_count"]:
            assert found in wanted["integer_optima"], case["id"]
        for n, want in zip(relaxed(v, ones, **bounds), wanted["continuous_n"], strict=True):
            close(n, want, tolerance["float64"])
        close(variance(v, wanted["uniform_n"], centre), wanted["uniform_value"], tolerance["float64"])


spreads = st.lists(st.floats(0.001, 0.25), min_size=1, max_size=4)


@given(spreads, st.integers(0, 20), st.integers(0, 1))
def test_unit_costs_spend_the_budget_and_none_is_better(v, extra, centre):
    budget, most = 2 * len(v) + extra, 9
    found = counts(v, [1.0] * len(v), budget=budget, least=2, most=most, centre=centre)
    assert sum(found) == min(budget, most * len(v))
    every = itertools.product(range(2, most + 1), repeat=len(v))
    best = min(variance(v, n, centre) for n in every if sum(n) == sum(found))
    assert variance(v, found, centre) <= best * (1 + 1e-12)


@given(st.lists(st.tuples(st.floats(0.0, 0.25), st.floats(0.5, 50.0)), min_size=1, max_size=12), st.floats(2.0, 20.0))
def test_token_costs_stay_within_the_budget(rows, each):
    v, c = zip(*rows, strict=True)
    budget = each * sum(c)
    found = counts(v, c, budget=budget, least=2, most=16)
    assert all(2 <= n <= 16 for n in found)
    assert sum(n * cost for n, cost in zip(found, c, strict=True)) <= budget * (1 + 1e-12)
    left = budget - sum(n * cost for n, cost in zip(found, c, strict=True))
    assert all(n == 16 or cost > left - 1e-9 for n, cost in zip(found, c, strict=True))  # nothing more fits


@given(spreads, st.randoms())
def test_order_of_prompts_does_not_matter(v, random):
    order = list(range(len(v)))
    random.shuffle(order)
    bounds = {"budget": 5 * len(v), "least": 2, "most": 9}
    straight = counts(v, [1.0] * len(v), **bounds)
    shuffled = counts([v[i] for i in order], [1.0] * len(v), **bounds)
    assert variance([v[i] for i in order], shuffled) == pytest.approx(variance(v, straight), rel=1e-12)


# ---- what the past says ----------------------------------------------------------------------------------------------


def test_posterior_by_hand():
    beta = FLAT.after(0, 8)
    assert (beta.a, beta.b, beta.mean) == (1.0, 9.0, 0.1)
    assert beta.variance == pytest.approx(9 / 110)
    assert beta.mixed(2) == pytest.approx(2 * beta.variance)


def test_posterior_reference_vectors():
    cases, tolerance = vectors("beta_posterior")
    for case in cases:
        given, wanted = case["inputs"], case["outputs"]
        beta = Beta(given["prior_a"], given["prior_b"]).after(given["successes"], given["failures"])
        close(beta.mean, wanted["mean_p"], tolerance["float64"])
        close(beta.variance, wanted["E_p_1mp"], tolerance["float64"])
        for n, share in wanted["P_informative_n"].items():
            close(beta.mixed(int(n)), share, tolerance["float64"])


def test_the_prior_is_found_again_from_what_it_made():
    draw = np.random.default_rng(0)
    for a, b in ((0.3, 0.3), (0.3, 1.0), (2.0, 5.0)):
        n = draw.integers(4, 17, size=4000)
        s = draw.binomial(n, draw.beta(a, b, size=4000))
        prior = fit_prior([(float(x), float(m - x)) for x, m in zip(s, n, strict=True)])
        assert (prior.a, prior.b) == pytest.approx((a, b), rel=0.12)


@given(st.lists(st.tuples(st.floats(0, 16), st.floats(0, 16)).filter(lambda x: sum(x) > 0.01), max_size=30))
def test_the_prior_starves_no_prompt(seen):
    prior = fit_prior(seen)
    assert 0 < prior.a < 101 and 0 < prior.b < 101
    assert prior.after(0, 64).variance > 0
    assert fit_prior(seen[::-1]) == prior  # sums are exact: no order


def test_few_prompts_have_a_flat_prior():
    assert fit_prior([(0.0, 8.0)] * 7) == FLAT
    assert fit_prior([(0.0, 8.0)] * 8).mean < 0.05


def test_counts_decay_and_excluded_samples_do_not_count():
    allocator = rule("neyman", decay=0.5)
    allocator.observe([group("a", 1.0, 0.0, 0.0, None, tokens=4)])
    allocator.observe([group("a", 1.0, 1.0, tokens=8), group("b", None, None)])
    assert allocator.state() == {"seen": {"a": [2.5, 1.0, 2.5, 6.0]}}


def test_style_rewards_do_not_make_a_sample_correct():
    """Correctness is that of the outcome members; the baseline is in reward units."""
    allocator = build_allocator(
        recipe({"name": "neyman"}, reward={"members": [{"use": "problem"}, {"use": "length", "role": "style"}]})
    )
    allocator.observe([group("a", 0.0, 0.0, reward=0.7, members=2)])
    assert allocator.past.seen["a"].successes == 0.0
    assert allocator.past.reward("a") == pytest.approx(0.7)


# ---- neyman --------------------------------------------------------------------------------------------------------


def taught(name="neyman", tokens=None, **options):
    """A rule that saw: a mixed, b always right, c always wrong."""
    allocator, tokens = rule(name, **options), tokens or {}
    outcomes = {"a": (1.0, 0.0) * 4, "b": (1.0,) * 8, "c": (0.0,) * 8}
    allocator.observe([group(p, *scores, tokens=tokens.get(p, 4)) for p, scores in outcomes.items()])
    return allocator


def test_neyman_gives_more_where_the_outcome_is_open_and_says_why():
    allocator = taught(samples_per_prompt=6)
    plan = allocator.plan([visit(name) for name in "abc"])
    assert sum(each.samples for each in plan) == 18
    assert plan[0].samples > plan[1].samples == plan[2].samples >= 2
    evidence = plan[0].evidence
    assert (evidence["a"], evidence["b"], evidence["seen"], evidence["tokens"]) == (5.0, 5.0, 8.0, 4.0)
    assert evidence["variance"] == pytest.approx(25 / 110)
    assert evidence["gain"] == pytest.approx(gain(25 / 110, 1.0, plan[0].samples))
    assert plan[0].reason == "neyman"
    assert allocator.plan([visit("new")])[0].reason.startswith("neyman, by the prior: not seen yet")


def test_neyman_counts_tokens():
    long = {"a": 40, "b": 4, "c": 4}
    tokens = taught(tokens=long).plan([visit(name) for name in "abc"])
    assert sum(each.samples * each.evidence["tokens"] for each in tokens) <= 8 * 48
    samples = taught(tokens=long, cost="samples").plan([visit(name) for name in "abc"])
    assert sum(each.samples for each in samples) == 24
    assert samples[0].samples > 8 and tokens[0].samples < 8
    both = taught(tokens=long, gradient="length").plan([visit(name) for name in "abc"])
    assert tokens[0].samples < both[0].samples  # a long answer's gradient is larger: length cancels


def test_neyman_without_a_past_is_uniform_and_needs_prompts_apart_from_none():
    assert [each.samples for each in rule("neyman", samples_per_prompt=5).plan([visit(n) for n in "xyz"])] == [5] * 3
    assert rule("neyman").plan([]) == ()


def test_a_plan_depends_on_the_past_only_and_survives_a_checkpoint():
    allocator = taught()
    first = allocator.plan([visit(name) for name in "abcd"])
    state = json.loads(json.dumps(allocator.state(), sort_keys=True))
    again = rule("neyman")
    again.restore(state)
    second = again.plan([visit(name) for name in "abcd"])
    for one, two in zip(first, second, strict=True):
        assert (one.samples, one.reason, one.evidence) == (two.samples, two.reason, two.evidence)
    assert again.state() == allocator.state()


@given(st.permutations("abcdefghij"), st.integers(0, 2**32 - 1))
def test_a_state_with_its_prompts_in_another_order_is_the_same(order, seed):
    """Checkpoints sort their keys."""
    draw = np.random.default_rng(seed)
    allocator = rule("neyman")
    allocator.observe([group(p, *draw.integers(0, 2, 5).astype(float), tokens=int(draw.integers(1, 9))) for p in order])
    again = rule("neyman")
    again.restore(json.loads(json.dumps(allocator.state(), sort_keys=True)))
    visits = [visit(p) for p in "abcz"]
    assert [a.evidence for a in again.plan(visits)] == [a.evidence for a in allocator.plan(visits)]


# ---- difficulty ------------------------------------------------------------------------------------------------------


def test_difficulty_gives_one_to_easy_prompts_and_five_to_hard_ones():
    plan = taught("difficulty").plan([visit(name) for name in "abcd"])
    assert [each.samples for each in plan] == [3, 1, 5, 3]
    assert plan[1].reason == "difficulty, band 1 of 5"
    assert not plan[1].greedy_baseline
    assert plan[1].evidence["baseline"] == pytest.approx((2 * 0.5 + 8) / (2 + 8))  # the past of b, shrunk to the mean
    assert 0 < 1.0 - plan[1].evidence["baseline"] < 1.0


def test_a_single_sample_is_never_without_a_baseline():
    bands = {"samples": [3, 1, 5], "thresholds": [0.9, 0.2]}
    (first,) = rule("difficulty", **bands).plan([visit("new")])
    assert (first.samples, first.greedy_baseline, "baseline" in first.evidence) == (1, True, False)
    (greedy,) = taught("difficulty", single="greedy", **bands).plan([visit("a")])
    assert (greedy.samples, greedy.greedy_baseline, "baseline" in greedy.evidence) == (1, True, False)
    (past,) = taught("difficulty", **bands).plan([visit("a")])
    assert (past.samples, past.greedy_baseline, "baseline" in past.evidence) == (1, False, True)


# ---- dapo, until_mixed -------------------------------------------------------------------------------------------------


def test_dapo_reference_vectors():
    cases, tolerance = vectors("dapo_filter")
    for case in cases:
        given, wanted = case["inputs"], case["outputs"]
        if "group_rewards" in given:
            scores = [float(score) for score in given["group_rewards"]]
            assert mixed(scores) == wanted["keep"], case["id"]
            assert (rule("dapo").keep(group("a", *scores)) == "") == wanted["keep"]
            continue
        p, n = given["p"], given["n"]
        close(1 - mixed_share(p, n), wanted["p_zero_variance"], tolerance["float64"])
        close(mixed_share(p, n), wanted["p_informative"], tolerance["float64"])
        close(rollouts_per_mixed_group(p, n) / n, wanted["expected_groups_per_kept_group"], tolerance["float64"])
        close(rollouts_per_mixed_group(p, n), wanted["expected_rollouts_per_kept_group"], tolerance["float64"])


def test_dapo_by_hand():
    assert mixed_share(0.5, 2) == 0.5
    assert rollouts_per_mixed_group(0.5, 2) == 4.0
    assert rollouts_per_mixed_group(0.0, 8) == rollouts_per_mixed_group(0.5, 1) == float("inf")
    # 1 - p^n - (1 - p)^n at n = 2 is 2 p (1 - p), also where p is next to 0.
    assert mixed_share(1e-9, 2) == pytest.approx(2e-9 * (1 - 1e-9), rel=1e-14)


def test_dapo_goes_by_correctness_not_by_the_shaped_reward():
    dapo = rule("dapo")
    shaped = group("a", 0.0, 0.0)
    shaped = replace(
        shaped,
        scored=tuple(
            replace(s, judgement=replace(s.judgement, reward=Reward(value=v)))
            for s, v in zip(shaped.scored, (0.1, 0.9), strict=True)
        ),
    )
    assert dapo.keep(shaped) == "not mixed: none correct"
    assert dapo.keep(group("a", 1.0, 0.0, reward=0.5)) == ""
    assert dapo.keep(group("a", 1.0, 1.0)) == "not mixed: all correct"
    assert dapo.keep(group("a", 0.5, 0.5)) == "not mixed: all alike"
    assert dapo.keep(group("a", 1.0, None)) == "not mixed: 1 of 2 samples have a score"


def test_dapo_draws_more_then_gives_up():
    dapo = rule("dapo", oversample=1.5, max_refills=2)
    assert [dapo.draws(8, kept, refills) for kept, refills in ((0, 0), (3, 1), (8, 1), (7, 2), (0, 3))] == [
        12, 8, 0, 2, 0,
    ]  # fmt: skip
    assert rule("uniform").draws(8, 0, 0) == 8
    assert rule("uniform").draws(8, 3, 1) == 0


def test_until_mixed_goes_on_to_its_cap():
    until = rule("until_mixed", samples_per_prompt=4, max_samples=10)
    assert until.plan([visit("a")])[0].samples == 4
    assert until.plan([visit("a")])[0].reason == "until_mixed, a curriculum"
    assert until.extend(group("a", *[0.0] * 4)) == 4
    assert until.extend(group("a", *[0.0] * 8)) == 2
    assert until.extend(group("a", *[0.0] * 10)) == 0
    assert until.extend(group("a", 0.0, 1.0)) == 0


# ---- what does not go together ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allocation", "said"),
    [
        ({"name": "neyman", "samples_per_prompt": 40}, "min_samples <= samples_per_prompt <= max_samples"),
        ({"name": "neyman", "min_samples": 1}, "allocation.min_samples.*at least 2"),
        ({"name": "difficulty", "samples": [1, 2]}, "4 thresholds make 5 bands, but samples has 2"),
        ({"name": "difficulty", "thresholds": [0.2, 0.4, 0.6, 0.8]}, "thresholds must fall"),
        ({"name": "dapo", "samples_per_prompt": 1}, "allocation.samples_per_prompt.*at least 2"),
        ({"name": "neymann"}, "Did you mean 'neyman'"),
        ({"name": "dapo", "max_refill": 3}, "unknown key 'allocation.max_refill'. Did you mean 'max_refills'"),
    ],
)
def test_config_that_makes_no_sense(allocation, said):
    with pytest.raises(ConfigError, match=said):
        recipe(allocation)


def test_a_rule_by_correctness_needs_an_outcome():
    style = {"members": [{"use": "length", "role": "style"}]}
    with pytest.raises(ConfigError, match=r"allocation.name 'dapo' .* reward.members has role outcome"):
        build_allocator(recipe({"name": "dapo"}, reward=style))
    build_allocator(recipe({"name": "uniform"}, reward=style))


def test_no_name_is_uniform():
    assert (
        recipe({"samples_per_prompt": 3}).allocation == recipe({"name": "uniform", "samples_per_prompt": 3}).allocation
    )


def test_bias_is_said():
    unbiased = {"name": "grpo", "advantage": "rloo", "aggregation": "prompt-mean"}

    def told(name, algorithm):
        made = recipe({"name": name}, algorithm=algorithm)
        return bias(made, build_algorithm(made))

    assert told("uniform", {"name": "grpo"}) == []
    assert told("neyman", unbiased) == told("difficulty", unbiased) == []
    assert len(told("neyman", {"name": "grpo"})) == 2
    assert "curriculum" in told("until_mixed", unbiased)[0]
    assert "curriculum" in told("dapo", {"name": "grpo"})[0]
    assert told("uniform", {"name": "dapo"})[0].startswith("algorithm.name dapo without its dynamic sampling")
    assert not any("without" in line for line in told("dapo", {"name": "dapo"}))


# ---- unequal groups ------------------------------------------------------------------------------------------------------


def coefficients(rewards, advantage, aggregation, baselines=None):
    """[n_i] of each prompt: what each one-token sample's score is multiplied by. A single sample has its baseline."""
    atoms = [i for i, each in enumerate(rewards) for _ in each]
    weights = aggregation([np.ones(1) for _ in atoms], atoms, 1)
    flat = np.concatenate(
        [
            advantage(np.array(each)) if baseline is None or len(each) > 1 else np.array(each) - baseline
            for each, baseline in zip(rewards, baselines or [None] * len(rewards), strict=True)
        ]
    )
    return np.split(flat * np.concatenate(weights), np.cumsum([len(each) for each in rewards])[:-1]), weights[0].dtype


def test_unequal_groups_reference_vectors():
    cases, tolerance = vectors("unequal_groups")
    for case in cases:
        rewards, wanted = case["inputs"]["group_rewards"], case["outputs"]
        for each, want in zip(rewards, wanted["rloo_advantages"], strict=True):
            for got, one in zip(rloo(np.array(each)), want, strict=True):
                close(got, one, tolerance["float64"])
        for name, aggregation in (("prompt_mean", prompt_mean), ("flat_mean", token_mean)):
            found, dtype = coefficients(rewards, rloo, aggregation)
            for got, want in zip(found, wanted[f"sequence_coefficient_{name}"], strict=True):
                for one, other in zip(got, want, strict=True):
                    close(one, other, tolerance[str(dtype)])
        for aggregation, key in ((token_mean, "prompt_weight_under_flat_mean"), (prompt_mean, "prompt_weight_wanted")):
            atoms = [i for i, each in enumerate(rewards) for _ in each]
            weights = aggregation([np.ones(1) for _ in atoms], atoms, 1)
            for i, want in enumerate(wanted[key]):
                got = sum(float(w[0]) for w, atom in zip(weights, atoms, strict=True) if atom == i)
                close(got, want, tolerance[str(weights[0].dtype)])


LOGITS = np.log(np.array([[0.06, 0.5, 0.44], [0.2, 0.1, 0.7], [0.5, 0.3, 0.2], [0.9, 0.05, 0.05]]))
"""[4 prompts, 3 answers]; answer 0 is right. A softmax policy that can be enumerated."""


def deviation(allocator, advantage, aggregation, *, steps=3000, warm=3):
    """Largest |mean gradient - exact gradient| in standard errors, over the coordinates of the policy.

    The run's own sequence: plan from the past, sample, extend, keep, weigh, observe; the policy stands still.
    """
    draw, policy = np.random.default_rng(1), np.exp(LOGITS)
    prompts, answers = policy.shape
    score = np.eye(answers)[None] - policy[:, None]  # [prompt, answer, logit] d log pi(answer) / d logit
    exact = np.einsum("ia,ial->il", policy * (np.arange(answers) == 0), score) / prompts
    ready = [[scored(f"p{i}", float(a == 0), tokens=1 + 2 * i) for a in range(answers)] for i in range(prompts)]
    visits = [visit(f"p{i}", i) for i in range(prompts)]
    found = np.zeros((steps, prompts, answers))
    for step in range(-warm, steps):
        groups, drawn = [], []
        for i, allocation in enumerate(allocator.plan(visits)):
            chosen, more = [], allocation.samples
            while more:
                chosen += draw.choice(answers, size=more, p=policy[i]).tolist()
                made = Group(visit=visits[i], scored=tuple(ready[i][a] for a in chosen), allocation=allocation)
                more = allocator.extend(made)
            groups.append(made)
            if not allocator.keep(made):
                drawn.append((i, chosen, allocation.evidence.get("baseline")))
        allocator.observe(groups)
        if step < 0 or not drawn:
            continue
        rewards, baselines = [[float(a == 0) for a in chosen] for _, chosen, _ in drawn], [b for _, _, b in drawn]
        parts, _ = coefficients(rewards, advantage, aggregation, baselines)
        for (i, chosen, _), part in zip(drawn, parts, strict=True):
            found[step, i] = part @ score[i][chosen]
    error = found.std(axis=0, ddof=1) / np.sqrt(steps)
    return float(np.max(np.abs(found.mean(axis=0) - exact) / error))


def test_the_gradient_of_neyman_is_unbiased():
    """rloo + prompt-mean + counts from the past: the mean gradient is the exact one within 3 sigma, n unequal."""
    allocator = rule("neyman", samples_per_prompt=4, max_samples=12)
    assert deviation(allocator, rloo, prompt_mean) < 3.0
    given = [each.samples for each in allocator.plan([visit(f"p{i}") for i in range(4)])]
    assert len(set(given)) > 1
    assert deviation(rule("uniform", samples_per_prompt=4), rloo, prompt_mean) < 3.0
    assert deviation(rule("difficulty"), rloo, prompt_mean) < 3.0  # single samples with the posterior's baseline


@pytest.mark.parametrize(
    ("allocation", "advantage", "aggregation"),
    [
        ({"name": "neyman", "samples_per_prompt": 4, "max_samples": 12}, rloo, token_mean),
        ({"name": "neyman", "samples_per_prompt": 4, "max_samples": 12}, grpo, prompt_mean),
        ({"name": "until_mixed", "samples_per_prompt": 2, "max_samples": 16}, rloo, prompt_mean),
        ({"name": "dapo", "samples_per_prompt": 4}, rloo, prompt_mean),
    ],
    ids=["flat mean", "std", "until_mixed", "dapo"],
)
def test_the_biased_ones_fail_the_same_check(allocation, advantage, aggregation):
    assert deviation(build_allocator(recipe(allocation)), advantage, aggregation) > 4.0
