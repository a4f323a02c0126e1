"""What the attack programs look for, put in place: canaries, listeners, a victim. As the cases' README asks."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from jurat.verifiers.sandbox import Sandbox, levels

CANARY, EVIDENCE = Path("/tmp/sbx_canary"), Path("/tmp/sbx_evidence")
HOST_NAMES = ("/tmp/sbx_leftover", "/dev/shm/sbx_leftover", "/var/tmp/sbx_canary_written")


@dataclass
class Stage:
    victim: subprocess.Popen
    listeners: list[socket.socket]
    kept: set[str] = field(default_factory=set)

    def harm(self) -> list[str]:
        """What an attack did outside of its run, in words; tidied up."""
        found = [f"evidence {path.name}" for path in EVIDENCE.iterdir()]
        found += [f"canary folder holds {path.name}" for path in CANARY.iterdir() if path.name not in self.kept]
        found += [f"left {name}" for name in HOST_NAMES if os.path.exists(name)]
        if self.victim.poll() is not None:
            found.append("the victim died")
        for listener in self.listeners:
            with contextlib.suppress(BlockingIOError):
                listener.accept()[0].close()
                found.append("a listener was reached")
        for path in (*EVIDENCE.iterdir(), *map(Path, HOST_NAMES)):
            path.unlink(missing_ok=True)
        return found


def _listener(family: int, address: object) -> socket.socket:
    made = socket.socket(family)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(address)
    made.listen(16)
    made.setblocking(False)
    return made


def _port() -> socket.socket:
    """The port is the machine's: who holds it has the stage."""
    give_up = time.monotonic() + 120.0
    while True:
        try:
            return _listener(socket.AF_INET, ("127.0.0.1", 48731))
        except OSError as fault:
            if fault.errno != errno.EADDRINUSE or time.monotonic() > give_up:
                raise
            time.sleep(0.2)


@contextlib.contextmanager
def staged() -> Iterator[Stage]:
    listeners = [_port()]
    for folder in (CANARY, EVIDENCE):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        folder.chmod(0o777)
    (CANARY / "secret.txt").write_text("SBX_CANARY_FILE\n")
    os.environ["SBX_CANARY_SECRET"] = "SBX_CANARY_VALUE"
    victim = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)", "sbx_victim"])
    listeners += [_listener(socket.AF_UNIX, "\0sbx_canary"), _listener(socket.AF_UNIX, str(CANARY / "sock"))]
    try:
        yield Stage(victim, listeners, {"secret.txt", "sock"})
    finally:
        victim.kill()
        victim.wait()
        del os.environ["SBX_CANARY_SECRET"]
        for folder in (CANARY, EVIDENCE):
            shutil.rmtree(folder, ignore_errors=True)
        for listener in listeners:
            listener.close()


def want(level: str) -> None:
    """Skip where the machine withholds what the level needs. Anything else that is wrong with it is a failure."""
    found = levels.probe(level)
    withheld = (
        "user namespace",
        "namespaces inside",
        "private mounts",
        "tmpfs",
        "landlock: the kernel",
        sys.platform + ":",
    )
    if not found.works and found.missing.startswith(withheld):
        pytest.skip(f"{level}: {found.missing}")
    assert found.works, found.missing


@pytest.fixture
def needs_ns() -> None:
    want("ns")


@pytest.fixture(scope="module")
def scene() -> Iterator[Stage]:
    with staged() as made:
        yield made


@pytest.fixture(scope="module", params=["ns", "seccomp"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """One slot, at each level that keeps programs apart."""
    want(request.param)
    with Sandbox(request.param, slots=1) as made:
        yield made
