"""What every actor answers. Plain classes, so that they can be tried without Ray."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from jurat import __version__
from jurat.platform import faults
from jurat.platform.errors import JuratError, RunFailed

Item = tuple[int, Any]
"""(key, what is asked) or (key, the answer or a JuratError)."""


class Actor:
    """Base of the roles. Their methods are coroutines, and what computes does it in another thread: ``pulse`` is always
    answered, unless the process stands still."""

    def __init__(self) -> None:
        self.answered = 0
        self._alive, self._uncounted = 0, 0
        self._running: dict[int, asyncio.Task[Any]] = {}

    async def who(self) -> tuple[int, str, str]:
        """(process id, Ray's id of the machine, version of jurat there)."""
        import ray

        return os.getpid(), ray.get_runtime_context().get_node_id(), __version__

    async def pulse(self) -> int:
        """A number that moves while there is progress."""
        self._alive += self._uncounted > 0
        return self._alive + self.progress()

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Within, that the process answers is progress enough: reading and writing files have no steps to count."""
        self._uncounted += 1
        try:
            yield
        finally:
            self._uncounted -= 1

    def progress(self) -> int:
        return self.answered

    async def one(self, item: Any) -> Any:
        raise NotImplementedError

    async def work(self, items: Sequence[Item]) -> AsyncIterator[list[Item]]:
        """Answers as they come; those that are ready together travel together. All items are asked in one tick, in order."""
        faults.point("actor.asked")
        ready: asyncio.Queue[Item] = asyncio.Queue()
        for key, item in items:
            task = self._running[key] = asyncio.create_task(self._answer(item))
            task.add_done_callback(partial(self._ended, key, ready))
        left = len(items)
        while left:
            found = [await ready.get()]
            while not ready.empty():
                found.append(ready.get_nowait())
            left -= len(found)
            self.answered += len(found)
            faults.point("actor.before_answer")
            yield found
            faults.point("actor.after_answer")

    async def _answer(self, item: Any) -> Any:
        try:
            return await self.one(item)
        except JuratError as error:
            return error
        except Exception as error:
            return RunFailed(f"{type(error).__name__}: {error}", where=f"{type(self).__name__}, process {os.getpid()}")

    def _ended(self, key: int, ready: asyncio.Queue[Item], task: asyncio.Task[Any]) -> None:
        """Called for each item, also for one that is cancelled before it began: a process that slept finds its items and
        their cancelling at once. What was cancelled has the result None; nobody waits for it."""
        self._running.pop(key, None)
        ready.put_nowait((key, None if task.cancelled() or task.exception() else task.result()))

    async def cancel(self, keys: Sequence[int]) -> None:
        for key in keys:
            if key in self._running:
                self._running[key].cancel()

    async def shut(self) -> None:
        """End child processes and threads before the actor is killed."""


def environment(role: str, threads: int, attempt: int) -> Mapping[str, str]:
    """Variables of an actor's process, which must stand before it begins. A fault asked for strikes the first one only."""
    from jurat.engine.threads import recommended_env

    fault = "" if attempt else os.environ.get("JURAT_FAULT", "").removeprefix(f"{role}@")
    wanted = {name: os.environ.get(name, value) for name, value in recommended_env({}).items()}
    return {**wanted, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false", "JURAT_FAULT": fault}
