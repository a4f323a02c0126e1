"""``jurat recipes``: those that ship, one of them, a copy of it, and the schema of all."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from jurat.api import completion, terminal

recipes = typer.Typer(
    name="recipes",
    help="Recipes that ship: list them, read one, copy one to change it, get their schema.",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Add ``recipes`` to the command line."""
    app.add_typer(recipes, rich_help_panel="Train")


@recipes.command("ls")
def ls(as_json: terminal.AsJson = False) -> None:
    """List the recipes that ship."""
    from jurat.api.recipes import load, shipped

    rows: list[dict[str, Any]] = []
    for name, path in shipped().items():
        recipe, _ = load(name)
        steps = [f"{stage or part.algorithm.name} {part.steps}" for stage, part in recipe.staged()]
        rows.append({"name": name, "model": recipe.model, "steps": steps, "about": recipe.about, "file": path})
    if as_json:
        terminal.print_json(rows)
    else:
        terminal.print_table(
            ["name", "model", "steps", "about"],
            [(row["name"], row["model"], ", ".join(row["steps"]), row["about"]) for row in rows],
        )


@recipes.command("show")
def show(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A recipe that ships, or a .yaml file.", show_default=False, autocompletion=completion.recipes
        ),
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="The JSON Schema of every recipe, for an editor or a form.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="With every default filled in.")] = False,
    as_json: terminal.AsJson = False,
) -> None:
    """Print one recipe as it is written; save it to a file, change it, and train with the file."""
    from jurat.api.recipes import load, locate
    from jurat.platform.errors import ConfigError

    if schema:
        from jurat.platform.recipe import Recipe

        found = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Recipe.model_json_schema()}
        sys.stdout.write(json.dumps(found, ensure_ascii=False, indent=None if as_json else 2) + "\n")
        return
    if name is None:
        raise ConfigError(
            "which recipe?", where="jurat recipes show", fix="jurat recipes ls lists them; --schema prints the schema"
        )
    if not as_json and not full:
        text = locate(name)[0].read_text(encoding="utf-8")
        sys.stdout.write(terminal.clean(text))
        return
    from jurat.trainers.presets import filled

    value = filled(load(name)[0]).model_dump(mode="json")
    if as_json:
        terminal.print_json(value)
    else:
        import yaml

        sys.stdout.write(terminal.clean(yaml.safe_dump(value, sort_keys=False, allow_unicode=True)))


@recipes.command("copy")
def copy(
    name: Annotated[str, typer.Argument(help="A recipe that ships.", autocompletion=completion.recipes)],
    to: Annotated[Path, typer.Argument(help="A folder that is not there yet.")],
    as_json: terminal.AsJson = False,
) -> None:
    """Copy a recipe with the data and verifiers that lie beside it, to be changed and trained with.

    Prints the recipe's file.
    """
    from jurat.api.recipes import WHOLE, shipped
    from jurat.platform.errors import ConfigError, nearest

    known = shipped()
    if name not in known:
        raise ConfigError(
            f"no recipe is called {name!r}.{nearest(name, known)}", where="NAME", fix=f"one of {', '.join(known)}"
        )
    if to.exists():
        raise ConfigError("is there already, and nothing is written over", where=str(to), fix="name another folder")
    file = known[name]
    if file.name == WHOLE:
        shutil.copytree(file.parent, to, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        to.mkdir(parents=True)
        shutil.copyfile(file, to / WHOLE)
    if as_json:
        terminal.print_json({"recipe": str(to / WHOLE)})
    else:
        sys.stdout.write(f"{terminal.clean(str(to / WHOLE))}\n")
