"""docs/service.md: its session is run as it stands, with a real service and a real trainer, and shows what it says."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

BLOCK = re.compile(r"```bash\n(.*?)```", re.S)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    home = tmp_path_factory.mktemp("session")
    with socket.create_server(("127.0.0.1", 0)) as free:
        number = int(free.getsockname()[1])
    command = [sys.executable, "-m", "jurat", "--home", str(home), "serve", "--port", str(number)]
    with open(home / "service.log", "w") as log:
        service = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end and service.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", number)) == 0:
                    break
            time.sleep(0.05)
        assert service.poll() is None, (home / "service.log").read_text()
        yield number
        psutil.wait_procs(
            [c for c in psutil.Process(service.pid).children(recursive=True) if "train" in c.cmdline()], 30
        )
    finally:
        service.send_signal(signal.SIGINT)
        assert service.wait(30) == 0, (home / "service.log").read_text()


def test_the_session(port: int, root: Path) -> None:
    if shutil.which("curl") is None:
        pytest.fail("the session needs curl")
    page = (root / "docs" / "service.md").read_text().partition("## Rules")[0]
    commands = [part for block in BLOCK.findall(page) for part in re.split(r"\n(?=curl|jurat)", block.strip())]
    assert commands[0].startswith("jurat serve") and len(commands) == 14
    names: dict[str, str] = {}

    def run(command: str) -> str:
        for word, value in names.items():
            command = command.replace(word, value)
        done = subprocess.run(
            ["bash", "-c", command.replace(":8642", f":{port}")],
            capture_output=True,
            text=True,
            timeout=150,
            env={**os.environ, "no_proxy": "127.0.0.1"},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def answer(command: str) -> Any:
        return json.loads(run(command))

    (
        create,
        stream,
        show,
        find,
        rollouts,
        rollout,
        checkpoints,
        lineage,
        versions,
        verify,
        quarantine,
        affected,
        refused,
    ) = commands[1:]
    made = answer(create)
    assert (made["id"], made["state"], made["tags"]) == ("first", "queued", {"owner": "ada"}) and answer(create) == made

    told = run(stream)
    kinds = re.findall(r"^event: (\w+)$", told, re.M)
    assert kinds.count("metrics") == 10 and kinds[-1] == "end" and '"state":"finished"' in told, told[-2000:]

    shown = answer(show)
    assert (
        shown["state"] == "finished"
        and 0 <= shown["metrics"]["reward/mean"] <= 1
        and shown["reward_spec"].startswith("sha256:")
    )
    assert [each["id"] for each in answer(find)["runs"]] == ["first"]

    some = answer(rollouts)["rollouts"]
    assert some and all(each["stage"] == "grpo" and each["status"] != "correct" for each in some)
    names["ROLLOUT"] = some[0]["id"]
    whole = answer(rollout)
    assert (
        len(whole["tokens"]) == whole["prompt_tokens"] + whole["completion_tokens"]
        and whole["verdicts"][0]["version_digest"]
    )

    saved = answer(checkpoints)["checkpoints"]
    names["CHECKPOINT"] = saved[-1]["digest"]
    kinds_of = {node["kind"] for node in answer(lineage)["nodes"]}
    assert {
        "checkpoint",
        "segment",
        "reward_spec",
        "verifier_version",
        "dataset_version",
        "model_version",
        "environment",
    } <= kinds_of

    names["VERSION"] = answer(versions)["versions"][0]["digest"]
    assert [v["status"] for v in answer(verify)["verdicts"]] == ["correct", "incorrect"]
    assert answer(quarantine)["status"] == "quarantined"
    tainted = answer(affected)
    assert tainted["runs"] == ["first"] and tainted["judged"][0]["verdicts"] > 0
    assert names["CHECKPOINT"] in {node["id"] for node in tainted["nodes"]}
    assert answer(refused)["type"] == "/problems/quarantined-verifier"
