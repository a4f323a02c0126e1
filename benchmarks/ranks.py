"""A learner cut over ranks, measured: an update, the weights on their way to the sampler, a checkpoint.

    python benchmarks/ranks.py [--model smollm2] [--home .jurat] [--worlds fast,simple,1x1,2x1,1x3] [--tokens 1024] [--json OUT]

Worlds are fsdp x tp; one thread each. ``fast`` and ``simple`` are the two paths of a learner in this process, whose update
is told in processor seconds too: what it costs to leave the fast path, as ranks do. ``pull`` is what a publish costs (bfloat16,
through shared memory; see also ``benchmarks/sync.py``); ``stage`` is the part of a checkpoint for which updates wait. The peak of
a rank is that of its process, imports (about 0.5 GiB) included.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from jurat.engine import local, models, threads
from jurat.engine.fsdp.learner import FsdpLearner
from jurat.engine.fsdp.processes import Processes
from jurat.engine.fsdp.worker import RankSpec
from jurat.platform.recipe import Engine, Optim, SamplingPart
from jurat.platform.types import Microbatch
from jurat.trainers.losses.cross_entropy import CrossEntropy

MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--home", type=Path, default=Path(".jurat"))
    parser.add_argument("--worlds", default="fast,simple,1x1,2x1,1x3")
    parser.add_argument("--tokens", type=int, default=1024, help="of an update, in segments of 128")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    threads.set_up(1)
    folder = models.resolve(args.model, args.home)
    rows = []
    for world in args.worlds.split(","):
        if "x" not in world:
            rows.append(alone(folder, world, args))
            print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
            continue
        fsdp, tp = map(int, world.split("x"))
        processes = Processes(fsdp * tp, env={"OMP_NUM_THREADS": "1"})
        try:
            learner = FsdpLearner(RankSpec(folder=folder, ranks=fsdp * tp, tp=tp, dtype=args.dtype), processes)
            rows.append(measure(learner, args.tokens))
            print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
        finally:
            processes.close()
    if args.json:
        args.json.write_text(json.dumps({"model": args.model, "dtype": args.dtype, "rows": rows}, indent=2) + "\n")


def alone(folder: Path, path: str, args: argparse.Namespace) -> dict[str, Any]:
    """The second update of a learner in this process, which has no sampler to share with."""
    engine = local.build(folder, Engine(path=path, dtype=args.dtype, threads=1), Optim(), SamplingPart(), total_steps=8)
    rounds = ((microbatch(args.tokens, 0),),)
    try:
        for _ in range(2):  # the first makes kernels and buffers
            began, worked = time.perf_counter(), time.process_time()
            asyncio.run(engine.learner.update(rounds, CrossEntropy()))
            row = {
                "update_s": round(time.perf_counter() - began, 2),
                "update_cpu_s": round(time.process_time() - worked, 2),
            }
    finally:
        engine.close()
    return {"world": path, "million": round(engine.info["parameters"] / 1e6, 1), **row}


def measure(learner: FsdpLearner, tokens: int) -> dict[str, Any]:
    row: dict[str, Any] = {"world": f"{learner.ranks}x{learner.spec.tp}", "million": round(learner.parameters / 1e6, 1)}
    rounds = (tuple(microbatch(tokens // learner.ranks, rank) for rank in range(learner.ranks)),)
    for _ in range(2):  # the first makes kernels and buffers
        began = time.perf_counter()
        learner.wait(learner._update, rounds, CrossEntropy(), None)
        row["update_s"] = round(time.perf_counter() - began, 2)
    into = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in learner.shapes.items()}
    for _ in range(2):
        pulled = learner.pull(into)
    row |= {"pull_MB": pulled.bytes_received // 10**6, "pull_s": round(pulled.seconds, 3)}
    row["pull_MB_per_s"] = round(pulled.bytes_received / pulled.seconds / 1e6)
    with TemporaryDirectory() as scratch:
        seconds = asyncio.run(saved(learner, Path(scratch)))
        row |= {
            "save_MB": learner.checkpoint_bytes // 10**6,
            "stage_s": round(seconds[0], 2),
            "save_s": round(seconds[1], 2),
        }
    row["peak_MiB"] = max(each["host"] for each in learner.wait(learner._everywhere, "peaks")) // MIB
    return row


async def saved(learner: FsdpLearner, folder: Path) -> tuple[float, float]:
    """Seconds until updates may go on, and until all is on the disk."""
    began = time.perf_counter()
    written = await learner.stage(folder)
    staged = time.perf_counter() - began
    await written
    return staged, time.perf_counter() - began


def microbatch(tokens: int, seed: int) -> Microbatch:
    draw = torch.Generator().manual_seed(seed)
    count = max(1, tokens // 128)
    mask = torch.ones(count, 128, dtype=torch.bool)
    mask[:, :32] = False
    on = mask.flatten().float()
    return Microbatch(
        tokens=torch.randint(0, 400, (128 * count,), generator=draw), offsets=torch.arange(0, 128 * count + 1, 128),
        loss_mask=mask.flatten(), sampler_logprobs=torch.zeros_like(on), weights=on / on.sum(), advantages=on,
    )  # fmt: skip


if __name__ == "__main__":
    main()
