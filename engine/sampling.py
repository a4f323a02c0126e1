"""Exact sampling from logits: inverse CDF with a counter-based uniform, so a draw depends on (seed, position) alone.

``torch.multinomial`` needs one exponential random number per vocabulary entry; this needs one uniform per row. Axes: B
rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jurat.platform.types import IntArray

BLOCK = 128
"""Vocabulary entries summed together: one search over V / BLOCK sums, one inside the block found."""

_GOLDEN, _MIX1, _MIX2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def uniforms(seeds: Sequence[int] | IntArray, positions: Sequence[int] | IntArray) -> NDArray[np.float64]:
    """[B] numbers in (0, 1), 53 bits, from (seed, token position): SplitMix64 (Steele et al. 2014), applied twice."""
    seed = np.asarray([s & 0xFFFFFFFFFFFFFFFF for s in map(int, seeds)], dtype=np.uint64)
    position = np.asarray(positions, dtype=np.uint64)
    with np.errstate(over="ignore"):
        mixed = _mix(_mix(seed + _GOLDEN) + _GOLDEN * (position + np.uint64(1)))
    return ((mixed >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * _MIX1
    z = (z ^ (z >> np.uint64(27))) * _MIX2
    return z ^ (z >> np.uint64(31))


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """How the next token of each row is chosen."""

    uniforms: Tensor
    """[B] float64 in (0, 1)."""
    temperatures: Tensor
    """[B] float32; 0 means argmax, with log-probs at temperature 1."""
    plain: bool
    """True if every temperature is 1."""

    @classmethod
    def of(cls, uniforms: NDArray[np.float64], temperatures: Sequence[float], device: torch.device) -> Draws:
        plain = all(temperature == 1.0 for temperature in temperatures)
        heat = torch.tensor(temperatures, dtype=torch.float32, device=device)
        return cls(torch.from_numpy(uniforms).to(device), heat, plain)


def draw(logits: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
    """(tokens [B] int64, log-probs [B] float32 of the distribution drawn from) for logits [B, V].

    Token t is taken where the cumulative probability first exceeds the uniform. Probabilities are float32, their sums
    over blocks float64. A token of probability 0 is never drawn.
    """
    rows, vocab = logits.shape
    if not draws.plain:
        heat = torch.where(draws.temperatures > 0, draws.temperatures, 1.0)
        logits = logits.float() / heat[:, None]
    weights = logits.softmax(-1, dtype=torch.float32)
    if vocab % BLOCK:
        weights = torch.nn.functional.pad(weights, (0, BLOCK - vocab % BLOCK))
    blocks = weights.view(rows, -1, BLOCK)
    edges = blocks.sum(-1).double().cumsum(-1)
    total = edges[:, -1:]
    block, share = _search(edges, draws.uniforms[:, None] * total)
    inside = blocks[torch.arange(rows, device=logits.device), block].double().cumsum(-1)
    place, _ = _search(inside, share[:, None] * inside[:, -1:])
    tokens = block * BLOCK + place
    if not draws.plain:
        greedy = (draws.temperatures == 0).nonzero().squeeze(1)
        tokens[greedy] = logits[greedy].argmax(-1)
    chosen = weights.gather(1, tokens[:, None]).double()
    return tokens, (chosen.log() - total.log()).squeeze(1).float()


def _search(edges: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """([B] first index whose edge exceeds the target, [B] how far into it the target lies, in [0, 1])."""
    last = edges[:, -1:]
    targets = torch.minimum(targets, torch.nextafter(last, torch.zeros_like(last)))  # rounding must not pass the end
    index = torch.searchsorted(edges, targets, right=True)
    above = edges.gather(1, index)
    below = torch.where(index > 0, edges.gather(1, (index - 1).clamp_(min=0)), 0.0)
    share = (targets - below) / (above - below)
    return index.squeeze(1), share.squeeze(1)
