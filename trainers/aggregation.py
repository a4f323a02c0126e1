"""How token losses become one number: the weight of each token of one update, summing what the formula says.

``L[j]`` are [L] relative weights of sample j (1 at targets), ``atoms[j]`` its group. Every count is global over the
update, so that any split into microbatches or ranks gives the same gradient. Samples without gradient count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from jurat.platform.types import FloatArray

Aggregation = Callable[[Sequence[FloatArray], Sequence[int], int], list[FloatArray]]
"""(relative weights per sample, group per sample, constant length K) -> weights per sample."""


def token_mean(weights: Sequence[FloatArray], atoms: Sequence[int], constant: int) -> list[FloatArray]:
    """``sum m L / sum m`` over the whole update (DAPO, arXiv 2503.14476, eq. 8)."""
    total = max(sum(float(w.sum(dtype=np.float64)) for w in weights), 1e-30)
    return [(w / total).astype(np.float32) for w in weights]


def prompt_mean(weights: Sequence[FloatArray], atoms: Sequence[int], constant: int) -> list[FloatArray]:
    """``1/P sum_i 1/n_i sum_j (sum m L / K)``: each prompt counts once however many samples it got (ours)."""
    sizes = Counter(atoms)
    return [
        (w / (len(sizes) * sizes[atom] * constant)).astype(np.float32) for w, atom in zip(weights, atoms, strict=True)
    ]


AGGREGATIONS: Mapping[str, Aggregation] = MappingProxyType({"token-mean": token_mean, "prompt-mean": prompt_mean})
