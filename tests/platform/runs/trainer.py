"""A process that records steps as a trainer does, for tests that kill it: URL HOME RUN FIRST LAST.

After each step that is durable it prints ``flushed STEP``. FULL_DISK=a:b lets no file grow from step a until step b.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import sys
from pathlib import Path

import numpy as np

from jurat.platform import logs
from jurat.platform.runs.ledger import RunLedger
from jurat.platform.runs.lock import exclusive
from jurat.platform.runs.store import Store
from jurat.platform.types import (
    Allocation,
    Batch,
    Group,
    Judgement,
    Message,
    Problem,
    Reward,
    Rollout,
    Scored,
    Span,
    StepReport,
    Verdict,
    VerifierSpec,
    Visit,
)

SPEC = VerifierSpec(name="math", digest="sha256:aa")


def make_batch(step: int) -> Batch:
    problem = Problem(id="p", messages=(Message(role="user", content="1+1?"),), reference="2", verifier=SPEC)
    scored = tuple(
        Scored(
            rollout=Rollout(
                id=f"{step}-{index}",
                problem=problem,
                visit=step,
                index=index,
                tokens=np.arange(4),
                loss_mask=np.arange(4) > 1,
                sampler_logprobs=np.zeros(4, dtype=np.float32),
                spans=(Span(start=0, end=2, version=step),),
                text="2.",
                char_ends=np.array([1, 2]),
                finish="stop",
            ),
            judgement=Judgement(verdicts={"math": Verdict.of("correct", verifier=SPEC)}, reward=Reward(value=1.0)),
        )
        for index in range(6)
    )
    visit = Visit(problem=problem, visit=step, position=step)
    return Batch(step=step, groups=(Group(visit=visit, scored=scored, allocation=Allocation(samples=6, reason="")),))


async def main(url: str, home: Path, name: str, first: int, last: int) -> None:
    store = Store.open(url, home, busy_seconds=1.0)
    run = store.run(name)
    full_from, full_to = (int(x) for x in os.environ.get("FULL_DISK", "-1:-1").split(":"))
    with exclusive(run.folder):
        segment = store.start_segment(run, first_step=first)
        ledger = RunLedger(store, run, "", segment, run.folder, retry_seconds=0.05)
        for step in range(first, last):
            if step == full_from:
                resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            if step == full_to:
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            ledger.record_batch(make_batch(step))
            ledger.record_step(StepReport(step=step, version=step + 1, metrics={"x": step}, updates=()))
            await ledger.flush()
            print("flushed", step, flush=True)
        ledger.close()


def run(url: str, home: Path, name: str, first: int, last: int) -> None:
    asyncio.run(main(url, home, name, first, last))


if __name__ == "__main__":
    logs.configure(logging.WARNING)
    run(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
