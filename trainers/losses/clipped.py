"""The clipped surrogate of PPO, GRPO and DAPO: one loss, bounds as arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from jurat.platform.types import Microbatch
from jurat.trainers.losses.kl import KL_ESTIMATORS


@dataclass(frozen=True, slots=True)
class Clipped:
    """``L_t = max(-A rho, -A clip(rho, 1 - low, 1 + high)) + coef * KL_t`` with ``rho = exp(log pi - log pi_prox)``.

    PPO (arXiv 1707.06347, eq. 7); GRPO (arXiv 2402.03300, eq. 3) is this with group advantages and k3; DAPO
    (arXiv 2503.14476, eq. 8) with high > low. Without ``mb.proximal_logprobs`` the proximal policy is the current one
    (first and only update of a batch): rho = 1 and its gradient is that of ``A log pi``. With ``dual`` = c > 1 the loss
    of a negative advantage is at most ``-A c`` (dual clip, arXiv 1912.09729).
    """

    low: float = 0.2
    high: float = 0.2
    dual: float | None = None
    kl_coef: float = 0.0
    kl_estimator: str = "k3"
    token_local: bool = True

    @property
    def skips_zero_advantage(self) -> bool:
        """True without a KL term: then a sample of zero advantage has no gradient."""
        return self.kl_coef == 0.0

    def __call__(self, current: Tensor, mb: Microbatch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """current [T] -> scalar ``sum_t weights_t L_t``; metrics are weighted sums in the same way."""
        proximal = current.detach() if mb.proximal_logprobs is None else mb.proximal_logprobs
        ratio = torch.exp((current - proximal).clamp(-20.0, 20.0))
        plain = -mb.advantages * ratio
        clipped = -mb.advantages * ratio.clamp(1.0 - self.low, 1.0 + self.high)
        losses = torch.maximum(plain, clipped)
        if self.dual is not None:
            losses = torch.where(mb.advantages < 0, torch.minimum(losses, -mb.advantages * self.dual), losses)
        metrics = {"clip_fraction": (mb.weights * (clipped > plain)).sum().detach()}
        if self.kl_coef:
            assert mb.ref_logprobs is not None
            kl = KL_ESTIMATORS[self.kl_estimator](current - mb.ref_logprobs)
            losses = losses + self.kl_coef * kl
            metrics["kl_ref"] = (mb.weights * kl).sum().detach()
        loss = (mb.weights * losses).sum()
        return loss, {"loss": loss.detach(), **metrics}
