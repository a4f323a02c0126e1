"""The actors that hold a model: each builds the whole engine of one process and lends one part of it."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from jurat.engine import compute
from jurat.engine.learner import LocalLearner, Network, Snapshot
from jurat.engine.local import LocalEngine
from jurat.engine.ray.actor import Actor
from jurat.engine.ray.wire import Array, WireRounds, as_array, fill, from_wire, pack_weights, size_of
from jurat.platform import faults
from jurat.platform.errors import RunFailed
from jurat.platform.ports import Objective, Scorer
from jurat.platform.recipe import Optim
from jurat.platform.types import Completion, FloatArray, Request, UpdateReport

if TYPE_CHECKING:
    from jurat.engine.fsdp.learner import FsdpLearner

Make = Callable[[], LocalEngine]


class SamplerActor(Actor):
    """A ``Sampler`` with weights of its own, which ``publish`` replaces."""

    machine: LocalEngine

    async def start(self, make: Make) -> Mapping[str, Any]:
        faults.point("actor.mid_start")
        with self.uncounted():
            self.machine = await asyncio.to_thread(make)
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


class LearnerActor(Actor):
    """A ``Learner``, in this process or cut over others of this machine. With the weights of another (``adopt``) it is a
    reference, which only scores, or becomes a critic."""

    machine: LocalEngine
    learner: LocalLearner | FsdpLearner

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[str, Scorer] = {}

    async def start(self, make: Make) -> Mapping[str, Any]:
        faults.point("actor.mid_start")
        with self.uncounted():
            self.machine = await asyncio.to_thread(make)
        self._hold(self.machine.learner)
        return self.machine.info

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
        sharded = hasattr(self, "learner") and not isinstance(self.learner, LocalLearner)
        return self.answered + (self.learner.processes.moves if sharded else 0)  # type: ignore[union-attr]

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """A learner one of whose ranks is lost goes with it, and is made again."""
        try:
            yield
        except RunFailed:
            if not isinstance(self.learner, LocalLearner) and self.learner.processes.failed:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            raise

    async def checkpoint_bytes(self) -> int:
        return self.learner.checkpoint_bytes

    async def score(self, rounds: WireRounds, of: str = "") -> Sequence[Sequence[FloatArray]]:
        """By the weights of now, or by those kept under a name."""
        faults.point("actor.asked")
        with self._whole():
            found = await (self._kept[of] if of else self.learner).score(from_wire(rounds))
        faults.point("actor.before_answer")
        return found

    async def update(self, rounds: WireRounds, objective: Objective, clip_norm: float | None) -> UpdateReport:
        faults.point("actor.asked")
        with self._whole():
            report = await self.learner.update(from_wire(rounds), objective, clip_norm=clip_norm)
        faults.point("actor.before_answer")
        return report

    async def keep(self, name: str) -> None:
        """Keep the weights of now under a name; for a learner with ranks."""
        assert not isinstance(self.learner, LocalLearner)
        with self.uncounted(), self._whole():
            self._kept[name] = await asyncio.to_thread(self.learner.keep, name)

    async def snapshot(self) -> tuple[Snapshot, int]:
        """(the learner's state, its bytes)."""
        with self.uncounted(), self._whole():
            found = await compute.run(self.learner.snapshot)
        faults.point("actor.mid_snapshot")
        return found, found.nbytes

    async def restore(self, snapshot: Snapshot) -> None:
        with self.uncounted(), self._whole():
            await compute.run(self.learner.restore, snapshot)

    async def save(self, folder: Path) -> None:
        """Into a new folder; what one that died left there is removed."""
        with self.uncounted(), self._whole():
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            await self.learner.save(folder)

    async def load(self, folder: Path, weights_only: bool) -> None:
        with self.uncounted(), self._whole():
            await self.learner.load(folder, weights_only=weights_only)

    async def weights(self, dtype: str) -> tuple[dict[str, Array], int]:
        """(the model as it is now, adapters merged; its bytes)."""
        with self.uncounted(), self._whole():
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
            await compute.run(_load, _in_process(self.machine).network, packed)

    async def shut(self) -> None:
        if not isinstance(self.learner, LocalLearner):
            await asyncio.to_thread(self.learner.close)


def _load(network: Network, packed: Mapping[str, Array]) -> None:
    fill(network.views(), packed)
    faults.point("actor.mid_weights")
    network.refresh()


def _in_process(machine: LocalEngine) -> LocalLearner:
    assert isinstance(machine.learner, LocalLearner), "only the learner has ranks"
    return machine.learner
