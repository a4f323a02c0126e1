"""One actor as the driver sees it: started, asked, watched while it works, killed, replaced."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from jurat import __version__
from jurat.engine.fsdp.processes import RanksLost
from jurat.platform.errors import ConfigError, RunFailed

DEATHS = 3
"""Deaths in a row, without an answer between them, after which a role is given up."""


class Lost(Exception):
    """The actor, or a rank of its, died before it answered."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """A worker that took the place of one that was lost."""

    role: str
    old: int
    new: int
    """Process ids; 0 of one that had not begun."""
    cause: str
    """What became of the old one, as in ``died``."""
    seconds: float
    """From the loss until the new one was ready."""

    def __str__(self) -> str:
        return f"the {self.role} (process {self.old}) {self.cause}; process {self.new} took over after {self.seconds:.1f} s"


class Host:
    """A role's actor. ``create(n)`` makes the n-th one, ``begin`` prepares it; both are used again when it is replaced.
    ``stands()``: whether the machine that a new one waits for is there. ``replaced`` hears of each new one that is ready."""

    def __init__(
        self,
        role: str,
        *,
        create: Callable[[int], Any],
        begin: Callable[[Host], Awaitable[None]],
        stands: Callable[[], bool],
        hang_seconds: float,
        replaced: Callable[[Replacement], None],
    ) -> None:
        self.role, self.hang_seconds = role, hang_seconds
        self.incarnation = 0
        self.pid, self.node = 0, ""
        self.recoveries: list[float] = []
        """Seconds from each loss to the new actor's readiness; a hung one is lost when it last made progress."""
        self._create, self._begin, self._stands, self._tell = create, begin, stands, replaced
        self._actor: Any = None
        self._deaths = 0
        self._calls = 0
        self._why, self._said = "", ""
        """What became of a lost one, and what Ray says of it."""
        self._moved: float | None = None
        """When one that hung last made progress."""
        self._watcher: asyncio.Task[None] | None = None
        self._replacing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Create the actor and prepare it; one that dies meanwhile is replaced. Raises what its ``start`` raises, or RunFailed."""
        try:
            await self._start()
        except Lost:
            await self.replace(self.incarnation)

    async def _start(self) -> None:
        self._actor, self.pid, self._why = self._create(self.incarnation), 0, "died"
        self.pid, self.node, version = await self.ask("who")
        if version != __version__:
            raise ConfigError(
                f"jurat is {version} on the machine of the {self.role} and {__version__} here",
                where=f"engine.placement.{self.role}, node {self.node[:12]}",
                fix=f"install the same wheel on every machine: pip install jurat=={__version__}",
            )
        await self._begin(self)

    # ---- asking ----

    async def ask(self, method: str, *args: Any) -> Any:
        """Call the actor as it is, prepared or not. Raises Lost, or what the method raised."""
        with self._watched(), self._errors():
            return await getattr(self._actor, method).remote(*args)

    async def call(self, method: str, *args: Any) -> Any:
        """Call the actor, once it is prepared."""
        await self._replaced()
        found = await self.ask(method, *args)
        self._deaths = 0
        return found

    async def sure(self, method: str, *args: Any) -> Any:
        """Call a method that may be called twice; an actor that dies meanwhile is replaced and asked again."""
        while True:
            seen = self.incarnation
            try:
                return await self.call(method, *args)
            except Lost:
                await self.replace(seen)

    async def stream(self, method: str, *args: Any) -> AsyncIterator[Any]:
        """Each item that the method yields, as it is yielded."""
        await self._replaced()
        with self._watched(), self._errors():
            async for ref in getattr(self._actor, method).options(num_returns="streaming").remote(*args):
                yield await ref
                self._deaths = 0

    def tell(self, method: str, *args: Any) -> None:
        """Call and do not wait; lost with the actor."""
        if self._actor is not None:
            getattr(self._actor, method).remote(*args)

    async def keep(self, method: str, *args: Any) -> Any:
        """As ``sure``, of a method that returns (large value, small value): a reference to the first.

        The value lies in this machine's store, so that it outlives the actor and the actor's machine.
        """
        while True:
            seen = self.incarnation
            await self._replaced()
            try:
                with self._watched(), self._errors():
                    large, small = getattr(self._actor, method).options(num_returns=2).remote(*args)
                    await small
                    self._deaths = 0
                    here = self.node == ray.get_runtime_context().get_node_id()
                    return large if here else await asyncio.to_thread(_brought, large)
            except Lost:
                await self.replace(seen)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except RayTaskError as error:
            if isinstance(error.cause, RanksLost):  # the actor itself lives, and is ended with them
                self._said = error.cause.what
                self._why = f"lost its ranks ({self._said})"
                raise Lost(f"{self.role}: {self._said}") from None
            if isinstance(error.cause, Exception):
                raise error.cause from None
            raise RunFailed(str(error), where=self.role) from None
        except (RayActorError, ObjectLostError) as error:
            self._said = str(error).strip().splitlines()[-1]
            raise Lost(f"{self.role}: {error}") from None
        except RayError as error:
            raise RunFailed(f"Ray: {error}", where=f"engine.placement.{self.role}",
                            fix="see the cluster's state (ray status) and its logs") from None  # fmt: skip

    # ---- watching ----

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """While something is asked, see that the actor gets on."""
        self._calls += 1
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch(self._actor))
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls and self._watcher is not None:
                self._watcher.cancel()
                self._watcher = None

    async def _watch(self, actor: Any) -> None:
        loop, pause = asyncio.get_running_loop(), min(self.hang_seconds / 4, 5.0)
        seen, moved = None, loop.time()
        while True:
            await asyncio.sleep(pause)
            if actor is not self._actor:  # it was replaced while calls were waiting
                actor, seen, moved = self._actor, None, loop.time()
            try:
                found = await asyncio.wait_for(_value(actor.pulse.remote()), pause)
            except TimeoutError:
                found = seen
            except RayError:  # dead: the calls themselves are told
                continue
            if not self.pid and not self._stands():
                self._why = "lost its machine before it began"
                self.kill()
                continue
            if found != seen:
                seen, moved = found, loop.time()
            elif loop.time() - moved >= self.hang_seconds:
                self._why, self._moved = f"made no progress for {self.hang_seconds:g} s", moved
                self.kill()
                seen, moved = None, loop.time()

    # ---- ending ----

    async def _replaced(self) -> None:
        if self._replacing is not None:
            await asyncio.shield(self._replacing)

    async def replace(self, incarnation: int) -> None:
        """Return when there is a prepared actor newer than ``incarnation``. Raises RunFailed if the role cannot be kept up."""
        if self.incarnation == incarnation and self._replacing is None:
            self._replacing = asyncio.create_task(self._replace())
        await self._replaced()

    async def _replace(self) -> None:
        began, self._moved = time.monotonic() if self._moved is None else self._moved, None
        try:
            while True:
                self._deaths += 1
                gone, why = self.pid, self._why
                if self._deaths > DEATHS:
                    raise RunFailed(
                        f"the {self.role} died {self._deaths} times in a row without an answer: {shorten(self._said, 160)}",
                        where=f"the {self.role}'s process" + (f" {gone}" if gone else ", which did not begin"),
                        fix="see the cluster's logs (memory, most often), then jurat train --resume RUN",
                    )
                self.kill()
                self.incarnation += 1
                try:
                    await self._start()
                except Lost:
                    continue
                self.recoveries.append(time.monotonic() - began)
                self._tell(Replacement(self.role, gone, self.pid, why, self.recoveries[-1]))
                return
        finally:
            self._replacing = None

    def shut(self) -> Any:
        """Ask the actor to end what it started; a reference to wait for, None if there is no actor."""
        if self._actor is None:
            return None
        with suppress(RayError):
            return self._actor.shut.remote()

    def close(self, *, answers: bool) -> None:
        """End the process for good; ``answers``: it need not be killed from outside."""
        self._end() if answers else self.kill()
        self._actor = None

    def _end(self) -> None:
        if self._actor is not None:
            with suppress(RayError):
                ray.kill(self._actor)

    def kill(self) -> None:
        """End the process at once, even one that is stopped and answers nobody."""
        self._end()
        if not self.pid:
            return
        if self.node == ray.get_runtime_context().get_node_id():
            _kill(self.pid)
        else:
            there = NodeAffinitySchedulingStrategy(self.node, soft=False)
            ray.remote(_kill).options(num_cpus=0, scheduling_strategy=there, max_retries=0).remote(self.pid)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _brought(ref: Any) -> Any:
    """A reference to a copy in this machine's store."""
    return ray.put(ray.get(ref))


async def _value(ref: Any) -> Any:
    return await ref
