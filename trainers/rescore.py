"""Re-scoring: what another version of a verifier says of stored rollouts, and what that would have done to training.

Two passes. First every selected rollout that the new version has not judged yet is judged, part by part, each part's verdicts
written before the next begins (``platform/runs/rescores.py``). Then the report is made from the parts alone: whoever was
killed and goes on makes the same report, but for the seconds.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from jurat import __version__
from jurat.platform.db import tables as t
from jurat.platform.db.clock import now
from jurat.platform.errors import ConfigError, DataError, JuratError, RewardDrift
from jurat.platform.faults import point
from jurat.platform.provenance import blobs, drift, lineage, versions
from jurat.platform.provenance.records import Node, VerifierFacts, Version
from jurat.platform.recipe import Member, Recipe, RewardPart
from jurat.platform.runs import rescores, rollouts
from jurat.platform.runs.records import Part, RunInfo
from jurat.platform.runs.rescores import STRATIFY, Rescore, Selection
from jurat.platform.runs.store import Store
from jurat.platform.types import (
    Allocation,
    Finish,
    Group,
    Judgement,
    Problem,
    Reward,
    Rollout,
    Scored,
    Verdict,
    VerifierSpec,
    Visit,
)
from jurat.trainers import drift as statistics
from jurat.trainers.algorithms import build_algorithm
from jurat.trainers.samples import Algorithm
from jurat.verifiers.judge import LocalJudge, build_judge
from jurat.verifiers.reward import combine, labels

if TYPE_CHECKING:
    import sqlalchemy as sa

SCHEMA = 1
"""Of the report."""
WORST = 50
"""Disagreements that are shown whole."""
TEXT, PROMPT, TRACE = 4000, 2000, 2000
"""Characters of a completion, a prompt and a trace in the report."""
BEAT_SECONDS = 10.0
STRATA = (*STRATIFY, "finish")
METRICS = (
    "n", "coverage", "flip_rate", "flip_rate_high", "flip_up_rate", "flip_down_rate", "mcnemar_p", "status_change_rate",
    "decided_change", "timeout_shift", "mean_shift", "abs_mean_shift", "spearman", "kendall", "groups", "std_lost_rate",
    "std_gained_rate", "advantage_sign_rate", "best_change_rate", "best_shift", "environment_flip_rate",
)  # fmt: skip
"""What ``--fail-if`` may compare."""
Rows = NDArray[np.int64]
Choose = Callable[[RunInfo, Sequence[Part]], frozenset[str]]
"""Ids of the rollouts that a filter lets through."""


# ---- the verifier ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Opened:
    """A version that can be asked here. Closed by ``opened``."""

    judge: LocalJudge
    facts: VerifierFacts

    @property
    def digest(self) -> str:
        return self.facts.digest


@contextmanager
def opened(
    store: Store, named: str, *, args: Mapping[str, Any], files: Sequence[Path] = (), workers: int = 1
) -> Iterator[Opened]:
    """``NAME`` as it is installed here, ``FILE.py::NAME``, or a registered ``NAME@7`` or ``sha256:...``, which has to be what
    is installed here or in ``files``. ``args`` are those of the first two; a registered version has its own.

    Raises ConfigError; RewardDrift where the code of that version is not here.
    """
    file, _, name = named.rpartition("::")
    wanted: Version | None = None
    if not file and ("@" in named or named.startswith("sha256:")):
        wanted = store.read(lambda connection: versions.version(connection, named))
        name, args = _name(wanted), wanted.args
    part = RewardPart(members=(Member(use=name, args=dict(args)),), workers=workers)
    with build_judge(part, user_files=[Path(file)] if file else files) as judge:
        (bound,) = judge.bind().values()
        found = judge.identity(bound.name, bound.args)
        if wanted is not None and bound.digest != wanted.digest:
            raise _not_here(store, wanted, found)
        yield Opened(judge=judge, facts=VerifierFacts.of(bound, found, sources=found["sources"]))


def _name(version: Version) -> str:
    if not version.name:
        raise ConfigError(f"{version.digest[:19]}... is registered under no name", where="verifier version")
    return version.name


def _not_here(store: Store, wanted: Version, here: Mapping[str, Any]) -> RewardDrift:
    named = wanted.names[0]
    sources = store.read(lambda connection: versions.sources(connection, wanted))
    parts = [key for key in ("code", "config", "deps", "weights") if getattr(wanted, key) != here[key]]
    told = f"it differs in {', '.join(parts) or 'its digest'}"
    if sources is None:
        lost = "its source was not recorded, so it cannot be rebuilt from the record"
        return RewardDrift(f"{named} is not what is installed here ({told}), and {lost}", where=wanted.digest,
                           fix="name its file: --file OLD.py, or the old file as OLD.py::NAME")  # fmt: skip
    lines = "\n".join(f"    {line}" for line in drift.source_diff(sources, here["sources"])[:20])
    return RewardDrift(
        f"{named} is not what is installed here: {told}" + (f"\n{lines}" if lines else ""), where=wanted.digest,
        fix="check out the commit that it was made from, or name its file: --file OLD.py, or OLD.py::NAME",
    )  # fmt: skip


# ---- what is stored ----------------------------------------------------------------------------------------------

_NARROW = [
    "rollout_id", "position", "visit", "index", "baseline", "discarded", "problem_id", "source", "columns",
    "completion_tokens", "finish", "reward", "allocation_evidence",
    *(f"verdicts.list.element.{name}" for name in ("member", "version_digest", "status", "score", "seconds")),
]  # fmt: skip
_BODY = [
    "rollout_id", "problem_id", "source", "split", "columns", "reference", "problem_verifier", "problem_verifier_args",
    "messages", "text", "text_raw", "finish",
]  # fmt: skip


@dataclass(slots=True, eq=False)
class _Stored:
    """Rows of one part of rollouts, those without a verdict of the old version too: [n] each."""

    run: RunInfo
    part: Part
    version: str
    """The old one."""
    ids: list[str]
    columns: Mapping[str, list[Any]]
    verdicts: list[dict[str, tuple[str, float | None, str]]]
    """{member: (status, score, version)}"""
    old: list[int]
    """Rows that the old version judged."""
    status: NDArray[np.object_]
    score: NDArray[np.float64]
    seconds: NDArray[np.float64]
    group: Rows
    """Number of its group within the part."""
    chosen: Rows = None  # type: ignore[assignment]
    """Rows of ``old`` that are selected."""


def _read(run: RunInfo, part: Part, version: str) -> _Stored:
    table = rollouts.load(run, part, _NARROW)
    columns = {name: table.column(name).to_pylist() for name in table.column_names if name != "verdicts"}
    lists = table.column("verdicts").combine_chunks()
    starts = lists.offsets.to_numpy()
    flat = lists.values
    members, digests, statuses = (flat.field(name).to_pylist() for name in ("member", "version_digest", "status"))
    scores = flat.field("score").to_pylist()
    spent = flat.field("seconds").to_numpy(zero_copy_only=False)
    n = len(columns["rollout_id"])
    verdicts, old = [], []
    status, score, seconds = np.empty(n, object), np.full(n, np.nan), np.full(n, np.nan)
    for row in range(n):
        said = range(starts[row], starts[row + 1])
        verdicts.append({members[at]: (statuses[at], scores[at], digests[at]) for at in said})
        for at in said:
            if digests[at] == version:
                old.append(row)
                status[row], seconds[row] = statuses[at], spent[at]
                score[row] = math.nan if scores[at] is None else scores[at]
                break
    numbers: dict[tuple[Any, ...], int] = {}
    keys = zip(columns["position"], columns["visit"], columns["problem_id"], strict=True)
    group = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
    return _Stored(run, part, version, columns["rollout_id"], columns, verdicts, old, status, score, seconds, group)


def _stored(
    store: Store, selection: Selection, version: str, choose: Choose | None
) -> tuple[list[_Stored], list[RunInfo], list[str]]:
    """Parts that hold verdicts of the version, with the rows that are selected; the runs; parts that cannot be read."""
    found: list[_Stored] = []
    faults: list[str] = []
    runs = [store.run(name) for name in sorted(set(selection.runs))]
    for run in runs:
        parts = store.parts(run)
        kept = choose(run, parts) if choose is not None and selection.where else None
        for part in parts:
            try:
                rows = _read(run, part, version)
            except DataError as error:
                faults.append(f"{run.id}/{part.path}: {error.what}")
                continue
            rows.chosen = np.array([row for row in rows.old if kept is None or rows.ids[row] in kept], dtype=np.int64)
            if rows.old:
                found.append(rows)
    return found, runs, faults


def _strata(found: Sequence[_Stored], rows: Sequence[Rows]) -> dict[str, list[str]]:
    """{kind: the stratum of each of these rows, part after part}."""

    def each(name: str) -> list[Any]:
        return [of.columns[name][row] for of, some in zip(found, rows, strict=True) for row in some]

    steps = [of.part.step_min for of, some in zip(found, rows, strict=True) for _ in some]
    made = {
        "source": [re.sub(r":\d+\Z", "", source) or "unnamed" for source in each("source")],
        "length": statistics.deciles(np.array(each("completion_tokens"), dtype=np.int64)),
        "step": statistics.deciles(np.array(steps, dtype=np.int64)),
        "finish": each("finish"),
    }
    known: dict[str, str] = {}
    told = [known[text] if text in known else known.setdefault(text, _difficulty(text)) for text in each("columns")]
    return made | ({"difficulty": told} if set(told) != {""} else {})


def _difficulty(columns: str) -> str:
    held = json.loads(columns)
    value = held.get("difficulty", held.get("level")) if isinstance(held, dict) else None
    return str(value)[:40] if isinstance(value, (str, int, float)) else ""


def _sampled(found: Sequence[_Stored], selection: Selection) -> None:
    """Of each stratum its share, in whole groups, by the hash of (seed, the group's first rollout)."""
    total = sum(len(of.chosen) for of in found)
    if selection.sample is None or selection.sample >= total:
        return
    told = _strata(found, [of.chosen for of in found])
    kinds = [told[kind] for kind in selection.stratify if kind in told]
    groups: dict[tuple[int, int], list[int]] = {}
    stratum: dict[tuple[int, int], tuple[str, ...]] = {}
    flat = ((place, int(row)) for place, of in enumerate(found) for row in of.chosen)
    for at, (place, row) in enumerate(flat):
        key = (place, int(found[place].group[row]))
        stratum.setdefault(key, tuple(kind[at] for kind in kinds))  # of its first sample
        groups.setdefault(key, []).append(row)

    def drawn(key: tuple[int, int]) -> bytes:
        of = found[key[0]]
        return hashlib.sha256(f"{selection.seed}\x1f{of.run.id}\x1f{of.ids[groups[key][0]]}".encode()).digest()

    sizes: Counter[tuple[str, ...]] = Counter()
    for key, rows in groups.items():
        sizes[stratum[key]] += len(rows)
    left = _quotas(sizes, selection.sample)
    kept: dict[int, list[int]] = {}
    for key in sorted(groups, key=drawn):
        if left[stratum[key]] > 0:
            left[stratum[key]] -= len(groups[key])
            kept.setdefault(key[0], []).extend(groups[key])
    for place, of in enumerate(found):
        of.chosen = np.array(sorted(kept.get(place, [])), dtype=np.int64)


def _quotas(sizes: Mapping[Any, int], wanted: int) -> dict[Any, int]:
    """Shares of ``wanted`` that are as the sizes, by largest remainder."""
    total = sum(sizes.values())
    exact = {key: wanted * size / total for key, size in sizes.items()}
    made = {key: int(share) for key, share in exact.items()}
    rest = sorted(exact, key=lambda key: (made[key] - exact[key], key))
    for key in rest[: wanted - sum(made.values())]:
        made[key] += 1
    return made


# ---- judging -----------------------------------------------------------------------------------------------------


def _known(run: RunInfo, parts: Sequence[Part]) -> dict[str, tuple[str, float, float]]:
    """{rollout id: (status, score or NaN, seconds)} of parts of verdicts. Raises DataError."""
    out: dict[str, tuple[str, float, float]] = {}
    for part in parts:
        table = rollouts.load(run, part, ["rollout_id", "verdict.status", "verdict.score", "verdict.seconds"])
        verdict = table.column("verdict").combine_chunks()
        score = verdict.field("score").to_numpy(zero_copy_only=False)
        rows = zip(table.column("rollout_id").to_pylist(), verdict.field("status").to_pylist(), score.tolist(),
                   verdict.field("seconds").to_pylist(), strict=True)  # fmt: skip
        out |= {name: (status, value, seconds) for name, status, value, seconds in rows}
    return out


def _judge(of: _Stored, rows: Sequence[int], judge: LocalJudge, beat: Callable[[], None]) -> dict[str, Verdict]:
    """{rollout id: verdict} of these rows, in order, but of those whose text was not kept and those that the pool lost."""
    body = rollouts.load(of.run, of.part, _BODY).take(pa.array(rows, pa.int64())).to_pylist()
    problems: dict[str, Problem | None] = {}
    items: list[tuple[Problem, str, Finish]] = []
    names: list[str] = []
    for row in body:
        if row["messages"] is None or (row["text"] is None and row["text_raw"] is None):
            continue
        name = row["problem_id"]
        if name not in problems:
            problem = rollouts.problem_of(row)
            problems[name] = None if set(problem.columns) == {"cut", "bytes"} else problem  # its columns were cut
        if (asked := problems[name]) is not None:
            items.append((asked, rollouts.text_of(row), row["finish"]))
            names.append(row["rollout_id"])
    made: dict[int, Verdict] = {}
    for at, judgement in judge.judge_many(items):
        (verdict,) = judgement.verdicts.values()
        if verdict.fault != "infra":  # says nothing of the answer: the next try asks again
            made[at] = verdict
        beat()
    return {names[at]: made[at] for at in sorted(made)}


Known = list[dict[str, tuple[str, float, float]]]
"""For each part: what is known of its rollouts."""


def _judged(store: Store, found: Sequence[_Stored], by: Opened, name: str, beat: Callable[[int], None]) -> Known:
    """Every chosen rollout is judged, unless it was: part by part."""
    there = {of.run.id: rescores.parts(store, of.run, by.digest) for of in found}
    out: Known = []
    done = 0
    for of in found:
        held = there[of.run.id].get((of.part.segment, of.part.step_min), [])
        known = _known(of.run, held)
        missing = [int(row) for row in of.chosen if of.ids[row] not in known]
        verdicts = _judge(of, missing, by.judge, partial(beat, done)) if missing else {}
        point("rescore.before_write")
        if verdicts:
            rescores.write(store, of.run, of.part, by.digest, verdicts, name)
            point("rescore.after_write")
            known |= {
                key: (v.status, math.nan if v.score is None else v.score, v.seconds) for key, v in verdicts.items()
            }
        done += len(of.chosen)
        beat(done)
        out.append(known)
    return out


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Done:
    rescore: Rescore
    report: Mapping[str, Any]


def rescore(
    store: Store,
    old: Version,
    new: Opened,
    selection: Selection,
    *,
    again: Opened | None = None,
    choose: Choose | None = None,
    by: str = "",
    told: Callable[[int, int], None] = lambda done, total: None,
) -> Done:
    """Judge what is not judged yet, make the report and keep it. ``told``: hears of samples done, and of how many.

    Raises RunFailed where another process is at it, ConfigError where there is nothing to compare; what it did until then is
    there for the next try.
    """
    owner = rescores.owner()
    if selection.again != (again is not None):
        raise ConfigError("the old version is asked again if the selection says so", where="rescore")

    def begin(connection: sa.Connection) -> Rescore:
        versions.register(connection, new.facts)
        made = rescores.ask(connection, old.digest, new.digest, selection.as_json(), by=by)
        rescores.take(connection, made.id, owner)
        return made

    here = store.write(begin)
    try:
        made = _work(store, here, owner, old, new, selection, again, choose, told)
    except BaseException as error:
        state: rescores.State = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        detail = error.what if isinstance(error, JuratError) else repr(error)
        store.write(lambda connection: rescores.end(connection, here.id, owner, state, detail=detail[:500]))
        raise
    return Done(rescore=store.read(lambda connection: rescores.find(connection, here.id)), report=made)


def _work(
    store: Store,
    here: Rescore,
    owner: str,
    old: Version,
    new: Opened,
    selection: Selection,
    again: Opened | None,
    choose: Choose | None,
    told: Callable[[int, int], None],
) -> dict[str, Any]:
    found, runs, faults = _stored(store, selection, old.digest, choose)
    _sampled(found, selection)
    total = sum(len(of.chosen) for of in found)
    if not total:
        raise ConfigError(
            f"no rollout of {', '.join(run.id for run in runs)} that is selected has a verdict of "
            f"{old.names[0] if old.names else old.digest}",
            where="--from", fix="jurat lineage uses NAME@N lists the runs of a version; see --where",
        )  # fmt: skip
    beaten = 0.0

    def beat(done: int, *, at_once: bool = False) -> None:
        nonlocal beaten
        if at_once or time.monotonic() - beaten > BEAT_SECONDS:
            beaten = time.monotonic()
            store.write(lambda connection: rescores.beat(connection, here.id, owner, done=done, total=total))
        told(done, total)

    beat(0, at_once=True)
    known = _judged(store, found, new, here.id, beat)
    environment = _judged(store, found, again, here.id, beat) if again is not None else None
    beat(total, at_once=True)
    newer = store.read(lambda connection: versions.version(connection, new.digest))
    report = _report(store, here, old, newer, found, runs, known, environment, selection, faults)

    def keep(connection: sa.Connection) -> None:
        report["made"] = {"at": now(connection), "jurat": __version__}
        named = blobs.put_json(connection, report)
        rescores.joined(connection, here, runs)
        rescores.end(connection, here.id, owner, "finished", report=named, verdict=report["verdict"]["word"])

    store.write(keep)
    return report


# ---- the report --------------------------------------------------------------------------------------------------


def _report(
    store: Store,
    here: Rescore,
    old: Version,
    new: Version,
    found: Sequence[_Stored],
    runs: Sequence[RunInfo],
    known: Known,
    environment: Known | None,
    selection: Selection,
    faults: Sequence[str],
) -> dict[str, Any]:
    rows = [
        np.array([row for row in of.chosen if of.ids[row] in told], np.int64)
        for of, told in zip(found, known, strict=True)
    ]
    covered, selected = sum(map(len, rows)), sum(len(of.chosen) for of in found)
    before = _Side.stored(found, rows)
    after = _Side.known(found, rows, known)
    cluster = np.unique(
        [
            f"{of.run.id}\x1f{of.columns['problem_id'][row]}"
            for of, some in zip(found, rows, strict=True)
            for row in some
        ],
        return_inverse=True,
    )[1]
    compared = _compared(before, after, cluster, selection)
    training, notes = _training(found, known)
    both = ~np.isnan(before.score) & ~np.isnan(after.score)
    flips, mean = compared["flips"], compared["mean"]
    metrics: dict[str, float | None] = {
        "n": float(covered), "coverage": covered / selected, "flip_rate": flips["all"]["rate"],
        "flip_rate_high": flips["all"]["high"], "flip_up_rate": flips["up"]["rate"], "flip_down_rate": flips["down"]["rate"],
        "mcnemar_p": flips["mcnemar_p"], "status_change_rate": float((before.status != after.status).mean()) if covered else None,
        "decided_change": float((np.isnan(before.score) != np.isnan(after.score)).mean()) if covered else None,
        "timeout_shift": float((after.status == "timeout").mean() - (before.status == "timeout").mean()) if covered else None,
        "mean_shift": mean["shift"], "abs_mean_shift": None if mean["shift"] is None else abs(mean["shift"]),
        "spearman": _number(statistics.spearman(before.score[both], after.score[both])),
        "kendall": _number(statistics.kendall(before.score[both], after.score[both])),
        **training["metrics"],
        "environment_flip_rate": None,
    }  # fmt: skip
    report: dict[str, Any] = {
        "schema": SCHEMA, "kind": "rescore", "id": here.id,
        "from": _version_of(old), "to": _version_of(new), "selection": selection.as_json(),
        "runs": [{"id": run.id, "name": run.name, "state": run.state} for run in runs],
        "parts": [{"run": of.run.id, "path": of.part.path, "digest": of.part.digest} for of in found],
        "counts": {
            "judged_by_old": sum(len(of.old) for of in found), "selected": selected, "covered": covered,
            "without_text_or_lost": selected - covered,
        },
        "statuses": _matrix(before.status, after.status), **compared,
        "strata": _by_stratum(found, rows, before, after, selection), "training": training,
        "worst": _worst(store, found, rows, before, after, new.digest), "faults": [*faults, *notes],
        "seconds": {"old": _spent(before.seconds), "new": _spent(after.seconds)},
    }  # fmt: skip
    if environment is not None:
        repeated = _Side.known(found, rows, environment)
        report["environment"] = {
            "stored_to_again": _compared(before, repeated, cluster, selection),
            "again_to_new": _compared(repeated, after, cluster, selection),
            "statuses": _matrix(before.status, repeated.status),
        }
        metrics["environment_flip_rate"] = report["environment"]["stored_to_again"]["flips"]["all"]["rate"]
    report["metrics"] = metrics
    report["affected"] = store.read(lambda connection: _affected(connection, old.digest))
    word, because = statistics.verdict(metrics)
    report["verdict"] = {
        "word": word, "because": because, "thresholds": {key: dict(value) for key, value in statistics.THRESHOLDS.items()},
    }  # fmt: skip
    return report


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _version_of(version: Version) -> dict[str, Any]:
    return {
        "digest": version.digest,
        "names": list(version.names),
        "version": version.version,
        "status": version.status,
    }


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """What one version said of the covered samples: [n] each."""

    status: NDArray[np.object_]
    score: NDArray[np.float64]
    seconds: NDArray[np.float64]

    @classmethod
    def stored(cls, found: Sequence[_Stored], rows: Sequence[Rows]) -> _Side:
        taken = [(of.status[some], of.score[some], of.seconds[some]) for of, some in zip(found, rows, strict=True)]
        status, score, seconds = zip(*taken, strict=True)
        return cls(np.concatenate(status), np.concatenate(score), np.concatenate(seconds))

    @classmethod
    def known(cls, found: Sequence[_Stored], rows: Sequence[Rows], known: Known) -> _Side:
        """NaN and status '' where nothing is known."""
        none = ("", math.nan, math.nan)
        said = [told.get(of.ids[row], none) for of, some, told in zip(found, rows, known, strict=True) for row in some]
        status = np.empty(len(said), object)
        status[:] = [each[0] for each in said]
        return cls(status, np.array([each[1] for each in said], float), np.array([each[2] for each in said], float))


def _compared(old: _Side, new: _Side, cluster: Rows, selection: Selection) -> dict[str, Any]:
    both = ~np.isnan(old.score) & ~np.isnan(new.score)
    one, two = old.score[both], new.score[both]
    flips = statistics.flips(old.score, new.score, selection.threshold)
    shift, low, high = statistics.mean_shift(two - one, cluster[both], seed=selection.seed)
    some = bool(len(one))
    mean = {
        "old": float(one.mean()) if some else None, "new": float(two.mean()) if some else None,
        "shift": shift if some else None, "low": _number(low), "high": _number(high), "resamples": statistics.RESAMPLES,
        "clusters": len(np.unique(cluster[both])),
    }  # fmt: skip
    return {"flips": flips.as_json(), "mean": mean}


def _matrix(old: NDArray[np.object_], new: NDArray[np.object_]) -> dict[str, dict[str, int]]:
    """{old status: {new status: samples}}"""
    made: dict[str, dict[str, int]] = {}
    for (was, now_), count in sorted(Counter(zip(old.tolist(), new.tolist(), strict=True)).items()):
        made.setdefault(was, {})[now_] = count
    return made


def _spent(seconds: NDArray[np.float64]) -> dict[str, float | None]:
    told = seconds[~np.isnan(seconds)]
    if not len(told):
        return dict.fromkeys(("mean", "p50", "p99", "max"))
    p50, p99 = np.quantile(told, [0.5, 0.99])
    return {"mean": float(told.mean()), "p50": float(p50), "p99": float(p99), "max": float(told.max())}


def _by_stratum(
    found: Sequence[_Stored], rows: Sequence[Rows], old: _Side, new: _Side, selection: Selection
) -> dict[str, list[dict[str, Any]]]:
    out: dict[str, list[dict[str, Any]]] = {}
    for kind, names in _strata(found, rows).items():
        of = np.array(names, dtype=object)
        out[kind] = []
        for name in sorted(set(names))[:1000]:
            mine = of == name
            one, two = old.score[mine], new.score[mine]
            flips = statistics.flips(one, two, selection.threshold).as_json()
            both = ~np.isnan(one) & ~np.isnan(two)
            out[kind].append({
                "stratum": name, "n": int(mine.sum()), "up": flips["up"]["n"], "down": flips["down"]["n"],
                "flip_rate": flips["all"]["rate"], "low": flips["all"]["low"], "high": flips["all"]["high"],
                "mean_shift": float((two - one)[both].mean()) if both.any() else None,
            })  # fmt: skip
    return out


# ---- what it would have done to training -------------------------------------------------------------------------


_NOBODY = Problem(id="", messages=(), reference="", verifier=VerifierSpec(name=""))
_NO_TOKENS, _NO_MASK, _NO_LOGPROBS = np.zeros(0, np.int64), np.zeros(0, bool), np.zeros(0, np.float32)


def _training(found: Sequence[_Stored], known: Known) -> tuple[dict[str, Any], list[str]]:
    """Of groups whose samples were all re-scored: with the new verdicts in the old ones' place, the run's own reward, shaping
    and advantages. Without what the record has not: the KL in the reward, a critic, normalisers that run along."""
    counts: Counter[str] = Counter()
    shift = 0.0
    notes: dict[str, None] = {}
    stages: dict[tuple[str, str], tuple[RewardPart, Algorithm | None]] = {}
    for of, told in zip(found, known, strict=True):
        key = (of.run.id, of.part.stage)
        if key not in stages:
            stages[key] = _stage(of.run, of.part.stage, notes)
        part, algorithm = stages[key]
        pairs = _groups(of, told, part, counts)
        for was, will, _ in pairs:
            before, after = _values(was), _values(will)
            counts["groups"] += 1
            flat, flatter = _flat(before), _flat(after)
            counts["std_lost"] += flatter and not flat
            counts["std_gained"] += flat and not flatter
            best = (max(before, default=math.nan), max(after, default=math.nan))
            if before and after:
                counts["with_best"] += 1
                counts["best_changed"] += best[0] != best[1]
                shift += best[1] - best[0]
        learnt = [(was, will) for was, will, discarded in pairs if not discarded]
        if algorithm is None or not learnt:
            continue
        one, two = (_outcomes(algorithm, [pair[side] for pair in learnt]) for side in (0, 1))
        for (was, _), left, right in zip(learnt, one, two, strict=True):
            for scored in was.scored:
                name = scored.rollout.id
                counts["samples"] += 1
                counts["sign_changed"] += _sign(left.get(name, 0.0)) != _sign(right.get(name, 0.0))

    def rate(count: str, of: str) -> float | None:
        return counts[count] / counts[of] if counts[of] else None

    metrics: dict[str, float | None] = {
        "groups": float(counts["groups"]), "std_lost_rate": rate("std_lost", "groups"),
        "std_gained_rate": rate("std_gained", "groups"), "advantage_sign_rate": rate("sign_changed", "samples"),
        "best_change_rate": rate("best_changed", "with_best"),
        "best_shift": shift / counts["with_best"] if counts["with_best"] else None,
    }  # fmt: skip
    names = (
        "groups",
        "incomplete",
        "reward_unknown",
        "std_lost",
        "std_gained",
        "samples",
        "sign_changed",
        "best_changed",
    )
    return {"counts": {name: counts[name] for name in names}, "metrics": metrics}, list(notes)


def _outcomes(algorithm: Algorithm, groups: Sequence[Group]) -> list[dict[str, float]]:
    """Advantages by rollout; a group without rewards, or whose greedy baseline has none, has no advantages."""
    whole = [
        bool(_values(group)) and (group.baseline is None or group.baseline.judgement.reward.value is not None)
        for group in groups
    ]
    found = iter(algorithm.outcomes([group for group, fit in zip(groups, whole, strict=True) if fit]))
    return [next(found) if fit else {} for fit in whole]


def _stage(run: RunInfo, stage: str, notes: dict[str, None]) -> tuple[RewardPart, Algorithm | None]:
    """(reward, what makes advantages of rewards alone or None) of a stage, by the run's recipe."""
    recipe = dict(Recipe.model_validate(run.recipe).staged())[stage]
    part = recipe.reward
    if part.on_undecided == "raise":  # there is no run to stop here
        part = part.model_copy(update={"on_undecided": "exclude"})
    where = f"{run.id}{f' ({stage})' if stage else ''}"
    try:
        algorithm = build_algorithm(recipe)
    except JuratError as error:
        notes[f"{where}: advantages are not compared: {error.what}"] = None
        return part, None
    if algorithm.estimator is None or algorithm.critic is not None:
        why = "by a critic, whose values are not stored" if algorithm.critic is not None else "none"
        notes[f"{where}: advantages are not compared: there are {why}"] = None
        return part, None
    for there, what in ((algorithm.kl_in_reward, "the KL in the reward"), (algorithm.credit, "credit of steps")):
        if there:
            notes[f"{where}: advantages are compared without {what}"] = None
    return part, algorithm


def _groups(
    of: _Stored, told: Mapping[str, tuple[str, float, float]], part: RewardPart, counts: Counter[str]
) -> list[tuple[Group, Group, bool]]:
    """(as it was, as it would be, whether it was discarded) of the groups that are known whole."""
    by: dict[int, list[int]] = {}
    for row, number in enumerate(of.group.tolist()):
        by.setdefault(number, []).append(row)
    chosen = frozenset(of.chosen.tolist())
    members = labels(part.members)
    out = []
    for rows in by.values():
        if not chosen.intersection(rows):
            continue
        if not all(row in chosen and of.ids[row] in told for row in rows):
            counts["incomplete"] += 1
            continue
        sides: list[Group] = []
        for new in (False, True):
            made: list[tuple[Scored, bool]] = []
            for row in rows:
                said = of.verdicts[row]
                if set(said) != set(members):
                    break
                reward = _reward(of, row, told if new else None, part)
                if not new and not _same(reward, of.columns["reward"][row]):
                    break
                made.append((_scored(of, row, reward), of.columns["baseline"][row]))
            if len(made) < len(rows):
                break
            own = sorted((each for each, baseline in made if not baseline), key=lambda each: each.rollout.index)
            evidence = json.loads(of.columns["allocation_evidence"][rows[0]])
            sides.append(Group(
                visit=Visit(problem=_NOBODY, visit=0, position=of.columns["position"][rows[0]]), scored=tuple(own),
                allocation=Allocation(samples=len(own), reason="", evidence=evidence),
                baseline=next((each for each, baseline in made if baseline), None),
            ))  # fmt: skip
            if all((of.status[row], of.score[row]) == told[of.ids[row]][:2] for row in rows):
                sides *= 2  # nothing was said otherwise
                break
        if len(sides) < 2:
            counts["reward_unknown"] += 1  # of another reward than the recipe's, as after an accepted change
            continue
        out.append((sides[0], sides[1], of.columns["discarded"][rows[0]] is not None))
    return out


def _reward(
    of: _Stored, row: int, told: Mapping[str, tuple[str, float, float]] | None, part: RewardPart
) -> float | None:
    """What the members make of it; ``told``: with these verdicts in the place of the old version's."""
    verdicts = {}
    for member, (status, score, version) in of.verdicts[row].items():
        if told is not None and version == of.version:
            status, value, _ = told[of.ids[row]]
            score = None if math.isnan(value) else value
        verdicts[member] = Verdict(status=status, score=score)  # type: ignore[arg-type]
    return combine(part, verdicts).value


def _same(one: float | None, two: float | None) -> bool:
    return one is two if one is None or two is None else math.isclose(one, two, rel_tol=1e-9, abs_tol=1e-12)


def _scored(of: _Stored, row: int, reward: float | None) -> Scored:
    columns = of.columns
    rollout = Rollout(
        id=of.ids[row], problem=_NOBODY, visit=0, index=columns["index"][row], tokens=_NO_TOKENS, loss_mask=_NO_MASK,
        sampler_logprobs=_NO_LOGPROBS, spans=(), text="", finish=columns["finish"][row],
        char_ends=np.broadcast_to(np.int64(0), (columns["completion_tokens"][row],)),
    )  # fmt: skip
    return Scored(rollout=rollout, judgement=Judgement(verdicts={}, reward=Reward(value=reward)))


def _values(group: Group) -> list[float]:
    return [value for each in group.scored if (value := each.judgement.reward.value) is not None]


def _flat(values: Sequence[float]) -> bool:
    return not values or min(values) == max(values)


def _sign(value: float) -> int:
    return 0 if abs(value) < 1e-9 else 1 if value > 0 else -1


# ---- evidence ----------------------------------------------------------------------------------------------------


def _worst(
    store: Store, found: Sequence[_Stored], rows: Sequence[Rows], old: _Side, new: _Side, version: str
) -> list[dict[str, Any]]:
    """The largest disagreements with their texts and both traces: scores that differ most, one that only one side has as 1."""
    missing = np.isnan(old.score) != np.isnan(new.score)
    size = np.where(missing, 1.0, np.nan_to_num(np.abs(new.score - old.score)))
    places = [(place, int(row)) for place, some in enumerate(rows) for row in some]
    order = sorted(
        np.flatnonzero(size > 0).tolist(),
        key=lambda at: (-size[at], found[places[at][0]].run.id, found[places[at][0]].ids[places[at][1]]),
    )[:WORST]
    bodies: dict[int, dict[str, Any]] = {}
    for place in sorted({places[at][0] for at in order}):
        mine = [at for at in order if places[at][0] == place]
        of = found[place]
        wanted = [places[at][1] for at in mine]
        told = rollouts.load(of.run, of.part, [*_BODY, "verdicts"]).take(pa.array(wanted, pa.int64())).to_pylist()
        traces = _traces(store, of, version, [of.ids[row] for row in wanted])
        for at, row, body in zip(mine, wanted, told, strict=True):
            said = next(v for v in body["verdicts"] if v["version_digest"] == of.version)
            text = rollouts.text_of(body)
            prompt = body["messages"][-1]["content"] if body["messages"] else ""
            bodies[at] = {
                "run": of.run.id, "stage": of.part.stage, "step": of.part.step_min, "rollout": of.ids[row],
                "problem": body["problem_id"], "source": body["source"], "difference": float(size[at]),
                "prompt": t.visible(prompt[-PROMPT:]), "reference": t.visible(body["reference"][:PROMPT]),
                "text": t.visible(text[-TEXT:]), "text_cut": max(0, len(text) - TEXT),
                "old": _trace(said), "new": _trace(traces[of.ids[row]]),
            }  # fmt: skip
    return [bodies[at] for at in order]


def _traces(store: Store, of: _Stored, version: str, ids: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    out: dict[str, Mapping[str, Any]] = {}
    for part in rescores.parts(store, of.run, version).get((of.part.segment, of.part.step_min), []):
        table = rollouts.load(of.run, part)
        kept = table.filter(pc.is_in(table.column("rollout_id"), value_set=pa.array(ids)))
        out |= {row["rollout_id"]: row["verdict"] for row in kept.to_pylist()}
    return out


def _trace(row: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: row[key] for key in ("status", "score", "fault", "certified", "flags")}
    said = {key: row[key][:TRACE] for key in ("read", "why", "evidence")}
    steps = [{key: step[key] for key in ("start", "end", "status", "score")} for step in row["steps"][:100]]
    return {**kept, **said, "steps": steps}


def _affected(connection: sa.Connection, version: str) -> dict[str, Any]:
    """Runs and checkpoints that the old version's verdicts went into."""
    walk = lineage.affected(connection, Node(kind="verifier_version", id=version))
    kinds = {
        kind: sorted(node.id for node in walk.nodes if node.kind == kind) for kind in ("run", "checkpoint", "export")
    }
    checkpoints = [
        {"digest": name, "run": walk.nodes[Node(kind="checkpoint", id=name)].get("run"),
         "step": walk.nodes[Node(kind="checkpoint", id=name)].get("step")}
        for name in kinds["checkpoint"]
    ]  # fmt: skip
    runs = sorted(row["id"] for row in lineage.uses(connection, Node(kind="verifier_version", id=version)))
    return {"runs": runs, "checkpoints": checkpoints, "exports": kinds["export"], "cut": walk.cut}
