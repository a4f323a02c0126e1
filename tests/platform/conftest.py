"""Stores, runs and batches to record, on both databases (tests/kit/databases.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jurat.platform.recipe import Recipe
from jurat.platform.runs.store import Store
from jurat.platform.types import (
    Allocation,
    Batch,
    Estimate,
    Evaluation,
    Group,
    Judgement,
    Message,
    Problem,
    Reward,
    Rollout,
    Scored,
    Span,
    StepReport,
    UpdateReport,
    Verdict,
    VerifierSpec,
    Visit,
)


@pytest.fixture
def store(database_url: str, tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(database_url, tmp_path / "home", busy_seconds=1.0)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def recipe() -> Recipe:
    value = {"name": "tiny", "model": "tiny-random", "data": {"train": {"source": "generated"}}, "steps": 4}
    return Recipe.model_validate(value)


@pytest.fixture
def new_run(store: Store, recipe: Recipe) -> Callable[[], Any]:
    """Makes a run in state ``running``."""

    def make(into: Store = store) -> Any:
        made = into.create_run(recipe=recipe, recipe_digest="sha256:aa", reward_digest="sha256:bb", meta={})
        return into.set_state(made, "running")

    return make


# ---- facts as a trainer makes them -------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def scored() -> Callable[..., Scored]:
    """One rollout: a prompt of 2 tokens, one token per character of ``text`` (4 at most), a verdict and a reward."""

    def make(
        text: str = "12",
        *,
        problem: Problem | None = None,
        index: int = 0,
        step: int = 0,
        reward: float | None = 1.0,
        verdict: Verdict | None = None,
        **fields: Any,
    ) -> Scored:
        problem = problem or make_problem("p0")
        count = min(len(text), 4)
        ends = [*range(1, count), len(text)] if count else []
        rollout = Rollout(
            id=f"{problem.id}-{step}-{index}",
            problem=problem,
            visit=0,
            index=index,
            tokens=np.arange(2 + count),
            loss_mask=np.arange(2 + count) >= 2,
            sampler_logprobs=np.where(np.arange(2 + count) >= 2, -0.25, 0).astype(np.float32),
            spans=(Span(start=0, end=count, version=step),),
            text=text,
            char_ends=np.array(ends, dtype=np.int64),
            finish="stop",
        )
        said = verdict or Verdict.of(
            "correct" if reward else "incorrect",
            read=text,
            why="rational_exact",
            certified=True,
            seconds=0.001,
            verifier=VerifierSpec(name="math", args={"tolerance": 0}, digest="sha256:" + "9f" * 32),
        )
        made = Reward(value=reward, parts={"problem": reward}, trainable=reward is not None, **fields)
        return Scored(rollout=rollout, judgement=Judgement(verdicts={"problem": said}, reward=made))

    return make


def make_problem(name: str) -> Problem:
    asked = Message(role="user", content=f"What is 7 + 5? ({name})")
    return Problem(
        id=name,
        messages=(asked,),
        reference="12",
        verifier=VerifierSpec(name="math"),
        source="generated:0",
        columns={"level": 1},
    )


@pytest.fixture(scope="session")
def batch(scored: Callable[..., Scored]) -> Callable[..., Batch]:
    """A batch of ``prompts`` groups of ``samples``; sample 0 of each is correct, the others are not."""

    def make(step: int = 0, *, prompts: int = 2, samples: int = 3, text: str = "12") -> Batch:
        groups = []
        for p in range(prompts):
            problem = make_problem(f"p{p}")
            some = [
                scored(text, problem=problem, index=i, step=step, reward=1.0 if i == 0 else 0.0) for i in range(samples)
            ]
            groups.append(
                Group(
                    visit=Visit(problem=problem, visit=0, position=step * prompts + p),
                    scored=tuple(some),
                    allocation=Allocation(samples=samples, reason="uniform"),
                )
            )
        return Batch(step=step, groups=tuple(groups))

    return make


@pytest.fixture(scope="session")
def step_report() -> Callable[..., StepReport]:
    def make(step: int, **metrics: float) -> StepReport:
        update = UpdateReport(role="policy", metrics={"loss": 0.5}, tokens=10, forwarded_tokens=30)
        return StepReport(
            step=step,
            version=step + 1,
            metrics={"reward/mean": 0.25, **metrics},
            updates=(update,),
            seconds={"update": 0.1},
        )

    return make


@pytest.fixture(scope="session")
def evaluation() -> Callable[..., Evaluation]:
    def make(step: int, *, stage: str = "", name: str = "held_out", accuracy: float = 0.5) -> Evaluation:
        value = Estimate(value=accuracy, low=accuracy - 0.1, high=accuracy + 0.1)
        return Evaluation(
            name=name,
            stage=stage,
            step=step,
            problems=300,
            samples=4,
            accuracy=value,
            pass_at={1: value, 4: value},
            answer_rate=value,
            accuracy_given_answer=value,
            mean_tokens=7.5,
            truncated=0.0,
            undecided=0.0,
            greedy=None if step % 2 else value,
            seconds=1.5,
            final=step % 2 == 0,
        )

    return make
