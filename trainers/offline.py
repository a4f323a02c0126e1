"""Given completions as groups, so that the one loop serves supervised fine-tuning too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jurat.platform.ports import ProblemSource, Tokenizer
from jurat.platform.types import (
    Allocation,
    Batch,
    Completion,
    Group,
    IntArray,
    Judgement,
    Problem,
    Reward,
    Scored,
    Span,
    Visit,
)
from jurat.trainers.rollouts import rollout_id, to_rollout

GIVEN = Allocation(samples=1, reason="given")


def solution_ids(problem: Problem, tokenizer: Tokenizer) -> IntArray:
    """[N] ids of what SFT teaches for a problem: its solution, else its reference, then the end mark."""
    text = str(problem.columns.get("solution") or problem.reference)
    return np.append(tokenizer.encode(text), tokenizer.eos_ids[0])


@dataclass(slots=True)
class Demonstrations:
    """A GroupSource of one given completion per visit, ``solution_ids``."""

    run: str
    stage: str
    problems: ProblemSource
    by_id: Mapping[str, Problem]
    tokenizer: Tokenizer
    prompts_per_step: int
    plans: dict[int, tuple[Visit, ...]] = field(default_factory=dict)

    def plan(self, step: int) -> None:
        self.plans[step] = self.problems.draw(self.prompts_per_step)

    async def batch(self, step: int) -> Batch:
        return Batch(step=step, groups=tuple(self._group(visit) for visit in self.plans[step]))

    def _group(self, visit: Visit) -> Group:
        problem = visit.problem
        ids = solution_ids(problem, self.tokenizer)
        given = Completion(
            token_ids=ids,
            logprobs=np.zeros(len(ids), dtype=np.float32),
            finish="stop",
            spans=(Span(start=0, end=len(ids), version=-1),),
        )
        rollout = to_rollout(
            given,
            self.tokenizer.encode_prompt(problem.messages),
            problem,
            id=rollout_id(self.run, self.stage, problem.id, visit.visit, 0),
            visit=visit.visit,
            index=0,
            tokenizer=self.tokenizer,
        )
        label = Judgement(verdicts={}, reward=Reward(value=1.0))
        return Group(visit=visit, scored=(Scored(rollout=rollout, judgement=label),), allocation=GIVEN)

    def observe(self, batch: Batch) -> None:
        self.plans.pop(batch.step, None)

    async def interrupt(self) -> Mapping[str, Any]:
        return self.state()

    def state(self) -> Mapping[str, Any]:
        plans = {str(step): [[v.problem.id, v.visit, v.position] for v in plan] for step, plan in self.plans.items()}
        return {"problems": dict(self.problems.state()), "plans": plans}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.problems.restore(state["problems"])
        self.plans = {
            int(step): tuple(Visit(problem=self.by_id[i], visit=v, position=p) for i, v, p in plan)
            for step, plan in state["plans"].items()
        }
