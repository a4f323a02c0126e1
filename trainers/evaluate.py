"""A policy on problems it was not trained on. Every interval is over problems, since samples of one problem agree."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import comb, sqrt

import numpy as np
import torch
from numpy.typing import NDArray

from jurat.platform.ports import Judge, Sampler, Scorer, Tokenizer
from jurat.platform.randomness import generator, seed_of
from jurat.platform.types import Estimate, Evaluation, Group, IntArray, Problem, Request, Sampling, Scored
from jurat.trainers.packing import pack
from jurat.trainers.rollouts import rollout_id, sample_and_judge
from jurat.trainers.samples import Algorithm, annotate

RESAMPLES = 2000
Z95 = 1.959963984540054


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Unbiased ``1 - C(n - c, k) / C(n, k)`` (Chen et al. 2021, arXiv 2107.03374, eq. 1). Needs k <= n."""
    return 1.0 - comb(n - correct, k) / comb(n, k)


def wilson(successes: float, n: int) -> Estimate:
    """Proportion with its 95 % Wilson score interval; for one trial per problem."""
    if n == 0:
        return Estimate(value=0.0, low=0.0, high=1.0)
    p = successes / n
    centre = (p + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half = Z95 / (1 + Z95**2 / n) * sqrt(p * (1 - p) / n + Z95**2 / (4 * n**2))
    return Estimate(value=p, low=min(p, max(0.0, centre - half)), high=max(p, min(1.0, centre + half)))


def bootstrap(numerators: NDArray[np.float64], denominators: NDArray[np.float64] | None = None) -> Estimate:
    """Mean (or ratio of sums) over problems [P] with a 95 % percentile bootstrap over problems; same data, same interval.

    When all problems agree the bootstrap has no width; the Wilson interval is given instead.
    """
    n = len(numerators)
    below = np.ones(n) if denominators is None else denominators
    if n == 0 or below.sum() == 0:
        return Estimate(value=0.0, low=0.0, high=1.0)
    value = float(numerators.sum() / below.sum())
    if np.ptp(numerators) == 0 and np.ptp(below) == 0:
        return wilson(value * n, n)
    rows = generator("bootstrap", n).integers(0, n, size=(RESAMPLES, n))
    ratios = numerators[rows].sum(axis=1) / np.maximum(below[rows].sum(axis=1), 1e-12)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return Estimate(value=value, low=float(low), high=float(high))


async def sample_all(
    problems: Sequence[Problem],
    *,
    sampler: Sampler,
    judge: Judge,
    tokenizer: Tokenizer,
    sampling: Sampling,
    samples: int,
    seed: int,
    purpose: str,
    one_more: Callable[[], object] = lambda: None,
) -> list[list[Scored]]:
    """[P][samples] judged completions, seeded by (seed, purpose, problem, index). ``one_more`` is called after each."""

    async def one(problem: Problem, prompt: IntArray, index: int) -> Scored:
        request = Request(
            rollout_id=rollout_id(purpose, "", problem.id, 0, index),
            prompt=prompt,
            sampling=sampling,
            seed=seed_of(seed, purpose, problem.id, index),
        )
        made = await sample_and_judge(
            request, problem, visit=0, index=index, sampler=sampler, judge=judge, tokenizer=tokenizer
        )
        one_more()
        return made

    prompts = [tokenizer.encode_prompt(problem.messages) for problem in problems]
    async with asyncio.TaskGroup() as tasks:
        made = [
            [tasks.create_task(one(problem, prompt, index)) for index in range(samples)]
            for problem, prompt in zip(problems, prompts, strict=True)
        ]
    return [[task.result() for task in row] for row in made]


def outcome(scored: Scored) -> float | None:
    """The score of the first member (the outcome), unweighted: accuracy must not move with style rewards."""
    return next(iter(scored.judgement.reward.parts.values()), scored.judgement.reward.value)


def answered(scored: Scored) -> bool:
    """Whether the first member read an answer."""
    verdict = next(iter(scored.judgement.verdicts.values()))
    return verdict.status not in ("no_answer", "unparseable")


def summarise(
    name: str, stage: str, step: int, rows: Sequence[Sequence[Scored]], greedy: Sequence[Scored] | None, seconds: float
) -> Evaluation:
    """The table of one evaluation from [P][samples] judged completions and [P] greedy ones."""
    samples = min((len(row) for row in rows), default=0)
    correct, tried, read, read_correct, each = [], [], [], [], []
    for row in rows:
        scores = [outcome(s) for s in row]
        decided = [x for x in scores if x is not None]
        correct.append(float(sum(decided)))
        tried.append(float(len(decided)))
        reads = [x is not None and answered(s) for x, s in zip(scores, row, strict=True)]
        read.append(float(sum(reads)))
        read_correct.append(float(sum(x for x, ok in zip(scores, reads, strict=True) if ok and x is not None)))
        each.append((len(decided), sum(x >= 1.0 for x in decided)))
    ks = [k for k in (1, 2, 4, 8, 16, 32, 64) if k <= samples]
    pass_at = {k: bootstrap(np.array([pass_at_k(n, c, k) for n, c in each if n >= k])) for k in ks}
    every = [s for row in rows for s in row]
    scores_of: dict[str, list[float]] = {}
    for s in every:
        for member, score in s.judgement.reward.parts.items():
            scores_of.setdefault(member, []).extend([] if score is None else [score])
    greedy_scores = [x for s in greedy or () if (x := outcome(s)) is not None]
    return Evaluation(
        name=name,
        stage=stage,
        step=step,
        problems=len(rows),
        samples=samples,
        accuracy=bootstrap(np.array(correct), np.array(tried)),
        pass_at=pass_at,
        answer_rate=bootstrap(np.array(read), np.array(tried)),
        accuracy_given_answer=bootstrap(np.array(read_correct), np.array(read)),
        mean_tokens=float(np.mean([s.rollout.num_completion_tokens for s in every])) if every else 0.0,
        truncated=float(np.mean([s.rollout.finish == "length" for s in every])) if every else 0.0,
        undecided=float(np.mean([outcome(s) is None for s in every])) if every else 0.0,
        members={m: float(np.mean(x)) for m, x in scores_of.items() if x} if len(scores_of) > 1 else {},
        greedy=None if greedy is None else wilson(float(sum(greedy_scores)), len(greedy_scores)),
        seconds=seconds,
        final=greedy is not None,
    )


async def loss_of(
    groups: Sequence[Group], algorithm: Algorithm, scorers: Mapping[str, Scorer], *, tokens: int
) -> float:
    """The policy's loss on groups as if they were one update, and no update made; a reference point is that of them all."""
    scores = await annotate(groups, algorithm.needs, scorers, tokens=tokens, baselines=algorithm.point_needs)
    objective, policy = algorithm.objectives["policy"], scorers["policy"]
    packed = pack(
        algorithm.samples(groups, scores),
        None,
        algorithm.aggregation,
        ranks=policy.ranks,
        tokens=tokens,
        constant=algorithm.constant,
        whole_atoms=algorithm.whole_atoms,
    )
    total = 0.0
    for row, found in zip(packed.rounds, await policy.score(packed.rounds), strict=True):
        for mb, current in zip(row, found, strict=True):
            if len(mb.tokens):
                total += float(objective(torch.from_numpy(current), mb)[0])
    return total


async def evaluate(
    problems: Sequence[Problem],
    *,
    name: str,
    stage: str,
    step: int,
    sampler: Sampler,
    judge: Judge,
    tokenizer: Tokenizer,
    sampling: Sampling,
    samples: int,
    seed: int,
    with_greedy: bool,
    one_more: Callable[[], object] = lambda: None,
) -> Evaluation:
    """Accuracy at the recipe's temperature, pass@k, greedy, answer rate. The same seeds at every step: paired.

    ``one_more`` is called after each completion: ``len(problems) * (samples + with_greedy)`` of them.
    """
    started = time.perf_counter()
    common = {"sampler": sampler, "judge": judge, "tokenizer": tokenizer, "seed": seed, "one_more": one_more}
    rows = await sample_all(problems, sampling=sampling, samples=samples, purpose="evaluate", **common)  # type: ignore[arg-type]
    greedy = None
    if with_greedy:
        argmax = replace(sampling, temperature=0.0)
        greedy = [row[0] for row in await sample_all(problems, sampling=argmax, samples=1, purpose="greedy", **common)]  # type: ignore[arg-type]
    return summarise(name, stage, step, rows, greedy, time.perf_counter() - started)
