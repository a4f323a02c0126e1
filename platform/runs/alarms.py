"""Alarms of runs as rows: one open row for each rule and version, made and closed by events, acknowledged by people.

An alarm is said as an event, so that it is in the chain, is spooled while the store is away, and is heard by whoever follows the
run; its row is made in the same transaction. What tells of a verifier (``canary_drift``, ``nondeterministic``) or of a run that
takes no step (``stalled``) is an alarm too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from jurat.platform.db import tables as t
from jurat.platform.errors import ConfigError

KIND = "alarm"
"""Of the event: rule, state (open or closed), severity, stage, first_step, last_step, evidence, and a version if it is of one."""
OTHERS = {"canary_drift": "critical", "nondeterministic": "warning", "stalled": "warning"}
"""Kinds of events that are alarms by themselves -> severity."""
SEVERITIES = ("info", "warning", "critical")
_a = t.alarm.c


def hear(connection: sa.Connection, run_pk: int, kind: str, payload: Mapping[str, Any], at: int) -> None:
    """An event that was recorded. A payload that is none of an alarm stays an event and nothing more."""
    if kind in OTHERS:
        step = _step(payload.get("step"))
        said = {"rule": kind, "version": payload.get("digest", ""), "severity": OTHERS[kind], "evidence": payload,
                "first_step": step, "last_step": step}  # fmt: skip
    elif kind == KIND and isinstance(payload.get("rule"), str) and payload["rule"] not in OTHERS:
        said = dict(payload)
    else:
        return
    rule, version = t.visible(str(said["rule"]))[:64], t.visible(str(said.get("version") or ""))[:80]
    evidence = said.get("evidence")
    row = {
        "severity": said["severity"] if said.get("severity") in SEVERITIES else "warning",
        "last_step": _step(said.get("last_step")), "evidence": dict(evidence) if isinstance(evidence, Mapping) else {},
    }  # fmt: skip
    is_open = sa.and_(_a.run_pk == run_pk, _a.rule == rule, _a.version == version, _a.state != "closed")
    if said.get("state") == "closed":
        done = {"state": "closed", "closed": at, "last_step": row["last_step"]}
        connection.execute(sa.update(t.alarm).where(is_open).values(**done))
        return
    stage = t.visible(str(said.get("stage") or ""))[:64]
    # an earlier stage's, or a stall before the last step, is over: this one is new, and nobody has seen it
    over = is_open if rule == "stalled" else sa.and_(is_open, _a.stage != stage)
    connection.execute(sa.update(t.alarm).where(over).values(state="closed", closed=at))
    if connection.execute(sa.update(t.alarm).where(is_open).values(**row)).rowcount:
        return
    connection.execute(sa.insert(t.alarm).values(
        run_pk=run_pk, rule=rule, version=version, stage=stage, state="open", opened=at,
        first_step=_step(said.get("first_step")), **row,
    ))  # fmt: skip


def _step(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else 0


def of_run(connection: sa.Connection, run_pk: int, *, state: str | None = None) -> list[dict[str, Any]]:
    """Newest first: id, rule, version, severity, stage, first_step, last_step, state, evidence, opened, closed, acked_by."""
    query = sa.select(t.alarm).where(_a.run_pk == run_pk).order_by(_a.opened.desc(), _a.pk.desc()).limit(1000)
    if state is not None:
        query = query.where(_a.state == state)
    return _told(connection, query)


def _told(connection: sa.Connection, query: sa.Select[Any]) -> list[dict[str, Any]]:
    rows = connection.execute(query).mappings()
    return [{"id": row["pk"], **{key: row[key] for key in row if key not in ("pk", "run_pk")}} for row in rows]


def open_count(connection: sa.Connection) -> int:
    return int(
        connection.execute(sa.select(sa.func.count()).select_from(t.alarm).where(_a.state == "open")).scalar_one()
    )


def acknowledge(connection: sa.Connection, run_pk: int, number: int, *, by: str) -> dict[str, Any]:
    """Somebody has seen it: it stays until its rule is quiet, and is not told as open. Raises ConfigError for one that is not
    there; one that is acknowledged or closed stays as it is."""
    where = sa.and_(_a.run_pk == run_pk, _a.pk == number)
    connection.execute(
        sa.update(t.alarm).where(where, _a.state == "open").values(state="acked", acked_by=t.visible(by))
    )
    found = _told(connection, sa.select(t.alarm).where(where))
    if not found:
        raise ConfigError(f"the run has no alarm {number}", where="alarm", fix="jurat runs alarms RUN lists them")
    return found[0]
