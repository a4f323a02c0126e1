"""Math-Verify and jurat's `math` verifier on the same case files, one process each: accuracy, speed, hostile inputs.

    python benchmarks/verifiers.py [--cases ../shared/cases/math] [--math-verify PYTHON] [--json FILE]

`--math-verify` is the Python of an environment that has math-verify 0.9.0 (the `bench` extra); without it only jurat
is measured. Math-Verify is asked as its authors do by default: gold and answer in `\\boxed{}` when they are bare, raw
text otherwise, its own alarms on. Each grader gets the rows one by one; times are of one call, first come, nothing
cached before.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

FILES = ("designed", "public_bugs", "mathverify_suite", "real_outputs", "hostile")


def rows(folder: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").split("\n") if line]


def answer_of(row: dict) -> str:
    return row["pred"] if "pred" in row else "".join(piece * count for piece, count in row["pred_parts"])


# ---- the graders, each in its own process -----------------------------------------------------------------------


def jurat_grader():
    from jurat.verifiers.math import compare, judge_text

    def grade(row: dict) -> bool:
        if row.get("form") == "text":
            gold_is_text = row.get("gold_form") != "answer"
            return judge_text(row["gold"], answer_of(row), gold_is_text=gold_is_text).status == "correct"
        return compare(row["gold"], answer_of(row)).status == "correct"

    return grade


def math_verify_grader():
    from math_verify import parse, verify

    def boxed(text: str) -> str:
        return f"\\boxed{{{text}}}"

    def grade(row: dict) -> bool:
        text = row.get("form") == "text"
        gold = row["gold"] if text and row.get("gold_form") != "answer" else boxed(row["gold"])
        answer = answer_of(row) if text else boxed(answer_of(row))
        return bool(verify(parse(gold), parse(answer)))

    return grade


def serve(name: str) -> None:
    """Grades the rows that come as JSON lines; replies {"correct", "ms"}."""
    import logging

    logging.disable(logging.CRITICAL)
    grade = jurat_grader() if name == "jurat" else math_verify_grader()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    grade({"gold": "1", "pred": "2"})
    for line in sys.stdin:
        row = json.loads(line)
        start = time.perf_counter()
        try:
            correct, error = grade(row), None
        except BaseException as problem:
            correct, error = False, type(problem).__name__
        spent = (time.perf_counter() - start) * 1e3
        out.write(json.dumps({"correct": correct, "ms": spent, "error": error}) + "\n")
        out.flush()


class Grader:
    """A grader in a child process; one that hangs is killed and counted."""

    def __init__(self, name: str, python: str, limit: float) -> None:
        self.name, self.python, self.limit = name, python, limit
        self.start()

    def start(self) -> None:
        self.child = subprocess.Popen(
            [self.python, __file__, "--serve", self.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def grade(self, row: dict) -> dict:
        import select

        assert self.child.stdin is not None and self.child.stdout is not None
        self.child.stdin.write(json.dumps(row) + "\n")
        self.child.stdin.flush()
        if select.select([self.child.stdout], [], [], self.limit)[0] and (line := self.child.stdout.readline()):
            return json.loads(line)
        hung = self.child.poll() is None
        self.child.kill()
        self.child.wait()
        self.start()
        return {"correct": False, "ms": self.limit * 1e3, "error": "hang" if hung else "died"}

    def close(self) -> None:
        self.child.kill()
        self.child.wait()


# ---- the table --------------------------------------------------------------------------------------------------


def measure(grader: Grader, folder: Path) -> dict:
    from jurat.verifiers.audit import part_of

    table: dict[str, dict] = {}
    times: list[float] = []
    for name in FILES:
        found = [(row, grader.grade(row)) for row in rows(folder, name)]
        if name == "hostile":
            table[name] = hostile(found)
            continue
        times += [reply["ms"] for _, reply in found]
        table[name] = score([(row, reply) for row, reply in found if part_of(row) == "core"])
        if name == "designed":
            hard = [(r, v) for r, v in found if r["category"] in ("hack", "probe") and not r["policy"]]
            table["hack and probe"] = score(hard)
        if name == "real_outputs":
            hand = [(r, v) for r, v in found if part_of(r) == "core" and "hand" in r["label_source"]]
            table["hand-adjudicated"] = score(hand)
    times.sort()
    table["speed"] = {
        "p50_ms": times[len(times) // 2],
        "p99_ms": times[int(len(times) * 0.99)],
        "per_second": 1e3 * len(times) / sum(times),
    }
    return table


def score(found: list[tuple[dict, dict]]) -> dict:
    positives = [row["id"] for row, reply in found if reply["correct"] and not row["expected"]]
    negatives = [row["id"] for row, reply in found if not reply["correct"] and row["expected"]]
    accuracy = 1 - (len(positives) + len(negatives)) / len(found)
    return {"n": len(found), "accuracy": accuracy, "false_positives": positives, "false_negatives": negatives}


def hostile(found: list[tuple[dict, dict]]) -> dict:
    late = [row["id"] for row, reply in found if reply["ms"] > row["max_ms"]]
    wrong = [r["id"] for r, reply in found if r["expected"] is not None and reply["correct"] != r["expected"]]
    crashed = [row["id"] for row, reply in found if reply["error"]]
    inside = len(found) - len(set(late) | set(crashed))
    return {"n": len(found), "inside": inside, "late": late, "wrong": wrong, "raised": crashed}


def show(results: dict[str, dict]) -> None:
    graders = list(results)
    print(f"{'measure':32}" + "".join(f"{name:>28}" for name in graders))
    first = results[graders[0]]
    for name, cell in first.items():
        if name == "speed":
            for key, form in (("p50_ms", "{:.3f} ms"), ("p99_ms", "{:.2f} ms"), ("per_second", "{:.0f}/s")):
                print(f"{key:32}" + "".join(f"{form.format(results[g]['speed'][key]):>28}" for g in graders))
        elif name == "hostile":
            cells = [f"{r['inside']} of {r['n']}, {len(r['wrong'])} wrong" for r in (results[g][name] for g in graders)]
            print(f"{'hostile inside max_ms':32}" + "".join(f"{text:>28}" for text in cells))
        else:
            parts = [results[g][name] for g in graders]
            text = [
                f"{100 * p['accuracy']:.2f} % (FP {len(p['false_positives'])}, FN {len(p['false_negatives'])})"
                for p in parts
            ]
            print(f"{name + ' (' + str(cell['n']) + ')':32}" + "".join(f"{t:>28}" for t in text))
    for name in graders:
        missed = {k: v for k, v in results[name].items() if v.get("false_positives") or v.get("false_negatives")}
        for key, value in missed.items() if name == "jurat" else ():
            print(f"jurat missed in {key}: FP {value['false_positives']} FN {value['false_negatives']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(os.environ.get("JURAT_CASES", "../shared/cases")) / "math"
    parser.add_argument("--cases", type=Path, default=default)
    parser.add_argument("--math-verify", default="", help="Python of an environment with math-verify 0.9.0")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds before a call is killed")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    graders = {"math-verify": options.math_verify} if options.math_verify else {}
    graders["jurat"] = sys.executable
    results = {}
    for name, python in graders.items():
        grader = Grader(name, python, options.limit)
        results[name] = measure(grader, options.cases)
        grader.close()
    show(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
