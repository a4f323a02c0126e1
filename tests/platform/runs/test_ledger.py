"""The ledger: nothing acknowledged is lost, whatever dies, hangs or fills up; the trainer never sees an exception."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import resource
import runpy
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from jurat.platform.errors import Interrupted
from jurat.platform.ports import Ledger
from jurat.platform.runs import ledger as ledgers
from jurat.platform.runs.ledger import RunLedger
from jurat.platform.runs.records import RunInfo
from jurat.platform.runs.remote import ServiceFacts
from jurat.platform.runs.rollouts import read, verify_parts
from jurat.platform.runs.spool import Spool
from jurat.platform.runs.store import Store
from jurat.platform.types import CheckpointRef

TRAINER = Path(__file__).parent / "trainer.py"


def open_ledger(store: Store, run: RunInfo, *, first_step: int = 0, **options: Any) -> RunLedger:
    segment = store.start_segment(run, first_step=first_step)
    return RunLedger(store, run, "", segment, run.folder, **{"retry_seconds": 0.05, **options})


def until_whole(ledger: RunLedger, run: RunInfo) -> None:
    end = time.monotonic() + 20
    while not Spool.of(run.folder).empty():
        assert time.monotonic() < end
        time.sleep(0.02)
    ledger.flush_now()


def test_what_is_recorded_is_read(store: Store, new_run: Any, batch: Any, step_report: Any, evaluation: Any) -> None:
    run = new_run()
    ledger = open_ledger(store, run)
    assert isinstance(ledger, Ledger)

    async def train() -> None:
        ledger.record_evaluation(evaluation(0))
        for step in range(3):
            ledger.record_batch(batch(step))
            ledger.record_step(step_report(step, **{"odd": math.nan}))
        ledger.record_event("alarm", {"text": "cut\x00", "share": math.inf})
        await ledger.flush()
        ledger.record_checkpoint(CheckpointRef(path="c", digest="d", step=3))
        await asyncio.gather(ledger.flush(), ledger.flush())

    asyncio.run(train())
    assert read(store, run, limit=None).matched == 18
    points = {(p.step, p.name): p.value for p in store.metrics(run)}
    assert points[2, "reward/mean"] == 0.25
    assert points[2, "policy/loss"] == 0.5
    assert points[2, "policy/tokens"] == 10
    assert points[2, "seconds/update"] == 0.1
    assert math.isnan(points[0, "odd"])
    assert [e.payload for e in store.events(run) if e.kind == "alarm"] == [{"text": "cut\\x00", "share": "inf"}]
    assert [c.ref.digest for c in store.checkpoints(run)] == ["d"]
    assert [m.result.step for m in store.evaluations(run)] == [0]
    assert (ledger.health().lost, ledger.health().spooled, ledger.health().waiting) == (0, 0, 0)
    ledger.close()
    ledger.close()
    assert not (run.folder / "spool.jsonl").exists()


def test_two_ledgers_in_parallel(store: Store, new_run: Any, batch: Any, step_report: Any) -> None:
    runs = [new_run(), new_run()]
    ledgers = [open_ledger(store, run) for run in runs]

    def train(ledger: RunLedger) -> None:
        for step in range(20):
            ledger.record_batch(batch(step))
            ledger.record_step(step_report(step))
            if step % 5 == 0:
                ledger.flush_now(30)

    threads = [threading.Thread(target=train, args=(ledger,)) for ledger in ledgers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for ledger, run in zip(ledgers, runs, strict=True):
        ledger.close()
        assert (ledger.health().failures, ledger.health().spooled) == (0, 0)
        assert [p.step for p in store.metrics(run, names=["reward/mean"])] == list(range(20))
        assert read(store, run, limit=None).matched == 120
        assert verify_parts(store, run) == []


def test_two_ledgers_of_one_run(store: Store, new_run: Any, step_report: Any) -> None:
    run = new_run()
    one = open_ledger(store, run)
    two = RunLedger(store, run, "b", store.start_segment(run, stage="b", stage_index=1, first_step=0), run.folder)
    for step in range(10):
        one.record_step(step_report(step))
        two.record_step(step_report(step))
        two.record_event("note", {"n": step})
    one.close()
    two.close()
    assert [(p.stage, p.step) for p in store.metrics(run, names=["reward/mean"])] == [
        (stage, step) for stage in ("", "b") for step in range(10)
    ]
    assert [e.payload["n"] for e in store.events(run) if e.kind == "note"] == list(range(10))


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (None, "ended"),
        (KeyboardInterrupt(), "interrupted"),
        (Interrupted("Ctrl-C"), "interrupted"),
        (ValueError("no memory\x00"), "failed: no memory\\x00"),
    ],
)
def test_the_segment_ends_as_the_block_did(
    store: Store, new_run: Any, error: BaseException | None, ending: str
) -> None:
    run = new_run()
    try:
        with open_ledger(store, run):
            if error is not None:
                raise error
    except BaseException as caught:
        assert caught is error
    (segment,) = store.segments(run)
    assert (segment.ending, segment.ended is not None) == (ending, True)


# ---- a database that does not answer -----------------------------------------------------------------------------


class Outage:
    """Makes a database refuse every write until ``end``."""

    def __init__(self, store: Store) -> None:
        self._url = store.engine.url
        if self._url.get_backend_name() == "sqlite":
            self._other = sqlite3.connect(str(self._url.database), isolation_level=None)
            self._other.execute("BEGIN EXCLUSIVE")
        else:
            self._allow(False)

    def end(self) -> None:
        if self._url.get_backend_name() == "sqlite":
            self._other.execute("ROLLBACK")
            self._other.close()
        else:
            self._allow(True)

    def _allow(self, allowed: bool) -> None:
        import psycopg

        admin = self._url.set(drivername="postgresql", database="postgres").render_as_string()
        with psycopg.connect(admin, autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {self._url.database} ALLOW_CONNECTIONS {allowed}")
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [self._url.database]
            )


def test_an_outage_goes_through_the_spool(
    store: Store, new_run: Any, batch: Any, step_report: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run = new_run()
    ledger = open_ledger(store, run)
    ledger.flush_now()
    caplog.set_level(logging.WARNING, logger="jurat")
    logging.getLogger("jurat").propagate = True
    outage = Outage(store)
    try:
        for step in range(3):
            ledger.record_batch(batch(step))
            ledger.record_step(step_report(step))
            ledger.record_event("note", {"n": step})
        ledger.flush_now()  # durable in the spool, of which the writer may be trying a part again
        spooled = [
            json.loads(line) for file in run.folder.glob("spool*.jsonl") for line in file.read_text().splitlines()
        ]
        assert {op["op"] for op in spooled} == {"part", "index", "verdicts", "metric", "event"}
        assert ledger.health().lost == 0
        assert [r.message for r in caplog.records if "cannot write to the database" in r.message] != []
    finally:
        outage.end()
    ledger.record_step(step_report(3))
    until_whole(ledger, run)
    assert [p.step for p in store.metrics(run, names=["reward/mean"])] == [0, 1, 2, 3]
    assert read(store, run, limit=None).matched == 18
    assert [e.payload["n"] for e in store.events(run) if e.kind == "note"] == [0, 1, 2]
    assert [e.kind for e in store.events(run)][-1] == "tracking_outage"
    assert sum("training goes on" in r.message for r in caplog.records) == 1  # one line an outage
    ledger.close()


def test_a_spool_left_behind_is_drained_by_the_next_ledger(store: Store, new_run: Any, step_report: Any) -> None:
    run = new_run()
    ledger = open_ledger(store, run)
    outage = Outage(store)
    try:
        ledger.record_step(step_report(0))
        ledger.close()
    finally:
        outage.end()
    spool = run.folder / "spool.jsonl"
    assert spool.exists()
    kept = run.folder / "kept"
    shutil.copy(spool, kept)
    with spool.open("ab") as file:
        file.write(b'{"op": "metric", "torn')  # killed in the middle of a line
    open_ledger(store, run, first_step=1).close()
    assert [p.step for p in store.metrics(run, names=["reward/mean"])] == [0]
    shutil.copy(kept, run.folder / "spool.draining.jsonl")  # killed between the commit and the removal
    before = len(store.metrics(run)), len(store.events(run))
    open_ledger(store, run, first_step=1).close()
    assert (len(store.metrics(run)), len(store.events(run))) == before
    assert not (run.folder / "spool.draining.jsonl").exists()


def test_a_full_queue_goes_to_the_spool(store: Store, new_run: Any, batch: Any, step_report: Any) -> None:
    run = new_run()
    ledger = open_ledger(store, run, max_records=1)
    outage = Outage(store)
    try:
        for step in range(30):
            ledger.record_batch(batch(step))
            ledger.record_step(step_report(step))
    finally:
        outage.end()
    ledger.close()
    assert ledger.health().lost == 0
    assert ledger.health().spooled > 0
    assert [p.step for p in store.metrics(run, names=["reward/mean"])] == list(range(30))
    assert read(store, run, limit=None).matched == 30 * 6
    assert verify_parts(store, run) == []


def test_after_close_records_wait_for_the_next_ledger(store: Store, new_run: Any, step_report: Any) -> None:
    run = new_run()
    ledger = open_ledger(store, run)
    ledger.close()
    ledger.record_step(step_report(0))
    asyncio.run(ledger.flush())
    assert store.metrics(run) == []
    open_ledger(store, run, first_step=1).close()
    assert [p.step for p in store.metrics(run, names=["reward/mean"])] == [0]


# ---- records that cannot be kept ---------------------------------------------------------------------------------


def test_a_poisoned_record_does_not_hold_up_the_others(store: Store, new_run: Any, step_report: Any) -> None:
    run = new_run()
    ledger = open_ledger(store, run)
    outage = Outage(store)  # so that all are one group
    try:
        ledger.record_step(step_report(0))
        ledger.record_checkpoint(CheckpointRef(path="c", digest="huge", step=2**80))
        ledger.record_checkpoint(CheckpointRef(path="c", digest="good", step=1))
        ledger.flush_now()
    finally:
        outage.end()
    ledger.close()
    assert [c.ref.digest for c in store.checkpoints(run)] == ["good"]
    assert len(store.metrics(run, names=["reward/mean"])) == 1
    (line,) = (run.folder / "spool.rejected.jsonl").read_text().splitlines()
    assert json.loads(line)["digest"] == "huge"
    assert (ledger.health().rejected, ledger.health().lost) == (1, 0)


def test_a_record_of_nonsense_never_raises(store: Store, new_run: Any, batch: Any, step_report: Any) -> None:
    run = new_run()
    ledger = open_ledger(store, run)
    nonsense: Any = "not a number"
    ledger.record_step(step_report(0, bad=nonsense))
    ledger.record_checkpoint(nonsense)
    ledger.record_batch(nonsense)
    ledger.record_event("fine", {"object": object(), "set": {1}, "bytes": b"\xff"})
    ledger.record_batch(batch(1))
    ledger.close()
    assert ledger.health().lost == 3
    assert [e.kind for e in store.events(run)][-1] == "fine"
    assert read(store, run, limit=None).matched == 6


# ---- killed ------------------------------------------------------------------------------------------------------


def _trainer(
    url: str, home: Path, run: str, first: int, last: int, **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TRAINER), url, str(home), run, str(first), str(last)]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60)


def _acknowledged(done: subprocess.CompletedProcess[str]) -> list[int]:
    return [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("flushed ")]


@pytest.mark.parametrize(
    ("database_url", "fault"),
    [
        ("sqlite", "rollouts.mid_write:4"),
        ("sqlite", "ledger.mid_commit:5"),
        ("sqlite", "ledger.mid_commit:1"),
        ("postgresql", "ledger.mid_commit:5"),
    ],
    indirect=["database_url"],
)
def test_killed_in_the_middle_no_acknowledged_row_is_lost(
    store: Store, database_url: str, new_run: Any, fault: str
) -> None:
    run = new_run()
    died = _trainer(database_url, store.home, run.id, 0, 10, JURAT_FAULT=fault)
    assert died.returncode == -signal.SIGKILL, died.stderr
    known = _acknowledged(died)
    steps = [p.step for p in store.metrics(run, names=["x"])]
    assert steps[: len(known)] == known
    assert len(steps) <= len(known) + 1
    recorded = {r.step for r in read(store, run, limit=None).records}
    assert set(known) <= recorded
    assert verify_parts(store, run) == []  # no half part is visible
    runpy.run_path(str(TRAINER))["run"](database_url, store.home, run.id, len(known), 10)
    assert [p.step for p in store.metrics(run, names=["x"])] == list(range(10))
    page = read(store, run, limit=None)
    assert [r.step for r in page.records] == [step for step in range(10) for _ in range(6)]
    assert page.faults == ()
    assert not list(run.folder.glob("**/*.tmp"))
    catalogued = {part.path for part in store.parts(run, canonical=False)}
    assert catalogued == {p.relative_to(run.folder).as_posix() for p in run.folder.glob("rollouts/**/*.parquet")}
    assert len(store.verdict_stats(run)) == 10


@pytest.mark.parametrize(
    ("database_url", "after"), [("sqlite", 0.0), ("sqlite", 0.05), ("postgresql", 0.03)], indirect=["database_url"]
)
def test_killed_at_any_moment(store: Store, database_url: str, new_run: Any, after: float) -> None:
    run = new_run()
    command = [
        sys.executable,
        str(TRAINER),
        database_url,
        str(store.home),
        run.id,
        "0",
        "500",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    first = process.stdout.readline()
    time.sleep(after)
    process.kill()
    rest, _ = process.communicate()
    known = [int(line.split()[1]) for line in (first + rest).splitlines() if line.startswith("flushed ")]
    open_ledger(store, run, first_step=len(known)).close()
    assert [p.step for p in store.metrics(run, names=["x"])][: len(known)] == known
    page = read(store, run, limit=None)
    assert [r.step for r in page.records] == [step for step in known for _ in range(6)]
    assert page.faults == ()
    assert verify_parts(store, run) == []


def test_a_disk_that_is_full_for_a_while(tmp_path: Path, recipe: Any) -> None:
    store = Store.open(None, tmp_path, busy_seconds=1.0)
    run = store.set_state(store.create_run(recipe=recipe, recipe_digest="", reward_digest="", meta={}), "running")
    store.close()
    done = _trainer(f"sqlite:///{tmp_path / 'jurat.db'}", tmp_path, run.id, 0, 6, FULL_DISK="2:4")
    assert done.returncode == 0, done.stderr
    assert _acknowledged(done) == list(range(6))  # flush came back each time
    assert "cannot write rollouts" in done.stderr
    assert "Traceback" not in done.stderr
    store = Store.open(None, tmp_path)
    assert [p.step for p in store.metrics(run, names=["x"])] == list(range(6))
    assert {r.step for r in read(store, run, limit=None).records} == set(range(6))
    assert verify_parts(store, run) == []
    assert not (run.folder / "spool.jsonl").exists()
    assert not list(run.folder.glob("**/*.tmp"))
    store.close()


def test_a_full_disk_while_the_service_is_away(
    tmp_path: Path, recipe: Any, step_report: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither takes a fact: the newest are kept in memory, the others are lost, and the log says so once."""
    monkeypatch.setattr(ledgers, "_HELD", 60)
    caplog.set_level(logging.WARNING, logger="jurat")
    logging.getLogger("jurat").propagate = True
    store = Store.open(None, tmp_path)
    run = store.set_state(store.create_run(recipe=recipe, recipe_digest="", reward_digest="", meta={}), "running")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nowhere = f"http://127.0.0.1:{taken.getsockname()[1]}"
    ledger = open_ledger(store, run, through=ServiceFacts(nowhere, "", run.id), retry_seconds=30.0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        for step in range(50):
            ledger.record_step(step_report(step))
            ledger.flush_now(10)
            assert ledger.health().waiting <= 60
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (run.folder / "spool.jsonl").stat().st_size == 0
    ledger.record_step(step_report(50))
    ledger.close()  # the last chance: it writes itself
    kept = [p.step for p in store.metrics(run, names=["reward/mean"])]
    assert kept == list(range(50 - len(kept) + 1, 51)) and len(kept) > 5
    lost = ledger.health().lost
    assert lost > 0 and store.events(run)[-1].payload["lost"] == lost
    said = [record.message for record in caplog.records]
    assert sum("cannot write to the spool" in line for line in said) == 1
    assert sum("facts are lost" in line for line in said) == 1
    assert f"the record lacks {lost} records" in " ".join(said)
    store.close()


def test_a_read_only_database(tmp_path: Path, recipe: Any, step_report: Any) -> None:
    store = Store.open(None, tmp_path)
    run = store.set_state(store.create_run(recipe=recipe, recipe_digest="", reward_digest="", meta={}), "running")
    ledger = open_ledger(store, run)
    ledger.flush_now()

    @sa.event.listens_for(store.engine, "checkout")
    def _refuse(connection: Any, *_: Any) -> None:
        connection.execute(f"PRAGMA query_only={'ON' if refusing else 'OFF'}")

    refusing = True
    ledger.record_step(step_report(0))
    ledger.flush_now()
    assert (run.folder / "spool.jsonl").exists()
    refusing = False
    until_whole(ledger, run)
    assert len(store.metrics(run, names=["reward/mean"])) == 1
    ledger.close()
    assert ledger.health().lost == 0
