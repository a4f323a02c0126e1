"""Judging programs for real, in the strongest sandbox there is; where there is none, these tests fail and say why."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from jurat.platform.types import Verdict
from jurat.verifiers.code.verifier import Options, judge_program
from jurat.verifiers.sandbox.levels import choose

SUMS = {"mode": "stdio", "tests": [{"stdin": "1 2\n", "stdout": "3\n"}, {"stdin": "10 -4\n", "stdout": "6\n"}]}
ADD = {"mode": "func", "entry": "add", "tests": [{"args": [1, 2], "expected": 3}, {"args": [10, -4], "expected": 6}]}
ASSERTS = {"mode": "assert", "tests": ["assert add(1, 2) == 3", "assert add(10, -4) in (6,)"]}
CHECK = {
    "mode": "check",
    "entry": "add",
    "test": "def check(candidate):\n    for a, b in ((1, 2), (10, -4)):\n        assert candidate(a, b) == a + b\n",
}
UNIT = {
    "mode": "unittest",
    "test": "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(add(1, 2), 3)\n"
    "    def test_b(self):\n        self.assertEqual(add(10, -4), 6)\n",
}
WAYS = {"stdio": SUMS, "func": ADD, "assert": ASSERTS, "check": CHECK, "unittest": UNIT}
"""Ways to ask for the sum of two numbers, the last four of them as a function ``add``."""

Judge = Callable[..., Verdict]


@pytest.fixture(scope="session")
def judge() -> Judge:
    """``judge(program, cases, **options)``, cases given or named."""
    choose("auto", strict=True)

    def judged(program: str, cases: dict[str, Any] | str, **options: Any) -> Verdict:
        return judge_program(
            program,
            json.dumps(WAYS[cases] if isinstance(cases, str) else cases),
            Options(**{"seconds": 5.0, "retries": 1, **options}),
        )

    return judged


@pytest.fixture(scope="session")
def ways() -> dict[str, dict[str, Any]]:
    """Cases by name, as ``judge`` knows them."""
    return WAYS
