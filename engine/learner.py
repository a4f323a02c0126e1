"""A learner in this process: a network whose parameters lie in one flat buffer, and the optimiser that moves it.

The network (``simple/`` or ``llama/``) knows how to score a microbatch and how to add a loss's gradient to its flat
gradient; everything else about an update is here, once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from jurat.engine import compute
from jurat.engine.optim import AdamW
from jurat.engine.tensorfile import read_tensors, record_digests, write_side_files, write_tensors
from jurat.platform import faults
from jurat.platform.ports import Objective
from jurat.platform.recipe import Optim
from jurat.platform.types import COLUMNS, FloatArray, Microbatch, Rounds, UpdateReport


@dataclass(slots=True)
class Tally:
    """Sums over the targets of an update; what a network reports of a backward pass."""

    loss: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    """The objective's own, summed with the weights of the loss."""
    weight: float = 0.0
    """Sum of those weights."""
    entropy: float = 0.0
    """Nats, summed over targets."""
    diff: float = 0.0
    """|current - sampler log-prob|, summed over targets."""
    diff_max: float = 0.0
    kl: float = 0.0
    """k3 of KL(sampler || current), ``exp(d) - 1 - d`` with d = current - sampler log-prob, summed over targets."""
    targets: int = 0
    forwarded: int = 0
    """Tokens the network ran over."""

    def judge(self, objective: Objective, current: Tensor, entropy: Tensor, mb: Microbatch) -> Tensor:
        """Call ``objective`` on current log-probs [T], count what it says, and return d loss / d current [T].

        ``entropy`` [K] is that of the K targets of ``mb``.
        """
        leaf = current.detach().requires_grad_()
        with torch.enable_grad():
            loss, metrics = objective(leaf, mb)
        slope = torch.autograd.grad(loss, leaf, allow_unused=True)[0] if loss.requires_grad else None
        self.loss += float(loss.detach())
        for name, value in metrics.items():
            self.metrics[name] = self.metrics.get(name, 0.0) + float(value.detach())
        self.weight += float(mb.weights[mb.loss_mask].sum())
        if objective.sampled:
            moved = (current.detach() - mb.sampler_logprobs)[mb.loss_mask]
            self.kl += float((moved.clamp(-20.0, 20.0).expm1() - moved).sum())
            diff = moved.abs()
            self.diff += float(diff.sum())
            self.diff_max = max(self.diff_max, float(diff.max()) if len(diff) else 0.0)
        self.entropy += float(entropy.sum())
        self.targets += len(entropy)
        return torch.zeros_like(leaf) if slope is None else slope


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A learner's state in memory."""

    parts: Sequence[Mapping[str, Mapping[str, FloatArray]]]
    """Of each rank, {kind: {name: float32 array}}."""
    counters: Mapping[str, int]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for part in self.parts for arrays in part.values() for array in arrays.values())


class Network(Protocol):
    """A causal language model with one flat float32 master [n] and gradient [n], matrices first.

    A critic is one too, with the value of each target's state (before the token is chosen) where a log-prob would be.
    """

    @property
    def master(self) -> Tensor: ...

    @property
    def grad(self) -> Tensor:
        """Made at first use."""
        ...

    @property
    def num_matrix(self) -> int:
        """Parameters in matrices: the part that weight decay shrinks."""
        ...

    def views(self) -> Mapping[str, Tensor]:
        """{transformers name: view of the master}."""
        ...

    def refresh(self) -> None:
        """The master changed: working copies follow."""
        ...

    def logprobs(self, mb: Microbatch) -> Tensor:
        """[T] log-probs of the targets, 0 off the mask; no gradient."""
        ...

    def backward(self, mb: Microbatch, objective: Objective, tally: Tally) -> None:
        """Add the gradient of ``objective`` on ``mb`` to ``grad`` and its numbers to ``tally``."""
        ...


def worth_training(mb: Microbatch, objective: Objective) -> Microbatch:
    """``mb`` without what cannot change the gradient.

    Left out are segments without a weighted target (or, where the objective says that it may, without an advantage) and
    tokens after a segment's last target. Weights already carry the update's normaliser, so those left out still count.
    """
    counts = mb.loss_mask & (mb.weights != 0)
    if objective.skips_zero_advantage:
        counts &= mb.advantages != 0
    lengths = mb.offsets.diff()
    segment = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
    alive = torch.zeros(len(lengths), dtype=torch.bool, device=lengths.device)
    alive[segment[counts]] = True
    place = torch.arange(len(segment), device=lengths.device)
    last = torch.zeros_like(lengths).scatter_reduce(0, segment[mb.loss_mask], place[mb.loss_mask], "amax")
    kept = (alive[segment] & (place <= last[segment])).nonzero().squeeze(1)
    if len(kept) == len(segment):
        return mb
    ends = torch.bincount(segment[kept], minlength=len(lengths))[alive].cumsum(0)
    return dataclasses.replace(mb.select(kept), offsets=torch.cat([ends.new_zeros(1), ends]))


def on_device(mb: Microbatch, device: torch.device) -> Microbatch:
    if mb.tokens.device == device:
        return mb
    names = ("tokens", "offsets", "loss_mask", *COLUMNS)
    moved: dict[str, Any] = {name: None if (c := getattr(mb, name)) is None else c.to(device) for name in names}
    return Microbatch(**moved)


class LocalScorer:
    """Log-probs of a frozen network: a reference model."""

    ranks = 1

    def __init__(self, network: Network) -> None:
        self.network = network

    async def score(self, rounds: Rounds) -> Sequence[Sequence[FloatArray]]:
        return [[await compute.run(self._score, mb) for mb in ranks] for ranks in rounds]

    def _score(self, mb: Microbatch) -> FloatArray:
        if not bool(mb.loss_mask.any()):
            return torch.zeros(len(mb.tokens)).numpy()
        with torch.no_grad():
            found: FloatArray = self.network.logprobs(on_device(mb, self.network.master.device)).float().cpu().numpy()
        return found


class LocalLearner(LocalScorer):
    """A network that learns. ``source`` is the HF folder whose config and tokenizer go into every checkpoint."""

    def __init__(self, network: Network, optim: Optim, *, total: int, source: Path, role: str = "policy") -> None:
        super().__init__(network)
        self.role, self.source = role, source
        self.optimizer = AdamW(network.master, network.grad, num_matrix=network.num_matrix, optim=optim, total=total)

    async def update(self, rounds: Rounds, objective: Objective, *, clip_norm: float | None = None) -> UpdateReport:
        """One optimiser step; a non-finite loss or gradient is reported as ``skipped`` and changes no weight."""
        return await compute.run(self._update, rounds, objective, clip_norm)

    def _update(self, rounds: Rounds, objective: Objective, clip_norm: float | None) -> UpdateReport:
        began = time.perf_counter()
        tally = Tally()
        for mb in _each(rounds):
            trained = worth_training(mb, objective)
            if len(trained.tokens):
                self.network.backward(on_device(trained, self.network.master.device), objective, tally)
        halfway = time.perf_counter()
        stepped = self.optimizer.step(loss=tally.loss, clip_norm=clip_norm)
        if not stepped["skipped"]:
            self.network.refresh()
        seconds = {"forward_backward": halfway - began, "optimizer": time.perf_counter() - halfway}
        return reported(self.role, tally, stepped, objective, clip_norm=clip_norm, seconds=seconds)

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of tensors that ``save`` writes."""
        return 3 * self.network.master.nbytes

    async def save(self, folder: Path) -> None:
        """An HF folder with float32 masters, ``optimizer.safetensors``, ``learner.json`` and each file's digest."""
        await compute.run(self._save, folder)

    def _save(self, folder: Path) -> None:
        self._write(folder, self.network.views(), self.optimizer.tensors(), self.state())

    def _write(
        self, folder: Path, weights: Mapping[str, Tensor], moments: Mapping[str, Tensor], state: Mapping[str, Any]
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_side_files(self.source, folder, dtype=torch.float32)
        digests = {"model.safetensors": write_tensors(folder / "model.safetensors", weights)}
        faults.point("learner.mid_save")
        digests["optimizer.safetensors"] = write_tensors(folder / "optimizer.safetensors", moments)
        (folder / "learner.json").write_text(json.dumps(state, indent=2, sort_keys=True) + "\n")
        record_digests(folder, digests)

    def snapshot(self) -> Snapshot:
        """Copies of all that an update reads and changes: the master, both moments, the counters."""
        flat = {"master": self.network.master, **self.optimizer.tensors()}
        arrays = {name: tensor.detach().to("cpu", copy=True).numpy() for name, tensor in flat.items()}
        return Snapshot(({"": arrays},), dict(self.optimizer.counters()))

    @torch.no_grad()
    def restore(self, snapshot: Snapshot) -> None:
        """Be as when ``snapshot`` was made; what does not learn stays as it is."""
        ((arrays,),) = (part.values() for part in snapshot.parts)
        for name, tensor in {"master": self.network.master, **self.optimizer.tensors()}.items():
            tensor.copy_(torch.tensor(arrays[name]))
        self.optimizer.restore(snapshot.counters)
        self.network.refresh()

    def state(self) -> dict[str, Any]:
        """What ``learner.json`` holds."""
        return {"role": self.role, "optimizer": dict(self.optimizer.counters()), "layout": self._places()}

    async def load(self, folder: Path, *, weights_only: bool = False) -> None:
        """Continue from ``save``; ``weights_only`` takes the model and starts its optimiser and schedule anew."""
        await compute.run(self._load, folder, weights_only=weights_only)

    def _load(self, folder: Path, *, weights_only: bool) -> None:
        with torch.no_grad():
            read_tensors(folder / "model.safetensors", self.network.views())
        self.network.refresh()
        if weights_only:
            return
        state = json.loads((folder / "learner.json").read_text())
        moments = self.optimizer.tensors()
        if state.get("moments") == "named":  # as several ranks write them
            moments = {
                f"{moment}.{name}": flat[at : at + view.numel()].view(view.shape)
                for moment, flat in moments.items()
                for (name, view), at in zip(self.network.views().items(), self._places().values(), strict=True)
            }
        read_tensors(folder / "optimizer.safetensors", moments)
        self.optimizer.restore(state["optimizer"])

    def _places(self) -> dict[str, int]:
        """{name: where its tensor begins in master and moments}."""
        start = self.network.master.storage_offset()
        return {name: int(view.storage_offset() - start) for name, view in self.network.views().items()}


class StagingLearner(LocalLearner):
    """A ``LocalLearner`` whose numbers lie on a GPU. A checkpoint has to come to the CPU's memory in any case: it comes there
    whole, 12 bytes a parameter, and is written while training goes on."""

    async def stage(self, folder: Path) -> Coroutine[Any, Any, None]:
        """As ``save``; what comes back ends when all is on the disk."""
        folder.mkdir(parents=True, exist_ok=True)
        return asyncio.to_thread(self._write, folder, *await compute.run(self._copied))

    def _copied(self) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
        weights, moments = (
            {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
            for tensors in (self.network.views(), self.optimizer.tensors())
        )
        return weights, moments, self.state()


def reported(
    role: str,
    tally: Tally,
    stepped: Mapping[str, float],
    objective: Objective,
    *,
    clip_norm: float | None,
    seconds: Mapping[str, float],
) -> UpdateReport:
    """What is told of an update: ``tally`` of its passes, ``stepped`` of its optimiser."""
    count = max(1, tally.targets)
    moved = {
        "logprob_diff_mean": tally.diff / count,
        "logprob_diff_max": tally.diff_max,
        "kl_sampler": tally.kl / count,
    }
    metrics = {
        **{name: value / (tally.weight or 1.0) for name, value in tally.metrics.items()},
        "loss": tally.loss,
        "grad_norm": stepped["grad_norm"],
        "lr": stepped["lr"],
        **({} if role == "critic" else {"entropy": tally.entropy / count}),
        **(moved if objective.sampled else {}),
        **({} if clip_norm is None else {"clip_norm": clip_norm}),
    }
    return UpdateReport(
        role=role, metrics=metrics, tokens=tally.targets, forwarded_tokens=tally.forwarded,
        skipped=bool(stepped["skipped"]), seconds=seconds,
    )  # fmt: skip


def _each(rounds: Rounds) -> Iterator[Microbatch]:
    return (mb for ranks in rounds for mb in ranks if len(mb.tokens))
