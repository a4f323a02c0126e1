"""Series of metric points with a digest each, their rollups, and points without foreign keys; runs that were left running
before there were leases get one that has lapsed, so that the reaper ends them.

Points of before are counted and fingerprinted here.
"""

from typing import Any

import numpy as np
import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
REAL: sa.types.TypeEngine[float] = sa.Double().with_variant(sa.REAL(), "sqlite")

VIEW = """
CREATE VIEW canonical_metric_point AS
SELECT r.*, s.stage, s.stage_index FROM metric_point r JOIN segment s ON s.run_pk = r.run_pk AND s.no = r.segment
WHERE NOT EXISTS (
  SELECT 1 FROM segment t WHERE t.run_pk = r.run_pk AND t.no > r.segment
  AND (t.stage_index < s.stage_index OR (t.stage_index = s.stage_index AND t.first_step <= r.step))
)
"""
KEYS = {
    "fk_metric_point_key_pk": ("metric_key", ["key_pk"], ["pk"]),
    "fk_metric_point_run_pk": ("segment", ["run_pk", "segment"], ["run_pk", "no"]),
}
"""Foreign keys of a point in 0001."""
CHUNK = 100_000
"""Points read at once."""


def upgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    if postgres:
        for name in KEYS:
            op.drop_constraint(op.f(name), "metric_point", type_="foreignkey")
    else:
        _make_points([])
    op.create_table(
        "metric_series",
        *_wholes("run_pk", "key_pk", "segment"),
        *_wholes("points", "digest"),
        sa.Column("rolled", WHOLE, server_default=sa.text("0"), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_pk", "segment"], ["segment.run_pk", "segment.no"], name="fk_metric_series_run_pk"
        ),
        sa.PrimaryKeyConstraint("run_pk", "key_pk", "segment", name="pk_metric_series"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "metric_rollup",
        *_wholes("run_pk", "key_pk", "segment", "level", "bucket", "first_step", "last_step", "count"),
        *(sa.Column(name, REAL, nullable=True) for name in ("total", "least", "most", "last")),
        sa.ForeignKeyConstraint(
            ["run_pk", "segment"], ["segment.run_pk", "segment.no"], name="fk_metric_rollup_run_pk"
        ),
        sa.PrimaryKeyConstraint("run_pk", "key_pk", "segment", "level", "bucket", name="pk_metric_rollup"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    _fill()
    op.execute(
        "UPDATE run SET lease_owner = 'a process of before there were leases', lease_until = 0 "
        "WHERE state = 'running' AND lease_until IS NULL"
    )


def _wholes(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, WHOLE, nullable=False) for name in names]


def _make_points(keys: list[sa.ForeignKeyConstraint]) -> None:
    """SQLite cannot add or drop a foreign key: the table is made anew, in the order of its key."""
    columns = ("run_pk", "key_pk", "segment", "step", "at")
    op.execute("DROP VIEW canonical_metric_point")
    op.create_table(
        "metric_point_new",
        *_wholes(*columns),
        sa.Column("value", REAL, nullable=True),
        *keys,
        sa.PrimaryKeyConstraint(*columns[:4], name="pk_metric_point"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.execute(
        "INSERT INTO metric_point_new SELECT run_pk, key_pk, segment, step, at, value FROM metric_point "
        "ORDER BY run_pk, key_pk, segment, step"
    )
    op.drop_table("metric_point")
    op.rename_table("metric_point_new", "metric_point")
    op.execute(VIEW)


def _fingerprints(parts: list[Any]) -> Any:
    """As of this schema: splitmix64 over segment, step, time and value."""
    made = np.zeros(len(parts[0]), np.uint64)
    for part in parts:
        made = made + part.view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        made = (made ^ (made >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        made = (made ^ (made >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        made ^= made >> np.uint64(31)
    return made


def _fill() -> None:
    found: dict[tuple[int, int, int], tuple[int, int]] = {}
    query = sa.text("SELECT run_pk, key_pk, segment, step, at, value FROM metric_point")
    result = op.get_bind().execute(query, execution_options={"stream_results": True})
    while rows := result.fetchmany(CHUNK):
        *wholes, values = zip(*rows, strict=True)
        run, key, segment, step, at = (np.array(column, np.int64) for column in wholes)
        real = np.array([np.nan if value is None else value for value in values], np.float64) + 0.0
        order = np.lexsort((segment, key, run))
        of = np.stack([run, key, segment])[:, order]
        begin = np.flatnonzero(np.r_[True, (of[:, 1:] != of[:, :-1]).any(0)])
        counts = np.diff(np.r_[begin, len(run)])
        digests = np.bitwise_xor.reduceat(_fingerprints([segment, step, at, real])[order], begin).view(np.int64)
        for *where, count, digest in zip(*of[:, begin].tolist(), counts.tolist(), digests.tolist(), strict=True):
            before = found.get(tuple(where), (0, 0))
            found[tuple(where)] = (before[0] + count, before[1] ^ digest)
    if found:
        op.get_bind().execute(
            sa.text("INSERT INTO metric_series (run_pk, key_pk, segment, points, digest) VALUES (:r, :k, :s, :n, :d)"),
            [{"r": r, "k": k, "s": s, "n": n, "d": d} for (r, k, s), (n, d) in found.items()],
        )


def downgrade() -> None:
    op.drop_table("metric_rollup")
    op.drop_table("metric_series")
    if op.get_bind().dialect.name == "postgresql":
        for name, (table, local, remote) in KEYS.items():
            op.create_foreign_key(op.f(name), "metric_point", table, local, remote)
    else:
        _make_points([
            sa.ForeignKeyConstraint(local, [f"{table}.{column}" for column in remote], name=name)
            for name, (table, local, remote) in KEYS.items()
        ])  # fmt: skip
