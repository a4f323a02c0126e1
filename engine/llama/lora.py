"""Low-rank adapters on the fast path. Learner and sampler compute with the same merged weights, so that they agree as
closely as without adapters; the gradient of an adapter is that of its merged matrix, projected:
``dA = s B^T dW``, ``dB = s dW A^T`` with s = alpha / rank, made without ever making dW."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from jurat.engine.llama.learner import LlamaNetwork
from jurat.engine.llama.weights import FlatWeights, Shape
from jurat.engine.lora import Layout, Merged


class LlamaLoRA(LlamaNetwork):
    """``weights`` with adapters: their master stays as it is, their working copy becomes the merged model, rounded."""

    def __init__(
        self, weights: FlatWeights, layout: Layout, *, temperature: float = 1.0, checkpointing: bool = False
    ) -> None:
        super().__init__(weights.apart(), temperature=temperature, checkpointing=checkpointing)
        self.layout = layout
        self.master = torch.zeros(layout.trainable, device=weights.master.device)
        self.num_matrix = len(self.master)

    @cached_property
    def grad(self) -> Tensor:
        return torch.zeros_like(self.master)

    def base(self) -> Mapping[str, Tensor]:
        return self.weights.views(self.weights.master)

    def pairs(self) -> Mapping[str, tuple[Tensor, Tensor]]:
        return self.layout.views(self.master)

    def views(self) -> Mapping[str, Tensor]:
        scale = self.layout.scale
        return Merged(
            self.base(), {f"{n}.weight": partial(_product, a, b, scale) for n, (a, b) in self.pairs().items()}
        )

    def rebase(self) -> None:
        self.weights.refresh_working()

    def refresh(self) -> None:
        merged, working = self.views(), self.weights.views(self.weights.working)
        for name in self.layout.layers:
            working[f"{name}.weight"].copy_(merged[f"{name}.weight"])

    @property
    def _gradients(self) -> None:
        """Nothing but adapters learns."""

    @cached_property
    def _adapters(self) -> dict[tuple[int, str], list[_Adapter]]:
        """{(layer, matrix of ``weights.Layer``): its adapters}; a joint matrix may have several."""
        found: dict[tuple[int, str], list[_Adapter]] = {}
        gradients = self.layout.views(self.grad)
        for name, (a, b) in self.pairs().items():
            _, _, index, _, kind = name.split(".")  # model.layers.0.self_attn.q_proj
            matrix, rows = _places(self.weights.shape)[kind]
            found.setdefault((int(index), matrix), []).append(_Adapter(rows, a, b, *gradients[name]))
        return found

    def _add(self, index: int, matrix: str, slope: Tensor, given: Tensor) -> None:
        scale = self.layout.scale
        for adapter in self._adapters.get((index, matrix), ()):
            own = slope[:, adapter.rows]
            a, b = adapter.a.to(given.dtype), adapter.b.to(given.dtype)
            adapter.grad_a.add_((own @ b).T @ given, alpha=scale)
            adapter.grad_b.add_(own.T @ (given @ a.T), alpha=scale)


@dataclass(frozen=True, slots=True)
class _Adapter:
    rows: slice
    """Of the joint matrix."""
    a: Tensor
    b: Tensor
    grad_a: Tensor
    grad_b: Tensor


def _product(a: Tensor, b: Tensor, scale: float) -> Tensor:
    return (b @ a) * scale


def _places(shape: Shape) -> dict[str, tuple[str, slice]]:
    """{last part of a layer's name: (matrix of ``weights.Layer``, its rows)}."""
    heads, kv, ff = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.ff
    return {
        "q_proj": ("qkv", slice(0, heads)), "k_proj": ("qkv", slice(heads, heads + kv)),
        "v_proj": ("qkv", slice(heads + kv, heads + 2 * kv)), "o_proj": ("o", slice(None)),
        "gate_proj": ("gate_up", slice(0, ff)), "up_proj": ("gate_up", slice(ff, 2 * ff)), "down_proj": ("down", slice(None)),
    }  # fmt: skip
