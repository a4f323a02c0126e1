"""The ledger of a run: what the loop says is written by a thread of its own, in groups, and never stops training.

    record_*  ->  bounded queue  ->  writer thread  ->  Parquet part (batches) ->  one transaction per group
                       |                                     | disk full                | database locked or away
                       | full           (none below a floor) v                          v
                       +-> spool file, by the caller         kept and tried again       spool file, drained later

Records are gathered for a second, unless somebody waits or many came. ``flush`` returns when everything recorded before it
is committed, or fsynced in the spool, or known to be lost, which is logged. While the database is known to be away it
asks the spool alone, so that no checkpoint waits for a dead service.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import functools
import itertools
import logging
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self

import sqlalchemy as sa
from sqlalchemy.exc import DataError as BadData
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from jurat.platform.db import tables as t
from jurat.platform.db.engine import writing
from jurat.platform.errors import DataError, FencedOut, Interrupted
from jurat.platform.faults import point
from jurat.platform.runs import events, ingest, leases, rollouts
from jurat.platform.runs import repository as sql
from jurat.platform.runs.disk import reserve, spare
from jurat.platform.runs.records import Lease, RunInfo, Segment
from jurat.platform.runs.rollouts import Advantages
from jurat.platform.runs.spool import Op, Spool
from jurat.platform.runs.store import Store, checkpoint_row, evaluation_row, now
from jurat.platform.types import Batch, CheckpointRef, Evaluation, FloatArray, StepReport, UpdateReport

log = logging.getLogger(__name__)

_GROUP = 64
"""Records per transaction at most."""
_LINGER = 1.0
"""Seconds that the writer gathers records which nobody waits for: a transaction costs more than what is in it."""
_CHUNK = 1000
"""Facts per transaction at most, where many waited."""
_HELD = 100_000
"""Facts kept in memory while neither the database nor the spool takes any: about 50 MB. Of more the oldest are lost."""
_FACTS = {"evaluation": t.evaluation, "part": t.data_part, "index": t.part_index, "verdicts": t.verdict_stat}


UNFIT = (IntegrityError, BadData, OverflowError, ValueError, TypeError, KeyError)
"""What a fact raises that cannot be recorded for what it is, whoever asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Counts since the ledger was made."""

    failures: int
    """Attempts at the database or the disk that failed."""
    spooled: int
    """Facts that went through the spool."""
    lost: int
    """Records that could be kept nowhere."""
    rejected: int
    """Facts that the database refused for what they are; they are in ``spool.rejected.jsonl``."""
    waiting: int
    """Records not yet durable."""
    fenced: int
    """Records that were refused because another process has the run: they are in ``spool.rejected.jsonl``."""
    blocked: float
    """Seconds of the longest call of ``record_*``: what the loop waited at most for its record."""
    flushed: float
    """Seconds of the longest ``flush``."""


_Done = concurrent.futures.Future[None]
_Item = Batch | Advantages | list[Op]
Facts = Callable[[Sequence[Op]], None]
"""Commits facts, all or none. Raises OSError where it cannot be reached (they are spooled, and sent again), FencedOut where
another process has the run, ValueError for facts that it refuses."""


_P = ParamSpec("_P")


def _timed(record: Callable[Concatenate[Any, _P], None]) -> Callable[Concatenate[Any, _P], None]:
    """Note how long the loop waited."""

    @functools.wraps(record)
    def timed(self: RunLedger, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        began = time.perf_counter()
        record(self, *args, **kwargs)
        self._blocked = max(self._blocked, time.perf_counter() - began)

    return timed


class RunLedger:
    """Implements the port ``Ledger`` for one segment of a run. Used from one thread; ``close`` it at the end."""

    def __init__(
        self,
        store: Store,
        run: RunInfo,
        stage: str,
        segment: Segment,
        folder: Path,
        *,
        lease: Lease | None = None,
        through: Facts | None = None,
        recorded: Callable[[CheckpointRef], None] = lambda _: None,
        texts: rollouts.Texts = True,
        max_records: int = 1024,
        max_bytes: int = 512 << 20,
        retry_seconds: float = 5.0,
    ) -> None:
        """``folder``: the run's. ``lease``: every transaction carries its epoch, and none is made when it is over.
        ``through``: who writes facts; None: this process, into the database. What it could not be told by ``close`` this
        process writes after all.
        ``recorded`` hears of each checkpoint; must return at once.
        ``texts``: whose prompts and completions are kept as text beside the tokens. ``max_records``,
        ``max_bytes``: how much may wait for the writer. ``retry_seconds``: pause after a failed attempt. Raises ConfigError
        where JURAT_RESERVE_BYTES is no number: later on it would cost every batch."""
        reserve()
        self._store, self._run, self._stage, self._segment, self._folder = store, run, stage, segment, folder
        self._texts, self._max_records, self._max_bytes, self._retry_seconds = (
            texts,
            max_records,
            max_bytes,
            retry_seconds,
        )
        self._recorded, self._through = recorded, through
        self._epoch = None if lease is None else lease.epoch
        self._spool = Spool.of(folder)
        self._mark = secrets.token_hex(6)
        self._events = itertools.count(1)
        self._wake = threading.Condition()
        self._queue: deque[tuple[_Item | _Done, int]] = deque()
        self._bytes = 0
        self._closing = False
        self._blocked = self._flushed = 0.0
        # Below: the writer thread's own.
        self._stuck: deque[tuple[Batch | Advantages, int]] = deque()  # batches the disk would not take
        self._held: list[Op] = []  # facts that neither the database nor the spool would take
        self._retry_at = 0.0
        self._outage: float | None = None
        self._told: set[str] = set()  # what the log heard of this outage
        self._lost_before = 0
        self._left_out = 0  # batches since the disk was found nearly full
        self._failures = self._spooled = self._lost = self._rejected = self._fenced = 0
        self._thread = threading.Thread(target=self._work, name=f"ledger-{run.id}", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    # ---- the port ----

    @_timed
    def record_batch(self, batch: Batch) -> None:
        try:
            size = _size(batch)
        except Exception:
            self._lost += 1
            log.exception("a batch could not be read and is lost")
            return
        self._put(batch, size)

    @_timed
    def record_advantages(
        self, step: int, advantages: Mapping[str, FloatArray], optimised: Mapping[str, float]
    ) -> None:
        size = sum(each.nbytes + 200 for each in advantages.values())
        self._put(Advantages(step=step, of=dict(advantages), optimised=dict(optimised)), size)

    @_timed
    def record_step(self, report: StepReport) -> None:
        self._put_made(lambda: self._metrics(report))

    @_timed
    def record_checkpoint(self, ref: CheckpointRef) -> None:
        self._put_made(lambda: [{"op": "checkpoint", **checkpoint_row(ref, self._segment.no, now())}])
        self._recorded(ref)

    @_timed
    def record_evaluation(self, result: Evaluation) -> None:
        self._put_made(lambda: [{"op": "evaluation", **evaluation_row(result, self._segment.no, now())}])

    @_timed
    def record_event(self, kind: str, payload: Mapping[str, Any]) -> None:
        self._put_made(lambda: [self._event(kind, payload)])

    async def flush(self) -> None:
        began = time.perf_counter()
        done = self._ask()
        if done is not None:
            await asyncio.wrap_future(done)
            self._flushed = max(self._flushed, time.perf_counter() - began)

    # ---- for the process that owns it ----

    def flush_now(self, timeout: float | None = None) -> None:
        """``flush`` for a thread without an event loop. Raises TimeoutError."""
        done = self._ask()
        if done is not None:
            done.result(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Close; the segment ends as the block did."""
        if error is None:
            self.close()
        else:
            stopped = isinstance(error, (KeyboardInterrupt, asyncio.CancelledError, Interrupted))
            self.close("interrupted" if stopped else f"failed: {error}")

    def close(self, ending: str = "ended", *, timeout: float = 60.0) -> None:
        """Record the segment's end, flush and stop the writer. Does nothing the second time."""
        with self._wake:
            if not self._closing:
                end: Op = {"op": "end", "segment": self._segment.no, "ending": t.visible(ending), "at": now()}
                self._queue.append(([end], 0))
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout)
        atexit.unregister(self.close)

    def health(self) -> Health:
        with self._wake:
            waiting = len(self._queue) + len(self._stuck) + len(self._held)
        return Health(
            failures=self._failures, spooled=self._spooled, lost=self._lost, rejected=self._rejected, waiting=waiting,
            fenced=self._fenced, blocked=self._blocked, flushed=self._flushed,
        )  # fmt: skip

    # ---- the caller's side ----

    def _ask(self) -> _Done | None:
        done: _Done = concurrent.futures.Future()
        with self._wake:
            if self._closing:
                return None
            self._queue.append((done, 0))
            self._wake.notify()
        return done

    def _event(self, kind: str, payload: Mapping[str, Any]) -> Op:
        uid = f"{self._mark}-{next(self._events)}"
        return {
            "op": "event", "uid": uid, "segment": self._segment.no, "at": now(), "kind": t.visible(kind),
            "payload": t.plain(payload),
        }  # fmt: skip

    def _metrics(self, report: StepReport) -> list[Op]:
        place = {"segment": self._segment.no, "step": report.step, "at": now()}
        return [{"op": "metric", **place, "name": name, "value": value} for name, value in numbers_of(report).items()]

    def _put_made(self, make: Callable[[], list[Op]]) -> None:
        try:
            ops = make()
        except Exception:  # the port's promise: what cannot be recorded does not stop training
            self._lost += 1
            log.exception("a record could not be made and is lost")
            return
        self._put(ops, 500 * len(ops))

    def _put(self, item: _Item, size: int) -> None:
        with self._wake:
            full = len(self._queue) >= self._max_records or (self._bytes > 0 and self._bytes + size > self._max_bytes)
            if not full and not self._closing:
                self._queue.append((item, size))
                self._bytes += size
                self._wake.notify()
                return
        # The writer is far behind: the disk or the database hangs. Only then does the caller write to the disk itself.
        try:
            ops = self._facts(item)
            self._spool.append([_storable(op) for op in ops])
            self._spooled += len(ops)
            if self._spooled == len(ops):
                log.warning("the ledger is behind: records go to %s", self._spool.path)
        except OSError as error:
            self._lost += 1
            log.error("a record could be kept nowhere and is lost: %s", error)
        except Exception:
            self._lost += 1
            log.exception("a record could be kept nowhere and is lost")

    # ---- the writer's side ----

    def _work(self) -> None:
        self._guarded(self._recover)
        while True:
            with self._wake:
                if self._wake.wait_for(lambda: self._queue or self._closing, timeout=self._pause()):
                    self._wake.wait_for(self._pressing, timeout=_LINGER)
                taken = [self._queue.popleft() for _ in range(min(_GROUP, len(self._queue)))]
                closing = self._closing and not self._queue
            waiters = [item for item, _ in taken if isinstance(item, concurrent.futures.Future)]
            urgent = bool(waiters) or closing
            self._guarded(lambda: self._store_group(taken, urgent=urgent, last=closing))  # noqa: B023 - called at once
            if closing and self._through is not None and not self._fenced and (self._held or not self._spool.empty()):
                self._through = None  # it is away, and this is the last that we can do
                self._guarded(lambda: self._commit([], due=True))
            for waiter in waiters:
                if waiter.set_running_or_notify_cancel():
                    waiter.set_result(None)
            if closing:
                if self._stuck or self._held:
                    self._lost += len(self._stuck) + len(self._held)
                    log.error("%d records could be kept nowhere and are lost", len(self._stuck) + len(self._held))
                return

    def _pressing(self) -> bool:
        """What waits is not to wait for more."""
        many = len(self._queue) >= _GROUP or self._bytes >= self._max_bytes // 8
        return many or self._closing or any(isinstance(item, concurrent.futures.Future) for item, _ in self._queue)

    def _pause(self) -> float | None:
        """Seconds until something is to be tried again; None: nothing is."""
        if self._stuck or self._held or not self._spool.empty():
            return max(0.05, self._retry_at - time.monotonic())
        return None

    def _guarded(self, do: Callable[[], None]) -> None:
        """The thread's outer wall: a fault of our own is counted and logged, and the next group is tried."""
        try:
            do()
        except Exception:
            self._failures += 1
            log.exception("the ledger failed on a group of records")

    def _store_group(self, taken: Sequence[tuple[_Item | _Done, int]], *, urgent: bool, last: bool) -> None:
        ops: list[Op] = []
        due = last or time.monotonic() >= self._retry_at
        batches = [*self._stuck] if due or urgent else []
        if due or urgent:
            self._stuck.clear()
        batches += [(item, size) for item, size in taken if isinstance(item, (Batch, Advantages))]
        for batch, size in batches:
            try:
                ops += self._facts(batch)
            except OSError as error:
                self._failed("cannot write rollouts: %s", error)
                self._stuck.append((batch, size))
                continue
            except Exception as error:
                self._lost += 1
                what = "advantages" if isinstance(batch, Advantages) else "rollouts"
                log.exception("the %s of step %d cannot be written and are lost", what, batch.step)
                ops.append(self._event(f"{what}_lost", {"step": batch.step, "why": repr(error)}))
            with self._wake:
                self._bytes -= size
        for item, size in taken:
            if isinstance(item, list):
                ops += item
                with self._wake:
                    self._bytes -= size
        self._commit(ops, due=due)

    def _facts(self, item: _Item) -> list[Op]:
        """The facts of a record; a batch is written as a part first. Raises OSError."""
        if isinstance(item, list):
            return item
        low = spare(self._folder) < 0
        if isinstance(item, Advantages):
            if low:
                return []
            return [self._part(rollouts.advantage_table(item, segment=self._segment.no), item.step, "advantage")]
        place = {"segment": self._segment.no, "step": item.step}
        judged = (scored.judgement.verdicts for _, scored, _, _ in rollouts.members(item))
        stats: list[Op] = [{"op": "verdicts", **row} for row in rollouts.verdict_rows(judged, **place)]
        if low:
            return [*self._note_room(item.step, low), *stats]
        table = rollouts.to_table(
            item, run_id=self._run.id, stage=self._stage, segment=self._segment.no, texts=self._texts
        )
        part = self._part(table, item.step, "rollout")
        index = rollouts.index_row(part["path"], table["rollout_id"].to_pylist(), table["status"].to_pylist())
        noted = self._note_room(item.step, low)  # a part that the disk does not take is tried again, and noted then
        return [*noted, part, {"op": "index", **index}, *stats]

    def _part(self, table: Any, step: int, kind: str) -> Op:
        name = rollouts.part_name(self._stage, step, self._segment.no, kind)
        path, digest, size = rollouts.write_part(self._folder, table, name)
        place = {"segment": self._segment.no, "step": step, "rows": table.num_rows, "at": now()}
        return {"op": "part", **rollouts.part_row(path, digest, size, kind=kind, **place)}

    def _note_room(self, step: int, low: bool) -> list[Op]:
        """An event where the disk falls below its floor, so that rollouts are left out, and where it has room again."""
        if low:
            self._left_out += 1
            if self._left_out > 1:
                return []
            log.warning("the disk of %s is nearly full: rollouts are left out, numbers go on", self._folder)
            return [self._event("disk_low", {"step": step})]
        left_out, self._left_out = self._left_out, 0
        return [self._event("disk_has_room", {"step": step, "left_out": left_out})] if left_out else []

    def _commit(self, new: list[Op], *, due: bool) -> None:
        ops = self._held + new
        if self._fenced:
            self._refuse(ops)
            return
        if not due and (self._outage is not None or not self._spool.empty()):
            self._keep(ops)
            return
        try:
            drained = self._spool.drain(self._apply)
            for first in range(0, len(ops), _CHUNK):
                self._apply(ops[first : first + _CHUNK])
        except FencedOut as error:
            log.error("%s", error.what)
            self._refuse(ops)
            return
        except (SQLAlchemyError, OSError) as error:
            self._failed("cannot write to the database: %s", getattr(error, "orig", None) or error)
            self._keep(ops)
            return
        self._held = []
        self._recovered(drained)

    def _refuse(self, ops: list[Op]) -> None:
        """Another process has the run: what this one still says is no part of the record."""
        self._held = []
        self._fenced += len(ops)
        for op in ops:
            self._spool.reject(_storable(op), f"epoch {self._epoch} is over")

    def _keep(self, ops: list[Op]) -> None:
        self._held = []
        if not ops:
            return
        try:
            self._spool.append([_storable(op) for op in ops])
            self._spooled += len(ops)
        except OSError as error:
            self._failed("cannot write to the spool: %s", error)
            self._held = ops[-_HELD:]
            if lost := len(ops) - len(self._held):
                self._lost += lost
                if "lost" not in self._told:
                    self._told.add("lost")
                    log.error(
                        "neither the database nor the disk takes the record: all but the newest %d facts are lost",
                        _HELD,
                    )

    def _failed(self, message: str, error: object) -> None:
        self._failures += 1
        self._retry_at = time.monotonic() + self._retry_seconds
        if self._outage is None:
            self._outage, self._lost_before = time.monotonic(), self._lost
        if message not in self._told:  # one line an outage
            self._told.add(message)
            log.warning(message + "; training goes on, the record is kept and tried again", str(error).strip())

    def _recovered(self, drained: int) -> None:
        if self._outage is None or self._stuck:
            return
        seconds, self._outage = time.monotonic() - self._outage, None
        self._told.clear()
        lost = self._lost - self._lost_before
        whole = f"lacks {lost} records" if lost else "is whole again"
        log.warning("the record %s after %.1f s; %d facts came from the spool", whole, seconds, drained)
        said = {
            "seconds": seconds, "spooled": drained, "lost": lost, "blocked": self._blocked, "flushed": self._flushed,
        }  # fmt: skip
        self._guarded(lambda: self._apply([self._event("tracking_outage", said)]))

    def _apply(self, ops: Sequence[Op]) -> None:
        """Commit facts in one transaction. One that the database refuses for what it is does not hold up the others."""
        try:
            if self._through is not None:
                self._through([_storable(op) for op in ops])
            else:
                with writing(self._store.engine) as connection:
                    insert(connection, self._run.pk, ops, epoch=self._epoch)
        except (*UNFIT, sa.exc.StatementError) as error:
            if isinstance(error, DBAPIError) and not isinstance(error, (IntegrityError, BadData)):
                raise
            if len(ops) > 1:
                for op in ops:
                    self._apply([op])
                return
            self._rejected += 1
            log.error("a record was refused: %s", error)
            self._spool.reject(_storable(ops[0]), str(error))

    def _recover(self) -> None:
        """What a killed process left: half-written files go, whole parts without a row get theirs."""
        removed = rollouts.clean(self._folder)
        known = frozenset(part.path for part in self._store.parts(self._run, kind=None, canonical=False))
        segments = {segment.no for segment in self._store.segments(self._run)}
        ops: list[Op] = []
        adopted = 0
        for relative, path in rollouts.uncatalogued(self._folder, known):
            kind = next(kind for kind, folder in rollouts.FOLDERS.items() if relative.startswith(f"{folder}/"))
            try:
                segment, step, count = rollouts.step_of(path)
                records = rollouts.records_of(path) if kind == "rollout" else []
            except DataError as error:
                log.warning("%s: %s", error.where, error.what)
                continue
            if not count or segment not in segments:
                continue
            place = {"segment": segment, "step": step}
            digest, size = rollouts.file_digest(path), path.stat().st_size
            row = rollouts.part_row(relative, digest, size, **place, rows=count, at=now(), kind=kind)
            adopted += 1
            if kind != "rollout":
                ops.append({"op": "part", **row})
                continue
            ids = [record.scored.rollout.id for record in records]
            first = [next(iter(record.scored.judgement.verdicts.values()), None) for record in records]
            index = rollouts.index_row(relative, ids, [verdict.status if verdict else None for verdict in first])
            ops += [{"op": "part", **row}, {"op": "index", **index}]
            judged = (record.scored.judgement.verdicts for record in records)
            ops += [{"op": "verdicts", **stat} for stat in rollouts.verdict_rows(judged, **place)]
        if removed or adopted:
            ops.append(self._event("recovered", {"half_written": removed, "adopted": adopted}))
        self._commit(ops, due=True)


def insert(connection: sa.Connection, run_pk: int, ops: Sequence[Op], *, epoch: int | None) -> None:
    """Facts of one run, as ``Spool`` keeps them, in the caller's transaction. ``epoch``: of the lease they were made under.

    Raises FencedOut if it is over; ValueError, TypeError, KeyError or StatementError for what is no fact.
    """
    if epoch is not None:
        leases.fence(connection, run_pk, epoch)
    rows: dict[str, list[Op]] = {}
    for op in ops:
        rows.setdefault(op["op"], []).append({key: value for key, value in op.items() if key != "op"})
    if "checkpoint" in rows:
        sql.insert_checkpoints(connection, run_pk, rows.pop("checkpoint"))
    if "index" in rows:
        rows["index"] = [rollouts.index_of(row) for row in rows["index"]]
    for kind, table in _FACTS.items():
        if kind in rows:
            sql.insert_facts(connection, table, run_pk, rows.pop(kind))
    point("ledger.mid_commit")
    if "metric" in rows:
        ingest.insert_points(connection, run_pk, [
            (row["segment"], row["step"], row["at"], t.visible(row["name"]), float(row["value"])) for row in rows.pop("metric")
        ])  # fmt: skip
    if "event" in rows:
        events.insert(connection, run_pk, rows.pop("event"))
    for row in rows.pop("end", []):
        sql.end_segment(connection, run_pk, row["segment"], row["ending"], row["at"])
    if rows:
        raise ValueError(f"unknown kinds of record: {sorted(rows)}")


def _storable(op: Op) -> Op:
    """JSON for the spool: a metric that is not finite is spelled out, as ``float`` reads it back."""
    made: Op = t.plain(op)
    return made


def _size(batch: Batch) -> int:
    """Bytes that a waiting batch keeps alive, roughly."""
    total = 0
    for _, scored, _, _ in rollouts.members(batch):
        rollout = scored.rollout
        total += (
            rollout.tokens.nbytes
            + rollout.sampler_logprobs.nbytes
            + rollout.char_ends.nbytes
            + len(rollout.text)
            + 2000
        )
    return total


def numbers_of(report: StepReport) -> dict[str, float]:
    """Every number of a step under one name: the loop's own, means over the updates of a role, seconds by phase."""
    values = {name: float(value) for name, value in report.metrics.items()}
    by_role: dict[str, list[UpdateReport]] = {}
    for update in report.updates:
        by_role.setdefault(update.role, []).append(update)
    for role, updates in by_role.items():
        names = {name: None for update in updates for name in update.metrics}
        for name in names:
            found = [float(u.metrics[name]) for u in updates if name in u.metrics and not u.skipped]
            found = found or [float(u.metrics[name]) for u in updates if name in u.metrics]
            values.setdefault(
                f"{role}/{name}", math.fsum(found) / len(found) if all(map(math.isfinite, found)) else math.nan
            )
        values.setdefault(f"{role}/tokens", float(sum(u.tokens for u in updates)))
        values.setdefault(f"{role}/forwarded_tokens", float(sum(u.forwarded_tokens for u in updates)))
        values.setdefault(f"{role}/skipped", float(sum(u.skipped for u in updates)))
    for phase, seconds in report.seconds.items():
        values.setdefault(f"seconds/{phase}", float(seconds))
    return values
