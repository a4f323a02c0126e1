"""Advantages as pure functions, float64: of one group from its rewards [n] -> [n], and of a whole batch.

Excluded samples are left out beforehand. A group of one has advantage 0, never its raw reward: without a baseline that
would reinforce whatever was said. An allocation that brings a baseline gives it as ``baseline``; it is read for groups
of one only (``baseline=0.0`` is the raw reward, as in verl). ``mask`` is [N], True where the policy chose the token;
None is everywhere. Observation tokens (False) are skipped: rewards there are dropped, results there are 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from jurat.platform.types import BoolArray

Rewards = NDArray[np.float64]
EPS = 1e-6


class GroupRule(Protocol):
    def __call__(self, rewards: Rewards, /, baseline: float | None = None) -> Rewards:
        """[n] -> [n]"""
        ...


def mean_of(values: Rewards) -> float:
    """The mean, exact where all are equal: equal rewards have no advantage at all, and not one of a rounding error."""
    return float(values[0] + (values - values[0]).mean())


# ---- one group: rewards [n] -> [n] ----


def dr_grpo(rewards: Rewards, baseline: float | None = None) -> Rewards:
    """``r - mean`` (Dr. GRPO, arXiv 2503.20783). Its expectation is (n - 1)/n of the true advantage."""
    if len(rewards) > 1:
        return rewards - mean_of(rewards)
    return np.zeros_like(rewards) if baseline is None else rewards - baseline


def grpo(rewards: Rewards, baseline: float | None = None, eps: float = EPS) -> Rewards:
    """``(r - mean) / (std + eps)``, std with n - 1 (DeepSeekMath, arXiv 2402.03300, section 4.1.2).

    eps is 1e-6 (ours, verl), 1e-4 in TRL, 1e-9 in OpenRLHF. The std of a group of one counts as 1.
    """
    std = float(rewards.std(ddof=1)) if len(rewards) > 1 else 1.0
    return dr_grpo(rewards, baseline) / (std + eps)


def rloo(rewards: Rewards, baseline: float | None = None) -> Rewards:
    """``r_j - mean of the others = n/(n-1) (r_j - mean)``: unbiased (arXiv 2402.14740)."""
    n = len(rewards)
    return dr_grpo(rewards, baseline) * (n / (n - 1) if n > 1 else 1.0)


def maxrl(rewards: Rewards, baseline: float | None = None) -> Rewards:
    """``(r - mean) / mean``, 0 where the mean is not positive: the gradient of log p, not of p (MaxRL, arXiv 2602.02710).

    For rewards from 0 up; -1 for wrong answers would turn its sign.
    """
    mean = float(rewards.mean()) if len(rewards) > 1 else baseline or 0.0
    return dr_grpo(rewards, baseline) / mean if mean > 0 else np.zeros_like(rewards)


def best_of_n(rewards: Rewards, baseline: float | None = None) -> Rewards:
    """1 for the best of the group, 0 for the others: imitate the best (RAFT, arXiv 2304.06767, algorithm 1).

    All that tie for the best get 1. A group without a worse one gets 0, where RAFT takes any: an all-wrong group would
    be imitated, an all-right one tells nothing apart. A single sample is best if it beats its baseline.
    """
    if len(rewards) < 2:
        return np.zeros_like(rewards) if baseline is None else (rewards > baseline).astype(np.float64)
    best = rewards == rewards.max()
    return np.zeros_like(rewards) if best.all() else best.astype(np.float64)


def opo(rewards: Rewards, lengths: NDArray[np.int64], baseline: float | None = None) -> Rewards:
    """``r - sum(l r) / sum(l)``, the baseline weighted by the lengths [n] in tokens (OPO, arXiv 2505.23585)."""
    if len(rewards) < 2:
        return dr_grpo(rewards, baseline)
    baseline = float(rewards[0] + np.average(rewards - rewards[0], weights=lengths))
    return rewards - baseline


def remax(rewards: Rewards, baseline: float) -> Rewards:
    """``r - R(greedy)`` (ReMax, arXiv 2310.10505, algorithm 1): [n] outcomes, or the reward-to-go [N] of one sample."""
    return rewards - baseline


ADVANTAGES: Mapping[str, GroupRule] = MappingProxyType(
    {
        "grpo": grpo,
        "dr_grpo": dr_grpo,
        "rloo": rloo,
        "maxrl": maxrl,
        "best_of_n": best_of_n,
    }
)
"""Rules that see only rewards; ``opo`` wants lengths, ``remax`` a greedy sample, the ones below the whole batch."""


# ---- along one sample: token rewards [N] -> [N] ----


def reward_to_go(rewards: Rewards, gamma: float = 1.0, mask: BoolArray | None = None) -> Rewards:
    """``G_t = r_t + gamma G_{t+1}``, where t + 1 is the next trained token: the return passes a tool's answer whole."""
    trained = slice(None) if mask is None else np.flatnonzero(mask)
    backwards = rewards[trained][::-1].tolist()
    returns = np.zeros(len(rewards))
    returns[trained] = [*accumulate(backwards, lambda later, now: now + gamma * later)][::-1]
    return returns


def gae(
    rewards: Rewards, values: Rewards, gamma: float = 1.0, lam: float = 1.0, mask: BoolArray | None = None
) -> tuple[Rewards, Rewards]:
    """(advantages, returns), each [N], not whitened (GAE, arXiv 1506.02438, eq. 16).

    ``delta_t = r_t + gamma V_{t+1} - V_t``, ``A_t = delta_t + gamma lam A_{t+1}``, ``R = A + V``; t + 1 is the next
    trained token, and V is 0 after the last one.
    """
    trained = slice(None) if mask is None else np.flatnonzero(mask)
    reward, value = rewards[trained], values[trained]
    delta = reward + gamma * np.append(value[1:], 0.0) - value
    advantages, returns = np.zeros(len(rewards)), np.zeros(len(rewards))
    advantages[trained] = reward_to_go(delta, gamma * lam)
    returns[trained] = advantages[trained] + value
    return advantages, returns


# ---- the whole batch: [samples or groups] -> the same shape ----


def whiten(values: Sequence[Rewards], masks: Sequence[BoolArray] | None = None, ddof: int = 1) -> list[Rewards]:
    """``(v - mean) / sqrt(var + 1e-8)`` over all trained tokens of the batch; 0 where fewer than two are left.

    The variance is with n - 1, as in verl and TRL; OpenRLHF divides by n (``ddof=0``).
    """
    kept = [np.ones(len(v), dtype=np.bool_) for v in values] if masks is None else masks
    flat = np.concatenate([v[m] for v, m in zip(values, kept, strict=True)] or [np.zeros(0)])
    mean, std = _moments(flat, ddof)
    return [np.where(m, (v - mean) / std, 0.0) for v, m in zip(values, kept, strict=True)]


def _moments(flat: Rewards, ddof: int = 1) -> tuple[float, float]:
    """Mean and deviation to whiten by; an infinite one where fewer than two are left."""
    if len(flat) < 2:
        return 0.0, np.inf
    return mean_of(flat), float(np.sqrt(flat.var(ddof=ddof) + 1e-8))


def reinforce_pp(
    token_rewards: Sequence[Rewards], gamma: float = 1.0, masks: Sequence[BoolArray] | None = None
) -> list[Rewards]:
    """Reward-to-go of each sample, whitened over all tokens of the batch (REINFORCE++, arXiv 2501.03262).

    ``token_rewards`` are [N] each: the outcome at the last token, minus the KL penalty of every token.
    """
    kept = [None] * len(token_rewards) if masks is None else masks
    return whiten([reward_to_go(r, gamma, m) for r, m in zip(token_rewards, kept, strict=True)], masks)


def reinforce_pp_baseline(
    groups: Sequence[Rewards], lengths: Sequence[NDArray[np.int64]], baselines: Sequence[float | None] | None = None
) -> list[Rewards]:
    """``r - group mean``, whitened over all tokens of the batch (REINFORCE++-baseline, arXiv 2501.03262).

    [n_i] each, ``lengths`` in trained tokens, which are the weights of mean and variance. A group of one without a
    baseline is 0 and not among what is whitened; verl takes its raw reward (``baselines`` of 0.0).
    """
    brought = [None] * len(groups) if baselines is None else baselines
    centred = [dr_grpo(group, b) for group, b in zip(groups, brought, strict=True)]
    compared = [len(group) > 1 or b is not None for group, b in zip(groups, brought, strict=True)]
    tokens = [np.repeat(c, n) for c, n, yes in zip(centred, lengths, compared, strict=True) if yes]
    mean, std = _moments(np.concatenate([*tokens, np.zeros(0)]))
    return [(c - mean) / std if yes else c for c, yes in zip(centred, compared, strict=True)]


def weighted_sum(parts: Rewards, weights: Rewards) -> Rewards:
    """[n, F] rewards of F members, NaN where one does not apply -> [n]; every row has at least one."""
    return np.asarray(np.nansum(parts * weights, axis=1))


def normalise(
    groups: Sequence[Rewards], scale: Literal["group", "batch", "none"] = "group", eps: float = EPS
) -> list[Rewards]:
    """``(r - group mean) / (std + eps)`` with the std of the group, of all rewards of the batch, or 1.

    ``scale_rewards`` of TRL (eps 1e-4 there); "batch" is Lite PPO's (arXiv 2508.08221).
    """
    if scale == "group":
        return [grpo(group, eps=eps) for group in groups]
    flat = np.concatenate([*groups, np.zeros(0)])
    std = 1.0 if scale == "none" else (float(flat.std(ddof=1)) if len(flat) > 1 else 0.0) + eps
    return [dr_grpo(group) / std for group in groups]


def normalise_then_sum(parts: Sequence[Rewards], weights: Rewards, eps: float = EPS) -> list[Rewards]:
    """Each member normalised within its group, then weighted and summed, then normalised over the batch.

    GDPO (arXiv 2601.05242); TRL's ``normalize_then_sum`` with eps 1e-4. ``parts`` [n_i, F] with NaN where a member does
    not apply. A group of one is 0 and not among what the batch is normalised by.
    """
    summed = [np.zeros(len(part)) for part in parts]
    for total, part in zip(summed, parts, strict=True):
        for member, weight in zip(part.T, weights.tolist(), strict=True):
            applies = ~np.isnan(member)
            total[applies] += weight * grpo(member[applies], eps=eps)
    flat = np.concatenate([*(total for total in summed if len(total) > 1), np.zeros(0)])
    if len(flat) < 2:
        return summed
    mean, std = mean_of(flat), float(flat.std(ddof=1))
    return [(total - mean) / (std + eps) if len(total) > 1 else total for total in summed]
