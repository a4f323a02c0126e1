"""What ``scale_sim.py`` says: steps that others report, one job by GPUs, place and lag, and where the driver saturates.

verl: docs/advance/fully_async.md (Qwen2.5-Math-7B, DAPO, 512 prompts x 16, completions up to 28 k; FSDP2 and vLLM on H20). The
mean length is not reported; 1,500 is what log-probs and updates on 32 to 128 GPUs amount to at 40 % of peak. Its asynchronous
runs, staleness 0.5, stand as lag 1.
NeMo-RL: seconds of release 0.6 where known (Qwen3-30B-A3B, 235B, DeepSeek-V3), else of 0.4, with batch, mean sequence and
tensor parallelism of docs/about/performance-summary.md (OpenMathInstruct-2, H100, Megatron; prompts taken as 150 tokens). How it
splits GPUs when asynchronous is not said: half.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scale_sim import Chip, Costs, Job, Model, learn, simulate

H100, H20 = Chip(989e12, 3.35e12, 80e9), Chip(148e12, 4.0e12, 96e9)
SMALL, SEVEN = Model(1.54e9, 1.54e9, 28, 28_672), Model(7.6e9, 7.6e9, 28, 57_344)  # Qwen2.5-1.5B, Qwen2.5-7B
LLAMA8 = Model(8.03e9, 8.03e9, 32, 131_072)
QWEN32 = Model(32.8e9, 32.8e9, 64, 262_144)
QWEN30 = Model(30.5e9, 3.3e9, 48, 98_304, 128, 8)
QWEN235 = Model(235e9, 22e9, 94, 192_512, 128, 8)
DEEPSEEK = Model(671e9, 37e9, 61, 70_272, 256, 8)


def verl(gpus: int, sampling: int = 0) -> Job:
    asynchronous = {"lag": 1, "sampling": sampling, "passes": 0} if sampling else {}
    return Job(SEVEN, H20, gpus, 1, 512, 16, 1500, 28_672, **asynchronous)


def nemo(model: Model, gpus: int, tp: int, size: int, sequence: int, cap: int, *, lag: int = 0) -> Job:
    return Job(
        model, H100, gpus, tp, size // 32, 32, sequence - 150, cap - 150, lag=lag, sampling=gpus // 2 if lag else 0
    )


STEPS: list[tuple[str, Job, float, float]] = [
    ("verl 7B colocated (its generation fitted)", verl(128), 356.3, 53.9 + 113.8),
    ("verl 7B colocated", verl(64), 365.3, 70.3 + 133.4),
    ("verl 7B colocated", verl(32), 790.1, 107.7 + 269.8),
    ("verl 7B asynchronous, 16 + 16", verl(32, 16), 294.8, 313.8),
    ("verl 7B asynchronous, 32 + 32", verl(64, 32), 189.3, 157.0),
    ("verl 7B asynchronous, 64 + 64", verl(128, 64), 150.6, 113.2),
    ("NeMo-RL Llama-3.1-8B", nemo(LLAMA8, 16, 1, 2048, 1060, 4096), 97.7, 0),
    ("NeMo-RL Llama-3.1-8B, 1-off", nemo(LLAMA8, 16, 1, 2048, 1129, 4096, lag=1), 74.6, 0),
    ("NeMo-RL Qwen3-32B", nemo(QWEN32, 32, 4, 2048, 3206, 4096), 393, 0),
    ("NeMo-RL Qwen3-32B, 1-off", nemo(QWEN32, 64, 4, 2048, 3207, 4096, lag=1), 215, 0),
    ("NeMo-RL Qwen3-30B-A3B", nemo(QWEN30, 32, 2, 2048, 3154, 4096), 192, 0),
    ("NeMo-RL Qwen3-30B-A3B, 1-off", nemo(QWEN30, 32, 2, 2048, 3158, 4096, lag=1), 152, 0),
    ("NeMo-RL Qwen3-30B-A3B, 8-off", nemo(QWEN30, 192, 2, 2048, 3158, 4096, lag=8), 34.5, 0),
    ("NeMo-RL Qwen3-235B-A22B", nemo(QWEN235, 128, 16, 512, 5671, 8192), 395, 0),
    ("NeMo-RL Qwen3-235B-A22B, 1-off", nemo(QWEN235, 256, 8, 512, 5691, 8192, lag=1), 231, 0),
    ("NeMo-RL DeepSeek-V3", nemo(DEEPSEEK, 256, 32, 512, 745, 1536), 134, 0),
]
"""(name, job, seconds a step, seconds of log-probs and update or 0)"""
GPUS = (8, 32, 128, 256, 512, 1024)
Rows = list[dict[str, Any]]


def published(seed: int) -> Rows:
    """Steps that others report beside the model's; ``given``: with the update's seconds as reported, where they are."""
    rows = []
    for name, job, seconds, update in STEPS:
        row: dict[str, Any] = {"step": name, "GPUs": job.gpus, "lag": job.lag, "published s": seconds}
        row["model s"] = (found := simulate(job, seed=seed)).step
        row["error %"] = 100 * (found.step / seconds - 1)
        if update:
            scale = learn(job, Costs(), job.size * (job.mean + job.prompt)) / update
            row["error %, update given"] = 100 * (
                simulate(job, Costs(mfu=Costs.mfu * scale), seed=seed).step / seconds - 1
            )
        rows.append({**row, "samplers busy": found.sampler, "learner busy": found.learner})
    return rows


def scale(seed: int) -> Rows:
    """Seconds a step of one job (7B, 256 prompts x 16, lognormal lengths of mean 2,000 up to 16,384) by GPUs, place and lag."""
    rows = []
    for share, place in ((0.0, "colocated"), (0.5, "half sample")):
        for lag in range(5):
            row: dict[str, Any] = {"place": place, "max_lag": lag}
            for gpus in GPUS:
                job = Job(SEVEN, H100, gpus, 1, 256, 16, 2000, 16_384, lag=lag, sampling=int(gpus * share))
                row[f"{gpus} GPUs"] = simulate(job, seed=seed).step
            rows.append(row)
    return rows


def driver(seed: int) -> Rows:
    """The driver's share where samples are short and many: 1.5B, completions of 512 tokens, 32 samples a GPU and step, lag 2."""
    rows = []
    for gpus in GPUS:
        row: dict[str, Any] = {"GPUs": gpus}
        for name, costs in {"as measured": Costs(), "none": Costs(driver=0.0, batch=0.0)}.items():
            job = Job(SMALL, H100, gpus, 1, 2 * gpus, 16, 512, 512, sigma=0.0, lag=2, sampling=gpus // 2)
            found = simulate(job, costs, seed=seed, steps=3)
            row |= {f"driver {name}: samples/s": job.size / found.step, f"driver {name}: busy": found.driver}
        rows.append(row)
    return rows


def markdown(rows: Rows) -> str:
    """Three digits or more."""

    def cell(value: Any) -> str:
        if not isinstance(value, float):
            return str(value)
        return f"{value:,.{0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2}f}"

    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, ["---"] * len(names), *([cell(row.get(name, "")) for name in names] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    tables: dict[str, Callable[[int], Rows]] = {"published": published, "scale": scale, "driver": driver}
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--tables", nargs="*", choices=tables, default=list(tables))
    parse.add_argument("--seed", type=int, default=0)
    parse.add_argument("--json", type=Path)
    args = parse.parse_args()
    found = {name: tables[name](args.seed) for name in args.tables}
    for name, rows in found.items():
        print(f"\n{name}: {tables[name].__doc__}\n\n{markdown(rows)}")
    if args.json:
        args.json.write_text(json.dumps({"costs": asdict(Costs()), **found}, indent=1) + "\n")
