"""Losses on given completions that people or verifiers preferred or labelled: DPO, IPO, KTO.

Of a sequence y: ``h(y) = sum_t (log pi_t - log pi_ref,t)``; ``mb.labels`` is 1 at the targets of a good completion, 0 at
those of a bad one. Aggregation: ``seq-mean-token-mean``, under which a sequence's weights sum to 1 / sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from jurat.platform.types import Microbatch
from jurat.trainers.losses.policy import Metrics
from jurat.trainers.losses.segments import segment_mean, segment_sum


@dataclass(frozen=True, slots=True)
class _Preference:
    @property
    def token_local(self) -> bool:
        return False

    @property
    def sampled(self) -> bool:
        return False

    @property
    def skips_zero_advantage(self) -> bool:
        """Advantages are not read."""
        return False


@dataclass(frozen=True, slots=True)
class DPO(_Preference):
    """With ``m = h(chosen) - h(rejected)``: sigmoid ``L = -log sigmoid(beta m)`` (arXiv 2305.18290, eq. 7), or
    ipo ``L = (m - 1 / (2 beta))^2`` (arXiv 2310.12036, eq. 17).

    Segments 2k and 2k + 1 are a pair, in either order: a microbatch holds whole pairs. A pair weighs what the targets of
    both weigh: 1 / pairs. ``per_token`` takes h as a mean over tokens, as TRL does for ipo.
    """

    beta: float = 0.1
    kind: Literal["sigmoid", "ipo"] = "sigmoid"
    per_token: bool = False

    def __call__(self, current: Tensor, mb: Microbatch) -> tuple[Tensor, Metrics]:
        """current [T] -> scalar to be summed over microbatches; metrics are weighted sums over pairs."""
        assert mb.ref_logprobs is not None and mb.labels is not None
        assert len(mb.offsets) % 2 == 1, "a pair was split over microbatches"
        h = (segment_mean if self.per_token else segment_sum)(current - mb.ref_logprobs, mb)
        good = 2 * segment_mean(mb.labels, mb) - 1
        margin = (good * h).view(-1, 2).sum(1)
        weights = segment_sum(mb.weights, mb).view(-1, 2).sum(1)
        losses = -logsigmoid(self.beta * margin) if self.kind == "sigmoid" else (margin - 0.5 / self.beta).square()
        loss = (weights * losses).sum()
        return loss, {
            "loss": loss.detach(),
            "margin": (weights * self.beta * margin).sum().detach(),
            "preferred": (weights * (margin > 0)).sum(),
        }


@dataclass(frozen=True, slots=True)
class KTO(_Preference):
    """``L = desirable (1 - sigmoid(beta (h - z0)))`` for a good completion, ``undesirable (1 - sigmoid(beta (z0 - h)))``
    for a bad one (arXiv 2402.01306, eq. 8, with lambda_y taken out of the constant).

    z0, the reference point, is one number of the whole batch, without gradient: ``mb.values`` at every target, made by
    ``reference_point``; 0 without that column. The paper keeps ``desirable * good / (undesirable * bad)`` in [1, 4/3].
    """

    beta: float = 0.1
    desirable: float = 1.0
    undesirable: float = 1.0

    def __call__(self, current: Tensor, mb: Microbatch) -> tuple[Tensor, Metrics]:
        """current [T] -> scalar to be summed over microbatches; metrics are weighted sums over sequences."""
        assert mb.ref_logprobs is not None and mb.labels is not None
        h = segment_sum(current - mb.ref_logprobs, mb)
        z0 = torch.zeros_like(h) if mb.values is None else segment_mean(mb.values, mb)
        good = segment_mean(mb.labels, mb) > 0.5
        gain = torch.sigmoid(self.beta * torch.where(good, h - z0, z0 - h))
        weights = segment_sum(mb.weights, mb)
        value = torch.full_like(h, self.undesirable).masked_fill(good, self.desirable)
        loss = (weights * value * (1 - gain)).sum()
        return loss, {
            "loss": loss.detach(),
            "desirable": (weights * good).sum(),
            "gain": (weights * gain).sum().detach(),
            "reference_point": (weights * z0).sum(),
        }


def reference_point(policy: Tensor, reference: Tensor) -> float:
    """KTO's z0 = ``max(0, mean_i (log pi - log pi_ref)(y_j | x_i))``, j != i (arXiv 2402.01306, section 4.2).

    Log-probs [m] of mismatched pairs: the completion of another prompt of the batch after each prompt.
    """
    return max(0.0, float((policy - reference).mean())) if len(policy) else 0.0
