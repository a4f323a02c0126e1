"""What all policy losses share: the ratio to the proximal policy, corrections for the sampler, KL and entropy terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from jurat.platform.types import Microbatch
from jurat.trainers.losses.kl import KL_ESTIMATORS

Metrics = Mapping[str, Tensor]
"""Sums weighted as the loss is."""


def ratio_of(log_ratio: Tensor) -> Tensor:
    """``exp``, clamped so that it neither overflows nor is 0."""
    return torch.exp(log_ratio.clamp(-20.0, 20.0))


class Correction(Protocol):
    """A factor per token on the surrogate (not on KL and entropy), never with a gradient."""

    @property
    def token_local(self) -> bool: ...

    def __call__(self, current: Tensor, proximal: Tensor, mb: Microbatch) -> Tensor:
        """Log-probs [T] of the policy (detached) and of the proximal one -> [T]."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """``sum_t weights_t (prod_c c_t L_t + kl_coef KL_t + entropy_coef rho_t sg[log pi_t])``; a subclass gives ``L_t``.

    Without ``mb.proximal_logprobs`` the proximal policy is the current one (first and only update of a batch): rho = 1,
    and the gradient of rho is that of log pi. Log-ratios are clamped to +-20.

    KL: see ``losses/kl.py``. ``kl_off_policy`` multiplies it by rho: on tokens of the proximal policy, rho k3 has the
    gradient of the reverse KL, exactly (DeepSeek-V3.2, arXiv 2512.02556, section 3.1; TRL's ``use_bias_correction_kl``).

    Entropy: ``E_prox[rho log pi] = -H(pi)`` token by token, so the term is a bonus of ``entropy_coef * H`` whose gradient
    ``rho log pi grad log pi`` is unbiased if the proximal policy drew the tokens (``-log pi`` as a loss has none at all).
    It needs no logits but is noisier than the sum over the vocabulary, which ``losses/entropy.py`` would differentiate
    if a learner kept logits. Like PPO's it holds the distribution of prefixes fixed.
    """

    kl_coef: float = 0.0
    kl_estimator: str = "k3"
    kl_off_policy: bool = False
    entropy_coef: float = 0.0
    corrections: tuple[Correction, ...] = ()

    @property
    def token_local(self) -> bool:
        """Whether each token's loss depends on that token alone."""
        return all(correction.token_local for correction in self.corrections)

    @property
    def sampled(self) -> bool:
        return True

    @property
    def skips_zero_advantage(self) -> bool:
        """True without KL and entropy: then a sample of zero advantage has no gradient."""
        return self.kl_coef == 0.0 and self.entropy_coef == 0.0

    def surrogate(self, current: Tensor, log_ratio: Tensor, mb: Microbatch) -> tuple[Tensor, Metrics]:
        """Log-probs [T] and log rho [T] -> (``L_t`` [T], metrics)."""
        raise NotImplementedError

    def __call__(self, current: Tensor, mb: Microbatch) -> tuple[Tensor, Metrics]:
        """current [T] -> scalar to be summed over microbatches; metrics are weighted sums in the same way."""
        proximal = current.detach() if mb.proximal_logprobs is None else mb.proximal_logprobs
        log_ratio = current - proximal
        losses, found = self.surrogate(current, log_ratio, mb)
        metrics = dict(found)
        if self.corrections:
            factor = torch.stack([correction(current.detach(), proximal, mb) for correction in self.corrections]).prod(
                0
            )
            losses = losses * factor
            metrics["correction_mean"] = (mb.weights * factor).sum()
            metrics["correction_zeroed"] = (mb.weights * (factor == 0)).sum()
        if self.kl_coef:
            assert mb.ref_logprobs is not None
            kl = KL_ESTIMATORS[self.kl_estimator](current - mb.ref_logprobs)
            if self.kl_off_policy:
                kl = kl * ratio_of(log_ratio)
            losses = losses + self.kl_coef * kl
            metrics["kl_ref"] = (mb.weights * kl).sum().detach()
        if self.entropy_coef:
            losses = losses + self.entropy_coef * ratio_of(log_ratio) * current.detach()
        loss = (mb.weights * losses).sum()
        return loss, {"loss": loss.detach(), **metrics}
