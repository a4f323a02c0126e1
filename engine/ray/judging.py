"""The actor that judges. It needs no model, so nothing here imports torch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from jurat.engine.ray.actor import Actor
from jurat.platform import faults
from jurat.platform.errors import RewardDrift
from jurat.platform.types import Finish, Judgement, Problem, VerifierSpec

Question = tuple[Problem, str, Finish]


class JudgeActor(Actor):
    """A ``Judge``: stateless, so that what it had in hand may be asked of another."""

    judge: Any

    async def start(self, make: Callable[[], Any], specs: Sequence[VerifierSpec], digest: str) -> None:
        """Build the judge, and see that its verifiers are those that the run is recorded with. Raises RewardDrift."""
        faults.point("actor.mid_start")
        with self.uncounted():
            self.judge = await asyncio.to_thread(make)
            await asyncio.to_thread(self.judge.bind, specs)
        found = self.judge.spec_digest
        if digest and found != digest:
            raise RewardDrift(
                f"the reward on this machine is {found[:23]}…, the run's is {digest[:23]}…",
                where="a judge of engine.placement", fix="install the same version of jurat and of your verifiers on every machine",
            )  # fmt: skip

    async def one(self, item: Question) -> Judgement:
        problem, text, finish = item
        faults.point("actor.mid_work")
        found: Judgement = await self.judge.judge(problem, text, finish=finish)
        return found

    async def resize(self, workers: int) -> None:
        self.judge.resize(workers)

    async def shut(self) -> None:
        await asyncio.to_thread(self.judge.close)
