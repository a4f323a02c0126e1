"""Which parts may hold a rollout: a split-block Bloom filter over the ids of each (Putze, Sanders, Singler 2007).

A look-up reads one block of 32 bytes of each part from the database and opens the parts that may have the id: those that
do, and about 1 in 1000 of the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

BLOCK = 32
"""Bytes: eight words of 32 bits; an id sets one bit of each word of its block."""
_BITS_PER_ID = 16


def made(ids: Sequence[str]) -> bytes:
    """The filter of some ids: two bytes for each, and no id that it was made of is ever missed."""
    blocks = max(1, -(-len(ids) * _BITS_PER_ID // (8 * BLOCK)))
    words = np.zeros((blocks, 8), dtype="<u4")
    if ids:
        places, bits = _hashed(ids)
        np.bitwise_or.at(words, places % blocks, bits)
    return words.tobytes()


def asked(id: str) -> tuple[int, Callable[[bytes], bool]]:
    """Where to look: (place, below 2^31, modulo the number of blocks; whether the filter of that block may have the id)."""
    places, bits = _hashed([id])
    mask = int.from_bytes(bits.astype("<u4").tobytes(), "little")
    return int(places[0]), lambda block: int.from_bytes(block, "little") & mask == mask


def _hashed(ids: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    """(place [n], bits [n, 8])."""
    digests = b"".join(hashlib.blake2b(id.encode("utf-8", "surrogatepass"), digest_size=12).digest() for id in ids)
    rows = np.frombuffer(digests, dtype=np.uint8).reshape(len(ids), 12)
    places = rows[:, :4].copy().view("<u4")[:, 0].astype(np.int64) & 0x7FFFFFFF
    return places, np.left_shift(np.uint32(1), rows[:, 4:].astype(np.uint32) & np.uint32(31))
