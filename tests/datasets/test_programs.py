"""Code problems as data sets have them, in the form that verifier ``code`` reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jurat.datasets.check import as_completion
from jurat.datasets.load import load_problems
from jurat.datasets.programs import cases_text, solution_of
from jurat.platform.recipe import Fields, Prompt, Source
from jurat.platform.types import Problem

HUMAN = {
    "task_id": "X/0",
    "prompt": "def twice(x):\n    '''Twice x.'''\n",
    "entry_point": "twice",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
    "canonical_solution": "    return 2 * x\n",
}
BASIC = {
    "text": "Write a function to double a number.",
    "code": "def twice(x):\n    return 2 * x",
    "test_list": ["assert twice(2) == 4", "assert twice(0) == 0"],
    "test_setup_code": "import math",
}


def problem(tmp_path: Path, row: dict[str, Any], **fields: Any) -> Problem:
    (tmp_path / "x.jsonl").write_text(json.dumps(row) + "\n")
    source = Source(source=str(tmp_path / "x.jsonl"), verifier="code", fields=Fields(**fields))
    (made,) = load_problems(source, Prompt(), split="train").problems
    return made


def test_humaneval_as_it_is(tmp_path: Path) -> None:
    made = problem(tmp_path, HUMAN, question="prompt", answer="test")
    assert json.loads(made.reference) == {
        "mode": "check",
        "test": HUMAN["test"],
        "entry": "twice",
        "prompt": HUMAN["prompt"],
    }
    assert made.verifier.name == "code" and made.messages[0].content == HUMAN["prompt"]
    assert as_completion(made) == "```python\n    return 2 * x\n\n```"


def test_mbpp_as_it_is(tmp_path: Path) -> None:
    made = problem(tmp_path, BASIC, question="text", answer="test_list", solution="code")
    assert json.loads(made.reference) == {"mode": "assert", "tests": BASIC["test_list"], "prompt": "import math"}
    assert as_completion(made) == f"```python\n{BASIC['code']}\n```"


def test_our_own_form(tmp_path: Path) -> None:
    cases = {"mode": "stdio", "tests": [{"stdin": "1\n####\n", "stdout": "\\boxed{2}"}]}
    for given in (cases, json.dumps(cases)):
        made = problem(tmp_path, {"question": "Q", "answer": given})
        assert json.loads(made.reference) == cases  # no rule for gold answers reads inside of it
        assert as_completion(made) == ""


def test_cases_are_part_of_a_problem_s_identity(tmp_path: Path) -> None:
    first, second = (
        problem(
            tmp_path,
            {"question": "Q", "answer": {"mode": "func", "entry": "f", "tests": [{"args": [], "expected": n}]}},
        )
        for n in (1, 2)
    )
    assert first.id != second.id


@pytest.mark.parametrize(
    ("value", "said"),
    [("{broken", "begins like JSON and is none"), (3, "holds int, expected cases"), ([1], "holds list")],
)
def test_refused(value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        cases_text(value, {}, "answer")


def test_other_test_code() -> None:
    assert json.loads(cases_text("class T(TestCase): ...", {"entry_point": "f"}, "t")) == {
        "mode": "unittest", "test": "class T(TestCase): ...", "entry": "f",
    }  # fmt: skip
    assert json.loads(cases_text("assert f(1)", {}, "t")) == {"mode": "assert", "tests": ["assert f(1)"]}
    # A prompt that is no code is what was asked, not what the program begins with.
    assert "prompt" not in json.loads(cases_text("def check(c): ...", {"entry_point": "f", "prompt": "Write f."}, "t"))


def test_a_solution_that_is_fenced_already_is_left_alone() -> None:
    assert solution_of({"solution": "So:\n```python\nx\n```"}) == "So:\n```python\nx\n```"
    assert solution_of({}) == "" and solution_of({"solution": " "}) == ""
