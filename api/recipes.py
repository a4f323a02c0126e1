"""Recipes by name or by file. Those that ship are ``trainers/recipes/NAME.yaml``, or ``NAME/recipe.yaml`` with files beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jurat.platform.errors import ConfigError, nearest

if TYPE_CHECKING:
    from jurat.platform.recipe import Recipe

SUFFIXES = (".yaml", ".yml")


WHOLE = "recipe.yaml"
"""The recipe of a folder that holds its data and verifiers too."""


def shipped() -> dict[str, Path]:
    """{name: file} of the recipes of this package, by name."""
    found: dict[str, Path] = {}
    for path in (files("jurat.trainers") / "recipes").iterdir():
        if path.name.endswith(".yaml"):
            found[path.name.removesuffix(".yaml")] = Path(str(path))
        elif path.is_dir() and (path / WHOLE).is_file():
            found[path.name] = Path(str(path / WHOLE))
    return dict(sorted(found.items()))


def base_of(file: Path) -> Path:
    """The folder that relative paths of a recipe that ships start from: its own where files lie beside it, else the current."""
    return file.parent if file.name == WHOLE else Path.cwd()


def locate(recipe: str) -> tuple[Path, Path]:
    """(file, folder that its relative paths start from): a file's own folder, of a recipe that ships as ``base_of`` says.

    Raises ConfigError with the nearest name.
    """
    path = Path(recipe)
    if path.suffix in SUFFIXES or path.is_file() or len(path.parts) > 1:
        if not path.is_file():
            raise ConfigError(
                f"no recipe file {recipe!r}.{_near_file(path)}", where=str(path.absolute()),
                fix="check the path; jurat recipes ls lists those that ship",
            )  # fmt: skip
        return path, path.absolute().parent
    known = shipped()
    if recipe not in known:
        raise ConfigError(
            f"no recipe is called {recipe!r}.{nearest(recipe, known)}", where="RECIPE",
            fix=f"one of {', '.join(known)}, or the path of a .yaml file",
        )  # fmt: skip
    return known[recipe], base_of(known[recipe])


def _near_file(path: Path) -> str:
    folder = path.parent
    beside = [p.name for p in folder.iterdir() if p.suffix in SUFFIXES] if folder.is_dir() else []
    return nearest(path.name, [*beside, *shipped()])


def load(recipe: str, assignments: Sequence[str] | Mapping[str, Any] = ()) -> tuple[Recipe, Path]:
    """The recipe with its overrides, and its base folder. Raises ConfigError."""
    from jurat.platform.config import load_recipe
    from jurat.trainers.contradictions import refuse_contradictions

    path, base = locate(recipe)
    return load_recipe(path, assignments, refuse_contradictions), base
