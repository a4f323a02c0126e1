"""What a run came to: evaluations side by side, and where to look next. Plain text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jurat.api.terminal import clean
from jurat.platform.errors import JuratError
from jurat.platform.types import Estimate, Evaluation

if TYPE_CHECKING:
    from jurat.trainers.launch import Outcome


@dataclass(frozen=True, slots=True)
class Measure:
    """One row of the table: what it is called, and how it is read and written."""

    label: str
    read: Callable[[Evaluation], Estimate | float | None]
    write: Callable[[float], str]


def share(value: float) -> str:
    return f"{value:.3f}"


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def tokens(value: float) -> str:
    return f"{value:.1f}"


def largest_k(result: Evaluation) -> int:
    """The k of the pass@k to show: 8, or the largest there is below it."""
    return max((k for k in result.pass_at if k <= 8), default=1)


def measures(result: Evaluation, temperature: float, *, every_k: bool = False) -> tuple[Measure, ...]:
    """The rows of an evaluation, with one pass@k or all."""
    ks = [k for k in result.pass_at if k > 1] if every_k else [largest_k(result)]
    rows = [
        Measure(f"accuracy at temperature {temperature:g}", lambda e: e.accuracy, share),
        Measure("greedy", lambda e: e.greedy, share),
        *(Measure(f"pass@{k}", lambda e, k=k: e.pass_at.get(k), share) for k in ks),  # type: ignore[misc]
        Measure("answer rate", lambda e: e.answer_rate, share),
        Measure("accuracy given an answer", lambda e: e.accuracy_given_answer, share),
        Measure("mean length, tokens", lambda e: e.mean_tokens, tokens),
        Measure("cut at the limit", lambda e: e.truncated, percent),
    ]
    if result.undecided:
        rows.append(Measure("undecided", lambda e: e.undecided, percent))
    return tuple(rows)


def losses(results: Sequence[Evaluation]) -> tuple[Measure, ...]:
    """A row for each loss that one of them measured."""
    names = dict.fromkeys(name for result in results for name in result.losses)
    return tuple(Measure(f"{name} loss", lambda e, name=name: e.losses.get(name), share) for name in names)  # type: ignore[misc]


def members(results: Sequence[Evaluation]) -> tuple[Measure, ...]:
    """A row for each member of a reward of several."""
    names = dict.fromkeys(name for result in results for name in result.members)
    return tuple(Measure(f"mean {clean(name, 40)}", lambda e, name=name: e.members.get(name), share) for name in names)  # type: ignore[misc]


def cell(value: Estimate | float | None, write: Callable[[float], str]) -> str:
    """``0.840 [0.810, 0.868]``, a plain number, or a dash."""
    if value is None:
        return "-"
    if isinstance(value, Estimate):
        return f"{write(value.value)} [{write(value.low)}, {write(value.high)}]"
    return write(value)


def change(first: Estimate | float | None, last: Estimate | float | None, write: Callable[[float], str]) -> str:
    """Signed difference, or nothing where one is missing."""
    if first is None or last is None:
        return ""
    a, b = (x.value if isinstance(x, Estimate) else x for x in (first, last))
    return f"{'+' if b >= a else '-'}{write(abs(b - a))}"


def finals(evaluations: Sequence[Evaluation], name: str) -> list[Evaluation]:
    """The full evaluations of one set, in order. The last of equal (stage, step) counts."""
    found = {(e.stage, e.step): e for e in evaluations if e.name == name and e.final}
    return list(found.values())


def column_names(results: Sequence[Evaluation]) -> list[str]:
    """``before`` and ``after``; with stages ``after sft``, ``before dpo`` and so on."""
    staged = len({e.stage for e in results}) > 1
    when = ["after" if e.step else "before" for e in results]
    named = [staged and (e.step > 0 or place > 0) for place, e in enumerate(results)]
    return [f"{at} {clean(e.stage)}" if name else at for at, name, e in zip(when, named, results, strict=True)]


def evaluation_table(
    results: Sequence[Evaluation], temperature: float = 1.0, *, every_k: bool = False, heads: Sequence[str] = ()
) -> list[str]:
    """Lines: one column per evaluation of one set, and what changed from the first to the last that has the number."""
    answered = [result for result in results if result.samples]
    last = (answered or results)[-1]
    heads = [*(heads or column_names(results)), *(["change"] if len(results) > 1 else [])]
    rows = []
    shown = measures(last, temperature, every_k=every_k) if answered else ()
    for m in (*shown, *members(results), *losses(results)):
        read = [m.read(result) for result in results]
        cells = [cell(value, m.write) for value in read]
        known = [value for value in read if value is not None]
        moved = change(known[0], known[-1], m.write) if len(known) > 1 else ""
        rows.append([m.label, *cells, *([moved] if len(results) > 1 else [])])
    title = f"{clean(last.name, 60)}: {last.problems} problems" + (f" x {last.samples} samples" if answered else "")
    widths = [max(len(row[i]) for row in [[title, *heads], *rows]) for i in range(len(heads) + 1)]
    return [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in [[title, *heads], *rows]
    ]


def evaluation_line(result: Evaluation) -> str:
    """One evaluation in one line, for the log."""
    at = f"{result.stage} " if result.stage else ""
    k = largest_k(result)
    parts = [
        *([f"accuracy {cell(result.accuracy, share)}"] if result.accuracy else []),
        *([f"greedy {result.greedy.value:.3f}"] if result.greedy else []),
        *([f"pass@{k} {result.pass_at[k].value:.3f}"] if k in result.pass_at else []),
        *([f"answered {result.answer_rate.value:.3f}"] if result.answer_rate else []),
        *([f"length {result.mean_tokens:.1f}"] if result.mean_tokens is not None else []),
        *([f"cut {percent(result.truncated)}"] if result.truncated is not None else []),
        *([f"undecided {percent(result.undecided)}"] if result.undecided else []),
        *(f"{name} loss {share(value)}" for name, value in result.losses.items()),
    ]
    name = f"{clean(result.name, 60)} at {clean(at)}step {result.step} ({result.problems} problems)"
    return f"{name}: {', '.join(parts)} ({result.seconds:.1f} s)"


def summary(outcome: Outcome, *, home: Path, database: str | None = None) -> list[str]:
    """Lines at the end of a run: the tables, then the commands that show more."""
    recorded, recipe = _recorded(outcome, home, database)
    temperature = float(recipe.get("sampling", {}).get("temperature", 1.0))
    lines: list[str] = []
    for name in dict.fromkeys(e.name for e in recorded):
        found = finals(recorded, name)
        if found:
            lines += ["", *evaluation_table(found, temperature)]
    if any(e.samples and e.final for e in recorded):
        lines += ["", "[low, high] is the 95 % interval over problems."]
    lines += ["", f"{clean(outcome.run)} {outcome.state} at step {outcome.step}", ""]
    todo = [
        (f"jurat rollouts {outcome.run} --worst 10", "what it wrote, worst first, with every verdict"),
        (f"jurat plot {outcome.run} -o curve.png", "the curve"),
        (f"jurat export {outcome.run} -o model", "a folder that plain transformers loads"),
    ]
    if outcome.state != "finished":
        todo.insert(0, (f"jurat train --resume {outcome.run}", "go on"))
    width = max(len(command) for command, _ in todo)
    lines += [f"  {command.ljust(width)}  {why}" for command, why in todo]
    if outcome.checkpoint:
        lines += [f"  checkpoint: {clean(outcome.checkpoint)}"]
    return lines


def _recorded(outcome: Outcome, home: Path, database: str | None) -> tuple[list[Evaluation], Mapping[str, Any]]:
    """Every evaluation of the run and its recipe, as recorded; a resumed run began in another process.

    Where the record cannot be read, what this process saw is shown: a tracking failure is no reason to hide a result.
    """
    from jurat.platform.runs.store import Store

    seen = list(outcome.evaluations)
    try:
        store = Store.open(database, home)
        try:
            run = store.run(outcome.run)
            rows = [measured.result for measured in store.evaluations(run)]
        finally:
            store.close()
    except JuratError:
        return seen, {}
    return (rows if len(rows) >= len(seen) else seen), run.recipe
