"""Both databases: SQLite in a temporary folder, PostgreSQL in a temporary cluster from the installed binaries.

Fixtures of all tests: ``tests/conftest.py`` names them.
"""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


def postgres_binaries() -> Path | None:
    """The newest PostgreSQL whose initdb and pg_ctl are installed."""
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name.split(".")[0]))
    on_path = shutil.which("initdb")
    for folder in [*reversed(packaged), *([Path(on_path).parent] if on_path else [])]:
        if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
            return folder
    return None


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of a server of our own, without the database's name."""
    if postgres_binaries() is None:
        pytest.skip("PostgreSQL's initdb and pg_ctl are not installed")
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install jurat[postgres]")
    with cluster("-c fsync=off") as url:
        yield url


@contextmanager
def cluster(options: str = "") -> Iterator[str]:
    """A PostgreSQL server for a while: its URL with ``{name}`` for the database. It listens on a socket in its folder only."""
    binaries = postgres_binaries()
    assert binaries is not None
    folder = Path(tempfile.mkdtemp(prefix="jurat-pg-"))
    user, prefix = getpass.getuser(), []
    if os.getuid() == 0:  # the server refuses to run as root
        user = "nobody"
        ids = pwd.getpwnam(user)
        os.chown(folder, ids.pw_uid, ids.pw_gid)
        prefix = ["setpriv", f"--reuid={ids.pw_uid}", f"--regid={ids.pw_gid}", "--clear-groups"]

    def call(program: str, *arguments: str) -> None:
        command = [*prefix, str(binaries / program), "-D", str(folder / "data"), *arguments]
        with (folder / "output").open("ab") as output:  # the server keeps it: a pipe would never end
            done = subprocess.run(command, cwd=folder, stdout=output, stderr=output, env={**os.environ, "LC_ALL": "C"})
        assert done.returncode == 0, (folder / "output").read_text(errors="replace")

    try:
        call("initdb", "-U", user, "--auth=trust", "--encoding=UTF8", "--no-sync")
        call("pg_ctl", "start", "-w", "-o", f"-c listen_addresses='' -c unix_socket_directories={folder} {options}")
        yield f"postgresql+psycopg://{user}@/{{name}}?host={folder}"
        call("pg_ctl", "stop", "-m", "immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _postgres_database(server: str, like: str = "template0") -> Iterator[str]:
    """The URL of a new database, dropped at the end."""
    import psycopg

    name = f"test_{uuid.uuid4().hex}"
    admin = server.format(name="postgres").replace("+psycopg", "")
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {like}")
    yield server.format(name=name)
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of each kind with nothing in it."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'test.db'}"
        return
    with _postgres_database(request.getfixturevalue("postgres")) as url:
        yield url


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database file with the schema, to be copied."""
    path = tmp_path_factory.mktemp("template") / "test.db"
    _create_schema(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def postgres_template(postgres: str) -> Iterator[str]:
    """The name of a database with the schema, to be copied."""
    with _postgres_database(postgres) as url:
        _create_schema(url)
        from sqlalchemy.engine import make_url

        yield str(make_url(url).database)


def _create_schema(url: str) -> None:
    from jurat.platform.db.engine import connect
    from jurat.platform.db.upgrade import upgrade

    engine = connect(url)
    upgrade(engine)
    engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of each kind with the schema and no rows."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "test.db")
        yield f"sqlite:///{tmp_path / 'test.db'}"
        return
    template = request.getfixturevalue("postgres_template")
    with _postgres_database(request.getfixturevalue("postgres"), template) as url:
        yield url


def upgrade_to(engine: Any, target: str) -> None:
    """A schema of before."""
    from alembic import command
    from alembic.config import Config

    from jurat.platform.db.engine import writing
    from jurat.platform.db.upgrade import migrations_folder

    with writing(engine) as connection:
        config = Config()
        config.set_main_option("script_location", str(migrations_folder()))
        config.attributes["connection"] = connection
        command.upgrade(config, target)


_CUT_SHORT = """
import os, signal, sys
import sqlalchemy as sa
from jurat.platform.db.engine import connect
from jurat.platform.db.upgrade import upgrade
engine = connect(sys.argv[1])
seen = 0
@sa.event.listens_for(engine, "before_cursor_execute")
def _(connection, cursor, statement, *rest):
    global seen
    seen += any(word in statement for word in sys.argv[3:])
    if seen == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
upgrade(engine)
"""


def cut_short(url: str, at: int, *words: str) -> subprocess.CompletedProcess[str]:
    """An upgrade in a process that kills itself at the ``at``-th statement which has one of ``words``."""
    return subprocess.run([sys.executable, "-c", _CUT_SHORT, url, str(at), *words], capture_output=True, text=True)
