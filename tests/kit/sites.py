"""A service in a process of its own, to be killed, and the processes that it launched."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from jurat.client import Client


class Site:
    """A service on its home, killed and started anew."""

    def __init__(self, home: Path, *, tries: int) -> None:
        self.home = home
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        self.client = Client(f"http://127.0.0.1:{self.port}", tries=tries)
        self.process: subprocess.Popen[bytes] | None = None
        self._workers: list[psutil.Process] = []

    def launch(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start the service by ``command``, with these variables too; what it says goes to ``service.log``."""
        with open(self.home / "service.log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **(environment or {})})

    def kill(self) -> None:
        assert self.process is not None
        self._note_workers()
        self.process.kill()
        self.process.wait()

    def _note_workers(self) -> None:
        """The service's own processes, to be looked for when it is dead. A run's process is to outlive it."""
        assert self.process is not None
        with suppress(psutil.Error):
            children = psutil.Process(self.process.pid).children(recursive=True)
            self._workers += [child for child in children if os.getsid(child.pid) == os.getsid(0)]

    def left(self) -> list[int]:
        """Processes of this site that should be gone: what a dead service started, and what trains."""
        alive = [
            worker.pid for worker in self._workers if worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE
        ]
        return [*alive, *self.trainers()]

    def trainers(self) -> list[int]:
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            line = process.info["cmdline"] or []
            if str(self.home) in line and "train" in line and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        return found
