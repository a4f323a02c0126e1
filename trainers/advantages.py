"""Advantages of the samples of one group, as pure functions of its raw rewards.

``rewards`` is [n] float64 without excluded samples; the result is [n]. A group of one has advantage 0: without a
baseline its raw reward would reinforce whatever was said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

Rewards = NDArray[np.float64]
EPS = 1e-6


def grpo(rewards: Rewards) -> Rewards:
    """``(r - mean) / (std + 1e-6)``, std with n - 1 (DeepSeekMath, arXiv 2402.03300, section 4.1.2)."""
    if len(rewards) < 2:
        return np.zeros_like(rewards)
    return (rewards - float(rewards.mean())) / (float(rewards.std(ddof=1)) + EPS)


def dr_grpo(rewards: Rewards) -> Rewards:
    """``r - mean`` (Dr. GRPO, arXiv 2503.20783). Its expectation is (n - 1)/n of the true advantage."""
    if len(rewards) < 2:
        return np.zeros_like(rewards)
    return rewards - float(rewards.mean())


def rloo(rewards: Rewards) -> Rewards:
    """``r_j - mean of the others = n/(n-1) (r_j - mean)``: unbiased (arXiv 2402.14740)."""
    n = len(rewards)
    if n < 2:
        return np.zeros_like(rewards)
    return (rewards - float(rewards.mean())) * (n / (n - 1))


ADVANTAGES: Mapping[str, Callable[[Rewards], Rewards]] = MappingProxyType(
    {
        "grpo": grpo,
        "dr_grpo": dr_grpo,
        "rloo": rloo,
    }
)
