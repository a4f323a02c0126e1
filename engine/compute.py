"""The one thread in which this process computes; with ``engine.max_lag`` the sampler has another.

Each thread that calls OpenMP gets a team of its own. With two teams there are more threads than cores, and GNU OpenMP then
stops spinning at barriers: every small operation waits for the scheduler. Measured on two cores with the fast learner: 3.6 s
a pass alone, 4.0-4.8 s with a second, idle team in the process. So sampling, learning, scoring and loading all run here,
while the event loop stays free for verifiers, the screen and Ctrl-C. Where sampling and learning are to overlap, each has a
thread, and half of the processors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Lane:
    """A thread that does what it is given, in order."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    def submit(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue ``work``; do not wait."""
        return self._thread.submit(work, *args, **kwargs)

    def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Have ``work`` done and wait; not from the thread itself."""
        return self.submit(work, *args, **kwargs).result()

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Have ``work`` done and await it. Work that has begun ends before a cancellation is passed on."""
        return await ended(self.submit(work, *args, **kwargs))


MAIN = Lane("compute")
submit, call, run = MAIN.submit, MAIN.call, MAIN.run


async def ended(work: Future[T]) -> T:
    """The result of work in another thread, which ends before a cancellation is passed on."""
    done = asyncio.wrap_future(work)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        await asyncio.wait([done])
        raise
