"""One writer for many: one commit for what waits, a failing job undone alone, a full queue said at once."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from jurat.platform.db import tables as t
from jurat.platform.db import wal
from jurat.platform.db.engine import connect, on_commit, reading, writing
from jurat.platform.db.writer import Busy, Writer
from jurat.platform.errors import DataError
from jurat.platform.runs import ingest
from jurat.platform.runs.store import Store


def _key(name: str) -> Any:
    def insert(connection: sa.Connection) -> str:
        connection.execute(sa.insert(t.metric_key).values(name=name))
        return name

    return insert


def _names(store: Store) -> set[str]:
    return set(store.read(lambda c: c.execute(sa.select(t.metric_key.c.name)).scalars().all()))


def _blocked(writer: Writer) -> tuple[threading.Event, Future[None]]:
    """The writer stands inside a transaction until the event is set."""
    inside, go = threading.Event(), threading.Event()

    def wait(_: sa.Connection) -> None:
        inside.set()
        assert go.wait(60)

    done = writer.submit(wait)
    assert inside.wait(60)
    return go, done


def test_what_waits_is_one_commit_and_a_failure_is_alone(store: Store) -> None:
    with Writer(store.engine) as writer:
        go, _ = _blocked(writer)
        good = [writer.submit(_key(f"k{n}")) for n in range(20)]
        twice = writer.submit(_key("k3"))
        after = writer.submit(_key("last"))
        go.set()
        assert [each.result() for each in good] == [f"k{n}" for n in range(20)]
        with pytest.raises(sa.exc.IntegrityError):
            twice.result()
        assert after.result() == "last"
        assert writer.commits == 2
    assert _names(store) == {*(f"k{n}" for n in range(20)), "last"}


def test_a_full_queue_is_said_at_once_and_close_writes_what_waits(store: Store) -> None:
    writer = Writer(store.engine, queue=2)
    go, _ = _blocked(writer)
    waiting = [writer.submit(_key(name)) for name in ("a", "b")]
    with pytest.raises(Busy, match="2 jobs waiting"):
        writer.submit(_key("c"))
    go.set()
    writer.close()
    assert [each.result() for each in waiting] == ["a", "b"]
    with pytest.raises(Busy, match="is closed"):
        writer.submit(_key("d"))


def test_an_old_reader_stops_the_writer_before_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wal, "SOFT", 200_000)
    monkeypatch.setattr(wal, "HARD", 1_000_000)
    monkeypatch.setattr(wal, "EVERY_SECONDS", 0.05)
    caplog.set_level(logging.WARNING, logger="jurat")
    logging.getLogger("jurat").propagate = True
    path = tmp_path / "x.db"
    engine = connect(f"sqlite:///{path}", durable=False)
    with writing(engine) as connection:
        connection.execute(sa.text("CREATE TABLE kept (n INTEGER PRIMARY KEY, text TEXT)"))
    size, added, refused = Path(f"{path}-wal"), 0, 0

    def add(connection: sa.Connection) -> None:
        connection.execute(sa.text("INSERT INTO kept (text) VALUES (:text)"), {"text": "x" * 20_000})

    with Writer(engine) as writer, sqlite3.connect(path, isolation_level=None) as reader:
        for _ in range(40):  # nobody reads: the file is emptied again and again
            writer.call(add)
            added += 1
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM kept").fetchone() == (40,)
        while not refused:
            try:
                writer.call(add)
                added += 1
            except Busy as error:
                assert "a reader that holds an old state" in error.what
                refused += 1
        assert 1_000_000 <= size.stat().st_size < 1_100_000
        assert reader.execute("SELECT count(*) FROM kept").fetchone() == (40,)
        reader.execute("COMMIT")
        until = time.monotonic() + 20
        while writer._log.full:
            assert time.monotonic() < until
            time.sleep(0.01)
        writer.call(add)
        assert size.stat().st_size < 200_000
    with reading(engine) as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM kept")).scalar() == added + 1
    assert [("nothing is written" in r.message, "writing goes on" in r.message) for r in caplog.records] == [
        (True, False), (False, True)
    ]  # fmt: skip
    engine.dispose()


def test_a_name_whose_transaction_was_undone_is_not_remembered(store: Store, new_run: Any) -> None:
    run = new_run()
    segment = store.start_segment(run, first_step=0)

    def fails(connection: sa.Connection) -> None:
        ingest.insert_points(connection, run.pk, [(segment.no, 0, 1, "fresh", 1.0)])
        on_commit(connection, lambda: pytest.fail("it was undone"))
        raise DataError("after all")

    with Writer(store.engine) as writer:
        go, _ = _blocked(writer)
        bad = writer.submit(fails)
        good = writer.submit(lambda c: ingest.insert_points(c, run.pk, [(segment.no, 0, 1, "fresh", 2.0)]))
        go.set()
        with pytest.raises(DataError, match="after all"):
            bad.result()
        good.result()
    assert [(p.name, p.value) for p in store.metrics(run)] == [("fresh", 2.0)]


def test_what_nobody_waits_for_is_told_to_the_log(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="jurat")
    logging.getLogger("jurat").propagate = True

    def fails(_: sa.Connection) -> None:
        raise DataError("no room")

    with Writer(store.engine) as writer:
        writer.leave(_key("a"), "the first")
        writer.leave(fails, "the rollup of 'x'")
    assert _names(store) == {"a"} and [r.message for r in caplog.records] == ["the rollup of 'x' failed: no room"]


def test_a_log_whose_size_is_not_told_does_not_end_the_writer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="jurat")
    logging.getLogger("jurat").propagate = True
    engine = connect(f"sqlite:///{tmp_path / 'x.db'}", durable=False)
    with Writer(engine) as writer:
        (tmp_path / "loop").symlink_to("loop")
        writer._log._path = tmp_path / "loop"  # OSError: too many levels of symbolic links
        for n in range(3):
            assert writer.submit(lambda c, n=n: c.execute(sa.text(f"SELECT {n}")).scalar()).result(20) == n
    assert [r.message.partition(":")[0] for r in caplog.records] == ["the size of the write-ahead log is not known"]
    engine.dispose()


def test_a_read_sees_one_moment_however_many_statements_it_takes(store: Store) -> None:
    with reading(store.engine) as connection:
        before = connection.execute(sa.select(sa.func.count()).select_from(t.metric_key)).scalar_one()
        store.write(_key("while"))
        after = connection.execute(sa.select(sa.func.count()).select_from(t.metric_key)).scalar_one()
    assert (before, after) == (0, 0) and _names(store) == {"while"}
