"""Recipes by name or by file. Those that ship lie in ``trainers/recipes/*.yaml``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jurat.platform.errors import ConfigError, nearest

if TYPE_CHECKING:
    from jurat.platform.recipe import Recipe

SUFFIXES = (".yaml", ".yml")


def shipped() -> dict[str, Path]:
    """{name: file} of the recipes of this package, by name."""
    folder = files("jurat.trainers") / "recipes"
    found = {
        path.name.removesuffix(".yaml"): Path(str(path)) for path in folder.iterdir() if path.name.endswith(".yaml")
    }
    return dict(sorted(found.items()))


def locate(recipe: str) -> tuple[Path, Path]:
    """(file, folder that its relative paths start from): a file's own folder, the current one for a recipe that ships.

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
    return known[recipe], Path.cwd()


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
