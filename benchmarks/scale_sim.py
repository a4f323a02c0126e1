"""Steps of RL on 8 to 1,024 GPUs, by a discrete-event model: where the time goes, and what saturates first.

    python benchmarks/scale_sim.py [--tables published scale driver] [--seed 0] [--json OUT]      half a minute on one core

Equal seeds give equal figures. Batch s is planned when version s - lag is out. Its requests wait
for a free row of a sampler; a prompt is prefilled once; all rows of a sampler decode in step, and a token takes what reading
weights and cache takes, or the arithmetic, if that is longer, and a constant. Completions pass the driver, one at a time, and
a free judge. The whole batch goes through the driver to the learner: (6 + 2 passes) flops a parameter and token. Weights then
go to the samplers, which stand still for it and compute the cache of rows in flight anew. Colocated, the learner's seconds are
taken from the samplers, on all GPUs; else ``sampling`` GPUs decode and the others learn. Left out: the arithmetic of attention,
pipeline bubbles, stragglers, failures, evaluation, checkpoints.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Chip:
    """Dense bf16 flop/s, memory bytes/s and bytes of a GPU (NVIDIA's datasheets, SXM)."""

    flops: float
    bandwidth: float
    memory: float


@dataclass(frozen=True)
class Model:
    """Parameters, those that a token uses, layers, cache bytes of a token (bf16), experts of a layer and those that a token
    uses (the models' config.json; DeepSeek-V3 caches 576 numbers a layer)."""

    params: float
    active: float
    layers: int
    kv: float
    experts: int = 1
    used: int = 1

    def read(self, rows: int) -> float:
        """Bytes of weights that a decode step of ``rows`` touches: of experts, those that some row chose, at random."""
        touched = 1.0 if self.experts == 1 else 1 - (1 - self.used / self.experts) ** max(rows - 1, 0)
        return 2 * (self.active + (self.params - self.active) * touched)


@dataclass(frozen=True)
class Costs:
    """Constants of machines and software. Fitted to published *phases*: ``hbm``, ``step`` to the generation of verl's colocated 7B on
    128 H20 (178 s), ``mfu`` to its log-probs and updates on 32, 64 and 128 (377, 204, 168 s), ``moe`` to those of its 30B-A3B (136 s,
    mean length alike), ``link`` to its sync of 30B (61 GB in 7 s). Measured: ``driver``, ``batch`` (``driver.py --ray``), ``judge``
    (``verifiers.py``: 0.11 ms, doubled). Assumed: the others; ``far`` after models cut over machines had come out too fast."""

    hbm: float = 0.75  # share of the memory's bandwidth that decoding reaches
    mfu: float = 0.40  # share of the flops that learner and prefill reach
    moe: float = 0.15  # the same for mixtures of experts
    step: float = 0.00125  # seconds of a decode step in which the GPU waits for its host
    hop: float = 20e-6  # seconds of an all-reduce of a decode step, two a layer, inside a machine of 8
    far: float = 100e-6  # the same between machines
    link: float = 8.7e9  # bytes/s at which the whole weights reach samplers elsewhere
    near: float = 50e9  # bytes/s into each GPU, colocated
    wake: float = 2.0  # seconds that a colocated step loses in changing roles, there and back
    driver: float = 1.6e-4  # seconds of the driver for a completion as it comes
    batch: float = 4e-5  # seconds of the driver for a sample of a whole batch, before the update
    judge: float = 2e-4  # seconds of a verdict
    judges: int = 64
    rows: int = 1024  # of a replica at most; its memory may hold fewer


@dataclass(frozen=True)
class Job:
    """Lengths in tokens: ``mean`` of completions once cut at ``cap``; ``sigma`` of their logarithm, 0: all alike."""

    model: Model
    chip: Chip
    gpus: int
    tp: int
    prompts: int
    samples: int
    mean: float
    cap: int
    sigma: float = 1.0
    prompt: int = 150
    lag: int = 0
    sampling: int = 0  # GPUs that only sample; 0: colocated
    passes: int = 1  # forward passes of the learner over each sample beside the update

    @property
    def size(self) -> int:
        return self.prompts * self.samples


@dataclass(frozen=True)
class Result:
    """``step`` in seconds, of the steady steps; shares of the wall time that samplers, learner, driver and judges work."""

    step: float
    sampler: float
    learner: float
    driver: float
    judge: float
    trained: Counter[tuple[int, int]]  # (batch, sample) -> how often it was learnt from


def decode_step(job: Job, costs: Costs, rows: int, cached: float) -> float:
    """Seconds of one token of each of ``rows`` rows that hold ``cached`` tokens between them."""
    memory = (job.model.read(rows) + job.model.kv * cached) / (job.tp * job.chip.bandwidth * costs.hbm)
    hop = 0.0 if job.tp == 1 else costs.hop if job.tp <= 8 else costs.far
    return max(memory, arithmetic(job, costs, 2 * rows, job.tp)) + costs.step + 2 * job.model.layers * hop


def arithmetic(job: Job, costs: Costs, tokens: float, gpus: int) -> float:
    """Seconds of one flop for each active parameter and token."""
    return job.model.active * tokens / (gpus * job.chip.flops * (costs.mfu if job.model.experts == 1 else costs.moe))


def learn(job: Job, costs: Costs, tokens: float) -> float:
    return arithmetic(job, costs, (6 + 2 * job.passes) * tokens, job.gpus - job.sampling)


def sync(job: Job, costs: Costs) -> float:
    return 2 * job.model.params / (costs.link if job.sampling else job.tp * costs.near) + costs.wake * (
        not job.sampling
    )


def rows_of(job: Job, costs: Costs) -> int:
    """Rows that a replica runs at once: 85 % of its memory less the weights, at the mean length."""
    room = 0.85 * job.tp * job.chip.memory - 2 * job.model.params
    if room < job.model.kv * (job.prompt + job.cap):
        raise ValueError(f"{job.tp} GPUs do not hold the weights and one row of {job.cap} tokens: raise tp")
    return min(costs.rows, int(room / (job.model.kv * (job.prompt + job.mean))))


def median_of(mean: float, sigma: float, cap: float) -> float:
    """Median m of the lognormal X with E min(X, cap) = mean, by bisection of the closed form
    ``m exp(sigma^2 / 2) Phi(z - sigma) + cap (1 - Phi(z))``, z = log(cap / m) / sigma."""
    phi, low, high = NormalDist().cdf, 1e-3, cap * 1e3
    for _ in range(80):
        m, z = (middle := math.sqrt(low * high)), math.log(cap / middle) / sigma
        found = m * math.exp(sigma**2 / 2) * phi(z - sigma) + cap * (1 - phi(z))
        low, high = (m, high) if found < mean else (low, m)
    return m


def lengths(job: Job, batch: int, seed: int) -> list[float]:
    """Completion lengths of a batch: the same for any number of GPUs and any lag."""
    if not job.sigma:
        return [job.mean] * job.size
    middle, draw = math.log(median_of(job.mean, job.sigma, job.cap)), np.random.default_rng((seed, batch))
    drawn: list[float] = draw.lognormal(middle, job.sigma, job.size).clip(1, job.cap).tolist()
    return drawn


class Replica:
    """Rows that decode in step: a token of each takes ``pace`` seconds until the first of them ends."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, int, int]] = []  # heap of (value of ``done`` at its end, batch, sample)
        self.done = self.cached = self.pace = self.since = self.busy = 0.0  # steps, tokens, seconds, time, seconds
        self.stamp = 0  # of the event that is to come

    def advance(self, now: float) -> None:
        if self.rows and now > self.since:
            steps = min((now - self.since) / self.pace, self.rows[0][0] - self.done)
            self.done, self.cached = self.done + steps, self.cached + steps * len(self.rows)
            self.busy += now - self.since
        self.since = max(now, self.since)


class Run:
    def __init__(self, job: Job, costs: Costs, steps: int, seed: int) -> None:
        self.job, self.costs, self.steps, self.seed = job, costs, steps, seed
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []  # time, order, what to do
        self.order, self.room = itertools.count(), rows_of(job, costs)
        self.replicas = [Replica() for _ in range((job.sampling or job.gpus) // job.tp)]
        self.waiting, self.learning = deque[tuple[int, int]](), False
        self.drawn: dict[int, list[float]] = {}
        self.open: dict[int, int] = {}  # batch -> samples that are not judged
        self.ready, self.busy = defaultdict[int, float](float), defaultdict[str, float](float)
        self.trained, self.ends = Counter[tuple[int, int]](), list[float]()
        self.judges, self.driver, self.stand = [0.0] * costs.judges, 0.0, 0.0  # when they are free, and samplers go on

    def at(self, time: float, do: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self.events, (time, next(self.order), do, args))

    def plan(self, now: float, batch: int) -> None:
        if batch < self.steps:
            self.drawn[batch], self.open[batch] = lengths(self.job, batch, self.seed), self.job.size
            self.waiting.extend((batch, sample) for sample in range(self.job.size))
        self.fill(now, self.replicas)

    def fill(self, now: float, replicas: Sequence[Replica]) -> None:
        """Rows to the emptiest, while there is room; the first sample of a prompt pays for its prefill."""
        for replica in replicas:
            replica.advance(now)
        emptiest = [(len(r.rows), i) for i, r in enumerate(replicas) if len(r.rows) < self.room]
        heapq.heapify(emptiest)
        while self.waiting and emptiest:
            rows, i = emptiest[0]
            batch, sample = self.waiting.popleft()
            heapq.heappush(replicas[i].rows, (replicas[i].done + self.drawn[batch][sample], batch, sample))
            replicas[i].cached += self.job.prompt
            if sample % self.job.samples == 0:
                replicas[i].since = max(replicas[i].since, now, self.stand) + self.prefill(self.job.prompt)
            heapq.heappop(emptiest) if rows + 1 == self.room else heapq.heapreplace(emptiest, (rows + 1, i))
        for replica in replicas:
            self.go(now, replica)

    def prefill(self, tokens: float) -> float:
        return arithmetic(self.job, self.costs, 2 * tokens, self.job.tp)

    def go(self, now: float, replica: Replica) -> None:
        """Set the pace until the next row ends, and that event."""
        replica.stamp, replica.since = replica.stamp + 1, max(replica.since, now, self.stand)
        if replica.rows:
            steps, rows = replica.rows[0][0] - replica.done, len(replica.rows)
            replica.pace = decode_step(self.job, self.costs, rows, replica.cached + rows * steps / 2)
            self.at(replica.since + steps * replica.pace, self.ended, replica, replica.stamp)

    def ended(self, now: float, replica: Replica, stamp: int) -> None:
        if stamp != replica.stamp:
            return  # something came between
        replica.advance(now)
        replica.done = replica.rows[0][0]
        while replica.rows and replica.rows[0][0] <= replica.done:
            _, batch, sample = heapq.heappop(replica.rows)
            replica.cached -= self.job.prompt + self.drawn[batch][sample]
            self.driver = max(self.driver, now) + self.costs.driver
            judged = max(self.driver, self.judges[0]) + self.costs.judge
            heapq.heapreplace(self.judges, judged)
            self.busy["driver"] += self.costs.driver
            self.busy["judge"] += self.costs.judge / self.costs.judges
            self.ready[batch], self.open[batch] = max(self.ready[batch], judged), self.open[batch] - 1
            if not self.open[batch]:
                self.at(self.ready[batch], self.take)
        self.fill(now, [replica])

    def take(self, now: float) -> None:
        """The learner begins the next batch, if it is whole and judged and the last one is published."""
        batch = len(self.ends)
        if self.learning or self.open.get(batch, 1) or self.ready[batch] > now:
            return
        whole = self.costs.batch * self.job.size
        seconds = learn(self.job, self.costs, sum(self.drawn[batch]) + self.job.size * self.job.prompt)
        self.learning, self.driver = True, max(self.driver, now) + whole
        self.busy["driver"], self.busy["learner"] = self.busy["driver"] + whole, self.busy["learner"] + seconds
        if not self.job.sampling:
            self.halt(now, self.driver + seconds)
        self.at(self.driver + seconds, self.publish, batch)

    def halt(self, now: float, until: float) -> None:
        self.stand = until
        for replica in self.replicas:
            replica.advance(now)
            self.go(now, replica)

    def publish(self, now: float, batch: int) -> None:
        self.trained.update((batch, sample) for sample in range(self.job.size))
        self.halt(now, now + sync(self.job, self.costs))
        self.at(self.stand, self.published, batch)

    def published(self, now: float, batch: int) -> None:
        self.ends.append(now)
        self.learning = False
        for replica in self.replicas:
            replica.since = now + self.prefill(replica.cached)  # of rows in flight, anew
        self.plan(now, batch + 1 + self.job.lag)
        self.take(now)


def simulate(job: Job, costs: Costs | None = None, *, steps: int = 6, seed: int = 0) -> Result:
    """Means over at least ``steps`` steps, in whole turns of the 1 + lag batches in flight, which end in bunches. A turn before
    them, and the lag batches after them, which nothing follows, are run and left out."""
    steps = -(-steps // (1 + job.lag)) * (1 + job.lag)
    run = Run(job, costs or Costs(), steps + 1 + 2 * job.lag, seed)
    for batch in range(1 + job.lag):
        run.plan(0.0, batch)
    while run.events:
        time, _, do, args = heapq.heappop(run.events)
        do(time, *args)
    wall = run.ends[-1]
    sampler = sum(replica.busy for replica in run.replicas) / len(run.replicas) / wall
    shares = {name: run.busy[name] / wall for name in ("learner", "driver", "judge")}
    return Result((run.ends[job.lag + steps] - run.ends[job.lag]) / steps, sampler, trained=run.trained, **shares)


if __name__ == "__main__":
    import scale_tables  # beside this file: steps that others report, and the tables

    scale_tables.main()
