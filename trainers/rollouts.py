"""Visits to judged groups, through a sampler and a judge: the source of batches for reinforcement learning."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from jurat.platform.errors import DataError
from jurat.platform.ports import Allocator, Judge, ProblemSource, Sampler, Tokenizer
from jurat.platform.randomness import seed_of
from jurat.platform.types import (
    Allocation,
    Batch,
    Completion,
    Group,
    IntArray,
    Problem,
    Request,
    Rollout,
    Sampling,
    Scored,
    Visit,
)
from jurat.trainers.snapshot import Drawn

AGAIN_SECONDS = 0.1
"""Between two tries to interrupt a sampler that has been asked and has not begun."""


def rollout_id(run: str, stage: str, problem: str, visit: int, index: int) -> str:
    """Equal after a resume and on every machine."""
    text = "\x1f".join((run, stage, problem, str(visit), str(index)))
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def to_rollout(
    completion: Completion, prompt: IntArray, problem: Problem, *, id: str, visit: int, index: int, tokenizer: Tokenizer
) -> Rollout:
    """Prompt [L0] and completion [N] laid end to end [L], with the text and its offsets."""
    text, char_ends = tokenizer.decode(completion.token_ids)
    ahead = len(prompt)
    mask = np.zeros(ahead + len(completion.token_ids), dtype=bool)
    mask[ahead:] = True
    logprobs = np.zeros(len(mask), dtype=np.float32)
    logprobs[ahead:] = completion.logprobs
    return Rollout(
        id=id,
        problem=problem,
        visit=visit,
        index=index,
        tokens=np.concatenate([prompt, completion.token_ids]).astype(np.int64, copy=False),
        loss_mask=mask,
        sampler_logprobs=logprobs,
        spans=completion.spans,
        text=text,
        char_ends=char_ends,
        finish=completion.finish,
    )


async def sample_and_judge(
    request: Request,
    problem: Problem,
    *,
    visit: int,
    index: int,
    sampler: Sampler,
    judge: Judge,
    tokenizer: Tokenizer,
) -> Scored:
    """One completion of ``request``, judged as soon as it ends."""
    completion = await sampler.sample(request)
    rollout = to_rollout(
        completion, request.prompt, problem, id=request.rollout_id, visit=visit, index=index, tokenizer=tokenizer
    )
    return Scored(rollout=rollout, judgement=await judge.judge(problem, rollout.text, finish=rollout.finish))


Planned = tuple[Visit, Allocation]
BASELINE = -1
"""Index of a greedy baseline within its group."""


@dataclass(slots=True)
class Rollouts:
    """A GroupSource. A plan (visits with their allocations) outlives an interrupt, and so do rows of the steps that it is
    told to keep: those that were judged stay, the others go on from the tokens that they have, with the versions that drew
    them. What is not kept is drawn again from the same seeds.

    Where the allocator refills, a batch's later draws join its plan, so that they too are the same after an interrupt.
    Groups beyond ``prompts_per_step``, and those that the allocator does not keep, are discarded with the reason.
    """

    run: str
    stage: str
    seed: int
    problems: ProblemSource
    by_id: Mapping[str, Problem]
    allocator: Allocator
    sampler: Sampler
    judge: Judge
    tokenizer: Tokenizer
    sampling: Sampling
    prompts_per_step: int
    greedy_baseline: bool = False
    """One greedy rollout for every visit (ReMax), whatever its allocation says."""
    curriculum: Callable[[int, float], None] | None = None
    """Told (level, mean reward) of each group when the loop takes its batch."""
    plans: dict[int, list[tuple[Planned, ...]]] = field(default_factory=dict)
    """step -> visits of the first draw, of the first refill, ..."""
    rows: dict[int, dict[str, Drawn]] = field(default_factory=dict)
    """step -> {rollout id: how far it is}"""
    _asked: int = 0
    """Samples that the sampler owes."""
    _quiet: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it owes none."""
    _halted: bool = False
    """From an interrupt until a batch is begun."""

    def plan(self, step: int) -> None:
        self.plans[step] = []
        self._draw(step, kept=0)

    def _draw(self, step: int, *, kept: int) -> bool:
        """Add a draw to the plan of ``step``; False where the allocator or the data set has no more."""
        refills = len(self.plans[step])
        visits = self.problems.draw(self.allocator.draws(self.prompts_per_step, kept, refills))
        allocations = [
            replace(each, greedy_baseline=each.greedy_baseline or self.greedy_baseline)
            for each in self.allocator.plan(visits)
        ]
        if refills:
            allocations = [replace(each, evidence={**each.evidence, "refill": refills}) for each in allocations]
        if visits:
            self.plans[step].append(tuple(zip(visits, allocations, strict=True)))
        return bool(visits)

    async def batch(self, step: int) -> Batch:
        self._halted = False
        started = time.perf_counter()
        sampled: list[float] = []
        kept: list[Group] = []
        discarded: list[tuple[Group, str]] = []
        done = 0
        while done < len(self.plans[step]) or self._draw(step, kept=len(kept)):
            for group in await self._groups(step, self.plans[step][done], sampled):
                reason = self._why_not(group, len(kept))
                if reason:
                    discarded.append((group, reason))
                else:
                    kept.append(group)
            done += 1
        end = time.perf_counter()
        last_token = max(sampled, default=started)
        return Batch(
            step=step,
            groups=tuple(kept),
            discarded=tuple(discarded),
            seconds={"sample": last_token - started, "judge": end - last_token},
        )

    def _why_not(self, group: Group, kept: int) -> str:
        """'' to keep a group, else why it is discarded."""
        if group.baseline is not None and group.baseline.judgement.reward.value is None:
            return "its greedy baseline has no score"
        reason = self.allocator.keep(group)
        return reason or ("more groups than prompts_per_step" if kept == self.prompts_per_step else "")

    async def _groups(self, step: int, planned: Sequence[Planned], sampled: list[float]) -> list[Group]:
        async with asyncio.TaskGroup() as tasks:
            made = [tasks.create_task(self._group(tasks, step, *each, sampled)) for each in planned]
        return [task.result() for task in made]

    async def _group(
        self, tasks: asyncio.TaskGroup, step: int, visit: Visit, allocation: Allocation, sampled: list[float]
    ) -> Group:
        prompt = self.tokenizer.encode_prompt(visit.problem.messages)
        greedy = None
        if allocation.greedy_baseline:
            argmax = replace(self.sampling, temperature=0.0)
            greedy = tasks.create_task(self._scored(step, visit, BASELINE, prompt, sampled, argmax))
        group, rounds = Group(visit=visit, scored=(), allocation=allocation), [allocation.samples]
        while rounds[-1]:
            first = len(group.scored)
            made = [
                tasks.create_task(self._scored(step, visit, index, prompt, sampled, self.sampling))
                for index in range(first, first + rounds[-1])
            ]
            group = replace(group, scored=(*group.scored, *[await task for task in made]))
            rounds.append(self.allocator.extend(group))
        if len(rounds) > 2:
            grown = replace(
                allocation, samples=len(group.scored), evidence={**allocation.evidence, "rounds": rounds[:-1]}
            )
            group = replace(group, allocation=grown)
        return group if greedy is None else replace(group, baseline=await greedy)

    async def _scored(
        self, step: int, visit: Visit, index: int, prompt: IntArray, sampled: list[float], sampling: Sampling
    ) -> Scored:
        problem = visit.problem
        name = rollout_id(self.run, self.stage, problem.id, visit.visit, index)
        rows = self.rows.setdefault(step, {})
        row = rows.get(name)
        judged = None if row is None else row.judgement
        if row is None or judged is None:
            await self._going_on()
            seed = seed_of(self.seed, self.stage, problem.id, visit.visit, index)
            prefix = None if row is None else row.completion
            request = Request(rollout_id=name, prompt=prompt, sampling=sampling, seed=seed, prefix=prefix)
            row = Drawn(completion=await self._sample(request))
            if len(row.completion.token_ids):
                rows[name] = row
            await self._going_on()
            sampled.append(time.perf_counter())
        rollout = to_rollout(
            row.completion, prompt, problem, id=name, visit=visit.visit, index=index, tokenizer=self.tokenizer
        )
        if judged is None:
            began = time.perf_counter()
            judged = await self.judge.judge(problem, rollout.text, finish=rollout.finish)
            await self._going_on()
            now = time.perf_counter()
            rows[name] = row = replace(row, judgement=judged, score_seconds=now - began, ready=now)
        seconds = {**row.completion.seconds, "score": row.score_seconds}
        return Scored(rollout=rollout, judgement=judged, seconds=seconds, ready=row.ready)

    async def _sample(self, request: Request) -> Completion:
        self._quiet.clear()
        self._asked += 1
        try:
            return await self.sampler.sample(request)
        finally:
            self._asked -= 1
            if not self._asked:
                self._quiet.set()

    async def _going_on(self) -> None:
        """After an interrupt nothing goes on: the batch is cancelled, and begun again from the rows as they stand."""
        if self._halted:
            await asyncio.Event().wait()

    def observe(self, batch: Batch) -> None:
        groups = sorted([*batch.groups, *(group for group, _ in batch.discarded)], key=lambda g: g.visit.position)
        self.allocator.observe(groups)
        for group in groups:
            values = [s.judgement.reward.value for s in group.scored if s.judgement.reward.value is not None]
            level = group.visit.problem.columns.get("level")
            if self.curriculum is not None and level is not None and values:
                self.curriculum(int(level), float(np.mean(values)))
        self.plans.pop(batch.step, None)
        self.rows.pop(batch.step, None)

    async def interrupt(self, keep: Collection[int] = ()) -> Mapping[str, Any]:
        self._halted = True
        await self.sampler.interrupt()
        while self._asked:  # what was on its way when the sampler was stopped
            with suppress(TimeoutError):
                await asyncio.wait_for(self._quiet.wait(), AGAIN_SECONDS)
            if self._asked:
                await self.sampler.interrupt()
        self.rows = {step: rows for step, rows in self.rows.items() if step in keep}
        return self.state()

    def state(self) -> Mapping[str, Any]:
        """JSON: cursor, allocator, plans not yet taken, and their rows."""
        plans = {
            str(step): [[_row(*each) for each in planned] for planned in draws] for step, draws in self.plans.items()
        }
        rows = {str(step): {name: row.state() for name, row in each.items()} for step, each in self.rows.items()}
        return {
            "problems": dict(self.problems.state()),
            "allocator": dict(self.allocator.state()),
            "plans": plans,
            "rows": rows,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.problems.restore(state["problems"])
        self.allocator.restore(state["allocator"])
        self.plans = {
            int(step): [tuple(map(self._planned, planned)) for planned in draws]
            for step, draws in state["plans"].items()
        }
        now = time.perf_counter()
        self.rows = {
            int(step): {name: Drawn.of(row, now=now) for name, row in rows.items()}
            for step, rows in state.get("rows", {}).items()
        }

    def _planned(self, row: Mapping[str, Any]) -> Planned:
        if row["problem"] not in self.by_id:
            raise DataError(
                f"the checkpoint plans problem {row['problem']}, which the data set no longer has",
                where="data.train",
                fix="resume with the data set of the run",
            )
        visit = Visit(problem=self.by_id[row["problem"]], visit=row["visit"], position=row["position"])
        return visit, Allocation(**row["allocation"])


def _row(visit: Visit, allocation: Allocation) -> dict[str, Any]:
    return {
        "problem": visit.problem.id,
        "visit": visit.visit,
        "position": visit.position,
        "allocation": {
            "samples": allocation.samples,
            "reason": allocation.reason,
            "greedy_baseline": allocation.greedy_baseline,
            "evidence": dict(allocation.evidence),
        },
    }
