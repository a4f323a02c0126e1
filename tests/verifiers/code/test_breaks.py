"""What an adversary found: ways to be left out of training instead of being wrong, right programs that were wrong, and data
at fault that nobody was told of."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from jurat.platform.types import Problem, Verdict, VerifierSpec
from jurat.verifiers.code.extract import extract
from jurat.verifiers.code.verifier import Options, judge_completion

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
        ("print('x')", {"mode": "stdio", "tests": [{"stdin": "4", "stdout": "2"}], "checker": SQUARE_ROOT}),
    ],
    ids=["eval", "exec", "unbound", "skip", "checker alone", "checker"],
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
        ("def f(n): n.sort()", check("n = [2, 1]\ncandidate(n=n)\nassert n == [1, 2]")),
    ],
    ids=["fail not reached", "assert False not reached", "called by the module", "changed by name"],
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


HEAD = "def f(n):\n"
DOCUMENTED = 'import math\n\n\ndef f(n):\n    """Gives it back."""\n'
WHOLE = "def f(n):\n    return n\n"


@pytest.mark.parametrize(
    ("prompt", "program"),
    [
        (DOCUMENTED, "from __future__ import annotations\nfrom __future__ import division\n" + WHOLE),
        (HEAD, WHOLE),
        (HEAD, "    return n\n"),
        (HEAD, "# a comment\n\n    return n\n"),
        ("class Solution:\n    def f(\n        self,\n        n: int) -> int:\n", "        return n\n"),
        ("class Solution:\n    def f(\n        self,\n        n: int) -> int:\n", "class Solution:\n    def f(self, n): return n"),
        ("", WHOLE + "if __name__ == '__main__':\n    print(f(int(input())))\n"),
        ("", WHOLE + "if __name__ == '__main__':\n    import sys, unittest\n    unittest.main()\n    sys.exit(0)\n"),
        ("", "import pickle, dataclasses\n@dataclasses.dataclass\nclass P: x: int\n"
             "def f(n): return pickle.loads(pickle.dumps(P(n))).x\n"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mode", ["func", "check"])
def test_whole_programs_and_bodies(judge: Judge, prompt: str, program: str, mode: str) -> None:
    entry = "Solution.f" if "Solution" in prompt else "f"
    cases = {**check("for n in (1, 2): assert candidate(n) == n", entry), "prompt": prompt}
    if mode == "func":
        cases = {"mode": "func", "entry": entry, "tests": [{"args": [1], "expected": 1}], "prompt": prompt}
    found = judge(program, cases)
    assert found.status == "correct", found.why


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        ("```python\nprint(1)\n```\n```\n", "print(1)\n"),
        ("```python\nprint(1)\n```\n```\nThat is all.", "print(1)\n"),
        ("```\nprint(1)\n```\n```", "print(1)\n"),
        ("1. ```python\n   if 1:\n       print(1)\n   ```\n", "if 1:\n    print(1)\n"),
        ("- ```\n  print(1)\n  ```\n", "print(1)\n"),
        ("10. ~~~py\n\n    print(1)\n    ~~~\n", "\nprint(1)\n"),
        ("* ```python\nif 1:\n  print(1)\n```\n", "if 1:\n  print(1)\n"),
        ("<answer>```python\nprint(1)\n```</answer>", "print(1)\n"),
        ("```python\nprint(1)\n```<|im_end|>", "print(1)\n"),
        ("**```python\nprint(1)\n```**", "print(1)\n"),
    ],
)
def test_fences_as_models_write_them(completion: str, program: str) -> None:
    assert extract(completion).program == program


def test_a_fence_that_was_cut_off_is_no_slip() -> None:
    assert extract("```python\nprint(1)\n```\n```\npri", finish="length").status == "unparseable"
    assert extract("```python\nprint(1)\n```\n```", finish="length").program is None


def test_tests_that_only_look_odd_are_taken(judge: Judge) -> None:
    """A function by another name, handed on, in a list; contradictions that are none; an entry as others write it; a
    method; a line that runs the tests."""
    program = "def f(x): return x\nclass Solution:\n    def f(self, x): return x"
    for body in (
        "x = candidate([2, 1])\nx.sort()\nassert x == [1, 2]",
        "assert candidate('A').lower() == 'a'",
        "g = candidate\nassert g(2) == 2",
        "assert list(map(candidate, [2])) == [2]",
        "for g in [candidate]: assert g(2) == 2",
    ):
        assert judge(program, check(body)).status == "correct"
    assert judge(program, {"mode": "assert", "tests": ["assert f(1) == 1", "assert f(1) == True"]}).status == "correct"
    method = check("assert candidate(1) == 1", "Solution.f")
    assert judge(program, {**method, "test": method["test"] + "check(Solution().f)\n"}).status == "correct"
    assert (
        judge(program, {"mode": "assert", "entry": "Solution.f", "tests": ["assert candidate(1) == 1"]}).status
        == "correct"
    )
    tests = [{"args": [1], "expected": [1.0, 2]}, {"args": [1], "expected": {"$tuple": [1, 2]}}]
    assert judge("def f(x): return 1, 2", {"mode": "func", "entry": "f", "tests": tests}).status == "correct"
    assert (
        judge(program, {"mode": "func", "entry": "Solution().f", "tests": [{"args": [1], "expected": 1}]}).status
        == "correct"
    )


def test_expected_output_over_the_limit_is_told(judge: Judge) -> None:
    cases = {"mode": "stdio", "tests": [{"stdin": "", "stdout": "x" * 3000}]}
    found = judge("print('x' * 3000)", cases, output_kb=2)
    assert (found.status, found.score) == ("error", None)
    assert found.why == "the cases expect 3000 bytes of output, over 2 KiB: raise output_kb"
    assert judge("print('x' * 3000)", cases, output_kb=3).status == "correct"


@pytest.mark.parametrize(
    ("stdout", "checker", "status", "said"),
    [
        ("3", SQUARE_ROOT, "bad_gold", "test 1: the checker refuses the expected output"),
        ("two", SQUARE_ROOT, "error", "test 1: the checker ended with exception"),
        ("2", "print()", "error", "test 1: the checker printed '', expected true or false"),
        ("2", "print('true')", "bad_gold", "the checker takes an empty output for right"),
    ],
)
@pytest.mark.parametrize("completion", ["", "```python\nprint(2)\n```", "```python\nprint('x')\n```"])
def test_a_checker_that_cannot_judge_judges_nobody(
    stdout: str, checker: str, status: str, said: str, completion: str
) -> None:
    """Whatever the answer; without one too, which is how rows without a solution are looked at before a run."""
    reference = json.dumps({"mode": "stdio", "tests": [{"stdin": "4", "stdout": stdout}], "checker": checker})
    problem = Problem(id="p", messages=(), reference=reference, verifier=VerifierSpec(name="code"))
    found = judge_completion(problem, completion, Options(), finish="stop", unfenced=False)
    assert (found.status, found.score) == (status, None) and said in found.why
