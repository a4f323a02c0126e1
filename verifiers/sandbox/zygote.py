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

import _sitebuiltins
import _socket
import builtins
import contextlib
import ctypes
import errno
import gc
import json
import os
import select
import signal
import stat
import struct
import time
from typing import Any, NoReturn

from . import landlock, seccomp, syscalls, worker

_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_PIDFD = 0x1000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
STATUS = "=BBiiddq"
"""How a run ended: whether the program was begun, whether it was killed for its wall time, exit code or -1, signal or 0,
wall seconds, CPU seconds, peak resident bytes. What failed follows, if it was not begun."""
BOX, WORK = "/box", "/box/run"
"""The program's own folder; ``/tmp`` leads there."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_ENVIRON = {"HOME": WORK, "TMPDIR": WORK, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
_IDLE_MS = 5_000
_COUNT_SECONDS = 5.0
"""How long a count of the user's tasks is good for."""
_KERNEL = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])


class Failed(Exception):
    """A step of the set-up: its name, and what the system said."""


class Box:
    """The place, once set up. Read by ``worker.live``."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.level: str = config["level"]
        self.probes: dict[str, str] = {"cgroup": "none"}  # none is used: memory and processes are limited without
        self.kept = 0
        self.ruleset: int | None = None
        self._uid: int = config["uid"]
        self._was = os.geteuid()
        self._counted: tuple[float, int] = (-_COUNT_SECONDS, 0)
        self._preload(config)
        self.mapped = int(_text("/proc/self/statm").split()[0]) * os.sysconf("SC_PAGE_SIZE")
        self._trees, self._hidden = _library()
        if self.level == "ns":
            self._namespaces()
        elif self.level == "seccomp":
            self._own_user()
        if self.level != "rlimits":
            self._lock()
        else:
            self.probes |= {"seccomp": "none", "landlock": "none", "userns": "none"}
        self.probes["uid"] = str(os.geteuid())

    # -- what there is to see

    def _preload(self, config: dict[str, Any]) -> None:
        """Import what programs may want, before anything is taken away: the judge's own packages."""
        sys.path.extend(path for path in config["path"] if path not in sys.path)
        for name in config["preload"]:
            try:
                __import__(name)
            except Exception as fault:
                raise Failed(f"preload {name}: {type(fault).__name__}: {fault}") from None
        places = map(_package_of(config["path"]), list(sys.modules.values()))
        self._packages = sorted({place for place in places if place})
        if not self._packages:
            sys.path[:] = [path for path in sys.path if path not in config["path"]]
        # Started without site, which gives programs these two.
        builtins.exit = _sitebuiltins.Quitter("exit", "Ctrl-D (i.e. EOF)")
        builtins.quit = _sitebuiltins.Quitter("quit", "Ctrl-D (i.e. EOF)")
        os.environ.clear()
        os.environ.update(_ENVIRON | {name: "1" for name in config["single"]})

    # -- level ns

    def _namespaces(self) -> None:
        proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
        apart = _NEWNS | _NEWNET | _NEWIPC | _NEWUTS
        rooted = False
        if self._was == 0:
            with contextlib.suppress(OSError):
                syscalls.call("unshare", apart)
                rooted = True
        if rooted:
            self._root()
            self._become()
            _step("user namespace", lambda: self._user_namespace(proc))
            _step("namespaces inside the user namespace", lambda: syscalls.call("unshare", apart))
        else:
            if self._was == 0:
                self._become()
            _step("user namespace", lambda: self._user_namespace(proc))
            _step("namespaces inside the user namespace", lambda: syscalls.call("unshare", apart))
            self._root()
        os.close(proc)
        with contextlib.suppress(OSError):
            name = ctypes.create_string_buffer(b"sandbox")
            syscalls.call("sethostname", ctypes.addressof(name), 7)
        self.probes |= dict.fromkeys(("userns", "pidns", "netns"), "yes")
        self.probes["mounts"] = "as root" if rooted else "in the user namespace"

    def _become(self) -> None:
        def change() -> None:
            os.setgroups([])
            os.setresgid(self._uid, self._uid, self._uid)
            os.setresuid(self._uid, self._uid, self._uid)
            syscalls.call("prctl", 4, 1)  # PR_SET_DUMPABLE: else /proc/self belongs to root

        _step(f"become user {self._uid}", change)

    def _user_namespace(self, proc: int) -> None:
        uid, gid = os.geteuid(), os.getegid()
        syscalls.call("unshare", _NEWUSER)
        for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {uid} 1"), ("gid_map", f"1000 {gid} 1")):
            fd = os.open(f"self/{name}", os.O_WRONLY, dir_fd=proc)
            try:
                os.write(fd, text.encode())
            finally:
                os.close(fd)

    def _root(self) -> None:
        """A root of tmpfs with read-only views of the interpreter and the libraries, nothing else of the machine."""
        root = "/proc"  # any folder that exists and from which nothing is taken
        _step("private mounts", lambda: _mount("none", "/", None, _REC | _PRIVATE))
        _step("tmpfs", lambda: _mount("tmpfs", root, "tmpfs", _NOSUID | _NODEV, "size=1m,mode=755"))
        for path in self._trees:
            _step(f"bind {path}", lambda path=path: _bind(path, root + path))
        for path in self._hidden:
            _step(f"hide {path}", lambda path=path: _mount("tmpfs", root + path, "tmpfs", _NOSUID | _NODEV, "size=64k"))
        for path in self._packages:
            _step(f"bind {path}", lambda path=path: _bind(path, root + path))
        for path in self._hidden:
            _mount("none", root + path, None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)
        for folder in (BOX, WORK, "/proc", "/dev", "/etc"):
            os.makedirs(root + folder, exist_ok=True)
        if not os.path.lexists(root + "/tmp"):
            os.symlink(WORK, root + "/tmp")

        def pivot() -> None:
            os.chdir(root)
            here = ctypes.create_string_buffer(b".")
            syscalls.call("pivot_root", ctypes.addressof(here), ctypes.addressof(here))
            syscalls.call("umount2", ctypes.addressof(here), 2)
            os.chdir("/")
            _mount("none", "/", None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)

        _step("pivot_root", pivot)

    # -- level seccomp

    def _own_user(self) -> None:
        self.probes |= {"userns": "none", "pidns": "none", "netns": "none"}
        if self._was != 0:
            return
        library = os.path.dirname(os.__file__)
        if not _open_to_all(library):
            # The program needs to read it, and Landlock says what else: that is, nothing.
            self.kept = 1 << 2
            syscalls.call("prctl", 8, 1)  # PR_SET_KEEPCAPS, for CAP_DAC_READ_SEARCH
        self._become()
        if self.kept:
            _step(f"read {library} as user {self._uid}: CAP_DAC_READ_SEARCH", lambda: worker._drop(self))

    # -- filters

    def _lock(self) -> None:
        version = landlock.abi()
        self.probes["landlock"] = f"ABI {version}" if version else "none"
        if version == 0 and self.level == "seccomp":
            raise Failed("landlock: the kernel offers none (wants Linux 5.13 with landlock in its list of LSMs)")
        if not syscalls.NUMBERS:
            raise Failed(f"seccomp: no table of system calls for {syscalls.MACHINE}")
        if version:
            writable = [BOX, "/dev/null"] if self.level == "ns" else ["/dev/null"]
            readable = self._trees
            listed: list[str] = []
            if self.level != "ns":
                # Nothing is mounted over what is hidden: leave it out, by naming all that is around it.
                listed = [tree for tree in readable if _around(tree, self._hidden) != [tree]]
                readable = [part for tree in readable for part in _around(tree, self._hidden)]
            readable = [*readable, *self._packages]
            self.ruleset = _step(
                "landlock", lambda: landlock.ruleset(version, readable=readable, writable=writable, listed=listed)
            )
        arch = syscalls.AUDIT[syscalls.MACHINE]
        contained = self.level == "ns"
        base = seccomp.pack(seccomp.assemble(seccomp.base_rules(syscalls.NUMBERS), seccomp.EPERM, arch))
        last = seccomp.run_rules(syscalls.NUMBERS, contained=contained, landlock=version)
        self._last = seccomp.pack(seccomp.assemble(last, seccomp.ALLOW, arch))
        self._filter = seccomp.Filter(self._last) if contained else None

        def install() -> None:
            syscalls.call("prctl", 38, 1)  # PR_SET_NO_NEW_PRIVS
            seccomp.Filter(base).install()

        _step("seccomp", install)
        self.probes["seccomp"] = f"{len(base) // 8} + {len(self._last) // 8} instructions"

    def last(self, pid: int) -> seccomp.Filter:
        """The filter that a worker installs last."""
        return self._filter or seccomp.Filter(seccomp.own(self._last, pid))

    def others(self) -> int:
        """How many tasks may count against a limit of processes before the run has any: in a user namespace (as of Linux
        5.14) zygote and init, elsewhere all of the same user."""
        if self.level == "ns" and _KERNEL >= (5, 14):
            return 2
        if self.level == "seccomp" and self._was == 0:
            return 64  # the user of this slot is nobody else's but that of the same slot of other judges
        if self.level == "ns":
            return 1 << 15
        now = time.monotonic()
        if now > self._counted[0] + _COUNT_SECONDS:
            self._counted = (now, _tasks_of(os.getuid()) + 32)
        return self._counted[1]


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
        _mount("tmpfs", WORK, "tmpfs", _NOSUID | _NODEV, f"size={limits['file_bytes']},nr_inodes=512,mode=700")
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


# ---- small things ------------------------------------------------------------------------------------------------


def _step(name: str, act: Any) -> Any:
    try:
        return act()
    except OSError as fault:
        raise Failed(f"{name}: {fault.strerror} ({errno.errorcode.get(fault.errno or 0, '?')})") from None


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    texts = [ctypes.create_string_buffer(text.encode()) for text in (source, target, kind or "", data)]
    at = [ctypes.addressof(text) for text in texts]
    syscalls.call("mount", at[0], at[1], at[2] if kind else 0, flags, at[3] if data else 0)


def _bind(source: str, target: str) -> None:
    """``source`` at ``target``, read-only; a symbolic link is made again."""
    if os.path.islink(source):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.lexists(target):
            os.symlink(os.readlink(source), target)
        return
    mode = os.stat(source).st_mode
    if stat.S_ISDIR(mode):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT, 0o644))
    _mount(source, target, None, _BIND | _REC)
    device = stat.S_ISCHR(mode)
    try:
        _set_attributes(target, 1 | 2 | (8 if device else 4))  # RDONLY, NOSUID, NOEXEC or NODEV
    except OSError as fault:
        if fault.errno != errno.ENOSYS:
            raise
        kept = os.statvfs(target).f_flag & (_NOSUID | _NODEV | _NOEXEC)
        _mount("none", target, None, _REMOUNT | _BIND | _RDONLY | _NOSUID | kept | (0 if device else _NODEV))


def _set_attributes(path: str, attributes: int) -> None:
    """mount_setattr, with all that is mounted below."""
    text = ctypes.create_string_buffer(path.encode())
    wanted = ctypes.create_string_buffer(struct.pack("=4Q", attributes, 0, 0, 0), 32)
    syscalls.call("mount_setattr", -100, ctypes.addressof(text), 0x8000, ctypes.addressof(wanted), 32)


def _library() -> tuple[list[str], list[str]]:
    """What programs may read: the interpreter's library and what it is linked to; and what lies inside and they may not:
    installed packages, the judge's own and its data among them."""
    library = os.path.dirname(os.__file__)
    trees = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", f"{sys.base_prefix}/lib", library, "/usr/share/zoneinfo"]
    trees += ["/etc/ld.so.cache", "/etc/localtime", *_DEVICES]
    hidden = [f"{library}/site-packages", f"{library}/dist-packages", "/usr/lib/python3/dist-packages"]
    seen: list[str] = []
    for path in trees:
        if os.path.exists(path) and not any(f"{path}/".startswith(f"{other}/") for other in seen):
            seen.append(path)
    inside = [path for path in hidden if os.path.isdir(path) and any(path.startswith(f"{tree}/") for tree in seen)]
    return seen, inside


def _around(tree: str, hidden: list[str]) -> list[str]:
    """Paths that together are all of ``tree`` but ``hidden``."""
    real = os.path.realpath(tree)
    if real in hidden:
        return []
    if not any(path.startswith(f"{real}/") for path in hidden):
        return [tree]
    return [part for name in sorted(os.listdir(real)) for part in _around(f"{real}/{name}", hidden)]


def _package_of(folders: list[str]) -> Any:
    """Module to the file or folder of its package, where that lies in one of ``folders``."""

    def place(module: Any) -> str | None:
        path = getattr(module, "__file__", None)
        for folder in folders:
            if isinstance(path, str) and path.startswith(folder + "/"):
                return f"{folder}/{path[len(folder) + 1 :].partition('/')[0]}"
        return None

    return place


def _open_to_all(path: str) -> bool:
    """Whether any user may look into this folder."""
    while True:
        if not os.stat(path).st_mode & stat.S_IXOTH:
            return False
        if path == "/":
            return True
        path = os.path.dirname(path)


def _tasks_of(uid: int) -> int:
    """Threads of all processes of a user, as far as they can be seen."""
    total = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == uid:
                    total += os.stat(f"/proc/{name}/task").st_nlink - 2
    return total


def _text(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()
