"""The run database and the folders beside it: the one door through which rooms read and write runs."""

from __future__ import annotations

import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from os import getpid, link
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from jurat.platform.db import tables as t
from jurat.platform.db.engine import connect, first_contact, reading, sqlite_url, writing
from jurat.platform.db.filesystem import refuse_network
from jurat.platform.db.upgrade import is_empty, refuse_other, upgrade
from jurat.platform.errors import ConfigError, NameTaken, RunFailed, nearest
from jurat.platform.provenance.records import Ingredients
from jurat.platform.recipe import Recipe
from jurat.platform.runs import events, ingest, leases, metrics
from jurat.platform.runs import repository as sql
from jurat.platform.runs.lock import Holder, holder
from jurat.platform.runs.records import (
    Beat,
    Command,
    Event,
    Lease,
    Measured,
    Part,
    Point,
    RunInfo,
    Saved,
    Segment,
    VerdictStat,
)
from jurat.platform.runs.states import LIMITS, Limits, State
from jurat.platform.types import CheckpointRef, Evaluation

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's: no i, l, o or u."""


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
T = TypeVar("T")


def new_id(at: int | None = None) -> str:
    """A name that no run has yet, most likely. ``at``: microseconds since 1970; None: now."""
    return f"r-{time.strftime('%Y%m%d', time.gmtime((now() if at is None else at) / 1e6))}-{_suffix()}"


def _suffix() -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(4))


def now() -> int:
    """UTC epoch microseconds."""
    return time.time_ns() // 1000


class Store:
    """Runs of one home folder. Safe to use from several threads; several processes may open the same one."""

    def __init__(self, engine: sa.Engine, home: Path) -> None:
        self.engine, self.home = engine, home
        self.runs_folder = home / "runs"

    @classmethod
    def open(
        cls, url: str | None, home: Path, *, busy_seconds: float = 10.0, durable: bool = True, migrate: bool = True
    ) -> Store:
        """Open, creating or upgrading the schema. ``url`` None: SQLite at ``home/jurat.db``. ``migrate`` False: only an
        empty database gets one, another that is not this version's is refused. ``durable``: as of ``engine.connect``.

        Raises ConfigError for a bad URL, RunFailed if the database cannot be opened or is a file on a network file system,
        SchemaError if it is newer.
        """
        home = home.expanduser().absolute()
        try:
            (home / "runs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFailed(
                f"cannot make the home folder: {error}", where=str(home), fix="choose another with --home"
            ) from None
        engine = connect(url or sqlite_url(home / "jurat.db"), busy_seconds=busy_seconds, durable=durable)
        refuse_network(engine)
        first_contact(engine)
        if migrate or is_empty(engine):
            upgrade(engine)
        refuse_other(engine)
        return cls(engine, home)

    @cached_property
    def home_id(self) -> str:
        """Of the home folder, wherever it is mounted: each run keeps that of the home that its files are in. Raises RunFailed."""
        path = self.home / "id"
        draft = path.with_name(f".id.{getpid()}.{secrets.token_hex(4)}")
        try:
            if not path.exists():
                draft.write_text(secrets.token_hex(8), "utf-8")
                try:
                    link(draft, path)  # exactly one of those that make it at once
                except FileExistsError:
                    pass
                except OSError:  # a file system without links
                    draft.replace(path)
                draft.unlink(missing_ok=True)
            return path.read_text("utf-8").strip()
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise RunFailed(f"cannot name the home folder: {error}", where=str(path), fix="make it writable") from None

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with self._told(), reading(self.engine) as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        with self._told(), writing(self.engine) as connection:
            yield connection

    def read(self, ask: Callable[[sa.Connection], T]) -> T:
        """The answer of repository functions, within one snapshot. Raises RunFailed where the database does not answer."""
        with self._reading() as connection:
            return ask(connection)

    def write(self, do: Callable[[sa.Connection], T]) -> T:
        """What repository functions do, in one transaction of its own: committed on return. A server with many writers
        hands the same functions to a ``platform.db.writer.Writer`` of this store's ``engine``."""
        with self._writing() as connection:
            return do(connection)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """A database that is locked, away or full, as RunFailed."""
        try:
            yield
        except DBAPIError as error:
            raise RunFailed(
                f"the database does not answer: {str(error.orig).strip()}",
                where=self.engine.url.render_as_string(hide_password=True),
                fix="look for another process that holds it, a full disk, or a server that is down",
            ) from error

    # ---- runs ----

    def create_run(
        self,
        *,
        recipe: Recipe,
        recipe_digest: str,
        reward_digest: str,
        meta: Mapping[str, Any],
        run_id: str | None = None,
        also: Callable[[sa.Connection, str], None] = lambda connection, run_id: None,
        **more: Any,
    ) -> RunInfo:
        """A new run in state ``created`` with its own folder. ``run_id`` None: a short one is made. ``also``: called in the
        transaction that makes it. ``more``: as of ``repository.new_run``.

        ``meta``: JSON; ``meta["verifiers"]`` may map member names to version digests, which ``runs show`` prints.
        Raises NameTaken for an id that is taken, ConfigError for one that is not a plain name.
        """
        if run_id is not None:
            self.refuse_taken(run_id)
        given = {"recipe": recipe, "recipe_digest": recipe_digest, "reward_digest": reward_digest, **more}
        given["meta"] = {**meta, "home": self.home_id}
        while True:
            made = run_id or new_id()
            with self._writing() as connection:
                if sql.new_run(connection, made, **given):
                    (run,) = sql.find_runs(connection, made, self.runs_folder)  # before anybody can claim it
                    also(connection, made)
                    break
            if run_id is not None:
                raise self._taken(run_id)
        self.make_folder(run)
        return run

    def make_folder(self, run: RunInfo) -> None:
        """Raises RunFailed where it cannot be made."""
        try:
            run.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFailed(f"cannot make the run's folder: {error}", where=str(run.folder)) from None

    def refuse_taken(self, run_id: str) -> None:
        """Raises ConfigError for a name that no new run can have: before anything is done for it."""
        if run_id == "latest" or not _NAME.fullmatch(run_id):
            raise ConfigError(
                f"{run_id!r} cannot name a run",
                where=str(self.home),
                fix="up to 64 letters, digits, dots, dashes and underscores, a letter or digit first, not 'latest'",
            )
        with self._reading() as connection:
            if run_id in sql.run_ids(connection):
                raise self._taken(run_id)

    def _taken(self, run_id: str) -> NameTaken:
        return NameTaken(f"there is a run {run_id!r} already", where=str(self.home),
                         fix="another name (--run-id) for a new run, another --home for a bundle")  # fmt: skip

    def run(self, id_or_prefix: str) -> RunInfo:
        """By id, by a prefix that only one run has, or ``latest``. Raises ConfigError naming the nearest."""
        with self._reading() as connection:
            if id_or_prefix == "latest":
                found = sql.list_runs(connection, self.runs_folder, limit=1, state=None)
                if not found:
                    raise ConfigError("there are no runs yet", where=str(self.home), fix="jurat train quickstart")
                return found[0]
            found = sql.find_runs(connection, id_or_prefix, self.runs_folder) if id_or_prefix else []
            if len(found) == 1:
                return found[0]
            if found:
                some = ", ".join(sorted(run.id for run in found)[:5])
                raise ConfigError(
                    f"{len(found)} runs begin with {id_or_prefix!r}: {some}",
                    where=str(self.home),
                    fix="give more of it",
                )
            hint = nearest(id_or_prefix, sql.run_ids(connection))
        raise ConfigError(f"no run {id_or_prefix!r}.{hint}", where=str(self.home), fix="jurat runs ls lists them")

    def runs(self, limit: int | None = None, state: State | None = None) -> list[RunInfo]:
        """Newest first."""
        with self._reading() as connection:
            return sql.list_runs(connection, self.runs_folder, limit=limit, state=state)

    def holder(self, run: RunInfo) -> Holder | None:
        """The process that works on the run now, on this machine's file system; None for a run that nobody holds."""
        return holder(run.folder)

    def set_state(self, run: RunInfo, state: State, detail: str = "") -> RunInfo:
        """Enter a state and record the move as an event. Raises RunFailed if the move is not in ``states.MOVES``."""
        with self._writing() as connection:
            before = leases.move(connection, run.pk, state, detail)
        fresh = self.run(run.id)
        if before is None:
            raise RunFailed(
                f"run {run.id} is {fresh.state}: it cannot become {state}",
                where=str(run.folder),
                fix="start a new run from its checkpoint"
                if fresh.state == "finished"
                else "jurat runs show tells what it did",
            )
        return fresh

    # ---- leases ----

    def take(self, run: RunInfo, *, epoch: int | None = None, limits: Limits = LIMITS) -> Lease:
        """The run is running and this process's, which holds its folder's lock. ``epoch``: of the lease that a launcher
        claimed for it. Raises FencedOut where another machine's process holds a live lease."""
        owner = f"{socket.gethostname()}:{getpid()}"
        with self._writing() as connection:
            here = leases.holder(connection, run.pk)
            alone = here is None or here.partition(":")[0] == socket.gethostname()
            home = self.home_id
            return leases.take(connection, run.pk, owner, epoch=epoch, alone=alone, home=home, limits=limits)

    def heartbeat(self, lease: Lease, *, limits: Limits = LIMITS) -> Beat:
        """Raises FencedOut."""
        with self._writing() as connection:
            return leases.heartbeat(connection, lease.run_pk, lease.epoch, limits=limits)

    def check(self, lease: Lease) -> None:
        """Raises FencedOut if the lease is over."""
        with self._reading() as connection:
            leases.fence(connection, lease.run_pk, lease.epoch)

    def end(self, lease: Lease, state: State, detail: str = "", *, exit_code: int | None = None) -> State:
        """How the run ended, as of ``leases.end``; the state that it is in then. Raises FencedOut, RunFailed."""
        with self._writing() as connection:
            return leases.end(connection, lease.run_pk, state, detail, epoch=lease.epoch, exit_code=exit_code)

    def pin_reward(
        self, lease: Lease, *, rewards: Sequence[str], verifiers: Mapping[str, str], change: str = ""
    ) -> None:
        """The reward of each stage that the run is held to from now on. ``change``: the accepted difference to the one
        before, which is recorded as an event. Raises FencedOut."""
        with self._writing() as connection:
            leases.fence(connection, lease.run_pk, lease.epoch)
            sql.pin_reward(connection, lease.run_pk, rewards=rewards, verifiers=verifiers, change=change)

    def acknowledge(self, lease: Lease, command: Command, result: str) -> None:
        with self._writing() as connection:
            leases.acknowledge(connection, lease.run_pk, command.pk, result, epoch=lease.epoch)

    # ---- segments ----

    def start_segment(
        self,
        run: RunInfo,
        *,
        stage: str = "",
        stage_index: int = 0,
        first_step: int,
        reward_digest: str | None = None,
        versions: Mapping[str, Any] | None = None,
        lease: Lease | None = None,
        made_of: Ingredients | None = None,
    ) -> Segment:
        """This process takes up a stage at ``first_step``: from there on its rows are the canonical ones. ``made_of`` is
        recorded with it. Raises FencedOut if ``lease`` is over."""
        row = {
            "stage": stage,
            "stage_index": stage_index,
            "first_step": first_step,
            "started": now(),
            "host": socket.gethostname(),
            "pid": getpid(),
            "reward_digest": run.reward_digest if reward_digest is None else reward_digest,
            "versions": dict(versions or {}),
            "epoch": lease.epoch if lease else 0,
            "owner": lease.owner if lease else "",
        }
        with self._writing() as connection:
            if lease is not None:
                leases.fence(connection, run.pk, lease.epoch)
            no = sql.insert_segment(connection, run.pk, row, made_of)
        return Segment(no=no, ended=None, ending="", **row)  # type: ignore[arg-type]

    def end_segment(self, run: RunInfo, segment: Segment, ending: str) -> None:
        """``ending``: finished, interrupted, failed: ... Only the first counts."""
        with self._writing() as connection:
            sql.end_segment(connection, run.pk, segment.no, ending, now())

    def segments(self, run: RunInfo) -> list[Segment]:
        with self._reading() as connection:
            return sql.segments(connection, run.pk)

    # ---- facts, written (a trainer writes them through RunLedger, which never raises) ----

    def add_event(self, run: RunInfo, kind: str, payload: Mapping[str, Any], *, segment: int | None = None) -> None:
        event = {"uid": secrets.token_hex(8), "segment": segment, "at": now(), "kind": kind, "payload": dict(payload)}
        with self._writing() as connection:
            events.insert(connection, run.pk, [event])

    def add_metrics(self, run: RunInfo, segment: Segment, step: int, values: Mapping[str, float]) -> None:
        at = now()
        points = [(segment.no, step, at, t.visible(name), float(value)) for name, value in values.items()]
        with self._writing() as connection:
            ingest.insert_points(connection, run.pk, points)

    def add_checkpoint(self, run: RunInfo, segment: Segment, ref: CheckpointRef) -> None:
        with self._writing() as connection:
            sql.insert_checkpoints(connection, run.pk, [checkpoint_row(ref, segment.no, now())])

    def add_evaluation(self, run: RunInfo, segment: Segment, result: Evaluation) -> None:
        with self._writing() as connection:
            sql.insert_facts(connection, t.evaluation, run.pk, [evaluation_row(result, segment.no, now())])

    # ---- facts, read: canonical rows ----

    def events(self, run: RunInfo, *, after: int = 0, limit: int | None = None) -> list[Event]:
        with self._reading() as connection:
            return events.read(connection, run.pk, after=after, limit=limit)

    def metrics(
        self,
        run: RunInfo,
        *,
        names: Sequence[str] | None = None,
        stage: str | None = None,
        after: tuple[int, int] | None = None,
    ) -> list[Point]:
        """By (stage, step, name). ``after``: (stage index, step) of the last one already seen."""
        with self._reading() as connection:
            return metrics.points(connection, run.pk, names=names, stage=stage, after=after)

    def last_metrics(self, run: RunInfo) -> list[Point]:
        """Every metric of the newest step."""
        with self._reading() as connection:
            return metrics.last_points(connection, run.pk)

    def checkpoints(self, run: RunInfo, *, all_rows: bool = False) -> list[Saved]:
        with self._reading() as connection:
            return sql.checkpoints(connection, run.pk, all_rows=all_rows)

    def evaluations(self, run: RunInfo) -> list[Measured]:
        with self._reading() as connection:
            return sql.evaluations(connection, run.pk)

    def parts(
        self,
        run: RunInfo,
        *,
        kind: str | None = "rollout",
        step: int | None = None,
        canonical: bool = True,
        holding: str | None = None,
    ) -> list[Part]:
        """``kind``: ``rollout``, ``advantage`` or None, all. ``holding``: only those that may have the rollout of this id."""
        with self._reading() as connection:
            return sql.parts(connection, run.pk, kind=kind, step=step, canonical=canonical, holding=holding)

    def part_statuses(self, run: RunInfo) -> dict[str, dict[str, int]]:
        with self._reading() as connection:
            return sql.part_statuses(connection, run.pk)

    def verdict_stats(self, run: RunInfo) -> list[VerdictStat]:
        with self._reading() as connection:
            return sql.verdict_stats(connection, run.pk)


def checkpoint_row(ref: CheckpointRef, segment: int, at: int) -> dict[str, Any]:
    kept = {"path": ref.path, "digest": ref.digest, "step": ref.step, "parent": ref.parent, "meta": dict(ref.meta)}
    return {"segment": segment, "at": at, **kept}


def evaluation_row(result: Evaluation, segment: int, at: int) -> dict[str, Any]:
    accuracy = result.accuracy.value if result.accuracy else None
    return {
        "segment": segment,
        "name": result.name,
        "step": result.step,
        "accuracy": None if accuracy != accuracy else accuracy,
        "result": sql.evaluation_to_json(result),
        "at": at,
    }
