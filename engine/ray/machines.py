"""The actors that hold a model: each builds the whole engine of one process and lends one part of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from jurat.engine import compute
from jurat.engine.learner import LocalLearner
from jurat.engine.local import LocalEngine
from jurat.engine.ray.actor import Actor
from jurat.engine.ray.wire import Array, WireRounds, fill, from_wire, pack_weights, size_of
from jurat.platform.ports import Objective
from jurat.platform.recipe import Optim
from jurat.platform.types import Completion, FloatArray, Request, UpdateReport

Make = Callable[[], LocalEngine]


class SamplerActor(Actor):
    """A ``Sampler`` with weights of its own, which ``publish`` replaces."""

    machine: LocalEngine

    async def start(self, make: Make) -> Mapping[str, Any]:
        with self.uncounted():
            self.machine = await asyncio.to_thread(make)
        return self.machine.info

    def progress(self) -> int:
        return self.answered + (self.machine.sampler.turns if hasattr(self, "machine") else 0)

    async def one(self, item: Request) -> Completion:
        return await self.machine.sampler.sample(item)

    async def publish(self, version: int, packed: Mapping[str, Array]) -> None:
        network = _in_process(self.machine).network

        def load() -> None:
            fill(network.views(), packed)
            network.refresh()

        with self.uncounted():
            await self.machine.sampler.publish(version, load)

    async def interrupt(self) -> tuple[Completion, ...]:
        return await self.machine.sampler.interrupt()

    async def shut(self) -> None:
        self.machine.sampler.close()


class LearnerActor(Actor):
    """A ``Learner``. With the weights of another (``adopt``) it is a reference, which only scores, or becomes a critic."""

    machine: LocalEngine
    learner: LocalLearner

    async def start(self, make: Make) -> Mapping[str, Any]:
        with self.uncounted():
            self.machine = await asyncio.to_thread(make)
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
        found = method(*args)
        self.answered += 1
        return found

    async def checkpoint_bytes(self) -> int:
        return self.learner.checkpoint_bytes

    async def score(self, rounds: WireRounds) -> Sequence[Sequence[FloatArray]]:
        return await self.learner.score(from_wire(rounds))

    async def update(self, rounds: WireRounds, objective: Objective, clip_norm: float | None) -> UpdateReport:
        return await self.learner.update(from_wire(rounds), objective, clip_norm=clip_norm)

    async def save(self, folder: Path) -> None:
        with self.uncounted():
            await self.learner.save(folder)

    async def load(self, folder: Path, weights_only: bool) -> None:
        with self.uncounted():
            await self.learner.load(folder, weights_only=weights_only)

    async def weights(self, dtype: str) -> tuple[dict[str, Array], int]:
        """(the model as it is now, adapters merged; its bytes)."""
        views = self.learner.network.views()
        with self.uncounted():
            packed = await compute.run(pack_weights, views, getattr(torch, dtype))
        return packed, size_of(packed)

    async def adopt(self, packed: Mapping[str, Array]) -> None:
        network = self.learner.network

        def load() -> None:
            fill(network.views(), packed)
            network.refresh()

        with self.uncounted():
            await compute.run(load)


def _in_process(machine: LocalEngine) -> LocalLearner:
    assert isinstance(machine.learner, LocalLearner), "several ranks are a ShardedActor's"
    return machine.learner
