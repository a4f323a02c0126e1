"""What broke the sandbox once, each as small as it gets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import select
import subprocess
import sys
import time

import pytest

from jurat.verifiers.sandbox import Limits, Program, Sandbox, SandboxUnavailable
from jurat.verifiers.sandbox.levels import probe
from jurat.verifiers.sandbox.syscalls import NUMBERS

LIMITS = Limits(wall_seconds=30.0)
HEAD = """
import ctypes, os, threading
libc = ctypes.CDLL(None, use_errno=True)
""" + "".join(f"{name} = {NUMBERS.get(name)}\n" for name in ("close_range", "clone", "timer_create"))


@pytest.fixture(params=["ns", "seccomp"])
def level(request: pytest.FixtureRequest) -> str:
    if not probe(request.param).works:
        pytest.skip(f"{request.param}: {probe(request.param).missing}")
    return request.param


async def says(sandbox: Sandbox, text: str) -> str:
    outcome = await sandbox.run(Program(text=HEAD + text), LIMITS)
    assert outcome.ending == "finished", outcome
    return outcome.stdout.decode()


async def test_threads_share_one_table_of_descriptors(sandbox: Sandbox) -> None:
    """Else each has ``open_files`` of its own, and 2000 sockets hold most of a GB that no limit counts."""
    found = await says(
        sandbox,
        """
held = []
def fill():
    libc.syscall(close_range, 1000, 0xFFFFFFFF, 2)  # CLOSE_RANGE_UNSHARE
    try:
        while True:
            held.append(os.dup(0))
    except OSError:
        pass
threads = [threading.Thread(target=fill) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(held))
""",
    )
    assert int(found) <= LIMITS.open_files


async def test_no_thread_without_the_table(sandbox: Sandbox) -> None:
    """CLONE_VM, CLONE_SIGHAND and CLONE_THREAD without CLONE_FILES, and a stack that cannot be: EPERM comes before EFAULT."""
    assert await says(sandbox, "print(libc.syscall(clone, 0x10900, 0, 0, 0, 0), ctypes.get_errno())") == "-1 1\n"


async def test_nothing_out_of_band(sandbox: Sandbox) -> None:
    found = await says(
        sandbox,
        """
import socket
left, right = socket.socketpair()
for act in (lambda: left.send(b"x", socket.MSG_OOB), lambda: left.sendmsg([b"x"], [], socket.MSG_OOB),
            lambda: right.recv(1, socket.MSG_OOB), lambda: right.recvmsg(1, 0, socket.MSG_OOB)):
    try:
        print(act())
    except OSError as fault:
        print(fault.errno)
left.send(b"x")
print(right.recv(2))
""",
    )
    assert found.split() == ["1", "1", "1", "1", "b'x'"]


async def test_clocks_of_other_processes(sandbox: Sandbox) -> None:
    """Their CPU time is theirs; a timer on it costs them."""
    found = await says(
        sandbox,
        """
made = ctypes.c_int()
if os.getppid() > 1:
    clock = (~os.getppid() << 3) | 2
    print(libc.clock_gettime(clock, ctypes.create_string_buffer(16)), libc.syscall(timer_create, clock, 0, ctypes.byref(made)))
else:
    print(-1, -1)  # init of the namespace is nobody
import time
time.process_time(), time.thread_time(), time.sleep(0), time.clock_gettime(time.CLOCK_MONOTONIC)
""",
    )
    assert found == "-1 -1\n"


async def test_all_threads_that_are_promised(sandbox: Sandbox) -> None:
    """Each took 72 MB of address space: 8 of stack, as much as the judge's ``ulimit -s``, and 64 of the C library's."""
    text = "go = threading.Event()\nthreads = [threading.Thread(target=go.wait) for _ in range({})]\n"
    text += (
        "[thread.start() for thread in threads]\ngo.set()\n[thread.join() for thread in threads]\nprint(len(threads))"
    )
    assert await says(sandbox, text.format(LIMITS.processes - 1)) == "31\n"


# ---- the judge ---------------------------------------------------------------------------------------------------


async def test_no_descriptors_left(sandbox: Sandbox) -> None:
    """A judge that runs out of them keeps those that it had."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    await sandbox.run(Program(text=""))
    for room in range(1, 8):
        before, had = count(), len(sandbox.processes)
        highest = max(map(int, os.listdir("/proc/self/fd")))
        held = [os.dup(0) for _ in range(highest + 1 - before)]  # no holes below the limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + room, hard))
        try:
            with contextlib.suppress(SandboxUnavailable):
                await sandbox.run(Program(text=""))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in held:
                os.close(fd)
        end = time.monotonic() + 20
        while count() - len(sandbox.processes) != before - had:  # one that has just ended closes its own a moment later
            assert time.monotonic() < end, room
            await asyncio.sleep(0.01)
    assert (await sandbox.run(Program(text="print(1)"))).stdout == b"1\n"


async def test_nothing_begins_after_the_close(level: str) -> None:
    sandbox = Sandbox(level, slots=1)
    first = await sandbox.start(Program(text="while True: pass"), LIMITS)
    waiting = [asyncio.ensure_future(sandbox.run(Program(text="print(1)"))) for _ in range(3)]
    await asyncio.sleep(0)
    sandbox.close()
    assert (await first.wait()).ending == "infra_error"
    said = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(fault) for fault in said] == [SandboxUnavailable] * 3
    assert sandbox.processes == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="without root, programs have the judge's own user")
async def test_judges_do_not_share_users() -> None:
    """Else the threads of one's programs count against the limit of the other's, and right programs fail."""
    if not probe("seccomp").works:
        pytest.skip(probe("seccomp").missing)
    with Sandbox("seccomp", slots=1) as one, Sandbox("seccomp", slots=1) as other:
        assert await says(one, "print(os.getuid())") != await says(other, "print(os.getuid())")


async def test_less_than_was_promised_is_no_verdict(level: str) -> None:
    """A judge that is limited itself: a right program would have no memory, and fail."""
    wanted = resource.RLIMIT_NOFILE
    limits = Limits(open_files=resource.getrlimit(wanted)[1] + 1, wall_seconds=30.0)
    with Sandbox(level, slots=1) as sandbox:
        outcome = await sandbox.run(Program(text="print(1)"), limits)
    assert outcome.ending == "infra_error" and outcome.detail.endswith(" is wanted")


APART = r"""
import asyncio, ctypes, os, resource, select, signal, sys, threading
from jurat.verifiers.sandbox import Limits, Program, Sandbox, SandboxUnavailable

level, what = sys.argv[1:]

def alone():
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True

async def cancels():
    sandbox = Sandbox(level, slots=2)
    await asyncio.to_thread(sandbox._prepare)
    for _ in range(3):
        runs = [asyncio.ensure_future(sandbox.run(Program(text=""))) for _ in range(6)]
        await asyncio.sleep(0.01)
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
    assert (await sandbox.run(Program(text="print(1)"))).stdout == b"1\n"
    sandbox.close()

def forks():
    sandbox = Sandbox(level, slots=1)
    sandbox.run_sync(Program(text=""))
    held, forked = threading.Event(), threading.Event()

    def hold():  # a thread of the first process, in the middle of something
        with sandbox._lock:
            held.set()
            forked.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    forked.set()
    if child == 0:
        said = sandbox.run_sync(Program(text="print(1)")).stdout
        sandbox.close()
        os._exit(0 if said == b"1\n" and alone() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert sandbox.run_sync(Program(text="print(1)")).stdout == b"1\n"
    sandbox.close()

async def dies():
    sandbox = Sandbox(level, slots=1)
    await sandbox.start(Program(text="while True: pass"), Limits(wall_seconds=300.0, cpu_seconds=300.0))
    if os.fork() == 0:  # holds all that its parent held
        input()
        os._exit(0)
    print(sandbox.processes[0], flush=True)
    os.kill(os.getpid(), 9)

async def leaves():
    sandbox = Sandbox(level, slots=1)
    run = await sandbox.start(Program(text="raise SystemExit", role="serve"))
    gone = select.poll()
    gone.register(run._ends._channel, 0)
    gone.poll()  # before this loop hears of its end
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as many programs of the command line do
    await run.send({"args": []})
    assert (await run.wait()).ending == "finished"
    sandbox.close()

async def narrow():
    from jurat.verifiers.pool.worker import _limit_memory

    _limit_memory(256 << 20)  # as the judge that the verifier ``code`` runs in
    sandbox = Sandbox(level, slots=1)
    assert (await sandbox.run(Program(text="x = bytes(800 << 20)"))).ending == "finished"
    sandbox.close()

async def adopts():
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER, as the first process of a container is
    sandbox = Sandbox(level, slots=1)
    busy = Program(text="import os\nos.write(0, b'1\\n')\nwhile True: pass", role="serve")
    run = await sandbox.start(busy)
    assert await run.receive() == 1
    waiting = asyncio.ensure_future(run.wait())
    for _ in range(2):
        await asyncio.sleep(0)
        waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    run = await sandbox.start(busy)
    assert await run.receive() == 1
    await asyncio.to_thread(sandbox.close)
    await run.wait()

def starves():
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 4, limit[1]))
    sandbox = Sandbox("auto", slots=1)
    try:
        sandbox._prepare()
    except SandboxUnavailable as fault:
        assert "Too many open files" in str(fault)
    else:
        raise AssertionError
    resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert sandbox.run_sync(Program(text="print(1)")).stdout == b"1\n"
    sandbox.close()

made = {"cancels": cancels, "forks": forks, "dies": dies, "leaves": leaves, "narrow": narrow, "adopts": adopts, "starves": starves}[what]()
if made is not None:
    asyncio.run(made)
assert alone()
"""


def apart(level: str, what: str) -> subprocess.Popen[str]:
    paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(
        [sys.executable, "-c", APART, level, what], env=os.environ | paths, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("what", ["cancels", "forks", "leaves", "narrow", "adopts", "starves"])
def test_judges_in_trouble(level: str, what: str) -> None:
    """Cancelled while its zygote starts: left an orphan. Forked while a thread holds a lock: the child waited for ever. With
    the default SIGPIPE: a program that left took it along. With little memory: its programs had no more. First used
    without descriptors: took a weaker level, or none, for ever. As the first process of a container: kept what lost runs left."""
    judge = apart(level, what)
    _, said = judge.communicate(timeout=60)
    assert (judge.returncode, said) == (0, "")


def test_a_judge_that_dies_takes_its_programs_along(level: str) -> None:
    """Though a copy of it holds all its sockets open."""
    judge = apart(level, "dies")
    assert judge.stdout is not None and judge.stdin is not None
    pid = int(judge.stdout.readline())
    try:
        with contextlib.suppress(ProcessLookupError):  # it is gone
            zygote = os.pidfd_open(pid)
            assert select.select([zygote], [], [], 30.0)[0]
            os.close(zygote)
    finally:
        judge.communicate("\n")
