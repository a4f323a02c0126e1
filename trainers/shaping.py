"""Reward shaping: what is optimised, from what was judged. Pure, float64, penalties at most 0.

Order (log the number that comes out): combined score -> scale and offset -> length penalties -> clip -> KL in the
reward -> baseline -> normalisation -> mask. Dynamic sampling looks at correctness, before any of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jurat.platform.types import BoolArray
from jurat.trainers.advantages import Rewards


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthPenalty:
    """``-per_token * max(0, length - free)``."""

    per_token: float
    free: int = 0

    def __call__(self, lengths: NDArray[np.int64]) -> Rewards:
        """Lengths [n] in completion tokens -> [n]."""
        return -self.per_token * np.maximum(0.0, np.asarray(lengths, np.float64) - self.free)


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftOverlong:
    """Soft overlong punishment: 0 up to ``limit - cache`` tokens, then down in a line to ``-factor`` at ``limit``.

    DAPO (arXiv 2503.14476, eq. 13; there 20480, 4096 and 1). Beyond the limit it stays at -factor, as in the paper, in
    TRL and in OpenRLHF; verl's line goes on down, but no answer is longer than its limit.
    """

    limit: int
    cache: int
    factor: float = 1.0

    def __call__(self, lengths: NDArray[np.int64]) -> Rewards:
        """Lengths [n] in completion tokens -> [n]."""
        over = np.asarray(lengths, np.float64) - (self.limit - self.cache)
        return -self.factor * np.clip(over / self.cache, 0.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaping:
    """``clip(scale * r + offset + penalties)``. Rewards of +-1 from 0 and 1: ``Shaping(scale=2, offset=-1)``."""

    scale: float = 1.0
    offset: float = 0.0
    length: LengthPenalty | None = None
    overlong: SoftOverlong | None = None
    clip: tuple[float, float] | None = None

    def __call__(self, rewards: Rewards, lengths: NDArray[np.int64]) -> Rewards:
        """Rewards [n] and completion tokens [n] -> [n]; samples are shaped one by one, so any batch will do."""
        shaped = self.scale * rewards + self.offset
        for penalty in (self.length, self.overlong):
            if penalty is not None:
                shaped = shaped + penalty(lengths)
        return shaped if self.clip is None else np.clip(shaped, *self.clip)


def token_rewards(
    reward: float, num_tokens: int, *, kl: Rewards | None = None, coef: float = 0.0, mask: BoolArray | None = None
) -> Rewards:
    """[N]: ``-coef * kl_t`` at every trained token, and the reward at the last one (arXiv 1909.08593, eq. 2).

    ``kl`` [N] is k1, ``log pi(sampler) - log pi_ref``, of the policy that sampled: in the reward it is a constant, and
    at gamma 1 the gradient of the whole is that of the reverse KL.
    """
    trained = np.arange(num_tokens) if mask is None else np.flatnonzero(mask)
    rewards = np.zeros(num_tokens)
    if kl is not None:
        rewards[trained] = -coef * kl[trained]
    rewards[trained[-1:]] += reward
    return rewards
