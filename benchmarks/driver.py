"""Samples of 512 tokens that one driver handles a second, and where its time goes.

    python benchmarks/driver.py [--prompts 64] [--samples 16] [--tokens 512] [--steps 3] [--ray] [--profile] [--json OUT]

Sampler and judge answer at once, so that what is left is the driver's own work: requests, the text and its offsets, groups,
the numbers of the step, advantages, microbatches, the Parquet part and its facts. Each phase is timed by itself, in
processor-seconds of this process, which the load of others hardly lengthens; the ledger's is a thread's in a run, which takes
turns with the others, so it counts. ``--ray`` puts sampler and judge into
actors and sends everything through the adapters of ``engine/ray`` (the package must be installed for Ray's workers, or
PYTHONPATH name its sources). The first step is left out. Bytes are those of one sample's arrays and text.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import pstats
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from jurat.datasets.cursor import ShuffledSource
from jurat.engine.tiny import save_tiny
from jurat.engine.tokenizer import HFTokenizer
from jurat.platform.config import validate
from jurat.platform.runs import rollouts as parts
from jurat.platform.types import (
    Completion,
    Judgement,
    Message,
    Problem,
    Request,
    Reward,
    Sampling,
    Span,
    Verdict,
    VerifierSpec,
)
from jurat.trainers.algorithms import build_algorithm
from jurat.trainers.allocate import build_allocator
from jurat.trainers.metrics import step_metrics
from jurat.trainers.packing import pack
from jurat.trainers.rollouts import Rollouts

SPEC = VerifierSpec(name="math", digest="sha256:" + "0" * 64)


TEXT = "First, she has 12 + 7 = 19 books. Then he gives away 4 of them, so 19 - 4 = 15 are left. The answer is 15.\n"


def completions(tokenizer: HFTokenizer, count: int) -> list[Completion]:
    """64 of full length: the tokens of plain text from 64 places on."""
    ids = np.resize(tokenizer.encode(TEXT * 8), count + 64)
    draw, spans = np.random.default_rng(0), (Span(start=0, end=count, version=0),)
    return [
        Completion(token_ids=ids[n : n + count].copy(), logprobs=-draw.random(count, dtype=np.float32), finish="length",
                   spans=spans)
        for n in range(64)
    ]  # fmt: skip


def judged(text: str) -> Judgement:
    """A verdict as the math verifier gives it; half of the answers are right."""
    return JUDGED[len(text) % 2]


def a_judgement(right: bool) -> Judgement:
    verdict = Verdict.of("correct" if right else "incorrect", read="72", why="rational_exact", certified=True, seconds=1e-4,
                         evidence={"gold": "72", "answer": "72"}, verifier=SPEC)  # fmt: skip
    return Judgement(verdicts={"math": verdict}, reward=Reward(value=float(right), parts={"math": float(right)}))


JUDGED = (a_judgement(True), a_judgement(False))


class Instant:
    """A ``Sampler`` and a ``Judge`` in this process."""

    def __init__(self, known: list[Completion]) -> None:
        self.known = known

    async def sample(self, request: Request) -> Completion:
        return self.known[request.seed % len(self.known)]

    async def judge(self, problem: Problem, text: str, *, finish: str) -> Judgement:
        return judged(text)


@contextmanager
def actors(known: list[Completion]) -> Iterator[tuple[Any, Any]]:
    """(sampler, judge) behind Ray: what travels, and how, is what a run's does."""
    from jurat.engine.ray import home
    from jurat.engine.ray.actor import Actor
    from jurat.engine.ray.adapters import RemoteJudge, RemoteSampler
    from jurat.platform.recipe import Engine

    class Samples(Actor):
        async def one(self, item: Any) -> Completion:
            return known[item.seed % len(known)]

    class Judges(Actor):
        async def one(self, item: Any) -> Judgement:
            return judged(item[1])

    async def begin(_: Any) -> None: ...

    with home.open_home(Engine(home="ray"), print, roles=("sampler", "judge")) as opened:
        hosts = [opened.host("sampler", Samples, begin), opened.host("judge", Judges, begin)]
        home.wait(home.opened(hosts))
        sampler = RemoteSampler(None, dtype="float32")  # type: ignore[arg-type]  # no weights here, so no learner
        sampler.serve(hosts[0])
        try:
            yield sampler, RemoteJudge(hosts[1:])
        finally:
            home.close(hosts)


def measure(
    args: argparse.Namespace, tokenizer: HFTokenizer, sampler: Any, judge: Any, scratch: Path
) -> dict[str, Any]:
    problems = [
        Problem(id=f"{n:016x}", messages=(Message(role="user", content=f"What is {n} plus {n}? " * 8),), reference=str(2 * n),
                verifier=SPEC, columns={"level": 1})
        for n in range(args.prompts)
    ]  # fmt: skip
    recipe = validate({"model": "tiny-random", "data": {"train": {"source": "generated"}}, "algorithm": {"name": "grpo"},
                       "allocation": {"name": "uniform", "samples_per_prompt": args.samples}}, where="benchmark")  # fmt: skip
    algorithm = build_algorithm(recipe)
    source = Rollouts(
        run="bench", stage="", seed=0, problems=ShuffledSource(problems, 0), by_id={p.id: p for p in problems},
        allocator=build_allocator(recipe), sampler=sampler, judge=judge, tokenizer=tokenizer,
        sampling=Sampling(max_new_tokens=args.tokens), prompts_per_step=args.prompts,
    )  # fmt: skip
    phases: dict[str, list[tuple[float, float]]] = defaultdict(list)
    rollouts: list[Any] = []

    @contextmanager
    def phase(name: str) -> Iterator[None]:
        began, used = time.perf_counter(), time.process_time()
        yield
        phases[name].append((time.process_time() - used, time.perf_counter() - began))

    async def step(number: int) -> None:
        with phase("requests, answers, groups"):
            source.plan(number)
            batch = await source.batch(number)
            source.observe(batch)
        with phase("advantages, samples"):
            made = algorithm.samples(batch.groups, {})
        with phase("microbatches"):
            pack(made, algorithm.objectives["policy"], algorithm.aggregation, ranks=1, tokens=16_384)
        with phase("numbers of the step"):
            step_metrics(batch, [])
        with phase("rows for the record"):
            table = parts.to_table(batch, run_id="bench", stage="", segment=0, texts=True)
        with phase("Parquet part"):
            parts.write_part(scratch, table, f"step-{number}.parquet")
        rollouts[:] = [s.rollout for g in batch.groups for s in g.scored]

    async def every() -> None:
        for number in range(args.steps + 1):
            await step(number)
            with phase("of it: text and offsets"):  # done again, alone
                for rollout in rollouts:
                    tokenizer.decode(rollout.tokens[rollout.loss_mask])

    profile = cProfile.Profile(time.process_time) if args.profile else None
    asyncio.run(every()) if profile is None else profile.runcall(asyncio.run, every())
    if profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    count = args.prompts * args.samples
    used, wall = ({name: statistics.median(seconds[kind] for seconds in times[1:]) for name, times in phases.items()}
                  for kind in (0, 1))  # fmt: skip
    whole, waited = (sum(s for name, s in kind.items() if not name.startswith("of it")) for kind in (used, wall))
    one = rollouts[0]
    size = sum(a.nbytes for a in (one.tokens, one.loss_mask, one.sampler_logprobs, one.char_ends)) + len(one.text)
    return {
        "samples a processor-second": count / whole, "samples a second": count / waited, "tokens": args.tokens,
        "bytes a sample": size, "microseconds a sample": {name: 1e6 * seconds / count for name, seconds in used.items()},
        "share": {name: seconds / whole for name, seconds in used.items()},
    }  # fmt: skip


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"prompts": 64, "samples": 16, "tokens": 512, "steps": 3}.items():
        parse.add_argument(f"--{name}", type=int, default=default)
    parse.add_argument("--ray", action="store_true")
    parse.add_argument(
        "--profile", action="store_true", help="where the time goes, by function (it slows what it measures)"
    )
    parse.add_argument("--json", type=Path)
    args = parse.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        save_tiny(Path(scratch) / "model", hidden=64, layers=1)
        tokenizer = HFTokenizer(Path(scratch) / "model")
        known = completions(tokenizer, args.tokens)
        found = {"one process": measure(args, tokenizer, Instant(known), Instant(known), Path(scratch) / "local")}
        if args.ray:
            with actors(known) as (sampler, judge):
                found["Ray"] = measure(args, tokenizer, sampler, judge, Path(scratch) / "ray")
    for name, one in found.items():
        print(f"\n{name}: **{one['samples a processor-second']:,.0f} samples of {one['tokens']} tokens a processor-second**, "
              f"{one['samples a second']:,.0f} a second as the machine was, {one['bytes a sample']:,} bytes each\n")  # fmt: skip
        print("| phase | µs a sample | share |\n| --- | --- | --- |")
        for phase, micros in one["microseconds a sample"].items():
            print(f"| {phase} | {micros:.0f} | {100 * one['share'][phase]:.0f} % |")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
