"""What an adversary found: ways to be left out of training instead of being wrong, right programs that were wrong, and data
at fault that nobody was told of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jurat.platform.types import Verdict

Judge = Callable[..., Verdict]


def check(body: str, entry: str = "f") -> dict[str, Any]:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return {"mode": "check", "entry": entry, "test": f"def check(candidate):\n{lines}"}


def unit(body: str, head: str = "") -> dict[str, Any]:
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    return {
        "mode": "unittest",
        "test": f"{head}import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n{lines}",
    }


SQUARE_ROOT = "import json, sys\nd = json.load(sys.stdin)\nprint(int(d['output']) ** 2 == int(d['input']))"


@pytest.mark.parametrize(
    ("program", "cases"),
    [
        ("def f(): return 'no_such_name'", check("assert eval(candidate()) == 5")),
        ("def f(): return 'import no_such_module'", check("exec(candidate())\nassert candidate()")),
        ("def f(): return []", check("for x in candidate(): best = x\nassert all(best >= y for y in (1, 2))")),
        ("def f(n): return None", unit("r = f(3)\nif r is None: self.skipTest('nothing')\nself.assertEqual(r, 3)")),
        ("print('x')", {"mode": "stdio", "tests": [{"stdin": "4"}], "checker": SQUARE_ROOT}),
        ("print('x')", {"mode": "stdio", "tests": [{"stdin": "4", "stdout": "3"}], "checker": SQUARE_ROOT}),
    ],
    ids=["eval", "exec", "unbound", "skip", "checker alone", "checker that refuses what is expected"],
)
def test_no_bad_answer_is_left_out(judge: Judge, program: str, cases: dict[str, Any]) -> None:
    found = judge(program, cases)
    assert (found.status, found.score) == ("incorrect", 0.0), found.why


@pytest.mark.parametrize(
    ("program", "cases"),
    [
        ("def f(n): raise ValueError", unit("try:\n    f(3)\n    self.fail('no error')\nexcept ValueError: pass")),
        ("def f(n): raise ValueError", check("try:\n    candidate(3)\n    assert False\nexcept ValueError: pass")),
        ("def f(n): return n", unit("self.assertEqual(R, 3)", "R = f(3)\n")),
    ],
    ids=["fail not reached", "assert False not reached", "called by the module"],
)
def test_right_programs_pass(judge: Judge, program: str, cases: dict[str, Any]) -> None:
    assert judge(program, cases).status == "correct"
    assert judge("def f(n): return 4", cases).score == 0.0


@pytest.mark.parametrize("argument", ["P()", "P", "later"])
@pytest.mark.parametrize(
    "way", ["assert candidate({}) == 3", "try:\n    candidate({})\n    assert False\nexcept ValueError: pass"]
)
def test_what_cannot_be_sent_is_the_fault_of_the_data(judge: Judge, argument: str, way: str) -> None:
    """Also where the test would take the refusal for an exception of the program."""
    found = judge("def f(x): return 3", check("class P: pass\nlater = lambda: 3\n" + way.format(argument)))
    assert (found.status, found.score) == ("bad_gold", None)
    assert "the tests call it with what cannot be sent: a value of type" in found.why
