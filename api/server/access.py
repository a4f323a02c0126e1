"""Who may call: keys remembered for a second, failed ones counted, and what was refused or changed noted."""

from __future__ import annotations

import math
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from jurat.api.server.keys import SHAPE
from jurat.platform import access
from jurat.platform.access import Key
from jurat.platform.db.tables import visible
from jurat.platform.db.writer import Busy, Writer
from jurat.platform.runs.store import Store, now

LOOK_SECONDS = 1.0
"""How long what was found is believed without another look: another process's first key and its revocations take this long."""
CACHED = 1000
USED_EVERY = 60_000_000
"""Microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who calls."""

    name: str
    """``local``, ``key:<key id>`` or ``run:<run>``."""
    scopes: frozenset[str]
    run: str | None = None
    """Of a run token: it may write to this run, under this epoch, and do nothing else."""
    epoch: int | None = None

    def may(self, scope: str) -> bool:
        return scope in self.scopes or "admin" in self.scopes

    def holds(self, run: str) -> bool:
        return self.run == run


LOCAL = Principal(name="local", scopes=frozenset(access.SCOPES))


class Keys:
    """Safe to use from several threads."""

    def __init__(self, store: Store, writer: Writer) -> None:
        self._store, self._writer = store, writer
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, Key]] = {}
        self._any, self._looked = False, -math.inf

    def principal(self, shown: str) -> Principal | None:
        """Who shows this key; None for one that is unknown, wrong, revoked or past its time."""
        with self._lock:
            _, key = self._known.get(shown, (0.0, None))
        if key is None or not self.fresh(shown):
            key = self._store.read(lambda connection: access.check_key(connection, shown))
            if key is None:
                return None
            with self._lock:
                if len(self._known) >= CACHED:
                    self._known.clear()
                self._known[shown] = (time.monotonic(), key)
            if now() - (key.last_used or 0) > USED_EVERY:
                used = key.key_id
                with suppress(Busy):  # its next use is noted
                    self._writer.leave(
                        lambda connection: access.note_use(connection, used), f"noting the use of key {used}"
                    )
        if key.run_id is not None:
            return Principal(name=f"run:{key.run_id}", scopes=frozenset(), run=key.run_id, epoch=key.epoch)
        return Principal(name=f"key:{key.key_id}", scopes=frozenset(key.scopes))

    def fresh(self, shown: str) -> bool:
        """Whether ``principal`` knows this key without a look."""
        with self._lock:
            at, key = self._known.get(shown, (0.0, None))
        return key is not None and time.monotonic() - at <= LOOK_SECONDS and not (key.expires and key.expires <= now())

    def any(self) -> bool:
        """Whether there is a key, or was one since this process began."""
        with self._lock:
            if self._any or time.monotonic() - self._looked <= LOOK_SECONDS:
                return self._any
            self._looked = time.monotonic()
        found = self._store.read(access.any_key)
        with self._lock:
            self._any = self._any or found
            return self._any

    def forget(self) -> None:
        """After this process made or revoked a key."""
        with self._lock:
            self._known.clear()
            self._looked = -math.inf


def blotted(text: str) -> str:
    """Without keys and without control characters: for logs and the audit."""
    kept = SHAPE.sub("jurat_[...]", visible(text))
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in kept)
