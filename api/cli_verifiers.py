"""``jurat verify``, ``jurat audit`` and ``jurat verifiers ls|show|diff``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from jurat.api import cli_lineage, completion, terminal
from jurat.platform.errors import ConfigError, GateFailed

Files = Annotated[
    list[Path], typer.Option("--file", "-f", help="A Python file that registers verifiers.", show_default=False)
]
Args = Annotated[list[str], typer.Option("--arg", help="An argument of the verifier, key=value.", show_default=False)]
Name = Annotated[str, typer.Argument(help="The verifier's name.", autocompletion=completion.verifiers)]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(rich_help_panel="Verify")(verify)
    app.command(rich_help_panel="Verify")(audit)
    group = typer.Typer(no_args_is_help=True, help="The verifiers there are, and what each one's identity is made of.")
    group.command("ls")(list_verifiers)
    group.command("show")(show)
    group.command("diff")(diff)
    group.command("versions")(cli_lineage.versions)
    group.command("status")(cli_lineage.status)
    app.add_typer(group, name="verifiers", rich_help_panel="Verify")


def verify(
    name: Name,
    gold: Annotated[str, typer.Option(help="The reference answer.")],
    answer: Annotated[str | None, typer.Option(help="A bare answer.", show_default=False)] = None,
    completion: Annotated[str | None, typer.Option(help="A whole completion instead.", show_default=False)] = None,
    file: Files = [],  # noqa: B006
    arg: Args = [],  # noqa: B006
    as_json: terminal.AsJson = False,
) -> None:
    """One verdict: what was read, which rule decided, and whether it is a proof."""
    from jurat.verifiers.audit import parse_args
    from jurat.verifiers.once import verify as once
    from jurat.verifiers.verdicts import verdict_to_json

    if (answer is None) == (completion is None):
        raise ConfigError(
            f"give {'either' if answer is None else 'one of'} --answer or --completion", where=f"jurat verify {name}",
            fix="--answer is a bare answer, as in --answer 0.5; --completion a whole text that ends in one",
        )  # fmt: skip
    verdict = once(name, gold=gold, answer=answer, completion=completion, user_files=file, args=parse_args(arg))
    if as_json:
        given = verdict.verifier
        by = None if given is None else {"name": given.name, "args": dict(given.args), "digest": given.digest}
        more = {"certified": verdict.certified, "isolation": verdict.isolation, "verifier": by}
        terminal.print_json({**verdict_to_json(verdict), **more})
        return
    score = "none" if verdict.score is None else f"{verdict.score:g}"
    rows = [("verdict", verdict.status), ("score", score), ("read", verdict.read), ("why", verdict.why)]
    rows += [("proof", "yes" if verdict.certified else "no"), ("flags", ", ".join(verdict.flags))]
    rows += [("fault", verdict.fault or "")]
    rows += [(key, value) for key, value in verdict.evidence.items()]
    rows += [
        (f"step {n}", f"[{s.start}:{s.end}] {s.status} {'no score' if s.score is None else f'{s.score:g}'}  {s.why}")
        for n, s in enumerate(verdict.steps, 1)
    ]
    rows += [("ms", f"{1e3 * verdict.seconds:.3f}")]
    for key, value in rows:
        if value not in ("", None, [], {}):
            typer.echo(f"{terminal.clean(key):12s}{terminal.clean(value, 400)}")


def audit(
    name: Name,
    cases: Annotated[
        Path | None, typer.Argument(help="JSONL rows {id, gold, pred, expected, form, policy}.", show_default=False)
    ] = None,
    by: Annotated[
        str | None, typer.Option(help="A column to group the table by, such as category.", show_default=False)
    ] = None,
    min_accuracy: Annotated[float | None, typer.Option(help="Exit 3 below this accuracy.", show_default=False)] = None,
    max_fp: Annotated[
        float | None,
        typer.Option(help="Exit 3 above so many false positives (a share if below 1).", show_default=False),
    ] = None,
    metamorphic: Annotated[
        bool, typer.Option("--metamorphic", help="Pairs equal or unequal by construction in place of CASES.")
    ] = False,
    pairs: Annotated[int, typer.Option(help="How many metamorphic pairs.", min=1)] = 1000,
    seed: Annotated[int, typer.Option(help="Of the metamorphic pairs.")] = 0,
    workers: Annotated[int, typer.Option(help="Processes for verifiers that need one.", min=1)] = 1,
    file: Files = [],  # noqa: B006
    arg: Args = [],  # noqa: B006
    as_json: terminal.AsJson = False,
) -> None:  # fmt: skip
    """How often a verifier is wrong, on labelled cases, and how fast it is: before it costs hours of training."""
    from jurat.verifiers import audit as auditing

    if metamorphic == (cases is not None):
        raise ConfigError(
            "audit needs either a file of cases or --metamorphic", where=f"jurat audit {name}",
            fix=f"jurat audit {name} cases.jsonl",
        )  # fmt: skip
    auditing.check_gate(min_accuracy, max_fp)
    rows = auditing.metamorphic_cases(pairs, seed) if cases is None else auditing.read_cases(cases)
    grouped = by or ("category" if metamorphic else None)
    result = auditing.audit(name, rows, args=auditing.parse_args(arg), user_files=file, by=grouped, workers=workers)
    failed: GateFailed | None = None
    try:
        auditing.gate(result, min_accuracy=min_accuracy, max_fp=max_fp)
    except GateFailed as error:
        failed = error
    if as_json:
        terminal.print_json({**result.to_json(), "gate": terminal.error_json(failed) if failed else None})
        if failed:
            terminal.fail(failed)
            raise typer.Exit(failed.exit_code)
        return
    _print_audit(result)
    if failed:
        raise failed


def _print_audit(result: Any) -> None:
    head = ["rows", "n", "accuracy", "FP", "FN", "undecided", "p50 ms", "p90 ms", "p99 ms", "per s"]
    from jurat.verifiers.audit import PARTS

    parts = [(name, getattr(result, name)) for name in PARTS]
    lines = [_line(label, tally) for label, tally in [*parts, *result.groups.items()] if tally.n]
    terminal.print_table(head, lines, right=range(1, 10))
    if result.wrong:
        typer.echo("")
        table = [
            (c.id, c.part, c.gold, c.pred, "right" if c.expected else "wrong", v.status, v.why) for c, v in result.wrong
        ]
        cut = [[terminal.clean(cell, 60) for cell in row] for row in table]
        terminal.print_table(["id", "rows", "gold", "answer", "it is", "judged", "why"], cut)


def _line(label: str, t: Any) -> list[str]:
    return [
        label, str(t.n), f"{t.accuracy:.4f}", str(t.false_positives), str(t.false_negatives), str(t.undecided),
        f"{t.p50_ms:.3f}", f"{t.p90_ms:.3f}", f"{t.p99_ms:.3f}", f"{t.per_second:.0f}",
    ]  # fmt: skip


def list_verifiers(file: Files = [], as_json: terminal.AsJson = False) -> None:  # noqa: B006
    """Built-in verifiers, and those of the files given."""
    from jurat.verifiers.inventory import listing

    found = listing(file)
    if as_json:
        terminal.print_json({"verifiers": found})
        return
    head = ["name", "version", "kind", "from", "runs in", "deadline s", "what"]
    rows = [
        [f["name"], f["version"], f["kind"], f["source"], f["runs"], f"{f['deadline']:g}", terminal.clean(f["doc"], 80)]
        for f in found
    ]
    terminal.print_table(head, rows, right=[5])


def show(name: Name, file: Files = [], arg: Args = [], as_json: terminal.AsJson = False) -> None:  # noqa: B006
    """One verifier: arguments, version digest and everything the digest is made of."""
    from jurat.verifiers.audit import parse_args
    from jurat.verifiers.inventory import identity

    found = identity(name, file, parse_args(arg))
    if as_json:
        terminal.print_json(found)
        return
    for key in ("name", "version", "kind", "doc", "digest", "code", "config", "deps", "weights", "abi"):
        if found.get(key) not in (None, "", {}):
            typer.echo(f"{key:9s} {terminal.clean(found[key], 400)}")
    for path, text in found["sources"].items():
        typer.echo(f"\n# {path}\n{terminal.clean(text)}")


def diff(
    left: Annotated[str, typer.Argument(help="NAME, or FILE.py::NAME.", autocompletion=completion.verifiers)],
    right: Annotated[str, typer.Argument(help="NAME, or FILE.py::NAME.", autocompletion=completion.verifiers)],
    as_json: terminal.AsJson = False,
) -> None:
    """What differs between two verifiers or two versions of one: code, config, dependencies, weights."""
    from jurat.verifiers.inventory import difference

    found = difference(left, right)
    if as_json:
        terminal.print_json(found)
        return
    typer.echo("same version" if found["same"] else f"differ in: {', '.join(found['differ'])}")
    if found["text"]:
        typer.echo(terminal.clean(found["text"]))
