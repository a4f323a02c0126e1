"""``jurat train --detach``: the run in a process of its own session, so that a lost terminal does not end it.

The process stays on this machine and is found again by the run's name (``jurat runs watch``, ``jurat runs cancel``). What
ends it ends the run: ``jurat train --resume RUN --detach`` then goes on.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jurat.platform.errors import ConfigError, RunFailed
from jurat.platform.runs.lock import holder

LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Detached:
    run: str
    pid: int
    log: Path


def start(words: Sequence[str], *, run: str, folder: Path, home: Path) -> Detached | int:
    """Run ``jurat WORDS`` detached; return once it holds the run's ``folder``, or its exit code if it ended before.

    What it prints goes to ``<home>/logs/RUN.log``. Raises RunFailed if that cannot be written.
    """
    log = home / "logs" / f"{run}.log"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as out:
            begins = out.tell()
            process = subprocess.Popen(
                [sys.executable, "-m", "jurat", *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
    except OSError as error:
        raise RunFailed(
            f"cannot start with a log: {error}", where=str(log), fix="choose another folder with --home"
        ) from None
    while process.poll() is None:
        held = holder(folder)
        if held is not None and held.pid == process.pid:
            return Detached(run, process.pid, log)
        time.sleep(LOOK_SECONDS)
    with open(log, "rb") as said:
        said.seek(begins)
        sys.stderr.write(said.read().decode(errors="replace"))
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def cancel(run: str, folder: Path) -> int:
    """Ask the process that trains ``run`` to stop at a checkpoint; its id. Raises ConfigError if none does on this machine."""
    held = holder(folder)
    if held is None:
        raise ConfigError(
            f"no process trains run {run}", where=str(folder), fix=f"jurat runs show {run} says how it ended"
        )
    if held.host != socket.gethostname():
        raise ConfigError(f"run {run} is trained by process {held.pid} on {held.host}", where=str(folder),
                          fix=f"jurat runs cancel {run} there")  # fmt: skip
    os.kill(held.pid, signal.SIGINT)
    return held.pid
