"""Both databases: SQLite in a temporary folder, PostgreSQL in a temporary cluster from the installed binaries."""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy.engine import make_url

from jurat.platform.db.engine import connect
from jurat.platform.db.upgrade import upgrade
from jurat.platform.recipe import Recipe
from jurat.platform.runs.store import Store
from jurat.platform.types import (
    Allocation,
    Batch,
    Estimate,
    Evaluation,
    Group,
    Judgement,
    Message,
    Problem,
    Reward,
    Rollout,
    Scored,
    Span,
    StepReport,
    UpdateReport,
    Verdict,
    VerifierSpec,
    Visit,
)


def _postgres_binaries() -> Path | None:
    """The newest PostgreSQL whose initdb and pg_ctl are installed."""
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name.split(".")[0]))
    on_path = shutil.which("initdb")
    for folder in [*reversed(packaged), *([Path(on_path).parent] if on_path else [])]:
        if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
            return folder
    return None


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of a server of our own, without the database's name; it listens on a socket in its folder only."""
    binaries = _postgres_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL's initdb and pg_ctl are not installed")
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install jurat[postgres]")
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
        call("pg_ctl", "start", "-w", "-o", f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off")
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
        yield str(make_url(url).database)


def _create_schema(url: str) -> None:
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


@pytest.fixture
def store(database_url: str, tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(database_url, tmp_path / "home", busy_seconds=1.0)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def recipe() -> Recipe:
    value = {"name": "tiny", "model": "tiny-random", "data": {"train": {"source": "generated"}}, "steps": 4}
    return Recipe.model_validate(value)


@pytest.fixture
def new_run(store: Store, recipe: Recipe) -> Callable[[], Any]:
    """Makes a run in state ``running``."""

    def make(into: Store = store) -> Any:
        made = into.create_run(recipe=recipe, recipe_digest="sha256:aa", reward_digest="sha256:bb", meta={})
        return into.set_state(made, "running")

    return make


# ---- facts as a trainer makes them -------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def scored() -> Callable[..., Scored]:
    """One rollout: a prompt of 2 tokens, one token per character of ``text`` (4 at most), a verdict and a reward."""

    def make(
        text: str = "12",
        *,
        problem: Problem | None = None,
        index: int = 0,
        step: int = 0,
        reward: float | None = 1.0,
        verdict: Verdict | None = None,
        **fields: Any,
    ) -> Scored:
        problem = problem or make_problem("p0")
        count = min(len(text), 4)
        ends = [*range(1, count), len(text)] if count else []
        rollout = Rollout(
            id=f"{problem.id}-{step}-{index}",
            problem=problem,
            visit=0,
            index=index,
            tokens=np.arange(2 + count),
            loss_mask=np.arange(2 + count) >= 2,
            sampler_logprobs=np.where(np.arange(2 + count) >= 2, -0.25, 0).astype(np.float32),
            spans=(Span(start=0, end=count, version=step),),
            text=text,
            char_ends=np.array(ends, dtype=np.int64),
            finish="stop",
        )
        said = verdict or Verdict.of(
            "correct" if reward else "incorrect",
            read=text,
            why="rational_exact",
            certified=True,
            seconds=0.001,
            verifier=VerifierSpec(name="math", args={"tolerance": 0}, digest="sha256:" + "9f" * 32),
        )
        made = Reward(value=reward, parts={"problem": reward}, trainable=reward is not None, **fields)
        return Scored(rollout=rollout, judgement=Judgement(verdicts={"problem": said}, reward=made))

    return make


def make_problem(name: str) -> Problem:
    asked = Message(role="user", content=f"What is 7 + 5? ({name})")
    return Problem(
        id=name,
        messages=(asked,),
        reference="12",
        verifier=VerifierSpec(name="math"),
        source="generated:0",
        columns={"level": 1},
    )


@pytest.fixture(scope="session")
def batch(scored: Callable[..., Scored]) -> Callable[..., Batch]:
    """A batch of ``prompts`` groups of ``samples``; sample 0 of each is correct, the others are not."""

    def make(step: int = 0, *, prompts: int = 2, samples: int = 3, text: str = "12") -> Batch:
        groups = []
        for p in range(prompts):
            problem = make_problem(f"p{p}")
            some = [
                scored(text, problem=problem, index=i, step=step, reward=1.0 if i == 0 else 0.0) for i in range(samples)
            ]
            groups.append(
                Group(
                    visit=Visit(problem=problem, visit=0, position=step * prompts + p),
                    scored=tuple(some),
                    allocation=Allocation(samples=samples, reason="uniform"),
                )
            )
        return Batch(step=step, groups=tuple(groups))

    return make


@pytest.fixture(scope="session")
def step_report() -> Callable[..., StepReport]:
    def make(step: int, **metrics: float) -> StepReport:
        update = UpdateReport(role="policy", metrics={"loss": 0.5}, tokens=10, forwarded_tokens=30)
        return StepReport(
            step=step,
            version=step + 1,
            metrics={"reward/mean": 0.25, **metrics},
            updates=(update,),
            seconds={"update": 0.1},
        )

    return make


@pytest.fixture(scope="session")
def evaluation() -> Callable[..., Evaluation]:
    def make(step: int, *, stage: str = "", name: str = "held_out", accuracy: float = 0.5) -> Evaluation:
        value = Estimate(value=accuracy, low=accuracy - 0.1, high=accuracy + 0.1)
        return Evaluation(
            name=name,
            stage=stage,
            step=step,
            problems=300,
            samples=4,
            accuracy=value,
            pass_at={1: value, 4: value},
            answer_rate=value,
            accuracy_given_answer=value,
            mean_tokens=7.5,
            truncated=0.0,
            undecided=0.0,
            greedy=None if step % 2 else value,
            seconds=1.5,
            final=step % 2 == 0,
        )

    return make
