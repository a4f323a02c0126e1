"""The loop, top to bottom: take a batch, record it, turn it into samples, update, publish, record, save.

```
 plan -> sample -> judge -> [Batch] -> record -> annotate -> samples -> pack -> update -> publish -> record -> save
  ^        (source, ahead by max_lag)                 (whole batch)      (learners)        |
  +----------------------------------- version s + 1 -------------------------------------+
```
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from jurat.platform import faults
from jurat.platform.memory import History
from jurat.platform.ports import Checkpoints, Learner, Ledger, Reporter, Scorer, State, WeightLink
from jurat.platform.randomness import generator
from jurat.platform.types import CheckpointRef, StepReport, UpdateReport
from jurat.trainers.balance import Balance
from jurat.trainers.buffer import Buffer
from jurat.trainers.controllers import Controllers
from jurat.trainers.limits import Limits
from jurat.trainers.metrics import mean, step_metrics, value_metrics
from jurat.trainers.packing import pack, updates
from jurat.trainers.samples import Algorithm, annotate
from jurat.trainers.saving import Saving
from jurat.trainers.timeline import waited

SETTLING = "in lockstep what is in flight ends before the next version; stopped at once, the run goes on from its last checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the loop needs to know of a recipe: flat, no config."""

    seed: int
    stage: str
    first_step: int
    num_steps: int
    algorithm: Algorithm
    limits: Limits
    epochs: int
    updates_per_step: int
    tokens_per_microbatch: int
    save_every: int | None
    evaluate_every: int | None
    asked: Callable[[], bool] = lambda: False
    """Whether somebody asks for a checkpoint now."""

    def rng(self, step: int, purpose: str) -> np.random.Generator:
        return generator(self.seed, self.stage, step, purpose)

    def saves_after(self, step: int) -> bool:
        due = self.save_every is not None and (step + 1) % self.save_every == 0
        return step + 1 == self.num_steps or due or self.asked()

    def evaluates_after(self, step: int) -> bool:
        due = self.evaluate_every is not None and (step + 1) % self.evaluate_every == 0
        return due and step + 1 < self.num_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """Where the loop ended."""

    version: int
    """Less than ``num_steps`` if it was stopped."""
    checkpoint: CheckpointRef | None
    """The last one written; None if no step was taken."""
    metrics: Mapping[str, float]
    """Of the last step."""


async def train(
    run: Run,
    *,
    buffer: Buffer,
    controllers: Controllers,
    learners: Mapping[str, Learner],
    scorers: Mapping[str, Scorer],
    link: WeightLink,
    ledger: Ledger,
    checkpoints: Checkpoints,
    reporter: Reporter,
    evaluate: Callable[[int], Awaitable[object]],
    memory: History,
    balance: Balance,
) -> Reached:
    """Run steps first_step .. num_steps - 1, or fewer if a stop is asked for.

    A stop asked for while a batch is awaited ends the wait; asked for later it lets the step finish. Both end in a
    checkpoint from which a resumed run goes on as this one would have: at lag 0 and in lockstep with equal numbers.
    """
    buffer.published(run.first_step)

    async def state() -> State:
        return {**await buffer.checkpoint(), "controllers": controllers.state(),
                "memory": memory.state(), "balance": balance.state()}  # fmt: skip

    begun = run.first_step  # version of the last checkpoint
    version, metrics = run.first_step, dict[str, float]()
    async with Saving(checkpoints, ledger, reporter) as saving:
        for step in range(run.first_step, run.num_steps):
            saving.check()
            clock = Clock(partial(memory.note, step))
            balance.begin()
            batch = await buffer.take(step)
            if batch is None:
                break
            batch = waited(batch)
            clock.lap("batch")
            await link.rest()
            ledger.record_batch(batch)  # evidence first, then judgement
            run.limits.check(batch, reporter)
            algorithm = run.algorithm.with_kl(controllers.kl.coef) if controllers.kl else run.algorithm
            scores = await annotate(
                batch.groups,
                algorithm.needs,
                {**scorers, **learners},
                tokens=run.tokens_per_microbatch,
                baselines=algorithm.point_needs,
            )
            clock.lap("score")
            groups = controllers.normalised(batch.groups)
            samples, optimised = algorithm.samples(groups, scores), algorithm.optimised(groups)
            if algorithm.has_advantages:
                told = {sample.rollout_id: sample.advantages[sample.loss_mask] for sample in samples}
                ledger.record_advantages(step, told, optimised)
            reports: list[UpdateReport] = []
            for part in updates(
                samples, epochs=run.epochs, per_epoch=run.updates_per_step, rng=run.rng(step, "updates")
            ):
                for role, objective in algorithm.objectives.items():
                    if not algorithm.learns(role, step):
                        continue
                    packed = pack(
                        part,
                        objective,
                        algorithm.aggregation,
                        ranks=learners[role].ranks,
                        tokens=run.tokens_per_microbatch,
                        constant=algorithm.constant,
                        whole_atoms=algorithm.whole_atoms,
                    )
                    limit = controllers.clip_norm if role == "policy" else None
                    reports.append(await learners[role].update(packed.rounds, objective, clip_norm=limit))
                    controllers.observe(reports[-1])
            clock.lap("update")
            run.limits.check_updates(reports, reporter)
            faults.point("loop.between_update_and_publish")
            if buffer.lockstep:
                await buffer.settle(lambda: reporter.note(SETTLING))
                clock.lap("batch")
            version = step + 1
            await link.publish(version)
            buffer.published(version)
            clock.lap("publish")
            steered = controllers.steer(algorithm.reference_kl(samples), len(samples))
            metrics = step_metrics(batch, reports) | {"reward/optimised": mean(optimised.values())}
            metrics |= steered | value_metrics(samples) | balance.after(step, clock.laps, ledger)
            report = StepReport(
                step=step,
                version=version,
                metrics=metrics,
                updates=tuple(reports),
                seconds={
                    **clock.laps,
                    "sample": batch.seconds.get("sample", 0.0),
                    "judge": batch.seconds.get("judge", 0.0),
                },
            )
            await memory.note_elsewhere(step)
            ledger.record_step(report)
            reporter.step(report)
            if run.saves_after(step):
                await saving.begin(version, learners, state)
                begun = version
                clock.lap("save")
            if run.evaluates_after(step):
                await evaluate(version)
                clock.lap("evaluate")
            if buffer.stop.is_set():
                break
        if begun != version:
            await saving.begin(version, learners, state)
        last = await saving.last()
        await buffer.cancel()
        return Reached(version=version, checkpoint=last, metrics=metrics)


class Clock:
    """Wall seconds by phase; ``ended`` hears of each."""

    def __init__(self, ended: Callable[[str], None]) -> None:
        self.laps: dict[str, float] = {}
        self._ended = ended
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """Seconds since the last lap go to ``name``."""
        now = time.perf_counter()
        self.laps[name] = self.laps.get(name, 0.0) + now - self._last
        self._last = now
        self._ended(name)
