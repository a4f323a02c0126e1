"""The head of a language model and its gradients, a chunk of rows at a time, each chunk visited once.

Where a loss is a sum over tokens, its slope at a token's log-prob is known as soon as that row of logits is there:
log-prob, entropy, d logits and both gradients are made in one visit, and no logits are kept.

Axes: K rows, V vocabulary, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

CHUNK = 512
"""Rows of one matrix product."""
BLOCK = 64
"""Rows of float32 logits at once: few enough to stay in cache."""


class Head:
    """``logits = hidden @ weight.T / temperature`` in the dtype of ``weight`` [V, H], softmax in float32."""

    def __init__(self, weight: Tensor, temperature: float = 1.0) -> None:
        self.weight, self.temperature = weight, temperature

    def logprobs(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(log p(target) [K], entropy [K]), float32."""
        logprobs, entropy = _empty(targets), _empty(targets)
        for rows, _, logits in self._blocks(hidden):
            logprobs[rows], entropy[rows], _ = self._reduce(logits, targets[rows])
        return logprobs, entropy

    def backward(
        self, hidden: Tensor, targets: Tensor, slopes: Callable[[slice, Tensor, Tensor], Tensor], gradient: Tensor
    ) -> Tensor:
        """Add d loss / d weight to ``gradient`` [V, H] and return d loss / d hidden [K, H].

        ``slopes(rows, logprobs, entropy)`` gives d loss / d log-prob of some rows; called once for each, in order.
        """
        result = torch.empty_like(hidden)
        for rows, chunk, logits in self._blocks(hidden):
            logprobs, entropy, probabilities = self._reduce(logits, targets[rows])
            slope = slopes(rows, logprobs, entropy) / self.temperature
            probabilities.mul_(-slope[:, None])  # d log p_t / d z_v = (v == t) - p_v
            probabilities.scatter_add_(1, targets[rows, None], slope[:, None])
            logits.copy_(probabilities)  # in place: the chunk's logits become its gradient
            if chunk is not None:
                where, gathered = chunk
                torch.mm(gathered, self.weight, out=result[where])
                accumulate(gradient, gathered, hidden[where])
        return result

    def _blocks(self, hidden: Tensor) -> Iterator[tuple[slice, tuple[slice, Tensor] | None, Tensor]]:
        """(rows, at the last block of a chunk also that chunk's rows and logits, logits of the rows)."""
        for start in range(0, len(hidden), CHUNK):
            whole = slice(start, min(start + CHUNK, len(hidden)))
            logits = hidden[whole] @ self.weight.T
            for at in range(start, whole.stop, BLOCK):
                rows = slice(at, min(at + BLOCK, whole.stop))
                yield rows, (whole, logits) if rows.stop == whole.stop else None, logits[at - start : rows.stop - start]

    def _reduce(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(log p(target), entropy, p) of a block, float32."""
        z = logits.float() if self.temperature == 1.0 else logits.float() / self.temperature
        logs, p = z.log_softmax(-1), z.softmax(-1)
        return logs.gather(1, targets[:, None]).squeeze(1), -torch.linalg.vecdot(p, logs), p


def accumulate(into: Tensor, slope: Tensor, given: Tensor) -> None:
    """Add the gradient ``slope.T @ given`` of a linear layer's weight to a float32 buffer."""
    if slope.dtype == into.dtype:
        into.addmm_(slope.T, given)
    else:
        into.add_(slope.T @ given)


def _empty(targets: Tensor) -> Tensor:
    return torch.empty(len(targets), device=targets.device)
