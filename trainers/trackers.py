"""Metrics to other trackers too, where a recipe asks for it (``tracking.log_to``): never in the way of a step.

::

    Reporter ports of the loop -> Trackers -> the person's screen
                                     └─ a bounded queue and a thread for each tracker -> its own library

What a tracker does not take is tried again, later and later; a failure is said once; what waits when the queue is full, or
when the run has ended and ``CLOSE_SECONDS`` are over, is lost there. The run's own record lacks nothing.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from jurat.platform.errors import ConfigError, install
from jurat.platform.ports import Reporter
from jurat.platform.recipe import Recipe
from jurat.platform.runs.ledger import numbers_of
from jurat.platform.runs.records import RunInfo
from jurat.platform.types import Evaluation, StepReport

log = logging.getLogger(__name__)

MAX_POINTS = 10_000
"""That wait for a tracker."""
GROUP = 50
CLOSE_SECONDS = 20.0
PAUSES = (2.0, 60.0)
"""Seconds between tries: the first, the longest."""
PROJECT = "jurat"
"""Where neither the run nor the tracker's own variables name one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The numbers of one step, or of one evaluation."""

    stage: str
    first_step: int
    """Of the stage in this process."""
    step: int
    at: float
    """Unix seconds."""
    values: Mapping[str, float]

    def named(self) -> dict[str, float]:
        """By names that are the run's, not the stage's."""
        return {f"{self.stage}/{name}" if self.stage else name: value for name, value in self.values.items()}


class Tracker(Protocol):
    """One external tracker; used from one thread, and may raise anything."""

    def begin(self, run: RunInfo, params: Mapping[str, str], known: str) -> str:
        """Begin, or go on with what was ``known`` as ('' if nothing was); what it is known as."""

    def log(self, points: Sequence[Point]) -> None: ...

    def end(self, state: str) -> None:
        """``finished``, ``interrupted`` or ``failed``."""


def refuse_absent(names: Sequence[str]) -> None:
    """Raises ConfigError for a tracker whose library is not installed. Module, extra and tracker have one name."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"metrics are to go to {name}, which is not installed", where="tracking.log_to", fix=install(name)
            )


class Trackers:
    """A Reporter that tells another one, and every tracker. ``state`` is said to them at the end."""

    def __init__(
        self, names: Sequence[str], run: RunInfo, reporter: Reporter, params: Callable[[], Mapping[str, str]]
    ) -> None:
        self._reporter, self.state = reporter, "failed"
        self._stage, self._first_step = "", 0
        told = params() if names else {}
        self._lines = [_Line(name, KINDS[name](), run, told, reporter.note) for name in names]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        for line in self._lines:
            line.close("interrupted" if isinstance(error, KeyboardInterrupt) else self.state)
        until = time.monotonic() + CLOSE_SECONDS
        for line in self._lines:
            line.wait(until)

    # ---- the port ----

    def start(self, *, run_id: str, stage: str, recipe: Recipe, first_step: int, last_step: int) -> None:
        self._stage, self._first_step = stage, first_step
        self._reporter.start(run_id=run_id, stage=stage, recipe=recipe, first_step=first_step, last_step=last_step)

    def step(self, report: StepReport) -> None:
        self._reporter.step(report)
        self._tell(report.step, lambda: numbers_of(report))

    def evaluation(self, result: Evaluation) -> None:
        self._reporter.evaluation(result)
        self._tell(result.step, lambda: measured(result))

    def note(self, text: str) -> None:
        self._reporter.note(text)

    def _tell(self, step: int, values: Callable[[], Mapping[str, float]]) -> None:
        if self._lines:
            point = Point(stage=self._stage, first_step=self._first_step, step=step, at=time.time(), values=values())
            for line in self._lines:
                line.put(point)


def measured(result: Evaluation) -> dict[str, float]:
    estimates = {"accuracy": result.accuracy, "answer_rate": result.answer_rate, "greedy": result.greedy}
    estimates |= {f"pass_at_{k}": found for k, found in result.pass_at.items()}
    out = {name: found.value for name, found in estimates.items() if found is not None}
    plain = {"mean_tokens": result.mean_tokens, "truncated": result.truncated, "undecided": result.undecided}
    out |= {name: value for name, value in plain.items() if value is not None}
    out |= {f"loss_{name}": value for name, value in result.losses.items()}
    return {f"{result.name}/{name}": float(value) for name, value in out.items()}


class _Line:
    """One tracker, its queue and its thread."""

    def __init__(
        self, name: str, tracker: Tracker, run: RunInfo, params: Mapping[str, str], note: Callable[[str], None]
    ) -> None:
        self._name, self._tracker, self._run, self._params, self._note = name, tracker, run, params, note
        self._known = run.folder / "trackers" / name
        self._queue: deque[Point] = deque()
        self._lost = 0
        self._ending: str | None = None
        self._begun = self._told = False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def put(self, point: Point) -> None:
        with self._wake:
            if len(self._queue) >= MAX_POINTS:
                self._lost += 1
            else:
                self._queue.append(point)
                self._wake.notify()

    def close(self, state: str) -> None:
        with self._wake:
            self._ending = state
            self._wake.notify()

    def wait(self, until: float) -> None:
        self._thread.join(max(0.0, until - time.monotonic()))
        if lost := self._lost + len(self._queue):
            self._note(f"{lost} steps or evaluations did not reach {self._name}; jurat has them all")

    def _work(self) -> None:
        pause = 0.0
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._ending is not None, pause)  # after a failure
                self._wake.wait_for(lambda: self._ending is not None or self._queue or not self._begun)
                ending, points = self._ending, [self._queue[at] for at in range(min(GROUP, len(self._queue)))]
            try:
                if not self._begun:
                    self._begin()
                if points:
                    self._tracker.log(points)
                with self._wake:
                    for _ in points:
                        self._queue.popleft()
                pause = 0.0
                if ending is not None and not self._queue:
                    self._tracker.end(ending)
                    return
            except Exception as error:  # whatever another's library raises: training goes on
                pause = min(max(PAUSES[0], 2 * pause), PAUSES[1])
                if not self._told:
                    self._told = True
                    said = " ".join(str(error).split())[:200] or type(error).__name__
                    self._note(f"{self._name} takes no metrics: {said}; training goes on, they wait")
                    log.info("tracker %s failed", self._name, exc_info=True)
                if ending is not None:
                    return

    def _begin(self) -> None:
        known = self._known.read_text("utf-8").strip() if self._known.exists() else ""
        found = self._tracker.begin(self._run, self._params, known)
        self._begun = True
        if found != known:
            self._known.parent.mkdir(parents=True, exist_ok=True)
            self._known.write_text(found, "utf-8")


# ---- the trackers ------------------------------------------------------------------------------------------------


class TensorBoard:
    """Event files in the run's folder, one folder a stage: ``tensorboard --logdir RUN/tensorboard``."""

    def begin(self, run: RunInfo, params: Mapping[str, str], known: str) -> str:
        self._folder, self._params = run.folder / "tensorboard", params
        self._writers: dict[str, Any] = {}
        return str(self._folder)

    def log(self, points: Sequence[Point]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        for point in points:
            writer = self._writers.get(point.stage)
            if writer is None:
                folder = self._folder / (point.stage or "main")
                # Steps that are done once more replace the old ones.
                again = point.first_step if folder.is_dir() else None
                writer = self._writers[point.stage] = SummaryWriter(str(folder), purge_step=again)
                rows = "\n".join(f"| {name} | `{value}` |" for name, value in self._params.items())
                writer.add_text("jurat", f"| | |\n|---|---|\n{rows}", global_step=point.first_step)
            for name, value in point.values.items():
                writer.add_scalar(name, value, point.step, walltime=point.at)
        for writer in self._writers.values():
            writer.flush()

    def end(self, state: str) -> None:
        for writer in self._writers.values():
            writer.close()


class MLflow:
    """A run of the tracking server that ``MLFLOW_TRACKING_URI`` names, in the experiment of ``MLFLOW_EXPERIMENT_NAME``."""

    def begin(self, run: RunInfo, params: Mapping[str, str], known: str) -> str:
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # we try again ourselves
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # stdout is what a program reads
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        self._client = client = MlflowClient()
        self._again, self._last = False, dict[str, int]()
        if known:
            client.update_run(known, status="RUNNING")
            self._id = known
            self._again = True
        else:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "") or run.project or PROJECT
            experiment = client.get_experiment_by_name(name)
            place = experiment.experiment_id if experiment is not None else client.create_experiment(name)
            self._id = client.create_run(place, run_name=run.id, tags={"jurat.run": run.id}).info.run_id
        there = client.get_run(self._id).data.params
        new = [Param(name, value[:500]) for name, value in params.items() if name not in there]
        for first in range(0, len(new), 100):
            client.log_batch(self._id, params=new[first : first + 100])
        for name, value in params.items():  # a parameter is for ever; what has changed since is a tag
            if name in there and there[name] != value[:500]:
                client.set_tag(self._id, f"{name} (epoch {run.lease_epoch})", value)
        return str(self._id)

    def log(self, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        metrics = []
        for point in points:
            named = {re.sub(r"[^\w\-./ ]", "_", name): value for name, value in point.named().items()}
            if not self._has(point.step, list(named)):
                metrics += [Metric(name, value, int(point.at * 1000), point.step) for name, value in named.items()]
        for first in range(0, len(metrics), 1000):
            self._client.log_batch(self._id, metrics=metrics[first : first + 1000])

    def _has(self, step: int, names: Sequence[str]) -> bool:
        """Whether a process before this one told a step, as its last number says: what is told again would stand there twice."""
        if not self._again or not names:
            return False
        name = names[-1]
        if name not in self._last:
            history = self._client.get_metric_history(self._id, name)
            self._last[name] = max((each.step for each in history), default=-1)
        return step <= self._last[name]

    def end(self, state: str) -> None:
        said = {"finished": "FINISHED", "interrupted": "KILLED"}.get(state, "FAILED")
        self._client.set_terminated(self._id, said)


class WandB:
    """A run of Weights & Biases as its own ``WANDB_*`` variables say: project, key, ``WANDB_MODE=offline``."""

    def begin(self, run: RunInfo, params: Mapping[str, str], known: str) -> str:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or run.project or PROJECT, id=run.id, name=run.id, resume="allow",
            dir=str(run.folder), settings=wandb.Settings(console="off", silent=True, disable_git=True, disable_code=True),
        )  # fmt: skip
        self._run.config.update(dict(params), allow_val_change=True)
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        return run.id

    def log(self, points: Sequence[Point]) -> None:
        for point in points:
            self._run.log({**point.named(), "step": point.step})

    def end(self, state: str) -> None:
        self._run.finish(exit_code=0 if state == "finished" else 1)


KINDS: Mapping[str, Callable[[], Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def params_of(recipe: Recipe, digests: Mapping[str, str]) -> dict[str, str]:
    """What a run was made by, as texts by dotted names: its recipe, but for where it ran and is recorded, and digests."""
    said = recipe.model_dump(mode="json", exclude={"tracking", "engine", "about", "verifiers"})
    return {**dict(_flat(said)), **{f"digest.{name}": value for name, value in digests.items()}}


def _flat(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    if isinstance(value, Mapping) or (isinstance(value, list) and any(isinstance(item, Mapping) for item in value)):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        return [pair for key, item in items for pair in _flat(item, f"{prefix}.{key}" if prefix else str(key))]
    return [] if value is None else [(prefix, str(value))]
