"""jurat's service and MLflow's tracking server under one load, in turns: what each takes, and what ours must not exceed.

    python benchmarks/service.py PHASE... [--mlflow-python PY] [--postgres] [--rounds 3] [--data DIR] [--json OUT]

    ingest     one writer: 10 names x 100 steps, 1000 x 1, 50 x 1        history    a page of 25,000, 320 points of 100,000
    single     one point a request                                       retry      a batch sent again, after 200,000 points
    writers    4 and 8 at once; every row counted and summed after       sse        commit -> 50 clients, beside a history
    populate   --runs x --keys for the next two, kept in --data          rollouts   page, look-up, count of --rollouts
    search     all columns, three columns, filters                       export     --points of one run as Parquet, twice
    mixed      search while 4 write                                      start      first and warm start, resident memory
    cost       what the record costs a training run                      claims     --count starts with deaths and pauses
    outage     a run whose service is killed for --outage seconds       migrate    --points of schema 0001 to the newest, killed first

Each server is a process of its own on loopback; ours asks for a key. Every round measures every server once, one after the
other; printed are medians over the rounds. ``--mlflow-python`` is the python of an environment with mlflow in it; without it
its column is empty. ``--postgres`` adds ours on a temporary PostgreSQL. Phases without a figure of MLflow have a bound alone.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psutil

ROOT = Path(__file__).resolve().parents[1]
KIT = ROOT / "tests" / "kit"
"""Where the temporary PostgreSQL comes from."""
BIG = "big"
"""Project, or experiment, of the runs to be searched."""


# ---- wires -------------------------------------------------------------------------------------------------------


class Wire:
    """One connection that is kept open."""

    def __init__(self, port: int, headers: Mapping[str, str]) -> None:
        self._made = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        self._headers = {"Content-Type": "application/json", **headers}

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        data = None if body is None else json.dumps(body).encode()
        self._made.request(method, path, data, self._headers)
        answer = self._made.getresponse()
        return answer.status, answer.read()

    def get(self, method: str, path: str, body: Any = None) -> Any:
        status, data = self.ask(method, path, body)
        if status not in (200, 201):
            raise RuntimeError(f"{method} {path[:100]} answered {status}: {data[:300]!r}")
        return json.loads(data)


Points = tuple[list[str], list[int], list[float]]


def grid(names: Sequence[str], first: int, steps: int) -> Points:
    """names x steps; values are whole numbers, so that their sum is exact in any order."""
    pairs = [(name, step) for step in range(first, first + steps) for name in names]
    return (
        [name for name, _ in pairs],
        [step for _, step in pairs],
        [float(step * 7919 % 10_007) for _, step in pairs],
    )


@dataclass
class Side:
    """A server and how it is spoken to."""

    name: str
    command: list[str]
    health: str
    port: int
    environment: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Seconds until it answers."""
        began = time.perf_counter()
        self.process = subprocess.Popen(
            self.command, env={**os.environ, **self.environment}, stdout=subprocess.DEVNULL, stderr=self._log(),
            start_new_session=True,
        )  # fmt: skip
        while True:
            with suppress(OSError, http.client.HTTPException):
                if Wire(self.port, {}).ask("GET", self.health)[0] == 200:
                    return time.perf_counter() - began
            if self.process.poll() is not None or time.perf_counter() - began > 180:
                raise RuntimeError(f"{self.name} does not start: {self._said().read_text()[-2000:]}")
            time.sleep(0.02)

    def _said(self) -> Path:
        return Path(tempfile.gettempdir()) / f"jurat-bench-{self.name}-{os.getpid()}.log"

    def _log(self) -> Any:
        return self._said().open("wb")

    def stop(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(15)
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self._said().unlink(missing_ok=True)

    def memory(self) -> float:
        """MiB of it and its children."""
        assert self.process is not None
        whole = psutil.Process(self.process.pid)
        return float(sum(each.memory_info().rss for each in [whole, *whole.children(recursive=True)]) / 2**20)

    def wire(self) -> Wire:
        return Wire(self.port, self.headers)

    # What differs.
    def run(self, wire: Wire, group: str = "bench") -> str:
        raise NotImplementedError

    def log(self, wire: Wire, run: str, points: Points) -> tuple[int, bytes]:
        raise NotImplementedError

    def one(self, wire: Wire, run: str, step: int) -> tuple[int, bytes]:
        return self.log(wire, run, (["loss"], [step], [1.0]))

    def stored(self, wire: Wire, run: str, names: Sequence[str]) -> tuple[int, float]:
        """(rows, their sum)."""
        raise NotImplementedError

    def populate(self, runs: int, keys: int) -> None:
        raise NotImplementedError

    def search(self, wire: Wire, shape: Shape) -> tuple[int, int]:
        """(runs found, bytes)."""
        raise NotImplementedError

    def page(self, wire: Wire, run: str) -> int:
        raise NotImplementedError

    def sampled(self, wire: Wire, run: str) -> int:
        raise NotImplementedError


@dataclass(frozen=True)
class Shape:
    """A search: ``terms`` as (metric, comparison, value)."""

    label: str
    terms: tuple[tuple[str, str, float], ...] = ()
    order: str = ""
    size: int = 100
    columns: tuple[str, ...] | None = None
    """None: all."""
    param: str = ""


SHAPES = (
    Shape("page 100, 3 columns, 1 filter", (("m0500", ">", 0.5),), columns=("m0001", "m0002", "m0500")),
    Shape("page 100, all columns"),
    Shape("page 100, all columns, 1 filter", (("m0500", ">", 0.5),)),
    Shape("page 20, 2 filters + order", (("m0500", ">", 0.5), ("m0100", "<", 0.5)), "m0007", 20),
    Shape("page 20, selective filter", (("m0500", ">", 0.99),), size=20),
    Shape("parameter, no hit", size=20, param="nope"),
)


class Jurat(Side):
    @classmethod
    def made(cls, name: str, home: Path, database: str | None) -> Jurat:
        port = free_port()
        kept = [*(["--database", database] if database else [])]
        words = [sys.executable, "-m", "jurat", "--home", str(home)]
        environment = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
        made = cls(
            name, [*words, "serve", "--port", str(port), "--slots", "0", *kept], "/healthz", port, environment
        )  # fmt: skip
        made.home, made.database = home, database  # type: ignore[attr-defined]
        key = home / "key"
        if not key.exists():
            home.mkdir(parents=True, exist_ok=True)
            done = subprocess.run(
                [*words, "auth", "init", "--json", *kept],
                env={**os.environ, **environment},
                capture_output=True,
                check=True,
            )
            key.write_text(json.loads(done.stdout)["key"])
        made.headers["Authorization"] = f"Bearer {key.read_text()}"
        return made

    def run(self, wire: Wire, group: str = "bench") -> str:
        return str(wire.get("POST", "/api/v1/runs", {"recipe": "tiny", "project": group})["id"])

    def log(self, wire: Wire, run: str, points: Points) -> tuple[int, bytes]:
        names, steps, values = points
        return wire.ask("POST", f"/api/v1/runs/{run}/metrics:batch", {"names": names, "steps": steps, "values": values})

    def stored(self, wire: Wire, run: str, names: Sequence[str]) -> tuple[int, float]:
        rows, total = 0, 0.0
        for name in names:
            token: str | None = ""
            while token is not None:
                query = urlencode({"page_size": 25_000, **({"page_token": token} if token else {})})
                got = wire.get("GET", f"/api/v1/runs/{run}/metrics/{name}?{query}")
                rows += len(got["points"])
                total += sum(point["value"] for point in got["points"])
                token = got["next_page_token"]
        return rows, total

    def store(self) -> Any:
        from jurat.platform.runs.store import Store

        return Store.open(self.database, self.home)  # type: ignore[attr-defined]

    def populate(self, runs: int, keys: int) -> None:
        from jurat.api.server.routes_records import newest_segment
        from jurat.platform.db.clock import now
        from jurat.platform.runs import ingest

        store, wire = self.store(), self.wire()
        names = [f"m{place:04d}" for place in range(keys)]
        for place in range(runs):
            run = store.run(self.run(wire, BIG))
            drawn = random.Random(place)

            def put(connection: Any, pk: int = run.pk, drawn: random.Random = drawn) -> None:
                at = now(connection)
                segment = newest_segment(connection, pk, at)
                ingest.insert_points(connection, pk, [(segment, 0, at, name, drawn.random()) for name in names])

            store.write(put)
        store.close()

    def search(self, wire: Wire, shape: Shape) -> tuple[int, int]:
        where = [f"project = {BIG}", *(f"metrics.{name} {sign} {value}" for name, sign, value in shape.terms)]
        where += [f"params.seed = '{shape.param}'"] if shape.param else []
        asked = {
            "filter": " AND ".join(where), "page_size": shape.size,
            "metrics": "*" if shape.columns is None else ",".join(shape.columns),
            **({"order_by": f"metrics.{shape.order} desc"} if shape.order else {}),
        }  # fmt: skip
        status, data = wire.ask("GET", f"/api/v1/runs?{urlencode(asked)}")
        assert status == 200, data[:300]
        return len(json.loads(data)["runs"]), len(data)

    def page(self, wire: Wire, run: str) -> int:
        return len(wire.get("GET", f"/api/v1/runs/{run}/metrics/loss?page_size=25000")["points"])

    def sampled(self, wire: Wire, run: str) -> int:
        return len(wire.get("GET", f"/api/v1/runs/{run}/metrics/loss?max_points=320")["buckets"])


def _empty_database(side: Jurat, scratch: Path, name: str) -> str:
    """URL of a database that holds nothing, beside that of ``side``."""
    import sqlalchemy as sa

    url: str | None = side.database  # type: ignore[attr-defined]
    if url is None:
        for left in scratch.glob(f"{name}.db*"):
            left.unlink()
        return f"sqlite:///{scratch / name}.db"
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"DROP DATABASE IF EXISTS {name}"))
        connection.execute(sa.text(f"CREATE DATABASE {name} TEMPLATE template0"))
    engine.dispose()
    return sa.make_url(url).set(database=name).render_as_string(hide_password=False)


class Mlflow(Side):
    API = "/api/2.0/mlflow"

    @classmethod
    def made(cls, python: str, home: Path) -> Mlflow:
        home.mkdir(parents=True, exist_ok=True)
        port = free_port()
        made = cls(
            "mlflow",
            [python, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{home / 'mlflow.db'}",
             "--default-artifact-root", str(home / "artifacts"), "--host", "127.0.0.1", "--port", str(port), "--workers", "1"],
            "/health", port,
            {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
             "PYTHONPATH": ""},
        )  # fmt: skip
        made.file, made.groups = home / "mlflow.db", {}  # type: ignore[attr-defined]
        return made

    def group(self, wire: Wire, name: str) -> str:
        groups: dict[str, str] = self.groups  # type: ignore[attr-defined]
        if name not in groups:
            status, data = wire.ask("GET", f"{self.API}/experiments/get-by-name?experiment_name={name}")
            if status == 200:
                groups[name] = json.loads(data)["experiment"]["experiment_id"]
            else:
                groups[name] = wire.get("POST", f"{self.API}/experiments/create", {"name": name})["experiment_id"]
        return groups[name]

    def run(self, wire: Wire, group: str = "bench") -> str:
        body = {"experiment_id": self.group(wire, group), "start_time": int(time.time() * 1e3)}
        return str(wire.get("POST", f"{self.API}/runs/create", body)["run"]["info"]["run_id"])

    def log(self, wire: Wire, run: str, points: Points) -> tuple[int, bytes]:
        at = int(time.time() * 1e3)
        rows = [
            {"key": name, "value": value, "timestamp": at, "step": step}
            for name, step, value in zip(*points, strict=True)
        ]
        return wire.ask("POST", f"{self.API}/runs/log-batch", {"run_id": run, "metrics": rows})

    def one(self, wire: Wire, run: str, step: int) -> tuple[int, bytes]:
        body = {"run_id": run, "key": "loss", "value": 1.0, "timestamp": int(time.time() * 1e3), "step": step}
        return wire.ask("POST", f"{self.API}/runs/log-metric", body)

    def _database(self) -> sqlite3.Connection:
        return sqlite3.connect(self.file, timeout=60)  # type: ignore[attr-defined]

    def stored(self, wire: Wire, run: str, names: Sequence[str]) -> tuple[int, float]:
        with self._database() as made:
            count, total = made.execute(
                "SELECT count(*), sum(value) FROM metrics WHERE run_uuid = ?", (run,)
            ).fetchone()
        return int(count), float(total or 0)

    def populate(self, runs: int, keys: int) -> None:
        """Runs over REST, their metrics into its tables: over REST they would take minutes."""
        wire = self.wire()
        made = [self.run(wire, BIG) for _ in range(runs)]
        with self._database() as database:
            columns = {
                table: [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
                for table in ("latest_metrics", "metrics", "params")
            }

            def put(table: str, rows: Iterator[dict[str, Any]]) -> None:
                asked = ",".join("?" * len(columns[table]))
                database.executemany(
                    f"INSERT INTO {table} VALUES ({asked})", ([row.get(c) for c in columns[table]] for row in rows)
                )

            for place, run in enumerate(made):
                drawn = random.Random(place)
                rows = [
                    {"run_uuid": run, "key": f"m{k:04d}", "value": drawn.random(), "timestamp": 1_700_000_000_000,
                     "step": 0, "is_nan": 0}
                    for k in range(keys)
                ]  # fmt: skip
                put("latest_metrics", iter(rows))
                put("metrics", iter(rows))
                put("params", ({"run_uuid": run, "key": f"p{k}", "value": str(drawn.random())} for k in range(20)))

    def search(self, wire: Wire, shape: Shape) -> tuple[int, int]:
        where = [f"metrics.{name} {sign} {value}" for name, sign, value in shape.terms]
        where += [f"params.p1 = '{shape.param}'"] if shape.param else []
        body = {
            "experiment_ids": [self.group(wire, BIG)], "max_results": shape.size, "filter": " and ".join(where),
            "order_by": [f"metrics.{shape.order} DESC"] if shape.order else [],
        }  # fmt: skip
        status, data = wire.ask("POST", f"{self.API}/runs/search", body)
        assert status == 200, data[:300]
        return len(json.loads(data).get("runs", [])), len(data)

    def page(self, wire: Wire, run: str) -> int:
        path = f"{self.API}/metrics/get-history?run_id={run}&metric_key=loss&max_results=25000"
        return len(wire.get("GET", path)["metrics"])

    def sampled(self, wire: Wire, run: str) -> int:
        path = f"/ajax-api/2.0/mlflow/metrics/get-history-bulk-interval?run_ids={run}&metric_key=loss&max_results=320"
        return len(wire.get("GET", path)["metrics"])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as made:
        return int(made.getsockname()[1])


# ---- figures -----------------------------------------------------------------------------------------------------


class Figures:
    """measure -> server -> one value a round."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def add(self, measure: str, side: str, value: float) -> None:
        self.kept[measure][side].append(value)

    def spread(self, measure: str, side: str, seconds: Sequence[float]) -> None:
        """p50, p95 and most of latencies, in ms."""
        ordered = sorted(seconds)
        for name, share in (("p50", 0.5), ("p95", 0.95), ("max", 1.0)):
            place = min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)
            self.add(f"{measure} {name} ms", side, ordered[max(0, place)] * 1e3)

    def of(self, measure: str, side: str) -> float | None:
        found = self.kept.get(measure, {}).get(side)
        return statistics.median(found) if found else None

    def ratio(self, measure: str, side: str, *, other: str = "mlflow") -> float | None:
        mine, theirs = self.of(measure, side), self.of(measure, other)
        return None if not mine or not theirs else mine / theirs


@dataclass
class Bench:
    sides: list[Side]
    figures: Figures
    args: argparse.Namespace
    scratch: Path

    def ours(self) -> list[Jurat]:
        return [side for side in self.sides if isinstance(side, Jurat)]

    def turns(self) -> Iterator[Side]:
        for _ in range(self.args.rounds):
            yield from self.sides


# ---- phases: both ------------------------------------------------------------------------------------------------


def ingest(bench: Bench) -> None:
    for names, steps in ((10, 100), (1000, 1), (50, 1)):
        keys = [f"m{place:04d}" for place in range(names)]
        for side in bench.turns():
            wire = side.wire()
            run, step, seconds = side.run(wire), 0, []
            began = time.perf_counter()
            while time.perf_counter() - began < bench.args.seconds:
                points = grid(keys, step, steps)
                step += steps
                sent = time.perf_counter()
                status, data = side.log(wire, run, points)
                seconds.append(time.perf_counter() - sent)
                assert status == 200, data[:300]
            rate = step * names / (time.perf_counter() - began)
            bench.figures.add(f"ingest {names}x{steps} rows/s", side.name, rate)
            bench.figures.spread(f"ingest {names}x{steps}", side.name, seconds)


def single(bench: Bench) -> None:
    for side in bench.turns():
        wire = side.wire()
        run, seconds = side.run(wire), []
        began = time.perf_counter()
        while time.perf_counter() - began < bench.args.seconds:
            sent = time.perf_counter()
            status, data = side.one(wire, run, len(seconds))
            seconds.append(time.perf_counter() - sent)
            assert status == 200, data[:300]
        bench.figures.add("single requests/s", side.name, len(seconds) / (time.perf_counter() - began))
        bench.figures.spread("single", side.name, seconds)


@dataclass
class Written:
    run: str = ""
    rows: int = 0
    total: float = 0.0
    errors: int = 0
    seconds: list[float] = field(default_factory=list)
    first_error: bytes = b""


WRITER_NAMES = [f"m{place:02d}" for place in range(10)]


def write_until(side: Side, until: float, done: Written) -> None:
    """Batches of 200 rows from a connection of its own; what was acknowledged is counted and summed."""
    wire, step = side.wire(), 0
    while time.perf_counter() < until:
        points = grid(WRITER_NAMES, step, 20)
        step += 20
        sent = time.perf_counter()
        status, data = side.log(wire, done.run, points)
        done.seconds.append(time.perf_counter() - sent)
        if status == 200:
            done.rows += len(points[0])
            done.total += sum(points[2])
        else:
            done.errors += 1
            done.first_error = done.first_error or data[:300]


@contextmanager
def writing(side: Side, count: int, seconds: float) -> Iterator[list[Written]]:
    """Writers as threads, joined at the end."""
    wire = side.wire()
    done = [Written(side.run(wire)) for _ in range(count)]
    until = time.perf_counter() + seconds
    threads = [threading.Thread(target=write_until, args=(side, until, each)) for each in done]
    for thread in threads:
        thread.start()
    yield done
    for thread in threads:
        thread.join()


def writers(bench: Bench) -> None:
    for count in (4, 8):
        for side in bench.turns():
            with writing(side, count, bench.args.seconds) as done:
                began = time.perf_counter()
            rate = sum(each.rows for each in done) / (time.perf_counter() - began)
            label = f"{count} writers"
            bench.figures.add(f"{label} rows/s", side.name, rate)
            bench.figures.spread(label, side.name, [s for each in done for s in each.seconds])
            bench.figures.add(f"{label} errors", side.name, sum(each.errors for each in done))
            for each in done:
                if each.first_error:
                    print(f"  {side.name}: {each.first_error!r}", flush=True)
            wire = side.wire()
            found = [side.stored(wire, each.run, WRITER_NAMES) for each in done]
            differ = [rows - each.rows for (rows, _), each in zip(found, done, strict=True)]
            bench.figures.add(f"{label} lost", side.name, -sum(min(0, each) for each in differ))
            bench.figures.add(f"{label} double", side.name, sum(max(0, each) for each in differ))
            wrong = sum(total != each.total for (_, total), each in zip(found, done, strict=True))
            bench.figures.add(f"{label} wrong sums", side.name, wrong)


def populate(bench: Bench) -> None:
    for side in bench.sides:
        mark = bench.scratch / f"populated-{side.name}-{bench.args.runs}x{bench.args.keys}"
        if mark.exists():
            continue
        if others := [*bench.scratch.glob(f"populated-{side.name}-*")]:
            raise SystemExit(f"--data holds {others[0].name}: choose another folder")
        began = time.perf_counter()
        side.populate(bench.args.runs, bench.args.keys)
        mark.touch()
        print(
            f"  {side.name}: {bench.args.runs} x {bench.args.keys} in {time.perf_counter() - began:.0f} s", flush=True
        )


def search(bench: Bench) -> None:
    populate(bench)
    for shape in SHAPES:
        for side in bench.turns():
            if shape.columns is not None and isinstance(side, Mlflow):
                continue  # it has no field mask
            wire = side.wire()
            side.search(wire, shape)  # page cache
            seconds, size = [], 0
            repeats = 20 if shape.columns is not None else 1 if isinstance(side, Mlflow) else 3
            for _ in range(repeats):
                sent = time.perf_counter()
                _, size = side.search(wire, shape)
                seconds.append(time.perf_counter() - sent)
            bench.figures.spread(f"search {shape.label}", side.name, seconds)
            bench.figures.add(f"search {shape.label} kB", side.name, size / 1e3)


def mixed(bench: Bench) -> None:
    """A search of page 20 again and again while 4 write; and what the 4 write when nobody searches."""
    populate(bench)
    shape = Shape("", (("m0500", ">", 0.5),), size=20)
    for side in bench.turns():
        rates = []
        for searching in (False, True):
            seconds, wire = [], side.wire()
            with writing(side, 4, bench.args.seconds) as done:
                began = time.perf_counter()
                while searching and time.perf_counter() - began < bench.args.seconds:
                    sent = time.perf_counter()
                    side.search(wire, shape)
                    seconds.append(time.perf_counter() - sent)
            rates.append(sum(each.rows for each in done) / (time.perf_counter() - began))
            bench.figures.add("mixed errors", side.name, sum(each.errors for each in done))
        bench.figures.spread("search under 4 writers", side.name, seconds)
        bench.figures.add("mixed rows/s", side.name, rates[1])
        bench.figures.add("mixed writes kept", side.name, rates[1] / rates[0])


def history(bench: Bench) -> None:
    runs = {}
    for side in bench.sides:
        wire = side.wire()
        runs[side.name] = side.run(wire)
        for first in range(0, bench.args.history, 1000):
            status, data = side.log(wire, runs[side.name], grid(["loss"], first, 1000))
            assert status == 200, data[:300]
    for side in bench.turns():
        wire, run = side.wire(), runs[side.name]
        for label, ask in (("page of 25,000", side.page), ("320 of 100,000", side.sampled)):
            seconds = []
            for _ in range(3):
                sent = time.perf_counter()
                ask(wire, run)
                seconds.append(time.perf_counter() - sent)
            bench.figures.spread(label, side.name, seconds)


def retry(bench: Bench) -> None:
    """New batches and one that is there already, in turns, in a run with ``2 * --history`` points."""
    keys = [f"m{place}" for place in range(10)]
    for side in bench.sides:
        wire = side.wire()
        run, last = side.run(wire), bench.args.history // 5
        for first in range(0, last, 100):
            side.log(wire, run, grid(keys, first, 100))
        again, fresh, old = grid(keys, 0, 100), [], []
        for place in range(10 * bench.args.rounds):
            for points, seconds in ((grid(keys, last + 100 * place, 100), fresh), (again, old)):
                sent = time.perf_counter()
                status, data = side.log(wire, run, points)
                seconds.append(time.perf_counter() - sent)
                assert status == 200, data[:300]
        bench.figures.spread("new batch", side.name, fresh)
        bench.figures.spread("retried batch", side.name, old)
        bench.figures.add("retried / new", side.name, statistics.median(old) / statistics.median(fresh))


def start(bench: Bench) -> None:
    """Of servers of their own, which are stopped again; those of the other phases wait meanwhile."""
    for place in range(bench.args.rounds):
        for side in bench.sides:
            home = bench.scratch / f"start-{side.name}-{place}"
            if isinstance(side, Jurat):
                if side.database is not None:  # type: ignore[attr-defined]
                    continue
                words = [*side.command]
                words[words.index("--home") + 1] = str(home)
                fresh = Side(side.name, words, side.health, free_port(), side.environment)
                words[words.index("--port") + 1] = str(fresh.port)
            else:
                home.mkdir()
                fresh = Mlflow.made(side.command[0], home)
            for label in ("first start", "warm start"):
                try:
                    bench.figures.add(f"{label} s", side.name, fresh.start())
                    time.sleep(1.0)
                    bench.figures.add(f"{label} MiB", side.name, fresh.memory())
                finally:
                    fresh.stop()
            shutil.rmtree(home, ignore_errors=True)


# ---- phases: ours ------------------------------------------------------------------------------------------------


def sse(bench: Bench) -> None:
    """From the sending of a point to its arrival at each client: the commit lies between, so this is the longer."""
    for side in bench.ours():
        wire = side.wire()
        run = side.run(wire)
        for first in range(0, 10_000, 1000):
            side.log(wire, run, grid(["loss"], first, 1000))
        sent: dict[int, float] = {}
        heard: list[list[tuple[int, float]]] = [[] for _ in range(bench.args.clients)]
        ready = threading.Barrier(bench.args.clients + 1)

        def listen(place: int, side: Jurat = side, run: str = run, heard: Any = heard, ready: Any = ready) -> None:
            made = http.client.HTTPConnection("127.0.0.1", side.port, timeout=60)
            made.request("GET", f"/api/v1/runs/{run}/stream", headers=side.headers)
            answer = made.getresponse()
            assert answer.status == 200
            kind, first = "", True
            while line := answer.readline():
                if first:
                    ready.wait(60)
                    first = False
                if line.startswith(b"event: "):
                    kind = line[7:].strip().decode()
                elif line.startswith(b"data: ") and kind == "metrics":
                    step = json.loads(line[6:])["step"]
                    heard[place].append((step, time.perf_counter()))
                    if step == 19_999:
                        break
            made.close()

        threads = [threading.Thread(target=listen, args=(k,), daemon=True) for k in range(bench.args.clients)]
        for thread in threads:
            thread.start()
        ready.wait(120)
        time.sleep(0.5)
        count = int(bench.args.seconds * bench.args.rounds * 5)
        for step in range(10_000, 10_000 + count):
            sent[step] = time.perf_counter()
            side.one(wire, run, step)
            time.sleep(max(0.0, 0.2 + random.uniform(-0.1, 0.1)))
        side.one(wire, run, 19_999)
        for thread in threads:
            thread.join(20)
        seconds = [at - sent[step] for each in heard for step, at in each if step in sent]
        bench.figures.spread("sse", side.name, seconds)
        old = sum(step < 10_000 for each in heard for step, _ in each)
        bench.figures.add("sse history sent again", side.name, old)
        wrong = [[step for step, _ in each if step in sent] != list(sent) for each in heard]
        bench.figures.add("sse clients that missed, doubled or swapped", side.name, sum(wrong))


def rollouts(bench: Bench) -> None:
    """Parts of 10,000 rows in the trainer's schema, as many as ``--rollouts`` needs; texts and tokens are left out."""
    for side in bench.ours():
        wire, store = side.wire(), side.store()
        folder = bench.scratch / f"rollouts-{bench.args.rollouts}"
        run = store.run(side.run(wire))
        _write_parts(store, run, bench.args.rollouts, folder)
        base, last = f"/api/v1/runs/{run.id}/rollouts", bench.args.rollouts // PART - 1
        middle = rollout_name(last // 2, 77)
        asks = {
            "rollout page": f"{base}?step={last // 2}&order_by=worst&page_size=50",
            "rollout page of all": f"{base}?page_size=50",
            "rollout look-up": f"{base}/{middle}",
            "rollout count": f"{base}:count",
            "rollout count, filtered": f"{base}:count?filter=completion_tokens%20%3E%201990",
        }
        for label, path in asks.items():
            seconds = []
            for place in range(bench.args.rounds + 1):
                sent = time.perf_counter()
                status, data = wire.ask("GET", path)
                if place:  # the first starts the worker
                    seconds.append(time.perf_counter() - sent)
                if status != 200:
                    print(f"  {side.name}: {label} answered {status}: {data[:200]!r}", flush=True)
                elif path.endswith(":count"):
                    assert json.loads(data)["total"] == bench.args.rollouts // PART * PART
            bench.figures.spread(label, side.name, seconds)
        store.close()


PART = 10_000
"""Rows of a part: a batch of 625 groups of 16."""


def rollout_name(step: int, place: int) -> str:
    """An id as the trainer's are: a hash, which says nothing of where the row is."""
    return hashlib.sha256(f"{step}-{place}".encode()).hexdigest()[:20]


def _write_parts(store: Any, run: Any, rows: int, folder: Path) -> None:
    """Files are written once into ``folder`` and linked into the run's."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import sqlalchemy as sa

    from jurat.api.server.routes_records import newest_segment
    from jurat.platform.db import tables as t
    from jurat.platform.runs.rollouts import SCHEMA, file_digest, index_of, index_row, part_name, part_row

    drawn = random.Random(1)
    fixed: dict[str, list[Any]] = {
        "run_id": [run.id] * PART, "stage": ["grpo"] * PART, "segment": [0] * PART,
        "problem_id": [f"p{place // 16:05d}" for place in range(PART)], "visit": [0] * PART,
        "index": [place % 16 for place in range(PART)], "baseline": [False] * PART, "trainable": [True] * PART,
        "prompt_tokens": [100] * PART, "completion_tokens": [drawn.randrange(20, 2000) for _ in range(PART)],
        "finish": ["stop"] * PART, "reward": [float(drawn.random() < 0.4) for _ in range(PART)],
        "status": [drawn.choice(("correct", "incorrect", "incorrect", "timeout")) for _ in range(PART)],
        "allocation_reason": ["uniform"] * PART, "source": ["bench"] * PART, "split": ["train"] * PART,
    }  # fmt: skip
    columns = {name: pa.array(fixed.get(name, [None] * PART), SCHEMA.field(name).type) for name in SCHEMA.names}
    folder.mkdir(parents=True, exist_ok=True)
    made, indexed = [], []
    for step in range(rows // PART):
        name = part_name("grpo", step, 0)
        kept, path = folder / Path(name).name, run.folder / name
        names = [rollout_name(step, place) for place in range(PART)]
        if not kept.exists():
            columns["step"] = pa.array([step] * PART, pa.int64())
            columns["position"] = pa.array([step * PART // 16 + place // 16 for place in range(PART)], pa.int64())
            columns["rollout_id"] = pa.array(names)
            draft = kept.with_suffix(".tmp")
            pq.write_table(pa.table(columns, schema=SCHEMA), draft, compression="zstd", write_page_checksum=True)
            draft.rename(kept)
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(kept, path)
        digest = file_digest(path) if step == 0 else f"sha256:{step:064x}"  # pages are not read against it
        made.append(part_row(name, digest, path.stat().st_size, segment=0, step=step, rows=PART, at=0))
        indexed.append(index_of(index_row(name, names, fixed["status"])))

    def record(connection: Any) -> None:
        newest_segment(connection, run.pk, 0)
        connection.execute(sa.insert(t.data_part), [{**row, "run_pk": run.pk} for row in made])
        connection.execute(sa.insert(t.part_index), [{**row, "run_pk": run.pk} for row in indexed])

    store.write(record)


def export(bench: Bench) -> None:
    """What ``jurat runs export --format parquet`` does, whole, twice: the same bytes, all points."""
    import pyarrow.parquet as pq

    from jurat.api.server.routes_records import newest_segment
    from jurat.platform.provenance import points
    from jurat.platform.runs import ingest

    for side in bench.ours():
        store = side.store()
        run = store.run(side.run(side.wire()))
        steps = bench.args.points // 100
        for first in range(0, steps, 500):
            points_ = grid([f"m{place:04d}" for place in range(100)], first, min(500, steps - first))

            def put(connection: Any, pk: int = run.pk, made: Points = points_) -> None:
                segment = newest_segment(connection, pk, 0)
                rows = [(segment, step, 0, name, value) for name, step, value in zip(*made, strict=True)]
                ingest.insert_points(connection, pk, rows)

            store.write(put)
        files = []
        for place in range(2):
            path = bench.scratch / f"export-{side.name}-{place}.parquet"
            began = time.perf_counter()
            made = store.read(lambda connection, pk=run.pk: points.table(connection, pk))
            points.write_parquet(made, path)
            bench.figures.add("export s", side.name, time.perf_counter() - began)
            files.append(path)
        rows = pq.ParquetFile(files[0]).metadata.num_rows
        bench.figures.add("export rows missing", side.name, steps * 100 - rows)
        bench.figures.add("export bytes differ", side.name, float(files[0].read_bytes() != files[1].read_bytes()))
        for path in files:
            path.unlink()
        store.close()


COST: Mapping[str, Any] = {
    "model": "tiny-random",
    "data": {"train": {"source": "generated:plain", "levels": [1], "size": 40}},
    "sampling": {"max_new_tokens": 96},
    "engine": {"dtype": "float32", "threads": 1},
    "checkpoint": {"every": 1000},
    "prompts_per_step": 8,
    "allocation": {"samples_per_prompt": 8},
    "algorithm": {"name": "grpo"},
}


def cost(bench: Bench) -> None:
    """A tiny run with its record through the service, and with a record that does nothing, in turns: seconds a step, and how
    long the loop waits in calls of the ledger. Steps here take a tenth of a second or two: of a real one it is less."""
    from jurat.platform.config import validate
    from jurat.platform.runs.ledger import RunLedger
    from jurat.trainers import launch

    calls = (
        "record_batch",
        "record_advantages",
        "record_step",
        "record_checkpoint",
        "record_evaluation",
        "record_event",
    )
    whole = {name: getattr(RunLedger, name) for name in (*calls, "flush")}
    recipe = validate({**COST, "steps": bench.args.steps}, where="benchmarks/service.py")
    for side in bench.ours():
        if side.database is not None:  # type: ignore[attr-defined]
            continue
        for place in range(bench.args.rounds):
            for label in ("recorded", "unrecorded"):
                waited: list[float] = []
                screen = _Screen()
                for name in calls:
                    setattr(RunLedger, name, _timed(whole[name], waited) if label == "recorded" else lambda *_: None)
                RunLedger.flush = _timed_flush(whole["flush"], waited) if label == "recorded" else _nothing  # type: ignore[method-assign]
                try:
                    launch.train(
                        recipe, home=side.home, base=bench.scratch, reporter=screen,  # type: ignore[attr-defined]
                        run_id=f"cost-{label}-{place}-{os.getpid()}",
                    )  # fmt: skip
                finally:
                    for name, function in whole.items():
                        setattr(RunLedger, name, function)
                for what, clock in (("step", screen.at), ("step's CPU", screen.cpu)):
                    between = [b - a for a, b in pairwise(clock[2:])]
                    bench.figures.add(f"{what} {label} ms", side.name, statistics.median(between) * 1e3)
                if label == "recorded":
                    bench.figures.add("longest wait for the ledger ms", side.name, max(waited) * 1e3)
                    share = sum(waited) / (screen.at[-1] - screen.at[0])
                    bench.figures.add("share of time in ledger calls %", side.name, 100 * share)
        for what, more in (("step", "step time more %"), ("step's CPU", "step's CPU more %")):
            with_, without = (bench.figures.of(f"{what} {label} ms", side.name) for label in ("recorded", "unrecorded"))
            assert with_ and without
            bench.figures.add(more, side.name, 100 * (with_ / without - 1))


class _Screen:
    def __init__(self) -> None:
        self.at: list[float] = []
        self.cpu: list[float] = []

    def start(self, **_: Any) -> None: ...
    def step(self, _: Any) -> None:
        self.at.append(time.perf_counter())
        self.cpu.append(time.process_time())

    def evaluation(self, _: Any) -> None: ...
    def note(self, _: str) -> None: ...


def _timed(function: Any, waited: list[float]) -> Any:
    def call(*arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            waited.append(time.perf_counter() - began)

    return call


def _timed_flush(function: Any, waited: list[float]) -> Any:
    async def flush(self: Any) -> None:
        began = time.perf_counter()
        await function(self)
        waited.append(time.perf_counter() - began)

    return flush


async def _nothing(_: Any) -> None: ...


# ---- a service that is away --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Away:
    """A run that was trained while its service was dead for a while, and stopped by command after it had come back."""

    steps: int
    """That the run itself told of in its log."""
    meanwhile: int
    """Of these, while the service was dead."""
    pace: float
    """Steps a second meanwhile, against those before."""
    spooled: int
    """Facts that went through the spool."""
    missing: int
    """Steps without their numbers, or without their rollouts; and an outage that nobody noted."""
    disorder: int
    """Numbers or events that stand before older ones."""
    left: int
    """Files of the spool that are still there."""
    blocked: float
    """Seconds of the loop's longest wait for a call of its ledger."""
    flushed: float
    """Seconds of the longest wait for the record before a checkpoint."""
    state: str


def service_away(home: Path, seconds: float, database: str | None = None) -> Away:
    """The service of ``home`` launches a run, is killed by SIGKILL for ``seconds``, and is started again."""
    from jurat.client import Client
    from jurat.platform.runs.store import Store

    recipes = home / "recipes"
    recipes.mkdir(parents=True)
    long = {**COST, "sampling": {"max_new_tokens": 16}, "checkpoint": {"every": 10, "keep": 2}, "steps": 10**6}
    (recipes / "away.yaml").write_text(json.dumps(long))  # JSON is YAML
    side = Jurat.made("jurat-away", home, database)
    side.command[side.command.index("--slots") + 1] = "1"
    side.command += ["--recipes", str(recipes), "--lease-seconds", "5"]
    log_file = home / "logs" / "away.log"

    def told() -> int:
        lines = log_file.read_text().splitlines() if log_file.exists() else []
        return sum(line.startswith("grpo ") for line in lines)

    def until(true: Callable[[], object], most: float = 300.0) -> None:
        end = time.perf_counter() + most
        while not true():
            if time.perf_counter() > end:
                raise RuntimeError(f"waited {most:g} s in vain; the run said {log_file.read_text()[-2000:]}")
            time.sleep(0.05)

    try:
        side.start()
        assert side.process is not None
        key = (home / "key").read_text()
        Client(f"http://127.0.0.1:{side.port}", key).create_run("away", id="away")
        until(lambda: told() >= 10)
        began, before = time.perf_counter(), told()
        until(lambda: told() >= before + 30)
        rate = (told() - before) / (time.perf_counter() - began)
        os.killpg(side.process.pid, signal.SIGKILL)  # a run's process has a session of its own
        side.process.wait()
        began, first = time.perf_counter(), told()
        time.sleep(seconds)
        meanwhile = told() - first
        pace = meanwhile / (time.perf_counter() - began) / rate
        side.start()
        store = Store.open(database, home)
        run = store.run("away")
        until(lambda: any(event.kind == "tracking_outage" for event in store.events(run)))
        Client(f"http://127.0.0.1:{side.port}", key).command("away", "cancel")
        until(lambda: store.run("away").state == "cancelled")
    finally:
        side.stop()
        for process in psutil.process_iter(["cmdline"]):
            line = process.info["cmdline"] or []
            if str(home) in line and "train" in line:
                process.kill()
    with ExitStack() as leaving:
        leaving.callback(store.close)
        steps, points = told(), store.metrics(run)
        by_name: dict[str, list[Any]] = defaultdict(list)
        for point in points:
            by_name[point.name].append(point)
        rows: dict[int, int] = defaultdict(int)
        for part in store.parts(run, canonical=False):
            rows[part.step_min] += part.rows
        always = ("reward/mean", "policy/loss", "policy/tokens", "seconds/update")
        missing = sum(len(set(range(steps)) ^ {p.step for p in by_name[name]}) for name in always)
        missing += sum(len(by_name[name]) != steps for name in always)
        missing += sum(rows[step] != 64 for step in range(steps))
        events = store.events(run)
        outages = [event.payload for event in events if event.kind == "tracking_outage"]
        own = [e.at for e in events if e.kind not in ("state", "command")]
        ordered = [own, *([p.at for p in by_name[name]] for name in always)]
        return Away(
            steps=steps, meanwhile=meanwhile, pace=pace, spooled=sum(o["spooled"] for o in outages),
            missing=missing + (not outages) + sum(o["lost"] for o in outages),
            disorder=sum(a > b for times in ordered for a, b in pairwise(times)),
            left=len(list(run.folder.glob("spool*"))), blocked=max(o["blocked"] for o in outages),
            flushed=max(o["flushed"] for o in outages), state=store.run("away").state,
        )  # fmt: skip


def outage(bench: Bench) -> None:
    for side in bench.ours():
        database = side.database and _empty_database(side, bench.scratch, "away")  # type: ignore[attr-defined]
        found = service_away(bench.scratch / f"away-{side.name}-{os.getpid()}", bench.args.outage, database)
        print(f"  {side.name}: {found}", flush=True)
        bench.figures.add("away: lost or double", side.name, found.missing + found.disorder + found.left)
        bench.figures.add("away: facts spooled", side.name, found.spooled)
        bench.figures.add("away: steps meanwhile", side.name, found.meanwhile)
        bench.figures.add("away: pace", side.name, found.pace)
        bench.figures.add("away: longest wait ms", side.name, found.blocked * 1e3)
        bench.figures.add("away: longest flush ms", side.name, found.flushed * 1e3)


# ---- exactly-one start -------------------------------------------------------------------------------------------

LEASE_SECONDS = 0.2
ENDED_BY_ITSELF = "so that it can be queued again"


def claimant(url: str, home: Path, seed: int, until: Any, count: int, log: Path) -> None:
    """Claims, works, ends, queues again. One in ten times it dies: in the transaction of its claim, after it, or in that of
    its end; one in ten it sleeps past its lease, and then ends all the same.

    A line of ``log`` is written before anything else happens: ``claim RUN EPOCH AT UNTIL`` at a claim, ``end RUN EPOCH`` as an
    end was accepted, ``refused RUN EPOCH`` as it was not. Times are the database's; AT is read when the run is locked.
    """
    from jurat.platform.db.clock import now
    from jurat.platform.errors import FencedOut, RunFailed
    from jurat.platform.runs import leases
    from jurat.platform.runs.states import Limits
    from jurat.platform.runs.store import Store

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def claim(connection: Any) -> Any:
        made = leases.claim(connection, owner, limits=limits)
        if made is not None and fate < 0.03:
            die()  # not committed: nobody has it
        return made and (made, now(connection))

    store = Store.open(url, home, busy_seconds=30.0, durable=False, migrate=False)
    limits, drawn, owner = Limits(lease=LEASE_SECONDS), random.Random(seed), f"claimant-{seed}"
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def say(*words: Any) -> None:
        os.write(file, (" ".join(map(str, words)) + "\n").encode())

    idle = False
    while until.value < count:
        try:
            if idle or drawn.random() < 0.2:
                store.write(lambda c: leases.reap(c, limits=limits))
            fate = drawn.random()
            claimed = store.write(claim)
        except RunFailed:
            continue  # a deadlock that the database broke; nothing was written
        idle = claimed is None
        if claimed is None:
            time.sleep(0.01)
            continue
        lease, at = claimed
        say("claim", lease.run, lease.epoch, at, lease.until)
        with until.get_lock():
            until.value += 1
        if fate < 0.07:
            die()
        if 0.1 <= fate < 0.2:
            time.sleep(LEASE_SECONDS * 1.5)

        def finish(connection: Any, lease: Any = lease, fate: float = fate) -> None:
            leases.take(connection, lease.run_pk, owner, epoch=lease.epoch, limits=limits)
            leases.end(connection, lease.run_pk, "failed", ENDED_BY_ITSELF, epoch=lease.epoch, limits=limits)
            leases.command(connection, lease.run_pk, "resume", limits=limits)
            if fate < 0.1:
                die()

        while True:
            try:
                store.write(finish)
                say("end", lease.run, lease.epoch)
            except FencedOut:
                say("refused", lease.run, lease.epoch)
            except RunFailed as error:
                if "database does not answer" in error.what:
                    continue
                say("refused", lease.run, lease.epoch)
            break
    store.close()


@dataclass(frozen=True)
class Starts:
    claims: int
    ends: int
    refused: int
    deaths: int
    double: int
    """Claims of one epoch by two, claims while the lease before was alive and not ended, and where the claimants and the run's
    own events, whose order is total, disagree: which epochs there were, and which of them ended, once and before the next."""
    seconds: float


def exactly_once(url: str, home: Path, count: int, *, workers: int = 6, runs: int = 24) -> Starts:
    """``count`` claims by processes that die by SIGKILL and are replaced."""
    from jurat.platform.recipe import Recipe
    from jurat.platform.runs.store import Store, new_id

    recipe = Recipe.model_validate(
        {"name": "claims", "model": "tiny-random", "data": {"train": {"source": "generated"}}}
    )
    store = Store.open(url, home)
    for place in range(runs):
        store.create_run(
            recipe=recipe, recipe_digest="", reward_digest="", meta={}, run_id=f"claim-{place}-{new_id()}",
            state="queued", max_restarts=1_000_000,
        )  # fmt: skip
    store.close()
    context, log = multiprocessing.get_context("fork"), home / f"claims-{os.getpid()}.log"
    log.unlink(missing_ok=True)
    until, seeds, deaths = context.Value("i", 0), iter(range(10**9)), 0
    began = time.perf_counter()

    def one() -> Any:
        made = context.Process(target=claimant, args=(url, home, next(seeds), until, count, log))
        made.start()
        return made

    working = [one() for _ in range(workers)]
    while working:
        for process in list(working):
            process.join(0.01)
            if process.exitcode is None:
                continue
            working.remove(process)
            assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
            deaths += process.exitcode != 0
            if process.exitcode != 0 and until.value < count:
                working.append(one())
    seconds = time.perf_counter() - began
    claims: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    ends: dict[str, list[int]] = defaultdict(list)
    refused = 0
    for line in log.read_text().splitlines():
        kind, run, epoch, *times = line.split()
        if kind == "claim":
            claims[run].append((int(epoch), int(times[0]), int(times[1])))
        elif kind == "end":
            ends[run].append(int(epoch))
        else:
            refused += 1
    double, store = 0, Store.open(url, home)
    for run, made in claims.items():
        made.sort()
        for (epoch, _, lapse), (later, at, _) in pairwise(made):
            double += epoch == later or (epoch not in ends[run] and at < lapse)
        epochs, ended = [], []
        for event in store.events(store.run(run)):
            if event.kind == "state" and event.payload["to"] == "starting":
                epochs.append(event.payload["epoch"])
            elif event.kind == "state" and event.payload["detail"] == ENDED_BY_ITSELF:
                ended.append(epochs[-1])
        double += len(epochs) - len(set(epochs)) + len({epoch for epoch, _, _ in made} - set(epochs))
        double += sorted(ends[run]) != ended or len(ended) != len(set(ended))
    store.close()
    return Starts(
        sum(map(len, claims.values())), sum(map(len, ends.values())), refused, deaths, double, seconds
    )  # fmt: skip


def claims(bench: Bench) -> None:
    for side in bench.ours():
        home = bench.scratch / f"claims-{side.name}"
        home.mkdir(exist_ok=True)
        url = side.database or f"sqlite:///{home / 'claims.db'}"  # type: ignore[attr-defined]
        found = exactly_once(url, home, bench.args.count)
        print(f"  {side.name}: {found}", flush=True)
        for name in ("claims", "double", "refused", "deaths", "seconds"):
            bench.figures.add(f"starts: {name}", side.name, getattr(found, name))


DEATHS = (("CREATE TABLE", 4), ("metric_series", 2))
"""Of an upgrade: word of the statement, and at which one with it."""


def migrate(bench: Bench) -> None:
    """A store of the first schema with ``--points``, upgraded by processes that are killed on the way, then by one that is not."""
    from sqlalchemy import text

    from databases import cut_short, upgrade_to
    from jurat.platform.db.engine import connect, reading, writing
    from jurat.platform.db.upgrade import revision, upgrade
    from jurat.platform.runs import ingest

    names, steps = 100, bench.args.points // 100
    for side in bench.ours():
        url = _empty_database(side, bench.scratch, "migrate")
        engine = connect(url)
        upgrade_to(engine, "0001")
        with writing(engine) as connection:
            for statement in _OLD:
                connection.execute(text(statement), {"names": names, "steps": steps})

        def sums(engine: Any = engine) -> tuple[Any, ...]:
            with reading(engine) as connection:
                return tuple(connection.execute(text("SELECT count(*), sum(value), sum(step) FROM metric_point")).one())

        before = sums()
        for word, at in DEATHS:
            done = cut_short(url, at, word)
            assert done.returncode == -signal.SIGKILL, done.stderr
            with reading(engine) as connection:
                assert revision(connection) == "0001"
            bench.figures.add("migrate rows lost", side.name, float(sums() != before))
        began = time.perf_counter()
        upgrade(engine)
        bench.figures.add("migrate s", side.name, time.perf_counter() - began)
        with reading(engine) as connection:
            found = ingest.faults(connection, 1)
        bench.figures.add("migrate rows lost", side.name, abs(names * steps - found[0]) + len(found[1]))
        bench.figures.add("migrate rows lost", side.name, float(sums() != before))
        engine.dispose()


_SERIES = "WITH RECURSIVE s (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM s WHERE n < :steps - 1)"
_NAMES = "WITH RECURSIVE k (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM k WHERE n < :names)"
_OLD = (
    "INSERT INTO run (pk, id, name, state, detail, version, recipe, recipe_digest, reward_digest, meta, created, started) "
    "VALUES (1, 'old', 'tiny', 'running', '', 2, '{}', '', '', '{}', 10, 11)",
    "INSERT INTO segment (run_pk, no, stage, stage_index, first_step, started, ending, host, pid, reward_digest, versions) "
    "VALUES (1, 0, '', 0, 0, 11, '', '', 1, '', '{}')",
    f"INSERT INTO metric_key (pk, name) {_NAMES} SELECT n, 'm' || n FROM k",
    f"INSERT INTO metric_point (run_pk, key_pk, segment, step, at, value) {_SERIES} "
    "SELECT 1, k.pk, 0, s.n, 12, CAST(s.n * 7919 % 10007 AS DOUBLE PRECISION) FROM metric_key k CROSS JOIN s WHERE k.pk <= :names",
)
"""A run of schema 0001 and its points."""


# ---- the table ---------------------------------------------------------------------------------------------------

Check = Callable[[Figures, str], bool | None]


def at_most(measure: str, most: float, *, postgres: float | None = None) -> Check:
    def check(figures: Figures, side: str) -> bool | None:
        found = figures.of(measure, side)
        return None if found is None else found <= (postgres if postgres and side != "jurat" else most)

    return check


def at_least(measure: str, least: float) -> Check:
    return lambda figures, side: None if (found := figures.of(measure, side)) is None else found >= least


def faster(measure: str, times: float, *, postgres: float | None = None) -> Check:
    """A rate, against MLflow on SQLite."""

    def check(figures: Figures, side: str) -> bool | None:
        found = figures.ratio(measure, side)
        return None if found is None else found >= (postgres if postgres and side != "jurat" else times)

    return check


def shorter(measure: str, times: float) -> Check:
    return lambda figures, side: None if (found := figures.ratio(measure, side)) is None else found <= 1 / times


ALL = "search page 100, all columns"
MUSTS: tuple[tuple[str, str, tuple[str, ...], tuple[Check, ...]], ...] = (
    ("batch ingest, 1 writer, 10 x 100", ">= 5x and >= 18k rows/s", ("ingest 10x100 rows/s",),
     (faster("ingest 10x100 rows/s", 5), at_least("ingest 10x100 rows/s", 18_000))),
    ("batch ingest, 1000 x 1", "", ("ingest 1000x1 rows/s",), ()),
    ("batch ingest, 50 x 1", "", ("ingest 50x1 rows/s",), ()),
    ("single metric", ">= 4x, PostgreSQL >= 1.5x", ("single requests/s",), (faster("single requests/s", 4, postgres=1.5),)),
    ("4 writers", "", ("4 writers rows/s", "4 writers p95 ms", "4 writers errors", "4 writers lost"), ()),
    ("8 writers", ">= 8x", ("8 writers rows/s",), (faster("8 writers rows/s", 8),)),
    ("  p95", "<= 100 ms", ("8 writers p95 ms",), (at_most("8 writers p95 ms", 100),)),
    ("  errors / lost / double / wrong sums", "0",
     tuple(f"8 writers {what}" for what in ("errors", "lost", "double", "wrong sums")),
     tuple(at_most(f"8 writers {what}", 0) for what in ("errors", "lost", "double", "wrong sums"))),
    ("search, 3 columns, page 100, p95", "<= 50 ms, PostgreSQL 80", (f"search {SHAPES[0].label} p95 ms",),
     (at_most(f"search {SHAPES[0].label} p95 ms", 50, postgres=80),)),
    ("search, all columns, page 100", ">= 10x", (f"{ALL} p50 ms", f"{ALL} kB"), (shorter(f"{ALL} p50 ms", 10),)),
    *((f"search, {shape.label}", "", (f"search {shape.label} p50 ms",), ()) for shape in SHAPES[2:]),
    ("search under 4 writers, p95", "<= 300 ms", ("search under 4 writers p95 ms",),
     (at_most("search under 4 writers p95 ms", 300),)),
    ("  writes kept meanwhile", ">= 0.45", ("mixed writes kept", "mixed rows/s"), (at_least("mixed writes kept", 0.45),)),
    ("history page, 25,000 of 100,000", "", ("page of 25,000 p50 ms",), ()),
    ("down-sample of 100,000 points", "<= 150 ms", ("320 of 100,000 p50 ms",), (at_most("320 of 100,000 p50 ms", 150),)),
    ("SSE commit -> client, p95", "<= 500 ms", ("sse p95 ms", "sse clients that missed, doubled or swapped"),
     (at_most("sse p95 ms", 500), at_most("sse clients that missed, doubled or swapped", 0))),
    ("  history sent again", "0", ("sse history sent again",), (at_most("sse history sent again", 0),)),
    ("retried batch / new batch", "<= 1.2", ("retried / new",), (at_most("retried / new", 1.2),)),
    ("rollout page", "<= 150 ms", ("rollout page p50 ms",), (at_most("rollout page p50 ms", 150),)),
    ("  of all steps", "", ("rollout page of all p50 ms",), ()),
    ("rollout look-up", "<= 50 ms", ("rollout look-up p50 ms",), (at_most("rollout look-up p50 ms", 50),)),
    ("rollout count", "<= 500 ms", ("rollout count p50 ms",), (at_most("rollout count p50 ms", 500),)),
    ("  of those that a filter finds", "", ("rollout count, filtered p50 ms",), ()),
    ("export of a run", "<= 5 s", ("export s",), (at_most("export s", 5),)),
    ("  rows missing / bytes that differ", "0", ("export rows missing", "export bytes differ"),
     (at_most("export rows missing", 0), at_most("export bytes differ", 0))),
    ("upgrade of 1 M points", "<= 60 s", ("migrate s",), (at_most("migrate s", 60),)),
    ("  lost, after kills too", "0", ("migrate rows lost",), (at_most("migrate rows lost", 0),)),
    ("start, warm", "<= 3 s", ("warm start s",), (at_most("warm start s", 3),)),
    ("start, first", "<= 5 s", ("first start s",), (at_most("first start s", 5),)),
    ("resident memory", "<= 250 MiB", ("warm start MiB",), (at_most("warm start MiB", 250),)),
    ("tracker's cost: step time more", "<= 1 %", ("step time more %", "step recorded ms", "step's CPU more %",
      "share of time in ledger calls %"),
     (at_most("step time more %", 1),)),
    ("  longest wait of the loop", "<= 50 ms", ("longest wait for the ledger ms",),
     (at_most("longest wait for the ledger ms", 50),)),
    ("service dead for --outage s: lost or double", "0", ("away: lost or double", "away: facts spooled", "away: steps meanwhile"),
     (at_most("away: lost or double", 0),)),
    ("  steps a second meanwhile / before", ">= 0.9", ("away: pace",), (at_least("away: pace", 0.9),)),
    ("  longest wait of the loop", "<= 50 ms", ("away: longest wait ms", "away: longest flush ms"),
     (at_most("away: longest wait ms", 50),)),
    ("double starts", "0", ("starts: double", "starts: claims", "starts: deaths", "starts: refused"),
     (at_most("starts: double", 0),)),
)  # fmt: skip
"""(what, must, figures shown, checks). Other figures are in ``--json``."""


def table(figures: Figures, names: Sequence[str]) -> list[list[str]]:
    """Rows of the targets of which there is a figure: what, must, one cell a server; a cell of ours ends in yes or NO."""
    rows = []
    for what, must, measures, checks in MUSTS:
        if not any(figures.of(measure, name) is not None for measure in measures for name in names):
            continue
        cells = []
        for name in names:
            found = [figures.of(measure, name) for measure in measures]
            said = " / ".join(
                "-" if value is None else f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}" for value in found
            )
            verdicts = [check(figures, name) for check in checks]
            met = "" if name == "mlflow" or None in verdicts or not checks else " yes" if all(verdicts) else " NO"
            times = figures.ratio(measures[0], name)
            told = (
                f" ({times if times >= 1 else 1 / times:.1f}x)"
                if times and name != "mlflow" and measures[0].endswith(("/s", " ms", " s", " MiB"))
                else ""
            )
            cells.append(said + told + met)
        rows.append([what, must, *cells])
    return rows


def show(rows: Sequence[Sequence[str]], names: Sequence[str]) -> None:
    whole = [["", "must", *names], *rows]
    widths = [max(len(row[place]) for row in whole) for place in range(len(whole[0]))]
    for row in whole:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


PHASES: dict[str, Callable[[Bench], None]] = {
    "ingest": ingest, "single": single, "writers": writers, "populate": populate, "search": search, "mixed": mixed,
    "history": history, "retry": retry, "sse": sse, "rollouts": rollouts, "export": export, "start": start, "cost": cost,
    "migrate": migrate,
    "outage": outage, "claims": claims,
}  # fmt: skip
ALONE = frozenset({"claims", "outage", "migrate"})
"""Phases that need no server, or start their own."""
OURS = frozenset({"sse", "rollouts", "export", "cost", "outage", "claims", "migrate"})
"""Phases without a figure of MLflow."""


def main(argv: Sequence[str] | None = None) -> Figures:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phases", nargs="+", choices=list(PHASES))
    parser.add_argument("--mlflow-python", help="of an environment with mlflow in it")
    parser.add_argument("--postgres", action="store_true", help="ours on a temporary PostgreSQL as well")
    parser.add_argument("--no-sqlite", action="store_true", help="ours on PostgreSQL alone")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one measurement of a rate")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--keys", type=int, default=1000, help="metrics of each of the runs to be searched")
    parser.add_argument("--history", type=int, default=100_000, help="points of the run whose history is read")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--rollouts", type=int, default=10_000_000)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--outage", type=float, default=600.0, help="seconds that the service is dead")
    parser.add_argument("--data", type=Path, help="folder of the servers' data, kept; PostgreSQL's is not")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    figures = Figures()
    sys.path.insert(0, str(KIT))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers are stopped then, too
    with ExitStack() as leaving:
        scratch = (args.data or Path(leaving.enter_context(tempfile.TemporaryDirectory()))).absolute()
        scratch.mkdir(parents=True, exist_ok=True)
        sides: list[Side] = []
        if args.mlflow_python and not OURS.issuperset(args.phases):
            sides.append(Mlflow.made(args.mlflow_python, scratch / "mlflow"))
        if not args.no_sqlite:
            sides.append(Jurat.made("jurat", scratch / "jurat", None))
        if args.postgres:
            from databases import cluster

            for left in scratch.glob("populated-jurat-pg-*"):
                left.unlink()
            shutil.rmtree(scratch / "jurat-pg", ignore_errors=True)
            url = leaving.enter_context(cluster()).format(name="postgres")
            sides.append(Jurat.made("jurat-pg", scratch / "jurat-pg", url))
        for side in sides if not ALONE.issuperset(args.phases) else []:
            leaving.callback(side.stop)
            print(f"{side.name} answers after {side.start():.1f} s", flush=True)
        bench = Bench(sides, figures, args, scratch)
        for phase in dict.fromkeys(args.phases):
            began = time.perf_counter()
            PHASES[phase](bench)
            print(f"{phase}: {time.perf_counter() - began:.0f} s", flush=True)
        names = [side.name for side in sides]
        show(table(figures, names), names)
        if args.json:
            said = {
                measure: {name: values for name, values in found.items()} for measure, found in figures.kept.items()
            }
            load = os.getloadavg()
            args.json.write_text(
                json.dumps({"load": load, "rounds": args.rounds, "figures": said}, indent=1) + "\n", "utf-8"
            )
    return figures


if __name__ == "__main__":
    main()
