"""The engine of a stage on a cluster: the same parts as ``engine/local.py`` builds, each behind an actor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError

from jurat.engine import local
from jurat.engine.meter import meter
from jurat.engine.ray.adapters import RemoteJudge, RemoteLearner, RemoteSampler, RemoteScorer
from jurat.engine.ray.cluster import Cluster, Hear, connect, unheard
from jurat.engine.ray.hosts import Host, Lost, Replacement
from jurat.engine.ray.judging import JudgeActor
from jurat.engine.ray.machines import LearnerActor, SamplerActor
from jurat.engine.tokenizer import HFTokenizer
from jurat.platform.memory import History
from jurat.platform.recipe import Engine, LoRA, Optim, SamplingPart
from jurat.platform.types import VerifierSpec

T = TypeVar("T")
ROLES = ("sampler", "learner", "critic", "reference", "judge")
SHUT_SECONDS = 5.0
"""For actors to end their own children; then they are killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayEngine:
    """What ``local.LocalEngine`` is, elsewhere."""

    tokenizer: HFTokenizer
    sampler: RemoteSampler
    learner: RemoteLearner
    link: RemoteSampler
    reference: Callable[[], RemoteScorer]
    """Makes a scorer with a copy of the weights as they are now."""
    critic: Callable[[Optim, int], RemoteLearner]
    """(settings, optimiser steps) -> a value model that begins with the policy's weights as they are now."""
    info: Mapping[str, Any]
    hosts: list[Host]

    def memory(self) -> History:
        """Of the driver, and of each role; one that is dead has none, and is found dead by who needs it."""

        async def peaks() -> Mapping[str, int]:
            async def of(host: Host) -> Mapping[str, int]:
                try:
                    held = await host.ask("peaks")
                except Lost:
                    return {}
                return {f"{host.role} {what}".removesuffix(" host"): most for what, most in held.items()}

            found = await asyncio.gather(*map(of, self.hosts))
            return {whose: most for each in found for whose, most in each.items()}

        return History(meter("cpu"), peaks)

    def close(self) -> None:
        close(self.hosts)


class RayHome:
    """Builds engines and judges on a cluster. ``note`` hears of each actor that was replaced, ``event`` too, with its facts."""

    def __init__(self, cluster: Cluster, note: Callable[[str], None], event: Hear = unheard) -> None:
        self.cluster, self.note, self.event = cluster, note, event

    def build(
        self,
        folder: Path,
        engine: Engine,
        optim: Optim,
        sampling: SamplingPart,
        *,
        lora: LoRA | None = None,
        **rest: Any,
    ) -> RayEngine:
        """As ``local.build``, which every actor calls; adapters are the learner's alone: what it publishes is merged."""
        tokenizer = HFTokenizer(folder)
        hosts: list[Host] = []

        def made(role: str, begin: Callable[[Host], Coroutine[Any, Any, None]]) -> Host:
            hosts.append(self.host(role, SamplerActor if role == "sampler" else LearnerActor, begin))
            return hosts[-1]

        def make(role: str, *, lora: LoRA | None = None) -> Callable[[], local.LocalEngine | local.Sharded]:
            drawn_by = engine.sampler if role == "sampler" else "own"
            own = engine.model_copy(
                update={"home": "local", "sampler": drawn_by, "threads": self.cluster.threads(role), "max_lag": 0}
            )
            if role == "sampler":
                own = own.model_copy(update={"ranks": 1, "tp": 1, "offload": False})
            self.cluster.seat(role, own.ranks)
            build = local.sharded if own.ranks > 1 else local.build
            return partial(build, folder.resolve(), own, optim, sampling, lora=lora, **rest)

        start_learner, start_sampler = make("learner", lora=lora), make("sampler")

        async def begin_learner(host: Host) -> None:
            info.update(await host.ask("start", start_learner))
            learner.checkpoint_bytes = await host.ask("checkpoint_bytes")
            await learner.restore(host)

        async def begin_sampler(host: Host) -> None:
            sampled.update(await host.ask("start", start_sampler))
            if sampler.published is not None:
                await host.ask("publish", *sampler.published)
            if sampler.rows is not None:
                await host.ask("limit", sampler.rows)

        def copied(role: str, become: Callable[[Host], Coroutine[Any, Any, None]] | None = None) -> Host:
            """A learner's actor with the policy's weights as they are now, also when it is made again; not started."""
            start, weights = make(role), wait(learner.weights("float32"))

            async def begin(host: Host) -> None:
                await host.ask("start", start)
                await host.ask("adopt", weights)
                if become is not None:
                    await become(host)

            return made(role, begin)

        def reference() -> RemoteScorer:
            scorer = RemoteScorer(copied("reference"), ranks=learner.ranks)
            wait(scorer.host.open())
            return scorer

        def critic(optim: Optim, total_steps: int) -> RemoteLearner:
            async def become(host: Host) -> None:
                await host.ask("critic", optim, total_steps)
                await values.restore(host)

            values = RemoteLearner(copied("critic", become), ranks=learner.ranks)
            wait(values.host.open())
            values.checkpoint_bytes = wait(values.host.sure("checkpoint_bytes"))
            return values

        info: dict[str, Any] = {}
        sampled: dict[str, Any] = {}
        learner = RemoteLearner(made("learner", begin_learner), ranks=engine.ranks // engine.tp)
        sampler = RemoteSampler(learner, dtype=engine.dtype)
        sampler.serve(made("sampler", begin_sampler))
        try:
            wait(opened(hosts))
        except BaseException:
            close(hosts)
            raise
        threads = {role: self.cluster.threads(role) for role in ("sampler", "learner")}
        return RayEngine(
            tokenizer=tokenizer, sampler=sampler, learner=learner, link=sampler,
            reference=reference, critic=critic, hosts=hosts,
            info={**info, **{key: sampled[key] for key in ("sampler", "kernels")}, "home": "ray", "threads": threads},
        )  # fmt: skip

    @contextmanager
    def judge(self, make: Callable[[], Any], specs: Sequence[VerifierSpec], digest: str = "") -> Iterator[RemoteJudge]:
        """``engine.judges`` processes, each with the judge that ``make`` (importable) builds, bound to ``specs``.

        Raises RewardDrift if one's reward has another digest than ``digest``.
        """

        judges: list[RemoteJudge] = []

        async def begin(host: Host) -> None:
            await host.ask("start", make, list(specs), digest)
            if judges and judges[0].workers is not None:
                await host.ask("resize", judges[0].workers)

        hosts = [self.host("judge", JudgeActor, begin) for _ in range(self.cluster.engine.judges)]
        try:
            wait(opened(hosts))
            judges.append(RemoteJudge(hosts))
            yield judges[0]
        finally:
            close(hosts)

    def host(self, role: str, actor: type, begin: Callable[[Host], Coroutine[Any, Any, None]]) -> Host:
        """An ``actor`` in the place of ``role``, made by ``opened``; ``begin`` sets it up, again when it is replaced."""
        return Host(
            role, create=self.cluster.create(role, actor), begin=begin, stands=partial(self.cluster.stands, role),
            hang_seconds=self.cluster.engine.hang_seconds, replaced=self._replaced,
        )  # fmt: skip

    def _replaced(self, found: Replacement) -> None:
        self.note(str(found))
        self.event("replaced", {**asdict(found), "seconds": round(found.seconds, 3)})


@contextmanager
def open_home(
    engine: Engine, note: Callable[[str], None], event: Hear = unheard, *, roles: Sequence[str] = ROLES
) -> Iterator[RayHome]:
    """The cluster of a recipe, its processors reserved for ``roles``."""
    with connect(engine, roles=roles, note=note, event=event) as cluster:
        yield RayHome(cluster, note, event)


async def opened(hosts: Sequence[Host]) -> None:
    """Make and begin all at once."""
    async with asyncio.TaskGroup() as tasks:
        for host in hosts:
            tasks.create_task(host.open())


def wait(work: Coroutine[Any, Any, T]) -> T:
    """Do ``work`` in a loop of its own and wait, whether or not this thread runs one."""
    with ThreadPoolExecutor(1) as thread:
        try:
            return thread.submit(asyncio.run, work).result()
        except BaseExceptionGroup as group:
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            raise error from None


def close(hosts: Sequence[Host]) -> None:
    """Let each end its children, then end it; those that do not answer are killed."""
    shut = {ref: host for host in hosts if (ref := host.shut()) is not None}
    done: Sequence[Any] = ()
    with suppress(RayError):
        if shut:
            done, _ = ray.wait(list(shut), num_returns=len(shut), timeout=SHUT_SECONDS)
    for ref, host in shut.items():
        host.close(answers=ref in done)
