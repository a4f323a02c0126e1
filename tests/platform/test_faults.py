"""Fault points: every one that is listed is in the code and the other way round, and each does what it says."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jurat.platform.faults import POINTS

ROOT = Path(__file__).parents[2]
CODE = "from jurat.platform.faults import point\nfor n in range(4): point('loop.between_update_and_publish'); print(n, flush=True)"


def test_the_list_is_the_code():
    found = set()
    for room in ("platform", "trainers", "engine", "verifiers", "datasets", "api"):
        for path in (ROOT / room).rglob("*.py"):
            if path.name != "faults.py":
                found |= set(re.findall(r"\bpoint\(\"([a-z_.]+)\"\)", path.read_text()))
    assert found == set(POINTS)


@pytest.mark.parametrize(
    ("fault", "said", "code"),
    [
        ("loop.between_update_and_publish", "", -signal.SIGKILL),
        ("loop.between_update_and_publish:3", "0\n1\n", -signal.SIGKILL),
        ("loop.between_update_and_publish:2:TERM", "0\n", -signal.SIGTERM),
        ("checkpoint.mid_write", "0\n1\n2\n3\n", 0),
    ],
)
def test_a_process_dies_at_the_visit_that_was_asked_for(fault, said, code):
    done = subprocess.run([sys.executable, "-c", CODE], env={"JURAT_FAULT": fault}, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == (said, code)
