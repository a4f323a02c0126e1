"""Given completions as groups, so that the one loop serves demonstrations (SFT), pairs (DPO) and labels (KTO) too."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from jurat.platform.ports import ProblemSource, Tokenizer
from jurat.platform.types import (
    GIVEN,
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
from jurat.trainers.rollouts import BASELINE, rollout_id, to_rollout


@dataclass(frozen=True, slots=True)
class RolloutMaker:
    """Makes scored rollouts of completions that are given with a problem; the reward is what their row says of them."""

    run: str
    stage: str
    tokenizer: Tokenizer

    def ids(self, text: str) -> IntArray:
        """[N] ids of a completion, then the end mark."""
        return np.append(self.tokenizer.encode(text), self.tokenizer.eos_ids[0])

    def scored(self, visit: Visit, text: str, reward: float | None, *, index: int) -> Scored:
        problem, ids = visit.problem, self.ids(text)
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
            id=rollout_id(self.run, self.stage, problem.id, visit.visit, index),
            visit=visit.visit,
            index=index,
            tokenizer=self.tokenizer,
        )
        return Scored(rollout=rollout, judgement=Judgement(verdicts={}, reward=Reward(value=reward)))


def solution(problem: Problem) -> tuple[str, ...]:
    """What SFT teaches for a problem: its solution, else its reference."""
    return (str(problem.columns.get("solution") or problem.reference),)


def pair(problem: Problem) -> tuple[str, ...]:
    return problem.columns["chosen"], problem.columns["rejected"]


def completion(problem: Problem) -> tuple[str, ...]:
    return (problem.columns["completion"],)


def _group(visit: Visit, *scored: Scored, baseline: Scored | None = None) -> Group:
    given = Allocation(samples=len(scored), reason=GIVEN)
    return Group(visit=visit, scored=scored, allocation=given, baseline=baseline)


def demonstrations(visits: Sequence[Visit], maker: RolloutMaker) -> tuple[Group, ...]:
    """One group per visit: its solution, with reward 1."""
    return tuple(_group(visit, maker.scored(visit, solution(visit.problem)[0], 1.0, index=0)) for visit in visits)


def pairs(visits: Sequence[Visit], maker: RolloutMaker) -> tuple[Group, ...]:
    """One group per visit: the chosen completion with reward 1, then the rejected one with 0."""
    made = []
    for visit in visits:
        chosen, rejected = pair(visit.problem)
        scored = maker.scored(visit, chosen, 1.0, index=0), maker.scored(visit, rejected, 0.0, index=1)
        made.append(_group(visit, *scored))
    return tuple(made)


def labelled(visits: Sequence[Visit], maker: RolloutMaker) -> tuple[Group, ...]:
    """One group per visit: its completion with its label as reward.

    The baseline is mismatched: the completion of the next visit after this prompt, for KTO's reference point (arXiv
    2402.01306, section 4.2). None where the next one answers the same question, or the two together are too long.
    """
    made = []
    for visit, other in zip(visits, (*visits[1:], *visits[:1]), strict=True):
        own = maker.scored(visit, completion(visit.problem)[0], float(visit.problem.columns["label"]), index=0)
        baseline = None
        if _asked(visit.problem) != _asked(other.problem):
            crossed = maker.scored(visit, completion(other.problem)[0], None, index=BASELINE)
            baseline = crossed if len(crossed.rollout.tokens) <= maker.tokenizer.max_length else None
        made.append(_group(visit, own, baseline=baseline))
    return tuple(made)


def _asked(problem: Problem) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in problem.messages]


Groups = Callable[[Sequence[Visit], RolloutMaker], tuple[Group, ...]]


@dataclass(frozen=True, slots=True)
class Kind:
    texts: Callable[[Problem], tuple[str, ...]]
    """The completions that a problem is given with."""
    groups: Groups


KINDS: Mapping[str, Kind] = MappingProxyType(
    {"sft": Kind(solution, demonstrations), "dpo": Kind(pair, pairs), "kto": Kind(completion, labelled)}
)
"""By the name of the algorithm."""


@dataclass(slots=True)
class Given:
    """A GroupSource of given completions."""

    problems: ProblemSource
    by_id: Mapping[str, Problem]
    groups: Groups
    maker: RolloutMaker
    prompts_per_step: int
    plans: dict[int, tuple[Visit, ...]] = field(default_factory=dict)

    def plan(self, step: int) -> None:
        self.plans[step] = self.problems.draw(self.prompts_per_step)

    async def batch(self, step: int) -> Batch:
        return Batch(step=step, groups=self.groups(self.plans[step], self.maker))

    def observe(self, batch: Batch) -> None:
        self.plans.pop(batch.step, None)

    async def interrupt(self, keep: Collection[int] = ()) -> Mapping[str, Any]:
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
