"""Processes on this machine that each host one rank, and how they are asked, watched and ended.

A process is asked by (method, arguments) on a socket and answers once; between, it says every second that it lives and
how far it is. So a rank that died, one that was stopped and a group that stands still are told apart, and none of them
hangs the run. Messages are pickled by ``multiprocessing``: both ends are one run's (decisions/0002).
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from jurat.platform import faults
from jurat.platform.errors import JuratError, RunFailed

BEAT = 1.0
"""Seconds between signs of life."""
SILENCE = 60.0
"""Seconds without a sign of life after which a process counts as stopped."""
PATIENCE = 600.0
"""Seconds in which no rank gets any further after which a group counts as hung."""
START = 600.0
"""Seconds that imports may take."""
GRACE = 5.0
"""Seconds in which the other ranks may answer once one has raised: it may be the peer of one that died."""
LAST_LINES = 4
RESUME = "resume the run (jurat train --resume RUN): it goes on from its last checkpoint"
NEEDED = (
    "torch.distributed.fsdp", "torch.distributed.tensor.parallel", "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto", "jurat.engine.fsdp.worker",
)  # fmt: skip
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
"""Ranks of one machine meet there, whatever its host name resolves to."""


class RanksLost(RunFailed):
    """One died, was stopped, or none got any further, and all were ended: new ones may get through."""


class Processes:
    """``count`` processes, each with an object of ``host`` (``module:class``, made without arguments) to call.

    They are forked from one that has imported the host's module and, with ``preload``, called its ``prepare()``: what
    takes seconds to import is imported once. (Not for GPUs: CUDA does not survive a fork.)
    """

    def __init__(
        self,
        count: int,
        *,
        host: str = "jurat.engine.fsdp.processes:Host",
        preload: bool = True,
        env: Mapping[str, str] | None = None,
        silence: float = SILENCE,
        patience: float = PATIENCE,
    ) -> None:
        self.silence, self.patience, self.grace = silence, patience, GRACE
        self._folder = tempfile.TemporaryDirectory(prefix="jurat-ranks-")
        self.folder = Path(self._folder.name)
        """For what the processes share; goes when they do."""
        self.failed, self.moves = "", 0
        self._sending = ThreadPoolExecutor(count, thread_name_prefix="ranks")  # a stopped process does not read
        pairs = [socket.socketpair() for _ in range(count + 1)]
        theirs = [their.fileno() for _, their in pairs]
        with open(self.folder / "start.log", "wb") as log:
            self._parent = subprocess.Popen(
                [sys.executable, "-P", "-m", "jurat.engine.fsdp.processes", host, str(int(preload)), str(self.folder),
                 *map(str, theirs)],
                env={**LOOPBACK, **os.environ, **(env or {})}, pass_fds=theirs,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        for _, their in pairs:
            their.close()
        self._news, *self._pipes = [Connection(ours.detach()) for ours, _ in pairs]
        self._ended: dict[int, int] = {}
        self.pids: list[int] = []
        try:
            if not self._news.poll(START):
                raise EOFError
            self.pids = self._news.recv()
        except (EOFError, ConnectionResetError):
            raise self._give_up("the learner's ranks did not start", log="start.log", kind=RunFailed) from None

    def call(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call ``method`` on the first ``len(arguments)`` hosts at once; what each returned, in order.

        Raises a host's JuratError as it is where every rank has answered. Otherwise, and if a rank dies, is stopped, or
        none gets any further, all processes are ended and RunFailed names the rank, with its last words; RanksLost where
        no rank has raised an error.
        """
        if self.failed:
            raise RanksLost(f"the learner's ranks have ended: {self.failed}", fix=RESUME)
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
                    self.moves += 1
            now = time.monotonic()
            for rank in waiting:
                if now > seen[rank] + self.silence:
                    what = f"rank {rank} has given no sign of life for {self.silence:g} s in {method}"
                    raise self._give_up(what, log=f"rank-{rank}.log")
            if now > moved + self.patience:
                what = f"no rank has got any further for {self.patience:g} s in {method}"
                raise self._give_up(what, log=f"rank-{min(waiting)}.log")
        if errors:
            rank, error = min(errors.items())
            if not waiting and all(isinstance(each, JuratError) for each in errors.values()):
                raise error
            what = f"rank {rank} failed in {method}: {error}"
            raise self._give_up(what, log=f"rank-{rank}.log", kind=RunFailed) from error
        return [answers[rank] for rank in range(len(arguments))]

    def meeting(self) -> str:
        """A new place where ranks find one another."""
        return f"file://{self.folder / uuid.uuid4().hex}"

    def close(self) -> None:
        """End all processes; what they share is removed."""
        self.failed = self.failed or "closed"
        for pipe in self._pipes:
            pipe.close()  # a host reads the end of its socket and leaves
        for end in (self._kill, self._parent.kill, lambda: None):
            with suppress(subprocess.TimeoutExpired):
                self._parent.wait(3)  # it leaves after its children
                break
            end()
        self._news.close()
        self._sending.shutdown(wait=False, cancel_futures=True)
        self._folder.cleanup()

    # ---- failing ----

    def _dead(self, rank: int, method: str) -> RunFailed:
        deadline = time.monotonic() + 5
        while rank not in self._ended and self._news.poll(max(0.0, deadline - time.monotonic())):
            self._hear()
        status = self._ended.get(rank)
        how = "is gone" if status is None else f"ended with code {status}"
        if status is not None and status < 0:
            how = f"was killed by {signal.Signals(-status).name}"
        return self._give_up(f"rank {rank} {how} during {method}", log=f"rank-{rank}.log")

    def _give_up(self, what: str, *, log: str, kind: type[RunFailed] = RanksLost) -> RunFailed:
        words = (self.folder / log).read_text(errors="replace").strip().splitlines()[-LAST_LINES:]
        said = "; its last words: " + " | ".join(words) if words else ""
        self.failed = what
        self._kill()
        self.close()
        return kind(what + said, where="the learner's ranks", fix=RESUME)

    def _kill(self) -> None:
        while self._news.poll():
            if not self._hear():
                break
        for rank, pid in enumerate(self.pids):
            if rank not in self._ended:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if not self.pids:
            self._parent.kill()

    def _hear(self) -> bool:
        """Take one piece of news: which rank ended, and how."""
        try:
            rank, status = self._news.recv()
        except (EOFError, ConnectionResetError):
            return False
        self._ended[rank] = status
        return True


def _send(pipe: Connection, message: Any) -> None:
    with suppress(OSError):  # it has ended, which whoever waits for the answer finds out
        pipe.send(message)


# ---- in a process --------------------------------------------------------------------------------------------------


class Host:
    """Opens and closes a rank and a critic's beside it; everything else (``update``, ``critic.update``) is asked of them."""

    def __init__(self) -> None:
        self.ranks: dict[str, Any] = {}
        self.progress = 0

    @staticmethod
    def prepare() -> None:
        """Import what a rank needs."""
        for name in NEEDED:
            importlib.import_module(name)

    def open(self, spec: Any) -> Any:
        from jurat.engine.fsdp.worker import Rank

        return self._opened("", Rank(spec, self._tick))

    def open_critic(self, spec: Any) -> Any:
        from jurat.engine.fsdp.worker import Rank

        return self._opened("critic", Rank(spec, self._tick, policy=self.ranks[""]))

    def _opened(self, role: str, rank: Any) -> Any:
        self.ranks[role] = rank
        return rank.network.shapes, rank.network.layout

    def shut(self) -> None:
        """Leave the group; the process can be opened again."""
        while self.ranks:
            self.ranks.popitem()[1].close()  # the policy's last: it ends the group

    def _tick(self) -> None:
        self.progress += 1

    def __getattr__(self, name: str) -> Any:
        role, _, method = name.rpartition(".")
        return getattr(self.ranks[role], method)


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
        faults.point("rank.asked")
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
            faults.point("rank.before_answer")
            say("answer", answer)


def main() -> None:
    """``HOST PRELOAD FOLDER FD FD...``: fork a host for each descriptor but the first, on which to say who has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    module, _, name = sys.argv[1].partition(":")
    kind = getattr(importlib.import_module(module), name)
    if sys.argv[2] == "1":
        kind.prepare()
    news, *pipes = [Connection(int(fd)) for fd in sys.argv[4:]]
    ranks: dict[int, int] = {}
    for rank, pipe in enumerate(pipes):
        pid = os.fork()
        if pid == 0:
            log = os.open(f"{sys.argv[3]}/rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            for other in (news, *pipes):
                if other is not pipe:
                    other.close()
            os.environ["JURAT_FAULT"] = os.environ.get("JURAT_FAULT", "").removeprefix(f"rank{rank}@")
            serve(pipe, kind())
        ranks[pid] = rank
    for pipe in pipes:
        pipe.close()
    threading.Thread(target=_outlived, args=(news, ranks), daemon=True).start()
    with suppress(OSError):  # the driver has ended, and so will they
        news.send(list(ranks))
    while ranks:
        pid, status = os.wait()
        with suppress(OSError):
            news.send((ranks.pop(pid), os.waitstatus_to_exitcode(status)))
    if news.poll():  # the driver has ended without it
        shutil.rmtree(sys.argv[3], ignore_errors=True)


def _outlived(news: Connection, ranks: Mapping[int, int]) -> None:
    """End the ranks with the driver, one that is stopped too: it does not read the end of its socket."""
    news.poll(None)  # nothing is ever said here
    for pid in list(ranks):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
