"""Without python-flint: the same verdicts on our own cases, fewer certificates, said once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

CODE = """
import json, sys, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from jurat.verifiers.math import compare
    verdicts = [compare(gold, answer) for gold, answer in json.load(sys.stdin)]
print(json.dumps([[v.status, v.reason, v.certified] for v in verdicts]))
print(json.dumps([str(w.message) for w in caught if "python-flint" in str(w.message)]))
"""
# Roots of polynomials and quadrature need FLINT: these are undecided or refused without it, never wrongly accepted.
NEEDS_FLINT = (
    "x^2",
    "\\int",
    "x=3",
    "-3<x<3",
    "(-3,3)",
    "|x|<3",
    "y=\\frac6x",
    "x=\\pm",
    "x=2,x=-2",
    "(1,2)",
    "(-\\infty,-2)\\cup(2,\\infty)",
    "xy=1",
    "x>0",
)


def ask(pairs: list[tuple[str, str]]) -> tuple[list[list], list[str]]:
    environment = {**os.environ, "JURAT_MATH_BACKEND": "python"}
    out = subprocess.run(
        [sys.executable, "-c", CODE],
        input=json.dumps(pairs),
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    ).stdout.splitlines()
    return json.loads(out[0]), json.loads(out[1])


def test_our_own_cases_without_flint() -> None:
    text = Path(__file__).with_name("golden.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.split("\n") if line]
    pairs = [(row["gold"], a, e) for row in rows for e, key in ((True, "equal"), (False, "unequal")) for a in row[key]]
    pairs = [pair for pair in pairs if pair[1].isprintable()]
    verdicts, warned = ask([(gold, answer) for gold, answer, _ in pairs])
    accepted = [p for p, v in zip(pairs, verdicts, strict=True) if v[0] == "correct" and not p[2]]
    missed = [p for p, v in zip(pairs, verdicts, strict=True) if v[0] != "correct" and p[2]]
    assert accepted == []
    assert [p for p in missed if not p[1].startswith(NEEDS_FLINT)] == []
    assert len(missed) < 0.01 * len(pairs)
    assert len(warned) == 1 and "pip install python-flint" in warned[0]


def test_numerical_verdicts_are_no_proofs_without_flint() -> None:
    verdicts, _ = ask([("e^{-50}", "e^{-60}"), ("\\sin x", "\\cos x"), ("\\frac12", "0.5")])
    assert [v[0] for v in verdicts] == ["incorrect", "incorrect", "correct"]
    assert [v[2] for v in verdicts] == [False, False, True]
