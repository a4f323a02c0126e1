"""The judge's ends of a run's streams: read as they fill, kept up to a cap."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import socket
from collections.abc import Callable

from jurat.verifiers.sandbox.program import Limits

STDERR_BYTES = 64 << 10
"""Kept of standard error: the first half and the last."""
_STDERR_FLOOD = 64
"""Standard error of this many times ``output_bytes`` ends a run: reading it costs the judge."""
_CHUNK, _CHUNKS = 1 << 16, 16
"""Read at once, and how often before other runs get their turn."""


class Capped:
    """The first ``first`` bytes and the last ``last`` of what was fed."""

    def __init__(self, first: int, last: int = 0) -> None:
        self._first, self._last = first, last
        self._head, self._tail = bytearray(), bytearray()
        self.total = 0

    def feed(self, data: bytes) -> None:
        self.total += len(data)
        room = self._first - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data and self._last:
            self._tail += data
            if len(self._tail) > 2 * self._last:
                del self._tail[: -self._last]

    @property
    def cut(self) -> bool:
        return self.total > self._first + self._last

    def held(self) -> bytes:
        tail = self._tail[-self._last :] if self._last else b""
        return bytes(self._head) + (b"\n[...]\n" if self.cut and self._last else b"") + bytes(tail)


class Ends:
    """Pipes for standard output and error, and a channel where there is one. ``theirs`` are for the program, in the order
    of its descriptors; who made this closes them."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, channel: bool, limits: Limits, overflow: Callable[[str], None]
    ) -> None:
        self._loop, self._overflow, self._most = loop, overflow, limits.output_bytes
        self.stdout, self.stderr = Capped(limits.output_bytes), Capped(STDERR_BYTES // 2, STDERR_BYTES // 2)
        self._channel: socket.socket | None = None
        self._read = 0
        self._partial: list[bytes] = []
        self._lines: collections.deque[bytes] = collections.deque()
        self._ended = not channel
        self._waiter: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        made: list[int] = []
        try:
            for _ in range(2):
                made += os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            self._out, out, self._err, err = made
            for fd in (out, err):
                os.set_blocking(fd, True)
            self.theirs = [out, err]
            if channel:
                self._channel, other = socket.socketpair()
                self._channel.setblocking(False)
                self.theirs.insert(0, other.detach())
        except OSError:
            for fd in made:
                os.close(fd)
            raise

    def listen(self) -> None:
        self._loop.add_reader(self._out, self._pump, self._out)
        self._loop.add_reader(self._err, self._pump, self._err)
        if self._channel is not None:
            self._loop.add_reader(self._channel.fileno(), self._hear)

    def _pump(self, fd: int) -> bool:
        """Read what there is. False when there is no more to come."""
        for _ in range(_CHUNKS):
            try:
                data = os.read(fd, _CHUNK)
            except (BlockingIOError, InterruptedError):
                return True
            if not data:
                with contextlib.suppress(RuntimeError):
                    self._loop.remove_reader(fd)
                return False
            if fd == self._out:
                self.stdout.feed(data)
                if self.stdout.total > self._most:
                    self._overflow("stdout")
            else:
                self.stderr.feed(data)
                if self.stderr.total > _STDERR_FLOOD * self._most:
                    self._overflow("stderr")
            if len(data) < _CHUNK:
                return True
        return True

    def drain(self) -> None:
        """What is left when all that could write is gone: no more than the pipes hold."""
        for fd in (self._out, self._err):
            self._pump(fd)
        if self._channel is not None and not self._ended:
            self._hear()

    def close(self) -> None:
        for fd in (self._out, self._err):
            with contextlib.suppress(RuntimeError):
                self._loop.remove_reader(fd)
            os.close(fd)
        if self._channel is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.remove_reader(self._channel.fileno())
                self._room()
            self._channel.close()
            self._channel = None
        self._ended = True
        self._wake()

    def cut(self) -> tuple[str, ...]:
        cuts = {"stdout": self.stdout.cut, "stderr": self.stderr.cut, "channel": self._read > self._most}
        return tuple(name for name, cut in cuts.items() if cut)

    # -- channel

    def _hear(self) -> None:
        assert self._channel is not None
        for _ in range(_CHUNKS):
            try:
                data = self._channel.recv(_CHUNK)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                data = b""
            if not data:
                self._ended = True
                self._loop.remove_reader(self._channel.fileno())
                break
            self._read += len(data)
            if self._read > self._most:
                self._overflow("channel")
                self._ended = True
                self._loop.remove_reader(self._channel.fileno())
                break
            *whole, rest = data.split(b"\n")
            if whole:
                self._lines.append(b"".join(self._partial) + whole[0])
                self._lines.extend(whole[1:])
                self._partial.clear()
            if rest:
                self._partial.append(rest)
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done() and not self._loop.is_closed():
            waiter.set_result(None)

    async def line(self) -> bytes:
        while not self._lines:
            if self._ended:
                raise EOFError("the program has closed its channel")
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._lines.popleft()

    async def send(self, data: bytes) -> None:
        if self._channel is None:
            if self._ended:
                return
            raise ValueError("a script has no channel")
        view = memoryview(data)
        while view and self._channel is not None:  # SIGPIPE would end a judge that has its default
            try:
                view = view[self._channel.send(view, socket.MSG_NOSIGNAL) :]
            except (BlockingIOError, InterruptedError):
                self._writable = self._loop.create_future()
                self._loop.add_writer(self._channel.fileno(), self._room)
                await self._writable
            except OSError:
                return  # it has gone; ``line`` says so

    def _room(self) -> None:
        waiter, self._writable = self._writable, None
        if self._channel is not None:
            self._loop.remove_writer(self._channel.fileno())
        if waiter is not None and not waiter.done() and not self._loop.is_closed():
            waiter.set_result(None)

    def shut(self) -> None:
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.shutdown(socket.SHUT_WR)
