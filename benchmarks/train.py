"""Seconds of one update of a 135M Llama model (SmolLM2's shape): the simple path, the fast path, and the floor.

    OMP_NUM_THREADS=2 python benchmarks/train.py [--model FOLDER] [--dtype bfloat16] [--only fast] [--profile]

The floor is the time of the same matrix products alone (forward, gradient of the input, gradient of the weight, for the
rows that the fast path runs over and the targets that its head sees), each timed by itself, over several weights.
Sequences are groups of 8 with prompts of 40-50 tokens; the simple path runs over each prompt 8 times. Medians.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from jurat.engine import threads
from jurat.engine.learner import Tally
from jurat.engine.llama.learner import LlamaNetwork
from jurat.engine.llama.weights import FlatWeights, Shape
from jurat.engine.optim import AdamW
from jurat.engine.simple.learner import SimpleNetwork
from jurat.platform.recipe import Optim
from jurat.platform.types import Microbatch

WORKLOADS = {"16 x 16": (2, 16), "64 x 16": (8, 16), "16 x 64": (2, 64), "64 x 64": (8, 64)}
"""Name: (groups of 8, completion tokens)."""


@dataclass(frozen=True, slots=True)
class Surrogate:
    """-A_t log p_t, the first update of a batch."""

    skips_zero_advantage: bool = True
    token_local: bool = True
    sampled: bool = True

    def __call__(self, current: Tensor, mb: Microbatch) -> tuple[Tensor, Mapping[str, Tensor]]:
        return -(mb.weights * mb.advantages * current).sum(), {}


def batch(groups: int, completion: int, vocab: int) -> Microbatch:
    draw = torch.Generator().manual_seed(0)
    tokens, mask, lengths = [], [], []
    for _ in range(groups):
        prompt = torch.randint(3, vocab, (int(torch.randint(40, 51, (1,), generator=draw)),), generator=draw)
        for _ in range(8):
            tokens += [prompt, torch.randint(3, vocab, (completion,), generator=draw)]
            mask += [torch.zeros(len(prompt), dtype=torch.bool), torch.ones(completion, dtype=torch.bool)]
            lengths.append(len(prompt) + completion)
    loss_mask = torch.cat(mask)
    on = loss_mask.float()
    return Microbatch(
        tokens=torch.cat(tokens), offsets=torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()]),
        loss_mask=loss_mask, sampler_logprobs=-3 * on, weights=on / on.sum(),
        advantages=torch.randn(len(on), generator=draw) * on,
    )  # fmt: skip


def median(run: Callable[[], object], repeats: int) -> float:
    run()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def floor(shape: Shape, rows: int, targets: int, dtype: torch.dtype, repeats: int) -> float:
    """Seconds of the matrix products of one forward and backward pass."""
    hidden, heads = shape.hidden, shape.heads * shape.head_dim
    products = {
        (rows, hidden, shape.qkv): shape.layers, (rows, heads, hidden): shape.layers,
        (rows, hidden, 2 * shape.ff): shape.layers, (rows, shape.ff, hidden): shape.layers,
    }  # fmt: skip
    whole, rest = divmod(targets, 512)
    if whole:
        products[(512, hidden, shape.vocab)] = whole
    if rest:
        products[(rest, hidden, shape.vocab)] = 1
    total = 0.0
    for (m, k, n), count in products.items():
        others = 1 if n == shape.vocab else 4
        x, w, g = (torch.randn(others, *size).to(dtype) for size in ((m, k), (n, k), (m, n)))

        def three(x: Tensor = x, w: Tensor = w, g: Tensor = g) -> None:
            for a, b, c in zip(x, w, g, strict=True):
                _ = a @ b.T, c @ b, c.T @ a

        total += count * median(three, repeats) / others
    return total


def smollm2():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
            num_key_value_heads=3, max_position_embeddings=8192, tie_word_embeddings=True, rope_theta=100000.0,
        )
    )  # fmt: skip


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--model", type=Path, help="a Hugging Face folder; default: random weights of SmolLM2's shape")
    parse.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parse.add_argument("--repeats", type=int, default=3)
    parse.add_argument("--only", choices=["simple", "fast", "floor"])
    parse.add_argument("--workloads", nargs="*", default=list(WORKLOADS), choices=list(WORKLOADS))
    parse.add_argument("--checkpointing", action="store_true")
    parse.add_argument("--profile", action="store_true", help="print where the fast path spends its time")
    args = parse.parse_args()
    threads.set_up(threads.choose_threads(None))
    dtype = getattr(torch, args.dtype)
    with tempfile.TemporaryDirectory() as made:
        folder = args.model or Path(made)
        if args.model is None:
            smollm2().save_pretrained(folder)
        networks = {}
        if args.only != "simple":
            weights = FlatWeights.from_folder(folder, dtype=dtype)
            networks["fast"] = LlamaNetwork(weights, checkpointing=args.checkpointing)
        if args.only in (None, "simple"):
            from transformers import AutoModelForCausalLM

            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            networks["simple"] = SimpleNetwork(model, dtype=dtype, checkpointing=args.checkpointing)
    for name in args.workloads:
        groups, completion = WORKLOADS[name]
        mb = batch(groups, completion, 49152)
        found: dict[str, object] = {"workload": name, "tokens": len(mb.tokens), "targets": int(mb.loss_mask.sum())}
        for path, network in networks.items():
            tally = Tally()
            network.backward(mb, Surrogate(), tally)
            found[f"{path} rows"] = tally.forwarded
            if args.only != "floor":
                found[path] = round(median(partial(network.backward, mb, Surrogate(), Tally()), args.repeats), 3)
            network.grad.zero_()
            gc.collect()
        if "fast" in networks:
            shape = networks["fast"].weights.shape
            found["floor"] = round(floor(shape, found["fast rows"], found["targets"], dtype, args.repeats), 3)
            if "fast" in found:
                found["share of the floor"] = round(found["floor"] / found["fast"], 2)
        found["peak GiB"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)
        found["load"] = round(os.getloadavg()[0], 1)
        print(json.dumps(found), flush=True)
        if args.profile:
            with torch.profiler.profile() as profile:
                networks["fast"].backward(mb, Surrogate(), Tally())
            print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=30, max_name_column_width=45))
    network = next(iter(networks.values()))
    adam = AdamW(network.master, network.grad, num_matrix=network.num_matrix, optim=Optim(), total=100)

    def step() -> None:
        adam.step()
        network.refresh()

    print(json.dumps({"optimiser, clipping, zeroing and working copy": round(median(step, args.repeats), 3)}))


if __name__ == "__main__":
    main()
