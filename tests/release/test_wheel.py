"""What a user installs: the wheel, built from the source archive as an index would do it."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

NEEDED = {".py", ".c", ".yaml", ".mako", ".typed", ".json", ".html", ".css", ".js", ".svg", ".jsonl"}
"""Kinds of files that the package reads when it runs."""


def build(target: str, where: Path, out: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)]
    subprocess.run(command, cwd=where, check=True, capture_output=True, text=True)
    (made,) = out.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return made


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    out = tmp_path_factory.mktemp("dist")
    with tarfile.open(build("sdist", root, out)) as archive:
        archive.extractall(out, filter="data")
    (source,) = [path for path in out.iterdir() if path.is_dir()]
    return zipfile.ZipFile(build("wheel", source, out))


def test_every_file_of_every_room_is_in_the_wheel(root: Path, rooms: tuple[str, ...], wheel: zipfile.ZipFile) -> None:
    want = {
        f"jurat/{path.relative_to(root).as_posix()}"
        for room in rooms
        for path in (root / room).rglob("*")
        if path.suffix in NEEDED
    }
    want |= {f"jurat/{path.name}" for path in (root / "src" / "jurat").iterdir() if path.is_file()}
    assert {name for name in wheel.namelist() if not name.startswith("jurat-")} == want


def test_files_are_real_and_nothing_else_is_installed(wheel: zipfile.ZipFile) -> None:
    assert {name.split("/")[0] for name in wheel.namelist()} <= {"jurat", f"jurat-{version(wheel)}.dist-info"}
    assert wheel.read("jurat/platform/types.py").startswith(b'"""')
    assert wheel.read("jurat/trainers/recipes/tiny.yaml")


def version(wheel: zipfile.ZipFile) -> str:
    (name,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
    return Parser().parsestr(wheel.read(name).decode())["Version"]


def test_the_metadata_says_what_pyproject_says(root: Path, wheel: zipfile.ZipFile) -> None:
    import jurat

    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    name = f"jurat-{version(wheel)}.dist-info/"
    told = Parser().parsestr(wheel.read(name + "METADATA").decode())
    assert (told["Name"], told["Version"], told["License-Expression"]) == ("jurat", jurat.__version__, "Apache-2.0")
    assert set(told.get_all("Provides-Extra") or ()) == set(project["optional-dependencies"])
    assert "jurat = jurat.api.cli:main" in wheel.read(name + "entry_points.txt").decode()
    assert b"Apache License" in wheel.read(name + "licenses/LICENSE")


def test_the_core_needs_no_torch(wheel: zipfile.ZipFile) -> None:
    told = Parser().parsestr(wheel.read(f"jurat-{version(wheel)}.dist-info/METADATA").decode())
    core = [line for line in told.get_all("Requires-Dist") or () if "extra ==" not in line]
    assert core
    assert [
        line for line in core if line.startswith(("torch", "transformers", "ray", "vllm", "datasets", "fastapi"))
    ] == []


def test_every_pin_lies_in_its_range(root: Path) -> None:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    pins = dict(
        line.split("==")
        for line in (root / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    )
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    for requirement in map(Requirement, lines):
        name = canonicalize_name(requirement.name)
        if name in {"jurat", "vllm", "mlflow-skinny", "wandb"}:  # for machines with other pins, as constraints.txt says
            continue
        assert name in pins, f"{name} has no pin in constraints.txt"
        assert requirement.specifier.contains(pins[name]), f"{name}=={pins[name]} is outside {requirement.specifier}"
