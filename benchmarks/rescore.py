"""Seconds to judge stored rollouts by another version of a verifier and to make the drift report.

    python benchmarks/rescore.py                      50,000 rollouts, number -> math
    python benchmarks/rescore.py --kill 5             and again, killed five times at random moments: the same report?
    python benchmarks/rescore.py --rollouts 2000      a quick look

Prints one JSON line a measure. The rollouts are made first: groups of 8 short solutions, 64 groups a part, judged by the old
verifier. What is timed is ``jurat rescore`` in a process of its own, from its start to its end.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from jurat.platform.provenance.records import Ingredients, VerifierFacts
from jurat.platform.recipe import Member, Recipe, RewardPart
from jurat.platform.runs import ledger, rollouts
from jurat.platform.runs.store import Store
from jurat.platform.types import (
    Allocation,
    Batch,
    Group,
    Message,
    Problem,
    Rollout,
    Scored,
    Span,
    VerifierSpec,
    Visit,
)
from jurat.verifiers.judge import build_judge

SAMPLES, PROMPTS = 8, 64
"""Of a group, and of a part."""
RECIPE = {
    "name": "bench", "model": "tiny-random", "steps": 1000, "prompts_per_step": PROMPTS,
    "data": {"train": {"source": "generated"}}, "algorithm": {"name": "grpo"},
    "allocation": {"samples_per_prompt": SAMPLES},
}  # fmt: skip


def problem(number: int, verifier: str) -> Problem:
    top, below = 7 * number % 91 + 1, number % 4 + 1
    asked = Message(role="user", content=f"A tank holds {top} litres and is shared by {below}. How much does each get?")
    return Problem(
        id=f"p{number:06d}", messages=(asked,), reference=f"{top}/{below}", verifier=VerifierSpec(name=verifier),
        source=f"bench/{'easy' if below == 1 else 'fractions'}.jsonl:{number}", columns={"level": below},
    )  # fmt: skip


def answer(of: Problem, rng: random.Random) -> str:
    """A short solution; right or wrong, as a fraction in LaTeX, a division or a decimal number."""
    top, below = map(int, of.reference.split("/"))
    said = top + rng.choice([0, 0, 0, 1, 2])
    form = rng.choice([f"\\frac{{{said}}}{{{below}}}", f"{said}/{below}", f"{said / below:g}", "none of these"])
    steps = " ".join(f"Step {step}: we divide {said} by {below}." for step in range(rng.randrange(1, 12)))
    return f"{steps} The answer is \\boxed{{{form}}}."


def make(
    store: Store, count: int, *, old: str = "number", files: tuple[Path, ...] = (), name: str = "bench",
    prompts: int = PROMPTS, seed: int = 0, reward: Mapping[str, Any] = MappingProxyType({}),
) -> str:  # fmt: skip
    """A run with ``count`` stored rollouts that ``old`` judged, as part of ``reward``; the digest of its version."""
    rng = random.Random(seed)
    part = RewardPart.model_validate({**reward, "workers": 2})
    run = store.create_run(
        recipe=Recipe.model_validate({**RECIPE, "reward": part.model_dump()}),
        recipe_digest="",
        reward_digest="reward",
        meta={},
        run_id=name,
    )
    store.set_state(run, "running")
    with build_judge(RewardPart(members=(Member(use=old),), workers=2), user_files=files) as own:
        (bound,) = own.bind().values()
        found = own.identity(old, {})
    facts = VerifierFacts(label="problem", **{key: found[key] for key in _FACTS})
    made_of = Ingredients(reward="reward", spec={}, verifiers=(facts,), datasets={}, model="", model_name="")
    store.start_segment(run, first_step=0, reward_digest="reward", made_of=made_of)
    with build_judge(part, user_files=files) as judge:
        judge.bind([VerifierSpec(name=old)])
        for step in range(-(-count // (prompts * SAMPLES))):
            batch = _batch(step, prompts, judge, old, rng)
            table = rollouts.to_table(batch, run_id=run.id, stage="", segment=0, texts=True)
            path, digest, size = rollouts.write_part(run.folder, table, rollouts.part_name("", step, 0))
            row = rollouts.part_row(path, digest, size, segment=0, step=step, rows=table.num_rows, at=0)
            store.write(lambda c, row=row: ledger.insert(c, run.pk, [{"op": "part", **row}], epoch=None))
    store.set_state(run, "finished")
    return bound.digest


_FACTS = ("name", "digest", "kind", "version", "code", "config", "deps", "weights", "abi", "args", "sources")


def _batch(step: int, prompts: int, judge: Any, verifier: str, rng: random.Random) -> Batch:
    groups = []
    asked = [problem(step * prompts + number, verifier) for number in range(prompts)]
    texts = [[answer(each, rng) for _ in range(SAMPLES)] for each in asked]
    flat = [(each, text) for each, some in zip(asked, texts, strict=True) for text in some]
    said = dict(judge.judge_many(flat))
    for number, (each, some) in enumerate(zip(asked, texts, strict=True)):
        scored = [
            Scored(rollout=_rollout(each, text, step, index), judgement=said[number * SAMPLES + index])
            for index, text in enumerate(some)
        ]
        visit = Visit(problem=each, visit=0, position=step * prompts + number)
        groups.append(
            Group(visit=visit, scored=tuple(scored), allocation=Allocation(samples=SAMPLES, reason="uniform"))
        )
    return Batch(step=step, groups=tuple(groups))


def _rollout(of: Problem, text: str, step: int, index: int) -> Rollout:
    count, ahead = -(-len(text) // 4), 20
    mask = np.arange(ahead + count) >= ahead
    return Rollout(
        id=f"{of.id}-{index}", problem=of, visit=0, index=index, tokens=np.arange(ahead + count), loss_mask=mask,
        sampler_logprobs=np.where(mask, -0.25, 0).astype(np.float32), spans=(Span(start=0, end=count, version=step),),
        text=text, char_ends=np.minimum(4 * np.arange(1, count + 1), len(text)), finish="stop",
    )  # fmt: skip


TIMES = ("seconds", "made")


def lasting(report: Mapping[str, Any]) -> dict[str, Any]:
    """A report without its times."""
    return {key: value for key, value in report.items() if key not in (*TIMES, "gate")}


def command(home: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "jurat", "rescore", "--home", str(home), "--from", "number@1", "--to", "math", "--runs",
            "bench", "--json", *more]  # fmt: skip


def timed(home: Path) -> tuple[float, float, dict[str, Any]]:
    """(wall seconds, CPU seconds, the report)."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command(home), capture_output=True, text=True, check=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, json.loads(done.stdout)


def killed(home: Path, times: int, seconds: float, rng: random.Random) -> tuple[int, dict[str, Any]]:
    """(how often it was killed before it ended, the report of the last try)."""
    kills = 0
    for _ in range(times):
        process = subprocess.Popen(
            command(home), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            process.wait(rng.uniform(0.2, 1.0) * seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            kills += 1
        process.wait()
    return kills, timed(home)[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rollouts", type=int, default=50_000)
    parser.add_argument(
        "--kill", type=int, default=0, help="kill it so often at random moments, and compare the reports"
    )
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="jurat-rescore-"))
    try:
        store = Store.open(None, folder / "home")
        began = time.perf_counter()
        make(store, asked.rollouts, seed=asked.seed)
        store.close()
        say(measure="made", rollouts=asked.rollouts, seconds=time.perf_counter() - began)
        shutil.copytree(folder / "home", folder / "second")
        wall, cpu, report = timed(folder / "home")
        counts, word = report["counts"], report["verdict"]["word"]
        say(measure="rescored", rollouts=counts["covered"], wall_s=wall, cpu_s=cpu, flip_rate=report["metrics"]["flip_rate"],
            verdict=word)  # fmt: skip
        wall, cpu, again = timed(folder / "home")
        say(measure="report again", wall_s=wall, cpu_s=cpu, same=lasting(again) == lasting(report))
        if asked.kill:
            kills, resumed = killed(folder / "second", asked.kill, 1.2 * wall, random.Random(asked.seed))
            same = json.dumps(lasting(resumed), sort_keys=True) == json.dumps(lasting(report), sort_keys=True)
            say(measure="killed and resumed", kills=kills, same=same)
            if not same:
                sys.exit(1)
    finally:
        shutil.rmtree(folder)


def say(**row: Any) -> None:
    print(
        json.dumps({key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}),
        flush=True,
    )


if __name__ == "__main__":
    main()
