"""The same as a normal user: another process, without any privilege."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jurat.verifiers.sandbox import attacks

SOURCES = Path(__file__).parents[3] / "src"
NOBODY = 65_534
SCRIPT = """
import asyncio, json, os, sys
from jurat.verifiers.sandbox import Limits, Program, Sandbox, SandboxUnavailable, levels

programs = json.load(sys.stdin)

async def attacked(sandbox):
    # Names of the attacks that said that they worked.
    worked = set()
    for name, text in programs:
        run = await sandbox.start(Program(text=text, role="serve", entry="add"), Limits(wall_seconds=0.3))
        await run.send({"args": [1, 2]})
        run.end()
        for outcome in (await run.wait(), await sandbox.run(Program(text=text, stdin=b"1 2\\n"), Limits(wall_seconds=0.3))):
            if b"PWNED" in outcome.stdout or b"SBX_CANARY" in outcome.stdout or outcome.ending == "infra_error":
                worked.add(name)
    return sorted(worked)

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
                "attacks": await attacked(sandbox), "judge": judge.ending, "pin": pin.ending, "uid": os.getuid(),
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


def programs() -> list[tuple[str, str]]:
    """The attacks that do not take their time; each runs twice, so that what one run left the other would find."""
    folder = Path(os.environ.get("JURAT_CASES", "../shared/cases")) / "sandbox"
    if not folder.is_dir():
        return []
    listed = json.loads((folder / "manifest.json").read_text())["attacks"]
    names = [attack["id"] for attack in listed if attack["kind"] != "resource"]
    return [(name, (folder / "attacks" / f"{name}.py").read_text()) for name in names]


def test_as_a_normal_user(scene: Any) -> None:
    path = interpreter()
    if os.geteuid() == 0 and not all(os.stat(folder).st_mode & 0o001 for folder in SOURCES.resolve().parents):
        pytest.skip(f"{SOURCES} cannot be read by another user")
    done = subprocess.run(
        [path, "-B", "-c", SCRIPT, attacks.QUIET], input=json.dumps(programs()), cwd="/", capture_output=True, text=True,
        env={"PYTHONPATH": str(SOURCES), "SBX_CANARY_SECRET": "SBX_CANARY_VALUE"},
        timeout=100, **as_nobody(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert scene.harm() == []
    held = [found for found in made.values() if "missing" not in found]
    assert "missing" not in made["seccomp"] or "landlock" in made["seccomp"]["missing"], made
    if not held:
        pytest.skip(str(made))
    for found in held:
        assert found["attacks"] == []
        assert found["quiet"] == "done\n"
        assert found["sums"] == [[i, f"{i + 1}\n"] for i in range(8)]
        assert (found["threads"], found["late"], found["judge"], found["pin"]) == (
            "t\n",
            "timeout",
            "exception",
            "exception",
        )
        assert found["uid"] != 0
