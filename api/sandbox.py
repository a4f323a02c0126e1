"""``jurat sandbox``: run a program against its cases the way the verifier ``code`` does, and attack the sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from jurat.api import completion, terminal
from jurat.platform.errors import ConfigError, DataError, GateFailed

group = typer.Typer(no_args_is_help=True, help="Where programs that a model wrote run: try one, or attack it.")
Level = Annotated[
    str,
    typer.Option(
        help="How it is kept apart: ns, seccomp or rlimits; auto takes the strongest that works here, never rlimits.",
        autocompletion=completion.levels,
    ),
]  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.add_typer(group, name="sandbox", rich_help_panel="Verify")


@group.command("run")
def run(
    program: Annotated[Path, typer.Argument(help="A file with the program, as it is: no fences are looked for.")],
    cases: Annotated[Path, typer.Option(help="A JSON file with its cases (docs/code.md).", show_default=False)],
    score: Annotated[
        str,
        typer.Option(
            help="all: 1 only if all cases pass, up to the first that does not; share: the share of all cases."
        ),
    ] = "all",
    level: Level = "auto",
    seconds: Annotated[float, typer.Option(help="Wall seconds of one run.", min=0.01)] = 5.0,
    memory_mb: Annotated[int, typer.Option(help="MiB of memory of one run.", min=1)] = 1024,
    as_json: terminal.AsJson = False,
) -> None:
    """Run a program on its cases, judged as verifier code does: how many pass, the first
    difference of those that do not, streams, time, memory.

    Exits with 0 if there is a verdict, good or bad; with 2 if a file cannot be read or the cases are none; with 1 if the
    sandbox, a checker or a module that is not there made a verdict impossible.
    """
    from jurat.verifiers.code.verifier import Options, judge_program
    from jurat.verifiers.verdicts import verdict_to_json

    if score not in ("all", "share"):
        raise ConfigError(f"no score {score!r}", where="--score", fix="all or share, as in the verifier's arguments")
    text, given = _read(program, "program"), _read(cases, "file of cases")
    try:
        parsed = json.loads(given)
    except ValueError as fault:
        raise DataError(
            f"not JSON: {fault}", where=str(cases), fix='write {"mode": "stdio", "tests": [...]}; see docs/code.md'
        ) from None
    needs = parsed.get("needs") or () if isinstance(parsed, dict) else ()
    options = Options(
        score=score,
        level=level,
        strict=level == "auto",  # a level that is asked for is not refused: this trains nothing
        seconds=seconds,
        memory_mb=memory_mb,
        preload=(needs,) if isinstance(needs, str) else tuple(needs) if isinstance(needs, list) else (),
    )
    if level == "rlimits":
        terminal.note("nothing is kept apart at this level")
    verdict = judge_program(text, given, options)
    if verdict.status == "bad_gold":
        raise DataError(verdict.why, where=str(cases), fix="docs/code.md says what cases look like")
    if as_json:
        terminal.print_json(verdict_to_json(verdict))
    else:
        _tell(verdict)
    if verdict.score is None:
        raise typer.Exit(1)


def _read(path: Path, noun: str) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as fault:
        raise ConfigError(f"cannot read the {noun}: {fault.strerror}", where=str(path), fix="name a file") from None
    except UnicodeDecodeError as fault:
        raise DataError(f"the {noun} is not UTF-8: {fault.reason}", where=str(path), fix="save it as UTF-8") from None


def _counted(evidence: Mapping[str, Any]) -> str:
    told = f"{evidence['passed']} of {evidence['cases']} passed"
    left = min(evidence["cases"], 500) - len(evidence["marks"])  # as many marks are kept
    return f"{told}; {left} not run after the first that fails (--score share runs all)" if left else told


def _tell(verdict: Any) -> None:
    score = "none" if verdict.score is None else f"{verdict.score:g}"
    evidence = verdict.evidence
    for key, value in (
        ("verdict", verdict.status), ("score", score), ("why", verdict.why), ("flags", ", ".join(verdict.flags)),
        ("cases", _counted(evidence) if "cases" in evidence else ""),
        ("level", evidence.get("isolation", {}).get("level", "")),
        ("ms", f"{1e3 * verdict.seconds:.1f}"),
    ):  # fmt: skip
        if value:
            typer.echo(f"{key:10s}{terminal.clean(value, 400)}")
    for found in evidence.get("failed", ()):
        typer.echo(f"\ncase {found['case']}: {terminal.clean(found['why'], 400)}")
        for key in ("stdout", "stderr"):
            if found.get(key):
                typer.echo(f"  {key}: {terminal.clean(found[key], 1000)}")


@group.command("attack")
def attack(
    manifest: Annotated[Path, typer.Argument(help="A manifest.json, with attacks/ and perhaps benign/ beside it.")],
    level: Annotated[
        str | None,
        typer.Option(
            help="ns, seccomp, rlimits, or all of them; without it ns and seccomp. rlimits is the control: it must fail.",
            show_default=False,
        ),
    ] = None,
    user: Annotated[
        str | None, typer.Option(help="Who runs the judge: a name or a number. Needs root.", show_default=False)
    ] = None,
    only: Annotated[
        list[str], typer.Option(help="Programs whose id begins with this; may be repeated.", show_default=False)
    ] = [],  # noqa: B006
    as_json: terminal.AsJson = False,
) -> None:
    """Run every attack of a manifest against the sandbox, and every honest program beside it.

    Prints what each level let through, and exits with 3 if that is anything, or if an honest program did not pass.
    """
    from jurat.api.attack import LEVELS, conduct, read_manifest, report, user_id

    levels = {None: LEVELS[:2], "all": LEVELS}.get(level) or tuple(name for name in LEVELS if name == level)
    if not levels:
        known = ", ".join(LEVELS)
        raise ConfigError(f"no level {level!r}", where="--level", fix=f"one of {known}, all")
    found = conduct(read_manifest(manifest, only), levels, uid=user_id(user), tell=_progress())
    if as_json:
        terminal.print_json({"manifest": manifest, "user": user, "levels": [f.as_json() for f in found],
                             "ok": not any(f.broken for f in found)})  # fmt: skip
    else:
        report(found)
    if all(f.unavailable for f in found):
        raise ConfigError(
            "none of the levels can be had here", where="jurat sandbox attack", fix="jurat doctor says what is missing"
        )
    if any(f.broken for f in found):
        raise typer.Exit(GateFailed.exit_code)


def _progress() -> Any:
    """Tells what runs now in one line of the terminal; nothing where there is none."""
    import sys

    if not sys.stderr.isatty():
        return lambda _: None
    return lambda text: (sys.stderr.write(f"\r\x1b[K{terminal.clean(text, 70)}\r"), sys.stderr.flush())
