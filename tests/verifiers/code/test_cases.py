"""Cases at the door: what is one, what is refused and why, and which test code needs no second sandbox."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jurat.verifiers.code.asserts import Call
from jurat.verifiers.code.cases import CasesError, parse

KEYS = (
    "entry",
    "tests",
    "test",
    "prompt",
    "needs",
    "compare",
    "tol",
    "checker",
    "inputs",
    "args",
    "expected",
    "stdin",
    "stdout",
    "$int",
    "$set",
)


def made(**given: Any) -> str:
    return json.dumps(given)


def one(**given: Any) -> dict[str, Any]:
    return {"mode": "stdio", "tests": [{"stdin": "1", "stdout": "1"}], **given}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "its reference is empty"),
        ("[1]", "a JSON object with a mode, got list"),
        ("{", "the cases are not JSON"),
        ('{"mode": "stdio", "mode": "func"}', "key 'mode' is given twice"),
        ('{"mode": "func", "entry": "f", "tests": [{"args": [NaN], "expected": 1}]}', "NaN is no JSON number"),
        ('{"mode": "func", "entry": "f", "tests": [{"args": [%s], "expected": 1}]}' % ("9" * 5000), '{"$int": "0x..."}'),
        ({}, "mode is one of stdio, func, assert, check, unittest, got None"),
        ({"mode": "stido"}, "Did you mean 'stdio'?"),
        (one(tets=[]), "mode stdio has no key 'tets'. Did you mean 'tests'?"),
        (one(tests=[]), "tests is a list that is not empty, got []"),
        (one(tests=None), "tests is a list that is not empty, got None"),
        (one(tests=[{"stdin": "1"}]), "test 1 has no text stdout, and there is no checker"),
        (one(tests=[{"stdin": "1", "stdout": None}]), "test 1 has no text stdout"),
        (one(tests=[{"stdin": "1", "stdout": " \n"}]), "a program that does nothing would pass them all"),
        (one(tests=[{"stdin": 1, "stdout": "1"}]), "test 1 is {stdin: text, stdout: text}"),
        (one(tests=[{"input": "1", "stdout": "1"}]), "test 1 is {stdin: text, stdout: text}"),
        (one(tests=[3]), "test 1 is an object, got 3"),
        (one(compare="word"), "compare is one of tokens, exact"),
        (one(compare="exact", tol=1e-6), "tol is for compare: tokens"),
        (one(tol=-1), "tol is a finite number >= 0"),
        (one(checker="def :"), "checker is not Python: invalid syntax in line 1"),
        (one(entry="a b"), "entry is a name such as add"),
        (one(needs=3), "needs is a list of modules"),
        ({"mode": "stdio", "inputs": ["1"], "outputs": []}, "1 inputs, but 0 outputs"),
        ({"mode": "stdio", "inputs": ["1"]}, "inputs and outputs as two lists"),
        ({"mode": "func", "tests": [{"args": [], "expected": 1}]}, "mode func needs entry"),
        ({"mode": "func", "entry": "f", "tests": [{"args": [1]}]}, "test 1 has no expected value"),
        ({"mode": "func", "entry": "f", "tests": [{"args": 1, "expected": 1}]}, "test 1 is {args: [...], expected: ...}"),
        ({"mode": "func", "entry": "f", "tests": [{"args": [{"$bad": 1}], "expected": 1}]}, "test 1 holds a value that is none"),
        ({"mode": "func", "entry": "f", "tests": [{"args": [[0] * 250_000], "expected": 1}]}, "test 1 has arguments that cannot be sent"),
        ({"mode": "assert", "tests": []}, "a list of statements that is not empty"),
        ({"mode": "assert", "tests": ["assert f(1 == 2"]}, "test 1 is not Python"),
        ({"mode": "assert", "tests": ["f(1)"]}, "test 1 checks nothing: it asserts nothing"),
        ({"mode": "assert", "tests": ["assert True"]}, "it asserts nothing"),
        ({"mode": "assert", "tests": ["assert (f(1) == 2, 'why')"]}, "it asserts a tuple"),
        ({"mode": "assert", "tests": ["assert 1 + 1 == 2"]}, "the tests call nothing that the program defines"),
        ({"mode": "func", "entry": "f", "tests": [{"args": [1], "expected": None}]}, "every test expects null"),
        ({"mode": "assert", "tests": ["assert f(1) == None"]}, "every test expects null"),
        ({"mode": "func", "entry": "f", "tests": [{"args": [], "expected": [0] * 250_000}]}, "test 1 expects what no program can answer"),
        ({"mode": "func", "entry": "f", "tests": [{"args": [1], "expected": 1}, {"args": [1], "expected": 2}]}, "1 and 2 ask the same"),
        (one(tests=[{"stdin": "1", "stdout": "1"}, {"stdin": "1", "stdout": "2"}]), "tests 1 and 2 have the same input"),
        ({"mode": "assert", "tests": ["assert f(lambda x: x) == 2"]}, "it calls f with lambda x: x, which cannot be sent"),
        ({"mode": "check", "entry": "f", "test": "def check(c):\n    assert c(i for i in [1]) == 2"}, "it calls c with (i for i in [1])"),
        ({"mode": "check", "entry": "f", "test": "def check(c):\n    assert c(range(3)) == 2"}, "it calls c with range(3)"),
        ({"mode": "assert", "tests": ["assert f(1) == LIMIT"]}, "it reads LIMIT of the program and does not call it"),
        ({"mode": "check", "entry": "f", "test": "def check(c):\n    assert c(1) == LIMIT"}, "it reads LIMIT, which neither"),
        ({"mode": "assert", "tests": ["s = Stack()\ns.push(1)\nassert s.pop() == 1"]}, "it makes an object of Stack"),
        ({"mode": "assert", "tests": ["assert Stack().size() == 0"]}, "it makes an object of Stack"),
        ({"mode": "assert", "prompt": "root = Node(1)", "tests": ["assert depth(root) == 1"]}, "before the program and reads Node"),
        ({"mode": "check", "entry": "f", "test": "def check(c):\n    c(1)"}, "the test code checks nothing"),
        ({"mode": "check", "entry": "f", "test": ""}, "test is text that is not empty"),
        ({"mode": "check", "test": "def check(c):\n    assert c(1) == 2"}, "mode check needs entry"),
        ({"mode": "check", "entry": "f", "test": "def chekc(c):\n    assert c(1)"}, "defines no check(candidate)"),
        ({"mode": "unittest", "test": "assert f(1)"}, "no method test... of a class on TestCase"),
        (
            {"mode": "unittest", "test": "from unittest import TestCase\nclass T(TestCase):\n def test_a(self):\n  self.assertTrue(1)"},
            "the test code calls nothing",
        ),
    ],
)  # fmt: skip
def test_refused(value: Any, said: str) -> None:
    with pytest.raises(CasesError) as told:
        parse(value if isinstance(value, str) else json.dumps(value))
    assert said in str(told.value) and len(str(told.value)) < 400


def test_values_keep_their_types() -> None:
    found = parse(
        made(mode="func", entry="f", tests=[{
            "args": [{"$tuple": [1]}, {"$int": "0x10"}], "kwargs": {"k": {"$set": [1]}}, "expected": {"$dict": [[1, {"$float": "inf"}]]},
        }])
    )  # fmt: skip
    assert found.calls[0] == Call(entry="f", args=((1,), 16), kwargs={"k": {1}}, expected={1: float("inf")})
    assert (found.count, found.equality) == (1, "data")


def test_a_checker_needs_no_expected_output_and_two_lists_are_tests() -> None:
    assert parse(json.dumps(one(tests=[{"stdin": "1"}], checker="print('true')"))).stdio[0].stdout is None
    found = parse(made(mode="stdio", inputs=["1", "2"], outputs=["a", "b"]))
    assert [(item.stdin, item.stdout) for item in found.stdio] == [("1", "a"), ("2", "b")]


def test_plain_asserts_become_calls_that_mean_what_python_means() -> None:
    found = parse(made(mode="assert", tests=["assert f([1], k=-2) == (1, 2)", "assert {'a': 1} == f(None), 'why'"]))
    assert found.calls == (
        Call(entry="f", args=([1],), kwargs={"k": -2}, expected=(1, 2)),
        Call(entry="f", args=(None,), expected={"a": 1}),
    )
    assert found.equality == "python" and found.test is None


def test_check_of_plain_asserts_becomes_calls() -> None:
    code = (
        "METADATA = {'a': 1}\n\ndef check(candidate):\n    'doc'\n    assert candidate(1) == 2\n    assert True, 'x'\n"
    )
    assert parse(made(mode="check", entry="f", test=code)).calls == (Call(entry="f", args=(1,), expected=2),)


@pytest.mark.parametrize(
    "body",
    [
        "assert abs(candidate(1) - 2) < 1e-6",
        "for i in range(3):\n        assert candidate(i) == i",
        "assert candidate(1) is True",
        "x = [1]\n    assert candidate(x) == 1",
        "assert candidate(candidate(1)) == 2",
        "assert candidate(1) == candidate(1)",
    ],
)
def test_anything_else_goes_to_a_second_sandbox(body: str) -> None:
    found = parse(made(mode="check", entry="f", test=f"def check(candidate):\n    {body}\n"))
    assert found.calls == () and found.test is not None and found.test.pieces == ("check(candidate)",)


def test_what_the_tests_call_is_found_or_given() -> None:
    setup = "import math\ndef near(a, b): return abs(a - b) < 1e-9"
    found = parse(
        made(mode="assert", prompt=setup, tests=["assert near(area(2), math.pi * sum([4]))", "assert half(1)"])
    )
    assert found.test is not None and found.test.names == ("area", "half") and found.count == 2
    given = parse(
        made(
            mode="unittest",
            entry="f",
            test="import unittest\nclass T(unittest.TestCase):\n def test_a(self):\n  self.assertTrue(f(1))",
        )
    )
    assert given.test is not None and given.test.names == ("f",)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from(["f", "assert f(1) == 2", "1", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=10,
)


@given(
    st.dictionaries(st.sampled_from(KEYS), JSON, max_size=6),
    st.sampled_from(["stdio", "func", "assert", "check", "unittest"]),
)
def test_any_object_is_cases_or_refused(value: dict[str, Any], mode: str) -> None:
    try:
        found = parse(json.dumps({**value, "mode": mode}))
    except CasesError as fault:
        assert str(fault)
    else:
        assert found.count > 0 and [bool(found.stdio), bool(found.calls), found.test is not None].count(True) == 1
