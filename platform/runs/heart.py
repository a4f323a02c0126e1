"""Keeps a run's lease while a process works on it, and hears what is asked of it. A thread, so that a long update fakes no
death; when the whole process stands still the lease lapses, as it should."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Self

from jurat.platform.errors import FencedOut, RunFailed
from jurat.platform.runs.records import Beat, Lease
from jurat.platform.runs.states import LIMITS, Limits
from jurat.platform.runs.store import Store

log = logging.getLogger(__name__)

PER_LEASE = 4
"""Heartbeats in the time of one lease."""


class Heart:
    """``with Heart(...)``. ``heard`` and ``fenced`` are called from the thread: what each beat learned, and, once, that
    another process has the run."""

    def __init__(
        self,
        store: Store,
        lease: Lease,
        *,
        heard: Callable[[Beat], None],
        fenced: Callable[[FencedOut], None],
        limits: Limits = LIMITS,
    ) -> None:
        self._store, self._lease, self._limits = store, lease, limits
        self._heard, self._tell_fenced = heard, fenced
        self.fenced: FencedOut | None = None
        """Set when another process has the run."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"heart-{lease.run}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join(5.0)

    def _beat(self) -> None:
        silent = False
        while not self._stop.wait(self._limits.lease / PER_LEASE):
            try:
                beat = self._store.heartbeat(self._lease, limits=self._limits)
            except FencedOut as error:
                self.fenced = error
                self._tell_fenced(error)
                return
            except RunFailed as error:  # the database is away: training goes on, the next beat tries again
                if not silent:
                    log.warning("no heartbeat: %s", error.what)
                silent = True
                continue
            silent = False
            self._heard(beat)
