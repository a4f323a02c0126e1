"""What broke the sandbox once, each as small as it gets."""

from __future__ import annotations

from jurat.verifiers.sandbox import Limits, Program, Sandbox

LIMITS = Limits(wall_seconds=30.0)
HEAD = """
import ctypes, os, threading
libc = ctypes.CDLL(None, use_errno=True)
"""


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
    libc.syscall(436, 1000, 0xFFFFFFFF, 2)  # close_range, CLOSE_RANGE_UNSHARE
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
    assert await says(sandbox, "print(libc.syscall(56, 0x10900, 0, 0, 0, 0), ctypes.get_errno())") == "-1 1\n"


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
    print(libc.clock_gettime(clock, ctypes.create_string_buffer(16)), libc.syscall(222, clock, 0, ctypes.byref(made)))
else:
    print(-1, -1)  # init of the namespace is nobody
import time
time.process_time(), time.thread_time(), time.sleep(0), time.clock_gettime(time.CLOCK_MONOTONIC)
""",
    )
    assert found == "-1 -1\n"
