"""Runs, their states, segments and facts; canonical rows after a resume; the lock of a run's folder."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jurat.platform.errors import ConfigError, FencedOut, RunFailed
from jurat.platform.recipe import Recipe
from jurat.platform.runs import states
from jurat.platform.runs.lock import exclusive, holder
from jurat.platform.runs.repository import evaluation_from_json, evaluation_to_json
from jurat.platform.runs.store import Store
from jurat.platform.types import CheckpointRef


def test_a_run_is_found_by_id_prefix_and_latest(store: Store, recipe: Recipe) -> None:
    made = [
        store.create_run(recipe=recipe, recipe_digest="sha256:a", reward_digest="sha256:b", meta={"n": n})
        for n in range(3)
    ]
    assert len({run.id for run in made}) == 3
    assert made[0].folder == store.home / "runs" / made[0].id
    assert made[0].folder.is_dir()
    assert store.run("latest").id == made[2].id
    assert store.run(made[1].id).meta == {"n": 1, "home": store.home_id}
    assert Recipe.model_validate(made[0].recipe) == recipe
    assert [run.id for run in store.runs(limit=2)] == [made[2].id, made[1].id]
    assert [run.state for run in store.runs(state="created")] == ["created"] * 3
    with pytest.raises(ConfigError, match="3 runs begin with 'r-'"):
        store.run("r-")
    with pytest.raises(ConfigError, match=f"no run '{made[0].id}x'.*Did you mean 'r-"):
        store.run(made[0].id + "x")
    for hostile in ("", "%", "_", "'; DROP TABLE run; --", "r\x00"[:1] + "%"):
        with pytest.raises(ConfigError):
            store.run(hostile)


def test_a_run_may_be_named(store: Store, recipe: Recipe) -> None:
    def make(name: str) -> Any:
        return store.create_run(recipe=recipe, recipe_digest="", reward_digest="", meta={}, run_id=name)

    assert make("first.try-1").id == "first.try-1"
    with pytest.raises(ConfigError, match=r"there is a run 'first\.try-1' already"):
        make("first.try-1")
    for bad in ("latest", "../x", ".hidden", "a/b", "a\x00", "", "x" * 65, "a b"):
        with pytest.raises(ConfigError, match="cannot name a run"):
            make(bad)


def test_a_home_without_runs(store: Store) -> None:
    assert store.runs() == []
    with pytest.raises(ConfigError, match="no runs yet"):
        store.run("latest")


def test_states_move_as_the_table_says(store: Store, recipe: Recipe) -> None:
    assert states.MOVES["finished"] == frozenset()
    assert states.sources("finished") == {"running", "pausing", "cancelling", "finishing"}
    run = store.create_run(recipe=recipe, recipe_digest="", reward_digest="", meta={})
    with pytest.raises(RunFailed, match=f"run {run.id} is created: it cannot become finished"):
        store.set_state(run, "finished")
    run = store.set_state(run, "running")
    started = run.started
    assert started is not None
    assert run.ended is None
    run = store.set_state(run, "failed", "out of memory\x00")
    assert (run.detail, run.ended is not None) == ("out of memory\\x00", True)
    run = store.set_state(run, "running")
    assert (run.started, run.ended) == (started, None)
    run = store.set_state(run, "running")  # taken over after a kill
    run = store.set_state(run, "finished")
    for state in ("running", "failed", "created", "paused", "interrupted"):
        with pytest.raises(RunFailed, match="is finished"):
            store.set_state(run, state)
    told = [(e.payload["from"], e.payload["to"]) for e in store.events(run)]
    assert told == [
        ("created", "running"),
        ("running", "failed"),
        ("failed", "running"),
        ("running", "running"),
        ("running", "finished"),
    ]
    assert [e.seq for e in store.events(run)] == [1, 2, 3, 4, 5]
    assert [e.seq for e in store.events(run, after=2, limit=2)] == [3, 4]


def _values(store: Store, run: Any, name: str = "x") -> list[tuple[str, int, float]]:
    return [(p.stage, p.step, p.value) for p in store.metrics(run, names=[name])]


def test_a_step_belongs_to_the_newest_segment_that_began_at_or_before_it(store: Store, new_run: Any) -> None:
    run = new_run()
    sft = store.start_segment(run, stage="sft", first_step=0)
    store.add_metrics(run, sft, 0, {"x": 100.0})
    first = store.start_segment(run, stage="grpo", stage_index=1, first_step=0)
    for step in range(6):
        store.add_metrics(run, first, step, {"x": step})
    second = store.start_segment(run, stage="grpo", stage_index=1, first_step=4)
    assert _values(store, run) == [
        ("sft", 0, 100.0),
        ("grpo", 0, 0.0),
        ("grpo", 1, 1.0),
        ("grpo", 2, 2.0),
        ("grpo", 3, 3.0),
    ]
    store.add_metrics(run, second, 4, {"x": 44.0})
    third = store.start_segment(run, stage="grpo", stage_index=1, first_step=2)
    store.add_metrics(run, third, 2, {"x": 222.0})
    assert _values(store, run)[-2:] == [("grpo", 1, 1.0), ("grpo", 2, 222.0)]
    again = store.start_segment(run, stage="sft", first_step=0)  # began anew: nothing of before counts
    assert _values(store, run) == []
    store.add_metrics(run, again, 0, {"x": 7.0})
    store.add_metrics(run, first, 5, {"x": 9.0})  # rows never change
    assert _values(store, run) == [("sft", 0, 7.0)]
    assert [s.no for s in store.segments(run)] == [0, 1, 2, 3, 4]


def test_versions_belong_to_the_step_that_made_them(store: Store, new_run: Any, evaluation: Any) -> None:
    run = new_run()
    first = store.start_segment(run, first_step=0)
    for version in (0, 2, 4):
        store.add_evaluation(run, first, evaluation(version, accuracy=0.1 * version))
        store.add_checkpoint(run, first, CheckpointRef(path=f"c{version}", digest=f"d{version}", step=version))
    second = store.start_segment(run, first_step=2)  # resumed from version 2, which the first segment made
    assert [m.result.step for m in store.evaluations(run)] == [0, 2]
    assert [c.ref.path for c in store.checkpoints(run)] == ["c0", "c2"]
    store.add_evaluation(run, second, evaluation(2, accuracy=0.7))
    store.add_evaluation(run, second, evaluation(4, accuracy=0.9))
    store.add_checkpoint(run, second, CheckpointRef(path="new", digest="d4", step=4, parent="d2", meta={"rng": [1, 2]}))
    found = [(m.result.step, m.result.accuracy.value, m.segment) for m in store.evaluations(run)]
    assert found == [(0, 0.0, 0), (2, 0.7, 1), (4, 0.9, 1)]
    newest = store.checkpoints(run)[-1]
    assert (newest.ref.path, newest.ref.parent, newest.ref.meta) == ("new", "d2", {"rng": [1, 2]})
    assert len(store.checkpoints(run, all_rows=True)) == 4


def test_numbers_come_back_as_they_were(store: Store, new_run: Any) -> None:
    run = new_run()
    segment = store.start_segment(run, first_step=0)
    given = {"nan": math.nan, "inf": math.inf, "tiny": 5e-324, "third": 1 / 3, "name\x00\ud800 ünï": 1.0}
    store.add_metrics(run, segment, 3, given)
    store.add_metrics(run, segment, 3, {"third": 99.0})  # a fact is written once
    found = {p.name: p.value for p in store.last_metrics(run)}
    assert math.isnan(found.pop("nan"))
    assert found == {"inf": math.inf, "tiny": 5e-324, "third": 1 / 3, "name\\x00\\ud800 ünï": 1.0}


def test_losses_come_back_and_older_records_have_none(store: Store, new_run: Any, evaluation: Any) -> None:
    run = new_run()
    segment = store.start_segment(run, first_step=0)
    absent = dict.fromkeys(
        ("accuracy", "answer_rate", "accuracy_given_answer", "mean_tokens", "truncated", "undecided")
    )
    given = replace(evaluation(1), **absent, samples=0, pass_at={}, final=True, losses={"dpo": 0.5, "kto": math.inf})
    store.add_evaluation(run, segment, given)
    (found,) = [m.result for m in store.evaluations(run)]
    assert (found.accuracy, found.final, dict(found.losses)) == (None, True, {"dpo": 0.5, "kto": math.inf})
    old = evaluation_to_json(evaluation(0))
    del old["final"], old["losses"]
    assert (evaluation_from_json(old).final, evaluation_from_json(old).losses) == (True, {})
    assert not evaluation_from_json({**old, "greedy": None}).final


def test_an_evaluation_comes_back_whole(store: Store, new_run: Any, evaluation: Any) -> None:
    run = new_run()
    segment = store.start_segment(run, first_step=0)
    given = evaluation(0, accuracy=math.nan)
    store.add_evaluation(run, segment, given)
    store.add_evaluation(run, segment, given)
    (found,) = (m.result for m in store.evaluations(run))
    assert math.isnan(found.accuracy.value)
    assert set(found.pass_at) == {1, 4}
    assert (found.name, found.problems, found.mean_tokens) == ("held_out", 300, 7.5)
    assert found.greedy is not None
    store.add_evaluation(run, segment, evaluation(1))
    assert store.evaluations(run)[-1].result.greedy is None


def test_segments_end_once(store: Store, new_run: Any) -> None:
    run = new_run()
    segment = store.start_segment(run, stage="a", first_step=3, versions={"jurat": "0.1"})
    assert (segment.pid, segment.reward_digest, segment.ended) == (os.getpid(), "sha256:bb", None)
    store.end_segment(run, segment, "interrupted")
    store.end_segment(run, segment, "finished")
    (found,) = store.segments(run)
    assert (found.ending, found.versions, found.first_step) == ("interrupted", {"jurat": "0.1"}, 3)


def test_events_of_several_writers_are_numbered_without_gaps(store: Store, new_run: Any) -> None:
    run = new_run()
    threads = [
        threading.Thread(target=lambda who=who: [store.add_event(run, "note", {"who": who, "n": n}) for n in range(10)])
        for who in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = store.events(run)
    assert [event.seq for event in found] == list(range(1, 42))
    assert {(e.payload["who"], e.payload["n"]) for e in found[1:]} == {(w, n) for w in range(4) for n in range(10)}


def test_two_processes_of_one_home_see_one_another(tmp_path: Path, recipe: Recipe) -> None:
    one, two = Store.open(None, tmp_path), Store.open(None, tmp_path)
    run = one.create_run(recipe=recipe, recipe_digest="", reward_digest="", meta={})
    assert two.run("latest").id == run.id
    one.close()
    two.close()


def test_a_locked_database_is_told(tmp_path: Path, recipe: Recipe) -> None:
    import sqlite3

    store = Store.open(None, tmp_path, busy_seconds=0.1)
    with sqlite3.connect(tmp_path / "jurat.db", isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(RunFailed, match="the database does not answer: database is locked"):
            store.create_run(recipe=recipe, recipe_digest="", reward_digest="", meta={})
        assert store.runs() == []  # readers do not wait
    store.close()


# ---- the lock ----------------------------------------------------------------------------------------------------

_HOLD = """
import os, sys, time
from pathlib import Path
from jurat.platform.runs.lock import exclusive
with exclusive(Path(sys.argv[1])):
    child = os.fork() if sys.argv[2] == "fork" else 1
    if child:
        print("held", child, flush=True)
    time.sleep(60)
"""


def _holding(folder: Path, how: str = "plain") -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen([sys.executable, "-c", _HOLD, str(folder), how], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    held, child = process.stdout.readline().split()
    assert held == "held"
    return process, int(child)


def test_a_second_process_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    process, _ = _holding(tmp_path)
    try:
        with pytest.raises(FencedOut, match=f"is held by process {process.pid} on ") as caught, exclusive(tmp_path):
            pass
        assert caught.value.exit_code == 75
        assert f"kill -INT {process.pid}" in caught.value.fix
        by = holder(tmp_path)
        assert by is not None
        assert by.pid == process.pid
        process.send_signal(signal.SIGSTOP)  # stopped is not dead
        with pytest.raises(FencedOut), exclusive(tmp_path):
            pass
    finally:
        process.kill()
        process.wait()
    with exclusive(tmp_path) as mine:
        assert mine.pid == os.getpid()


def test_a_child_of_a_dead_holder_does_not_keep_the_run(tmp_path: Path) -> None:
    process, child = _holding(tmp_path, "fork")
    process.kill()
    process.wait()
    try:
        os.kill(child, 0)  # it lives on
        with exclusive(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)


def test_one_process_cannot_take_a_run_twice_and_looking_does_not_drop_it(tmp_path: Path) -> None:
    assert holder(tmp_path) is None
    with exclusive(tmp_path):
        by = holder(tmp_path)
        assert by is not None
        with pytest.raises(FencedOut, match=f"process {os.getpid()}"), exclusive(tmp_path):
            pass
        probe = (
            "import sys; from pathlib import Path; from jurat.platform.runs.lock import holder; "
            "print(holder(Path(sys.argv[1])).pid)"
        )
        done = subprocess.run([sys.executable, "-c", probe, str(tmp_path)], capture_output=True, text=True, check=True)
        assert int(done.stdout) == os.getpid()
    assert holder(tmp_path) is None


def test_looking_never_keeps_a_trainer_out(tmp_path: Path) -> None:
    probe = (
        "import sys; from pathlib import Path; from jurat.platform.runs.lock import holder\n"
        "print('looking', flush=True)\n"
        "while True: holder(Path(sys.argv[1]))"
    )
    (tmp_path / "lock").touch()
    process = subprocess.Popen([sys.executable, "-c", probe, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "looking\n"
        for _ in range(20):
            with exclusive(tmp_path):
                pass
    finally:
        process.kill()
        process.wait()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="cannot lock the run"), exclusive(tmp_path / "absent"):
        pass


def test_a_holder_file_that_is_garbage_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "holder.json").write_text("{not json")
    (tmp_path / "lock").write_bytes(b"\x00garbage")
    with exclusive(tmp_path):
        pass
