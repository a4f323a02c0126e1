"""Our own cases by kind: every answer that is equal, every one that is not, and every gold against itself.

`golden.jsonl` holds a gold with equal and unequal answers by line, `texts.jsonl` raw completions; both were written
for this project.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jurat.verifiers.math import compare, judge_text


def load(name: str) -> list[dict]:
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


GOLDEN = load("golden.jsonl")


@pytest.mark.parametrize("kind", dict.fromkeys(row["kind"] for row in GOLDEN))
def test_kind(kind: str) -> None:
    wrong = []
    for row in GOLDEN:
        if row["kind"] != kind:
            continue
        gold = row["gold"]
        for answer, expected in [*((a, True) for a in (gold, *row["equal"])), *((a, False) for a in row["unequal"])]:
            verdict = compare(gold, answer)
            if (verdict.status == "correct") is not expected:
                wrong.append((gold, answer, expected, verdict.status, verdict.reason, verdict.conversions))
    assert not wrong


def test_texts() -> None:
    wrong = []
    for row in load("texts.jsonl"):
        verdict = judge_text(row["gold"], row["text"])
        if (verdict.status == "correct") is not row["correct"]:
            wrong.append((row, verdict.status, verdict.reason, verdict.extracted))
    assert not wrong
