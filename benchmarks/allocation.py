"""What sample counts per prompt buy: variance of the gradient at equal tokens, and held-out accuracy against tokens.

    python benchmarks/allocation.py variance [--out FOLDER] [--model smollm2] [--data multiarith/test.jsonl] [--prompts 64]
    python benchmarks/allocation.py curves   [--out FOLDER] [--model tiny] [--seeds 5] [--rules uniform neyman ...]
    python benchmarks/allocation.py curves   --model smollm2 --seeds 3 --rules uniform neyman
        --steps 40 --points 5 --problems 40
    python benchmarks/allocation.py report   [--out FOLDER] [--json]

variance: a frozen model answers each problem ``--samples`` times; the gradient of each answer's log-probability is kept as
a sketch (below). Then steps of the whole pool are drawn again from it ``--resamples`` times under every rule, with the
leave-one-out baseline and the prompt-mean loss. A rule that goes by the past saw ``--past`` samples of each problem first,
drawn anew each time and not counted. Reported, each against uniform with the bootstrap's 95 % interval over the redrawn
steps (the problems stand fixed): ``noise``, trace of the gradient's covariance times generated tokens; ``scale``, the mean
gradient along the exact one (1 where nothing is biased); ``cosine`` of the two; ``noise/scale^2``, what it takes to reach
the same signal. ``exact`` needs no redrawing: it is the pool's own mean gradient under p of the pool.

The sketch of a linear layer's gradient sum_t g_t x_t^T is sum_t (A g_t)(B x_t)^T with Gaussian A [k, out]/sqrt(k) and
B [k, in]/sqrt(k): inner products are kept in expectation. All linear layers inside the blocks are in it, laid end to end.

curves: one start (tiny: SFT for some steps; else the model as it is), then GRPO by ``launch.train`` for every seed and rule;
a cell is one run. Tokens are all that were generated, discarded groups included. Cells run to about equal tokens. The
report gives accuracy at the largest count of tokens that all cells reached and the mean accuracy up to it, with t-intervals
over seeds, and paired differences from uniform.

Every finished cell is one JSON line in FOLDER and is not run again; a pool is one file per problem.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jurat.platform.config import load_recipe, override, validate
from jurat.platform.recipe import Recipe
from jurat.platform.types import Allocation, Group, Scored, Visit
from jurat.trainers import launch
from jurat.trainers.advantages import rloo
from jurat.trainers.allocate import build_allocator
from jurat.trainers.allocation.neyman import counts
from jurat.trainers.prepare import judge_for

FAIR = {"name": "grpo", "advantage": "rloo", "aggregation": "prompt-mean"}
"""Of every cell, so that only the counts differ."""
RULES: Mapping[str, Mapping[str, Any]] = {
    "uniform": {"name": "uniform", "samples_per_prompt": 8},
    "neyman": {"name": "neyman", "samples_per_prompt": 8},
    "neyman, length": {"name": "neyman", "samples_per_prompt": 8, "gradient": "length"},
    "neyman, no cost": {"name": "neyman", "samples_per_prompt": 8, "cost": "samples"},
    "difficulty": {"name": "difficulty"},
    "until_mixed": {"name": "until_mixed"},
    "dapo": {"name": "dapo", "samples_per_prompt": 8, "max_refills": 3},
}
PLUGGED = ("plug-in", "oracle")
"""Counts from the past's own share p (not a rule that ships: it starves what it saw all wrong), and from the true p."""
STEPS = {"difficulty": 4.0, "until_mixed": 0.4, "dapo": 0.4}
"""Steps of a cell as a multiple of uniform's, so that cells end at about equal tokens."""


# ---- cells that are not run twice ------------------------------------------------------------------------------------


def finished(path: Path) -> list[dict[str, Any]]:
    """Whole lines only: one that a kill cut short is run again."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def add(path: Path, cell: Mapping[str, Any]) -> None:
    whole = "".join(json.dumps(each) + "\n" for each in [*finished(path), cell])
    draft = path.with_suffix(".draft")
    draft.write_text(whole)
    draft.replace(path)


# ---- (a) variance ----------------------------------------------------------------------------------------------------


def sketches(model: Any, rows: Sequence[Scored], *, size: int, batch: int) -> np.ndarray:
    """[n, layers * size * size] float32: sketch of the gradient of each completion's log-probability (token sum)."""
    import torch

    layers = [m for name, m in model.base_model.named_modules() if isinstance(m, torch.nn.Linear)]
    draw = torch.Generator().manual_seed(0)
    sides = [
        tuple(torch.randn(n, size, generator=draw) / math.sqrt(size) for n in (m.out_features, m.in_features))
        for m in layers
    ]
    sums: list[Any] = [None] * len(layers)

    def watch(place: int) -> Callable[..., None]:
        left, right = sides[place]

        def forward(_: Any, inputs: tuple[Any, ...], output: Any) -> None:
            seen = inputs[0].detach().float() @ right
            output.register_hook(
                lambda g: sums.__setitem__(place, torch.einsum("btk,btl->bkl", g.float() @ left, seen))
            )

        return forward

    hooks = [layer.register_forward_hook(watch(place)) for place, layer in enumerate(layers)]
    out = []
    for start in range(0, len(rows), batch):
        part = [s.rollout for s in rows[start : start + batch]]
        longest = max(len(r.tokens) for r in part)
        tokens = torch.zeros(len(part), longest, dtype=torch.int64)
        mask = torch.zeros(len(part), longest, dtype=torch.bool)
        for place, rollout in enumerate(part):  # padded on the right: causal attention never sees it
            tokens[place, : len(rollout.tokens)] = torch.from_numpy(rollout.tokens)
            mask[place, : len(rollout.tokens)] = torch.from_numpy(rollout.loss_mask)
        hidden = model.base_model(input_ids=tokens, use_cache=False)[0][:, :-1][mask[:, 1:]]
        logits = model.get_output_embeddings()(hidden).float()
        chosen = torch.log_softmax(logits, dim=-1).gather(1, tokens[:, 1:][mask[:, 1:]][:, None])
        chosen.sum().backward()
        out.append(torch.cat([each.reshape(len(part), -1) for each in sums], dim=1).numpy().copy())
    for hook in hooks:
        hook.remove()
    return np.concatenate(out)


def pool(args: argparse.Namespace) -> tuple[list[list[Scored]], np.ndarray]:
    """Answers [P][S] and their sketches [P, S, D]; problems whose file is there already are read."""
    import torch
    from safetensors.numpy import load_file, save_file
    from transformers import AutoModelForCausalLM

    from jurat.engine import local, models
    from jurat.trainers.data import sampling_of
    from jurat.trainers.evaluate import sample_all

    recipe = measured(args)
    folder = models.resolve(recipe.model, args.home)
    prepared = launch.prepare(recipe, base=args.base)
    problems = prepared.sets["train"].problems[: args.prompts]
    here = args.out / "pool"
    here.mkdir(parents=True, exist_ok=True)
    missing = [p for p in problems if not (here / f"{p.id}.json").exists()]
    if missing:
        dtype = getattr(torch, recipe.engine.dtype)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
        model.eval()
        engine = local.build(folder, recipe.engine, recipe.optim, recipe.sampling, total_steps=1)
        judge = judge_for(recipe, args.base)
        judge.bind([p.verifier for p in problems])
        try:
            for problem in missing:
                began = time.perf_counter()
                (rows,) = asyncio.run(
                    sample_all(
                        [problem], sampler=engine.sampler, judge=judge, tokenizer=engine.tokenizer,
                        sampling=sampling_of(recipe.sampling, engine.tokenizer), samples=args.samples,
                        seed=args.seed, purpose="pool",
                    )
                )  # fmt: skip
                found = sketches(model, rows, size=args.sketch, batch=args.batch)
                save_file({"sketch": found}, here / f"{problem.id}.safetensors")
                kept = [{"score": s.judgement.reward.value, "tokens": s.rollout.num_completion_tokens} for s in rows]
                (here / f"{problem.id}.json").write_text(json.dumps(kept) + "\n")
                said = f"{problem.id[:8]}: right {np.mean([k['score'] or 0.0 for k in kept]):.2f}"
                print(f"{said}, {time.perf_counter() - began:.1f} s", file=sys.stderr)
        finally:
            engine.close()
            judge.close()
    answers, arrays = [], []
    for problem in problems:
        kept = json.loads((here / f"{problem.id}.json").read_text())
        array = load_file(here / f"{problem.id}.safetensors")["sketch"]
        use = [k for k, each in enumerate(kept) if each["score"] is not None]  # excluded ones are in no step
        if len(use) != len(kept):
            use = [use[k % len(use)] for k in range(len(kept))] if use else []
        if use:
            answers.append([stand_in(problem, kept[k]["score"], kept[k]["tokens"]) for k in use])
            arrays.append(array[use])
    return answers, np.stack(arrays)


def measured(args: argparse.Namespace) -> Recipe:
    value = {
        "model": "tiny-random" if args.model == "tiny" else args.model,
        "data": {"train": {"source": args.data, "bad_rows": "skip", "size": args.prompts}},
        "sampling": {"max_new_tokens": args.max_new_tokens},
        "engine": {"dtype": args.dtype, "threads": args.threads},
        "algorithm": FAIR,
    }
    return validate(value, where="benchmark")


def stand_in(problem: Any, score: float, tokens: int) -> Scored:
    """What an allocator may see of a sample: its outcome and its length."""
    from jurat.platform.types import Judgement, Reward, Rollout, Verdict

    verdict = Verdict(status="partial", score=score)
    nothing = np.zeros(0, dtype=np.float32)
    rollout = Rollout(
        id="", problem=problem, visit=0, index=0, tokens=np.zeros(0, dtype=np.int64), loss_mask=nothing > 0,
        sampler_logprobs=nothing, spans=(), text="", char_ends=np.zeros(tokens, dtype=np.int64), finish="stop",
    )  # fmt: skip
    return Scored(rollout=rollout, judgement=Judgement(verdicts={"problem": verdict}, reward=Reward(value=score)))


def redraw(rule: str, answers: list[list[Scored]], args: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients [R, P, S] of the pool's gradients in each redrawn step, and its generated tokens [R]."""
    prompts, size = len(answers), len(answers[0])
    score = np.array([[s.judgement.reward.value for s in row] for row in answers])
    length = np.array([[s.rollout.num_completion_tokens for s in row] for row in answers])
    visits = [Visit(problem=row[0].rollout.problem, visit=1, position=i) for i, row in enumerate(answers)]
    coefficients, spent = np.zeros((args.resamples, prompts, size)), np.zeros(args.resamples)
    draw = np.random.default_rng([args.seed, sum(map(ord, rule))])
    for step in range(args.resamples):
        before = draw.integers(size, size=(prompts, args.past))
        if rule in PLUGGED:
            shares = score.mean(axis=1) if rule == "oracle" else np.take_along_axis(score, before, 1).mean(axis=1)
            seen = length.mean(axis=1) if rule == "oracle" else np.take_along_axis(length, before, 1).mean(axis=1)
            bounds = {"budget": 8 * float(seen.sum()), "least": 2, "most": 32}
            given = counts((shares * (1 - shares)).tolist(), seen.tolist(), **bounds)  # type: ignore[arg-type]
            allocator = build_allocator(validate_rule({"name": "uniform"}))
            plan = [Allocation(samples=n, reason=rule) for n in given]
        else:
            allocator = build_allocator(validate_rule(RULES[rule]))
            allocator.observe([group(v, answers[i], before[i]) for i, v in enumerate(visits)])
            plan = list(allocator.plan(visits))
        kept = 0
        for i, allocation in enumerate(plan):
            chosen, more = np.zeros(0, dtype=np.int64), allocation.samples
            while more:
                chosen = np.append(chosen, draw.integers(size, size=more))
                made = group(visits[i], answers[i], chosen, allocation)
                more = allocator.extend(made)
            spent[step] += length[i, chosen].sum()
            if allocator.keep(made):
                continue
            kept += 1
            rewards = score[i, chosen]
            alone = allocation.evidence.get("baseline") if len(chosen) == 1 else None
            advantages = rloo(rewards) if alone is None else rewards - alone
            np.add.at(coefficients[step, i], chosen, advantages / len(chosen))
        coefficients[step] /= max(1, kept)
    return coefficients, spent


def validate_rule(part: Mapping[str, Any]) -> Recipe:
    return validate({"model": "m", "data": {"train": {"source": "generated"}}, "allocation": part}, where="benchmark")


def group(visit: Visit, row: list[Scored], chosen: Any, allocation: Allocation | None = None) -> Group:
    return Group(
        visit=visit,
        scored=tuple(row[k] for k in chosen),
        allocation=allocation or Allocation(samples=len(chosen), reason="past"),
    )


def variance(args: argparse.Namespace) -> None:
    """One JSON line per rule, with what a report needs to compare it."""
    path = args.out / "variance.jsonl"
    done = {cell["rule"] for cell in finished(path)}
    todo = [rule for rule in (*RULES, *PLUGGED) if rule not in done and (args.rules is None or rule in args.rules)]
    answers, sketch = pool(args) if todo else ([], np.zeros(0))
    for rule in todo:
        score = np.array([[s.judgement.reward.value for s in row] for row in answers])
        prompts, size = score.shape
        flat = sketch.reshape(prompts * size, -1)
        exact = ((score - score.mean(axis=1, keepdims=True)) / (prompts * size)).reshape(-1) @ flat
        coefficients, spent = redraw(rule, answers, args)
        steps = coefficients.reshape(args.resamples, -1).astype(np.float32) @ flat  # [R, D]
        mean = steps.mean(axis=0)
        squares = ((steps - mean) ** 2).sum(axis=1) * (args.resamples / (args.resamples - 1))
        add(
            path,
            {
                "rule": rule,
                "prompts": prompts,
                "samples": size,
                "share right": round(float(score.mean()), 4),
                "squares": squares.tolist(),
                "tokens": spent.tolist(),
                "along": (steps @ exact / (exact @ exact)).tolist(),
                "cosine": float(mean @ exact / np.linalg.norm(mean) / np.linalg.norm(exact)),
            },
        )
        print(f"{rule}: {spent.mean():.0f} tokens a step", file=sys.stderr)


def compare(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each rule against uniform: [value, low, high] by the bootstrap over redrawn steps."""
    by = {cell["rule"]: {k: np.array(cell[k]) for k in ("squares", "tokens", "along")} for cell in cells}
    draw = np.random.default_rng(0)

    def numbers(cell: Mapping[str, np.ndarray], rows: Any) -> tuple[np.ndarray, np.ndarray]:
        noise = cell["squares"][rows].mean(axis=-1) * cell["tokens"][rows].mean(axis=-1)
        return noise, cell["along"][rows].mean(axis=-1)

    def boot(cell: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """The value first, then 2,000 resampled ones."""
        n = len(cell["squares"])
        whole, others = numbers(cell, np.arange(n)[None]), numbers(cell, draw.integers(n, size=(2000, n)))
        return np.concatenate([whole[0], others[0]]), np.concatenate([whole[1], others[1]])

    def told(values: np.ndarray) -> list[float]:
        return [round(float(x), 3) for x in (values[0], *np.quantile(values[1:], [0.025, 0.975]))]

    boots = {name: boot(cell) for name, cell in by.items()}
    out = []
    for cell in cells:
        noise, scale = boots[cell["rule"]]
        row: dict[str, Any] = {"rule": cell["rule"], "tokens": round(float(np.mean(cell["tokens"])), 1)}
        if "uniform" in boots:
            ours, one = boots["uniform"]
            row["noise"] = told(noise / ours)
            row["noise/scale^2"] = told(noise / ours * (one / np.maximum(scale, 1e-6)) ** 2)
        out.append({**row, "scale": told(scale), "cosine": round(cell["cosine"], 3)})
    return out


# ---- (b) curves ------------------------------------------------------------------------------------------------------


class Screen:
    """A Reporter that keeps what it hears."""

    def __init__(self) -> None:
        self.points: list[list[float]] = []
        self.tokens = 0.0

    def start(self, **said: Any) -> None: ...

    def note(self, text: str) -> None: ...

    def step(self, report: Any) -> None:
        self.tokens += report.metrics["tokens/generated"]

    def evaluation(self, result: Any) -> None:
        self.points.append([self.tokens, result.accuracy.value, result.accuracy.low, result.accuracy.high])


def start(args: argparse.Namespace) -> str:
    """The model that all cells begin from: for tiny one SFT run, made once."""
    if args.model != "tiny":
        return str(args.model)
    path = args.out / "start.jsonl"
    if not finished(path):
        value = {
            "stages": [], "algorithm": {"name": "sft"}, "allocation": {}, "steps": args.sft_steps, "prompts_per_step": 32,
        }  # fmt: skip
        recipe = tiny(args, {**value, "seed": 0})
        outcome = launch.train(recipe, home=args.home, base=args.base, reporter=Screen())
        add(path, {"model": str(Path(outcome.checkpoint) / "policy")})
    return str(finished(path)[0]["model"])


def tiny(args: argparse.Namespace, value: Mapping[str, Any]) -> Recipe:
    path = Path(launch.__file__).parent / "recipes" / "tiny.yaml"
    own = {"data.train.levels": [1, 2], "data.train.size": args.train_problems, "data.held_out.levels": [1, 2],
           "data.held_out.size": args.problems, "sampling.max_new_tokens": 6}  # fmt: skip
    return load_recipe(path, {"engine.threads": args.threads, "checkpoint": {"keep": 1}, **own, **value})


def cell_recipe(args: argparse.Namespace, model: str, rule: str, seed: int) -> Recipe:
    steps = max(1, round(args.steps * STEPS.get(rule, 1.0)))
    every = max(1, round(steps / args.points))
    value = {
        "model": model, "seed": seed, "steps": steps, "algorithm": FAIR, "allocation": dict(RULES[rule]),
        "data.train.size": args.train_problems, "evaluate.every": every, "evaluate.problems": args.problems,
        "evaluate.final_problems": args.problems,
    }  # fmt: skip
    if args.model == "tiny":
        return tiny(args, {**value, "stages": [], "prompts_per_step": 8, "optim.lr": args.lr or 2e-4})
    path = Path(launch.__file__).parent / "recipes" / f"{args.recipe}.yaml"
    recipe = load_recipe(path, {"engine.threads": args.threads, "checkpoint": {"keep": 1}, **value})
    changes = {"optim.lr": args.lr} if args.lr else {}
    return validate(override(recipe.model_dump(mode="json"), {**changes, "data.unseen": None}), where=str(path))


def curves(args: argparse.Namespace) -> None:
    path = args.out / f"curves-{Path(args.model).name}.jsonl"
    done = {(cell["rule"], cell["seed"]) for cell in finished(path)}
    rules = args.rules or list(RULES)
    todo = [(rule, seed) for seed in range(args.seeds) for rule in rules if (rule, seed) not in done]
    model = start(args) if todo else ""
    for rule, seed in todo:
        began, screen = time.perf_counter(), Screen()
        recipe = cell_recipe(args, model, rule, seed)
        launch.train(recipe, home=args.home, base=args.base, reporter=screen)
        seconds = round(time.perf_counter() - began, 1)
        cell = {"rule": rule, "seed": seed, "steps": recipe.steps, "points": screen.points, "seconds": seconds}
        add(path, cell)
        print(f"{rule}, seed {seed}: {screen.points[-1][1]:.3f} at {screen.tokens:.0f} tokens", file=sys.stderr)


T95 = (math.nan, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t at 97.5 % by degrees of freedom, 1 to 9."""


def interval(values: Sequence[float]) -> list[float]:
    """[mean, low, high], 95 % over seeds; no interval for a single one."""
    n, mean = len(values), float(np.mean(values))
    half = T95[min(n - 1, 9)] * float(np.std(values, ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return [round(x, 4) for x in (mean, mean - half, mean + half)] if n > 1 else [round(mean, 4)]


def learnt(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Accuracy at the tokens that all cells reached, and its mean up to there, by rule."""
    reached = min(cell["points"][-1][0] for cell in cells)
    grid = np.linspace(0.0, reached, 201)
    found: dict[str, dict[int, tuple[float, float]]] = {}
    for cell in cells:
        x, y = np.array(cell["points"])[:, :2].T
        curve = np.interp(grid, x, y)
        found.setdefault(cell["rule"], {})[cell["seed"]] = (float(curve[-1]), float(curve.mean()))
    out: dict[str, Any] = {"tokens": round(reached)}
    for rule, seeds in found.items():
        row = {"seeds": len(seeds)}
        for place, name in enumerate(("accuracy", "mean accuracy")):
            row[name] = interval([each[place] for each in seeds.values()])  # type: ignore[assignment]
            paired = [
                each[place] - found["uniform"][s][place] for s, each in seeds.items() if s in found.get("uniform", {})
            ]
            if rule != "uniform" and paired:
                row[f"{name} - uniform"] = interval(paired)  # type: ignore[assignment]
        out[rule] = row
    return out


def report(args: argparse.Namespace) -> None:
    out: dict[str, Any] = {"variance": compare(finished(args.out / "variance.jsonl"))}
    for path in sorted(args.out.glob("curves-*.jsonl")):
        out[path.stem] = learnt(finished(path))
    if args.json:
        print(json.dumps(out))
        return
    for name, found in out.items():
        print(name)
        rows = found if isinstance(found, list) else [{key: value} for key, value in found.items()]
        for row in rows:
            print("  " + json.dumps(row))


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("part", choices=["variance", "curves", "report"])
    parse.add_argument("--out", type=Path, default=Path(".jurat/allocation"), help="folder of finished cells")
    parse.add_argument("--home", type=Path, help="jurat's home, with fetched models; default: OUT/home")
    parse.add_argument("--base", type=Path, default=Path("."), help="where data files are looked for")
    parse.add_argument("--model", default="tiny", help="tiny, a fetched name, or a folder")
    parse.add_argument("--threads", type=int)
    parse.add_argument("--rules", nargs="*", choices=[*RULES, *PLUGGED])
    parse.add_argument("--json", action="store_true", help="the report as one line")
    a = parse.add_argument_group("variance")
    a.add_argument("--data", default="generated")
    a.add_argument("--prompts", type=int, default=64)
    a.add_argument("--samples", type=int, default=64, help="pool of each problem")
    a.add_argument("--past", type=int, default=8, help="samples of each problem that a rule saw before")
    a.add_argument("--resamples", type=int, default=400)
    a.add_argument("--sketch", type=int, default=4, help="k of the projections; k * k numbers a layer")
    a.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    a.add_argument("--batch", type=int, default=16)
    a.add_argument("--max-new-tokens", type=int, default=64)
    a.add_argument("--seed", type=int, default=0)
    b = parse.add_argument_group("curves")
    b.add_argument("--seeds", type=int, default=5)
    b.add_argument("--steps", type=int, default=800, help="of uniform; others end at about the same tokens")
    b.add_argument("--sft-steps", type=int, default=80)
    b.add_argument(
        "--train-problems", type=int, default=240, help="few enough that each is asked several times: rules learn by it"
    )
    b.add_argument("--points", type=int, default=16, help="evaluations along a curve")
    b.add_argument("--problems", type=int, default=60, help="held-out problems of each")
    b.add_argument("--recipe", default="quickstart", help="shipped recipe of the cells of a model that is not tiny")
    b.add_argument("--lr", type=float)
    return parse.parse_args(words)


def main() -> None:
    args = arguments()
    args.home = args.home or args.out / "home"
    args.out.mkdir(parents=True, exist_ok=True)
    {"variance": variance, "curves": curves, "report": report}[args.part](args)


if __name__ == "__main__":
    main()
