"""kill -9 of the service (launcher and server are one process) and of the trainer, at named points and random moments, on
both databases, with a lease of 3 s: nothing that was acknowledged is lost, the state is true soon after, no process stays,
the run's numbers are those of one that was never interrupted, to the last bit, and who follows the stream hears all of it
once. One line is printed a kill."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import counter
import psutil
import pytest
from sites import Site

from jurat.client import Client, ServiceError, Unreachable
from jurat.platform.errors import JuratError
from jurat.platform.recipe import Recipe
from jurat.platform.runs.states import ENDED, LEASED
from jurat.platform.runs.store import Store

LEASE = 3.0
SLACK = 5.0
"""Seconds after a lease lapsed within which the state must be true, by a service that answers."""

SERVICE = {
    "launcher.claimed": "leased, no process was started: queued again, which is no restart",
    "launcher.spawned": "started, not written down: found by its mark, not started twice",
    "launcher.started": "started and written down: taken up",
    "launcher.before_end": "ended, not said: the next launcher says it",
    "service.before_commit:3": "taken, not committed: nobody was told, and it is sent again",
    "service.before_commit:12": "the same, of facts that the trainer sent",
    "service.before_answer:3": "committed, not answered: sent again, there once",
    "service.before_answer:12": "the same, of facts that the trainer sent",
    "ledger.mid_commit:3": "half of a trainer's facts are written: none of them is seen",
}
TRAINER = {
    "checkpoint.before_rename:2": "the record is there, its checkpoint is not: steps are done again, to the same bits",
    "checkpoint.after_rename:2": "both are there: the next step follows",
    "spool.before_forget:1": "the spool is in the database, and not removed: sent again, there once",
}
"""Fault point -> what it protects. The points of a checkpoint's own files, and of parts of rollouts, are killed at in
tests/trainers/test_kill_and_resume.py and tests/platform/runs/test_ledger.py."""
QUICK = "service.before_answer:12"
"""Of `make test`, on SQLite; a trainer that is killed is in tests/trainers/test_kill_and_resume.py there."""
KILLS = ("service", "trainer", "both", "suspended")


class Written(Site):
    """A service on its home, and somebody who writes metrics to another run all the while."""

    def __init__(self, home: Path, database: str) -> None:
        super().__init__(home, tries=1)
        self.database = database
        self.starts = 0
        self.pace = 0.04
        """Seconds of a step."""
        self.acknowledged: list[int] = []
        self.heard: list[int] = []
        """Steps that one who follows the stream heard of, across all restarts."""
        self.resyncs = 0
        self.died = 0.0
        self._stop = threading.Event()
        self._writer = threading.Thread(target=self._write, daemon=True)

    def start(self, fault: str = "") -> None:
        self.starts += 1
        script = Path(counter.__file__).with_name("counting.py")
        self.launch(
            [sys.executable, str(script), str(self.home), str(self.port), str(LEASE), self.database],
            {"JURAT_FAULT": fault, "JURAT_COUNTER_SECONDS": str(self.pace), "OMP_NUM_THREADS": "1"},
        )

    def answers(self) -> bool:
        with suppress(Unreachable, ServiceError):
            list(self.client.runs(fields=["id"], page_size=1))
            return True
        return False

    def write_on(self) -> None:
        self._writer.start()
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        after = "0--1--1"
        while not self._stop.is_set():
            with suppress(JuratError):
                for message in Client(f"http://127.0.0.1:{self.port}", tries=1).stream("other", after=after):
                    after = message.id
                    self.resyncs += message.kind == "resync"
                    if message.kind == "metrics":
                        self.heard.append(message.data["step"])
            time.sleep(0.1)

    def _write(self) -> None:
        client, step = Client(f"http://127.0.0.1:{self.port}", tries=1), 0
        while not self._stop.is_set():
            with suppress(JuratError):
                client.log("other", step, {"y": float(step)})
                self.acknowledged.append(step)
            step += 1
            time.sleep(0.05)

    def stop(self) -> None:
        self._stop.set()
        if self._writer.ident is not None:
            self._writer.join()
        assert self.process is not None
        self._note_workers()
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()

    def revive(self) -> bool:
        """Start the service anew if it died; whether it had."""
        assert self.process is not None
        if self.process.poll() is None:
            return False
        self.died = time.monotonic()
        assert self.process.returncode == -signal.SIGKILL
        self.start()
        return True

    def until(self, true: Callable[[], object], seconds: float) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, (self.home / "service.log").read_text()[-3000:]
            time.sleep(0.05)

    def true_state(self) -> bool:
        """Whether the run's state is what its processes are: held by one that lives, or by none."""
        with suppress(Unreachable, ServiceError):
            run = self.client.run("r")
            if run["state"] in LEASED:
                return run["lease_until"] > time.time_ns() // 1000 and bool(
                    self.trainers() or run["state"] == "starting"
                )
            return run["state"] in ENDED or run["state"] == "queued"
        return False

    def found(self) -> set[int]:
        """Steps of the other run that are in the database."""
        store = Store.open(self.database, self.home)
        try:
            return {point.step for point in store.metrics(store.run("other"), names=["y"])}
        finally:
            store.close()


@pytest.fixture
def site(tmp_path: Path, database_url: str) -> Iterator[Written]:
    made = Written(tmp_path, database_url)
    yield made
    if made.process is not None:
        made.kill()
    for pid in made.trainers():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def tell(site: Written, capsys: pytest.CaptureFixture[str]) -> Callable[[str, float], None]:
    """After a kill: nothing acknowledged before it is missing; one line says so, and how long the state was not true."""

    def told(kill: str, since: float) -> None:
        seconds, acknowledged = time.monotonic() - since, set(site.acknowledged)
        missing = acknowledged - site.found()
        with capsys.disabled():
            print(
                f"\n{kill:36} {site.database.partition(':')[0].partition('+')[0]:10} right after {seconds:5.2f} s; rows "
                f"acknowledged {len(acknowledged)}, found {len(acknowledged - missing)}", end="", flush=True,
            )  # fmt: skip
        assert not missing

    return told


def begin(site: Written, fault: str = "") -> None:
    """``r`` is asked for until it is there, whatever dies meanwhile; ``other`` belongs to nobody and is written to."""
    store = Store.open(site.database, site.home)
    value = {"name": "t", "model": "tiny-random", "data": {"train": {"source": "generated"}}}
    recipe = Recipe.model_validate(value)
    store.create_run(recipe=recipe, recipe_digest="", reward_digest="", meta={}, run_id="other")
    store.close()
    site.start(fault)
    site.write_on()

    def asked() -> bool:
        site.revive()
        with suppress(Unreachable, ServiceError):
            site.client.create_run("tiny", id="r", max_restarts=20)
        with suppress(Unreachable, ServiceError):
            return bool(site.client.run("r"))
        return False

    site.until(asked, 40)


def finish(site: Written, *, restarts: int | None = None) -> None:
    """All that must hold at the end. ``restarts``: how many the run was charged with."""
    site.until(lambda: site.client.run("r")["state"] == "finished", 60)
    site.until(lambda: not site.trainers(), 10)
    site.until(lambda: site.heard and site.heard[-1] >= site.acknowledged[-1] - 5, 10)
    site.stop()
    site.until(lambda: not site.left(), 10)
    store = Store.open(site.database, site.home)
    try:
        run, other = store.run("r"), store.run("other")
        points = store.metrics(run, names=["x"])
        assert [point.value for point in points] == counter.numbers()  # each step once, in order, to the last bit
        stored = [point.step for point in store.metrics(other, names=["y"])]
        assert len(stored) == len(set(stored)) and set(stored) >= set(site.acknowledged) and site.acknowledged
        assert site.heard == sorted(set(site.heard)) and site.resyncs == 0
        assert set(stored[: stored.index(site.heard[-1])]) <= set(site.heard) <= set(stored)
        epochs = [e.payload["epoch"] for e in store.events(run) if e.kind == "state" and "epoch" in e.payload]
        assert len(epochs) == len(set(epochs)) and epochs == sorted(epochs)
        assert restarts in (None, run.restarts)
        assert not list(run.folder.glob("spool*"))
    finally:
        store.close()


FAULTS = (*SERVICE, *(f"trainer@{point}" for point in TRAINER))


@pytest.mark.parametrize(
    ("database_url", "fault"),
    [
        (database, fault) if (database, fault) == ("sqlite", QUICK)
        else pytest.param(database, fault, marks=pytest.mark.soak)
        for fault in FAULTS for database in ("sqlite", "postgresql")
    ],
    indirect=["database_url"],
)  # fmt: skip
def test_killed_at_a_named_point(site: Written, fault: str, tell: Callable[[str, float], None]) -> None:
    begin(site, fault)
    since = time.monotonic()
    if fault == "launcher.before_end":  # of a process that said nothing itself
        site.until(site.trainers, 20)
        os.kill(site.trainers()[0], signal.SIGKILL)
    if fault.startswith("trainer@spool"):
        site.until(lambda: (site.home / "runs" / "r" / "state.json").exists(), 20)
        site.kill()
        since = time.monotonic()
        site.until(lambda: (site.home / "runs" / "r" / "spool.jsonl").exists(), 20)
        site.start()
    if fault.startswith("trainer@"):
        site.until(lambda: site.answers() and site.client.run("r")["restarts"] == 1, 30)
    else:
        site.until(lambda: site.revive() or site.starts > 1, 30)
        site.until(site.answers, 30)
    site.until(site.true_state, LEASE + SLACK)
    tell(fault, max(since, site.died) if fault.startswith("trainer@") else site.died)
    assert len(site.trainers()) <= 1
    finish(site, restarts=int(fault.startswith("trainer@") or fault == "launcher.before_end"))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_killed_at_random_moments(site: Written, seed: int, tell: Callable[[str, float], None]) -> None:
    """Three kills of service, trainer or both at once, or both stand still for longer than a lease; the state is true after
    each within a lease and 5 s."""
    drawn = random.Random(seed)
    site.pace = 0.15
    begin(site)
    site.until(lambda: site.client._json("GET", "/runs/r/rollouts:count"), 20)  # its worker is to go with the service
    for whom in drawn.sample(KILLS, 3):
        site.until(lambda: site.trainers() or site.client.run("r")["state"] == "finished", 20)
        time.sleep(drawn.uniform(0.0, 1.0))
        trainers, since = site.trainers(), time.monotonic()
        if whom == "suspended":
            assert site.process is not None
            both = [site.process.pid, *trainers]
            for pid in both:
                with suppress(psutil.Error):
                    psutil.Process(pid).suspend()
            time.sleep(LEASE * 1.2)
            since = time.monotonic()
            for pid in drawn.sample(both, len(both)):
                with suppress(psutil.Error):
                    psutil.Process(pid).resume()
        for pid in trainers if whom in ("trainer", "both") else []:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if whom in ("trainer", "both"):
            site.until(lambda killed=trainers: not set(killed) & set(site.trainers()), 5)
        if whom in ("service", "both"):
            site.kill()
            time.sleep(drawn.uniform(0.0, 4.0))
            site.start()
            site.until(site.answers, 30)
        site.until(site.true_state, LEASE + SLACK)
        tell(f"random {seed}: {whom}, {len(trainers)} trains", since)
        assert len(site.trainers()) <= 1
    finish(site)
