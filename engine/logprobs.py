"""Log-probabilities of chosen tokens from hidden states, a few rows of logits at a time.

The whole [T, vocab] float32 block is never made: a chunk of rows is projected, reduced and thrown away, and projected
again in the backward pass. Axes: K target rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def source_index(loss_mask: Tensor) -> Tensor:
    """[K] positions whose hidden state predicts a target: one before each target of a flat [T] mask."""
    return loss_mask.nonzero().squeeze(1) - 1


def reduce_logits(logits: Tensor, targets: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """(log p(target) [K], entropy [K], no gradient), float32, of the softmax of ``logits / temperature`` [K, V]."""
    logits = logits.float() if temperature == 1.0 else logits.float() / temperature
    logz = logits.logsumexp(-1)
    chosen = logits.gather(-1, targets[:, None]).squeeze(-1) - logz
    with torch.no_grad():  # H = log Z - sum_v p_v z_v
        entropy = logz - (logits - logz[:, None]).exp_().mul_(logits).sum(-1)
    return chosen, entropy


Reduce = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]


def chunked_logprobs(
    head: Callable[[Tensor], Tensor],
    hidden: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    chunk: int = 512,
    reduce: Reduce = reduce_logits,
) -> tuple[Tensor, Tensor]:
    """(log p(target) [K] with gradient, entropy [K] without) for ``head(hidden)`` [K, V] of ``hidden`` [K, d].

    Memory: one chunk of logits; with more than one chunk the logits are made again in the backward pass.
    """

    def piece(rows: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        return reduce(head(rows), wanted, temperature)

    if len(targets) <= chunk:
        return piece(hidden, targets)
    parts = [
        checkpoint(piece, rows, wanted, use_reentrant=False)
        for rows, wanted in zip(hidden.split(chunk), targets.split(chunk), strict=True)
    ]
    return torch.cat([logp for logp, _ in parts]), torch.cat([entropy for _, entropy in parts])
