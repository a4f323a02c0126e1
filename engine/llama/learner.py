"""The fast path for Llama-like models: each prompt once per group, gradients by hand, one visit to the head.

Everything a layer keeps for its backward pass is a few [R, *] tensors in the working dtype (R rows, see ``plan.py``);
the stream between layers and all reductions are float32. Weight gradients are added at once to one flat float32 buffer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from jurat.engine.learner import Tally
from jurat.engine.llama.attention import Attention
from jurat.engine.llama.head import Head, ValueHead, accumulate
from jurat.engine.llama.plan import Plan, make_plan
from jurat.engine.llama.weights import FlatWeights, Views
from jurat.platform.ports import Objective
from jurat.platform.types import Microbatch


class LlamaNetwork:
    """``weights`` as a network that learns. ``temperature`` is the sampler's; ``checkpointing`` keeps only each layer's
    input and runs the layer again in the backward pass. Weights of a value model make a critic."""

    def __init__(self, weights: FlatWeights, *, temperature: float = 1.0, checkpointing: bool = False) -> None:
        self.weights, self.temperature, self.checkpointing = weights, temperature, checkpointing
        self.master, self.num_matrix = weights.master, weights.num_matrix
        self.eps = weights.shape.rms_eps
        self._working, self._master = weights.model(weights.working), weights.model(weights.master)
        self._head: Head | ValueHead = (
            ValueHead(self._master.head) if weights.shape.values else Head(self._working.head, temperature)
        )

    @cached_property
    def grad(self) -> Tensor:
        return self.weights.like()

    def views(self) -> Mapping[str, Tensor]:
        return self.weights.views(self.weights.master)

    def refresh(self) -> None:
        self.weights.refresh_working()

    @torch.no_grad()
    def logprobs(self, mb: Microbatch) -> Tensor:
        run = self._forward(mb, keep=False)
        found, _ = self._head.logprobs(self._hidden(run)[0], mb.tokens[run.plan.targets], run.plan)
        return found.new_zeros(len(mb.tokens)).index_copy_(0, run.plan.targets, found)

    @torch.no_grad()
    def backward(self, mb: Microbatch, objective: Objective, tally: Tally) -> None:
        into = self._gradients
        run = self._forward(mb, keep=True)
        plan = run.plan
        tally.forwarded += len(plan.tokens)
        hidden, normed = self._hidden(run)
        tokens = mb.tokens[plan.targets]
        if objective.token_local:

            def slopes(targets: slice, logprobs: Tensor, entropy: Tensor) -> Tensor:
                return tally.judge(objective, logprobs, entropy, mb.select(plan.targets[targets]))

        else:
            logprobs, entropy = self._head.logprobs(hidden, tokens, plan)
            current = logprobs.new_zeros(len(mb.tokens)).index_copy_(0, plan.targets, logprobs)
            every = tally.judge(objective, current, entropy, mb)[plan.targets]

            def slopes(targets: slice, logprobs: Tensor, entropy: Tensor) -> Tensor:
                return every[targets]

        slope = self._head.backward(hidden, tokens, plan, slopes, into.head if into else None)
        slope = normed.backward(slope, into.norm if into else None)
        slope = torch.zeros_like(run.stream).index_copy_(0, plan.sources, slope)
        for index in reversed(range(len(run.kept))):
            slope = self._layer_backward(index, run.kept.pop(), slope, run.attention)
        if into is not None:
            into.embed.index_add_(0, plan.tokens, slope)

    @cached_property
    def _gradients(self) -> Views | None:
        """None: embedding, norms and head do not learn."""
        return self.weights.model(self.grad)

    def _add(self, index: int, matrix: str, slope: Tensor, given: Tensor) -> None:
        """Add the gradient ``slope.T @ given`` of a matrix of layer ``index``."""
        assert self._gradients is not None
        accumulate(getattr(self._gradients.layers[index], matrix), slope, given)

    def _forward(self, mb: Microbatch, *, keep: bool) -> _Run:
        plan = make_plan(mb, self.weights.shape)
        run = _Run(plan, Attention(plan, self.weights.shape, self.weights.dtype), self._master.embed[plan.tokens], [])
        for index in range(self.weights.shape.layers):
            before = run.stream
            run.stream, kept = self._layer(index, before, run.attention)
            if keep:
                run.kept.append(_Kept(before) if self.checkpointing else kept)
        return run

    def _hidden(self, run: _Run) -> tuple[Tensor, _Normed]:
        """[U, H] what the head sees, with its norm for the way back."""
        normed = _Normed(run.stream[run.plan.sources], self._master.norm, self.eps)
        return normed.value(self.weights.dtype), normed

    def _layer(self, index: int, stream: Tensor, attention: Attention) -> tuple[Tensor, _Kept]:
        weights, norms, dtype = self._working.layers[index], self._master.layers[index], self.weights.dtype
        qkv = linear(_Normed(stream, norms.norm1, self.eps).value(dtype), weights.qkv)
        mixed = attention.forward(qkv)
        middle = stream + linear(mixed, weights.o)
        gate_up = linear(_Normed(middle, norms.norm2, self.eps).value(dtype), weights.gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return middle + linear(silu(gate).mul_(up), weights.down), _Kept(stream, qkv, mixed, middle, gate_up)

    def _layer_backward(self, index: int, kept: _Kept, slope: Tensor, attention: Attention) -> Tensor:
        """d loss / d (output of the layer) [R, H] -> d loss / d (its input); weight gradients are added on the way."""
        weights, norms, dtype = self._working.layers[index], self._master.layers[index], self.weights.dtype
        into = self._gradients.layers[index] if self._gradients else None
        if kept.qkv is None:
            _, kept = self._layer(index, kept.stream, attention)
        assert kept.qkv is not None and kept.mixed is not None and kept.middle is not None and kept.gate_up is not None

        rounded = slope.to(dtype)
        gate, up = kept.gate_up.chunk(2, dim=-1)
        gated = silu(gate)
        self._add(index, "down", rounded, gated * up)
        d_act = rounded @ weights.down
        d_gate_up = torch.empty_like(kept.gate_up)
        d_gate, d_up = d_gate_up.chunk(2, dim=-1)
        torch.mul(d_act, gated, out=d_up)
        d_gate.copy_(torch.ops.aten.silu_backward(d_act.mul_(up), gate))
        normed = _Normed(kept.middle, norms.norm2, self.eps)
        self._add(index, "gate_up", d_gate_up, normed.value(dtype))
        slope = normed.backward(d_gate_up @ weights.gate_up, into.norm2 if into else None).add_(slope)

        rounded = slope.to(dtype)
        self._add(index, "o", rounded, kept.mixed)
        d_qkv = attention.backward(kept.qkv, rounded @ weights.o)
        normed = _Normed(kept.stream, norms.norm1, self.eps)
        self._add(index, "qkv", d_qkv, normed.value(dtype))
        return normed.backward(d_qkv @ weights.qkv, into.norm1 if into else None).add_(slope)


@dataclass(slots=True)
class _Run:
    """A forward pass."""

    plan: Plan
    attention: Attention
    stream: Tensor
    """[R, H] float32 after the last layer."""
    kept: list[_Kept]


@dataclass(frozen=True, slots=True)
class _Kept:
    """What a layer needs in its backward pass; the input alone under checkpointing."""

    stream: Tensor
    """[R, H] float32 input"""
    qkv: Tensor | None = None
    """[R, J * D] before rotation"""
    mixed: Tensor | None = None
    """[R, query heads * D] attention's result"""
    middle: Tensor | None = None
    """[R, H] float32 after attention"""
    gate_up: Tensor | None = None
    """[R, 2 FF]"""


class _Normed:
    """RMSNorm (Zhang & Sennrich 2019) of x [N, H] float32 with weight w [H]: ``w x / sqrt(mean(x^2) + eps)``."""

    def __init__(self, x: Tensor, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.inverse = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        self.unit = x * self.inverse

    def value(self, dtype: torch.dtype) -> Tensor:
        return (self.unit * self.weight).to(dtype)

    def backward(self, slope: Tensor, weight_gradient: Tensor | None) -> Tensor:
        """[N, H] -> d loss / d x, float32; adds d loss / d weight, if it is wanted."""
        slope = slope.float()
        product = slope * self.unit
        if weight_gradient is not None:
            weight_gradient.add_(product.sum(0))
        mean = (product @ self.weight).div_(self.unit.shape[-1])[:, None]
        return (slope * self.weight).sub_(self.unit * mean).mul_(self.inverse)
