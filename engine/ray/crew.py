"""Many items, few calls: what is asked in one tick of the event loop travels together, answers come as they end.

An item is leased to one worker. When that worker dies, what it had not answered is leased again, in the order it was
asked; an item is answered once, whatever happens.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Sequence
from typing import Any

from jurat.engine.ray.hosts import Host, Lost


class Crew:
    """Workers of one role. ``window``: items that a worker has in hand at most; None: all that there are."""

    def __init__(self, hosts: Sequence[Host], *, window: int | None = None) -> None:
        self.hosts, self.window = tuple(hosts), window
        self._lanes = [_Lane(host) for host in hosts]
        self._keys = itertools.count()
        self._open: dict[int, tuple[Any, asyncio.Future[Any]]] = {}
        self._queue: deque[int] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._due = False

    async def ask(self, item: Any) -> Any:
        """The answer to ``item``. Cancelling tells the worker. Raises the error that is the answer, or RunFailed."""
        key, answer = next(self._keys), asyncio.get_running_loop().create_future()
        self._open[key] = (item, answer)
        self._queue.append(key)
        self._wake()
        try:
            return await answer
        finally:
            if self._open.pop(key, None) is not None:
                self._dropped(key)

    def _wake(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self.hand_over)

    def hand_over(self) -> None:
        """Lease what waits to workers with room, in order, in equal shares."""
        self._due = False
        for lane in self._lanes:
            if lane.dropped:
                lane.host.tell("cancel", lane.dropped)
                lane.dropped = []
        self._queue = deque(key for key in self._queue if key in self._open)
        free = [lane for lane in self._lanes if not lane.closed and (self.window or 1 << 62) > len(lane.held)]
        free.sort(key=lambda lane: len(lane.held))
        for place, lane in enumerate(free):
            room = len(self._queue) if self.window is None else self.window - len(lane.held)
            share = min(room, -(-len(self._queue) // (len(free) - place)))
            keys = [self._queue.popleft() for _ in range(share)]
            if keys:
                lane.held.update(keys)
                task = asyncio.create_task(self._serve(lane, keys))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _serve(self, lane: _Lane, keys: Sequence[int]) -> None:
        seen = lane.host.incarnation
        try:
            async for found in lane.host.stream("work", [(key, self._open[key][0]) for key in keys]):
                for key, result in found:
                    lane.held.discard(key)
                    self._resolve(key, result)
                if self._queue:
                    self._wake()
        except Lost:
            self._lease_again(lane, keys)
            lane.closed += 1
            try:
                await lane.host.replace(seen)
            except Exception as error:
                for key in list(self._open):
                    self._resolve(key, error)
            finally:
                lane.closed -= 1
                self._wake()
        except Exception as error:
            for key in keys:
                lane.held.discard(key)
                self._resolve(key, error)

    def _lease_again(self, lane: _Lane, keys: Sequence[int]) -> None:
        back = [key for key in keys if key in lane.held]
        lane.held.difference_update(back)
        self._queue = deque(sorted([*back, *self._queue]))
        self._wake()

    def _resolve(self, key: int, result: Any) -> None:
        _, answer = self._open.pop(key, (None, None))
        if answer is None or answer.done():
            return
        if isinstance(result, Exception):
            answer.set_exception(result)
        else:
            answer.set_result(result)

    def _dropped(self, key: int) -> None:
        for lane in self._lanes:
            if key in lane.held:
                lane.dropped.append(key)
                self._wake()


class _Lane:
    def __init__(self, host: Host) -> None:
        self.host = host
        self.held: set[int] = set()
        """Leased and not answered."""
        self.dropped: list[int] = []
        """Cancelled; to be told."""
        self.closed = 0
        """Above 0 while the worker is being replaced."""
