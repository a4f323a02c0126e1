"""Runs, segments, events, metrics, checkpoints, evaluations, the catalogue of Parquet parts, verdict statistics."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql


revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
REAL: sa.types.TypeEngine[float] = sa.Double().with_variant(sa.REAL(), "sqlite")
TEXT = sa.Text()
JSON = sa.Text().with_variant(postgresql.JSONB(), "postgresql")

AT_STEP = {"metric_point": "r.step", "data_part": "r.step_min", "verdict_stat": "r.step"}
"""Tables of facts about a step, with the step."""
AT_VERSION = {"checkpoint": "r.step - 1", "evaluation": "r.step - 1"}
"""Tables of facts about a policy version, which the step before it made."""

CANONICAL = """
CREATE VIEW canonical_{table} AS
SELECT r.*, s.stage, s.stage_index FROM {table} r JOIN segment s ON s.run_pk = r.run_pk AND s.no = r.segment
WHERE NOT EXISTS (
  SELECT 1 FROM segment t WHERE t.run_pk = r.run_pk AND t.no > r.segment
  AND (t.stage_index < s.stage_index OR (t.stage_index = s.stage_index AND t.first_step <= {step}))
)
"""


def upgrade() -> None:
    op.create_table(
        "metric_key",
        sa.Column("pk", WHOLE, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("pk", name="pk_metric_key"),
        sa.UniqueConstraint("name", name="uq_metric_key_name"),
        sqlite_strict=True,
    )
    op.create_table(
        "run",
        sa.Column("pk", WHOLE, nullable=False),
        sa.Column("id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("detail", TEXT, nullable=False),
        sa.Column("version", WHOLE, nullable=False),
        sa.Column("recipe", JSON, nullable=False),
        sa.Column("recipe_digest", TEXT, nullable=False),
        sa.Column("reward_digest", TEXT, nullable=False),
        sa.Column("meta", JSON, nullable=False),
        sa.Column("created", WHOLE, nullable=False),
        sa.Column("started", WHOLE, nullable=True),
        sa.Column("ended", WHOLE, nullable=True),
        sa.CheckConstraint(
            "state IN ('created','running','paused','interrupted','failed','finished')", name="ck_run_state"
        ),
        sa.PrimaryKeyConstraint("pk", name="pk_run"),
        sa.UniqueConstraint("id", name="uq_run_id"),
        sqlite_strict=True,
    )
    op.create_index("ix_run_created_pk", "run", ["created", "pk"])
    op.create_index("ix_run_reward_digest", "run", ["reward_digest"])
    op.create_index("ix_run_state_created", "run", ["state", "created"])

    op.create_table(
        "run_event",
        sa.Column("run_pk", WHOLE, nullable=False),
        sa.Column("seq", WHOLE, nullable=False),
        sa.Column("uid", TEXT, nullable=False),
        sa.Column("segment", WHOLE, nullable=True),
        sa.Column("at", WHOLE, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("payload", JSON, nullable=False),
        sa.ForeignKeyConstraint(["run_pk"], ["run.pk"], name="fk_run_event_run_pk"),
        sa.PrimaryKeyConstraint("run_pk", "seq", name="pk_run_event"),
        sa.UniqueConstraint("run_pk", "uid", name="uq_run_event_run_pk_uid"),
        sqlite_strict=True,
    )
    op.create_table(
        "segment",
        sa.Column("run_pk", WHOLE, nullable=False),
        sa.Column("no", WHOLE, nullable=False),
        sa.Column("stage", TEXT, nullable=False),
        sa.Column("stage_index", WHOLE, nullable=False),
        sa.Column("first_step", WHOLE, nullable=False),
        sa.Column("started", WHOLE, nullable=False),
        sa.Column("ended", WHOLE, nullable=True),
        sa.Column("ending", TEXT, nullable=False),
        sa.Column("host", TEXT, nullable=False),
        sa.Column("pid", WHOLE, nullable=False),
        sa.Column("reward_digest", TEXT, nullable=False),
        sa.Column("versions", JSON, nullable=False),
        sa.ForeignKeyConstraint(["run_pk"], ["run.pk"], name="fk_segment_run_pk"),
        sa.PrimaryKeyConstraint("run_pk", "no", name="pk_segment"),
        sqlite_strict=True,
    )
    op.create_index("ix_segment_reward_digest", "segment", ["reward_digest"])

    op.create_table(
        "checkpoint",
        sa.Column("pk", WHOLE, nullable=False),
        sa.Column("run_pk", WHOLE, nullable=False),
        sa.Column("segment", WHOLE, nullable=False),
        sa.Column("step", WHOLE, nullable=False),
        sa.Column("digest", TEXT, nullable=False),
        sa.Column("path", TEXT, nullable=False),
        sa.Column("parent", TEXT, nullable=False),
        sa.Column("meta", JSON, nullable=False),
        sa.Column("at", WHOLE, nullable=False),
        sa.ForeignKeyConstraint(["run_pk", "segment"], ["segment.run_pk", "segment.no"], name="fk_checkpoint_run_pk"),
        sa.PrimaryKeyConstraint("pk", name="pk_checkpoint"),
        sa.UniqueConstraint("run_pk", "segment", "step", "digest", name="uq_checkpoint_run_pk_segment_step_digest"),
        sqlite_strict=True,
    )
    op.create_index("ix_checkpoint_digest", "checkpoint", ["digest"])

    op.create_table(
        "data_part",
        sa.Column("pk", WHOLE, nullable=False),
        sa.Column("run_pk", WHOLE, nullable=False),
        sa.Column("segment", WHOLE, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("step_min", WHOLE, nullable=False),
        sa.Column("step_max", WHOLE, nullable=False),
        sa.Column("path", TEXT, nullable=False),
        sa.Column("digest", TEXT, nullable=False),
        sa.Column("rows", WHOLE, nullable=False),
        sa.Column("bytes", WHOLE, nullable=False),
        sa.Column("schema_version", WHOLE, nullable=False),
        sa.Column("at", WHOLE, nullable=False),
        sa.ForeignKeyConstraint(["run_pk", "segment"], ["segment.run_pk", "segment.no"], name="fk_data_part_run_pk"),
        sa.PrimaryKeyConstraint("pk", name="pk_data_part"),
        sa.UniqueConstraint("run_pk", "path", name="uq_data_part_run_pk_path"),
        sqlite_strict=True,
    )
    op.create_index("ix_data_part_run_pk_kind_step_min", "data_part", ["run_pk", "kind", "step_min"])

    op.create_table(
        "evaluation",
        sa.Column("pk", WHOLE, nullable=False),
        sa.Column("run_pk", WHOLE, nullable=False),
        sa.Column("segment", WHOLE, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("step", WHOLE, nullable=False),
        sa.Column("accuracy", REAL, nullable=True),
        sa.Column("result", JSON, nullable=False),
        sa.Column("at", WHOLE, nullable=False),
        sa.ForeignKeyConstraint(["run_pk", "segment"], ["segment.run_pk", "segment.no"], name="fk_evaluation_run_pk"),
        sa.PrimaryKeyConstraint("pk", name="pk_evaluation"),
        sa.UniqueConstraint("run_pk", "segment", "name", "step", name="uq_evaluation_run_pk_segment_name_step"),
        sqlite_strict=True,
    )
    op.create_table(
        "metric_point",
        sa.Column("run_pk", WHOLE, nullable=False),
        sa.Column("key_pk", WHOLE, nullable=False),
        sa.Column("segment", WHOLE, nullable=False),
        sa.Column("step", WHOLE, nullable=False),
        sa.Column("at", WHOLE, nullable=False),
        sa.Column("value", REAL, nullable=True),
        sa.ForeignKeyConstraint(["key_pk"], ["metric_key.pk"], name="fk_metric_point_key_pk"),
        sa.ForeignKeyConstraint(["run_pk", "segment"], ["segment.run_pk", "segment.no"], name="fk_metric_point_run_pk"),
        sa.PrimaryKeyConstraint("run_pk", "key_pk", "segment", "step", name="pk_metric_point"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "verdict_stat",
        sa.Column("run_pk", WHOLE, nullable=False),
        sa.Column("segment", WHOLE, nullable=False),
        sa.Column("step", WHOLE, nullable=False),
        sa.Column("member", TEXT, nullable=False),
        sa.Column("verifier", TEXT, nullable=False),
        sa.Column("version_digest", TEXT, nullable=False),
        sa.Column("n", WHOLE, nullable=False),
        sa.Column("scored", WHOLE, nullable=False),
        sa.Column("score_sum", REAL, nullable=False),
        sa.Column("seconds_sum", REAL, nullable=False),
        sa.Column("seconds_max", REAL, nullable=False),
        sa.Column("statuses", JSON, nullable=False),
        sa.ForeignKeyConstraint(["run_pk", "segment"], ["segment.run_pk", "segment.no"], name="fk_verdict_stat_run_pk"),
        sa.PrimaryKeyConstraint(
            "run_pk", "segment", "step", "member", "verifier", "version_digest", name="pk_verdict_stat"
        ),
        sqlite_strict=True,
    )
    op.create_index("ix_verdict_stat_version_digest", "verdict_stat", ["version_digest"])

    for table, step in (AT_STEP | AT_VERSION).items():
        op.execute(CANONICAL.format(table=table, step=step))


def downgrade() -> None:
    for table in AT_STEP | AT_VERSION:
        op.execute(f"DROP VIEW canonical_{table}")
    op.drop_index("ix_verdict_stat_version_digest", "verdict_stat")

    op.drop_table("verdict_stat")
    op.drop_table("metric_point")
    op.drop_table("evaluation")
    op.drop_index("ix_data_part_run_pk_kind_step_min", "data_part")

    op.drop_table("data_part")
    op.drop_index("ix_checkpoint_digest", "checkpoint")

    op.drop_table("checkpoint")
    op.drop_index("ix_segment_reward_digest", "segment")

    op.drop_table("segment")
    op.drop_table("run_event")
    op.drop_index("ix_run_state_created", "run")
    op.drop_index("ix_run_reward_digest", "run")
    op.drop_index("ix_run_created_pk", "run")

    op.drop_table("run")
    op.drop_table("metric_key")
