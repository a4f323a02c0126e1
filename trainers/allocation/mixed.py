"""Rules that look at this step's own outcomes: keep only mixed groups, or sample on until a group is mixed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, expm1, inf, log1p

from jurat.platform.types import Allocation, Group, Visit
from jurat.trainers.allocation.posterior import Correctness
from jurat.trainers.allocation.rule import Rule


def mixed(scores: Sequence[float]) -> bool:
    """Not all equally right: ``0 < #correct < n`` for scores of 0 and 1 (DAPO, arXiv 2503.14476, eq. 11)."""
    return len(scores) > 1 and min(scores) < max(scores)


def mixed_share(p: float, n: int) -> float:
    """P(a group of n is mixed) at success p: ``1 - p^n - (1 - p)^n``."""
    rare = min(p, 1.0 - p)
    return -expm1(n * log1p(-rare)) - rare**n if n > 1 else 0.0  # no difference of numbers near 1


def rollouts_per_mixed_group(p: float, n: int) -> float:
    """Expected samples drawn for one group that is kept: ``n / (1 - p^n - (1 - p)^n)``."""
    share = mixed_share(p, n)
    return n / share if share > 0 else inf


@dataclass(frozen=True, slots=True)
class DapoAllocator(Rule):
    """Dynamic sampling: draw more prompts than wanted, drop groups that are not mixed by correctness, refill.

    After ``max_refills`` the batch is short. What was dropped stays in the batch's ``discarded`` and counts as cost.
    The kept prompts are weighed by their chance of being mixed: the objective is no longer the plain mean.
    """

    correctness: Correctness
    samples_per_prompt: int
    oversample: float
    """Prompts drawn for each one that is missing."""
    max_refills: int

    def plan(self, visits: Sequence[Visit]) -> tuple[Allocation, ...]:
        return tuple(Allocation(samples=self.samples_per_prompt, reason="dapo") for _ in visits)

    def draws(self, wanted: int, kept: int, refills: int) -> int:
        return 0 if refills > self.max_refills else ceil(self.oversample * max(0, wanted - kept))

    def keep(self, group: Group) -> str:
        scores = self.correctness.scores(group)
        if mixed(scores):
            return ""
        if len(scores) < 2:
            return f"not mixed: {len(scores)} of {len(group.scored)} samples have a score"
        return {0.0: "not mixed: none correct", 1.0: "not mixed: all correct"}.get(scores[0], "not mixed: all alike")


@dataclass(frozen=True, slots=True)
class UntilMixedAllocator(Rule):
    """Rounds of samples until a group is mixed or has ``max_samples``. A curriculum, not an estimator of the plain mean.

    n depends on the very rewards that it averages, so a prompt's gradient is scaled up: by 2.7 at p = 0.02, 1.1 at
    p = 0.5 (rounds of 4 up to 64, leave-one-out).
    """

    correctness: Correctness
    samples_per_prompt: int
    """Of each round."""
    max_samples: int

    def plan(self, visits: Sequence[Visit]) -> tuple[Allocation, ...]:
        first = min(self.samples_per_prompt, self.max_samples)
        return tuple(Allocation(samples=first, reason="until_mixed, a curriculum") for _ in visits)

    def extend(self, group: Group) -> int:
        if mixed(self.correctness.scores(group)):
            return 0
        return min(self.samples_per_prompt, self.max_samples - len(group.scored))
