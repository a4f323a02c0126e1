"""The tables of the store. Facts are inserted and never changed, but for a run's state and a segment's end; triggers
refuse a change of an event, of a verifier's version (its status aside) and of the state of a run that is over.

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

REVISIONS = ("0001", "0002", "0003", "0004", "0005")
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
    if isinstance(value, (dict, Mapping)):  # dict first: what an ABC is asked costs more than the rest
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
Bytes = sa.LargeBinary()

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
    sa.Column("project", Text, nullable=False, default="", server_default=sa.text("''")),
    sa.Column("parent_run", Text),  # id
    sa.Column("from_checkpoint", Text),  # digest
    sa.Column("priority", Whole, nullable=False, default=0, server_default=sa.text("0")),
    sa.Column("max_restarts", Whole, nullable=False, default=0, server_default=sa.text("0")),
    sa.Column("restarts", Whole, nullable=False, default=0, server_default=sa.text("0")),
    sa.Column("max_runtime", Real),  # seconds
    sa.Column("lease_owner", Text),
    sa.Column("lease_epoch", Whole, nullable=False, default=0, server_default=sa.text("0")),
    sa.Column("lease_until", Whole),
    sa.Column("heartbeat_at", Whole),
    sa.Column("last_step_at", Whole),
    sa.Column("desired", Text, nullable=False, default="run", server_default=sa.text("'run'")),
    sa.Column("deadline", Whole),  # of the state; the lease is another
    sa.Column("exit_code", Whole),
    sa.Column("deleted_at", Whole),
    sa.UniqueConstraint("id"),
    sa.CheckConstraint(
        "state IN ('created','queued','starting','running','pausing','paused','cancelling','cancelled','finishing',"
        "'finished','lost','interrupted','failed')",
        name="state",
    ),
    sa.CheckConstraint("desired IN ('run','pause','cancel')", name="desired"),
    sa.CheckConstraint(
        "(ended IS NOT NULL) = (state IN ('cancelled','finished','interrupted','failed'))", name="ended"
    ),
    sa.Index(None, "created", "pk"),
    sa.Index(None, "state", "created"),
    sa.Index(None, "state", "priority", "pk"),
    sa.Index(None, "state", "lease_until"),
    sa.Index(None, "reward_digest"),
    sa.Index(None, "project", "created", "pk"),
    sqlite_strict=True,
)

run_label = sa.Table(
    "run_label",
    metadata,
    _run(primary_key=True),
    sa.Column("kind", Text, primary_key=True),  # param: of the recipe, flattened; tag: set by people
    sa.Column("key", Text, primary_key=True),
    sa.Column("text", Text, nullable=False),
    sa.Column("number", Real),  # where the text is one
    sa.CheckConstraint("kind IN ('param','tag')", name="kind"),
    sa.Index(None, "kind", "key", "text", "run_pk"),
    sa.Index(None, "kind", "key", "number", "run_pk"),
    _of_run(),
    sqlite_strict=True,
    sqlite_with_rowid=False,
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
    sa.Column("epoch", Whole, nullable=False, default=0, server_default=sa.text("0")),
    sa.Column("owner", Text, nullable=False, default="", server_default=sa.text("''")),
    sa.Column("environment_digest", Text),
    sa.Column("model_digest", Text),
    sa.Column("from_checkpoint", Text),  # digest
    sa.Column("to_step", Whole),  # the first that it did not take; set with its end
    sa.Index(None, "reward_digest"),
    sa.Index(None, "environment_digest"),
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
    sa.Column(
        "digest", Text, nullable=False, default="", server_default=sa.text("''")
    ),  # over this event and the digest before it
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
    sa.Column("key_pk", Whole, primary_key=True),
    sa.Column("segment", Whole, primary_key=True),
    sa.Column("step", Whole, primary_key=True),
    sa.Column("at", Whole, nullable=False),
    sa.Column("value", Real),  # NULL is NaN: SQLite has no other
    # No foreign keys: see runs/ingest.py.
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

metric_latest = sa.Table(
    "metric_latest",
    metadata,
    _run(primary_key=True),
    sa.Column("key_pk", Whole, primary_key=True),
    sa.Column("segment", Whole, nullable=False),
    sa.Column("step", Whole, nullable=False),
    sa.Column("at", Whole, nullable=False),
    sa.Column("value", Real),
    sa.Column("least", Real),  # of those that are numbers
    sa.Column("most", Real),
    sa.Index(None, "key_pk", "value", "run_pk"),
    _of_run(),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

metric_series = sa.Table(
    "metric_series",
    metadata,
    _run(primary_key=True),
    sa.Column("key_pk", Whole, primary_key=True),
    sa.Column("segment", Whole, primary_key=True),
    sa.Column("points", Whole, nullable=False),
    sa.Column("digest", Whole, nullable=False),  # the points' fingerprints, XORed
    # Rollups of steps below are good.
    sa.Column("rolled", Whole, nullable=False, default=0, server_default=sa.text("0")),
    _of_segment(),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

metric_rollup = sa.Table(
    "metric_rollup",
    metadata,
    _run(primary_key=True),
    sa.Column("key_pk", Whole, primary_key=True),
    sa.Column("segment", Whole, primary_key=True),
    sa.Column("level", Whole, primary_key=True),  # a bucket has 2**level steps
    sa.Column("bucket", Whole, primary_key=True),  # step >> level
    sa.Column("first_step", Whole, nullable=False),
    sa.Column("last_step", Whole, nullable=False),
    sa.Column("count", Whole, nullable=False),  # of those that are numbers, as what follows
    sa.Column("total", Real),
    sa.Column("least", Real),
    sa.Column("most", Real),
    sa.Column("last", Real),  # of the last step, NULL if NaN
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

part_index = sa.Table(
    "part_index",
    metadata,
    _run(primary_key=True),
    sa.Column("path", Text, primary_key=True),  # of data_part; one that has no row here is opened to be asked
    sa.Column("statuses", Json, nullable=False),  # rows by status of the first member; "": nothing was judged
    sa.Column("ids", Bytes, nullable=False),  # of rollouts, as runs/bloom.py makes it
    _of_run(),
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


# ---- what a run was made of: everything by digest ----------------------------------------------------------------

blob = sa.Table(
    "blob",
    metadata,
    sa.Column("digest", Text, primary_key=True),
    sa.Column("media_type", Text, nullable=False),
    sa.Column("size", Whole, nullable=False),
    sa.Column("content", Bytes, nullable=False),
    sa.Column("created", Whole, nullable=False),
    sqlite_strict=True,
)

verifier = sa.Table(
    "verifier",
    metadata,
    _key(),
    sa.Column("name", Text, nullable=False),
    sa.Column("kind", Text, nullable=False),
    sa.Column("created", Whole, nullable=False),
    sa.UniqueConstraint("name"),
    sqlite_strict=True,
)

verifier_version = sa.Table(
    "verifier_version",
    metadata,
    sa.Column("digest", Text, primary_key=True),
    sa.Column("version", Text, nullable=False),  # as its author calls it
    sa.Column("code", Text, nullable=False),
    sa.Column("config", Text, nullable=False),
    sa.Column("deps", Json, nullable=False),  # name==version -> digest of its files
    sa.Column("weights", Text, nullable=False),
    sa.Column("abi", Text, nullable=False),
    sa.Column("args", Json, nullable=False),
    sa.Column("source", Text),  # blob of the canonical source by place, JSON
    sa.Column("deterministic", Whole, nullable=False, default=1),
    sa.Column("status", Text, nullable=False, default="active"),
    sa.Column("status_reason", Text, nullable=False, default=""),
    sa.Column("status_at", Whole),
    sa.Column("status_by", Text, nullable=False, default=""),
    sa.Column("created", Whole, nullable=False),
    sa.CheckConstraint("status IN ('active','deprecated','quarantined')", name="status"),
    sa.ForeignKeyConstraint(["source"], ["blob.digest"]),
    sqlite_strict=True,
)

verifier_release = sa.Table(
    "verifier_release",
    metadata,
    sa.Column("verifier_pk", Whole, sa.ForeignKey("verifier.pk"), primary_key=True),
    sa.Column("ordinal", Whole, primary_key=True),
    sa.Column("version_digest", Text, sa.ForeignKey("verifier_version.digest"), nullable=False),
    sa.UniqueConstraint("verifier_pk", "version_digest"),
    sa.Index(None, "version_digest"),
    sqlite_strict=True,
)

verifier_observation = sa.Table(
    "verifier_observation",
    metadata,
    _key(),
    sa.Column("version_digest", Text, sa.ForeignKey("verifier_version.digest"), nullable=False),
    sa.Column("environment_digest", Text, nullable=False),
    sa.Column("canary_digest", Text, nullable=False),
    sa.Column("behaviour_digest", Text, nullable=False),
    sa.Column("cases", Whole, nullable=False),
    sa.Column("scored", Whole, nullable=False),
    sa.Column("errors", Whole, nullable=False),
    sa.Column("timeouts", Whole, nullable=False),
    sa.Column("seen_at", Whole, nullable=False),
    sa.Column("run_id", Text),
    sa.Column("vector", Text),  # blob of [case, status, score] rows, JSON
    sa.Index(None, "version_digest", "canary_digest", "seen_at"),
    sqlite_strict=True,
)

reward_spec = sa.Table(
    "reward_spec",
    metadata,
    sa.Column("digest", Text, primary_key=True),
    sa.Column("spec", Json, nullable=False),
    sa.Column("created", Whole, nullable=False),
    sqlite_strict=True,
)

reward_member = sa.Table(
    "reward_member",
    metadata,
    sa.Column("reward_digest", Text, sa.ForeignKey("reward_spec.digest"), primary_key=True),
    sa.Column("position", Whole, primary_key=True),
    sa.Column("label", Text, nullable=False),
    sa.Column("verifier", Text, nullable=False),
    sa.Column("version_digest", Text, sa.ForeignKey("verifier_version.digest"), nullable=False),
    sa.Column("role", Text, nullable=False),
    sa.Column("weight", Real, nullable=False),
    sa.Index(None, "version_digest"),
    sqlite_strict=True,
)

dataset_version = sa.Table(
    "dataset_version",
    metadata,
    sa.Column("digest", Text, primary_key=True),
    sa.Column("name", Text, nullable=False),
    sa.Column("split", Text, nullable=False),
    sa.Column("rows", Whole, nullable=False),
    sa.Column("manifest", Json, nullable=False),
    sa.Column("created", Whole, nullable=False),
    sa.Index(None, "name", "created"),
    sqlite_strict=True,
)

model_version = sa.Table(
    "model_version",
    metadata,
    sa.Column("digest", Text, primary_key=True),
    sa.Column("name", Text, nullable=False),
    sa.Column("manifest", Json, nullable=False),
    sa.Column("created", Whole, nullable=False),
    sqlite_strict=True,
)

environment = sa.Table(
    "environment",
    metadata,
    sa.Column("digest", Text, primary_key=True),
    sa.Column("attrs", Json, nullable=False),
    sa.Column("git_commit", Text, nullable=False),
    sa.Column("patch", Text, sa.ForeignKey("blob.digest")),
    sa.Column("created", Whole, nullable=False),
    sa.Index(None, "git_commit"),
    sqlite_strict=True,
)

edge = sa.Table(
    "edge",
    metadata,
    sa.Column("src_kind", Text, primary_key=True),
    sa.Column("src", Text, primary_key=True),
    sa.Column("dst_kind", Text, primary_key=True),
    sa.Column("dst", Text, primary_key=True),
    sa.Column("role", Text, primary_key=True),
    sa.Column("run_id", Text, nullable=False, default="", server_default=sa.text("''")),
    sa.Column("at", Whole, nullable=False),
    sa.Index(None, "dst_kind", "dst"),
    sa.Index(None, "run_id"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

# ---- the service -------------------------------------------------------------------------------------------------

command = sa.Table(
    "command",
    metadata,
    _key(),
    _run(),
    sa.Column("kind", Text, nullable=False),
    sa.Column("args", Json, nullable=False),
    sa.Column("at", Whole, nullable=False),
    sa.Column("by", Text, nullable=False),
    sa.Column("acked_at", Whole),
    sa.Column("result", Text),
    sa.CheckConstraint("kind IN ('pause','resume','cancel','checkpoint')", name="kind"),
    sa.Index(None, "run_pk", "acked_at"),
    _of_run(),
    sqlite_strict=True,
)

api_key = sa.Table(
    "api_key",
    metadata,
    sa.Column("key_id", Text, primary_key=True),
    sa.Column("secret_sha256", Text, nullable=False),
    sa.Column("name", Text, nullable=False),
    sa.Column("scopes", Json, nullable=False),
    sa.Column("run_id", Text),  # a run token: good for this run and epoch alone
    sa.Column("epoch", Whole),
    sa.Column("created", Whole, nullable=False),
    sa.Column("expires", Whole),
    sa.Column("last_used", Whole),
    sa.Column("revoked_at", Whole),
    sa.Index(None, "run_id"),
    sqlite_strict=True,
)

idempotency = sa.Table(
    "idempotency",
    metadata,
    sa.Column("principal", Text, primary_key=True),
    sa.Column("key", Text, primary_key=True),
    sa.Column("route", Text, nullable=False),
    sa.Column("body_sha256", Text, nullable=False),
    sa.Column("status", Whole),  # NULL while the first request is in flight
    sa.Column("headers", Json),
    sa.Column("body", Bytes),
    sa.Column("created", Whole, nullable=False),
    sa.Column("expires", Whole, nullable=False),
    sa.Index(None, "expires"),
    sqlite_strict=True,
)

audit = sa.Table(
    "audit",
    metadata,
    _key(),
    sa.Column("at", Whole, nullable=False),
    sa.Column("principal", Text, nullable=False),
    sa.Column("action", Text, nullable=False),
    sa.Column("target", Text, nullable=False),
    sa.Column("request_id", Text, nullable=False),
    sa.Column("outcome", Text, nullable=False),
    sa.Index(None, "at"),
    sqlite_strict=True,
)

rescore = sa.Table(
    "rescore",
    metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("from_version", Text, nullable=False),
    sa.Column("to_version", Text, nullable=False),
    sa.Column("selection", Json, nullable=False),  # runs, filter and sample, as asked
    sa.Column("state", Text, nullable=False),
    sa.Column("detail", Text, nullable=False, default="", server_default=sa.text("''")),  # why it failed
    sa.Column("done", Whole, nullable=False, default=0),  # samples, of ``total``
    sa.Column("total", Whole),
    sa.Column("lease_owner", Text),
    sa.Column("lease_until", Whole),
    sa.Column("report", Text),  # digest of the blob
    sa.Column("verdict", Text),
    sa.Column("created", Whole, nullable=False),
    sa.Column("created_by", Text, nullable=False, default=""),
    sa.Column("ended", Whole),
    sa.CheckConstraint("state IN ('queued','running','interrupted','finished','failed')", name="state"),
    sa.CheckConstraint("verdict IN ('compatible','minor','breaking')", name="verdict"),
    sa.ForeignKeyConstraint(["report"], ["blob.digest"]),
    sa.Index(None, "from_version"),
    sa.Index(None, "to_version"),
    sqlite_strict=True,
)

alarm = sa.Table(
    "alarm",
    metadata,
    _key(),
    _run(),
    sa.Column("rule", Text, nullable=False),
    sa.Column("version", Text, nullable=False, default=""),  # of the verifier that it is about, if of one
    sa.Column("severity", Text, nullable=False),
    sa.Column("stage", Text, nullable=False, default=""),
    sa.Column("first_step", Whole, nullable=False),
    sa.Column("last_step", Whole, nullable=False),
    sa.Column("state", Text, nullable=False),
    sa.Column("evidence", Json, nullable=False),
    sa.Column("opened", Whole, nullable=False),
    sa.Column("closed", Whole),
    sa.Column("acked_by", Text),
    sa.CheckConstraint("state IN ('open','acked','closed')", name="state"),
    sa.CheckConstraint("severity IN ('info','warning','critical')", name="severity"),
    sa.CheckConstraint("(closed IS NOT NULL) = (state = 'closed')", name="closed"),
    sa.Index(
        "ux_alarm_open",
        "run_pk",
        "rule",
        "version",
        unique=True,
        sqlite_where=sa.text("state <> 'closed'"),
        postgresql_where=sa.text("state <> 'closed'"),
    ),
    sa.Index(None, "run_pk", "first_step"),
    _of_run(),
    sqlite_strict=True,
)

APPEND_ONLY = ("run_event", "audit")
"""Tables whose rows a trigger keeps from being changed or deleted."""


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
