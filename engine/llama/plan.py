"""Which rows a Llama-like model has to run over for a microbatch, and how its attention is laid out.

Samples of one prompt lie side by side in a microbatch. Causal states of the prompt do not depend on what follows, so it
is run once per group, and every sample's completion attends to it and to itself: a tree of depth one. A row is a token
that is run; the last target of a sample is only predicted, so it has none::

    segments   [a b | c d e]  [a b | f g]         prompt a b, completions c d e and f g
    rows        a b   c d            f            targets c (from b), d (c), e (d), f (b), g (f)

Axes: R rows, K targets, G groups, n samples of a group, p prompt rows, t completion rows, J heads (query, key, value).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from jurat.engine.llama.weights import Shape
from jurat.platform.types import IntArray, Microbatch

PADDING = 2.0
"""Groups share a padded attention block while their work there is at most this many times their own."""


@dataclass(frozen=True, slots=True)
class Block:
    """Attention of G x n sequences of up to t rows over themselves and over their group's prompt, if it has one."""

    groups: int
    samples: int
    length: int
    query: int
    """Where its queries [G, kv heads, n, t, queries per kv head] begin in ``Plan.order``."""
    key: int
    """Where its keys [G, kv heads, n, t] begin among all keys (and its values among all values)."""
    prefix: Block | None = None
    bias: Tensor | None = None
    """[G x kv heads, 1, p] 0 at prompt rows and -inf at padding; None where no prompt is padded."""


@dataclass(frozen=True, slots=True)
class Plan:
    tokens: Tensor
    """[R] what each row is."""
    positions: Tensor
    """[R] its place in its sequence."""
    sources: Tensor
    """[K] the row that predicts each target, targets in the order of the microbatch."""
    order: Tensor
    """[Q + 2 N] head rows (row * J + head; R * J for padding) in the order of attention: all queries, keys, values."""
    inverse: Tensor
    """[R, J] where each head row is in ``order``."""
    num_queries: int
    num_keys: int
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class _Group:
    prompt: IntArray
    """[p] rows"""
    samples: tuple[IntArray, ...]
    """n times [t_i] rows"""

    @property
    def size(self) -> tuple[int, int, int]:
        return len(self.prompt), len(self.samples), max(len(sample) for sample in self.samples)


def make_plan(mb: Microbatch, shape: Shape) -> Plan:
    """The plan of a microbatch whose segments each have a target; tensors on the device of ``mb``."""
    tokens, mask = mb.tokens.cpu().numpy(), mb.loss_mask.cpu().numpy()
    rows: list[IntArray] = []  # positions in mb.tokens of each row
    places: list[IntArray] = []
    sources = []
    groups: list[_Group] = []
    prompt_rows, samples, previous, count = np.zeros(0, np.int64), [], b"", 0  # type: ignore[var-annotated]
    for start, end in pairwise(mb.offsets.tolist()):
        targets = mask[start:end].nonzero()[0]
        first, last = int(targets[0]), int(targets[-1])
        prompt = tokens[start : start + first].tobytes()
        if not samples or prompt != previous:
            if samples:
                groups.append(_Group(prompt_rows, tuple(samples)))
            samples, previous = [], prompt
            prompt_rows = np.arange(count, count + first)
            rows.append(np.arange(start, start + first))
            places.append(np.arange(first))
            count += first
        own = np.arange(count, count + last - first)
        samples.append(own)
        rows.append(np.arange(start + first, start + last))
        places.append(np.arange(first, last))
        count += len(own)
        sources.append(np.concatenate([prompt_rows[-1:], own])[targets - first])
    groups.append(_Group(prompt_rows, tuple(samples)))
    order, blocks, num_queries, num_keys = _layout(groups, shape, count)
    heads = shape.heads + 2 * shape.kv_heads
    inverse = np.zeros(count * heads + 1, np.int64)
    inverse[order] = np.arange(len(order))
    device = mb.tokens.device

    def put(array: IntArray) -> Tensor:
        return torch.from_numpy(array).to(device)

    return Plan(
        tokens=mb.tokens[put(np.concatenate(rows))], positions=put(np.concatenate(places)),
        sources=put(np.concatenate(sources)), order=put(order), inverse=put(inverse[:-1]).view(count, heads),
        num_queries=num_queries, num_keys=num_keys, blocks=_on(blocks, device),
    )  # fmt: skip


def _layout(groups: Sequence[_Group], shape: Shape, count: int) -> tuple[IntArray, tuple[Block, ...], int, int]:
    """(order, blocks, queries, keys) for ``count`` rows."""
    kv, each, heads = shape.kv_heads, shape.heads // shape.kv_heads, shape.heads + 2 * shape.kv_heads
    query_heads = np.arange(shape.heads).reshape(kv, 1, 1, each)
    kv_heads = np.arange(kv).reshape(kv, 1, 1)
    queries: list[IntArray] = []
    keys: list[IntArray] = []
    values: list[IntArray] = []
    blocks: list[Block] = []
    num_queries = num_keys = 0

    def add(rows: IntArray, prefix: Block | None, bias: Tensor | None) -> Block:  # rows [G, n, t]
        nonlocal num_queries, num_keys
        at = np.where(rows < 0, count, rows)[:, None]  # [G, 1, n, t]
        padding = count * heads
        queries.append(np.minimum(at[..., None] * heads + query_heads, padding).ravel())
        keys.append(np.minimum(at * heads + shape.heads + kv_heads, padding).ravel())
        values.append(np.minimum(at * heads + shape.heads + kv + kv_heads, padding).ravel())
        block = Block(*rows.shape, query=num_queries, key=num_keys, prefix=prefix, bias=bias)
        num_queries, num_keys = num_queries + len(queries[-1]), num_keys + len(keys[-1])
        blocks.append(block)
        return block

    for tile in _tiles(groups):
        p, n, t = (max(group.size[axis] for group in tile) for axis in range(3))
        prompts = np.full((len(tile), 1, p), -1)
        completions = np.full((len(tile), n, t), -1)
        for g, group in enumerate(tile):
            prompts[g, 0, : len(group.prompt)] = group.prompt
            for s, sample in enumerate(group.samples):
                completions[g, s, : len(sample)] = sample
        prefix = add(prompts, None, None)
        if t:
            gone = torch.from_numpy(prompts[:, 0] < 0)
            bias = torch.zeros(gone.shape).masked_fill_(gone, -torch.inf).repeat_interleave(kv, 0)[:, None]
            add(completions, prefix, bias if bool(gone.any()) else None)
    return np.concatenate(queries + keys + values), tuple(blocks), num_queries, num_keys


def _tiles(groups: Sequence[_Group]) -> list[list[_Group]]:
    """Groups of similar size together, so that padding them to one shape costs little."""

    def work(p: int, n: int, t: int) -> int:
        return p * p + n * t * (p + t)

    tiles: list[list[_Group]] = []
    for group in sorted(groups, key=lambda group: work(*group.size), reverse=True):
        if tiles:
            joined = [*tiles[-1], group]
            p, n, t = (max(each.size[axis] for each in joined) for axis in range(3))
            if work(p, n, t) <= PADDING * work(*group.size):
                tiles[-1] = joined
                continue
        tiles.append([group])
    return tiles


def _on(blocks: Sequence[Block], device: torch.device) -> tuple[Block, ...]:
    if device.type == "cpu":
        return tuple(blocks)
    moved: dict[int, Block] = {}
    for b in blocks:
        prefix = None if b.prefix is None else moved[id(b.prefix)]
        bias = None if b.bias is None else b.bias.to(device)
        moved[id(b)] = Block(b.groups, b.samples, b.length, b.query, b.key, prefix, bias)
    return tuple(moved.values())
