"""Heavy imports are late and few, and everything imported is declared."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

DISTRIBUTION = {
    "flint": "python-flint", "yaml": "pyyaml", "liger_kernel": "liger-kernel", "math_verify": "math-verify",
    "mlflow": "mlflow-skinny",
}  # fmt: skip
"""Where the name that is imported differs from the name that is installed."""
HEAVY = {
    "torch", "transformers", "ray", "vllm", "matplotlib", "pandas", "trl", "datasets", "accelerate", "peft", "mlflow", "wandb",
    "tensorboard",
}  # fmt: skip
OPTIONAL = {"duckdb", "fastapi", "pyarrow", "sympy"}
"""Core or light enough, yet nothing that ``--help`` may wait for."""


def declared(root: Path) -> tuple[set[str], set[str]]:
    """Distribution names of the core, and of the core with every extra."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]

    def names(lines: list[str]) -> set[str]:
        return {re.match(r"[\w.-]+", line)[0].lower().replace("_", "-") for line in lines}  # type: ignore[index]

    core = names(project["dependencies"])
    return core, core | names(extras)


def distribution(name: str) -> str | None:
    """The distribution of a third-party import; None for the standard library and ourselves."""
    top = name.split(".")[0]
    if top in sys.stdlib_module_names or top == "jurat":
        return None
    return DISTRIBUTION.get(top, top).lower().replace("_", "-")


def optional(source: Any) -> bool:
    """Files that need an extra by their nature."""
    return (
        source.room in {"engine", "trainers", "api"}
        or source.name == "datasets/hub.py"
        or "verifiers/models/" in source.name
    )


def test_every_import_is_declared(root: Path, sources: list[Any]) -> None:
    core, everything = declared(root)
    wrong = []
    for source in sources:
        for found in source.imports():
            if source.path.with_name(found.name.split(".")[0] + ".py").is_file() and "/recipes/" in source.name:
                continue  # a recipe's folder is copied and run by itself
            needed = distribution(found.name)
            allowed = everything if found.late or optional(source) else core
            if needed is not None and needed not in allowed:
                wrong.append(f"{source.name}:{found.line} imports {found.name}: declare {needed} in pyproject.toml")
    assert wrong == []


def test_collectives_stay_in_the_engine(sources: list[Any]) -> None:
    wrong = [
        f"{source.name}:{found.line}"
        for source in sources
        if source.room != "engine"
        for found in source.imports()
        if found.name.startswith(("torch.distributed", "torch.cuda", "torch.multiprocessing"))
    ]
    assert wrong == []


def test_rooms_do_not_import_the_public_face(sources: list[Any]) -> None:
    """``import jurat`` inside a room is a circle; ``jurat.room.module`` is not."""
    rooms = {"api", "datasets", "engine", "migrations", "platform", "trainers", "verifiers"}
    wrong = [
        f"{source.name}:{found.line} {found.name}"
        for source in sources
        if source.room in rooms - {"api"}
        for found in source.imports()
        if found.name.split(".")[0] == "jurat"
        and found.name.split(".")[1:2]
        and found.name.split(".")[1] not in rooms | {"__version__"}
    ]
    assert wrong == []


def loaded_by(code: str, root: Path) -> set[str]:
    """Top-level names in sys.modules after ``code``; run below the root, because -c puts the folder on the path."""
    code = f"import sys\n{code}\nprint('\\nLOADED', *sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=root / "tests", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rsplit("LOADED", 1)[1].split())


def test_import_jurat_is_light(root: Path) -> None:
    assert loaded_by("import jurat", root).isdisjoint(HEAVY | OPTIONAL)


def test_help_is_light(root: Path) -> None:
    code = """
from jurat.api.cli import main
sys.argv = ["jurat", "--help"]
try:
    main()
except SystemExit as end:
    assert not end.code
"""
    assert loaded_by(code, root).isdisjoint(HEAVY | OPTIONAL)


@pytest.mark.parametrize("room", ["platform", "verifiers", "datasets", "api"])
def test_rooms_without_torch(root: Path, sources: list[Any], room: str) -> None:
    """Verifying answers, reading data, the store and the door work without torch."""
    names = [
        "jurat." + source.name.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")
        for source in sources
        if source.room == room and "verifiers/models/" not in source.name and source.name != "datasets/hub.py"
    ]
    code = (
        "import importlib\nfor name in "
        + repr([name for name in names if not name.endswith("__main__")])
        + ": importlib.import_module(name)"
    )
    assert loaded_by(code, root).isdisjoint({"torch", "transformers", "ray", "vllm"})


def test_the_composition_root_without_ray(root: Path) -> None:
    """Ray is imported when a recipe says ``engine.home: ray``, and only then."""
    loaded = loaded_by("import jurat.trainers.launch, jurat.engine.ray", root)
    assert "torch" in loaded and loaded.isdisjoint({"ray", "vllm"})
