"""Audit a verifier on labelled cases: what it gets wrong, what it cannot tell, and how fast it is.

A row is ``{id, gold, pred, expected, form, policy}``: ``expected`` true if the answer is right; ``form`` "answer" (a
bare answer) or "text" (a completion, whose gold is text too unless ``gold_form`` is "answer"). Rows marked ``policy``
(a convention decides), ``adaptive`` (made to fool a grader) or ``disputed`` are counted apart, and so are rows whose
``config`` asks the grader they were written for to be laxer or stricter than its defaults. ``category``, or any other
column, may group the table. Times are work time of one verdict, queueing excluded. ``pred_parts: [[text, times], ...]``
stands for a long ``pred``; ``expected: null`` takes any verdict; one slower than the row's ``max_ms`` is ``late``.
"""

from __future__ import annotations

import collections
import json
import math
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from jurat.platform.errors import ConfigError, DataError, GateFailed, nearest
from jurat.platform.recipe import Member, RewardPart
from jurat.platform.types import Verdict, VerifierSpec
from jurat.verifiers import catalog
from jurat.verifiers.judge import LocalJudge, origin_named
from jurat.verifiers.verdicts import problem_of

PARTS = ("core", "policy", "adaptive", "disputed", "configured")
_USUAL_PRECISION = 6


def part_of(row: Mapping[str, Any]) -> str:
    """core, or why a row is counted apart: its verdict depends on a convention, a quarrel or a grader's settings."""
    marked = next((name for name in PARTS[1:-1] if row.get(name)), None)
    config = row.get("config") or {}
    special = config.get("string_extraction") or config.keys() & {"strict", "allow_set_relation_comp"}
    special = special or config.get("precision", _USUAL_PRECISION) != _USUAL_PRECISION
    return marked or ("configured" if special else "core")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One labelled row."""

    id: str
    gold: str
    pred: str
    expected: bool | None
    """None: any verdict will do, as long as there is one in time."""
    form: str = "answer"
    gold_form: str = "answer"
    prompt: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)

    @property
    def part(self) -> str:
        """core, or why the row is counted apart."""
        return part_of(self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Counts over some rows. Accuracy counts an undecided row as wrong."""

    n: int
    accuracy: float
    false_positives: int
    false_negatives: int
    undecided: int
    """Verdicts without a score; of those, the time-outs are in ``timeouts``."""
    timeouts: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    per_second: float
    """Rows over the sum of their work times: one core."""
    wrong: tuple[str, ...]
    """Ids of all rows not judged as expected."""
    late: tuple[str, ...]
    """Ids of the rows that took longer than their ``max_ms``."""

    def to_json(self) -> dict[str, Any]:
        out = {name: getattr(self, name) for name in self.__slots__}
        return {**out, "wrong": list(self.wrong), "late": list(self.late)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The result: core rows, the parts counted apart, groups of the core rows, and each wrong row with its verdict."""

    verifier: str
    digest: str
    core: Tally
    policy: Tally
    adaptive: Tally
    disputed: Tally
    configured: Tally
    groups: Mapping[str, Tally]
    wrong: tuple[tuple[Case, Verdict], ...]
    wall_seconds: float

    def to_json(self) -> dict[str, Any]:
        """The core's figures at the top, those of the parts counted apart beside."""
        apart = {name: getattr(self, name).to_json() for name in PARTS[1:]}
        out: dict[str, Any] = {**self.core.to_json(), **apart}
        if self.groups:
            out["by"] = {name: tally.to_json() for name, tally in self.groups.items()}
        return {**out, "verifier": self.verifier, "digest": self.digest, "wall_seconds": self.wall_seconds}


def read_cases(path: Path) -> list[Case]:
    """The cases of a JSONL file. Raises DataError naming file and line for a row that is not one."""
    try:
        # Opening anything else may wait for ever, as for the other end of a pipe.
        if not stat.S_ISREG(path.stat().st_mode):
            what = "a folder" if path.is_dir() else "no regular file"
            raise ConfigError(f"the cases are {what}", where=str(path), fix="name a JSONL file")
        lines = path.read_bytes().split(b"\n")
    except OSError as fault:
        raise ConfigError(
            f"cannot read the cases: {fault.strerror}", where=str(path), fix="name a JSONL file that can be read"
        ) from None
    cases = []
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as fault:
            raise DataError(f"not JSON: {fault}", where=where, fix="one JSON object a line, in UTF-8") from None
        case = case_of(row, where=where, default_id=str(number))
        if case.id in seen:
            raise DataError(f"id {case.id!r} is given twice", where=where, fix=f"it is also on line {seen[case.id]}")
        seen[case.id] = number
        cases.append(case)
    if not cases:
        row = '{"id": "1", "gold": "4", "pred": "4", "expected": true}'
        raise DataError("no cases", where=str(path), fix=f"write rows like {row}")
    return cases


def case_of(row: Any, *, where: str, default_id: str = "") -> Case:
    """One case from a row. Raises DataError."""
    if not isinstance(row, dict):
        raise DataError(
            f"a row is an object, got {type(row).__name__}",
            where=where,
            fix='{"gold": ..., "pred": ..., "expected": ...}',
        )
    if "pred" not in row and isinstance(row.get("pred_parts"), list):
        try:
            row = {**row, "pred": "".join(str(text) * int(times) for text, times in row["pred_parts"])}
        except (TypeError, ValueError):
            raise DataError(
                f"'pred_parts' must be [[text, times], ...], got {row['pred_parts']!r:.60}",
                where=where,
                fix="or give 'pred' itself",
            ) from None
    for key, kind in (("gold", str), ("pred", str), ("expected", bool)):
        if not isinstance(row.get(key), kind) and not (key == "expected" and row.get(key, 0) is None):
            got = f"got {row[key]!r:.60}" if key in row else "it is missing"
            raise DataError(f"{key!r} must be a {kind.__name__}: {got}", where=where, fix=f"give every row a {key!r}")
    if row.get("form", "answer") not in ("answer", "text"):
        raise DataError(
            f"'form' is answer or text, got {row['form']!r:.60}", where=where, fix="leave it out for answer"
        )
    known = {"id", "gold", "pred", "pred_parts", "expected", "form", "gold_form", "prompt"}
    return Case(
        id=str(row.get("id", default_id)), gold=row["gold"], pred=row["pred"], expected=row["expected"],
        form=row.get("form", "answer"), prompt=str(row.get("prompt", "")),
        gold_form=row.get("gold_form", row.get("form", "answer")),
        columns={key: value for key, value in row.items() if key not in known},
    )  # fmt: skip


def metamorphic_cases(count: int, seed: int) -> list[Case]:
    """Pairs of answers that are equal or unequal by construction, as cases; ``category`` is the kind of gold."""
    from jurat.verifiers.math import metamorphic

    return [
        Case(
            id=f"{seed}-{i}", gold=pair.gold, pred=pair.answer, expected=pair.equal,
            columns={"category": pair.kind, "transform": pair.transform},
        )
        for i, pair in enumerate(metamorphic.pairs(seed, count))
    ]  # fmt: skip


def audit(
    name: str,
    cases: Sequence[Case],
    *,
    args: Mapping[str, Any] | None = None,
    user_files: Sequence[Path | str] = (),
    by: str | None = None,
    workers: int = 1,
    warm_up: int = 20,
) -> Audit:
    """Judge every case with verifier ``name`` and count. The first ``warm_up`` cases are judged once before, untimed.

    Raises ConfigError for an unknown verifier or argument, a column ``by`` that no row has, or files that do not load.
    """
    if by is not None and not any(by in case.columns for case in cases):
        known = sorted({key for case in cases for key in case.columns})
        raise ConfigError(
            f"no row has a column {by!r}.{nearest(by, known)}", where="--by",
            fix=f"columns: {', '.join(known)}" if known else "the rows have none but the known ones: add one",
        )  # fmt: skip
    given = dict(args or {})
    takes = catalog.find(name).parameters if name in catalog.BUILT_IN else {}
    by_form: dict[tuple[tuple[str, str], ...], list[Case]] = collections.defaultdict(list)
    for case in cases:
        forms = (("form", case.form), ("gold_form", case.gold_form))
        by_form[tuple((key, form) for key, form in forms if key in takes and key not in given)].append(case)
    origins = [origin_named(item) for item in user_files]
    made: dict[str, Verdict] = {}
    bound: VerifierSpec | None = None
    wall = 0.0
    for form, chosen in by_form.items():
        member = Member(use=name, args={**given, **dict(form)})
        with LocalJudge(RewardPart(members=(member,), workers=workers), origins=origins, cache=0) as judge:
            bound = bound or next(iter(judge.bind().values()))
            pairs = [(problem_of(c.gold, prompt=c.prompt, verifier=name, columns=c.columns), c.pred) for c in chosen]
            for problem, pred in pairs[:warm_up]:
                judge.verdict(problem, pred)
            started = time.perf_counter()
            for index, judgement in judge.judge_many(pairs):
                made[chosen[index].id] = next(iter(judgement.verdicts.values()))
            wall += time.perf_counter() - started
    judged = [(case, made[case.id]) for case in cases]
    groups: dict[str, list[tuple[Case, Verdict]]] = collections.defaultdict(list)
    if by is not None:
        for case, verdict in judged:
            if case.part == "core":
                groups[str(case.columns.get(by, ""))].append((case, verdict))
    part = {name: tally([pair for pair in judged if pair[0].part == name]) for name in PARTS}
    return Audit(
        verifier=name, digest=bound.digest if bound else "", **part, wall_seconds=wall,
        groups={key: tally(rows) for key, rows in sorted(groups.items())},
        wrong=tuple((case, verdict) for case, verdict in judged if not agrees(case, verdict)),
    )  # fmt: skip


def agrees(case: Case, verdict: Verdict) -> bool:
    """True if the verdict is the expected one: score 1 where right, below 1 where wrong; without a score it is neither.

    A gold that is refused (``bad_gold``) accepts nothing, which is right where nothing should be accepted.
    """
    if case.expected is None:
        return True
    if verdict.status == "bad_gold":
        return not case.expected
    return verdict.score is not None and (verdict.score == 1.0) == case.expected


def tally(rows: Sequence[tuple[Case, Verdict]]) -> Tally:
    """Counts over judged rows."""
    seconds = np.array([verdict.seconds for _, verdict in rows])
    p50, p90, p99 = (1e3 * np.percentile(seconds, [50, 90, 99])).tolist() if rows else (0.0, 0.0, 0.0)
    wrong = [(case, verdict) for case, verdict in rows if not agrees(case, verdict)]
    decided = [(case, verdict) for case, verdict in wrong if verdict.score is not None]
    return Tally(
        n=len(rows), accuracy=1 - len(wrong) / len(rows) if rows else 1.0,
        false_positives=sum(case.expected is False for case, _ in decided),
        false_negatives=sum(case.expected is True for case, _ in decided),
        undecided=sum(verdict.score is None for _, verdict in rows),
        timeouts=sum(verdict.status == "timeout" for _, verdict in rows),
        p50_ms=p50, p90_ms=p90, p99_ms=p99, per_second=len(rows) / max(float(seconds.sum()), 1e-9) if rows else 0.0,
        wrong=tuple(case.id for case, _ in wrong), late=tuple(case.id for case, verdict in rows if _late(case, verdict)),
    )  # fmt: skip


def _late(case: Case, verdict: Verdict) -> bool:
    limit = case.columns.get("max_ms")
    return isinstance(limit, (int, float)) and 1e3 * verdict.seconds > limit


def check_gate(min_accuracy: float | None, max_fp: float | None) -> None:
    """Raises ConfigError for a threshold that no result can be held to."""
    if min_accuracy is not None and not 0 <= min_accuracy <= 1:
        raise ConfigError(
            f"--min-accuracy is a share from 0 to 1, got {min_accuracy:g}", where="--min-accuracy", fix="like 0.97"
        )
    if max_fp is not None and not (math.isfinite(max_fp) and max_fp >= 0):
        raise ConfigError(f"--max-fp is a number >= 0, got {max_fp:g}", where="--max-fp", fix="like 0, 3 or 0.005")


def gate(result: Audit, *, min_accuracy: float | None = None, max_fp: float | None = None) -> None:
    """Raises GateFailed (exit code 3) if the core rows miss a threshold.

    ``max_fp`` is a share of the core rows if below 1, else a count. Raises ConfigError for a threshold that is none.
    """
    check_gate(min_accuracy, max_fp)
    core = result.core
    if min_accuracy is not None and core.accuracy < min_accuracy:
        raise GateFailed(
            f"accuracy {core.accuracy:.4f} < --min-accuracy {min_accuracy:g}: {len(core.wrong)} of {core.n} wrong",
            where=result.verifier, fix=f"wrong rows: {', '.join(core.wrong[:10])}",
        )  # fmt: skip
    allowed = None if max_fp is None else max_fp * core.n if 0 < max_fp < 1 else max_fp
    if allowed is not None and core.false_positives > allowed:
        accepted = [case for case, verdict in result.wrong if case.part == "core" and verdict.score is not None]
        ids = [case.id for case in accepted if not case.expected]
        raise GateFailed(
            f"{core.false_positives} false positives of {core.n} rows, --max-fp allows {max_fp:g}",
            where=result.verifier, fix=f"accepted though wrong: {', '.join(ids[:10])}",
        )  # fmt: skip


def parse_args(pairs: Iterable[str]) -> dict[str, Any]:
    """Verifier arguments from ``key=value``; values are JSON where they parse, else text."""
    out: dict[str, Any] = {}
    for pair in pairs:
        key, sign, raw = pair.partition("=")
        if not sign or not key:
            raise ConfigError(f"--arg needs key=value, got {pair!r}", where="--arg", fix="like --arg tolerance=0.01")
        try:
            out[key] = json.loads(raw)
        except ValueError:
            out[key] = raw
    return out
