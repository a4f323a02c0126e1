"""The top level shows the architecture, and nothing in it hides a library of the same name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_every_room_is_a_relative_symlink_in_the_package(root: Path, rooms: tuple[str, ...]) -> None:
    package = root / "src" / "jurat"
    for room in rooms:
        link = package / room
        assert link.is_symlink(), (
            f"src/jurat/{room} is no symlink (a checkout without symlinks?): ln -s ../../{room} src/jurat/{room}"
        )
        assert os.readlink(link) == f"../../{room}"
        assert (root / room).is_dir(), f"{room}/ is missing"
    found = {path.name for path in package.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert found == set(rooms)


def test_rooms_and_tests_have_no_init(root: Path, rooms: tuple[str, ...]) -> None:
    """``platform/__init__.py`` would hide the standard library's platform from every ``python -m`` run here."""
    wrong = [root / room / "__init__.py" for room in rooms if (root / room / "__init__.py").exists()]
    wrong += (root / "tests").rglob("__init__.py")
    assert wrong == []


def test_libraries_of_the_same_name_are_found_from_the_root(root: Path) -> None:
    code = (
        "import platform, importlib.util as u; platform.python_version(); import jurat.platform.types\n"
        "spec = u.find_spec('datasets'); print(spec.origin if spec else None)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert str(root / "datasets") not in done.stdout, "the room datasets/ hides the library datasets"
    subprocess.run([sys.executable, "-m", "platform"], cwd=root, capture_output=True, check=True)


def test_tests_mirror_the_rooms(root: Path, rooms: tuple[str, ...]) -> None:
    others = {"architecture", "golden", "kit", "parity", "properties", "release", "soak"}
    folders = {path.name for path in (root / "tests").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders <= set(rooms) | others
    with_code = {room for room in rooms if room != "migrations" and any((root / room).rglob("*.py"))}
    assert with_code <= folders, "a room without tests"


def test_no_drawer_for_odd_things(root: Path, rooms: tuple[str, ...]) -> None:
    drawers = {"utils.py", "util.py", "helpers.py", "common.py", "misc.py", "utils", "helpers", "common"}
    found = [path for room in rooms for path in (root / room).rglob("*") if path.name in drawers]
    assert found == []


def test_nothing_is_kept_under_old_names(root: Path, rooms: tuple[str, ...]) -> None:
    found = [
        path
        for room in rooms
        for path in (root / room).rglob("*")
        if path.name in {"legacy", "old", "v2", "deprecated"}
    ]
    assert found == []
