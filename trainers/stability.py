"""What keeps a run steady: small controllers with a JSON state, fed in batch order.

Each has ``state()`` and ``restore(state)``; a controller restored from a checkpoint goes on as if nothing had happened,
but for ``ResumeGuard``, which is there for that moment.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from jurat.trainers.advantages import EPS, Rewards

State = Mapping[str, Any]
"""JSON values only."""


# ---- coefficient of the KL ----


@dataclass(slots=True)
class AdaptiveKL:
    """``coef *= 1 + clip(kl / target - 1, -0.2, 0.2) * samples / horizon`` (Ziegler et al., arXiv 1909.08593, section 2.2).

    The factor is at least 0.1: with five horizons in one update the formula would reach 0 and stay.
    """

    coef: float
    """The first value; moves."""
    target: float
    """KL per sequence that is aimed at, in nats."""
    horizon: float
    """Samples after which a fixed error has had its effect."""

    def update(self, kl: float, samples: int) -> None:
        """``kl`` measured on the last ``samples`` samples. One that is no number says nothing and is left out."""
        if math.isnan(kl):
            return
        error = min(max(kl / self.target - 1.0, -0.2), 0.2)
        self.coef *= max(1.0 + error * samples / self.horizon, 0.1)

    def state(self) -> State:
        return {"coef": self.coef}

    def restore(self, state: State) -> None:
        self.coef = float(state["coef"])


# ---- gradient clipping ----


@dataclass(slots=True)
class KLClip:
    """Clip norm ``c0 * clip(target / ema(KL), low, high)``: shorter steps while the policy moves fast (ours).

    KL(sampler || policy) in nats per token; an estimate may be negative, which counts as none at all.
    """

    norm: float
    """c0"""
    target: float
    low: float = 0.1
    high: float = 1.0
    decay: float = 0.9
    ema: float | None = None

    def observe(self, kl: float) -> None:
        """Of the step just taken. A KL that is not finite says nothing and is left out."""
        if math.isfinite(kl):
            self.ema = kl if self.ema is None else self.decay * self.ema + (1.0 - self.decay) * kl

    @property
    def limit(self) -> float:
        """The norm to clip the next gradient at; c0 before anything was seen."""
        if self.ema is None:
            return self.norm
        ratio = self.target / self.ema if self.ema > 0 else math.inf
        return self.norm * min(max(ratio, self.low), self.high)

    def state(self) -> State:
        return {"ema": self.ema}

    def restore(self, state: State) -> None:
        self.ema = None if state["ema"] is None else float(state["ema"])


@dataclass(slots=True)
class ResumeGuard:
    """For the first ``steps`` steps after a resume, clip at ``factor`` times a quantile of the gradient norms before it.

    Adam's moments come back from the checkpoint, the sampler and the data order may not have been the same: a first
    gradient far from the usual ones is more likely a fault than news.
    """

    steps: int = 10
    """Optimiser steps."""
    quantile: float = 0.9
    factor: float = 1.0
    history: int = 256
    """How many norms are kept."""
    norms: deque[float] = field(default_factory=deque)
    left: int = 0
    """Guarded steps still to come; 0 in a run that never stopped."""

    def observe(self, norm: float) -> None:
        """Gradient norm before clipping of the step just taken; those of guarded or skipped steps are not kept."""
        if self.left:
            self.left -= 1
        elif 0 < norm < math.inf:
            self.norms.append(norm)
            while len(self.norms) > self.history:
                self.norms.popleft()

    @property
    def limit(self) -> float:
        """The norm to clip the next gradient at; inf where nothing is guarded."""
        if not self.left or not self.norms:
            return math.inf
        return self.factor * float(np.quantile(list(self.norms), self.quantile))

    def state(self) -> State:
        return {"norms": list(self.norms)}

    def restore(self, state: State) -> None:
        """This is the resume: the guard stands from here."""
        self.norms = deque(float(norm) for norm in state["norms"])
        self.left = self.steps


# ---- reward normalisation ----


@dataclass(slots=True)
class Moments:
    """Count, mean and sum of squared deviations, merged batch by batch (Chan et al. 1979)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, values: Rewards) -> None:
        n = len(values)
        if n:
            mean, total = float(values.mean()), self.count + n
            step = mean - self.mean
            self.squares += float(((values - mean) ** 2).sum()) + step**2 * self.count * n / total
            self.mean += step * n / total
            self.count = total

    @property
    def std(self) -> float:
        """With n - 1; 0 for fewer than two values."""
        return math.sqrt(self.squares / (self.count - 1)) if self.count > 1 else 0.0

    def standard(self, values: Rewards) -> Rewards:
        """``(values - mean) / (std + 1e-6)`` [n]; a std of less than 1e-6, which is none but for rounding, counts as 1.

        Rounded to float32: sums of equal rewards stay exact, and where all are alike every advantage is exactly 0.
        """
        found = (values - self.mean) / (self.std + EPS if self.std > EPS else 1.0)
        return np.asarray(found, dtype=np.float32).astype(np.float64)


@dataclass(slots=True)
class RewardNormaliser:
    """Rewards in units of their own spread (``Moments.standard``), with the moments of the group, the batch, the last
    ``window`` rewards (the whole batch at least) or all so far.

    Moments are kept per key, the version digest of the verifier that made the rewards: another version starts anew.
    Window and running take the present batch in before they normalise it, so the first batch has moments too; within a
    batch the order of groups does not matter. Equal rewards become 0.
    """

    over: Literal["none", "group", "batch", "window", "running"] = "none"
    window: int = 1024
    recent: dict[str, list[float]] = field(default_factory=dict)
    running: dict[str, Moments] = field(default_factory=dict)

    def moments(self, groups: Sequence[Rewards], keys: Sequence[str]) -> list[Moments]:
        """What each group of one batch, rewards [n_i] with their keys, is normalised with, the batch taken in.

        Call once a batch, in order; never with ``over: none``.
        """
        if self.over == "group":
            return [_moments(group) for group in groups]
        batch = {
            key: np.concatenate([g for g, k in zip(groups, keys, strict=True) if k == key])
            for key in dict.fromkeys(keys)
        }
        found = {key: self._observe(key, values) for key, values in batch.items()}
        return [found[key] for key in keys]

    def _observe(self, key: str, values: Rewards) -> Moments:
        if self.over == "batch":
            return _moments(values)
        if self.over == "window":
            self.recent[key] = [*self.recent.get(key, ()), *values.tolist()][-max(self.window, len(values)) :]
            return _moments(np.array(self.recent[key]))
        self.running.setdefault(key, Moments()).add(values)
        return self.running[key]

    def state(self) -> State:
        return {
            "recent": {key: list(values) for key, values in sorted(self.recent.items())},
            "running": {key: [m.count, m.mean, m.squares] for key, m in sorted(self.running.items())},
        }

    def restore(self, state: State) -> None:
        self.recent = {key: [float(value) for value in values] for key, values in state["recent"].items()}
        self.running = {
            key: Moments(int(count), float(mean), float(squares))
            for key, (count, mean, squares) in state["running"].items()
        }


def _moments(values: Rewards) -> Moments:
    moments = Moments()
    moments.add(values)
    return moments
