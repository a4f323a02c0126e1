"""Several vLLM servers as one sampler: each request goes to one of them, each has all weights under names of its own."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence

from jurat.engine import compute
from jurat.engine.vllm.remote import ServedSampler, Weights
from jurat.engine.vllm.server import Hello
from jurat.platform.errors import RunFailed
from jurat.platform.types import Completion, Request

log = logging.getLogger("jurat")

TOGETHER = 8
"""Requests by which a server may be ahead of the idlest one for the sake of a prompt that it has read already."""


class ServedSamplers:
    """``members`` read the same ``weights``. A request goes to the server with the fewest in hand, or to the one that has its
    prompt. A server that is lost for good takes no more, and what it had is drawn by the others, to the same tokens (a draw
    depends on its seed and position alone); the loss of the last one is RunFailed."""

    def __init__(self, members: Sequence[ServedSampler], weights: Weights) -> None:
        self.members, self._weights = list(members), weights
        self._load = Counter[ServedSampler]()
        self._reading: dict[bytes, tuple[ServedSampler, int]] = {}
        """Prompt -> (the server that has it, requests with it in flight)."""

    @property
    def hello(self) -> Hello:
        return self.members[0].hello

    @property
    def url(self) -> str:
        return ", ".join(member.url for member in self.members)

    @property
    def turns(self) -> int:
        return sum(member.turns for member in self.members)

    async def sample(self, request: Request) -> Completion:
        prompt = request.prompt.tobytes()
        while True:
            member = self._choose(prompt)
            self._load[member] += 1
            self._reading[prompt] = (member, self._reading.get(prompt, (member, 0))[1] + 1)
            try:
                return await member.sample(request)
            except RunFailed as error:
                if not self._goes_on_without(member):
                    raise
                log.warning("rollout %s is drawn by another server: %s", request.rollout_id, error.what)
            finally:
                self._load[member] -= 1
                there, count = self._reading[prompt]
                self._reading[prompt] = (there, count - 1)
                if count == 1:
                    del self._reading[prompt]

    def _choose(self, prompt: bytes) -> ServedSampler:
        alive = [member for member in self.members if not member.lost] or self.members
        idlest = min(alive, key=lambda member: self._load[member])
        reads = self._reading.get(prompt, (idlest, 0))[0]
        near = reads in alive and self._load[reads] - self._load[idlest] < TOGETHER
        return reads if near else idlest

    def _goes_on_without(self, member: ServedSampler) -> bool:
        return member.lost and not all(each.lost for each in self.members)

    async def interrupt(self) -> tuple[Completion, ...]:
        found = await asyncio.gather(*(member.interrupt() for member in self.members))
        return tuple(each for one in found for each in one)

    def limit(self, rows: int) -> None:
        """Of each server."""
        for member in self.members:
            member.limit(rows)

    async def rest(self) -> None:
        """Nothing: memory of servers is their own."""

    async def publish(self, version: int, load: Callable[[], None] = lambda: None) -> None:
        """The weights are taken once, while no server is being given the old ones, then given to all at the same time."""
        held: list[ServedSampler] = []
        try:
            for member in self.members:
                await member.hold()
                held.append(member)
            await compute.run(load)
            await compute.run(self._weights.take)
        except BaseException:
            for member in held:
                member.let_go()
            raise
        done = await asyncio.gather(*(member.renew(version) for member in self.members), return_exceptions=True)
        for member, error in zip(self.members, done, strict=True):
            if isinstance(error, BaseException) and not (
                isinstance(error, RunFailed) and self._goes_on_without(member)
            ):
                raise error

    def close(self) -> None:
        for member in self.members:
            member.close()
