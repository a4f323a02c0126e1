"""More samples where they take most off the variance of the gradient for what they cost (Neyman 1934)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from typing import Literal

from jurat.platform.types import Allocation, Visit
from jurat.trainers.allocation.posterior import Past
from jurat.trainers.allocation.rule import Remembering


def gain(variance: float, cost: float, n: int, centre: int = 1) -> float:
    """What sample n + 1 takes off ``v / (n - centre)``, per unit of cost: ``v / ((n - c)(n + 1 - c)) / cost``."""
    return variance / ((n - centre) * (n + 1 - centre)) / cost


def variance(variances: Sequence[float], given: Sequence[float], centre: int = 1) -> float:
    """``sum v_i / (n_i - centre)``: P^2 times the variance of the prompt-mean gradient."""
    return fsum(v / (n - centre) for v, n in zip(variances, given, strict=True))


def relaxed(
    variances: Sequence[float], costs: Sequence[float], *, budget: float, least: int, most: int, centre: int = 1
) -> list[float]:
    """[P] the real n_i that ``counts`` follows: ``n_i - centre = level sqrt(v_i / c_i)``, clipped to [least, most].

    The level at which the budget is spent is found by bisection; ``least`` for a prompt without variance.
    """
    roots = [sqrt(v / c) for v, c in zip(variances, costs, strict=True)]

    def at(level: float) -> list[float]:
        return [min(float(most), max(float(least), centre + level * root)) for root in roots]

    low, high = 0.0, most / min((root for root in roots if root), default=1.0)
    for _ in range(200):
        middle = (low + high) / 2
        spent = fsum(n * c for n, c in zip(at(middle), costs, strict=True))
        low, high = (low, middle) if spent > budget else (middle, high)
    return at(low)


def counts(
    variances: Sequence[float], costs: Sequence[float], *, budget: float, least: int, most: int, centre: int = 1
) -> list[int]:
    """[P] integers n_i that make ``sum v_i / (n_i - centre)`` small with ``sum c_i n_i <= budget``, least <= n_i <= most.

    centre 1 is the leave-one-out baseline (variance of a prompt's gradient v/(n - 1)), 0 a baseline from elsewhere.
    The sample with the greatest gain per cost is given until none fits, so n_i - centre goes as ``sqrt(v_i / c_i)``.
    With equal costs this is the optimum (the sum is separable and convex) and the budget is spent whole, unless all
    prompts are at ``most``. Ties go to the prompt with fewer samples, then to the first. Needs least > centre;
    ``least`` is given even where the budget is smaller.
    """
    given = [least] * len(variances)
    left = budget - least * fsum(costs)
    heap = [(-gain(v, c, least, centre), least, i) for i, (v, c) in enumerate(zip(variances, costs, strict=True))]
    heapq.heapify(heap)
    while heap:
        _, n, i = heapq.heappop(heap)
        if n == most or costs[i] > left:
            continue
        given[i], left = n + 1, left - costs[i]
        heapq.heappush(heap, (-gain(variances[i], costs[i], n + 1, centre), n + 1, i))
    return given


@dataclass(slots=True)
class NeymanAllocator(Remembering):
    """n_i - 1 as sqrt(v_i / c_i), with v_i = E[p(1 - p)] G_i under the posterior and c_i the expected tokens.

    The budget is what ``samples_per_prompt`` each would cost. Unbiased with a leave-one-out baseline and the prompt-mean
    loss, since n depends on the past alone.
    """

    past: Past
    samples_per_prompt: int
    min_samples: int
    max_samples: int
    cost: Literal["tokens", "samples"]
    gradient: Literal["equal", "length"]
    """G_i, squared norm of one sample's score: the same for all prompts, or as its length (a sum over tokens)."""

    def plan(self, visits: Sequence[Visit]) -> tuple[Allocation, ...]:
        names = [visit.problem.id for visit in visits]
        lengths = [self.past.tokens(name) for name in names]
        longest = max(lengths, default=1.0)
        relative = [length / longest for length in lengths]  # equal lengths cost exactly 1, so the budget is met
        costs = relative if self.cost == "tokens" else [1.0] * len(names)
        spreads = [self.past.posterior(name).variance for name in names]
        variances = [v * r for v, r in zip(spreads, relative, strict=True)] if self.gradient == "length" else spreads
        budget = self.samples_per_prompt * fsum(costs)
        given = counts(variances, costs, budget=budget, least=self.min_samples, most=self.max_samples)
        return tuple(
            Allocation(
                samples=n,
                reason=self._reason(name, n),
                evidence={**self.past.evidence(name), "variance": v, "cost": c, "gain": gain(v, c, n)},
            )
            for name, n, v, c in zip(names, given, variances, costs, strict=True)
        )

    def _reason(self, name: str, n: int) -> str:
        bound = {self.min_samples: ", at min_samples", self.max_samples: ", at max_samples"}.get(n, "")
        return f"neyman{bound}" if name in self.past.seen else f"neyman, by the prior: not seen yet{bound}"
