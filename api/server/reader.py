"""Rollouts, read by DuckDB in a process of their own: pages by filter and order, and one sample whole.

The process that answers requests never opens a part. The worker has a memory limit, two threads, no network, no
extensions, and may open the files it was told of, nothing else; a query that takes too long ends with its process.

    python -m jurat.api.server.reader      one JSON line {sql, parameters, files, names} in, one {rows} or {error} out
"""

from __future__ import annotations

import json
import math
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from jurat.api.server import filters, pages
from jurat.api.server.filters import Fields, Key, Operand
from jurat.api.server.problems import Problem
from jurat.platform.errors import DataError
from jurat.platform.runs.records import Part, RunInfo
from jurat.platform.runs.rollouts import locate

SECONDS = 5.0
MEMORY = "1GB"
MAX_PARTS = 20_000
"""Of one query; a filter on step leaves parts out."""
MAX_LINE = 64 << 20
"""Bytes of an answer."""
WORKERS = 2


# ---- the query ---------------------------------------------------------------------------------------------------

_SHORT = [
    "rollout_id", "stage", "segment", "step", "position", "problem_id", "visit", "index", "baseline", "discarded",
    "allocation_reason", "source", "split", "prompt_tokens", "completion_tokens", "finish", "reward", "trainable",
    "status",
]  # fmt: skip
"""What a page shows of a rollout unless more is asked for."""
_LONG = [
    "text", "messages", "reference", "tokens", "loss_mask", "sampler_logprobs", "spans", "char_ends", "parts",
    "reward_steps",
    "verdicts", "seconds", "columns", "problem_verifier", "problem_verifier_args", "allocation_samples",
    "allocation_evidence",
    "greedy_baseline",
]  # fmt: skip
SHORT = frozenset({*_SHORT, "id"})
KNOWN = frozenset({*_SHORT, *_LONG, "id"})
ROLLOUTS = sa.table("rollouts", *(sa.column(name) for name in (*_SHORT, *_LONG, "place", "row")))
_C = ROLLOUTS.c
_TEXTS = (
    "rollout_id",
    "stage",
    "problem_id",
    "discarded",
    "allocation_reason",
    "source",
    "split",
    "finish",
    "status",
    "text",
    "reference",
)
_NUMBERS = ("segment", "step", "position", "visit", "index", "prompt_tokens", "completion_tokens", "reward")
FIELDS = Fields(
    {
        "id": Operand(_C.rollout_id, "text"),
        **{name: Operand(_C[name], "text") for name in _TEXTS},
        **{name: Operand(_C[name], "number") for name in _NUMBERS},
        **{name: Operand(_C[name], "flag") for name in ("baseline", "trainable")},
    },
    {"verdicts": lambda rest: _verdict(rest)},
)


def _verdict(rest: tuple[str, ...]) -> Operand | None:
    """``verdicts.MEMBER.status`` and the like: of that member's verdict."""
    kinds: Mapping[str, Any] = {
        "status": "text",
        "why": "text",
        "read": "text",
        "fault": "text",
        "verifier": "text",
        "version_digest": "text",
        "score": "number",
        "seconds": "number",
    }
    if len(rest) < 2 or rest[-1] not in kinds:
        return None
    found = sa.func.member_field(
        _C.verdicts, sa.literal(".".join(rest[:-1]), sa.Text), sa.literal_column(f"'{rest[-1]}'")
    )
    column = sa.cast(found, sa.Double if kinds[rest[-1]] == "number" else sa.Text)
    return Operand(column, kinds[rest[-1]])


_MACRO = """CREATE MACRO member_field(verdicts, name, field) AS
  json_extract_string(to_json(list_filter(verdicts, lambda v: v.member = name)[1]), '$.' || field)"""

ORDERS: Mapping[str, list[tuple[str, bool]]] = {
    "trained": [],
    "worst": [("reward", False), ("step", True), ("position", False), ("index", False)],
}
"""Orders that have a name; parts are given in the order of training."""


def page(
    run: RunInfo,
    parts: Sequence[Part],
    secret: bytes,
    reader: Reader,
    *,
    filter_: str,
    order_by: str,
    page_size: int,
    page_token: str | None,
    fields: frozenset[str],
) -> dict[str, Any]:
    """{rollouts, next_page_token, faults}: a page of the canonical rollouts. Raises Problem."""
    condition = filters.compile_filter(filter_, FIELDS)
    default = [Key(_C[name], down) for name, down in ORDERS.get(order_by, ORDERS["trained"])]
    keys = filters.compile_order(
        "" if order_by in ORDERS else order_by, FIELDS, default=default, last=Key(_C.place, False)
    )
    keys = [*keys, Key(_C.row, False)]
    asked = f"rollouts\x00{run.id}\x00{filter_}\x00{order_by}\x00{page_size}"
    wanted = [name for name in (*_SHORT, *_LONG) if name in fields or name == "rollout_id"]
    sorting = [key.column.label(f"sort_{place}") for place, key in enumerate(keys)]
    query = (
        sa.select(*(_C[name] for name in wanted), *sorting)
        .select_from(ROLLOUTS)
        .order_by(*filters.ordering(keys))
        .limit(page_size + 1)
    )
    if condition is not None:
        query = query.where(condition)
    if page_token is not None:
        query = query.where(filters.after(keys, pages.unseal(secret, asked, page_token, len(keys))))
    files, faults = _files(run, parts)
    rows = reader.ask(query, files) if files else []
    shown = [{_name(name): _told(name, row[name]) for name in wanted} for row in rows[:page_size]]
    token = (
        pages.seal(secret, asked, [rows[page_size - 1][f"sort_{place}"] for place in range(len(keys))])
        if len(rows) > page_size
        else None
    )
    return {"rollouts": shown, "next_page_token": token, "faults": faults}


def sample(run: RunInfo, parts: Sequence[Part], reader: Reader, rollout_id: str) -> dict[str, Any]:
    """One rollout, whole. Raises Problem."""
    wanted = [*_SHORT, *_LONG]
    query = (
        sa.select(*(_C[name] for name in wanted))
        .select_from(ROLLOUTS)
        .where(_C.rollout_id == rollout_id)
        .order_by(_C.segment.desc())
        .limit(1)
    )
    files, faults = _files(run, parts)
    rows = reader.ask(query, files) if files else []
    if not rows:
        raise Problem(
            "not-found", "the run has no such rollout" + ("; some of its parts cannot be read" if faults else "")
        )
    return {_name(name): _told(name, rows[0][name]) for name in wanted}


def counts(run: RunInfo, parts: Sequence[Part], reader: Reader, filter_: str) -> list[dict[str, Any]]:
    """[{status, count}] of the rollouts that a filter lets through."""
    condition = filters.compile_filter(filter_, FIELDS)
    query = (
        sa.select(_C.status, sa.func.count().label("count"))
        .select_from(ROLLOUTS)
        .group_by(_C.status)
        .order_by(_C.status)
    )
    files, _ = _files(run, parts)
    return reader.ask(query if condition is None else query.where(condition), files) if files else []


def _name(column: str) -> str:
    return "id" if column == "rollout_id" else column


def _told(name: str, value: Any) -> Any:
    if name in ("columns", "problem_verifier_args", "allocation_evidence") and isinstance(value, str):
        return json.loads(value)
    if name == "verdicts" and value is not None:
        return [{**v, "args": _loaded(v.get("args")), "evidence": _loaded(v.get("evidence"))} for v in value]
    return value


def _loaded(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _files(run: RunInfo, parts: Sequence[Part]) -> tuple[list[str], list[str]]:
    """(files that are there, what is wrong with the others)."""
    if len(parts) > MAX_PARTS:
        raise Problem("invalid", f"the query would read {len(parts)} parts: give step, first_step or last_step")
    found, faults = [], []
    for part in parts:
        try:
            path = locate(run, part.path)
        except DataError as error:
            faults.append(f"{part.path}: {error.what}")
            continue
        found.append(str(path)) if path.is_file() else faults.append(f"{part.path}: the file is missing")
    return found, faults


# ---- asking the worker -------------------------------------------------------------------------------------------


class Reader:
    """Worker processes, started when they are needed. Safe to use from several threads."""

    def __init__(self, *, workers: int = WORKERS, seconds: float = SECONDS, memory: str = MEMORY) -> None:
        self._seconds, self._memory = seconds, memory
        self._free = threading.Semaphore(workers)
        self._lock = threading.Lock()
        self._idle: list[subprocess.Popen[bytes]] = []
        self._closed = False

    def ask(self, query: sa.Select[Any], files: Sequence[str]) -> list[dict[str, Any]]:
        """Rows of a query over ``rollouts``. Raises Problem where it takes too long or a file cannot be read."""
        compiled = query.compile(dialect=_DIALECT, compile_kwargs={"render_postcompile": True})
        parameters = [compiled.params[name] for name in compiled.positiontup or ()]
        return self.send({"sql": str(compiled), "parameters": parameters, "files": list(files)})

    def send(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        if not self._free.acquire(timeout=self._seconds):
            raise Problem("query-too-slow", "other queries go on", headers={"Retry-After": "2"})
        try:
            worker = self._take()
            try:
                answer = _exchange(worker, json.dumps(request).encode() + b"\n", self._seconds)
            except (TimeoutError, OSError) as error:
                worker.kill()
                worker.wait()
                if isinstance(error, TimeoutError):
                    raise Problem(
                        "query-too-slow", f"the query takes more than {self._seconds:g} s: narrow the filter"
                    ) from None
                raise Problem(
                    "query-too-slow",
                    "the query takes more memory than it may: narrow the filter or ask for fewer fields",
                ) from None
            except BaseException:
                worker.kill()
                worker.wait()
                raise
            self._give(worker)
        finally:
            self._free.release()
        if "error" in answer:
            raise Problem("unavailable", f"the rollouts cannot be read: {answer['error']}")
        rows: list[dict[str, Any]] = answer["rows"]
        return rows

    def _take(self) -> subprocess.Popen[bytes]:
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.poll() is None:
                    return worker
        return subprocess.Popen(
            [sys.executable, "-m", "jurat.api.server.reader", self._memory], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, bufsize=0,
        )  # fmt: skip

    def _give(self, worker: subprocess.Popen[bytes]) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(worker)
                return
        worker.kill()
        worker.wait()

    def close(self) -> None:
        with self._lock:
            self._closed, idle, self._idle = True, self._idle, []
        for worker in idle:
            worker.kill()
            worker.wait()


def _exchange(worker: subprocess.Popen[bytes], line: bytes, seconds: float) -> dict[str, Any]:
    """Raises TimeoutError, or OSError for a worker that died."""
    assert worker.stdin is not None and worker.stdout is not None
    until = (
        time.monotonic() + seconds + (2.0 if not hasattr(worker, "met") else 0.0)
    )  # a first query waits for the import
    worker.stdin.write(line)
    found = bytearray()
    while not found.endswith(b"\n"):
        left = until - time.monotonic()
        if left <= 0 or not select.select([worker.stdout], [], [], left)[0]:
            raise TimeoutError
        got = os.read(worker.stdout.fileno(), 1 << 20)
        if not got or len(found) > MAX_LINE:
            raise OSError("the worker ended")
        found += got
    worker.met = True  # type: ignore[attr-defined]
    answer: dict[str, Any] = json.loads(found)
    return answer


_DIALECT = postgresql.dialect(paramstyle="qmark")  # type: ignore[no-untyped-call]
_DIALECT.positional = True


# ---- the worker --------------------------------------------------------------------------------------------------


def answer(request: Mapping[str, Any], memory: str) -> dict[str, Any]:
    import duckdb

    files: list[str] = request["files"]
    listed = "[" + ", ".join("'" + file.replace("'", "''") + "'" for file in files) + "]"
    connection = duckdb.connect(config={"threads": 2, "memory_limit": memory})
    try:
        for setting in ("autoinstall_known_extensions = false", "autoload_known_extensions = false",
        "temp_directory = ''",
                        f"allowed_paths = {listed}", "enable_external_access = false",
                        "lock_configuration = true"):  # fmt: skip
            connection.execute(f"SET {setting}")
        connection.execute(_MACRO)
        connection.execute(
            "CREATE TEMP TABLE part AS SELECT unnest(?) AS filename, generate_subscripts(?, 1) AS place", [files, files]
        )
        connection.execute(
            "CREATE TEMP VIEW rollouts AS SELECT r.*, part.place AS place, r.file_row_number AS row FROM read_parquet("
            f"{listed}, filename = true, file_row_number = true, union_by_name = true) r JOIN part USING (filename)"
        )
        found = connection.execute(request["sql"], request["parameters"])
        names = [each[0] for each in found.description]
        return {"rows": [dict(zip(names, map(_plain, row), strict=True)) for row in found.fetchall()]}
    except duckdb.Error as error:
        return {"error": _harmless(str(error), files)}
    finally:
        connection.close()


def _harmless(said: str, files: Iterable[str]) -> str:
    """Of an error the first line, without folders."""
    line = said.splitlines()[0] if said else "unknown"
    for file in files:
        line = line.replace(file, Path(file).name)
    return line[:200]


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return (
            value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        )
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value if value is None or isinstance(value, (str, int, bool)) else str(value)


def main() -> None:
    memory = sys.argv[1] if len(sys.argv) > 1 else MEMORY
    for line in sys.stdin.buffer:
        said = json.dumps(answer(json.loads(line), memory), allow_nan=False, separators=(",", ":"))
        sys.stdout.buffer.write(said.encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
