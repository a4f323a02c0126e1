"""Points as they come in: late, out of order, twice, in groups; what is kept of them is what a walk over them gives."""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jurat.platform.db import tables as t
from jurat.platform.db.engine import writing
from jurat.platform.db.writer import Writer
from jurat.platform.errors import DataError
from jurat.platform.provenance.verify import verify
from jurat.platform.runs import ingest, metrics, rollups
from jurat.platform.runs.records import RunInfo
from jurat.platform.runs.store import Store

VALUES = st.sampled_from([0.0, -0.0, 1.0, -2.5, 3e-320, 1.7e308, -1.7e308, math.nan, math.inf, -math.inf])
POINT = st.tuples(st.sampled_from([0, 1]), st.integers(0, 200) | st.integers(0, 9000), st.sampled_from("ab"), VALUES)
BATCHES = st.lists(st.lists(POINT, min_size=1, max_size=30), min_size=1, max_size=6)


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def _check_buckets(found: list[rollups.Bucket], points: dict[int, float], first: int, last: int) -> None:
    """No point is left out, none counts twice, and each number is that of the bucket's points."""
    rest = {step: value for step, value in points.items() if first <= step <= last}
    for bucket in found:
        inside = [(s, rest.pop(s)) for s in sorted(rest) if bucket.first_step <= s <= bucket.last_step]
        real = [v for _, v in inside if not math.isnan(v)]
        assert (bucket.first_step, bucket.last_step, bucket.count) == (inside[0][0], inside[-1][0], len(real))
        assert _same(bucket.last, inside[-1][1])
        assert _same(bucket.least, min(real, default=math.nan)) and _same(bucket.most, max(real, default=math.nan))
        wide = [math.copysign(math.inf, v) if abs(v) > rollups.HUGE else v for v in real]
        mean = sum(wide) / len(wide) if wide else math.nan
        assert _same(bucket.mean, mean) or bucket.mean == pytest.approx(mean, rel=1e-12, abs=1e-12)
    assert rest == {}


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=BATCHES, ask=st.tuples(st.integers(1, 40), st.integers(0, 300), st.integers(200, 9000)), when=st.data())
def test_what_is_kept_is_what_the_points_say(store: Store, new_run: Any, batches: Any, ask: Any, when: Any) -> None:
    run = new_run()
    for _ in range(2):
        store.start_segment(run, first_step=0)
    kept: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
    for at, batch in enumerate(batches):
        for _ in range(when.draw(st.integers(1, 2))):  # a batch may come twice
            rows = [(segment, step, at, name, None if math.isnan(v) else v) for segment, step, name, v in batch]
            store.write(lambda c, rows=rows: ingest.insert_points(c, run.pk, rows))
        for segment, step, name, value in batch:
            kept[name, segment].setdefault(step, value)
        if when.draw(st.booleans()):
            for name, segment in kept:
                key = store.read(lambda c, name=name: ingest.numbers(c, [name])[name])
                store.write(lambda c, k=key, s=segment: rollups.fill(c, rollups.Series(run.pk, k, s)))
    assert store.read(lambda c: ingest.faults(c, run.pk)) == (sum(map(len, kept.values())), [])
    buckets, first, last = ask
    for name in "ab":
        counted = kept[name, 1]  # the second segment begins at step 0: the first one's steps count no more
        for few in (buckets, 1):
            found = store.read(
                lambda c, n=name, few=few: rollups.downsampled(c, run.pk, n, first=first, last=last, buckets=few)
            )
            _check_buckets(found, counted, first, last)
        newest = store.read(lambda c: metrics.latest(c, [run.pk], None))[run.pk].get(name)
        if counted:
            assert newest is not None and newest.step == max(counted) and _same(newest.value, counted[max(counted)])


def test_long_histories_are_read_from_rollups(store: Store, new_run: Any) -> None:
    run = new_run()
    segment = store.start_segment(run, first_step=0)
    values = np.arange(20_000.0)
    values[7777] = 1e9

    def put(first: int, last: int, at: int = 1) -> None:
        rows = [(segment.no, s, at, "x", float(values[s])) for s in range(first, last)]
        store.write(lambda c: ingest.insert_points(c, run.pk, rows))

    def read(few: int) -> list[rollups.Bucket]:
        return store.read(lambda c: rollups.downsampled(c, run.pk, "x", buckets=few))

    put(0, 9000), put(9001, 20_000)
    by_points = {few: read(few) for few in (1, 3, 100)}
    (series,) = store.read(lambda c: rollups.behind(c, run.pk, "x"))
    store.write(lambda c: rollups.fill(c, series))
    assert store.read(lambda c: rollups.behind(c, run.pk, "x")) == []
    level = t.metric_rollup.c.level
    counts = dict(store.read(lambda c: c.execute(sa.select(level, sa.func.count()).group_by(level)).all()))
    assert counts == {6: 312, 12: 4}
    assert {few: read(few) for few in (1, 3, 100)} == by_points
    assert [b.most for b in by_points[3]] == [1e9, 16383.0, 19999.0]
    # A changed rollup shows that it is read; a late point that its bucket is not believed any more.
    store.write(lambda c: c.execute(sa.update(t.metric_rollup).values(most=5.0)))
    assert [b.most for b in read(3)] == [5.0, 5.0, 19999.0]
    put(9000, 9001, at=2)
    assert [b.most for b in read(3)] == [5.0, 16383.0, 19999.0]
    store.write(lambda c: rollups.fill(c, series))
    assert [b.count for b in read(3)] == [8192, 8192, 3616] and read(3)[1].most == 16383.0


def test_jobs_of_a_group_are_written_together_and_one_that_fails_alone(store: Store, new_run: Any) -> None:
    run, other = new_run(), new_run()
    for each in (run, other):
        store.start_segment(each, first_step=0)

    def batch(of: RunInfo, steps: range, names: str = "ab", *, limit: int | None = None) -> Any:
        def job(connection: sa.Connection) -> None:
            pairs = [(n, s) for s in steps for n in names]
            ingest.gather(
                connection, of.pk, [n for n, _ in pairs], [s for _, s in pairs], [float(s) for _, s in pairs], 0, 1, limit=limit
            )  # fmt: skip

        return job

    def fails(_: sa.Connection) -> None:
        raise DataError("no")

    def count(connection: sa.Connection) -> int:
        return int(connection.execute(sa.select(sa.func.count()).select_from(t.metric_point)).scalar_one())

    statements: list[str] = []
    lite = store.engine.dialect.name == "sqlite"
    if lite:  # each row is a statement, and goes by the driver's own cursor
        sa.event.listen(store.engine, "checkout", lambda driver, *_: driver.set_trace_callback(statements.append))
    else:
        sa.event.listen(store.engine, "before_cursor_execute", lambda *a: statements.append(a[2]))
    inside, go = threading.Event(), threading.Event()
    with Writer(store.engine) as writer:
        writer.submit(lambda c: (inside.set(), go.wait(60)))
        assert inside.wait(60)
        done: list[Future[Any]] = [writer.submit(batch(each, range(n, n + 5)), ingest.settle)
                                   for n in range(0, 20, 5) for each in (run, other)]  # fmt: skip
        seen = writer.submit(count)
        go.set()
        assert [each.result() for each in done] == [None] * 8
        assert seen.result() == 80  # what was gathered is written before another kind of job
        written = sum("metric_latest" in each for each in statements)
        assert written == (4 if lite else 1)  # of 16: two metrics of two runs, in four batches each
        go.clear(), inside.clear()
        writer.submit(lambda c: (inside.set(), go.wait(60)))
        assert inside.wait(60)
        good = writer.submit(batch(run, range(100, 110)), ingest.settle)
        bad = writer.submit(fails, ingest.settle)
        many = writer.submit(batch(run, range(1), "abc", limit=2), ingest.settle)
        after = writer.submit(batch(run, range(110, 120), limit=2), ingest.settle)
        go.set()
        assert good.result() is None and after.result() is None
        for each, why in ((bad, "no"), (many, "may have 2 metrics")):
            with pytest.raises(DataError, match=why):
                each.result()
    assert len(store.metrics(run)) == 80 and len(store.metrics(other)) == 40
    assert store.read(lambda c: ingest.faults(c, run.pk)) == (80, [])
    newest = store.read(lambda c: metrics.latest(c, [run.pk], ["a"]))[run.pk]["a"]
    assert (newest.step, newest.value, newest.least, newest.most) == (119, 119.0, 0.0, 119.0)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("UPDATE metric_point SET value = value + 1 WHERE step = 3", "3 points are there, their values differ"),
        ("UPDATE metric_point SET step = 9 WHERE step = 3", "3 points are there, their values differ"),
        ("DELETE FROM metric_point WHERE step = 3", "2 points are there, 3 were recorded"),
    ],
)
def test_a_changed_point_is_named(store: Store, new_run: Any, change: str, why: str) -> None:
    run = new_run()
    segment = store.start_segment(run, first_step=0)
    points = [
        (segment.no, step, 5, name, 0.5) for name, steps in (("a", 5), ("b/c", 3)) for step in range(1, steps + 1)
    ]
    store.write(lambda c: ingest.insert_points(c, run.pk, points))
    whole = verify(store, run)
    assert (whole.points, whole.faults) == (8, ())
    of_b = " AND key_pk = (SELECT pk FROM metric_key WHERE name = 'b/c')"
    store.write(lambda c: c.execute(sa.text(change + of_b)))
    first, *more = verify(store, run).faults
    assert first == f"metric 'b/c' of segment 0: {why}"
    assert all(fault.startswith("metric 'b/c': what searches read of it") for fault in more)


@pytest.mark.parametrize(("step", "value"), [(1.5, 1.0), ("1", 1.0), (1 << 63, 1.0), (0, "x"), (None, 1.0)])
def test_what_is_no_point_is_refused(store: Store, new_run: Any, step: Any, value: Any) -> None:
    run = new_run()
    segment = store.start_segment(run, first_step=0)
    with pytest.raises((TypeError, OverflowError)):
        store.write(lambda c: ingest.insert_points(c, run.pk, [(segment.no, step, 1, "x", value)]))


def test_two_writers_of_one_run_wait_in_turn(store: Store, new_run: Any) -> None:
    """Both sharing the run and then updating it, each waited for the other until the database ended one of them."""
    run = new_run()
    store.start_segment(run, first_step=0)
    held, raised = threading.Event(), []
    postgres = store.engine.dialect.name == "postgresql"  # another writer of SQLite waits before it begins
    query = "count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    waits = sa.text(f"SELECT {query if postgres else 1}")

    def second() -> None:
        try:
            with writing(store.engine) as connection:
                place = ingest.place(connection, run.id)
                held.set()
                ingest.insert_points(connection, place.run_pk, [(0, 1, 2, "b", 1.0)])
        except sa.exc.DBAPIError as error:
            raised.append(error)

    thread = threading.Thread(target=second)
    try:
        with writing(store.engine) as connection:
            ingest.place(connection, run.id)
            thread.start()
            while not held.is_set() and not store.read(lambda c: c.execute(waits).scalar_one()):
                held.wait(0.01)
            ingest.insert_points(connection, run.pk, [(0, 1, 1, "a", 1.0)])
    finally:
        thread.join()
    assert raised == []
    assert sorted(store.read(lambda c: metrics.latest(c, [run.pk], None))[run.pk]) == ["a", "b"]
