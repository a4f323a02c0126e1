"""Corrections for a sampler that is not the policy being trained: factors per token on the surrogate.

``r = pi_prox / pi_sampler`` per token, where pi_prox is the trainer's policy before the update and pi_sampler what drew
the tokens. The log-ratio is clamped to +-20: no division, no overflow. A token whose sampler log-prob is NaN (an engine
that did not return it) counts as r = 1. Tokens with factor 0 stay in the denominators, which are fixed before any loss
is called; to leave them out there too, zero ``Sample.weights`` by the same ``Rejection`` over the whole batch.
A sampler with top-p, top-k or min-p returns renormalised log-probs: r is then off by the mass kept.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from jurat.platform.types import Microbatch
from jurat.trainers.losses.kl import KL_ESTIMATORS
from jurat.trainers.losses.segments import segment_max, segment_mean, segment_sum, spread


def sampler_log_ratio(proximal: Tensor, mb: Microbatch) -> Tensor:
    """[T] ``log r``, clamped."""
    return (proximal - mb.sampler_logprobs).nan_to_num(nan=0.0).clamp(-20.0, 20.0)


@dataclass(frozen=True, slots=True)
class Importance:
    """``r`` within [low, high]; outside it is clipped, or 0 with ``outside="zero"``.

    ``Importance()``                               decoupled PPO (AReaL, arXiv 2505.24298, eq. 5)
    ``Importance(high=2)``                         TIS (Yao et al. 2025, "Your Efficient RL Framework Secretly...")
    ``Importance(low=.5, high=2, outside="zero")`` IcePop (Ling team, arXiv 2510.18855)
    With ``level="sequence"`` r is the product over the sequence, ``exp(sum_t log r_t)``, for each of its tokens.
    ``mean`` divides the factors: that of the whole update, by ``self_normalised``.
    """

    low: float = 0.0
    high: float = math.inf
    level: Literal["token", "sequence"] = "token"
    outside: Literal["clip", "zero"] = "clip"
    mean: float = 1.0

    @property
    def token_local(self) -> bool:
        return self.level == "token"

    def __call__(self, current: Tensor, proximal: Tensor, mb: Microbatch) -> Tensor:
        """[T] factors."""
        log_ratio = sampler_log_ratio(proximal, mb)
        if self.level == "sequence":
            log_ratio = spread(segment_sum(log_ratio, mb).clamp(-20.0, 20.0), mb)
        ratio = torch.exp(log_ratio)
        clipped = ratio.clamp(self.low, self.high)
        kept = clipped if self.outside == "clip" else torch.where(ratio == clipped, ratio, 0.0)
        return kept / self.mean


def self_normalised(importance: Importance, proximal: Tensor, update: Microbatch, eps: float = 0.0) -> Importance:
    """``importance`` with factors of mean 1 over ``update``, the whole of it, so that splits agree.

    The mean is over targets, or over sequences for ``level="sequence"``; below 1e-8 (all zeroed) nothing is divided.
    verl adds ``eps`` = 1e-8 to numbers of tokens.
    """
    factors = importance(proximal, proximal, update)
    if importance.level == "token":
        total, count = factors[update.loss_mask].sum(), update.loss_mask.sum() + eps
    else:
        total = segment_mean(factors, update, eps).sum()
        count = (segment_sum(torch.ones_like(factors), update) > 0).sum()
    mean = float(total / count) if count > 0 else 0.0
    return dataclasses.replace(importance, mean=importance.mean * (mean if mean > 1e-8 else 1.0))


@dataclass(frozen=True, slots=True)
class Rejection:
    """1 where the divergence of sampler and trainer is within [low, high] nats, else 0 (MIS; verl's rollout rejection).

    Divergence: k1, k2 or k3 of ``d = log pi_sampler - log pi_prox``, per token or as the sequence's sum, mean or max
    (max of k2 and k3 only). To keep ratios r in [a, b], bound k1 to [-log b, -log a].
    """

    high: float
    low: float = -math.inf
    divergence: Literal["k1", "k2", "k3"] = "k3"
    level: Literal["token", "sum", "mean", "max"] = "token"

    @property
    def token_local(self) -> bool:
        return self.level == "token"

    def __call__(self, current: Tensor, proximal: Tensor, mb: Microbatch) -> Tensor:
        """[T] of 0 and 1."""
        divergence = KL_ESTIMATORS[self.divergence](-sampler_log_ratio(proximal, mb))
        if self.level != "token":
            reduce = {"sum": segment_sum, "mean": segment_mean, "max": segment_max}[self.level]
            divergence = spread(reduce(divergence, mb), mb)
        return ((divergence >= self.low) & (divergence <= self.high)).to(proximal.dtype)


@dataclass(frozen=True, slots=True)
class OffPolicyMask:
    """0 on sequences of negative advantage that the policy has left: mean ``log pi_sampler - log pi`` above ``limit`` nats.

    DeepSeek-V3.2 (arXiv 2512.02556, section 3.1), off-policy sequence masking. It looks at the current policy, so lag
    and mismatch both count.
    """

    limit: float

    @property
    def token_local(self) -> bool:
        return False

    def __call__(self, current: Tensor, proximal: Tensor, mb: Microbatch) -> Tensor:
        """[T] of 0 and 1."""
        drift = spread(segment_mean(-sampler_log_ratio(current, mb), mb), mb)
        return ((mb.advantages >= 0) | (drift <= self.limit)).to(current.dtype)
