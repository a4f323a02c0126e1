"""How two versions of a verifier differ on the same samples, as numbers. Pure, float64; NaN is "no score".

Samples come in groups of one prompt, so they are not independent: intervals of means resample whole prompts. Those of
proportions are Wilson's, as if samples were independent; where prompts repeat much they are too narrow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jurat.platform.errors import ConfigError, nearest
from jurat.platform.types import IntArray
from jurat.trainers.advantages import Rewards
from jurat.trainers.evaluate import wilson

EXACT = 5000
"""Discordant pairs up to which McNemar's test is the exact binomial one."""
RESAMPLES = 2000
_CELLS = 4_000_000
"""Draws of the bootstrap held at once."""


# ---- pairs -------------------------------------------------------------------------------------------------------


def mcnemar(up: int, down: int) -> float:
    """Two-sided p of "as many samples are raised as lowered" (McNemar 1947): exact binomial, beyond ``EXACT`` discordant pairs
    chi-square with Edwards' correction."""
    n = up + down
    if n == 0:
        return 1.0
    if n > EXACT:
        return math.erfc(math.sqrt(max(0, abs(up - down) - 1) ** 2 / n / 2.0))
    logs = [math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in range(min(up, down) + 1)]
    tail = math.fsum(math.exp(each - n * math.log(2.0)) for each in logs)
    return min(1.0, 2.0 * tail)


def mean_shift(difference: Rewards, cluster: IntArray, *, seed: int) -> tuple[float, float, float]:
    """(mean, low, high) of paired differences [n], with the 95 % percentile bootstrap over clusters [n] (whole numbers)."""
    if not len(difference):
        return 0.0, math.nan, math.nan
    _, place = np.unique(cluster, return_inverse=True)
    sums, sizes = np.bincount(place, difference), np.bincount(place).astype(np.float64)
    mean = float(difference.sum() / len(difference))
    rng, n = np.random.default_rng([seed, len(difference)]), len(sums)
    found: list[Rewards] = []
    most = max(1, _CELLS // n)
    for first in range(0, RESAMPLES, most):
        rows = rng.integers(0, n, size=(min(most, RESAMPLES - first), n), dtype=np.int32)
        found.append(sums[rows].sum(axis=1) / sizes[rows].sum(axis=1))
    low, high = np.quantile(np.concatenate(found), [0.025, 0.975])
    return mean, float(low), float(high)


def _ranks(values: Rewards) -> Rewards:
    """[n] from 1, ties at their mean."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2.0)[place]


def spearman(one: Rewards, two: Rewards) -> float:
    """Correlation of ranks, ties at their mean; NaN where a side is constant."""
    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(two) == 0:
        return math.nan
    a, b = _ranks(one), _ranks(two)
    a, b = a - a.mean(), b - b.mean()
    return float(np.clip((a @ b) / math.sqrt((a @ a) * (b @ b)), -1.0, 1.0))


def kendall(one: Rewards, two: Rewards) -> float:
    """Tau-b (Kendall 1945) in O(n log n) (Knight 1966); NaN where a side is constant."""
    n = len(one)
    if n < 2 or np.ptp(one) == 0 or np.ptp(two) == 0:
        return math.nan
    pairs = n * (n - 1) // 2
    order = np.lexsort((two, one))
    a, b = one[order], two[order]
    same_a, same_b, same_both = _tied(one), _tied(two), _tied(np.stack([a, b], axis=1))
    discordant = _inversions(np.unique(b, return_inverse=True)[1])  # equal in ``one``: ascending in ``two``, none
    concordant = pairs - same_a - same_b + same_both - discordant
    return float((concordant - discordant) / (math.sqrt(pairs - same_a) * math.sqrt(pairs - same_b)))


def _tied(values: NDArray[np.float64]) -> int:
    """Pairs of equal values (rows)."""
    counts = np.unique(values, axis=0, return_counts=True)[1].astype(np.int64)
    return int((counts * (counts - 1) // 2).sum())


def _inversions(ranks: IntArray) -> int:
    """Pairs i < j with ranks[i] > ranks[j], by merging blocks that are sorted already."""
    values = np.asarray(ranks, dtype=np.int64)
    found, width, n = 0, 1, len(values)
    top = int(values.max()) + 1
    while width < n:
        block = np.arange(n) // (2 * width)
        left = (np.arange(n) // width) % 2 == 0
        keyed = values + block * top  # blocks stay apart: both halves of all blocks are sorted as wholes
        lefts, rights = keyed[left], keyed[~left]
        ends = np.cumsum(np.bincount(block[left], minlength=int(block[-1]) + 1))
        found += int((ends[block[~left]] - np.searchsorted(lefts, rights, side="right")).sum())
        values = np.sort(keyed) - block * top
        width *= 2
    return found


# ---- tables ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Flips:
    """At a threshold, among samples with both scores."""

    n: int
    both: int
    """Pass by both."""
    neither: int
    up: int
    """Fail by the old, pass by the new."""
    down: int

    def as_json(self) -> dict[str, Any]:
        def share(count: int) -> dict[str, Any]:
            found = wilson(count, self.n)
            return {"n": count, "rate": found.value, "low": found.low, "high": found.high}

        return {
            "n": self.n, "confusion": {"pass_pass": self.both, "fail_pass": self.up, "pass_fail": self.down,
            "fail_fail": self.neither}, "up": share(self.up), "down": share(self.down), "all": share(self.up + self.down),
            "mcnemar_p": mcnemar(self.up, self.down),
        }  # fmt: skip


def flips(old: Rewards, new: Rewards, threshold: float) -> Flips:
    both = ~np.isnan(old) & ~np.isnan(new)
    was, now = old[both] >= threshold, new[both] >= threshold
    return Flips(
        n=int(both.sum()),
        both=int((was & now).sum()),
        neither=int((~was & ~now).sum()),
        up=int((~was & now).sum()),
        down=int((was & ~now).sum()),
    )


def deciles(values: NDArray[Any]) -> list[str]:
    """[n] -> the decile of each, named by its bounds; fewer where values repeat."""
    if not len(values):
        return []
    edges = np.unique(np.quantile(values, np.linspace(0, 1, 11), method="lower"))
    place = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, max(0, len(edges) - 2))
    width = len(str(int(edges[-1])))  # so that names sort as numbers do
    last = len(edges) - 2
    names = [
        f"{int(low):0{width}d}-{int(high) - (at < last):0{width}d}" for at, (low, high) in enumerate(pairwise(edges))
    ] or [str(int(edges[0]))]
    return [names[at] for at in place]


# ---- the verdict -------------------------------------------------------------------------------------------------

THRESHOLDS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "compatible": {
            "flip_rate": 0.001,
            "abs_mean_shift": 0.001,
            "decided_change": 0.001,
            "advantage_sign_rate": 0.001,
        },
        "minor": {"flip_rate": 0.01, "abs_mean_shift": 0.01, "decided_change": 0.01, "advantage_sign_rate": 0.02},
    }
)
"""The most that a change may do to be called so; beyond the second it is breaking."""


def verdict(metrics: Mapping[str, float | None]) -> tuple[str, list[str]]:
    """(compatible, minor or breaking; the metrics that kept it from the better word)."""
    over: list[str] = []
    for word, limits in THRESHOLDS.items():
        beyond = [name for name, limit in limits.items() if (metrics[name] or 0.0) > limit]
        if not beyond:
            return word, over
        over = beyond
    return "breaking", over


_GATE = re.compile(r"\s*([a-z_]+)\s*(<=|>=|!=|==|=|<|>)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(%?)\s*")


@dataclass(frozen=True, slots=True)
class Gate:
    """A condition that a report must not meet. Example: ``Gate.of("flip_rate>0.005")``, also ``flip_rate > 0.5%``."""

    metric: str
    op: str
    limit: float

    @classmethod
    def of(cls, text: str, known: Mapping[str, Any] | tuple[str, ...]) -> Gate:
        """Raises ConfigError for what is no comparison of a metric with a number."""
        match = _GATE.fullmatch(text)
        if match is None:
            raise ConfigError(
                f"not a condition: {text[:100]!r}", where="--fail-if", fix='METRIC OP NUMBER, as in "flip_rate>0.005"'
            )
        metric, op, number, percent = match.groups()
        if metric not in known:
            raise ConfigError(
                f"there is no metric {metric!r}.{nearest(metric, known)}", where="--fail-if", fix=", ".join(known)
            )
        return cls(metric, "=" if op == "==" else op, float(number) / (100.0 if percent else 1.0))

    def fails(self, metrics: Mapping[str, float | None]) -> str:
        """What is wrong, '' where nothing is. A metric that could not be measured fails: nothing was shown."""
        value = metrics[self.metric]
        said = f"{self.metric}{self.op}{self.limit:g}"
        if value is None or math.isnan(value):
            return f"{said}: {self.metric} could not be measured"
        met = {
            "<": value < self.limit, "<=": value <= self.limit, ">": value > self.limit, ">=": value >= self.limit,
            "=": value == self.limit, "!=": value != self.limit,
        }[self.op]  # fmt: skip
        return f"{said}: {self.metric} is {value:.6g}" if met else ""
