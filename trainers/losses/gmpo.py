"""GMPO: the geometric mean of clipped token ratios."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from jurat.platform.types import Microbatch
from jurat.trainers.losses.policy import Metrics, PolicyLoss
from jurat.trainers.losses.segments import segment_mean, spread


@dataclass(frozen=True, slots=True)
class GMPO(PolicyLoss):
    """``L = -A exp(mean_t l_t)`` per sequence, ``l_t = min(log rho, clip(log rho, -low, high))`` if A > 0, else the max.

    Geometric-Mean Policy Optimization (arXiv 2507.20673, eq. 4); A is the sequence's mean advantage. Every token of a
    sequence has the loss of the sequence: the paper's mean over sequences is ``seq-mean-token-mean``. verl adds
    ``eps`` = 1e-8 to the lengths. log rho is clamped to +-20 token by token, as there.
    """

    low: float = 0.4
    high: float = 0.4
    eps: float = 0.0

    @property
    def token_local(self) -> bool:
        return False

    def surrogate(self, current: Tensor, log_ratio: Tensor, mb: Microbatch) -> tuple[Tensor, Metrics]:
        sign = mb.advantages.sign()
        log_ratio = log_ratio.clamp(-20.0, 20.0)
        clipped = log_ratio.clamp(-self.low, self.high)
        chosen = sign * torch.minimum(sign * log_ratio, sign * clipped)
        losses = -segment_mean(mb.advantages, mb, self.eps) * torch.exp(segment_mean(chosen, mb, self.eps))
        return spread(losses, mb), {"clip_fraction": (mb.weights * (chosen != log_ratio)).sum().detach()}
