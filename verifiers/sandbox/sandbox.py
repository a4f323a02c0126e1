"""The judge's side: slots of warm zygotes, and a run on one of them, from any event loop, without a thread for each."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import hashlib
import json
import os
import struct
import sys
import threading
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib import metadata
from typing import Any

from jurat.verifiers.sandbox import typed
from jurat.verifiers.sandbox.levels import choose
from jurat.verifiers.sandbox.program import Isolation, Level, Limits, Outcome, Program
from jurat.verifiers.sandbox.slot import NotReady, SandboxUnavailable, Setup, Zygote
from jurat.verifiers.sandbox.streams import Ends

_HEAD = 256
"""As in ``worker.HEAD``, which is for the child's side and is not imported here."""
_STATUS = struct.Struct("=BBiiddq")
_GRACE = 5.0
"""Seconds past the wall limit after which a zygote that says nothing is given up."""
_TRIES = 3
_REMEMBERED = 256
"""Limits whose fingerprint is kept."""
_NEARLY = 0.75
"""Of its CPU time: the kernel kills by counting ticks and reports by the clock."""
_SIGSYS, _SIGKILL = 31, 9


class Sandbox:
    """Runs programs apart. May be used from several event loops and threads; ``close`` ends its processes.

    ``level``: ``auto`` takes the strongest that works here, never ``rlimits``. ``strict`` refuses ``rlimits`` by name
    too. ``slots``: programs at once, default the CPUs of this process. ``preload``: modules that each slot has imported
    before, which are the only installed packages that a program can import. ``runs_per_zygote``: then it is replaced.

    Example::

        async with Sandbox() as sandbox:
            outcome = await sandbox.run(Program(text="print(1 + 1)"))
    """

    def __init__(
        self, level: Level | str = "auto", *, strict: bool = True, slots: int | None = None, preload: Sequence[str] = (),
        runs_per_zygote: int = 2_000,
    ) -> None:  # fmt: skip
        self._asked, self._strict, self._preload = level, strict, tuple(preload)
        self._runs_per_zygote = runs_per_zygote
        self.slots = slots or (
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        )
        self._locks: dict[int, threading.Lock] = {}
        self._pid = os.getpid()
        self._closed = False
        self._level: Level | None = None
        self._probes: dict[str, str] = {}
        self._isolations: dict[Limits, Isolation] = {}
        self._free: list[Slot] = [Slot(index) for index in range(self.slots)]
        self._all = list(self._free)
        self._waiting: collections.deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[Slot]]] = collections.deque()

    @property
    def _lock(self) -> threading.Lock:
        """Of this process: in a copy of it, that of the first may be held by a thread that is not there."""
        return self._locks.setdefault(os.getpid(), threading.Lock())

    # -- what it is

    @property
    def isolation(self) -> Isolation:
        """Under the default limits. Finds the level first, which takes a moment. Raises SandboxUnavailable."""
        self._prepare()
        return self.isolation_of(Limits())

    def isolation_of(self, limits: Limits) -> Isolation:
        found = self._isolations.get(limits)
        if found is None:
            if self._level is None:
                raise SandboxUnavailable("the sandbox has not been set up yet", fix="await a run, or read .isolation")
            known = [self._level, self._probes, asdict(limits), sys.version, _versions(self._preload)]
            text = json.dumps(known, sort_keys=True)
            found = Isolation(
                level=self._level, probes=self._probes, fingerprint=hashlib.sha256(text.encode()).hexdigest()[:16]
            )
            if len(self._isolations) >= _REMEMBERED:
                self._isolations.clear()
            self._isolations[limits] = found
        return found

    @property
    def processes(self) -> tuple[int, ...]:
        """Process ids of its zygotes that live."""
        return tuple(slot.zygote.pid for slot in self._all if slot.zygote is not None)

    def _prepare(self) -> None:
        with self._lock:
            if self._pid != os.getpid():
                self._forked()
            if self._closed:
                raise _closed()
            if self._level is None:
                found = choose(self._asked, strict=self._strict)
                self._hold(found.level, found.found)

    def _hold(self, level: Level, probes: Mapping[str, str]) -> None:
        self._probes = {key: probes[key] for key in sorted(probes) if key != "uid"}
        self._level = level

    def _forked(self) -> None:
        """In a copy of the process that made it: the zygotes are that one's."""
        for slot in self._all:
            slot.abandon()
        self._pid = os.getpid()
        self._free = [Slot(index) for index in range(self.slots)]
        self._all = list(self._free)
        self._waiting.clear()

    # -- running

    async def start(self, program: Program, limits: Limits | None = None) -> Run:
        """When a slot is free. ``wait`` for it, or ``kill`` it: it holds the slot until it has ended.
        Raises SandboxUnavailable."""
        limits = limits or Limits()
        if self._level is None or self._pid != os.getpid() or self._closed:
            await asyncio.to_thread(self._prepare)
        assert self._level is not None
        if self._level != "ns" and self._level != "rlimits" and limits.writable:
            limits = replace(limits, writable=False)
        slot = await self._acquire()
        try:
            for attempt in range(_TRIES):
                zygote = slot.zygote
                if zygote is None:
                    try:
                        zygote = await asyncio.to_thread(self._zygote_of, slot)
                    except (NotReady, OSError) as fault:
                        if attempt == _TRIES - 1:
                            raise SandboxUnavailable(str(fault), where=f"level {self._level}") from fault
                        continue
                if self._closed:
                    raise _closed()
                run = Run(self, slot, zygote, program, limits, self.isolation_of(limits))
                try:
                    run.begin()
                    return run
                except OSError as fault:
                    slot.discard()
                    zygote.close()  # another thread may have taken it from the slot
                    if attempt == _TRIES - 1:
                        raise SandboxUnavailable(f"no zygote takes a run: {fault}", where="sandbox") from fault
        except BaseException:
            self._release(slot)
            raise
        raise AssertionError

    async def run(self, program: Program, limits: Limits | None = None) -> Outcome:
        """To its end; a run that was lost to our own trouble is tried again. Cancelling kills it."""
        for _ in range(_TRIES):
            run = await self.start(program, limits)
            outcome = await run.wait()
            if outcome.ending != "infra_error":
                break
        return outcome

    def run_sync(self, program: Program, limits: Limits | None = None) -> Outcome:
        """``run`` for code without an event loop."""
        return asyncio.run(self.run(program, limits))

    async def run_batch(
        self, programs: Iterable[Program], limits: Limits | None = None, *, in_flight: int | None = None
    ) -> AsyncIterator[tuple[int, Outcome]]:
        """(index, outcome) of each program as it ends; reads ``programs`` no faster than ``in_flight`` runs (default:
        twice the slots) take them. Closing the iterator kills what runs."""
        source = enumerate(programs)
        tasks: dict[asyncio.Task[Outcome], int] = {}
        most = in_flight or 2 * self.slots
        try:
            while True:
                while len(tasks) < most and (entry := next(source, None)) is not None:
                    tasks[asyncio.ensure_future(self.run(entry[1], limits))] = entry[0]
                if not tasks:
                    return
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    yield tasks.pop(task), task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # -- slots

    def _zygote_of(self, slot: Slot) -> Zygote:
        """Its own, or a new one. In a thread, which ends even where who waits for it is cancelled."""
        assert self._level is not None
        with slot.lock:
            if slot.zygote is not None:
                return slot.zygote
            made = Zygote(Setup(level=self._level, preload=self._preload))
            with self._lock:
                if not self._closed:
                    slot.zygote = made
                    return made
            made.close()
            raise _closed()

    async def _acquire(self) -> Slot:
        loop = asyncio.get_running_loop()
        self._rescue()
        with self._lock:
            if self._free:
                slot = self._free.pop()
                slot.loop = loop
                return slot
            waiter: asyncio.Future[Slot] = loop.create_future()
            self._waiting.append((loop, waiter))
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._release(waiter.result())
            raise

    def _rescue(self) -> None:
        """Take back the slots whose event loop was closed under a run."""
        with self._lock:
            dead = [slot for slot in self._all if slot.loop is not None and slot.loop.is_closed()]
            for slot in dead:
                slot.loop = None
        for slot in dead:
            held = slot.run is not None
            slot.discard()
            if not held:
                self._release(slot)

    def _release(self, slot: Slot) -> None:
        zygote = slot.zygote
        if zygote is not None and (zygote.runs >= self._runs_per_zygote or self._closed):
            slot.discard()
        if self._pid != os.getpid():
            return
        with self._lock:
            slot.loop = None
            while self._waiting:
                loop, waiter = self._waiting.popleft()
                with contextlib.suppress(RuntimeError):  # that loop is closed
                    slot.loop = loop
                    loop.call_soon_threadsafe(self._hand_over, slot, waiter)
                    return
                slot.loop = None
            self._free.append(slot)

    def _hand_over(self, slot: Slot, waiter: asyncio.Future[Slot]) -> None:
        if waiter.done():
            self._release(slot)
        else:
            waiter.set_result(slot)

    def close(self) -> None:
        """Ends all its processes, and the runs under way."""
        with self._lock:
            self._closed = True
            slots = list(self._all)
        for slot in slots:
            slot.discard()

    async def __aenter__(self) -> Sandbox:
        return self

    async def __aexit__(self, *fault: object) -> None:
        self.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *fault: object) -> None:
        self.close()


class Slot:
    """A place for one run at a time."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.lock = threading.Lock()
        self.zygote: Zygote | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.run: Run | None = None

    def discard(self) -> None:
        """End the process, and the run under way as lost; the next run gets another."""
        zygote, self.zygote = self.zygote, None
        if zygote is None:
            return
        if self.run is None:
            zygote.close()
        elif self.run.here():
            self.run.lost("the sandbox was closed")
        else:
            zygote.hang_up()  # its own event loop hears of it, and may close what it listens to

    def abandon(self) -> None:
        if self.zygote is not None:
            self.zygote.close()
        self.zygote = None


class Run:
    """A program under way: ``program.Running``. Used by the event loop that started it."""

    def __init__(
        self, sandbox: Sandbox, slot: Slot, zygote: Zygote, program: Program, limits: Limits, isolation: Isolation
    ) -> None:
        self._sandbox, self._slot, self._zygote = sandbox, slot, zygote
        self._program, self._limits, self._isolation = program, limits, isolation
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[Outcome] = self._loop.create_future()
        self._killed = self._over = False
        self._overflow = ""
        self._page = -1
        self._timer: asyncio.TimerHandle | None = None
        self._ends: Ends | None = None

    def begin(self) -> None:
        """Make the payload and the streams, hand them over, listen. Raises OSError."""
        program, limits = self._program, self._limits
        self._slot.run = self  # from here on other threads leave what it listens to alone
        try:
            self._give(program, limits)
        except BaseException:
            self._slot.run = None
            raise
        assert self._ends is not None
        self._ends.listen()
        self._loop.add_reader(self._zygote.control.fileno(), self._reported)
        self._timer = self._loop.call_later(limits.wall_seconds + _GRACE, self._overdue)

    def _give(self, program: Program, limits: Limits) -> None:
        self._page = os.memfd_create("run")
        opened: list[int] = [self._page]
        try:
            head = json.dumps({"role": program.role, "entry": program.entry}).encode()
            _fill(self._page, b"\0" * _HEAD, head, b"\n", program.text.encode("utf-8", "surrogatepass"))
            self._ends = Ends(self._loop, channel=program.role != "script", limits=limits, overflow=self._too_much)
            opened += self._ends.theirs
            if program.role == "script":
                stdin = os.memfd_create("stdin")
                opened.append(stdin)
                _fill(stdin, program.stdin)
                os.lseek(stdin, 0, os.SEEK_SET)
                streams = [stdin, *self._ends.theirs]
            else:
                streams = self._ends.theirs
            self._zygote.begin(_wire(limits), [self._page, *streams])
        except BaseException:
            if self._ends is not None:
                self._ends.close()
            for fd in opened:
                os.close(fd)
            raise
        for fd in opened[1:]:
            os.close(fd)

    async def send(self, message: Any) -> None:
        """One value into the channel. Raises typed.Untyped; a program that has ended takes it without a word."""
        assert self._ends is not None
        await self._ends.send(typed.encode(message) + b"\n")

    async def receive(self) -> Any:
        """The next value. Raises EOFError, or typed.Untyped (a ValueError) for a line that is none."""
        assert self._ends is not None
        return typed.decode(await self._ends.line(), size=self._limits.output_bytes, depth=typed.MAX_DEPTH + 2)

    def end(self) -> None:
        """No more will be sent: a program that serves ends by itself when it has answered."""
        assert self._ends is not None
        self._ends.shut()

    def kill(self) -> None:
        if not self._over:
            self._killed = True
            self._zygote.kill_run()

    async def wait(self) -> Outcome:
        """Its outcome. Cancelling kills it and returns when nothing of it is left."""
        try:
            return await asyncio.shield(self._ended)
        except asyncio.CancelledError:
            self.kill()
            try:
                await asyncio.shield(self._ended)
            except asyncio.CancelledError:
                self.lost("cancelled twice")
            raise

    # -- ends

    def _too_much(self, stream: str) -> None:
        self._overflow = self._overflow or stream
        if not self._over:
            self._zygote.kill_run()

    def _overdue(self) -> None:
        self.lost("the zygote did not end the run at its limit")

    def _reported(self) -> None:
        try:
            said = self._zygote.control.recv(1024)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            said = b""
        if len(said) < _STATUS.size:
            self.lost("the zygote died")
            return
        begun, over, code, signal, seconds, cpu, peak = _STATUS.unpack(said[: _STATUS.size])
        ending, detail = self._judged(begun, over, code, signal, cpu, said[_STATUS.size :].decode("ascii", "replace"))
        self._finish(
            ending=ending, detail=detail, exit_code=code if code >= 0 else None, signal=signal or None, seconds=seconds,
            cpu_seconds=cpu, memory_bytes=peak,
        )  # fmt: skip

    def _judged(self, begun: int, over: int, code: int, signal: int, cpu: float, trouble: str) -> tuple[str, str]:
        assert self._ends is not None
        self._ends.drain()
        if self._overflow:
            return "output_limit", self._overflow
        if self._killed:
            return "timeout", "killed by the judge"
        if not begun:
            return "infra_error", trouble or "it ended before the program was begun"
        if over:
            return "timeout", f"{self._limits.wall_seconds} s"
        if signal == _SIGSYS:
            return "forbidden", "a system call that no program may make (SIGSYS)"
        if signal == _SIGKILL and cpu >= _NEARLY * self._limits.cpu_seconds:
            return "cpu_limit", f"{self._limits.cpu_seconds} s"
        if signal:
            return "crash", f"signal {signal}"
        if code == 0:
            return "finished", ""
        said = os.pread(self._page, _HEAD, 0)
        name = said[1:].split(b"\0")[0].decode("ascii", "replace")
        name = "".join(c if c.isprintable() else "?" for c in name)
        if said[:1] == b"C":
            return "compile_error", name
        if said[:1] == b"M":
            return "memory_limit", name
        return "exception", name if said[:1] == b"E" else f"exit status {code}"

    def here(self) -> bool:
        """Whether it may be touched now: from its own event loop, or when that is closed."""
        return self._loop.is_closed() or asyncio._get_running_loop() is self._loop

    def lost(self, why: str) -> None:
        """Nothing more will be heard of it."""
        if self._over:
            return
        with contextlib.suppress(OSError, RuntimeError):
            self._loop.remove_reader(self._zygote.control.fileno())
        if self._slot.zygote is self._zygote:
            self._slot.zygote = None
        self._zygote.close()
        self._finish(ending="infra_error", detail=why)

    def _finish(self, **found: Any) -> None:
        assert self._ends is not None
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._zygote.control.fileno() >= 0:
            with contextlib.suppress(RuntimeError):
                self._loop.remove_reader(self._zygote.control.fileno())
        self._ends.close()
        os.close(self._page)
        self._slot.run = None
        outcome = Outcome(
            isolation=self._isolation, stdout=self._ends.stdout.held(), stderr=self._ends.stderr.held(), cut=self._ends.cut(),
            **found,
        )  # fmt: skip
        if not self._loop.is_closed():
            self._ended.set_result(outcome)
        self._sandbox._release(self._slot)


def _closed() -> SandboxUnavailable:
    return SandboxUnavailable("the sandbox is closed", fix="make a new one")


def _fill(fd: int, *parts: bytes) -> None:
    view = memoryview(b"".join(parts))
    while view:
        view = view[os.write(fd, view) :]


def _wire(limits: Limits) -> dict[str, Any]:
    return {
        "wall": limits.wall_seconds, "cpu": max(1, -int(-limits.cpu_seconds // 1)), "memory_bytes": limits.memory_bytes,
        "file_bytes": limits.file_bytes, "open_files": limits.open_files, "processes": limits.processes,
        "writable": limits.writable,
    }  # fmt: skip


def _versions(preload: Sequence[str]) -> dict[str, str]:
    made = {}
    for name in preload:
        try:
            made[name] = metadata.version(name.split(".")[0])
        except metadata.PackageNotFoundError:
            made[name] = ""
    return made
