"""Samples to microbatches without padding, and back. Pure; torch appears only here and in losses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch

from jurat.platform.ports import Objective
from jurat.platform.types import COLUMNS, FloatArray, Microbatch, Rounds, Sample
from jurat.trainers.aggregation import Aggregation


@dataclass(frozen=True, slots=True)
class Packed:
    """Rounds of one update with the place of each sample in them."""

    rounds: Rounds
    places: tuple[tuple[int, int, int] | None, ...]
    """(round, rank, first token) of each sample; None where it was skipped for having no gradient."""

    def unpack(self, arrays: Sequence[Sequence[FloatArray]], samples: Sequence[Sample]) -> list[FloatArray | None]:
        """[round][rank] -> [T] back to [L] of each sample."""
        return [
            None if place is None else arrays[place[0]][place[1]][place[2] : place[2] + len(sample.tokens)]
            for place, sample in zip(self.places, samples, strict=True)
        ]


def updates(
    samples: Sequence[Sample], *, epochs: int, per_epoch: int, rng: np.random.Generator
) -> Iterator[tuple[Sample, ...]]:
    """Parts of a batch, one optimiser step each: whole atoms, every epoch in a new order (in order if one update)."""
    atoms = sorted({sample.atom for sample in samples})
    for _ in range(epochs):
        order = np.array(atoms) if epochs * per_epoch == 1 else rng.permutation(atoms)
        for part in np.array_split(order, per_epoch):
            chosen = set(part.tolist())
            if chosen:
                yield tuple(sample for sample in samples if sample.atom in chosen)


def pack(
    samples: Sequence[Sample],
    objective: Objective | None,
    aggregation: Aggregation,
    *,
    ranks: int,
    tokens: int,
    constant: int = 1,
    whole_atoms: bool = False,
) -> Packed:
    """Lay samples end to end in microbatches of at most ``tokens`` forwarded tokens (a common prompt counts once).

    ``objective`` None keeps every sample (scoring). A sample longer than ``tokens`` gets a microbatch of its own; so does
    an atom under ``whole_atoms``, which keeps the samples of an atom in one microbatch, in their order.
    Microbatches are dealt to ranks longest first; a rank without work in a round gets an empty one.
    """
    weights = aggregation([sample.weights for sample in samples], [sample.atom for sample in samples], constant)
    skips = objective is not None and objective.skips_zero_advantage
    kept = [j for j, sample in enumerate(samples) if not (skips and not sample.advantages.any())]
    kept.sort(key=lambda j: samples[j].atom)
    targets = [int(np.count_nonzero(sample.loss_mask)) for sample in samples]
    bins: list[list[int]] = []
    used, atom = 0, None
    for _, unit in groupby(kept, key=lambda j: samples[j].atom if whole_atoms else j):
        part = list(unit)
        first = samples[part[0]]
        completions = sum(targets[j] for j in part)
        alone = completions + len(first.tokens) - targets[part[0]]
        cost = completions if first.atom == atom else alone
        atom = first.atom
        if not bins or used + cost > tokens:
            bins.append([])
            used, cost = 0, alone
        bins[-1] += part
        used += cost
    lengths = [sum(len(samples[j].tokens) for j in part) for part in bins]
    order = sorted(range(len(bins)), key=lambda b: -lengths[b]) if ranks > 1 else list(range(len(bins)))
    rounds, places = [], [None] * len(samples)  # type: list[tuple[Microbatch, ...]], list[tuple[int, int, int] | None]
    for r in range(0, len(order), ranks):
        dealt = [bins[b] for b in order[r : r + ranks]]
        dealt += [[] for _ in range(ranks - len(dealt))]
        for rank, part in enumerate(dealt):
            start = 0
            for j in part:
                places[j] = (len(rounds), rank, start)
                start += len(samples[j].tokens)
        rounds.append(tuple(_microbatch([samples[j] for j in part], [weights[j] for j in part]) for part in dealt))
    return Packed(tuple(rounds), tuple(places))


def _microbatch(samples: Sequence[Sample], weights: Sequence[FloatArray]) -> Microbatch:
    def flat(arrays: Sequence[np.ndarray], dtype: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(arrays)).to(dtype) if arrays else torch.zeros(0, dtype=dtype)

    columns: dict[str, Any] = {}
    for name in COLUMNS:
        arrays = list(weights) if name == "weights" else [getattr(sample, name) for sample in samples]
        absent = bool(arrays) and arrays[0] is None
        columns[name] = None if absent else flat(arrays, torch.float32)
    return Microbatch(
        tokens=flat([sample.tokens for sample in samples], torch.int64),
        offsets=torch.tensor(np.cumsum([0, *(len(sample.tokens) for sample in samples)]), dtype=torch.int64),
        loss_mask=flat([sample.loss_mask for sample in samples], torch.bool),
        **columns,
    )
