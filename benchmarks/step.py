"""One step of GRPO on SmolLM2-135M by TRL and by jurat: seconds, tokens per second, peak memory, and the floor.

    python benchmarks/step.py [--model FOLDER] [--trl-python PYTHON] [--vllm-python PYTHON] [--workloads A B] [--steps 4]

PYTHON is an interpreter that has ``trl==1.16.0`` beside the same torch and transformers (default: this one; the
``bench`` extra brings it). Both sides run one after the other, in processes of their own, on the same prompts with the
same chat template, sample counts and threads, with float32 masters and bfloat16 computation (autocast there, a working
copy here). The side "vllm" is jurat with ``engine.sampler: vllm``, by an interpreter that has it (``--vllm-python``).
Every completion has the full length on both sides: TRL bars the end token until then, jurat is given none. Rewards
alternate within a group, so that every group has a gradient; in the row "half" they do so in every second group only,
and samples without gradient are skipped (TRL has no such notion and takes the same time). The first step of each is a
warm-up; figures are medians of the others. "cores used" well below the threads: others took them, reject.

The floor of a step is the time of its matrix products alone, each timed by itself (decoding as on weights that oneDNN
has packed, training on the rows that jurat's plan has), and of the fused optimiser: no attention, no sampling, nothing
element by element.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WORKLOADS = {"A": (8, 8, 16), "B": (2, 8, 64)}
"""Name: (prompts, samples of each, completion tokens)."""
SUMS = ((3, 4), (7, 5), (12, 9), (8, 8), (31, 6), (2, 9), (45, 17), (6, 1))
QUESTIONS = [f"What is {a} + {b}? Answer with just the number." for a, b in SUMS]

TRL = r"""
import json, os, resource, sys, time
import torch
job = json.loads(sys.argv[1])
torch.set_num_threads(job["threads"])
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

prompts, samples, length = job["workload"]
rows = [{"prompt": [{"role": "user", "content": q}], "place": i} for i, q in enumerate(job["questions"][:prompts])]
data = Dataset.from_list(rows * (job["steps"] + 1))

def reward(completions, place, **_):
    return [float(i % 2 and not (job["half"] and p % 2)) for i, p in enumerate(place)]

settings = GRPOConfig(
    output_dir=job["scratch"], per_device_train_batch_size=prompts * samples, num_generations=samples,
    max_completion_length=length, generation_kwargs={"min_new_tokens": length}, gradient_accumulation_steps=1,
    learning_rate=1e-6, beta=0.0, temperature=1.0, max_steps=job["steps"], save_strategy="no", report_to=[],
    logging_strategy="no", disable_tqdm=True, use_cpu=True, bf16=True, gradient_checkpointing=False, use_vllm=False,
    shuffle_dataset=False, seed=0, model_init_kwargs={"dtype": "float32"},
)
class Clock(TrainerCallback):
    def on_step_begin(self, *a, **k):
        self.began, self.used = time.perf_counter(), time.process_time()
    def on_step_end(self, *a, **k):
        phases["step"].append(time.perf_counter() - self.began)
        phases["cpu"].append(time.process_time() - self.used)
phases = {"step": [], "cpu": [], "sample": [], "forward_backward": []}
trainer = GRPOTrainer(model=job["model"], reward_funcs=reward, args=settings, train_dataset=data, callbacks=[Clock()])
generate = trainer._generate
def timed(*a, **k):
    began = time.perf_counter()
    out = generate(*a, **k)
    phases["sample"].append(time.perf_counter() - began)
    return out
trainer._generate = timed
step = trainer.training_step
def whole(*a, **k):
    began = time.perf_counter()
    out = step(*a, **k)
    phases["forward_backward"].append(time.perf_counter() - began - phases["sample"][-1])
    return out
trainer.training_step = whole
trainer.train()
print("RESULT " + json.dumps({"phases": phases, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}))
"""


def jurat_side(job: Mapping[str, Any]) -> dict[str, Any]:
    """Sample, judge by place, learn, publish: as the loop does at lag 0."""
    import numpy as np

    from jurat.engine import local
    from jurat.platform.recipe import Engine, Optim, SamplingPart
    from jurat.platform.types import Message, Request, Sample, Sampling
    from jurat.trainers.advantages import grpo
    from jurat.trainers.aggregation import token_mean
    from jurat.trainers.losses.clipped import Clipped
    from jurat.trainers.packing import pack

    prompts, samples, length = job["workload"]
    engine = local.build(
        Path(job["model"]), Engine(threads=job["threads"], path=job["path"], sampler=job["sampler"]), Optim(lr=1e-6),
        SamplingPart(max_new_tokens=length), total_steps=job["steps"],
    )  # fmt: skip
    asked = [engine.tokenizer.encode_prompt([Message(role="user", content=q)]) for q in job["questions"][:prompts]]
    phases: dict[str, list[float]] = {
        name: [] for name in ("step", "sample", "forward_backward", "optimizer", "publish", "cpu")
    }
    reports = []

    async def step(number: int) -> None:
        began, used = time.perf_counter(), time.process_time()
        sampling = Sampling(max_new_tokens=length)
        requests = [
            Request(rollout_id=f"{g}.{n}", prompt=prompt, sampling=sampling, seed=number * 997 + g * 31 + n)
            for g, prompt in enumerate(asked) for n in range(samples)
        ]  # fmt: skip
        completions = await asyncio.gather(*(engine.sampler.sample(request) for request in requests))
        sampled = time.perf_counter()
        made = []
        for place, (request, completion) in enumerate(zip(requests, completions, strict=True)):
            group = place // samples
            rewards = np.array([float(i % 2 and not (job["half"] and group % 2)) for i in range(samples)])
            on = np.concatenate([np.zeros(len(request.prompt), bool), np.ones(len(completion.token_ids), bool)])
            before = np.zeros(len(request.prompt), np.float32)
            made.append(Sample(
                tokens=np.concatenate([request.prompt, completion.token_ids]), loss_mask=on,
                sampler_logprobs=np.concatenate([before, completion.logprobs]), weights=on.astype(np.float32),
                advantages=(on * grpo(rewards)[place % samples]).astype(np.float32), atom=group,
            ))  # fmt: skip
        packed = pack(made, Clipped(), token_mean, ranks=1, tokens=4096)
        report = await engine.learner.update(packed.rounds, Clipped())
        learned = time.perf_counter()
        await engine.link.publish(number + 1)
        ended = time.perf_counter()
        for name, seconds in {
            "step": ended - began,
            "sample": sampled - began,
            **report.seconds,
            "publish": ended - learned,
            "cpu": time.process_time() - used,
        }.items():
            phases[name].append(seconds)
        reports.append(report)

    async def every() -> None:
        for number in range(job["steps"]):
            await step(number)

    asyncio.run(every())
    engine.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    last = reports[-1]
    seen = {"rows": last.forwarded_tokens, "targets": last.tokens, "|dlogp|": last.metrics["logprob_diff_mean"]}
    return {"phases": phases, "peak": peak, "prompt tokens": sum(map(len, asked)), "info": engine.info, **seen}


def floor_of(job: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of matrix products and optimiser that jurat's step cannot do without."""
    import torch
    from train import floor, median  # benchmarks/train.py
    from transformers import AutoConfig

    from jurat.engine import threads
    from jurat.engine.llama.linear import Matrix, can_pack
    from jurat.engine.llama.weights import shape_of
    from jurat.engine.optim import AdamW
    from jurat.platform.recipe import Optim

    threads.set_up(job["threads"])
    shape = shape_of(AutoConfig.from_pretrained(job["model"]))
    prompts, samples, length = job["workload"]
    heads = shape.heads * shape.head_dim
    sizes = [(shape.qkv, shape.hidden), (shape.hidden, heads), (2 * shape.ff, shape.hidden), (shape.hidden, shape.ff)]
    pack = can_pack(torch.bfloat16, torch.device("cpu"))

    def products(rows: int, heads_rows: int) -> float:
        total = 0.0
        for (n, k), count, m in [
            *((size, shape.layers, rows) for size in sizes),
            ((shape.vocab, shape.hidden), 1, heads_rows),
        ]:
            some = [Matrix(torch.randn(n, k).bfloat16(), pack=pack) for _ in range(1 if n == shape.vocab else 4)]
            x = torch.randn(m, k).bfloat16()
            total += count * median(lambda x=x, some=some: [matrix(x) for matrix in some], 5) / len(some)
        return total

    sampling = products(ours["prompt tokens"], prompts) + (length - 1) * products(prompts * samples, prompts * samples)
    training = floor(shape, ours["rows"], ours["targets"], torch.bfloat16, 5)
    master, grad = torch.zeros(134_515_008), torch.zeros(134_515_008)
    adam = AdamW(master, grad, num_matrix=len(master), optim=Optim(), total=9)
    return {"sample": sampling, "forward_backward": training, "optimizer": median(adam.step, 5)}


def run(python: str, code: list[str], job: Mapping[str, Any]) -> dict[str, Any]:
    """The RESULT line of one side, run alone in a process of its own."""
    from jurat.engine.threads import recommended_env

    env = {**os.environ, "OMP_NUM_THREADS": str(job["threads"]), "HF_HUB_OFFLINE": "1", **recommended_env()}
    done = subprocess.run([python, *code, json.dumps(job)], env=env, capture_output=True, text=True)
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not results:
        raise SystemExit(f"{python} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(results[0].removeprefix("RESULT "))
    return found


def row(name: str, found: Mapping[str, Any], job: Mapping[str, Any]) -> dict[str, Any]:
    """One line of the report: medians without the first step."""
    prompts, samples, length = job["workload"]
    tokens, phases = prompts * samples * length, found["phases"]
    middle = {phase: statistics.median(times[1:]) for phase, times in phases.items()}
    return {
        "side": name,
        **{f"{phase} s": round(seconds, 2) for phase, seconds in middle.items() if phase != "cpu"},
        "sampled tokens/s": round(tokens / middle["sample"]),
        "trained tokens/s": round(tokens / middle["forward_backward"]),
        "peak GiB": round(found["peak"], 2),
        "cores used": round(sum(phases["cpu"][1:]) / sum(phases["step"][1:]), 2),
        "steps s": [round(seconds, 2) for seconds in phases["step"]],
    }


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--model", type=Path, help="a Hugging Face folder; default: the fetched smollm2")
    parse.add_argument("--trl-python", default=sys.executable)
    parse.add_argument("--vllm-python", help="adds the side vllm")
    parse.add_argument("--workloads", nargs="*", default=list(WORKLOADS), choices=list(WORKLOADS))
    parse.add_argument("--sides", nargs="*", default=["jurat", "half", "simple", "floor", "trl"])
    parse.add_argument("--steps", type=int, default=4)
    parse.add_argument("--threads", type=int, default=2)
    parse.add_argument("--side", choices=["jurat", "floor"], help=argparse.SUPPRESS)
    parse.add_argument("job", nargs="?", help=argparse.SUPPRESS)
    args = parse.parse_args()
    if args.side:
        job = json.loads(args.job)
        found = jurat_side(job) if args.side == "jurat" else floor_of(job, job["ours"])
        print("RESULT " + json.dumps(found))
        return
    if args.model is None:
        from jurat.engine import models

        args.model = models.resolve("smollm2", Path(os.environ.get("JURAT_HOME", ".jurat")))
    if args.trl_python == sys.executable and "trl" in args.sides and importlib.util.find_spec("trl") is None:
        raise SystemExit(
            "TRL is not installed here: install the bench extra or give --trl-python (or --sides jurat half floor)"
        )
    if args.vllm_python:
        args.sides.insert(1, "vllm")
    own = [str(Path(__file__).resolve()), "--side"]
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.workloads:
            job: dict[str, Any] = {
                "threads": args.threads, "workload": WORKLOADS[name], "questions": QUESTIONS, "steps": args.steps,
                "half": False, "path": "fast", "sampler": "own", "scratch": scratch, "model": str(args.model.resolve()),
            }  # fmt: skip
            prompts, samples, length = WORKLOADS[name]
            print(
                f"{name}: {prompts} prompts x {samples} samples x {length} tokens, {args.threads} threads", flush=True
            )
            steps: dict[str, float] = {}
            ours: dict[str, Any] = {}
            for side in args.sides:
                if side == "floor":
                    if "jurat" not in steps:
                        continue
                    floor = run(sys.executable, [*own, "floor"], {**job, "ours": ours})
                    parts = {key: round(value, 3) for key, value in floor.items()}
                    whole = sum(parts.values())
                    print(
                        json.dumps(
                            {"floor s": round(whole, 2), **parts, "share reached": round(whole / steps["jurat"], 2)}
                        )
                    )
                    continue
                if side == "trl":
                    found = run(args.trl_python, ["-c", TRL], job)
                else:
                    changes = {"half": {"half": True}, "simple": {"path": "simple"}, "vllm": {"sampler": "vllm"}}
                    python = args.vllm_python if side == "vllm" else sys.executable
                    found = run(python, [*own, "jurat"], {**job, **changes.get(side, {})})
                if side == "jurat":
                    ours = found
                if side in ("jurat", "vllm"):
                    print(json.dumps({key: found[key] for key in ("rows", "targets", "prompt tokens", "|dlogp|")}))
                line = row(side, found, job)
                steps[side] = line["step s"]
                print(json.dumps(line), flush=True)
            if "trl" in steps:
                for side in ("jurat", "half", "simple", "vllm"):
                    if side in steps:
                        print(f"TRL takes {steps['trl'] / steps[side]:.1f} times as long as {side}", flush=True)


if __name__ == "__main__":
    main()
