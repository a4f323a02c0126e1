"""GSPO: the clipped surrogate with one ratio per sequence."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from jurat.platform.types import Microbatch
from jurat.trainers.losses.policy import Metrics, PolicyLoss
from jurat.trainers.losses.segments import segment_mean, spread


@dataclass(frozen=True, slots=True)
class GSPO(PolicyLoss):
    """``L_t = max(-A s_t, -A clip(s_t, 1 - low, 1 + high))``, ``s_t = sg[s] pi_t / sg[pi_t]``,
    ``s = exp(mean_t (log pi_t - log pi_prox,t))`` over the sequence.

    GSPO (arXiv 2507.18071, eq. 5-7) in its token form (eq. 13-14): equal to the sequence form in value and gradient where
    the advantage and the weight are those of the sequence, and defined where they are not. The paper's mean over
    sequences is the aggregation ``seq-mean-token-mean``; with ``seq-mean-token-sum`` this is LUSPO (arXiv 2602.05261).
    A mean log-ratio is clamped at 10 from above, as verl does.
    """

    low: float = 3e-4
    high: float = 4e-4

    @property
    def token_local(self) -> bool:
        return False

    def surrogate(self, current: Tensor, log_ratio: Tensor, mb: Microbatch) -> tuple[Tensor, Metrics]:
        mean = spread(segment_mean(log_ratio.detach(), mb), mb)
        ratio = torch.exp((current - current.detach() + mean).clamp(-20.0, 10.0))
        plain = -mb.advantages * ratio
        clipped = -mb.advantages * ratio.clamp(1.0 - self.low, 1.0 + self.high)
        metrics = {"clip_fraction": (mb.weights * (clipped > plain)).sum().detach()}
        return torch.maximum(plain, clipped), metrics
