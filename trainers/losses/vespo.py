"""VESPO: a smooth function of the whole sequence's importance weight in the place of a clip."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from jurat.platform.types import Microbatch
from jurat.trainers.losses.policy import Metrics, PolicyLoss
from jurat.trainers.losses.segments import segment_sum, spread


@dataclass(frozen=True, slots=True)
class VESPO(PolicyLoss):
    """``L_t = -sg[w^k exp(lambda (1 - w))] A log pi_t``, ``w = prod_t pi / pi_sampler`` over the sequence.

    Variational sEquence-level Soft Policy Optimization (arXiv 2602.10693); (k, lambda) are ``positive`` where A >= 0,
    else ``negative``. The weight is against the policy that drew the tokens, so no other correction belongs here. log w
    is clamped to [log 1e-8, 20].
    """

    positive: tuple[float, float] = (2.0, 3.0)
    negative: tuple[float, float] = (3.0, 2.0)

    @property
    def token_local(self) -> bool:
        return False

    def surrogate(self, current: Tensor, log_ratio: Tensor, mb: Microbatch) -> tuple[Tensor, Metrics]:
        log_w = segment_sum((current.detach() - mb.sampler_logprobs).clamp(-20.0, 20.0), mb)
        log_w = spread(log_w.clamp(math.log(1e-8), 20.0), mb)
        power, decay = (
            torch.full_like(log_w, low).masked_fill(mb.advantages >= 0, high)
            for high, low in zip(self.positive, self.negative, strict=True)
        )
        phi = torch.exp(power * log_w + decay * (1 - torch.exp(log_w)))
        return -phi * mb.advantages * current, {"phi": (mb.weights * phi).sum()}
