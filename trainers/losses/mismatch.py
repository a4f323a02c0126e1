"""How far the sampler is from the trainer: numbers to watch over a whole batch, in the names of verl."""

from __future__ import annotations

import torch
from torch import Tensor

from jurat.platform.types import Microbatch
from jurat.trainers.losses.correction import sampler_log_ratio
from jurat.trainers.losses.kl import k3
from jurat.trainers.losses.segments import segment_mean, segment_sum


def effective_samples(factors: Tensor, mb: Microbatch, eps: float = 1e-8) -> tuple[float, float]:
    """(mean, effective sample size as a share, ``1 / mean((w / mean w)^2)``) of factors [T] over the targets."""
    kept = factors[mb.loss_mask]
    count = len(kept) + eps
    mean = kept.sum() / count
    return float(mean), float(count / (kept / (mean + eps)).square().sum().clamp(min=eps))


def mismatch(proximal: Tensor, mb: Microbatch, eps: float = 0.0) -> dict[str, float]:
    """Log-probs [T] of the trainer -> KL(sampler || trainer) per token, perplexities per sequence, chi^2 of both.

    Means over sequences are over those that have a target; an empty batch gives {}. verl adds
    ``eps`` = 1e-8 to every number of tokens.
    """
    targets, counted = mb.loss_mask, segment_sum(torch.ones_like(proximal), mb) > 0
    if not bool(targets.any()):
        return {}
    log_ratio = sampler_log_ratio(proximal, mb)
    trainer = -segment_mean(proximal, mb, eps)[counted]
    sampler = -segment_mean(mb.sampler_logprobs, mb, eps)[counted]
    apart = trainer - sampler

    def per_token(values: Tensor) -> Tensor:
        return values[targets].sum() / (targets.sum() + eps)

    found = {
        "kl": per_token(-log_ratio),
        "k3_kl": per_token(k3(-log_ratio)),
        "training_ppl": trainer.exp().mean(),
        "training_log_ppl": trainer.mean(),
        "rollout_ppl": sampler.exp().mean(),
        "rollout_log_ppl": sampler.mean(),
        "log_ppl_diff": apart.mean(),
        "log_ppl_abs_diff": apart.abs().mean(),
        "log_ppl_diff_max": apart.max(),
        "log_ppl_diff_min": apart.min(),
        "ppl_ratio": apart.exp().mean(),
        "chi2_token": per_token((2 * log_ratio).exp()) - 1,
        "chi2_seq": (2 * segment_sum(log_ratio, mb)[counted]).clamp(-20.0, 20.0).exp().mean() - 1,
    }
    return {name: float(value) for name, value in found.items()}
