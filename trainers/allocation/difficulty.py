"""Few samples for easy prompts, more for hard ones, by thresholds on the past."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jurat.platform.types import Allocation, Visit
from jurat.trainers.allocation.posterior import Past
from jurat.trainers.allocation.rule import Remembering


@dataclass(slots=True)
class DifficultyAllocator(Remembering):
    """``samples[k]`` where k thresholds lie above the posterior mean success: 1 for easy ... 5 for hard.

    A single sample has no others to be compared with. Its baseline is the expected reward of the past, which costs no
    sample (``evidence["baseline"]``, raw reward units); with ``single`` "greedy", or where nothing was seen yet, it is
    the reward of one greedy rollout, which does.
    """

    past: Past
    samples: tuple[int, ...]
    thresholds: tuple[float, ...]
    """Falling; one fewer than ``samples``."""
    single: Literal["posterior", "greedy"]

    def plan(self, visits: Sequence[Visit]) -> tuple[Allocation, ...]:
        return tuple(self._one(visit.problem.id) for visit in visits)

    def _one(self, name: str) -> Allocation:
        mean = self.past.posterior(name).mean
        band = sum(mean < threshold for threshold in self.thresholds)
        evidence = {**self.past.evidence(name), "success": mean, "band": band}
        alone = self.samples[band] == 1
        greedy = alone and (self.single == "greedy" or "baseline" not in evidence)
        if greedy:
            evidence.pop("baseline", None)
        seen = "" if name in self.past.seen else ", by the prior: not seen yet"
        return Allocation(
            samples=self.samples[band],
            reason=f"difficulty, band {band + 1} of {len(self.samples)}{seen}",
            greedy_baseline=greedy,
            evidence=evidence,
        )
