"""``jurat lineage of|uses|affected``, ``jurat diff``, ``jurat reproduce``, ``jurat runs verify|seal|export|import``,
``jurat verifiers versions|status``: what a number was made of, and what a bad verifier touched."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jurat.api import completion, terminal
from jurat.platform.errors import ConfigError, JuratError

if TYPE_CHECKING:
    import sqlalchemy as sa

    from jurat.platform.provenance.lineage import Walk
    from jurat.platform.provenance.records import Node
    from jurat.platform.runs.records import RunInfo
    from jurat.platform.runs.store import Store

FORMATS = ("bundle", "prov-json", "parquet", "csv")
Run = Annotated[
    str,
    typer.Argument(
        help="The run's name, the beginning of it, [bold]latest[/bold], or a copy of its folder.",
        autocompletion=completion.runs,
    ),
]
Thing = Annotated[
    str,
    typer.Argument(
        help="A checkpoint's folder (copied or renamed too) or digest, a run, RUN/SEGMENT, a rollout's id with --run, "
        "a verifier NAME@7, or any digest.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    group = typer.Typer(name="lineage", no_args_is_help=True, help="What a thing was made of, and what came of it.")
    group.command("of")(of)
    group.command("uses")(uses)
    group.command("affected")(affected)
    app.add_typer(group, rich_help_panel="Look")
    app.command("diff", rich_help_panel="Look")(diff)
    app.command("reproduce", rich_help_panel="Look")(reproduce)


def of_runs(group: typer.Typer) -> None:
    """Add what belongs under ``jurat runs``."""
    group.command("verify")(verify)
    group.command("seal")(seal_run)
    group.command("export")(export)
    group.command("import")(import_bundle)
    group.command("fork")(fork)


@contextmanager
def _run(named: str, database: str | None) -> Iterator[tuple[Store, RunInfo]]:
    """A run of the home folder, or of a copied folder, which is only looked at."""
    if Path(named).is_dir() and (Path(named) / "record.json").is_file():
        from jurat.platform.provenance.bundle import open_copy

        store, run = open_copy(Path(named))
        try:
            yield store, run
        finally:
            store.close()
        return
    with terminal.store(database) as store:
        yield store, store.run(named)


# ---- lineage -----------------------------------------------------------------------------------------------------


def of(
    thing: Thing,
    run: Annotated[
        str | None, typer.Option("--run", help="Where to look for a rollout's id.", show_default=False)
    ] = None,
    depth: Annotated[int, typer.Option(min=1, help="So many steps back.")] = 100,
    database: terminal.Database = None,
    as_json: terminal.AsJson = False,
) -> None:
    """What a checkpoint, a run or one sample was made of: reward with its verifiers, data, model, environment, parents."""
    from jurat.platform.provenance.lineage import walk

    with terminal.store(database) as store:
        sample = None if run is None else _sample(store, store.run(run), thing)

        def ask(connection: sa.Connection) -> Walk:
            root = _node(connection, store, thing) if sample is None else sample[0]
            return walk(connection, [root], "back", depth=depth)

        found = store.read(ask)
    if as_json:
        terminal.print_json({**_json(found), **({} if sample is None else {"sample": sample[1]})})
        return
    if sample is not None:
        for key, value in sample[1].items():
            typer.echo(f"{key:<12}{terminal.clean(value, 200)}")
    _print(found)


def _sample(store: Store, run: RunInfo, rollout_id: str) -> tuple[Node, dict[str, Any]]:
    """(the segment that made a rollout, what is said of it)."""
    from jurat.platform.provenance.edges import segment_node
    from jurat.platform.runs.rollouts import find

    record = find(store, run, rollout_id)
    if record is None:
        raise ConfigError(f"run {run.id} has no rollout {rollout_id!r}", where=str(run.folder),
                          fix=f"jurat rollouts {run.id} --json lists their ids")  # fmt: skip
    rollout, judgement = record.scored.rollout, record.scored.judgement
    said = {
        "rollout": rollout.id, "run": run.id, "stage": record.stage, "step": record.step + 1, "segment": record.segment,
        "problem": rollout.problem.id, "reward": judgement.reward.value,
        "policy": sorted({span.version for span in rollout.spans}),
        "verdicts": {
            member: {"status": v.status, "score": v.score, "version": v.verifier.digest if v.verifier else None}
            for member, v in judgement.verdicts.items()
        },
    }  # fmt: skip
    return segment_node(run.id, record.segment), said


def _node(connection: sa.Connection, store: Store, named: str) -> Node:
    """As ``lineage.resolve``, and a run by the beginning of its name or ``latest``."""
    from jurat.platform.provenance.lineage import resolve
    from jurat.platform.provenance.records import Node
    from jurat.platform.runs.repository import find_runs, list_runs

    if named == "latest":
        runs = list_runs(connection, store.runs_folder, limit=1, state=None)
    else:
        runs = find_runs(connection, named, store.runs_folder) if "/" not in named and "@" not in named else []
    return Node(kind="run", id=runs[0].id) if len(runs) == 1 else resolve(connection, named)


def uses(thing: Thing, database: terminal.Database = None, as_json: terminal.AsJson = False) -> None:
    """Runs that a verifier's version, reward, data set, model, environment or checkpoint went into, newest first."""
    from jurat.platform.provenance import lineage

    with terminal.store(database) as store:
        node, rows = store.read(lambda connection: (n := _node(connection, store, thing), lineage.uses(connection, n)))
    if node.kind == "verifier_version" and "@" not in thing and not thing.startswith("sha256:"):
        terminal.note(f"of the newest version of {thing} only; jurat verifiers versions {thing}   lists all")
    if as_json:
        terminal.print_json({"of": {"kind": node.kind, "id": node.id}, "runs": rows})
        return
    terminal.print_table(
        ["run", "recipe", "state", "segments", "created (UTC)"],
        [(r["id"], r["name"], r["state"], r["segments"], _time(r["created"])) for r in rows],
        right=(3,),
    )


def affected(
    thing: Annotated[str | None, typer.Argument(help="As of lineage of.", show_default=False)] = None,
    verifier: Annotated[
        str | None, typer.Option("--verifier", help="A verifier's version: NAME@7 or a digest.", show_default=False)
    ] = None,
    database: terminal.Database = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Everything that would be tainted if a thing is bad: rewards, segments, their checkpoints, runs that began from these."""
    from jurat.platform.provenance import lineage, versions
    from jurat.platform.provenance.records import Node

    if (thing is None) == (verifier is None):
        raise ConfigError("give a thing or --verifier", where="jurat lineage affected", fix="--verifier math@1")

    def ask(connection: sa.Connection) -> tuple[Walk, list[dict[str, Any]]]:
        if verifier is not None:
            node = Node(kind="verifier_version", id=versions.version(connection, verifier).digest)
        else:
            node = _node(connection, store, str(thing))
        judged = lineage.judged(connection, node.id) if node.kind == "verifier_version" else []
        return lineage.affected(connection, node), judged

    with terminal.store(database) as store:
        found, judged = store.read(ask)
    if as_json:
        terminal.print_json({**_json(found), "judged": judged})
        return
    _print(found, f"{lineage.MAX_NODES} things are told; ask for those that begin from the last of them")
    for row in judged:
        typer.echo(
            f"run {row['run']}: {row['verdicts']} verdicts of steps {row['first_step'] + 1} to {row['last_step'] + 1}"
        )


def _json(found: Walk) -> dict[str, Any]:
    return {
        "roots": [{"kind": n.kind, "id": n.id} for n in found.roots],
        "nodes": [{"kind": n.kind, "id": n.id, "facts": dict(said)} for n, said in found.nodes.items()],
        "edges": [
            {"from": {"kind": e.src.kind, "id": e.src.id}, "to": {"kind": e.dst.kind, "id": e.dst.id}, "role": e.role}
            for e in found.edges
        ],
        "cut": found.cut,
    }  # fmt: skip


def _print(found: Walk, more: str = "--depth goes further") -> None:
    for place, kind in enumerate(dict.fromkeys(node.kind for node in found.nodes)):
        typer.echo(("\n" if place else "") + kind.replace("_", " "))
        for node, said in found.nodes.items():
            if node.kind == kind:
                typer.echo(f"  {terminal.clean(node.id)}  {terminal.clean(_said(said), 300)}".rstrip())
    if found.cut:
        terminal.note(f"there is more: {more}")


def _said(said: Mapping[str, Any]) -> str:
    parts = []
    for key, value in said.items():
        if value in (None, "", [], {}) or key in ("spec", "deps", "source", "patch", "at", "args"):
            continue
        if key in ("created", "started", "ended") and isinstance(value, int):
            value = _time(value)
        if key == "cursor" and isinstance(value, Mapping):  # whole with --json
            value = ", ".join(f"{name} {each}" for name, each in value.items() if isinstance(each, (int, str)))
        if key == "first_step":
            value = int(value) + 1  # told as the log counts
        shown = ", ".join(value) if isinstance(value, list) and all(isinstance(v, str) for v in value) else value
        parts.append(f"{key} {shown}")
    return "  ".join(parts)


def _time(micros: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(micros / 1e6))


# ---- verifiers' versions -----------------------------------------------------------------------------------------


def versions(
    name: Annotated[str | None, typer.Argument(help="Of this verifier.", show_default=False)] = None,
    database: terminal.Database = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Versions of verifiers that runs were judged by, newest first."""
    from jurat.platform.provenance import versions as repository

    with terminal.store(database) as store:
        rows = store.read(lambda connection: repository.versions(connection, name))
    if as_json:
        terminal.print_json({"versions": [{key: getattr(v, key) for key in v.__slots__} for v in rows]})
        return
    terminal.print_table(
        ["version", "digest", "status", "first seen (UTC)", "reason"],
        [(", ".join(v.names), v.digest, v.status, _time(v.created), v.status_reason) for v in rows],
    )


def status(
    version: Annotated[str, typer.Argument(help="NAME@7, NAME or a digest.")],
    state: Annotated[str, typer.Argument(help="active, deprecated or quarantined.")],
    reason: Annotated[str, typer.Option("--reason", help="Why, for those who ask later.")] = "",
    database: terminal.Database = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Quarantine a verifier's version, so that nothing more is trained with it, or put it right again."""
    import getpass

    from jurat.platform.provenance import versions as repository

    def change(connection: sa.Connection) -> Any:
        repository.set_status(connection, version, state, reason, by=getpass.getuser())
        return repository.version(connection, version)

    with terminal.store(database) as store:
        found = store.write(change)
    if as_json:
        terminal.print_json({"names": found.names, "digest": found.digest, "status": found.status, "reason": reason})
        return
    typer.echo(
        terminal.clean(f"{', '.join(found.names)}  {found.digest}  {found.status}  {found.status_reason}".rstrip())
    )
    if state == "quarantined":
        terminal.note(f"jurat lineage affected --verifier {found.digest}   lists what it touched")


# ---- diff and reproduce ------------------------------------------------------------------------------------------


def diff(
    a: Run,
    b: Run,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 if they were made of different things.")
    ] = False,
    database: terminal.Database = None,
    as_json: terminal.AsJson = False,
) -> None:
    """What two runs were made of that differs: config, reward with verifier source, data, model, environment; then metrics."""
    from jurat.platform.provenance import lineage

    with terminal.store(database) as store:
        one, two = store.run(a), store.run(b)
        found = store.read(lambda connection: lineage.difference(connection, one, two))
    differs = any(value for key, value in found.items() if key != "metrics")
    if as_json:
        terminal.print_json({"a": one.id, "b": two.id, "same": not differs, "difference": found})
    else:
        _print_difference(found, one.id, two.id)
        if not differs:
            typer.echo("made of the same things")
    if differs and exit_code:
        raise typer.Exit(1)


def _print_difference(found: Mapping[str, Any], a: str, b: str) -> None:
    typer.echo(f"- {a}\n+ {b}")
    for kind, value in found.items():
        if not value:
            continue
        typer.echo(
            f"\n{kind.replace('_', ' ')}"
            + (" (last values; one seed each is no evidence)" if kind == "metrics" else "")
        )
        if isinstance(value, Sequence):
            lines = list(value)
        elif set(value) == {"a", "b"}:
            lines = [f"- {each}" for each in value["a"]] + [f"+ {each}" for each in value["b"]]
        else:
            lines = [line for key, (x, y) in value.items() for line in _pair(key, x, y)]
        for line in lines:
            sign, text = line[:1], line[1:].lstrip(" ")
            indent = " " * (len(line) - len(sign) - len(text))
            typer.echo(f"  {terminal.clean(sign)}{indent}{terminal.clean(text, 300)}")


def _pair(key: str, a: object, b: object) -> list[str]:
    return [f"- {key}: {a}"] * (a is not None) + [f"+ {key}: {b}"] * (b is not None)


def reproduce(
    run: Run,
    check: Annotated[
        bool, typer.Option("--check", help="Only tell what is missing. Exits with 1 if something is.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="By the record alone: load no data and no verifier.")] = False,
    out: Annotated[Path, typer.Option("-o", "--out", help="Where to write the recipe.")] = Path("reproduce.yaml"),
    database: terminal.Database = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Can a run be done again with equal numbers here? With no --check, its recipe is written and the command told."""
    import yaml

    from jurat.platform.provenance import environment, lineage

    with _run(run, database) as (store, found):
        here = environment.describe(Path(found.meta.get("base") or ".")).attrs
        missing = store.read(lambda connection: lineage.gaps(connection, found, here))
    if not quick:
        missing += _reloaded(found)
    if not check:
        if out.exists():
            raise ConfigError("the file is there already", where=str(out), fix="choose another name with -o")
        recipe = {key: value for key, value in found.recipe.items() if key != "tracking"}
        out.write_text(yaml.safe_dump(recipe, sort_keys=False), "utf-8")
    if as_json:
        terminal.print_json({"run": found.id, "gaps": missing, "recipe": None if check else str(out.absolute())})
    else:
        for gap in missing:
            typer.echo(f"- {terminal.clean(gap, 400)}")
        if not missing:
            typer.echo("nothing is missing: equal numbers are to be expected on a CPU")
        if not check:
            terminal.note(f"jurat train {out}   does it again")
    if missing and check:
        raise typer.Exit(1)


def _reloaded(run: RunInfo) -> list[str]:
    """What loading its data and verifiers tells: each digest then and now."""
    from jurat.platform.recipe import Recipe
    from jurat.trainers.prepare import prepare
    from jurat.trainers.presets import filled

    recipe, base, out = filled(Recipe.model_validate(run.recipe)), Path(run.meta.get("base") or "."), list[str]()
    then: Sequence[str] = run.meta.get("rewards", ())
    for place, (name, stage) in enumerate(recipe.staged()):
        what = f"stage {name}: " if name else ""
        try:
            found = prepare(stage, base=base, name=name)
        except JuratError as error:
            out.append(f"{what}{error.what}")
            continue
        recorded = then[place] if place < len(then) else "?"
        if recorded not in found.same_as:
            out.append(f"{what}the reward was {recorded[:19]}..., now it is {found.reward[:19]}...")
    return out


def fork(
    run: Run,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", help="Digest, or its beginning; the newest if not given.", show_default=False),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the run's recipe.", show_default=False),
    ] = None,
    run_id: Annotated[str | None, typer.Option("--run-id", help="Of the new run.", show_default=False)] = None,
    queue: Annotated[bool, typer.Option("--queue", help="Let jurat serve launch it.")] = False,
    database: terminal.Database = None,
    as_json: terminal.AsJson = False,
) -> None:
    """A new run that begins with the weights of a run's checkpoint, by its recipe from the checkpoint's stage on."""
    from jurat.api import forking
    from jurat.platform.config import assigned

    with terminal.store(database) as store:
        made = forking.fork(
            store, store.run(run), checkpoint=checkpoint, config=assigned(assignments or ()), run_id=run_id,
            state="queued" if queue else "created",
        )  # fmt: skip
    if as_json:
        terminal.print_json({"run": made.id, "parent": made.parent_run, "from_checkpoint": made.from_checkpoint,
                             "state": made.state})  # fmt: skip
        return
    typer.echo(f"run {made.id} begins with checkpoint {made.from_checkpoint} of {made.parent_run}")
    if not queue:
        terminal.note(f"jurat train --resume {made.id}   trains it")


# ---- runs verify, export, import ---------------------------------------------------------------------------------


def verify(
    run: Run,
    canaries: Annotated[
        bool, typer.Option("--canaries/--no-canaries", help="Ask the verifiers that are installed here too.")
    ] = True,
    file: Annotated[
        list[str] | None,
        typer.Option(
            "--file", "-f", help="File of verifiers that may be asked, beside the built-in ones.", show_default=False
        ),
    ] = None,
    database: terminal.Database = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Hold a run's record against its digests: the chain of events, every metric point, every part, every checkpoint
    that is there. Verifiers that are installed here as the run had them are asked their canary cases again.

    Exits with 1 and names what differs.
    """
    from jurat.platform.provenance.verify import verify as check

    with _run(run, database) as (store, found):
        report = check(store, found)
        if canaries:
            report = replace(report, faults=(*report.faults, *_drifted(store, found, file or ())))
    if as_json:
        terminal.print_json({"run": found.id, "events": report.events, "points": report.points,
                             "parts": report.parts, "checkpoints": report.checkpoints, "faults": report.faults})  # fmt: skip
    else:
        for fault in report.faults:
            typer.echo(terminal.clean(fault))
        told = f"{report.events} events, {report.points} points, {report.parts} parts, {report.checkpoints} checkpoints"
        typer.echo(f"{told}: {'as recorded' if report.whole else f'{len(report.faults)} faults'}")
    if not report.whole:
        raise typer.Exit(1)


def seal_run(run: Run, database: terminal.Database = None, as_json: terminal.AsJson = False) -> None:
    """Seal a finished run whose process was killed before it could, and write the record beside it. What is not as it was
    recorded is not sealed: exit code 1 names it."""
    from jurat.platform.provenance import bundle, seal
    from jurat.platform.provenance.verify import verify as check

    with terminal.store(database) as store:
        found = store.run(run)
        if not store.read(lambda connection: seal.missing(connection, found)):
            raise ConfigError(f"run {found.id} lacks no seal", where=found.id, fix="jurat runs verify tells how it is")
        faults = [fault for fault in check(store, found).faults if fault != seal.MISSING]
        if not faults:
            seal.seal(store, found)
            bundle.write_record(store, found)
    if as_json:
        terminal.print_json({"run": found.id, "sealed": not faults, "faults": faults})
    else:
        for fault in faults:
            typer.echo(terminal.clean(fault))
        typer.echo(f"{found.id}: {'not sealed' if faults else 'sealed'}")
    if faults:
        raise typer.Exit(1)


def _drifted(store: Store, run: RunInfo, files: Sequence[str]) -> list[str]:
    """Canary cases of which a version that the run used says something else here than when it was last asked. A record names no
    code that is run: ``files`` are the caller's."""
    from jurat.platform.provenance import versions
    from jurat.platform.provenance.records import VerifierFacts
    from jurat.verifiers.canary import UNASKED, Again

    used = store.read(lambda c: versions.versions_of(c, sorted(set((run.meta.get("verifiers") or {}).values()))))
    lines: list[str] = []
    for version in used:
        name = version.name
        if not (version.deterministic and name) or name in UNASKED:
            continue
        try:
            with Again(files) as asked:
                here = asked.identity(name, version.args)
                if here["digest"] != version.digest or here["kind"] == "judge":
                    continue  # of another version that is here nothing follows for this one
                seen = asked.canaries(VerifierFacts(label=name, name=name, digest=version.digest, args=version.args))
        except JuratError as error:
            terminal.note(f"  {name} is not asked: {error.what.splitlines()[0]}; --file names the file that has it")
            continue
        changed = store.read(lambda c, s=seen: versions.changed_behaviour(c, s))  # type: ignore[misc]
        lines += [f"verifier {name} {version.digest[:19]}... {line}" for line in changed]
    return lines


def export(
    run: Run,
    out: Annotated[Path, typer.Option("-o", "--out", help="A new file.")],
    form: Annotated[
        str, typer.Option("--format", help="bundle (all of it, for runs import), prov-json, parquet or csv (metrics).")
    ] = "bundle",
    weights: Annotated[
        bool, typer.Option("--weights/--no-weights", help="Of a bundle: checkpoints' tensors too.")
    ] = True,
    database: terminal.Database = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Write a run to one file."""
    import json

    from jurat.platform.provenance import bundle, points, prov

    if form not in FORMATS:
        raise ConfigError(f"no format is called {form!r}", where="--format", fix=", ".join(FORMATS))
    if out.exists():
        raise ConfigError("the file is there already", where=str(out), fix="choose another name with -o")
    with _run(run, database) as (store, found):
        if form == "bundle":
            bundle.export(store, found, out, weights=weights)
        elif form == "prov-json":
            made = store.read(lambda connection: prov.document(connection, found))
            out.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n", "utf-8")
        else:
            write = points.write_parquet if form == "parquet" else points.write_csv
            write(store.read(lambda connection: points.table(connection, found.pk)), out)
    if as_json:
        terminal.print_json({"run": found.id, "format": form, "file": str(out.absolute()), "bytes": out.stat().st_size})
    else:
        typer.echo(f"{out.absolute()}  {out.stat().st_size:,} bytes")


def import_bundle(
    bundle: Annotated[Path, typer.Argument(help="What runs export wrote.", exists=True, dir_okay=False)],
    database: terminal.Database = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Take a run's bundle into this home folder: all of it, or nothing if a byte differs."""
    from jurat.platform.provenance.bundle import take_in
    from jurat.platform.runs.store import Store

    store = Store.open(database, terminal.home())
    try:
        found = take_in(store, bundle)
    finally:
        store.close()
    if as_json:
        terminal.print_json({"run": found.id, "folder": str(found.folder), "state": found.state})
    else:
        typer.echo(f"run {found.id} is here: {found.folder}")
