"""Frames on a pipe: four bytes of length (big-endian), then that many bytes of ASCII JSON."""

from __future__ import annotations

import json
import os
import struct
from typing import Any

MAX_FRAME = 64 * 2**20
"""Bytes. A longer one is nonsense, not data."""


def pack(value: Any) -> bytes:
    """One frame. ASCII JSON, so that lone surrogates of hostile text survive."""
    body = json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")
    return struct.pack(">I", len(body)) + body


class Reader:
    """Collects bytes and hands back whole frames."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._held = bytearray()
        self._limit = limit

    def feed(self, data: bytes) -> list[Any]:
        """The frames that ``data`` completes. Raises ValueError for a frame over the limit or not JSON."""
        self._held += data
        out = []
        while len(self._held) >= 4:
            (size,) = struct.unpack_from(">I", self._held)
            if size > self._limit:
                raise ValueError(f"a frame of {size} bytes, over the limit of {self._limit}")
            if len(self._held) < 4 + size:
                break
            out.append(json.loads(bytes(self._held[4 : 4 + size])))
            del self._held[: 4 + size]
        return out


def read_blocking(fd: int) -> Any | None:
    """The next frame of a blocking descriptor, or None at its end."""
    head = _exactly(fd, 4)
    body = head and _exactly(fd, struct.unpack(">I", head)[0])
    return json.loads(body) if body else None


def write_blocking(fd: int, value: Any) -> None:
    """Write one whole frame to a blocking descriptor."""
    view = memoryview(pack(value))
    while view:
        view = view[os.write(fd, view) :]


def _exactly(fd: int, size: int) -> bytes | None:
    parts = []
    while size:
        part = os.read(fd, min(size, 2**20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
