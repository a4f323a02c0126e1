"""Weights on their way from learner to sampler, each way that the engine has, against the speed of its link in the same run.

    python benchmarks/sync.py [--model smollm2] [--home .jurat] [--dtype bfloat16] [--tp 2] [--repeat 5] [--json OUT]

- same memory: learner and sampler of one process share the working copy; a publish rounds the masters into it and packs it
  anew for decoding. The link is a copy within memory.
- shared memory: ranks (fsdp 2 x tp; ``--tp``, by default the fewest that share the heads evenly) write their pieces of a
  bucket into a file in memory, from which the sampler's process copies them. The link is two copies within memory, one after
  the other.
- stream: the same ranks send their slices point to point to a rollout layout of tp 1, then of as many as in training, on the
  first ranks, by the plan of ``engine/reshard.py``, over gloo. The link is one message of 64 MiB from rank 0 to rank 1; the
  share is that of the rank that receives most.

Each figure is the median of ``--repeat``, after one that does not count. ``staged`` is the most that one rank holds at once
beyond its slices of both layouts, also as a share of the model: a second full copy would be 100 %.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from jurat.engine import local, memory, models, threads
from jurat.engine.fsdp.learner import BUCKET_BYTES, FsdpLearner
from jurat.engine.fsdp.network import PLAN
from jurat.engine.fsdp.processes import Processes
from jurat.engine.fsdp.worker import RankSpec
from jurat.engine.reshard import Layout
from jurat.platform.recipe import Engine, Optim, SamplingPart

MIB = 1 << 20
MESSAGE = 64 * MIB
STREAM_BUCKET = 16 * MIB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--home", type=Path, default=Path(".jurat"))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tp", type=int)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    threads.set_up(1)
    folder = models.resolve(args.model, args.home)
    heads = memory.read_model(folder)
    shared = math.gcd(heads.heads, heads.kv_heads)
    tp = args.tp or next((n for n in range(2, shared + 1) if shared % n == 0), 1)
    rows = [same_memory(folder, args.dtype, args.repeat)]
    processes = Processes(2 * tp, env={"OMP_NUM_THREADS": "1"})
    try:
        learner = FsdpLearner(RankSpec(folder=folder, ranks=2 * tp, tp=tp, dtype=args.dtype), processes)
        rows.append(shared_memory(learner, args.dtype, args.repeat))
        rows += [stream(learner, each, args.dtype, args.repeat) for each in sorted({1, tp})]
    finally:
        processes.close()
    print("| way | MB | seconds | MB/s | link MB/s | share of link | staged MiB | of the model |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for row in rows:
        print("| " + " | ".join(told(row)) + " |", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"model": args.model, "dtype": args.dtype, "tp": tp, "rows": rows}, indent=2) + "\n")


def told(row: dict[str, Any]) -> list[str]:
    speed, staged = row["bytes"] / row["seconds"], row["staged"]
    return [
        row["way"], f"{row['bytes'] / 1e6:.1f}", f"{row['seconds']:.4f}", f"{speed / 1e6:.0f}", f"{row['link'] / 1e6:.0f}",
        f"{speed / row['link']:.0%}", f"{staged / MIB:.1f}", f"{staged / row['model']:.0%}",
    ]  # fmt: skip


def median(work: Callable[[], float], repeat: int) -> float:
    """Of the seconds that ``work`` says it took."""
    work()
    return statistics.median(work() for _ in range(repeat))


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def memory_speed(repeat: int) -> float:
    """Bytes per second of a copy within memory, of one thread."""
    source, target = torch.ones(MESSAGE, dtype=torch.uint8), torch.zeros(MESSAGE, dtype=torch.uint8)
    return MESSAGE / median(lambda: timed(lambda: target.copy_(source)), repeat)


def same_memory(folder: Path, dtype: str, repeat: int) -> dict[str, Any]:
    engine = local.build(folder, Engine(dtype=dtype, threads=1), Optim(), SamplingPart(), total_steps=1)  # type: ignore[arg-type]
    with closing(engine):
        network = engine.learner.network  # type: ignore[union-attr]

        async def publish() -> None:
            network.refresh()
            await engine.link.publish(1)

        seconds = median(lambda: timed(lambda: asyncio.run(publish())), repeat)
        size = network.master.numel() * getattr(torch, dtype).itemsize
    return row_of("same memory", size, seconds, memory_speed(repeat), staged=0, model=size)


def shared_memory(learner: FsdpLearner, dtype: str, repeat: int) -> dict[str, Any]:
    kind = getattr(torch, dtype)
    into = {name: torch.zeros(shape, dtype=kind) for name, shape in learner.shapes.items()}
    seconds = median(lambda: learner.pull(into).seconds, repeat)
    size = learner.parameters * kind.itemsize
    return row_of("shared memory", size, seconds, memory_speed(repeat) / 2, staged=min(size, BUCKET_BYTES), model=size)


def stream(learner: FsdpLearner, tp: int, dtype: str, repeat: int) -> dict[str, Any]:
    cut = {name: dim for name in learner.shapes for suffix, dim in PLAN.items() if name.endswith(f"{suffix}.weight")}
    target = Layout(tp=tp, dims=cut if tp > 1 else {})
    received: list[int] = []
    staged: list[int] = []

    def carry() -> float:
        found = learner.wait(learner._everywhere, "carried", target, dtype, STREAM_BUCKET, False)
        moved = [each for _, each in found]
        received[:], staged[:] = ([getattr(each, key) for each in moved] for key in ("bytes_received", "peak_bytes"))
        return max(each.seconds for each in moved)

    def message() -> float:
        there = learner.wait(learner._everywhere, "message", MESSAGE)[1]  # it has arrived
        return float(there.seconds)

    seconds = median(carry, repeat)
    link = MESSAGE / median(message, repeat)
    size = learner.parameters * getattr(torch, dtype).itemsize
    return row_of(f"stream to tp {tp}", max(received), seconds, link, staged=max(staged), model=size)


def row_of(way: str, size: int, seconds: float, link: float, *, staged: int, model: int) -> dict[str, Any]:
    return {"way": way, "bytes": size, "seconds": seconds, "link": link, "staged": staged, "model": model}


if __name__ == "__main__":
    main()
