"""The shared case files: accuracy and false positives by file, hostile inputs, and every gold of the shared data
against itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from jurat.verifiers.audit import part_of
from jurat.verifiers.math import MathVerdict, compare, judge_text


def rows(cases: Path, name: str) -> list[dict]:
    path = cases / "math" / f"{name}.jsonl"
    if not path.is_file():
        pytest.skip(f"no case file {path} (JURAT_CASES)")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def judged(row: dict) -> MathVerdict:
    text = row.get("pred") or "".join(piece * count for piece, count in row.get("pred_parts", []))
    if row.get("form") == "text":
        return judge_text(row["gold"], text, gold_is_text=row.get("gold_form") != "answer")
    return compare(row["gold"], text)


def misses(found: Iterator[dict] | list[dict]) -> tuple[list[str], list[str]]:
    """Ids of false positives and of false negatives."""
    positives, negatives = [], []
    for row in found:
        correct = judged(row).status == "correct"
        if correct != row["expected"]:
            (positives if correct else negatives).append(row["id"])
    return positives, negatives


@pytest.mark.parametrize(
    ("name", "accuracy"),
    [("designed", 0.995), ("public_bugs", 0.98), ("mathverify_suite", 0.995), ("real_outputs", 0.995)],
)
def test_accuracy(cases: Path, name: str, accuracy: float) -> None:
    core = [row for row in rows(cases, name) if part_of(row) == "core"]
    positives, negatives = misses(core)
    assert len(positives) <= 0.005 * len(core), positives
    assert 1 - (len(positives) + len(negatives)) / len(core) >= accuracy, (positives, negatives)


def test_hacks_and_probes_give_no_false_positive(cases: Path) -> None:
    found = [row for row in rows(cases, "designed") if row["category"] in ("hack", "probe") and not row["policy"]]
    assert misses(found)[0] == []


def test_hand_adjudicated(cases: Path) -> None:
    found = [row for row in rows(cases, "real_outputs") if "hand" in row["label_source"] and not row["policy"]]
    positives, negatives = misses(found)
    assert positives == []
    assert len(negatives) <= 0.005 * len(found)


def test_hostile(cases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for row in rows(cases, "hostile"):
        verdict = judged(row)
        if row["expected"] is not None:
            assert (verdict.status == "correct") == row["expected"], (row["id"], verdict)
        assert verdict.status != "bad_gold" or row["gold"] in ("nan", "inf", ""), (row["id"], verdict)
    assert list(tmp_path.iterdir()) == []
    assert compare("\\frac12", "0.5").status == "correct"


def test_every_gold_equals_itself(cases: Path) -> None:
    folder = cases.parent / "data"
    if not folder.is_dir():
        pytest.skip(f"no data at {folder} (../shared)")
    wrong = []
    for path in sorted(folder.glob("*/*.jsonl")):
        for line in path.read_text(encoding="utf-8").strip().split("\n"):
            gold = str(json.loads(line).get("answer", ""))
            if gold and compare(gold, gold).status != "correct":
                wrong.append((path.parent.name, gold))
    assert not wrong
