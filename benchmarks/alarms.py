"""Precision and recall of each rule of ``trainers/alarms.py`` on labelled traces of rewards, half of them healthy.

    python benchmarks/alarms.py [--count 4000] [--seed held] [--json OUT]

The traces are made by ``tests/kit/traces.py``; the thresholds were looked at on those of the seed ``dev``. Recall: of the runs with
a hack, those in which its rule raises an alarm. Precision: of the runs in which a rule raises one, those that have its hack (or one of
which it is true too: where the length is hacked the reward rises and held-out accuracy does not). Steps: from the first that
is hacked to the alarm are at least 3 of the last 5.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "kit")]

import traces  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=4_000)
    parser.add_argument("--seed", default="held")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    made, hit, told, right, false = (Counter[str]() for _ in range(5))
    for hack, trace in traces.labelled(args.seed, args.count):
        made[hack] += 1
        for rule in traces.raised(trace):
            told[rule] += 1
            hit[rule] += rule == hack
            right[rule] += rule == hack or rule in traces.ALSO.get(hack, ())
            false[rule] += not hack
    out = {
        rule: {"hacked": made[rule], "recall": hit[rule] / made[rule], "precision": right[rule] / max(1, told[rule]),
               "false_in_healthy": false[rule] / made[""]}
        for rule in traces.HACKS
    }  # fmt: skip
    print(f"{made['']} healthy runs of 60 steps")
    for rule, found in out.items():
        print(f"{rule:14} {found['hacked']:5} hacked   recall {found['recall']:.3f}   precision {found['precision']:.3f}   "
              f"healthy runs with a false alarm {found['false_in_healthy']:.2%}")  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(out, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
