"""One stage of a run: its data, judge, engine and source, composed and run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jurat.datasets.cursor import ShuffledSource
from jurat.datasets.load import ProblemSet
from jurat.engine import checkpoint as checkpointing
from jurat.engine import local
from jurat.platform.canonical import digest
from jurat.platform.errors import RewardDrift, RunFailed
from jurat.platform.ports import Allocator, GroupSource, Judge, Learner, Scorer
from jurat.platform.provenance import versions
from jurat.platform.randomness import seed_of
from jurat.platform.recipe import PolicyGradient, Recipe
from jurat.platform.runs.ledger import RunLedger
from jurat.platform.runs.outage import patiently
from jurat.platform.runs.remote import facts_through
from jurat.platform.types import CheckpointRef, Evaluation, Problem, Visit
from jurat.trainers import evaluate as evaluation
from jurat.trainers.algorithms import build_algorithm
from jurat.trainers.allocate import bias, build_allocator
from jurat.trainers.balance import Balance, WatchedJudge, WatchedSampler, knobs_of
from jurat.trainers.buffer import Buffer
from jurat.trainers.controllers import build_controllers
from jurat.trainers.data import Kept, keep, sampling_of
from jurat.trainers.doubts import Doubts
from jurat.trainers.limits import Limits
from jurat.trainers.listening import Heard
from jurat.trainers.loop import Reached, Run
from jurat.trainers.loop import train as run_loop
from jurat.trainers.offline import KINDS, Given, RolloutMaker
from jurat.trainers.prepare import MEASURED, Prepared, askable, bad_rows, judge_for, what_learns, with_sources
from jurat.trainers.presets import staleness
from jurat.trainers.rollouts import Rollouts
from jurat.trainers.samples import Algorithm
from jurat.trainers.watching import Watching
from jurat.verifiers import canary
from jurat.verifiers.judge import build_judge

if TYPE_CHECKING:
    from jurat.engine.ray.home import RayEngine, RayHome
    from jurat.trainers.launch import Launch

QUIET, TOLD = 5.0, 30.0
"""Seconds of an evaluation before it is first said how far it is, and from then on."""
LONG = 50
"""Steps that one would not like to lose."""


def _hosted(
    recipe: Recipe, base: Path, cluster: RayHome | None, sets: Iterable[ProblemSet], digest: str
) -> AbstractContextManager[Judge]:
    """The judge of a stage, with the verifiers of its problems: in this process, or on the cluster."""
    specs = [problem.verifier for each in sets for problem in each.problems]
    if cluster is None:
        judge = judge_for(recipe, base)
        judge.bind(specs)
        if (found := judge.spec_digest) != digest:  # a file of verifiers was edited while the stage before went on
            judge.close()
            raise RewardDrift(
                f"the reward of this stage is {found}, and was {digest} when the run was begun or resumed",
                where=", ".join(recipe.verifiers) or "reward",
                fix="restore the verifier, or resume with --accept-reward-change, which records what changed",
            )
        return closing(judge)
    files = [str((base / file).resolve()) if file.endswith(".py") else file for file in recipe.verifiers]
    return cluster.judge(partial(build_judge, recipe.reward, user_files=files), specs, digest)


class StageRun:
    """One stage: its data, judge, engine and source, composed and run."""

    def __init__(
        self, *, launch: Launch, prepared: Prepared, before: Prepared | None, place: int, stop: asyncio.Event
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
            sets, reward = self.prepared.sets.values(), self.prepared.judged
            judge = leaving.enter_context(_hosted(recipe, launch.base, launch.cluster, sets, reward))
            engine = leaving.enter_context(closing(self._engine(algorithm)))
            if launch.cluster is not None or _lag(recipe):  # what the bits of a number depend on, and no key need say
                note("threads: " + ", ".join(f"{role} {count}" for role, count in engine.info["threads"].items()))
            if "sleep" in engine.info:
                note(f"vLLM's sleep (engine.offload): {engine.info['sleep']}")
            kept = keep(self.prepared.sets, engine.tokenizer, recipe, note)
            ledger = leaving.enter_context(await self._ledger(engine, first_step, begun=own or parent))
            launch.records_by(ledger)
            leaving.callback(launch.records_by, None)
            learners, scorers = await self._models(engine, algorithm, own=own, parent=parent)
            await engine.link.publish(first_step)
            allocator, peaks = build_allocator(recipe), engine.memory()
            doubts = leaving.enter_context(closing(self._doubts()))
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
                ledger=Heard(ledger, doubts, *self._watching(ledger)),
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
        notes = [f"skipped {row}" for row in bad_rows(self.prepared.sets)]
        notes += [*filter(None, [what_learns(recipe, self.launch.model)]), *bias(recipe, algorithm), *staleness(recipe)]
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

    async def _ledger(
        self, engine: local.LocalEngine | RayEngine, first_step: int, *, begun: CheckpointRef | None
    ) -> RunLedger:
        """Opens a segment of the run's record, with all that it is made of."""
        launch, digests = self.launch, [facts.digest for facts in self.prepared.facts]
        unknown = await patiently(
            lambda: launch.store.read(lambda connection: versions.unknown(connection, digests)), launch.reporter.note
        )
        prepared = with_sources(self.prepared, unknown, launch.base)
        begin = partial(
            launch.store.start_segment,
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
            lease=launch.lease,
            made_of=launch.made_of.of(prepared, from_checkpoint=begun.digest if begun else ""),
        )
        segment = await patiently(begin, launch.reporter.note)
        texts = self.recipe.tracking.texts
        return RunLedger(
            launch.store, launch.run, self.name, segment, launch.run.folder, lease=launch.lease, texts=texts,
            recorded=launch.wanted.answer, through=facts_through(launch.store, launch.lease),
        )  # fmt: skip

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
            before=self._still_mine,
        )

    def _doubts(self) -> Doubts:
        launch, recipe = self.launch, self.recipe
        facts = askable(self.prepared.facts) if isinstance(recipe.algorithm, PolicyGradient) else []
        environment = launch.made_of.of(self.prepared, from_checkpoint="").environment
        return Doubts(
            partial(canary.Again, [launch.base / file for file in recipe.verifiers]),
            facts,
            store=launch.store,
            lease=launch.lease,
            environment=environment.digest if environment else "",
            note=launch.reporter.note,
        )

    def _watching(self, ledger: RunLedger) -> list[Watching]:
        """What looks for alarms; in a stage that samples nothing no reward can be hacked."""
        if not isinstance(self.recipe.algorithm, PolicyGradient):
            return []
        note = self.launch.reporter.note
        return [Watching(self.recipe, self.name, tell=ledger.record_event, note=note, pause=self.stop.set)]

    def _still_mine(self) -> None:
        """Before a checkpoint takes its place. Raises FencedOut; a database that does not answer stops nothing."""
        with suppress(RunFailed):
            self.launch.store.check(self.launch.lease)

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
            asked=self.launch.wanted.checkpoint,
        )

    def _balance(self, engine: local.LocalEngine | RayEngine, judge: Any, allocator: Any) -> Balance:
        """Gauges, and what sets the limits that the recipe lets move."""
        setters: Mapping[str, Callable[[], Callable[[int], None]]] = {
            "judge_workers": lambda: judge.resize,
            "judge_rows": lambda: judge.limit,
            "sampler_rows": lambda: engine.sampler.limit,
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
        return stage.sets[name].manifest.digest, stage.judged, recipe.sampling, *limits  # no evaluation has shaping

    return name in one.sets and name in other.sets and how(one) == how(other)


def _lag(stage: Recipe) -> int:
    """Given completions are drawn by no policy: nothing is gained by planning them ahead."""
    return stage.engine.max_lag if isinstance(stage.algorithm, PolicyGradient) else 0
