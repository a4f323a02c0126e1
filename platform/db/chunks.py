"""Long lists of parameters, a part at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
AT_ONCE = 400
"""Values of one IN: stays under SQLite's limit of bound parameters, with room for others."""


def chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """``values`` in order, ``AT_ONCE`` at a time."""
    for first in range(0, len(values), AT_ONCE):
        yield values[first : first + AT_ONCE]
