"""What a GPU does with this engine, in parts that each have a process and a time limit of their own.

    python benchmarks/device.py [--device cuda] [--tiny] [--parts machine parity ...] [--json OUT]

| part    | what                                                                                                       |
|---------|------------------------------------------------------------------------------------------------------------|
| machine | the device, bf16 products and copies as they run here: the yardstick of the others                          |
| parity  | tiny model, float32, CPU beside the device, same seeds: tokens, log-probs, loss, gradient norm, next weights |
| fast    | the fast path's learner on a random 1.5B of Llama's architecture: tokens/s, MFU, peak memory                 |
| simple  | the same numbers of Qwen2's architecture by transformers                                                    |
| liger   | log-probs of its head by liger-kernel and in chunks: seconds, memory, how far values and gradients are apart |
| own     | the fast path's sampler: tokens/s, seconds of a publish                                                     |
| vllm    | vLLM beside the learner on one device (Qwen2): tokens/s, publish, a whole step, sampler against learner      |
| sleep   | the same with engine.offload: memory of the device awake and asleep, seconds of sleep and of waking      |

A part that fails, is too slow or lacks a package says so, and the others go on. Weights are random, made in code from a seed;
nothing is fetched. MFU is 6 flops a parameter and forwarded token over the products of ``machine`` (989 Tflop/s, the
datasheet's of H100 and H200, beside it); attention is left out. ``--tiny``: a small model, to try all of it on a CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

DATASHEET = 989e12
LIMITS = {"machine": 60, "parity": 120, "fast": 100, "simple": 100, "liger": 60, "own": 90, "vllm": 240, "sleep": 150}
"""Seconds of each part."""
Job = dict[str, Any]


# ---- the model, and what is asked of it ---------------------------------------------------------------------------


def make_model(folder: Path, kind: str, job: Job) -> None:
    """A Hugging Face folder with random bfloat16 weights: Qwen2.5-1.5B's shape (1.54e9 parameters), or a small one."""
    from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, Qwen2Config

    from jurat.engine.tiny import tiny_tokenizer

    hidden, ff, layers, heads, vocab = (128, 384, 2, 4, 1024) if job["tiny"] else (1536, 8960, 28, 12, 151_936)
    config = {"llama": LlamaConfig, "qwen2": Qwen2Config}[kind](
        hidden_size=hidden, intermediate_size=ff, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=2, vocab_size=vocab, max_position_embeddings=4096, tie_word_embeddings=True,
        rms_norm_eps=1e-6, bos_token_id=None, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(job["device"]):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    GenerationConfig(eos_token_id=0, pad_token_id=0).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)


def build(folder: Path, job: Job, **engine: Any) -> Any:
    from jurat.engine import local
    from jurat.platform.recipe import Engine, Optim, SamplingPart

    part = Engine(**{"device": job["device"], "threads": job["threads"], **engine})
    sampling = SamplingPart(max_new_tokens=job["new"], max_concurrent=256)
    return local.build(folder, part, Optim(lr=1e-6), sampling, total_steps=100)


def asked(job: Job, step: int = 0) -> list[Any]:
    """``groups`` prompts of ``prompt`` tokens, 8 requests each, none of which ends early."""
    from jurat.platform.types import Request, Sampling

    draw, sampling = np.random.default_rng(step), Sampling(max_new_tokens=job["new"])
    return [
        Request(rollout_id=f"{step}.{group}.{n}", prompt=prompt, sampling=sampling, seed=step * 99_991 + group * 31 + n)
        for group in range(job["groups"])
        for prompt in [draw.integers(4, 512, job["prompt"])]
        for n in range(8)
    ]


async def drawn(engine: Any, requests: Sequence[Any]) -> list[Any]:
    return await asyncio.gather(*(engine.sampler.sample(request) for request in requests))


def packed(requests: Sequence[Any], completions: Sequence[Any], job: Job, baseline: float = 0.5) -> Any:
    """Rounds of one update; rewards of 0 and 1 alternate within a group. At a baseline of 0.5 the loss is near 0."""
    from jurat.platform.types import Sample
    from jurat.trainers.aggregation import token_mean
    from jurat.trainers.losses.clipped import Clipped
    from jurat.trainers.packing import pack

    advantages = np.arange(8) % 2 - baseline
    made = []
    for place, (request, completion) in enumerate(zip(requests, completions, strict=True)):
        on = np.arange(len(request.prompt) + len(completion.token_ids)) >= len(request.prompt)
        logprobs = np.zeros(len(on), np.float32)
        logprobs[on] = completion.logprobs
        made.append(Sample(
            tokens=np.concatenate([request.prompt, completion.token_ids]), loss_mask=on, sampler_logprobs=logprobs,
            weights=on.astype(np.float32), advantages=(on * advantages[place % 8]).astype(np.float32), atom=place // 8,
        ))  # fmt: skip
    return pack(made, Clipped(), token_mean, ranks=1, tokens=job["microbatch"]).rounds


def random_completions(requests: Sequence[Any], job: Job) -> list[Any]:
    from jurat.platform.types import Completion

    draw = np.random.default_rng(7)
    logprobs = np.full(job["new"], -6.0, np.float32)
    return [
        Completion(token_ids=draw.integers(4, 512, job["new"]), logprobs=logprobs, finish="length", spans=())
        for _ in requests
    ]


def wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def peak_gib(device: str) -> dict[str, float]:
    """Of torch in this process; of the whole device, vLLM's cache included; of the process."""
    found = {"peak RSS GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}
    if device.startswith("cuda"):
        free, total = torch.cuda.mem_get_info()
        found = {
            "torch peak GiB": torch.cuda.max_memory_allocated() / 2**30,
            "device used GiB": (total - free) / 2**30,
            **found,
        }
    return found


# ---- parts --------------------------------------------------------------------------------------------------------


def machine(job: Job, scratch: Path) -> dict[str, Any]:
    device = job["device"]
    cuda = device.startswith("cuda")
    size = 8192 if cuda else 512
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    block = torch.empty((1 << 31) if cuda else 1 << 24, dtype=torch.uint8, device=device)
    other = torch.empty_like(block)

    def median(work: Callable[[], object]) -> float:
        times = []
        for _ in range(13):
            wait(device)
            began = time.perf_counter()
            work()
            wait(device)
            times.append(time.perf_counter() - began)
        return statistics.median(times[3:])

    return {
        "device": torch.cuda.get_device_name() if cuda else "cpu", "torch": torch.__version__, "CUDA": torch.version.cuda or "",
        "python": sys.version.split()[0], "processors": os.cpu_count(),
        "bf16 Tflop/s": 2 * size**3 / median(lambda: a @ b) / 1e12,
        "copy GB/s, read + written": 2 * block.nbytes / median(lambda: other.copy_(block)) / 1e9,
    }  # fmt: skip


def parity(job: Job, scratch: Path) -> dict[str, Any]:
    """Float32 on both sides; raises if they differ beyond rounding: more than one completion (a draw may fall that close to an
    edge), or a loss, a gradient norm or a log-prob after two updates by 1e-3."""
    from jurat.engine.tiny import save_tiny
    from jurat.trainers.losses.clipped import Clipped

    save_tiny(scratch / "tiny")
    small = {**job, "groups": 4, "prompt": 24, "new": 24, "microbatch": 512}
    requests = asked(small)

    async def side(engine: Any, completions: list[Any] | None) -> tuple[list[Any], np.ndarray, np.ndarray]:
        """What it draws; loss and gradient norm [2, 2] of two updates on ``completions``; log-probs after them."""
        own = await drawn(engine, requests)
        rounds, numbers = packed(requests, completions or own, small, baseline=0.25), []
        for version in (1, 2):
            report = await engine.learner.update(rounds, Clipped())
            numbers.append([report.metrics["loss"], report.metrics["grad_norm"]])
            await engine.link.publish(version)
        scores = await engine.learner.score(rounds)
        return own, np.array(numbers), np.concatenate([each for ranks in scores for each in ranks])

    found: dict[str, Any] = {}
    for path in ("fast", "simple"):
        sides: list[Any] = []
        for device in ("cpu", job["device"]):
            engine = build(scratch / "tiny", {**small, "device": device}, path=path, dtype="float32")
            sides.append(asyncio.run(side(engine, sides[0][0] if sides else None)))
            engine.close()
        (drawn0, numbers0, scores0), (drawn1, numbers1, scores1) = sides
        pairs = [(a, b) for a, b in zip(drawn0, drawn1, strict=True) if np.array_equal(a.token_ids, b.token_ids)]
        found |= {
            f"{path}: equal completions": f"{len(pairs)} of {len(requests)}",
            f"{path}: their log-probs differ by at most": max(float(np.abs(a.logprobs - b.logprobs).max()) for a, b in pairs),
            f"{path}: losses, CPU and device": [numbers0[:, 0].tolist(), numbers1[:, 0].tolist()],
            f"{path}: gradient norms": [numbers0[:, 1].tolist(), numbers1[:, 1].tolist()],
            f"{path}: log-probs after two updates differ by at most": float(np.abs(scores0 - scores1).max()),
        }  # fmt: skip
        if (
            len(pairs) < len(requests) - 1
            or not np.allclose(numbers0, numbers1, rtol=1e-3)
            or np.abs(scores0 - scores1).max() > 1e-3
        ):
            raise AssertionError(f"{path}: beyond tolerance: {found}")
    return found


def learner(path: str, kind: str) -> Callable[[Job, Path], dict[str, Any]]:
    def part(job: Job, scratch: Path) -> dict[str, Any]:
        from jurat.trainers.losses.clipped import Clipped

        make_model(scratch / kind, kind, job)
        began = time.perf_counter()
        engine = build(scratch / kind, job, path=path, activation_checkpointing=not job["tiny"])
        requests = asked(job)
        rounds = packed(requests, random_completions(requests, job), job)
        loaded, reports, times = time.perf_counter() - began, [], []

        async def every() -> None:
            for _ in range(3):
                wait(job["device"])
                began = time.perf_counter()
                reports.append(await engine.learner.update(rounds, Clipped()))
                wait(job["device"])
                times.append(time.perf_counter() - began)

        asyncio.run(every())
        seconds, report = statistics.median(times[1:]), reports[-1]
        memory = peak_gib(job["device"])
        engine.close()
        flops = 6 * engine.info["parameters"] * report.forwarded_tokens / seconds
        return {
            "path": engine.info["path"],
            "head": engine.info.get("head", "the fast path's own"),
            "parameters": engine.info["parameters"], "load s": loaded, "update s": seconds,
            "updates s": times, "forwarded tokens/s": report.forwarded_tokens / seconds,
            "trained tokens/s": report.tokens / seconds, "Tflop/s": flops / 1e12, **mfu(job, flops), **memory,
        }  # fmt: skip

    return part


def _linear(weight: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return rows @ weight.T


def liger(job: Job, scratch: Path) -> dict[str, Any]:
    """Raises where log-probs are apart by more than 1e-5 in float32, or gradients by more than 1e-5 of their norm."""
    from jurat.engine.logprobs import chunked_logprobs, fused_logprobs, liger_version, why_chunked

    device, version = job["device"], liger_version()
    if not device.startswith("cuda"):
        os.environ["TRITON_INTERPRET"] = "1"
    why = why_chunked("cuda", version)
    if why:
        raise RuntimeError(why)
    rows, hidden, vocab = (64, 32, 512) if job["tiny"] else (8192, 1536, 151_936)
    found: dict[str, Any] = {"liger": version}
    for name, dtype, count in (("float32", torch.float32, rows // 8), ("bfloat16", torch.bfloat16, rows)):
        torch.manual_seed(0)
        states = torch.randn(count, hidden, device=device, dtype=dtype).requires_grad_()
        weight = torch.randn(vocab, hidden, device=device, dtype=dtype).div(hidden**0.5).requires_grad_()
        targets, slopes = torch.randint(vocab, (count,), device=device), torch.randn(count, device=device)
        sides: dict[str, Callable[[], tuple[torch.Tensor, torch.Tensor]]] = {
            "liger": partial(fused_logprobs, weight, states, targets),
            "chunks": partial(chunked_logprobs, partial(_linear, weight), states, targets),
        }
        results = {}
        for side, make in sides.items():
            times = []
            for _ in range(4):
                wait(device)
                if device.startswith("cuda"):
                    torch.cuda.reset_peak_memory_stats()
                began = time.perf_counter()
                logprobs, _ = make()
                gradients = torch.autograd.grad(logprobs, (states, weight), slopes)
                wait(device)
                times.append(time.perf_counter() - began)
            found[f"{name}, {count} rows, {side}: s"] = statistics.median(times[1:])
            if device.startswith("cuda"):
                found[f"{name}, {count} rows, {side}: torch peak GiB"] = torch.cuda.max_memory_allocated() / 2**30
            results[side] = [logprobs.detach().float(), *(each.float() for each in gradients)]
        values, *slopes_apart = (
            float((a - b).abs().max()) if place == 0 else float((a - b).norm() / b.norm())
            for place, (a, b) in enumerate(zip(results["liger"], results["chunks"], strict=True))
        )
        found[f"{name}: log-probs apart by at most"] = values
        found[f"{name}: gradients apart, of their norm"] = max(slopes_apart)
        if name == "float32" and (values > 1e-5 or max(slopes_apart) > 1e-5):
            raise AssertionError(f"beyond tolerance: {found}")
    return found


def mfu(job: Job, flops: float) -> dict[str, float]:
    if not job.get("Tflop/s"):
        return {}
    found = {"MFU of products here": flops / 1e12 / job["Tflop/s"]}
    return found | ({"MFU of the datasheet": flops / DATASHEET} if job["device"].startswith("cuda") else {})


def own(job: Job, scratch: Path) -> dict[str, Any]:
    make_model(scratch / "llama", "llama", job)
    engine = build(scratch / "llama", job, path="fast")
    found = asyncio.run(sampling(engine, job))
    engine.close()
    return found


async def sampling(engine: Any, job: Job) -> dict[str, Any]:
    """Two batches, the second one timed, and two publishes."""
    for step in range(2):
        began = time.perf_counter()
        completions = await drawn(engine, asked(job, step))
        seconds = time.perf_counter() - began
    syncs = []
    for version in (1, 2):
        began = time.perf_counter()
        await engine.link.publish(version)
        wait(job["device"])
        syncs.append(time.perf_counter() - began)
    count = sum(len(each.token_ids) for each in completions)
    return {"rows": len(completions), "new tokens": job["new"], "sample s": seconds, "sampled tokens/s": count / seconds,
            "publish s": syncs[-1], **peak_gib(job["device"])}  # fmt: skip


def vllm(job: Job, scratch: Path) -> dict[str, Any]:
    """One process, one device: masters, optimiser and gradients of the learner, vLLM's copy and its cache."""
    from jurat.engine.vllm import settings
    from jurat.trainers.losses.clipped import Clipped

    settings.require()
    make_model(scratch / "qwen2", "qwen2", job)
    began = time.perf_counter()
    engine = build(scratch / "qwen2", job, path="simple", sampler="vllm", vllm_memory=0.1 if job["tiny"] else 24.0,
                   activation_checkpointing=not job["tiny"])  # fmt: skip
    started = time.perf_counter() - began

    async def every() -> dict[str, Any]:
        found = {"sampler": engine.info["sampler"], "start s": started, **await sampling(engine, job)}
        for step in (2, 3):  # the first is a warm-up
            began = time.perf_counter()
            requests = asked(job, step)
            completions = await drawn(engine, requests)
            halfway = time.perf_counter()
            report = await engine.learner.update(packed(requests, completions, job), Clipped())
            learnt = time.perf_counter()
            await engine.link.publish(step + 1)
            wait(job["device"])
            ended = time.perf_counter()
        flops = 6 * engine.info["parameters"] * report.forwarded_tokens / (learnt - halfway)
        return found | {
            "step s": ended - began, "step: sample s": halfway - began, "step: learn s": learnt - halfway,
            "step: publish s": ended - learnt, "learner tokens/s": report.forwarded_tokens / (learnt - halfway),
            "sampler against learner, mean |dlogp|": report.metrics["logprob_diff_mean"],
            **mfu(job, flops), **peak_gib(job["device"]),
        }  # fmt: skip

    found = asyncio.run(every())
    engine.close()
    return found


def sleep(job: Job, scratch: Path) -> dict[str, Any]:
    """Raises where what is drawn after a sleep is not what was drawn before it; on a CPU it says that there is none."""
    make_model(scratch / "qwen2", "qwen2", job)
    engine = build(scratch / "qwen2", job, path="simple", sampler="vllm", vllm_memory=0.1 if job["tiny"] else 24.0,
                   offload=True)  # fmt: skip

    def used() -> float:
        free, total = torch.cuda.mem_get_info()
        return (total - free) / 2**30

    async def every() -> dict[str, Any]:
        requests = asked(job)[:64]
        before = await drawn(engine, requests)
        found: dict[str, Any] = {"sleep": engine.info["sleep"]}
        for version in (1, 2):  # the first is a warm-up
            wait(job["device"])
            cuda = job["device"].startswith("cuda")
            awake, began = used() if cuda else 0.0, time.perf_counter()
            await engine.sampler.rest()
            asleep, rested = used() if cuda else 0.0, time.perf_counter()
            await engine.link.publish(version)
            wait(job["device"])
            found |= {"rest s": rested - began, "publish and wake s": time.perf_counter() - rested}
            found |= {"awake, device GiB": awake, "asleep, device GiB": asleep} if cuda else {}
        after = await drawn(engine, requests)
        same = sum(np.array_equal(a.token_ids, b.token_ids) for a, b in zip(before, after, strict=True))
        found["equal completions before and after"] = f"{same} of {len(before)}"
        if same < len(before) - len(before) // 8:  # kernels of a GPU need not repeat their sums
            raise AssertionError(f"a sleep changed what is drawn: {found}")
        return found

    found = asyncio.run(every())
    engine.close()
    return found


PARTS: dict[str, Callable[[Job, Path], dict[str, Any]]] = {
    "machine": machine, "parity": parity, "fast": learner("fast", "llama"), "simple": learner("simple", "qwen2"),
    "liger": liger, "own": own, "vllm": vllm, "sleep": sleep,
}  # fmt: skip


# ---- running them -------------------------------------------------------------------------------------------------


def run(part: str, job: Job, limit: float) -> dict[str, Any]:
    """The part in a process of its own, ended with its children at the limit."""
    command = [sys.executable, str(Path(__file__).resolve()), "--part", part, json.dumps(job)]
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code: int | None = child.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        out.seek(0)
        text = out.read()
    seconds = time.perf_counter() - began
    for line in text.splitlines():
        if line.startswith("RESULT "):
            return {"seconds": seconds, **json.loads(line.removeprefix("RESULT "))}
    why = f"stopped after its {limit:g} s" if code is None else f"ended with status {code}"
    return {"seconds": seconds, "failed": why, "output": text[-3000:]}


def shown(name: str, found: dict[str, Any]) -> str:
    def cell(value: Any) -> str:
        return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)

    rows = [f"| {key} | {cell(value)} |" for key, value in found.items() if key != "output"]
    return "\n".join(
        [
            f"\n## {name}\n",
            "| | |",
            "| --- | --- |",
            *rows,
            *([f"```\n{found['output']}\n```"] if "output" in found else []),
        ]
    )


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--device", default="cuda")
    parse.add_argument("--tiny", action="store_true")
    parse.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    parse.add_argument("--groups", type=int, help="prompts of 8 samples each (default 32)")
    parse.add_argument("--new", type=int, help="tokens of a completion (default 512)")
    parse.add_argument("--threads", type=int, default=2)
    parse.add_argument("--seconds", type=float, default=570, help="for all parts together")
    parse.add_argument("--json", type=Path)
    parse.add_argument("--part", nargs=2, help=argparse.SUPPRESS)
    args = parse.parse_args()
    if args.part:
        name, job = args.part[0], json.loads(args.part[1])
        with tempfile.TemporaryDirectory() as scratch:
            try:
                found = PARTS[name](job, Path(scratch))
            except Exception as error:
                traceback.print_exc()
                first = (str(error).strip().splitlines() or [""])[0]
                found = {"failed": f"{type(error).__name__}: {first}", "output": traceback.format_exc()[-3000:]}
        print("RESULT " + json.dumps(found), flush=True)
        return
    sizes = {"groups": 2, "prompt": 16, "new": 16, "microbatch": 256} if args.tiny else {
        "groups": 32, "prompt": 128, "new": 512, "microbatch": 8192}  # fmt: skip
    given = {"groups": args.groups, "new": args.new}
    job: Job = {
        **sizes,
        **{k: v for k, v in given.items() if v},
        "device": args.device,
        "tiny": args.tiny,
        "threads": args.threads,
    }
    began, results = time.perf_counter(), {}
    for part in args.parts:
        left = args.seconds - (time.perf_counter() - began)
        limit = min(left, LIMITS[part])
        results[part] = run(part, job, limit) if left > 5 else {"failed": "not run: no time left"}
        print(shown(part, results[part]), flush=True)
        job["Tflop/s"] = results.get("machine", {}).get("bf16 Tflop/s")
        if args.json:
            args.json.write_text(json.dumps({"job": job, **results}, indent=1) + "\n")
    failed = [part for part, found in results.items() if "failed" in found]
    print(
        f"\n{len(results) - len(failed)} of {len(results)} parts ran"
        + (f"; failed: {', '.join(failed)}" if failed else "")
    )
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
