"""What credit for steps buys: held-out accuracy against generated tokens, outcome only and by three rules of credit.

    python benchmarks/process.py curves [--out FOLDER] [--seeds 5] [--first 0] [--credits outcome shaped min sum]
    python benchmarks/process.py report [--out FOLDER] [--target 0.6] [--json]

Problems are those of the recipe ``process``: chains of three operations, worked step by step. All cells begin with one model,
the recipe's own after ``--sft-steps`` steps of SFT, and learn by the same policy gradient (leave-one-out baseline, prompt
mean); a cell is one seed of one rule: ``outcome``; ``shaped`` with the chance of success after each step as its score, and
``shaped0``, the same with lam 0; ``min`` and ``sum``, gated, beside the outcome's advantage. Tokens are all that were
generated for training. The report gives the tokens at which a curve first reaches ``--target`` (between two evaluations by a
straight line; a cell that never does counts as its last, and is told), the mean accuracy over the tokens that all cells had,
95 % t-intervals over seeds, and both paired against ``outcome``.

Every finished cell is one JSON line in FOLDER and is not run again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from allocation import Screen, add, finished, interval

from jurat.platform.config import load_recipe
from jurat.platform.recipe import Recipe
from jurat.trainers import launch

HERE = Path(launch.__file__).parent / "recipes" / "process"
CREDITS: Mapping[str, Mapping[str, Any]] = {
    "outcome": {"name": "outcome"},
    "shaped": {"name": "shaped"},
    "shaped0": {"name": "shaped", "lam": 0.0},
    "min": {"name": "min"},
    "sum": {"name": "sum"},
}


def recipe_of(args: argparse.Namespace, **changes: Any) -> Recipe:
    own = {"engine.threads": args.threads, "checkpoint": {"keep": 1}, "stages": []}
    return load_recipe(HERE / "recipe.yaml", {**own, **{key.replace("__", "."): value for key, value in changes.items()}})


def start(args: argparse.Namespace) -> str:
    path = args.out / "start.jsonl"
    if not finished(path):
        recipe = recipe_of(args, algorithm={"name": "sft"}, steps=args.sft_steps, prompts_per_step=32, allocation={})
        screen = Screen()
        done = launch.train(recipe, home=args.home, base=HERE, reporter=screen)
        add(path, {"model": str(Path(done.checkpoint).absolute() / "policy"), "accuracy": screen.points[-1][1]})
        print(f"start: {screen.points[-1][1]:.3f}", file=sys.stderr)
    return str(finished(path)[0]["model"])


def cell_recipe(args: argparse.Namespace, model: str, credit: str, seed: int) -> Recipe:
    members: list[dict[str, Any]] = [{"use": "problem"}]
    if credit != "outcome":
        potential = {"prefix": True, "chance": args.chance} if credit.startswith("shaped") else {}
        members.append({"use": "chain_steps", "role": "process", "weight": 0.0, "args": potential})
    return recipe_of(
        args, model=model, seed=seed, steps=args.steps, prompts_per_step=8, optim__lr=args.lr,
        reward={"members": members},
        algorithm={"name": "grpo", "advantage": "rloo", "aggregation": "prompt-mean", "credit": dict(CREDITS[credit])},
        evaluate={"every": max(1, args.steps // args.points), "problems": args.problems,
                  "final_problems": args.problems, "samples": 2},
    )  # fmt: skip


def curves(args: argparse.Namespace) -> None:
    path = args.out / "cells.jsonl"
    done = {(cell["credit"], cell["seed"]) for cell in finished(path)}
    seeds = range(args.first, args.first + args.seeds)
    todo = [(credit, seed) for seed in seeds for credit in args.credits if (credit, seed) not in done]
    model = start(args) if todo else ""
    for credit, seed in todo:
        began, screen = time.perf_counter(), Screen()
        recipe = cell_recipe(args, model, credit, seed)
        launch.train(recipe, home=args.home, base=HERE, reporter=screen)
        seconds = round(time.perf_counter() - began, 1)
        add(path, {"credit": credit, "seed": seed, "steps": args.steps, "points": screen.points, "seconds": seconds})
        told = " ".join(f"{point[1]:.2f}" for point in screen.points)
        print(f"{credit}, seed {seed}: {told} at {screen.tokens:.0f} tokens, {seconds} s", file=sys.stderr, flush=True)


def reached(points: Sequence[Sequence[float]], target: float) -> tuple[float, bool]:
    """Tokens at the first crossing, and whether there is one; else the last count."""
    x, y = np.array(points)[:, 0], np.array(points)[:, 1]
    above = np.flatnonzero(y >= target)
    if not len(above):
        return float(x[-1]), False
    k = int(above[0])
    if k == 0:
        return float(x[0]), True
    return float(x[k - 1] + (target - y[k - 1]) / (y[k] - y[k - 1]) * (x[k] - x[k - 1])), True


def table(cells: Sequence[Mapping[str, Any]], target: float) -> list[dict[str, Any]]:
    shared = min(cell["points"][-1][0] for cell in cells)
    grid = np.linspace(0.0, shared, 201)
    found: dict[str, dict[int, tuple[float, float, bool]]] = {}
    for cell in cells:
        tokens, hit = reached(cell["points"], target)
        x, y = np.array(cell["points"])[:, :2].T
        found.setdefault(cell["credit"], {})[cell["seed"]] = (tokens, float(np.interp(grid, x, y).mean()), hit)
    rows, plain = [], found.get("outcome", {})
    for credit, seeds in found.items():
        row: dict[str, Any] = {"credit": credit, "seeds": len(seeds), "reached": sum(hit for _, _, hit in seeds.values())}
        both = [seed for seed in seeds if seed in plain]
        for place, name in enumerate((f"tokens to {target:g}", f"mean accuracy to {shared:.0f} tokens")):
            row[name] = interval([float(each[place]) for each in seeds.values()])
            if credit != "outcome" and both:
                row[f"{name} - outcome"] = interval([float(seeds[s][place]) - float(plain[s][place]) for s in both])
        rows.append(row)
    return rows


def report(args: argparse.Namespace) -> None:
    rows = table(finished(args.out / "cells.jsonl"), args.target)
    print(json.dumps(rows) if args.json else "\n".join(json.dumps(row) for row in rows))


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("part", choices=["curves", "report"])
    parse.add_argument("--out", type=Path, default=Path(".jurat/process"), help="folder of finished cells")
    parse.add_argument("--home", type=Path, help="jurat's home; default: OUT/home")
    parse.add_argument("--threads", type=int)
    parse.add_argument("--seeds", type=int, default=5)
    parse.add_argument("--first", type=int, default=0, help="the first seed")
    parse.add_argument("--credits", nargs="*", choices=list(CREDITS), default=list(CREDITS))
    parse.add_argument("--steps", type=int, default=120)
    parse.add_argument("--sft-steps", type=int, default=250)
    parse.add_argument("--points", type=int, default=8, help="evaluations along a curve")
    parse.add_argument("--problems", type=int, default=100, help="held-out problems of each, answered twice")
    parse.add_argument("--chance", type=float, default=0.9, help="of a step to be right, in the potentials of shaped")
    parse.add_argument("--lr", type=float, default=2e-4)
    parse.add_argument("--target", type=float, default=0.6)
    parse.add_argument("--json", action="store_true")
    return parse.parse_args(words)


def main() -> None:
    args = arguments()
    args.home = args.home or args.out / "home"
    args.out.mkdir(parents=True, exist_ok=True)
    {"curves": curves, "report": report}[args.part](args)


if __name__ == "__main__":
    main()
