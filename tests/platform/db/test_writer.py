"""One writer for many: one commit for what waits, a failing job undone alone, a full queue said at once."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest
import sqlalchemy as sa

from jurat.platform.db import tables as t
from jurat.platform.db.engine import on_commit
from jurat.platform.db.writer import Busy, Writer
from jurat.platform.errors import DataError
from jurat.platform.runs import metrics
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


def test_a_name_whose_transaction_was_undone_is_not_remembered(store: Store, new_run: Any) -> None:
    run = new_run()
    segment = store.start_segment(run, first_step=0)

    def fails(connection: sa.Connection) -> None:
        metrics.insert_points(connection, run.pk, [(segment.no, 0, 1, "fresh", 1.0)])
        on_commit(connection, lambda: pytest.fail("it was undone"))
        raise DataError("after all")

    with Writer(store.engine) as writer:
        go, _ = _blocked(writer)
        bad = writer.submit(fails)
        good = writer.submit(lambda c: metrics.insert_points(c, run.pk, [(segment.no, 0, 1, "fresh", 2.0)]))
        go.set()
        with pytest.raises(DataError, match="after all"):
            bad.result()
        good.result()
    assert [(p.name, p.value) for p in store.metrics(run)] == [("fresh", 2.0)]
