"""The judge's end of one zygote: starts it, hands it runs, ends it."""

from __future__ import annotations

import array
import contextlib
import functools
import grp
import importlib.util
import itertools
import json
import os
import pwd
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jurat.platform.errors import JuratError
from jurat.verifiers.sandbox.program import Level

START_SECONDS = 60.0
"""For a zygote to start, its preloaded packages included."""
_PATIENCE = 0.5
"""Seconds for a zygote to end by itself."""
_FIRST_USER = 64_000
"""As root, programs run as a user of this number and up, one for each zygote."""
_USERS = 1_000
_started = itertools.count()
_SINGLE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class SandboxUnavailable(JuratError):
    """Programs cannot be kept apart here as strictly as was asked for."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a zygote is to be."""

    level: Level
    preload: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "level": self.level, "preload": list(self.preload), "path": _folders(self.preload),
            "uid": _first_user() + _next_user() % _USERS, "single": list(_SINGLE),
        }  # fmt: skip


def _folders(names: Iterable[str]) -> list[str]:
    """Where this process finds these modules and what they need, but for the standard library."""
    found = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")} if names else set()
    library = sysconfig.get_path("stdlib")
    for name in names:
        spec = importlib.util.find_spec(name.partition(".")[0])
        if spec is not None and spec.has_location and spec.origin is not None:
            place = Path(spec.origin).parent
            found.add(str(place.parent if spec.submodule_search_locations else place))
    return sorted(found - {library, f"{library}/lib-dynload"})


class NotReady(Exception):
    """A zygote that did not come up: what it said."""


class Zygote:
    """A warm process that runs programs, one at a time. ``start`` blocks until it is ready, up to ``START_SECONDS``."""

    def __init__(self, setup: Setup) -> None:
        self.runs = 0
        self.owner = os.getpid()
        self.probes: dict[str, str] = {}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._process = subprocess.Popen(
                [_interpreter(), "-s", "-S", "-P", "-X", "utf8", str(Path(__file__).with_name("zygote.py")), str(theirs.fileno())],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env={"PYTHONHASHSEED": "0", "MALLOC_ARENA_MAX": "1", **dict.fromkeys(_SINGLE, "1")}, pass_fds=[theirs.fileno()],
                start_new_session=True, cwd="/",
            )  # fmt: skip
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self.control = ours
        self.pid = self._process.pid
        try:
            ours.settimeout(START_SECONDS)
            ours.send(json.dumps(setup.to_json()).encode())
            said = json.loads(ours.recv(1 << 16) or b'{"failed": "it died before it was ready"}')
        except (OSError, ValueError) as fault:
            self.close()
            raise NotReady(f"{type(fault).__name__}: {fault}") from None
        if "failed" in said:
            self.close()
            raise NotReady(said["failed"])
        self.probes = said["ready"]
        ours.setblocking(False)

    def begin(self, limits: dict[str, Any], fds: list[int]) -> None:
        """Hand over a run. Raises OSError if there is no process any more."""
        self.runs += 1
        self.control.sendmsg(
            [json.dumps(limits).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        )

    def kill_run(self) -> None:
        with contextlib.suppress(OSError):
            self.control.send(b"kill")

    def close(self) -> None:
        """End it, and with it the run under way."""
        if self.owner != os.getpid():  # a copy made by fork: the process is another's
            self.control.close()
            return
        self.hang_up()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.control.close()

    def hang_up(self) -> None:
        """It ends by itself then, after its run, which it waits for: a judge that adopts orphans would be left with it."""
        with contextlib.suppress(OSError):
            self.control.shutdown(socket.SHUT_RDWR)


def _next_user() -> int:
    """Another for each zygote, and other ones than other judges' as far as may be: where programs of two judges have one
    user, the threads of one count against the limit of the other."""
    return os.getpid() * 61 + next(_started)


@functools.cache
def _first_user() -> int:
    """The first of a thousand numbers of which none is a user's."""
    taken = {user.pw_uid for user in pwd.getpwall()} | {group.gr_gid for group in grp.getgrall()}
    first = _FIRST_USER
    while any(number in taken for number in range(first, first + _USERS)):
        first -= _USERS
    return first


def _interpreter() -> str:
    """The interpreter itself, not the one of a virtual environment, which leads to it."""
    return getattr(sys, "_base_executable", None) or sys.executable
