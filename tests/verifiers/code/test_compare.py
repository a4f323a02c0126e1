"""Equal outputs and values, and the first difference of those that are not."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jurat.verifiers.code.asserts import Call
from jurat.verifiers.code.cases import Cases
from jurat.verifiers.code.compare import shown, text_difference, value_difference
from jurat.verifiers.code.running import _valued

DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("expected", "got", "how", "tol", "said"),
    [
        ("3\n", b"3", "tokens", 0, ""),
        ("1 2\n3", b" 1\t2 \r\n3\n\n", "tokens", 0, ""),
        ("3", b"4\n", "tokens", 0, "token 1: expected '3', got '4'"),
        ("1 2 3", b"1 2", "tokens", 0, "3 tokens expected, got 2: '3' is missing"),
        ("1 2", b"1 2 3", "tokens", 0, "2 tokens expected, got 3: '3' is too much"),
        ("1", b"", "tokens", 0, "1 token expected, got 0: '1' is missing"),
        ("0.3", b"0.30000000000000004", "tokens", 0, "token 1: expected '0.3', got '0.30000000000000004'"),
        ("0.3", b"0.30000000000000004", "tokens", 1e-9, ""),
        ("1e6", b"1000000.5", "tokens", 1e-6, ""),
        ("inf", b"nan", "tokens", 1, "token 1: expected 'inf', got 'nan'"),
        ("10", b"1_0", "tokens", 1, "token 1: expected '10', got '1_0'"),
        ("x", b"y", "tokens", 1, "token 1: expected 'x', got 'y'"),
        ("a b\n", b"a b", "exact", 0, ""),
        ("a\r\nb", b"a\nb\n", "exact", 0, ""),
        ("a b", b"a  b", "exact", 0, "line 1: expected 'a b', got 'a  b'"),
        ("a\nb", b"a", "exact", 0, "1 line missing at the end"),
        ("a", b"a\n\n\n", "exact", 0, "2 lines too many"),
        ("\u00e9", "\u00e9".encode(), "tokens", 0, ""),
        ("x", b"\xff\x1b[2J\xed\xa0\x80", "tokens", 0, "token 1: expected 'x', got '\\\\xff\\x1b[2J\\\\xed\\\\xa0\\\\x80'"),
    ],
)  # fmt: skip
def test_text(expected: str, got: bytes, how, tol: float, said: str) -> None:
    assert text_difference(expected, got, how=how, tol=tol) == said


@pytest.mark.parametrize(
    ("expected", "got", "said"),
    [
        ([1, 2], (1, 2), ""),
        ({1, 2}, frozenset({2, 1}), ""),
        (3, 3.0, ""),
        (float("nan"), float("nan"), ""),
        ([None], [None], ""),
        (True, 1, "expected True, got 1"),
        (0, False, "expected 0, got False"),
        (None, 0, "expected None, got 0"),
        (2**53 + 1, float(2**53), "expected 9007199254740993, got 9007199254740992.0"),
        ("1", 1, "expected '1', got 1"),
        ([1, [2, 3]], [1, [2, 4]], "at [1][1]: expected 3, got 4"),
        ([1, 2, 3], [1, 2], "expected 3 items, got 2: 3 is missing"),
        ([1], [1, 2], "expected 1 items, got 2: 2 is too much"),
        ({"a": 1}, {"a": 2}, "at ['a']: expected 1, got 2"),
        ({"a": 1}, {}, "key 'a' is missing"),
        ({}, {"a": 1}, "key 'a' is too much"),
        ({"1": 2}, {1: 2}, "key '1' is missing"),
        ({1}, {True}, "1 is missing"),
        ({(0, 0): [1]}, {(0, 0): (1,)}, ""),
        ([1], {1}, "expected [1], got {1}"),
    ],
)  # fmt: skip
def test_values_as_data(expected, got, said: str) -> None:
    assert value_difference(expected, got) == said


def test_values_as_python_says() -> None:
    assert value_difference(True, 1, how="python") == ""
    assert value_difference([1], (1,), how="python") == "expected [1], got (1,)"
    assert value_difference(math.nan, math.nan, how="python") != ""


def test_tolerance_reaches_into_values() -> None:
    assert value_difference([0.1 + 0.2, {"x": 1e9}], [0.3, {"x": 1e9 + 1}], tol=1e-8) == ""
    assert value_difference([0.3], [0.31], tol=1e-8) == "at [0]: expected 0.3, got 0.31"
    assert value_difference(10**400, 10**400 + 1, tol=1.0) != ""  # no float holds it: equal or not


@given(DATA)
def test_data_equal_themselves(value) -> None:
    assert value_difference(value, value) == ""
    assert value_difference([value], (value,)) == ""


@given(DATA, DATA)
def test_a_difference_goes_both_ways(left, right) -> None:
    assert bool(value_difference(left, right)) == bool(value_difference(right, left))


@given(DATA | st.binary() | st.integers(min_value=0, max_value=10**4).map(lambda n: 7**n))
def test_what_is_shown_is_short_printable_ascii(value) -> None:
    text = shown(value)
    assert text.removesuffix("\u2026").isascii() and text.isprintable() and len(text) <= 61


ANYTHING = st.recursive(
    DATA
    | st.binary(max_size=5)
    | st.complex_numbers()
    | st.floats()
    | st.integers(15_000, 16_000).map(lambda n: -1 << n)
    | st.sampled_from(["\ud800", "\x1b"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(ANYTHING, ANYTHING, st.sampled_from(["value", "missing", "error", "type", "unsendable"]))
def test_whatever_a_program_answers_is_told_and_never_breaks_the_judge(expected, value, key: str) -> None:
    """What broke it would be an error of the verifier, and so a way out of being judged."""
    call = Call(entry="f", args=(expected,), expected=expected)
    for equality in ("data", "python"):
        cases = Cases(mode="func", calls=(call,), equality=equality, tol=0.1)
        found = _valued({key: value, "message": [value]}, call, cases)
        assert found.status in ("correct", "incorrect") and found.why.isprintable()
    json.dumps(found.to_json(1)).encode("utf-8")


def test_huge_values_are_shown_without_writing_them_out() -> None:
    assert shown(1 << 10**6) == "an int of 1000001 bits"
    assert shown([0] * 10**6).startswith("[0, 0")
