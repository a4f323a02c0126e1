"""Visits to judged groups, through a sampler and a judge: the source of batches for reinforcement learning."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
        tokens=np.concatenate([prompt, completion.token_ids]).astype(np.int64),
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
    on_sampled: Callable[[], None] = lambda: None,
) -> Scored:
    """One completion of ``request``, judged as soon as it ends; ``on_sampled`` is called in between."""
    completion = await sampler.sample(request)
    on_sampled()
    rollout = to_rollout(
        completion, request.prompt, problem, id=request.rollout_id, visit=visit, index=index, tokenizer=tokenizer
    )
    return Scored(rollout=rollout, judgement=await judge.judge(problem, rollout.text, finish=rollout.finish))


@dataclass(slots=True)
class Rollouts:
    """A GroupSource. A plan (visits with their allocations) outlives an interrupt; a half-sampled batch is drawn again
    from the same seeds."""

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
    curriculum: Callable[[int, float], None] | None = None
    """Told (level, mean reward) of each group when the loop takes its batch."""
    plans: dict[int, tuple[tuple[Visit, Allocation], ...]] = field(default_factory=dict)

    def plan(self, step: int) -> None:
        visits = self.problems.draw(self.prompts_per_step)
        self.plans[step] = tuple(zip(visits, self.allocator.plan(visits), strict=True))

    async def batch(self, step: int) -> Batch:
        started = time.perf_counter()
        sampled: list[float] = []
        async with asyncio.TaskGroup() as tasks:
            groups = [
                tasks.create_task(self._group(tasks, visit, allocation, sampled))
                for visit, allocation in self.plans[step]
            ]
        done = [task.result() for task in groups]
        reasons = [self.allocator.keep(group) for group in done]
        end = time.perf_counter()
        last_token = max(sampled, default=end)
        return Batch(
            step=step,
            groups=tuple(group for group, reason in zip(done, reasons, strict=True) if not reason),
            discarded=tuple((group, reason) for group, reason in zip(done, reasons, strict=True) if reason),
            seconds={"sample": last_token - started, "judge": end - last_token},
        )

    async def _group(
        self, tasks: asyncio.TaskGroup, visit: Visit, allocation: Allocation, sampled: list[float]
    ) -> Group:
        prompt = self.tokenizer.encode_prompt(visit.problem.messages)
        wanted, scored = range(allocation.samples), list[Scored]()
        while wanted:
            made = [tasks.create_task(self._scored(visit, index, prompt, sampled)) for index in wanted]
            scored += [await task for task in made]
            group = Group(visit=visit, scored=tuple(scored), allocation=allocation)
            wanted = range(len(scored), len(scored) + self.allocator.extend(group))
        return group

    async def _scored(self, visit: Visit, index: int, prompt: IntArray, sampled: list[float]) -> Scored:
        problem = visit.problem
        name = rollout_id(self.run, self.stage, problem.id, visit.visit, index)
        seed = seed_of(self.seed, self.stage, problem.id, visit.visit, index)
        request = Request(rollout_id=name, prompt=prompt, sampling=self.sampling, seed=seed)
        return await sample_and_judge(
            request,
            problem,
            visit=visit.visit,
            index=index,
            sampler=self.sampler,
            judge=self.judge,
            tokenizer=self.tokenizer,
            on_sampled=lambda: sampled.append(time.perf_counter()),
        )

    def observe(self, batch: Batch) -> None:
        groups = sorted([*batch.groups, *(group for group, _ in batch.discarded)], key=lambda g: g.visit.position)
        self.allocator.observe(groups)
        for group in groups:
            values = [s.judgement.reward.value for s in group.scored if s.judgement.reward.value is not None]
            level = group.visit.problem.columns.get("level")
            if self.curriculum is not None and level is not None and values:
                self.curriculum(int(level), float(np.mean(values)))
        self.plans.pop(batch.step, None)

    async def interrupt(self) -> Mapping[str, Any]:
        await self.sampler.interrupt()
        return self.state()

    def state(self) -> Mapping[str, Any]:
        """JSON: cursor, allocator, and plans not yet taken."""
        plans = {
            str(step): [
                [visit.problem.id, visit.visit, visit.position, allocation.samples, allocation.reason]
                for visit, allocation in plan
            ]
            for step, plan in self.plans.items()
        }
        return {"problems": dict(self.problems.state()), "allocator": dict(self.allocator.state()), "plans": plans}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.problems.restore(state["problems"])
        self.allocator.restore(state["allocator"])
        self.plans = {int(step): tuple(map(self._planned, plan)) for step, plan in state["plans"].items()}

    def _planned(self, row: Sequence[Any]) -> tuple[Visit, Allocation]:
        problem_id, visit, position, samples, reason = row
        if problem_id not in self.by_id:
            raise DataError(
                f"the checkpoint plans problem {problem_id}, which the data set no longer has",
                where="data.train",
                fix="resume with the data set of the run",
            )
        return (
            Visit(problem=self.by_id[problem_id], visit=visit, position=position),
            Allocation(samples=samples, reason=reason),
        )
