"""The place that programs cannot leave: what a zygote sets up once, before it runs any."""

from __future__ import annotations

import _sitebuiltins
import binascii
import builtins
import contextlib
import ctypes
import errno
import os
import re
import stat
import sys
import time
from typing import Any

from . import landlock, mounts, seccomp, syscalls, worker

_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x40000000
BOX, WORK = "/box", "/box/run"
"""The program's own folder; ``/tmp`` leads there."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_ENVIRON = {"HOME": WORK, "TMPDIR": WORK, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
_COUNT_SECONDS = 5.0
"""How long a count of the user's tasks is good for."""
_KERNEL = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])


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
        found = {place for place in places if place}
        # Wheels keep the libraries that a package is linked to beside it.
        self._packages = sorted(found | {f"{place}.libs" for place in found if os.path.isdir(f"{place}.libs")})
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
        _step("private mounts", lambda: mounts.mount("none", "/", None, mounts.REC | mounts.PRIVATE))
        _step("tmpfs", lambda: mounts.mount("tmpfs", root, "tmpfs", mounts.NOSUID | mounts.NODEV, "size=1m,mode=755"))
        for path in self._trees:
            _step(f"bind {path}", lambda path=path: mounts.bind(path, root + path))
        for path in self._hidden:
            _step(
                f"hide {path}",
                lambda path=path: mounts.mount("tmpfs", root + path, "tmpfs", mounts.NOSUID | mounts.NODEV, "size=64k"),
            )
        for path in self._packages:
            _step(f"bind {path}", lambda path=path: mounts.bind(path, root + path))
        for path in self._hidden:
            mounts.mount(
                "none", root + path, None, mounts.REMOUNT | mounts.BIND | mounts.RDONLY | mounts.NOSUID | mounts.NODEV
            )
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
            mounts.mount("none", "/", None, mounts.REMOUNT | mounts.BIND | mounts.RDONLY | mounts.NOSUID | mounts.NODEV)

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
            _step(f"read {library} as user {self._uid}: CAP_DAC_READ_SEARCH", lambda: worker.drop(self))

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
        digest = binascii.crc32(base + self._last)
        self.probes["seccomp"] = f"{len(base) // 8} + {len(self._last) // 8} instructions, CRC {digest:08x}"

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


def _step(name: str, act: Any) -> Any:
    try:
        return act()
    except OSError as fault:
        raise Failed(f"{name}: {fault.strerror} ({errno.errorcode.get(fault.errno or 0, '?')})") from None


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
