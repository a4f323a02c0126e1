"""Whether an output or a value is the expected one, and if not, the first difference in a few words.

What a program gives is hostile: values are plain data that the sandbox's channel decoded under caps, text is bytes, and
nothing here calls code of the program. A difference is shown escaped and cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

Text = Literal["tokens", "exact"]
"""``tokens``: what white space separates is equal, in order. ``exact``: byte for byte, but for the line ends (``\\r\\n``
is ``\\n``) and one line end more or less at the end."""
SHOWN = 60
"""Characters shown of either side of a difference."""


def text_difference(expected: str, got: bytes, *, how: Text = "tokens", tol: float = 0.0) -> str:
    """'' if the output is the expected one. With ``tol``, tokens that are both numbers may differ as ``close`` says."""
    wanted = expected.encode("utf-8", "surrogatepass")
    if how == "exact":
        left, right = (_ended(part) for part in (wanted, got))
        if left == right:
            return ""
        for at, (a, b) in enumerate(zip(left.split(b"\n"), right.split(b"\n"), strict=False), 1):
            if a != b:
                return f"line {at}: expected {shown(a)}, got {shown(b)}"
        more = left.count(b"\n") - right.count(b"\n")
        return f"{abs(more)} line{'s' * (abs(more) > 1)} {'missing at the end' if more > 0 else 'too many'}"
    left_tokens, right_tokens = wanted.split(), got.split()
    for at, (a, b) in enumerate(zip(left_tokens, right_tokens, strict=False), 1):
        if a != b and not (tol and _numbers_close(a, b, tol)):
            return f"token {at}: expected {shown(a)}, got {shown(b)}"
    if len(right_tokens) < len(left_tokens):
        at = len(right_tokens)
        return f"{_tokens(len(left_tokens))} expected, got {at}: {shown(left_tokens[at])} is missing"
    if len(right_tokens) > len(left_tokens):
        at = len(left_tokens)
        return f"{_tokens(at)} expected, got {len(right_tokens)}: {shown(right_tokens[at])} is too much"
    return ""


def _tokens(count: int) -> str:
    return f"{count} token" if count == 1 else f"{count} tokens"


def _ended(text: bytes) -> bytes:
    return text.replace(b"\r\n", b"\n").removesuffix(b"\n")


def _numbers_close(a: bytes, b: bytes, tol: float) -> bool:
    if len(a) > 400 or len(b) > 400 or b"_" in a + b:  # "1_0" is a number to Python alone
        return False
    try:
        return close(float(a), float(b), tol)
    except ValueError:
        return False


def close(expected: float, got: float, tol: float) -> bool:
    """Within ``tol``, absolutely or relative to the expected one: |e - g| <= tol * max(1, |e|). Infinities are close to
    themselves alone, NaN to NaN."""
    if math.isnan(expected) or math.isnan(got):
        return math.isnan(expected) and math.isnan(got)
    if math.isinf(expected) or math.isinf(got):
        return expected == got
    return abs(expected - got) <= tol * max(1.0, abs(expected))


# ---- values ------------------------------------------------------------------------------------------------------

Equality = Literal["data", "python"]
"""``data``: for cases given as JSON. A list equals a tuple of the same items, a set a frozenset; a bool equals a bool
alone (``True`` is not ``1``); an int equals a float of the same value; NaN equals NaN. ``python``: what ``==`` says in a
test, so that a rewritten assert means what it meant: ``[1] != (1,)``, ``True == 1``."""


def value_difference(expected: Any, got: Any, *, how: Equality = "data", tol: float = 0.0) -> str:
    """'' if the value is the expected one; both are plain data (None, bool, int, float, str, bytes, list, tuple, set,
    frozenset, dict)."""
    if how == "python":
        try:
            same = bool(expected == got)
        except RecursionError:
            return "nested too deep to compare"
        return "" if same else f"expected {shown(expected)}, got {shown(got)}"
    return _difference(expected, got, tol, "")


def _difference(expected: Any, got: Any, tol: float, at: str) -> str:
    where = f"at {at}: " if at else ""
    kind = _kind(expected)
    if kind != _kind(got):
        return f"{where}expected {shown(expected)}, got {shown(got)}"
    if kind == "list":
        if len(expected) != len(got):
            return f"{where}expected {len(expected)} items, got {len(got)}: {_at_length(expected, got)}"
        for i, (a, b) in enumerate(zip(expected, got, strict=True)):
            found = _difference(a, b, tol, f"{at}[{i}]")
            if found:
                return found
        return ""
    if kind == "dict":
        held = {_hashable(key): value for key, value in got.items()}
        for key, value in expected.items():
            if _hashable(key) not in held:
                return f"{where}key {shown(key)} is missing"
            found = _difference(value, held.pop(_hashable(key)), tol, f"{at}[{shown(key)}]")
            if found:
                return found
        return f"{where}key {_shown_key(next(iter(held)))} is too much" if held else ""
    if kind == "set":
        left, right = ({_hashable(item): item for item in side} for side in (expected, got))
        lacks, extra = (
            sorted(shown(one[key]) for key in one.keys() - two) for one, two in ((left, right), (right, left))
        )
        return f"{where}{lacks[0]} is missing" if lacks else f"{where}{extra[0]} is too much" if extra else ""
    if kind == "number":
        if expected == got or _close_numbers(expected, got, tol):
            return ""
    elif expected == got:
        return ""
    return f"{where}expected {shown(expected)}, got {shown(got)}"


def _close_numbers(expected: float, got: float, tol: float) -> bool:
    if expected != expected or got != got:
        return expected != expected and got != got
    try:
        return tol > 0 and close(float(expected), float(got), tol)
    except OverflowError:
        return False


def _kind(value: Any) -> str:
    for kind, types in (
        ("bool", bool), ("number", (int, float)), ("list", (list, tuple)), ("set", (set, frozenset)), ("dict", dict),
    ):  # fmt: skip
        if isinstance(value, types):
            return kind
    return type(value).__name__


def _hashable(value: Any) -> Any:
    """A key under which members and dict keys that are equal as data are equal: ``1`` and ``1.0``, not ``1`` and ``True``."""
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, float) and math.isnan(value):
        return ("nan",)
    if isinstance(value, tuple):
        return ("tuple", tuple(_hashable(item) for item in value))
    if isinstance(value, frozenset):
        return ("set", frozenset(_hashable(item) for item in value))
    return value


def _shown_key(key: Any) -> str:
    return shown(key[1]) if isinstance(key, tuple) and len(key) == 2 else shown(key)


def _at_length(expected: Sequence[Any], got: Sequence[Any]) -> str:
    short = min(len(expected), len(got))
    one, noun = (expected[short], "is missing") if len(expected) > len(got) else (got[short], "is too much")
    return f"{shown(one)} {noun}"


def shown(value: Any) -> str:
    """Plain data, or the bytes of a token or line, in at most about ``SHOWN`` printable ASCII characters."""
    if isinstance(value, bytes):
        text = ascii(value[: SHOWN + 1].decode("utf-8", "backslashreplace"))
    else:
        text = _short(value, SHOWN)
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


def _short(value: Any, room: int) -> str:
    """``ascii`` that stops early: a value may hold millions of items, an int hundreds of thousands of digits."""
    if value is None or isinstance(value, (bool, float, complex)):
        return repr(value)
    if isinstance(value, int):
        return repr(value) if value.bit_length() < 4096 else f"an int of {value.bit_length()} bits"
    if isinstance(value, (str, bytes)):
        return ascii(value[: room + 1])
    if isinstance(value, dict):
        opens, closes = "{", "}"
    elif not isinstance(value, (list, tuple, set, frozenset)):
        return type(value).__name__
    else:
        opens, closes = "[]" if isinstance(value, list) else "()" if isinstance(value, tuple) else "{}"
    parts: list[str] = []
    left = room
    for item in value.items() if isinstance(value, dict) else value:
        if left <= 0:
            parts.append("…")
            break
        text = f"{_short(item[0], left)}: {_short(item[1], left)}" if isinstance(value, dict) else _short(item, left)
        parts.append(text)
        left -= len(text) + 2
    comma = "," if isinstance(value, tuple) and len(parts) == 1 else ""
    return f"{opens}{', '.join(parts)}{comma}{closes}"
