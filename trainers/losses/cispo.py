"""CISPO: clipped importance weights, every token keeps a gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from jurat.platform.types import Microbatch
from jurat.trainers.losses.policy import Metrics, PolicyLoss, ratio_of


@dataclass(frozen=True, slots=True)
class CISPO(PolicyLoss):
    """``L_t = -sg[clip(rho, 1 - low, 1 + high)] A log pi_t`` (MiniMax-M1, arXiv 2506.13585, eq. 4-5).

    The paper tunes only the upper bound, so ``low`` is infinite here. verl clips both sides (``low=1`` is no bound there
    either); TRL's ``epsilon_high`` is the ratio itself: our ``1 + high``.
    """

    low: float = math.inf
    high: float = 4.0

    def surrogate(self, current: Tensor, log_ratio: Tensor, mb: Microbatch) -> tuple[Tensor, Metrics]:
        ratio = ratio_of(log_ratio.detach())
        clipped = ratio.clamp(1.0 - self.low, 1.0 + self.high)
        return -clipped * mb.advantages * current, {"clip_fraction": (mb.weights * (clipped != ratio)).sum()}
