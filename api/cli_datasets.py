"""``jurat datasets``: what can be asked, what a source holds, and whether it is fit to train on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jurat.api import terminal

if TYPE_CHECKING:
    from jurat.datasets.load import Holds, ProblemSet
    from jurat.platform.recipe import Fields, Prompt, Source

datasets = typer.Typer(
    name="datasets", help="Problem sets: what there is, what one holds, whether it is fit.", no_args_is_help=True
)

SourceName = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="generated, generated:plain, generated:chain, a .jsonl or .parquet file, a folder of them, a Hub id, or a recipe.",
        show_default=False,
    ),
]
Levels = Annotated[str | None, typer.Option("--levels", help="Of generated problems, as in 1,2.")]
Size = Annotated[int | None, typer.Option("--size", min=1, help="At most this many problems.")]
Split = Annotated[str, typer.Option("--split", help="train or held_out; a split of a Hub set.")]
Seed = Annotated[int, typer.Option("--seed", help="Of generated problems and of the choice of --size.")]
Fraction = Annotated[str | None, typer.Option("--fraction", help="The part by content hash, as in 0.9,1.")]
Question = Annotated[str | None, typer.Option("--question", help="Column of the question; guessed without.")]
Answer = Annotated[str | None, typer.Option("--answer", help="Column of the answer; guessed without.")]
Solution = Annotated[str | None, typer.Option("--solution", help="Column of a worked solution.")]
Gold = Annotated[str | None, typer.Option("--gold", help="auto, plain, hashes (####) or boxed.")]
Verifier = Annotated[str, typer.Option("--verifier", help="Name of the verifier of these problems.")]
BadRows = Annotated[str, typer.Option("--bad-rows", help="refuse or skip, as the recipe would say.")]


def register(app: typer.Typer) -> None:
    """Add ``datasets`` to the command line."""
    app.add_typer(datasets, rich_help_panel="Look")


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A source with where it stands: ``train`` of a recipe's stage, or the name itself."""

    label: str
    source: Source
    prompt: Prompt
    base: Path | None
    split: str
    recipe: str = ""
    verifiers: tuple[str, ...] = ()
    """Files of the recipe with verifiers of its own."""
    holds: Holds = "answers"
    """What its rows hold: that of its stage, or guessed."""


@datasets.command("ls")
def ls(
    recipe: Annotated[str | None, typer.Argument(help="List the sources of this recipe.", show_default=False)] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """List the sources that are built in, or those of a recipe."""
    if recipe is not None:
        found = [
            {"set": one.label, "source": one.source.source, "split": one.split,
             "part": one.source.model_dump(mode="json", exclude_unset=True)}
            for one in _of_recipe(recipe)
        ]  # fmt: skip
        if as_json:
            terminal.print_json(found)
        else:
            parts = [[f["set"], json.dumps(f["part"], ensure_ascii=False)] for f in found]
            terminal.print_table(["set", "source"], parts)
        return
    from jurat.datasets import generated

    rows = [
        {"source": family, "level": level,
         "example": (q := generated.question(family, seed=0, level=level, split="train", index=1)).text,
         "answer": q.answer}
        for family in generated.FAMILIES
        for level in generated.LEVELS[family]
    ]  # fmt: skip
    if as_json:
        terminal.print_json(rows)
        return
    terminal.print_table(["source", "level", "example", "answer"], [list(r.values()) for r in rows], right=[1])
    typer.echo("\nAlso a .jsonl or .parquet file, a folder of them, or a Hub id: jurat datasets show SOURCE")


@datasets.command("show")
def show(
    name: SourceName,
    levels: Levels = None,
    size: Size = None,
    split: Split = "train",
    seed: Seed = 0,
    fraction: Fraction = None,
    question: Question = None,
    answer: Answer = None,
    solution: Solution = None,
    gold: Gold = None,
    verifier: Verifier = "math",
    bad_rows: BadRows = "refuse",
    rows: Annotated[int, typer.Option("--rows", min=0, help="How many problems to print.")] = 3,
    as_json: terminal.AsJson = False,
) -> None:
    """Print what a source holds: rows, digest, levels, a few problems, and the recipe part that loads it."""
    given = _Given(levels, size, split, seed, fraction, question, answer, solution, gold, verifier, bad_rows)
    shown = []
    for one in _resolve(name, given):
        found = _load(one)
        part = _part(one.source) | ({"bad_rows": "skip"} if found.skipped else {})
        shown.append({
            "set": one.label, "holds": one.holds, "manifest": found.manifest.to_json(),
            "bad_rows": [str(b) for b in found.skipped], "part": part, "sample": [_problem(p) for p in found.problems[:rows]],
        })  # fmt: skip
        if not as_json:
            _print_set(one, found, part, rows)
    if as_json:
        terminal.print_json(shown)


@datasets.command("check")
def check(
    name: SourceName,
    against: Annotated[
        str | None,
        typer.Option("--against", help="A held-out source: report what of it is in SOURCE.", show_default=False),
    ] = None,
    against_split: Annotated[str, typer.Option("--against-split", help="Its split.")] = "held_out",
    ngram: Annotated[int, typer.Option("--ngram", min=1, help="Length of the word sequences compared.")] = 8,
    max_share: Annotated[
        float | None,
        typer.Option("--max-share", min=0, max=1, help="Fail if more of SOURCE shares an n-gram.", show_default=False),
    ] = None,
    levels: Levels = None,
    size: Size = None,
    split: Split = "train",
    seed: Seed = 0,
    fraction: Fraction = None,
    question: Question = None,
    answer: Answer = None,
    solution: Solution = None,
    gold: Gold = None,
    verifier: Verifier = "math",
    bad_rows: BadRows = "refuse",
    as_json: terminal.AsJson = False,
) -> None:
    """Check a source: bad rows, duplicates, gold through its own verifier, questions shared with a held-out source.

    In a recipe each training set is also compared with the sets that are held out from it.

    Exit code 3 if a row is bad, a gold fails, a held-out question is asked, or --max-share is passed.
    """
    from jurat.datasets.check import form_only
    from jurat.datasets.contamination import contamination
    from jurat.platform.errors import GateFailed

    given = _Given(levels, size, split, seed, fraction, question, answer, solution, gold, verifier, bad_rows)
    loaded = [(one, _load(one)) for one in _resolve(name, given)]
    others = [(one, found) for one, found in loaded if one.recipe and one.split != "train"]
    if against is not None:
        other = dataclasses.replace(given, split=against_split, size=None, fraction=None, question=None, answer=None,
                                    solution=None, gold=None)  # fmt: skip
        others += [(one, _load(one)) for one in _resolve(against, other)]
    results, faults, fixes = [], [], list[str]()
    for one, found in loaded:
        failed = _check_gold(one, found)
        result: dict[str, Any] = {
            "set": one.label, "holds": one.holds, "rows": found.manifest.rows, "digest": found.manifest.digest,
            "without_gold": sum(not p.reference for p in found.problems),
            "gold_run": sum(bool(p.reference) for p in found.problems) - form_only(found.problems),
            "gold_form_only": form_only(found.problems),
            "bad_rows": [str(b) for b in found.skipped],
            "gold_failed": [
                {"id": p.id, "where": p.source, "gold": p.reference, "status": v.status, "why": v.why}
                for p, v in failed
            ],
        }  # fmt: skip
        if found.skipped and one.source.bad_rows == "refuse":
            faults.append(f"{one.label}: {len(found.skipped)} bad rows")
            fixes.append("mend the bad rows or skip them (--bad-rows skip)")
        if failed:
            faults.append(f"{one.label}: {len(failed)} gold answers fail {found.problems[0].verifier.name}")
            fixes.append("mend the rows whose gold fails, take them out (nothing skips them), or name their verifier")
        for other_one, other_set in others if one.split == "train" or not one.recipe else []:
            told = len(faults)
            report = contamination(_bare(one, found), _bare(other_one, other_set), n=ngram)
            result.setdefault("contamination", []).append({"against": other_one.label, **report.to_json()})
            if report.num_same:
                faults.append(f"{one.label}: {report.num_same} questions are also in {other_one.label}")
            if max_share is not None and report.share > max_share:
                faults.append(f"{one.label}: share {report.share:.4f} of {other_one.label} passes {max_share}")
            if len(faults) > told:
                fixes.append("take the shared questions out, or change the split")
        results.append(result)
        if not as_json:
            _print_check(result, ngram)
    if as_json:
        terminal.print_json({"ok": not faults, "faults": faults, "sets": results})
        if faults:
            raise typer.Exit(GateFailed.exit_code)
    elif faults:
        raise GateFailed("; ".join(faults), where=name, fix="; ".join(dict.fromkeys(fixes)))


# ---- which source --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Given:
    """The options of a command, as they were typed."""

    levels: str | None
    size: int | None
    split: str
    seed: int
    fraction: str | None
    question: str | None
    answer: str | None
    solution: str | None
    gold: str | None
    verifier: str
    bad_rows: str


def _resolve(name: str, given: _Given) -> list[Named]:
    """The sources that ``name`` means: one, or every set of a recipe. Raises ConfigError or DataError."""
    from jurat.api.recipes import SUFFIXES, shipped
    from jurat.platform.recipe import Prompt

    if name.endswith(SUFFIXES) or (name in shipped() and not Path(name).exists()):
        return _of_recipe(name)
    source, holds = _source(name, given)
    return [Named(label=name, source=source, prompt=Prompt(), base=None, split=given.split, holds=holds)]


def _of_recipe(name: str) -> list[Named]:
    """Every different set of a recipe, stage by stage."""
    from jurat.api.recipes import load
    from jurat.datasets.load import holds
    from jurat.platform.canonical import canonical_json

    recipe, base = load(name)
    found: dict[str, Named] = {}
    for stage, part in recipe.staged():
        for split in ("train", "held_out", "unseen"):
            source: Source | None = getattr(part.data, split)
            if source is not None:
                label = f"{stage}.{split}" if stage else split
                one = Named(label=label, source=source, prompt=part.prompt, base=base, split=split, recipe=name,
                            verifiers=recipe.verifiers, holds=holds(part.algorithm, split))  # fmt: skip
                answered = one.holds in ("answers", "solutions")  # one set, of which a stage that samples asks more
                key = canonical_json([split, source, part.prompt, "answers" if answered else one.holds])
                if found.setdefault(key, one).holds == "solutions":
                    found[key] = dataclasses.replace(found[key], holds=one.holds)
    return list(found.values())


def _source(name: str, given: _Given) -> tuple[Source, Holds]:
    """A source from options, and what it holds; the columns of a file are guessed where none is given."""
    from pydantic import ValidationError

    from jurat.datasets import generated
    from jurat.datasets.load import find_path
    from jurat.platform.config import refusal
    from jurat.platform.recipe import Fields, Source

    keys: dict[str, Any] = {
        "source": name, "size": given.size, "seed": given.seed, "split": given.split, "verifier": given.verifier,
        "bad_rows": given.bad_rows,
    }  # fmt: skip
    if given.levels is not None:
        keys["levels"] = _numbers(given.levels, "--levels", int)
    if given.fraction is not None:
        keys["fraction"] = _numbers(given.fraction, "--fraction", float)
    holds: Holds = "answers"
    if not generated.names(name):
        mapped = {k: v for k in ("question", "answer", "solution", "gold") if (v := getattr(given, k)) is not None}
        path = find_path(name, None)
        if path is not None:
            keys["split"] = None  # a file has no parts by that name
            fields, holds = _guessed(path, mapped)
            mapped = {**fields.model_dump(), **mapped}
        keys["fields"] = mapped
    try:
        source = Source.model_validate(keys)
    except ValidationError as error:
        raise refusal(error, keys, Source, where=f"jurat datasets {name}") from None
    return source.model_copy(update={"fields": Fields.model_validate(keys.get("fields", {}))}), holds


def _numbers(text: str, option: str, kind: type[int] | type[float]) -> tuple[float, ...]:
    from jurat.platform.errors import ConfigError

    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{option} needs numbers with commas, got {text!r}", where="jurat datasets") from None


def _guessed(path: Path, given: dict[str, Any]) -> tuple[Fields, Holds]:
    """The field map of a file and what it holds, from its first rows and what is given of it."""
    from itertools import islice

    from jurat.datasets.guess import guess_fields, guess_holds
    from jurat.datasets.rows import Row, find_files, read_rows
    from jurat.platform.recipe import Fields

    rows = [row.value for row in islice(read_rows(find_files(path)[0]), 200) if isinstance(row, Row)]
    holds, question, answer = guess_holds(rows), given.get("question"), given.get("answer")
    if question and answer:
        return Fields(), holds
    return guess_fields(rows, where=str(path), question=question, answer=answer, holds=holds), holds


def _load(one: Named) -> ProblemSet:
    """The set, with its bad rows listed rather than refused."""
    from jurat.datasets.load import load_problems

    source = one.source.model_copy(update={"bad_rows": "skip"})
    return load_problems(source, one.prompt, base=one.base, split=one.split, holds=one.holds)


def _check_gold(one: Named, found: ProblemSet) -> list[tuple[Any, Any]]:
    """Problems whose gold fails the verifier that they name; one without gold cannot."""
    from jurat.datasets.check import check_gold
    from jurat.platform.recipe import Member, RewardPart
    from jurat.verifiers.judge import build_judge

    files = [(one.base or Path()) / file for file in one.verifiers]
    with build_judge(RewardPart(members=(Member(use="problem"),)), user_files=files) as judge:
        return check_gold([p for p in found.problems if p.reference], judge.verdict)


def _bare(one: Named, found: ProblemSet) -> list[Any]:
    """The problems with their questions alone, so that no template counts as shared words."""
    from jurat.datasets.contamination import question_of
    from jurat.datasets.load import messages_of
    from jurat.platform.recipe import Prompt

    return [dataclasses.replace(p, messages=messages_of(question_of(p, one.prompt), Prompt())) for p in found.problems]


# ---- how it is told ------------------------------------------------------------------------------------------------


def _part(source: Source) -> dict[str, Any]:
    """What to write into a recipe: keys that differ from their defaults."""
    return {"source": source.source, **source.model_dump(mode="json", exclude_defaults=True)}


def _problem(problem: Any) -> dict[str, Any]:
    return {
        "id": problem.id, "where": problem.source, "reference": problem.reference,
        "messages": [{"role": m.role, "content": m.content} for m in problem.messages],
        "columns": dict(problem.columns),
    }  # fmt: skip


def _held(problem: Any, holds: Holds) -> str:
    """What a problem holds beside its question, in a line."""
    short = lambda name: terminal.clean(problem.columns[name], 60)
    if holds == "pairs":
        return f"{short('chosen')}  rather than  {short('rejected')}"
    if holds == "labels":
        return f"{short('completion')}  {'(good)' if problem.columns['label'] else '(bad)'}"
    return terminal.clean(problem.reference or problem.columns["solution"], 60)


def _print_set(one: Named, found: ProblemSet, part: dict[str, Any], rows: int) -> None:
    import yaml

    m = found.manifest
    what = {
        "answers": "problems", "solutions": "demonstrations (for SFT)", "pairs": "pairs (for DPO)",
        "labels": "labelled completions (for KTO)",
    }[one.holds]  # fmt: skip
    lines = [
        f"{one.label}: {m.rows} {what}, {m.skipped} bad rows, licence: {m.licence or 'not stated'}",
        f"  digest  {m.digest}",
    ]
    if m.levels:
        lines.append("  levels  " + ", ".join(f"{level}: {count}" for level, count in m.levels.items()))
    if m.left_out_columns:
        lines.append(f"  columns left out, no JSON: {', '.join(m.left_out_columns)}")
    lines += [f"  bad     {terminal.clean(b, 160)}" for b in found.skipped[:5]]
    lines += [f"  bad     and {len(found.skipped) - 5} more"] if len(found.skipped) > 5 else []
    for p in found.problems[:rows]:
        asked = terminal.clean(p.messages[-1].content, 200)
        lines.append(f"  {p.id}  {asked}  ->  {_held(p, one.holds)}")
    typer.echo("\n".join(terminal.clean(line) for line in lines))
    written = yaml.safe_dump({"data": {one.split: part}}, sort_keys=False, default_flow_style=None, width=110)
    typer.echo("\nIn a recipe:\n" + terminal.clean(written))


def _print_check(result: dict[str, Any], ngram: int) -> None:
    from jurat.datasets.check import SHOWN, failure

    def some(title: str, lines: Sequence[str]) -> None:
        typer.echo(f"  {title}: {len(lines)}")
        for line in lines[:SHOWN]:
            typer.echo("    " + terminal.clean(line, 300))
        if len(lines) > SHOWN:
            typer.echo(f"    and {len(lines) - SHOWN} more")

    typer.echo(f"{result['set']}: {result['rows']} problems, {result['digest']}")
    some("bad rows", result["bad_rows"])
    if result["without_gold"]:
        typer.echo(f"  {result['holds']} without a gold answer, which no verifier can check: {result['without_gold']}")
    if result["gold_form_only"]:
        typer.echo(f"  solutions run on their own cases: {result['gold_run']}; "
                   f"rows without a solution, checked for form only: {result['gold_form_only']}")  # fmt: skip
    some("gold that fails its verifier",
         [failure(g["where"], g["gold"], g["status"], g["why"]) for g in result["gold_failed"]])  # fmt: skip
    for report in result.get("contamination", []):
        typer.echo(
            f"  against {report['against']} ({report['against_rows']} problems): {report['same']} questions the same; "
            f"{report['overlapping']} ({report['share']:.2%}) share {ngram} words in a row, "
            f"{report['half_covered']} of them half or more of theirs"
        )
        for o in report["overlaps"][:5]:
            typer.echo(f"    {o['where']} and {o['against_where']}: {o['covered']:.0%}, "
                       + terminal.clean(repr(o["gram"]), 100))  # fmt: skip
