"""Leases: exactly one holder, fencing by epochs, deadlines of every state, commands, the reaper; on both databases."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from jurat.platform.db import tables as t
from jurat.platform.errors import ConfigError, FencedOut, RunFailed
from jurat.platform.recipe import Recipe
from jurat.platform.runs import events, ingest, leases
from jurat.platform.runs.heart import Heart
from jurat.platform.runs.ledger import RunLedger
from jurat.platform.runs.records import Beat, RunInfo
from jurat.platform.runs.states import ENDED, LEASED, LIMITS, MOVES, TERMINAL, Limits
from jurat.platform.runs.store import Store
from jurat.platform.types import CheckpointRef

SHORT = Limits(lease=0.05)


@pytest.fixture
def queue(store: Store, recipe: Recipe) -> Callable[..., RunInfo]:
    """Queues a run."""

    def make(**more: Any) -> RunInfo:
        return store.create_run(recipe=recipe, recipe_digest="", reward_digest="", meta={}, state="queued", **more)

    return make


def _lapse(store: Store, run: RunInfo) -> None:
    """As if its holder had been silent for an hour."""
    store.write(
        lambda c: c.execute(
            sa.update(t.run).where(t.run.c.pk == run.pk).values(lease_until=t.run.c.lease_until - 3_600_000_000)
        )
    )


def _late(store: Store, run: RunInfo) -> None:
    """As if its state had lasted until now."""
    store.write(lambda c: c.execute(sa.update(t.run).where(t.run.c.pk == run.pk).values(deadline=1)))


def test_every_state_that_is_not_over_ends_by_itself() -> None:
    for state in MOVES:
        limited = state in LEASED or LIMITS.of(state) is not None
        assert limited == (state not in ENDED), state
    assert {"finished", "cancelled"} == TERMINAL
    assert LIMITS.of("running", max_runtime=60.0) == 60.0
    assert [Limits(lost=5.0).of("lost", restarts=n) for n in (0, 1, 3)] == [5.0, 10.0, 40.0]


def test_a_claim_takes_the_first_of_the_highest_priority(store: Store, queue: Any) -> None:
    low, high, high2 = queue(), queue(priority=5), queue(priority=5)
    got = [store.write(lambda c, w=who: leases.claim(c, w)) for who in "abcd"]
    assert [lease and lease.run for lease in got] == [high.id, high2.id, low.id, None]
    assert [lease.epoch for lease in got if lease] == [1, 1, 1]
    found = store.run(high.id)
    assert (found.state, found.lease_owner, found.desired) == ("starting", "a", "run")
    assert found.deadline is not None and found.lease_until is not None
    assert events.broken(store.events(found)) == ""


def test_two_homes_on_one_database_keep_their_runs_apart(store: Store, recipe: Recipe, tmp_path: Path) -> None:
    other = Store(store.engine, tmp_path / "other")
    other.home.mkdir()
    make = lambda s: s.create_run(recipe=recipe, recipe_digest="", reward_digest="", meta={}, state="queued")
    mine, theirs, old = make(store), make(other), make(other)
    store.write(
        lambda c: c.execute(sa.update(t.run).where(t.run.c.pk == old.pk).values(meta={}))
    )  # of before there was this
    claim = lambda s: store.write(lambda c: leases.claim(c, "w", home=s.home_id, gpus=1))
    assert Store(store.engine, store.home).home_id == store.home_id != other.home_id
    got = [claim(each) for each in (other, store, store, other)]
    assert [lease and lease.run for lease in got] == [theirs.id, mine.id, old.id, None]
    with pytest.raises(RunFailed, match="in another home folder"):
        store.take(theirs, epoch=1)
    assert other.take(theirs, epoch=1).epoch == 1


def test_gpus_are_counted_from_the_recipes_of_live_leases(store: Store, recipe: Recipe) -> None:
    """What does not fit lets the next go first; a cluster's pools have their own."""

    def make(**engine: Any) -> RunInfo:
        asked = Recipe.model_validate({**recipe.model_dump(mode="json"), "engine": engine})
        return store.create_run(recipe=asked, recipe_digest="", reward_digest="", meta={}, state="queued")

    two, three, cpu, one = make(device="cuda", ranks=2), make(device="cuda", ranks=3), make(), make(device="cuda:1")
    pools = {"a": {"cpus": 1, "gpus": 3}, "b": {"cpus": 1, "gpus": 1}}
    cluster = make(home="ray", pools=pools, placement=dict.fromkeys(["learner", "critic", "reference"], "a") |
                   dict.fromkeys(["sampler", "judge"], "b"))  # fmt: skip
    claim = lambda gpus: store.write(lambda c: leases.claim(c, "w", gpus=gpus))
    assert [lease and lease.run for lease in (claim(3), claim(3), claim(3), claim(3))] == [two.id, cpu.id, one.id, None]
    assert store.read(leases.leased_gpus) == 3
    _lapse(store, two)
    assert [lease and lease.run for lease in (claim(4), claim(8))] == [three.id, cluster.id]
    assert store.read(leases.leased_gpus) == 1 + 3 + 4


def test_a_run_that_is_too_large_waits_for_another_service_and_hides_nobody(
    store: Store, recipe: Recipe, queue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_CANDIDATES", 2)
    asked = Recipe.model_validate({**recipe.model_dump(mode="json"), "engine": {"device": "cuda", "ranks": 8}})
    make = lambda: store.create_run(recipe=asked, recipe_digest="", reward_digest="", meta={}, state="queued")
    large = [make() for _ in range(5)]
    small = queue()
    claim = lambda gpus: store.write(lambda c: leases.claim(c, "w", gpus=gpus))
    assert [lease and lease.run for lease in (claim(4), claim(4), claim(0))] == [small.id, None, None]
    found = [store.run(run.id) for run in large]
    assert {(run.state, run.detail, run.version) for run in found} == {
        ("queued", "waits for a service that has 8 GPUs (jurat serve --gpus)", 2)  # said once
    }
    assert claim(8).run == large[0].id and store.run(large[0].id).detail == ""
    _late(store, large[1])
    store.write(lambda c: leases.reap(c))
    assert "it was queued, and waits for a service that has 8 GPUs" in store.run(large[1].id).detail


def test_a_run_that_takes_no_step_is_said_to_stall_once(store: Store, queue: Any) -> None:
    run, held = queue(), Limits(stalled=60.0)
    lease = store.take(run)
    said = lambda: store.write(lambda c: leases.alarm(c, limits=held))
    assert said() == [] and store.read(lambda c: leases.stalled(c, limits=held)) == 0
    past = t.run.c.started - 61_000_000
    store.write(lambda c: c.execute(sa.update(t.run).where(t.run.c.pk == run.pk).values(started=past)))
    assert [said(), said()] == [[run.id], []] and store.run(run.id).state == "running"
    assert store.read(lambda c: leases.stalled(c, limits=held)) == 1
    [event] = [event for event in store.events(run) if event.kind == "stalled"]
    assert event.payload["seconds"] == 60.0
    segment = store.start_segment(run, first_step=0, lease=lease)
    store.write(lambda c: ingest.insert_points(c, run.pk, [(segment.no, 0, event.at + 1, "x", 1.0)]))
    assert said() == [] and store.read(lambda c: leases.stalled(c, limits=held)) == 0


def test_slots_are_counted_from_live_leases(store: Store, queue: Any) -> None:
    runs = [queue() for _ in range(4)]
    claim = lambda: store.write(lambda c: leases.claim(c, "w", slots=2))
    assert [bool(claim()) for _ in range(3)] == [True, True, False]
    _lapse(store, runs[0])
    assert store.read(lambda c: leases.live(c)) == 1
    assert claim() is not None
    assert store.read(lambda c: [r.id for r in leases.held(c, store.runs_folder)]) == [r.id for r in runs[:3]]


def test_who_lost_the_lease_changes_nothing(store: Store, queue: Any, batch: Any, step_report: Any) -> None:
    run = queue(max_restarts=1)
    old = store.write(lambda c: leases.claim(c, "old"))
    assert old is not None
    taken = store.take(run, epoch=old.epoch)
    segment = store.start_segment(run, first_step=0, lease=taken)
    _lapse(store, run)
    assert store.write(lambda c: leases.reap(c)) == [(run.id, "running", "lost")]
    assert store.write(lambda c: leases.reap(c)) == [(run.id, "lost", "queued")]
    new = store.write(lambda c: leases.claim(c, "new"))
    assert new is not None and new.epoch > old.epoch
    assert (store.run(run.id).restarts, store.run(run.id).state) == (1, "starting")
    before = store.run(run.id)
    late: list[Callable[[], Any]] = [
        lambda: store.heartbeat(taken),
        lambda: store.end(taken, "finished"),
        lambda: store.check(taken),
        lambda: store.start_segment(run, first_step=0, lease=taken),
        lambda: store.take(run, epoch=taken.epoch),
        lambda: store.pin_reward(taken, rewards=["x"], verifiers={}),
    ]
    for write in late:
        with pytest.raises(FencedOut, match="was taken over: epoch 1 is over") as caught:
            write()
        assert caught.value.exit_code == 75
    ledger = RunLedger(store, run, "", segment, run.folder, lease=taken)
    ledger.record_batch(batch(0))
    ledger.record_step(step_report(0))
    ledger.record_checkpoint(CheckpointRef(path="x", digest="sha256:late", step=1))
    ledger.close()
    assert ledger.health().fenced > 3
    assert (store.metrics(run), store.parts(run), store.checkpoints(run, all_rows=True)) == ([], [], [])
    assert "epoch 1 is over" in (run.folder / "spool.rejected.jsonl").read_text()
    after = store.run(run.id)
    assert (after.state, after.version, after.lease_owner) == (before.state, before.version, "new")


def test_the_reaper_ends_every_state(store: Store, queue: Any, recipe: Recipe) -> None:
    def held(state: str, **more: Any) -> RunInfo:
        run = queue(**more)
        lease = store.write(lambda c: leases.claim(c, "w"))
        assert lease is not None
        if state != "starting":
            store.take(run, epoch=lease.epoch)
        for kind, to in (("pause", "pausing"), ("cancel", "cancelling")):
            if state == to:
                store.write(lambda c, k=kind: leases.command(c, run.pk, k))
        if state == "finishing":
            store.set_state(run, "finishing")
        assert store.run(run.id).state == state
        return run

    expected = {
        "starting": "lost",
        "running": "lost",
        "finishing": "lost",
        "pausing": "paused",
        "cancelling": "cancelled",
    }
    for state, to in expected.items():
        run = held(state)
        _lapse(store, run)
        assert store.write(lambda c: leases.reap(c)) == [(run.id, state, to)]
        found = store.run(run.id)
        assert (found.lease_owner, found.lease_epoch) == (None, 2)
        assert "no heartbeat from" in found.detail
        store.write(lambda c: leases.reap(c))  # what is lost and has no restarts left
    assert {run.state for run in store.runs()} == {"failed", "paused", "cancelled"}
    for state, to in {**expected, "running": "cancelling"}.items():  # the holder lives, and does not do what was asked
        run = held(state, **({"max_runtime": 5.0} if state == "running" else {}))
        _late(store, run)
        assert store.write(lambda c: leases.reap(c)) == [(run.id, state, to)]
        store.write(lambda c: leases.reap(c))
        if to == "cancelling":
            store.write(lambda c, r=run: leases.end(c, r.pk, "interrupted"))
            assert (store.run(run.id).state, store.run(run.id).exit_code) == ("cancelled", None)
    paused, created = store.runs(state="paused")[0], store.create_run(
        recipe=recipe, recipe_digest="", reward_digest="", meta={}
    )  # fmt: skip
    queued = queue()
    for run in (paused, created, queued):
        _late(store, run)
    assert {to for _, _, to in store.write(lambda c: leases.reap(c))} == {"failed"}
    for run in store.runs():
        assert events.broken(store.events(run)) == ""
        assert (run.ended is not None) == (run.state in ENDED)


def test_commands(store: Store, queue: Any) -> None:
    run = queue()
    ask = lambda kind: store.write(lambda c: leases.command(c, run.pk, kind, by="me"))
    with pytest.raises(RunFailed, match="is queued: it cannot pause now"):
        ask("pause")
    with pytest.raises(ConfigError, match="no command is called 'explode'"):
        ask("explode")
    lease = store.write(lambda c: leases.claim(c, "w"))
    assert lease is not None
    lease = store.take(run, epoch=lease.epoch)
    assert ask("checkpoint") == "running"
    assert [ask("pause"), ask("pause")] == ["pausing", "pausing"]
    beat = store.heartbeat(lease)
    assert (beat.desired, [c.kind for c in beat.commands]) == ("pause", ["checkpoint", "pause"])
    store.acknowledge(lease, beat.commands[0], "done")
    assert store.end(lease, "interrupted") == "paused"
    assert [c.result for c in store.read(lambda c: leases.commands(c, run.pk))] == ["done", "the run is paused"]
    assert store.run(run.id).ended is None
    assert ask("resume") == "queued"
    assert ask("resume") == "queued"
    assert ask("cancel") == "cancelled"
    with pytest.raises(RunFailed, match="is cancelled: it cannot resume now"):
        ask("resume")
    for state in ("running", "queued", "failed"):
        with pytest.raises(RunFailed):
            store.set_state(run, state)


def test_a_process_takes_its_own_run_again_but_not_one_of_another_machine(store: Store, new_run: Any) -> None:
    run = new_run()
    first = store.take(run)
    assert store.take(run).epoch == first.epoch + 1  # this machine's file lock says that the first is gone
    with pytest.raises(FencedOut):
        store.check(first)
    store.write(lambda c: c.execute(sa.update(t.run).where(t.run.c.pk == run.pk).values(lease_owner="elsewhere:1")))
    with pytest.raises(FencedOut, match="elsewhere:1 holds it"):
        store.take(run)
    _lapse(store, run)
    assert store.take(run).epoch == first.epoch + 2


def test_what_is_over_stays_over_whoever_asks(store: Store, new_run: Any) -> None:
    run = new_run()
    store.set_state(run, "finished")
    for change in (
        "UPDATE run SET state = 'running', ended = NULL",
        "DELETE FROM run_event",
        "UPDATE run_event SET at = 0",
    ):
        with pytest.raises(RunFailed, match="never changes"):
            store.write(lambda c, s=change: c.execute(sa.text(s)))
    with pytest.raises(sa.exc.IntegrityError), store.engine.begin() as connection:
        connection.execute(sa.text("UPDATE run SET ended = NULL"))


def test_a_heart_keeps_the_lease_and_hears(store: Store, new_run: Any) -> None:
    run = new_run()
    limits = Limits(lease=0.2)
    lease = store.take(run, limits=limits)
    heard: list[Beat] = []
    told = threading.Event()
    with Heart(store, lease, heard=heard.append, fenced=lambda _: told.set(), limits=limits) as heart:
        until = time.monotonic() + 30
        store.write(lambda c: leases.command(c, run.pk, "pause"))
        while not any(beat.desired == "pause" for beat in heard) and time.monotonic() < until:
            time.sleep(0.01)
        assert heard[-1].state == "pausing" and heard[-1].until > lease.until
        store.write(lambda c: leases.move(c, run.pk, "failed", "by hand"))
        assert told.wait(30)
        assert isinstance(heart.fenced, FencedOut)


def _work(store: Store, seed: int, until: float, done: list[str], stale: list[str]) -> None:
    """Claim and finish; die silently one time in ten, stand still past the lease one time in ten."""
    choose = random.Random(seed)
    while time.monotonic() < until:
        try:
            store.write(lambda c: leases.reap(c, limits=SHORT))
            lease = store.write(lambda c: leases.claim(c, f"w{seed}", limits=SHORT))
        except RunFailed:  # a file that others hold: tried again
            continue
        if lease is None:
            left = store.read(
                lambda c: c.execute(sa.select(t.run.c.pk).where(t.run.c.state != "finished").limit(1)).first()
            )
            if left is None:
                return
            time.sleep(0.01)
            continue
        fate = choose.random()
        if fate < 0.1:
            continue
        if fate < 0.2:
            time.sleep(0.12)
        try:
            store.write(lambda c, x=lease: leases.take(c, x.run_pk, x.owner, epoch=x.epoch, limits=SHORT))
            store.write(lambda c, x=lease: leases.end(c, x.run_pk, "finished", epoch=x.epoch))
            done.append(lease.run)
        except (FencedOut, RunFailed):
            stale.append(lease.run)


def _exactly_once(store: Store, recipe: Recipe, runs: int, workers: int, seconds: float) -> None:
    for _ in range(runs):
        store.create_run(recipe=recipe, recipe_digest="", reward_digest="", meta={}, state="queued", max_restarts=1000)
    done: list[str] = []
    stale: list[str] = []
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=_work, args=(store, n, until, done, stale)) for n in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == sorted(run.id for run in store.runs())  # each once, none twice
    assert {run.state for run in store.runs()} == {"finished"}
    starts = store.read(lambda c: c.execute(sa.select(t.run_event.c.run_pk, t.run_event.c.payload)).all())
    epochs = [(pk, payload["epoch"]) for pk, payload in starts if "epoch" in payload]
    assert len(epochs) == len(set(epochs)) >= runs


def test_claims_with_deaths_and_pauses_are_exactly_once(store: Store, recipe: Recipe) -> None:
    _exactly_once(store, recipe, runs=40, workers=4, seconds=60)


@pytest.mark.soak
def test_ten_thousand_claims_are_exactly_once(store: Store, recipe: Recipe) -> None:
    _exactly_once(store, recipe, runs=8500, workers=6, seconds=1200)


def test_the_state_of_a_stalled_run_is_seen(store: Store, new_run: Any) -> None:
    run = new_run()
    segment = store.start_segment(run, first_step=0)
    assert store.run(run.id).last_step_at is None
    store.write(lambda c: ingest.insert_points(c, run.pk, [(segment.no, 0, 77, "x", 1.0)]))
    assert store.run(run.id).last_step_at == 77
