"""Rollouts, read by DuckDB in a process of their own: pages by filter and order, and one sample whole.

The process that answers requests never opens a part. The worker has a memory limit, two threads, no network, no
extensions, and may open the files it was told of, nothing else; a query that takes too long ends with its process.

    python -m jurat.api.server.reader      a JSON line {sql, parameters, folder, files, advantages} in, {rows} or {error} out

A worker keeps a database of one run: locked, it may open files in that run's folders of parts, and is asked SELECTs alone.
The catalogue says which parts a query opens: by step, by the Bloom filters of ids, in the order of training a few at a time.
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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from jurat.api.server import filters, pages
from jurat.api.server.filters import Fields, Operand
from jurat.api.server.problems import Problem
from jurat.platform.db.keyset import Key, after, ordering
from jurat.platform.errors import DataError
from jurat.platform.runs.records import Part, RunInfo
from jurat.platform.runs.rollouts import FOLDERS, locate
from jurat.platform.types import Fault, Finish, Status

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
    "greedy_baseline", "gate",
]  # fmt: skip
ADVANTAGE = ("advantage", "advantages", "optimised")
"""Of parts of their own: known when a batch becomes samples, which is after its rollouts are on the disk."""
SHORT = frozenset({*_SHORT, "id", "advantage"})
KNOWN = frozenset({*_SHORT, *_LONG, *ADVANTAGE, "id"})
ROLLOUTS = sa.table("rollouts", *(sa.column(name) for name in (*_SHORT, *_LONG, "advantage", "place", "row")))
ADVANTAGES = sa.table("advantages", *(sa.column(name) for name in ("rollout_id", "step", *ADVANTAGE)))
_C, _A = ROLLOUTS.c, ADVANTAGES.c
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
_NUMBERS = (
    "segment", "step", "position", "visit", "index", "prompt_tokens", "completion_tokens", "reward", "advantage",
)  # fmt: skip
_CLOSED = {"status": get_args(Status), "finish": get_args(Finish), "fault": get_args(Fault)}
"""Field -> all values that it may have."""
FIELDS = Fields(
    {
        "id": Operand(_C.rollout_id, "text"),
        **{name: Operand(_C[name], "text", _CLOSED.get(name, ())) for name in _TEXTS},
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
    return Operand(column, kinds[rest[-1]], _CLOSED.get(rest[-1], ()))


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
    advantages: Sequence[Part] = (),
    asked: str = "",
    filter_: str,
    order_by: str,
    page_size: int,
    page_token: str | None,
    fields: frozenset[str],
) -> dict[str, Any]:
    """{rollouts, next_page_token, faults}: a page of the canonical rollouts. Raises Problem.

    ``asked``: what ``parts`` were chosen by; a token belongs to it. In the order of training parts are opened one after
    the other until the page is full.
    """
    tree, keys = filters.parse(filter_), _keys(order_by)
    condition = filters.compile_filter(filter_, FIELDS)
    asked = f"rollouts\x00{run.id}\x00{asked}\x00{filter_}\x00{order_by}\x00{page_size}"
    mark = None if page_token is None else pages.unseal(secret, asked, page_token, len(keys))
    joined = _of_advantage(tree) or any(key.column is _C.advantage for key in keys)
    wanted = [name for name in (*_SHORT, *_LONG) if name in fields or name == "rollout_id"]
    given = [name for name in ADVANTAGE if name in fields]
    read = dict.fromkeys([*wanted, *(("segment", "step") if given else ())])
    query = (
        sa.select(*(_C[name] for name in read), *(key.column.label(f"sort_{n}") for n, key in enumerate(keys)))
        .select_from(ROLLOUTS)
        .order_by(*ordering(keys))
    )
    if condition is not None:
        query = query.where(condition)
    if mark is not None:
        query = query.where(after(keys, mark))
    chosen = _within(parts, tree)
    bunches = iter([chosen])
    if len(keys) == 2:  # the order of training: the parts before the token's are behind us
        chosen = [each for each in chosen if mark is None or each[0] >= int(mark[0] or 0)]
        bunches = _bunches(chosen, page_size + 1 if condition is None else None)
    rows: list[dict[str, Any]] = []
    faults: list[str] = []
    until = time.monotonic() + reader.seconds
    for bunch in bunches:
        files, wrong = _files(run, bunch)
        faults += wrong
        if files:
            beside = _beside(run, advantages, [part for _, part in bunch]) if joined else []
            rows += reader.ask(run, query.limit(page_size + 1 - len(rows)), files, advantages=beside, until=until)
        if len(rows) > page_size:
            break
    more, rows = len(rows) > page_size, rows[:page_size]
    token = pages.seal(secret, asked, [rows[-1][f"sort_{n}"] for n in range(len(keys))]) if more else None
    learnt = _learnt(run, advantages, reader, rows, until) if given else {}
    made = [
        {_name(name): _told(name, row[name]) for name in wanted}
        | {name: learnt.get((row["rollout_id"], row["step"]), {}).get(name) for name in given}
        for row in rows
    ]
    return {"rollouts": made, "next_page_token": token, "faults": faults}


def _keys(order_by: str) -> list[Key]:
    """Of an order, named or spelt out; place and row of the rollout last, so that no two are equal."""
    default = [Key(_C[name], down) for name, down in ORDERS.get(order_by, ORDERS["trained"])]
    spelt = "" if order_by in ORDERS else order_by
    made = filters.compile_order(spelt, FIELDS, default=default, last=Key(_C.place, False))
    return [*made, Key(_C.row, False)]


def _within(parts: Sequence[Part], tree: filters.Tree | None) -> list[tuple[int, Part]]:
    """(place, part) of those with a step that the filter can be true of."""
    low, high = steps_of(tree)
    return [(place, part) for place, part in enumerate(parts) if part.step_max >= low and part.step_min <= high]


def sample(
    run: RunInfo, parts: Sequence[Part], reader: Reader, rollout_id: str, *, advantages: Sequence[Part] = ()
) -> dict[str, Any]:
    """One rollout, whole. ``parts``: those that may have it. Raises Problem."""
    wanted = [*_SHORT, *_LONG]
    query = sa.select(*(_C[name] for name in wanted)).select_from(ROLLOUTS).where(_C.rollout_id == rollout_id)
    files, faults = _files(run, list(enumerate(parts)))
    until = time.monotonic() + reader.seconds
    rows = sorted(reader.ask(run, query, files, until=until) if files else [], key=lambda row: -row["segment"])
    if not rows:
        raise Problem(
            "not-found", "the run has no such rollout" + ("; some of its parts cannot be read" if faults else "")
        )
    found = _learnt(run, advantages, reader, rows, until).get((rollout_id, rows[0]["step"]), dict.fromkeys(ADVANTAGE))
    return {_name(name): _told(name, rows[0][name]) for name in wanted} | found


def matching(reader: Reader, run: RunInfo, query: sa.Select[Any], parts: Sequence[Part]) -> list[dict[str, Any]]:
    """Rows of a query over the rollouts of parts. Raises Problem."""
    files, faults = _files(run, list(enumerate(parts)))
    if faults:
        raise Problem("unavailable", faults[0])
    return reader.ask(run, query, files, until=time.monotonic() + reader.seconds) if files else []


def counts(
    run: RunInfo,
    parts: Sequence[Part],
    reader: Reader,
    filter_: str,
    *,
    advantages: Sequence[Part] = (),
    indexed: Mapping[str, Mapping[str, int]] | None = None,
) -> dict[str, int]:
    """{status: how many} of the rollouts that a filter lets through. ``indexed``: {path: {status: rows}} of parts that
    need not be opened where there is no filter."""
    tree = filters.parse(filter_)
    condition = filters.compile_filter(filter_, FIELDS)
    found: Counter[str] = Counter()
    opened = []
    for place, part in _within(parts, tree):
        known = indexed.get(part.path) if indexed and condition is None else None
        if known is None:
            opened.append((place, part))
        else:
            found.update(known)
    query = sa.select(_C.status, sa.func.count().label("count")).select_from(ROLLOUTS).group_by(_C.status)
    files, _ = _files(run, opened)
    if files:
        beside = _beside(run, advantages, [part for _, part in opened]) if _of_advantage(tree) else []
        for row in reader.ask(run, query if condition is None else query.where(condition), files, advantages=beside):
            found[row["status"] or ""] += row["count"]
    return {status or "unjudged": found[status] for status in sorted(found)}


def steps_of(tree: filters.Tree | None) -> tuple[float, float]:
    """The steps that a filter can be true of, both included: other parts are not opened."""
    low, high = -math.inf, math.inf
    if isinstance(tree, filters.And):
        for least, most in map(steps_of, tree.items):
            low, high = max(low, least), min(high, most)
    elif isinstance(tree, filters.Term) and tree.field == ("step",) and isinstance(tree.values[0], (int, float)):
        low = tree.values[0] if tree.op in ("=", ">", ">=") else low
        high = tree.values[0] if tree.op in ("=", "<", "<=") else high
    return low, high


def _of_advantage(tree: filters.Tree | None) -> bool:
    return any(term.field == ("advantage",) for term in filters.terms(tree))


def _bunches(chosen: Sequence[tuple[int, Part]], rows: int | None) -> Iterator[list[tuple[int, Part]]]:
    """Parts in order, a few at a time and then more: as many as have ``rows``, or twice as many each time."""
    first, size = 0, 8
    while first < len(chosen):
        end = first + size
        if rows is not None:
            end, held = first + 1, 0  # the token may lie anywhere within the first
            while end < len(chosen) and held < rows:
                held += chosen[end][1].rows
                end += 1
        yield list(chosen[first:end])
        first, size = end, size * 2


def _beside(run: RunInfo, advantages: Sequence[Part], of: Iterable[Part | tuple[int, int]]) -> list[str]:
    """Files of the advantages that belong to parts, or to (segment, step)."""
    there = {(each.segment, each.step_min) if isinstance(each, Part) else each for each in of}
    found, _ = _files(run, [(0, part) for part in advantages if (part.segment, part.step_min) in there])
    return [file for _, file in found]


def _learnt(
    run: RunInfo, advantages: Sequence[Part], reader: Reader, rows: Sequence[Mapping[str, Any]], until: float
) -> dict[tuple[str, int], dict[str, Any]]:
    """{(rollout id, step): its advantages} of rows; those that nothing was learnt from are left out."""
    files = _beside(run, advantages, [(row["segment"], row["step"]) for row in rows])
    if not files:
        return {}
    query = sa.select(_A.rollout_id, _A.step, *(_A[name] for name in ADVANTAGE)).select_from(ADVANTAGES)
    query = query.where(_A.rollout_id.in_([row["rollout_id"] for row in rows]))
    found = reader.ask(run, query, advantages=files, until=until)
    return {(row["rollout_id"], row["step"]): {name: row[name] for name in ADVANTAGE} for row in found}


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


def _files(run: RunInfo, parts: Sequence[tuple[int, Part]]) -> tuple[list[tuple[int, str]], list[str]]:
    """((place, file) of those that are there, what is wrong with the others)."""
    if len(parts) > MAX_PARTS:
        raise Problem("invalid", f"the query would read {len(parts)} parts: give step, first_step or last_step")
    found, faults = [], []
    for place, part in parts:
        try:
            path = locate(run, part.path)
        except DataError as error:
            faults.append(f"{part.path}: {error.what}")
            continue
        found.append((place, str(path))) if path.is_file() else faults.append(f"{part.path}: the file is missing")
    return found, faults


# ---- asking the worker -------------------------------------------------------------------------------------------


class Reader:
    """Worker processes, started when they are needed. Safe to use from several threads."""

    def __init__(self, *, workers: int = WORKERS, seconds: float = SECONDS, memory: str = MEMORY) -> None:
        self.seconds, self._memory = seconds, memory
        self._free = threading.Semaphore(workers)
        self._lock = threading.Lock()
        self._idle: list[subprocess.Popen[bytes]] = []
        self._closed = False

    def ask(
        self,
        run: RunInfo,
        query: sa.Select[Any],
        files: Sequence[tuple[int, str]] = (),
        *,
        advantages: Sequence[str] = (),
        until: float | None = None,
    ) -> list[dict[str, Any]]:
        """Rows of a query over ``rollouts``, each file with its place, and ``advantages``. ``until``: on the monotonic
        clock, its end. Raises Problem where it takes too long or a file cannot be read."""
        compiled = query.compile(dialect=_DIALECT, compile_kwargs={"render_postcompile": True})
        parameters = [compiled.params[name] for name in compiled.positiontup or ()]
        request = {
            "sql": str(compiled), "parameters": parameters, "folder": str(run.folder), "files": files,
            "advantages": advantages,
        }  # fmt: skip
        return self.send(request, None if until is None else until - time.monotonic())

    def send(self, request: Mapping[str, Any], seconds: float | None = None) -> list[dict[str, Any]]:
        seconds = self.seconds if seconds is None else max(0.0, seconds)
        if not self._free.acquire(timeout=seconds):
            raise Problem("query-too-slow", "other queries go on", headers={"Retry-After": "2"})
        try:
            worker = self._take()
            try:
                answer = _exchange(worker, json.dumps(request).encode() + b"\n", seconds)
            except (TimeoutError, OSError) as error:
                worker.kill()
                worker.wait()
                if isinstance(error, TimeoutError):
                    raise Problem(
                        "query-too-slow", f"the query takes more than {self.seconds:g} s: narrow the filter"
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


def opened(folder: str, memory: str) -> Any:
    """A database in memory, locked, that opens what lies among the parts of a run and nothing else."""
    import duckdb

    connection = duckdb.connect(config={"threads": 2, "memory_limit": memory})
    connection.execute(_MACRO)
    for setting in ("autoinstall_known_extensions = false", "autoload_known_extensions = false", "temp_directory = ''",
                    "enable_external_file_cache = false",
                    f"allowed_directories = {_listed(f'{folder}/{name}' for name in FOLDERS.values())}",
                    "enable_external_access = false", "lock_configuration = true"):  # fmt: skip
        connection.execute(f"SET {setting}")
    return connection


def answer(request: Mapping[str, Any], connection: Any) -> dict[str, Any]:
    """Of a database as ``opened`` makes it; after an error it is not to be used again."""
    import duckdb

    places, files = [place for place, _ in request["files"]], [file for _, file in request["files"]]
    beside = list(request["advantages"])
    try:
        kinds = [statement.type for statement in duckdb.extract_statements(request["sql"])]
        if kinds != [duckdb.StatementType.SELECT]:
            return {"error": "a query is one SELECT"}
        for by_name in (False, True):  # a part of before has fewer columns; to look into each for its names takes time
            try:
                for view in _views(places, files, beside, by_name=by_name):
                    connection.execute(view)
                found = connection.execute(request["sql"], request["parameters"])
                names = [each[0] for each in found.description]
                return {"rows": [dict(zip(names, map(_plain, row), strict=True)) for row in found.fetchall()]}
            except duckdb.Error:
                if by_name:
                    raise
        raise AssertionError
    except duckdb.Error as error:
        return {"error": _harmless(str(error), [*files, *beside])}


def _views(places: Sequence[int], files: Sequence[str], beside: Sequence[str], *, by_name: bool) -> Iterator[str]:
    parts = ""
    if files:
        at = f"({[int(place) for place in places]})[file_index::BIGINT + 1]"
        options = f"file_row_number = true, union_by_name = {str(by_name).lower()}"
        parts = f"SELECT *, {at} AS place, file_row_number AS row FROM read_parquet({_listed(files)}, {options})"
        if by_name:  # none of them may have it
            parts += " UNION ALL BY NAME SELECT NULL::VARCHAR AS gate WHERE false"
    if beside:
        options = f"union_by_name = {str(by_name).lower()}"
        told = f"FROM read_parquet({_listed(beside)}, {options})"
        if by_name:  # as above; a first file of before would else hide what the others have
            told += " UNION ALL BY NAME SELECT NULL::DOUBLE AS optimised WHERE false"
        yield f"CREATE OR REPLACE TEMP VIEW advantages AS {told}"
        same = "a.rollout_id = r.rollout_id AND a.step = r.step"
        parts = parts and f"SELECT r.*, a.advantage FROM ({parts}) r LEFT JOIN advantages a ON {same}"
    elif files:
        parts = f"SELECT *, NULL::FLOAT AS advantage FROM ({parts})"
    if parts:
        yield f"CREATE OR REPLACE TEMP VIEW rollouts AS {parts}"


def _listed(files: Iterable[str]) -> str:
    return "[" + ", ".join("'" + file.replace("'", "''") + "'" for file in files) + "]"


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
    folder, connection = "", None
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if connection is None or request["folder"] != folder:
            if connection is not None:
                connection.close()
            folder, connection = request["folder"], opened(request["folder"], memory)
        found = answer(request, connection)
        sys.stdout.buffer.write(json.dumps(found, allow_nan=False, separators=(",", ":")).encode() + b"\n")
        sys.stdout.buffer.flush()
        if "error" in found:
            connection.close()
            connection = None


if __name__ == "__main__":
    main()
