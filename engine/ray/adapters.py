"""The ports of ``platform/ports.py`` over actors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jurat.engine.ray.crew import Crew
from jurat.engine.ray.hosts import Host, Lost
from jurat.engine.ray.wire import to_wire
from jurat.platform.errors import RunFailed
from jurat.platform.ports import Objective
from jurat.platform.types import Completion, Finish, FloatArray, Judgement, Problem, Request, Rounds, UpdateReport


class RemoteLearner:
    """A ``Learner``, of the policy or a critic. Its state lies in its process alone, so that its death ends the run, which
    a resume goes on with."""

    ranks = 1

    def __init__(self, host: Host, *, checkpoint_bytes: int) -> None:
        self.host, self.checkpoint_bytes = host, checkpoint_bytes

    async def score(self, rounds: Rounds) -> Sequence[Sequence[FloatArray]]:
        return _own(await self._call("score", to_wire(rounds)))

    async def update(self, rounds: Rounds, objective: Objective, *, clip_norm: float | None = None) -> UpdateReport:
        report: UpdateReport = await self._call("update", to_wire(rounds), objective, clip_norm)
        return report

    async def save(self, folder: Path) -> None:
        """The actor writes: ``folder`` must be the same place on its machine and on this one. Raises RunFailed if not."""
        await self._call("save", folder.resolve())
        if not (folder / "learner.json").is_file():
            raise RunFailed(
                f"the {self.host.role} wrote its checkpoint on another machine's disk", where=str(folder),
                fix="give --home (JURAT_HOME) a folder that every machine of the cluster shares",
            )  # fmt: skip

    async def load(self, folder: Path, *, weights_only: bool = False) -> None:
        await self._call("load", folder.resolve(), weights_only)

    async def weights(self, dtype: str) -> Any:
        """A reference to the model as it is now, in the object store."""
        try:
            return await self.host.keep("weights", dtype)
        except Lost:
            raise self._lost() from None

    async def _call(self, method: str, *args: Any) -> Any:
        try:
            return await self.host.call(method, *args)
        except Lost:
            raise self._lost() from None

    def _lost(self) -> RunFailed:
        return RunFailed(
            f"the {self.host.role}'s process {self.host.why}, and with it the steps since the last checkpoint",
            where=f"engine.placement.{self.host.role}, process {self.host.pid}",
            fix="jurat train --resume RUN goes on from the last checkpoint",
        )


class RemoteScorer:
    """A ``Scorer`` with frozen weights: a lost one is made again and asked again."""

    ranks = 1

    def __init__(self, host: Host) -> None:
        self.host = host

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

    def serve(self, host: Host) -> None:
        self.host, self.crew = host, Crew([host])

    async def sample(self, request: Request) -> Completion:
        found: Completion = await self.crew.ask(request)
        return found

    async def interrupt(self) -> tuple[Completion, ...]:
        self.crew.hand_over()
        found: tuple[Completion, ...] = await self.host.sure("interrupt")
        return found

    async def publish(self, version: int) -> None:
        weights = await self.learner.weights(self.dtype)
        self.published = (version, weights)
        await self.host.sure("publish", version, weights)


class RemoteJudge:
    """A ``Judge`` over several: what a lost one had in hand is asked of another."""

    WINDOW = 256
    """Completions that a judge has in hand at most."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self.crew = Crew(hosts, window=self.WINDOW)

    def limit(self, rows: int) -> None:
        """From now on a judge has so many completions in hand at most."""
        self.crew.window = rows

    async def judge(self, problem: Problem, text: str, *, finish: Finish) -> Judgement:
        found: Judgement = await self.crew.ask((problem, text, finish))
        return found


def _own(scores: Sequence[Sequence[FloatArray]]) -> list[list[FloatArray]]:
    """Arrays that may be written to."""
    return [[np.array(each) for each in ranks] for ranks in scores]
