"""Visits to judged groups, through a sampler and a judge: the source of batches for reinforcement learning."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
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
    on_sampled: Callable[[], None] = lambda: None,
) -> Scored:
    """One completion of ``request``, judged as soon as it ends; ``on_sampled`` is called in between."""
    completion = await sampler.sample(request)
    on_sampled()
    rollout = to_rollout(
        completion, request.prompt, problem, id=request.rollout_id, visit=visit, index=index, tokenizer=tokenizer
    )
    return Scored(rollout=rollout, judgement=await judge.judge(problem, rollout.text, finish=rollout.finish))


Planned = tuple[Visit, Allocation]
BASELINE = -1
"""Index of a greedy baseline within its group."""


@dataclass(slots=True)
class Rollouts:
    """A GroupSource. A plan (visits with their allocations) outlives an interrupt; a half-sampled batch is drawn again
    from the same seeds.

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
        started = time.perf_counter()
        sampled: list[float] = []
        kept: list[Group] = []
        discarded: list[tuple[Group, str]] = []
        done = 0
        while done < len(self.plans[step]) or self._draw(step, kept=len(kept)):
            for group in await self._groups(self.plans[step][done], sampled):
                reason = self._why_not(group, len(kept))
                if reason:
                    discarded.append((group, reason))
                else:
                    kept.append(group)
            done += 1
        end = time.perf_counter()
        last_token = max(sampled, default=end)
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

    async def _groups(self, planned: Sequence[Planned], sampled: list[float]) -> list[Group]:
        async with asyncio.TaskGroup() as tasks:
            made = [tasks.create_task(self._group(tasks, *each, sampled)) for each in planned]
        return [task.result() for task in made]

    async def _group(
        self, tasks: asyncio.TaskGroup, visit: Visit, allocation: Allocation, sampled: list[float]
    ) -> Group:
        prompt = self.tokenizer.encode_prompt(visit.problem.messages)
        greedy = None
        if allocation.greedy_baseline:
            argmax = replace(self.sampling, temperature=0.0)
            greedy = tasks.create_task(self._scored(visit, BASELINE, prompt, sampled, argmax))
        group, rounds = Group(visit=visit, scored=(), allocation=allocation), [allocation.samples]
        while rounds[-1]:
            first = len(group.scored)
            made = [
                tasks.create_task(self._scored(visit, index, prompt, sampled, self.sampling))
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
        self, visit: Visit, index: int, prompt: IntArray, sampled: list[float], sampling: Sampling
    ) -> Scored:
        problem = visit.problem
        name = rollout_id(self.run, self.stage, problem.id, visit.visit, index)
        seed = seed_of(self.seed, self.stage, problem.id, visit.visit, index)
        request = Request(rollout_id=name, prompt=prompt, sampling=sampling, seed=seed)
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
            str(step): [[_row(*each) for each in planned] for planned in draws] for step, draws in self.plans.items()
        }
        return {"problems": dict(self.problems.state()), "allocator": dict(self.allocator.state()), "plans": plans}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.problems.restore(state["problems"])
        self.allocator.restore(state["allocator"])
        self.plans = {
            int(step): [tuple(map(self._planned, planned)) for planned in draws]
            for step, draws in state["plans"].items()
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
