"""The service under a steady load for long: 4 who write, 10 who read, and one who holds an old state of the database; and a
run that trains while its service is dead.

    JURAT_SOAK_MINUTES=20 pytest -m soak tests/api/server/test_soak.py      a quarter of it on PostgreSQL

No request fails, every acknowledged row is there once (count and sum), memory does not grow, SQLite's write-ahead log stays
under 256 MiB. Printed: rows, memory over time, the longest log.
"""

from __future__ import annotations

import itertools
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa
from sites import Site

from benches import benchmark
from jurat.client import Client, ServiceError
from jurat.platform.db import tables as t
from jurat.platform.db.engine import connect, reading
from jurat.platform.runs.store import Store

MINUTES = float(os.environ.get("JURAT_SOAK_MINUTES", "20"))
SHARE = {"sqlite": 0.75, "postgresql": 0.25}
WRITERS, READERS = 4, 10
NAMES = [f"m{place}" for place in range(10)]
STEPS, PAUSE = 10, 0.1
"""Rows of a batch are 10 names of 10 steps; a writer sends ten a second at most."""
WARM = 0.5
"""Share of the time after which memory is held to be flat: by then the answers to each kind of reader are as long as they
get, as each has a bound, and glibc holds the most it ever needed for them."""
GROWTH = 8.0
"""MiB by which the line through the resident memory may rise from then on, however long it takes."""
CEILING = 250.0
"""MiB of all processes of the service together, at any time."""
LOG = 256 << 20


@dataclass
class Writer:
    run: str
    rows: int = 0
    total: float = 0.0
    waited: list[float] = field(default_factory=list)


class Soaked(Site):
    def __init__(self, home: Path, database: str) -> None:
        super().__init__(home, tries=30)
        self.database = database
        self.stop = threading.Event()
        self.errors: list[str] = []
        self.reads = self.held_back = 0
        self.memory: list[tuple[float, float]] = []
        self.log = 0

    def start(self) -> None:
        serve = ["serve", "--port", str(self.port), "--slots", "0", "--database", self.database]
        self.launch([sys.executable, "-m", "jurat", "--home", str(self.home), *serve], {"OMP_NUM_THREADS": "1"})

    def thread(self, work: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            while not self.stop.is_set():
                try:
                    work()
                except Exception as error:
                    self.errors.append(repr(error)[:500])
                    time.sleep(1.0)

        made = threading.Thread(target=guarded, daemon=True)
        made.start()
        return made

    def write(self, writer: Writer) -> Callable[[], None]:
        """Batches of whole numbers, whose sum is exact; one that is held back (429) is sent again."""
        client, steps = Client(f"http://127.0.0.1:{self.port}", tries=1), itertools.count(0, STEPS)

        def work() -> None:
            first = next(steps)
            rows = [(name, s, float(s * 7919 % 10_007)) for s in range(first, first + STEPS) for name in NAMES]
            began = time.perf_counter()
            while True:
                try:
                    client.log_rows(writer.run, rows)
                    break
                except ServiceError as error:
                    if error.status != 429:
                        raise
                    self.held_back += 1
                    time.sleep(0.5)
            writer.waited.append(time.perf_counter() - began)
            writer.rows += len(rows)
            writer.total += sum(value for _, _, value in rows)
            time.sleep(max(0.0, PAUSE - writer.waited[-1]))

        return work

    def read(self, place: int, runs: list[str]) -> Callable[[], None]:
        """One of ten: a look at the list, the last values, a curve, a page, or the stream."""
        client, drawn = Client(f"http://127.0.0.1:{self.port}", tries=1), random.Random(place)
        run = runs[place % len(runs)]

        def follow() -> None:
            steps = []
            for message in client.stream(run):
                if message.kind == "metrics":
                    steps.append(message.data["step"])
                self.reads += 1
                if self.stop.is_set() or len(steps) > 1000:
                    break
            assert steps == sorted(set(steps))

        def look() -> None:
            asked = drawn.randrange(5)
            if asked == 0:
                list(itertools.islice(client.runs("metrics.m1 > 5", metrics=["m1", "m2"], page_size=20), 20))
            elif asked == 1:
                client.metrics(run)
            elif asked == 2:
                client._json("GET", f"/runs/{run}/metrics/m{drawn.randrange(10)}?max_points=300")
            elif asked == 3:
                client._json("GET", f"/runs/{run}/metrics/m3?page_size=2000")
            else:
                client._json("GET", f"/runs/{run}/events")
            self.reads += 1
            time.sleep(0.2)

        return follow if place < 2 else look

    def hold(self, seconds: float) -> Callable[[], None]:
        """Somebody's long transaction, for as long as ``seconds``, then a short rest."""
        engine = connect(self.database)

        def work() -> None:
            with reading(engine) as connection:
                before = connection.execute(sa.select(sa.func.count()).select_from(t.run_event)).scalar()
                self.stop.wait(seconds)
                after = connection.execute(sa.select(sa.func.count()).select_from(t.run_event)).scalar()
            assert before == after
            self.stop.wait(seconds / 4)

        return work

    def watch(self) -> None:
        assert self.process is not None
        whole = psutil.Process(self.process.pid)
        for each in [whole, *whole.children(recursive=True)]:
            each.memory_info()
        size = sum(each.memory_info().rss for each in [whole, *whole.children(recursive=True)]) / 2**20
        self.memory.append((time.monotonic(), size))
        if self.database.startswith("sqlite"):
            log = Path(f"{sa.engine.make_url(self.database).database}-wal")
            self.log = max(self.log, log.stat().st_size)
        time.sleep(0.25)


@pytest.fixture
def site(tmp_path: Path, database_url: str) -> Iterator[Soaked]:
    made = Soaked(tmp_path, database_url)
    made.start()
    yield made
    made.stop.set()
    made.kill()


@pytest.mark.soak
def test_a_steady_load_for_long(site: Soaked, capsys: pytest.CaptureFixture[str]) -> None:
    kind = sa.engine.make_url(site.database).get_backend_name()
    seconds = 60 * MINUTES * SHARE[kind]
    writers = [Writer(site.client.create_run("tiny")["id"]) for _ in range(WRITERS)]
    runs = [writer.run for writer in writers]
    began = time.monotonic()
    threads = [site.thread(site.write(writer)) for writer in writers]
    threads += [site.thread(site.read(place, runs)) for place in range(READERS)]
    threads += [site.thread(site.hold(min(120.0, seconds / 4))), site.thread(site.watch)]
    time.sleep(seconds)
    site.stop.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()

    steady = [(at - began, size) for at, size in site.memory if at - began > WARM * seconds]
    slope, base = statistics.linear_regression(*zip(*steady, strict=True))
    growth = slope * (1 - WARM) * seconds
    rows, waited = sum(writer.rows for writer in writers), sorted(s for writer in writers for s in writer.waited)
    p50, p95 = (waited[len(waited) * share // 100] * 1e3 for share in (50, 95))
    tenths = [f"{site.memory[len(site.memory) * n // 10][1]:.0f}" for n in range(10)]
    with capsys.disabled():
        print(
            f"\n{kind}: {seconds:.0f} s, {rows:,} rows ({rows / seconds:,.0f}/s), {site.reads:,} reads, "
            f"{len(site.errors)} errors, {site.held_back} held back; a batch p50 {p50:.0f}, p95 {p95:.0f}, most "
            f"{waited[-1] * 1e3:.0f} ms; memory {base + slope * WARM * seconds:.0f} MiB, {growth:+.1f} MiB "
            f"(by tenths {' '.join(tenths)}); log at most {site.log / 2**20:.0f} MiB", flush=True,
        )  # fmt: skip
    assert site.errors == []
    p = t.metric_point.c
    with closing(Store.open(site.database, site.home)) as store:
        for writer in writers:
            pk = store.run(writer.run).pk
            query = sa.select(sa.func.count(), sa.func.sum(p.value)).where(p.run_pk == pk)
            assert tuple(store.read(lambda c, q=query: c.execute(q).one())) == (writer.rows, writer.total)
    assert growth <= GROWTH
    assert max(size for _, size in site.memory) <= CEILING
    assert site.log <= LOG


@pytest.mark.soak
def test_a_run_goes_on_while_its_service_is_dead(
    tmp_path: Path, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """``benchmarks/service.py outage`` for 20 s; there it is ten minutes."""
    found = benchmark("service").service_away(tmp_path / "away", 20.0, database_url)
    with capsys.disabled():
        print(f"\n{found}", flush=True)
    assert (found.missing, found.disorder, found.left, found.state) == (0, 0, 0, "cancelled")
    assert found.meanwhile > 0 and found.spooled > 10 * found.meanwhile
    assert found.blocked <= 0.05
