"""Rollouts and verdicts as immutable Parquet parts: one file per batch, catalogued in SQL with its digest.

A part is written beside its name, fsynced and renamed, so a reader never sees half of one. Every column that later
questions need is there: tokens, sampler log-probs, policy versions, each member's verdict with its version digest, step
rewards, why a group was sized or discarded. Text that UTF-8 cannot hold (lone surrogates) is kept in ``text_raw``.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
import json
import math
import os
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jurat.platform.canonical import digest
from jurat.platform.db.tables import plain
from jurat.platform.errors import DataError
from jurat.platform.faults import point
from jurat.platform.runs import bloom
from jurat.platform.runs.disk import opened
from jurat.platform.runs.records import Part, RunInfo
from jurat.platform.runs.store import Store
from jurat.platform.types import (
    GIVEN,
    PHASES,
    Allocation,
    Batch,
    FloatArray,
    Group,
    Judgement,
    Message,
    Problem,
    Reward,
    Rollout,
    Scored,
    Span,
    Step,
    Verdict,
    VerifierSpec,
)

_PROCESS = secrets.token_hex(4)
"""Marks this process's unfinished files; those of others are leftovers. Process ids repeat in containers."""

SCHEMA_VERSION = 1
EVIDENCE_BYTES = 16_384
"""Evidence of one verdict beyond this is cut, and says so."""

_STEP = pa.struct([
    ("start", pa.int32()), ("end", pa.int32()), ("status", pa.string()), ("score", pa.float64()), ("why", pa.string()),
])  # fmt: skip
VERDICT = pa.struct([
    ("member", pa.string()), ("verifier", pa.string()), ("version_digest", pa.string()), ("args", pa.string()),
    ("status", pa.string()), ("score", pa.float64()), ("fault", pa.string()), ("read", pa.string()),
    ("why", pa.string()), ("certified", pa.bool_()), ("flags", pa.list_(pa.string())), ("evidence", pa.string()),
    ("seconds", pa.float64()), ("attempt", pa.int32()), ("isolation", pa.string()), ("steps", pa.list_(_STEP)),
])  # fmt: skip
_SPAN = pa.struct([("start", pa.int32()), ("end", pa.int32()), ("version", pa.int64())])
_MESSAGE = pa.struct([("role", pa.string()), ("content", pa.large_string())])
_SECONDS = pa.struct([(phase, pa.float32()) for phase in PHASES])
_PART = pa.struct([("member", pa.string()), ("score", pa.float64())])

SCHEMA = pa.schema(
    [
        ("rollout_id", pa.string()),
        ("run_id", pa.string()),
        ("stage", pa.string()),
        ("segment", pa.int32()),
        ("step", pa.int64()),
        ("position", pa.int64()),
        ("problem_id", pa.string()),
        ("visit", pa.int32()),
        ("index", pa.int32()),  # -1: the greedy baseline
        ("baseline", pa.bool_()),
        ("discarded", pa.string()),  # why the group was left out; null if it was learnt from
        ("allocation_samples", pa.int32()),
        ("allocation_reason", pa.string()),
        ("allocation_evidence", pa.string()),
        ("greedy_baseline", pa.bool_()),
        ("source", pa.string()),
        ("split", pa.string()),
        ("columns", pa.string()),
        ("reference", pa.large_string()),
        ("problem_verifier", pa.string()),
        ("problem_verifier_args", pa.string()),
        ("messages", pa.list_(_MESSAGE)),  # null if texts are not kept
        ("tokens", pa.list_(pa.int32())),  # [L]
        ("prompt_tokens", pa.int32()),  # L - N
        ("completion_tokens", pa.int32()),  # N
        ("loss_mask", pa.list_(pa.bool_())),  # [L]; null where it is the completion, whole
        ("sampler_logprobs", pa.list_(pa.float32())),  # [N]
        ("spans", pa.list_(_SPAN)),
        ("char_ends", pa.list_(pa.int32())),  # [N]
        ("finish", pa.string()),
        ("text", pa.large_string()),  # null if texts are not kept
        ("text_raw", pa.large_binary()),  # UTF-8 with surrogates passed, only where text could not hold them
        ("reward", pa.float64()),  # null: excluded
        ("trainable", pa.bool_()),
        ("parts", pa.list_(_PART)),
        ("reward_steps", pa.list_(_STEP)),
        ("status", pa.string()),  # of the first member
        ("verdicts", pa.list_(VERDICT)),
        ("seconds", _SECONDS),  # by phase; null where nothing was sampled, and in parts written before there was one
        ("gate", pa.string()),  # the member that made the reward 0; null where none did
    ]
)
ADVANTAGE_SCHEMA = pa.schema(
    [
        ("rollout_id", pa.string()),
        ("segment", pa.int32()),
        ("step", pa.int64()),
        ("advantage", pa.float32()),  # mean over the tokens that learn
        ("advantages", pa.list_(pa.float32())),  # [M] of each token that learns; null where all are equal
        ("optimised", pa.float64()),  # the reward after normalisation and shaping; not in parts of before
    ]
)
"""Of parts of kind ``advantage``: what the loss was told of each sample that learnt. Samples of a step in their order."""
_REPEATED = [
    "tokens.list.element", *(field.name for field in SCHEMA if pa.types.is_string(field.type)),
    *(f"verdicts.list.element.{field.name}" for field in VERDICT if pa.types.is_string(field.type)),
]  # fmt: skip
"""Columns whose values repeat. A dictionary of log-probs or offsets is work for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Record:
    """One recorded rollout: the nouns as they were, and where they belong."""

    stage: str
    segment: int
    step: int
    position: int
    baseline: bool
    discarded: str | None
    allocation: Allocation
    scored: Scored
    advantage: float | None = None
    """Mean over the tokens that learn; None where nothing was learnt from it."""
    advantages: tuple[float, ...] | None = None
    """Of each of those tokens, where they differ."""
    optimised: float | None = None
    """Its reward after normalisation and shaping, before the KL that the recipe may take off."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Page:
    """What ``read`` found."""

    records: tuple[Record, ...]
    matched: int
    """Rows that the filters let through, before ``limit``."""
    faults: tuple[str, ...]
    """Parts that are missing or damaged, each with why; their rows are not among the records."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Advantages:
    """Of the samples of a step, after normalisation and credit, as the loss takes them."""

    step: int
    of: Mapping[str, FloatArray]
    """rollout id -> [M], its tokens that learn"""
    optimised: Mapping[str, float] = field(default_factory=dict)
    """rollout id -> its reward after normalisation and shaping"""


Texts = bool | Literal["extremes"] | float
"""Whose texts are kept, as ``tracking.texts`` of a recipe says: a share is drawn by the id, so a resume draws the same."""


# ---- writing -----------------------------------------------------------------------------------------------------


def members(batch: Batch) -> Iterator[tuple[Group, Scored, bool, str | None]]:
    """(group, scored, is baseline, why discarded) of a batch, in order."""
    for group, why in [*((group, None) for group in batch.groups), *batch.discarded]:
        for scored in group.scored:
            yield group, scored, False, why
        if group.baseline is not None:
            yield group, group.baseline, True, why


def to_table(batch: Batch, *, run_id: str, stage: str, segment: int, texts: Texts) -> pa.Table:
    place = {"run_id": run_id, "stage": stage, "segment": segment, "step": batch.step}
    shared: dict[int, dict[str, Any]] = {}  # what all rows of a group say
    rows = []
    for group, scored, baseline, why in members(batch):
        if id(group) not in shared:
            shared[id(group)] = place | _group_row(group, why)
        whole = _keeps_text(texts, group, scored)
        messages = shared[id(group)]["messages"] if whole else None
        rows.append(shared[id(group)] | {"messages": messages} | _row(scored, baseline, texts=whole))
    columns = [_column([row[field.name] for row in rows], field.type) for field in SCHEMA]
    notes = {"jurat.schema": SCHEMA_VERSION, "jurat.run": run_id, "jurat.stage": stage}
    notes |= {"jurat.segment": segment, "jurat.step": batch.step}
    return pa.Table.from_arrays(columns, schema=SCHEMA.with_metadata({key: str(value) for key, value in notes.items()}))


def _keeps_text(texts: Texts, group: Group, scored: Scored) -> bool:
    if isinstance(texts, bool):
        return texts
    if texts == "extremes":
        values = [value for each in group.scored if (value := each.judgement.reward.value) is not None]
        ends = (min(values), max(values)) if values else ()
        return any(scored is next(e for e in group.scored if e.judgement.reward.value == end) for end in ends)
    drawn = hashlib.sha256(scored.rollout.id.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(drawn[:8], "big") < texts * 2**64


def advantage_table(advantages: Advantages, *, segment: int) -> pa.Table:
    ids, values = list(advantages.of), list(advantages.of.values())
    even = [not len(each) or bool((each == each[0]).all()) for each in values]
    columns = [
        pa.array(ids, pa.string()),
        pa.array([segment] * len(ids), pa.int32()),
        pa.array([advantages.step] * len(ids), pa.int64()),
        pa.array([float(each.mean(dtype=np.float64)) if len(each) else 0.0 for each in values], pa.float32()),
        pa.array([None if same else each for same, each in zip(even, values, strict=True)], pa.list_(pa.float32())),
        pa.array([advantages.optimised.get(id) for id in ids], pa.float64()),
    ]
    notes = {"jurat.schema": SCHEMA_VERSION, "jurat.segment": segment, "jurat.step": advantages.step}
    schema = ADVANTAGE_SCHEMA.with_metadata({key: str(value) for key, value in notes.items()})
    return pa.Table.from_arrays(columns, schema=schema)


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Arrays of numbers as one list column, laid end to end; anything else value by value."""
    if not (values and all(isinstance(value, np.ndarray) for value in values)):
        return pa.array(values, kind)
    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    return pa.ListArray.from_arrays(ends, pa.array(np.concatenate(values), kind.value_type), type=kind)


def write_part(folder: Path, table: pa.Table, name: str) -> tuple[str, str, int]:
    """Write ``folder/name`` and return (name, digest, bytes). Raises OSError, and then nothing is left of it.

    If the name is taken by other bytes, the next free one is used: a part is never overwritten.
    """
    sink = pa.BufferOutputStream()
    encoding = {"char_ends.list.element": "DELTA_BINARY_PACKED"} if "char_ends" in table.column_names else None
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True, use_dictionary=_REPEATED,
                   column_encoding=encoding)  # fmt: skip
    data = sink.getvalue()
    view = memoryview(data)
    named = digest(view.tobytes())
    path = folder / name
    tries = 1
    while path.exists():
        if path.stat().st_size == len(view) and file_digest(path) == named:
            return path.relative_to(folder).as_posix(), named, len(view)
        tries += 1
        path = (folder / name).with_suffix(f".{tries}.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{_PROCESS}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(view[: len(view) // 2])
            file.flush()
            point("rollouts.mid_write")
            file.write(view[len(view) // 2 :])
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)
    return path.relative_to(folder).as_posix(), named, len(view)


FOLDERS = {"rollout": "rollouts", "advantage": "advantages"}
"""Kind of a part that the run itself writes -> where its files are, under the run's folder."""
RESCORES = "rescores"
"""Where verdicts of later verifier versions are (``rescores.py``): a run that goes on leaves them alone."""


def part_name(stage: str, step: int, segment: int, kind: str = "rollout") -> str:
    """Example: ``rollouts/grpo/step-000012-seg0.parquet``."""
    return f"{FOLDERS[kind]}/{stage or 'main'}/step-{step:06d}-seg{segment}.parquet"


def part_row(
    path: str, digested: str, size: int, *, segment: int, step: int, rows: int, at: int, kind: str = "rollout"
) -> dict[str, Any]:
    return {
        "segment": segment,
        "kind": kind,
        "step_min": step,
        "step_max": step,
        "path": path,
        "digest": digested,
        "rows": rows,
        "bytes": size,
        "schema_version": SCHEMA_VERSION,
        "at": at,
    }


def index_row(path: str, ids: Sequence[str], statuses: Iterable[str | None]) -> dict[str, Any]:
    """Of ``part_index``, as JSON: what is in a part, told without opening it."""
    counted = Counter(status or "" for status in statuses)
    return {"path": path, "statuses": dict(counted), "ids": base64.b64encode(bloom.made(ids)).decode("ascii")}


def index_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """``index_row`` as it is stored. Raises ValueError, TypeError or KeyError for what is none."""
    ids = base64.b64decode(row["ids"], validate=True)
    counts = row["statuses"]
    sound = isinstance(counts, Mapping) and all(type(count) is int and count >= 0 for count in counts.values())
    if not ids or len(ids) % bloom.BLOCK or not sound:
        raise ValueError("not an index of a part")
    return {**row, "ids": ids}


def verdict_rows(verdicts: Iterable[Mapping[str, Verdict]], *, segment: int, step: int) -> list[dict[str, Any]]:
    """Rows of ``verdict_stat``: what each version of each member's verifier said, counted."""
    stats: dict[tuple[str, str, str], dict[str, Any]] = {}
    for judged in verdicts:
        for member, verdict in judged.items():
            spec = verdict.verifier or VerifierSpec(name=member)
            row = stats.setdefault(
                (member, spec.name, spec.digest),
                {
                    "segment": segment, "step": step, "member": _utf8(member), "verifier": _utf8(spec.name),
                    "version_digest": _utf8(spec.digest), "n": 0, "scored": 0, "score_sum": 0.0, "seconds_sum": 0.0,
                    "seconds_max": 0.0, "statuses": {},
                },
            )  # fmt: skip
            row["n"] += 1
            row["statuses"][verdict.status] = row["statuses"].get(verdict.status, 0) + 1
            row["seconds_sum"] += verdict.seconds
            row["seconds_max"] = max(row["seconds_max"], verdict.seconds)
            if verdict.score is not None and math.isfinite(verdict.score):
                row["scored"] += 1
                row["score_sum"] += verdict.score
    return list(stats.values())


def _utf8(text: str) -> str:
    """Lone surrogates as their escapes; NUL stays, Parquet holds it."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _json(value: Any, limit: int | None = None) -> str:
    """ASCII JSON; beyond ``limit`` bytes the beginning, with the size it had."""
    if value == {}:
        return "{}"
    text = json.dumps(plain(value), separators=(",", ":"), sort_keys=True)
    if limit is not None and len(text) > limit:
        return json.dumps({"cut": text[:limit], "bytes": len(text)})
    return text


def _step(step: Step) -> dict[str, Any]:
    return {"start": step.start, "end": step.end, "status": step.status, "score": step.score, "why": _utf8(step.why)}


def verdict_row(member: str, verdict: Verdict) -> dict[str, Any]:
    """As ``VERDICT`` holds it."""
    spec = verdict.verifier
    return {
        "member": _utf8(member),
        "verifier": _utf8(spec.name) if spec else None,
        "version_digest": _utf8(spec.digest) if spec else None,
        "args": _json(spec.args) if spec else None,
        "status": verdict.status,
        "score": verdict.score,
        "fault": verdict.fault,
        "read": _utf8(verdict.read),
        "why": _utf8(verdict.why),
        "certified": verdict.certified,
        "flags": [_utf8(flag) for flag in verdict.flags],
        "evidence": _json(verdict.evidence, EVIDENCE_BYTES),
        "seconds": verdict.seconds,
        "attempt": verdict.attempt,
        "isolation": verdict.isolation,
        "steps": [_step(step) for step in verdict.steps],
    }


def _group_row(group: Group, discarded: str | None) -> dict[str, Any]:
    problem = group.visit.problem
    return {
        "position": group.visit.position,
        "problem_id": _utf8(problem.id),
        "discarded": None if discarded is None else _utf8(discarded),
        "allocation_samples": group.allocation.samples,
        "allocation_reason": _utf8(group.allocation.reason),
        "allocation_evidence": _json(group.allocation.evidence, EVIDENCE_BYTES),
        "greedy_baseline": group.allocation.greedy_baseline,
        "source": _utf8(problem.source),
        "split": _utf8(problem.split),
        "columns": _json(problem.columns, EVIDENCE_BYTES),
        "reference": _utf8(problem.reference),
        "problem_verifier": _utf8(problem.verifier.name),
        "problem_verifier_args": _json(problem.verifier.args),
        "messages": [{"role": m.role, "content": _utf8(m.content)} for m in problem.messages],
    }


def _row(scored: Scored, baseline: bool, *, texts: bool) -> dict[str, Any]:
    rollout, judgement = scored.rollout, scored.judgement
    reward = judgement.reward
    count = rollout.num_completion_tokens
    prompt = len(rollout.tokens) - count
    whole = not rollout.loss_mask[:prompt].any() and bool(rollout.loss_mask[prompt:].all())
    text = _utf8(rollout.text) if texts else None
    exact = text is None or text == rollout.text
    first = next(iter(judgement.verdicts.values()), None)
    return {
        "rollout_id": rollout.id,
        "visit": rollout.visit,
        "index": rollout.index,
        "baseline": baseline,
        "tokens": rollout.tokens.astype(np.int32),
        "prompt_tokens": prompt,
        "completion_tokens": count,
        "loss_mask": None if whole else rollout.loss_mask,
        "sampler_logprobs": rollout.sampler_logprobs[prompt:].astype(np.float32),
        "spans": [{"start": s.start, "end": s.end, "version": s.version} for s in rollout.spans],
        "char_ends": rollout.char_ends.astype(np.int32),
        "finish": rollout.finish,
        "text": text,
        "text_raw": None if exact else rollout.text.encode("utf-8", "surrogatepass"),
        "reward": reward.value,
        "trainable": reward.trainable,
        "parts": [{"member": _utf8(name), "score": score} for name, score in reward.parts.items()],
        "reward_steps": [_step(step) for step in reward.steps],
        "status": first.status if first else None,
        "verdicts": [verdict_row(name, verdict) for name, verdict in judgement.verdicts.items()],
        "seconds": dict(scored.seconds) or None,
        "gate": _utf8(reward.gate) if reward.gate else None,
    }


# ---- reading -----------------------------------------------------------------------------------------------------

_NARROW = ["reward", "status", "problem_id", "step", "position", "index", "allocation_reason"]


def read(
    store: Store,
    run: RunInfo,
    *,
    step: int | None = None,
    stage: str | None = None,
    problem: str | None = None,
    status: str | None = None,
    worst: int | None = None,
    limit: int | None = 50,
) -> Page:
    """Canonical rollouts in the order of training, or the ``worst`` N: lowest reward first, newest step first among
    equals, excluded ones last; then completions that were given with the data, which no policy wrote. ``problem``: an id or
    its beginning. ``status``: of the first member's verdict.

    Rows are chosen by a scan of a few narrow columns; bodies are read of the chosen alone. A damaged part is a fault of
    the page, not an exception.
    """
    parts = [part for part in store.parts(run, step=step) if stage is None or part.stage == stage]
    faults: list[str] = []

    def rows() -> Iterator[tuple[Any, tuple[int, int]]]:
        for place, part in enumerate(parts):
            try:
                columns = load(run, part, _NARROW).to_pydict()
            except DataError as error:
                faults.append(f"{error.where}: {error.what}")
                continue
            for row in range(len(columns["step"])):
                if status is not None and columns["status"][row] != status:
                    continue
                if problem is not None and not columns["problem_id"][row].startswith(problem):
                    continue
                yield _badness(columns, row), (place, row)

    if worst is not None:
        found = list(rows())
        chosen = [where for _, where in heapq.nsmallest(worst if limit is None else min(worst, limit), found)]
    else:
        found = list(rows())
        chosen = [where for _, where in found[:limit]]
    made: dict[tuple[int, int], Record] = {}
    for place in sorted({place for place, _ in chosen}):
        wanted = sorted(row for at, row in chosen if at == place)
        try:
            taken = load(run, parts[place]).take(pa.array(wanted, pa.int64())).to_pylist()
        except DataError as error:
            faults.append(f"{error.where}: {error.what}")
            continue
        made |= {(place, row): _record(value) for row, value in zip(wanted, taken, strict=True)}
    records = _learnt(store, run, [made[where] for where in chosen if where in made], faults)
    return Page(records=tuple(records), matched=len(found), faults=tuple(faults))


def find(store: Store, run: RunInfo, rollout_id: str) -> Record | None:
    """One rollout by its id; of several segments that made it the newest. Parts that are damaged are left out."""
    for part in reversed(store.parts(run, holding=rollout_id)):
        try:
            ids = load(run, part, ["rollout_id"]).column(0)
            if (place := ids.index(rollout_id).as_py()) >= 0:
                record = _record(load(run, part).slice(place, 1).to_pylist()[0])
                return _learnt(store, run, [record], [])[0]
        except DataError:
            continue
    return None


def _learnt(store: Store, run: RunInfo, records: list[Record], faults: list[str]) -> list[Record]:
    """The records with their advantages, which parts of their own hold."""
    wanted = {(record.segment, record.step, record.scored.rollout.id) for record in records}
    steps = {(segment, step) for segment, step, _ in wanted}
    found: dict[tuple[int, int, str], dict[str, Any]] = {}
    for part in store.parts(run, kind="advantage") if steps else ():
        if (part.segment, part.step_min) in steps:
            try:
                rows = load(run, part).to_pylist()
            except DataError as error:
                faults.append(f"{error.where}: {error.what}")
                continue
            keyed = {(part.segment, row["step"], row["rollout_id"]): row for row in rows}
            found |= {key: keyed[key] for key in wanted & keyed.keys()}
    out = []
    for record in records:
        row = found.get((record.segment, record.step, record.scored.rollout.id))
        told = row and row["advantages"]
        more = {"advantage": row["advantage"], "advantages": told and tuple(told),
                "optimised": row.get("optimised")} if row else {}  # fmt: skip
        out.append(replace(record, **more))
    return out


def _badness(columns: Mapping[str, list[Any]], row: int) -> tuple[bool, float, int, int, int]:
    reward = columns["reward"][row]
    worth = math.inf if reward is None else float(reward)
    given = columns["allocation_reason"][row] == GIVEN
    return given, worth, -columns["step"][row], columns["position"][row], columns["index"][row]


def verify_parts(store: Store, run: RunInfo) -> list[str]:
    """Every catalogued part, superseded ones too, against its digest: the faults, in words."""
    faults = []
    for part in store.parts(run, kind=None, canonical=False):
        try:
            path = locate(run, part.path)
            found = file_digest(path)
        except (OSError, DataError) as error:
            faults.append(f"{part.path}: {getattr(error, 'what', None) or getattr(error, 'strerror', error)}")
            continue
        if found != part.digest:
            faults.append(f"{part.path}: its digest is {found[:19]}..., recorded was {part.digest[:19]}...")
    return faults


def records_of(path: Path) -> list[Record]:
    """Every row of one part file, catalogued or not. Raises DataError."""
    try:
        with pq.ParquetFile(path) as file:
            return [_record(row) for row in file.read().to_pylist()]
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise DataError(f"not a part: {error}", where=str(path)) from None


def step_of(path: Path) -> tuple[int, int, int]:
    """(segment, step, rows) of a part file, by its own notes. Raises DataError."""
    try:
        about = pq.read_metadata(path)
        notes = about.metadata or {}
        return int(notes[b"jurat.segment"]), int(notes[b"jurat.step"]), about.num_rows
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise DataError(f"not a part: {error}", where=str(path)) from None


def locate(run: RunInfo, relative: str) -> Path:
    """The file of a part. Raises DataError for a path that leaves the run's folder, or a link."""
    path = run.folder / relative
    if Path(relative).is_absolute() or ".." in Path(relative).parts or path.is_symlink():
        raise DataError("a part lies outside the run's folder", where=str(path))
    return path


def file_digest(path: Path) -> str:
    with opened(path) as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Make a rename durable, where the system lets a folder be opened."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def load(run: RunInfo, part: Part, columns: list[str] | None = None) -> pa.Table:
    """Rows of a part; page checksums are checked. Raises DataError."""
    path = locate(run, part.path)
    if not path.is_file():
        raise DataError("the file is missing", where=part.path, fix="restore it from a copy of the run's folder")
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            return file.read(columns=columns)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"not readable as Parquet: {error}", where=part.path) from None


def clean(folder: Path) -> int:
    """Remove what dead processes left half written under a run's folder; how many files that were."""
    removed = 0
    for path in drafts(folder):
        if f".{_PROCESS}." not in path.name:
            path.unlink(missing_ok=True)
            removed += 1
    return removed


def drafts(folder: Path, folders: Iterable[str] = tuple(FOLDERS.values())) -> list[Path]:
    """Files that are half written, or whose writers died."""
    return [path for kind in folders for path in (folder / kind).glob("**/*.tmp")]


def uncatalogued(
    folder: Path, known: frozenset[str], folders: Iterable[str] = tuple(FOLDERS.values())
) -> Iterator[tuple[str, Path]]:
    """(relative path, path) of whole parts that no row names: written, then killed before the commit."""
    for path in sorted(path for kind in folders for path in (folder / kind).glob("**/*.parquet")):
        relative = path.relative_to(folder).as_posix()
        if relative not in known and not path.is_symlink():
            yield relative, path


def _record(row: Mapping[str, Any]) -> Record:
    tokens = np.asarray(row["tokens"], dtype=np.int64)
    prompt = row["prompt_tokens"]
    mask = (
        np.arange(len(tokens)) >= prompt if row["loss_mask"] is None else np.asarray(row["loss_mask"], dtype=np.bool_)
    )
    logprobs = np.zeros(len(tokens), dtype=np.float32)
    logprobs[prompt:] = row["sampler_logprobs"]
    rollout = Rollout(
        id=row["rollout_id"],
        problem=problem_of(row),
        visit=row["visit"],
        index=row["index"],
        tokens=tokens,
        loss_mask=mask,
        sampler_logprobs=logprobs,
        spans=tuple(Span(**span) for span in row["spans"]),
        text=text_of(row),
        char_ends=np.asarray(row["char_ends"], dtype=np.int64),
        finish=row["finish"],
    )
    reward = Reward(
        value=row["reward"],
        parts={part["member"]: part["score"] for part in row["parts"]},
        steps=tuple(Step(**step) for step in row["reward_steps"]),
        trainable=row["trainable"],
        gate=row.get("gate") or "",
    )
    judgement = Judgement(verdicts={v["member"]: verdict_of(v) for v in row["verdicts"]}, reward=reward)
    return Record(
        stage=row["stage"],
        segment=row["segment"],
        step=row["step"],
        position=row["position"],
        baseline=row["baseline"],
        discarded=row["discarded"],
        allocation=Allocation(
            samples=row["allocation_samples"],
            reason=row["allocation_reason"],
            greedy_baseline=row["greedy_baseline"],
            evidence=json.loads(row["allocation_evidence"]),
        ),
        scored=Scored(rollout=rollout, judgement=judgement, seconds=row.get("seconds") or {}),
    )


def problem_of(row: Mapping[str, Any]) -> Problem:
    """Of a row of rollouts; without messages where texts were not kept."""
    return Problem(
        id=row["problem_id"],
        messages=tuple(Message(role=m["role"], content=m["content"]) for m in row["messages"] or ()),
        reference=row["reference"],
        verifier=VerifierSpec(name=row["problem_verifier"], args=json.loads(row["problem_verifier_args"])),
        source=row["source"],
        split=row["split"],
        columns=json.loads(row["columns"]),
    )


def text_of(row: Mapping[str, Any]) -> str:
    """The completion of a row of rollouts, lone surrogates included; '' where it was not kept."""
    raw = row["text_raw"]
    return raw.decode("utf-8", "surrogatepass") if raw is not None else row["text"] or ""


def verdict_of(row: Mapping[str, Any]) -> Verdict:
    """Of a row of ``VERDICT``."""
    spec = None
    if row["verifier"] is not None:
        spec = VerifierSpec(name=row["verifier"], args=json.loads(row["args"]), digest=row["version_digest"])
    return Verdict(
        status=row["status"],
        score=row["score"],
        fault=row["fault"],
        read=row["read"],
        why=row["why"],
        evidence=json.loads(row["evidence"]),
        certified=row["certified"],
        flags=tuple(row["flags"]),
        steps=tuple(Step(**step) for step in row["steps"]),
        seconds=row["seconds"],
        verifier=spec,
        attempt=row["attempt"],
        isolation=row["isolation"],
    )
