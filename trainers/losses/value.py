"""The clipped value loss of PPO's critic."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from jurat.platform.types import Microbatch
from jurat.trainers.losses.policy import Metrics


@dataclass(frozen=True, slots=True)
class ValueLoss:
    """``L_t = max((v - R)^2, (clip(v, v_old - clip, v_old + clip) - R)^2) / 2`` with R ``mb.returns``, v_old ``mb.values``.

    As in OpenAI's baselines and verl (the 1/2 and the max); ``clip`` infinite is half the squared error.
    """

    clip: float = math.inf

    @property
    def token_local(self) -> bool:
        return True

    @property
    def sampled(self) -> bool:
        """Values are no log-probs."""
        return False

    @property
    def skips_zero_advantage(self) -> bool:
        """A critic learns from every sample."""
        return False

    def __call__(self, current: Tensor, mb: Microbatch) -> tuple[Tensor, Metrics]:
        """Predicted values [T] -> scalar ``sum_t weights_t L_t``."""
        assert mb.values is not None and mb.returns is not None
        near = torch.clamp(current, mb.values - self.clip, mb.values + self.clip)
        plain, clipped = (current - mb.returns).square(), (near - mb.returns).square()
        loss = (mb.weights * torch.maximum(plain, clipped)).sum() / 2
        metrics = {"value_clip_fraction": (mb.weights * (clipped > plain)).sum()}
        return loss, {"loss": loss.detach(), **{name: value.detach() for name, value in metrics.items()}}
