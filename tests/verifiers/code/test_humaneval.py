"""HumanEval: each canonical solution passes, and none does with its body replaced by ``pass``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jurat.datasets.programs import cases_text
from jurat.platform.types import Verdict
from jurat.verifiers.code.cases import parse

Judge = Callable[..., Verdict]
SOME = 30


@pytest.fixture(scope="module")
def rows(cases: Path) -> list[dict[str, Any]]:
    file = cases.parent / "data" / "humaneval" / "test.jsonl"
    if not file.is_file():
        pytest.skip(f"no HumanEval at {file} (../shared)")
    return [json.loads(line) for line in file.read_text().splitlines()]


def judged(judge: Judge, rows: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    for row in rows:
        given = json.loads(cases_text(row["test"], row, "test"))
        solved, empty = judge(row["canonical_solution"], given), judge("    pass\n", given)
        yield row["task_id"], solved.status, empty.status


def test_some(judge: Judge, rows: list[dict[str, Any]]) -> None:
    """Those whose asserts are no plain calls among them."""
    split = [row for row in rows if parse(cases_text(row["test"], row, "test")).test is not None]
    assert len(split) == 22
    for task, solved, empty in judged(judge, [*split[:10], *rows[: SOME - 10]]):
        assert (task, solved, empty) == (task, "correct", "incorrect")


@pytest.mark.soak
def test_all(judge: Judge, rows: list[dict[str, Any]]) -> None:
    found = list(judged(judge, rows))
    assert len(found) == 164
    assert [one for one in found if one[1:] != ("correct", "incorrect")] == []
