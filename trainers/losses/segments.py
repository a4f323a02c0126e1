"""Sums over the targets of each segment of a microbatch, and back to its tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from jurat.platform.types import Microbatch


def segment_of(mb: Microbatch) -> Tensor:
    """[T] number of the segment that each token belongs to."""
    lengths = mb.offsets.diff()
    return torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)


def segment_sum(values: Tensor, mb: Microbatch) -> Tensor:
    """[T] -> [S], tokens off the mask left out."""
    targets = mb.loss_mask.nonzero().squeeze(1)
    return values.new_zeros(len(mb.offsets) - 1).index_add(0, segment_of(mb)[targets], values[targets])


def segment_mean(values: Tensor, mb: Microbatch, eps: float = 0.0) -> Tensor:
    """[T] -> [S]; 0 for a segment without a target. ``eps`` is added to the number of targets."""
    return segment_sum(values, mb) / (segment_sum(torch.ones_like(values), mb).clamp(min=1) + eps)


def segment_max(values: Tensor, mb: Microbatch) -> Tensor:
    """[T] -> [S] of values that are never negative; 0 for a segment without a target."""
    targets = mb.loss_mask.nonzero().squeeze(1)
    largest = values.new_zeros(len(mb.offsets) - 1)
    return largest.scatter_reduce(0, segment_of(mb)[targets], values[targets], "amax")


def spread(values: Tensor, mb: Microbatch) -> Tensor:
    """[S] -> [T]: every token of a segment gets the segment's value."""
    return values[segment_of(mb)]
