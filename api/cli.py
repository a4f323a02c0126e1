"""The command ``jurat``. Heavy imports happen inside commands: ``jurat --help`` answers at once, without torch.

Exit codes are those of ``platform/errors.py``: 0 ok, 1 failed, 2 usage or config, 3 gate, 4 reward drift, 5 schema,
75 fenced out, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from jurat import __version__
from jurat.api import (
    cli_datasets,
    cli_lineage,
    cli_models,
    cli_recipes,
    cli_rescore,
    cli_runs,
    cli_serve,
    cli_train,
    cli_verifiers,
    completion,
    sandbox,
    terminal,
)
from jurat.platform.errors import ConfigError, JuratError, nearest

UsageError = typer.BadParameter.__mro__[2]
"""What typer raises for a wrong option or argument, whichever click it is built on."""
GLOBAL = {"--home": True, "--debug": False}
"""Options of the root which may stand anywhere on the line, and whether they take a value."""


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"jurat {__version__}")
        raise typer.Exit


def to_front(args: Sequence[str]) -> list[str]:
    """``args`` with the global options first, so that they may be given after the command too."""
    front: list[str] = []
    rest: list[str] = []
    words = iter(args)
    for word in words:
        name = word.partition("=")[0]
        if word == "--":
            rest += [word, *words]
        elif name in GLOBAL:
            front.append(word)
            if GLOBAL[name] and "=" not in word:
                front += [value for value in [next(words, None)] if value is not None]
        else:
            rest.append(word)
    return front + rest


class Commands(TyperGroup):
    """Global options anywhere; an unknown command is answered with the nearest."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, to_front(args))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in self.commands and not ctx.resilient_parsing:
            raise ConfigError(
                f"no command is called {args[0]!r}.{nearest(args[0], self.commands)}", where="jurat",
                fix="jurat --help lists the commands",
            )  # fmt: skip
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="jurat", cls=Commands, no_args_is_help=True, add_completion=True, rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]}, pretty_exceptions_enable=False,
)  # fmt: skip


@app.callback()
def root(
    home: Annotated[
        Path | None,
        typer.Option(
            envvar=terminal.HOME_VARIABLE, show_default="./.jurat", help="Folder of the store, runs, models and logs."
        ),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the whole traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_tell_version, help="Print the version, and nothing else happens."
        ),
    ] = False,
) -> None:
    """Train reasoning language models by reinforcement learning from verification.

    [bold]jurat doctor[/bold]               does everything work here?
    [bold]jurat train tiny[/bold]           a small model learns sums, in a minute
    [bold]jurat models fetch smollm2[/bold] a real one, then: [bold]jurat train quickstart[/bold]
    [bold]jurat rollouts latest[/bold]      what it wrote, and how each answer was judged
    """
    terminal.set_home(home)


def version(as_json: terminal.AsJson = False) -> None:
    """The versions of jurat and of what it runs on."""
    from jurat.api.doctor import versions

    found = {"jurat": __version__, **versions()}
    if as_json:
        terminal.print_json(found)
    else:
        terminal.print_table(["package", "version"], [(name, said or "absent") for name, said in found.items()])


def doctor(as_json: terminal.AsJson = False) -> None:
    """Try everything a run needs, for real: one update of a tiny model, the database, a killed child, threads, disk.

    Exits with 1 if a check failed. What is optional and not there is [dim]absent[/dim], which is no failure.
    """
    from jurat.api.doctor import examine, report

    results = examine(terminal.home())
    if as_json:
        terminal.print_json(
            {"ok": all(r.status != "failed" for r in results), "checks": [r.as_json() for r in results]}
        )
    else:
        report(results)
    if any(result.status == "failed" for result in results):
        raise typer.Exit(1)


def plot(
    run: Annotated[str, typer.Argument(help="The run's name, or the beginning of it.", autocompletion=completion.runs)],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="The file; its suffix chooses the format: .png, .svg or .pdf.")
    ] = Path("curve.png"),
    database: terminal.Database = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Draw reward, held-out accuracy with its interval, and length by step."""
    from jurat.api.plot import plot_run

    written = plot_run(run, out, home=terminal.home(), database=database)
    if as_json:
        terminal.print_json({"run": written.run, "file": written.file, "steps": written.steps})
    else:
        typer.echo(str(written.file))


cli_train.register(app)
cli_recipes.register(app)
cli_models.register(app)
cli_runs.register(app)
cli_serve.register(app)
app.command(rich_help_panel="Look")(plot)
cli_lineage.register(app)
cli_verifiers.register(app)
cli_rescore.register(app)
sandbox.register(app)
cli_datasets.register(app)
app.command(rich_help_panel="Set up")(doctor)
app.command(rich_help_panel="Set up")(version)


# ---- the outermost frame -----------------------------------------------------------------------------------------


def main() -> None:
    """Run the command line on ``sys.argv`` and exit."""
    terminal.own_process()
    sys.exit(run(sys.argv[1:]))


def run(args: Sequence[str]) -> int:
    """The exit code of one command; whatever went wrong has been told."""
    words = list(args) or ["--help"]
    as_json, debug = "--json" in words, "--debug" in words
    try:
        code = typer.main.get_command(app)(args=words, prog_name="jurat", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except JuratError as error:
        if debug:
            _print_traceback()
        terminal.fail(error, as_json=as_json)
        return error.exit_code
    except UsageError as error:  # type: ignore[misc]
        terminal.fail(_of_usage(error), as_json=as_json)
        return 2
    except (KeyboardInterrupt, typer.Abort):
        terminal.note("interrupted")
        return 130
    except Exception as error:  # the frame of the process: told in one line, kept whole in a file
        if debug:
            _print_traceback()
        place = "standard error" if debug else _keep_traceback(words)
        said = terminal.clean(f"{type(error).__name__}: {error}", 300)
        fix = "this is a fault of jurat: please report it with that file"
        terminal.fail(JuratError(f"unexpected error: {said}", where=f"traceback in {place}", fix=fix), as_json=as_json)
        return 1


def _of_usage(error: Any) -> JuratError:
    context = error.ctx
    path = context.command_path if context is not None else "jurat"
    return ConfigError(error.format_message(), where=path, fix=f"{path} --help shows its options")


def _print_traceback() -> None:
    import traceback

    traceback.print_exc()


def _keep_traceback(args: Sequence[str]) -> str:
    """Write the traceback under the home folder, else in the folder for temporary files; the file's path."""
    import platform
    import traceback

    text = (
        f"jurat {__version__}, Python {platform.python_version()}, {platform.platform()}\n"
        f"command: jurat {' '.join(args)}\n\n{traceback.format_exc()}"
    )
    name = f"error-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    for folder in (terminal.home() / "logs", Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        except OSError:
            continue
        return str(folder / name)
    sys.stderr.write(text)
    return "standard error"
