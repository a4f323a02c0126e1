"""Checkpoints of a loop that goes on while one is written."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Self

from jurat.platform.ports import Checkpoints, Learner, Ledger, Reporter, State
from jurat.platform.types import CheckpointRef


class Saving:
    """One checkpoint at a time; each is recorded once it is whole. Within ``async with``, leaving waits for the last one
    also when something else fails: it is where the run resumes."""

    def __init__(self, checkpoints: Checkpoints, ledger: Ledger, reporter: Reporter) -> None:
        self._checkpoints, self._ledger, self._reporter = checkpoints, ledger, reporter
        self._writing: asyncio.Task[CheckpointRef] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._writing is not None:
            await asyncio.wait([self._writing])

    def check(self) -> None:
        """Raise what the writing raised, if it has ended so: the run ends now, not at the next checkpoint."""
        if self._writing is not None and self._writing.done():
            self._writing.result()

    async def last(self) -> CheckpointRef | None:
        """The last one begun, once it is whole; None if none was. Raises RunFailed if it could not be written."""
        return await self._writing if self._writing is not None else None

    async def begin(
        self, version: int, learners: Mapping[str, Learner], source: Callable[[], Awaitable[State]]
    ) -> None:
        """After the one before is whole, take the state as it is now and begin to write it."""
        await self.last()
        started = time.perf_counter()
        state = await source()
        await self._ledger.flush()  # a checkpoint never outruns its record
        written = await self._checkpoints.begin(step=version, learners=learners, source=state)
        held = time.perf_counter() - started

        async def record() -> CheckpointRef:
            ref = await written
            self._ledger.record_checkpoint(ref)
            seconds = time.perf_counter() - started
            later = f", of which training waited {held:.1f} s" if seconds > 2 * held else ""
            self._reporter.note(f"checkpoint at step {version}: {ref.path} ({seconds:.1f} s{later})")
            return ref

        self._writing = asyncio.create_task(record())
        self._writing.add_done_callback(lambda task: task.cancelled() or task.exception())  # seen, if nobody awaits it
        if written.done():
            await self._writing
