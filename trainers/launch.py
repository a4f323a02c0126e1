"""The composition root: a recipe becomes a run. Its stages are checked by ``prepare.py`` and run by ``stage.py``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jurat.engine import checkpoint as checkpointing
from jurat.engine import local, models
from jurat.engine.ray import needs_ray
from jurat.platform.canonical import digest
from jurat.platform.errors import ConfigError, JuratError, RewardDrift, RunFailed
from jurat.platform.ports import Reporter
from jurat.platform.recipe import Data, Prompt, Recipe, SamplingPart, Source
from jurat.platform.runs.lock import exclusive
from jurat.platform.runs.records import RunInfo
from jurat.platform.runs.store import Store
from jurat.platform.types import CheckpointRef, Evaluation
from jurat.trainers import evaluate as evaluation
from jurat.trainers.contradictions import refuse_idle
from jurat.trainers.data import sampling_of, short_enough
from jurat.trainers.prepare import MEASURED, Prepared, dry_run, judge_for, memory_needed, prepare, what_learns
from jurat.trainers.presets import filled
from jurat.trainers.signals import StopOnSignals
from jurat.trainers.stage import StageRun

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
) -> Outcome:
    """Run a recipe to its end, or go on with run ``resume`` by its own recipe (``recipe`` is then None), which is looked
    for in ``database`` (a SQLAlchemy URL; None: that of the home folder). ``over_memory``: also where the estimate, a bound,
    says that it does not fit.

    Ctrl-C once: checkpoint and stop; twice: stop now. Raises JuratError; the run is then recorded as failed.
    """
    if (recipe is None) == (resume is None):
        raise ConfigError("give a recipe or a run to resume, not both", where="jurat train")
    store = Store.open(recipe.tracking.database if recipe else database, home)
    found = None if resume is None else store.run(resume)
    if found is not None:
        recipe, base = Recipe.model_validate(found.recipe), Path(found.meta["base"])
    assert recipe is not None
    if found is None:
        refuse_idle(recipe)
        if run_id is not None:
            store.refuse_taken(run_id)
    recipe = filled(recipe)
    folder = models.resolve(recipe.model, home, base)
    prepared = [prepare(stage, base=base, name=name) for name, stage in recipe.staged()]
    for each in prepared:
        what_learns(each.recipe, folder)  # refuses unknown layers of any stage before the first one is trained
    memory_needed(prepared, folder, reporter.note, over_memory=over_memory)
    rewards = [each.reward for each in prepared]
    run = found or store.create_run(
        recipe=recipe,
        recipe_digest=digest(recipe),
        reward_digest=rewards[-1],
        run_id=run_id,
        meta={"base": str(base.resolve()), "rewards": rewards, "verifiers": dict(prepared[-1].verifiers)},
    )
    if "rewards" not in run.meta:
        run = _bind(store, run, recipe, prepared)
    if run.meta["rewards"] != rewards:
        raise RewardDrift(
            f"the reward of run {run.id} has changed since it began: {run.meta['verifiers']} then, "
            f"{dict(prepared[-1].verifiers)} now",
            where=str(run.folder),
            fix="restore the verifier, or start a new run from the checkpoint (jurat export)",
        )
    with exclusive(run.folder):
        run = store.set_state(run, "running")
        launch = Launch(recipe=recipe, run=run, store=store, model=folder, base=base, reporter=reporter)
        try:
            with _cluster(recipe, reporter.note) as launch.cluster:
                outcome = asyncio.run(launch.stages(prepared))
        except BaseException as error:
            first = _first(error)
            with suppress(RunFailed):  # a database that does not answer must not hide what happened
                store.set_state(run, "interrupted" if isinstance(first, KeyboardInterrupt) else "failed", str(first))
            raise first from None if isinstance(first, JuratError) else error
        store.set_state(run, outcome.state)  # type: ignore[arg-type]
    return outcome


def _bind(store: Store, run: RunInfo, recipe: Recipe, prepared: Sequence[Prepared]) -> RunInfo:
    """The first start of a run that the service made: its reward is now known, and must be the one that was asked for."""
    reward, verifiers = prepared[-1].reward, dict(prepared[-1].verifiers)
    expected = run.meta.get("expected") or {}
    wrong = [f"reward spec {expected['reward']}"] if expected.get("reward") not in (None, "", reward) else []
    wrong += [f"{member} as {digest}" for member, digest in expected.get("verifiers", {}).items() if verifiers.get(member) != digest]
    if wrong:
        raise RewardDrift(
            f"run {run.id} was to be rewarded by {', '.join(wrong)}; here it is {reward} of {verifiers}",
            where=str(run.folder), fix="install that version of the verifier, or launch without naming one",
        )  # fmt: skip
    return store.bind(run, reward_digest=reward, meta={"rewards": [each.reward for each in prepared], "verifiers": verifiers})


def _cluster(recipe: Recipe, note: Callable[[str], None]) -> AbstractContextManager[RayHome | None]:
    """The Ray cluster that a recipe names; None where it runs in this process, and Ray is not imported."""
    if recipe.engine.home == "local":
        return nullcontext()
    needs_ray()
    from jurat.engine.ray.home import open_home

    return open_home(recipe.engine, note)


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
    cluster: RayHome | None = None
    measuring: bool = False
    """While an evaluation runs."""

    async def stages(self, prepared: Sequence[Prepared]) -> Outcome:
        """Every stage that is not finished, in order; each begins from the weights of the one before."""
        stop = asyncio.Event()
        found = [self._latest(each.name) for each in prepared]
        started = max((place for place, ref in enumerate(found) if ref is not None), default=0)
        evaluations: list[Evaluation] = []
        metrics: Mapping[str, float] = {}
        with StopOnSignals(stop, self.reporter, says=self._stopping, last=self._abandoned):
            for place in range(started, len(prepared)):
                if self._complete(prepared[place], found[place]):
                    continue  # ended, measured, and then stopped before the next stage had a checkpoint
                parent = found[place - 1] if place else None
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

    def _stopping(self) -> str:
        return "stopping: this evaluation ends here" if self.measuring else "stopping at a checkpoint"

    def _abandoned(self) -> None:
        self.store.set_state(self.run, "interrupted", "stopped at once")

    def _complete(self, stage: Prepared, ref: CheckpointRef | None) -> bool:
        """Whether a stage has its last checkpoint, and the evaluations after it are recorded."""
        if ref is None or ref.step < stage.recipe.steps:
            return False
        measured = (each.result for each in self.store.evaluations(self.run))
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
