"""Processes on this machine that each host one rank, and how they are asked, watched and ended.

A process is asked by (method, arguments) on a socket and answers once; between, it says every second that it lives and
how far it is. So a rank that died, one that was stopped and a group that stands still are told apart, and none of them
hangs the run. Messages are pickled by ``multiprocessing``: both ends are one run's (decisions/0002).
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from jurat.platform.errors import JuratError, RunFailed

BEAT = 1.0
"""Seconds between signs of life."""
SILENCE = 60.0
"""Seconds without a sign of life after which a process counts as stopped."""
PATIENCE = 600.0
"""Seconds in which no rank gets any further after which a group counts as hung."""
GRACE = 5.0
"""Seconds in which the other ranks may answer once one has raised: it may be the peer of one that died."""
LAST_LINES = 4
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
"""Ranks of one machine meet there, whatever its host name resolves to."""


class Processes:
    """``count`` processes, each with an object of ``host`` (``module:class``, made without arguments) to call."""

    def __init__(
        self,
        count: int,
        *,
        host: str = "jurat.engine.fsdp.processes:Host",
        env: Mapping[str, str] | None = None,
        silence: float = SILENCE,
        patience: float = PATIENCE,
    ) -> None:
        self.silence, self.patience, self.grace = silence, patience, GRACE
        self._folder = tempfile.TemporaryDirectory(prefix="jurat-ranks-")
        self.folder = Path(self._folder.name)
        """For what the processes share; goes when they do."""
        self.failed = ""
        self._sending = ThreadPoolExecutor(count, thread_name_prefix="ranks")  # a stopped process does not read
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pipes: list[Connection] = []
        for rank in range(count):
            ours, theirs = socket.socketpair()
            with theirs, open(self.folder / f"rank-{rank}.log", "wb") as log:
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, "-P", "-m", "jurat.engine.fsdp.processes", host, str(theirs.fileno())],
                        env={**LOOPBACK, **os.environ, **(env or {})}, pass_fds=[theirs.fileno()],
                        stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                    )
                )  # fmt: skip
            self._pipes.append(Connection(ours.detach()))

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def call(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call ``method`` on the first ``len(arguments)`` hosts at once; what each returned, in order.

        Raises a host's JuratError as it is where every rank has answered. Otherwise, and if a rank dies, is stopped, or
        none gets any further, all processes are ended and RunFailed names the rank, with its last words.
        """
        if self.failed:
            raise RunFailed(
                f"the learner's ranks have ended: {self.failed}", fix="start again from the last checkpoint"
            )
        for rank, given in enumerate(arguments):
            self._sending.submit(_send, self._pipes[rank], (method, given))
        answers: dict[int, Any] = {}
        errors: dict[int, Exception] = {}
        waiting = set(range(len(arguments)))
        moved = now = time.monotonic()
        seen, places = dict.fromkeys(waiting, now), dict.fromkeys(waiting, -1)
        while waiting and not (errors and now > moved + self.grace):
            for pipe in wait([self._pipes[rank] for rank in waiting], timeout=BEAT):
                rank = self._pipes.index(pipe)  # type: ignore[arg-type]
                try:
                    kind, value = self._pipes[rank].recv()
                except (EOFError, ConnectionResetError):
                    raise self._dead(rank, method) from None
                seen[rank] = time.monotonic()
                if kind != "at":
                    waiting.discard(rank)
                    (answers if kind == "answer" else errors)[rank] = value
                if kind != "at" or value != places[rank]:
                    places[rank], moved = value if kind == "at" else -1, seen[rank]
            now = time.monotonic()
            for rank in waiting:
                if now > seen[rank] + self.silence:
                    raise self._give_up(
                        f"rank {rank} has given no sign of life for {self.silence:g} s in {method}", rank
                    )
            if now > moved + self.patience:
                raise self._give_up(f"no rank has got any further for {self.patience:g} s in {method}", min(waiting))
        if errors:
            rank, error = min(errors.items())
            if not waiting and all(isinstance(each, JuratError) for each in errors.values()):
                raise error
            raise self._give_up(f"rank {rank} failed in {method}: {error}", rank) from error
        return [answers[rank] for rank in range(len(arguments))]

    def close(self) -> None:
        """End all processes; what they share is removed."""
        self.failed = self.failed or "closed"
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.close()  # a host reads the end of its socket and leaves
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._sending.shutdown(wait=False, cancel_futures=True)
        self._folder.cleanup()

    # ---- failing ----

    def _dead(self, rank: int, method: str) -> RunFailed:
        process = self._processes[rank]
        try:
            code = process.wait(5)
        except subprocess.TimeoutExpired:
            code = None
        how = (
            f"was killed by {signal.Signals(-code).name}"
            if code is not None and code < 0
            else f"ended with code {code}"
        )
        return self._give_up(f"rank {rank} {how} during {method}", rank)

    def _give_up(self, what: str, rank: int) -> RunFailed:
        words = (self.folder / f"rank-{rank}.log").read_text(errors="replace").strip().splitlines()[-LAST_LINES:]
        said = "; its last words: " + " | ".join(words) if words else ""
        self.failed = what
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        self.close()
        return RunFailed(what + said, where="the learner's ranks", fix="start again from the last checkpoint")


def _send(pipe: Connection, message: Any) -> None:
    try:
        pipe.send(message)
    except OSError:
        pass  # it has ended, which whoever waits for the answer finds out


# ---- in a process --------------------------------------------------------------------------------------------------


class Host:
    """Opens and closes a rank; everything else is asked of the rank."""

    def __init__(self) -> None:
        self.rank: Any = None

    def open(self, spec: Any) -> Any:
        from jurat.engine.fsdp.worker import Rank

        self.rank = Rank(spec)
        return self.rank.network.shapes, self.rank.network.layout

    def shut(self) -> None:
        """Leave the group; the process can be opened again."""
        if self.rank is not None:
            self.rank.close()
            self.rank = None

    @property
    def progress(self) -> int:
        return self.rank.progress if self.rank is not None else 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rank, name)


def serve(pipe: Connection, host: Any) -> None:
    """Answer calls until the other end closes."""
    lock = threading.Lock()

    def say(kind: str, value: Any) -> None:
        with lock:
            pipe.send((kind, value))

    def beat() -> None:
        while True:
            time.sleep(BEAT)
            try:
                say("at", host.progress)
            except OSError:
                os._exit(1)  # nobody waits any more, though a collective may

    threading.Thread(target=beat, daemon=True).start()
    while True:
        try:
            method, arguments = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)  # a peer may be gone: leaving its group in order would wait for it
        try:
            answer = getattr(host, method)(*arguments)
        except Exception as error:
            traceback.print_exc()
            sys.stderr.flush()
            told = isinstance(error, JuratError)
            say(
                "error",
                error if told else RuntimeError(f"{type(error).__name__}: {(str(error) or '-').splitlines()[0]}"),
            )
        else:
            say("answer", answer)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    module, _, name = sys.argv[1].partition(":")
    host = getattr(importlib.import_module(module), name)()
    serve(Connection(int(sys.argv[2])), host)


if __name__ == "__main__":
    main()
