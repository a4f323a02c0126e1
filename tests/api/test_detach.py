"""``jurat train --detach``: a process with a session of its own, found again by the run's name."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import psutil


def test_a_detached_run_is_watched_cancelled_and_gone_on_with(
    launch: Any, jurat: Any, small: Path, tmp_path: Path
) -> None:
    """The command returns once the run goes on; the process that trains has neither its terminal nor its group."""
    home = tmp_path / "home"
    process = launch("train", small, "--detach", "--json", "--run-id", "far", "--set", "stages=[]", "--set", "steps=500",
                     "--home", home)  # fmt: skip
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "jurat runs watch far" in err and '"run": "far"' in out
    trains = psutil.Process(int(out.split('"pid": ')[1].split(",")[0]))
    pid = trains.pid
    assert os.getsid(pid) == pid != os.getsid(0)
    log, deadline = home / "logs" / "far.log", time.monotonic() + 120
    while "1/500" not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    assert jurat("runs", "cancel", "far", "--home", home).code == 0
    assert jurat("runs", "watch", "far", "--home", home, "--interval", "0.1").code == 130
    assert "stopping at a checkpoint" in log.read_text()
    psutil.wait_procs([trains], timeout=120)  # the run has ended when its record says so, the process a moment later
    refused = jurat("runs", "cancel", "far", "--home", home)
    assert refused.code == 2 and "no process trains run far" in refused.err
    assert jurat("runs", "show", "far", "--json", "--home", home).json["state"] == "interrupted"


def test_what_ends_before_the_run_begins_is_told(jurat: Any, small: Path, tmp_path: Path) -> None:
    """The error and the exit code of the process."""
    done = jurat("train", small, "--detach", "--set", "data.train.source=nosuch.csv", "--home", tmp_path / "home")
    assert done.code == 2
    assert "nosuch.csv" in done.err
