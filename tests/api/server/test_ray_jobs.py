"""What a cluster may answer to whom launches runs as its jobs. Those of a real cluster are in test_ray_cluster.py."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from jurat.api.server.executor import UNKNOWN, Silent
from jurat.api.server.launcher import Launcher
from jurat.api.server.ray_jobs import Head, RayJobs, RayWork
from jurat.platform.errors import ConfigError
from jurat.platform.recipe import Recipe
from jurat.platform.runs.states import Limits
from jurat.platform.runs.store import Store


@pytest.fixture
def answers() -> Iterator[tuple[str, dict[str, tuple[int, object]], list[str]]]:
    """(address, {"METHOD path": what is answered}, what was asked) of a server that stands for a head in a rare state."""
    told: dict[str, tuple[int, object]] = {}
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked.append(f"{self.command} {self.path}")
            status, body = told.get(asked[-1], (404, "no such job"))
            self.send_response(status)
            self.end_headers()
            self.wfile.write((body if isinstance(body, str) else json.dumps(body)).encode())

        do_GET = do_POST = answer

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", told, asked
        server.shutdown()


def named(folder: Path) -> str:
    return RayWork(folder.name, 1, Head("http://head"), folder, folder).name


def test_a_job_that_waits_is_over_once_it_is_told_to_stop(answers, tmp_path: Path) -> None:
    """Some versions cannot stop it: the run's row is moved all the same, and its epoch is over when it starts after all."""
    address, told, asked = answers
    told["POST /api/jobs/"] = 200, {}
    told[f"GET /api/jobs/{named(tmp_path / 'r')}"] = 200, {"status": "PENDING", "driver_exit_code": None}
    told[f"POST /api/jobs/{named(tmp_path / 'r')}/stop"] = 200, {"stopped": False}
    work = RayJobs(address).start("r", 1, tmp_path / "r", [], {}, tmp_path / "log")
    assert work.poll() is None
    work.stop()
    assert work.poll() == UNKNOWN and asked[-1].endswith("/stop")
    work.kill()
    assert work.poll() == UNKNOWN


def test_a_cluster_that_forgot_or_does_not_answer(answers, tmp_path: Path) -> None:
    address, told, _ = answers
    jobs = RayJobs(address)
    assert not jobs.ready()
    told["POST /api/jobs/"] = 200, {}
    of_r, of_f = (f"GET /api/jobs/{named(tmp_path / name)}" for name in "rf")
    told[of_r] = 500, "Traceback\n..."
    work = jobs.start("r", 1, tmp_path / "r", [], {}, tmp_path / "log")
    with pytest.raises(Silent):
        work.poll()
    work.stop(), work.kill()  # neither raises
    del told[of_r]  # begun anew: its state is lost
    assert work.poll() == UNKNOWN and jobs.find("r", 1, tmp_path / "r") is None
    failed = jobs.start("f", 1, tmp_path / "f", [], {}, tmp_path / "log")
    told[of_f] = (
        200,
        {"status": "FAILED", "driver_exit_code": None, "message": "runtime_env setup\nfailed"},
    )
    assert failed.poll() == UNKNOWN and (tmp_path / "log").read_text() == "Ray: runtime_env setup failed\n"
    told[of_f] = 401, "Unauthorized"
    with pytest.raises(Silent, match="RAY_AUTH_TOKEN"):
        jobs._head.ask("GET", of_f.rpartition("/")[2])
    for bad in ("auto", "ray://head:10001", "http://", "http://head/x", "head:6379"):
        with pytest.raises(ConfigError, match="dashboard"):
            Head(bad)


def test_no_run_is_claimed_while_the_cluster_does_not_answer(tmp_path: Path) -> None:
    store = Store.open(None, tmp_path)
    recipe = Recipe.model_validate({"name": "t", "model": "tiny-random", "data": {"train": {"source": "generated"}}})
    store.create_run(recipe=recipe, recipe_digest="", reward_digest="", meta={}, run_id="r", state="queued")
    launcher = Launcher(store, RayJobs("http://127.0.0.1:9"), limits=Limits(lease=2.0))
    launcher.look()
    assert store.run("r").state == "queued" and "ray" not in vars(sys.modules["jurat.api.server.ray_jobs"])
    store.close()


def test_an_answer_without_a_status_is_no_answer(answers, tmp_path: Path) -> None:
    address, told, _ = answers
    work = RayWork("r", 1, Head(address), tmp_path, tmp_path / "log")
    for said in ({}, {"status": None}, {"state": "RUNNING"}, []):
        told[f"GET /api/jobs/{work.name}"] = 200, said
        with pytest.raises(Silent, match="answers 200"):
            work.poll()
    told[f"GET /api/jobs/{work.name}"] = 200, {"status": "SUCCEEDED", "driver_exit_code": 0}
    assert work.poll() == 0
