"""Which rows a Llama-like model has to run over for a microbatch, and how its attention is laid out.

Samples of one prompt lie side by side in a microbatch. A causal state does not depend on what follows, so what samples
of a group have in common at their beginning is run once: the prompt, and any further tokens that happen to be equal. A
row is a token that is run; the last target of a sample is only predicted, so it has none::

    segments   [a b | c d e]  [a b | c f]         prompt a b, completions c d e and c f
    rows        a b   c d                         targets c (from b, twice), d (c), e (d), f (c)

Axes: R rows, K targets, U rows that predict a target, G groups, n samples of a group, p prompt rows, t completion rows,
J heads (query, key, value).
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
    """[U] the rows that predict a target, ascending."""
    targets: Tensor
    """[K] where in the microbatch each target is, ordered by the row that predicts it."""
    source_of: Tensor
    """[K] the place in ``sources`` of the row that predicts each of ``targets``."""
    starts: tuple[int, ...]
    """[U + 1] the targets of source u are [starts[u], starts[u + 1])."""
    order: Tensor
    """[Q + 2 N] head rows (row * J + head; R * J for padding) in the order of attention: all queries, keys, values.
    A row that several samples have in common is there for each of them."""
    inverse: Tensor
    """[R * query heads] one place in the queries of ``order`` for each row and query head."""
    num_queries: int
    num_keys: int
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class _Group:
    prompt: IntArray
    """[p] rows"""
    samples: list[IntArray]
    """n times [t_i] rows"""

    @property
    def size(self) -> tuple[int, int, int]:
        return len(self.prompt), len(self.samples), max(len(sample) for sample in self.samples)


def make_plan(mb: Microbatch, shape: Shape) -> Plan:
    """The plan of a microbatch whose segments each have a target; tensors on the device of ``mb``."""
    tokens, mask = mb.tokens.cpu().numpy(), mb.loss_mask.cpu().numpy()
    texts = tokens.tolist()
    rows: list[int] = []  # where in the microbatch each row is
    places: list[int] = []  # where in its sequence
    sources: list[IntArray] = []
    groups: list[_Group] = []
    previous, after = b"", {}  # type: bytes, dict[tuple[int, int], int]
    for start, end in pairwise(mb.offsets.tolist()):
        wanted = mask[start:end].nonzero()[0]
        first, last = int(wanted[0]), int(wanted[-1])
        prompt = tokens[start : start + first].tobytes()
        if prompt != previous or not groups:
            previous, after = prompt, {}  # (row before, token) -> row
            groups.append(_Group(np.arange(len(rows), len(rows) + first), []))
            rows.extend(range(start, start + first))
            places.extend(range(first))
        at = int(groups[-1].prompt[-1])
        path = [at]
        for place in range(first, last):
            step = (at, texts[start + place])
            at = after.setdefault(step, len(rows))
            if at == len(rows):
                rows.append(start + place)
                places.append(place)
            path.append(at)
        groups[-1].samples.append(np.array(path[1:], np.int64))
        sources.append(np.array(path)[wanted - first])
    order, queries, blocks, num_keys = _layout(groups, shape, len(rows))
    inverse = np.zeros((len(rows) + 1) * shape.heads, np.int64)
    inverse[queries] = np.arange(len(queries))
    unique, source_of = np.unique(np.concatenate(sources), return_inverse=True)
    by_source = np.argsort(source_of, kind="stable")
    starts = np.searchsorted(source_of[by_source], np.arange(len(unique) + 1))
    device = mb.tokens.device

    def put(array: IntArray) -> Tensor:
        return torch.from_numpy(array).to(device)

    return Plan(
        tokens=mb.tokens[put(np.array(rows))], positions=put(np.array(places)), sources=put(unique),
        targets=put(mask.nonzero()[0][by_source]), source_of=put(source_of[by_source]), starts=tuple(starts.tolist()),
        order=put(order), inverse=put(inverse[: -shape.heads]), num_queries=len(queries), num_keys=num_keys,
        blocks=_on(blocks, device),
    )  # fmt: skip


def _layout(groups: Sequence[_Group], shape: Shape, count: int) -> tuple[IntArray, IntArray, list[Block], int]:
    """(order, [Q] row * query heads + head of its queries, blocks, number of keys) for ``count`` rows."""
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
        block = Block(*rows.shape, query=num_queries, key=num_keys, prefix=prefix, bias=bias)  # type: ignore[misc]
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
    order = np.concatenate(queries + keys + values)
    row, head = np.divmod(order[:num_queries], heads)
    return order, row * shape.heads + head, blocks, num_keys


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
