"""From every released schema, with data: nothing is lost, what was said becomes edges, and a fresh schema is the same."""

from __future__ import annotations

import json
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from databases import cut_short, upgrade_to
from jurat.platform.db import tables
from jurat.platform.db.engine import connect, reading, writing
from jurat.platform.db.upgrade import back_up, migrations_folder, refuse_other, revision, upgrade
from jurat.platform.errors import RunFailed, SchemaError
from jurat.platform.provenance import lineage, versions
from jurat.platform.provenance.records import Node, VerifierFacts
from jurat.platform.runs import events, ingest, leases
from jurat.platform.runs.store import Store

MATH, REWARD, DATA = ("sha256:" + c * 64 for c in "abc")
VERSIONS = {
    "reward": REWARD, "verifiers": {"problem:math": MATH, "length#2": "sha256:" + "d" * 64}, "datasets": {"train": DATA},
    "manifests": {"train": {"digest": DATA, "source": "gsm8k", "split": "train", "rows": 7473}},
}  # fmt: skip
RUN = (
    "pk",
    "id",
    "name",
    "state",
    "detail",
    "version",
    "recipe",
    "recipe_digest",
    "reward_digest",
    "meta",
    "created",
    "started",
    "ended",
)
SEGMENT = (
    "run_pk",
    "no",
    "stage",
    "stage_index",
    "first_step",
    "started",
    "ended",
    "ending",
    "host",
    "pid",
    "reward_digest",
    "versions",
)
ROWS: dict[str, tuple[tuple[str, ...], list[tuple[Any, ...]]]] = {
    "run": (RUN, [
        (1, "done", "tiny", "finished", "", 3, {"model": "m"}, "sha256:r", REWARD, {"verifiers": {"math": MATH}}, 10, 11, 30),
        (2, "live", "tiny", "running", "", 2, {}, "", REWARD, {}, 20, 21, None),
        (3, "stopped", "tiny", "paused", "", 2, {}, "", "", {}, 20, 21, None),
        (4, "bad", "tiny", "failed", "out of memory", 2, {}, "", "", {}, 20, 21, None),
    ]),
    "segment": (SEGMENT, [
        (1, 0, "", 0, 0, 11, 20, "ended", "h", 1, REWARD, VERSIONS),
        (1, 1, "", 0, 2, 21, 30, "ended", "h", 2, REWARD, VERSIONS),
        (2, 0, "", 0, 0, 21, None, "", "h", 3, REWARD, {}),
    ]),
    "run_event": (("run_pk", "seq", "uid", "segment", "at", "kind", "payload"), [
        (1, 1, "u1", None, 11, "state", {"from": "created", "to": "running", "detail": ""}),
        (1, 2, "u2", 0, 12, "note", {"big": 1e22, "half": 0.5, "none": None, "list": [1.0, "ünï"]}),
        (2, 1, "u1", None, 21, "state", {"from": "created", "to": "running"}),
    ]),
    "metric_key": (("pk", "name"), [(1, "loss")]),
    "metric_point": (("run_pk", "key_pk", "segment", "step", "at", "value"), [
        (1, 1, 0, step, 12, step / 2) for step in range(5)] + [(1, 1, 1, 2, 22, 9.0)]),
    "checkpoint": (("pk", "run_pk", "segment", "step", "digest", "path", "parent", "meta", "at"), [
        (1, 1, 0, 2, "sha256:c1", "/x/1", "", {}, 15), (2, 1, 1, 4, "sha256:c2", "/x/2", "sha256:c1", {}, 25)]),
    "verdict_stat": (("run_pk", "segment", "step", "member", "verifier", "version_digest", "n", "scored", "score_sum",
                      "seconds_sum", "seconds_max", "statuses"), [(1, 0, 0, "math", "math", MATH, 8, 8, 4.0, 0.1, 0.1, {"correct": 4})]),
}  # fmt: skip
"""Rows of schema 0001."""


def _filled(url: str) -> sa.Engine:
    """A database of schema 0001 with the rows."""
    engine = connect(url)
    upgrade_to(engine, "0001")
    postgres = engine.dialect.name == "postgresql"
    with writing(engine) as connection:
        for table, (columns, rows) in ROWS.items():
            of_json = {c for c in columns if any(isinstance(r[columns.index(c)], dict) for r in rows)}
            values = ", ".join(f"CAST(:{c} AS JSONB)" if c in of_json and postgres else f":{c}" for c in columns)
            spelled = [
                {c: json.dumps(v) if c in of_json else v for c, v in zip(columns, row, strict=True)} for row in rows
            ]
            connection.execute(sa.text(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values})"), spelled)
    return engine


def _whole(store: Store) -> None:
    done = store.run("done")
    assert (done.state, done.started, done.ended, done.lease_epoch, done.desired) == ("finished", 11, 30, 0, "run")
    assert {run.id: run.state for run in store.runs()} == {
        "done": "finished", "live": "running", "stopped": "paused", "bad": "failed"}  # fmt: skip
    assert store.run("bad").ended == 21
    assert [(p.segment, p.step, p.value) for p in store.metrics(done)] == [(0, 0, 0.0), (0, 1, 0.5), (1, 2, 9.0)]
    for run in store.runs():
        assert events.broken(store.events(run)) == ""
    assert [e.payload.get("big") for e in store.events(done)] == [None, 1e22]
    back = store.read(lambda c: lineage.walk(c, [Node(kind="checkpoint", id="sha256:c2")], "back"))
    assert {(n.kind, n.id) for n in back.nodes} >= {
        ("segment", "done/0"), ("segment", "done/1"), ("checkpoint", "sha256:c1"), ("reward_spec", REWARD),
        ("dataset_version", DATA), ("verifier_version", MATH)}  # fmt: skip
    tainted = store.read(lambda c: lineage.affected(c, Node(kind="verifier_version", id=MATH)))
    assert {n.id for n in tainted.nodes if n.kind == "run"} == {"done", "live"}
    assert store.read(lambda c: versions.version(c, "math@1")).digest == MATH
    assert store.read(lambda c: versions.version(c, "length")).names == ("length@1",)
    facts = VerifierFacts(label="math", name="math", digest=MATH, code="sha256:code", sources={"math": "x"})
    store.write(lambda c: versions.register(c, facts))
    assert store.read(lambda c: versions.version(c, "math")).code == "sha256:code"  # filled in, once
    segment = store.start_segment(store.run("live"), first_step=1)
    store.write(lambda c: ingest.insert_points(c, 2, [(segment.no, 1, 1, "loss", 1.0)]))
    assert store.set_state(store.run("live"), "finished").ended is not None


def test_a_run_left_running_before_there_were_leases_is_reaped(empty_database_url: str, tmp_path: Path) -> None:
    _filled(empty_database_url).dispose()
    store = Store.open(empty_database_url, tmp_path)
    assert store.write(leases.reap) == [("live", "running", "lost")]
    assert store.run("live").detail == "no heartbeat from a process of before there were leases under epoch 0"
    assert store.read(lambda c: ingest.faults(c, store.run("done").pk)) == (6, [])  # fingerprinted by the upgrade
    store.close()


def test_from_0001_with_data(empty_database_url: str, tmp_path: Path) -> None:
    _filled(empty_database_url).dispose()
    newest = tables.REVISIONS[-1]
    with pytest.raises(SchemaError, match=rf"has schema '?0001'?, this version of jurat needs {newest}") as caught:
        Store.open(empty_database_url, tmp_path, migrate=False)
    assert caught.value.exit_code == 5 and "jurat db upgrade" in caught.value.fix
    copy = Path(f"{sa.engine.make_url(empty_database_url).database}.schema-0001")
    if sqlite := not empty_database_url.startswith("postgresql"):
        sqlite3.connect(copy).close()  # of an upgrade that was undone since: another state than that of now
    store = Store.open(empty_database_url, tmp_path)
    _whole(store)
    if sqlite:
        assert [path.name for path in copy.parent.glob("*.schema-*")] == [copy.name]
        with sqlite3.connect(copy) as kept:
            assert kept.execute("SELECT count(*) FROM run").fetchone() == (4,)
            assert kept.execute(f"SELECT version_num FROM {tables.VERSION_TABLE}").fetchone() == ("0001",)
    store.close()


def _described(url: str) -> dict[str, Any]:
    engine = connect(url)
    with reading(engine) as connection:
        made = sa.inspect(connection)
        return {
            name: (
                sorted((c["name"], str(c["type"]), c["nullable"]) for c in made.get_columns(name)),
                sorted(i["name"] or "" for i in made.get_indexes(name)),
                sorted(k["name"] or "" for k in made.get_check_constraints(name)),
                sorted(k["name"] or "" for k in made.get_foreign_keys(name)),
            )
            for name in made.get_table_names()
        }


def test_an_upgraded_schema_is_a_fresh_one_and_goes_back(empty_database_url: str) -> None:
    from alembic import command
    from alembic.autogenerate import compare_metadata
    from alembic.config import Config
    from alembic.migration import MigrationContext

    engine = _filled(empty_database_url)
    before = _described(empty_database_url)
    upgrade(engine)
    with reading(engine) as connection:
        options = {"version_table": tables.VERSION_TABLE, "compare_type": True, "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, tables.metadata) == []
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.connection.driver_connection.execute("PRAGMA foreign_keys=OFF")  # type: ignore[union-attr]
        with connection.begin():
            config = Config()
            config.set_main_option("script_location", str(migrations_folder()))
            config.attributes["connection"] = connection
            command.downgrade(config, "0001")
    after = _described(empty_database_url)
    assert {name: (rows[0], rows[1], rows[3]) for name, rows in after.items()} == {
        name: (rows[0], rows[1], rows[3]) for name, rows in before.items()
    }
    with reading(engine) as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM run")).scalar() == 4


@pytest.mark.parametrize("at", [4, 60])
def test_an_upgrade_killed_half_way_leaves_the_old_schema_whole(
    empty_database_url: str, tmp_path: Path, at: int
) -> None:
    engine = _filled(empty_database_url)
    done = cut_short(empty_database_url, at, "CREATE", "ALTER", "DROP", "INSERT", "UPDATE")
    assert done.returncode == -signal.SIGKILL, done.stderr
    with reading(engine) as connection:
        assert revision(connection) == "0001"
        assert connection.execute(sa.text("SELECT count(*) FROM metric_point")).scalar() == 6
        assert not sa.inspect(connection).has_table("edge")
    engine.dispose()
    store = Store.open(empty_database_url, tmp_path)
    refuse_other(store.engine)
    _whole(store)
    store.close()


def test_a_row_without_its_parent_undoes_the_upgrade(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    _filled(url).dispose()
    with sqlite3.connect(tmp_path / "x.db") as raw:
        raw.execute("DELETE FROM run WHERE pk = 1")
    with pytest.raises(RunFailed, match=r"the upgrade is undone: a row of table [a-z_]+ refers to a row of run"):
        upgrade(connect(url))
    with reading(connect(url)) as connection:
        assert revision(connection) == "0001"


def test_a_copy_is_made_while_the_database_is_used(tmp_path: Path, sqlite_template: Path) -> None:
    engine = connect(f"sqlite:///{tmp_path / 'x.db'}")
    upgrade(engine)
    with writing(engine) as connection:
        connection.execute(sa.insert(tables.metric_key).values(name="open"))  # not committed
        back_up(engine, tmp_path / "copy.db")
    with sqlite3.connect(tmp_path / "copy.db") as copy:
        assert copy.execute("SELECT count(*) FROM metric_key").fetchone() == (0,)
    with pytest.raises(RunFailed, match="there already"):
        back_up(engine, tmp_path / "copy.db")
