"""What one bad member does to an ensemble of three.

    python benchmarks/ensemble.py [--samples 20000] [--seeds 20] [--noise 0.1] [--json OUT]

The true score is uniform on [0, 1]; each of three models adds independent normal noise, and its score is cut to [0, 1]. A share of one
model's scores, drawn at random, is contaminated: hacked, it says 1, whatever the truth. Error is the mean absolute difference from
the true score; told is how much larger it is than that of the same rule without contamination, mean over seeds with the 95 %
interval. Scores go through the verifier's own ``put``.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from jurat.verifiers.ensemble import RULES  # noqa: E402

SHARES = (0.01, 0.05, 0.1, 0.5, 1.0)


def errors(samples: int, noise: float, seed: int) -> dict[tuple[str, float], float]:
    """(rule, share contaminated) -> mean absolute error; share 0 is the clean one."""
    drawn = random.Random(seed)
    sums = {(rule, share): 0.0 for rule in RULES for share in (0.0, *SHARES)}
    for _ in range(samples):
        truth, hacked = drawn.random(), drawn.random()
        clean = [min(1.0, max(0.0, truth + drawn.gauss(0.0, noise))) for _ in range(3)]
        for share in (0.0, *SHARES):
            scores = [1.0, *clean[1:]] if hacked < share else clean
            for rule, of in RULES.items():
                sums[rule, share] += abs(min(1.0, max(0.0, of(scores, 0.2, 1.0))) - truth)
    return {key: total / samples for key, total in sums.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--noise", type=float, default=0.1, help="standard deviation of each model's error")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    runs = [errors(args.samples, args.noise, seed) for seed in range(args.seeds)]
    out: dict[str, dict[str, list[float]]] = {}
    print(f"{'rule':8} {'clean':>8}  " + "  ".join(f"{f'{share:.0%} hacked':>22}" for share in SHARES))
    for rule in RULES:
        cells, out[rule] = [], {}
        for share in SHARES:
            worse = [100 * (run[rule, share] / run[rule, 0.0] - 1) for run in runs]
            mean, half = statistics.fmean(worse), 1.96 * statistics.stdev(worse) / math.sqrt(len(worse))
            out[rule][str(share)] = [mean, mean - half, mean + half]
            cells.append(f"{mean:+7.1f} % [{mean - half:+.1f}, {mean + half:+.1f}]".rjust(22))
        print(f"{rule:8} {statistics.fmean(run[rule, 0.0] for run in runs):8.4f}  " + "  ".join(cells))
    if args.json:
        args.json.write_text(json.dumps(out, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
