"""The clipped surrogate of PPO, GRPO and DAPO: one loss, bounds as arguments."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from jurat.platform.types import Microbatch
from jurat.trainers.losses.policy import Metrics, PolicyLoss, ratio_of


@dataclass(frozen=True, slots=True)
class Clipped(PolicyLoss):
    """``L_t = max(-A rho, -A clip(rho, 1 - low, 1 + high))`` with ``rho = exp(log pi - log pi_prox)``.

    PPO (arXiv 1707.06347, eq. 7); GRPO (arXiv 2402.03300, eq. 3) is this with group advantages and k3; DAPO
    (arXiv 2503.14476, eq. 8) with high > low. With ``dual`` = c > 1 the loss of a negative advantage is at most
    ``-A c`` (dual clip, arXiv 1912.09729); for c >= 1 + high that is TRL's two-sided clip ``delta`` too.
    Decoupled PPO (AReaL, arXiv 2505.24298, eq. 5) is this with ``Importance()`` among the corrections.
    """

    low: float = 0.2
    high: float = 0.2
    dual: float | None = None

    def surrogate(self, current: Tensor, log_ratio: Tensor, mb: Microbatch) -> tuple[Tensor, Metrics]:
        ratio = ratio_of(log_ratio)
        plain = -mb.advantages * ratio
        clipped = -mb.advantages * ratio.clamp(1.0 - self.low, 1.0 + self.high)
        losses = torch.maximum(plain, clipped)
        if self.dual is not None:
            losses = torch.where(mb.advantages < 0, torch.minimum(losses, -mb.advantages * self.dual), losses)
        return losses, {"clip_fraction": (mb.weights * (clipped > plain)).sum().detach()}
