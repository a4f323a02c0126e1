"""The tables of the store. Facts are inserted and never changed, but for a run's state and a segment's end.

Times are UTC epoch microseconds. JSON is JSONB on PostgreSQL and text on SQLite, where every table is STRICT.
A step may be recorded by several segments of a run (after a crash it is done again); the views ``canonical_*`` keep the
rows of the newest segment that started at or before the step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

REVISIONS = ("0001",)
"""Every schema this version knows, oldest first; a test compares them with the migrations."""

VERSION_TABLE = "jurat_alembic_version"


def visible(text: str) -> str:
    """Text that UTF-8 and both databases can hold: NUL and lone surrogates become their escapes."""
    if text.isascii() and "\x00" not in text:
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\x00", "\\x00")


def plain(value: Any) -> Any:
    """A JSON value that both databases store: texts made ``visible``, non-finite numbers spelled as strings."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, bool) or value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {visible(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return visible(str(value))


class Json(TypeDecorator[Any]):
    """A JSON value, made ``plain`` on the way in."""

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(JSONB() if dialect.name == "postgresql" else sa.Text())

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        if value is None:
            return None
        made = plain(value)
        return made if dialect.name == "postgresql" else json.dumps(made, separators=(",", ":"), allow_nan=False)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return json.loads(value) if isinstance(value, str) and dialect.name != "postgresql" else value


Whole = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
Real: TypeEngine[float] = sa.Double().with_variant(sa.REAL(), "sqlite")
Text = sa.Text()

metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)


def _key() -> sa.Column[int]:
    return sa.Column("pk", Whole, primary_key=True, autoincrement=True)


def _run(*, primary_key: bool = False) -> sa.Column[int]:
    return sa.Column("run_pk", Whole, primary_key=primary_key, nullable=False)


def _of_run() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["run_pk"], ["run.pk"])


def _of_segment() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["run_pk", "segment"], ["segment.run_pk", "segment.no"])


run = sa.Table(
    "run",
    metadata,
    _key(),
    sa.Column("id", Text, nullable=False),
    sa.Column("name", Text, nullable=False),
    sa.Column("state", Text, nullable=False),
    sa.Column("detail", Text, nullable=False, default=""),
    sa.Column("version", Whole, nullable=False, default=1),
    sa.Column("recipe", Json, nullable=False),
    sa.Column("recipe_digest", Text, nullable=False),
    sa.Column("reward_digest", Text, nullable=False),
    sa.Column("meta", Json, nullable=False),
    sa.Column("created", Whole, nullable=False),
    sa.Column("started", Whole),
    sa.Column("ended", Whole),
    sa.UniqueConstraint("id"),
    sa.CheckConstraint("state IN ('created','running','paused','interrupted','failed','finished')", name="state"),
    sa.Index(None, "created", "pk"),
    sa.Index(None, "state", "created"),
    sa.Index(None, "reward_digest"),
    sqlite_strict=True,
)

segment = sa.Table(
    "segment",
    metadata,
    _run(primary_key=True),
    sa.Column("no", Whole, primary_key=True),
    sa.Column("stage", Text, nullable=False),
    sa.Column("stage_index", Whole, nullable=False),
    sa.Column("first_step", Whole, nullable=False),
    sa.Column("started", Whole, nullable=False),
    sa.Column("ended", Whole),
    sa.Column("ending", Text, nullable=False, default=""),
    sa.Column("host", Text, nullable=False),
    sa.Column("pid", Whole, nullable=False),
    sa.Column("reward_digest", Text, nullable=False),
    sa.Column("versions", Json, nullable=False),
    sa.Index(None, "reward_digest"),
    _of_run(),
    sqlite_strict=True,
)

run_event = sa.Table(
    "run_event",
    metadata,
    _run(primary_key=True),
    sa.Column("seq", Whole, primary_key=True),
    sa.Column("uid", Text, nullable=False),
    sa.Column("segment", Whole),
    sa.Column("at", Whole, nullable=False),
    sa.Column("kind", Text, nullable=False),
    sa.Column("payload", Json, nullable=False),
    sa.UniqueConstraint("run_pk", "uid"),
    _of_run(),
    sqlite_strict=True,
)

metric_key = sa.Table(
    "metric_key",
    metadata,
    _key(),
    sa.Column("name", Text, nullable=False),
    sa.UniqueConstraint("name"),
    sqlite_strict=True,
)

metric_point = sa.Table(
    "metric_point",
    metadata,
    _run(primary_key=True),
    sa.Column("key_pk", Whole, sa.ForeignKey("metric_key.pk"), primary_key=True),
    sa.Column("segment", Whole, primary_key=True),
    sa.Column("step", Whole, primary_key=True),
    sa.Column("at", Whole, nullable=False),
    sa.Column("value", Real),  # NULL is NaN: SQLite has no other
    _of_segment(),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

checkpoint = sa.Table(
    "checkpoint",
    metadata,
    _key(),
    _run(),
    sa.Column("segment", Whole, nullable=False),
    sa.Column("step", Whole, nullable=False),
    sa.Column("digest", Text, nullable=False),
    sa.Column("path", Text, nullable=False),
    sa.Column("parent", Text, nullable=False),
    sa.Column("meta", Json, nullable=False),
    sa.Column("at", Whole, nullable=False),
    sa.UniqueConstraint("run_pk", "segment", "step", "digest"),
    sa.Index(None, "digest"),
    _of_segment(),
    sqlite_strict=True,
)

evaluation = sa.Table(
    "evaluation",
    metadata,
    _key(),
    _run(),
    sa.Column("segment", Whole, nullable=False),
    sa.Column("name", Text, nullable=False),
    sa.Column("step", Whole, nullable=False),
    sa.Column("accuracy", Real),
    sa.Column("result", Json, nullable=False),
    sa.Column("at", Whole, nullable=False),
    sa.UniqueConstraint("run_pk", "segment", "name", "step"),
    _of_segment(),
    sqlite_strict=True,
)

data_part = sa.Table(
    "data_part",
    metadata,
    _key(),
    _run(),
    sa.Column("segment", Whole, nullable=False),
    sa.Column("kind", Text, nullable=False),
    sa.Column("step_min", Whole, nullable=False),
    sa.Column("step_max", Whole, nullable=False),
    sa.Column("path", Text, nullable=False),
    sa.Column("digest", Text, nullable=False),
    sa.Column("rows", Whole, nullable=False),
    sa.Column("bytes", Whole, nullable=False),
    sa.Column("schema_version", Whole, nullable=False),
    sa.Column("at", Whole, nullable=False),
    sa.UniqueConstraint("run_pk", "path"),
    sa.Index(None, "run_pk", "kind", "step_min"),
    _of_segment(),
    sqlite_strict=True,
)

verdict_stat = sa.Table(
    "verdict_stat",
    metadata,
    _run(primary_key=True),
    sa.Column("segment", Whole, primary_key=True),
    sa.Column("step", Whole, primary_key=True),
    sa.Column("member", Text, primary_key=True),
    sa.Column("verifier", Text, primary_key=True),
    sa.Column("version_digest", Text, primary_key=True),
    sa.Column("n", Whole, nullable=False),
    sa.Column("scored", Whole, nullable=False),
    sa.Column("score_sum", Real, nullable=False),
    sa.Column("seconds_sum", Real, nullable=False),
    sa.Column("seconds_max", Real, nullable=False),
    sa.Column("statuses", Json, nullable=False),
    sa.Index(None, "version_digest"),
    _of_segment(),
    sqlite_strict=True,
)


def _view(table: sa.Table) -> sa.TableClause:
    return sa.table(
        f"canonical_{table.name}",
        *(sa.column(column.name, column.type) for column in table.columns),
        sa.column("stage", Text),
        sa.column("stage_index", Whole),
    )


canonical_metric_point = _view(metric_point)
canonical_checkpoint = _view(checkpoint)
canonical_evaluation = _view(evaluation)
canonical_data_part = _view(data_part)
canonical_verdict_stat = _view(verdict_stat)
