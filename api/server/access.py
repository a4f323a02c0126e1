"""Who may call: keys remembered for a few seconds, failed ones counted, and what was refused or changed noted."""

from __future__ import annotations

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

CACHE_SECONDS = 5.0
"""How long a key that was found is believed without another look: another process's revocation takes this long."""
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
        return key is not None and time.monotonic() - at <= CACHE_SECONDS and not (key.expires and key.expires <= now())

    def any(self) -> bool:
        return self._store.read(access.any_key)

    def forget(self) -> None:
        """After a revocation by this process."""
        with self._lock:
            self._known.clear()


def blotted(text: str) -> str:
    """Without keys and without control characters: for logs and the audit."""
    kept = SHAPE.sub("jurat_[...]", visible(text))
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in kept)
