"""kill -9 of service and trainer, again and again: the run ends as one that nobody touched, bit for bit. ``make soak``."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sites import Site

CONFIG = {
    "stages.0.steps": 12,
    "stages.1.steps": 12,
    "checkpoint.every": 3,
    "evaluate.problems": 4,
    "evaluate.final_problems": 4,
    "evaluate.samples": 2,
}
SAME = ("reward/mean", "policy/loss", "policy/entropy", "policy/grad_norm")
KILLS = 6


class Served(Site):
    def start(self) -> None:
        serve = ["serve", "--port", str(self.port), "--lease-seconds", "3"]
        self.launch([sys.executable, "-m", "jurat", "--home", str(self.home), *serve])


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path, tries=60)
    made.start()
    yield made
    made.kill()
    for pid in made.trainers():
        os.killpg(pid, signal.SIGKILL)


@pytest.mark.soak
def test_a_run_survives_kills_with_equal_numbers(site: Served) -> None:
    rng = random.Random(7)
    client = site.client
    client.create_run("tiny", CONFIG, id="calm")
    assert client.wait("calm", seconds=300)["state"] == "finished"

    client.create_run("tiny", CONFIG, id="storm", max_restarts=20)
    killed = {"service": 0, "trainer": 0}
    for turn in range(KILLS):
        time.sleep(rng.uniform(1.0, 8.0))
        if client.run("storm")["state"] == "finished":
            break
        pids = site.trainers()
        assert len(pids) <= 1, "two processes train one run"
        if pids and turn % 2:
            os.kill(pids[0], signal.SIGKILL)
            killed["trainer"] += 1
        else:
            site.kill()
            killed["service"] += 1
            time.sleep(rng.uniform(0.0, 4.0))  # also past the lease
            site.start()
    ended = client.wait("storm", seconds=400)
    assert ended["state"] == "finished" and killed["service"] and killed["trainer"], (ended, killed)
    for name in SAME:
        calm, storm = (
            [(p["stage"], p["step"], p["value"]) for p in client.history(run, name)] for run in ("calm", "storm")
        )
        assert calm == storm and len(calm) >= 12, name
    assert client._json("POST", "/runs/storm:verify")["faults"] == []
    end = time.monotonic() + 30
    while site.trainers() and time.monotonic() < end:
        time.sleep(0.1)
    assert site.trainers() == []
    counts = {run: client._json("GET", f"/runs/{run}/rollouts:count")["counts"] for run in ("calm", "storm")}
    assert counts["calm"] == counts["storm"]
