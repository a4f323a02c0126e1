"""Processes that train, behind one port: started once, asked to stop, killed with all they started, never left a zombie.

What was started is written down beside the run, so that a launcher that starts again finds it: boot, process id and start
time together name one process; an id alone may be another's by now. Before it starts a mark is written down that the process
bears in its environment: one whose launcher died between its start and the note is found by it.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from jurat.platform.errors import RunFailed
from jurat.platform.faults import point

FILE = "launched.json"
MARK = "JURAT_STARTED_AS"
"""Variable of a process and of what it starts, equal to the mark in its note."""
ENVIRONMENT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "LANG", "LANGUAGE", "VIRTUAL_ENV",
"LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONUNBUFFERED",
               "XDG_CACHE_HOME", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "HF_HOME", "HF_HUB_OFFLINE")  # fmt: skip
"""Variables of the service that a run gets; and those that begin with the following."""
PREFIXES = ("LC_", "OMP_", "MKL_", "OPENBLAS_", "NCCL_", "JURAT_", "MLFLOW_", "WANDB_")


def kept_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name in ENVIRONMENT or name.startswith(PREFIXES)}


class Work(Protocol):
    """One start of one run."""

    run: str
    epoch: int

    def poll(self) -> int | None:
        """The exit code, or None while it goes on. A signal is negative; -0x7fff: it ended, nobody knows how.

        Raises Silent where nobody can say whether it goes on.
        """

    def stop(self) -> None:
        """Ask it to stop at a checkpoint."""

    def kill(self) -> None:
        """End it and all that it started, now; on return nothing of it runs."""


class Executor(Protocol):
    def ready(self) -> bool:
        """Whether it takes work now; where not, no run is claimed."""

    def start(
        self, run: str, epoch: int, folder: Path, words: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> Work:
        """Raises RunFailed."""

    def find(self, run: str, epoch: int, folder: Path) -> Work | None:
        """What was started for this run and epoch, ended or not; None if nothing was. What goes on for an older epoch is
        killed."""


UNKNOWN = -0x7FFF


class Silent(RunFailed):
    """Whoever runs the work does not answer."""


def boot_id() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return str(int(psutil.boot_time()))


@dataclass(slots=True)
class LocalWork:
    run: str
    epoch: int
    pid: int
    started: float
    child: subprocess.Popen[bytes] | None = None
    """None: adopted, another launcher started it."""

    def poll(self) -> int | None:
        if self.child is not None:
            return self.child.poll()
        return None if self._alive() else UNKNOWN

    def _alive(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            return abs(process.create_time() - self.started) < 0.05 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def stop(self) -> None:
        self._signal(signal.SIGINT)

    def _signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Its session is its own, so its group holds what it started; a child that left the group is found by parentage."""
        if self.child is None and not self._alive():
            return
        family = [self.pid, *_descendants(self.pid)]
        if self.poll() is None or self.child is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        for pid in family[1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.child is not None:
            self.child.wait()
        else:
            with suppress(psutil.Error):
                psutil.Process(self.pid).wait(10)


def _descendants(pid: int) -> list[int]:
    with suppress(psutil.Error):
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return []


def _marked(mark: str) -> tuple[int, float]:
    """(id, start time) of the process that was started with a mark. Raises KeyError where there is none."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == process.pid and process.environ().get(MARK) == mark:
                return process.pid, process.create_time()
    raise KeyError(mark)


class LocalExecutor:
    """Processes of this machine, each in a session of its own: they outlive a launcher that dies."""

    def __init__(self, command: Sequence[str] = (sys.executable, "-m", "jurat")) -> None:
        self._command = tuple(command)

    def ready(self) -> bool:
        return True

    def start(
        self, run: str, epoch: int, folder: Path, words: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> LocalWork:
        kept = kept_environment()
        fault = kept.pop("JURAT_FAULT", "")  # the service's own, but for what is meant for a run's first process
        if fault.startswith("trainer@") and epoch == 1:
            kept["JURAT_FAULT"] = fault.removeprefix("trainer@")
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(parents=True, exist_ok=True)
            note: dict[str, object] = {"boot": boot_id(), "epoch": epoch, "mark": secrets.token_hex(8)}
            write(folder / FILE, note)
            with open(log, "ab") as out:
                child = subprocess.Popen(
                    [*self._command, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                    env={**kept, **environment, MARK: str(note["mark"])},
                )
                point("launcher.spawned")
        except OSError as error:
            raise RunFailed(f"cannot start the run's process: {error.strerror}", where=str(log)) from None
        try:
            started = psutil.Process(child.pid).create_time()
        except psutil.NoSuchProcess:
            started = 0.0
        work = LocalWork(run, epoch, child.pid, started, child)
        try:
            write(folder / FILE, {**note, "pid": child.pid, "started": started})
        except OSError as error:
            work.kill()
            raise RunFailed(f"cannot note the run's process: {error.strerror}", where=str(folder)) from None
        return work

    def find(self, run: str, epoch: int, folder: Path) -> LocalWork | None:
        try:
            said = json.loads((folder / FILE).read_text("utf-8"))
            noted = (int(said["pid"]), float(said["started"])) if "pid" in said else _marked(str(said["mark"]))
            found = LocalWork(run, int(said["epoch"]), *noted)
        except (OSError, ValueError, KeyError, TypeError):
            return None  # nothing was to be started, or nothing was
        if said.get("boot") != boot_id():
            found.started = -1.0  # whatever has its id now is another
        if found.epoch < epoch:
            found.kill()
        return found if found.epoch == epoch else None


def write(path: Path, value: Mapping[str, object]) -> None:
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(json.dumps(value), "utf-8")
    os.replace(draft, path)
