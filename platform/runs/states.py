"""The states of a run, the moves between them, and how long each may last.

::

    created ─ queued ─ starting ─ running ─ finishing ─ finished        moves of a run that goes well
                 │         │         ├─ pausing ─ paused ─ queued       on command
                 └─────────┴─────────┴─ cancelling ─ cancelled          on command
    any state with a lease ─ lost ─ queued, or failed                   the lease lapsed
    running ─ interrupted, failed ─ running, queued                     Ctrl-C, an error; gone on with when asked

``jurat train`` without a service goes created ─ running ─ finished and holds a lease all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

State = Literal[
    "created", "queued", "starting", "running", "pausing", "paused", "cancelling", "cancelled", "finishing", "finished",
    "lost", "interrupted", "failed",
]  # fmt: skip

MOVES: Mapping[State, frozenset[State]] = MappingProxyType({
    "created": frozenset({"running", "queued", "interrupted", "failed", "cancelled"}),
    "queued": frozenset({"starting", "running", "cancelled", "failed"}),
    "starting": frozenset({"running", "queued", "pausing", "cancelling", "cancelled", "interrupted", "failed", "lost"}),
    "running": frozenset({"running", "pausing", "paused", "cancelling", "cancelled", "finishing", "finished", "interrupted",
                          "failed", "lost"}),
    "pausing": frozenset({"running", "paused", "cancelling", "finishing", "finished", "interrupted", "failed"}),
    "paused": frozenset({"running", "queued", "cancelled", "interrupted", "failed"}),
    "cancelling": frozenset({"running", "cancelled", "finishing", "finished", "failed"}),
    "cancelled": frozenset(),
    "finishing": frozenset({"running", "finished", "failed", "lost"}),
    "finished": frozenset(),
    "lost": frozenset({"running", "queued", "cancelled", "failed"}),
    "interrupted": frozenset({"running", "queued", "cancelled", "failed"}),
    "failed": frozenset({"running", "queued", "failed"}),
})  # fmt: skip
"""state -> states it may move to. A run whose process was killed is still ``running`` when the next one takes it over;
out of memory is the commonest end, so ``failed`` may be resumed; ``finished`` and ``cancelled`` are for ever."""

TERMINAL: frozenset[State] = frozenset(state for state, targets in MOVES.items() if not targets)
ENDED: frozenset[State] = frozenset({"interrupted", "failed", *TERMINAL})
"""States in which no process works on the run, and none will unless somebody asks: ``ended`` is set in them alone."""
LEASED: frozenset[State] = frozenset({"starting", "running", "pausing", "cancelling", "finishing"})
"""States in which a process holds the run's lease."""


def sources(state: State) -> frozenset[State]:
    """The states from which ``state`` may be entered."""
    return frozenset(source for source, targets in MOVES.items() if state in targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds that a state may last; the reaper (``leases.reap``) ends it then. A lease is a limit of its own."""

    lease: float = 45.0
    """How long a heartbeat counts; heartbeats come three times as often at least."""
    created: float = 86_400.0
    queued: float = 30 * 86_400.0
    starting: float = 600.0
    pausing: float = 600.0
    """To reach a checkpoint and stop."""
    paused: float = 90 * 86_400.0
    cancelling: float = 60.0
    finishing: float = 600.0
    stalled: float = 1800.0
    """Without a step, in state ``running``: nothing is ended, but an event says so."""
    lost: float = 0.0
    """Before it is queued again; doubled with each restart, where it is not 0."""

    def of(self, state: State, *, max_runtime: float | None = None, restarts: int = 0) -> float | None:
        """Seconds; None where nothing is left to wait for, and for a running run without ``max_runtime``, which its lease
        alone limits."""
        if state == "running":
            return max_runtime
        if state in ENDED:
            return None
        seconds: float = getattr(self, state)
        return seconds * 2.0 ** min(restarts, 8) if state == "lost" else seconds


LIMITS = Limits()
