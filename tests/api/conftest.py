"""Shared by the tests of the door: running commands in this process and in one of their own, and a run to look at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jurat.api import cli

SMALL = """\
name: small
model: tiny-random
data:
  train: {source: "generated:plain", levels: [1], size: 40}
  held_out: {source: "generated:plain", levels: [1], size: 12, split: held_out}
sampling: {max_new_tokens: 6}
engine: {dtype: float32}
optim: {lr: 1.0e-3}
evaluate: {every: 4, problems: 4, final_problems: 6, samples: 2}
checkpoint: {every: 4}
stages:
  - {name: sft, steps: 6, algorithm: {name: sft}, prompts_per_step: 8}
  - {name: grpo, steps: 8, algorithm: {name: grpo}, prompts_per_step: 4, allocation: {samples_per_prompt: 4}}
"""


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What stdout holds, which must be one line of JSON and nothing else."""
        assert self.out.endswith("\n") and self.out.count("\n") == 1, self.out
        return json.loads(self.out)


Command = Callable[..., Done]


@pytest.fixture
def jurat(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run one command in this process, with a home folder of its own unless ``--home`` is given."""
    monkeypatch.setenv("JURAT_HOME", str(tmp_path / "home"))

    def call(*args: object) -> Done:
        capsys.readouterr()
        code = cli.run([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return call


def start(*args: object, **env: str) -> subprocess.Popen[str]:
    """One command in a process of its own."""
    command = [sys.executable, "-m", "jurat", *map(str, args)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **env}
    )


@dataclass(frozen=True)
class Trained:
    """A finished run of the recipe ``small``."""

    home: Path
    run: str
    told: dict[str, Any]
    """The JSON line."""
    err: str


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """``jurat train small.yaml --json`` in a process of its own, once."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "small.yaml").write_text(SMALL)
    process = start("train", folder / "small.yaml", "--json", "--run-id", "small-1", "--home", folder / "home")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    told = Done(0, out, err).json
    return Trained(folder / "home", told["run"], told, err)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The recipe ``small`` as a file."""
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.fixture
def launch() -> Callable[..., subprocess.Popen[str]]:
    return start
