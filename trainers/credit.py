"""Credit: rewards of the steps of a solution -> advantages of its tokens, pure, float64.

A group is the solutions of one prompt. Every rule gives [N] per solution. The tokens of step k are those after the end
of step k - 1 up to its own end; tokens after the last step belong to no step. A solution without steps gets 0 from
rules that sum or compare steps, so a verifier's steps want the outcome's advantage beside them.

Which rule: ``shaped`` for a process reward model, whose scores estimate success: its total telescopes, so no added step
can earn. ``minimum`` where one bad step spoils the solution. ``process_sum`` for exact checks of steps only, with
``gated``: its total grows with every step above the mean, and a policy learns to pad.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from jurat.platform.types import IntArray, Step
from jurat.trainers.advantages import EPS, Rewards, mean_of, reward_to_go, rloo


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """Two steps over five tokens: ``Solution(scores=[1.0, 0.0], ends=[1, 3], num_tokens=5, outcome=0.0)``."""

    scores: Rewards
    """[K]"""
    ends: IntArray
    """[K] index of the last token of each step, not decreasing."""
    num_tokens: int
    """N"""
    outcome: float = 0.0
    """Reward of the whole, as judged."""

    @classmethod
    def of(cls, steps: Sequence[Step], char_ends: IntArray, outcome: float) -> Solution:
        """In the order of their ends, whatever order a verifier told them in; steps without a score join the next."""
        scored = sorted((step for step in steps if step.score is not None), key=lambda step: step.end)
        scores = np.array([step.score for step in scored], dtype=np.float64)
        return cls(scores=scores, ends=step_ends(scored, char_ends), num_tokens=len(char_ends), outcome=outcome)


def step_ends(steps: Sequence[Step], char_ends: IntArray) -> IntArray:
    """[K] the token that holds the last character of each step; ``char_ends`` [N] are offsets after each token."""
    ends = np.searchsorted(char_ends, [step.end for step in steps], side="left")
    return np.minimum(ends, len(char_ends) - 1).astype(np.int64)


def at_ends(values: Rewards, solution: Solution) -> Rewards:
    """[K] -> [N]: each value at the last token of its step, 0 elsewhere; steps that end in one token add up."""
    return np.bincount(solution.ends, weights=values, minlength=solution.num_tokens).astype(np.float64)


def over_steps(values: Rewards, solution: Solution) -> Rewards:
    """[K] -> [N]: each value at every token of its step, 0 after the last step; of steps that end in one token the first."""
    step = np.searchsorted(solution.ends, np.arange(solution.num_tokens), side="left")
    return np.append(values, 0.0)[step]


def gated(solution: Solution, *, right: bool) -> Solution:
    """Outcome gate: where the outcome is wrong no step scores above 0. It comes before baselines and means."""
    return solution if right else replace(solution, scores=np.minimum(solution.scores, 0.0))


# ---- sum ----


def process_sum(group: Sequence[Solution], *, scale: bool = True, eps: float = EPS) -> list[Rewards]:
    """Process supervision of DeepSeekMath (arXiv 2402.03300, section 4.1.3).

    ``r~ = (r - mean) / (std + eps)`` pooled over all steps of the group, ``A_t = sum of r~ of the steps that end at or
    after t``. The paper leaves the divisor of the std open: n - 1 here. Without ``scale`` the std is 1.
    """
    pooled = np.concatenate([*(solution.scores for solution in group), np.zeros(0)])
    if len(pooled) < 2:
        return [np.zeros(solution.num_tokens) for solution in group]
    mean = mean_of(pooled)
    std = (float(pooled.std(ddof=1)) + eps or 1.0) if scale else 1.0
    return [reward_to_go(at_ends((solution.scores - mean) / std, solution)) for solution in group]


# ---- minimum ----


def softmin_weights(scores: Rewards, temperature: float = 0.1) -> Rewards:
    """``softmax(-r / T)`` [K]: the worst steps weigh most."""
    weights = np.exp(-(scores - scores.min(initial=np.inf)) / temperature)
    return np.asarray(weights / weights.sum())


def min_returns(scores: Rewards, temperature: float = 0.0) -> Rewards:
    """Return [K] from each step on: what follows is worth its worst step (PURE, arXiv 2504.15275).

    T = 0 is the hard minimum of r_k .. r_K; an added step never raises it. T > 0 is the paper's soft form (0.1 there):
    reward-to-go of ``softmax(-r/T) * r``. That is a mean over all steps, so added right steps raise it a little.
    """
    if temperature == 0.0:
        return np.minimum.accumulate(scores[::-1])[::-1]
    return reward_to_go(softmin_weights(scores, temperature) * scores)


def minimum(group: Sequence[Solution], *, temperature: float = 0.0) -> list[Rewards]:
    """``min_returns`` of each step minus the mean total return of the other solutions with steps."""
    returns = [min_returns(solution.scores, temperature) for solution in group]
    totals = np.array([value[0] for value in returns if len(value)])
    if len(totals) < 2:
        return [np.zeros(solution.num_tokens) for solution in group]
    others = iter(totals - rloo(totals))
    return [
        over_steps(value - next(others) if len(value) else value, solution)
        for value, solution in zip(returns, group, strict=True)
    ]


# ---- shaped ----


def shaping(potentials: Rewards, gamma: float = 1.0) -> Rewards:
    """``F_k = gamma phi_{k+1} - phi_k`` of the potentials [K + 1] of successive states (Ng et al. 1999, theorem 1).

    With phi = 0 at the end, ``sum gamma^k F_k = -phi_0``: whatever lies between, the best policy stays the best.
    """
    return gamma * potentials[1:] - potentials[:-1]


def shaped_rewards(potentials: Rewards, outcome: float, gamma: float = 1.0) -> Rewards:
    """[K + 1] potentials, the last one 0 -> [K] rewards: shaping, and the outcome with the last."""
    rewards = shaping(potentials, gamma)
    rewards[-1] += outcome
    return rewards


def shaped(group: Sequence[Solution], lam: float = 1.0) -> list[Rewards]:
    """The score of step k is the potential of the state after it; ``A_t = outcome - potential of the state before t``.

    That is the reward-to-go of ``shaped_rewards`` at gamma 1: a baseline that knows how far the solution has come. It
    cannot change which policy is best, and it helps as far as the scores are calibrated chances of success. The state
    before the first step has the mean outcome of the others as its potential; tokens after the last step count from
    that step's score. A group of one is 0.
    """
    if len(group) < 2:
        return [np.zeros(solution.num_tokens) for solution in group]
    outcomes = np.array([solution.outcome for solution in group])
    starts = outcomes - rloo(outcomes)
    return [_shaped(solution, float(start), lam) for solution, start in zip(group, starts, strict=True)]


def _shaped(solution: Solution, start: float, lam: float) -> Rewards:
    # The text after the last step is one more step, which leads to the end.
    whole = replace(solution, ends=np.append(solution.ends, solution.num_tokens - 1))
    rewards = shaped_rewards(np.concatenate([[start], solution.scores, [0.0]]), solution.outcome)
    return over_steps(reward_to_go(rewards, lam), whole)


# ---- against a baseline that is brought ----


def remax_steps(solution: Solution, greedy_total: float) -> Rewards:
    """Reward-to-go of the steps minus the total of the greedy solution, 0 after the last step (ReMax with steps)."""
    return over_steps(reward_to_go(solution.scores) - greedy_total, solution)


def by_step(solution: Solution, baseline: float = 0.0) -> Rewards:
    """Function-based advantage: what a verifier says of a step is the advantage of its tokens, minus ``baseline``."""
    return over_steps(solution.scores - baseline, solution)


CREDITS: Mapping[str, Callable[[Sequence[Solution]], list[Rewards]]] = MappingProxyType(
    {
        "sum": process_sum,
        "min": minimum,
        "shaped": shaped,
        "function": lambda group: [by_step(solution) for solution in group],
    }
)
"""Rules that need nothing but the group: [n] solutions -> token advantages [N] each."""
