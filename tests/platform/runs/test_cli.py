"""The command line over a recorded run: tables, JSON, hostile text made harmless, a run followed to its end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jurat.platform.db.tables import REVISIONS
from jurat.platform.provenance import seal
from jurat.platform.recipe import Recipe
from jurat.platform.runs import events
from jurat.platform.runs.ledger import RunLedger
from jurat.platform.runs.lock import exclusive
from jurat.platform.runs.records import RunInfo
from jurat.platform.runs.store import Store
from jurat.platform.types import Allocation, Batch, CheckpointRef, Group, Verdict, VerifierSpec, Visit

DIGEST = "sha256:" + "5c" * 32
OWNED = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def jurat(home: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    from jurat.api.cli import run

    def call(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run([*words, "--home", str(home)])
        said = capfd.readouterr()
        return code, said.out, said.err

    return call


@pytest.fixture
def finished(home: Path, batch: Any, step_report: Any, evaluation: Any, scored: Any) -> RunInfo:
    """A run of two steps; the second holds one hostile sample without a score and one that is worse than all."""
    store = Store.open(None, home)
    recipe = Recipe.model_validate({"name": "tiny", "model": "tiny-random", "data": {"train": {"source": "generated"}}})
    run = store.create_run(recipe=recipe, recipe_digest="sha256:aa", reward_digest="sha256:bb", meta={}, run_id="one")
    run = store.set_state(run, "running")
    segment = store.start_segment(run, first_step=0)
    ledger = RunLedger(store, run, "", segment, run.folder)
    ledger.record_evaluation(evaluation(0, accuracy=0.2))
    ledger.record_batch(batch(0))
    ledger.record_step(step_report(0))
    spec = VerifierSpec(name="math", digest=DIGEST)
    bad = scored(
        f"so 13\n  gold        13{OWNED}",
        index=0,
        step=1,
        reward=-1.0,
        verdict=Verdict.of("incorrect", read=f"13{OWNED}", why="rational_exact", verifier=spec),
    )
    slow = scored("x" * 5000, index=1, step=1, reward=None, verdict=Verdict.of("timeout", why="2 s", verifier=spec))
    visit = Visit(problem=bad.rollout.problem, visit=0, position=9)
    group = Group(visit=visit, scored=(bad, slow), allocation=Allocation(samples=2, reason="uniform"))
    ledger.record_batch(Batch(step=1, groups=(group,)))
    ledger.record_step(step_report(1, **{"reward/mean": 0.75}))
    ledger.record_evaluation(evaluation(2, accuracy=0.9))
    ledger.record_event("alarm", {"text": OWNED})
    ledger.record_checkpoint(CheckpointRef(path="checkpoints/2", digest="sha256:cc", step=2))
    ledger.close()
    store.end_segment(run, segment, "finished")
    run = store.set_state(run, "finished")
    store.close()
    return run


def _harmless(text: str) -> None:
    assert not [c for c in text if c != "\n" and (ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or c == "\u202e")]


def test_where_nothing_was_trained(jurat: Any, home: Path) -> None:
    assert jurat("runs", "ls") == (0, "", f"no runs in {home}: jurat train tiny makes one\n")
    assert json.loads(jurat("runs", "ls", "--json")[1]) == {"runs": []}
    code, _, err = jurat("runs", "show", "latest")
    assert (code, "there are no runs here" in err, "jurat train tiny" in err) == (2, True, True)
    assert not home.exists()  # looking makes nothing


def test_ls(jurat: Any, finished: RunInfo) -> None:
    code, out, _ = jurat("runs", "ls")
    assert code == 0
    head, line = out.splitlines()
    assert head.split()[:6] == ["RUN", "RECIPE", "STATE", "STAGE", "STEP", "REWARD"]
    assert line.split()[:5] == ["one", "tiny", "finished", "2", "0.750"]
    (row,) = json.loads(jurat("runs", "ls", "--json")[1])["runs"]
    assert (row["run"], row["step"], row["reward"]) == ("one", 2, 0.75)
    assert jurat("runs", "ls", "--state", "failed")[0] == 0
    code, _, err = jurat("runs", "ls", "--state", "finishd")
    assert (code, "Did you mean 'finished'?" in err) == (2, True)


def test_a_label_is_no_reward(jurat: Any, home: Path, step_report: Any) -> None:
    """A stage that learns from given answers shows none, though their labels are recorded."""
    store = Store.open(None, home)
    stages = [{"name": "a", "steps": 1, "algorithm": "dpo"}, {"name": "b", "steps": 1}]
    recipe = Recipe.model_validate(
        {"model": "m", "data": {"train": {"source": "generated"}}, "algorithm": "sft", "stages": stages}
    )
    for name, algorithm in (("one", "sft"), ("two", "grpo")):
        changed = Recipe.model_validate(recipe.model_dump() | {"algorithm": algorithm, "stages": []})
        run = store.create_run(recipe=changed, recipe_digest="", reward_digest="", meta={}, run_id=name)
        with closing(RunLedger(store, run, "", store.start_segment(run, first_step=0), run.folder)) as ledger:
            ledger.record_step(step_report(0))
    run = store.create_run(recipe=recipe, recipe_digest="", reward_digest="", meta={}, run_id="three")
    with closing(RunLedger(store, run, "a", store.start_segment(run, stage="a", first_step=0), run.folder)) as ledger:
        ledger.record_step(step_report(0))
    store.close()
    rows = json.loads(jurat("runs", "ls", "--json")[1])["runs"]
    rewards = {row["run"]: row["reward"] for row in rows}
    assert rewards["one"] is None and rewards["three"] is None and rewards["two"] is not None
    assert " - " in next(line for line in jurat("runs", "ls")[1].splitlines() if line.startswith("one"))


def test_show(jurat: Any, finished: RunInfo) -> None:
    code, out, _ = jurat("runs", "show", "one")
    assert code == 0
    _harmless(out)
    for part in (
        "state             finished",
        "tiny  sha256:aa",
        "sha256:bb",
        DIGEST,
        "1 incorrect, 1 timeout",
        "last step: 2",
        "reward/mean",
        "0.75",
        "held_out: 300 problems",
        "before",
        "after",
        "checkpoints/2",
        "segments",
        "\\x1b]0;owned",
        "jurat rollouts one --worst 10",
    ):
        assert part in out, part
    told = json.loads(jurat("runs", "show", "latest", "--json")[1])
    assert (told["state"], told["recipe_digest"], told["reward_digest"]) == ("finished", "sha256:aa", "sha256:bb")
    assert {v["digest"]: v["statuses"] for v in told["verifiers"]}[DIGEST] == {"incorrect": 1, "timeout": 1}
    assert told["metrics"]["reward/mean"] == 0.75
    assert [e["accuracy"]["value"] for e in told["evaluations"]] == [0.2, 0.9]
    assert [c["digest"] for c in told["checkpoints"]] == ["sha256:cc"]
    assert [(s["first_step"], told["step"]) for s in told["segments"]] == [(1, 2)]
    code, _, err = jurat("runs", "show", "on")
    assert code == 0
    code, _, err = jurat("runs", "show", "two")
    assert (code, "no run 'two'" in err, "jurat runs ls lists them" in err) == (2, True, True)


def test_rollouts_worst_first(jurat: Any, finished: RunInfo) -> None:
    code, out, _ = jurat("rollouts", "one", "--worst", "1")
    assert code == 0
    _harmless(out)
    lines = out.splitlines()
    assert lines[0] == "#1  reward -1  step 2  problem p0  visit 0  sample 0, 4 tokens"
    assert lines[1] == "  problem     What is 7 + 5? (p0)"
    assert lines[2] == "  gold        12"
    assert lines[3] == "  completion  so 13"
    assert lines[4].startswith("                gold        13\\x1b]0;owned")  # set in: it cannot pass for a label
    assert lines[5].startswith("  read        13\\x1b]0;owned\\x07\\x1b[2J")
    assert lines[6] == "  verdict     problem: incorrect 0, by rational_exact"
    assert lines[7].strip() == f"math {DIGEST}"
    assert lines[-1] == "1 of 8 rollouts of run one"


def test_rollouts_filters_and_json(jurat: Any, finished: RunInfo) -> None:
    told = json.loads(jurat("rollouts", "one", "--status", "timeout", "--json")[1])
    assert told["matched"] == 1
    (row,) = told["rollouts"]
    assert (row["reward"]["value"], row["verdicts"]["problem"]["fault"], len(row["text"])) == (None, "verifier", 5000)
    assert row["verdicts"]["problem"]["verifier"]["digest"] == DIGEST
    out = jurat("rollouts", "one", "--status", "timeout")[1]
    assert "reward excluded" in out
    assert "(3500 more characters: --full)" in out
    assert "(fault: verifier)" in out
    assert "x" * 5000 in jurat("rollouts", "one", "--status", "timeout", "--full")[1]
    assert "3 of 6" in jurat("rollouts", "one", "--step", "1", "--limit", "3")[1]
    told = json.loads(jurat("rollouts", "one", "--step", "2", "--json")[1])
    assert (told["matched"], {row["step"] for row in told["rollouts"]}) == (2, {2})
    code, _, err = jurat("rollouts", "one", "--step", "0")
    assert (code, "--step" in err) == (2, True)
    assert json.loads(jurat("rollouts", "one", "--problem", "p1", "--json")[1])["matched"] == 3
    assert jurat("rollouts", "one", "--step", "7")[2] == "no such rollouts in run one\n"
    code, _, err = jurat("rollouts", "one", "--status", "incorect")
    assert (code, "Did you mean 'incorrect'?" in err) == (2, True)


def test_verify_names_the_damaged_part(jurat: Any, finished: RunInfo) -> None:
    assert jurat("runs", "verify", "one")[:2] == (0, "3 events, 12 points, 2 parts, 0 checkpoints: as recorded\n")
    path = finished.folder / "rollouts/main/step-000001-seg0.parquet"
    data = path.read_bytes()
    path.write_bytes(data[:100] + bytes([data[100] ^ 4]) + data[101:])
    code, out, _ = jurat("runs", "verify", "one")
    assert code == 1
    assert out.startswith("rollouts/main/step-000001-seg0.parquet: its digest is sha256:")
    code, _, err = jurat("rollouts", "one", "--worst", "3")
    assert code == 0
    assert "step-000001-seg0.parquet: not readable as Parquet" in err


def test_a_run_killed_before_its_seal_is_sealed_later(
    jurat: Any, home: Path, finished: RunInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "lacks no seal" in jurat("runs", "seal", "one")[2]  # none was announced
    with closing(Store.open(None, home)) as store:
        store.add_event(finished, events.SEALING, {})
    assert jurat("runs", "verify", "one")[0] == 0  # its process is at it
    monkeypatch.setattr(seal, "SOON", 0)
    code, out, _ = jurat("runs", "verify", "one")
    assert (code, "jurat runs seal mends it" in out) == (1, True)
    part = finished.folder / "rollouts/main/step-000001-seg0.parquet"
    data = part.read_bytes()
    part.write_bytes(data[:-1])
    code, out, _ = jurat("runs", "seal", "one")
    assert (code, out.splitlines()[-1]) == (1, "one: not sealed") and "its digest is" in out  # nothing false is sealed
    part.write_bytes(data)
    assert jurat("runs", "seal", "one")[:2] == (0, "one: sealed\n")
    assert jurat("runs", "verify", "one")[0] == 0 and jurat("runs", "seal", "one")[0] == 2
    assert jurat("runs", "verify", str(finished.folder))[0] == 0  # its copy opens now


def test_a_killed_run_is_called_so(jurat: Any, home: Path, finished: RunInfo) -> None:
    store = Store.open(None, home)
    recipe = Recipe.model_validate(finished.recipe)
    run = store.create_run(recipe=recipe, recipe_digest="", reward_digest="", meta={}, run_id="two")
    store.set_state(run, "running")
    with exclusive(run.folder):
        assert json.loads(jurat("runs", "show", "two", "--json")[1])["state"] == "running"
    assert json.loads(jurat("runs", "show", "two", "--json")[1])["state"] == "killed"
    assert "run two is killed" in jurat("runs", "watch", "two")[2]
    store.close()


def test_watch_replays_a_finished_run(jurat: Any, finished: RunInfo) -> None:
    code, _, err = jurat("runs", "watch", "one")
    assert code == 0
    _harmless(err)
    assert "grpo 2/100  reward 0.750" in err
    assert "held_out at step 2" in err
    assert err.splitlines()[-1] == "run one is finished"
    code, out, _ = jurat("runs", "watch", "one", "--json")
    told = [json.loads(line) for line in out.splitlines()]
    assert [t["step"] for t in told if "step" in t and "metrics" in t] == [1, 2]
    assert told[-1] == {"run": "one", "state": "finished", "detail": ""}


def test_watch_follows_a_live_run(home: Path, finished: RunInfo, step_report: Any) -> None:
    store = Store.open(None, home)
    recipe = Recipe.model_validate(finished.recipe)
    run = store.create_run(recipe=recipe, recipe_digest="", reward_digest="", meta={}, run_id="two")
    run = store.set_state(run, "running")
    code = "from jurat.api.cli import main; import sys; sys.argv[0] = 'jurat'; main()"
    words = ["runs", "watch", "two", "--interval", "0.05", "--home", str(home)]
    with exclusive(run.folder):
        ledger = RunLedger(store, run, "", store.start_segment(run, first_step=0), run.folder)
        ledger.record_step(step_report(0))
        ledger.flush_now()
        watcher = subprocess.Popen([sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True)
        assert watcher.stderr is not None
        lines = [watcher.stderr.readline(), watcher.stderr.readline()]
        ledger.record_step(step_report(1))
        ledger.flush_now()
        lines.append(watcher.stderr.readline())  # while it runs
        ledger.close()
        store.set_state(run, "paused")
        assert watcher.stderr.readline() == (
            "run two is paused: jurat train --resume two   begins again: it has no checkpoint yet\n"
        )
        store.set_state(run, "running")
        store.set_state(run, "failed", "out of memory")
    rest = watcher.communicate(timeout=120)[1]
    assert "run two: tiny: grpo on tiny-random" in lines[0]
    assert [line.split("  ")[0] for line in lines[1:]] == ["grpo 1/100", "grpo 2/100"]
    assert rest.splitlines()[0] == "run two is failed: out of memory"
    assert rest.splitlines()[1].startswith("jurat train --resume two ")
    assert watcher.returncode == 1
    store.close()


def test_db_upgrade(jurat: Any, home: Path) -> None:
    code, out, _ = jurat("db", "upgrade")
    assert (code, out) == (0, f"sqlite:///{home}/jurat.db: schema none -> {REVISIONS[-1]}\n")
    assert jurat("db", "upgrade")[1] == f"sqlite:///{home}/jurat.db has schema {REVISIONS[-1]}, the newest\n"
    told = json.loads(jurat("db", "upgrade", "--json")[1])
    assert (told["before"], told["now"]) == (REVISIONS[-1],) * 2


def test_show_says_what_was_deleted_and_how_the_recipe_was_filled(jurat: Any, home: Path, finished: RunInfo) -> None:
    store = Store.open(None, home)
    stages = [{"name": "a", "steps": 3, "algorithm": {"name": "dpo", "beta": 0.3}}, {"name": "b", "steps": 1}]
    recipe = Recipe.model_validate({
        "model": "m", "data": {"train": {"source": "generated"}}, "steps": 7, "stages": stages,
        "tracking": {"database": "postgresql://me:secret@there/runs"},
    })  # fmt: skip
    run = store.create_run(recipe=recipe, recipe_digest="", reward_digest="", meta={}, run_id="two")
    segment = store.start_segment(run, stage="a", first_step=0)
    there = run.folder / "checkpoints" / "a" / "step-000002"
    there.mkdir(parents=True)
    for step, folder in ((1, there.with_name("step-000001")), (2, there)):
        store.add_checkpoint(run, segment, CheckpointRef(path=str(folder), digest=f"sha256:{step}", step=step))
    store.close()
    out = jurat("runs", "show", "two")[1]
    assert "step-000001 (deleted)\n" in out and "step-000002\n" in out
    assert "3 steps: {name: dpo, " in out
    shown = json.loads(jurat("runs", "show", "two", "--json")[1])
    assert [c["there"] for c in shown["checkpoints"]] == [False, True]
    assert [(a["stage"], a["steps"], a["algorithm"]["name"]) for a in shown["algorithms"]] == [
        ("a", 3, "dpo"), ("b", 1, "grpo"),
    ]  # fmt: skip
    assert shown["algorithms"][0]["algorithm"]["beta"] == 0.3
    filled = shown["filled"]
    assert filled["stages"][0]["algorithm"]["beta"] == 0.3
    assert filled["tracking"]["database"] == "postgresql://me:***@there/runs"


def test_the_worst_are_those_that_a_policy_wrote(jurat: Any, home: Path, finished: RunInfo, scored: Any) -> None:
    """A rejected completion of a pair has reward 0 and no verdict: it stands last, and is marked."""
    store = Store.open(None, home)
    run = store.run("one")
    told = scored("rejected by hand", index=0, step=2, reward=-9.0)
    visit = Visit(problem=told.rollout.problem, visit=0, position=0)
    group = Group(visit=visit, scored=(told,), allocation=Allocation(samples=1, reason="given"))
    segment = store.start_segment(run, stage="dpo", stage_index=1, first_step=2)
    with closing(RunLedger(store, run, "dpo", segment, run.folder)) as ledger:
        ledger.record_batch(Batch(step=2, groups=(group,)))
    store.close()
    first = json.loads(jurat("rollouts", "one", "--worst", "1", "--json")[1])["rollouts"]
    assert first[0]["reward"]["value"] == -1.0
    *_, last = json.loads(jurat("rollouts", "one", "--worst", "99", "--json")[1])["rollouts"]
    assert (last["reward"]["value"], last["allocation"]["reason"]) == (-9.0, "given")
    assert "  given, " in jurat("rollouts", "one", "--stage", "dpo")[1]
