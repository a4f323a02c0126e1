"""Rotary positions (Su et al. 2021), halves as in transformers: x = [a, b] -> [a cos - b sin, b cos + a sin]."""

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
    """x [..., head_dim] turned by tables that broadcast to [..., head_dim / 2]; float32 inside, x's dtype out.

    The inverse, for gradients, is ``rotate(x, cos, -sin)``.
    """
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)
