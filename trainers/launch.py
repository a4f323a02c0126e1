"""The composition root: a recipe becomes a run. The only file that sees engine, verifiers and datasets together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jurat.datasets.check import check_gold, refuse_failed
from jurat.datasets.cursor import ShuffledSource
from jurat.datasets.load import ProblemSet, holds
from jurat.engine import checkpoint as checkpointing
from jurat.engine import local, lora, memory, models
from jurat.engine.probe import gpu_bytes
from jurat.engine.ray import needs_ray
from jurat.engine.tokenizer import HFTokenizer
from jurat.platform.canonical import digest
from jurat.platform.errors import ConfigError, JuratError, ModelError, RewardDrift, RunFailed
from jurat.platform.memory import machine_bytes
from jurat.platform.ports import Allocator, GroupSource, Judge, Learner, Reporter, Scorer
from jurat.platform.randomness import seed_of
from jurat.platform.recipe import Dapo, Data, Neyman, PolicyGradient, Prompt, Recipe, RewardPart, SamplingPart, Source
from jurat.platform.runs.ledger import RunLedger
from jurat.platform.runs.lock import exclusive
from jurat.platform.runs.records import RunInfo
from jurat.platform.runs.store import Store
from jurat.platform.types import CheckpointRef, Evaluation, Problem, Visit
from jurat.trainers import evaluate as evaluation
from jurat.trainers.algorithms import build_algorithm
from jurat.trainers.allocate import bias, build_allocator
from jurat.trainers.balance import Balance, WatchedJudge, WatchedSampler, knobs_of
from jurat.trainers.buffer import Buffer
from jurat.trainers.contradictions import refuse_idle
from jurat.trainers.controllers import build_controllers
from jurat.trainers.data import Kept, keep, load_sets, longest_prompt, sampling_of, short_enough
from jurat.trainers.limits import Limits
from jurat.trainers.loop import Reached, Run
from jurat.trainers.loop import train as run_loop
from jurat.trainers.offline import KINDS, Given, RolloutMaker
from jurat.trainers.presets import filled, staleness
from jurat.trainers.rollouts import Rollouts
from jurat.trainers.samples import Algorithm
from jurat.trainers.signals import StopOnSignals
from jurat.verifiers.judge import LocalJudge, build_judge

if TYPE_CHECKING:
    from jurat.engine.ray.home import RayEngine, RayHome

MEASURED = frozenset({"held_out", "unseen"})
"""Sets that are evaluated, not trained on."""
SAMPLED = ("allocation", "updates_per_step")
"""What a preset fills beside its algorithm."""
QUIET, TOLD = 5.0, 30.0
"""Seconds of an evaluation before it is first said how far it is, and from then on."""
LONG = 50
"""Steps that one would not like to lose."""


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
) -> Outcome:
    """Run a recipe to its end, or go on with run ``resume`` by its own recipe (``recipe`` is then None), which is looked
    for in ``database`` (a SQLAlchemy URL; None: that of the home folder).

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
        _trainable(each.recipe, folder)  # refuses unknown layers of any stage before the first one is trained
    _memory(prepared, folder, reporter.note)
    rewards = [each.reward for each in prepared]
    run = found or store.create_run(
        recipe=recipe,
        recipe_digest=digest(recipe),
        reward_digest=rewards[-1],
        run_id=run_id,
        meta={"base": str(base.resolve()), "rewards": rewards, "verifiers": dict(prepared[-1].verifiers)},
    )
    if run.meta["rewards"] != rewards:
        raise RewardDrift(
            f"the reward of run {run.id} has changed since it began: {run.meta['verifiers']} then, "
            f"{dict(prepared[-1].verifiers)} now",
            where=str(run.folder),
            fix="restore the verifier, or start a new run from the checkpoint (jurat export)",
        )
    with exclusive(run.folder):
        run = store.set_state(run, "running")
        launch = _Launch(recipe=recipe, run=run, store=store, model=folder, base=base, reporter=reporter)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A stage whose data, reward and algorithm were found good before any model was loaded."""

    name: str
    recipe: Recipe
    sets: Mapping[str, ProblemSet]
    reward: str
    """Digest of the reward spec."""
    verifiers: Mapping[str, str]
    """Member -> version digest."""


def prepare(recipe: Recipe, *, base: Path, name: str = "") -> Prepared:
    """Load the problems of a stage, bind its verifiers, and see every reference pass its own. Raises JuratError."""
    build_algorithm(recipe)  # all refuse what makes no sense
    build_allocator(recipe)
    build_controllers(recipe)
    knobs_of(recipe)
    sets = load_sets(recipe, base=base)
    problems = [problem for each in sets.values() for problem in each.problems]
    with closing(_judge(recipe, base)) as judge:
        bound = judge.bind([problem.verifier for problem in problems])
        reward = judge.spec_digest
    workers = recipe.reward.workers
    with closing(_judge(recipe.model_copy(update={"reward": RewardPart(workers=workers)}), base)) as own:
        for part, each in sets.items():
            golds = [problem for problem in each.problems if problem.reference]  # preferences may have none
            refuse_failed(check_gold(golds, own.verdict, at_once=workers), len(golds), where=f"data.{part}")
    return Prepared(
        name=name,
        recipe=recipe,
        sets=sets,
        reward=reward,
        verifiers={member: spec.digest for member, spec in bound.items()},
    )


def _judge(recipe: Recipe, base: Path) -> LocalJudge:
    return build_judge(recipe.reward, user_files=[base / file for file in recipe.verifiers])


def _cluster(recipe: Recipe, note: Callable[[str], None]) -> AbstractContextManager[RayHome | None]:
    """The Ray cluster that a recipe names; None where it runs in this process, and Ray is not imported."""
    if recipe.engine.home == "local":
        return nullcontext()
    needs_ray()
    from jurat.engine.ray.home import open_home

    return open_home(recipe.engine, note)


def _hosted(
    recipe: Recipe, base: Path, cluster: RayHome | None, sets: Iterable[ProblemSet], digest: str
) -> AbstractContextManager[Judge]:
    """The judge of a stage, with the verifiers of its problems: in this process, or on the cluster."""
    specs = [problem.verifier for each in sets for problem in each.problems]
    if cluster is None:
        judge = _judge(recipe, base)
        judge.bind(specs)
        return closing(judge)
    files = [str((base / file).resolve()) if file.endswith(".py") else file for file in recipe.verifiers]
    return cluster.judge(partial(build_judge, recipe.reward, user_files=files), specs, digest)


def _trainable(recipe: Recipe, folder: Path) -> str:
    """What share of a stage's model learns, '' if all of it does."""
    if recipe.lora is None:
        return ""
    found = lora.layout(folder, recipe.lora)
    share = found.trainable / found.parameters
    return f"LoRA of rank {found.rank}: {found.trainable:,} parameters learn, {share:.2%} of the model's {found.parameters:,}"


def _memory(stages: Sequence[Prepared], folder: Path, note: Callable[[str], None]) -> Mapping[str, int]:
    """{stage: the most bytes that one place needs}; empty where the model has no formulas.

    Raises ConfigError for a stage that cannot fit. Prompts are those of the data; what machines of a cluster have is theirs.
    """
    engine = stages[0].recipe.engine
    for each in stages:
        if engine.home == "local":  # a cluster's machines see for themselves
            local.refuse(engine, each.recipe.lora)
    try:
        model = memory.read_model(folder)
    except ModelError as error:
        note(f"memory is not checked: {error.what}")
        return {}
    here = engine.home == "local" or engine.ray == "local"
    limits = memory.Limits(host=machine_bytes(), gpu=gpu_bytes(engine.device)) if here else memory.Limits()
    tokenizer, needed = HFTokenizer(folder), {}
    for each in stages:
        prompt = longest_prompt([problem for found in each.sets.values() for problem in found.problems], tokenizer)
        memory.refuse_unfit(each.recipe, model, limits, prompt_tokens=prompt, name=each.name)
        needs = memory.demands(engine, memory.estimate(each.recipe, model, prompt))
        needed[each.name] = max(demand.bytes for demand in needs)
    return needed


def _bad_rows(sets: Mapping[str, ProblemSet]) -> list[str]:
    """Each row that was skipped, once, though two sets may read one file."""
    return list(dict.fromkeys(str(row) for each in sets.values() for row in each.skipped))


def _first(error: BaseException) -> BaseException:
    """The first real error inside groups of a TaskGroup."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@dataclass(slots=True, kw_only=True)
class _Launch:
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
                stage = _Stage(launch=self, prepared=prepared[place], before=before, place=place, stop=stop)
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


class _Stage:
    """One stage: its data, judge, engine and source, composed and run."""

    def __init__(
        self, *, launch: _Launch, prepared: Prepared, before: Prepared | None, place: int, stop: asyncio.Event
    ) -> None:
        self.launch, self.prepared, self.before, self.place, self.stop = launch, prepared, before, place, stop
        self.name, self.recipe = prepared.name, prepared.recipe
        self.evaluations: list[Evaluation] = []
        self.unmeasured = False
        """Whether a stop came before the evaluations after the last step."""

    async def run(self, *, own: CheckpointRef | None, parent: CheckpointRef | None) -> Reached:
        """Go on from ``own`` (a checkpoint of this stage), else begin with the weights of ``parent`` or the model."""
        recipe, launch, note = self.recipe, self.launch, self.launch.reporter.note
        first_step = own.step if own else 0
        algorithm = build_algorithm(recipe)
        controllers = build_controllers(recipe, reward=self.prepared.reward)
        for said in self._notes(algorithm, first_step):
            note(said)
        with ExitStack() as leaving:
            sets, reward = self.prepared.sets.values(), self.prepared.reward
            judge = leaving.enter_context(_hosted(recipe, launch.base, launch.cluster, sets, reward))
            engine = leaving.enter_context(closing(self._engine(algorithm)))
            kept = keep(self.prepared.sets, engine.tokenizer, recipe, note)
            ledger = leaving.enter_context(self._ledger(engine, first_step))
            learners, scorers = await self._models(engine, algorithm, own=own, parent=parent)
            await engine.link.publish(first_step)
            allocator, peaks = build_allocator(recipe), engine.memory()
            balance = self._balance(engine, judge, allocator)
            source = self._source(engine, judge, kept.train, allocator, balance)
            buffer = Buffer(
                source=source,
                max_lag=_lag(recipe),
                lockstep=recipe.engine.lockstep,
                first_step=first_step,
                last_step=recipe.steps,
                stop=self.stop,
            )
            if own:
                state = checkpointing.state_of(Path(own.path))
                buffer.restored(state)
                controllers.restore(state.get("controllers"), note)
                peaks.restore(state.get("memory", ()))
                balance.restore(state.get("balance"))
            measure = self._evaluator(engine, judge, kept, ledger, algorithm, {**scorers, **learners})
            launch.reporter.start(
                run_id=launch.run.id, stage=self.name, recipe=recipe, first_step=first_step, last_step=recipe.steps
            )
            if first_step == 0:  # the stage's own loss is new, and so are answers that the stage before did not measure
                known = {name for name in MEASURED if self.before and measured_alike(self.before, self.prepared, name)}
                if not await measure(0, final=True, answers=MEASURED - known):
                    await ledger.flush()
                    return Reached(version=0, checkpoint=None, metrics={})
            reached = await run_loop(
                self._flat(algorithm, first_step),
                buffer=buffer,
                controllers=controllers,
                learners=learners,
                scorers=scorers,
                link=engine.link,
                ledger=ledger,
                checkpoints=self._checkpoints(begun=own or parent),
                reporter=launch.reporter,
                evaluate=measure,
                memory=peaks,
                balance=balance,
            )
            if reached.version == recipe.steps:
                self.unmeasured = not await measure(reached.version, final=True)
            await ledger.flush()
        return reached

    @property
    def _identity(self) -> dict[str, Any]:
        """What a checkpoint and a segment say that the stage was made of."""
        return {
            "reward": self.prepared.reward,
            "verifiers": dict(self.prepared.verifiers),
            "datasets": {name: each.manifest.digest for name, each in self.prepared.sets.items()},
            "seed": self.recipe.seed,
        }

    def _notes(self, algorithm: Algorithm, first_step: int) -> list[str]:
        """What a person should know of the stage before it begins."""
        recipe = self.recipe
        notes = [f"skipped {row}" for row in _bad_rows(self.prepared.sets)]
        notes += [*filter(None, [_trainable(recipe, self.launch.model)]), *bias(recipe, algorithm), *staleness(recipe)]
        if knobs_of(recipe):
            notes.append(
                "engine.balance moves limits by the clock: another run of this recipe need not be equal to this one"
            )
        if recipe.checkpoint.every is None and recipe.steps - first_step > LONG:
            notes.append(
                f"no checkpoint before step {recipe.steps} (checkpoint.every is not set): Ctrl-C once makes one, "
                "twice loses the steps of this stage"
            )
        return notes

    def _updates(self, steps: int) -> int:
        """Optimiser steps of so many steps; each has a prompt at least."""
        recipe = self.recipe
        return steps * recipe.epochs * min(recipe.updates_per_step, recipe.prompts_per_step)

    def _engine(self, algorithm: Algorithm) -> local.LocalEngine | RayEngine:
        recipe, cluster = self.recipe, self.launch.cluster
        waits = algorithm.critic.warmup_steps if algorithm.critic else 0
        build = local.build if cluster is None else cluster.build
        # the learner's logits are those that the sampler drew from; given completions were drawn by nobody
        heat = recipe.sampling.temperature if isinstance(recipe.algorithm, PolicyGradient) else 1.0
        return build(
            self.launch.model,
            recipe.engine.model_copy(update={"max_lag": _lag(recipe)}),
            recipe.optim,
            recipe.sampling.model_copy(update={"temperature": heat}),
            total_steps=self._updates(recipe.steps - waits),
            lora=recipe.lora,
            seed=seed_of("lora", recipe.seed, self.name),
        )

    def _ledger(self, engine: local.LocalEngine | RayEngine, first_step: int) -> RunLedger:
        """Opens a segment of the run's record."""
        launch, prepared = self.launch, self.prepared
        segment = launch.store.start_segment(
            launch.run,
            stage=self.name,
            stage_index=self.place,
            first_step=first_step,
            reward_digest=prepared.reward,
            versions={
                **self._identity,
                "engine": dict(engine.info),
                "manifests": {name: each.manifest.to_json() for name, each in prepared.sets.items()},
            },
        )
        texts = self.recipe.tracking.texts
        return RunLedger(launch.store, launch.run, self.name, segment, launch.run.folder, texts=texts)

    async def _models(
        self,
        engine: local.LocalEngine | RayEngine,
        algorithm: Algorithm,
        *,
        own: CheckpointRef | None,
        parent: CheckpointRef | None,
    ) -> tuple[dict[str, Learner], dict[str, Scorer]]:
        """(learners, scorers) by role, with the weights that the stage goes on from.

        In this order: the reference is the model that the stage began with, after a resume too, and a critic begins from
        the policy of that moment.
        """
        learners: dict[str, Learner] = {"policy": engine.learner}
        if parent:
            await checkpointing.load_into(Path(parent.path), learners, weights_only=True)
        scorers = {"reference": engine.reference()} if "ref_logprobs" in algorithm.needs else {}
        if algorithm.critic:
            settings = self.recipe.optim.model_copy(update={"lr": algorithm.critic.lr})
            learners["critic"] = critic = engine.critic(settings, self._updates(self.recipe.steps))
            if parent and (Path(parent.path) / "critic").is_dir():
                await checkpointing.load_into(Path(parent.path), {"critic": critic}, weights_only=True)
        if own:
            await checkpointing.load_into(Path(own.path), learners)
        return learners, scorers

    def _checkpoints(self, *, begun: CheckpointRef | None) -> checkpointing.FolderCheckpoints:
        return checkpointing.FolderCheckpoints(
            self.launch.checkpoints(self.name),
            keep=self.recipe.checkpoint.keep,
            parent=begun.digest if begun else "",
            meta={"run": self.launch.run.id, "stage": self.name, "recipe": digest(self.recipe), **self._identity},
        )

    def _flat(self, algorithm: Algorithm, first_step: int) -> Run:
        recipe = self.recipe
        return Run(
            seed=recipe.seed,
            stage=self.name,
            first_step=first_step,
            num_steps=recipe.steps,
            algorithm=algorithm,
            limits=Limits(recipe.reward.max_undecided, recipe.optim.max_skipped, recipe.sampling.max_new_tokens),
            epochs=recipe.epochs,
            updates_per_step=recipe.updates_per_step,
            tokens_per_microbatch=recipe.tokens_per_microbatch,
            save_every=recipe.checkpoint.every,
            evaluate_every=recipe.evaluate.every,
        )

    def _balance(self, engine: local.LocalEngine | RayEngine, judge: Any, allocator: Any) -> Balance:
        """Gauges, and what sets the limits that the recipe lets move."""
        setters: Mapping[str, Callable[[], Callable[[int], None]]] = {
            "judge_workers": lambda: judge.resize,
            "judge_rows": lambda: judge.limit,
            "sampler_rows": lambda: engine.sampler.limit,  # type: ignore[union-attr]
            "samples": lambda: allocator.limit,
        }
        knobs = knobs_of(self.recipe)
        return Balance(knobs=knobs, apply={knob.name: setters[knob.name]() for knob in knobs})

    def _source(
        self,
        engine: local.LocalEngine | RayEngine,
        judge: Judge,
        problems: Sequence[Problem],
        allocator: Allocator,
        balance: Balance,
    ) -> GroupSource:
        recipe, algorithm, run = self.recipe, self.recipe.algorithm, self.launch.run.id
        order = ShuffledSource(problems, recipe.seed, curriculum=recipe.data.curriculum)
        by_id = {problem.id: problem for problem in problems}
        if not isinstance(algorithm, PolicyGradient):
            return Given(
                problems=order,
                by_id=by_id,
                groups=KINDS[algorithm.name].groups,
                maker=RolloutMaker(run, self.name, engine.tokenizer),
                prompts_per_step=recipe.prompts_per_step,
            )
        return Rollouts(
            run=run,
            stage=self.name,
            seed=recipe.seed,
            problems=order,
            by_id=by_id,
            allocator=allocator,
            sampler=WatchedSampler(engine.sampler, balance.sampler),
            judge=WatchedJudge(judge, balance.judge),
            tokenizer=engine.tokenizer,
            sampling=sampling_of(recipe.sampling, engine.tokenizer),
            prompts_per_step=recipe.prompts_per_step,
            greedy_baseline=algorithm.advantage == "remax",
            curriculum=order.observe if recipe.data.curriculum else None,
        )

    def _evaluator(
        self,
        engine: local.LocalEngine | RayEngine,
        judge: Judge,
        kept: Kept,
        ledger: RunLedger,
        algorithm: Algorithm,
        scorers: Mapping[str, Scorer],
    ) -> Callable[..., Awaitable[bool]]:
        part = self.recipe.evaluate

        async def of_set(
            name: str,
            version: int,
            asked: Sequence[Problem],
            given: Sequence[Problem],
            final: bool,
            one_more: Callable[[], object],
        ) -> Evaluation:
            began = time.perf_counter()
            if asked:
                result = await evaluation.evaluate(
                    asked,
                    name=name,
                    stage=self.name,
                    step=version,
                    sampler=engine.sampler,
                    judge=judge,
                    tokenizer=engine.tokenizer,
                    sampling=sampling_of(self.recipe.sampling, engine.tokenizer),
                    samples=part.samples,
                    seed=self.recipe.seed,
                    with_greedy=final,
                    one_more=one_more,
                )
            else:
                result = Evaluation(
                    name=name, stage=self.name, step=version, problems=len(given), samples=0, seconds=0.0, final=final
                )
            if given:
                visits = [Visit(problem=problem, visit=0, position=at) for at, problem in enumerate(given)]
                groups = KINDS[self.recipe.algorithm.name].groups(visits, RolloutMaker("", "", engine.tokenizer))
                tokens = self.recipe.tokens_per_microbatch
                losses = {algorithm.name: await evaluation.loss_of(groups, algorithm, scorers, tokens=tokens)}
                result = replace(result, losses=losses, seconds=time.perf_counter() - began)
            return result

        async def measure(version: int, *, final: bool = False, answers: Collection[str] = MEASURED) -> bool:
            """Whether all that was to be measured was: a stop ends an evaluation at once, and nothing is kept of it."""
            most = part.final_problems if final else part.problems
            for name in sorted(MEASURED) if final else ("held_out",):
                asked = kept.asked.get(name, ())[:most] if name in answers else ()
                given = kept.given[:most] if name == "held_out" else ()
                if not (asked or given):
                    continue
                if self.stop.is_set():
                    return False
                done: list[None] = []
                work = of_set(name, version, asked, given, final, partial(done.append, None))
                what = f"measuring {name} at {f'{self.name} ' if self.name else ''}step {version}"
                result = await self._unless_stopped(work, what, done, len(asked) * (part.samples + final))
                if result is None:
                    return False
                ledger.record_evaluation(result)
                self.evaluations.append(result)
                self.launch.reporter.evaluation(result)
            return True

        return measure

    async def _unless_stopped(
        self, work: Coroutine[Any, Any, Evaluation], what: str, done: Sequence[None], total: int
    ) -> Evaluation | None:
        """The result of ``work``, or None if a stop is asked for meanwhile. Says how far it is where it takes long."""
        task, stopped = asyncio.create_task(work), asyncio.create_task(self.stop.wait())
        began, self.launch.measuring = time.monotonic(), True
        try:
            pause = QUIET
            while not (await asyncio.wait({task, stopped}, timeout=pause, return_when=asyncio.FIRST_COMPLETED))[0]:
                pause = TOLD
                self.launch.reporter.note(
                    f"{what}: {len(done)} of {total} answers after {time.monotonic() - began:.0f} s"
                )
            if task.done():
                return task.result()
            task.cancel()
            await asyncio.wait([task])
            return None
        finally:
            self.launch.measuring = False
            stopped.cancel()


def measured_alike(one: Prepared, other: Prepared, name: str) -> bool:
    """Whether two stages measure the answers to a set ``name`` alike: what one came to is then what the other begins with."""

    def how(stage: Prepared) -> tuple[Any, ...]:
        recipe = stage.recipe
        limits = recipe.data.max_prompt_tokens, recipe.evaluate.final_problems, recipe.evaluate.samples
        return stage.sets[name].manifest.digest, stage.reward, recipe.sampling, *limits

    return name in one.sets and name in other.sets and how(one) == how(other)


def _lag(stage: Recipe) -> int:
    """Given completions are drawn by no policy: nothing is gained by planning them ahead."""
    return stage.engine.max_lag if isinstance(stage.algorithm, PolicyGradient) else 0


def _samples_at_most(stage: Recipe) -> int:
    """Samples of a step, ReMax's greedy one of every prompt that is drawn among them."""
    part = stage.allocation
    most = part.most(stage.prompts_per_step)
    if not (isinstance(stage.algorithm, PolicyGradient) and stage.algorithm.advantage == "remax"):
        return most
    return most + (most // part.samples_per_prompt if isinstance(part, Dapo) else stage.prompts_per_step)


def _budget(stage: Recipe) -> int | None:
    """Samples that a step takes where prompts have answers of one length; None where the allocation has no such budget."""
    part = stage.allocation
    return stage.prompts_per_step * part.samples_per_prompt if isinstance(part, Neyman) and not part.fixed else None


def _replaced(recipe: Recipe) -> list[str]:
    """Says of stages with data of their own what of the recipe's they go without: a stage's ``data`` replaces it whole."""
    lost = []
    for stage in recipe.stages:
        if stage.data is not None:
            without = [
                name for name in sorted(MEASURED) if getattr(recipe.data, name) and not getattr(stage.data, name)
            ]
            said = f"{stage.name}: its data replaces the recipe's whole, so it has no {' and no '.join(without)}"
            lost += [said] if without else []
    return lost


def dry_run(recipe: Recipe, *, home: Path, base: Path) -> Mapping[str, Any]:
    """What a run would do, without loading weights: stages, data, prompts, tokens. Raises what ``train`` would."""
    out = []
    refuse_idle(recipe)
    recipe = filled(recipe)
    folder = models.resolve(recipe.model, home, base)
    tokenizer, notes = HFTokenizer(folder), list[str]()
    prepared = [prepare(stage, base=base, name=name) for name, stage in recipe.staged()]
    needed = _memory(prepared, folder, notes.append)
    notes += _replaced(recipe)
    for each_stage in prepared:
        name, stage, sets = each_stage.name, each_stage.recipe, each_stage.sets
        kept = keep(sets, tokenizer, stage, notes.append)
        given = not isinstance(stage.algorithm, PolicyGradient)
        samples = stage.prompts_per_step if given else _samples_at_most(stage)
        notes += [*bias(stage, build_algorithm(stage)), *staleness(stage)]
        learns = _trainable(stage, folder)
        notes += [f"{name}: {learns}" if name else learns] if learns else []
        out.append(
            {
                "stage": name,
                "algorithm": stage.algorithm.name,
                "steps": stage.steps,
                "filled": stage.model_dump(mode="json", include={"algorithm", *(() if given else SAMPLED)}),
                "problems": {"train": len(kept.train), **kept.measured},
                "holds": holds(stage.algorithm, "train"),
                "gold_answers": sum(bool(problem.reference) for each in sets.values() for problem in each.problems),
                "bad_rows": _bad_rows(sets),
                "memory_bytes": needed.get(name),
                "samples_per_step": samples if given or stage.allocation.fixed else None,
                "samples_per_step_at_most": samples,
                "samples_per_step_budget": None if given else _budget(stage),
                "max_new_tokens_per_step": 0 if given else samples * stage.sampling.max_new_tokens,
                "example": kept.train[0].messages[-1].content,
            }
        )
    return {
        "recipe": recipe.name,
        "digest": digest(recipe),
        "model": str(folder),
        "notes": notes,
        "stages": out,
    }


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
    with closing(machine), closing(_judge(recipe, base)) as judge:
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


__all__ = ["JuratError", "Outcome", "dry_run", "evaluate_model", "train"]
