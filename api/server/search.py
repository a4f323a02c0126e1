"""Runs by filter, order and page: people's text becomes the tree that ``platform/runs/search.py`` compiles."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, get_args

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from jurat.api.server import filters, pages, shapes
from jurat.api.server.problems import Problem
from jurat.platform.db.engine import reading
from jurat.platform.errors import ConfigError, nearest
from jurat.platform.provenance import secrets
from jurat.platform.runs import metrics as metrics_of
from jurat.platform.runs import search as find
from jurat.platform.runs.records import RunInfo
from jurat.platform.runs.states import State
from jurat.platform.runs.store import Store

SECONDS = 5.0
"""Of one query, then it is given up."""
TIMES = frozenset({"created", "started", "ended", "last_step_at"})

FIELDS = (
    "id", "name", "project", "state", "detail", "version", "recipe_digest", "reward_spec", "created", "started",
    "ended", "desired",
    "lease_epoch", "lease_until", "heartbeat_at", "last_step_at", "parent_run", "from_checkpoint", "priority",
    "restarts",
    "max_restarts", "exit_code",
)  # fmt: skip
_ATTRIBUTES = {"reward_spec": "reward_digest"}
DEFAULT = frozenset({*FIELDS, "tags", "metrics"})
KNOWN = frozenset({*DEFAULT, "recipe"})


def told(run: RunInfo, *, recipe: bool = False, fields: Collection[str] = FIELDS) -> dict[str, Any]:
    """A run as it is sent."""
    made = {name: getattr(run, _ATTRIBUTES.get(name, name)) for name in FIELDS if name in fields or name == "id"}
    if recipe:  # without the address of its database, which may hold a password
        whole = secrets.redacted(run.recipe)
        made["recipe"] = {**whole, "tracking": {**(whole.get("tracking") or {}), "database": None}}
    return made


def one(store: Store, run: str, *, recipe: bool = False, metrics: Sequence[str] = ()) -> dict[str, Any]:
    """All of a run but its recipe and metrics, which must be asked for."""
    return whole(store, store.run(run), recipe=recipe, metrics=metrics)


def whole(store: Store, found: RunInfo, *, recipe: bool = False, metrics: Sequence[str] = ()) -> dict[str, Any]:
    """As ``one``, of a run as it was when it was read."""
    made = told(found, recipe=recipe)
    made["tags"] = store.read(lambda connection: find.labels(connection, found.pk, "tag"))
    if metrics:
        columns = None if "*" in metrics else metrics
        refuse_unknown(store, columns or (), "metrics")
        latest = store.read(lambda connection: metrics_of.values(connection, [found.pk], columns))
        made["metrics"] = shapes.numbers(latest[found.pk])
    return made


def refuse_unknown(store: Store, names: Sequence[str], where: str) -> None:
    """Raises Problem for a metric that no run has: 400, as for a field that there is not."""
    try:
        store.read(lambda connection: metrics_of.refuse_unknown(connection, names, where=where))
    except ConfigError as error:
        errors = [{"pointer": where, "code": "unknown-metric", "message": error.what}]
        raise Problem("bad-request", f"{error.what} {error.fix}", errors=errors) from None


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
    count: bool = False,
) -> dict[str, Any]:
    """A page of runs: {runs, next_page_token, total}. Raises Problem."""
    tree = filters.parse(filter_)
    where = None if tree is None else _where(tree, filter_)
    order = _order(order_by)
    asked = f"runs\x00{filter_}\x00{order_by}\x00{page_size}"
    after = None if page_token is None else pages.unseal(secret, asked, page_token, (len(order) or 1) + 1)
    columns = None if "*" in metrics else list(metrics)
    try:
        with bounded(store) as connection:
            found = find.find(
                connection, store.runs_folder, where=where, order=order, after=after, limit=page_size, columns=columns,
                bodies="recipe" in fields,
            )  # fmt: skip
            tags = find.labels_of(connection, [run.pk for run in found.runs], "tag") if "tags" in fields else {}
            total = find.count(connection, where) if count else None
    except ConfigError as error:
        raise Problem("bad-order" if error.where == "order_by" else "bad-filter", f"{error.what}. {error.fix}",
                      errors=[{"pointer": error.where[:80], "code": "bad-filter",
                      "message": error.what}]) from None  # fmt: skip
    runs = []
    for run in found.runs:
        made = told(run, recipe="recipe" in fields, fields=fields)
        made |= {"tags": tags[run.pk]} if "tags" in fields else {}
        made |= {"metrics": shapes.numbers(found.metrics.get(run.pk, {}))} if metrics else {}
        runs.append(made)
    token = None if found.next is None else pages.seal(secret, asked, found.next)
    return {"runs": runs, "next_page_token": token, **({} if total is None else {"total": total})}


def _where(tree: filters.Tree, text: str) -> find.Where:
    if isinstance(tree, filters.Not):
        return find.Not(_where(tree.item, text))
    if isinstance(tree, filters.And):
        return find.And(tuple(_where(item, text) for item in tree.items))
    if isinstance(tree, filters.Or):
        return find.Or(tuple(_where(item, text) for item in tree.items))
    field = _field(tree.field, text, tree.at, "bad-filter", "filter")
    given = [_value(field, value, tree, text) for value in tree.values]
    if tree.op == "LIKE":
        filters.refuse_pattern(str(given[0]), text, tree.value_at)
    return find.Term(field, tree.op, tuple(given) if tree.op == "IN" else given[0])


def _value(field: str, value: filters.Value, term: filters.Term, text: str) -> str | float | bool:
    if value is None:
        raise filters.fault(text, term.value_at, "runs are not compared with null")
    if field in TIMES and isinstance(value, str):
        try:
            return filters.micros(value)
        except ValueError:
            raise filters.fault(text, term.value_at, filters.NO_TIME) from None
    if field == "state" and term.op in filters.WHOLE:
        filters.refuse_absent(value, get_args(State), text, term.value_at)
    number = field in find.NUMBERS or field.startswith("metrics.")
    if number and (isinstance(value, (str, bool)) or term.op in (":", "LIKE")):
        raise filters.fault(
            text, term.value_at, "expected a number" if term.op not in (":", "LIKE") else f"{term.op} compares texts"
        )
    return value


ALIASES = {"reward_spec": "reward", "recipe_digest": "recipe", "parent_run": "parent", "lease_owner": "owner"}
"""Names of what is sent -> names of the store's search."""


def _field(path: tuple[str, ...], text: str, at: int, kind: str, parameter: str) -> str:
    name = ".".join(path)
    name = ALIASES.get(name, name)
    if name in find.FIELDS or (len(path) > 1 and name.startswith(find.PREFIXES)):
        return name
    known = [*find.FIELDS, *ALIASES, *(f"{prefix}NAME" for prefix in find.PREFIXES)]
    raise filters.fault(
        text, at, f"there is no field of that name.{nearest(name, known)} Fields: {', '.join(known)}", kind, parameter
    )


def _order(text: str) -> list[find.Order]:
    return [
        find.Order(field=_field(path, text, at, "bad-order", "order_by"), descending=descending)
        for path, descending, at in filters.parse_order(text)
    ]


@contextmanager
def bounded(store: Store, seconds: float = SECONDS) -> Iterator[sa.Connection]:
    """One snapshot for reading, whose statements end after ``seconds`` in all. Raises Problem."""
    try:
        with reading(store.engine) as connection:
            raw: Any = connection.connection.dbapi_connection
            if isinstance(raw, sqlite3.Connection):
                until = time.monotonic() + seconds
                raw.set_progress_handler(lambda: time.monotonic() > until, 10_000)
            else:
                connection.execute(sa.text(f"SET LOCAL statement_timeout = {int(seconds * 1000)}"))
            try:
                yield connection
            finally:
                if isinstance(raw, sqlite3.Connection):
                    raw.set_progress_handler(None, 0)
    except (OperationalError, store.engine.dialect.loaded_dbapi.OperationalError) as error:
        said = str(getattr(error, "orig", error)).lower()
        if "interrupted" in said or "statement timeout" in said:
            raise Problem("query-too-slow", f"the query takes more than {seconds:g} s: narrow the filter") from None
        raise
