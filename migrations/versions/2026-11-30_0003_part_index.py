"""An index of the parts of rollouts: how many rows of each status, and which ids each may hold.

Parts of before have none; they are opened when they are asked for.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TEXT = sa.Text()
JSON = sa.Text().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "part_index",
        sa.Column("run_pk", WHOLE, nullable=False),
        sa.Column("path", TEXT, nullable=False),
        sa.Column("statuses", JSON, nullable=False),
        sa.Column("ids", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_pk"], ["run.pk"], name="fk_part_index_run_pk"),
        sa.PrimaryKeyConstraint("run_pk", "path", name="pk_part_index"),
        sqlite_strict=True,
    )


def downgrade() -> None:
    op.drop_table("part_index")
