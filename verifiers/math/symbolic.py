"""SymPy as the last resort, in a child process that can be killed.

The child is started only when it is first needed, with SymPy imported before its first request, and a warm spare
stands by. A question is a pair of trees as JSON, never text that SymPy would parse. The answer is "equal" or
"unknown"; at the deadline, counted from the moment the question is sent, the process group is killed. A lost child
costs one question.

No signals are used in this process: any thread may ask.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from jurat.verifiers.math.points import integer_names
from jurat.verifiers.math.tree import Node, walk

SOFT_SECONDS = 0.15
"""Time for the work itself."""
CALL_SECONDS = 0.2
"""Time for the whole call, waiting for the child included."""
MAX_JOBS = 2000
MAX_NODES = 200
_CHILD = Path(__file__).with_name("sympy_child.py")


class Child:
    """One SymPy process and its pipes."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(_CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.buffer = b""
        self.ready = False
        self.jobs = 0

    def line(self, deadline: float) -> dict | None:
        """The next reply, or None at the deadline or when the child has died."""
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        while b"\n" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                return None
            piece = os.read(fd, 65536)
            if not piece or len(self.buffer) > 1 << 20:
                return None
            self.buffer += piece
        first, self.buffer = self.buffer.split(b"\n", 1)
        reply = json.loads(first)
        return reply if isinstance(reply, dict) else None

    def is_ready(self, deadline: float) -> bool:
        if not self.ready:
            self.ready = self.line(deadline) is not None
        return self.ready

    def ask(self, request: dict, deadline: float) -> dict | None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            return None
        self.jobs += 1
        return self.line(deadline)

    def kill(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    pass
        self.process.wait()


class Symbolic:
    """A working child and a spare."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.owner = os.getpid()
        self.working: Child | None = None
        self.spare: Child | None = None
        self.questions = self.killed = 0

    def equal(self, a: Node, b: Node) -> bool | None:
        """True if SymPy shows a = b within the time; None otherwise."""
        nodes = list(walk(a)) + list(walk(b))
        if len(nodes) > MAX_NODES:
            return None
        start = time.monotonic()
        end = start + CALL_SECONDS
        if not self.lock.acquire(timeout=CALL_SECONDS):
            return None
        try:
            self._own()
            child = self.working or self._start()
            if not child.is_ready(end):
                if child.process.poll() is not None:
                    self._replace()
                return None
            self.questions += 1
            integers = sorted(integer_names(a) | integer_names(b))
            request = {"id": self.questions, "a": data(a), "b": data(b), "integers": integers}
            reply = child.ask(request, min(end, time.monotonic() + SOFT_SECONDS))
            if reply is None or reply.get("id") != self.questions:
                self.killed += 1
                self._replace()
                return None
            if child.jobs >= MAX_JOBS:
                self._replace()
            return True if reply.get("equal") is True else None
        finally:
            self.lock.release()

    def warm(self, seconds: float = 10.0) -> bool:
        """Starts the child and its spare and waits until the child is ready."""
        with self.lock:
            self._own()
            return (self.working or self._start()).is_ready(time.monotonic() + seconds)

    def close(self) -> None:
        with self.lock:
            if os.getpid() == self.owner:
                for child in (self.working, self.spare):
                    if child is not None:
                        child.kill()
            self.working = self.spare = None

    def _own(self) -> None:
        """After a fork the children belong to the parent: forget them."""
        if os.getpid() != self.owner:
            self.owner, self.working, self.spare = os.getpid(), None, None

    def _start(self) -> Child:
        self.working = Child()
        self.spare = Child()
        return self.working

    def _replace(self) -> None:
        if self.working is not None:
            self.working.kill()
        self.working, self.spare = self.spare or Child(), Child()


def data(node: Node) -> list:
    """The tree as nested lists."""
    value = list(node.value) if isinstance(node.value, tuple) else node.value
    return [node.kind, value, [data(arg) for arg in node.args]]


SYMPY = Symbolic()
atexit.register(SYMPY.close)
