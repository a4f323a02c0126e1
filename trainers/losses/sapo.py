"""SAPO: a smooth gate in the place of the clip."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from jurat.platform.types import Microbatch
from jurat.trainers.losses.policy import Metrics, PolicyLoss, ratio_of


@dataclass(frozen=True, slots=True)
class SAPO(PolicyLoss):
    """``L_t = -A (4 / tau) sigmoid(tau (rho - 1))`` with tau = ``positive`` where A > 0, else ``negative``.

    Soft Adaptive Policy Optimization (arXiv 2511.20347, eq. 5-7): at rho = 1 the gradient is that of ``-A log pi``.
    """

    positive: float = 1.0
    negative: float = 1.05

    def surrogate(self, current: Tensor, log_ratio: Tensor, mb: Microbatch) -> tuple[Tensor, Metrics]:
        tau = torch.full_like(mb.advantages, self.negative).masked_fill(mb.advantages > 0, self.positive)
        return -mb.advantages * torch.sigmoid(tau * (ratio_of(log_ratio) - 1)) * 4 / tau, {}
