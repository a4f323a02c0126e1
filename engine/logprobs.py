"""Log-probabilities of chosen tokens from hidden states, a few rows of logits at a time.

The whole [T, vocab] float32 block is never made: a chunk of rows is projected, reduced and thrown away, and projected
again in the backward pass. On a GPU liger-kernel does that in fused kernels, where it can (``why_chunked``).
Axes: K target rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

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


# ---- fused -------------------------------------------------------------------------------------------------------


LIGER = (0, 8, 5)
"""The first version whose head takes a slope for each token (``reduction="none"``); before, it took one for all."""


def liger_version() -> str:
    """Of liger-kernel, '' where it is not installed."""
    try:
        return version("liger-kernel")
    except PackageNotFoundError:
        return ""


def why_chunked(device: str, liger: str, *, wanted: bool = True, plain: bool = True, whole: bool = True) -> str:
    """'' where ``fused_logprobs`` takes the place of ``chunked_logprobs``, else why not.

    ``device``: its type; ``wanted``: ``engine.kernels`` is auto; ``plain``: logits are ``hidden @ weight.T`` and nothing more;
    ``whole``: the vocabulary is not cut over ranks.
    """
    numbers = tuple(int(part) for part in liger.split(".")[:3] if part.isdecimal())
    reasons = (
        (device != "cuda", f"liger's kernels are for GPUs, this is {device}"),
        (not wanted, "engine.kernels is torch"),
        (not liger, "liger-kernel is not installed (the extra liger)"),
        (numbers < LIGER, f"liger-kernel {liger} takes one slope for all tokens, {'.'.join(map(str, LIGER))} one for each"),
        (not whole, "the vocabulary is cut over ranks (engine.tp)"),
        (not plain, "the head of this model is more than a matrix"),
    )
    return next((why for found, why in reasons if found), "")


def fused_logprobs(
    weight: Tensor, hidden: Tensor, targets: Tensor, *, temperature: float = 1.0, chunk: int = 512
) -> tuple[Tensor, Tensor]:
    """As ``chunked_logprobs`` with the head ``weight`` [V, d], by liger-kernel's fused linear cross-entropy.

    Logits are made in chunks, reduced and turned into their own gradient by one kernel; gradients of ``weight`` are added
    up in float32. The kernel gives no entropy, which takes a product more.
    """
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    rows = hidden if temperature == 1.0 else hidden / temperature
    # (input, weight, target, bias, ce_weight, ignore_index, lse_square_scale, label_smoothing, reduction, softcap,
    #  return_z_loss, accum_dtype)
    given = (rows, weight, targets, None, None, -100, 0.0, 0.0, "none", None, False, torch.float32)
    losses: Tensor = LigerFusedLinearCrossEntropyFunction.apply(*given)[0]
    with torch.no_grad():
        parts = zip(rows.split(chunk), targets.split(chunk), strict=True)
        entropy = [reduce_logits(torch.nn.functional.linear(some, weight), wanted)[1] for some, wanted in parts]
    return -losses, torch.cat(entropy)
