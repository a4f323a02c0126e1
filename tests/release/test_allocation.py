"""The commands and rules that docs/results.md prints for ``benchmarks/allocation.py`` are ones that it takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benches import benchmark

pytest.importorskip("torch")


def test_commands_and_rules_as_printed(root: Path) -> None:
    bench = benchmark("allocation")
    page = (root / "docs" / "results.md").read_text(encoding="utf-8")
    printed = re.findall(r"`python benchmarks/allocation\.py ([^`]*)`", page)
    assert {bench.arguments(words.split()).part for words in printed} == {"variance", "curves"}
    assert {bench.arguments(words.split()).out for words in printed} == {Path(".jurat/allocation")}
    section = page.partition("## Sample counts per prompt")[2].partition("\n## ")[0]
    rows = [
        line.split("|")[1].partition(", the bound")[0].strip() for line in section.splitlines() if line.startswith("| ")
    ]
    assert set(rows) - {"rule"} == {*bench.RULES, *bench.PLUGGED}
