"""The same as a normal user: another process, without any privilege."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jurat.verifiers.sandbox import attacks

SOURCES = Path(__file__).parents[3] / "src"
NOBODY = 65_534
SCRIPT = """
import asyncio, json, os, sys
from jurat.verifiers.sandbox import Limits, Program, Sandbox, SandboxUnavailable, levels

async def main():
    made = {}
    for level in ("ns", "seccomp"):
        found = levels.probe(level)
        if not found.works:
            made[level] = {"missing": found.missing}
            continue
        with Sandbox(level, slots=2) as sandbox:
            quiet = await sandbox.run(Program(text=sys.argv[1]))
            sums = [(i, o.stdout.decode()) async for i, o in sandbox.run_batch(
                Program(text="print(sum(map(int, input().split())))", stdin=b"1 %d" % i) for i in range(8))]
            threads = await sandbox.run(Program(text="import threading\\nt = threading.Thread(target=print, args=('t',))\\nt.start()"))
            late = await sandbox.run(Program(text="while True: pass"), Limits(wall_seconds=0.3))
            judge = await sandbox.run(Program(text=f"import os\\nos.kill({os.getpid()}, 9)"))
            pin = await sandbox.run(Program(text=f"import os\\nos.sched_setaffinity({os.getpid()}, [0])"))
            made[level] = {
                "quiet": quiet.stdout.decode(), "sums": sorted(sums), "threads": threads.stdout.decode(), "late": late.ending,
                "judge": judge.ending, "pin": pin.ending, "uid": os.getuid(),
            }
    print(json.dumps(made))

asyncio.run(main())
"""


def interpreter() -> str:
    """One that any user may read, with the standard library."""
    for path in (getattr(sys, "_base_executable", sys.executable), "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            subprocess.run(
                [path, "-c", "import sys; assert sys.version_info >= (3, 11)"],
                check=True,
                capture_output=True,
                **as_nobody(),
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        return path
    pytest.skip("no Python of 3.11 or later here that another user may read")


def as_nobody() -> dict:
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}


def test_as_a_normal_user(tmp_path: Path) -> None:
    path = interpreter()
    if os.geteuid() == 0 and not all(os.stat(folder).st_mode & 0o001 for folder in SOURCES.resolve().parents):
        pytest.skip(f"{SOURCES} cannot be read by another user")
    done = subprocess.run(
        [path, "-B", "-c", SCRIPT, attacks.QUIET], env={"PYTHONPATH": str(SOURCES)}, cwd="/", capture_output=True, text=True,
        timeout=100, **as_nobody(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    held = [found for found in made.values() if "missing" not in found]
    assert "missing" not in made["seccomp"] or "landlock" in made["seccomp"]["missing"], made
    if not held:
        pytest.skip(str(made))
    for found in held:
        assert found["quiet"] == "done\n"
        assert found["sums"] == [[i, f"{i + 1}\n"] for i in range(8)]
        assert (found["threads"], found["late"], found["judge"], found["pin"]) == (
            "t\n",
            "timeout",
            "exception",
            "exception",
        )
        assert found["uid"] != 0
