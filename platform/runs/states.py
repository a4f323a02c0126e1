"""The states of a run and the moves between them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

State = Literal["created", "running", "paused", "interrupted", "failed", "finished"]

MOVES: Mapping[State, frozenset[State]] = MappingProxyType({
    "created": frozenset({"running", "interrupted", "failed"}),
    "running": frozenset({"running", "paused", "interrupted", "failed", "finished"}),
    "paused": frozenset({"running", "interrupted", "failed"}),
    "interrupted": frozenset({"running", "failed"}),
    "failed": frozenset({"running", "failed"}),
    "finished": frozenset(),
})  # fmt: skip
"""state -> states it may move to. A run whose process was killed is still ``running`` when the next one takes it over;
out of memory is the commonest end, so ``failed`` may be resumed; ``finished`` is for ever."""

ENDED: frozenset[State] = frozenset({"interrupted", "failed", "finished"})
"""States in which no process works on the run."""


def sources(state: State) -> frozenset[State]:
    """The states from which ``state`` may be entered."""
    return frozenset(source for source, targets in MOVES.items() if state in targets)
