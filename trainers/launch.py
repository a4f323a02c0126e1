"""The composition root: a recipe becomes a run. Its stages are checked by ``prepare.py`` and run by ``stage.py``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jurat.engine import checkpoint as checkpointing
from jurat.engine import local, models, threads
from jurat.engine.ray import needs_ray
from jurat.platform.canonical import digest
from jurat.platform.errors import ConfigError, FencedOut, JuratError, RewardDrift, RunFailed
from jurat.platform.ports import Ledger, Reporter
from jurat.platform.provenance import bundle, drift, lineage, seal, versions
from jurat.platform.recipe import Data, Prompt, Recipe, SamplingPart, Source
from jurat.platform.runs import events
from jurat.platform.runs.heart import Heart
from jurat.platform.runs.lock import exclusive
from jurat.platform.runs.outage import patiently
from jurat.platform.runs.records import Beat, Lease, RunInfo
from jurat.platform.runs.states import LIMITS, Limits
from jurat.platform.runs.store import Store
from jurat.platform.types import CheckpointRef, Evaluation
from jurat.trainers import evaluate as evaluation
from jurat.trainers.contradictions import refuse_idle, unread
from jurat.trainers.data import sampling_of, short_enough
from jurat.trainers.made_of import Asked, MadeOf, ingredients
from jurat.trainers.prepare import (
    MEASURED,
    Prepared,
    dry_run,
    judge_for,
    memory_needed,
    prepare,
    what_learns,
    with_sources,
)
from jurat.trainers.presets import filled
from jurat.trainers.signals import StopOnSignals
from jurat.trainers.stage import StageRun
from jurat.trainers.trackers import Trackers, params_of, refuse_absent

if TYPE_CHECKING:
    from jurat.engine.ray.home import RayHome


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended."""

    run: str
    folder: Path
    state: str
    """finished or interrupted."""
    step: int
    """Policy version of the last stage."""
    metrics: Mapping[str, float]
    """Of the last step."""
    checkpoint: str
    """Folder of the last checkpoint."""
    evaluations: tuple[Evaluation, ...]
    """Of this process, in order."""


def train(
    recipe: Recipe | None,
    *,
    home: Path,
    base: Path,
    reporter: Reporter,
    run_id: str | None = None,
    resume: str | None = None,
    database: str | None = None,
    over_memory: bool = False,
    accept_reward_change: bool = False,
    epoch: int | None = None,
    argv: Sequence[str] = (),
    limits: Limits = LIMITS,
) -> Outcome:
    """Run a recipe to its end, or go on with run ``resume`` by its own recipe (``recipe`` is then None), which is looked
    for in ``database`` (a SQLAlchemy URL; None: that of the home folder). ``over_memory``: also where the estimate, a bound,
    says that it does not fit. ``accept_reward_change``: also where the reward is not the one that the run began with, which
    is recorded. ``epoch``: of the lease that a launcher holds for this process. ``argv``: the command, for the record.

    Ctrl-C once: checkpoint and stop; twice: stop now. Raises JuratError; the run is then recorded as failed.
    """
    if (recipe is None) == (resume is None):
        raise ConfigError("give a recipe or a run to resume, not both", where="jurat train")
    store = Store.open(recipe.tracking.database if recipe else database, home)
    found = None if resume is None else store.run(resume)
    if found is not None:
        recipe, base = Recipe.model_validate(found.recipe), Path(found.meta.get("base") or base)
    assert recipe is not None
    if found is None:
        refuse_idle(recipe)
        if run_id is not None:
            store.refuse_taken(run_id)
    recipe = filled(recipe)
    refuse_absent(recipe.tracking.log_to)
    folder = models.resolve(recipe.model, home, base)
    prepared = [prepare(stage, base=base, name=name, observe=True) for name, stage in recipe.staged()]
    for each in prepared:
        what_learns(each.recipe, folder)  # refuses unknown layers of any stage before the first one is trained
    memory_needed(prepared, folder, reporter.note, over_memory=over_memory)
    for said in unread(recipe.engine, threads.processors()):
        reporter.note(said)
    rewards = [each.reward for each in prepared]
    refuse_quarantined(store, [facts.digest for stage in prepared for facts in stage.facts])
    run = found or store.create_run(
        recipe=recipe,
        recipe_digest=digest(recipe),
        reward_digest=rewards[-1],
        run_id=run_id,
        meta={"base": str(base.resolve()), "rewards": rewards, "verifiers": dict(prepared[-1].verifiers)},
    )
    _refuse_unexpected(run, prepared)
    change = reward_change(store, run, prepared, base)
    if change and not accept_reward_change:
        raise RewardDrift(
            f"the reward of run {run.id} has changed since it began\n{change}",
            where=str(run.folder),
            fix="restore the verifier, start a new run from the checkpoint (jurat export), or --accept-reward-change",
        )
    with exclusive(run.folder):
        lease = store.take(run, epoch=epoch, limits=limits)
        if change or "rewards" not in run.meta:
            store.pin_reward(lease, rewards=rewards, verifiers=dict(prepared[-1].verifiers), change=change)
        run = store.run(run.id)
        launch = Launch(
            recipe=recipe, run=run, store=store, model=folder, base=base, reporter=reporter, lease=lease,
            made_of=MadeOf(home=home, base=base, model=folder, argv=tuple(argv)),
        )  # fmt: skip
        heart = Heart(store, lease, heard=launch.heard, fenced=launch.taken, limits=limits)
        try:
            told = Trackers(recipe.tracking.log_to, run, reporter, lambda: params_of(recipe, launch.digests(prepared)))
            with heart, told as launch.reporter, _cluster(recipe, reporter.note, launch.happened) as launch.cluster:
                outcome = asyncio.run(launch.stages(prepared))
                told.state = outcome.state
        except BaseException as error:
            first = heart.fenced or _first(error)
            if not isinstance(first, FencedOut):
                with suppress(RunFailed, FencedOut):  # a database that does not answer must not hide what happened
                    stopped = isinstance(first, KeyboardInterrupt)
                    store.end(lease, "interrupted" if stopped else "failed", str(first))
                _keep_record(store, run)
            raise first from None if isinstance(first, JuratError) else error
        if outcome.state == "finished":
            asyncio.run(patiently(lambda: store.add_event(run, events.SEALING, {}), reporter.note))
        asyncio.run(patiently(lambda: store.end(lease, outcome.state), reporter.note))  # type: ignore[arg-type]
        _keep_record(store, run)
    return outcome


def _refuse_unexpected(run: RunInfo, prepared: Sequence[Prepared]) -> None:
    """Whoever launched the run may have said by what it is to be rewarded."""
    reward, verifiers = prepared[-1].reward, dict(prepared[-1].verifiers)
    expected = run.meta.get("expected") or {}
    wrong = [f"reward spec {expected['reward']}"] if expected.get("reward") not in (None, "", reward) else []
    named = expected.get("verifiers", {}).items()
    wrong += [f"{member} as {version}" for member, version in named if verifiers.get(member) != version]
    if wrong:
        raise RewardDrift(
            f"run {run.id} was to be rewarded by {', '.join(wrong)}; here it is {reward} of {verifiers}",
            where=str(run.folder),
            fix="install that version of the verifier, or launch without naming one",
        )


def _keep_record(store: Store, run: RunInfo) -> None:
    """A copy of the run's folder opens without the database; a full disk is no reason to call the run failed."""
    with suppress(OSError, RunFailed):
        ended = store.run(run.id)
        if ended.state == "finished":
            seal.seal(store, ended)
        bundle.write_record(store, ended)


def refuse_quarantined(store: Store, digests: Sequence[str]) -> None:
    """Nothing new is learnt from a verifier's version that was found bad. Raises ConfigError."""
    for bad in store.read(lambda connection: versions.quarantined(connection, digests)):
        raise ConfigError(
            f"verifier {', '.join(bad.names)} is quarantined: {bad.status_reason or 'no reason was given'}",
            where=bad.digest,
            fix="use another version, or: jurat verifiers status VERSION active",
        )


def reward_change(store: Store, run: RunInfo, prepared: Sequence[Prepared], base: Path) -> str:
    """What changed of the reward since the run began, as a diff; '' if nothing did. By the digests of its reward specs, and
    by what its verifiers say of the canary cases."""
    pinned = run.meta.get("rewards")
    said: list[str] = []
    for place, stage in enumerate(prepared):
        before = pinned[place] if pinned and place < len(pinned) else ""
        if pinned is None or before in stage.same_as:
            continue
        whole = with_sources(stage, {facts.digest for facts in stage.facts}, base)
        found = ingredients(whole)
        said.append(store.read(lambda connection, b=before, f=found: drift.difference(connection, b, f)))  # type: ignore[misc]
    if store.segments(run):
        for stage in prepared:
            seen = ingredients(stage)
            said += store.read(lambda connection, s=seen: drift.behaviour(connection, s))  # type: ignore[misc]
    return "\n".join(dict.fromkeys(said))


def _cluster(
    recipe: Recipe, note: Callable[[str], None], event: Callable[[str, Mapping[str, Any]], None]
) -> AbstractContextManager[RayHome | None]:
    """The Ray cluster that a recipe names; None where it runs in this process, and Ray is not imported."""
    if recipe.engine.home == "local":
        return nullcontext()
    needs_ray()
    from jurat.engine.ray.home import open_home

    return open_home(recipe.engine, note, event)


def _first(error: BaseException) -> BaseException:
    """The first real error inside groups of a TaskGroup."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@dataclass(slots=True, kw_only=True)
class Launch:
    recipe: Recipe
    run: RunInfo
    store: Store
    model: Path
    """Its folder."""
    base: Path
    reporter: Reporter
    lease: Lease
    made_of: MadeOf
    cluster: RayHome | None = None
    measuring: bool = False
    """While an evaluation runs."""
    wanted: Asked = field(default_factory=Asked)
    """What was asked of the run while it goes on."""
    ledger: Ledger | None = None
    """Of the stage that runs."""
    _early: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    _loop: asyncio.AbstractEventLoop | None = None
    _task: asyncio.Task[Any] | None = None
    _stop: asyncio.Event | None = None

    def digests(self, prepared: Sequence[Prepared]) -> dict[str, str]:
        """Of what the run is made of, by dotted names that begin with the stage's."""
        found: dict[str, str] = {}
        for each in prepared:
            made, stage = self.made_of.of(each, from_checkpoint=""), f"{each.name}." if each.name else ""
            found |= {"model": made.model, f"{stage}reward": made.reward}
            found |= {f"{stage}data.{part}": str(said["digest"]) for part, said in made.datasets.items()}
            found |= {} if made.environment is None else {"environment": made.environment.digest}
        return found

    def heard(self, beat: Beat) -> None:
        """From the heart's thread: pause and cancel stop at a checkpoint, checkpoint makes one and goes on."""
        self.wanted.hear(beat.commands)
        for command, result in self.wanted.answers():
            with suppress(RunFailed, FencedOut):
                self.store.acknowledge(self.lease, command, result)
        if beat.desired != "run" and self._loop is not None and self._stop is not None and not self._stop.is_set():
            self.reporter.note(f"asked to {beat.desired}: {self._stopping()}")
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop.set)

    def happened(self, kind: str, facts: Mapping[str, Any]) -> None:
        """An event of the run, from any thread; what comes before the stage has a ledger waits for it."""
        if self.ledger is None:
            self._early.append((kind, facts))
        else:
            self.ledger.record_event(kind, facts)

    def records_by(self, ledger: Ledger | None) -> None:
        self.ledger = ledger
        if ledger is not None:
            early, self._early = self._early, []
            for kind, facts in early:
                ledger.record_event(kind, facts)

    def taken(self, error: FencedOut) -> None:
        """From the heart's thread: another process has the run, so this one writes nothing more."""
        if self._loop is not None and self._task is not None:
            with suppress(RuntimeError):  # the loop has ended meanwhile, and so has what it would have written
                self._loop.call_soon_threadsafe(self._task.cancel)

    async def stages(self, prepared: Sequence[Prepared]) -> Outcome:
        """Every stage that is not finished, in order; each begins from the weights of the one before."""
        stop = self._stop = asyncio.Event()
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        found = [self._latest(each.name) for each in prepared]
        started = max((place for place, ref in enumerate(found) if ref is not None), default=0)
        evaluations: list[Evaluation] = []
        metrics: Mapping[str, float] = {}
        with StopOnSignals(stop, self.reporter, says=self._stopping, last=self._abandoned):
            for place in range(started, len(prepared)):
                if await self._complete(prepared[place], found[place]):
                    continue  # ended, measured, and then stopped before the next stage had a checkpoint
                parent = found[place - 1] if place else await patiently(self._forked, self.reporter.note)
                before = prepared[place - 1] if place else None
                stage = StageRun(launch=self, prepared=prepared[place], before=before, place=place, stop=stop)
                reached = await stage.run(own=found[place], parent=parent)
                found[place] = reached.checkpoint or found[place]
                evaluations += stage.evaluations
                metrics = reached.metrics or metrics
                version = reached.version
                if version < prepared[place].recipe.steps or stage.unmeasured:
                    return self._outcome("interrupted", version, metrics, found[place] or parent, evaluations)
        return self._outcome("finished", prepared[-1].recipe.steps, metrics, found[-1], evaluations)

    def _forked(self) -> CheckpointRef | None:
        """The checkpoint of another run whose weights this one begins with. Raises DataError where it is gone."""
        digest = self.run.from_checkpoint
        return None if digest is None else self.store.read(lambda c: lineage.whole_checkpoint(c, digest))

    def _stopping(self) -> str:
        return "stopping: this evaluation ends here" if self.measuring else "stopping at a checkpoint"

    def _abandoned(self) -> None:
        with suppress(FencedOut):
            self.store.end(self.lease, "interrupted", "stopped at once")

    async def _complete(self, stage: Prepared, ref: CheckpointRef | None) -> bool:
        """Whether a stage has its last checkpoint, and the evaluations after it are recorded."""
        if ref is None or ref.step < stage.recipe.steps:
            return False
        saved = await patiently(lambda: self.store.evaluations(self.run), self.reporter.note)
        measured = (each.result for each in saved)
        after = {result.name for result in measured if (result.stage, result.step) == (stage.name, ref.step)}
        return MEASURED & stage.sets.keys() <= after

    def _outcome(
        self,
        state: str,
        step: int,
        metrics: Mapping[str, float],
        ref: CheckpointRef | None,
        evaluations: Sequence[Evaluation],
    ) -> Outcome:
        return Outcome(
            run=self.run.id,
            folder=self.run.folder,
            state=state,
            step=step,
            metrics=metrics,
            checkpoint=ref.path if ref else "",
            evaluations=tuple(evaluations),
        )

    def _latest(self, stage: str) -> CheckpointRef | None:
        """The newest whole checkpoint of a stage. Raises RunFailed where there are some and none is whole."""
        folder = self.checkpoints(stage)
        found = checkpointing.latest(folder, report=self.reporter.note)
        if found is None and folder.is_dir() and any(folder.glob("step-*")):
            raise RunFailed(
                "every checkpoint of the stage is damaged",
                where=str(folder),
                fix="restore one from a copy, or remove the folder to begin the stage again",
            )
        return found

    def checkpoints(self, stage: str) -> Path:
        return self.run.folder / "checkpoints" / (stage or "main")


def evaluate_model(
    model: str,
    source: Source,
    *,
    home: Path,
    base: Path,
    prompt: Prompt,
    sampling: SamplingPart,
    samples: int,
    limit: int | None,
    reporter: Reporter,
    engine: Any = None,
) -> Evaluation:
    """pass@k with intervals of a model (a name, a folder, a Hub id) on a data set."""
    recipe = Recipe(
        model=model, data=Data(train=source), prompt=prompt, sampling=sampling, **({"engine": engine} if engine else {})
    )  # type: ignore[arg-type]
    prepared = prepare(recipe, base=base, name="eval")
    machine = local.build(models.resolve(model, home), recipe.engine, recipe.optim, sampling, total_steps=1)
    with closing(machine), closing(judge_for(recipe, base)) as judge:
        problems = prepared.sets["train"].problems
        judge.bind([problem.verifier for problem in problems])
        kept = short_enough(problems, machine.tokenizer, recipe, reporter.note, "eval")
        return asyncio.run(
            evaluation.evaluate(
                kept[:limit],
                name=source.source,
                stage="",
                step=0,
                sampler=machine.sampler,
                judge=judge,
                tokenizer=machine.tokenizer,
                sampling=sampling_of(sampling, machine.tokenizer),
                samples=samples,
                seed=recipe.seed,
                with_greedy=True,
            )
        )


__all__ = ["JuratError", "Outcome", "dry_run", "evaluate_model", "prepare", "train"]
