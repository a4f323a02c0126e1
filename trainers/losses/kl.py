"""Estimators of KL(policy || reference) per token (Schulman 2020, "Approximating KL divergence").

With ``d = log policy - log reference`` on tokens drawn by the policy: k1 and k3 are unbiased as values. As losses only
k2 has the gradient of the reverse KL on policy; k1 has expected gradient 0 and k3 points elsewhere. The '+' forms have
the value of k1 or k3 and the gradient of k2 (verl's "k3+", OpenRLHF's ``unbiased_gradient``).

References disagree on clamps: verl limits k3 to [-10, 10], OpenRLHF every estimator, TRL none. A limit takes the
gradient away where the policy has drifted furthest, so ours is none but the exponent's; ``limit`` is there for the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import Tensor, exp


def k1(d: Tensor, limit: float = math.inf) -> Tensor:
    """``d``"""
    return d.clamp(-limit, limit) if limit < math.inf else d


def k2(d: Tensor, limit: float = math.inf) -> Tensor:
    """``d^2 / 2``"""
    return (d.square() / 2).clamp(max=limit) if limit < math.inf else d.square() / 2


def k3(d: Tensor, limit: float = math.inf) -> Tensor:
    """``exp(-d) - 1 + d``, never negative."""
    d = d.clamp(-20.0, 20.0)
    found = exp(-d) - 1 + d
    return found.clamp(max=limit) if limit < math.inf else found


def straight_through(value: Tensor, d: Tensor, ratio: Tensor | float = 1.0) -> Tensor:
    """``value``, with the gradient of k2: ``ratio * d * grad log policy``, that of the reverse KL.

    ``ratio`` = policy / sampling policy, without gradient, keeps it exact on tokens drawn by an older policy.
    """
    square = k2(d) * ratio
    return square - square.detach() + value.detach()


def k1_plus(d: Tensor, limit: float = math.inf) -> Tensor:
    """The value of k1, the gradient of k2."""
    return straight_through(k1(d, limit), d)


def k3_plus(d: Tensor, limit: float = math.inf) -> Tensor:
    """The value of k3, the gradient of k2."""
    return straight_through(k3(d, limit), d)


KL_ESTIMATORS: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {"k1": k1, "k2": k2, "k3": k3, "abs": Tensor.abs, "k1+": k1_plus, "k3+": k3_plus}
)
"""name -> estimator of d; ``abs`` is a penalty, not an estimate."""
