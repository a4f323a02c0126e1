"""``curve.png``: reward, held-out accuracy and completion length of a run, by step, from the record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jurat.api.terminal import clean
from jurat.platform.errors import ConfigError, install

if TYPE_CHECKING:
    from jurat.platform.recipe import Recipe
    from jurat.platform.types import Evaluation

SUFFIXES = (".png", ".svg", ".pdf")
SMOOTH = 0.08
"""Share of the steps over which the thick line is averaged."""


@dataclass(frozen=True, slots=True)
class Plotted:
    run: str
    file: Path
    steps: int


@dataclass(frozen=True, slots=True)
class Curve:
    """What is drawn. Steps count through all stages: step s of a stage lies at the stage's offset + s."""

    title: str
    stages: Sequence[tuple[str, int, int]]
    """(name, first step, last step) on the common axis."""
    reward: tuple[Sequence[int], Sequence[float]]
    loss: tuple[Sequence[int], Sequence[float]]
    """Of stages that learn from given answers."""
    length: tuple[Sequence[int], Sequence[float]]
    evaluations: Sequence[tuple[int, Evaluation]]


def plot_run(run: str, out: Path, *, home: Path, database: str | None = None) -> Plotted:
    """Draw a run. Raises ConfigError: no such run, nothing recorded yet, another suffix, or no matplotlib."""
    if out.suffix.lower() not in SUFFIXES:
        raise ConfigError(
            f"cannot draw a {out.suffix or 'file without a suffix'}",
            where=str(out),
            fix=f"one of {', '.join(SUFFIXES)}",
        )
    if not out.absolute().parent.is_dir():
        raise ConfigError("no such folder", where=str(out.absolute().parent), fix="make it, or write elsewhere with -o")
    curve, name = read(run, home, database)
    draw(curve, out)
    steps = max((last for _, _, last in curve.stages), default=0)
    return Plotted(name, out.absolute(), steps)


def read(run: str, home: Path, database: str | None = None) -> tuple[Curve, str]:
    """The curve of a run as recorded, and its id."""
    from jurat.platform.recipe import OFFLINE, Recipe
    from jurat.platform.runs.store import Store

    store = Store.open(database, home)
    try:
        found = store.run(run)
        points = store.metrics(found, names=["reward/mean", "tokens/mean_length", "policy/loss"])
        evaluations = [measured.result for measured in store.evaluations(found)]
    finally:
        store.close()
    if not points and not evaluations:
        raise ConfigError(
            f"nothing is recorded of run {found.id} yet", where=str(found.folder), fix="draw it after its first step"
        )
    recipe = Recipe.model_validate(found.recipe)
    stages = recipe.staged()
    starts = accumulate((part.steps for _, part in stages), initial=0)
    offsets = {name: start for (name, _), start in zip(stages, starts, strict=False)}
    teaches = {name for name, part in stages if part.algorithm.name in OFFLINE}

    def series(metric: str, *, taught: bool) -> tuple[list[int], list[float]]:
        chosen = [p for p in points if p.name == metric and (p.stage in teaches) is taught]
        placed = sorted((offsets.get(p.stage, 0) + p.step + 1, p.value) for p in chosen)
        return [step for step, _ in placed], [value for _, value in placed]

    return Curve(
        title=_title(found.id, found.name, recipe),
        stages=[(name, offsets[name], offsets[name] + part.steps) for name, part in stages],
        reward=series("reward/mean", taught=False),
        loss=series("policy/loss", taught=True),
        length=series("tokens/mean_length", taught=False),
        evaluations=sorted(((offsets.get(e.stage, 0) + e.step, e) for e in evaluations), key=lambda pair: pair[0]),
    ), found.id  # fmt: skip


def _title(run: str, name: str, recipe: Recipe) -> str:
    algorithms = " then ".join(dict.fromkeys(part.algorithm.name.upper() for _, part in recipe.staged()))
    return clean(f"{name or 'run'}: {Path(recipe.model).name} by {algorithms}, {run}", 120)


def smooth(values: Sequence[float]) -> np.ndarray:
    """A centred mean over a share of the steps [N] -> [N]; at the ends over what there is."""
    array = np.asarray(values, dtype=np.float64)
    half = max(1, round(SMOOTH * len(array) / 2))
    sums = np.concatenate([[0.0], np.cumsum(array)])
    places = np.arange(len(array))
    low, high = np.maximum(places - half, 0), np.minimum(places + half + 1, len(array))
    return (sums[high] - sums[low]) / (high - low)


# ---- drawing -----------------------------------------------------------------------------------------------------

REWARD, HELD_OUT, UNSEEN, GREEDY, LENGTH, LOSS = "#1b6ca8", "#1a7f37", "#b35900", "#6a6a6a", "#7b3fa0", "#a02c2c"


def draw(curve: Curve, out: Path) -> None:
    """Three panels above one another, one axis of steps. The file appears whole."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("matplotlib is not installed", where="jurat plot", fix=install("plot")) from None

    figure = Figure(figsize=(8.0, 8.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    reward, accuracy, length = figure.subplots(3, 1, sharex=True, height_ratios=[3, 3, 2])
    figure.suptitle(curve.title, fontsize=11)
    _line(reward, curve.reward, REWARD, "reward of a step", smoothed="smoothed")
    reward.set_ylabel("mean reward")
    if curve.reward[1] and min(curve.reward[1]) >= 0 and max(curve.reward[1]) <= 1:
        reward.set_ylim(-0.02, 1.02)
    beside = []
    if curve.loss[0]:
        other = reward.twinx()
        _line(other, curve.loss, LOSS, "loss on given completions")
        if held_out := [(step, loss) for step, e in curve.evaluations for loss in e.losses.values()]:
            other.plot(*zip(*held_out, strict=True), color=LOSS, linestyle="", marker="x", label="held-out loss")
        other.set_ylabel("loss", color=LOSS)
        other.tick_params(axis="y", labelcolor=LOSS)
        other.set_ylim(bottom=0)
        other.spines[["top"]].set_visible(False)
        beside = other.get_lines()
    _evaluations(accuracy, curve.evaluations)
    _line(length, curve.length, LENGTH, "tokens of an answer", smoothed="smoothed")
    length.set_ylabel("mean length, tokens")
    length.set_ylim(bottom=0)
    length.set_xlabel("step" if len(curve.stages) < 2 else "step, all stages")
    for panel in (reward, accuracy, length):
        panel.grid(True, alpha=0.25, linewidth=0.6)
        panel.spines[["top"]].set_visible(False)
        for name, first, _ in curve.stages:
            if first:
                panel.axvline(first, color="black", linewidth=0.8, linestyle=":")
            if panel is reward and name:
                panel.annotate(clean(name, 20), (first, 1.0), xycoords=("data", "axes fraction"), xytext=(4, 4),
                               textcoords="offset points", fontsize=9)  # fmt: skip
        handles = [*panel.get_legend_handles_labels()[0], *(beside if panel is reward else [])]
        if handles:
            panel.legend(handles=handles, loc="best", fontsize=8, frameon=False)
        else:
            panel.text(0.5, 0.5, "nothing recorded", transform=panel.transAxes, ha="center", va="center", color="grey")
    draft = out.with_name(f".{out.name}")
    try:
        figure.savefig(draft, format=out.suffix.lower()[1:], metadata={"Title": curve.title})
        draft.replace(out)
    except OSError as error:
        raise ConfigError(f"cannot write: {error.strerror}", where=str(out), fix="write elsewhere with -o") from None
    finally:
        draft.unlink(missing_ok=True)


def _line(
    axes: Any, series: tuple[Sequence[int], Sequence[float]], colour: str, label: str, *, smoothed: str = ""
) -> None:
    steps, values = series
    if not steps:
        return
    if not smoothed or len(steps) < 8:
        axes.plot(steps, values, color=colour, linewidth=1.4, marker="." if len(steps) < 30 else "", label=label)
        return
    axes.plot(steps, values, color=colour, linewidth=0.8, alpha=0.35, label=label)
    axes.plot(steps, smooth(values), color=colour, linewidth=2.0, label=smoothed)


def _evaluations(axes: Any, evaluations: Sequence[tuple[int, Evaluation]]) -> None:
    """Accuracy with its interval as a band, greedy as crosses, for each set."""
    axes.set_ylabel("accuracy, 95 % interval")
    axes.set_ylim(-0.02, 1.02)
    for name in dict.fromkeys(e.name for _, e in evaluations if e.accuracy):
        mine = [(step, e, e.accuracy) for step, e in evaluations if e.name == name and e.accuracy]
        colour = {"held_out": HELD_OUT, "unseen": UNSEEN}.get(name, REWARD)
        steps = [step for step, _, _ in mine]
        accuracy = [value for _, _, value in mine]
        problems = sorted({e.problems for _, e, _ in mine})
        counted = f"{problems[0]}" if len(problems) == 1 else f"{problems[0]} to {problems[-1]}"
        label = f"{clean(name, 40).replace('_', ' ')} ({counted} problems)"
        axes.plot(
            steps, [a.value for a in accuracy], color=colour, linewidth=1.6, marker="o", markersize=4, label=label
        )
        axes.fill_between(
            steps, [a.low for a in accuracy], [a.high for a in accuracy], color=colour, alpha=0.15, linewidth=0
        )
        greedy = [(step, e.greedy.value) for step, e, _ in mine if e.greedy is not None]
        if greedy:
            axes.plot(*zip(*greedy, strict=True), color=colour, linestyle="", marker="x", markersize=6, label="greedy")
