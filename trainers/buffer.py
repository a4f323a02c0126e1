"""Batches in flight. The batch of step s is planned when version s - max_lag is published; with lag 0 the sampler and
the learner take turns, so the synchronous loop is this one with an empty pipeline.

In lockstep the next version waits until every batch in flight is whole, and batches are begun one after the other, each
after the loop has taken (and the allocator has seen) the last one: which version draws what does not depend on speed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
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
    lockstep: bool = False
    planned: int = field(init=False)
    """Steps below this are planned."""
    settled: frozenset[int] = frozenset()
    """In lockstep: steps whose batches were whole when the last version was published."""
    tasks: dict[int, asyncio.Task[Batch]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.planned = self.first_step

    def published(self, version: int) -> None:
        """Version ``version`` is what the sampler draws from now: plan what may be drawn from it."""
        while self.planned <= min(version + self.max_lag, self.last_step - 1):
            self.source.plan(self.planned)
            self.planned += 1

    def restored(self, state: Mapping[str, Any]) -> None:
        """Go on from a ``checkpoint``."""
        self.source.restore(state["source"])
        self.planned = state["planned"]
        self.settled = frozenset(state.get("settled", ()))

    async def take(self, step: int) -> Batch | None:
        """The batch of ``step``, or None if a stop was asked for while waiting."""
        self._begin(step, until=step + 1 if self.lockstep else self.planned)
        stopped = asyncio.create_task(self.stop.wait())
        await asyncio.wait({self.tasks[step], stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not self.tasks[step].done():
            return None
        batch = self.tasks.pop(step).result()
        self.source.observe(batch)
        self._begin(step + 1, until=self.planned)
        return batch

    def _begin(self, first: int, *, until: int) -> None:
        for step in range(first, until):
            if step not in self.tasks:
                before = self.tasks.get(step - 1) if self.lockstep else None
                self.tasks[step] = asyncio.create_task(self._batch(step, before), name=f"batch {step}")

    async def _batch(self, step: int, before: asyncio.Task[Batch] | None) -> Batch:
        if before is not None:
            await asyncio.wait([before])
        return await self.source.batch(step)

    async def settle(self, waiting: Callable[[], None] = lambda: None) -> None:
        """In lockstep, to be awaited before a version is published: the end of all batches in flight.

        A stop does not cut them, as the version that must draw them is about to be gone; ``waiting`` is told of it.
        """
        if self.tasks:
            ended = asyncio.create_task(asyncio.wait(self.tasks.values()))
            stopped = asyncio.create_task(self.stop.wait())
            try:
                await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if not ended.done():
                    waiting()
                await ended
            finally:
                ended.cancel()
                stopped.cancel()
        self.settled = frozenset(self.tasks)

    async def cancel(self) -> None:
        """Abort everything in flight; plans stay."""
        running = list(self.tasks.values())
        self.tasks.clear()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def checkpoint(self) -> Mapping[str, Any]:
        """A state from which nothing is lost or asked twice; this run too goes on from it.

        With a lag, rows of the batches in flight are in it, whole or as far as they came. Not at lag 0, and in lockstep
        only those of whole batches: the others are drawn anew by the same version, and end as they would have.
        """
        for task in self.tasks.values():
            if task.done():
                task.result()  # a batch that failed is not begun again
        kept = self.settled if self.lockstep else frozenset(range(self.planned if self.max_lag else 0))
        source = await self.source.interrupt(kept)
        await self.cancel()
        return {"planned": self.planned, "settled": sorted(self.settled), "source": source}
