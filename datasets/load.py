"""From a recipe's ``Source`` to problems: one door for generated sets, files and the Hub.

A row becomes a problem through the field map; what cannot become one is a ``BadRow`` with its file and line, and
refuses the whole set or is skipped, as the recipe says. Selection, in this order: bad rows and duplicates out, then
``fraction`` by the content hash of the question, then ``size`` by the source's seed.

What a row holds beside the question depends on who reads it: an answer; a solution, with an answer or without (SFT); a chosen
and a rejected completion (DPO); a completion and whether it is good (KTO). All but answers are
kept as ``columns`` of these names, whatever the fields are called.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from jurat.datasets import generated, hub
from jurat.datasets.gold import Prose, read_gold
from jurat.datasets.manifest import FileStamp, Manifest, ids_digest
from jurat.datasets.programs import cases_text, looks_like_cases
from jurat.datasets.rows import SUFFIXES, BadRow, Row, find_files, read_rows, stamp
from jurat.platform.canonical import digest
from jurat.platform.errors import DataError, nearest
from jurat.platform.randomness import generator
from jurat.platform.recipe import DPO, KTO, SFT, Algorithm, Fields, Prompt, Source
from jurat.platform.types import Message, Problem, VerifierSpec

SHOWN_BAD_ROWS = 5
DEFAULT_GENERATED_SIZE = 4096
UNREAD = (".csv", ".tsv", ".json", ".txt", ".xlsx", ".gz", ".zip")
"""Endings of files that people have, so that no such name is looked for on the Hub."""
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?(:([\w.-]+|\*))?(@[\w.-]+)?")
_CALCULATOR = re.compile(r"<<[^<>\n ]*=[^<>\n ]*>>")
_ROLES = ("system", "user", "assistant")

Holds = Literal["answers", "solutions", "pairs", "labels"]
"""What the rows of a set hold beside the question."""
GIVEN: Mapping[Holds, tuple[str, ...]] = MappingProxyType(
    {"answers": (), "solutions": (), "pairs": ("chosen", "rejected"), "labels": ("completion", "label")}
)
"""The fields that such rows need, and the columns that their problems have."""
READ_BY: Mapping[Holds, str] = MappingProxyType(
    {
        "answers": "algorithms that sample, and sft",
        "solutions": "algorithm.name: sft",
        "pairs": "algorithm.name: dpo",
        "labels": "algorithm.name: kto",
    }
)
"""Which algorithms such rows are for."""


@dataclass(frozen=True, slots=True)
class ProblemSet:
    """Problems in the order of their source, with what they are and what was left out."""

    problems: tuple[Problem, ...]
    manifest: Manifest
    skipped: tuple[BadRow, ...]


def holds(algorithm: Algorithm, split: str) -> Holds:
    """What a stage with this algorithm reads in a set: what it learns from in ``train`` and ``held_out``, else answers."""
    if split == "unseen":
        return "answers"
    return next((what for kind, what in _LEARN_FROM.items() if isinstance(algorithm, kind)), "answers")


_LEARN_FROM: Mapping[type, Holds] = MappingProxyType({SFT: "solutions", DPO: "pairs", KTO: "labels"})


def load_problems(
    source: Source, prompt: Prompt, *, base: Path | None = None, split: str, holds: Holds = "answers"
) -> ProblemSet:
    """The problems of ``source``, asked as ``prompt`` says, with what its rows hold.

    ``split`` is what the set is for (``train``, ``held_out``, ``unseen``): it is written into each problem and, unless
    the source names a split itself, chooses the part of the generated problems. A relative path is looked for under
    ``base`` (the recipe's folder), then under the working folder. Pairs and labels need no answer, solutions none but
    themselves; a problem without one has the reference ``""``.

    Raises DataError: no such file, no problem left, a field in no row, or bad rows while ``bad_rows`` is ``refuse``.
    """
    if generated.names(source.source):
        if GIVEN[holds]:
            raise DataError(
                f"generated problems have an answer, but no {' and no '.join(GIVEN[holds])}", where=f"data.{split}",
                fix=f"they are for {READ_BY['answers']}; for {READ_BY[holds]} name a .jsonl or .parquet file with "
                "preferences; docs/datasets.md has examples",
            )  # fmt: skip
        return _generated(source, prompt, split)
    path = find_path(source.source, base)
    if path is not None:
        paths = find_files(path)
        rows: Iterable[Row | BadRow] = (row for p in paths for row in read_rows(p))
        files = tuple(map(stamp, paths))
        return _from_rows(rows, source, prompt, split, holds, files=files, licence=_licence_beside(paths[0]))
    if not _HUB_ID.fullmatch(source.source):
        raise DataError(f"{source.source!r} is neither a file, a folder, a Hub id nor 'generated'", where="data source")
    rows, licence = hub.rows(source.source, source.split or "train")
    return _from_rows(rows, source, prompt, split, holds, files=(), licence=licence)


def find_path(name: str, base: Path | None) -> Path | None:
    """The file or folder that ``name`` means, or None if it can only be a Hub id. Raises DataError if it is missing."""
    tried = [base / name] if base is not None else []
    tried.append(Path(name))
    for path in tried:
        if path.exists():
            return path
    suffix = Path(name).suffix
    if suffix in (*SUFFIXES, *UNREAD) or name.startswith((".", "/", "~")) or name.count("/") > 1:
        unread = f", and {suffix} files are not read" if suffix in UNREAD else ""
        raise DataError(
            f"no such data file or folder{unread}", where=" or ".join(str(p) for p in tried),
            fix="give a .jsonl or .parquet file, a folder of them, a Hub id owner/name, or 'generated'",
        )  # fmt: skip
    return None


def messages_of(question: str | Sequence[Mapping[str, str]], prompt: Prompt) -> tuple[Message, ...]:
    """A question in the recipe's template; a ready conversation gets prefix and suffix on its last message."""
    turns = [{"role": "user", "content": question}] if isinstance(question, str) else list(question)
    made = [Message(role=turn["role"], content=turn["content"]) for turn in turns]  # type: ignore[arg-type]
    last = made[-1]
    made[-1] = Message(role=last.role, content=f"{prompt.prefix}{last.content}{prompt.suffix}")
    system = [Message(role="system", content=prompt.system)] if prompt.system is not None else []
    return (*system, *made)


def problem_id(messages: Sequence[Message], reference: str, given: Mapping[str, Any] = MappingProxyType({})) -> str:
    """``p`` and 24 hex digits (96 bits) of the digest of messages + reference: the verifier is no part of it.

    ``given`` completions and labels are, where there are any: one question may have many.
    """
    content = {"messages": [[m.role, m.content] for m in messages], "reference": reference}
    whole = digest({**content, "given": dict(given)} if given else content)
    return "p" + whole.removeprefix("sha256:")[:24]


def unit_interval(question: str) -> float:
    """Where a question falls in [0, 1) by its content: case and spaces do not move it, nor do template or gold."""
    text = " ".join(question.casefold().split())
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big") / 2**56


# ---- files and the Hub ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Taken:
    question: str
    problem: Problem
    key: tuple[str, ...]
    """What no other row may say anything about."""
    says: str | bool
    """What it says."""


_AGAIN: Mapping[Holds, str] = MappingProxyType(
    {
        "answers": "same question as {} with another answer",
        "solutions": "same question as {} with another answer",
        "pairs": "same pair as {} the other way round",
        "labels": "same completion as {} with another label",
    }
)


def _from_rows(
    rows: Iterable[Row | BadRow], source: Source, prompt: Prompt, split: str, holds: Holds, *,
    files: tuple[FileStamp, ...], licence: str | None,
) -> ProblemSet:  # fmt: skip
    taken: list[_Taken] = []
    bad: list[BadRow] = []
    asked: dict[tuple[str, ...], _Taken] = {}
    left_out: set[str] = set()
    columns_seen: Counter[str] = Counter()
    total, cases = 0, 0
    for row in rows:
        total += 1
        if isinstance(row, BadRow):
            bad.append(row)
            continue
        columns_seen.update(row.value.keys())
        try:
            one = _take(row, source, prompt, split, holds, left_out)
        except ValueError as error:
            bad.append(BadRow(row.where, str(error)))
            cases += source.verifier != "code" and looks_like_cases(row.value.get(source.fields.answer))
            continue
        if (first := asked.setdefault(one.key, one)) is not one:
            told = "duplicate of {}" if first.says == one.says else _AGAIN[holds]
            bad.append(BadRow(row.where, told.format(first.problem.source)))
            continue
        taken.append(one)
    _check_fields(source, holds, columns_seen, bool(taken), total - sum(1 for b in bad if b.reason.startswith("not ")))
    if bad and (source.bad_rows == "refuse" or not taken):
        shown = "\n  ".join(str(b) for b in bad[:SHOWN_BAD_ROWS])
        more = f"\n  and {len(bad) - SHOWN_BAD_ROWS} more" if len(bad) > SHOWN_BAD_ROWS else ""
        fix = "mend them, or set bad_rows: skip to leave them out" if taken else "mend them, or name other columns"
        if cases:
            fix = "the rows hold cases of programs: name their verifier (verifier: code; for jurat datasets, --verifier code)"
        raise DataError(f"{len(bad)} of {total} rows are bad:\n  {shown}{more}", where=source.source, fix=fix)
    low, high = source.fraction
    kept = [one.problem for one in taken if low <= unit_interval(one.question) < high]
    if source.size is not None and len(kept) > source.size:
        order = generator("datasets", "size", source.seed).permutation(len(kept))[: source.size]
        kept = [kept[i] for i in sorted(order)]
    selection = {"fraction": list(source.fraction), "size": source.size, "seed": source.seed}
    return _made(kept, tuple(bad), source, prompt, split, selection=selection, files=files, licence=licence,
                 fields=source.fields.model_dump(), left_out=tuple(sorted(left_out)), total=total)  # fmt: skip


def _take(row: Row, source: Source, prompt: Prompt, split: str, holds: Holds, left_out: set[str]) -> _Taken:
    """The problem in a row. Raises ValueError saying why there is none."""
    fields = source.fields
    asked = _asked(row.value, fields, holds)
    turns = _conversation(asked) if isinstance(asked, list) else None
    question = "\n".join(t["content"] for t in turns) if turns else _text(asked, fields.question)
    if not question.strip():
        raise ValueError(f"field {fields.question!r} is empty")
    given = _given(row.value, fields, holds, turns or [{"role": "user", "content": question}])
    shown = holds == "solutions" and _shows(row.value, fields)
    answer, reference, rule = "", "", ""
    if source.verifier == "code" and _has(row.value, fields.answer):
        cases = cases_text(_column(row.value, fields.answer), row.value, fields.answer)
        reference, rule = _clean(cases, f"field {fields.answer!r}"), "cases"
    elif holds == "answers" or (holds == "solutions" and not shown) or _has(row.value, fields.answer):
        answer = _text(_column(row.value, fields.answer), fields.answer)
        exact = source.verifier == "math" or fields.gold != "auto" or "####" in answer
        try:
            reference, rule = read_gold(answer, fields.gold if exact else "plain")
        except Prose:
            if holds != "solutions":
                raise
    read = {fields.question, fields.answer, *(getattr(fields, name) for name in GIVEN[holds])}
    columns = {}
    for name, value in row.value.items():
        if name in read:
            continue
        try:
            columns[name] = _json_value(value)
        except ValueError:
            left_out.add(name)
    columns.update(given)
    if shown or (fields.solution is not None and not GIVEN[holds]):
        columns["solution"] = _text(_column(row.value, _solution(fields)), _solution(fields))
        if not (reference or columns["solution"].strip()):
            raise ValueError(f"field {_solution(fields)!r} is empty")
    elif not GIVEN[holds] and not reference:
        columns["solution"] = answer  # prose, which demonstrates
    elif rule in ("hashes", "boxed") and not isinstance(columns.get("solution"), str):
        columns["solution"] = answer
    if fields.calculator == "drop" and isinstance(columns.get("solution"), str):
        columns["solution"] = _CALCULATOR.sub("", columns["solution"])
    messages = messages_of(turns or question, prompt)
    shape = given or ({} if reference else {"solution": columns["solution"]})
    problem = Problem(id=problem_id(messages, reference, shape), messages=messages, reference=reference,
                      verifier=VerifierSpec(name=source.verifier, args=dict(source.verifier_args)),
                      source=row.where, split=split, columns=columns)  # fmt: skip
    said = " ".join(question.split())
    match holds:
        case "pairs":
            return _Taken(question, problem, (said, *sorted(given.values())), given["chosen"])
        case "labels":
            return _Taken(question, problem, (said, given["completion"]), given["label"])
    return _Taken(question, problem, (said,), reference or columns["solution"])


def _solution(fields: Fields) -> str:
    """The column with a worked solution: ``solution``, where none is named."""
    return fields.solution or "solution"


def _shows(row: Mapping[str, Any], fields: Fields) -> bool:
    """Whether a row has a solution; what only happens to be called so counts if it is text."""
    name = _solution(fields)
    return _has(row, name) and (fields.solution is not None or isinstance(_column(row, name), str))


def _asked(row: Mapping[str, Any], fields: Fields, holds: Holds) -> Any:
    """The question of a row; of a pair of whole conversations without one, the messages that both begin with.

    Raises ValueError.
    """
    if holds == "pairs" and fields.question == Fields().question and not _has(row, fields.question):
        chosen, rejected = _column(row, fields.chosen), _column(row, fields.rejected)
        if isinstance(chosen, list) and isinstance(rejected, list):
            both = zip(_turns(chosen), _turns(rejected), strict=False)
            if shared := [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], both)]:
                return shared
    return _column(row, fields.question)


def _given(
    row: Mapping[str, Any], fields: Fields, holds: Holds, asked: Sequence[Mapping[str, str]]
) -> dict[str, Any]:  # fmt: skip
    """The completions and the label of a row. Raises ValueError."""
    given: dict[str, Any] = {}
    for name in GIVEN[holds]:
        field = getattr(fields, name)
        value = _column(row, field)
        given[name] = _label(value, field) if name == "label" else _completion(value, field, asked)
    if holds == "pairs" and given["chosen"] == given["rejected"]:
        raise ValueError(f"fields {fields.chosen!r} and {fields.rejected!r} are the same: nothing is preferred")
    return given


def _completion(value: Any, name: str, asked: Sequence[Mapping[str, str]]) -> str:
    """A completion as it is; of a conversation the last message, before which it may repeat what was ``asked``.

    Raises ValueError.
    """
    if isinstance(value, list):
        *before, last = _turns(value) or [{"role": "", "content": ""}]
        if last["role"] != "assistant":
            raise ValueError(f"the conversation in field {name!r} does not end with an assistant's message")
        if before and _spoken(before) != _spoken(asked):
            raise ValueError(f"the conversation in field {name!r} is not about the question of its row")
        text = last["content"]
    else:
        text = _text(value, name)
    if not text.strip():
        raise ValueError(f"field {name!r} is empty")
    return text


def _spoken(turns: Sequence[Mapping[str, str]]) -> list[tuple[str, str]]:
    return [(turn["role"], turn["content"].strip()) for turn in turns if turn["role"] != "system"]


_LABELS: Mapping[str, bool] = MappingProxyType({"true": True, "1": True, "false": False, "0": False})


def _label(value: Any, name: str) -> bool:
    """true or false, 1 or 0, the former also as text. Raises ValueError."""
    spelled = str(int(value)) if isinstance(value, float) and value in (0.0, 1.0) else str(value).strip().casefold()
    if not isinstance(value, (bool, int, float, str)) or spelled not in _LABELS:
        raise ValueError(f"field {name!r} holds {str(value)[:40]!r}, expected true or false")
    return _LABELS[spelled]


def _has(row: Mapping[str, Any], name: str) -> bool:
    """Whether a row has a column that is not null."""
    try:
        _column(row, name)
    except ValueError:
        return False
    return True


def _column(row: Mapping[str, Any], name: str) -> Any:
    """A column by name, or by a dotted path into nested ones. Raises ValueError if it is absent or null."""
    value: Any = row
    for part in (name,) if name in row else name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise ValueError(f"field {name!r} is missing; the row has {sorted(map(str, row))[:12]}")
        value = value[part]
    if value is None:
        raise ValueError(f"field {name!r} is null")
    return value


def _text(value: Any, name: str) -> str:
    """A cell as text; numbers are spelled exactly. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"field {name!r} holds {type(value).__name__}, expected text or a number")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"field {name!r} holds {value!r}")
        return str(int(value)) if value.is_integer() else repr(value)
    return _clean(str(value), f"field {name!r}")


def _clean(text: str, what: str) -> str:
    if "\0" in text:
        raise ValueError(f"{what} holds a NUL character")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} holds half a surrogate pair at character {error.start}: not text") from None
    return text


def _conversation(value: list[Any]) -> list[dict[str, str]]:
    """``[{role, content}, ...]`` that asks something, checked. Raises ValueError."""
    turns = _turns(value)
    if not turns or turns[-1]["role"] != "user":
        raise ValueError("the conversation does not end with a user's message")
    return turns


def _turns(value: list[Any]) -> list[dict[str, str]]:
    """``[{role, content}, ...]`` as it is, checked. Raises ValueError."""
    for turn in value:
        if not (isinstance(turn, Mapping) and turn.get("role") in _ROLES and isinstance(turn.get("content"), str)):
            raise ValueError(f"the conversation holds {str(turn)[:80]!r}, expected {{role: user, content: text}}")
        _clean(turn["content"], "the conversation")
    return [{"role": t["role"], "content": t["content"]} for t in value]


def _json_value(value: Any, depth: int = 0) -> Any:
    """A JSON value, checked. Raises ValueError for what JSON cannot hold."""
    if depth > 32:
        raise ValueError("nested too deep")
    if isinstance(value, Mapping):
        return {_clean(str(k), "key"): _json_value(v, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(v, depth + 1) for v in value]
    if isinstance(value, str):
        return _clean(value, "column")
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(f"{type(value).__name__} is not JSON")


def _check_fields(source: Source, holds: Holds, seen: Counter[str], some: bool, objects: int) -> None:
    """One clear error where the field map fits no row, instead of one per row. Where ``some`` pairs could be taken without
    a question they are conversations."""
    if not seen:
        return
    fields = source.fields
    needed = [] if holds == "pairs" and some else [fields.question]
    needed += [getattr(fields, name) for name in GIVEN[holds]]
    alone = holds == "solutions" and (_solution(fields) in seen or _solution(fields).split(".")[0] in seen)
    needed += [fields.answer] if not (GIVEN[holds] or alone) or fields.answer != Fields().answer else []
    for name in (*needed, None if GIVEN[holds] else fields.solution):
        if name is not None and name not in seen and name.split(".")[0] not in seen:
            raise DataError(f"field {name!r} is in none of {objects} rows; columns: {', '.join(sorted(seen)[:20])}."
                            f"{nearest(name, seen)}", where=source.source,
                            fix="name the columns under fields: (jurat datasets show FILE guesses them)"
                            + _other(fields, holds, name, seen))  # fmt: skip


def _other(fields: Fields, holds: Holds, name: str, seen: Counter[str]) -> str:
    """What rows without the field ``name`` may be for."""
    if name == fields.question:
        whole = "; pairs need none where chosen and rejected are whole conversations that begin alike"
        return whole if holds == "pairs" else ""
    if holds == "solutions" and name == fields.answer:
        return "; sft needs a solution (fields.solution) or an answer"
    for kind, names in GIVEN.items():
        columns = [getattr(fields, each) for each in names] or [fields.answer]
        others = kind not in (holds, "solutions") and {kind, holds} != {"answers", "solutions"}
        if others and all(column in seen for column in columns):
            return f"; rows with {' and '.join(columns)} are for {READ_BY[kind]}, not for {READ_BY[holds]}"
    return ""


def _licence_beside(path: Path) -> str | None:
    """First line of a LICENSE file in the same folder: what the data say of themselves."""
    for name in ("LICENSE", "LICENSE.txt", "LICENSE.md"):
        if (path.parent / name).is_file():
            lines = (path.parent / name).read_text(encoding="utf-8", errors="replace").split("\n")
            return next((line.strip("# ").strip() for line in lines if line.strip()), None)
    return None


# ---- generated -----------------------------------------------------------------------------------------------------


def _generated(source: Source, prompt: Prompt, split: str) -> ProblemSet:
    part = source.split or split
    low, high = source.fraction
    seen: set[str] = set()

    def stream(level: int) -> Iterator[generated.Question]:
        for q in generated.distinct(source.source, seed=source.seed, level=level, split=part):
            if low <= unit_interval(q.text) < high and q.text not in seen:
                seen.add(q.text)
                yield q

    streams = [stream(level) for level in source.levels]
    questions = _round_robin(streams, source, part)
    problems = []
    for q in questions:
        messages = messages_of(q.text, prompt)
        problems.append(Problem(
            id=problem_id(messages, q.answer), messages=messages, reference=q.answer,
            verifier=VerifierSpec(name=source.verifier, args=dict(source.verifier_args)),
            source=f"{source.source}:{source.seed}:level-{q.level}:{part}:{q.index}", split=split, columns=q.columns(),
        ))  # fmt: skip
    selection = {"fraction": list(source.fraction), "size": len(problems), "seed": source.seed,
                 "levels": list(source.levels), "part": part, "version": generated.VERSION}  # fmt: skip
    return _made(problems, (), source, prompt, split, selection=selection, files=(), total=len(problems),
                 licence="made by jurat: no rights reserved", fields={}, left_out=())  # fmt: skip


def _round_robin(streams: list[Iterator[generated.Question]], source: Source, part: str) -> list[generated.Question]:
    """``size`` questions, levels in turn. Without a size: all of a small family, else DEFAULT_GENERATED_SIZE."""
    if source.size is None and generated.countable(source.source):
        return [q for stream in streams for q in stream]
    size = source.size or DEFAULT_GENERATED_SIZE
    shares = [size // len(streams) + (i < size % len(streams)) for i in range(len(streams))]
    drawn = [list(islice(stream, share)) for stream, share in zip(streams, shares, strict=True)]
    for level, got, share in zip(source.levels, drawn, shares, strict=True):
        if len(got) < share:
            raise DataError(f"level {level} of {source.source}, split {part!r}, has {len(got)} distinct problems, "
                            f"asked for {share} (size {size} over {len(streams)} levels)", where="data source",
                            fix="ask for a smaller size, more levels, or the other split")  # fmt: skip
    return [got[i] for i in range(max(shares)) for got in drawn if i < len(got)]


def _made(
    problems: list[Problem], bad: tuple[BadRow, ...], source: Source, prompt: Prompt, split: str, *,
    selection: dict[str, Any], files: tuple[FileStamp, ...], licence: str | None, fields: dict[str, Any],
    left_out: tuple[str, ...], total: int,
) -> ProblemSet:  # fmt: skip
    if not problems:
        raise DataError(f"no problem is left of {total} rows (fraction {list(source.fraction)}, {len(bad)} bad)",
                        where=source.source, fix="widen the fraction, or name a source that has rows")  # fmt: skip
    levels = Counter(str(p.columns["level"]) for p in problems if "level" in p.columns)
    manifest = Manifest(
        digest=ids_digest(p.id for p in problems), rows=len(problems), skipped=len(bad), source=source.source,
        split=split, template=prompt.model_dump(), fields=fields, selection=selection,
        levels=dict(sorted(levels.items())), files=files, licence=licence, left_out_columns=left_out,
    )  # fmt: skip
    return ProblemSet(tuple(problems), manifest, bad)
