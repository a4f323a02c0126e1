"""Attention over a plan's blocks, forward and backward, by batched matrix products.

Scores and softmax are float32; products with probabilities and with gradients are in the working dtype, whose rounding
they do not amplify (bfloat16 is three times as fast there). Query heads that share a key-value head are more query rows
of it. Scores are made again in the backward pass and, where they are many, a piece at a time, so memory does not grow
with the square of a length.

Axes: R rows, J heads (query, key, value), D head size; B = groups x kv heads, n samples, t rows, e query heads per kv
head, p prompt rows; c = t x e query rows of a piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from jurat.engine.llama.plan import Block, Plan
from jurat.engine.llama.rope import tables
from jurat.engine.llama.weights import Shape

SCORES = 1 << 23
"""Scores in memory at once: 32 MiB, a few times over."""
ROWS = 256
"""Rows of a sequence at once: longer ones go in pieces, each of which reads only the keys before its end."""


class Attention:
    """Attention of one plan, for every layer: what does not change from layer to layer is made once."""

    def __init__(self, plan: Plan, shape: Shape, dtype: torch.dtype) -> None:
        self.plan, self.shape, self.dtype = plan, shape, dtype
        device, rows = plan.tokens.device, len(plan.tokens)
        self.turned = shape.heads + shape.kv_heads
        """Heads that rotary positions turn: queries and keys."""
        cos, sin = tables(shape, int(plan.positions.max()) + 1, device=device)
        self.cos, self.sin = cos[plan.positions][:, None], sin[plan.positions][:, None]
        self.heads = torch.zeros(rows + 1, shape.heads + 2 * shape.kv_heads, shape.head_dim, device=device)
        """Scratch; the last row stays zero, for padding."""
        self.slopes = torch.zeros(rows + 1, shape.heads, shape.head_dim, device=device)
        """Scratch too."""
        each = shape.heads // shape.kv_heads
        longest = max(block.length for block in plan.blocks)
        self.causal = torch.full((longest, longest), -torch.inf, device=device).triu_(1).repeat_interleave(each, 0)
        """[longest * e, longest]: -inf where a key comes after the query."""
        self.slope_of = torch.full((plan.num_queries,), rows * shape.heads, device=device)
        self.slope_of[plan.inverse] = torch.arange(rows * shape.heads, device=device)
        """[Q] whose slope each query takes: a row common to several samples gives it to one, none to the rest."""

    def forward(self, qkv: Tensor) -> Tensor:
        """[R, J * D] before rotation -> [R, query heads * D], in the dtype of ``qkv``."""
        laid = self._lay(qkv)
        out = torch.empty_like(laid[: self.plan.num_queries])
        for view in self._views(laid):
            o = self._queries(out, view.block)
            for piece in self._pieces(view):
                o[piece.batch, :, piece.rows] = piece.outputs(piece.probabilities())
        return out.index_select(0, self.plan.inverse).view(len(qkv), -1).to(qkv.dtype)

    def backward(self, qkv: Tensor, slope: Tensor) -> Tensor:
        """(qkv as in ``forward``, d loss / d its result) -> d loss / d qkv."""
        rows, shape = len(qkv), self.shape
        laid = self._lay(qkv)
        self.slopes[:rows].copy_(slope.view(rows, shape.heads, shape.head_dim))
        wanted = self.slopes.view(-1, shape.head_dim).index_select(0, self.slope_of)
        found = torch.zeros_like(laid)
        for view, into in zip(self._views(laid), self._views(found), strict=True):
            do = self._queries(wanted, view.block)
            for piece in self._pieces(view):
                piece.backward(do[piece.batch, :, piece.rows], into)
        queries, others = found.split((self.plan.num_queries, 2 * self.plan.num_keys))
        gradient = torch.zeros_like(self.heads)
        gradient.view(-1, shape.head_dim).index_add_(0, self.plan.order[self.plan.num_queries :], others)
        gradient = gradient[:rows]
        gradient[:, : shape.heads] = queries.index_select(0, self.plan.inverse).view(rows, shape.heads, -1)
        _turn(gradient[:, : self.turned], self.cos, -self.sin)
        return gradient.view(rows, -1).to(qkv.dtype)

    def _lay(self, qkv: Tensor) -> Tensor:
        """[Q + 2 N, D] rotated heads in the order of attention."""
        rows, shape = len(qkv), self.shape
        given = qkv.view(rows, -1, shape.head_dim)
        self.heads[:rows] = given
        _turn(self.heads[:rows, : self.turned], self.cos, self.sin)
        return self.heads.view(-1, shape.head_dim).index_select(0, self.plan.order)

    def _queries(self, buffer: Tensor, block: Block) -> Tensor:
        """[B, n, t * e, D] of a buffer of queries."""
        batch, rows = block.groups * self.shape.kv_heads, block.length * self.shape.heads // self.shape.kv_heads
        size = batch * block.samples * rows
        return buffer[block.query : block.query + size].view(batch, block.samples, rows, -1)

    def _views(self, laid: Tensor) -> Iterator[_View]:
        queries, keys, values = laid.split((self.plan.num_queries, self.plan.num_keys, self.plan.num_keys))

        def of(buffer: Tensor, block: Block) -> Tensor:
            batch = block.groups * self.shape.kv_heads
            size = batch * block.samples * block.length
            return buffer[block.key : block.key + size].view(batch, block.samples, block.length, -1)

        for block in self.plan.blocks:
            before = block.prefix
            pk = None if before is None else of(keys, before)[:, 0]
            pv = None if before is None else of(values, before)[:, 0]
            yield _View(block, self._queries(queries, block), of(keys, block), of(values, block), pk, pv)

    def _pieces(self, view: _View) -> Iterator[_Piece]:
        """Parts of a block with about ``SCORES`` scores: some of its batch and some of its rows."""
        batch, samples, _, _ = view.q.shape
        each = self.shape.heads // self.shape.kv_heads
        width = view.block.length + (0 if view.pk is None else view.pk.shape[1])
        step = max(1, min(view.block.length, ROWS, SCORES // (samples * each * width)))
        together = max(1, SCORES // (samples * step * each * width))
        for b in range(0, batch, together):
            for first in range(0, view.block.length, step):
                last = min(first + step, view.block.length)
                yield _Piece(view, slice(b, b + together), slice(first * each, last * each), last, self)


@dataclass(frozen=True, slots=True)
class _View:
    block: Block
    q: Tensor
    """[B, n, t * e, D]"""
    k: Tensor
    """[B, n, t, D]"""
    v: Tensor
    pk: Tensor | None
    """[B, p, D] keys of the prompt"""
    pv: Tensor | None


@dataclass(frozen=True, slots=True)
class _Piece:
    view: _View
    batch: slice
    rows: slice
    """c query rows"""
    last: int
    """Own keys that any of them sees."""
    attention: Attention

    def probabilities(self) -> Tensor:
        """[b, n, c, p + last], the prompt's keys first."""
        view, scale = self.view, self.attention.shape.head_dim**-0.5
        q, k = self._q(), view.k[self.batch, :, : self.last]
        batch, samples, rows, size = q.shape
        bias = self.attention.causal[self.rows, : self.last]
        own = torch.baddbmm(bias, q.reshape(-1, rows, size), k.reshape(-1, self.last, size).mT, alpha=scale)
        own = own.view(batch, samples, rows, self.last)
        if view.pk is None:
            return own.softmax(-1)
        bias = bias.new_zeros(1) if view.block.bias is None else view.block.bias[self.batch]
        prompt = torch.baddbmm(bias, q.reshape(batch, -1, size), view.pk[self.batch].mT, alpha=scale)
        return torch.cat((prompt.view(batch, samples, rows, -1), own), -1).softmax(-1)

    def outputs(self, probabilities: Tensor) -> Tensor:
        """[b, n, c, D]"""
        view, dtype = self.view, self.attention.dtype
        prompt, own = self._split(probabilities.to(dtype))
        v = view.v[self.batch, :, : self.last].to(dtype)
        out = torch.bmm(own, v.reshape(-1, self.last, v.shape[-1])).view(len(v), -1, v.shape[-1])
        if prompt is not None and view.pv is not None:
            out = torch.baddbmm(out, prompt, view.pv[self.batch].to(dtype))
        return out.view(*probabilities.shape[:3], -1)

    def backward(self, do: Tensor, into: _View) -> None:
        """Add the gradients from d loss / d outputs [b, n, c, D] to the views of ``into``."""
        view, scale, dtype = self.view, self.attention.shape.head_dim**-0.5, self.attention.dtype
        batch, samples, rows, size = do.shape
        probabilities = self.probabilities()
        prompt, own = self._split(probabilities.to(dtype))
        do, q = do.to(dtype), self._q().to(dtype)
        k, v = view.k[self.batch, :, : self.last].to(dtype), view.v[self.batch, :, : self.last].to(dtype)
        do_own, q_own = do.reshape(-1, rows, size), q.reshape(-1, rows, size)
        do_all, q_all = do.reshape(batch, -1, size), q.reshape(batch, -1, size)
        dp = torch.bmm(do_own, v.reshape(-1, self.last, size).mT).view(batch, samples, rows, self.last)
        if view.pv is not None:
            before = torch.bmm(do_all, view.pv[self.batch].to(dtype).mT)
            dp = torch.cat((before.view(batch, samples, rows, -1), dp), -1)
        ds = torch.ops.aten._softmax_backward_data(dp.float(), probabilities, -1, torch.float32).mul_(scale)
        ds_prompt, ds_own = self._split(ds.to(dtype))
        dq = torch.bmm(ds_own, k.reshape(-1, self.last, size)).view(batch, -1, size)
        into.k[self.batch, :, : self.last] += torch.bmm(ds_own.mT, q_own).view(batch, samples, self.last, size)
        into.v[self.batch, :, : self.last] += torch.bmm(own.mT, do_own).view(batch, samples, self.last, size)
        if ds_prompt is not None and view.pk is not None and into.pk is not None and into.pv is not None:
            dq = torch.baddbmm(dq, ds_prompt, view.pk[self.batch].to(dtype))
            into.pk[self.batch] += torch.bmm(ds_prompt.mT, q_all)
            into.pv[self.batch] += torch.bmm(prompt.mT, do_all)  # type: ignore[union-attr]
        into.q[self.batch, :, self.rows] = dq.view(batch, samples, rows, size)

    def _q(self) -> Tensor:
        return self.view.q[self.batch, :, self.rows]

    def _split(self, scores: Tensor) -> tuple[Tensor | None, Tensor]:
        """([b, n * c, p] of the prompt, [b * n, c, last] own) of [b, n, c, p + last]."""
        batch, samples, rows, width = scores.shape
        own = scores.view(batch * samples, rows, width)[..., width - self.last :]
        if width == self.last:
            return None, own
        return scores.view(batch, samples * rows, width)[..., : width - self.last], own


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotary positions on [..., D] float32, in place; with ``-sin`` the inverse, which is also the gradient."""
    a, b = x.chunk(2, dim=-1)
    crossed = a * sin
    a.mul_(cos).addcmul_(b, sin, value=-1)
    b.mul_(cos).add_(crossed)
