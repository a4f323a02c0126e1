"""Rotary positions (Su et al. 2021), in the half-split convention of transformers: x = [a, b] -> [a c - b s, b c + a s]."""

from __future__ import annotations

import torch
from torch import Tensor

from jurat.engine.llama.weights import Shape


def tables(shape: Shape, length: int, *, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """cos and sin, each [length, head_dim / 2] float32."""
    inv_freq = torch.tensor(shape.inv_freq, dtype=torch.float32, device=device)
    angles = torch.arange(length, dtype=torch.float32, device=device)[:, None] * inv_freq
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [..., head_dim] turned by the tables (broadcast to [..., head_dim / 2]); computed in float32, returned as x's dtype.

    The inverse, for gradients, is ``rotate(x, cos, -sin)``.
    """
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)
