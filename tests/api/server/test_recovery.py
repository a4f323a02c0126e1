"""kill -9 of a service and of real training, at named points and again and again: each run ends as one that nobody touched,
bit for bit. ``make soak``; one line is printed a run or a kill."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sites import Site

from jurat.client import Client

CONFIG = {
    "stages.0.steps": 12,
    "stages.1.steps": 12,
    "checkpoint.every": 3,
    "evaluate.problems": 4,
    "evaluate.final_problems": 4,
    "evaluate.samples": 2,
}
SAME = ("reward/mean", "policy/loss", "policy/entropy", "policy/grad_norm")
NAMED = ("rollouts.mid_write:5", "loop.between_update_and_publish:17", "checkpoint.mid_write:3")
"""Points that tests/api/server/test_kills.py has no training for."""
KILLS = 6


class Served(Site):
    def __init__(self, home: Path, database: str) -> None:
        super().__init__(home, tries=60)
        self.database = database

    def start(self, fault: str = "") -> None:
        serve = ["serve", "--port", str(self.port), "--lease-seconds", "3", "--database", self.database]
        self.launch([sys.executable, "-m", "jurat", "--home", str(self.home), *serve], {"JURAT_FAULT": fault})


@pytest.fixture
def site(tmp_path: Path, database_url: str) -> Iterator[Served]:
    made = Served(tmp_path, database_url)
    made.start()
    yield made
    made.kill()
    for pid in made.trainers():
        os.killpg(pid, signal.SIGKILL)


def numbers(client: Client, run: str) -> dict[str, list[tuple[str, int, float]]]:
    return {name: [(p["stage"], p["step"], p["value"]) for p in client.history(run, name)] for name in SAME}


def storm(site: Served, rng: random.Random) -> dict[str, int]:
    """Kill the service and the trainer in turns, each time a little after the run has taken a step since."""
    killed, seen = {"service": 0, "trainer": 0}, None
    for turn in range(KILLS):
        while (run := site.client.run("storm"))["last_step_at"] == seen and run["state"] != "finished":
            time.sleep(0.02)
        if run["state"] == "finished":
            break
        seen = run["last_step_at"]
        time.sleep(rng.uniform(0.0, 0.5))
        pids = site.trainers()
        assert len(pids) <= 1, "two processes train one run"
        if pids and turn % 2 == 0:
            os.kill(pids[0], signal.SIGKILL)
            killed["trainer"] += 1
        else:
            site.kill()
            killed["service"] += 1
            time.sleep(rng.uniform(0.0, 4.0))  # also past the lease
            site.start()
    return killed


@pytest.mark.soak
def test_a_run_survives_kills_with_equal_numbers(site: Served, capsys: pytest.CaptureFixture[str]) -> None:
    client, kind = site.client, sa.engine.make_url(site.database).get_backend_name()
    client.create_run("tiny", CONFIG, id="calm")
    assert client.wait("calm", seconds=300)["state"] == "finished"
    calm = numbers(client, "calm")
    assert all(len(points) >= 12 for points in calm.values())

    for place, what in enumerate((*NAMED, "storm")):
        site.kill()
        site.start("" if what == "storm" else f"trainer@{what}")
        if what == "storm":
            client.create_run("tiny", CONFIG, id="storm", max_restarts=20)
            killed = storm(site, random.Random(7))
            run = "storm"
        else:
            run, killed = f"named-{place}", {"trainer": 1}
            client.create_run("tiny", CONFIG, id=run, max_restarts=1)
        ended = client.wait(run, seconds=400)
        assert ended["state"] == "finished" and all(killed.values()), (ended, killed)
        assert ended["restarts"] == killed["trainer"]
        found = numbers(client, run)
        with capsys.disabled():
            rows, same = sum(map(len, found.values())), sum(found[name] == calm[name] for name in SAME)
            print(
                f"\n{what:34} {kind:10} killed {killed}; {rows} numbers, {same} of {len(SAME)} curves equal", flush=True
            )
        assert found == calm
        assert client._json("POST", f"/runs/{run}:verify")["faults"] == []
        counts = [client._json("GET", f"/runs/{each}/rollouts:count")["counts"] for each in ("calm", run)]
        assert counts[0] == counts[1]
    site.kill()
    end = time.monotonic() + 30
    while site.left() and time.monotonic() < end:
        time.sleep(0.1)
    assert site.left() == []
