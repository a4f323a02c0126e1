"""The parent's side: one thread owns all worker processes and their pipes; any thread may submit and wait.

A task is given to an idle process, so its deadline runs from the start of the work and never from queueing. Past it the
process and its descendants get SIGKILL, a spare that is already warm takes the place, and another spare is started. On
Linux each process has a guard, its parent, which adopts and kills what becomes an orphan. There are no signals in this
process, no fork without exec, and no event loop: futures are ``concurrent.futures.Future``, which asyncio and plain
threads both await.

What this does not cover: a verifier is its user's own code, not hostile code. It has the user's files and network. Code
written by a model belongs in the code sandbox.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import math
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jurat.platform.errors import ConfigError, RunFailed
from jurat.verifiers.pool.frames import Reader, pack

LOADING = "JURAT_LOADING_VERIFIERS"
"""In the environment of a worker while it loads a user's files: starting workers then would never end."""
_TOO_MANY = 20
"""Weight of failed starts in a row from which tasks are answered ``infra``: a start that is killed weighs 1 (something
else kills), one that exits 7 (it will again)."""
_RETRY_SECONDS = 5.0
"""Between attempts from then on."""
_SENT = frozenset({"SIGKILL", "SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT"})
"""Signals that come from outside (the system out of memory, a scheduler, a person), unless the verifier sends them."""
_GUARD_SECONDS = 3.0
"""For a worker's guard to kill what is left and end; then it is killed too."""
_TAIL = 2_000
"""Characters kept of what a worker printed."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one worker process may use."""

    memory_bytes: int = 2 * 2**30
    """Address space above what loading took (Linux)."""
    output_bytes: int = 2**20
    """Printed during one task; more is an error."""
    tasks_per_process: int = 2_000
    """A process is replaced after this many tasks."""
    growth_bytes: int = 500 * 2**20
    """A process is replaced when its resident memory has grown by this much."""
    start_seconds: float = 120.0
    """For start-up and the user's imports."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a user's verifiers come from. Example: ``Origin(kind="file", value="/home/me/my_rules.py")``."""

    kind: str
    """``file`` or ``module``."""
    value: str
    path: tuple[str, ...] = ()
    """Folders that the child must be able to import from."""

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "value": self.value, "path": list(self.path)}


@dataclass(frozen=True, kw_only=True)
class Task:
    """One call of one verifier: a JSON request and the seconds it may take."""

    request: dict[str, Any]
    deadline: float


@dataclass(frozen=True, kw_only=True)
class Answered:
    """The worker replied: ``reply`` holds ``result``, ``refused`` or ``error``."""

    reply: dict[str, Any]
    seconds: float
    printed: str = ""


@dataclass(frozen=True, kw_only=True)
class Broken:
    """No reply. ``kind``: timeout (killed at the deadline), died, killed (by a signal that this pool did not send),
    output, nonsense, infra (none starts), closed."""

    kind: str
    why: str
    seconds: float = 0.0
    printed: str = ""


Outcome = Answered | Broken


@dataclass(eq=False)
class _Worker:
    process: subprocess.Popen[bytes]
    requests: int
    replies: int
    log: int
    pidfd: int | None
    started: float
    reader: Reader = field(default_factory=Reader)
    outbox: memoryview = field(default_factory=lambda: memoryview(b""))
    ready: bool = False
    job: _Job | None = None
    began: float = 0.0
    printed: int = 0
    tail: bytes = b""
    tasks: int = 0
    first_rss: int | None = None


@dataclass(eq=False)
class _Job:
    id: int
    task: Task
    frame: bytes
    future: Future[Outcome]


class Pool:
    """Worker processes that load ``origins``. Close it, or use it as a context manager.

    ``workers`` processes work at once; ``spares`` more stand ready. ``submit`` may be called from any thread; each
    future gets exactly one outcome.
    """

    def __init__(
        self, origins: Sequence[Origin] = (), *, workers: int = 1, spares: int = 1, limits: Limits | None = None
    ) -> None:
        if workers < 1:
            raise ConfigError(f"workers is at least 1, got {workers}", where="reward.workers")
        if LOADING in os.environ:
            raise ConfigError(
                "a file of verifiers starts a judge while it is loaded", where="a worker process",
                fix='put what runs, and does not define, under `if __name__ == "__main__":`',
            )  # fmt: skip
        self._core = _Core(tuple(origins), workers, spares, limits or Limits())
        self._thread = threading.Thread(target=self._core.run, name="jurat-pool", daemon=True)
        self._thread.start()
        # The thread holds the core alone, so a pool that nobody refers to any more is closed.
        self._finalizer = weakref.finalize(self, self._core.close)

    def describe(self) -> list[dict[str, Any]]:
        """What the first worker loaded, an entry a verifier. Raises ConfigError if the user's code fails to load."""
        described: list[dict[str, Any]] = self._core.loaded.result()
        return described

    def submit(self, task: Task) -> Future[Outcome]:
        """A future of the task's outcome; it never holds an exception. Cancelling one that has not begun drops it."""
        return self._core.submit(task)

    def resize(self, workers: int) -> None:
        """From now on so many work at once. Processes that are too many stand by, and are not replaced when they end."""
        self._core.resize(workers)

    def pids(self) -> list[int]:
        """Processes alive now, spares included; on Linux the guards of the workers."""
        return self._core.pids()

    def close(self) -> None:
        """Kill all workers; tasks not finished get ``Broken(kind="closed")``. Idempotent."""
        self._finalizer()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Core:
    """State of the pool; everything but ``submit``, ``pids`` and ``close`` runs in its one thread."""

    def __init__(self, origins: tuple[Origin, ...], workers: int, spares: int, limits: Limits) -> None:
        self.origins, self.width, self.total, self.limits = origins, workers, workers + spares, limits
        self.inbox: collections.deque[_Job] = collections.deque()
        self.queue: collections.deque[_Job] = collections.deque()
        self.loaded: Future[list[dict[str, Any]]] = Future()
        self._workers: list[_Worker] = []
        self._dying: list[tuple[subprocess.Popen[bytes], float]] = []
        """Processes told to end, and when they are killed if they have not."""
        self._ids = itertools.count(1)
        self._selector = selectors.DefaultSelector()
        self._bell, self._ring = socket.socketpair()
        self._bell.setblocking(False)
        self._ring.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ, None)
        self._lock = threading.Lock()
        self._closed = False
        self._home = os.getpid()
        self._failures = 0
        self._last_failure = ""
        self._retry_at = 0.0

    # -- from any thread --

    def submit(self, task: Task) -> Future[Outcome]:
        if os.getpid() != self._home:
            raise RunFailed(
                f"this pool belongs to process {self._home}, not to its forked child {os.getpid()}", where="Pool",
                fix="build the judge, or the pool, in the child",
            )  # fmt: skip
        future: Future[Outcome] = Future()
        number = next(self._ids)
        job = _Job(number, task, pack({**task.request, "id": number}), future)
        with self._lock:
            closed = self._closed
            if not closed:
                self.inbox.append(job)
        if closed:
            future.set_result(Broken(kind="closed", why="the pool is closed"))
        else:
            self._wake()
        return future

    def resize(self, workers: int) -> None:
        with self._lock:
            self.width, self.total = workers, self.total + workers - self.width
        self._wake()

    def pids(self) -> list[int]:
        return [w.process.pid for w in list(self._workers) if w.process.returncode is None]

    def close(self) -> None:
        if os.getpid() != self._home:
            return
        with self._lock:
            self._closed = True
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            self._ring.send(b"!")

    # -- in the thread --

    def run(self) -> None:
        try:
            while not self._closed:
                self._top_up()
                for key, mask in self._selector.select(self._patience()):
                    if key.data is None:
                        with contextlib.suppress(BlockingIOError):
                            while self._bell.recv(4096):
                                pass
                    else:
                        worker, what = key.data
                        if worker in self._workers:
                            self._handle(worker, what, mask)
                self._expire()
                self._bury()
                self._dispatch()
        finally:
            self._finish()

    def _patience(self) -> float | None:
        now = time.monotonic()
        ends = [
            (w.began + w.job.task.deadline if w.job else w.started + self.limits.start_seconds)
            for w in self._workers
            if w.job or not w.ready
        ]
        if self._failures and self._retry_at < math.inf and len(self._workers) < self.total:
            ends.append(self._retry_at)
        if self._dying:
            ends.append(now + 0.005)
        return max(0.0, min(ends) - now) if ends else None

    def _top_up(self) -> None:
        while len(self._workers) < self.total and time.monotonic() >= self._retry_at:
            try:
                self._workers.append(self._start())
            except OSError as fault:
                self._failed(f"a worker process cannot start: {fault}")

    def _start(self) -> _Worker:
        request_out, request_in = os.pipe()
        reply_out, reply_in = os.pipe()
        log_out, log_in = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "jurat.verifiers.pool.worker", str(request_out), str(reply_in)],
                stdin=subprocess.DEVNULL, stdout=log_in, stderr=log_in, pass_fds=(request_out, reply_in),
                start_new_session=True, env=_environment(),
            )  # fmt: skip
        except OSError:
            for fd in (request_in, reply_out, log_out):
                os.close(fd)
            raise
        finally:
            for fd in (request_out, reply_in, log_in):
                os.close(fd)
        pidfd = None
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                pidfd = os.pidfd_open(process.pid)
        worker = _Worker(process, request_in, reply_out, log_out, pidfd, time.monotonic())
        for fd in (request_in, reply_out, log_out):
            os.set_blocking(fd, False)
        self._selector.register(reply_out, selectors.EVENT_READ, (worker, "reply"))
        self._selector.register(log_out, selectors.EVENT_READ, (worker, "log"))
        if pidfd is not None:
            self._selector.register(pidfd, selectors.EVENT_READ, (worker, "exit"))
        setup = {"origins": [o.to_json() for o in self.origins], "memory_bytes": self.limits.memory_bytes}
        self._send(worker, pack(setup))
        return worker

    def _send(self, worker: _Worker, frame: bytes) -> None:
        worker.outbox = memoryview(frame)
        self._flush(worker)

    def _flush(self, worker: _Worker) -> None:
        try:
            while worker.outbox:
                worker.outbox = worker.outbox[os.write(worker.requests, worker.outbox) :]
        except BlockingIOError:
            pass
        except OSError:
            # The reader is gone; its exit is seen on the other pipes.
            worker.outbox = memoryview(b"")
        waiting = worker.requests in self._selector.get_map()
        if worker.outbox and not waiting:
            self._selector.register(worker.requests, selectors.EVENT_WRITE, (worker, "request"))
        elif waiting and not worker.outbox:
            self._selector.unregister(worker.requests)

    def _handle(self, worker: _Worker, what: str, mask: int) -> None:
        if what == "request":
            self._flush(worker)
        elif what == "log":
            self._hear(worker)
        elif what == "reply":
            self._read(worker)
        else:
            self._read(worker)
            if worker in self._workers:
                self._died(worker)

    def _hear(self, worker: _Worker) -> None:
        try:
            data = os.read(worker.log, 2**16)
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(worker.log)
            return
        worker.printed += len(data)
        worker.tail = (worker.tail + data)[-_TAIL:]
        if worker.job and worker.printed > self.limits.output_bytes:
            self._break(worker, "output", f"printed more than {self.limits.output_bytes} bytes in one call")

    def _read(self, worker: _Worker) -> None:
        while worker in self._workers:
            try:
                data = os.read(worker.replies, 2**16)
            except BlockingIOError:
                return
            if not data:
                if worker.pidfd is None:
                    self._died(worker)
                elif worker.replies in self._selector.get_map():
                    # Its exit, or its deadline, is what tells why.
                    self._selector.unregister(worker.replies)
                return
            try:
                frames = worker.reader.feed(data)
            except ValueError as fault:
                self._break(worker, "nonsense", f"the worker's reply is not a reply: {fault}")
                return
            for frame in frames:
                if worker in self._workers:
                    self._take(worker, frame)

    def _take(self, worker: _Worker, frame: Any) -> None:
        if not worker.ready:
            self._greet(worker, frame)
            return
        job = worker.job
        if job is None or not isinstance(frame, dict) or frame.get("id") != job.id:
            self._break(worker, "nonsense", "the worker answered what was not asked")
            return
        seconds = time.monotonic() - worker.began
        if frame.get("stray"):
            self._break(worker, "died", "left a process running")
            return
        worker.job = None
        worker.tasks += 1
        rss = frame.get("rss")
        if rss is not None:
            worker.first_rss = worker.first_rss or rss
        grown = rss is not None and worker.first_rss is not None and rss - worker.first_rss > self.limits.growth_bytes
        tail = worker.tail.decode("utf-8", "replace") if "error" in frame else ""
        if frame.get("retire") or grown or worker.tasks >= self.limits.tasks_per_process:
            self._kill(worker)
        _resolve(job, Answered(reply=frame, seconds=float(frame.get("seconds", seconds)), printed=tail))

    def _greet(self, worker: _Worker, frame: Any) -> None:
        if "ready" in frame:
            worker.ready, worker.tail, worker.printed = True, b"", 0
            self._failures = 0
            if not self.loaded.done():
                self.loaded.set_result(frame["ready"])
            return
        origin = frame["origin"]
        self._kill(worker)
        what, where, fix = frame["failed"]
        error = ConfigError(f"the verifiers in {origin['value']} do not load: {what}", where=where, fix=fix)
        self._failures, self._retry_at = _TOO_MANY, math.inf
        self._last_failure = error.what
        if not self.loaded.done():
            self.loaded.set_exception(error)

    def _died(self, worker: _Worker) -> None:
        how = _exit_of(worker.process)
        if not worker.ready:
            tail = worker.tail.decode("utf-8", "replace")
            self._kill(worker)
            weight = 1 if how.startswith("by ") else 7
            printed = f": {tail[-500:]}" if tail.strip() else ""
            self._failed(f"a worker process ended {how} while it started{printed}", weight)
        else:
            # A verifier's own fault ends in an exit code or a signal of the processor; these others are sent.
            kind = "killed" if how.removeprefix("by ") in _SENT else "died"
            self._break(worker, kind, f"the verifier's process ended {how}")

    def _failed(self, why: str, weight: int = 7) -> None:
        self._failures += weight
        self._last_failure = why
        broken = self._failures >= _TOO_MANY
        self._retry_at = time.monotonic() + (_RETRY_SECONDS if broken else 0.01 * self._failures)
        if broken and not self.loaded.done():
            files = ", ".join(origin.value for origin in self.origins)
            error = RunFailed(why, where="verifier workers", fix="run jurat doctor")
            if files:
                fix = "look there for what ends the process while it is imported; if nothing does, run jurat doctor"
                error = RunFailed(why, where=files, fix=fix)
            self.loaded.set_exception(error)

    def _break(self, worker: _Worker, kind: str, why: str) -> None:
        job, seconds = worker.job, time.monotonic() - worker.began
        worker.job = None
        tail = worker.tail.decode("utf-8", "replace")
        self._kill(worker)
        if job is not None:
            _resolve(job, Broken(kind=kind, why=why, seconds=seconds, printed=tail))

    def _kill(self, worker: _Worker) -> None:
        """Remove the worker and kill it and its descendants; it is reaped in ``_bury``."""
        self._workers.remove(worker)
        for fd in (worker.requests, worker.replies, worker.log, worker.pidfd):
            if fd is not None:
                if fd in self._selector.get_map():
                    self._selector.unregister(fd)
                os.close(fd)
        for pid in _descendants(worker.process):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        guarded = sys.platform == "linux" and not _has_ended(worker.process)
        if guarded:
            # The guard kills what the worker leaves behind, then ends too.
            worker.process.terminate()
        else:
            _kill_group(worker.process)
        self._dying.append((worker.process, time.monotonic() + (_GUARD_SECONDS if guarded else math.inf)))

    def _expire(self) -> None:
        now = time.monotonic()
        for worker in list(self._workers):
            if worker.job and now >= worker.began + worker.job.task.deadline:
                limit = worker.job.task.deadline
                self._break(worker, "timeout", f"killed at its deadline of {limit:g} s")
            elif not worker.ready and now >= worker.started + self.limits.start_seconds:
                self._kill(worker)
                self._failed(f"a worker process did not start in {self.limits.start_seconds:g} s")

    def _bury(self) -> None:
        now = time.monotonic()
        left = []
        for process, until in self._dying:
            if not _has_ended(process):
                if now >= until:
                    _kill_group(process)
                    until = math.inf
                left.append((process, until))
                continue
            _kill_group(process)
            process.wait()
        self._dying = left

    def _dispatch(self) -> None:
        while self.inbox:
            self.queue.append(self.inbox.popleft())
        if not self.queue:
            return
        if self._failures >= _TOO_MANY and not any(w.ready for w in self._workers):
            while self.queue:
                _resolve(self.queue.popleft(), Broken(kind="infra", why=self._last_failure))
            return
        busy = sum(1 for w in self._workers if w.job)
        for worker in list(self._workers):
            if not self.queue or busy >= self.width:
                return
            if worker.ready and worker.job is None:
                job = self._next()
                if job is None:
                    return
                worker.job, worker.began, worker.printed, worker.tail = job, time.monotonic(), 0, b""
                self._send(worker, job.frame)
                busy += 1

    def _next(self) -> _Job | None:
        while self.queue:
            job = self.queue.popleft()
            if job.future.set_running_or_notify_cancel():
                return job
        return None

    def _finish(self) -> None:
        with self._lock:
            self._closed = True
        for worker in list(self._workers):
            self._break(worker, "closed", "the pool was closed")
        for job in [*self.queue, *self.inbox]:
            _resolve(job, Broken(kind="closed", why="the pool was closed"))
        self.queue.clear()
        self.inbox.clear()
        end = time.monotonic() + 5.0
        while self._dying and time.monotonic() < end:
            self._bury()
            time.sleep(0.001)
        if not self.loaded.done():
            self.loaded.set_exception(RunFailed("the pool was closed", where="verifier workers"))
        self._selector.close()
        self._bell.close()
        self._ring.close()


def _resolve(job: _Job, outcome: Outcome) -> None:
    if job.future.done() or (not job.future.running() and not job.future.set_running_or_notify_cancel()):
        return
    job.future.set_result(outcome)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Where the system can tell without reaping it, it is not reaped: its id still names its group."""
    if process.returncode is not None or not hasattr(os, "waitid"):
        return process.poll() is not None
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return process.poll() is not None


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    # A leader that is not reaped keeps its id, so that it cannot name another group.
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _exit_of(process: subprocess.Popen[bytes]) -> str:
    """How it ended. Where the system can tell without reaping it, it is not reaped, so that its group is killed safely."""
    if not hasattr(os, "waitid"):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.2)
        ended_with = process.returncode
        if ended_with is None or ended_with >= 0:
            return f"with exit code {ended_with}"
        return f"by {signal.Signals(-ended_with).name}"
    for _ in range(100):
        ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is not None:
            code = ended.si_status
            return f"with exit code {code}" if ended.si_code == os.CLD_EXITED else f"by {signal.Signals(code).name}"
        time.sleep(0.002)
    return "its pipe"


def _descendants(process: subprocess.Popen[bytes]) -> list[int]:
    if process.returncode is not None:
        return []
    import psutil

    try:
        return [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    except psutil.Error:
        return []


def _environment() -> dict[str, str]:
    """The parent's, with this jurat importable and one thread for numeric libraries: workers are the parallelism."""
    import jurat

    root = str(Path(jurat.__file__).resolve().parent.parent)
    given = os.environ.get("PYTHONPATH")
    return {
        "OMP_NUM_THREADS": "1",
        **os.environ,
        "PYTHONPATH": root + (os.pathsep + given if given else ""),
        "PYTHONUNBUFFERED": "1",
        LOADING: "1",
    }
