"""Estimators of KL(policy || reference) per token (Schulman 2020, "Approximating KL divergence").

With ``d = log policy - log reference`` on tokens drawn by the policy: k1 and k3 are unbiased as values. As losses only
k2 has the gradient of the reverse KL on policy; k1 has expected gradient 0 and k3 points elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import Tensor, exp


def k1(d: Tensor) -> Tensor:
    """``d``"""
    return d


def k2(d: Tensor) -> Tensor:
    """``d^2 / 2``"""
    return d.square() / 2


def k3(d: Tensor) -> Tensor:
    """``exp(-d) - 1 + d``, never negative."""
    d = d.clamp(-20.0, 20.0)
    return exp(-d) - 1 + d


KL_ESTIMATORS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType({"k1": k1, "k2": k2, "k3": k3})
