"""The launcher: claims queued runs, keeps their processes and leases alive, passes on what is asked of them, and says how they
ended. The reaper beside it ends what lasts too long, whoever's it is.

::

    queued ─ claim (epoch + 1) ─ start ─ heartbeat ... ─ exit code ─ finished, paused, cancelled, interrupted, failed, lost
                                  │         └ pause, cancel: SIGINT once        └ by a signal: lost, queued again
                                  └ fenced out at a heartbeat: killed, with all that it started

A process that trains beats and hears of commands by itself as well (``platform/runs/heart.py``); the launcher beats while it
starts, and is faster to tell it to stop.

A launcher that is started again takes up the processes of the one before that still go on. State is in the database and
beside the run, never here: a launcher may be killed at any point.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from jurat.api.server.executor import UNKNOWN, Executor, Silent, Work
from jurat.platform import access
from jurat.platform.errors import FencedOut, JuratError
from jurat.platform.faults import point
from jurat.platform.runs import leases
from jurat.platform.runs.records import Lease, RunInfo
from jurat.platform.runs.states import LEASED, LIMITS, Limits, State
from jurat.platform.runs.store import Store

log = logging.getLogger(__name__)

TICK_SECONDS = 0.25
TOKEN_SECONDS = 30 * 86_400.0
STOP_SECONDS = 60.0
"""After a process was asked to stop because the service ends."""


@dataclass(slots=True)
class _Held:
    lease: Lease
    work: Work
    beaten: float
    """When the last heartbeat was, on the monotonic clock."""
    asked: str = ""
    """pause or cancel, once it was passed on."""
    forget: bool = False


class Launcher:
    """A thread. ``close`` leaves the processes running: their leases last until a launcher takes them up again."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        *,
        slots: int = 1,
        gpus: int | None = None,
        limits: Limits = LIMITS,
        service: str = "",
        owner: str | None = None,
    ) -> None:
        """``gpus``: that runs may take together; None: it counts none. ``service``: the address that a run's process talks to.
        ``owner``: names this launcher across restarts."""
        self._store, self._executor, self._slots, self._limits, self._service = store, executor, slots, limits, service
        self._gpus = gpus
        self._owner = owner or f"launcher@{socket.gethostname()}:{store.home}"
        self._held: dict[str, _Held] = {}
        self._wake = threading.Event()
        self._closing = False
        self._reaped = 0.0
        self._quiet_until = 0.0
        self._thread = threading.Thread(target=self._work, name="jurat-launcher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def alive(self) -> bool:
        return self._thread.is_alive()

    def wake(self) -> None:
        """Something was asked: look now."""
        self._wake.set()

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    # ---- the thread ----

    def _work(self) -> None:
        adopted = False
        while not self._closing:
            try:
                if not adopted:
                    self._adopt()
                    adopted = True
                self.look()
            except JuratError as error:  # a store that does not answer: processes go on, and we ask again
                if time.monotonic() > self._quiet_until:
                    log.warning("the launcher waits for the store: %s", error)
                    self._quiet_until = time.monotonic() + 60
                time.sleep(0.5)
            except Exception:
                log.exception("the launcher failed at something and goes on")
                time.sleep(1.0)
            self._wake.wait(TICK_SECONDS)
            self._wake.clear()

    def look(self) -> None:
        """Everything once."""
        for held in list(self._held.values()):
            self._tend(held)
        for run in [run for run, held in self._held.items() if held.forget]:
            del self._held[run]
        if time.monotonic() - self._reaped >= min(5.0, self._limits.lease / 3):
            self._reaped = time.monotonic()
            for moved, before, now in self._store.write(lambda c: leases.reap(c, limits=self._limits)):
                log.warning("run %s was %s for too long and is %s", moved, before, now)
            for run in self._store.write(lambda c: leases.alarm(c, limits=self._limits)):
                log.warning("alarm: run %s takes no step", run)
        while len(self._held) < self._slots and not self._closing and self._executor.ready():
            lease = self._store.write(
                lambda c: leases.claim(
                    c, self._owner, limits=self._limits, slots=self._slots, gpus=self._gpus, home=self._store.home_id
                )
            )
            if lease is None:
                return
            point("launcher.claimed")
            self._start(lease)
            point("launcher.started")

    def _adopt(self) -> None:
        """What another launcher of this home started and left. What has ended meanwhile is seen by the next look; what it
        claimed and never started is queued again, which is no restart."""
        for run in self._store.read(lambda c: leases.held(c, self._store.runs_folder)):
            work = self._executor.find(run.id, run.lease_epoch, run.folder)
            if work is not None:
                lease = Lease(
                    run=run.id, run_pk=run.pk, epoch=run.lease_epoch, owner=self._owner, until=run.lease_until or 0
                )
                self._held[run.id] = _Held(lease, work, 0.0)
                log.info("run %s is taken up again", run.id)
            elif run.state == "starting" and run.lease_owner == self._owner:
                self._end(run, "queued", "its launcher died before it started a process", None)

    def _start(self, lease: Lease) -> None:
        run = self._store.run(lease.run)
        try:
            self._executor.find(run.id, lease.epoch, run.folder)  # kills what another epoch left
            token = self._store.write(
                lambda c: access.make_key(
                    c, f"run {run.id}", [], seconds=TOKEN_SECONDS, run_id=run.id, epoch=lease.epoch
                )
            )[1]
            environment = {
                "JURAT_RUN_EPOCH": str(lease.epoch), "JURAT_LEASE_SECONDS": str(self._limits.lease),
                "JURAT_SERVICE": self._service,
                "JURAT_RUN_TOKEN": token,
            }  # fmt: skip
            words = ["--home", str(self._store.home), "train", "--resume", run.id]
            if (database := _database(run)) is not None:
                environment["JURAT_DATABASE"] = database
            log_file = self._store.home / "logs" / f"{run.id}.log"
            work = self._executor.start(run.id, lease.epoch, run.folder, words, environment, log_file)
        except JuratError as error:
            log.error("run %s cannot be started: %s", run.id, error)
            self._end(run, "failed", error.what, None, lease.epoch)
            return
        self._held[run.id] = _Held(lease, work, time.monotonic())

    # ---- one process ----

    def _tend(self, held: _Held) -> None:
        try:
            code = held.work.poll()
        except Silent as error:  # nothing is known of it, so its lease is not ours to keep: its own heartbeat may
            self._unheard(held, error)
            return
        if code is not None:
            held.work.kill()  # what it started and left behind
            self._ended(held, code)
            held.forget = True
            return
        if time.monotonic() - held.beaten < self._limits.lease / 4 and not self._wake.is_set():
            return
        try:
            beat = self._store.write(
                lambda c: leases.heartbeat(c, held.lease.run_pk, held.lease.epoch, limits=self._limits)
            )
        except FencedOut as error:
            if held.work.poll() is not None:
                return  # it said how it ended, and is gone: the next look sees that
            if self._over(held):
                return  # it said how it ended, and is about to go
            log.warning("%s; its process is killed", error.what)
            held.work.kill()
            held.forget = True
            return
        held.beaten = time.monotonic()
        if beat.desired in ("pause", "cancel") and held.asked != beat.desired:
            if not held.asked:
                held.work.stop()
            held.asked = beat.desired

    def _unheard(self, held: _Held, error: Silent) -> None:
        if time.monotonic() > self._quiet_until:
            log.warning("run %s: %s", held.lease.run, error.what)
            self._quiet_until = time.monotonic() + 60
        run = self._store.run(held.lease.run)
        held.forget = run.state not in LEASED or run.lease_epoch != held.lease.epoch

    def _over(self, held: _Held) -> bool:
        """Whether the run ended by its process' own word: then it has ``STOP_SECONDS`` to be gone."""
        run = self._store.run(held.lease.run)
        if run.state in LEASED or run.state in ("lost", "queued") or time.monotonic() - held.beaten > STOP_SECONDS:
            return False
        moves = [event for event in self._store.events(run) if event.kind == "state"]
        return bool(moves) and moves[-1].payload.get("by") != "reaper"

    def _ended(self, held: _Held, code: int) -> None:
        run = self._store.run(held.lease.run)
        if run.state not in LEASED or run.lease_epoch != held.lease.epoch:
            return  # it said itself how it ended, or is another's
        point("launcher.before_end")
        state, detail = outcome(run.state, code)
        said = why(self._store.home / "logs" / f"{run.id}.log") if state == "failed" else ""
        self._end(
            run, state, f"{detail}: {said}" if said else detail, code if code != UNKNOWN else None, held.lease.epoch
        )

    def _end(self, run: RunInfo, state: State, detail: str, code: int | None, epoch: int | None = None) -> None:
        epoch = run.lease_epoch if epoch is None else epoch

        def end(connection: sa.Connection) -> None:
            if state in ("lost", "queued"):
                leases.move(
                    connection,
                    run.pk,
                    state if run.state not in ("pausing", "cancelling") else _ASKED[run.state],
                    detail,
                    epoch=epoch,
                    actor=self._owner,
                    limits=self._limits,
                )
            else:
                leases.end(
                    connection,
                    run.pk,
                    state,
                    detail,
                    epoch=epoch,
                    exit_code=code,
                    actor=self._owner,
                    limits=self._limits,
                )

        try:
            self._store.write(end)
        except FencedOut as error:
            log.info("%s", error.what)


_ASKED: Mapping[str, State] = {"pausing": "paused", "cancelling": "cancelled"}


def outcome(state: str, code: int) -> tuple[State, str]:
    """(how a run ended, why) that was in ``state`` as its process ended with ``code``."""
    if code == 0:
        return ("finished", "") if state != "starting" else ("failed", "its process ended before it began")
    if state == "cancelling" or (state == "pausing" and code == 130):
        return "interrupted", "as was asked"
    if code == 130:
        return "interrupted", "its process was interrupted"
    if code == UNKNOWN:
        return "lost", "its process ended, nobody saw how"
    if code < 0:
        return "lost", f"its process was killed by signal {-code}"
    return "failed", {4: "the reward has changed", 75: "another process holds it"}.get(
        code, f"its process ended with code {code}"
    )


def why(path: Path) -> str:
    """The first line of the last error in a log, or its last line; at most 300 characters, harmless."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 16_384))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    except OSError:
        return ""
    told = [line.removeprefix("jurat: ") for line in lines if line.startswith("jurat: ")]
    told = told or [line for line in lines if line and not line.startswith(("where:", "fix:"))]
    return "".join(c if c.isprintable() else " " for c in told[-1])[:300] if told else ""


def _database(run: RunInfo) -> str | None:
    found = (run.recipe.get("tracking") or {}).get("database")
    return None if found is None else str(found)
