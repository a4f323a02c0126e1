"""Alarms of runs, and finished rollouts scored again by another version of a verifier."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TEXT = sa.Text()
JSON = sa.Text().with_variant(postgresql.JSONB(), "postgresql")
OPEN = sa.text("state <> 'closed'")


def upgrade() -> None:
    op.create_table(
        "rescore",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("from_version", TEXT, nullable=False),
        sa.Column("to_version", TEXT, nullable=False),
        sa.Column("selection", JSON, nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("detail", TEXT, server_default=sa.text("''"), nullable=False),
        sa.Column("done", WHOLE, nullable=False),
        sa.Column("total", WHOLE, nullable=True),
        sa.Column("lease_owner", TEXT, nullable=True),
        sa.Column("lease_until", WHOLE, nullable=True),
        sa.Column("report", TEXT, nullable=True),
        sa.Column("verdict", TEXT, nullable=True),
        sa.Column("created", WHOLE, nullable=False),
        sa.Column("created_by", TEXT, nullable=False),
        sa.Column("ended", WHOLE, nullable=True),
        sa.CheckConstraint(
            "state IN ('queued','running','interrupted','finished','failed')", name=op.f("ck_rescore_state")
        ),
        sa.CheckConstraint("verdict IN ('compatible','minor','breaking')", name=op.f("ck_rescore_verdict")),
        sa.ForeignKeyConstraint(["report"], ["blob.digest"], name="fk_rescore_report"),
        sa.PrimaryKeyConstraint("id", name="pk_rescore"),
        sqlite_strict=True,
    )
    op.create_index("ix_rescore_from_version", "rescore", ["from_version"])
    op.create_index("ix_rescore_to_version", "rescore", ["to_version"])
    op.create_table(
        "alarm",
        sa.Column("pk", WHOLE, nullable=False),
        sa.Column("run_pk", WHOLE, nullable=False),
        sa.Column("rule", TEXT, nullable=False),
        sa.Column("version", TEXT, nullable=False),
        sa.Column("severity", TEXT, nullable=False),
        sa.Column("stage", TEXT, nullable=False),
        sa.Column("first_step", WHOLE, nullable=False),
        sa.Column("last_step", WHOLE, nullable=False),
        sa.Column("state", TEXT, nullable=False),
        sa.Column("evidence", JSON, nullable=False),
        sa.Column("opened", WHOLE, nullable=False),
        sa.Column("closed", WHOLE, nullable=True),
        sa.Column("acked_by", TEXT, nullable=True),
        sa.CheckConstraint("state IN ('open','acked','closed')", name=op.f("ck_alarm_state")),
        sa.CheckConstraint("severity IN ('info','warning','critical')", name=op.f("ck_alarm_severity")),
        sa.CheckConstraint("(closed IS NOT NULL) = (state = 'closed')", name=op.f("ck_alarm_closed")),
        sa.ForeignKeyConstraint(["run_pk"], ["run.pk"], name="fk_alarm_run_pk"),
        sa.PrimaryKeyConstraint("pk", name="pk_alarm"),
        sqlite_strict=True,
    )
    op.create_index(
        "ux_alarm_open", "alarm", ["run_pk", "rule", "version"], unique=True, sqlite_where=OPEN, postgresql_where=OPEN
    )
    op.create_index("ix_alarm_run_pk_first_step", "alarm", ["run_pk", "first_step"])


def downgrade() -> None:
    op.drop_table("alarm")
    op.drop_table("rescore")
