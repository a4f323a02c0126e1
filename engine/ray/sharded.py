"""The actor of a learner over several ranks: processes on the actor's machine, which end with it."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from jurat.engine import local
from jurat.engine.fsdp.learner import FsdpLearner
from jurat.engine.ray.actor import Actor
from jurat.engine.ray.wire import Array, WireRounds, from_wire, size_of, tensor_of
from jurat.platform.errors import RunFailed
from jurat.platform.ports import Objective
from jurat.platform.recipe import Optim
from jurat.platform.types import FloatArray, UpdateReport

T = TypeVar("T")


class ShardedActor(Actor):
    """What ``LearnerActor`` is, over ranks. It ends when one of them does: whoever replaces it makes all of them anew."""

    machine: local.Sharded
    learner: FsdpLearner

    async def start(self, make: Callable[[], local.Sharded]) -> Mapping[str, Any]:
        with self.uncounted():
            self.machine = await asyncio.to_thread(make)
        self.learner = self.machine.learner
        return self.machine.info

    async def critic(self, optim: Optim, total_steps: int) -> None:
        """Become a value model that begins with the weights adopted."""
        with self.uncounted():
            self.learner = await asyncio.to_thread(self.machine.critic, optim, total_steps)

    def progress(self) -> int:
        return self.answered + (self.learner.processes.moves if hasattr(self, "learner") else 0)

    async def _whole(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return await work
        except RunFailed as error:
            if self.learner.processes.failed:
                print(error, file=sys.stderr, flush=True)
                os._exit(1)
            raise

    async def checkpoint_bytes(self) -> int:
        return self.learner.checkpoint_bytes

    async def score(self, rounds: WireRounds) -> Sequence[Sequence[FloatArray]]:
        return await self._whole(self.learner.score(from_wire(rounds)))

    async def update(self, rounds: WireRounds, objective: Objective, clip_norm: float | None) -> UpdateReport:
        return await self._whole(self.learner.update(from_wire(rounds), objective, clip_norm=clip_norm))

    async def save(self, folder: Path) -> None:
        """Into a new folder; what one that died left there is removed."""
        with self.uncounted():
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            await self._whole(self.learner.save(folder))

    async def load(self, folder: Path, weights_only: bool) -> None:
        with self.uncounted():
            await self._whole(self.learner.load(folder, weights_only=weights_only))

    async def weights(self, dtype: str) -> tuple[dict[str, Array], int]:
        """(the model as it is now, whole; its bytes): matrices in ``dtype``, vectors in float32."""
        kind = getattr(torch, dtype)
        into = {
            name: torch.empty(shape, dtype=kind if len(shape) > 1 else torch.float32)
            for name, shape in self.learner.shapes.items()
        }
        with self.uncounted():
            await self._whole(self.learner.run(self.learner._pull, into))
        packed = {name: (t.view(torch.int16) if t.dtype == torch.bfloat16 else t).numpy() for name, t in into.items()}
        return packed, size_of(packed)

    async def adopt(self, packed: Mapping[str, Array]) -> None:
        with self.uncounted():
            await self._whole(self.learner.fill({name: tensor_of(array) for name, array in packed.items()}))

    async def snapshot(self) -> tuple[dict[str, Array], int]:
        """(the files of a checkpoint: all that an update reads and changes; their bytes)."""
        with tempfile.TemporaryDirectory(prefix="jurat-snapshot-") as scratch:
            await self.save(Path(scratch) / "at")
            made = Path(scratch) / "at"
            files = {str(p.relative_to(made)): np.fromfile(p, np.uint8) for p in made.rglob("*") if p.is_file()}
        return files, size_of(files)

    async def restore(self, files: Mapping[str, Array]) -> None:
        with tempfile.TemporaryDirectory(prefix="jurat-snapshot-") as scratch:
            for name, data in files.items():
                (Path(scratch) / name).parent.mkdir(parents=True, exist_ok=True)
                data.tofile(Path(scratch) / name)
            await self.load(Path(scratch), False)

    async def shut(self) -> None:
        if hasattr(self, "machine"):
            await asyncio.to_thread(self.machine.close)
