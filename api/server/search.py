"""Runs by filter, order and page: the one query behind ``GET /runs``. What was not asked for is not read."""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from jurat.api.server import filters, pages, shapes
from jurat.api.server.filters import Fields, Key, Operand
from jurat.api.server.problems import Problem
from jurat.platform.db import tables as t
from jurat.platform.db.engine import reading
from jurat.platform.runs.store import Store

SECONDS = 5.0
"""Of one query, then it is given up."""
ESTIMATE = 10_000
MAX_COLUMNS = 1000
"""Metrics of one answer."""

R = t.run.c


def _label(kind: str, key: str) -> Operand:
    label = t.run_label.alias()
    mine = sa.and_(label.c.run_pk == R.pk, label.c.kind == kind, label.c.key == key)
    return Operand(
        label.c.text, "text", wrap=lambda condition: sa.exists(sa.select(sa.literal(1)).select_from(label).where(mine, condition)),
        sort=sa.select(sa.func.coalesce(label.c.text, "")).select_from(label).where(mine).scalar_subquery(), number=label.c.number, wrapped=True,
    )  # fmt: skip


def _metric(rest: tuple[str, ...]) -> Operand:
    column = {"min": "least", "max": "most", "last": "value"}
    which = column[rest[-1]] if len(rest) > 1 and rest[-1] in column else "value"
    name = ".".join(rest[:-1] if len(rest) > 1 and rest[-1] in column else rest)
    latest = t.metric_latest.alias()
    key = sa.select(t.metric_key.c.pk).where(t.metric_key.c.name == name).scalar_subquery()
    mine = sa.and_(latest.c.run_pk == R.pk, latest.c.key_pk == key)
    return Operand(
        latest.c[which], "number", wrap=lambda condition: sa.exists(sa.select(sa.literal(1)).select_from(latest).where(mine, condition)),
        sort=sa.select(latest.c[which]).select_from(latest).where(mine).scalar_subquery(), wrapped=True,
    )  # fmt: skip


def _verifier() -> Operand:
    """Of any member of the reward: its version's digest, or its name."""
    member = t.reward_member.alias()
    named = sa.case((sa.literal(True), member.c.version_digest))
    return Operand(
        named, "text", wrapped=True,
        wrap=lambda condition: sa.exists(sa.select(sa.literal(1)).select_from(member).where(member.c.reward_digest == R.reward_digest, condition)),
    )  # fmt: skip


def _segment(column: str) -> Operand:
    segment, environment = t.segment.alias(), t.environment.alias()
    joined = segment.join(environment, environment.c.digest == segment.c.environment_digest)
    return Operand(
        environment.c[column], "text", wrapped=True,
        wrap=lambda condition: sa.exists(sa.select(sa.literal(1)).select_from(joined).where(segment.c.run_pk == R.pk, condition)),
    )  # fmt: skip


def _edge(role: str) -> Operand:
    """What a segment of the run used."""
    edge = t.edge.alias()
    return Operand(
        edge.c.src, "text", wrapped=True,
        wrap=lambda condition: sa.exists(
            sa.select(sa.literal(1)).select_from(edge).where(edge.c.run_id == R.id, edge.c.src_kind == role, condition)
        ),
    )  # fmt: skip


FIELDS = Fields(
    {
        **{name: Operand(R[name], "text") for name in ("id", "name", "project", "state", "detail", "recipe_digest", "parent_run", "from_checkpoint", "desired")},
        "reward_spec": Operand(R.reward_digest, "text"),
        **{name: Operand(R[name], "time") for name in ("created", "started", "ended", "heartbeat_at", "last_step_at")},
        **{name: Operand(R[name], "number") for name in ("priority", "restarts", "lease_epoch", "exit_code")},
        "verifier": _verifier(), "env.git_commit": _segment("git_commit"), "dataset": _edge("dataset"),
    },
    {
        "params": lambda rest: _label("param", ".".join(rest)),
        "tags": lambda rest: _label("tag", ".".join(rest)),
        "metrics": _metric,
    },
)  # fmt: skip

_PLAIN = [
    "pk", "id", "name", "project", "state", "detail", "version", "recipe_digest", "created", "started", "ended", "desired",
    "lease_epoch", "lease_until", "heartbeat_at", "last_step_at", "parent_run", "from_checkpoint", "priority", "restarts",
    "max_restarts", "exit_code",
]  # fmt: skip
DEFAULT = frozenset({*_PLAIN, "reward_spec", "tags", "metrics"} - {"pk"})
KNOWN = frozenset({*DEFAULT, "recipe"})


def search(
    store: Store,
    secret: bytes,
    *,
    filter_: str = "",
    order_by: str = "",
    page_size: int = pages.DEFAULT_SIZE,
    page_token: str | None = None,
    fields: frozenset[str] = DEFAULT,
    metrics: Sequence[str] = (),
    count: str | None = None,
) -> dict[str, Any]:
    """A page of runs: {runs, next_page_token, total}. Raises Problem."""
    condition = filters.compile_filter(filter_, FIELDS)
    last = Key(R.pk, True)
    keys = filters.compile_order(order_by, FIELDS, default=[Key(R.created, True)], last=last)
    where: list[sa.ColumnElement[bool]] = [R.deleted_at.is_(None), *([] if condition is None else [condition])]
    asked = f"runs\x00{filter_}\x00{order_by}\x00{page_size}"
    columns = [R[name] for name in _PLAIN] + [R.reward_digest.label("reward_spec")] + ([R.recipe] if "recipe" in fields else [])
    sorting = [key.column.label(f"sort_{place}") for place, key in enumerate(keys)]
    query = sa.select(*columns, *sorting).where(*where).order_by(*filters.ordering(keys)).limit(page_size + 1)
    if page_token is not None:
        query = query.where(filters.after(keys, pages.unseal(secret, asked, page_token, len(keys))))
    with bounded(store) as connection:
        rows = connection.execute(query).mappings().all()
        total = None
        if count is not None:
            counted = sa.select(sa.literal(1)).select_from(t.run).where(*where).limit(None if count == "exact" else ESTIMATE).subquery()
            total = connection.execute(sa.select(sa.func.count()).select_from(counted)).scalar()
        shown = rows[:page_size]
        pks = [row["pk"] for row in shown]
        tags = tags_of(connection, pks) if "tags" in fields else {}
        values = latest_of(connection, pks, metrics) if metrics else {}
    runs = []
    for row in shown:
        made = {name: row[name] for name in row if name in fields or name == "id"}
        if "tags" in fields:
            made["tags"] = tags.get(row["pk"], {})
        if metrics:
            made["metrics"] = values.get(row["pk"], {})
        runs.append(made)
    token = None
    if len(rows) > page_size:
        end = shown[-1]
        token = pages.seal(secret, asked, [end[f"sort_{place}"] for place in range(len(keys))])
    return {"runs": runs, "next_page_token": token, **({} if total is None else {"total": total})}


def one(store: Store, pk: int, *, recipe: bool = False, metrics: Sequence[str] = ()) -> dict[str, Any]:
    """All of a run but its recipe, which must be asked for."""
    with bounded(store) as connection:
        columns = [R[name] for name in _PLAIN] + [R.reward_digest.label("reward_spec")] + ([R.recipe] if recipe else [])
        row = connection.execute(sa.select(*columns).where(R.pk == pk)).mappings().one()
        made = {name: value for name, value in row.items() if name != "pk"}
        made["tags"] = tags_of(connection, [pk]).get(pk, {})
        if metrics:
            made["metrics"] = latest_of(connection, [pk], metrics).get(pk, {})
    return made


def tags_of(connection: sa.Connection, pks: Sequence[int]) -> dict[int, dict[str, str]]:
    label = t.run_label.c
    found: dict[int, dict[str, str]] = {}
    for row in connection.execute(
        sa.select(label.run_pk, label.key, label.text).where(label.run_pk.in_(pks), label.kind == "tag").order_by(label.key)
    ):
        found.setdefault(row.run_pk, {})[row.key] = row.text
    return found


def latest_of(connection: sa.Connection, pks: Sequence[int], names: Sequence[str]) -> dict[int, dict[str, Any]]:
    """{run: {metric: value}}; ``*`` among the names: every metric."""
    latest = t.metric_latest.c
    query = sa.select(latest.run_pk, t.metric_key.c.name, latest.value).join(t.metric_key, t.metric_key.c.pk == latest.key_pk)
    query = query.where(latest.run_pk.in_(pks))
    if "*" not in names:
        query = query.where(t.metric_key.c.name.in_(names))
    found: dict[int, dict[str, Any]] = {}
    for run_pk, name, value in connection.execute(query):
        found.setdefault(run_pk, {})[name] = shapes.number(math.nan if value is None else value)
    return found


@contextmanager
def bounded(store: Store, seconds: float = SECONDS) -> Iterator[sa.Connection]:
    """One snapshot for reading, whose statements end after ``seconds`` in all. Raises Problem."""
    try:
        with reading(store.engine) as connection:
            raw: Any = connection.connection.dbapi_connection
            if connection.dialect.name == "sqlite":
                assert isinstance(raw, sqlite3.Connection)
                until = time.monotonic() + seconds
                raw.set_progress_handler(lambda: time.monotonic() > until, 10_000)
            else:
                connection.execute(sa.text(f"SET LOCAL statement_timeout = {int(seconds * 1000)}"))
            try:
                yield connection
            finally:
                if connection.dialect.name == "sqlite":
                    raw.set_progress_handler(None, 0)
    except OperationalError as error:
        said = str(error.orig).lower()
        if "interrupted" in said or "statement timeout" in said:
            raise Problem("query-too-slow", f"the query takes more than {seconds:g} s: narrow the filter") from None
        raise
