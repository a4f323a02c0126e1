"""Rollout parts: everything comes back, hostile text too; what a resume supersedes is hidden; damage is named."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from hypothesis import given, settings

from jurat.platform.db import tables as t
from jurat.platform.errors import DataError
from jurat.platform.runs import bloom, rollouts
from jurat.platform.runs.ledger import RunLedger
from jurat.platform.runs.records import RunInfo
from jurat.platform.runs.rollouts import read, records_of, to_table, verify_parts, write_part
from jurat.platform.runs.store import Store
from jurat.platform.types import (
    Allocation,
    Batch,
    Group,
    Message,
    Problem,
    Scored,
    Span,
    Step,
    Verdict,
    VerifierSpec,
    Visit,
)

HOSTILE = "\x00\ud800\udfff\x1b[2J\x1b]0;owned\x07\u202e</script>\r\n'; DROP TABLE run;--" + "𝔸" * 3


def _write(folder: Path, batch: Batch, **options: Any) -> Path:
    table = to_table(batch, **{"run_id": "r", "stage": "", "segment": 0, "texts": True, **options})
    name, _, _ = write_part(folder, table, rollouts.part_name("", batch.step, 0))
    return folder / name


def _rich(scored: Any) -> Batch:
    """One group that uses every field."""
    problem = Problem(
        id="p9",
        messages=(Message(role="system", content="Be brief."), Message(role="user", content="2+2?\x00\x1b[1m")),
        reference="4",
        verifier=VerifierSpec(name="math", args={"places": 2}),
        source="file.jsonl:3",
        split="held",
        columns={"level": 2, "solution": "4"},
    )
    steps = (
        Step(start=0, end=1, status="correct", score=1.0, why="a"),
        Step(start=1, end=2, status="undecided", score=None),
    )
    verdict = Verdict(
        status="partial",
        score=0.5,
        fault=None,
        read="4",
        why="half",
        evidence={"forms": ["4", "2+2"], "x": float("nan")},
        certified=False,
        flags=("slow", "odd"),
        steps=steps,
        seconds=0.25,
        verifier=VerifierSpec(name="steps", args={"k": [1]}, digest="sha256:cc"),
        attempt=2,
        isolation="sandbox",
    )
    first = scored(HOSTILE, problem=problem, index=0, reward=0.5, verdict=verdict, steps=steps)
    infra = Verdict.of("infra", why="the sandbox is gone")
    second = scored("", problem=problem, index=1, reward=None, verdict=infra)
    greedy = scored("4", problem=problem, index=-1)
    odd = replace(
        first.rollout,
        index=2,
        loss_mask=np.array([False, True, True, False, True, True]),
        spans=(Span(start=0, end=1, version=3), Span(start=1, end=4, version=4)),
        finish="length",
    )
    why = Allocation(samples=3, reason="variance", greedy_baseline=True, evidence={"p": 0.5})
    group = Group(
        visit=Visit(problem=problem, visit=5, position=77),
        scored=(first, second, replace(first, rollout=odd)),
        allocation=why,
        baseline=greedy,
    )
    return Batch(step=12, groups=(), discarded=((group, "all equal"),))


def test_every_field_comes_back(tmp_path: Path, scored: Any) -> None:
    batch = _rich(scored)
    found = records_of(_write(tmp_path, batch, stage="grpo", segment=3))
    group = batch.discarded[0][0]
    given_ = [*group.scored, group.baseline]
    assert [r.baseline for r in found] == [False, False, False, True]
    for record, was in zip(found, given_, strict=True):
        assert (record.stage, record.segment, record.step, record.position) == ("grpo", 3, 12, 77)
        assert record.discarded == "all equal"
        assert record.allocation.evidence == {"p": 0.5}
        assert (record.allocation.samples, record.allocation.greedy_baseline) == (3, True)
        rollout, other = record.scored.rollout, was.rollout
        for name in ("id", "visit", "index", "text", "finish"):
            assert getattr(rollout, name) == getattr(other, name)
        for name in ("tokens", "loss_mask", "sampler_logprobs", "char_ends"):
            got, expected = getattr(rollout, name), getattr(other, name)
            assert got.dtype == expected.dtype
            np.testing.assert_array_equal(got, expected)
        assert [(s.start, s.end, s.version) for s in rollout.spans] == [
            (s.start, s.end, s.version) for s in other.spans
        ]
        problem, asked = rollout.problem, other.problem
        for name in ("id", "reference", "source", "split", "columns"):
            assert getattr(problem, name) == getattr(asked, name)
        assert [(m.role, m.content) for m in problem.messages] == [(m.role, m.content) for m in asked.messages]
        assert (problem.verifier.name, problem.verifier.args) == ("math", {"places": 2})
        reward, worth = record.scored.judgement.reward, was.judgement.reward
        assert (reward.value, dict(reward.parts), reward.trainable) == (worth.value, dict(worth.parts), worth.trainable)
        assert list(map(_step, reward.steps)) == list(map(_step, worth.steps))
    first = found[0].scored.judgement.verdicts["problem"]
    assert (first.status, first.score, first.read, first.why, first.flags) == (
        "partial",
        0.5,
        "4",
        "half",
        ("slow", "odd"),
    )
    assert (first.seconds, first.attempt, first.isolation, first.certified) == (0.25, 2, "sandbox", False)
    assert first.evidence == {"forms": ["4", "2+2"], "x": "nan"}
    assert first.verifier is not None
    assert (first.verifier.name, first.verifier.args, first.verifier.digest) == ("steps", {"k": [1]}, "sha256:cc")
    assert list(map(_step, first.steps)) == list(map(_step, group.scored[0].judgement.verdicts["problem"].steps))
    second = found[1].scored.judgement.verdicts["problem"]
    assert (second.status, second.score, second.fault, second.verifier) == ("infra", None, "infra", None)


def _step(step: Step) -> tuple[Any, ...]:
    return step.start, step.end, step.status, step.score, step.why


@settings(max_examples=25)
@given(
    text=st.text(st.characters(exclude_categories=())),
    read_=st.text(),
    why=st.text(st.characters(exclude_categories=())),
)
def test_any_text_comes_back(tmp_path_factory: Any, scored: Any, text: str, read_: str, why: str) -> None:
    verdict = Verdict.of("incorrect", read=read_, why=why, evidence={"stream": why})
    (record,) = records_of(_write(tmp_path_factory.mktemp("part"), _one(scored(text, verdict=verdict))))
    assert record.scored.rollout.text == text
    found = record.scored.judgement.verdicts["problem"]
    assert found.read == read_
    assert found.why == why.encode("utf-8", "backslashreplace").decode()


def _one(one: Scored) -> Batch:
    visit = Visit(problem=one.rollout.problem, visit=0, position=0)
    return Batch(
        step=0, groups=(Group(visit=visit, scored=(one,), allocation=Allocation(samples=1, reason="uniform")),)
    )


def test_a_megabyte_of_text_and_evidence(tmp_path: Path, scored: Any) -> None:
    text = HOSTILE + "x" * (1 << 20)
    verdict = Verdict.of("incorrect", read=text, evidence={"stdout": "y" * (1 << 20)})
    path = _write(tmp_path, _one(scored(text, verdict=verdict)))
    (record,) = records_of(path)
    assert record.scored.rollout.text == text
    evidence = record.scored.judgement.verdicts["problem"].evidence
    assert (len(evidence["cut"]), evidence["bytes"]) == (rollouts.EVIDENCE_BYTES, (1 << 20) + 13)
    assert path.stat().st_size < 100_000


def test_texts_are_left_out_when_asked(tmp_path: Path, scored: Any) -> None:
    path = _write(tmp_path, _one(scored("secret words", verdict=Verdict.of("correct", why="rule"))), texts=False)
    assert b"secret words" not in path.read_bytes()
    (record,) = records_of(path)
    assert (record.scored.rollout.text, record.scored.rollout.problem.messages) == ("", ())
    assert record.scored.rollout.tokens.tolist() == [0, 1, 2, 3, 4, 5]
    assert record.scored.judgement.verdicts["problem"].why == "rule"


def test_texts_of_some_are_kept_and_all_else_of_all(tmp_path: Path, scored: Any) -> None:
    rewards = (0.5, 0.0, 1.0, None, 1.0, 0.0)
    some = tuple(scored(f"t{n}", index=n, reward=reward) for n, reward in enumerate(rewards))
    visit = Visit(problem=some[0].rollout.problem, visit=0, position=0)
    group = Group(visit=visit, scored=some, allocation=Allocation(samples=6, reason="uniform"))

    def kept(texts: Any, name: str) -> list[int]:
        found = records_of(_write(tmp_path / name, Batch(step=0, groups=(group,)), texts=texts))
        assert [r.scored.judgement.reward.value for r in found] == list(rewards)
        assert all(len(r.scored.rollout.tokens) == 4 for r in found)
        assert all(bool(r.scored.rollout.text) == bool(r.scored.rollout.problem.messages) for r in found)
        return [r.scored.rollout.index for r in found if r.scored.rollout.text]

    assert kept("extremes", "a") == [1, 2]
    assert kept(True, "b") == [0, 1, 2, 3, 4, 5]
    shares = [set(kept(share / 10, f"c{share}")) for share in range(1, 10)]
    assert all(less <= more for less, more in pairwise(shares)) and 0 < sum(map(len, shares)) < 54


def test_an_empty_batch_is_a_part_too(tmp_path: Path) -> None:
    assert records_of(_write(tmp_path, Batch(step=4, groups=()))) == []


def test_a_part_is_never_overwritten(tmp_path: Path, batch: Any) -> None:
    one = _write(tmp_path, batch(1))
    assert _write(tmp_path, batch(1)) == one  # the same bytes are the same part
    before = one.read_bytes()
    two = _write(tmp_path, batch(1, text="13"))
    assert two.name == "step-000001-seg0.2.parquet"
    assert one.read_bytes() == before
    assert sorted(p.name for p in one.parent.iterdir()) == [two.name, one.name]


def test_a_part_is_plain_parquet_for_other_tools(tmp_path: Path, batch: Any) -> None:
    path = _write(tmp_path, batch(2))
    table = pq.read_table(path).group_by("status").aggregate([("reward", "mean"), ("reward", "count")])
    assert sorted(table.to_pylist(), key=str) == [
        {"status": "correct", "reward_mean": 1.0, "reward_count": 2},
        {"status": "incorrect", "reward_mean": 0.0, "reward_count": 4},
    ]
    notes = pq.read_schema(path).metadata
    assert (notes[b"jurat.schema"], notes[b"jurat.step"], notes[b"jurat.run"]) == (b"1", b"2", b"r")


@given(st.lists(st.text(st.characters(exclude_categories=()), max_size=24), max_size=300, unique=True))
def test_a_filter_of_ids_misses_none_of_its_own(ids: list[str]) -> None:
    blocks = bloom.made(ids)
    assert len(blocks) == bloom.BLOCK * max(1, -(-len(ids) // 16))
    for id in ids:
        place, may_hold = bloom.asked(id)
        first = bloom.BLOCK * (place % (len(blocks) // bloom.BLOCK))
        assert may_hold(blocks[first : first + bloom.BLOCK])


def test_a_filter_of_ids_holds_few_others() -> None:
    blocks = bloom.made([f"mine-{n}" for n in range(4000)])
    found = 0
    for n in range(4000):
        place, may_hold = bloom.asked(f"other-{n}")
        first = bloom.BLOCK * (place % (len(blocks) // bloom.BLOCK))
        found += may_hold(blocks[first : first + bloom.BLOCK])
    assert found <= 20  # 0.2 %


# ---- reading a run -----------------------------------------------------------------------------------------------


@pytest.fixture
def recorded(store: Store, new_run: Any, batch: Any) -> RunInfo:
    """A run of steps 0 to 3; killed, resumed at step 2 and redone with other text."""
    run: RunInfo = new_run()
    for first, steps, text in ((0, range(4), "12"), (2, range(2, 4), "fourteen")):
        segment = store.start_segment(run, first_step=first)
        ledger = RunLedger(store, run, "", segment, run.folder)
        for step in steps:
            ledger.record_batch(batch(step, text=text))
        ledger.close()
    return run


def test_superseded_rows_are_hidden(store: Store, recorded: RunInfo) -> None:
    page = read(store, recorded, limit=None)
    assert page.matched == 4 * 6
    assert page.faults == ()
    found = [(r.step, r.segment, r.scored.rollout.text) for r in page.records]
    expected = [(step, step // 2, "12" if step < 2 else "fourteen") for step in range(4) for _ in range(6)]
    assert found == expected
    assert len(store.parts(recorded)) == 4
    assert len(store.parts(recorded, canonical=False)) == 6
    stats = store.verdict_stats(recorded)
    assert [(s.step, s.segment, s.n, s.scored, s.score_sum) for s in stats] == [
        (0, 0, 6, 6, 2.0),
        (1, 0, 6, 6, 2.0),
        (2, 1, 6, 6, 2.0),
        (3, 1, 6, 6, 2.0),
    ]
    assert stats[0].statuses == {"correct": 2, "incorrect": 4}
    assert stats[0].version_digest == "sha256:" + "9f" * 32


def test_what_was_learnt_is_a_part_beside_the_rollouts(store: Store, new_run: Any, batch: Any) -> None:
    run = new_run()
    told = {"p0-0-0": np.array([1.5, 1.5], np.float32), "p0-0-1": np.array([-0.5, 0.25, 0.0], np.float32)}
    for first in (0, 1):
        segment = store.start_segment(run, first_step=first)
        with RunLedger(store, run, "", segment, run.folder) as ledger:
            for step in range(first, 2):
                ledger.record_batch(batch(step))
                ledger.record_advantages(step, {id: each + segment.no for id, each in told.items()}, {"p0-0-1": 0.75})
    parts = store.parts(run, kind="advantage")
    assert [(part.step_min, part.segment, part.rows) for part in parts] == [(0, 0, 2), (1, 1, 2)]
    assert len(store.parts(run)) == 2 and len(store.parts(run, kind=None, canonical=False)) == 6
    assert pq.read_table(run.folder / parts[1].path).select(
        ["rollout_id", "step", "advantage", "advantages"]
    ).to_pylist() == [
        {"rollout_id": "p0-0-0", "step": 1, "advantage": 2.5, "advantages": None},
        {"rollout_id": "p0-0-1", "step": 1, "advantage": pytest.approx(11 / 12), "advantages": [0.5, 1.25, 1.0]},
    ]
    worst = read(store, run, step=0, status="correct", limit=1).records[0]
    assert (worst.scored.rollout.id, worst.advantage, worst.advantages) == ("p0-0-0", 1.5, None)
    assert worst.optimised is None
    second = rollouts.find(store, run, "p0-0-1")
    assert second is not None and (second.advantage, second.advantages) == (pytest.approx(-1 / 12), (-0.5, 0.25, 0.0))
    assert second.optimised == 0.75
    assert read(store, run, problem="p1").records[0].advantage is None
    lost = parts[0]  # killed between file and commit: whole files without a row get theirs, whatever their kind
    for table in (t.data_part, t.part_index):
        store.write(lambda c, table=table: c.execute(sa.delete(table).where(table.c.path.like("%step-000000-seg0%"))))
    assert [part.step_min for part in store.parts(run, kind=None)] == [1, 1]
    RunLedger(store, run, "", store.start_segment(run, first_step=2), run.folder).close()
    assert [part.path for part in store.parts(run, kind="advantage")] == [part.path for part in parts]
    assert store.part_statuses(run)[f"rollouts/{lost.path.partition('/')[2]}"] == {"correct": 2, "incorrect": 4}
    assert [part.step_min for part in store.parts(run, holding="p0-0-0")] == [0]
    assert verify_parts(store, run) == []
    (run.folder / lost.path).write_bytes(b"x")
    assert [fault.partition(":")[0] for fault in verify_parts(store, run)] == [lost.path]


def test_filters_and_worst_first(store: Store, recorded: RunInfo) -> None:
    assert {r.step for r in read(store, recorded, step=2).records} == {2}
    assert {r.scored.rollout.problem.id for r in read(store, recorded, problem="p1").records} == {"p1"}
    right = read(store, recorded, status="correct", limit=3)
    assert (right.matched, len(right.records)) == (8, 3)
    assert read(store, recorded, step=99).matched == 0
    assert read(store, recorded, stage="absent").matched == 0
    worst = read(store, recorded, worst=17)
    found = [(r.scored.judgement.reward.value, r.step) for r in worst.records]
    assert found == [(0.0, step) for step in (3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0)] + [(1.0, 3)]


def test_excluded_rows_come_last_among_the_worst(store: Store, new_run: Any, scored: Any) -> None:
    run = new_run()
    ledger = RunLedger(store, run, "", store.start_segment(run, first_step=0), run.folder)
    rewards = (1.0, None, -2.0)
    some = tuple(scored(index=i, reward=r, verdict=Verdict.of("infra")) for i, r in enumerate(rewards))
    group = Group(
        visit=Visit(problem=some[0].rollout.problem, visit=0, position=0),
        scored=some,
        allocation=Allocation(samples=3, reason="uniform"),
    )
    ledger.record_batch(Batch(step=0, groups=(group,)))
    ledger.close()
    assert [r.scored.judgement.reward.value for r in read(store, run, worst=9).records] == [-2.0, 1.0, None]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_flipped_byte_anywhere_is_named(store: Store, recorded: RunInfo) -> None:
    assert verify_parts(store, recorded) == []
    part = store.parts(recorded)[1]
    path = recorded.folder / part.path
    whole = path.read_bytes()
    for at in (0, len(whole) // 3, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        (fault,) = verify_parts(store, recorded)
        assert fault.startswith(f"{part.path}: its digest is sha256:")
    path.write_bytes(whole)
    assert verify_parts(store, recorded) == []


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_damaged_or_missing_part_does_not_hide_the_others(store: Store, recorded: RunInfo) -> None:
    one, two = store.parts(recorded)[:2]
    (recorded.folder / one.path).unlink()
    (recorded.folder / two.path).write_bytes(b"PAR1 nonsense PAR1")
    page = read(store, recorded, limit=None)
    assert {r.step for r in page.records} == {2, 3}
    assert [fault.split(":")[0] for fault in page.faults] == [one.path, two.path]
    assert "missing" in page.faults[0]
    assert len(verify_parts(store, recorded)) == 2


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_part_cannot_lie_outside_the_run(recorded: RunInfo, tmp_path: Path) -> None:
    for path in ("../x.parquet", "/etc/passwd", "rollouts/../../x"):
        with pytest.raises(DataError, match="outside the run's folder"):
            rollouts.locate(recorded, path)
    (recorded.folder / "link.parquet").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="outside"):
        rollouts.locate(recorded, "link.parquet")
