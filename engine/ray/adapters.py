"""The ports of ``platform/ports.py`` over actors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jurat.engine.ray import REPLAYED
from jurat.engine.ray.crew import Crew
from jurat.engine.ray.hosts import Host
from jurat.engine.ray.wire import to_wire
from jurat.platform.errors import RunFailed
from jurat.platform.ports import Objective
from jurat.platform.recipe import JUDGE_ROWS
from jurat.platform.types import Completion, Finish, FloatArray, Judgement, Problem, Request, Rounds, UpdateReport

Call = tuple[Any, ...]
"""(method of an actor, its arguments)."""


class RemoteLearner:
    """A ``Learner``, of the policy or a critic. A lost one is made again, bit for bit, and the loop does not hear of it.

    An update is a function of the learner's state and what it is given. So the last snapshot of that state is kept, and
    every call that changed it since: a new actor restores the one and answers the others again.
    """

    REPLAYED = REPLAYED

    def __init__(self, host: Host, *, ranks: int) -> None:
        self.host, self.ranks, self.checkpoint_bytes = host, ranks, 0
        self._first: list[Call] = []
        """What the stage began with, a load or nothing: a snapshot need not hold what does not learn."""
        self._snapshot: Any = None
        """Reference; None: the state is that of the first calls."""
        self._since: list[Call] = []

    async def restore(self, host: Host) -> None:
        """Bring a new actor to where the lost one was."""
        for call in self._first:
            await host.ask(*call)
        if self._snapshot is not None:
            await host.ask("restore", self._snapshot)
        for call in self._since:
            await host.ask(*call)

    async def score(self, rounds: Rounds) -> Sequence[Sequence[FloatArray]]:
        return _own(await self.host.sure("score", to_wire(rounds)))

    async def update(self, rounds: Rounds, objective: Objective, *, clip_norm: float | None = None) -> UpdateReport:
        call = ("update", to_wire(rounds), objective, clip_norm)
        report: UpdateReport = await self.host.sure(*call)  # one that dies is restored to the state before the call
        self._since.append(call)
        if len(self._since) >= self.REPLAYED:
            await self._renew()
        return report

    async def save(self, folder: Path) -> None:
        """The actor writes: ``folder`` must be the same place on its machine and on this one. Raises RunFailed if not."""
        await self.host.sure("save", folder.resolve())
        if not (folder / "learner.json").is_file():
            raise RunFailed(
                f"the {self.host.role} wrote its checkpoint on another machine's disk", where=str(folder),
                fix="give --home (JURAT_HOME) a folder that every machine of the cluster shares",
            )  # fmt: skip

    async def load(self, folder: Path, *, weights_only: bool = False) -> None:
        call = ("load", folder.resolve(), weights_only)
        await self.host.sure(*call)
        self._snapshot = None
        if weights_only:
            self._first, self._since = [call], []
        else:
            self._since = [call]
            await self._renew()  # the folder is the run's own, and makes room for newer ones

    async def weights(self, dtype: str) -> Any:
        """A reference to the model as it is now, in the object store."""
        return await self.host.keep("weights", dtype)

    async def _renew(self) -> None:
        self._snapshot, self._since = await self.host.keep("snapshot"), []


class RemoteScorer:
    """A ``Scorer`` with frozen weights: a lost one is made again and asked again."""

    def __init__(self, host: Host, *, ranks: int) -> None:
        self.host, self.ranks = host, ranks

    async def score(self, rounds: Rounds) -> Sequence[Sequence[FloatArray]]:
        return _own(await self.host.sure("score", to_wire(rounds)))


class RemoteSampler:
    """A ``Sampler`` and the ``WeightLink`` from a learner to it. A lost one is made again with the weights last published,
    and what it had not answered is asked again: the seeds are the same, so the completions are."""

    def __init__(self, learner: RemoteLearner, *, dtype: str) -> None:
        self.learner, self.dtype = learner, dtype
        self.host: Host
        self.crew: Crew
        self.published: tuple[int, Any] | None = None
        """(version, reference to its weights)."""
        self.rows: int | None = None
        """What ``limit`` said last, for an actor that takes another's place."""

    def limit(self, rows: int) -> None:
        """From now on so many rows are decoded at once at most."""
        self.rows = rows
        self.host.tell("limit", rows)

    def serve(self, host: Host) -> None:
        self.host, self.crew = host, Crew([host])

    async def sample(self, request: Request) -> Completion:
        found: Completion = await self.crew.ask(request)
        return found

    async def interrupt(self) -> tuple[Completion, ...]:
        self.crew.hand_over()
        found: tuple[Completion, ...] = await self.host.sure("interrupt")
        return found

    async def rest(self) -> None:
        """Nothing: the learner's memory is another process's."""

    async def publish(self, version: int) -> None:
        weights = await self.learner.weights(self.dtype)
        self.published = (version, weights)
        await self.host.sure("publish", version, weights)


class RemoteJudge:
    """A ``Judge`` over several: what a lost one had in hand is asked of another, and so is what one is late with."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self.crew = Crew(hosts, window=JUDGE_ROWS, hedged=True)
        self.workers: int | None = None
        """What ``resize`` said last, for an actor that takes another's place."""

    def resize(self, workers: int) -> None:
        """From now on each judge has so many processes for verifiers."""
        self.workers = workers
        for host in self.crew.hosts:
            host.tell("resize", workers)

    def limit(self, rows: int) -> None:
        """From now on a judge has so many completions in hand at most."""
        self.crew.widen(rows)

    async def judge(self, problem: Problem, text: str, *, finish: Finish) -> Judgement:
        found: Judgement = await self.crew.ask((problem, text, finish))
        return found


def _own(scores: Sequence[Sequence[FloatArray]]) -> list[list[FloatArray]]:
    """Arrays that may be written to."""
    return [[np.array(each) for each in ranks] for ranks in scores]
