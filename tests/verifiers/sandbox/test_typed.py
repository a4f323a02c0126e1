"""Plain data crosses unharmed; nothing else crosses; hostile lines are an error, soon."""

from __future__ import annotations

import collections
import enum
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jurat.verifiers.sandbox import typed

_hashable = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(max_size=8),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=6,
)
_values = st.recursive(
    _hashable | st.complex_numbers(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.sets(_hashable, max_size=3) | st.dictionaries(_hashable, inner, max_size=3)
    | st.dictionaries(st.text(max_size=3) | st.just("$tuple"), inner, max_size=3) | st.tuples(inner),
    max_leaves=20,
)  # fmt: skip


def same(a: object, b: object) -> bool:
    return repr(a) == repr(b) if isinstance(a, (float, complex)) else type(a) is type(b) and a == b


@given(_values)
def test_round_trip(value: object) -> None:
    line = typed.encode(value)
    assert b"\n" not in line and line.isascii()
    assert same(typed.decode(line), value)


@pytest.mark.parametrize("bits", [1999, 2000, 2001, 40_000])
@pytest.mark.parametrize("sign", [1, -1])
def test_integers_of_any_size(bits: int, sign: int) -> None:
    for value in (sign << bits, (sign << bits) - 1):
        assert typed.decode(typed.encode({"n": [value]})) == {"n": [value]}


def test_forms() -> None:
    assert json.loads(typed.encode((1, {2}))) == {"$tuple": [1, {"$set": [2]}]}
    assert json.loads(typed.encode({(1, 2): 3})) == {"$dict": [[{"$tuple": [1, 2]}, 3]]}
    assert json.loads(typed.encode(math.inf)) == {"$float": "inf"}
    assert math.isnan(typed.decode(b'{"$float":"nan"}'))
    assert json.loads(typed.encode(1 << 3000)) == {"$int": hex(1 << 3000)}
    assert typed.decode(b'{"a":[1,null,true,"\\ud800"]}') == {"a": [1, None, True, "\ud800"]}


class _Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "lies"

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


class _Pair(list):
    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(["lies"])

    def __eq__(self, other: object) -> bool:
        return True


class _Colour(enum.IntEnum):
    RED = 3


@pytest.mark.parametrize(
    ("value", "base"),
    [
        (_Text("true"), "true"), (_Pair([1, 2]), [1, 2]), (_Colour.RED, 3), (collections.Counter("aa"), {"a": 2}),
        (collections.OrderedDict(a=1), {"a": 1}), (collections.namedtuple("P", "x y")(1, 2), (1, 2)),
    ],
)  # fmt: skip
def test_a_subclass_crosses_as_its_base_and_cannot_lie(value: object, base: object) -> None:
    assert same(typed.decode(typed.encode(value)), base)


@pytest.mark.parametrize("value", [object(), len, iter([]), range(3), type, {1: object()}, [lambda: 0]])
def test_other_types_are_refused(value: object) -> None:
    with pytest.raises(typed.Untyped):
        typed.encode(value)


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list = []
    loop.append(loop)
    with pytest.raises(typed.Untyped):
        typed.encode(loop)
    with pytest.raises(typed.Untyped, match="too many"):
        typed.encode([0] * (typed.MAX_NODES + 1))


@pytest.mark.parametrize(
    "line",
    [
        b"", b"{", b"nul", b"NaN", b"Infinity", b"1 2", b"\xff", b'{"$tuple": 1}', b'{"$tuple": [], "a": 1}', b'{"$new": 1}',
        b'{"$float": "1"}', b'{"$int": 5}', b'{"$int": "x"}', b'{"$bytes": "0"}', b'{"$complex": [1]}', b'{"$set": [[1]]}',
        b'{"$dict": [[1]]}', b'{"$dict": [[[1], 2]]}', b"[" * 100_000, b'{"a":' * 100_000, b"[" * 150 + b"]" * 150,
        b"9" * 5_000, b"[" + b"1," * 300_000 + b"1]", b'"' + b"a" * (2 << 20) + b'"', b'{"$complex": [{"$set": []}, 1]}',
    ],
    ids=lambda line: line[:12].decode("latin-1"),
)  # fmt: skip
def test_hostile_lines_are_an_error(line: bytes) -> None:
    with pytest.raises(typed.Untyped):
        typed.decode(line)


@given(st.binary(max_size=60) | st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["$tuple", "$set", "$dict", "$float", "$int", "$bytes", "$complex", "a"]), inner, max_size=2),
    max_leaves=8).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_any_line_is_a_value_or_untyped(line: bytes) -> None:
    try:
        value = typed.decode(line)
    except typed.Untyped:
        return
    assert typed.decode(typed.encode(value)) == value or value != value
