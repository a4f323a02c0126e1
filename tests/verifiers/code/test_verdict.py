"""Statuses, faults and scores of programs that ran for real."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from jurat.platform.types import Problem, Verdict, VerifierSpec
from jurat.verifiers.code import verifier
from jurat.verifiers.code.cases import parse
from jurat.verifiers.code.results import Result, escaped
from jurat.verifiers.code.verifier import MAX_EVIDENCE, Options, judge_program, verdict_of
from jurat.verifiers.programs import code
from jurat.verifiers.verdicts import MAX_EVIDENCE as CAP
from jurat.verifiers.verdicts import as_verdict, problem_with

Judge = Callable[..., Verdict]
CALLED = ("func", "assert", "check", "unittest")
ADD = "def add(a, b):\n    return a + b"
GOOD = {"stdio": "print(sum(map(int, input().split())))", **dict.fromkeys(CALLED, ADD)}
TWO = parse(
    '{"mode": "func", "entry": "add", "tests": [{"args": [1, 2], "expected": 3}, {"args": [3, 4], "expected": 7}]}'
)


@pytest.mark.parametrize("mode", GOOD)
def test_a_right_program_passes(judge: Judge, mode: str) -> None:
    found = judge(GOOD[mode], mode)
    assert (found.status, found.score, found.fault, found.isolation) == ("correct", 1.0, None, "sandbox")
    assert found.evidence["passed"] == found.evidence["cases"] == len(found.evidence["marks"])
    assert set(found.evidence["isolation"]) == {"level", "fingerprint"}
    counted = mode == "stdio" or found.evidence["isolation"]["level"] != "ns"  # what is called is killed in the end
    assert found.evidence["memory_mb"] > 1 if counted else "memory_mb" not in found.evidence
    assert problem_with(found) == ""


@pytest.mark.parametrize(
    ("program", "status", "fault", "said"),
    [
        ("print(4)", "incorrect", None, "case 1 of 2: token 1: expected '3', got '4'"),
        ("print(3); raise SystemExit(2)", "incorrect", None, "case 1 of 2: exception: exit status 2"),
        ("print(3); int('x')", "incorrect", None, "case 1 of 2: exception: ValueError"),
        ("print(", "incorrect", None, "case 1 of 2: compile_error: SyntaxError"),
        ("x = '\0'", "incorrect", None, "case 1 of 2: compile_error: SyntaxError"),
        ("", "incorrect", None, "case 1 of 2: 1 token expected, got 0: '3' is missing"),
        ("while True: pass", "limit", "policy", "case 1 of 2: timeout: 0.5 s"),
        ("bytearray(1 << 30)", "limit", "policy", "case 1 of 2: memory_limit: MemoryError"),
        ("while True: print('3' * 1000)", "limit", "policy", "case 1 of 2: output_limit: stdout"),
        ("import ctypes; ctypes.string_at(0)", "crash", "policy", "case 1 of 2: crash (signal 11)"),
        ("import ctypes\nctypes.CDLL(None).ptrace(0, 0, 0, 0)", "forbidden", "policy", "case 1 of 2: forbidden"),
    ],
)  # fmt: skip
def test_endings(judge: Judge, program: str, status: str, fault: str | None, said: str) -> None:
    found = judge(program, "stdio", seconds=0.5 if "timeout" in said else 5.0, memory_mb=256)
    assert (found.status, found.score, found.fault) == (status, 0.0, fault)
    assert found.why.startswith(said)
    assert ("limit" in found.flags) == (status == "limit")


@pytest.mark.parametrize("mode", ["stdio", "func"])
@pytest.mark.parametrize("level", ["ns", "seccomp"])
def test_of_a_run_that_was_killed_no_processor_time_is_told_that_nobody_counted(
    judge: Judge, level: str, mode: str
) -> None:
    found = judge("def add(a, b):\n    while True: pass\nadd(1, 2)", mode, seconds=0.5, level=level)
    case = found.evidence["failed"][0]
    assert case["ending"] == "timeout" and case["seconds"] >= 0.5
    assert ("cpu_seconds" in case) == ("memory_mb" in case) == (level == "seccomp")
    assert level == "ns" or case["cpu_seconds"] > 0.05


@pytest.mark.parametrize("mode", CALLED)
@pytest.mark.parametrize(
    ("program", "status", "said"),
    [
        ("def add(a, b): return 0", "incorrect", "case 1 of "),
        ("def add(a, b): raise KeyError('gone')", "incorrect", "KeyError"),
        ("def add(a, b): return object()", "incorrect", "no plain data"),
        ("def sub(a, b): return a - b", "incorrect", "does not define add"),
        ("def add(a, b):\n    while True: pass", "limit", "timeout"),
        ("import os\ndef add(a, b): os._exit(0)", "incorrect", "it left before the case was decided"),
        ("def add(a, b): raise SystemExit", "incorrect", "it left before the case was decided"),
        ("def add(a, b):\n    import ctypes; ctypes.string_at(0)", "crash", "crash"),
        ("def add(a, b): return [0] * 10**6", "incorrect", ""),
        ("raise ValueError('x')", "incorrect", "exception: ValueError"),
        ("def", "incorrect", "compile_error"),
    ],
)  # fmt: skip
def test_endings_of_calls(judge: Judge, mode: str, program: str, status: str, said: str) -> None:
    found = judge(program, mode, seconds=0.5 if "timeout" in said else 5.0)
    assert (found.status, found.score) == (status, 0.0)
    assert said in found.why


def test_a_share_of_the_cases(judge: Judge) -> None:
    cases = {"mode": "func", "entry": "f", "tests": [{"args": [n], "expected": n % 3} for n in range(4)]}
    found = judge("def f(n): return n", cases, score="share")
    assert (found.status, found.score, found.evidence["marks"]) == ("partial", 0.75, "...F")
    assert found.why == "3 of 4 cases pass; case 4 of 4: f(3): expected 0, got 3"
    whole = judge("def f(n): return n", cases)
    assert (whole.status, whole.score, whole.evidence["marks"]) == ("incorrect", 0.0, "...F")


@pytest.mark.parametrize("mode", ["func", "assert"])
def test_where_a_program_dies_the_next_case_gets_a_new_one(judge: Judge, mode: str) -> None:
    program = "import os\ndef f(n):\n    if n == 1: os._exit(3)\n    return n"
    tests: Any = [{"args": [n], "expected": n} for n in range(4)]
    if mode == "assert":
        tests = [f"assert f({n}) + 0 == {n}" for n in range(4)]
    found = judge(program, {"mode": mode, "entry": "f", "tests": tests}, score="share")
    assert (found.score, found.evidence["marks"]) == (0.75, ".F..")


def test_time_outs_are_flagged_even_where_other_cases_pass(judge: Judge) -> None:
    """So that the cache of verdicts leaves them out: another time the program may be fast enough."""
    cases = {"mode": "func", "entry": "f", "tests": [{"args": [n], "expected": n} for n in range(2)]}
    found = judge("def f(n):\n    while n: pass\n    return n", cases, score="share", seconds=0.5)
    assert (found.score, found.evidence["marks"], found.flags) == (0.5, ".L", ("limit",))


def test_the_time_of_all_cases_together_is_limited(judge: Judge) -> None:
    cases = {"mode": "stdio", "tests": [{"stdin": "", "stdout": "x"}] * 50}
    found = judge("while True: pass", cases, score="share", seconds=0.4, total_seconds=0.8)
    assert (found.status, found.fault, len(found.evidence["marks"])) == ("limit", "policy", 50)
    assert found.seconds < 10


def test_a_checker_decides(judge: Judge) -> None:
    checker = "import json, sys\nn = int(json.load(sys.stdin)['output'])\nprint('false' if n % 2 else 'true')\nprint('it is', n)"
    cases = {"mode": "stdio", "tests": [{"stdin": "", "stdout": "2"}], "checker": checker}
    assert judge("print(8)", cases).status == "correct"
    assert judge("print(7)", cases).why == "case 1 of 1: it is 7"
    # What breaks the checker is wrong, as the checker works on the expected output ...
    broken = judge("print('x')", cases)
    assert broken.status == "incorrect" and "the checker fails on it" in broken.why
    # ... and where it does not, the checker is: nothing is learnt.
    assert judge("print('x')", {**cases, "tests": [{"stdin": "", "stdout": "y"}]}).status == "error"
    silent = judge("print(8)", {**cases, "checker": "print()"})
    assert (silent.status, silent.score, silent.fault) == ("error", None, "verifier")


def test_streams_are_kept_escaped_and_cut(judge: Judge) -> None:
    program = r"import sys; sys.stdout.buffer.write(b'\x1b[2J\xff\n' * 10000); sys.stderr.write('\x1b]0;owned\x07' + 'e' * 5000)"
    found = judge(program, "stdio", score="share")
    assert len(json.dumps(found.evidence)) <= MAX_EVIDENCE < CAP
    case = found.evidence["failed"][0]
    assert case["stdout"].startswith("\\x1b[2J\\xff\n") and "bytes left out" in case["stdout"]
    assert case["stderr"].startswith("\\x1b]0;owned\\x07")
    assert as_verdict("code", "outcome", found).evidence == found.evidence


def test_escaped_text_is_printable() -> None:
    assert escaped(b"a\x00\xff\r\n\xe2\x80\xae", 100) == "a\\x00\\xff\\x0d\n\\u{202e}"
    assert escaped("\ud800", 100) == "\\ud800"
    assert escaped(b"x" * 3000, 100) == f"{'x' * 50}\n\u2026 2900 bytes left out \u2026\n{'x' * 50}"


# ---- whose fault -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("def check(c):\n    for x in []:\n        assert c(x, x)", "the test never calls the program"),
        ("def check(c):\n    assert undefined(c(1, 2))", "it reads undefined, which neither"),
        ("import no_such_module\ndef check(c):\n    assert c(1, 2) > 0", "the test code does not run"),
        ("def check(c):\n    import no_such_module\n    assert c(1, 2) > 0", "ModuleNotFoundError"),
    ],
)  # fmt: skip
def test_tests_that_are_at_fault_judge_nobody(judge: Judge, test: str, said: str) -> None:
    found = judge(ADD, {"mode": "check", "entry": "add", "test": test})
    assert (found.status, found.score, found.fault) == ("bad_gold", None, "gold")
    assert said in found.why


def test_a_program_is_no_way_around_the_tests(judge: Judge) -> None:
    """What it returns may make the tests assert nothing, or break them: not passed, and judged all the same."""
    loop = {"mode": "check", "entry": "f", "test": "def check(c):\n    for x in c(3):\n        assert x > 0"}
    found = judge("def f(n): return []", loop)
    assert (found.status, found.score, found.flags) == ("incorrect", 0.0, ("nothing_asserted",))
    sorting = {"mode": "check", "entry": "f", "test": "def check(c):\n    assert sorted(c(3)) == [1, 2, 3]"}
    found = judge("def f(n): return [1, 'x']", sorting)
    assert (found.status, found.score) == ("incorrect", 0.0) and "TypeError" in found.why


def test_bad_cases_are_told_before_anything_else(judge: Judge, ways: dict[str, Any]) -> None:
    problem = Problem(
        id="p", messages=(), reference='{"mode": "stdio", "tests": []}', verifier=VerifierSpec(name="code")
    )
    assert code(problem, "no program").status == "bad_gold"
    assert judge("print(1)", {**ways["stdio"], "needs": "numpy"}).why.startswith(
        "the cases need numpy: name it in preload"
    )


def test_fewer_results_than_cases_are_an_error() -> None:
    passed = Result(status="correct")
    for score in ("all", "share"):
        assert verdict_of([passed], TWO, score).status == "error"
        assert verdict_of([], TWO, score).status == "error"
        assert verdict_of([passed, passed], TWO, score).status == "correct"


def test_trouble_of_the_sandbox_is_no_answer_of_the_policy() -> None:
    passed, lost, wrong = Result(status="correct"), Result(status="infra"), Result(status="incorrect")
    for score in ("all", "share"):
        found = verdict_of([passed, lost], TWO, score)
        assert (found.status, found.score, found.fault) == ("infra", None, "infra")
    assert verdict_of([wrong], TWO, "all").status == "incorrect"  # decided before anything was lost
    assert verdict_of([wrong, lost], TWO, "share").score is None


SLOW = {
    "func": ("import time\ndef f():\n    time.sleep(0.6)\n    return 1", {"entry": "f", "tests": [{"args": [], "expected": 1}]}),
    "check": ("import time\ndef f():\n    time.sleep(0.6)\n    return 1", {"entry": "f", "test": "def check(c):\n    assert c() + 0 == 1"}),
    "stdio": ("import time\ntime.sleep(0.6)\nprint(1)", {"tests": [{"stdin": "", "stdout": "1"}]}),
}  # fmt: skip


@pytest.mark.parametrize("mode", SLOW)
def test_a_run_that_the_machine_lost_is_run_again(judge: Judge, mode: str) -> None:
    """The process that runs programs is killed under a run, as a system out of memory would; by its number."""
    program, cases = SLOW[mode]
    judge(program, {"mode": mode, **cases})  # so that there is one
    killed = threading.Timer(0.2, kill_zygotes)
    killed.start()
    found = judge(program, {"mode": mode, **cases})
    killed.join()
    assert (found.status, found.score) == ("correct", 1.0), found.why


def test_a_run_that_is_lost_for_good_has_no_score(judge: Judge) -> None:
    program, cases = SLOW["func"]
    killed = threading.Timer(0.2, kill_zygotes)
    killed.start()
    found = judge(program, {"mode": "func", **cases}, retries=0)
    killed.join()
    assert (found.status, found.score, found.fault) == ("infra", None, "infra")


def kill_zygotes() -> None:
    for sandbox in verifier._session()._sandboxes.values():
        for slot in sandbox._all:
            if slot.zygote is not None:
                os.kill(slot.zygote.pid, signal.SIGKILL)


# ---- the completion ----------------------------------------------------------------------------------------------


def asked(completion: str, cases: dict[str, Any], **args: Any) -> Any:
    problem = Problem(id="p", messages=(), reference=json.dumps(cases), verifier=VerifierSpec(name="code"))
    return code(problem, completion, **args)


def test_from_the_completion_to_the_verdict(judge: Judge, ways: dict[str, Any]) -> None:
    func = ways["func"]
    found = asked(f"Adding:\n```\n{GOOD['func']}\n```", func)
    assert (found.status, found.flags, found.evidence["extracted"]) == (
        "correct",
        ("untagged_block",),
        "untagged_block",
    )
    assert found.read == ADD + "\n"
    assert asked("no code", func).status == "no_answer"
    assert asked("```java\nx\n```", func).status == "unparseable"
    assert asked("```python\ndef add(a, b):\n    return a + b", func, finish="length").score == 0.0
    assert asked(ADD, func, unfenced=True).status == "correct"


def test_code_that_program_and_tests_begin_with(judge: Judge) -> None:
    """HumanEval's way: the head of the function is given, the completion may be its body alone, or the whole again."""
    head = "def twice(x):\n    return 2 * x\n\n\ndef quad(x):\n    '''Four times x.'''\n"
    cases = {
        "mode": "check",
        "entry": "quad",
        "prompt": head,
        "test": "def check(c):\n    assert c(3) == twice(twice(3))",
    }
    assert asked("    return twice(twice(x))\n", cases, unfenced=True).status == "correct"
    assert asked("```python\ndef quad(x):\n    return 4 * x\n```", cases).status == "correct"
    assert asked("```python\npass\n```", cases).status == "incorrect"


# ---- split ------------------------------------------------------------------------------------------------------


def test_changes_in_place_and_exceptions_cross_over(judge: Judge) -> None:
    cases = {
        "mode": "check",
        "entry": "f",
        "test": "def check(c):\n    x = [3, 1, 2]\n    assert c(x) is None\n    assert x == [1, 2, 3]\n    try:\n        c(None)\n"
        "    except TypeError:\n        return\n    raise AssertionError('no TypeError')\n",
    }
    assert judge("def f(x): x.sort()", cases | {"test": cases["test"].replace("c(None)", "c(5)")}).status == "incorrect"
    found = judge("def f(x):\n    if x is None: raise TypeError('x')\n    x.sort()", cases)
    assert found.status == "correct", found.why
    assert judge("def f(x):\n    x.sort() if x else None", cases).why.endswith("assert failed: no TypeError")


def test_every_method_of_a_test_case_is_a_case(judge: Judge) -> None:
    cases = {
        "mode": "unittest",
        "test": "import unittest\nclass T(unittest.TestCase):\n    def setUp(self): self.n = 2\n"
        "    def test_a(self): self.assertEqual(f(self.n), 4)\n"
        "    def test_b(self):\n        with self.assertRaises(ValueError): f(-1)\n    def test_c(self): self.assertEqual(f(3), 9)\n"
        "if __name__ == '__main__':\n    unittest.main()\n",
    }
    found = judge("def f(n):\n    if n < 0: raise ValueError(n)\n    return n * 2", cases, score="share")
    assert (found.evidence["marks"], round(found.score or 0, 3)) == ("..F", 0.667)
    skipped = cases["test"].replace("    def test_a", "    @unittest.skip('later')\n    def test_a")
    assert judge("def f(n): return n", {**cases, "test": skipped}).status == "bad_gold"


def test_options_are_what_the_verifier_takes() -> None:
    import dataclasses
    import inspect

    given = {name for name, p in inspect.signature(code).parameters.items() if p.kind is p.KEYWORD_ONLY}
    assert given - {"finish", "unfenced"} == {field.name for field in dataclasses.fields(Options)}
    made = Options()
    taken = {name: p.default for name, p in inspect.signature(code).parameters.items()}
    assert all(taken[field.name] == getattr(made, field.name) for field in dataclasses.fields(Options))


def test_unknown_levels_and_rlimits_are_refused() -> None:
    from jurat.verifiers.sandbox import SandboxUnavailable

    for level in ("rlimits", "nonsense"):
        with pytest.raises(SandboxUnavailable):
            judge_program("print(1)", '{"mode": "stdio", "tests": [{"stdout": "1"}]}', Options(level=level))
