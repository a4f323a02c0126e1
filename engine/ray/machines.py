"""The actors that hold a model: each builds the whole engine of one process and lends one part of it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from jurat.engine import compute
from jurat.engine.learner import LocalLearner, Network
from jurat.engine.local import LocalEngine
from jurat.engine.meter import meter
from jurat.engine.ray.actor import Actor
from jurat.engine.ray.wire import Array, WireRounds, fill, from_wire, pack_weights, size_of
from jurat.platform import faults
from jurat.platform.ports import Objective
from jurat.platform.recipe import Optim
from jurat.platform.types import Completion, FloatArray, Request, UpdateReport

Make = Callable[[], LocalEngine]
Snapshot = tuple[Mapping[str, Array], Mapping[str, int]]
"""Flat float32 arrays and the optimiser's counters."""


class Machine(Actor):
    """An actor with an engine."""

    machine: LocalEngine

    async def _begin(self, make: Make) -> None:
        self.machine = await asyncio.to_thread(make)
        self._meter = meter(self.machine.info["device"])

    async def peaks(self) -> Mapping[str, int]:
        """Most memory that this process has had since it was last asked, as ``engine/meter.py`` has it."""
        return self._meter()


class SamplerActor(Machine):
    """A ``Sampler`` with weights of its own, which ``publish`` replaces."""

    async def start(self, make: Make) -> Mapping[str, Any]:
        faults.point("actor.mid_start")
        with self.uncounted():
            await self._begin(make)
        return self.machine.info

    def progress(self) -> int:
        return self.answered + (self.machine.sampler.turns if hasattr(self, "machine") else 0)

    async def one(self, item: Request) -> Completion:
        return await self.machine.sampler.sample(item)

    async def publish(self, version: int, packed: Mapping[str, Array]) -> None:
        network = _in_process(self.machine).network
        with self.uncounted():
            await self.machine.sampler.publish(version, partial(_load, network, packed))

    async def interrupt(self) -> tuple[Completion, ...]:
        return await self.machine.sampler.interrupt()

    async def shut(self) -> None:
        self.machine.sampler.close()


class LearnerActor(Machine):
    """A ``Learner``. With the weights of another (``adopt``) it is a reference, which only scores, or becomes a critic."""

    learner: LocalLearner

    async def start(self, make: Make) -> Mapping[str, Any]:
        faults.point("actor.mid_start")
        with self.uncounted():
            await self._begin(make)
        self._hold(_in_process(self.machine))
        return self.machine.info

    async def critic(self, optim: Optim, total_steps: int) -> None:
        """Become a value model that begins with the weights adopted."""
        with self.uncounted():
            made = await asyncio.to_thread(self.machine.critic, optim, total_steps)
        assert isinstance(made, LocalLearner)
        self._hold(made)

    def _hold(self, learner: LocalLearner) -> None:
        self.learner = learner
        for name in ("backward", "logprobs"):
            setattr(learner.network, name, partial(self._counted, getattr(learner.network, name)))

    def _counted(self, method: Callable[..., Any], *args: Any) -> Any:
        """A microbatch done is progress."""
        faults.point("actor.mid_work")
        found = method(*args)
        self.answered += 1
        return found

    async def checkpoint_bytes(self) -> int:
        return self.learner.checkpoint_bytes

    async def score(self, rounds: WireRounds) -> Sequence[Sequence[FloatArray]]:
        faults.point("actor.asked")
        found = await self.learner.score(from_wire(rounds))
        faults.point("actor.before_answer")
        return found

    async def update(self, rounds: WireRounds, objective: Objective, clip_norm: float | None) -> UpdateReport:
        faults.point("actor.asked")
        report = await self.learner.update(from_wire(rounds), objective, clip_norm=clip_norm)
        faults.point("actor.before_answer")
        return report

    async def snapshot(self) -> tuple[Snapshot, int]:
        """(all that an update reads and changes: the master, both moments and the counters; its bytes)."""
        with self.uncounted():
            return await compute.run(self._snapshot)

    def _snapshot(self) -> tuple[Snapshot, int]:
        optimizer = self.learner.optimizer
        flat = {"master": self.learner.network.master, **optimizer.tensors()}
        arrays = {name: tensor.detach().to("cpu", copy=True).numpy() for name, tensor in flat.items()}
        faults.point("actor.mid_snapshot")
        return (arrays, dict(optimizer.counters())), size_of(arrays)

    async def restore(self, snapshot: Snapshot) -> None:
        with self.uncounted():
            await compute.run(self._restore, *snapshot)

    @torch.no_grad()
    def _restore(self, arrays: Mapping[str, Array], counters: Mapping[str, int]) -> None:
        learner = self.learner
        fill({"master": learner.network.master, **learner.optimizer.tensors()}, arrays)
        learner.optimizer.restore(counters)
        learner.network.refresh()

    async def save(self, folder: Path) -> None:
        """Into a new folder; what one that died left there is removed."""
        with self.uncounted():
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            await self.learner.save(folder)

    async def load(self, folder: Path, weights_only: bool) -> None:
        with self.uncounted():
            await self.learner.load(folder, weights_only=weights_only)

    async def weights(self, dtype: str) -> tuple[dict[str, Array], int]:
        """(the model as it is now, adapters merged; its bytes)."""
        views = self.learner.network.views()
        with self.uncounted():
            packed = await compute.run(pack_weights, views, getattr(torch, dtype))
        faults.point("actor.mid_weights")
        return packed, size_of(packed)

    async def adopt(self, packed: Mapping[str, Array]) -> None:
        with self.uncounted():
            await compute.run(_load, self.learner.network, packed)


def _load(network: Network, packed: Mapping[str, Array]) -> None:
    fill(network.views(), packed)
    faults.point("actor.mid_weights")
    network.refresh()


def _in_process(machine: LocalEngine) -> LocalLearner:
    assert isinstance(machine.learner, LocalLearner), "several ranks are a ShardedActor's"
    return machine.learner
