"""Decoding for Llama-like models, by hand: little else than matrix products, attention and the draw.

Rows admitted together form a *bundle*: G prompts with n rows each, all at the same position t of their completions.
The prompt's keys and values are computed and stored once per group; each row appends its own. Attention reads both and
joins them under one softmax. Rows that have ended leave the matrix products at once; their places in the bundle stay
until at least half are free, then the bundle is packed.

Axes: B rows in flight, G groups, n places per group, S = G n, K key-value heads, r query heads per key-value head, d head
dimension, P prompt width, t own tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from jurat.engine.llama.kernels import NativeKernels, TorchKernels, choose
from jurat.engine.llama.linear import Matrix, can_pack
from jurat.engine.llama.weights import FlatWeights, Shape
from jurat.engine.sampling import Draws, draw
from jurat.platform.types import IntArray

OWN_STEP = 16
"""Own caches are read in multiples of this many tokens: each new size makes oneDNN build new kernels."""
ROWS_PER_DRAW = 16
"""Rows of float32 probabilities made at once."""


@dataclass(slots=True)
class _Layer:
    norm1: Tensor
    qkv: Matrix
    o: Matrix
    norm2: Tensor
    gate_up: Matrix
    down: Matrix


class LlamaDecoder:
    """A ``Decoder`` on the working copy of ``weights``; ``refresh`` after they change."""

    refills = True

    def __init__(self, weights: FlatWeights, *, pack: bool | None = None, native: bool = True) -> None:
        shape = self.shape = weights.shape
        self._weights, self.dtype = weights, weights.dtype
        self.device = weights.master.device
        self._kernels = (
            choose(self.dtype, self.device, shape.rms_eps) if native else TorchKernels(self.dtype, shape.rms_eps)
        )
        self.kernels = self._kernels.name
        self.max_length = shape.max_length
        self.packs = can_pack(self.dtype, self.device) if pack is None else pack
        views, norms = weights.model(weights.working), weights.norms()
        self._embed, self._norm = views.embed, norms["model.norm.weight"]
        self._head = Matrix(views.head, pack=self.packs)
        self._layers = [
            _Layer(
                norm1=norms[f"model.layers.{index}.input_layernorm.weight"],
                qkv=Matrix(_paired(layer.qkv, shape), pack=self.packs),
                o=Matrix(layer.o, pack=self.packs),
                norm2=norms[f"model.layers.{index}.post_attention_layernorm.weight"],
                gate_up=Matrix(layer.gate_up, pack=self.packs),
                down=Matrix(layer.down, pack=self.packs),
            )
            for index, layer in enumerate(views.layers)
        ]
        self._turns = _turns(shape, min(shape.max_length, 1024), self.device)
        self._bundles: list[_Bundle] = []

    # ---- the port ----

    def admit(self, prompts: Sequence[IntArray], draws: Draws) -> tuple[Tensor, Tensor]:
        """Rows of equal prompts are neighbours; groups of equal size form one bundle."""
        groups: list[list[int]] = []
        for row, prompt in enumerate(prompts):
            if groups and prompts[groups[-1][0]].tobytes() == prompt.tobytes():
                groups[-1].append(row)
            else:
                groups.append([row])
        logits, bundle = self._prefill([prompts[group[0]] for group in groups], [len(group) for group in groups])
        self._bundles.append(bundle)
        index = torch.tensor([g for g, group in enumerate(groups) for _ in group], device=self.device)
        return self._draw(logits, draws, index)

    def step(self, tokens: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        x = self._embed[tokens].float()
        self._grow_turns(max(bundle.longest for bundle in self._bundles) + 1)
        turns = self._turns[torch.cat([bundle.positions() for bundle in self._bundles])][:, None]
        sizes = [len(bundle.places) for bundle in self._bundles]
        for bundle in self._bundles:
            bundle.begin_step(views=isinstance(self._kernels, TorchKernels))
        kernels, norms = self._kernels, [*(layer.norm1 for layer in self._layers[1:]), self._norm]
        normed = kernels.add_norm(x, None, self._layers[0].norm1)
        for index, (layer, after) in enumerate(zip(self._layers, norms, strict=True)):
            qkv = layer.qkv(normed).view(len(x), -1, self.shape.head_dim)
            mixed = [
                bundle.attend(index, rows, angles, kernels)
                for bundle, rows, angles in zip(self._bundles, qkv.split(sizes), turns.split(sizes), strict=True)
            ]
            normed = kernels.add_norm(x, layer.o(mixed[0] if len(mixed) == 1 else torch.cat(mixed)), layer.norm2)
            normed = kernels.add_norm(x, layer.down(kernels.gated(layer.gate_up(normed))), after)
        for bundle in self._bundles:
            bundle.own += 1
        return self._draw(self._head(normed), draws)

    def keep(self, rows: Sequence[int]) -> None:
        at, kept = 0, []
        for bundle in self._bundles:
            end = at + len(bundle.places)
            inside = [row - at for row in rows if at <= row < end]
            at = end
            if inside:
                bundle.keep(inside)
                kept.append(bundle)
        self._bundles = kept

    def refresh(self) -> None:
        """Packed and reordered copies are made anew; embedding and norms are read where they lie."""
        views = self._weights.model(self._weights.working)
        self._head.refresh(views.head)
        for own, layer in zip(self._layers, views.layers, strict=True):
            own.qkv.refresh(_paired(layer.qkv, self.shape))
            for matrix, weight in ((own.o, layer.o), (own.gate_up, layer.gate_up), (own.down, layer.down)):
                matrix.refresh(weight)

    # ---- inside ----

    def _prefill(self, prompts: Sequence[IntArray], counts: Sequence[int]) -> tuple[Tensor, _Bundle]:
        """(logits [G, V] after each prompt, the bundle). Tokens that all prompts begin with (a system turn) run once.

        Rows of the products are the common beginning, then what each prompt has of its own; only attention is padded.
        """
        shape, device = self.shape, self.device
        queries, kv = shape.heads, shape.kv_heads
        common = _common(prompts)
        own = torch.tensor([len(prompt) - common for prompt in prompts], device=device)
        width = int(own.max())
        bundle = _Bundle(shape, own + common, counts, layers=len(self._layers), dtype=self.dtype)
        here = torch.arange(width, device=device) < own[:, None]
        places = torch.arange(common + width, device=device)
        seen = places <= places[common:, None]  # [own tokens, all tokens]
        tokens = torch.from_numpy(np.concatenate([prompts[0][:common], *(p[common:] for p in prompts)])).to(device)
        self._grow_turns(common + width)
        turns = torch.cat([self._turns[:common], self._turns[common + here.nonzero()[:, 1]]])[:, None]
        x = self._embed[tokens].float()
        last = common + own.cumsum(0) - 1
        kernels, added = self._kernels, None
        for index, layer in enumerate(self._layers):
            qkv = layer.qkv(kernels.add_norm(x, added, layer.norm1)).view(len(x), -1, shape.head_dim)
            turned = _turned(qkv[:, : queries + kv], turns)
            qkv = torch.cat([turned.to(self.dtype), qkv[:, queries + kv :]], dim=1)
            padded = qkv.new_zeros(len(prompts), width, *qkv.shape[1:])
            padded[here] = qkv[common:]
            before = qkv[None, :common].transpose(1, 2)  # [1, heads, common tokens, d]
            q, *own_kv = padded.transpose(1, 2).split((queries, kv, kv), dim=1)
            first, common_k, common_v = before.split((queries, kv, kv), dim=1)
            k, v = (
                torch.cat([a.expand(len(prompts), -1, -1, -1), b], dim=2)
                for a, b in zip((common_k, common_v), own_kv, strict=True)
            )
            bundle.store_prompt(index, k, v)
            grouped = queries != kv
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=1.0, enable_gqa=grouped)
            mixed = mixed.transpose(1, 2)[here]
            if index == len(self._layers) - 1:  # nothing reads the other positions any more
                x, mixed = x[last], mixed[own.cumsum(0) - 1]
            elif common:
                start = F.scaled_dot_product_attention(
                    first, common_k, common_v, is_causal=True, scale=1.0, enable_gqa=grouped
                )
                mixed = torch.cat([start[0].transpose(0, 1), mixed])
            normed = kernels.add_norm(x, layer.o(mixed.flatten(1)), layer.norm2)
            added = layer.down(kernels.gated(layer.gate_up(normed)))
        return self._head(kernels.add_norm(x, added, self._norm)), bundle

    def _draw(self, logits: Tensor, draws: Draws, index: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Draw from logits [B, V], or [U, V] read at index [B], a few rows in float32 at a time."""
        found = []
        for rows in torch.arange(len(draws.uniforms), device=self.device).split(ROWS_PER_DRAW):
            part = Draws(draws.uniforms[rows], draws.temperatures[rows], draws.plain)
            found.append(draw(logits[rows] if index is None else logits[index[rows]], part))
        return torch.cat([tokens for tokens, _ in found]), torch.cat([logprobs for _, logprobs in found])

    def _grow_turns(self, length: int) -> None:
        if length > len(self._turns):
            self._turns = _turns(self.shape, 2 * length, self.device)


@dataclass(frozen=True, slots=True)
class _Views:
    """What a bundle's attention reads and writes in one step, one view per layer."""

    q: Tensor
    """[G, K, n, r, d] scratch"""
    prompt_keys: tuple[Tensor, ...]
    """[G K, d, P]"""
    prompt_values: tuple[Tensor, ...]
    """[G K, P, d]"""
    keys: tuple[Tensor, ...]
    """[G K n, d, t + 1 rounded up]"""
    values: tuple[Tensor, ...]
    new_keys: tuple[Tensor, ...]
    """[G, n, K, d] the places of this step's token"""
    new_values: tuple[Tensor, ...]


class _Bundle:
    """Rows admitted together and their cache. ``places`` [B'] says where in the S = G n places each live row lies."""

    def __init__(
        self, shape: Shape, lengths: Tensor, counts: Sequence[int], *, layers: int, dtype: torch.dtype
    ) -> None:
        self.shape, self.lengths, self.dtype = shape, lengths, dtype
        self.groups, self.per_group = len(counts), max(counts)
        device = lengths.device
        places = [g * self.per_group + j for g, count in enumerate(counts) for j in range(count)]
        self.places = torch.tensor(places, device=device)
        self.own = 0
        """t: own tokens of each row that are in the cache."""
        self.longest = int(lengths.max())
        self._views: _Views
        kv, d, width = shape.kv_heads, shape.head_dim, self.longest
        self.prompt_keys = torch.zeros(layers, self.groups * kv, width, d, dtype=dtype, device=device)
        self.prompt_values = torch.zeros_like(self.prompt_keys)
        self.keys = torch.zeros(layers, self.groups * kv * self.per_group, 0, d, dtype=dtype, device=device)
        self.values = torch.zeros_like(self.keys)
        self._mask()

    def _mask(self) -> None:
        """[G, 1, P] added to prompt scores, or None where all prompts are equally long."""
        width = self.prompt_keys.shape[2]
        padding = torch.arange(width, device=self.lengths.device) >= self.lengths[:, None]
        self.ragged = bool(padding.any())
        self.bias = torch.zeros(padding.shape, dtype=self.keys.dtype, device=padding.device)
        self.bias = self.bias.masked_fill_(padding, -math.inf)[:, None, None]

    def positions(self) -> Tensor:
        """[B'] where the next token of each live row stands."""
        return self.lengths[self.places // self.per_group] + self.own

    def store_prompt(self, layer: int, k: Tensor, v: Tensor) -> None:
        """k, v [G, K, P, d]"""
        self.prompt_keys[layer] = k.flatten(0, 1)
        self.prompt_values[layer] = v.flatten(0, 1)

    def begin_step(self, *, views: bool) -> None:
        """Make room for one more token and, for torch, the views of every layer that this step reads and writes."""
        if self.own == self.keys.shape[2]:
            self._extend()
        if not views:
            return
        kv, d, t = self.shape.kv_heads, self.shape.head_dim, self.own
        places = (-1, self.groups, kv, self.per_group, d)
        reach = min(-(-(t + 1) // OWN_STEP) * OWN_STEP, self.keys.shape[2])
        self._views = _Views(
            q=torch.empty(
                self.groups, kv, self.per_group, self.shape.heads // kv, d, dtype=self.dtype, device=self.keys.device
            ),
            prompt_keys=self.prompt_keys.mT.unbind(),
            prompt_values=self.prompt_values.unbind(),
            keys=self.keys[:, :, :reach].mT.unbind(),
            values=self.values[:, :, :reach].unbind(),
            new_keys=self.keys[:, :, t].view(places).transpose(2, 3).unbind(),
            new_values=self.values[:, :, t].view(places).transpose(2, 3).unbind(),
        )

    def attend(self, layer: int, qkv: Tensor, turns: Tensor, kernels: TorchKernels | NativeKernels) -> Tensor:
        """Rotate, append this token's key and value, and attend: qkv [B', H + 2 K, d], turns [B', 1, d / 2] -> [B', H d]."""
        if isinstance(kernels, TorchKernels):
            turning = self.shape.heads + self.shape.kv_heads
            return self._attend(layer, _turned(qkv[:, :turning], turns), qkv[:, turning:])

        def address(cache: Tensor) -> int:
            return cache.data_ptr() + layer * cache.stride(0) * cache.element_size()

        return kernels.attend(
            qkv, turns, self.places, (address(self.keys), address(self.values)), self.keys.shape[2], self.own,
            (address(self.prompt_keys), address(self.prompt_values)), self.prompt_keys.shape[2], self.lengths,
            self.per_group, self.shape.heads, self.shape.kv_heads,
        )  # fmt: skip

    def _attend(self, layer: int, qk: Tensor, v: Tensor) -> Tensor:
        """With torch: qk [B', H + K, d] rotated, v [B', K, d]."""
        shape, groups, per = self.shape, self.groups, self.per_group
        kv, d, views = shape.kv_heads, shape.head_dim, self._views
        size = groups * per
        whole = len(self.places) == size
        if not whole:
            qk = qk.new_zeros(size, *qk.shape[1:]).index_copy_(0, self.places, qk)
            v = v.new_zeros(size, *v.shape[1:]).index_copy_(0, self.places, v)
        q, k = qk.split((shape.heads, kv), dim=1)
        # [G, K, n, r, d]: prompt scores see n r queries per group and head, own scores r queries per row and head
        views.q.copy_(q.view(groups, per, kv, -1, d).transpose(1, 2))
        views.new_keys[layer].copy_(k.view(groups, per, kv, d))
        views.new_values[layer].copy_(v.view(groups, per, kv, d))
        width, reach = self.prompt_keys.shape[2], views.keys[layer].shape[-1]
        asked = torch.bmm(views.q.view(groups * kv, -1, d), views.prompt_keys[layer])
        if self.ragged:
            asked.view(groups, kv, -1, width).add_(self.bias)
        own = torch.bmm(views.q.view(size * kv, -1, d), views.keys[layer])
        scores = torch.cat([asked.view(-1, width), own.view(-1, reach)], dim=1)
        scores[:, width + self.own + 1 :] = -math.inf
        shares = scores.softmax(-1, dtype=torch.float32)
        mixed = torch.bmm(shares[:, width:].to(self.dtype).view(size * kv, -1, reach), views.values[layer])
        prompt_shares = shares[:, :width].to(self.dtype).view(groups * kv, -1, width)
        mixed = torch.baddbmm(mixed.view(groups * kv, -1, d), prompt_shares, views.prompt_values[layer])
        mixed = mixed.view(groups, kv, per, -1).transpose(1, 2).reshape(size, -1)
        return mixed if whole else mixed[self.places]

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these of the live rows; pack the cache when at least half of it is free."""
        self.places = self.places[torch.tensor(rows, device=self.places.device)]
        groups = self.places // self.per_group
        alive, counts = groups.unique(return_counts=True)
        per = int(counts.max())
        if 2 * len(alive) * per <= self.groups * self.per_group:
            self._pack(alive, groups, per)

    def _pack(self, alive: Tensor, groups: Tensor, per: int) -> None:
        """Keep the groups ``alive`` with ``per`` places each; ``groups`` [B'] is the group of each live row."""
        kv = self.shape.kv_heads
        source = torch.zeros(len(alive), per, dtype=torch.int64, device=alive.device)  # place inside its group
        places = []
        fill = dict.fromkeys(alive.tolist(), 0)
        order = {group: place for place, group in enumerate(fill)}
        for group, inside in zip(groups.tolist(), (self.places % self.per_group).tolist(), strict=True):
            source[order[group], fill[group]] = inside
            places.append(order[group] * per + fill[group])
            fill[group] += 1
        heads = torch.arange(kv, device=alive.device)
        pairs = (alive[:, None] * kv + heads).flatten()
        rows = (pairs.view(-1, kv, 1) * self.per_group + source[:, None]).flatten()
        self.keys, self.values = (cache.index_select(1, rows) for cache in (self.keys, self.values))
        self.prompt_keys, self.prompt_values = (
            cache.index_select(1, pairs) for cache in (self.prompt_keys, self.prompt_values)
        )
        self.lengths, self.groups, self.per_group = self.lengths[alive], len(alive), per
        self.places = torch.tensor(places, device=alive.device)
        self._mask()

    def _extend(self) -> None:
        layers, rows, _, d = self.keys.shape
        more = self.keys.new_zeros(layers, rows, max(OWN_STEP, self.own), d)
        self.keys = torch.cat([self.keys, more], dim=2)
        self.values = torch.cat([self.values, more], dim=2)


def _common(prompts: Sequence[IntArray]) -> int:
    """How many tokens all prompts begin with, leaving each at least one of its own; 0 for a single prompt."""
    if len(prompts) == 1:
        return 0
    shortest = min(len(prompt) for prompt in prompts) - 1
    differs = np.any([prompt[:shortest] != prompts[0][:shortest] for prompt in prompts], axis=0)
    return int(differs.argmax()) if differs.any() else shortest


def _paired(qkv: Tensor, shape: Shape) -> Tensor:
    """Rows of q and k with rotary pairs adjacent and q scaled by d^-1/2: the same scores, and a turn is one product."""
    heads, d = shape.heads + shape.kv_heads, shape.head_dim
    turning = qkv[: heads * d].view(heads, 2, d // 2, -1).transpose(1, 2).reshape(heads * d, -1)
    turning[: shape.heads * d] *= d**-0.5
    return torch.cat([turning, qkv[heads * d :]])


def _turns(shape: Shape, length: int, device: torch.device) -> Tensor:
    """[length, d / 2] complex64 rotations by position."""
    inv_freq = torch.tensor(shape.inv_freq, dtype=torch.float32, device=device)
    angles = torch.arange(length, dtype=torch.float32, device=device)[:, None] * inv_freq
    return torch.polar(torch.ones_like(angles), angles)


def _turned(x: Tensor, turns: Tensor) -> Tensor:
    """Adjacent pairs of x [M, heads, d] rotated by turns [M, 1, d / 2], float32."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(-2)
