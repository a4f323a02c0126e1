"""The port ``Sampler`` over batched decoding: one call per completion outside, one batch inside.

Requests made in one tick of the event loop are handed over together, in the order made: at lag 0 the composition of a
batch does not depend on timing. Decoding runs in one thread; each completion is delivered as it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jurat.engine import compute
from jurat.engine.decoding import Row, Rows
from jurat.platform.types import Completion, Request


class BatchedSampler:
    """A ``Sampler`` and the ``WeightLink`` to it. ``close`` ends what is running. ``lane`` is the thread that decodes."""

    def __init__(self, rows: Rows, lane: compute.Lane = compute.MAIN) -> None:
        self._decoding, self._lane = rows, lane
        self._tick: list[Row] = []

    async def sample(self, request: Request) -> Completion:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Completion] = loop.create_future()

        def deliver(result: Completion | Exception) -> None:
            try:
                loop.call_soon_threadsafe(_resolve, answer, result)
            except RuntimeError:  # the event loop is closed: nobody waits any more
                row.cancelled = True

        row = Row(request, deliver)
        if not self._tick:
            loop.call_soon(self._hand_over)
        self._tick.append(row)
        try:
            return await answer
        finally:
            row.cancelled = True  # answered, or its caller was cancelled

    async def interrupt(self) -> tuple[Completion, ...]:
        self._hand_over()
        self._decoding.interrupt()
        await self._lane.run(self._decoding.run)
        return self._decoding.aborted()

    async def publish(self, version: int, load: Callable[[], None] = lambda: None) -> None:
        """``load`` puts the weights in their place, between the same two decode steps."""

        def action() -> None:
            load()
            self._decoding.publish(version)

        done = self._decoding.call(action)
        self._lane.submit(self._decoding.run)
        await asyncio.wrap_future(done)

    async def rest(self) -> None:
        if self._decoding.sleeps:
            done = self._decoding.call(self._decoding.rest)
            self._lane.submit(self._decoding.run)
            await asyncio.wrap_future(done)

    def limit(self, rows: int) -> None:
        """From now on so many rows are decoded at once at most; those that run go on."""
        self._decoding.max_concurrent = rows

    @property
    def turns(self) -> int:
        """Rounds of decoding so far: whether it gets on."""
        return self._decoding.turns

    def close(self) -> None:
        self._decoding.interrupt()
        self._lane.call(self._decoding.run)
        self._lane.call(self._decoding.close)

    def _hand_over(self) -> None:
        if self._tick:
            rows, self._tick = self._tick, []
            self._decoding.submit(rows)
            self._lane.submit(self._decoding.run)


def _resolve(answer: asyncio.Future[Completion], result: Completion | Exception) -> None:
    if answer.done():
        return
    if isinstance(result, Exception):
        answer.set_exception(result)
    else:
        answer.set_result(result)
