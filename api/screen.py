"""How a run looks while it goes on: a live screen in a terminal, one line a step elsewhere. Both are Reporters.

Everything goes to stderr, so that stdout stays free for what a program reads.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TextIO

from jurat.api.summary import cell, evaluation_line, share
from jurat.api.terminal import clean
from jurat.platform.ports import Reporter
from jurat.platform.recipe import OFFLINE, Recipe
from jurat.platform.types import Evaluation, StepReport

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

BARS = "▁▂▃▄▅▆▇█"
PHASES = ("sample", "judge", "score", "update", "publish", "other")
RECENT = 10
"""Steps over which the time of one is averaged."""


class Screen(Reporter, Protocol):
    """A Reporter that can be closed and asked how far the run came."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def stop(self) -> None:
        """Leave the last state on the terminal; harmless twice."""
        ...

    def progress(self) -> Mapping[str, Any]:
        """``run`` (None before it has a name), ``step``, ``metrics``: how far it came."""
        ...


def choose_screen(*, as_json: bool, stream: TextIO | None = None) -> Screen:
    """Live where a person watches; lines for logs, pipes, dumb terminals and ``--json``."""
    stream = stream or sys.stderr
    if as_json or not stream.isatty() or os.environ.get("TERM", "") in ("dumb", "unknown"):
        return LineScreen(stream)
    return LiveScreen()


# ---- what both know ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class History:
    """A run as told so far."""

    run: str | None = None
    stage: str = ""
    algorithm: str = ""
    compares: bool = True
    """Whether an advantage is that of a sample over the others of its group, so that a group of equals teaches nothing."""
    mixed: bool = False
    """Whether only groups of which some are right and some wrong are learnt from."""
    ahead: bool = False
    """Whether batches are drawn while others are: the seconds of one then hold its wait behind them."""
    temperature: float = 1.0
    max_new_tokens: int = 0
    first_step: int = 0
    last_step: int = 0
    report: StepReport | None = None
    """The newest step of this stage."""
    rewards: list[float] = field(default_factory=list)
    """Of this stage, by step."""
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)

    def start(self, *, run_id: str, stage: str, recipe: Recipe, first_step: int, last_step: int) -> None:
        self.run, self.stage, self.algorithm = run_id, stage, recipe.algorithm.name
        self.compares = getattr(recipe.algorithm, "advantage", None) not in ("gae", "reinforce_pp")
        self.mixed = recipe.allocation.name == "dapo"
        self.ahead = recipe.engine.max_lag > 0
        self.temperature, self.max_new_tokens = recipe.sampling.temperature, recipe.sampling.max_new_tokens
        self.first_step, self.last_step, self.report = first_step, last_step, None
        self.rewards, self.losses, self.seconds = [], [], []

    def step(self, report: StepReport) -> None:
        self.report = report
        if not self.empty:
            self.rewards.append(report.metrics.get("reward/mean", 0.0))
        self.losses.append(report.metrics.get("policy/loss", 0.0))
        self.seconds.append(sum(phases(report).values()))

    @property
    def teaches(self) -> bool:
        """True while it learns from given answers: there is no reward to show."""
        return self.algorithm in OFFLINE

    @property
    def empty(self) -> bool:
        """Whether the newest step kept no group: then it has no reward, and nothing was learnt."""
        return self.report is not None and self.report.metrics.get("group/count") == 0

    @property
    def done(self) -> int:
        return self.report.version if self.report else self.first_step

    def pace(self) -> float | None:
        """Seconds per step, lately."""
        recent = self.seconds[-RECENT:]
        return sum(recent) / len(recent) if recent else None

    def left(self) -> float | None:
        """Seconds to the end of this stage, evaluations not counted."""
        pace = self.pace()
        return None if pace is None else pace * max(0, self.last_step - self.done)

    def progress(self) -> dict[str, Any]:
        return {"run": self.run, "step": self.done, "metrics": dict(self.report.metrics) if self.report else {}}


def phases(report: StepReport) -> dict[str, float]:
    """Wall seconds of a step by phase; ``other`` is the wait that is neither sampling nor judging. Of these two, where they
    went on beside other steps, only as much as was waited for."""
    told = report.seconds
    out = {name: told.get(name, 0.0) for name in PHASES[:-1]}
    drawn = out["sample"] + out["judge"]
    waited = told.get("batch", drawn)
    if drawn > waited:
        out |= {name: out[name] * waited / drawn for name in ("sample", "judge")}
    out["other"] = max(0.0, waited - drawn)
    return {name: seconds for name, seconds in out.items() if seconds > 0}


def members(metrics: Mapping[str, float]) -> list[str]:
    """Names of the verifiers in a step's metrics, in order."""
    return [
        key[len("verifier/") : -len("/mean")]
        for key in metrics
        if key.startswith("verifier/") and key.endswith("/mean")
    ]


def duration(seconds: float) -> str:
    """``63 ms``, ``4.1 s``, ``2:31``, ``1:02:31``."""
    if seconds < 0.95:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def percent(value: float) -> str:
    return f"{100 * value:.0f} %" if value == 0 or value >= 0.01 else f"{100 * value:.1f} %"


def small(value: float) -> str:
    """Three digits that matter: ``0.00123``, ``12.3``."""
    return f"{value:.3g}"


def sparkline(values: list[float], width: int) -> str:
    """``values`` as a line of blocks, each the mean of its share of the steps, from the least to the greatest."""
    if not values or width < 1:
        return ""
    count = min(width, len(values))
    bounds = [round(i * len(values) / count) for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(bounds)]
    low, high = min(means), max(means)
    if high <= low:
        return BARS[3] * count
    return "".join(BARS[round((m - low) / (high - low) * (len(BARS) - 1))] for m in means)


def speeds(history: History, report: StepReport) -> dict[str, float]:
    """Tokens per second: ``sampled`` while sampling, ``trained`` (forwarded) while updating. Where nothing is sampled, or
    batches are drawn ahead, nothing is said of sampling."""
    took, m = report.seconds, report.metrics
    found = {"sampled": (m.get("tokens/sampled", 0.0), took.get("sample", 0.0)),
             "trained": (m.get("policy/forwarded_tokens", 0.0), took.get("update", 0.0))}  # fmt: skip
    hidden = {"sampled"} if history.teaches or history.ahead else set()
    return {name: n / s for name, (n, s) in found.items() if name not in hidden and s > 0 and n > 0}


POLICY = (
    ("policy/preferred", "preferred"), ("policy/margin", "margin"), ("policy/reference_point", "reference point"),
    ("policy/kl_ref", "KL"), ("kl/reference", "KL of answers"),
    ("policy/logprob_diff_mean", "logprob diff"), ("policy/entropy", "entropy"), ("policy/grad_norm", "grad norm"),
    ("policy/clip_fraction", "clipped"), ("policy/lr", "lr"), ("critic/explained_variance", "critic explains"),
)  # fmt: skip
"""Metric -> what it is called; each is shown where a step has it."""


def policy_words(history: History, report: StepReport, *, leave_out: Sequence[str] = ()) -> list[str]:
    """The policy's numbers, each with its name. Where no token was trained they say nothing, and are not shown."""
    m = report.metrics
    if m.get("policy/trained_tokens") == 0:
        return ["nothing to learn from"]
    hidden = {*leave_out, *(["policy/logprob_diff_mean"] if history.teaches else [])}
    return [f"{label} {small(m[key])}" for key, label in POLICY if key in m and key not in hidden]


# ---- lines -------------------------------------------------------------------------------------------------------


def nothing(history: History) -> str:
    """What a step without groups came to."""
    return f"no group was {'mixed' if history.mixed else 'kept'}: nothing learnt"


def step_line(history: History) -> str:
    """The newest step in one line: ``grpo 23/60  reward 0.612 ± 0.488  math 0.60  length 7.4  ...``."""
    report = history.report
    assert report is not None
    m = report.metrics
    parts = [f"{clean(history.stage or history.algorithm, 20)} {history.done}/{history.last_step}"]
    if history.teaches:
        parts += [f"loss {m.get('policy/loss', 0.0):.3f}"]
    elif history.empty:
        parts += [nothing(history), f"{m.get('group/discarded', 0.0):.0f} discarded"]
    else:
        parts += [f"reward {m.get('reward/mean', 0.0):.3f} ± {m.get('reward/std', 0.0):.3f}"]
        names = members(m)
        for name in names if len(names) > 1 or m.get("reward/undecided") else ():
            unsure = m.get(f"verifier/{name}/undecided", 0.0)
            parts.append(
                f"{clean(name, 24)} {m[f'verifier/{name}/mean']:.3f}"
                + (f" (undecided {percent(unsure)})" if unsure else "")
            )
        parts += [
            f"length {m.get('tokens/mean_length', 0.0):.1f}",
            f"cut {percent(m.get('tokens/truncated', 0.0))}",
            *([f"no signal {percent(m.get('group/zero_variance', 0.0))}"] if history.compares else []),
            *([f"discarded {gone:.0f}"] if (gone := m.get("group/discarded", 0.0)) else []),
        ]
    parts += policy_words(history, report, leave_out=("policy/lr", "policy/clip_fraction"))
    parts.append(f"{duration(history.seconds[-1])}/step")
    if "sampled" in (speed := speeds(history, report)):
        parts.append(f"{speed['sampled']:.0f} tokens/s")
    if (left := history.left()) is not None and history.done < history.last_step:
        parts.append(f"ETA {duration(max(1.0, left))}")
    return "  ".join(parts)


class LineScreen:
    """One plain line a step: for logs, pipes and programs. No escape codes."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._history = History()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        with suppress(BrokenPipeError):
            self._stream.flush()

    def progress(self) -> Mapping[str, Any]:
        return self._history.progress()

    def start(self, *, run_id: str, stage: str, recipe: Recipe, first_step: int, last_step: int) -> None:
        self._history.start(run_id=run_id, stage=stage, recipe=recipe, first_step=first_step, last_step=last_step)
        name = f"{clean(recipe.name)}: " if recipe.name else ""
        at = f"stage {clean(stage)}, " if stage else ""
        steps = f"steps {first_step + 1} to {last_step}" if first_step < last_step else f"all {last_step} steps done"
        self._say(f"run {clean(run_id)}: {name}{at}{recipe.algorithm.name} on {clean(recipe.model)}, {steps}")

    def step(self, report: StepReport) -> None:
        self._history.step(report)
        self._say(step_line(self._history))

    def evaluation(self, result: Evaluation) -> None:
        self._history.evaluations.append(result)
        self._say(evaluation_line(result))

    def note(self, text: str) -> None:
        self._say(clean(text))

    def _say(self, line: str) -> None:
        with suppress(BrokenPipeError):  # whoever read along has left: no reason to stop training
            self._stream.write(line + "\n")
            self._stream.flush()


# ---- live --------------------------------------------------------------------------------------------------------


class LiveScreen:
    """A panel that is redrawn in place; notes and evaluations scroll above it."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = console or Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._history = History()
        self._lock = threading.Lock()
        """Between the loop, which tells, and the thread that draws."""
        self._begun = self._since = time.monotonic()
        self._live = Live(
            console=self._console, get_renderable=self._render, refresh_per_second=2, vertical_overflow="crop",
            redirect_stdout=False,
        )  # fmt: skip

    def __enter__(self) -> Self:
        self._live.start()
        self._console.show_cursor(True)  # a process that is killed cannot give the cursor back
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._live.stop()

    def progress(self) -> Mapping[str, Any]:
        return self._history.progress()

    def start(self, *, run_id: str, stage: str, recipe: Recipe, first_step: int, last_step: int) -> None:
        if self._history.report is not None:
            self._above(step_line(self._history), "dim")  # the stage that ended leaves its last line
        with self._lock:
            self._history.start(run_id=run_id, stage=stage, recipe=recipe, first_step=first_step, last_step=last_step)
            self._since = time.monotonic()

    def step(self, report: StepReport) -> None:
        with self._lock:
            self._history.step(report)
            self._since = time.monotonic()

    def evaluation(self, result: Evaluation) -> None:
        with self._lock:
            self._history.evaluations.append(result)
            self._since = time.monotonic()
        self._above(evaluation_line(result), "cyan")

    def note(self, text: str) -> None:
        self._above(clean(text), "yellow" if text.startswith("warning") else "dim")

    def _above(self, line: str, style: str) -> None:
        from rich.text import Text

        self._console.print(Text(line, style=style))

    def _render(self) -> RenderableType:
        from rich.console import Group

        now = time.monotonic()
        with self._lock:
            lines = panel(self._history, self._console.width, running=now - self._since, elapsed=now - self._begun)
        return Group(*lines)


def panel(history: History, width: int, *, running: float, elapsed: float) -> list[Text]:
    """The lines of the live screen, each within ``width`` columns."""
    lines = [_title(history, width, running=running, elapsed=elapsed)]
    if history.report is not None:
        lines += _rows(history, history.report, width)
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
        line.truncate(width, overflow="ellipsis")
    return lines


def _title(history: History, width: int, *, running: float, elapsed: float) -> Text:
    from rich.text import Text

    if history.run is None:
        return Text(f"jurat is starting  {duration(elapsed)}", style="bold")
    stage = clean(history.stage or history.algorithm, 20)
    line = Text.assemble((clean(history.run), "bold"), (f"  {stage}", "magenta"))
    line.append(f"  step {history.done}/{history.last_step} ", style="bold")
    if width >= 70:
        line.append_text(_bar(history.done / history.last_step if history.last_step else 0.0, min(24, width - 66)))
    line.append(f"  {duration(elapsed)}", style="dim")
    left = history.left()
    if history.done >= history.last_step:
        line.append("  done", style="green")
    elif left is None:
        line.append(f"  measuring or sampling, {duration(running)}", style="dim")
    else:
        line.append(f"  ETA {duration(max(1.0, left))}")
        pace = history.pace()
        if pace is not None and running > 3 * pace + 5:
            line.append(f"  measuring or saving, {duration(running)}", style="dim")
    return line


def _bar(share: float, width: int) -> Text:
    from rich.text import Text

    full = round(min(1.0, max(0.0, share)) * width)
    return Text.assemble(("━" * full, "green"), ("━" * (width - full), "grey37"))


def _rows(history: History, report: StepReport, width: int) -> list[Text]:
    m = report.metrics
    rows: list[Text] = []
    room = max(0, min(40, width - 40))
    if history.teaches:
        rows.append(_row("loss", f"{m.get('policy/loss', 0.0):.3f}", _spark(history.losses, room)))
    else:
        told = (
            nothing(history) if history.empty else f"{m.get('reward/mean', 0.0):.3f} ± {m.get('reward/std', 0.0):.3f}"
        )
        best = f"best {max(history.rewards):.3f}" if history.rewards else ""
        rows.append(_row("reward", told, _spark(history.rewards, room), best, style="bold green"))
        for name in members(m):
            unsure = m.get(f"verifier/{name}/undecided", 0.0)
            mean = f"{m[f'verifier/{name}/mean']:.3f}"
            rows.append(_row(clean(name, 11), mean, _alarm(f"undecided {percent(unsure)}", unsure > 0)))
        equal = m.get("group/zero_variance", 0.0)
        still = _alarm(f"without signal {percent(equal)}" if history.compares else "", equal > 0.8)
        gone = int(m.get("group/discarded", 0))
        rows.append(_row("groups", f"{m.get('group/count', 0):.0f}", still, f"discarded {gone}" if gone else ""))
        cut = m.get("tokens/truncated", 0.0)
        longest = f"longest {m.get('tokens/max_length', 0.0):.0f} of {history.max_new_tokens}"
        mean = f"{m.get('tokens/mean_length', 0.0):.1f} an answer"
        rows.append(_row("tokens", mean, longest, _alarm(f"cut {percent(cut)}", cut > 0.5)))
    rows.append(_row("policy", "  ".join(policy_words(history, report))))
    speed = [f"{value:,.0f} tokens/s {name}" for name, value in speeds(history, report).items()]
    rows.append(_row("speed", f"{duration(history.seconds[-1])}/step", *speed))
    rows.append(_phase_bar(report, max(8, min(30, width - 60))))
    rows += [_measured(history, name) for name in dict.fromkeys(e.name for e in history.evaluations)]
    return rows


def _row(label: str, *parts: str | Text, style: str = "") -> Text:
    from rich.text import Text

    line = Text.assemble((f"  {label:<12}", "dim"))
    for number, part in enumerate(part for part in parts if len(part)):
        line.append("" if number == 0 else "  ")
        line.append_text(part if isinstance(part, Text) else Text(part, style=style if number == 0 else ""))
    return line


def _spark(values: list[float], width: int) -> Text:
    from rich.text import Text

    return Text(sparkline(values, width), style="green")


def _alarm(text: str, bad: bool) -> Text:
    from rich.text import Text

    return Text(text, style="yellow" if bad else "")


PHASE_STYLES = dict(zip(PHASES, ("blue", "magenta", "cyan", "green", "yellow", "grey50"), strict=True))


def _phase_bar(report: StepReport, width: int) -> Text:
    from rich.text import Text

    spent = phases(report)
    total = sum(spent.values()) or 1.0
    line = _row("phases", Text())
    for name, seconds in spent.items():
        line.append("█" * round(width * seconds / total), style=PHASE_STYLES[name])
    line.append(" ")
    for name, seconds in spent.items():
        if seconds / total >= 0.01:
            line.append(f" {name} {duration(seconds)}", style=PHASE_STYLES[name])
    return line


def _measured(history: History, name: str) -> Text:
    results = [e for e in history.evaluations if e.name == name]
    told = []
    if found := [(e, e.accuracy) for e in results if e.accuracy]:
        last, value = found[-1]
        came_from = f"{found[0][1].value:.3f} → " if len(found) > 1 else ""
        told.append(f"accuracy {came_from}{cell(value, share)} at {_when(last)}")
    for kind in dict.fromkeys(kind for e in results for kind in e.losses):
        losses = [(e, e.losses[kind]) for e in results if kind in e.losses]
        came_from = f"{share(losses[0][1])} → " if len(losses) > 1 else ""
        told.append(f"{kind} loss {came_from}{share(losses[-1][1])} at {_when(losses[-1][0])}")
    return _row(clean(name, 11), *map(clean, told))


def _when(result: Evaluation) -> str:
    return f"{result.stage} step {result.step}".strip() if result.step else "the start"
