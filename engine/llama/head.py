"""The head of a language model and its gradients, a chunk of rows at a time, each chunk visited once.

Where a loss is a sum over tokens, its slope at a token's log-prob is known as soon as that row of logits is there:
log-prob, entropy, d logits and both gradients are made in one visit, and no logits are kept.

Axes: U rows, K targets (a row may have several), V vocabulary, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from jurat.engine.llama.plan import Plan

CHUNK = 1024
"""Rows of one matrix product."""
GRADIENT_ROWS = 4096
"""Rows of a weight whose gradient is made at once: a larger block is given back to the system when freed."""
BLOCK = 16
"""Rows of float32 logits at once: few enough to stay in cache."""


Slopes = Callable[[slice, Tensor, Tensor], Tensor]
"""(some targets, their log-probs, their entropy) -> d loss / d log-prob."""


class Head:
    """``logits = hidden @ weight.T / temperature`` in the dtype of ``weight`` [V, H], softmax in float32."""

    def __init__(self, weight: Tensor, temperature: float = 1.0) -> None:
        self.weight, self.temperature = weight, temperature
        self._logits: Tensor | None = None
        """[CHUNK, V] of the chunk at hand."""

    def logprobs(self, hidden: Tensor, tokens: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        """(log p [K], entropy [K]), float32, of ``tokens`` [K] after the rows ``hidden`` [U, H]."""
        logprobs = torch.empty(len(tokens), device=tokens.device)
        entropy = torch.empty_like(logprobs)
        for block in self._blocks(hidden, plan):
            logprobs[block.targets], entropy[block.targets], _ = self._reduce(block, tokens[block.targets])
        return logprobs, entropy

    def backward(self, hidden: Tensor, tokens: Tensor, plan: Plan, slopes: Slopes, into: Tensor | None) -> Tensor:
        """Add d loss / d weight to ``into`` [V, H], if there is one, and return d loss / d hidden [U, H].

        ``slopes`` is called once for each target, in order.
        """
        result = torch.empty_like(hidden)
        for block in self._blocks(hidden, plan):
            wanted = tokens[block.targets]
            logprobs, entropy, probabilities = self._reduce(block, wanted)
            slope = slopes(block.targets, logprobs, entropy) / self.temperature
            total = slope.new_zeros(len(probabilities)).index_add_(0, block.row_of, slope)
            probabilities.mul_(-total[:, None])  # d log p_t / d z_v = (v == t) - p_v
            probabilities.index_put_((block.row_of, wanted), slope, accumulate=True)
            block.logits.copy_(probabilities)  # in place: the chunk's logits become its gradient
            if block.chunk is not None:
                rows, gradient = block.chunk
                torch.mm(gradient, self.weight, out=result[rows])
                if into is not None:
                    accumulate(into, gradient, hidden[rows])
        return result

    def _blocks(self, hidden: Tensor, plan: Plan) -> Iterator[_Block]:
        for start in range(0, len(hidden), CHUNK):
            rows = slice(start, min(start + CHUNK, len(hidden)))
            if self._logits is None:
                self._logits = hidden.new_empty(CHUNK, len(self.weight))
            logits = torch.mm(hidden[rows], self.weight.T, out=self._logits[: rows.stop - start])
            for at in range(start, rows.stop, BLOCK):
                end = min(at + BLOCK, rows.stop)
                targets = slice(plan.starts[at], plan.starts[end])
                chunk = (rows, logits) if end == rows.stop else None
                yield _Block(logits[at - start : end - start], targets, plan.source_of[targets] - at, chunk)

    def _reduce(self, block: _Block, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(log p and entropy of each target of a block, p [rows, V]), float32."""
        z = block.logits.float() if self.temperature == 1.0 else block.logits.float() / self.temperature
        p = z.softmax(-1)
        normaliser = z.amax(-1) - p.amax(-1).log()  # log sum exp z, from what softmax has already summed
        logprobs = z[block.row_of, tokens] - normaliser[block.row_of]
        entropy = normaliser - z.mul_(p).sum(-1)
        return logprobs, entropy[block.row_of], p


class ValueHead:
    """``hidden @ weight.T`` [U, 1] in float32, for ``weight`` [1, H] float32: what a state is worth before its token is
    chosen. It stands in a ``Head``'s place: values for log-probs, and no entropy."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def logprobs(self, hidden: Tensor, tokens: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        """([K] value of the row that predicts each target, [K] zeros); targets of one row have one value."""
        values = (hidden.float() @ self.weight[0])[plan.source_of]
        return values, torch.zeros_like(values)

    def backward(self, hidden: Tensor, tokens: Tensor, plan: Plan, slopes: Slopes, into: Tensor | None) -> Tensor:
        """Add d loss / d weight to ``into`` [1, H], if given, and return d loss / d hidden [U, H]."""
        values, entropy = self.logprobs(hidden, tokens, plan)
        slope = slopes(slice(0, len(values)), values, entropy)
        total = slope.new_zeros(len(hidden)).index_add_(0, plan.source_of, slope)
        if into is not None:
            into.addmm_(total[None], hidden.float())
        return total[:, None] * self.weight


@dataclass(frozen=True, slots=True)
class _Block:
    logits: Tensor
    """[rows, V]"""
    targets: slice
    row_of: Tensor
    """Row of ``logits`` for each of the targets."""
    chunk: tuple[slice, Tensor] | None
    """At the last block of a chunk: its rows and all its logits."""


def accumulate(into: Tensor, slope: Tensor, given: Tensor) -> None:
    """Add the gradient ``slope.T @ given`` of a linear layer's weight to a float32 buffer."""
    if slope.dtype == into.dtype:
        into.addmm_(slope.T, given)
        return
    for part, rows in zip(into.split(GRADIENT_ROWS), slope.split(GRADIENT_ROWS, dim=1), strict=True):
        part.add_(rows.T @ given)
