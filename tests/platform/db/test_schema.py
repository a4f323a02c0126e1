"""The schema: from nothing, interrupted and rerun, by two at once, newer than we know; no drift from the tables."""

from __future__ import annotations

import shutil
import signal
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from databases import cut_short
from jurat.platform.db import engine, tables
from jurat.platform.db.engine import connect, first_contact, reading, writing
from jurat.platform.db.filesystem import kind_of, refuse_network
from jurat.platform.db.upgrade import migrations_folder, revision, upgrade
from jurat.platform.errors import ConfigError, RunFailed, SchemaError
from jurat.platform.runs.store import Store


def test_from_nothing_and_again(empty_database_url: str) -> None:
    engine = connect(empty_database_url)
    assert upgrade(engine) is None
    assert upgrade(engine) == tables.REVISIONS[-1]
    with reading(engine) as connection:
        made = sa.inspect(connection)
        assert set(tables.metadata.tables) | {tables.VERSION_TABLE} == set(made.get_table_names())
        assert {"canonical_metric_point", "canonical_data_part"} <= set(made.get_view_names())


def test_tables_and_migrations_agree(empty_database_url: str) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    engine = connect(empty_database_url)
    upgrade(engine)
    with reading(engine) as connection:
        options = {"version_table": tables.VERSION_TABLE, "compare_type": True, "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, tables.metadata) == []


def test_alembic_as_a_developer_runs_it(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from alembic import command
    from alembic.config import Config

    monkeypatch.chdir(root)
    monkeypatch.setenv("JURAT_DATABASE", f"sqlite:///{tmp_path / 'x.db'}")
    config = Config("alembic.ini", stdout=io.StringIO())
    command.upgrade(config, "head")
    command.downgrade(config, "base")
    command.upgrade(config, "head")
    command.check(config)  # raises where the tables and the migrations differ


def test_revisions_are_those_of_the_migrations() -> None:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(migrations_folder()))
    found = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    assert tuple(reversed(found)) == tables.REVISIONS


@pytest.mark.parametrize("at", [1, 15])
def test_an_upgrade_killed_half_way_leaves_nothing_and_runs_again(empty_database_url: str, at: int) -> None:
    done = cut_short(empty_database_url, at, "CREATE")
    assert done.returncode == -signal.SIGKILL, done.stderr
    engine = connect(empty_database_url)
    with reading(engine) as connection:
        assert sa.inspect(connection).get_table_names() == []
    assert upgrade(engine) is None
    assert upgrade(engine) == tables.REVISIONS[-1]


def test_two_upgrades_at_once_are_one(empty_database_url: str) -> None:
    engines = [connect(empty_database_url) for _ in range(4)]
    failed: list[BaseException] = []

    def go(engine: sa.Engine) -> None:
        try:
            upgrade(engine)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=go, args=(engine,)) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    with reading(engines[0]) as connection:
        assert revision(connection) == tables.REVISIONS[-1]


def test_a_newer_schema_is_refused(empty_database_url: str, tmp_path: Path) -> None:
    Store.open(empty_database_url, tmp_path).close()
    engine = connect(empty_database_url)
    with writing(engine) as connection:
        connection.execute(sa.text(f"UPDATE {tables.VERSION_TABLE} SET version_num = '9999'"))
    with pytest.raises(SchemaError, match=r"schema '9999', this version of jurat knows 0001") as caught:
        Store.open(empty_database_url, tmp_path)
    assert caught.value.exit_code == 5
    assert "pip install -U jurat" in caught.value.fix


def test_rows_refuse_a_wrong_type_and_a_missing_parent(store: Store) -> None:
    with pytest.raises(sa.exc.IntegrityError), writing(store.engine) as connection:
        connection.execute(
            sa.insert(tables.segment).values(
                run_pk=999,
                no=0,
                stage="",
                stage_index=0,
                first_step=0,
                started=0,
                host="",
                pid=0,
                reward_digest="",
                versions={},
            )
        )
    with pytest.raises(sa.exc.DBAPIError), writing(store.engine) as connection:
        connection.exec_driver_sql("INSERT INTO metric_key (pk, name) VALUES ('not a number', 'x')")


def test_sqlite_is_wal_strict_and_durable(tmp_path: Path) -> None:
    engine = connect(f"sqlite:///{tmp_path / 'x.db'}")
    upgrade(engine)
    with reading(engine) as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        made = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE type = 'table'").all()
    assert [name for name, sql in made if "STRICT" not in sql] == [tables.VERSION_TABLE]


@pytest.mark.parametrize("url", ["nonsense", "oracle9000://x/y", "mysql+nodriver://user:secret@host/x"])
def test_a_url_that_is_none_is_told_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match="cannot use the database URL") as caught:
        connect(url)
    assert "secret" not in str(caught.value)


def test_what_cannot_be_opened_is_told(tmp_path: Path) -> None:
    (tmp_path / "jurat.db").write_bytes(b"this is not a database, " * 100)
    with pytest.raises(RunFailed, match="cannot open the database: file is not a database"):
        Store.open(None, tmp_path)
    with pytest.raises(RunFailed, match="unable to open"):
        first_contact(connect(f"sqlite:///{tmp_path}/absent/x.db"))
    with pytest.raises(RunFailed, match="cannot open the database") as caught:
        Store.open("postgresql://someone:secret@127.0.0.1:1/x", tmp_path)
    assert "secret" not in str(caught.value)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFailed, match="cannot make the home folder"):
        Store.open(None, tmp_path / "file")


def test_a_file_that_was_removed_or_replaced_is_written_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what is acknowledged goes into a file that nobody will ever open."""
    monkeypatch.setattr(engine, "LOOK_SECONDS", 0.0)
    store, file = Store.open(None, tmp_path), tmp_path / "jurat.db"
    assert store.runs() == []
    file.rename(tmp_path / "elsewhere.db")
    for copied in (False, True):
        if copied:
            shutil.copy(tmp_path / "elsewhere.db", file)
        with pytest.raises(RunFailed, match="removed or replaced: restart"):
            store.runs()
        with pytest.raises(RunFailed, match="removed or replaced"):
            store.write(lambda c: None)
        assert file.exists() == copied  # no empty one was made in its place
    file.unlink(), (tmp_path / "elsewhere.db").rename(file)
    assert store.runs() == []
    store.close()


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("a\x00b\ud800", "a\\x00b\\ud800"),
        ({"k\x00": [float("nan"), float("-inf"), 1.5, True, None]}, {"k\\x00": ["nan", "-inf", 1.5, True, None]}),
        ((1, {2: "x"}), [1, {"2": "x"}]),
    ],
)
def test_json_is_made_plain(given: object, kept: object) -> None:
    assert tables.plain(given) == kept


MOUNTS = r"""21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
22 21 0:40 / /home rw shared:1 - nfs4 server:/home rw
23 22 8:2 / /home/ann/fast\040disk rw - xfs /dev/sdb rw
24 21 0:41 / /mnt rw - tmpfs tmpfs rw
25 24 0:42 / /mnt rw - cifs //server/share rw
26 21 0:43 / /h rw - ext4 /dev/sdc rw
no such line
"""


def test_a_file_on_a_network_file_system_is_refused(tmp_path: Path) -> None:
    kinds = {
        "/home/ann/x.db": "nfs4", "/home/ann/fast disk/x.db": "xfs", "/mnt/x.db": "cifs", "/var/x.db": "ext4",
        "/homes/x.db": "ext4", "relative": "",
    }  # fmt: skip
    assert {path: kind_of(Path(path), MOUNTS) for path in kinds} == kinds
    said = tmp_path / "mountinfo"
    said.write_text(MOUNTS)
    with pytest.raises(RunFailed, match=r"network file system \(nfs4\)") as caught:
        refuse_network(connect("sqlite:////home/ann/jurat.db"), said)
    assert "--database postgresql" in caught.value.fix
    for fine in ("sqlite:////var/jurat.db", "sqlite://", "postgresql://user@host/home/x"):
        refuse_network(connect(fine), said)
    refuse_network(connect("sqlite:////home/ann/jurat.db"), tmp_path / "not linux")
