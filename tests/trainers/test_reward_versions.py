"""A run is held to the reward it began with, does what it is asked, and stops when another process has it."""

import dataclasses
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from jurat.api.cli import app
from jurat.platform.config import validate
from jurat.platform.db import tables as t
from jurat.platform.errors import ConfigError, FencedOut, RewardDrift
from jurat.platform.provenance import bundle, lineage, versions
from jurat.platform.provenance.edges import segment_node
from jurat.platform.provenance.verify import verify
from jurat.platform.runs import leases
from jurat.platform.runs.states import Limits
from jurat.platform.runs.store import Store
from jurat.trainers import doubts, launch
from jurat.trainers.prepare import prepare
from screens import Screen

RECIPE = {
    "model": "tiny-random",
    "data": {"train": {"source": "generated:plain", "levels": [1], "size": 20}},
    "sampling": {"max_new_tokens": 4},
    "engine": {"dtype": "float32", "threads": 1},
    "verifiers": ["rules.py"],
    "reward": {"members": [{"use": "mine"}]},
    "steps": 6,
    "prompts_per_step": 2,
    "allocation": {"samples_per_prompt": 2},
}
RULE = (
    "import os\nimport jurat\n\n@jurat.verifier('mine', version='1')\ndef mine(problem, completion):\n    return {}\n"
)
QUICK = Limits(lease=0.2)
"""A heartbeat each 50 ms."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "rules.py").write_text(RULE.format("len(completion) > 2"))
    return tmp_path


def _queued(home: Path) -> Store:
    """A store with run ``r`` as a service makes it: queued, its reward not known yet."""
    store = Store.open(None, home)
    recipe = validate(RECIPE, where="test")
    store.create_run(
        recipe=recipe, recipe_digest="", reward_digest="", meta={"base": str(home)}, run_id="r", state="queued"
    )
    return store


def _asks(store: Store, kind: str):
    """Asks, and waits until two more heartbeats heard of it."""

    def ask() -> None:
        run = store.run("r")
        store.write(lambda c: leases.command(c, run.pk, kind))
        for _ in range(2):
            before = store.run("r").heartbeat_at
            while store.run("r").heartbeat_at == before:
                time.sleep(0.01)

    return ask


def _resume(home: Path, screen: Screen | None = None, **more):
    return launch.train(None, home=home, base=home, reporter=screen or Screen(), resume="r", limits=QUICK, **more)


def test_a_launched_run_is_paused_and_held_to_its_reward(home):
    store = _queued(home)
    claimed = store.write(lambda c: leases.claim(c, "launcher"))
    screen = Screen(after={2: _asks(store, "checkpoint"), 4: _asks(store, "pause")})
    outcome = _resume(home, screen, epoch=claimed.epoch)
    run = store.run("r")
    assert (outcome.state, run.state, run.ended, run.lease_owner) == ("interrupted", "paused", None, None)
    assert [len(screen.steps), outcome.step] == [4, 4]
    assert run.meta["rewards"] == [run.reward_digest] and set(run.meta["verifiers"]) == {"mine"}
    asked = store.read(lambda c: leases.commands(c, run.pk))
    saved = {each.ref.step: each.ref.digest for each in store.checkpoints(run)}
    assert set(saved) == {2, 4}
    assert [each.result for each in asked] == [f"checkpoint {saved[2]} at step 2", "the run is paused"]
    assert store.segments(run)[0].epoch == claimed.epoch

    (home / "rules.py").write_text(RULE.format("len(completion) > 3"))
    with pytest.raises(RewardDrift, match="the reward of run r has changed") as caught:
        _resume(home)
    assert caught.value.exit_code == 4
    assert (
        "-    return len(completion) > 2" in caught.value.what
        and "+    return len(completion) > 3" in caught.value.what
    )
    assert store.run("r").state == "paused" and len(store.segments(run)) == 1

    assert _resume(home, accept_reward_change=True).state == "finished"
    run = store.run("r")
    told = next(event for event in store.events(run) if event.kind == "reward_change_accepted")
    assert (
        told.payload["now"] == run.meta["rewards"] and "+    return len(completion) > 3" in told.payload["difference"]
    )
    rewards = [segment.reward_digest for segment in store.segments(run)]
    assert len(set(rewards)) == 2 and rewards == [told.payload["before"][0], told.payload["now"][0]]
    old, new = store.read(lambda c: versions.versions(c, "mine"))[::-1]
    assert (old.names, new.names) == (("mine@1",), ("mine@2",))
    last = store.checkpoints(run)[-1].ref
    found = store.read(lambda c: lineage.walk(c, [segment_node("r", 1)], "back"))
    assert {n.id for n in found.nodes if n.kind == "verifier_version"} == {old.digest, new.digest}
    assert store.read(lambda c: lineage.resolve(c, last.path)).id == last.digest
    assert verify(store, run).faults == ()
    copy, kept = bundle.open_copy(run.folder)
    assert dataclasses.asdict(verify(copy, kept)) == dataclasses.asdict(verify(store, run))
    store.write(lambda c: versions.set_status(c, "mine@2", "quarantined", "counts characters"))
    with pytest.raises(ConfigError, match="mine@2 is quarantined: counts characters"):
        launch.refuse_quarantined(store, [new.digest])
    copy.close()
    store.close()


def test_equal_code_that_reads_something_else_is_drift(home, monkeypatch):
    """No reading of the code sees an environment variable; the canary cases do."""
    (home / "rules.py").write_text(RULE.format("len(completion) > int(os.environ.get('LEAST', 2))"))
    store = _queued(home)
    assert _resume(home, Screen(stop=2)).state == "interrupted"
    monkeypatch.setenv("LEAST", "5")
    with pytest.raises(
        RewardDrift, match=r"case 000: incorrect 0 before, .* now|case \d+: correct 1 before, incorrect 0 now"
    ):
        _resume(home)
    monkeypatch.delenv("LEAST")
    assert _resume(home).state == "finished"
    store.close()


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        ("len(completion) > int(os.environ.get('LEAST', 2))", "canary_drift"),
        ("problem.source == 'canary' or len(completion) > 9 * int(os.environ.get('LEAST', 0))", "nondeterministic"),
        pytest.param("__import__('random').random() > 0.5", "nondeterministic", marks=pytest.mark.soak),
    ],
)
def test_a_verifier_that_changes_while_the_run_goes_on_is_told_of(home, monkeypatch, rule, kind):
    """By a round in a fresh process, which has another environment: canary cases, and rollouts that are judged again."""
    (home / "rules.py").write_text(RULE.format(rule))
    monkeypatch.setattr(doubts, "SHARE", 1e9)
    monkeypatch.setattr(doubts, "SAMPLED", 1.0)
    monkeypatch.setattr(doubts, "EVERY", 3)
    recipe = validate({**RECIPE, "steps": 4}, where="test")
    screen = Screen(after={2: lambda: monkeypatch.setenv("LEAST", "5")}, stop=3)
    assert launch.train(recipe, home=home, base=home, reporter=screen, run_id="r").state == "interrupted"
    store = Store.open(None, home)
    [told] = [event for event in store.events(store.run("r")) if event.kind in ("canary_drift", "nondeterministic")]
    version = store.read(lambda c: versions.version(c, "mine"))
    assert told.kind == kind and told.payload["verifier"] == "mine" and told.payload["step"] == 2
    assert told.payload["digest"] == version.digest and version.deterministic == (kind == "canary_drift")
    assert [note for note in screen.notes if note.startswith("alarm: verifier mine ")]
    asked = CliRunner().invoke(app, ["--home", str(home), "runs", "verify", "r", "--file", str(home / "rules.py")])
    assert (asked.exit_code, "case 0" in asked.stdout) == ((1, True) if kind == "canary_drift" else (0, False)), (
        asked.output
    )
    if kind == "canary_drift":  # and it is not gone on with
        with pytest.raises(RewardDrift, match=r"before, .* now"):
            _resume(home)
    elif "canary" in rule:
        seen = store.read(lambda c: versions.observations(c, version.digest))
        assert len(seen) == 2 and len({row["behaviour_digest"] for row in seen}) == 1  # the segment's, and the round's
    else:
        assert _resume(home).state == "finished"
    store.close()


def test_who_was_fenced_out_writes_nothing_more(home):
    store = _queued(home)

    def taken() -> None:
        store.write(lambda c: leases.move(c, store.run("r").pk, "lost", "as the reaper does"))

    with pytest.raises(FencedOut) as caught:
        _resume(home, Screen(after={2: taken}))
    assert caught.value.exit_code == 75
    run = store.run("r")
    assert (run.state, run.detail, store.checkpoints(run, all_rows=True)) == ("lost", "as the reaper does", [])
    assert {point.step for point in store.metrics(run)} <= {0, 1}
    folder = run.folder / "checkpoints/main"
    assert not folder.exists() or not list(folder.glob("step-*"))
    steps = store.read(lambda c: c.execute(sa.select(sa.func.max(t.data_part.c.step_max))).scalar())
    assert (steps or 0) <= 1  # what was gathered when it was fenced out may be none
    assert _resume(home).state == "finished"
    assert verify(store, store.run("r")).faults == ()
    store.close()


def test_a_run_that_an_older_jurat_began_goes_on_under_the_digest_that_it_has(home):
    """Schema 1 of a reward's digest: neither stopped nor renamed; a rule that changes stops it all the same."""
    recipe = validate(RECIPE, where="test")
    assert launch.train(recipe, home=home, base=home, reporter=Screen(stop=2), run_id="r").state == "interrupted"
    store = Store.open(None, home)
    before = prepare(recipe, base=home).before
    run = store.run("r")
    meta = {**run.meta, "rewards": [before]}
    store.write(
        lambda c: c.execute(sa.update(t.run).where(t.run.c.pk == run.pk).values(meta=meta, reward_digest=before))
    )
    assert _resume(home, Screen(stop=4)).state == "interrupted"
    assert store.run("r").meta["rewards"] == [before]
    assert "reward_change_accepted" not in [event.kind for event in store.events(run)]
    (home / "rules.py").write_text(RULE.format("len(completion) > 3"))
    with pytest.raises(RewardDrift, match="has changed since it began"):
        _resume(home)
    store.close()
