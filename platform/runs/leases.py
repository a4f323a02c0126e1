"""Who may work on a run: claims, leases with epochs, heartbeats, commands, and the reaper. All SQL of them.

Every move is one ``UPDATE ... WHERE state IN (...) [AND lease_epoch = :epoch]``: no row means that the race is lost, and
nothing was written. The epoch is the fencing token; whoever takes a run away from its holder raises it, so that a
process which comes back from a pause can change nothing. Times are the database's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from jurat.platform.db import tables as t
from jurat.platform.db.clock import now
from jurat.platform.errors import ConfigError, FencedOut, RunFailed
from jurat.platform.runs import events
from jurat.platform.runs.records import Beat, Command, Lease, RunInfo
from jurat.platform.runs.states import ENDED, LEASED, LIMITS, TERMINAL, Limits, State, sources

_SLOTS = 0x6A757261  # "jura": PostgreSQL's lock of those who count leases before they claim
_CANDIDATES = 50
"""Queued runs that would fit some time, looked through for one that fits now."""
_r = t.run.c


def run_of(row: sa.RowMapping | Mapping[str, Any], runs_folder: Path) -> RunInfo:
    kept: dict[str, Any] = {key: row[key] for key in RunInfo.__slots__ if key != "folder"}
    return RunInfo(**kept, folder=runs_folder / row["id"])


def _micros(seconds: float) -> int:
    return int(seconds * 1_000_000)


def _locked(connection: sa.Connection, run_pk: int) -> sa.RowMapping:
    return connection.execute(sa.select(t.run).where(_r.pk == run_pk).with_for_update()).mappings().one()


# ---- moves -------------------------------------------------------------------------------------------------------


def move(
    connection: sa.Connection,
    run_pk: int,
    state: State,
    detail: str = "",
    *,
    epoch: int | None = None,
    actor: str = "",
    limits: Limits = LIMITS,
    **values: Any,
) -> State | None:
    """Enter ``state`` and record it as an event; the state before, or None (and nothing written) if the move is not legal.

    ``epoch``: of the mover's lease; raises FencedOut if it is not the run's. ``values``: other columns to set with it. A
    move into a state without a holder ends the lease, which raises the epoch: its holder is fenced out.
    """
    row, at = _locked(connection, run_pk), now(connection)
    if epoch is not None and row["lease_epoch"] != epoch:
        raise fenced(row["id"], epoch, row)
    seconds = limits.of(state, max_runtime=row["max_runtime"], restarts=values.get("restarts", row["restarts"]))
    values["deadline"] = None if seconds is None else at + _micros(seconds)
    values["ended"] = at if state in ENDED else None
    if state == "running":
        values["started"] = sa.func.coalesce(_r.started, at)
    if state not in LEASED and row["lease_owner"] is not None:
        values |= {"lease_owner": None, "lease_until": None, "lease_epoch": _r.lease_epoch + 1}
    moved = connection.execute(
        sa.update(t.run)
        .where(_r.pk == run_pk, _r.state.in_(sorted(sources(state))))
        .values(state=state, detail=t.visible(detail), version=_r.version + 1, **values)
    )
    if not moved.rowcount:
        return None
    before: State = row["state"]
    payload = {"from": before, "to": state, "detail": detail, **({"by": actor} if actor else {})}
    events.add(connection, run_pk, "state", payload, at=at)
    return before


def fenced(run: str, epoch: int, row: sa.RowMapping | Mapping[str, Any]) -> FencedOut:
    holder = f"{row['lease_owner']} holds it" if row["lease_owner"] else f"it is {row['state']}"
    return FencedOut(
        f"run {run} was taken over: epoch {epoch} is over, {holder} under epoch {row['lease_epoch']}",
        where=run,
        fix="nothing: what another process does now is the run's record",
    )


def fence(connection: sa.Connection, run_pk: int, epoch: int) -> None:
    """For every write of a process that holds a run, in the same transaction. Raises FencedOut if its lease is over."""
    query = sa.select(_r.id, _r.state, _r.lease_owner, _r.lease_epoch).where(_r.pk == run_pk)
    row = connection.execute(query.with_for_update(key_share=True)).mappings().one()  # as what follows updates it
    if row["lease_epoch"] != epoch:
        raise fenced(row["id"], epoch, row)


# ---- taking and keeping ------------------------------------------------------------------------------------------


def claim(
    connection: sa.Connection,
    owner: str,
    *,
    limits: Limits = LIMITS,
    slots: int | None = None,
    gpus: int | None = None,
    project: str | None = None,
    home: str | None = None,
) -> Lease | None:
    """The queued run of highest priority, oldest first, now ``starting`` and leased to ``owner``; None if there is none.

    Exactly one of any number of claimants gets a run. ``slots``: at most so many live leases of all owners together;
    ``gpus``: of so many GPUs together, by their recipes, and one that does not fit lets the next go first. One that needs
    more than ``gpus`` is left to another service of this store that has them, and says so in its detail. ``home``: of the
    claimant; runs whose files are in another home folder on the same database are left to that one's.
    """
    at = now(connection)
    postgres = connection.dialect.name == "postgresql"
    if postgres and (slots is not None or gpus is not None):
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _SLOTS})
    if slots is not None and live(connection) >= slots:
        return None
    chosen = sa.select(_r.pk).where(_r.state == "queued", _r.deleted_at.is_(None))
    if project is not None:
        chosen = chosen.where(_r.project == project)
    if home is not None:
        chosen = chosen.where(sa.func.coalesce(home_of(connection), home) == home)
    chosen = chosen.order_by(_r.priority.desc(), _r.pk).limit(1)
    if gpus is not None:
        fits = _fitting(connection, chosen, gpus)
        if fits is None:
            return None
        chosen = chosen.where(_r.pk == fits)
    if postgres:
        chosen = chosen.with_for_update(skip_locked=True)
    until = at + _micros(limits.lease)
    seconds = limits.of("starting")
    claimed = connection.execute(
        sa.update(t.run)
        .where(_r.pk == chosen.scalar_subquery(), _r.state == "queued")
        .values(
            state="starting", detail="", version=_r.version + 1, lease_owner=owner, lease_epoch=_r.lease_epoch + 1,
            lease_until=until, heartbeat_at=at, desired="run", deadline=at + _micros(seconds or 0), ended=None,
            exit_code=None,
        )
        .returning(_r.pk, _r.id, _r.lease_epoch)
    ).first()  # fmt: skip
    if claimed is None:
        return None
    payload = {"from": "queued", "to": "starting", "detail": "", "by": owner, "epoch": claimed.lease_epoch}
    events.add(connection, claimed.pk, "state", payload, at=at)
    return Lease(run=claimed.id, run_pk=claimed.pk, epoch=claimed.lease_epoch, owner=owner, until=until)


def home_of(connection: sa.Connection) -> sa.ColumnElement[str | None]:
    """The id of the home folder in which a run's files are; NULL for one of before this was recorded."""
    if connection.dialect.name == "postgresql":
        return sa.func.jsonb_extract_path_text(_r.meta, sa.literal_column("'home'"), type_=sa.Text())
    return sa.func.json_extract(_r.meta, "$.home", type_=sa.Text())


def _fitting(connection: sa.Connection, queued: sa.Select[Any], gpus: int) -> int | None:
    """The first queued run that fits beside those that go on. Runs that need more than ``gpus`` are passed over, however many."""
    free: int | None = None
    looked = first = 0
    page = queued.add_columns(_r.recipe, _r.detail).limit(_CANDIDATES)
    while True:
        rows = connection.execute(page.offset(first)).all()
        for row in rows:
            need = gpus_of(row.recipe)
            if need > gpus:
                _say_too_large(connection, row, need)
                continue
            free = gpus - leased_gpus(connection) if free is None else free
            if need <= free:
                return int(row.pk)
            looked += 1
        if len(rows) < _CANDIDATES or looked >= _CANDIDATES:
            return None
        first += _CANDIDATES


def _say_too_large(connection: sa.Connection, row: sa.Row[Any], need: int) -> None:
    """Once, whatever number of services it is too large for."""
    detail = f"waits for a service that has {need} GPUs (jurat serve --gpus)"
    if row.detail != detail:
        said = sa.update(t.run).where(_r.pk == row.pk, _r.state == "queued")
        connection.execute(said.values(detail=detail, version=_r.version + 1))


def take(
    connection: sa.Connection,
    run_pk: int,
    owner: str,
    *,
    epoch: int | None = None,
    alone: bool = False,
    home: str | None = None,
    limits: Limits = LIMITS,
) -> Lease:
    """The run is ``running`` and the caller's. ``epoch``: of the lease that a launcher claimed for this process; without it
    the process takes the run itself, and whoever held it is fenced out.

    ``alone``: the caller knows that no other process works on it (it holds the run's file lock), though a lease may not
    have lapsed yet. ``home``: of the caller. Raises FencedOut where another holds a live lease, RunFailed where the run
    cannot run any more, or its files are in another home folder.
    """
    row, at = _locked(connection, run_pk), now(connection)
    if home is not None and row["meta"].get("home", home) != home:
        raise RunFailed(
            f"the files of run {row['id']} are in another home folder on this database",
            where=row["id"],
            fix="--home names it",
        )
    until = at + _micros(limits.lease)
    values: dict[str, Any] = {"lease_owner": owner, "lease_until": until, "heartbeat_at": at}
    if epoch is None:
        alive = row["state"] in LEASED and row["lease_until"] is not None and row["lease_until"] > at
        if alive and not alone:
            raise fenced(row["id"], row["lease_epoch"], row)
        values |= {"lease_epoch": row["lease_epoch"] + 1, "desired": "run", "exit_code": None}
    elif row["lease_epoch"] != epoch:
        raise fenced(row["id"], epoch, row)
    elif row["state"] in ("pausing", "cancelling"):  # asked while it started: it runs until it has heard of it
        return Lease(run=row["id"], run_pk=run_pk, epoch=epoch, owner=owner, until=row["lease_until"] or until)
    if move(connection, run_pk, "running", actor=owner, limits=limits, **values) is None:
        raise RunFailed(
            f"run {row['id']} is {row['state']}: it cannot become running",
            where=row["id"],
            fix="start a new run from its checkpoint"
            if row["state"] in TERMINAL
            else "jurat runs show tells what it did",
        )
    return Lease(run=row["id"], run_pk=run_pk, epoch=epoch or int(values["lease_epoch"]), owner=owner, until=until)


def heartbeat(connection: sa.Connection, run_pk: int, epoch: int, *, limits: Limits = LIMITS) -> Beat:
    """The lease lasts longer; what is asked of the run. Raises FencedOut if it is not the caller's any more."""
    at = now(connection)
    until = at + _micros(limits.lease)
    beaten = connection.execute(
        sa.update(t.run)
        .where(_r.pk == run_pk, _r.lease_epoch == epoch, _r.state.in_(sorted(LEASED)))
        .values(lease_until=until, heartbeat_at=at)
        .returning(_r.state, _r.desired)
    ).first()
    if beaten is None:
        row = _locked(connection, run_pk)
        raise fenced(row["id"], epoch, row)
    return Beat(
        state=beaten.state,
        desired=beaten.desired,
        until=until,
        commands=tuple(commands(connection, run_pk, open_only=True)),
    )


def end(
    connection: sa.Connection,
    run_pk: int,
    state: State,
    detail: str = "",
    *,
    epoch: int | None = None,
    exit_code: int | None = None,
    actor: str = "",
    limits: Limits = LIMITS,
) -> State:
    """The holder says how it ended: ``finished``, ``interrupted`` or ``failed``; the state that the run is in then.

    One that was interrupted because it was asked to pause or to stop is ``paused`` or ``cancelled``. Raises FencedOut,
    or RunFailed for a run that is over already.
    """
    row = _locked(connection, run_pk)
    if state == "interrupted":
        asked: Mapping[str, State] = {"pausing": "paused", "cancelling": "cancelled"}
        state = asked.get(row["state"], state)
    if move(connection, run_pk, state, detail, epoch=epoch, actor=actor, limits=limits, exit_code=exit_code) is None:
        raise RunFailed(f"run {row['id']} is {row['state']}: it cannot become {state}", where=row["id"])
    connection.execute(
        sa.update(t.command)
        .where(t.command.c.run_pk == run_pk, t.command.c.acked_at.is_(None))
        .values(acked_at=now(connection), result=f"the run is {state}")
    )
    return state


def holder(connection: sa.Connection, run_pk: int) -> str | None:
    """Who has the run's lease, lapsed or not."""
    found: str | None = connection.execute(sa.select(_r.lease_owner).where(_r.pk == run_pk)).scalar()
    return found


def live(connection: sa.Connection, *, owner: str | None = None) -> int:
    """Leases that have not lapsed: the slots in use. Counted from the rows, never kept in a counter."""
    query = sa.select(sa.func.count()).where(_r.state.in_(sorted(LEASED)), _r.lease_until > now(connection))
    if owner is not None:
        query = query.where(_r.lease_owner == owner)
    return int(connection.execute(query).scalar_one())


def states(connection: sa.Connection) -> dict[str, int]:
    """How many runs are in each state that one is in."""
    query = sa.select(_r.state, sa.func.count()).where(_r.deleted_at.is_(None)).group_by(_r.state).order_by(_r.state)
    return {state: int(count) for state, count in connection.execute(query)}


def going(connection: sa.Connection) -> list[str]:
    """Ids of runs that are not over."""
    return list(connection.execute(sa.select(_r.id).where(_r.state.not_in(sorted(ENDED)))).scalars())


def leased_gpus(connection: sa.Connection) -> int:
    """GPUs of runs with a live lease, by their recipes."""
    query = sa.select(_r.recipe).where(_r.state.in_(sorted(LEASED)), _r.lease_until > now(connection))
    return sum(gpus_of(recipe) for recipe in connection.execute(query).scalars())


def gpus_of(recipe: Mapping[str, Any]) -> int:
    """How many a recipe takes: one a rank where it runs in one process, those of its pools on a cluster."""
    engine = recipe.get("engine") or {}
    if engine.get("home") == "ray":
        return sum(int(pool.get("gpus") or 0) for pool in (engine.get("pools") or {}).values())
    return int(engine.get("ranks") or 1) if str(engine.get("device") or "").startswith("cuda") else 0


def _stalled(connection: sa.Connection, limits: Limits) -> sa.Select[Any]:
    last = sa.func.coalesce(_r.last_step_at, _r.started, _r.created)
    held = sa.and_(_r.state == "running", _r.lease_until > now(connection), _r.deleted_at.is_(None))
    return sa.select(t.run).where(held, last < now(connection) - _micros(limits.stalled)).order_by(_r.pk).limit(1000)


def stalled(connection: sa.Connection, *, limits: Limits = LIMITS) -> int:
    """Running runs that took no step for ``limits.stalled``."""
    found = _stalled(connection, limits).with_only_columns(_r.pk).subquery()
    return connection.execute(sa.select(sa.func.count()).select_from(found)).scalar_one()


def alarm(connection: sa.Connection, *, limits: Limits = LIMITS) -> list[str]:
    """Say of each stalled run that it is: an event ``stalled``, once between two steps; the ids of those it was said of."""
    said = []
    for row in connection.execute(_stalled(connection, limits)).mappings().all():
        last = row["last_step_at"] or row["started"] or row["created"]
        e = t.run_event.c
        known = sa.select(e.seq).where(e.run_pk == row["pk"], e.kind == "stalled", e.at >= last).limit(1)
        if connection.execute(known).first() is None:
            payload = {"since": last, "seconds": limits.stalled, "by": "reaper"}
            events.add(connection, row["pk"], "stalled", payload, at=now(connection))
            said.append(str(row["id"]))
    return said


def held(connection: sa.Connection, runs_folder: Path, *, owner: str | None = None) -> list[RunInfo]:
    """Runs that have a holder, lapsed leases too: what a launcher looks through when it starts again."""
    query = sa.select(t.run).where(_r.state.in_(sorted(LEASED))).order_by(_r.pk)
    if owner is not None:
        query = query.where(_r.lease_owner == owner)
    return [run_of(row, runs_folder) for row in connection.execute(query).mappings()]


# ---- the reaper --------------------------------------------------------------------------------------------------


def reap(connection: sa.Connection, *, limits: Limits = LIMITS) -> list[tuple[str, State, State]]:
    """End every state that lasted too long: (run id, state before, state now) of each move. Any replica may, at any time.

    A lapsed lease: ``cancelling`` is cancelled, ``pausing`` is paused, anything else is lost; what is lost is queued
    again while restarts are left, else failed. Past its deadline ``running`` is asked to stop; what does not stop when
    asked is ended without it, and fenced out.
    """
    at, out = now(connection), []
    lapsed = sa.and_(_r.state.in_(sorted(LEASED)), _r.lease_until < at)
    late = sa.and_(_r.state.not_in(sorted(ENDED)), _r.deadline < at)
    query = sa.select(t.run).where(sa.or_(lapsed, late)).order_by(_r.pk).limit(1000)
    if connection.dialect.name == "postgresql":
        query = query.with_for_update(skip_locked=True)
    for row in connection.execute(query).mappings().all():
        gone = row["state"] in LEASED and row["lease_until"] is not None and row["lease_until"] < at
        to, detail, values = _verdict(row, gone=gone)
        before = move(connection, row["pk"], to, detail, actor="reaper", limits=limits, **values)
        if before is not None:
            out.append((str(row["id"]), before, to))
    return out


def _verdict(row: sa.RowMapping, *, gone: bool) -> tuple[State, str, dict[str, Any]]:
    """(state, why, other columns) for a run whose lease lapsed (``gone``) or whose state lasted too long."""
    silent = f"no heartbeat from {row['lease_owner']} under epoch {row['lease_epoch']}"
    state: State = row["state"]
    if state == "cancelling":
        return "cancelled", f"forced: {silent if gone else 'it did not stop in time'}", {}
    if state == "pausing":
        return "paused", f"forced: {silent if gone else 'it did not stop in time'}", {}
    if state in ("starting", "running", "finishing") and gone:
        return "lost", silent, {}
    if state == "starting":
        return "lost", "it did not start in time", {}
    if state == "finishing":
        return "lost", "it did not end in time", {}
    if state == "running":
        return "cancelling", f"it ran for more than {row['max_runtime']:g} s", {"desired": "cancel"}
    if state == "lost":
        if row["restarts"] < row["max_restarts"]:
            return "queued", f"restart {row['restarts'] + 1} of {row['max_restarts']}: {row['detail']}", {
                "restarts": row["restarts"] + 1, "desired": "run",
            }  # fmt: skip
        return "failed", f"lost: {row['detail']}", {}
    why = f", and {row['detail']}" if state == "queued" and row["detail"] else ""
    return "failed", f"nobody took it up in time: it was {state}{why}", {}


# ---- commands ----------------------------------------------------------------------------------------------------


def command(
    connection: sa.Connection,
    run_pk: int,
    kind: str,
    *,
    by: str = "",
    args: Mapping[str, Any] | None = None,
    limits: Limits = LIMITS,
) -> State:
    """Ask for ``pause``, ``resume``, ``cancel`` or ``checkpoint``; the state that the run is in then.

    What no process holds moves at once; a holder hears of it by its next heartbeat. Asking again for what is under way
    changes nothing. Raises RunFailed where the run's state does not allow it, ConfigError for an unknown kind.
    """
    row, at = _locked(connection, run_pk), now(connection)
    state: State = row["state"]
    if kind not in ("pause", "resume", "cancel", "checkpoint"):
        raise ConfigError(f"no command is called {kind!r}", where="command", fix="pause, resume, cancel or checkpoint")
    if row["deleted_at"] is not None:
        raise RunFailed(f"run {row['id']} was deleted", where=row["id"], fix="start a new run")
    under_way: dict[tuple[str, str], bool] = {
        ("pause", "pausing"): True, ("pause", "paused"): True, ("cancel", "cancelling"): True, ("cancel", "cancelled"): True,
        ("resume", "queued"): True, ("resume", "starting"): True, ("resume", "running"): row["desired"] == "run",
    }  # fmt: skip
    if under_way.get((kind, state), False):
        return state
    to: State | None = None
    values: dict[str, Any] = {}
    if kind == "pause" and state in ("starting", "running"):
        to, values = "pausing", {"desired": "pause"}
    elif kind == "cancel" and state in ("starting", "running", "pausing"):
        to, values = "cancelling", {"desired": "cancel"}
    elif kind == "cancel" and state in ("created", "queued", "paused", "lost", "interrupted"):
        to = "cancelled"
    elif kind == "resume" and state in ("created", "paused", "failed", "interrupted", "lost"):
        to, values = "queued", {"desired": "run"}
    elif kind == "checkpoint" and state == "running":
        pass
    else:
        raise RunFailed(
            f"run {row['id']} is {state}: it cannot {'make a checkpoint' if kind == 'checkpoint' else kind} now",
            where=row["id"],
            fix="start a new run from its checkpoint" if state in TERMINAL else "jurat runs show tells what it does",
        )
    if to is not None:
        move(connection, run_pk, to, f"{kind} was asked", actor=by, limits=limits, **values)
    held = to is None or to in LEASED
    connection.execute(
        sa.insert(t.command).values(
            run_pk=run_pk, kind=kind, args=dict(args or {}), at=at, by=by, acked_at=None if held else at,
            result=None if held else f"the run is {to}",
        )
    )  # fmt: skip
    if to is None:
        events.add(connection, run_pk, "command", {"kind": kind, "by": by}, at=at)
    return to or state


def commands(connection: sa.Connection, run_pk: int, *, open_only: bool = False) -> list[Command]:
    """Oldest first."""
    c = t.command.c
    query = sa.select(t.command).where(c.run_pk == run_pk).order_by(c.pk)
    if open_only:
        query = query.where(c.acked_at.is_(None))
    return [Command(**{key: row[key] for key in Command.__slots__}) for row in connection.execute(query).mappings()]


def acknowledge(connection: sa.Connection, run_pk: int, pk: int, result: str, *, epoch: int) -> None:
    """The holder did what a command asked. Raises FencedOut."""
    fence(connection, run_pk, epoch)
    c = t.command.c
    connection.execute(
        sa.update(t.command)
        .where(c.pk == pk, c.run_pk == run_pk, c.acked_at.is_(None))
        .values(acked_at=now(connection), result=t.visible(result))
    )
