"""The import contracts of pyproject.toml hold, and each of them catches what it is there for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

PLANTED = {
    # contract: (file, what is planted there)
    "rooms": ("platform/planted_rooms.py", "import jurat.verifiers.planted_rooms"),
    "siblings": ("engine/planted_siblings.py", "def late():\n    import jurat.datasets.planted_siblings"),
    "migrations": ("migrations/planted_migrations.py", "import jurat.datasets.planted_migrations"),
    "migrated": ("engine/planted_migrated.py", "import jurat.migrations"),
    "composition": ("trainers/planted_composition.py", "import jurat.engine.planted_composition"),
    "heart": ("trainers/planted_heart.py", "import sqlalchemy"),
    "door": ("api/planted_door.py", "def late():\n    import transformers"),
    "torch": ("verifiers/planted_torch.py", "from torch import Tensor"),
    "machines": ("trainers/planted_machines.py", "import ray"),
    "hub": ("datasets/planted_hub.py", "import datasets"),
    "store": ("verifiers/planted_store.py", "import sqlalchemy"),
}
"""The heart's is reached through loop.py. ``siblings`` is the other half of the contract ``rooms``."""


def contracts(root: Path) -> list[dict[str, Any]]:
    config = tomllib.loads((root / "pyproject.toml").read_text())
    found: list[dict[str, Any]] = config["tool"]["importlinter"]["contracts"]
    return found


def lint(where: Path) -> tuple[int, str]:
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command as main; main()",
        "--no-logo",
        "--no-cache",
    ]
    env = {**os.environ, "PYTHONPATH": str(where / "src"), "COLUMNS": "1000"}
    done = subprocess.run(command, cwd=where, env=env, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def planted(root: Path, rooms: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What is said about each broken contract of a copy with every violation planted: id to text."""
    copy = tmp_path_factory.mktemp("planted")
    shutil.copy(root / "pyproject.toml", copy)
    shutil.copytree(root / "src", copy / "src", symlinks=True)
    for room in rooms:
        shutil.copytree(root / room, copy / room, ignore=shutil.ignore_patterns("__pycache__"))
    for file, text in PLANTED.values():
        (copy / file).write_text(text + "\n")
        for imported in re.findall(r"jurat\.(\w+)\.(planted_\w+)", text):
            (copy / "/".join(imported)).with_suffix(".py").write_text("")
    with (copy / "trainers" / "loop.py").open("a") as file_:
        file_.write("\nimport jurat.trainers.planted_heart\n")

    code, said = lint(copy)
    assert code != 0
    assert "Broken contracts" in said, said
    text = said.split("Broken contracts")[-1]
    names = {contract["name"]: contract["id"] for contract in contracts(root)}
    parts = re.split("^(" + "|".join(map(re.escape, names)) + ")$", text, flags=re.MULTILINE)
    return {names[name]: part for name, part in zip(parts[1::2], parts[2::2], strict=True)}


def test_the_contracts_hold(root: Path) -> None:
    code, said = lint(root)
    assert code == 0, said


@pytest.mark.parametrize("contract", PLANTED)
def test_a_planted_violation_is_caught(contract: str, planted: dict[str, str]) -> None:
    told = planted.get("rooms" if contract == "siblings" else contract, "")
    assert f"planted_{contract}" in told, f"the contract {contract!r} let {PLANTED[contract]} pass"


def test_every_contract_has_a_plant(root: Path) -> None:
    assert {contract["id"] for contract in contracts(root)} == set(PLANTED) - {"siblings"}


def test_the_heart_is_whole(root: Path) -> None:
    """Each part of the heart that exists stands in the contract."""
    heart = {
        "loop",
        "advantages",
        "credit",
        "allocate",
        "allocation",
        "samples",
        "packing",
        "presets",
        "stability",
        "balance",
        "buffer",
        "controllers",
        "losses",
        "algorithms",
        "aggregation",
        "shaping",
        "snapshot",
        "timeline",
    }
    there = {path.stem for path in (root / "trainers").iterdir()} & heart
    (contract,) = [contract for contract in contracts(root) if contract["id"] == "heart"]
    assert {module.removeprefix("jurat.trainers.") for module in contract["source_modules"]} == there
