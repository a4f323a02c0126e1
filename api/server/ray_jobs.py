"""Runs as Ray Jobs, behind the launcher's port: submitted, watched and stopped through the REST interface of a cluster's head
(``ray start --head`` prints its address). Ray itself is neither imported nor needed here.

::

    submission id   RUN-EPOCH-HOME: submitting twice makes one job, and a launcher that starts again finds it
    stop            nothing is sent to a job that runs: Ray would kill it 3 s later. The run hears by its own heartbeat, and stops at
                    a checkpoint. A job that still waits is over for us: where Ray starts it all the same, its epoch is over
    kill            stop (SIGTERM, after 3 s SIGKILL, to all that it started), seen to be over; else its process group
    silence         ``poll`` raises Silent: the launcher keeps no lease that it knows nothing of; the run's own heartbeat may

Ray's word informs, the run's row decides. The home folder has the same path on every machine of the cluster, and jurat is
installed there as here.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import logging
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import psutil

from jurat.api.server.executor import FILE, UNKNOWN, Silent, write
from jurat.platform.errors import ConfigError, RunFailed

log = logging.getLogger(__name__)
SECONDS = 10.0
"""Of one request."""
LOOK_SECONDS = 1.0
"""What Ray said so lately is not asked again."""
READY_SECONDS = 5.0
"""Between questions whether the cluster takes jobs."""
KILL_SECONDS = 15.0
"""For Ray to end a job that it was told to stop."""
GOING = ("PENDING", "RUNNING")


class Head:
    """The REST interface of a cluster's head. Raises ConfigError for what is no address."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/") or parts.query:
            raise ConfigError(
                f"{address!r} is not the address of a Ray cluster's head", where="--ray",
                fix="give that of its dashboard, as in http://head:8265",
            )  # fmt: skip
        self.address = f"{parts.scheme}://{parts.netloc}"
        secure = parts.scheme == "https"
        self._connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self._netloc = parts.netloc

    def ask(self, method: str, path: str = "", body: Any = None) -> tuple[int, Any]:
        """(status, what it answers: JSON, or text). Raises Silent."""
        connection = self._connect(self._netloc, timeout=SECONDS)
        headers = {
            "Content-Type": "application/json",
            **({"Authorization": f"Bearer {token}"} if (token := _token()) else {}),
        }
        try:
            connection.request(method, f"/api/jobs/{path}", None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise Silent(f"the Ray cluster does not answer: {error or repr(error)}", where=self.address) from None
        finally:
            connection.close()
        with suppress(ValueError):
            return answer.status, json.loads(data)
        if answer.status in (401, 403) or answer.status >= 502:
            raise Silent(f"the Ray cluster answers {answer.status}", where=self.address,
                         fix="RAY_AUTH_TOKEN holds its token" if answer.status < 500 else "")  # fmt: skip
        return answer.status, data.decode(errors="replace")


def _token() -> str:
    """Where Ray looks for it, in this order; '' if there is none."""
    if said := os.environ.get("RAY_AUTH_TOKEN", ""):
        return said
    with suppress(OSError, RuntimeError):
        return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token").read_text().strip()
    return ""


@dataclass(slots=True)
class RayWork:
    run: str
    epoch: int
    head: Head
    folder: Path
    log: Path
    asked: bool = False
    """To stop."""
    _said: tuple[str, int | None] = ("PENDING", None)
    _looked: float = field(default=-LOOK_SECONDS)

    @property
    def name(self) -> str:
        """With a mark of the folder: another home's run may have the same name."""
        return f"{self.run}-{self.epoch}-{hashlib.sha256(str(self.folder).encode()).hexdigest()[:8]}"

    def poll(self) -> int | None:
        status, code = self._status()
        if status in GOING:
            return UNKNOWN if self.asked and status == "PENDING" else None
        return code if code is not None else 0 if status == "SUCCEEDED" else UNKNOWN

    def _status(self, *, fresh: bool = False) -> tuple[str, int | None]:
        """(what Ray says of it, its exit code). A cluster that was begun anew has forgotten it: GONE. Raises Silent."""
        now = time.monotonic()
        if self._said[0] in GOING and (fresh or now - self._looked >= LOOK_SECONDS):
            status, told = self.head.ask("GET", quote(self.name, safe=""))
            known = isinstance(told, dict) and isinstance(told.get("status"), str)
            if status not in (200, 404) or (status == 200 and not known):
                raise Silent(f"the Ray cluster answers {status}: {str(told)[-200:]}", where=self.head.address)
            self._looked = now
            self._said = (told["status"], told.get("driver_exit_code")) if status == 200 else ("GONE", None)
            if self._said == ("FAILED", None):  # it did not come to run our command, which would have said why itself
                with suppress(OSError), open(self.log, "a", encoding="utf-8") as out:
                    out.write(f"Ray: {' '.join(str(told.get('message')).split())[-1000:]}\n")
        return self._said

    def stop(self) -> None:
        self.asked = True
        with suppress(Silent):
            if self._status(fresh=True)[0] == "PENDING":
                self._tell_stop()

    def _tell_stop(self) -> None:
        self.head.ask("POST", f"{quote(self.name, safe='')}/stop")

    def kill(self) -> None:
        with suppress(Silent):  # what cannot be told is fenced out by its epoch, when it next wants to write
            if self._status(fresh=True)[0] not in GOING:
                return
            self._tell_stop()
            end = time.monotonic() + KILL_SECONDS
            while self._status(fresh=True)[0] == "RUNNING" and time.monotonic() < end:
                time.sleep(0.1)
            if self._said[0] != "RUNNING":
                return
        self._kill_here()

    def _kill_here(self) -> None:
        """Its group, if it is of this machine and still what was started."""
        with suppress(OSError, ValueError, psutil.Error):
            host, pid = note_of(self.folder, self.epoch).read_text("utf-8").split()
            if host == socket.gethostname() and self.run in psutil.Process(int(pid)).cmdline():
                os.killpg(int(pid), signal.SIGKILL)


def note_of(folder: Path, epoch: int) -> Path:
    """Where a job's process writes its machine and id."""
    return folder / f"driver.{epoch}"


class RayJobs:
    """Implements ``Executor``."""

    def __init__(self, address: str, command: Sequence[str] = (sys.executable, "-m", "jurat")) -> None:
        self._head = Head(address)
        self._command = tuple(command)
        self._ready, self._looked = True, -READY_SECONDS

    def start(
        self, run: str, epoch: int, folder: Path, words: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> RayWork:
        work = RayWork(run, epoch, self._head, folder, log)
        own = shlex.quote(str(note_of(folder, epoch)))
        script = f'echo "$(hostname) $$" > {own}; exec {shlex.join([*self._command, *words])} >> {shlex.quote(str(log))} 2>&1'
        job = {
            "submission_id": work.name, "entrypoint": script, "metadata": {"jurat_run": run, "jurat_epoch": str(epoch)},
            "runtime_env": {"env_vars": dict(environment)},
        }  # fmt: skip
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(parents=True, exist_ok=True)
            log.touch()
            # Before it is submitted: a job that nobody noted is lost to us.
            write(folder / FILE, {"ray": self._head.address, "epoch": epoch})
        except OSError as error:
            raise RunFailed(f"cannot note the run's job: {error.strerror}", where=str(folder)) from None
        try:
            status, told = self._head.ask("POST", body=job)
        except Silent:
            status, told = 0, "no answer"
        if status != 200 and not _there(work, ended=False):  # it may be there all the same: then this was asked twice
            raise RunFailed(f"the Ray cluster did not take the job ({status}): {_last(told)}", where=self._head.address)
        return work

    def ready(self) -> bool:
        if time.monotonic() - self._looked >= READY_SECONDS:
            self._looked = time.monotonic()
            try:
                status, told = self._head.ask("GET", "?limit=1")
                if status != 200:
                    raise Silent(f"the Ray cluster answers {status}: {_last(told)}", where=self._head.address)
                self._ready = True
            except Silent as error:
                if self._ready:
                    log.warning("no run is launched: %s", error)
                self._ready = False
        return self._ready

    def find(self, run: str, epoch: int, folder: Path) -> RayWork | None:
        try:
            said = json.loads((folder / FILE).read_text("utf-8"))
            head, began = Head(str(said["ray"])), int(said["epoch"])
        except (OSError, ValueError, KeyError, TypeError, ConfigError):
            return None
        found = RayWork(run, began, head, folder, folder.parent.parent / "logs" / f"{run}.log")
        if began < epoch:
            found.kill()
        return found if began == epoch and _there(found, silent=True) else None


def _there(work: RayWork, *, silent: bool = False, ended: bool = True) -> bool:
    """Whether Ray knows the job, ended or not; ``silent``: what is said where it does not answer."""
    try:
        status = work._status(fresh=True)[0]
    except Silent:
        return silent
    return status in GOING or (ended and status != "GONE")


def _last(told: Any) -> str:
    """The last line of a traceback, or what else was said."""
    lines = str(told).strip().splitlines()
    return lines[-1][:300] if lines else ""
