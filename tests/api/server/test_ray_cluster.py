"""Runs that the service launches as jobs of a real Ray cluster. Rare answers of one are in test_ray_jobs.py."""

import importlib.util
import os
import signal
import sys
import time

import counter
import psutil
import pytest
import sqlalchemy as sa

from jurat.api.server.executor import UNKNOWN
from jurat.api.server.launcher import Launcher
from jurat.api.server.ray_jobs import RayJobs, note_of
from jurat.api.server.service import Settings
from jurat.engine.ray import needs_ray
from jurat.platform.db import tables as t
from jurat.platform.errors import RunFailed
from jurat.platform.recipe import Recipe
from jurat.platform.runs import leases
from jurat.platform.runs.states import Limits
from services import listening

if importlib.util.find_spec("ray") is None:
    pytest.skip("needs Ray: pip install 'ray[default]'", allow_module_level=True)

needs_ray()
import ray  # noqa: E402 (what it reads when it is imported must stand)


@pytest.fixture(scope="module")
def cluster():
    """The address of its head."""
    began = ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=True,
        dashboard_port=0,
        log_to_driver=False,
        logging_level="FATAL",
    )
    yield f"http://{began.dashboard_url}"
    ray.shutdown()


def until(true, home):
    end = time.monotonic() + 40
    while not true():
        assert time.monotonic() < end, [path.read_text()[-800:] for path in (home / "logs").glob("*.log")]
        time.sleep(0.02)


def drivers(run):
    """The process ids of a run's jobs, the oldest first."""
    notes = sorted(run.folder.glob("driver.*"), key=lambda path: int(path.suffix[1:]))
    return [int(text.split()[1]) for text in (note.read_text() for note in notes) if text]


def test_jobs_killed_cancelled_and_taken_up_again(cluster, tmp_path):
    """The numbers of a run whose process was killed are those of one that never was; they come through the service."""
    command = ("env", "JURAT_COUNTER_SECONDS=0.06", sys.executable, counter.__file__)
    with listening(Settings(home=tmp_path)) as served:
        store = served.service.store

        def launched():
            limits = Limits(lease=2.0)
            made = Launcher(store, RayJobs(cluster, command), slots=2, limits=limits, service=served.url, owner="one")
            made.start()
            return made

        for name in ("r", "c"):
            recipe = Recipe.model_validate(
                {"name": "t", "model": "tiny-random", "data": {"train": {"source": "generated"}}}
            )
            store.create_run(
                recipe=recipe, recipe_digest="", reward_digest="", meta={}, run_id=name, state="queued", max_restarts=1
            )
        numbers = lambda name: {each.step: each.value for each in store.metrics(store.run(name), names=["x"])}
        first = launched()
        until(lambda: len(numbers("r")) > counter.EVERY and numbers("c"), tmp_path)
        os.kill(drivers(store.run("r"))[0], signal.SIGKILL)
        store.write(lambda c: leases.command(c, store.run("c").pk, "cancel"))
        until(lambda: store.run("c").state == "cancelled", tmp_path)
        until(lambda: len(drivers(store.run("r"))) == 2 and store.run("r").state == "running", tmp_path)
        first.close()
        again = launched()
        until(lambda: store.run("r").state == "finished", tmp_path)
        again.close()
        run, used = store.run("r"), sa.select(t.api_key.c.last_used).where(t.api_key.c.run_id == "r")
        found = numbers("r")
        assert [found[step] for step in sorted(found)] == counter.numbers() and run.restarts == 1
        said = [event.payload["detail"] for event in store.events(run) if event.kind == "state"]
        assert "its process was killed by signal 9" in said
        tokens = store.read(lambda c: c.execute(used).scalars().all())
        assert len(tokens) == 2 and all(tokens)
        pids = drivers(run) + drivers(store.run("c"))
        assert len(pids) == 3
        until(lambda: not any(map(psutil.pid_exists, pids)), tmp_path)


def test_a_job_that_does_not_hear_is_killed_with_all_it_started(cluster, tmp_path):
    script = "import subprocess, sys, time; subprocess.Popen(['sleep', '60']); open(sys.argv[1], 'w').close(); time.sleep(60)"
    jobs, folder, began, log = (
        RayJobs(cluster, (sys.executable, "-c", script)),
        tmp_path / "r",
        tmp_path / "b",
        tmp_path / "l",
    )
    words = [str(began), "r"]
    old = jobs.start("r", 1, folder, words, {"A_TOKEN": "secret"}, log)
    again = jobs.start("r", 1, folder, words, {}, log)  # asked twice, made once
    until(began.exists, tmp_path)
    job = psutil.Process(int(note_of(folder, 1).read_text().split()[1]))
    family = [job, *job.children(recursive=True)]
    assert len(family) == 2 and "secret" not in " ".join(job.cmdline()) and job.environ()["A_TOKEN"] == "secret"
    assert again.poll() is None and jobs.ready()
    assert jobs.find("r", 2, folder) is None  # of an older epoch: killed
    assert not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in family)
    assert old.poll() == UNKNOWN
    with pytest.raises(RunFailed, match="did not take"):  # what ended is not begun again under its name
        jobs.start("r", 1, folder, words, {}, log)
