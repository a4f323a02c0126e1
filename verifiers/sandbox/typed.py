"""Plain data as JSON lines, types kept. Both sides of a channel use it; nothing here runs what it reads.

| value | as JSON |
|---|---|
| None, bool, str, list, finite float, int below 2**2000 | itself |
| dict whose keys are all str, none with a leading ``$`` | object |
| any other dict | ``{"$dict": [[key, value], ...]}`` |
| tuple, set, frozenset | ``{"$tuple": [...]}``, ``{"$set": [...]}``, ``{"$frozenset": [...]}`` |
| nan, inf, -inf | ``{"$float": "inf"}`` |
| larger int | ``{"$int": "0x..."}``: Python reads no decimal of more than 4300 digits |
| bytes, complex | ``{"$bytes": "hex"}``, ``{"$complex": [re, im]}`` |

An instance of a subclass is written as what its base holds, so ``decode`` makes the base type; numpy scalars and arrays
as what their ``tolist`` says. Anything else is an error.
"""

from __future__ import annotations

import json
import math
from typing import Any

MAX_BYTES, MAX_DEPTH, MAX_NODES = 1 << 20, 100, 200_000

_dumps, _loads = json.JSONEncoder(allow_nan=False, separators=(",", ":"), check_circular=False).encode, json.loads
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_BIG = 2000


class Untyped(ValueError):
    """What has no form here, or a line that is no value: says which."""


def encode(value: Any, *, depth: int = MAX_DEPTH, nodes: int = MAX_NODES) -> bytes:
    """One line without its end. Raises Untyped: another type, deeper than ``depth`` or more than ``nodes`` values."""
    try:
        return _dumps(plain(value, depth=depth, nodes=nodes)).encode("ascii")
    except (RecursionError, OverflowError) as fault:
        raise Untyped(f"too deep: {type(fault).__name__}") from None


def decode(line: bytes, *, size: int = MAX_BYTES, depth: int = MAX_DEPTH, nodes: int = MAX_NODES) -> Any:
    """The value of one line. Raises Untyped for anything that ``encode`` cannot have made under the same caps."""
    if len(line) > size:
        raise Untyped(f"{len(line)} bytes, allowed are {size}")
    if line.count(b"[") + line.count(b"{") > nodes or line.count(b",") > nodes:
        raise Untyped(f"more than {nodes} values")
    try:
        made = _loads(line, parse_constant=_no_constant)
    except Untyped:
        raise
    except RecursionError:
        raise Untyped(f"deeper than {depth}") from None
    except ValueError as fault:
        raise Untyped(f"no JSON: {str(fault)[:100]}") from None
    return value_of(made, depth=depth, nodes=nodes)


def plain(value: Any, *, depth: int = MAX_DEPTH, nodes: int = MAX_NODES) -> Any:
    """What JSON can say of ``value``. Raises Untyped."""
    return _Writer(nodes).write(value, depth)


def value_of(read: Any, *, depth: int = MAX_DEPTH, nodes: int = MAX_NODES) -> Any:
    """What ``plain`` was given, from what ``json.loads`` read. Raises Untyped."""
    return _Reader(nodes).read(read, depth)


def _no_constant(name: str) -> Any:
    raise Untyped(f"no JSON: {name}")


class _Writer:
    def __init__(self, nodes: int) -> None:
        self._left = nodes

    def write(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if self._left < 0:
            raise Untyped("too many values")
        if depth < 0:
            raise Untyped("too deep, or a value that holds itself")
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return value if -_LIMIT < value < _LIMIT else {"$int": hex(value)}
        if kind is float:
            return value if value - value == 0.0 else {"$float": repr(value)}
        if kind is list:
            return [self.write(item, depth - 1) for item in value]
        if kind is tuple:
            return {"$tuple": [self.write(item, depth - 1) for item in value]}
        if kind is dict:
            return self._mapping(value, depth)
        if kind is set or kind is frozenset:
            return {f"${kind.__name__}": [self.write(item, depth - 1) for item in value]}
        if kind is bytes:
            return {"$bytes": value.hex()}
        if kind is complex:
            return {"$complex": [self.write(value.real, depth), self.write(value.imag, depth)]}
        return self.write(_base(value, kind), depth)

    def _mapping(self, value: dict[Any, Any], depth: int) -> Any:
        if all(type(key) is str and key[:1] != "$" for key in value):
            return {key: self.write(item, depth - 1) for key, item in value.items()}
        return {"$dict": [[self.write(key, depth - 1), self.write(item, depth - 1)] for key, item in value.items()]}


_LIMIT = 1 << _BIG


def _base(value: Any, kind: type) -> Any:
    """The instance of a base type that a subclass extends, read by the base's own methods."""
    if kind.__module__ == "numpy" and hasattr(kind, "tolist"):
        made = value.tolist()
        if type(made) is kind:
            raise Untyped(f"a value of type {kind.__name__}")
        return made
    if isinstance(value, int):
        return int.__pos__(value)
    if isinstance(value, float):
        return float.__pos__(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, list):
        return list(list.__iter__(value))
    if isinstance(value, tuple):
        return tuple(tuple.__iter__(value))
    if isinstance(value, dict):
        return dict(dict.items(value))
    if isinstance(value, (set, frozenset)):
        base: Any = set if isinstance(value, set) else frozenset
        return base(base.__iter__(value))
    if isinstance(value, bytes):
        return bytes.join(b"", [value, b""])
    if isinstance(value, complex):
        return complex.__pos__(value)
    raise Untyped(f"a value of type {str.__str__(kind.__name__)[:80]}")


class _Reader:
    def __init__(self, nodes: int) -> None:
        self._left = nodes

    def read(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if self._left < 0:
            raise Untyped("too many values")
        if depth < 0:
            raise Untyped("too deep")
        if isinstance(value, list):
            return [self.read(item, depth - 1) for item in value]
        if not isinstance(value, dict):
            return value
        tags = [key for key in value if key[:1] == "$"]
        if not tags:
            return {key: self.read(item, depth - 1) for key, item in value.items()}
        if len(value) != 1:
            raise Untyped("a tag beside other keys")
        return self._tagged(tags[0], value[tags[0]], depth)

    def _tagged(self, tag: str, held: Any, depth: int) -> Any:
        try:
            if tag == "$tuple":
                return tuple(self._items(held, depth))
            if tag == "$set":
                return set(_apart(self._items(held, depth)))
            if tag == "$frozenset":
                return frozenset(_apart(self._items(held, depth)))
            if tag == "$dict":
                pairs = [self._pair(item, depth) for item in _list(held)]
                _apart([key for key, _ in pairs])
                return dict(pairs)
            if tag == "$float":
                return _FLOATS[held]
            if tag == "$int":
                return int(held, 16)
            if tag == "$bytes":
                return bytes.fromhex(held)
            if tag == "$complex":
                real, imaginary = self._items(held, depth)
                return complex(float(real), float(imaginary))
        except Untyped:
            raise
        except (TypeError, ValueError, KeyError):
            pass
        raise Untyped(f"tag {tag[:20]!r}")

    def _items(self, held: Any, depth: int) -> list[Any]:
        return [self.read(item, depth - 1) for item in _list(held)]

    def _pair(self, item: Any, depth: int) -> tuple[Any, Any]:
        key, value = self._items(item, depth)
        return key, value


def _apart(keys: list[Any]) -> list[Any]:
    """The keys, unless they were made to share hashes: a table of n of those takes n * n steps to fill."""
    if len(keys) > 1_000 and 4 * len({hash(key) for key in keys}) < len(keys):
        raise Untyped("keys that were made to collide")
    return keys


def _list(held: Any) -> list[Any]:
    if not isinstance(held, list):
        raise Untyped("a tag that holds no list")
    return held
