"""Temperature scaling (Guo et al. 2017): one number that makes a classifier's chances honest, fitted on labelled answers."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from jurat.verifiers.models.folder import TEMPERATURE

BOUNDS = (0.01, 100.0)


def log_loss(logits: Sequence[float], labels: Sequence[bool], temperature: float) -> float:
    """Mean over answers of ``log(1 + exp(-y z / T))``, y = 1 for right and -1 for wrong, nats."""
    total = 0.0
    for logit, label in zip(logits, labels, strict=True):
        x = (-1 if label else 1) * logit / temperature
        total += max(x, 0.0) + math.log1p(math.exp(-abs(x)))
    return total / len(logits)


def fit_temperature(logits: Sequence[float], labels: Sequence[bool]) -> float:
    """The T in ``BOUNDS`` with the least log loss, by golden section over log T, in which it has one valley.

    Raises ValueError for fewer than two answers, or where all have one label.
    """
    if len(logits) < 2 or len(set(labels)) < 2:
        raise ValueError("a temperature needs right answers and wrong ones")
    low, high = (math.log(bound) for bound in BOUNDS)
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(60):
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        if log_loss(logits, labels, math.exp(a)) < log_loss(logits, labels, math.exp(b)):
            high = b
        else:
            low = a
    return math.exp((low + high) / 2)


def write(folder: Path, temperature: float) -> None:
    """Keep it beside the weights: the model is another version then."""
    (folder / TEMPERATURE).write_text(json.dumps({"temperature": temperature}) + "\n", "utf-8")
