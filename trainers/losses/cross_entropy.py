"""Cross-entropy on given completions (supervised fine-tuning)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from jurat.platform.types import Microbatch


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """``L_t = -log pi(token_t)``; the advantages column is not read."""

    token_local: bool = True
    skips_zero_advantage: bool = False
    sampled: bool = False

    def __call__(self, current: Tensor, mb: Microbatch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """current [T] -> scalar ``sum_t weights_t L_t``."""
        loss = -(mb.weights * current).sum()
        return loss, {"loss": loss.detach()}
