"""The warm process of a slot: makes a place that programs cannot leave, then runs one after another in copies of itself.

Started as ``python -s -S -P zygote.py FD`` with an empty environment; FD is a SOCK_SEQPACKET socket to the judge. First
message in: the set-up, JSON. First message out: what was found, or what failed. Then for each run: limits and four
descriptors in (payload, stdin or channel, stdout, stderr), and one packed ``STATUS`` out. A ``kill`` message ends the run
under way. The end of the socket ends everything.

Nothing of a program passes through here, as what did would stay in this heap and be copied into every later run.
"""

from __future__ import annotations

import importlib
import sys

if __name__ == "__main__":
    # Started by path: its siblings are found in a package of another name, which runs nothing of the real one.
    _package = type(sys)("_jurat_box")
    _package.__path__ = [__file__.rpartition("/")[0]]
    sys.modules["_jurat_box"] = _package
    importlib.import_module("_jurat_box.zygote").main()

import _socket
import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import struct
import time
from typing import Any, NoReturn

from . import mounts, syscalls, worker
from .place import WORK, Box, Failed

_NEWNS, _NEWIPC, _NEWPID, _PIDFD = 0x20000, 0x8000000, 0x20000000, 0x1000
STATUS = "=BBiiddq"
"""How a run ended: whether the program was begun, whether it was killed for its wall time, exit code or -1, signal or 0,
wall seconds, CPU seconds, peak resident bytes. What failed follows, if it was not begun."""
_IDLE_MS = 5_000


def main() -> NoReturn:
    control = _socket.socket(fileno=int(sys.argv[1]))
    config = json.loads(control.recv(1 << 16))
    try:
        # What the judge ignores, blocks or keeps to itself is handed down.
        os.umask(0o022)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        for number in (
            signal.SIGINT,
            signal.SIGCHLD,
            signal.SIGTERM,
            signal.SIGALRM,
            signal.SIGHUP,
            signal.SIGXCPU,
        ):
            signal.signal(number, signal.SIG_DFL)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
        box = Box(config)
        gc.collect()
        gc.freeze()
        gc.disable()
    except Failed as fault:
        control.send(json.dumps({"failed": str(fault)}).encode())
        os._exit(0)
    except Exception as fault:  # whatever it is, the judge says it
        control.send(json.dumps({"failed": f"{type(fault).__name__}: {fault}"[:1000]}).encode())
        os._exit(0)
    control.send(json.dumps({"ready": box.probes}).encode())
    parent = os.getppid()
    poll = select.poll()
    poll.register(control.fileno(), select.POLLIN)
    while True:
        if not poll.poll(_IDLE_MS):
            if os.getppid() != parent:
                os._exit(0)
            continue
        message, fds = _receive(control)
        if not message:
            os._exit(0)
        if not fds:
            continue  # a kill that came after the end of its run
        if not _serve(box, control, json.loads(message), fds):
            os._exit(0)


def _receive(control: _socket.socket) -> tuple[bytes, list[int]]:
    message, extra, _, _ = control.recvmsg(4096, 64)
    fds: list[int] = []
    for level, kind, data in extra:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            fds.extend(struct.unpack(f"{len(data) // 4}i", data))
    return message, fds


def _serve(box: Box, control: _socket.socket, limits: dict[str, Any], fds: list[int]) -> bool:
    """One run. False when the judge has gone."""
    box.others()  # here, not in each child: it remembers for a while
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
    pid, pidfd = _spawn(box, limits, fds, ours, theirs)
    began = time.monotonic()
    theirs.close()
    for fd in fds:
        os.close(fd)
    ours.send(b"G")
    over, here = False, True
    deadline = began + limits["wall"]
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.register(control.fileno(), select.POLLIN)
    while True:
        left = deadline - time.monotonic()
        ready = poll.poll(max(0.0, left * 1000.0)) if left > 0 else []
        if any(fd == pidfd for fd, _ in ready):
            break
        over = not ready
        if ready:
            here = bool(control.recv(16))
        _kill(box, pid, pidfd)
        break
    _, status, used = os.wait4(pid, 0)
    seconds = time.monotonic() - began
    os.close(pidfd)
    begun, status, trouble = _report(ours, box, status)
    if box.level == "rlimits":
        _sweep(pid)
    code, number = (os.WEXITSTATUS(status), 0) if os.WIFEXITED(status) else (-1, os.WTERMSIG(status))
    if here:
        cpu, peak = used.ru_utime + used.ru_stime, used.ru_maxrss << 10
        control.send(struct.pack(STATUS, begun, over, code, number, seconds, cpu, peak) + trouble)
    return here


def _spawn(
    box: Box, limits: dict[str, Any], fds: list[int], ours: _socket.socket, theirs: _socket.socket
) -> tuple[int, int]:
    """The pid and pidfd of what is started: init of its own PID namespace at level ns, else the worker itself."""
    if box.level == "ns":
        held = ctypes.c_int(-1)
        flags = _NEWPID | _NEWNS | _NEWIPC | _PIDFD | 17  # SIGCHLD
        pid = syscalls.call("clone", flags, 0, ctypes.addressof(held))
        if pid:
            return pid, held.value
    else:
        pid = os.fork()
        if pid:
            return pid, os.pidfd_open(pid)
    try:
        _child(box, limits, fds, ours, theirs)
    except BaseException as fault:
        with contextlib.suppress(BaseException):
            theirs.send(f"F{type(fault).__name__}: {fault}"[:200].encode())
    finally:
        os._exit(70)


def _child(box: Box, limits: dict[str, Any], fds: list[int], ours: _socket.socket, theirs: _socket.socket) -> None:
    syscalls.call("prctl", 1, 9)  # PR_SET_PDEATHSIG
    ours.close()
    if not theirs.recv(1):  # the zygote died before that
        os._exit(70)
    payload, *streams = fds
    for target, fd in enumerate(streams):
        os.dup2(fd, target)
    if box.level != "ns":
        if box.level == "rlimits":
            os.chdir(_scratch(os.getpid(), make=True))
        else:
            os.chdir("/")
        worker.live(payload, theirs.fileno(), limits, box)
    if limits["writable"]:
        mounts.mount(
            "tmpfs",
            WORK,
            "tmpfs",
            mounts.NOSUID | mounts.NODEV,
            f"size={max(limits['file_bytes'], 4096)},nr_inodes=512,mode=700",
        )
        os.chdir(WORK)
    os.setsid()
    pid = os.fork()
    if pid == 0:
        worker.live(payload, theirs.fileno(), limits, box)
    report = os.dup(theirs.fileno())
    os.closerange(0, 3)
    while True:
        done, status = os.wait()
        if done == pid:
            break
    os.write(report, struct.pack("=i", status))
    os._exit(0)


def _report(ours: _socket.socket, box: Box, status: int) -> tuple[bool, int, bytes]:
    """Whether the program was begun, its wait status, and what failed if it was not."""
    ours.setblocking(False)
    said = b""
    with contextlib.suppress(BlockingIOError):
        while got := ours.recv(512):
            said += got
    ours.close()
    begun = said[:1] == b"S"
    if box.level == "ns" and begun and len(said) >= 5:
        (status,) = struct.unpack("=i", said[1:5])
    return begun, status, b"" if begun else said[1:]


def _kill(box: Box, pid: int, pidfd: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        if box.level == "rlimits":
            os.killpg(pid, signal.SIGKILL) if _leads(pid) else None
        syscalls.call("pidfd_send_signal", pidfd, 9, 0, 0)


def _leads(pid: int) -> bool:
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return False


def _scratch(pid: int, *, make: bool = False) -> str:
    path = f"/tmp/jurat-run-{pid}"
    if make:
        os.mkdir(path, 0o700)
    return path


def _sweep(pid: int) -> None:
    """At level rlimits: what the run left in its own folder and its own process group. The rest stays, that is the level."""
    import shutil

    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    shutil.rmtree(_scratch(pid), ignore_errors=True)
