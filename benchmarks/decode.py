"""Tokens per second of sampling: jurat's fast and simple decoders, transformers' ``generate``, and the floor.

    python benchmarks/decode.py [--model smollm2] [--home .jurat] [--only fast,simple,hf] [--json OUT]

8 prompts with 8 samples each, temperature 1, no early stop; prefill included. The floor is the time of the matrix
products alone, at the same shapes, by the faster of packed oneDNN and ``F.linear``, one product after the other; what
others took of the CPU meanwhile is printed, since two threads on a shared machine wait for each other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jurat.engine import threads

WORKLOADS = ((1, 8, 64), (8, 8, 16), (8, 8, 64))
"""(prompts, samples of each, new tokens)"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--home", type=Path, default=Path(".jurat"))
    parser.add_argument("--only", default="fast,simple,hf,floor")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workloads", default="0,1,2", help=f"which of {WORKLOADS}")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    count = threads.choose_threads(args.threads)
    threads.set_up(count)
    workloads = [WORKLOADS[int(place)] for place in args.workloads.split(",")]
    rows = []
    for name in args.only.split(","):
        make = MAKERS[name](args)
        for workload in workloads:
            prompts, samples, new = workload
            seconds, others = measure(lambda run=make, shape=workload: run(*shape), args.repeats)
            speed = prompts * samples * new / seconds
            rows.append({"what": name, "rows": prompts * samples, "new": new, "seconds": seconds,
                         "tokens_per_second": speed, "other_cores": others})  # fmt: skip
            print(f"{name:7} {prompts * samples:3} x {new:3}: {seconds:7.3f} s  {speed:7.0f} tokens/s"
                  f"   (others used {others:.2f} cores)", flush=True)  # fmt: skip
    for new, size in {(row["new"], row["rows"]) for row in rows}:
        by = {row["what"]: row["tokens_per_second"] for row in rows if (row["new"], row["rows"]) == (new, size)}
        if "fast" in by:
            shares = [f"{by['fast'] / by[name]:.2f} x {name}" for name in ("hf", "simple") if name in by]
            shares += [f"{by['fast'] / by['floor']:.0%} of the floor"] if "floor" in by else []
            print(f"fast at {size} x {new}: {', '.join(shares)}")
    if args.json:
        args.json.write_text(json.dumps({"threads": count, "dtype": args.dtype, "rows": rows}, indent=2) + "\n")


def measure(run: Callable[[], None], repeats: int) -> tuple[float, float]:
    """(median seconds after one warm-up, mean cores that other processes used)."""
    run()
    times, others = [], []
    for _ in range(repeats):
        busy, own, began = _busy_seconds(), time.process_time(), time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
        others.append(max(0.0, _busy_seconds() - busy - (time.process_time() - own)) / times[-1])
    return statistics.median(times), statistics.fmean(others)


def _busy_seconds() -> float:
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system = (int(fields[place]) for place in (0, 1, 2))
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def _prompts(tokenizer: Any, count: int) -> list[Any]:
    from jurat.platform.types import Message

    text = "What is {} plus {}? Answer with just the number."
    return [
        tokenizer.encode_prompt([Message(role="user", content=text.format(3 + 2 * n, 14 + n))]) for n in range(count)
    ]


def jurat_engine(path: str) -> Callable[[argparse.Namespace], Callable[[int, int, int], None]]:
    def make(args: argparse.Namespace) -> Callable[[int, int, int], None]:
        from jurat.engine import local, models
        from jurat.platform.recipe import Engine, Optim, SamplingPart
        from jurat.platform.types import Request, Sampling

        folder = models.resolve(args.model, args.home)
        settings = Engine(path=path, dtype=args.dtype, threads=args.threads)
        engine = local.build(folder, settings, Optim(), SamplingPart(), total_steps=1)

        def run(prompts: int, samples: int, new: int) -> None:
            sampling = Sampling(temperature=1.0, max_new_tokens=new)
            requests = [
                Request(rollout_id="", prompt=prompt, sampling=sampling, seed=1000 * g + n)
                for g, prompt in enumerate(_prompts(engine.tokenizer, prompts))
                for n in range(samples)
            ]

            async def sample() -> None:
                await asyncio.gather(*(engine.sampler.sample(request) for request in requests))

            asyncio.run(sample())

        return run

    return make


def transformers_generate(args: argparse.Namespace) -> Callable[[int, int, int], None]:
    import torch
    from transformers import AutoModelForCausalLM

    from jurat.engine import models
    from jurat.engine.tokenizer import HFTokenizer

    folder = models.resolve(args.model, args.home)
    tokenizer = HFTokenizer(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, args.dtype)).eval()

    def run(prompts: int, samples: int, new: int) -> None:
        tokens = [torch.from_numpy(p) for p in _prompts(tokenizer, prompts) for _ in range(samples)]
        width = max(len(row) for row in tokens)
        ids = torch.stack([torch.nn.functional.pad(row, (width - len(row), 0)) for row in tokens])
        mask = torch.stack([torch.nn.functional.pad(torch.ones_like(row), (width - len(row), 0)) for row in tokens])
        model.generate(
            input_ids=ids, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, eos_token_id=None,
            max_new_tokens=new, min_new_tokens=new, pad_token_id=0,
        )  # fmt: skip

    return run


def floor(args: argparse.Namespace) -> Callable[[int, int, int], None]:
    """The matrix products of one prefill of the distinct prompts and of each decode step."""
    import torch
    import torch.nn.functional as F

    from jurat.engine import models
    from jurat.engine.llama.linear import Matrix, can_pack
    from jurat.engine.llama.weights import FlatWeights
    from jurat.engine.tokenizer import HFTokenizer

    folder = models.resolve(args.model, args.home)
    dtype = getattr(torch, args.dtype)
    weights = FlatWeights.from_folder(folder, dtype=dtype)
    views = weights.model(weights.working)
    plain = [getattr(layer, name) for layer in views.layers for name in ("qkv", "o", "gate_up", "down")] + [views.head]
    pack = can_pack(dtype, weights.master.device)
    products = [Matrix(weight, pack=True) if pack else lambda x, w=weight: F.linear(x, w) for weight in plain]
    prompt = _prompts(HFTokenizer(folder), 1)[0]

    def run(prompts: int, samples: int, new: int) -> None:
        for size, times in ((prompts * len(prompt), 1), (prompts * samples, new - 1)):
            inputs = {width: torch.randn(size, width, dtype=dtype) for width in {w.shape[1] for w in plain}}
            for _ in range(times):
                for weight, product in zip(plain, products, strict=True):
                    rows = prompts if weight is views.head and times == 1 else size
                    product(inputs[weight.shape[1]][:rows])

    return run


MAKERS = {
    "fast": jurat_engine("fast"),
    "simple": jurat_engine("simple"),
    "hf": transformers_generate,
    "floor": floor,
}

if __name__ == "__main__":
    main()
