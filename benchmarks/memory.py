"""Memory as ``jurat estimate`` predicts it, against what one sampling and two full microbatches take, in processes of their own.

    python benchmarks/memory.py [--model smollm2] [--home .jurat] [--cases "fast;simple, lora"] [--tokens 1024] [--json OUT]

``built`` is the most that loading took, ``update`` the most of two updates (the second has the moments), resident memory
of the process each. ``ratio`` is measured / predicted. No optimiser step is timed: other processes do not matter.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

MIB = 1 << 20
CASES: dict[str, dict[str, Any]] = {
    "fast": {},
    "fast, float32": {"engine": {"dtype": "float32"}},
    "fast, checkpointing": {"engine": {"activation_checkpointing": True}},
    "fast, reference": {"algorithm": {"kl": {"coef": 0.1}}},
    "fast, lora": {"lora": {"rank": 16}},
    "simple": {"engine": {"path": "simple"}},
    "simple, checkpointing": {"engine": {"path": "simple", "activation_checkpointing": True}},
    "simple, lora": {"engine": {"path": "simple"}, "lora": {"rank": 16}},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--home", type=Path, default=Path(".jurat"))
    parser.add_argument("--cases", default=";".join(CASES), help="separated by ;")
    parser.add_argument("--tokens", type=int, default=1024, help="of a microbatch")
    for name, number in (("new", 64), ("prompt", 128), ("samples", 8), ("prompts", 8)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure is not None:
        print("RESULT " + json.dumps(measure(args, CASES[args.measure])))
        return
    from jurat.engine.threads import recommended_env

    rows = []
    for case in args.cases.split(";"):
        command = [sys.executable, *sys.argv, "--measure", case]
        done = subprocess.run(
            command, env={**os.environ, **recommended_env()}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{case}: {done.stderr[-2000:]}")
        rows.append({"case": case, **json.loads(done.stdout.rpartition("RESULT ")[2])})
        print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    if args.json:
        args.json.write_text(json.dumps({"model": args.model, "rows": rows}, indent=2) + "\n")


def measure(args: argparse.Namespace, case: dict[str, Any]) -> dict[str, Any]:
    from jurat.engine import local, memory, models
    from jurat.platform.memory import host_peak
    from jurat.platform.recipe import Recipe
    from jurat.trainers.presets import filled

    stage = filled(Recipe.model_validate({
        "model": args.model, "data": {"train": {"source": "generated"}}, "prompts_per_step": args.prompts,
        "allocation": {"samples_per_prompt": args.samples}, "tokens_per_microbatch": args.tokens,
        "sampling": {"max_new_tokens": args.new}, **case,
    }))  # fmt: skip
    folder = models.resolve(args.model, args.home)
    (process,) = memory.estimate(stage, memory.read_model(folder), args.prompt)
    peak = host_peak()
    machine = local.build(folder, stage.engine, stage.optim, stage.sampling, total_steps=2, lora=stage.lora)
    held = {"built": peak()}

    async def work() -> None:
        await machine.link.publish(0)
        reference = machine.reference() if stage.algorithm.kl.coef else None  # type: ignore[union-attr]
        held["built"] = max(held["built"], peak())
        requests, completions = await drawn(machine, args)
        held["sample"] = peak()
        mb = microbatch(requests, completions, args)
        from jurat.trainers.losses.cross_entropy import CrossEntropy

        if reference is not None:
            await reference.score(((mb,),))
        for _ in range(2):
            await machine.learner.update(((mb,),), CrossEntropy())
        held["update"] = peak()

    asyncio.run(work())
    machine.close()
    most = max(held.values())
    predicted = process.host_bytes
    found = {name: round(size / MIB) for name, size in held.items()}
    return {**found, "predicted": round(predicted / MIB), "ratio": round(most / predicted, 3)}


async def drawn(machine: Any, args: argparse.Namespace) -> tuple[list[Any], list[Any]]:
    """Every sample of the step, each as long as it may be."""
    import numpy as np

    from jurat.platform.types import Request, Sampling

    rng, sampling = np.random.default_rng(0), Sampling(temperature=1.0, max_new_tokens=args.new, stop_token_ids=())
    requests = []
    for group in range(args.prompts):
        prompt = rng.integers(4, 400, args.prompt)
        requests += [
            Request(rollout_id=f"{group}-{j}", prompt=prompt, sampling=sampling, seed=1000 * group + j)
            for j in range(args.samples)
        ]
    return requests, await asyncio.gather(*map(machine.sampler.sample, requests))


def microbatch(requests: list[Any], completions: list[Any], args: argparse.Namespace) -> Any:
    """As many of the samples as ``tokens`` allow, a common prompt counted once."""
    import numpy as np
    import torch

    from jurat.platform.types import COLUMNS, Microbatch

    taken: list[Any] = []
    used = 0
    for place, (request, completion) in enumerate(zip(requests, completions, strict=True)):
        used += len(completion.token_ids) + (0 if place % args.samples else len(request.prompt))
        if used > args.tokens:
            break
        taken.append(np.concatenate([request.prompt, completion.token_ids]))
    count = sum(map(len, taken))
    columns: dict[str, Any] = dict.fromkeys(COLUMNS)
    columns |= {
        "weights": torch.full((count,), 1 / count),
        "advantages": torch.ones(count),
        "sampler_logprobs": torch.zeros(count),
    }
    return Microbatch(
        tokens=torch.from_numpy(np.concatenate(taken)), offsets=torch.tensor(np.cumsum([0, *map(len, taken)])),
        loss_mask=torch.cat([torch.arange(len(each)) >= args.prompt for each in taken]), **columns,
    )  # fmt: skip


if __name__ == "__main__":
    main()
