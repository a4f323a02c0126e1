"""What a shell is offered for names: recipes, runs, models, verifiers. Nothing of a user's is run, and no torch imported."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import typer

from jurat.api import terminal


def recipes(incomplete: str) -> list[str]:
    """Those that ship, and .yaml files and folders that begin so."""
    from jurat.api.recipes import SUFFIXES, shipped

    typed = Path(incomplete or ".")
    folder, start = (typed, "") if incomplete.endswith("/") or not incomplete else (typed.parent, typed.name)
    found = [path for path in _inside(folder) if path.name.startswith(start) and not path.name.startswith(".")]
    files = [f"{path}/" if path.is_dir() else str(path) for path in found if path.is_dir() or path.suffix in SUFFIXES]
    return [*_beginning(shipped(), incomplete), *sorted(files)]


def runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Folders of runs, the last one first."""
    found = sorted((path.stat().st_mtime, path.name) for path in _inside(_home(ctx) / "runs") if path.is_dir())
    return _beginning(["latest", *(name for _, name in reversed(found))], incomplete)


def models(ctx: typer.Context, incomplete: str) -> list[str]:
    """Those that were fetched or can be."""
    from jurat.engine.models import FETCHABLE

    fetched = [path.name for path in _inside(_home(ctx) / "models") if path.is_dir()]
    return _beginning(dict.fromkeys([*FETCHABLE, *sorted(fetched)]), incomplete)


def models_and_runs(ctx: typer.Context, incomplete: str) -> list[str]:
    return [*models(ctx, incomplete), *runs(ctx, incomplete)]


def verifiers(incomplete: str) -> list[str]:
    """Those that ship: to know a user's, their file would have to be run."""
    from jurat.verifiers.catalog import BUILT_IN

    return _beginning(BUILT_IN, incomplete)


def levels(incomplete: str) -> list[str]:
    """Of the code sandbox."""
    return _beginning(("auto", "ns", "seccomp", "rlimits"), incomplete)


def _home(ctx: typer.Context) -> Path:
    given = ctx.find_root().params.get("home")  # the root's callback does not run for a completion
    return Path(given) if given else terminal.home()


def _inside(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
