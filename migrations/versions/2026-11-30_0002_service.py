"""Leases, commands, labels and latest metrics of runs; verifiers, rewards, data sets, models and environments by digest;
edges between them; keys, idempotency and audit of the service; a hash chain over events; triggers for what never changes.

Runs of before get their edges from what their segments and checkpoints say, and their events a chain.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
REAL: sa.types.TypeEngine[float] = sa.Double().with_variant(sa.REAL(), "sqlite")
TEXT = sa.Text()
JSON = sa.Text().with_variant(postgresql.JSONB(), "postgresql")

STATES = (
    "state IN ('created','queued','starting','running','pausing','paused','cancelling','cancelled','finishing',"
    "'finished','lost','interrupted','failed')"
)
DESIRED = "desired IN ('run','pause','cancel')"
ENDED = "(ended IS NOT NULL) = (state IN ('cancelled','finished','interrupted','failed'))"
STATE_CHECK_BEFORE = "ck_run_ck_run_state"  # 0001 gave a name to which the naming convention added its own
STATES_BEFORE = "state IN ('created','running','paused','interrupted','failed','finished')"

RUN_BEFORE = (
    "pk", "id", "name", "state", "detail", "version", "recipe", "recipe_digest", "reward_digest", "meta", "created",
    "started", "ended",
)  # fmt: skip


def run_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("project", TEXT, server_default=sa.text("''"), nullable=False),
        sa.Column("parent_run", TEXT, nullable=True),
        sa.Column("from_checkpoint", TEXT, nullable=True),
        sa.Column("priority", WHOLE, server_default=sa.text("0"), nullable=False),
        sa.Column("max_restarts", WHOLE, server_default=sa.text("0"), nullable=False),
        sa.Column("restarts", WHOLE, server_default=sa.text("0"), nullable=False),
        sa.Column("max_runtime", REAL, nullable=True),
        sa.Column("lease_owner", TEXT, nullable=True),
        sa.Column("lease_epoch", WHOLE, server_default=sa.text("0"), nullable=False),
        sa.Column("lease_until", WHOLE, nullable=True),
        sa.Column("heartbeat_at", WHOLE, nullable=True),
        sa.Column("last_step_at", WHOLE, nullable=True),
        sa.Column("desired", TEXT, server_default=sa.text("'run'"), nullable=False),
        sa.Column("deadline", WHOLE, nullable=True),
        sa.Column("exit_code", WHOLE, nullable=True),
        sa.Column("deleted_at", WHOLE, nullable=True),
    ]


def segment_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("epoch", WHOLE, server_default=sa.text("0"), nullable=False),
        sa.Column("owner", TEXT, server_default=sa.text("''"), nullable=False),
        sa.Column("environment_digest", TEXT, nullable=True),
        sa.Column("model_digest", TEXT, nullable=True),
        sa.Column("from_checkpoint", TEXT, nullable=True),
        sa.Column("to_step", WHOLE, nullable=True),
    ]


RUN_INDICES = {
    "ix_run_created_pk": ["created", "pk"],
    "ix_run_state_created": ["state", "created"],
    "ix_run_reward_digest": ["reward_digest"],
    "ix_run_state_priority_pk": ["state", "priority", "pk"],
    "ix_run_state_lease_until": ["state", "lease_until"],
    "ix_run_project_created_pk": ["project", "created", "pk"],
}
RUN_INDICES_BEFORE = ("ix_run_created_pk", "ix_run_state_created", "ix_run_reward_digest")

TRIGGERS = {
    "run_event_update": ("run_event", "UPDATE", "", ""),
    "run_event_delete": ("run_event", "DELETE", "", ""),
    "audit_update": ("audit", "UPDATE", "", ""),
    "audit_delete": ("audit", "DELETE", "", ""),
    "verifier_version_update": (
        "verifier_version", "UPDATE", "digest, version, code, config, deps, weights, abi, args, source, created",
        "OLD.code <> ''",  # one that an older schema knew by its digest alone is filled in once
    ),
    "run_over": ("run", "UPDATE", "state", "OLD.state IN ('finished','cancelled') AND NEW.state <> OLD.state"),
}  # fmt: skip
"""name -> (table, event, columns, condition): what never changes."""


def upgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    over = "'interrupted','failed','finished'"
    if postgres:
        for column in run_columns():
            op.add_column("run", column)
        op.execute(f"UPDATE run SET ended = CASE WHEN state IN ({over}) THEN COALESCE(ended, started, created) END")
        op.execute(f"ALTER TABLE run DROP CONSTRAINT {STATE_CHECK_BEFORE}")
        for name, text in (("state", STATES), ("desired", DESIRED), ("ended", ENDED)):
            op.create_check_constraint(op.f(f"ck_run_{name}"), "run", text)
        made = [name for name in RUN_INDICES if name not in RUN_INDICES_BEFORE]
    else:
        # SQLite cannot change a CHECK: the table is made anew, with foreign keys off (platform/db/upgrade.py).
        _make_run("run_new", run_columns(), {"state": STATES, "desired": DESIRED, "ended": ENDED})
        kept = ", ".join(RUN_BEFORE[:-1])
        op.execute(
            f"INSERT INTO run_new ({kept}, ended) SELECT {kept}, "
            f"CASE WHEN state IN ({over}) THEN COALESCE(ended, started, created) END FROM run"
        )
        op.drop_table("run")
        op.rename_table("run_new", "run")
        made = list(RUN_INDICES)
    for name in made:
        op.create_index(name, "run", RUN_INDICES[name])
    for column in segment_columns():
        op.add_column("segment", column)
    op.create_index("ix_segment_environment_digest", "segment", ["environment_digest"])
    op.add_column("run_event", sa.Column("digest", TEXT, server_default=sa.text("''"), nullable=False))
    _create_tables()
    _fill()
    _create_triggers(postgres)


def _make_run(name: str, more: list[sa.Column[Any]], checks: Mapping[str, str]) -> None:
    op.create_table(
        name,
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
        *more,
        *(sa.CheckConstraint(text, name=op.f(f"ck_run_{check}")) for check, text in checks.items()),
        sa.PrimaryKeyConstraint("pk", name="pk_run"),
        sa.UniqueConstraint("id", name="uq_run_id"),
        sqlite_strict=True,
    )


def _create_triggers(postgres: bool) -> None:
    if postgres:
        op.execute(
            "CREATE FUNCTION jurat_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "RAISE EXCEPTION '% never changes', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation'; END $$"
        )
    for name, (table, event, columns, when) in TRIGGERS.items():
        of = f" OF {columns}" if columns else ""
        condition = f" WHEN ({when})" if when else ""
        body = (
            f"FOR EACH ROW{condition} EXECUTE FUNCTION jurat_refuse()"
            if postgres
            else f"FOR EACH ROW{condition} BEGIN SELECT RAISE(ABORT, '{table} never changes'); END"
        )
        op.execute(f"CREATE TRIGGER {name} BEFORE {event}{of} ON {table} {body}")


# ---- what is known of runs of before -----------------------------------------------------------------------------


def _rows(query: str) -> Iterator[sa.RowMapping]:
    yield from op.get_bind().execute(sa.text(query)).mappings().all()


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _spelled(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _fill() -> None:
    bind = op.get_bind()
    json_type = "CAST(:{} AS JSONB)" if bind.dialect.name == "postgresql" else ":{}"

    def insert(table: str, row: Mapping[str, Any], *of_json: str) -> None:
        values = ", ".join(json_type.format(key) if key in of_json else f":{key}" for key in row)
        columns = ", ".join(f'"{key}"' for key in row)
        bind.execute(
            sa.text(f"INSERT INTO {table} ({columns}) VALUES ({values}) ON CONFLICT DO NOTHING"),
            {key: _spelled(value) if key in of_json else value for key, value in row.items()},
        )

    def edge(src_kind: str, src: str, dst_kind: str, dst: str, role: str, run_id: str, at: int) -> None:
        row = {"src_kind": src_kind, "src": src, "dst_kind": dst_kind, "dst": dst, "role": role}
        insert("edge", {**row, "run_id": run_id, "at": at})

    releases: dict[str, list[str]] = {}
    for row in _rows(
        "SELECT s.no, s.started, s.reward_digest, s.versions, r.id FROM segment s JOIN run r ON r.pk = s.run_pk "
        "ORDER BY s.started, s.run_pk, s.no"
    ):
        versions, at, run_id = _json(row["versions"]), row["started"], row["id"]
        here = f"{run_id}/{row['no']}"
        verifiers = versions.get("verifiers") or {}
        reward = row["reward_digest"]
        if reward:
            insert("reward_spec", {"digest": reward, "spec": {}, "created": at}, "spec")
            edge("reward_spec", reward, "segment", here, "reward", run_id, at)
        for position, (label, digest) in enumerate(verifiers.items()):
            name = re.sub(r"^problem:|[#+].*$", "", label) or label
            known = releases.setdefault(name, [])
            empty = {"version": "", "code": "", "config": "", "weights": "", "abi": "", "deterministic": 1}
            status = {"status": "active", "status_reason": "", "status_by": ""}
            insert("verifier", {"name": name, "kind": "", "created": at})
            insert(
                "verifier_version",
                {"digest": digest, **empty, **status, "deps": {}, "args": {}, "created": at}, "deps", "args",
            )  # fmt: skip
            if digest not in known:
                known.append(digest)
                pk = bind.execute(sa.text("SELECT pk FROM verifier WHERE name = :name"), {"name": name}).scalar()
                insert("verifier_release", {"verifier_pk": pk, "ordinal": len(known), "version_digest": digest})
            if reward:
                member = {"label": label, "verifier": name, "version_digest": digest, "role": "", "weight": 1.0}
                insert("reward_member", {"reward_digest": reward, "position": position, **member})
                edge("verifier_version", digest, "reward_spec", reward, f"member:{label}", "", at)
        manifests = versions.get("manifests") or {}
        for part, digest in (versions.get("datasets") or {}).items():
            manifest = manifests.get(part) or {}
            said = {"name": str(manifest.get("source", "")), "split": str(manifest.get("split", ""))}
            count = int(manifest.get("rows") or 0)
            insert(
                "dataset_version", {"digest": digest, **said, "rows": count, "manifest": manifest, "created": at},
                "manifest",
            )  # fmt: skip
            edge("dataset_version", digest, "segment", here, part, run_id, at)
        edge("segment", here, "run", run_id, "segment", run_id, at)
    for row in _rows(
        "SELECT c.segment, c.digest, c.parent, c.at, r.id FROM checkpoint c JOIN run r ON r.pk = c.run_pk ORDER BY c.pk"
    ):
        here = f"{row['id']}/{row['segment']}"
        edge("segment", here, "checkpoint", row["digest"], "generated", row["id"], row["at"])
        if row["parent"]:
            edge("checkpoint", row["parent"], "segment", here, "began", row["id"], row["at"])
    _chain()


def _chain() -> None:
    bind, before, run = op.get_bind(), "", None
    for row in _rows("SELECT run_pk, seq, uid, segment, at, kind, payload FROM run_event ORDER BY run_pk, seq"):
        before, run = ("", row["run_pk"]) if row["run_pk"] != run else (before, run)
        said = [before, row["seq"], row["uid"], row["segment"], row["at"], row["kind"], _number(_json(row["payload"]))]
        text = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        before = "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        bind.execute(
            sa.text("UPDATE run_event SET digest = :digest WHERE run_pk = :run_pk AND seq = :seq"),
            {"digest": before, "run_pk": row["run_pk"], "seq": row["seq"]},
        )


def _number(value: Any) -> Any:
    """One spelling of a number: PostgreSQL gives 1e22 back as a whole number."""
    if isinstance(value, float) and value.is_integer():
        return int(Decimal(repr(value)))
    if isinstance(value, dict):
        return {key: _number(item) for key, item in value.items()}
    return [_number(item) for item in value] if isinstance(value, list) else value


def downgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    for name, (table, *_) in TRIGGERS.items():
        op.execute(f"DROP TRIGGER {name} ON {table}" if postgres else f"DROP TRIGGER {name}")
    if postgres:
        op.execute("DROP FUNCTION jurat_refuse()")
    for table in TABLES:
        op.drop_table(table)
    op.drop_column("run_event", "digest")
    op.drop_index("ix_segment_environment_digest", "segment")
    for column in segment_columns():
        op.drop_column("segment", column.name)
    went = "CASE state WHEN 'finished' THEN 'finished' WHEN 'cancelled' THEN 'failed' WHEN 'paused' THEN 'paused' " \
           "WHEN 'interrupted' THEN 'interrupted' WHEN 'failed' THEN 'failed' WHEN 'created' THEN 'created' " \
           "WHEN 'queued' THEN 'created' ELSE 'running' END"  # fmt: skip
    for name in RUN_INDICES:
        op.drop_index(name, "run")
    if postgres:
        for check in ("state", "desired", "ended"):
            op.drop_constraint(op.f(f"ck_run_{check}"), "run")
        op.execute(f"UPDATE run SET state = {went}")
        op.create_check_constraint(op.f(STATE_CHECK_BEFORE), "run", STATES_BEFORE)
        for column in run_columns():
            op.drop_column("run", column.name)
    else:
        _make_run("run_new", [], {"ck_run_state": STATES_BEFORE})
        kept = ", ".join(RUN_BEFORE)
        op.execute(f"INSERT INTO run_new ({kept}) SELECT {kept.replace('state', went)} FROM run")
        op.drop_table("run")
        op.rename_table("run_new", "run")
    for name in RUN_INDICES_BEFORE:
        op.create_index(name, "run", RUN_INDICES[name])



def _create_tables() -> None:
    op.create_table(
        "api_key",
        sa.Column("key_id", TEXT, nullable=False),
        sa.Column("secret_sha256", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("scopes", JSON, nullable=False),
        sa.Column("run_id", TEXT, nullable=True),
        sa.Column("epoch", WHOLE, nullable=True),
        sa.Column("created", WHOLE, nullable=False),
        sa.Column("expires", WHOLE, nullable=True),
        sa.Column("last_used", WHOLE, nullable=True),
        sa.Column("revoked_at", WHOLE, nullable=True),
        sa.PrimaryKeyConstraint("key_id", name="pk_api_key"),
        sqlite_strict=True,
    )
    op.create_index("ix_api_key_run_id", "api_key", ["run_id"])
    op.create_table(
        "audit",
        sa.Column("pk", WHOLE, nullable=False),
        sa.Column("at", WHOLE, nullable=False),
        sa.Column("principal", TEXT, nullable=False),
        sa.Column("action", TEXT, nullable=False),
        sa.Column("target", TEXT, nullable=False),
        sa.Column("request_id", TEXT, nullable=False),
        sa.Column("outcome", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("pk", name="pk_audit"),
        sqlite_strict=True,
    )
    op.create_index("ix_audit_at", "audit", ["at"])
    op.create_table(
        "blob",
        sa.Column("digest", TEXT, nullable=False),
        sa.Column("media_type", TEXT, nullable=False),
        sa.Column("size", WHOLE, nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("created", WHOLE, nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_blob"),
        sqlite_strict=True,
    )
    op.create_table(
        "dataset_version",
        sa.Column("digest", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("split", TEXT, nullable=False),
        sa.Column("rows", WHOLE, nullable=False),
        sa.Column("manifest", JSON, nullable=False),
        sa.Column("created", WHOLE, nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_dataset_version"),
        sqlite_strict=True,
    )
    op.create_index("ix_dataset_version_name_created", "dataset_version", ["name", "created"])
    op.create_table(
        "edge",
        sa.Column("src_kind", TEXT, nullable=False),
        sa.Column("src", TEXT, nullable=False),
        sa.Column("dst_kind", TEXT, nullable=False),
        sa.Column("dst", TEXT, nullable=False),
        sa.Column("role", TEXT, nullable=False),
        sa.Column("run_id", TEXT, server_default=sa.text("''"), nullable=False),
        sa.Column("at", WHOLE, nullable=False),
        sa.PrimaryKeyConstraint("src_kind", "src", "dst_kind", "dst", "role", name="pk_edge"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index("ix_edge_dst_kind_dst", "edge", ["dst_kind", "dst"])
    op.create_index("ix_edge_run_id", "edge", ["run_id"])
    op.create_table(
        "idempotency",
        sa.Column("principal", TEXT, nullable=False),
        sa.Column("key", TEXT, nullable=False),
        sa.Column("route", TEXT, nullable=False),
        sa.Column("body_sha256", TEXT, nullable=False),
        sa.Column("status", WHOLE, nullable=True),
        sa.Column("headers", JSON, nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.Column("created", WHOLE, nullable=False),
        sa.Column("expires", WHOLE, nullable=False),
        sa.PrimaryKeyConstraint("principal", "key", name="pk_idempotency"),
        sqlite_strict=True,
    )
    op.create_index("ix_idempotency_expires", "idempotency", ["expires"])
    op.create_table(
        "model_version",
        sa.Column("digest", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("manifest", JSON, nullable=False),
        sa.Column("created", WHOLE, nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_model_version"),
        sqlite_strict=True,
    )
    op.create_table(
        "reward_spec",
        sa.Column("digest", TEXT, nullable=False),
        sa.Column("spec", JSON, nullable=False),
        sa.Column("created", WHOLE, nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_reward_spec"),
        sqlite_strict=True,
    )
    op.create_table(
        "verifier",
        sa.Column("pk", WHOLE, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("created", WHOLE, nullable=False),
        sa.PrimaryKeyConstraint("pk", name="pk_verifier"),
        sa.UniqueConstraint("name", name="uq_verifier_name"),
        sqlite_strict=True,
    )
    op.create_table(
        "command",
        sa.Column("pk", WHOLE, nullable=False),
        sa.Column("run_pk", WHOLE, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("args", JSON, nullable=False),
        sa.Column("at", WHOLE, nullable=False),
        sa.Column("by", TEXT, nullable=False),
        sa.Column("acked_at", WHOLE, nullable=True),
        sa.Column("result", TEXT, nullable=True),
        sa.CheckConstraint("kind IN ('pause','resume','cancel','checkpoint')", name=op.f("ck_command_kind")),
        sa.ForeignKeyConstraint(["run_pk"], ["run.pk"], name="fk_command_run_pk"),
        sa.PrimaryKeyConstraint("pk", name="pk_command"),
        sqlite_strict=True,
    )
    op.create_index("ix_command_run_pk_acked_at", "command", ["run_pk", "acked_at"])
    op.create_table(
        "environment",
        sa.Column("digest", TEXT, nullable=False),
        sa.Column("attrs", JSON, nullable=False),
        sa.Column("git_commit", TEXT, nullable=False),
        sa.Column("patch", TEXT, nullable=True),
        sa.Column("created", WHOLE, nullable=False),
        sa.ForeignKeyConstraint(["patch"], ["blob.digest"], name="fk_environment_patch"),
        sa.PrimaryKeyConstraint("digest", name="pk_environment"),
        sqlite_strict=True,
    )
    op.create_index("ix_environment_git_commit", "environment", ["git_commit"])
    op.create_table(
        "metric_latest",
        sa.Column("run_pk", WHOLE, nullable=False),
        sa.Column("key_pk", WHOLE, nullable=False),
        sa.Column("segment", WHOLE, nullable=False),
        sa.Column("step", WHOLE, nullable=False),
        sa.Column("at", WHOLE, nullable=False),
        sa.Column("value", REAL, nullable=True),
        sa.Column("least", REAL, nullable=True),
        sa.Column("most", REAL, nullable=True),
        sa.ForeignKeyConstraint(["run_pk"], ["run.pk"], name="fk_metric_latest_run_pk"),
        sa.PrimaryKeyConstraint("run_pk", "key_pk", name="pk_metric_latest"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index("ix_metric_latest_key_pk_value_run_pk", "metric_latest", ["key_pk", "value", "run_pk"])
    op.create_table(
        "run_label",
        sa.Column("run_pk", WHOLE, nullable=False),
        sa.Column("kind", TEXT, nullable=False),
        sa.Column("key", TEXT, nullable=False),
        sa.Column("text", TEXT, nullable=False),
        sa.Column("number", REAL, nullable=True),
        sa.CheckConstraint("kind IN ('param','tag')", name=op.f("ck_run_label_kind")),
        sa.ForeignKeyConstraint(["run_pk"], ["run.pk"], name="fk_run_label_run_pk"),
        sa.PrimaryKeyConstraint("run_pk", "kind", "key", name="pk_run_label"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index("ix_run_label_kind_key_number_run_pk", "run_label", ["kind", "key", "number", "run_pk"])
    op.create_index("ix_run_label_kind_key_text_run_pk", "run_label", ["kind", "key", "text", "run_pk"])
    op.create_table(
        "verifier_version",
        sa.Column("digest", TEXT, nullable=False),
        sa.Column("version", TEXT, nullable=False),
        sa.Column("code", TEXT, nullable=False),
        sa.Column("config", TEXT, nullable=False),
        sa.Column("deps", JSON, nullable=False),
        sa.Column("weights", TEXT, nullable=False),
        sa.Column("abi", TEXT, nullable=False),
        sa.Column("args", JSON, nullable=False),
        sa.Column("source", TEXT, nullable=True),
        sa.Column("deterministic", WHOLE, nullable=False),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("status_reason", TEXT, nullable=False),
        sa.Column("status_at", WHOLE, nullable=True),
        sa.Column("status_by", TEXT, nullable=False),
        sa.Column("created", WHOLE, nullable=False),
        sa.CheckConstraint("status IN ('active','deprecated','quarantined')", name=op.f("ck_verifier_version_status")),
        sa.ForeignKeyConstraint(["source"], ["blob.digest"], name="fk_verifier_version_source"),
        sa.PrimaryKeyConstraint("digest", name="pk_verifier_version"),
        sqlite_strict=True,
    )
    op.create_table(
        "reward_member",
        sa.Column("reward_digest", TEXT, nullable=False),
        sa.Column("position", WHOLE, nullable=False),
        sa.Column("label", TEXT, nullable=False),
        sa.Column("verifier", TEXT, nullable=False),
        sa.Column("version_digest", TEXT, nullable=False),
        sa.Column("role", TEXT, nullable=False),
        sa.Column("weight", REAL, nullable=False),
        sa.ForeignKeyConstraint(["reward_digest"], ["reward_spec.digest"], name="fk_reward_member_reward_digest"),
        sa.ForeignKeyConstraint(["version_digest"], ["verifier_version.digest"], name="fk_reward_member_version_digest"),
        sa.PrimaryKeyConstraint("reward_digest", "position", name="pk_reward_member"),
        sqlite_strict=True,
    )
    op.create_index("ix_reward_member_version_digest", "reward_member", ["version_digest"])
    op.create_table(
        "verifier_observation",
        sa.Column("pk", WHOLE, nullable=False),
        sa.Column("version_digest", TEXT, nullable=False),
        sa.Column("environment_digest", TEXT, nullable=False),
        sa.Column("canary_digest", TEXT, nullable=False),
        sa.Column("behaviour_digest", TEXT, nullable=False),
        sa.Column("cases", WHOLE, nullable=False),
        sa.Column("scored", WHOLE, nullable=False),
        sa.Column("errors", WHOLE, nullable=False),
        sa.Column("timeouts", WHOLE, nullable=False),
        sa.Column("seen_at", WHOLE, nullable=False),
        sa.Column("run_id", TEXT, nullable=True),
        sa.Column("vector", TEXT, nullable=True),
        sa.ForeignKeyConstraint(["version_digest"], ["verifier_version.digest"], name="fk_verifier_observation_version_digest"),
        sa.PrimaryKeyConstraint("pk", name="pk_verifier_observation"),
        sqlite_strict=True,
    )
    op.create_index("ix_verifier_observation_version_digest_canary_digest_seen_at", "verifier_observation", ["version_digest", "canary_digest", "seen_at"])
    op.create_table(
        "verifier_release",
        sa.Column("verifier_pk", WHOLE, nullable=False),
        sa.Column("ordinal", WHOLE, nullable=False),
        sa.Column("version_digest", TEXT, nullable=False),
        sa.ForeignKeyConstraint(["verifier_pk"], ["verifier.pk"], name="fk_verifier_release_verifier_pk"),
        sa.ForeignKeyConstraint(["version_digest"], ["verifier_version.digest"], name="fk_verifier_release_version_digest"),
        sa.PrimaryKeyConstraint("verifier_pk", "ordinal", name="pk_verifier_release"),
        sa.UniqueConstraint("verifier_pk", "version_digest", name="uq_verifier_release_verifier_pk_version_digest"),
        sqlite_strict=True,
    )
    op.create_index("ix_verifier_release_version_digest", "verifier_release", ["version_digest"])


TABLES = (
    "verifier_release",
    "verifier_observation",
    "reward_member",
    "verifier_version",
    "run_label",
    "metric_latest",
    "environment",
    "command",
    "verifier",
    "reward_spec",
    "model_version",
    "idempotency",
    "edge",
    "dataset_version",
    "blob",
    "audit",
    "api_key",
)
"""Newest first."""
