"""Bodies: bounded before they are read, of one type, and JSON as strict as RFC 8259 with RFC 7493 would have it.

Refused: a body over the cap (413, before the rest is read), a slow one, another type (415), an unknown encoding, a
decompression bomb, JSON with duplicate keys, bare NaN or Infinity, integers beyond 64 bits, more than 32 levels, or more
than 10,000 keys in one object.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
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
    refuse_depth(text)
    try:
        return json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_int=_integer, parse_float=_real
        )
    except json.JSONDecodeError as error:
        raise _bad(f"{error.msg} at line {error.lineno}, column {error.colno}") from None


def _bad(said: str) -> Problem:
    return Problem("bad-json", said, errors=[{"pointer": "", "code": "bad-json", "message": said}])


_TEXT = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z|\\\Z)', re.DOTALL)
"""A string of JSON, also one that does not end: whatever begins with a quote is matched, once, in linear time."""


def refuse_depth(text: str) -> None:
    """Before the parser, which calls itself at each level, sees it."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", _TEXT.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_DEPTH:
            raise _bad(f"nested more than {MAX_DEPTH} deep")


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


def _integer(text: str) -> int:
    if len(text) > 20 or not -(1 << 63) <= (value := int(text)) < 1 << 63:
        raise _bad("an integer has more than 64 bits")
    return value


def _real(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _bad(f"the number {text[:40]} is too large")
    return value
