"""kill -9 of the service (launcher and server are one process) and of the trainer, at named points and random moments, with
a lease of 3 s: nothing that was acknowledged is lost, the state is true soon after, no process stays, and the run's numbers
are those of one that was never interrupted, to the last bit."""

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
import pytest
from sites import Site

from jurat.client import Client, ServiceError, Unreachable
from jurat.platform.errors import JuratError
from jurat.platform.recipe import Recipe
from jurat.platform.runs.states import ENDED, LEASED
from jurat.platform.runs.store import Store

LEASE = 3.0
SLACK = 5.0
"""Seconds after a lease lapsed within which the state must be true."""
SERVICE = (
    "launcher.claimed",
    "launcher.started",
    "launcher.before_end",
    "service.before_commit:3",
    "service.before_answer:3",
    "service.before_answer:12",
)
TRAINER = ("checkpoint.before_rename:2", "checkpoint.after_rename:2")
QUICK = ("service.before_answer:12",)
"""Of `make test`; a trainer that is killed is in tests/trainers/test_kill_and_resume.py there."""


class Written(Site):
    """A service on its home, and somebody who writes metrics to another run all the while."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, tries=1)
        self.starts = 0
        self.acknowledged: list[int] = []
        self._stop = threading.Event()
        self._writer = threading.Thread(target=self._write, daemon=True)

    def start(self, fault: str = "") -> None:
        self.starts += 1
        script = Path(counter.__file__).with_name("counting.py")
        self.launch(
            [sys.executable, str(script), str(self.home), str(self.port), str(LEASE)],
            {"JURAT_FAULT": fault, "JURAT_COUNTER_SECONDS": "0.04", "OMP_NUM_THREADS": "1"},
        )

    def answers(self) -> bool:
        with suppress(Unreachable, ServiceError):
            list(self.client.runs(fields=["id"], page_size=1))
            return True
        return False

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


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Written]:
    made = Written(tmp_path)
    yield made
    if made.process is not None:
        made.kill()
    for pid in made.trainers():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def begin(site: Written, fault: str = "") -> None:
    """``r`` is asked for until it is there, whatever dies meanwhile; ``other`` belongs to nobody and is written to."""
    store = Store.open(None, site.home)
    value = {"name": "t", "model": "tiny-random", "data": {"train": {"source": "generated"}}}
    recipe = Recipe.model_validate(value)
    store.create_run(recipe=recipe, recipe_digest="", reward_digest="", meta={}, run_id="other")
    store.close()
    site.start(fault)
    site._writer.start()

    def asked() -> bool:
        site.revive()
        with suppress(Unreachable, ServiceError):
            site.client.create_run("tiny", id="r", max_restarts=20)
        with suppress(Unreachable, ServiceError):
            return bool(site.client.run("r"))
        return False

    site.until(asked, 40)


def finish(site: Written) -> None:
    """All that must hold at the end."""
    site.until(lambda: site.client.run("r")["state"] == "finished", 60)
    site.until(lambda: not site.trainers(), 10)
    site.stop()
    store = Store.open(None, site.home)
    try:
        run, other = store.run("r"), store.run("other")
        found = {point.step: point.value for point in store.metrics(run, names=["x"])}
        assert [found[step] for step in sorted(found)] == counter.numbers()
        stored = {point.step for point in store.metrics(other, names=["y"])}
        assert stored >= set(site.acknowledged) and site.acknowledged
        epochs = [e.payload["epoch"] for e in store.events(run) if e.kind == "state" and "epoch" in e.payload]
        assert len(epochs) == len(set(epochs)) and epochs == sorted(epochs)
    finally:
        store.close()


@pytest.mark.parametrize(
    "fault",
    [
        fault if fault in QUICK else pytest.param(fault, marks=pytest.mark.soak)
        for fault in (*SERVICE, *(f"trainer@{point}" for point in TRAINER))
    ],
)
def test_killed_at_a_named_point(site: Written, fault: str) -> None:
    begin(site, fault)
    if fault == "launcher.before_end":  # of a process that said nothing itself
        site.until(site.trainers, 20)
        os.kill(site.trainers()[0], signal.SIGKILL)
    if fault.startswith("trainer@"):
        site.until(lambda: site.client.run("r")["restarts"] == 1, 30)
    else:
        site.until(lambda: site.revive() or site.starts > 1, 30)
        site.until(site.answers, 30)
        site.until(site.true_state, LEASE + SLACK)
    finish(site)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_killed_at_random_moments(site: Written, seed: int) -> None:
    """Three kills of service, trainer or both at once; after each the state is true within a lease and 5 s."""
    drawn = random.Random(seed)
    begin(site)
    for _ in range(3):
        time.sleep(drawn.uniform(0.0, 1.0))
        whom = drawn.choice(("service", "trainer", "both"))
        for pid in site.trainers() if whom != "service" else []:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if whom != "trainer":
            site.kill()
            time.sleep(drawn.uniform(0.0, 4.0))
            site.start()
            site.until(site.answers, 30)
        site.until(site.true_state, LEASE + SLACK)
        assert len(site.trainers()) <= 1
    finish(site)
