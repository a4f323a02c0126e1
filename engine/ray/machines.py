"""The actors that hold a model: each builds the whole engine of one process and lends one part of it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from jurat.engine import compute
from jurat.engine.learner import LocalLearner, Network, Snapshot
from jurat.engine.local import LocalEngine, Sharded
from jurat.engine.meter import meter
from jurat.engine.ray.actor import Actor
from jurat.engine.ray.wire import Array, WireRounds, as_array, fill, from_wire, pack_weights, size_of, tensor_of
from jurat.platform import faults
from jurat.platform.ports import Objective
from jurat.platform.recipe import Optim
from jurat.platform.types import Completion, FloatArray, Request, UpdateReport

if TYPE_CHECKING:
    from jurat.engine.fsdp.learner import FsdpLearner


class Machine(Actor):
    """An actor with an engine."""

    machine: LocalEngine | Sharded

    async def start(self, make: Callable[[], LocalEngine | Sharded]) -> Mapping[str, Any]:
        faults.point("actor.mid_start")
        with self.uncounted():
            self.machine = await asyncio.to_thread(make)
        self._meter = meter("cpu" if isinstance(self.machine, Sharded) else self.machine.info["device"])
        return self.machine.info

    async def peaks(self) -> Mapping[str, int]:
        """Most memory that this process has had since it was last asked, as ``engine/meter.py`` has it, and its ranks."""
        if not hasattr(self, "_meter"):
            return {}  # the one before is lost, and this one is not ready
        ranks = await self.machine.learner.peaks() if isinstance(self.machine, Sharded) else {}
        return {**self._meter(), **ranks}

    async def shut(self) -> None:
        if hasattr(self, "machine"):
            await asyncio.to_thread(self.machine.close)


class SamplerActor(Machine):
    """A ``Sampler`` with weights of its own, which ``publish`` replaces."""

    machine: LocalEngine

    def progress(self) -> int:
        return self.answered + (self.machine.sampler.turns if hasattr(self, "machine") else 0)

    async def one(self, item: Request) -> Completion:
        return await self.machine.sampler.sample(item)

    async def publish(self, version: int, packed: Mapping[str, Array]) -> None:
        assert isinstance(self.machine.learner, LocalLearner)
        network = self.machine.learner.network
        with self.uncounted():
            await self.machine.sampler.publish(version, partial(_load, network, packed))

    async def limit(self, rows: int) -> None:
        self.machine.sampler.limit(rows)

    async def interrupt(self) -> tuple[Completion, ...]:
        return await self.machine.sampler.interrupt()


class LearnerActor(Machine):
    """A ``Learner``, in this process or cut over others of its machine, which end with it. With the weights of another
    (``adopt``) it is a reference, which only scores, or becomes a critic."""

    learner: LocalLearner | FsdpLearner

    async def start(self, make: Callable[[], LocalEngine | Sharded]) -> Mapping[str, Any]:
        info = await super().start(make)
        self._hold(self.machine.learner)
        return info

    async def critic(self, optim: Optim, total_steps: int) -> None:
        """Become a value model that begins with the weights adopted."""
        with self.uncounted():
            self._hold(await asyncio.to_thread(self.machine.critic, optim, total_steps))

    def _hold(self, learner: LocalLearner | FsdpLearner) -> None:
        self.learner = learner
        if isinstance(learner, LocalLearner):
            for name in ("backward", "logprobs"):
                setattr(learner.network, name, partial(self._counted, getattr(learner.network, name)))

    def _counted(self, method: Callable[..., Any], *args: Any) -> Any:
        """A microbatch done is progress."""
        faults.point("actor.mid_work")
        found = method(*args)
        self.answered += 1
        return found

    def progress(self) -> int:
        machine = getattr(self, "machine", None)
        return self.answered + (machine.learner.processes.moves if isinstance(machine, Sharded) else 0)

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
        """(the learner's state, its bytes)."""
        with self.uncounted():
            found = await compute.run(self.learner.snapshot)
        faults.point("actor.mid_snapshot")
        return found, found.nbytes

    async def restore(self, snapshot: Snapshot) -> None:
        with self.uncounted():
            await compute.run(self.learner.restore, snapshot)

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
        with self.uncounted():
            packed = await compute.run(self._packed, getattr(torch, dtype))
        faults.point("actor.mid_weights")
        return packed, size_of(packed)

    def _packed(self, dtype: torch.dtype) -> dict[str, Array]:
        if isinstance(self.learner, LocalLearner):
            return pack_weights(self.learner.network.views(), dtype)
        shapes = self.learner.shapes
        whole = {name: torch.empty(s, dtype=dtype if len(s) > 1 else torch.float32) for name, s in shapes.items()}
        self.learner.pull(whole)
        return {name: as_array(tensor) for name, tensor in whole.items()}

    async def adopt(self, packed: Mapping[str, Array]) -> None:
        with self.uncounted():
            await compute.run(self._adopt, packed)

    def _adopt(self, packed: Mapping[str, Array]) -> None:
        if isinstance(self.learner, LocalLearner):
            _load(self.learner.network, packed)
        else:
            self.learner.fill({name: tensor_of(array) for name, array in packed.items()})


def _load(network: Network, packed: Mapping[str, Array]) -> None:
    fill(network.views(), packed)
    faults.point("actor.mid_weights")
    network.refresh()
