"""Many items, few calls: what is asked in one tick of the event loop travels together, answers come as they end.

An item is leased to one worker. When that worker dies, what it had not answered is leased again, in the order it was
asked; an item is answered once, whatever happens.

Where a crew is ``hedged``, nobody waits long for one worker: an item that takes many times as long as items do is leased
to a second one, and so is all that a worker holds which has said nothing for so long; the first answer counts. Such a
worker is doubted: once it is heard of again it is asked one item that another is asked too, and again, until it answers
one in time.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Sequence
from typing import Any

from jurat.engine.ray.hosts import Host, Lost

PATIENCE = 4.0
"""Times the usual time of an answer after which it is late."""
PATIENCE_SECONDS = 0.1
"""No answer is late before."""
KNOWN = 8
"""Answers from which the usual time is known."""
RECENT = 16
"""Answers that it is an average of, about."""


class Crew:
    """Workers of one role. ``window``: items that a worker has in hand at most."""

    def __init__(self, hosts: Sequence[Host], *, window: int = 1 << 62, hedged: bool = False) -> None:
        self.hosts = tuple(hosts)
        self.hedged = hedged and len(self.hosts) > 1
        self._lanes = [_Lane(host, window) for host in hosts]
        self._keys = itertools.count()
        self._open: dict[int, tuple[Any, asyncio.Future[Any]]] = {}
        self._queue: deque[int] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._due = False
        self._alarm: asyncio.TimerHandle | None = None
        self._usual, self._answers = 0.0, 0
        """Seconds from lease to answer, and of how many."""

    def widen(self, window: int) -> None:
        """From now on a worker has ``window`` items in hand at most; one that is silent still none."""
        for lane in self._lanes:
            lane.window, lane.limit = window, min(lane.limit, window) and window
        self._wake()

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
                self._forget(key)
            if not self._open and self._alarm is not None:
                self._alarm.cancel()
                self._alarm = None

    def _wake(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self.hand_over)

    def hand_over(self) -> None:
        """Lease what waits to workers with room, in order, in equal shares."""
        self._due = False
        now = asyncio.get_running_loop().time()
        for lane in self._lanes:
            if lane.dropped:
                lane.host.tell("cancel", lane.dropped)
                lane.dropped = []
        self._queue = deque(key for key in self._queue if key in self._open)
        free = sorted((lane for lane in self._lanes if lane.room > 0), key=lambda lane: len(lane.held))
        trusted = [lane for lane in free if not lane.doubted]
        able = trusted or (free if all(lane.doubted or lane.closed for lane in self._lanes) else [])
        for place, lane in enumerate(able):
            share = min(lane.room, -(-len(self._queue) // (len(able) - place)))
            keys = list(itertools.islice((key for key in self._queue if key not in lane.held), share))
            if keys:
                given = set(keys)
                self._queue = deque(key for key in self._queue if key not in given)
                self._lease(lane, keys, now)
                for other in free:
                    if other.doubted and other.room > 0 and keys[-1] not in other.held:
                        other.probe = keys[-1]
                        self._lease(other, keys[-1:], now)
        if self.hedged and self._alarm is None and self._open:
            wait = self._patience / 2
            self._alarm = asyncio.get_running_loop().call_later(wait, self._look, now + wait)

    def _lease(self, lane: _Lane, keys: Sequence[int], now: float) -> None:
        if not lane.held:
            lane.heard = now
        lane.held.update(dict.fromkeys(keys, now))
        task = asyncio.create_task(self._serve(lane, [(key, self._open[key][0]) for key in keys]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, lane: _Lane, items: Sequence[tuple[int, Any]]) -> None:
        seen, clock = lane.host.incarnation, asyncio.get_running_loop().time
        try:
            async for found in lane.host.stream("work", items):
                lane.heard, lane.limit = clock(), max(1, lane.limit)
                for key, result in found:
                    since, first = lane.held.pop(key, None), self._resolve(key, result)
                    if since is None:
                        continue
                    took = clock() - since
                    if first or took <= self._patience:
                        lane.limit, lane.doubted = min(lane.window, 2 * lane.limit), False
                    if first:
                        self._answers += 1
                        self._usual += (took - self._usual) / min(self._answers, RECENT)
                if self._queue:
                    self._wake()
        except Lost:
            self._lease_again([key for key, _ in items if lane.held.pop(key, None) is not None])
            lane.closed += 1
            try:
                await lane.host.replace(seen)
            except Exception as error:
                for key in list(self._open):
                    self._resolve(key, error)
            finally:
                lane.closed -= 1
                lane.limit, lane.doubted = lane.window, False
                self._wake()
        except Exception as error:
            for key, _ in items:
                lane.held.pop(key, None)
                self._resolve(key, error)

    # ---- late answers ----

    @property
    def _patience(self) -> float:
        return max(PATIENCE_SECONDS, PATIENCE * self._usual)

    def _look(self, due: float) -> None:
        """Lease again what is late, unless it is this loop that had no time to listen."""
        self._alarm = None
        now = asyncio.get_running_loop().time()
        if self._answers >= KNOWN and now - due < self._patience / 2:
            before = now - self._patience
            for lane in self._lanes:
                if lane.held and lane.heard < before:
                    lane.limit, lane.doubted = 0, True
            self._lease_again([key for lane in self._lanes for key in lane.late(before)])
        self._wake()

    def _lease_again(self, keys: Sequence[int]) -> None:
        """Unless someone who is trusted has it."""
        asked = {key for lane in self._lanes if not (lane.doubted or lane.closed) for key in lane.held}
        late = [key for key in keys if key not in asked or self._alone(key)]
        self._queue = deque(sorted({*late, *self._queue}))
        self._wake()

    def _alone(self, key: int) -> bool:
        return sum(key in lane.held for lane in self._lanes) == 1

    def _resolve(self, key: int, result: Any) -> bool:
        """Give the answer to who asked; False if there was one."""
        _, answer = self._open.pop(key, (None, None))
        if answer is None or answer.done():
            return False
        self._forget(key)
        if isinstance(result, Exception):
            answer.set_exception(result)
        else:
            answer.set_result(result)
        return True

    def _forget(self, key: int) -> None:
        """Tell those who have it in hand that nobody waits."""
        for lane in self._lanes:
            if key != lane.probe and lane.held.pop(key, None) is not None:
                lane.dropped.append(key)
                self._wake()


class _Lane:
    def __init__(self, host: Host, window: int) -> None:
        self.host, self.window = host, window
        self.limit = window
        """Items that it may have in hand now: 0 while it is silent."""
        self.held: dict[int, float] = {}
        """Leased and not answered: when, oldest first."""
        self.heard = 0.0
        """When it last said something, or was given something to do after it had nothing."""
        self.doubted = False
        """Whether all that it holds must be asked of another too."""
        self.probe: int | None = None
        """What it was asked last while doubted. It is not told to drop it, so that it can answer in time, if not first."""
        self.dropped: list[int] = []
        """Answered elsewhere or cancelled; to be told."""
        self.closed = 0
        """Above 0 while the worker is being replaced."""

    @property
    def room(self) -> int:
        return 0 if self.closed else self.limit - len(self.held)

    def late(self, before: float) -> list[int]:
        """What it holds since before then; all of it while it is silent."""
        return list(itertools.takewhile(lambda key: not self.limit or self.held[key] < before, self.held))
