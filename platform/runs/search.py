"""Runs by what they are and came to: conditions as a tree, compiled to SQL with every value bound.

``api/`` parses people's text into the tree; here no text of theirs becomes SQL: a field is one of ``FIELDS`` or a
dotted ``params.``, ``tags.`` or ``metrics.`` name that is bound as a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa

from jurat.platform.db import keyset
from jurat.platform.db import tables as t
from jurat.platform.db.chunks import chunks
from jurat.platform.db.keyset import Key
from jurat.platform.errors import ConfigError, nearest
from jurat.platform.runs import metrics
from jurat.platform.runs.leases import run_of
from jurat.platform.runs.records import RunInfo

Op = Literal["=", "!=", "<", "<=", ">", ">=", ":", "LIKE", "IN"]
_r = t.run.c


@dataclass(frozen=True, slots=True)
class Term:
    """``field op value``. ``:`` contains, whatever the case; ``LIKE`` takes % and _; ``IN`` takes a tuple.

    A value that is not there makes every term false but ``!=``. Example: ``Term("metrics.reward/mean.max", ">", 0.9)``.
    """

    field: str
    op: Op
    value: str | float | bool | tuple[str | float, ...]


@dataclass(frozen=True, slots=True)
class And:
    of: tuple[Where, ...]


@dataclass(frozen=True, slots=True)
class Or:
    of: tuple[Where, ...]


@dataclass(frozen=True, slots=True)
class Not:
    of: Where


Where = Term | And | Or | Not

TEXTS: Mapping[str, sa.ColumnElement[Any]] = {
    "id": _r.id, "name": _r.name, "state": _r.state, "detail": _r.detail, "project": _r.project,
    "parent": _r.parent_run, "from_checkpoint": _r.from_checkpoint, "recipe": _r.recipe_digest, "owner": _r.lease_owner,
}  # fmt: skip
NUMBERS: Mapping[str, sa.ColumnElement[Any]] = {
    "created": _r.created, "started": _r.started, "ended": _r.ended, "priority": _r.priority, "restarts": _r.restarts,
    "last_step_at": _r.last_step_at,
}  # fmt: skip
"""Times are UTC epoch microseconds."""
OF_SEGMENTS = ("reward", "verifier", "dataset", "model", "env.git_commit", "checkpoint")
"""``verifier`` by name or by version digest, ``checkpoint`` by the digest of one that the run wrote."""
PREFIXES = ("params.", "tags.", "metrics.")
FIELDS = (*TEXTS, *NUMBERS, *OF_SEGMENTS)
_SUFFIXES = {".last": "value", ".min": "least", ".max": "most"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One key: a field of TEXTS or NUMBERS, or a metric; runs without the value come last. Runs that all keys find equal
    go by number, in the direction of the last key."""

    field: str = "created"
    descending: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A page of runs and, if columns were asked for, the newest values of those metrics."""

    runs: tuple[RunInfo, ...]
    metrics: Mapping[int, Mapping[str, float | None]]
    """By ``RunInfo.pk``; None is NaN."""
    next: tuple[Any, ...] | None
    """Position of the last one, as ``after`` of the next page; None if this is the last page."""


def find(
    connection: sa.Connection,
    runs_folder: Path,
    *,
    where: Where | None = None,
    order: Sequence[Order] = (),
    after: Sequence[Any] | None = None,
    limit: int = 50,
    columns: Sequence[str] | None = (),
    bodies: bool = True,
    deleted: bool = False,
) -> Found:
    """A keyset page: stable under inserts. ``columns``: metrics to read with it, None for all. ``bodies`` False leaves
    ``recipe`` and ``meta`` empty. Raises ConfigError for a field or a position that there is not."""
    metrics.refuse_unknown(connection, columns or (), where="metrics")
    keys, joined = _keys(connection, order or [Order()])
    kept = [c for c in _r if bodies or c.name not in ("recipe", "meta")]
    query = sa.select(*kept, *(key.column.label(f"sort_{n}") for n, key in enumerate(keys))).select_from(joined)
    if not deleted:
        query = query.where(_r.deleted_at.is_(None))
    if where is not None:
        query = query.where(compiled(connection, where))
    if after is not None:
        fit = all(isinstance(each, (str, int, float, type(None))) for each in after) and isinstance(after[-1], int)
        if len(after) != len(keys) or not fit:
            raise ConfigError("this is no position of a page", where="page_token", fix="begin at the first page")
        query = query.where(keyset.after(keys, after))
    rows = connection.execute(query.order_by(*keyset.ordering(keys)).limit(limit + 1)).mappings().all()
    more, rows = len(rows) > limit, rows[:limit]
    empty: dict[str, Any] = {} if bodies else {"recipe": {}, "meta": {}}
    runs = tuple(run_of({**row, **empty}, runs_folder) for row in rows)
    found = metrics.values(connection, [run.pk for run in runs], columns) if columns is None or columns else {}
    last = tuple(rows[-1][f"sort_{n}"] for n in range(len(keys))) if more else None
    return Found(runs=runs, metrics=found, next=last)


def count(connection: sa.Connection, where: Where | None = None) -> int:
    query = sa.select(sa.func.count()).select_from(t.run).where(_r.deleted_at.is_(None))
    if where is not None:
        query = query.where(compiled(connection, where))
    return int(connection.execute(query).scalar_one())


def _keys(connection: sa.Connection, order: Sequence[Order]) -> tuple[list[Key], sa.FromClause]:
    """The keys of an order, the run's number last, and what has their columns. Raises ConfigError."""
    keys: list[Key] = []
    joined: sa.FromClause = t.run
    for each in order:
        column = TEXTS.get(each.field, NUMBERS.get(each.field))
        if column is None and each.field.startswith("metrics."):
            name, value = _metric(each.field)
            metrics.refuse_unknown(connection, [name], where="order_by")
            number = metrics.number_of(connection, name)
            latest = t.metric_latest.alias()
            on = sa.and_(latest.c.run_pk == _r.pk, latest.c.key_pk == (-1 if number is None else number))
            joined = joined.outerjoin(latest, on)
            column = latest.c[value]
        if column is None:
            raise ConfigError(
                f"runs are not ordered by {each.field!r}.{nearest(each.field, [*TEXTS, *NUMBERS])}",
                where="order_by",
                fix=f"one of {', '.join([*TEXTS, *NUMBERS])} or metrics.NAME",
            )
        keys.append(Key(column, each.descending, nulls=getattr(column, "nullable", True) or column.table is not t.run))
    return [*keys, Key(_r.pk, order[-1].descending, nulls=False)], joined


# ---- conditions --------------------------------------------------------------------------------------------------


def compiled(connection: sa.Connection, where: Where) -> sa.ColumnElement[bool]:
    """The condition on ``run``. Raises ConfigError for a field that there is not, or a value that does not fit it."""
    if isinstance(where, Not):
        return sa.not_(compiled(connection, where.of))
    if isinstance(where, (And, Or)):
        parts = [compiled(connection, part) for part in where.of]
        return sa.and_(sa.true(), *parts) if isinstance(where, And) else sa.or_(sa.false(), *parts)
    return _term(connection, where)


def _term(connection: sa.Connection, term: Term) -> sa.ColumnElement[bool]:
    field = t.visible(term.field)
    if field in TEXTS:
        return sa.func.coalesce(_compared(TEXTS[field], term, text=True), term.op == "!=")
    if field in NUMBERS:
        return sa.func.coalesce(_compared(NUMBERS[field], term, text=False), term.op == "!=")
    if field.startswith(("params.", "tags.")):
        kind, _, key = field.partition(".")
        label = t.run_label.c
        column = label.text if _is_text(term) else label.number
        of = [label.run_pk == _r.pk, label.kind == kind[:-1], label.key == key]
        return _exists(term, lambda c: sa.exists().where(*of, c(column)))
    if field.startswith("metrics."):
        name, column_name = _metric(field)
        metrics.refuse_unknown(connection, [name], where="filter")
        key_pk = metrics.number_of(connection, name)
        if key_pk is None:
            return sa.true() if term.op == "!=" else sa.false()
        latest = t.metric_latest.c
        of = [latest.run_pk == _r.pk, latest.key_pk == key_pk]
        return _exists(term, lambda c: sa.exists().where(*of, c(latest[column_name])), text=False)
    if field in OF_SEGMENTS:
        return _exists(term, _OF_SEGMENTS[field], text=True)
    raise ConfigError(
        f"runs have no field {field!r}.{nearest(field, [*FIELDS, *PREFIXES])}",
        where="filter",
        fix=f"one of {', '.join(FIELDS)}, params.NAME, tags.NAME, metrics.NAME",
    )


_Compare = Callable[[sa.ColumnElement[Any]], sa.ColumnElement[bool]]


def _exists(
    term: Term, make: Callable[[_Compare], sa.ColumnElement[bool]], *, text: bool | None = None
) -> sa.ColumnElement[bool]:
    """``!=`` is true where no such value is there."""
    as_text = _is_text(term) if text is None else text
    positive = Term(term.field, "=", term.value) if term.op == "!=" else term
    made = make(lambda column: _compared(column, positive, text=as_text))
    return sa.not_(made) if term.op == "!=" else made


def _verifier(compare: _Compare) -> sa.ColumnElement[bool]:
    member, segment = t.reward_member.c, t.segment.c
    named = sa.or_(compare(member.version_digest), compare(member.verifier))
    return sa.exists().where(segment.run_pk == _r.pk, segment.reward_digest == member.reward_digest, named)


def _dataset(compare: _Compare) -> sa.ColumnElement[bool]:
    edge, version = t.edge.c, t.dataset_version.c
    named = sa.or_(compare(version.digest), compare(version.name))
    return sa.exists().where(
        edge.run_id == _r.id, edge.src_kind == "dataset_version", edge.src == version.digest, named
    )


def _of_segment(column: sa.Column[Any]) -> Callable[[_Compare], sa.ColumnElement[bool]]:
    return lambda compare: sa.exists().where(t.segment.c.run_pk == _r.pk, compare(column))


_OF_SEGMENTS: Mapping[str, Callable[[_Compare], sa.ColumnElement[bool]]] = {
    "reward": _of_segment(t.segment.c.reward_digest),
    "model": _of_segment(t.segment.c.model_digest),
    "verifier": _verifier,
    "dataset": _dataset,
    "env.git_commit": lambda compare: sa.exists().where(
        t.segment.c.run_pk == _r.pk,
        t.segment.c.environment_digest == t.environment.c.digest,
        compare(t.environment.c.git_commit),
    ),
    "checkpoint": lambda compare: sa.exists().where(t.checkpoint.c.run_pk == _r.pk, compare(t.checkpoint.c.digest)),
}


def _is_text(term: Term) -> bool:
    values = term.value if isinstance(term.value, tuple) else (term.value,)
    return term.op in (":", "LIKE") or any(isinstance(value, (str, bool)) for value in values)


def _metric(field: str) -> tuple[str, str]:
    """(name, column of ``metric_latest``)."""
    name = field.removeprefix("metrics.")
    for suffix, column in _SUFFIXES.items():
        if name.endswith(suffix) and len(name) > len(suffix):
            return name.removesuffix(suffix), column
    return name, "value"


def _compared(column: sa.ColumnElement[Any], term: Term, *, text: bool) -> sa.ColumnElement[bool]:
    values = [
        _fitting(value, term, text=text) for value in (term.value if isinstance(term.value, tuple) else (term.value,))
    ]
    if term.op == "IN":
        return column.in_(values)
    if len(values) != 1:
        raise ConfigError(f"{term.op} takes one value", where=term.field, fix="IN [..] takes several")
    value = values[0]
    if term.op in (":", "LIKE"):
        if not text:
            raise ConfigError(f"{term.field} is a number: {term.op} is for text", where="filter", fix="use = < > <= >=")
        lowered = sa.func.lower(column)
        folded = str(value).lower()
        if term.op == ":":
            return lowered.contains(folded, autoescape=True)
        return lowered.like(folded.replace("\\", "\\\\"), escape="\\")
    compare: Mapping[str, Callable[[], sa.ColumnElement[bool]]] = {
        "=": lambda: column == value, "!=": lambda: column != value, "<": lambda: column < value,
        "<=": lambda: column <= value, ">": lambda: column > value, ">=": lambda: column >= value,
    }  # fmt: skip
    return compare[term.op]()


def _fitting(value: str | float | bool, term: Term, *, text: bool) -> str | float:
    if text:
        return t.visible(str(value).lower() if isinstance(value, bool) else str(value))
    if isinstance(value, (str, bool)) or not math.isfinite(value) or abs(value) > 2**63:
        raise ConfigError(f"{term.field} is a number, got {value!r:.80}", where="filter", fix="write a finite number")
    return value


# ---- labels ------------------------------------------------------------------------------------------------------

MAX_TEXT = 500
"""Characters of a label's text that are kept."""


def flattened(recipe: Mapping[str, Any], prefix: str = "") -> dict[str, str | float | bool]:
    """A recipe's scalars by dotted name: ``{"optim.lr": 1e-5, ...}``; lists by place; what is null is left out."""
    out: dict[str, str | float | bool] = {}
    for key, value in recipe.items():
        name = f"{prefix}{key}"
        if isinstance(value, (list, tuple)):
            value = {str(place): item for place, item in enumerate(value)}
        if isinstance(value, Mapping):
            out |= flattened(value, f"{name}.")
        elif value is not None:
            out[name] = value
    return out


def label(connection: sa.Connection, run_pk: int, kind: Literal["param", "tag"], labels: Mapping[str, Any]) -> None:
    """Set labels of a run; a tag of None is removed."""
    c = t.run_label.c
    names = [t.visible(key) for key in labels]
    for some in chunks(names):
        connection.execute(sa.delete(t.run_label).where(c.run_pk == run_pk, c.kind == kind, c.key.in_(some)))
    rows = [
        {
            "run_pk": run_pk,
            "kind": kind,
            "key": t.visible(key),
            "text": _text(value)[:MAX_TEXT],
            "number": _number(value),
        }
        for key, value in labels.items()
        if value is not None
    ]
    if rows:
        connection.execute(sa.insert(t.run_label), rows)


def labels(connection: sa.Connection, run_pk: int, kind: Literal["param", "tag"]) -> dict[str, str]:
    return labels_of(connection, [run_pk], kind)[run_pk]


def labels_of(
    connection: sa.Connection, run_pks: Sequence[int], kind: Literal["param", "tag"]
) -> dict[int, dict[str, str]]:
    """{run pk: {key: text}} of at most some thousand runs."""
    c = t.run_label.c
    query = sa.select(c.run_pk, c.key, c.text).where(c.run_pk.in_(run_pks), c.kind == kind).order_by(c.run_pk, c.key)
    out: dict[int, dict[str, str]] = {pk: {} for pk in run_pks}
    for pk, key, text in connection.execute(query):
        out[pk][key] = text
    return out


def _text(value: Any) -> str:
    return t.visible(str(value).lower() if isinstance(value, bool) else str(value))


def _number(value: Any) -> float | None:
    """What is a number, or spells one."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
