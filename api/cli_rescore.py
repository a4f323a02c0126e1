"""``jurat rescore``: what another version of a verifier would have said of stored rollouts, and done to training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jurat.api import completion, terminal
from jurat.api.cli_verifiers import Args, Files
from jurat.platform.errors import ConfigError, DataError, GateFailed

if TYPE_CHECKING:
    from jurat.platform.runs.records import Part, RunInfo

FILTER_SECONDS = 60.0
"""Of a filter over some parts of a run."""
_PARTS = 256
"""Asked at once."""


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("rescore", rich_help_panel="Verify")(rescore)


def rescore(
    from_: Annotated[str, typer.Option("--from", help="The version whose verdicts are stored: NAME@7 or a digest.")],
    to: Annotated[
        str, typer.Option("--to", help="NAME as installed, FILE.py::NAME, or a registered NAME@8 or digest.")
    ],
    runs: Annotated[
        list[str], typer.Option("--runs", help="A run; as often as there are.", autocompletion=completion.runs)
    ],
    where: Annotated[
        str, typer.Option("--where", help="A filter, as in 'step >= 20 AND finish = stop'.", show_default=False)
    ] = "",
    sample: Annotated[
        int | None, typer.Option(min=1, help="About so many rollouts, in whole groups.", show_default=False)
    ] = None,
    stratify: Annotated[
        str, typer.Option(help="What the sample is spread over: source, length, step, difficulty.")
    ] = "source,length",
    seed: Annotated[int, typer.Option(help="Of the sample and the intervals.", min=0)] = 0,
    threshold: Annotated[float, typer.Option(help="Scores from it on pass.")] = 0.5,
    again: Annotated[
        bool, typer.Option("--again", help="Ask the old version too: what differs then is the environment's doing.")
    ] = False,
    fail_if: Annotated[
        list[str], typer.Option("--fail-if", help='Exit 3 if it is so, as in "flip_rate>0.005".', show_default=False)
    ] = [],  # noqa: B006
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write the report: .html or .json.", show_default=False)
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes for verifiers that need one.", min=1)] = 2,
    file: Files = [],  # noqa: B006
    arg: Args = [],  # noqa: B006
    database: terminal.Database = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Judge stored rollouts by another version of a verifier, and report what changes: flips, rewards, advantages.

    Nothing that is stored is written over. Interrupted, the same command goes on where it was.
    """
    from jurat.platform.provenance import versions
    from jurat.platform.runs.rescores import Selection
    from jurat.trainers import rescore as scoring
    from jurat.trainers.drift import Gate
    from jurat.verifiers.audit import parse_args

    gates = [Gate.of(text, scoring.METRICS) for text in fail_if]
    if out is not None and (out.suffix not in (".html", ".json") or out.is_dir()):
        raise ConfigError(
            f"{out.name!r} is no report's name", where="--out", fix="give one that ends in .html or .json"
        )
    with terminal.store(database) as store, ExitStack() as stack:
        old = store.read(lambda connection: versions.version(connection, from_))
        selection = Selection(
            runs=tuple(store.run(name).id for name in runs), where=where, sample=sample, seed=seed, threshold=threshold,
            stratify=tuple(each.strip() for each in stratify.split(",") if each.strip()), again=again,
        )  # fmt: skip
        given: Mapping[str, Any] = {"args": {**old.args, **parse_args(arg)}, "files": file, "workers": workers}
        new = stack.enter_context(scoring.opened(store, to, **given))
        before = stack.enter_context(scoring.opened(store, old.digest, **given)) if again else None
        choose = stack.enter_context(_Filter(where))
        done = scoring.rescore(
            store, old, new, selection, again=before, choose=choose, by="cli", told=_progress(as_json)
        )
    report = done.report
    if out is not None:
        from jurat.api.rescore_page import page

        out.write_text(page(report) if out.suffix == ".html" else json.dumps(report, indent=1) + "\n", "utf-8")
    failed = [said for gate in gates if (said := gate.fails(report["metrics"]))]
    fault = None
    if failed:
        fault = GateFailed(
            "; ".join(failed), where=report["id"], fix="look at the largest disagreements: -o report.html"
        )
    if as_json:
        terminal.print_json({**report, "gate": terminal.error_json(fault) if fault else None})
        if fault:
            terminal.fail(fault)
            raise typer.Exit(fault.exit_code)
        return
    _print(report)
    if fault:
        raise fault


def _progress(as_json: bool) -> Any:
    last = [-1]

    def told(done: int, total: int) -> None:
        share = 10 * done // max(1, total)
        if share != last[0] and not as_json:
            last[0] = share
            terminal.note(f"{done} of {total} rollouts")

    return told


class _Filter:
    """The rollouts of a run that a filter lets through, asked of the reader's process. A context manager."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __enter__(self) -> _Filter:
        if self._text:
            from jurat.api.server import filters, reader
            from jurat.api.server.problems import Problem

            try:
                self._condition = filters.compile_filter(self._text, reader.FIELDS)
            except Problem as problem:
                raise ConfigError(
                    problem.detail, where="--where", fix="docs/service.md tells how filters read"
                ) from None
            self._reader = reader.Reader(workers=1, seconds=FILTER_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        if self._text:
            self._reader.close()

    def __call__(self, run: RunInfo, parts: Sequence[Part]) -> frozenset[str]:
        """Raises DataError where the parts cannot be read."""
        import sqlalchemy as sa

        from jurat.api.server.problems import Problem
        from jurat.api.server.reader import ROLLOUTS, matching

        found: set[str] = set()
        query = sa.select(ROLLOUTS.c.rollout_id).select_from(ROLLOUTS)
        query = query if self._condition is None else query.where(self._condition)
        for first in range(0, len(parts), _PARTS):
            try:
                found.update(
                    row["rollout_id"] for row in matching(self._reader, run, query, parts[first : first + _PARTS])
                )
            except Problem as problem:
                raise DataError(problem.detail, where=run.id, fix="narrow --where, or leave it out") from None
        return frozenset(found)


# ---- for people --------------------------------------------------------------------------------------------------


def _print(report: Mapping[str, Any]) -> None:
    typer.echo(f"re-scoring {report['id']}   {name_of(report['from'])} -> {name_of(report['to'])}\n")
    for key, value in summary(report):
        typer.echo(f"{key:<22}{terminal.clean(value, 200)}")
    typer.echo("")
    statuses = [(was, now, count) for was, row in report["statuses"].items() for now, count in row.items()]
    terminal.print_table(["was", "is", "rollouts"], statuses, right=(2,))
    for kind, rows in report["strata"].items():
        changed = sorted((row for row in rows if row["up"] + row["down"]), key=lambda row: -row["flip_rate"])[:5]
        if changed:
            typer.echo("")
            lines = [(row["stratum"], row["n"], row["up"], row["down"], f"{row['flip_rate']:.3%}") for row in changed]
            terminal.print_table([kind, "n", "0 to 1", "1 to 0", "flips"], lines, right=(1, 2, 3, 4))
    if report["worst"]:
        typer.echo("")
        rows = [
            (each["rollout"], each["reference"], score(each["old"]), score(each["new"]), each["text"].strip()[-60:])
            for each in report["worst"][:10]
        ]
        terminal.print_table(["rollout", "gold", "was", "is", "ends"], rows)
    for fault in report["faults"]:
        terminal.note(f"note: {fault}")


def name_of(version: Mapping[str, Any]) -> str:
    return f"{(version['names'] or [''])[0]} ({version['digest'].removeprefix('sha256:')[:12]})"


def score(trace: Mapping[str, Any]) -> str:
    return trace["status"] if trace["score"] is None else f"{trace['status']} {trace['score']:g}"


def summary(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The lines that a person reads first."""
    counts, flips, mean, metrics = report["counts"], report["flips"], report["mean"], report["metrics"]
    spent, word = report["seconds"], report["verdict"]

    def share(found: Mapping[str, Any]) -> str:
        return f"{found['n']} = {found['rate']:.3%} [{found['low']:.3%}, {found['high']:.3%}]"

    def number(value: float | None, form: str) -> str:
        return "not measured" if value is None else format(value, form)

    lines = [
        ("verdict", word["word"] + (f" ({', '.join(word['because'])})" if word["because"] else "")),
        ("rollouts", f"{counts['covered']} of {counts['selected']} selected, {counts['judged_by_old']} judged by the old"),
        ("flips", share(flips["all"])), ("  0 to 1", share(flips["up"])), ("  1 to 0", share(flips["down"])),
        ("McNemar p", f"{flips['mcnemar_p']:.3g}"),
        ("mean score", f"{number(mean['old'], '.4f')} to {number(mean['new'], '.4f')}, shift {number(mean['shift'], '+.4f')} "
                       f"[{number(mean['low'], '+.4f')}, {number(mean['high'], '+.4f')}]"),
        ("rank correlation", f"Spearman {number(metrics['spearman'], '.4f')}, Kendall {number(metrics['kendall'], '.4f')}"),
        ("groups", f"{report['training']['counts']['groups']} whole: {number(metrics['std_lost_rate'], '.3%')} lose their spread, "
                   f"{number(metrics['std_gained_rate'], '.3%')} gain one"),
        ("advantage sign", f"{number(metrics['advantage_sign_rate'], '.3%')} of samples change it"),
        ("best of group", f"{number(metrics['best_change_rate'], '.3%')} change, mean {number(metrics['best_shift'], '+.4f')}"),
        ("time-outs", number(metrics["timeout_shift"], "+.3%")),
        ("seconds (p50, p99)", "; ".join(
            f"{side} {number(spent[side]['p50'], '.2g')}, {number(spent[side]['p99'], '.2g')}" for side in ("old", "new"))),
        ("affected", f"{len(report['affected']['runs'])} runs, {len(report['affected']['checkpoints'])} checkpoints"),
    ]  # fmt: skip
    if "environment" in report:
        lines.insert(3, ("  by environment", share(report["environment"]["stored_to_again"]["flips"]["all"])))
    return lines
