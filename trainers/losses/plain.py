"""The plain policy gradient: the smallest honest loss, and the one to read first."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from jurat.platform.types import Microbatch
from jurat.trainers.losses.policy import Metrics, PolicyLoss


@dataclass(frozen=True, slots=True)
class Plain(PolicyLoss):
    """``L_t = -A log pi_t``: REINFORCE (Williams 1992); GPG (arXiv 2504.02546, eq. 4) with group advantages.

    On policy only: later updates of a batch have no ratio to correct them.
    """

    def surrogate(self, current: Tensor, log_ratio: Tensor, mb: Microbatch) -> tuple[Tensor, Metrics]:
        return -mb.advantages * current, {}
