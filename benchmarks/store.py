"""Rows a second into the store and milliseconds out of it, without HTTP: what the service can reach at best.

    python benchmarks/store.py                                  SQLite in a temporary folder
    python benchmarks/store.py --database postgresql://...      a database that may be filled
    python benchmarks/store.py --runs 50 --keys 50              a quick look

Prints one JSON line a measure. Writes go through the one writer, as the service's do.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from jurat.platform.db import tables as t
from jurat.platform.db.writer import Writer
from jurat.platform.provenance import points
from jurat.platform.recipe import Recipe
from jurat.platform.runs import ingest, metrics, rollups, search
from jurat.platform.runs.records import RunInfo, Segment
from jurat.platform.runs.store import Store

SHAPES = ((10, 100), (1000, 1), (50, 1), (1, 1))
"""(keys, steps) of a batch."""


def say(**row: Any) -> None:
    print(json.dumps({key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}), flush=True)


def timed(do: Callable[[], Any], times: int) -> dict[str, float]:
    """Milliseconds: median and 95th percentile."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        do()
        took.append(1e3 * (time.perf_counter() - began))
    return {"p50_ms": statistics.median(took), "p95_ms": sorted(took)[int(0.95 * (len(took) - 1))]}


class Bench:
    def __init__(self, store: Store, seconds: float) -> None:
        self.store, self.seconds = store, seconds
        self.recipe = Recipe.model_validate({"name": "bench", "model": "tiny", "data": {"train": {"source": "generated"}}})

    def run(self) -> tuple[RunInfo, Segment]:
        made = self.store.create_run(recipe=self.recipe, recipe_digest="", reward_digest="", meta={})
        return made, self.store.start_segment(made, first_step=0)

    def batches(self, writer: Writer, keys: int, steps: int, until: float) -> int:
        run, segment = self.run()
        names, rows, step = [f"m{k:04d}" for k in range(keys)], 0, 0
        while time.perf_counter() < until:
            batch = [(segment.no, s, 1, name, random.random()) for s in range(step, step + steps) for name in names]
            writer.call(lambda c, b=batch: ingest.insert_points(c, run.pk, b))
            step, rows = step + steps, rows + len(batch)
        found = self.store.read(lambda c: c.execute(sa.select(sa.func.count()).where(t.metric_point.c.run_pk == run.pk)).scalar())
        assert found == rows, f"{found} rows are there, {rows} were acknowledged"
        return rows

    def ingest(self) -> None:
        with Writer(self.store.engine) as writer:
            for keys, steps in SHAPES:
                began = time.perf_counter()
                rows = self.batches(writer, keys, steps, began + self.seconds)
                say(measure="ingest", writers=1, keys=keys, steps=steps, rows_per_s=rows / (time.perf_counter() - began))
            for writers in (4, 8):
                began, counts = time.perf_counter(), [0] * writers

                def work(place: int, until: float, counts: list[int] = counts) -> None:
                    counts[place] = self.batches(writer, 10, 20, until)

                threads = [threading.Thread(target=work, args=(n, began + self.seconds)) for n in range(writers)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                say(measure="ingest", writers=writers, rows_per_s=sum(counts) / (time.perf_counter() - began))

    def searches(self, runs: int, keys: int) -> None:
        began, names = time.perf_counter(), [f"s{k:04d}" for k in range(keys)]
        with Writer(self.store.engine) as writer:
            for _ in range(runs):
                run, segment = self.run()
                batch = [(segment.no, 0, 1, name, random.random()) for name in names]
                writer.call(lambda c, r=run, b=batch: ingest.insert_points(c, r.pk, b))
        say(measure="fill", runs=runs, keys=keys, seconds=time.perf_counter() - began)
        half = search.Term("metrics.s0001", ">", 0.5)
        both = search.And((half, search.Term("metrics.s0002", "<", 0.5)))
        few = search.And((half, search.Term("metrics.s0003", ">", 0.98)))
        by_metric = search.Order(field="metrics.s0004")
        asked: dict[str, dict[str, Any]] = {
            "three columns, page 100": {"where": half, "limit": 100, "columns": names[:3], "bodies": False},
            "all columns, page 100": {"limit": 100, "columns": None, "bodies": False},
            "two filters and order, page 20": {"where": both, "order": by_metric, "limit": 20, "columns": names[:3]},
            "selective": {"where": few, "limit": 100, "columns": names[:3], "bodies": False},
            "parameter, no hit": {"where": search.Term("params.model", "=", "none"), "limit": 100},
        }
        for name, more in asked.items():
            do = lambda m=more: self.store.read(lambda c: search.find(c, self.store.runs_folder, **m))
            say(measure="search", what=name, **timed(do, 10))

    def history(self, steps: int) -> None:
        run, segment = self.run()
        with Writer(self.store.engine) as writer:
            for first in range(0, steps, 5000):
                batch = [(segment.no, s, 1, "loss", random.random()) for s in range(first, first + 5000)]
                writer.call(lambda c, b=batch: ingest.insert_points(c, run.pk, b))
            again = [(segment.no, s, 1, "loss", 0.0) for s in range(1000)]
            fresh = [[(segment.no, steps + 1000 * n + s, 1, "loss", 0.0) for s in range(1000)] for n in range(10)]
            say(measure="batch again", points=steps, **timed(lambda: writer.call(lambda c: ingest.insert_points(c, run.pk, again)), 10))
            say(measure="batch new", points=steps,
                **timed(lambda: writer.call(lambda c: ingest.insert_points(c, run.pk, fresh.pop())), 10))  # fmt: skip
        look = lambda f: lambda: self.store.read(lambda c: f(c, run.pk, "loss"))
        say(measure="down-sample to 320", points=steps, **timed(look(lambda c, r, n: rollups.downsampled(c, r, n, buckets=320)), 5))
        say(measure="page of 25000", points=steps, **timed(look(lambda c, r, n: metrics.history(c, r, n, limit=25_000)), 5))
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "x.parquet"
            do = lambda: points.write_parquet(self.store.read(lambda c: points.table(c, run.pk)), out)
            say(measure="export to Parquet", points=steps, **timed(do, 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", help="SQLAlchemy URL of a database that may be filled")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measure of writing")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--points", type=int, default=100_000, help="of the one long history")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        store = Store.open(given.database, Path(home), durable=False)
        try:
            say(measure="database", kind=store.engine.dialect.name)
            bench = Bench(store, given.seconds)
            bench.ingest()
            bench.history(given.points)
            bench.searches(given.runs, given.keys)
        finally:
            store.close()


if __name__ == "__main__":
    sys.exit(main())
