"""``jurat sandbox run``: a program on its cases, from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

CASES = {"mode": "stdio", "tests": [{"stdin": "1 2\n", "stdout": "3\n"}, {"stdin": "5 6", "stdout": "11"}]}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A program that adds, one that writes escapes and a constant, and their cases."""
    texts = {
        "good.py": "print(sum(map(int, input().split())))\n",
        "bad.py": "import sys\nsys.stderr.write('\\x1b[2J')\nprint(3)\n",
        "cases.json": json.dumps(CASES),
        "empty.json": json.dumps({**CASES, "tests": []}),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return {name: str(tmp_path / name) for name in texts}


def test_a_right_program(jurat: Any, files: dict[str, str]) -> None:
    done = jurat("sandbox", "run", files["good.py"], "--cases", files["cases.json"], "--json")
    assert (done.code, done.json["status"], done.json["score"]) == (0, "correct", 1.0)
    assert done.json["evidence"]["isolation"]["level"] in ("ns", "seccomp")


def test_every_case_runs_and_what_it_wrote_is_shown_escaped(jurat: Any, files: dict[str, str]) -> None:
    done = jurat("sandbox", "run", files["bad.py"], "--cases", files["cases.json"])
    assert done.code == 0 and "\x1b" not in done.out
    assert "1 of 2 passed" in done.out and "case 2: token 1: expected '11', got '3'" in done.out
    assert "stderr: \\x1b[2J" in done.out


def test_the_score_is_the_verifier_s_own_unless_the_share_is_asked_for(jurat: Any, files: dict[str, str]) -> None:
    run = lambda *more: jurat("sandbox", "run", files["bad.py"], "--cases", files["cases.json"], *more, "--json").json
    assert (run()["status"], run()["score"]) == ("incorrect", 0.0)
    assert (run("--score", "share")["status"], run("--score", "share")["score"]) == ("partial", 0.5)


def test_a_level_that_keeps_nothing_apart_says_so(jurat: Any, files: dict[str, str]) -> None:
    run = lambda level: jurat("sandbox", "run", files["good.py"], "--cases", files["cases.json"], "--level", level)
    assert "nothing is kept apart at this level" in run("rlimits").err
    assert "nothing is kept apart" not in run("auto").err


def test_what_was_not_run_is_said(jurat: Any, files: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(
        json.dumps({"mode": "stdio", "tests": [CASES["tests"][1], *CASES["tests"][:1] * 3]})
    )
    done = jurat("sandbox", "run", files["bad.py"], "--cases", str(tmp_path / "c.json"))
    assert "0 of 4 passed; 3 not run after the first that fails" in done.out
    done = jurat("sandbox", "run", files["bad.py"], "--cases", str(tmp_path / "c.json"), "--score", "share")
    assert "3 of 4 passed" in done.out and "not run" not in done.out


@pytest.mark.parametrize(
    ("program", "cases", "more", "said"),
    [
        ("good.py", "empty.json", [], "tests is a list that is not empty"),
        ("good.py", "good.py", [], "not JSON"),
        ("none.py", "cases.json", [], "cannot read the program"),
        ("good.py", "cases.json", ["--level", "nss"], "no level 'nss'"),
        ("good.py", "cases.json", ["--score", "most"], "no score 'most'"),
    ],
)
def test_refused(
    jurat: Any, files: dict[str, str], tmp_path: Path, program: str, cases: str, more: list[str], said: str
) -> None:
    done = jurat("sandbox", "run", str(tmp_path / program), "--cases", files[cases], *more)
    assert done.code == 2 and said in done.err and "Traceback" not in done.err


def test_no_verdict_is_exit_code_1(jurat: Any, files: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps({**CASES, "checker": "print('perhaps')"}))
    done = jurat("sandbox", "run", files["good.py"], "--cases", str(tmp_path / "c.json"), "--json")
    assert (done.code, done.json["status"], done.json["score"]) == (1, "error", None)
