"""Re-scoring: the report against the same rollouts worked out here; killed at any point it goes on to the same report."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from benches import benchmark
from jurat.platform.db import tables as t
from jurat.platform.errors import ConfigError, RewardDrift, RunFailed
from jurat.platform.provenance import blobs, bundle, lineage, seal, versions
from jurat.platform.provenance.records import Node, VerifierFacts
from jurat.platform.provenance.verify import verify
from jurat.platform.runs import gc, rescores, rollouts
from jurat.platform.runs.rescores import Selection
from jurat.platform.runs.store import Store
from jurat.trainers import rescore as scoring
from jurat.trainers.advantages import grpo

bench = benchmark("rescore")
COUNT = 192
NEW = """\
import jurat

@jurat.verifier("rule", deadline=5.0, batch=True)
def rule(problems, completions):
    return [{body} for p, c in zip(problems, completions)]
"""


@pytest.fixture
def store(database_url: str, tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(database_url, tmp_path / "home")
    yield opened
    opened.close()


def scored(store: Store, selection: Selection | None = None, to: str = "math", **more: Any) -> scoring.Done:
    old = store.read(lambda connection: versions.version(connection, "number@1"))
    with scoring.opened(store, to, args=old.args) as new:
        return scoring.rescore(store, old, new, selection or Selection(runs=("bench",)), **more)


def stored(store: Store) -> list[rollouts.Record]:
    return list(rollouts.read(store, store.run("bench"), limit=None).records)


def test_the_report_is_what_the_rollouts_say(store: Store) -> None:
    bench.make(store, COUNT, prompts=8)
    run = store.run("bench")
    seal.seal(store, run)
    before = {part.path: rollouts.file_digest(run.folder / part.path) for part in store.parts(run)}
    done = scored(store)
    report, records = done.report, stored(store)
    with scoring.opened(store, "math", args={}) as new:
        again = [new.judge.verdict(r.scored.rollout.problem, r.scored.rollout.text) for r in records]
    old = [r.scored.judgement.verdicts["problem"] for r in records]
    assert report["counts"] == {"judged_by_old": COUNT, "selected": COUNT, "covered": COUNT, "without_text_or_lost": 0}
    pairs = [(a.score, b.score) for a, b in zip(old, again, strict=True)]
    up, down = pairs.count((0.0, 1.0)), pairs.count((1.0, 0.0))
    assert up > 5 and (report["flips"]["up"]["n"], report["flips"]["down"]["n"]) == (up, down)
    matrix = Counter((was.status, now.status) for was, now in zip(old, again, strict=True))
    assert {(was, now): n for was, row in report["statuses"].items() for now, n in row.items()} == matrix
    assert report["mean"]["shift"] == pytest.approx((up - down) / COUNT)
    assert sum(row["n"] for row in report["strata"]["source"]) == COUNT

    groups: dict[str, list[tuple[float, float]]] = {}
    for record, (was, now) in zip(records, pairs, strict=True):
        groups.setdefault(record.scored.rollout.problem.id, []).append((was or 0.0, now or 0.0))
    assert all(None not in pair for pair in pairs)
    sides = [tuple(np.array(side) for side in zip(*some, strict=True)) for some in groups.values()]
    counts = report["training"]["counts"]
    assert counts["groups"] == len(sides) == COUNT // 8 and counts["reward_unknown"] == counts["incomplete"] == 0
    assert counts["std_lost"] == sum(a.std() > 0 and b.std() == 0 for a, b in sides)
    assert counts["std_gained"] == sum(a.std() == 0 and b.std() > 0 for a, b in sides)
    signs = sum(int((np.sign(np.round(grpo(a), 9)) != np.sign(np.round(grpo(b), 9))).sum()) for a, b in sides)
    assert counts["sign_changed"] == signs > 0
    assert counts["best_changed"] == sum(a.max() != b.max() for a, b in sides)

    assert len(report["worst"]) == min(50, up + down)
    first = report["worst"][0]
    record = next(r for r in records if r.scored.rollout.id == first["rollout"])
    assert (first["text"], first["old"]["score"]) != ("", first["new"]["score"])
    assert first["text"] == record.scored.rollout.text and first["new"]["why"]
    assert report["verdict"]["word"] == "breaking" == done.rescore.verdict
    assert report["affected"]["runs"] == ["bench"]

    # nothing that was stored has changed; the record is whole, and knows where the verdicts came from
    assert {path: rollouts.file_digest(run.folder / path) for path in before} == before
    assert verify(store, store.run("bench")).faults == ()
    walk = store.read(lambda c: lineage.walk(c, [Node(kind="rescore", id=done.rescore.id)], "back"))
    assert {(e.src.kind, e.role) for e in walk.edges} >= {
        ("verifier_version", "from"),
        ("verifier_version", "to"),
        ("run", "rollouts"),
    }
    kept = store.parts(run, kind="rescore")
    assert len(kept) == 3 and sum(part.rows for part in kept) == COUNT
    made = store.read(lambda c: lineage.walk(c, [Node(kind="rescore", id=done.rescore.id)], "forward"))
    assert {node.id for node in made.nodes if node.kind == "data_part"} == {part.digest for part in kept}
    assert bench.lasting(store.read(lambda c: blobs.get_json(c, done.rescore.report))) == json.loads(
        json.dumps(bench.lasting(report))
    )
    assert gc.collect(store, grace=0.0) == []
    assert store.read(lambda c: blobs.get_json(c, done.rescore.report)) is not None


def test_asked_again_nothing_is_judged_twice(store: Store, tmp_path: Path) -> None:
    """A part of the rollouts first, then all: what was judged stays as it is, and the rest is added beside it."""
    bench.make(store, COUNT, prompts=8)
    run = store.run("bench")
    some = frozenset(r.scored.rollout.id for r in stored(store)[:60])
    few = scored(store, Selection(runs=("bench",), where="x"), choose=lambda run, parts: some)
    assert (
        few.report["counts"]["covered"] == 60 and few.report["training"]["counts"]["incomplete"] == 1
    )  # 7 groups and a half
    before = {part.path: part.digest for part in store.parts(run, kind="rescore")}
    whole = scored(store)
    after = {part.path: part.digest for part in store.parts(run, kind="rescore")}
    assert whole.rescore.id != few.rescore.id and before.items() < after.items()
    assert sum(part.rows for part in store.parts(run, kind="rescore")) == COUNT
    third = scored(store)
    assert {part.path: part.digest for part in store.parts(run, kind="rescore")} == after
    assert third.rescore.id == whole.rescore.id and bench.lasting(third.report) == bench.lasting(whole.report)

    bundle.export(store, run, tmp_path / "run.tar")
    other = Store.open(None, tmp_path / "other")
    taken = bundle.take_in(other, tmp_path / "run.tar")
    assert {p.path: p.digest for p in other.parts(taken, kind="rescore")} == after
    assert verify(other, taken).faults == ()
    other.close()


def test_a_sample_is_whole_groups_of_each_stratum(store: Store) -> None:
    bench.make(store, COUNT, prompts=8)
    asked = Selection(runs=("bench",), sample=64, stratify=("source",), seed=1)
    report = scored(store, asked).report
    shares = {row["stratum"]: row["n"] for row in report["strata"]["source"]}
    assert shares == {"bench/easy.jsonl": 16, "bench/fractions.jsonl": 48}
    assert report["training"]["counts"]["groups"] == 8 and report["training"]["counts"]["incomplete"] == 0
    assert bench.lasting(scored(store, asked).report) == bench.lasting(report)
    with pytest.raises(ConfigError, match="Did you mean 'source'"):
        Selection(runs=("bench",), stratify=("sources",))


def test_killed_anywhere_it_goes_on_to_the_same_report(tmp_path: Path) -> None:
    reports = []
    first = Store.open(None, tmp_path / "first")
    bench.make(first, COUNT, prompts=8)
    first.close()
    for place, fault in enumerate(["", "rescore.before_write:2", "rollouts.mid_write:2", "rescore.after_write:1"]):
        home = tmp_path / str(place)
        shutil.copytree(tmp_path / "first", home)
        if fault:
            assert _forked(home, fault) == -signal.SIGKILL
        store = Store.open(None, home)
        if fault:
            name = store.read(rescores.listed)[0]
            assert name.state == "running" and name.report is None
        done = scored(store)
        assert done.rescore.state == "finished" and done.rescore.done == done.rescore.total == COUNT
        reports.append(json.dumps(bench.lasting(done.report), sort_keys=True))
        kept = store.parts(store.run("bench"), kind="rescore")
        assert sum(part.rows for part in kept) == COUNT
        store.close()
    assert len(set(reports)) == 1


def _forked(home: Path, fault: str) -> int:
    """The end of a child that re-scores and dies at a point."""
    child = os.fork()
    if child == 0:
        os.environ["JURAT_FAULT"] = fault
        try:
            scored(Store.open(None, home))
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_one_process_at_a_time(store: Store) -> None:
    bench.make(store, COUNT, prompts=24)
    mine = f"{os.uname().nodename}:{os.getpid()}:0"
    asked = Selection(runs=("bench",))

    def begin(connection: sa.Connection, owner: str) -> None:
        versions_ = [versions.version(connection, name).digest for name in ("number@1", "math@1")]
        rescores.take(connection, rescores.ask(connection, *versions_, asked.as_json()).id, owner)

    scored(store)
    store.write(lambda c: begin(c, mine))
    with pytest.raises(RunFailed, match="is being done by"):
        scored(store)
    dead = os.fork()
    if dead == 0:
        os._exit(0)
    os.waitpid(dead, 0)
    store.write(lambda c: c.execute(sa.update(t.rescore).values(lease_owner=mine.replace(str(os.getpid()), str(dead)))))
    assert scored(store).rescore.state == "finished"

    def interrupt(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scored(store, told=interrupt)
    assert store.read(rescores.listed)[0].state == "interrupted"


def test_versions_that_are_files(tmp_path: Path) -> None:
    """A rule of a user's is changed: the new file against the old one's stored verdicts, and the old one again."""
    files = [tmp_path / name for name in ("old.py", "new.py")]
    files[0].write_text(NEW.format(body="p.reference in c"))
    files[1].write_text(NEW.format(body="p.reference in c or 'frac' in c"))
    store = Store.open(None, tmp_path / "home")
    bench.make(store, 64, old="rule", files=(files[0],), prompts=8)
    old = store.read(lambda connection: versions.version(connection, "rule@1"))
    with scoring.opened(store, f"{files[1]}::rule", args={}) as new, scoring.opened(
        store, "rule@1", args={}, files=files[:1]
    ) as same:  # fmt: skip
        done = scoring.rescore(store, old, new, Selection(runs=("bench",), again=True), again=same)
    texts = [r.scored.rollout for r in stored(store)]
    assert (
        done.report["flips"]["up"]["n"]
        == sum("frac" in r.text and r.problem.reference not in r.text for r in texts)
        > 0
    )
    assert done.report["metrics"]["environment_flip_rate"] == 0.0 and done.report["flips"]["down"]["n"] == 0
    assert done.report["to"]["names"] == ["rule@2"]
    with pytest.raises(RewardDrift, match="differs in code") as refused, scoring.opened(
        store, "rule@1", args={}, files=files[1:]
    ):  # fmt: skip
        raise AssertionError
    assert "frac" in refused.value.what
    lost = VerifierFacts(label="", name="rule", digest="sha256:" + "ab" * 32, code="sha256:" + "cd" * 32)
    store.write(lambda connection: versions.register(connection, lost))
    with pytest.raises(RewardDrift, match="source was not recorded"), scoring.opened(
        store, lost.digest, args={}, files=files[1:]
    ):  # fmt: skip
        raise AssertionError
    store.close()


def test_texts_that_were_not_kept_are_no_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table: Callable[..., Any] = rollouts.to_table
    monkeypatch.setattr(rollouts, "to_table", lambda *batch, **more: table(*batch, **{**more, "texts": 0.5}))
    store = Store.open(None, tmp_path / "home")
    bench.make(store, COUNT, prompts=8)
    report = scored(store).report
    assert 0.3 < report["metrics"]["coverage"] < 0.7
    assert report["counts"]["without_text_or_lost"] == COUNT - report["counts"]["covered"] > 0
    store.close()


def test_other_members_keep_their_scores(tmp_path: Path) -> None:
    """A style member of weight 1/4 and a gate: rewards are combined anew, with the outcome's new verdicts alone."""
    members = [
        {"use": "problem", "weight": 1.0},
        {"use": "length", "role": "style", "weight": 0.25, "args": {"max": 200}},
    ]
    store = Store.open(None, tmp_path / "home")
    bench.make(store, COUNT, prompts=8, reward={"members": members})
    report = scored(store).report
    groups: dict[str, list[tuple[float, float]]] = {}
    with scoring.opened(store, "math", args={}) as new:
        for record in stored(store):
            rollout, judgement = record.scored.rollout, record.scored.judgement
            style = judgement.verdicts["length"].score
            now = new.judge.verdict(rollout.problem, rollout.text).score
            assert style is not None and now is not None and judgement.reward.value is not None
            groups.setdefault(rollout.problem.id, []).append((judgement.reward.value, now + 0.25 * style))
    sides = [tuple(np.array(side) for side in zip(*some, strict=True)) for some in groups.values()]
    counts = report["training"]["counts"]
    assert counts["groups"] == len(sides) and counts["reward_unknown"] == 0
    assert counts["std_lost"] == sum(np.ptp(a) > 0 and np.ptp(b) == 0 for a, b in sides)
    signs = sum(int((np.sign(np.round(grpo(a), 9)) != np.sign(np.round(grpo(b), 9))).sum()) for a, b in sides)
    assert counts["sign_changed"] == signs > 0
    shift = np.mean([b.max() - a.max() for a, b in sides])
    assert report["metrics"]["best_shift"] == pytest.approx(shift)

    with store.engine.begin() as connection:  # a recipe that does not make the stored rewards
        recipe = connection.execute(sa.select(t.run.c.recipe)).scalar_one()
        recipe["reward"]["members"][1]["weight"] = 0.5
        connection.execute(sa.update(t.run).values(recipe=recipe))
    counts = scored(store).report["training"]["counts"]
    assert counts["reward_unknown"] > 0 and counts["groups"] + counts["reward_unknown"] == len(sides)
    store.close()
