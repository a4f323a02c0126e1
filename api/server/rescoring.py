"""Re-scorings that are asked for over HTTP: one at a time, each ``jurat rescore`` in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from jurat.api.server.executor import kept_environment
from jurat.api.server.launcher import why
from jurat.api.server.problems import Problem
from jurat.platform.runs import rescores
from jurat.platform.runs.store import Store

STOP_SECONDS = 10.0


class Rescorings:
    """Safe to use from several threads."""

    def __init__(self, store: Store, files: Sequence[str] = ()) -> None:
        self._store, self._files = store, tuple(files)
        self._lock = threading.Lock()
        self._name = ""
        self._child: subprocess.Popen[bytes] | None = None
        self._watch: threading.Thread | None = None

    def start(self, name: str, words: Sequence[str], database: str | None) -> None:
        """Nothing where this one goes on already. Raises Problem where another one does."""
        with self._lock:
            if self._child is not None and self._child.poll() is None:
                if self._name == name:
                    return
                raise Problem(
                    "conflict", f"re-scoring {self._name} goes on; one at a time", headers={"Retry-After": "30"}
                )
            log = self._store.home / "logs" / f"{name}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, "-m", "jurat", "--home", str(self._store.home), "rescore", *words]
            command += [word for file in self._files for word in ("--file", file)]
            with log.open("wb") as out:
                child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
                    env=_environment(database),
                )  # fmt: skip
            self._name, self._child = name, child
            self._watch = threading.Thread(target=self._ended, args=(name, child, log), daemon=True)
            self._watch.start()

    def _ended(self, name: str, child: subprocess.Popen[bytes], log: Path) -> None:
        if child.wait():
            self._store.write(lambda connection: rescores.never_began(connection, name, why(log)))

    def close(self) -> None:
        """What goes on is interrupted: the same request takes it up again."""
        with self._lock:
            child, watch = self._child, self._watch
        if child is None or watch is None:
            return
        if child.poll() is None:
            child.send_signal(signal.SIGINT)
            try:
                child.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
        watch.join()


def _environment(database: str | None) -> Mapping[str, str]:
    kept = kept_environment()
    kept.pop("JURAT_FAULT", None)
    return kept | ({} if database is None else {"JURAT_DATABASE": database})
