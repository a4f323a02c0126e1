"""``jurat runs ...``, ``jurat rollouts`` and ``jurat db upgrade``: what was recorded, for people and for programs.

Records count steps from 0, by the policy version that a step begins with; what is told here, as text or JSON, counts from
1, as the log does: step N makes version N.
"""

from __future__ import annotations

import getpass
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from jurat.api import cli_lineage, completion, terminal
from jurat.platform.errors import ConfigError, nearest
from jurat.platform.memory import highest, recorded

if TYPE_CHECKING:
    from jurat.platform.runs.records import Event, Point, RunInfo, VerdictStat
    from jurat.platform.runs.rollouts import Record
    from jurat.platform.runs.store import Store
    from jurat.platform.types import Step, StepReport

RunArgument = Annotated[
    str,
    typer.Argument(help="The run's name, the beginning of it, or [bold]latest[/bold].", autocompletion=completion.runs),
]
Database = Annotated[
    str | None,
    typer.Option(envvar="JURAT_DATABASE", help="SQLAlchemy URL, if the recipe's tracking.database is not the default."),
]
TEXT_LIMIT = 1500
"""Characters of a text shown without --full."""
RESUMED = frozenset({"paused", "interrupted", "failed", "killed"})
"""States from which ``jurat train --resume`` goes on."""

runs_app = typer.Typer(name="runs", no_args_is_help=True, help="What was trained, and how it goes.")
db_app = typer.Typer(name="db", no_args_is_help=True, help="The database of runs.")


def register(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    cli_lineage.of_runs(runs_app)
    app.add_typer(runs_app, rich_help_panel="Look")
    app.command("rollouts", rich_help_panel="Look")(rollouts)
    app.add_typer(db_app, rich_help_panel="Set up")


def _time(micros: int | None) -> str:
    return "" if micros is None else time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(micros / 1e6))


def _shown(state: str, deleted: int | None) -> str:
    """As people see it."""
    return state if deleted is None else f"{state}, deleted"


def _state(store: Store, run: RunInfo) -> str:
    """The state; ``killed`` for a run that says it goes on while nobody holds its folder here."""
    return "killed" if run.state == "running" and run.folder.is_dir() and store.holder(run) is None else run.state


# ---- runs ls -----------------------------------------------------------------------------------------------------


@runs_app.command("ls")
def ls(
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 20,
    state: Annotated[
        str | None, typer.Option(help="queued, running, paused, interrupted, failed, finished, ...")
    ] = None,
    database: Database = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Runs, newest first."""
    from jurat.platform.runs.states import State

    if state is not None and state not in get_args(State):
        hint = nearest(state, get_args(State))
        raise ConfigError(f"no state is called {state!r}.{hint}", where="--state", fix=", ".join(get_args(State)))
    if database is None and not (terminal.home() / "jurat.db").exists():
        runs: list[dict[str, Any]] = []
    else:
        with terminal.store(database) as store:
            runs = [_listed(store, run) for run in store.runs(limit, state)]  # type: ignore[arg-type]
    if as_json:
        terminal.print_json({"runs": runs})
        return
    if not runs:
        terminal.note(f"no runs in {terminal.home()}: jurat train tiny makes one")
        return
    terminal.print_table(
        ["run", "recipe", "state", "stage", "step", "reward", "created (UTC)", "detail"],
        [
            (r["run"], r["recipe"], _shown(r["state"], r["deleted"]), r["stage"], r["step"], _short(r["reward"]), _time(r["created"]),
             r["detail"])
            for r in runs
        ],
        right=(4, 5),
    )  # fmt: skip


def _listed(store: Store, run: RunInfo) -> dict[str, Any]:
    last = store.last_metrics(run)
    rewarded = bool(last) and _rewarded(run, last[0].stage)
    return {
        "run": run.id,
        "recipe": run.name,
        "state": _state(store, run),
        "detail": run.detail,
        "stage": last[0].stage if last else None,
        "step": last[0].step + 1 if last else None,
        "reward": next((point.value for point in last if rewarded and point.name == "reward/mean"), None),
        "created": run.created,
        "started": run.started,
        "ended": run.ended,
        "deleted": run.deleted_at,
    }


def _rewarded(run: RunInfo, stage: str) -> bool:
    """Whether a stage samples: where it learns from given answers, the recorded reward is their label."""
    from jurat.platform.recipe import OFFLINE

    stages: Sequence[Mapping[str, Any]] = run.recipe.get("stages", ())
    own = next((each for each in stages if each["name"] == stage), run.recipe)
    return (own.get("algorithm") or run.recipe["algorithm"])["name"] not in OFFLINE


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


# ---- runs show ---------------------------------------------------------------------------------------------------


@runs_app.command("show")
def show(run: RunArgument, database: Database = None, as_json: terminal.AsJson = False) -> None:
    """One run: state, digests, verifier versions, last metrics, evaluations, checkpoints, segments."""
    from jurat.platform.runs import alarms as alarm_rows

    with terminal.store(database) as store:
        found = store.run(run)
        last, stats = store.last_metrics(found), store.verdict_stats(found)
        evaluations = [measured.result for measured in store.evaluations(found)]
        checkpoints, segments = store.checkpoints(found), store.segments(found)
        events, holder, state = store.events(found), store.holder(found), _state(store, found)
        open_alarms = [a for a in store.read(lambda c: alarm_rows.of_run(c, found.pk)) if a["state"] != "closed"]
    memory = recorded(Path(checkpoints[-1].ref.path)) if checkpoints else ()
    versions, algorithms = _versions(found, stats), _algorithms(found)
    if as_json:
        from jurat.platform.runs.repository import evaluation_to_json

        terminal.print_json(
            {
                "run": found.id, "recipe": found.name, "state": state, "detail": found.detail,
                "algorithms": algorithms, "filled": _harmless(found),
                "recipe_digest": found.recipe_digest, "reward_digest": found.reward_digest, "folder": str(found.folder),
                "created": found.created, "started": found.started, "ended": found.ended, "deleted": found.deleted_at,
                "holder": None if holder is None else {"pid": holder.pid, "host": holder.host},
                "verifiers": versions,
                "stage": last[0].stage if last else None, "step": last[0].step + 1 if last else None,
                "metrics": {point.name: point.value for point in last},
                "evaluations": [evaluation_to_json(e) for e in evaluations],
                "checkpoints": [
                    {"stage": c.stage, "step": c.ref.step, "digest": c.ref.digest, "parent": c.ref.parent or None,
                     "path": c.ref.path, "there": Path(c.ref.path).is_dir()}
                    for c in checkpoints
                ],
                "memory": [{"step": p.step + 1, "phase": p.phase, "bytes": dict(p.bytes)} for p in memory],
                "segments": [
                    {name: getattr(s, name) for name in s.__slots__} | {"first_step": s.first_step + 1} for s in segments
                ],
                "alarms": open_alarms,
                "events": [{name: getattr(e, name) for name in e.__slots__} for e in events[-50:]],
            }
        )  # fmt: skip
        return
    by = f"  (process {holder.pid} on {holder.host})" if holder else ""
    facts = [
        ("recipe", f"{found.name}  {found.recipe_digest}  (--json: filled)"),
        *(
            (f"stage {a['stage']}" if a["stage"] else "algorithm", f"{a['steps']} steps: {_flow(a['algorithm'])}")
            for a in algorithms
        ),
        ("state", f"{_shown(state, found.deleted_at)}{by}{'  ' + found.detail if found.detail else ''}"),
        ("created", f"{_time(found.created)} UTC" + (f", ended {_time(found.ended)}" if found.ended else "")),
        ("reward", found.reward_digest),
        *((f"verifier {v['member']}", f"{v['verifier']} {v['digest']}  {_said(v)}") for v in versions),
        ("folder", str(found.folder)),
    ]
    typer.echo(f"run {found.id}")
    _pairs(facts)
    for each in open_alarms:
        _alarm(each)
    if last:
        _head(f"last step: {last[0].stage + ' ' if last[0].stage else ''}{last[0].step + 1}")
        _pairs([(point.name, f"{point.value:.6g}") for point in last])
    if evaluations:
        from jurat.api.summary import evaluation_table, finals

        for name in dict.fromkeys(e.name for e in evaluations):
            typer.echo("")
            of = [e for e in evaluations if e.name == name]
            shown = finals(of, name) or of[-1:]
            typer.echo("\n".join(evaluation_table(shown, found.recipe["sampling"]["temperature"])))
    if checkpoints:
        _head("checkpoints")
        terminal.print_table(
            ["stage", "step", "digest", "began from", "path"],
            [
                (c.stage, c.ref.step, c.ref.digest[:23], c.ref.parent[:23] or "-",
                 c.ref.path + ("" if Path(c.ref.path).is_dir() else " (deleted)"))
                for c in checkpoints
            ],
        )  # fmt: skip
    if memory:
        _head(f"memory: most by phase, of the last {len(memory)} entries of the newest checkpoint")
        terminal.print_table(
            ["phase", "whose", "MiB", "step"],
            [
                (phase, whose, f"{peak.bytes[whose] / 2**20:,.0f}", peak.step + 1)
                for phase, found_by in highest(memory).items()
                for whose, peak in found_by.items()
            ],
            right=(2, 3),
        )
    if segments:
        _head("segments: a step belongs to the newest one that began at or before it")
        terminal.print_table(
            ["no", "stage", "from step", "started (UTC)", "ended", "ending", "host", "pid"],
            [
                (s.no, s.stage, s.first_step + 1, _time(s.started), _time(s.ended), s.ending, s.host, s.pid)
                for s in segments
            ],
        )  # fmt: skip
    if told := [e for e in events if e.kind != "state"][-10:]:
        _head("events")
        terminal.print_table(["at (UTC)", "kind", "what"], [(_time(e.at), e.kind, _flat(e.payload)) for e in told])
    typer.echo(f"\njurat rollouts {found.id} --worst 10   shows what it wrote and how that was judged")
    if state in RESUMED and checkpoints:
        typer.echo(f"jurat train --resume {found.id}   goes on from its newest checkpoint")


def _harmless(run: RunInfo) -> dict[str, Any]:
    """The recipe as it was filled, without the password of its database."""
    import sqlalchemy as sa

    tracking = dict(run.recipe.get("tracking") or {})
    if tracking.get("database"):
        tracking["database"] = sa.make_url(tracking["database"]).render_as_string(hide_password=True)
    return {**run.recipe, "tracking": tracking}


def _flow(value: Mapping[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(dict(value), default_flow_style=True, sort_keys=False, width=10_000).strip()


def _algorithms(run: RunInfo) -> list[dict[str, Any]]:
    """Of each stage, as the recipe was filled: what it says, but for what is off or empty."""
    whole: Mapping[str, Any] = run.recipe
    made = []
    stages: Sequence[Mapping[str, Any]] = whole.get("stages") or ({},)
    for stage in stages:
        part = stage.get("algorithm") or whole["algorithm"]
        said = {key: value for key, value in part.items() if value not in (None, [], {})}
        made.append({"stage": stage.get("name", ""), "steps": stage.get("steps") or whole["steps"], "algorithm": said})
    return made


def _versions(run: RunInfo, stats: list[VerdictStat]) -> list[dict[str, Any]]:
    """Each verifier version that judged, with its counts; before the first step those that the run was bound to."""
    made: dict[tuple[str, str, str], dict[str, Any]] = {}
    for stat in stats:
        row = made.setdefault(
            (stat.member, stat.verifier, stat.version_digest),
            {"member": stat.member, "verifier": stat.verifier, "digest": stat.version_digest, "verdicts": 0,
             "statuses": {}},
        )  # fmt: skip
        row["verdicts"] += stat.n
        for status, count in stat.statuses.items():
            row["statuses"][status] = row["statuses"].get(status, 0) + count
    bound = run.meta.get("verifiers")
    if not made and isinstance(bound, Mapping):
        return [
            {"member": member, "verifier": member, "digest": digest, "verdicts": 0, "statuses": {}}
            for member, digest in bound.items()
        ]
    return list(made.values())


def _said(version: Mapping[str, Any]) -> str:
    counts = sorted(version["statuses"].items(), key=lambda item: -item[1])
    return ", ".join(f"{count} {status}" for status, count in counts)


def _head(text: str) -> None:
    typer.echo(f"\n{terminal.clean(text)}")


def _pairs(pairs: list[tuple[str, str]]) -> None:
    width = max(len(terminal.clean(name)) for name, _ in pairs)
    for name, value in pairs:
        typer.echo(f"  {terminal.clean(name).ljust(width)}  {_line(value)}")


def _line(text: str) -> str:
    """Harmless, and one line."""
    return terminal.clean(text).replace("\n", "\\n")


def _flat(payload: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in payload.items())


# ---- runs watch --------------------------------------------------------------------------------------------------


@runs_app.command("watch")
def watch(
    run: RunArgument,
    interval: Annotated[float, typer.Option(min=0.05, help="Seconds between two looks.")] = 1.0,
    database: Database = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Follow a run until it ends, and say how it goes on where it pauses. Exits as it did: 0 finished, 1 failed or killed,
    130 interrupted."""
    from jurat.platform.runs.states import ENDED

    with terminal.store(database) as store:
        found = store.run(run)
        follower = _Follower(store, found, as_json=as_json)
        with follower:
            before = ""
            while True:
                found = store.run(found.id)  # before the facts: what was recorded by its end is then seen
                state = _state(store, found)
                follower.look()
                if state == "paused" and before != "paused":
                    follower.say(f"run {found.id} is paused: {_on(store, found)}")
                before = state
                if state in ENDED or state == "killed":
                    break
                time.sleep(interval)
        if as_json:
            resume = {"resume": f"jurat train --resume {found.id}"} if state in RESUMED else {}
            terminal.print_json({"run": found.id, "state": state, "detail": found.detail, **resume})
        else:
            terminal.note(f"run {found.id} is {state}{': ' + found.detail if found.detail else ''}")
            if state in RESUMED:
                terminal.note(_on(store, found))
    if state != "finished":
        raise typer.Exit(130 if state == "interrupted" else 1)


def _on(store: Store, run: RunInfo) -> str:
    begins = (
        "goes on from its newest checkpoint" if store.checkpoints(run) else "begins again: it has no checkpoint yet"
    )
    return f"jurat train --resume {run.id}   {begins}"


class _Follower:
    """Reads what is new in the record and tells it: JSON lines on stdout, or the screen that training itself shows."""

    def __init__(self, store: Store, run: RunInfo, *, as_json: bool) -> None:
        from jurat.api.screen import choose_screen

        self._store, self._run, self._json = store, run, as_json
        self._seen: tuple[int, int] = (-1, -1)
        self._told: set[tuple[str, str, int]] = set()
        self._event = 0
        self._stage: str | None = None
        self._screen = None if as_json else choose_screen(as_json=False)

    def __enter__(self) -> _Follower:
        if self._screen is not None:
            self._screen.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._screen is not None:
            self._screen.__exit__(*error)

    def look(self) -> None:
        """Tell what is new, in the order in which it happened."""
        news: list[tuple[int, Callable[[], None]]] = []
        segments = {s.no: s for s in self._store.segments(self._run)}
        steps: dict[tuple[int, int], list[Point]] = {}
        for point in self._store.metrics(self._run, after=self._seen):
            steps.setdefault((segments[point.segment].stage_index, point.step), []).append(point)
        for place, points in steps.items():
            self._seen = place
            news.append((points[0].at, partial(self._step, points)))
        for measured in self._store.evaluations(self._run):
            result = measured.result
            if (result.stage, result.name, result.step) not in self._told:
                self._told.add((result.stage, result.name, result.step))
                news.append((measured.at, partial(self._evaluation, result)))
        for event in self._store.events(self._run, after=self._event):
            self._event = event.seq
            news.append((event.at, partial(self._note, event)))
        for _, tell in sorted(news, key=lambda item: item[0]):
            tell()

    def say(self, text: str) -> None:
        """To a person; programs read it from the events."""
        if self._screen is not None:
            self._screen.note(text)

    def _note(self, event: Event) -> None:
        if self._screen is None:
            terminal.print_json({"event": event.kind, "at": event.at, "payload": dict(event.payload)})
        elif event.kind != "state":
            self._screen.note(f"{event.kind}: {_flat(event.payload)}")

    def _step(self, points: list[Point]) -> None:
        stage, step = points[0].stage, points[0].step
        values = {point.name: point.value for point in points}
        if self._screen is None:
            terminal.print_json({"stage": stage, "step": step + 1, "metrics": values})
            return
        if stage != self._stage:
            from jurat.platform.recipe import Recipe

            self._stage = stage
            recipe = dict(Recipe.model_validate(self._run.recipe).staged())[stage]
            self._screen.start(
                run_id=self._run.id, stage=stage, recipe=recipe, first_step=step, last_step=recipe.steps
            )  # fmt: skip
        self._screen.step(_report(step, values))

    def _evaluation(self, result: Any) -> None:
        if self._screen is not None:
            self._screen.evaluation(result)
        else:
            from jurat.platform.runs.repository import evaluation_to_json

            terminal.print_json({"evaluation": evaluation_to_json(result)})


def _report(step: int, values: Mapping[str, float]) -> StepReport:
    from jurat.platform.types import StepReport

    seconds = {name.removeprefix("seconds/"): value for name, value in values.items() if name.startswith("seconds/")}
    return StepReport(step=step, version=step + 1, metrics=values, updates=(), seconds=seconds)


# ---- runs cancel -------------------------------------------------------------------------------------------------


@runs_app.command("cancel")
def cancel(run: RunArgument, database: Database = None, as_json: terminal.AsJson = False) -> None:
    """Ask a run that goes on, detached or not, to stop at a checkpoint. Twice: to stop now. Asked of one that is starting, it
    is a pause, of which its process hears as soon as it is there."""
    from jurat.api.detach import cancel as stop
    from jurat.platform.runs import leases

    pid: int | None = None
    with terminal.store(database) as store:
        found = store.run(run)
        if found.state == "queued":
            raise ConfigError(
                f"no process trains run {found.id} yet: it is queued", where=str(found.folder),
                fix=f"POST /api/v1/runs/{found.id}:cancel to the service takes it out of the queue for good",
            )  # fmt: skip
        if found.state in ("starting", "pausing") and store.holder(found) is None:
            store.write(lambda connection: leases.command(connection, found.pk, "pause", by="the command line"))
        else:
            pid = stop(found.id, found.folder)
    if as_json:
        terminal.print_json({"run": found.id, "pid": pid})
    elif pid is None:
        terminal.note(f"run {found.id} is starting: its process will hear that it is to stop, and the run be paused")
    else:
        terminal.note(f"asked process {pid} to stop at a checkpoint")


# ---- runs timeline -----------------------------------------------------------------------------------------------

STEP_PHASES = {"seconds/update": "train", "seconds/publish": "sync"}
"""Those that all samples of a step have in common."""


@runs_app.command("alarms")
def alarms(
    run: RunArgument,
    ack: Annotated[
        int | None, typer.Option("--ack", metavar="ID", help="Say that this one was seen.", show_default=False)
    ] = None,
    database: Database = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Signs that the reward is hacked or broken, newest first, each with its evidence and the samples to look at."""
    from jurat.platform.runs import alarms as alarm_rows

    with terminal.store(database) as store:
        found = store.run(run)
        if ack is not None:
            by = getpass.getuser()
            store.write(lambda c: alarm_rows.acknowledge(c, found.pk, ack, by=by))
        rows = store.read(lambda c: alarm_rows.of_run(c, found.pk))
    if as_json:
        terminal.print_json({"run": found.id, "alarms": rows})
        return
    for row in rows:
        _alarm(row)
        samples = row["evidence"].get("samples")
        for rollout in samples[:4] if isinstance(samples, list) else ():
            typer.echo(f"    jurat rollouts {found.id} --id {terminal.clean(str(rollout), 60)}")
    if not rows:
        typer.echo(f"run {found.id} has no alarms")


def _alarm(row: Mapping[str, Any]) -> None:
    told = ", ".join(
        f"{key} {_brief(value)}" for key, value in row["evidence"].items() if key not in ("samples", "cases")
    )
    steps = f"step {row['first_step'] + 1}" + (
        f"-{row['last_step'] + 1}" if row["last_step"] > row["first_step"] else ""
    )
    seen = f" by {row['acked_by']}" if row["acked_by"] else ""
    line = f"alarm {row['id']}  {row['severity']}  {row['rule']}  {row['state']}{seen}  {steps}  {told}"
    typer.echo(terminal.clean(line, 300))


def _brief(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)[:60]


@runs_app.command("timeline")
def timeline(
    run: RunArgument,
    step: Annotated[int | None, typer.Option(min=1, help="Samples of this step, the slowest first.")] = None,
    stage: Annotated[str | None, typer.Option(help="Of this stage.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many steps (the last) or samples.")] = 20,
    database: Database = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Where the time went, in seconds by phase: of each step, or of the samples of one."""
    from jurat.platform.runs.rollouts import read

    with terminal.store(database) as store:
        found = store.run(run)
        points = [
            p for p in store.metrics(found, stage=stage) if p.name.startswith(("timeline/", "utilisation/", "seconds/"))
        ]
        steps: dict[tuple[str, int], dict[str, float]] = {}
        for point in points:
            steps.setdefault((point.stage, point.step), {})[point.name] = point.value
        if stage is not None and not steps:
            stages = ", ".join(dict.fromkeys(p.stage or "''" for p in store.metrics(found)))
            raise ConfigError(
                f"run {found.id} has no step of a stage {stage!r}", where=f"--stage {stage}",
                fix=f"its stages with steps: {stages or 'none yet'}",
            )  # fmt: skip
        if step is None:
            chosen = [{"stage": s, "step": n + 1, **values} for (s, n), values in steps.items()][-limit:]
            _say_steps(found.id, chosen, as_json=as_json)
            return
        page = read(store, found, step=step - 1, stage=stage, limit=None)
        if not page.records and not page.faults:
            there = sorted(n + 1 for _, n in steps)
            raise ConfigError(
                f"run {found.id} has no samples of step {step}", where=f"--step {step}",
                fix=f"it has steps {there[0]} to {there[-1]}" if there else "wait for its first step",
            )  # fmt: skip
    samples = [_timed(record, steps.get((record.stage, record.step), {})) for record in page.records]
    samples.sort(key=lambda sample: -sum(sample["seconds"].values()))
    for fault in page.faults:
        terminal.note(f"warning: {fault}")
    if as_json:
        terminal.print_json({"run": found.id, "samples": samples[:limit], "faults": page.faults})
        return
    phases = list(dict.fromkeys(name for sample in samples for name in sample["seconds"]))
    terminal.print_table(
        ["problem", "visit.index", "tokens", *phases, "verifiers"],
        [
            (each["problem"][:12], f"{each['visit']}.{each['index']}", each["tokens"],
             *(f"{each['seconds'].get(phase, 0.0):.3f}" for phase in phases),
             "  ".join(f"{name} {seconds:.3f}" for name, seconds in each["verifiers"].items()))
            for each in samples[:limit]
        ],
        right=range(1, 3 + len(phases)),
    )  # fmt: skip


def _say_steps(run: str, steps: list[dict[str, Any]], *, as_json: bool) -> None:
    from jurat.platform.types import PHASES

    if as_json:
        terminal.print_json({"run": run, "steps": steps})
        return

    def both(step: Mapping[str, Any], phase: str) -> str:
        name = f"timeline/{phase}"
        return f"{step[f'{name}_mean']:.3f} {step[f'{name}_p95']:.3f}" if f"{name}_mean" in step else "-"

    def share(step: Mapping[str, Any], name: str) -> str:
        return f"{100 * step[name]:.0f} %" if name in step else "-"

    terminal.print_table(
        ["stage", "step", *(f"{phase} p95" for phase in PHASES), *STEP_PHASES.values(), "busy: sampler", "judge", "learner"],
        [
            (each["stage"], each["step"], *(both(each, phase) for phase in PHASES),
             *(f"{each.get(name, 0.0):.3f}" for name in STEP_PHASES),
             *(share(each, f"utilisation/{role}") for role in ("sampler", "judge", "learner")))
            for each in steps
        ],
        right=range(1, 7 + len(PHASES)),
    )  # fmt: skip


def _timed(record: Record, values: Mapping[str, float]) -> dict[str, Any]:
    rollout = record.scored.rollout
    of_step = {phase: values[name] for name, phase in STEP_PHASES.items() if name in values}
    return {
        "rollout": rollout.id,
        "problem": rollout.problem.id,
        "visit": rollout.visit,
        "index": rollout.index,
        "tokens": rollout.num_completion_tokens,
        "spans": [[span.start, span.end, span.version] for span in rollout.spans],
        "seconds": {**record.scored.seconds, **of_step},
        "verifiers": {name: verdict.seconds for name, verdict in record.scored.judgement.verdicts.items()},
    }


# ---- rollouts ----------------------------------------------------------------------------------------------------


def rollouts(
    run: RunArgument,
    worst: Annotated[int | None, typer.Option(min=1, help="Only so many, the lowest reward first.")] = None,
    step: Annotated[int | None, typer.Option(min=1, help="Of this step, as the log counts: the first is 1.")] = None,
    stage: Annotated[str | None, typer.Option(help="Of this stage.")] = None,
    problem: Annotated[str | None, typer.Option(help="Of the problem with this id, or its beginning.")] = None,
    status: Annotated[str | None, typer.Option(help="With this verdict: correct, incorrect, no_answer, ...")] = None,
    rollout: Annotated[str | None, typer.Option("--id", help="The one with this id.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 20,
    full: Annotated[bool, typer.Option("--full", help="Texts whole, however long.")] = False,
    database: Database = None,
    as_json: terminal.AsJson = False,
) -> None:
    """What a run wrote and how it was judged: problem, gold, completion, answer read, verdict with its rule, reward."""
    from jurat.platform.runs.rollouts import Page, find, read
    from jurat.platform.types import Status

    if status is not None and status not in get_args(Status):
        hint = nearest(status, get_args(Status))
        raise ConfigError(f"no status is called {status!r}.{hint}", where="--status", fix=", ".join(get_args(Status)))
    with terminal.store(database) as store:
        found = store.run(run)
        if rollout is not None:
            one = find(store, found, rollout)
            page = Page(records=() if one is None else (one,), matched=int(one is not None), faults=())
        else:
            page = read(
                store, found, step=None if step is None else step - 1, stage=stage, problem=problem, status=status,
                worst=worst, limit=None if worst else limit,
            )  # fmt: skip
    for fault in page.faults:
        terminal.note(f"warning: {fault}")
    if as_json:
        rows = [_json(record) for record in page.records]
        terminal.print_json({"run": found.id, "matched": page.matched, "rollouts": rows, "faults": page.faults})
        return
    if not page.records:
        terminal.note(f"no such rollouts in run {found.id}")
        return
    for place, record in enumerate(page.records, start=1):
        _print(place, record, None if full else TEXT_LIMIT)
    typer.echo(f"{len(page.records)} of {page.matched} rollouts of run {found.id}")


def _print(place: int, record: Record, limit: int | None) -> None:
    from jurat.platform.types import GIVEN

    rollout, judgement = record.scored.rollout, record.scored.judgement
    reward = judgement.reward.value
    given = record.allocation.reason == GIVEN
    notes = ["given" if given else "greedy baseline" if record.baseline else f"sample {rollout.index}"]
    notes += [f"{rollout.num_completion_tokens} tokens"]
    notes += ["cut at the limit"] if rollout.finish == "length" else []
    notes += [f"discarded: {record.discarded}"] if record.discarded else []
    where = f"{record.stage + ' ' if record.stage else ''}step {record.step + 1}"
    worth = "excluded" if reward is None else f"{reward:.4g}"
    worth += f" (gate {judgement.reward.gate})" if judgement.reward.gate else ""
    if record.optimised is not None and record.optimised != reward:
        worth += f"  optimised {record.optimised:.4g}"
    worth += "" if record.advantage is None else f"  advantage {record.advantage:+.4g}"
    head = f"#{place}  reward {worth}  {where}  problem {rollout.problem.id}  visit {rollout.visit}  {', '.join(notes)}"
    typer.echo(_line(head))
    asked = [m.content for m in rollout.problem.messages if m.role == "user"]
    _text("problem", asked[-1] if asked else "(texts are not kept)", limit)
    _text("gold", rollout.problem.reference, limit)
    _text("completion", rollout.text or ("(empty)" if not rollout.num_completion_tokens else "(no text)"), limit)
    for member, verdict in judgement.verdicts.items():
        _text("read", verdict.read or "(nothing)", limit)
        spec = verdict.verifier
        version = f"{spec.name} {spec.digest}" if spec else member
        score = "" if verdict.score is None else f" {verdict.score:.4g}"
        blame = f" (fault: {verdict.fault})" if verdict.fault else ""
        sure = " certified" if verdict.certified else ""
        _text("verdict", f"{member}: {verdict.status}{score}{blame}{sure}, by {verdict.why or 'no rule named'}", limit)
        _text("", version, limit)
        for step in verdict.steps:
            _text("  step", f"{_at(step, rollout.text)}: {step.status} {step.why}", limit)
    typer.echo("")


def _at(step: Step, text: str) -> str:
    return terminal.clean(text[step.start : step.end], 80) or f"characters {step.start}-{step.end}"


def _text(label: str, text: str, limit: int | None) -> None:
    """One labelled text; the lines after the first are set under it, so that none can pass for a label."""
    dropped = 0 if limit is None else max(0, len(text) - limit)
    shown = terminal.clean(text if not dropped else text[:limit])
    lines = shown.split("\n")
    if dropped:
        lines[-1] += f" ... ({dropped} more characters: --full)"
    typer.echo(f"  {label:<11} {lines[0]}")
    for line in lines[1:]:
        typer.echo(f"  {'':<11} {line}")


def _json(record: Record) -> dict[str, Any]:
    rollout, judgement = record.scored.rollout, record.scored.judgement
    problem = rollout.problem
    return {
        "id": rollout.id, "stage": record.stage, "segment": record.segment, "step": record.step + 1,
        "position": record.position, "baseline": record.baseline, "discarded": record.discarded,
        "allocation": {"samples": record.allocation.samples, "reason": record.allocation.reason,
                       "evidence": record.allocation.evidence},
        "problem": {"id": problem.id, "messages": [{"role": m.role, "content": m.content} for m in problem.messages],
                    "reference": problem.reference, "source": problem.source, "split": problem.split,
                    "columns": problem.columns, "verifier": problem.verifier.name},
        "visit": rollout.visit, "index": rollout.index, "text": rollout.text, "finish": rollout.finish,
        "tokens": rollout.tokens.tolist(), "prompt_tokens": len(rollout.tokens) - rollout.num_completion_tokens,
        "sampler_logprobs": rollout.sampler_logprobs[len(rollout.tokens) - rollout.num_completion_tokens :].tolist(),
        "spans": [[s.start, s.end, s.version] for s in rollout.spans],
        "reward": {"value": judgement.reward.value, "parts": judgement.reward.parts,
                   "steps": [_step_json(step) for step in judgement.reward.steps],
                   "trainable": judgement.reward.trainable, "gate": judgement.reward.gate,
                   "optimised": record.optimised},
        "advantage": record.advantage, "advantages": record.advantages,
        "verdicts": {
            member: {
                "status": v.status, "score": v.score, "fault": v.fault, "read": v.read, "why": v.why,
                "evidence": v.evidence, "certified": v.certified, "flags": v.flags, "seconds": v.seconds,
                "attempt": v.attempt, "isolation": v.isolation, "steps": [_step_json(step) for step in v.steps],
                "verifier": None if v.verifier is None else {"name": v.verifier.name, "args": v.verifier.args,
                                                             "digest": v.verifier.digest},
            }
            for member, v in judgement.verdicts.items()
        },
    }  # fmt: skip


def _step_json(step: Step) -> dict[str, Any]:
    return {"start": step.start, "end": step.end, "status": step.status, "score": step.score, "why": step.why}


# ---- db ----------------------------------------------------------------------------------------------------------


@db_app.command("upgrade")
def upgrade(database: Database = None, as_json: terminal.AsJson = False) -> None:
    """Bring the database to this version's schema; harmless where it is there. Exits with 5 if it is newer."""
    from jurat.platform.db.engine import connect, first_contact, sqlite_url
    from jurat.platform.db.tables import REVISIONS
    from jurat.platform.db.upgrade import upgrade as bring_up

    home: Path = terminal.home()
    if database is None:
        home.mkdir(parents=True, exist_ok=True)
    engine = connect(database or sqlite_url(home / "jurat.db"))
    try:
        first_contact(engine)
        before = bring_up(engine)
    finally:
        engine.dispose()
    where = engine.url.render_as_string(hide_password=True)
    if as_json:
        terminal.print_json({"database": where, "before": before, "now": REVISIONS[-1]})
    elif before == REVISIONS[-1]:
        typer.echo(f"{where} has schema {before}, the newest")
    else:
        typer.echo(f"{where}: schema {before or 'none'} -> {REVISIONS[-1]}")


@db_app.command("backup")
def backup(
    out: Annotated[Path, typer.Argument(help="A new file.")],
    database: Database = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Copy a SQLite database, whole, while it is in use. PostgreSQL has pg_dump for that."""
    from jurat.platform.db.upgrade import back_up

    with terminal.store(database) as store:
        back_up(store.engine, out)
    if as_json:
        terminal.print_json({"file": str(out.absolute()), "bytes": out.stat().st_size})
    else:
        typer.echo(f"{out.absolute()}  {out.stat().st_size:,} bytes")
