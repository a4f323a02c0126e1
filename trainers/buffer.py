"""Batches in flight. The batch of step s is planned when version s - max_lag is published; with lag 0 the sampler and
the learner take turns, so the synchronous loop is this one with an empty pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jurat.platform.ports import GroupSource
from jurat.platform.types import Batch


@dataclass(slots=True)
class Buffer:
    """Holds at most ``max_lag + 1`` batches: planned, in flight or ready."""

    source: GroupSource
    max_lag: int
    first_step: int
    last_step: int
    stop: asyncio.Event
    planned: int = field(init=False)
    """Steps below this are planned."""
    tasks: dict[int, asyncio.Task[Batch]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.planned = self.first_step

    def published(self, version: int) -> None:
        """Version ``version`` is what the sampler draws from now: plan what may be drawn from it."""
        while self.planned <= min(version + self.max_lag, self.last_step - 1):
            self.source.plan(self.planned)
            self.planned += 1

    def restored(self, planned: int) -> None:
        """The source came back from a checkpoint with plans for the steps below ``planned``."""
        self.planned = planned

    async def take(self, step: int) -> Batch | None:
        """The batch of ``step``, or None if a stop was asked for while waiting; what was in flight is then dropped."""
        for s in range(step, self.planned):
            if s not in self.tasks:
                self.tasks[s] = asyncio.create_task(self.source.batch(s), name=f"batch {s}")
        stopped = asyncio.create_task(self.stop.wait())
        await asyncio.wait({self.tasks[step], stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not self.tasks[step].done():
            await self.cancel()
            return None
        batch = self.tasks.pop(step).result()
        self.source.observe(batch)
        return batch

    async def cancel(self) -> None:
        """Abort everything in flight; plans stay."""
        running = list(self.tasks.values())
        self.tasks.clear()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def checkpoint(self) -> Mapping[str, Any]:
        """A state from which nothing is lost or asked twice."""
        await self.cancel()
        return {"planned": self.planned, "source": await self.source.interrupt()}
