"""What the verifier ``equation_steps`` says of solutions whose truth is known.

    python benchmarks/steps.py gsm8k      the annotated calculations of GSM8K's training solutions (../shared/data/gsm8k): each decided,
                                          those called wrong confirmed by exact fractions; one digit changed in a random step: is that
                                          step named?; steps a second of one core
    python benchmarks/steps.py planted    generated derivations, half of them with one error: first-error F1, false alarms, by kind

F1 is ProcessBench's: the harmonic mean of the share of wrong derivations whose first wrong step is named, and of the share of right
ones in which no step is.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from jurat.verifiers.steps import planted  # noqa: E402
from jurat.verifiers.steps.arithmetic import check  # noqa: E402
from jurat.verifiers.steps.claims import said  # noqa: E402
from jurat.verifiers.steps.equation_steps import judged  # noqa: E402
from jurat.verifiers.steps.split import split  # noqa: E402

ANNOTATION = re.compile(r"<<([^<>]*)>>")
NUMBER = re.compile(r"\d+\.?\d*|\.\d+")


def exact(text: str) -> Fraction:
    """Value of numbers, ``+ - * /`` and brackets, by a reader of its own: Python's grammar, exact fractions for its numbers."""
    import ast

    def value(node: ast.expr) -> Fraction:
        if isinstance(node, ast.Call):
            return Fraction(node.args[0].value)  # type: ignore[attr-defined]
        if isinstance(node, ast.UnaryOp):
            return -value(node.operand) if isinstance(node.op, ast.USub) else value(node.operand)
        assert isinstance(node, ast.BinOp), ast.dump(node)
        a, b = value(node.left), value(node.right)
        if isinstance(node.op, ast.Add):
            return a + b
        if isinstance(node.op, ast.Sub):
            return a - b
        return a * b if isinstance(node.op, ast.Mult) else a / b

    return value(ast.parse(NUMBER.sub(lambda match: f"F('{match.group()}')", text.strip()), mode="eval").body)


def annotations(rows: list[dict[str, Any]]) -> list[str]:
    return [text for row in rows for text in ANNOTATION.findall(row["solution"])]


def gsm8k(args: argparse.Namespace) -> dict[str, Any]:
    path = args.data / "gsm8k" / "train.jsonl"
    if not path.exists():
        raise SystemExit(f"no GSM8K at {path}: give --data")
    with path.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    every = annotations(rows)
    answers, wrong, rounded = Counter[str](), [], 0
    for text in every:
        (claim,) = said(f"<<{text}>>", 0, len(text) + 4).claims or (None,)
        found = None if claim is None else check(claim)
        answers["not decided" if found is None or found.right is None else "right" if found.right else "wrong"] += 1
        if found is not None and found.right is False:
            wrong.append(text)
        rounded += found is not None and "rounded" in found.why
    print(
        f"{len(every):,} annotated calculations: {dict(answers)}; {rounded} of the right ones are roundings", flush=True
    )
    confirmed = 0
    for text in wrong:
        left, right = (exact(side) for side in text.split("="))
        off = left != right
        confirmed += off
        print(f"  {text}   {'' if off else 'NOT '}confirmed: {left} and {right}")
    named, asked, equal = changed_digits(rows, args.seed)
    bare = [re.sub(r"\n####.*", "", row["solution"]) for row in rows]
    spans = [split(text, "lines") for text in bare]
    began = time.process_time()
    for text, cut in zip(bare, spans, strict=True):
        judged(text, cut)
    seconds = time.process_time() - began
    steps = sum(map(len, spans))
    return {
        "annotations": len(every), "not_decided": answers["not decided"], "wrong": len(wrong), "wrong_share": len(wrong) / len(every),
        "confirmed": confirmed, "changed": asked, "changed_named": named, "changed_share": named / asked, "changed_equal": equal,
        "steps": steps, "steps_per_second": steps / seconds,
    }  # fmt: skip


def changed_digits(rows: list[dict[str, Any]], seed: int) -> tuple[int, int, int]:
    """(steps named, changes made, changes that left both sides equal): in one random annotation of each solution one digit becomes
    another, and the solution is judged with it. A solution in which a step was called wrong before is left out; so is a change
    that leaves the calculation true."""
    drawn, named, asked, equal = random.Random(seed), 0, 0, 0
    for row in rows:
        text = re.sub(r"\n####.*", "", row["solution"])
        places = [match.span(1) for match in ANNOTATION.finditer(text)]
        if not places or any(step.status == "incorrect" for step in judged(text, split(text, "lines")).steps):
            continue
        start, end = drawn.choice(places)
        at = drawn.choice([place for place in range(start, end) if text[place].isdigit()])
        digit = drawn.choice([d for d in "0123456789" if d != text[at]])
        changed = text[:at] + digit + text[at + 1 :]
        try:
            left, right = (exact(side) for side in changed[start:end].split("="))
            same = left == right
        except (ZeroDivisionError, SyntaxError):
            same = False
        if same:
            equal += 1
            continue
        asked += 1
        steps = judged(changed, split(changed, "lines")).steps
        named += any(step.status == "incorrect" and step.start <= at < step.end for step in steps)
    return named, asked, equal


def planted_errors(args: argparse.Namespace) -> dict[str, Any]:
    made, hit, early, late, missed = Counter[str](), Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for number in range(args.count):
        drawn = random.Random(f"{args.seed}:{number}")
        error = drawn.choice(planted.ERRORS) if number % 2 else ""
        each, form = planted.derivation(drawn, error), drawn.choice(planted.FORMS)
        text = each.text(form)
        at = judged(text, split(text, planted.HOW[form])).evidence.get("first_error")  # type: ignore[arg-type]
        made[error] += 1
        if at == each.at:
            hit[error] += 1
        elif at is None:
            missed[error] += 1
        else:
            (early if each.at is None or at < each.at else late)[error] += 1
    kinds = [kind for kind in ("", *planted.ERRORS) if made[kind]]
    for kind in kinds:
        print(f"  {kind or 'none':10} {made[kind]:6} made, {hit[kind]:6} named, {early[kind]:4} too early, {late[kind]:4} too late, "
              f"{missed[kind]:4} missed")  # fmt: skip
    wrong = sum(made[kind] for kind in planted.ERRORS)
    found = sum(hit[kind] for kind in planted.ERRORS) / wrong
    clean = hit[""] / made[""]
    return {"derivations": args.count, "f1": 2 * found * clean / (found + clean), "named": found, "false_alarms": 1 - clean,
            "by_kind": {kind: hit[kind] / made[kind] for kind in planted.ERRORS}}  # fmt: skip


MUST = {
    "not_decided": "0", "wrong_share": "<= 0.005", "confirmed": "all that are called wrong", "changed_share": ">= 0.99",
    "steps_per_second": ">= 2,000", "f1": ">= 0.95", "false_alarms": "<= 0.01",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=["gsm8k", "planted"])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--count", type=int, default=20_000, help="derivations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = gsm8k(args) if args.phase == "gsm8k" else planted_errors(args)
    for name, value in found.items():
        shown = value if isinstance(value, dict) else f"{value:,.5g}" if isinstance(value, float) else f"{value:,}"
        print(f"{name:20} {shown}   {MUST.get(name, '')}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
