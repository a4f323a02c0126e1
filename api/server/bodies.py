"""Bodies: bounded before they are read, of one type, and JSON as strict as RFC 8259 with RFC 7493 would have it.

Refused: a body over the cap (413, before the rest is read), a slow one, another type (415), an unknown encoding, a
decompression bomb, JSON with duplicate keys, bare NaN or Infinity, integers beyond 64 bits, more than 32 levels, or more
than 10,000 keys in one object.
"""

from __future__ import annotations

import asyncio
import json
import math
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from jurat.api.server.problems import Problem

MAX_BYTES = 8 << 20
"""Of a body, compressed or not."""
MAX_DEPTH = 32
MAX_KEYS = 10_000
READ_SECONDS = 30.0

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


async def read_body(
    scope: Scope, receive: Receive, *, max_bytes: int = MAX_BYTES, seconds: float = READ_SECONDS
) -> bytes:
    """The body, decompressed. Raises Problem."""
    headers = dict(scope["headers"])
    declared = headers.get(b"content-length")
    if declared is not None and (not declared.isdigit() or int(declared) > max_bytes):
        raise too_large(max_bytes)
    chunks, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Problem("bad-request", "the client left before the body was whole")
                size += len(message.get("body", b""))
                if size > max_bytes:
                    raise too_large(max_bytes)
                chunks.append(message.get("body", b""))
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        raise Problem("bad-request", f"the body took more than {seconds:g} s") from None
    return decompress(
        b"".join(chunks), headers.get(b"content-encoding", b"").decode("latin-1").strip().lower(), max_bytes
    )


def too_large(max_bytes: int) -> Problem:
    return Problem("too-large", f"a body may have {max_bytes} bytes", headers={"Connection": "close"})


def decompress(data: bytes, encoding: str, max_bytes: int) -> bytes:
    if encoding in ("", "identity"):
        return data
    if encoding != "gzip":
        raise Problem("unsupported-media-type", "a body may be encoded by gzip, or not at all")
    try:
        reader = zlib.decompressobj(wbits=31)
        made = reader.decompress(data, max_bytes + 1)
    except zlib.error:
        raise Problem("bad-request", "the body is not gzip") from None
    if len(made) > max_bytes:
        raise too_large(max_bytes)
    if not reader.eof or reader.unused_data:
        raise Problem("bad-request", "the body is not one whole gzip member")
    return made


def parse(data: bytes) -> Any:
    """The value of a JSON text. Raises Problem."""
    if not data:
        raise _bad("the body is empty")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _bad(f"not UTF-8 at byte {error.start}") from None
    try:
        made = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except json.JSONDecodeError as error:
        raise _bad(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise _bad(_DEEP) from None
    except ValueError:  # of int(), for thousands of digits
        raise _bad(_LONG) from None
    _refuse(made)
    return made


def _bad(said: str) -> Problem:
    return Problem("bad-json", said, errors=[{"pointer": "", "code": "bad-json", "message": said}])


_DEEP = f"nested more than {MAX_DEPTH} deep"
_LONG = "an integer has more than 64 bits"


def _refuse(value: Any) -> None:
    """What the parser let through: too deep, or numbers out of range. Lists of one type of number are looked at whole."""
    waiting: list[tuple[Any, int]] = [((value,), -1)]
    while waiting:
        items, depth = waiting.pop()
        if depth == MAX_DEPTH:
            raise _bad(_DEEP)
        if type(items) is list and len(items) > 3 and set(map(type, items)) in ({float}, {int}, {str}):
            items = () if type(items[0]) is str else (min(items), max(items))  # no NaN is among them
        for item in items:
            kind = type(item)
            if kind is float:
                if not -math.inf < item < math.inf:
                    raise _bad("a number is too large")
            elif kind is int:
                if not -(1 << 63) <= item < 1 << 63:
                    raise _bad(_LONG)
            elif kind is list:
                waiting.append((item, depth + 1))
            elif kind is dict:
                waiting.append((item.values(), depth + 1))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        double = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _bad(f"the key {double[:80]!r} is there twice")
    if len(made) > MAX_KEYS:
        raise _bad(f"an object has more than {MAX_KEYS} keys")
    return made


def _constant(name: str) -> Any:
    raise _bad(f'{name} is not JSON: write it as a string, "{name}"')
