"""How token losses become one number: the weight of each token of one update, summing what the formula says.

``L[j]`` are [L] relative weights m of sample j (1 at targets), ``atoms[j]`` its group. Every count is global over the
update, so that any split into microbatches or ranks gives the same gradient. Samples without gradient count; a sample
whose weights are all 0 counts in no denominator, except as one of the n_i of ``prompt_mean``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from jurat.platform.types import FloatArray

Aggregation = Callable[[Sequence[FloatArray], Sequence[int], int], list[FloatArray]]
"""(relative weights per sample, group per sample, constant length K) -> weights per sample, of the same dtype."""


def token_mean(weights: Sequence[FloatArray], atoms: Sequence[int], constant: int) -> list[FloatArray]:
    """``sum m L / sum m`` over the whole update (DAPO, arXiv 2503.14476, eq. 8)."""
    total = sum(_mass(w) for w in weights)
    return [_over(w, total) for w in weights]


def token_sum(weights: Sequence[FloatArray], atoms: Sequence[int], constant: int) -> list[FloatArray]:
    """``sum m L``: a longer update is a larger step."""
    return list(weights)


def seq_mean_token_mean(
    weights: Sequence[FloatArray], atoms: Sequence[int], constant: int, *, eps: float = 0.0
) -> list[FloatArray]:
    """``mean over y of (sum m L / sum m)`` (GRPO, arXiv 2402.03300, eq. 3): short answers weigh more per token.

    verl adds ``eps`` = 1e-8 to each ``sum m``.
    """
    count = _sequences(weights)
    return [_over(w, count * (_mass(w) + eps)) for w in weights]


def seq_mean_token_sum(weights: Sequence[FloatArray], atoms: Sequence[int], constant: int) -> list[FloatArray]:
    """``mean over y of (sum m L)``: REINFORCE on log-probs of whole sequences."""
    count = _sequences(weights)
    return [_over(w, count) for w in weights]


def seq_mean_token_sum_norm(weights: Sequence[FloatArray], atoms: Sequence[int], constant: int) -> list[FloatArray]:
    """``mean over y of (sum m L / K)`` (Dr. GRPO, arXiv 2503.20783, section 3.2): no bias by length."""
    count = _sequences(weights)
    return [_over(w, count * constant) for w in weights]


def prompt_mean(weights: Sequence[FloatArray], atoms: Sequence[int], constant: int) -> list[FloatArray]:
    """``1/P sum_i 1/n_i sum_j (sum m L / K)``: each prompt counts once however many samples it got (ours)."""
    sizes = Counter(atoms)
    return [_over(w, len(sizes) * sizes[atom] * constant) for w, atom in zip(weights, atoms, strict=True)]


def _mass(weights: FloatArray) -> float:
    return float(weights.sum(dtype=np.float64))


def _sequences(weights: Sequence[FloatArray]) -> int:
    return sum(bool(w.any()) for w in weights)


def _over(weights: FloatArray, divisor: float) -> FloatArray:
    return (weights / max(divisor, 1e-30)).astype(weights.dtype)


AGGREGATIONS: Mapping[str, Aggregation] = MappingProxyType(
    {
        "token-mean": token_mean,
        "token-sum": token_sum,
        "seq-mean-token-mean": seq_mean_token_mean,
        "seq-mean-token-sum": seq_mean_token_sum,
        "seq-mean-token-sum-norm": seq_mean_token_sum_norm,
        "prompt-mean": prompt_mean,
    }
)
