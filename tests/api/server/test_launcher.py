"""The launcher with real processes: how each ends, what is asked of it, and that none is lost, doubled or left behind."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from jurat.api.server.executor import FILE, UNKNOWN, LocalExecutor
from jurat.api.server.launcher import Launcher, outcome, why
from jurat.platform.recipe import Recipe
from jurat.platform.runs import leases
from jurat.platform.runs.records import RunInfo
from jurat.platform.runs.states import Limits
from jurat.platform.runs.store import Store

COMMAND = (sys.executable, str(Path(__file__).with_name("trainer.py")))
LIMITS = Limits(lease=2.0)


class Bench:
    def __init__(self, store: Store) -> None:
        self.store, self.home = store, store.home
        self.launchers: list[Launcher] = []

    def behave(self, how: str) -> None:
        (self.home / "behave").write_text(how)

    def queue(self, name: str, **more: int) -> RunInfo:
        value = {"name": "t", "model": "tiny-random", "data": {"train": {"source": "generated"}}}
        return self.store.create_run(
            recipe=Recipe.model_validate(value), recipe_digest="", reward_digest="", meta={}, run_id=name,
            state="queued", **more
        )  # fmt: skip

    def launch(self, limits: Limits = LIMITS, slots: int = 1) -> Launcher:
        made = Launcher(self.store, LocalExecutor(COMMAND), slots=slots, limits=limits, owner="bench")
        made.start()
        self.launchers.append(made)
        return made

    def until(self, true: Callable[[], object], seconds: float = 20.0) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, [(run.id, run.state, run.detail) for run in self.store.runs()]
            time.sleep(0.02)

    def state(self, name: str, *states: str) -> None:
        self.until(lambda: self.store.run(name).state in states)

    def ready(self) -> int:
        """The process id of a trainer that has started, which is then forgotten."""
        self.until((self.home / "ready").exists)
        (self.home / "ready").unlink()
        return int(self.starts()[-1][2])

    def starts(self) -> list[list[str]]:
        return [line.split() for line in (self.home / "starts").read_text().splitlines()]

    def ask(self, name: str, kind: str, limits: Limits = LIMITS) -> None:
        run = self.store.run(name)
        self.store.write(lambda c: leases.command(c, run.pk, kind, limits=limits))
        [launcher.wake() for launcher in self.launchers]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    store = Store.open(None, tmp_path)
    made = Bench(store)
    yield made
    for launcher in made.launchers:
        launcher.close()
    for _, _, pid, *_ in made.starts() if (tmp_path / "starts").exists() else []:
        with suppress(psutil.Error, ProcessLookupError):
            if str(COMMAND[1]) in psutil.Process(int(pid)).cmdline():
                os.killpg(int(pid), signal.SIGKILL)
    store.close()


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_how_processes_end(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_SERVICE", "x")
    bench.behave("finish")
    good = bench.queue("good")
    bench.launch()
    bench.ready()
    bench.store.write(lambda c: leases.take(c, good.pk, "bench", epoch=1))  # as a trainer does
    (bench.home / "go").touch()
    bench.state("good", "finished")
    bench.behave("fail")
    bench.queue("bad")
    bench.state("bad", "failed")
    bad = bench.store.run("bad")
    assert (
        bad.exit_code == 1
        and bad.detail == "its process ended with code 1: loss is not finite"
        and bad.lease_owner is None
    )
    assert bench.starts() == [
        ["good", "1", bench.starts()[0][2], "jurat_", "None"],
        ["bad", "1", bench.starts()[1][2], "jurat_", "None"],
    ]
    assert not [child for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE]


def test_pause_resume_and_cancel(bench: Bench) -> None:
    bench.behave("wait")
    bench.queue("r")
    bench.launch()
    first = bench.ready()
    run = bench.store.run("r")
    bench.store.write(lambda c: leases.take(c, run.pk, "bench", epoch=run.lease_epoch))  # as a trainer does
    bench.ask("r", "checkpoint")  # a trainer's to hear by its own heartbeat
    bench.ask("r", "pause")
    bench.state("r", "paused")
    assert gone(first)
    bench.ask("r", "resume")
    second = bench.ready()
    bench.ask("r", "cancel")
    bench.state("r", "cancelled")
    assert gone(second) and len(bench.starts()) == 2
    assert [(c.kind, c.acked_at is not None) for c in bench.store.read(lambda c: leases.commands(c, run.pk))] == [
        ("checkpoint", True), ("pause", True), ("resume", True), ("cancel", True)
    ]  # fmt: skip


def test_a_killed_process_is_started_again_as_often_as_it_may(bench: Bench) -> None:
    bench.behave("wait")
    bench.queue("r", max_restarts=1)
    bench.launch()
    os.kill(bench.ready(), signal.SIGKILL)
    child = int((bench.home / "child").read_text())
    second = bench.ready()
    assert gone(child) and bench.store.run("r").restarts == 1
    os.kill(second, signal.SIGKILL)
    bench.state("r", "failed")
    assert "killed by signal 9" in bench.store.run("r").detail
    epochs = [int(epoch) for _, epoch, *_ in bench.starts()]
    assert len(epochs) == 2 and epochs[1] > epochs[0]


def test_who_is_fenced_out_is_killed_with_all_it_started(bench: Bench) -> None:
    bench.behave("wait")
    run = bench.queue("r")
    launcher = bench.launch()
    pid = bench.ready()
    child = int((bench.home / "child").read_text())
    bench.store.write(lambda c: leases.move(c, run.pk, "lost"))  # another replica's reaper, say
    launcher.wake()
    bench.until(lambda: gone(pid) and gone(child))
    bench.state("r", "failed")  # no restart was left


def test_what_does_not_stop_is_ended(bench: Bench) -> None:
    bench.behave("ignore")
    bench.queue("r")
    short = Limits(lease=1.5, cancelling=0.3)
    bench.launch(short)
    pid = bench.ready()
    bench.ask("r", "cancel", short)
    bench.state("r", "cancelled")
    assert "forced" in bench.store.run("r").detail
    bench.until(lambda: gone(pid))


def test_a_launcher_that_starts_again_takes_up_what_goes_on(bench: Bench) -> None:
    bench.behave("wait")
    bench.queue("r")
    bench.launch().close()
    bench.launchers.clear()
    if not (bench.home / "ready").exists() and bench.store.run("r").state == "queued":
        bench.launch().wake()
    first = bench.ready()
    again = bench.launch()
    bench.until(lambda: (bench.store.run("r").heartbeat_at or 0) > time.time_ns() // 1000 - 300_000)
    assert len(bench.starts()) == 1 and not gone(first)
    bench.ask("r", "cancel")
    bench.state("r", "cancelled")
    bench.until(lambda: gone(first))
    again.close()


def test_a_process_that_was_not_noted_is_found_by_its_mark(bench: Bench) -> None:
    """Its launcher was killed between its start and the note of its id."""
    bench.behave("wait")
    bench.queue("r")
    first = bench.launch()
    pid = bench.ready()
    first.close()
    note = bench.store.run("r").folder / FILE
    said = json.loads(note.read_text())
    note.write_text(json.dumps({name: said[name] for name in ("boot", "epoch", "mark")}))
    bench.launch()
    bench.ask("r", "cancel")
    bench.state("r", "cancelled")
    bench.until(lambda: gone(pid))
    assert len(bench.starts()) == 1
    assert LocalExecutor(COMMAND).find("r", said["epoch"], note.parent) is None


def test_what_was_claimed_and_not_started_is_no_restart(bench: Bench) -> None:
    bench.behave("wait")
    bench.queue("r")
    bench.store.write(lambda c: leases.claim(c, "bench", limits=LIMITS))  # and its launcher is killed
    bench.launch()
    bench.ready()
    run = bench.store.run("r")
    assert (run.restarts, run.state, run.lease_epoch) == (0, "starting", 3)  # claimed, taken back, claimed


def test_a_process_that_ended_unseen_is_lost_and_started_once_more(bench: Bench) -> None:
    bench.behave("wait")
    bench.queue("r", max_restarts=1)
    launcher = bench.launch()
    first = bench.ready()
    launcher.close()
    os.killpg(first, signal.SIGKILL)
    launcher._held["r"].work.child.wait()  # type: ignore[attr-defined]
    bench.launch()
    second = bench.ready()
    assert second != first and [int(epoch) for _, epoch, *_ in bench.starts()][1] > 1


def test_slots_hold_others_back(bench: Bench) -> None:
    bench.behave("wait")
    bench.queue("low"), bench.queue("high", priority=5)
    bench.launch(slots=1)
    bench.ready()
    assert [start[0] for start in bench.starts()] == ["high"] and bench.store.run("low").state == "queued"
    bench.ask("high", "cancel")
    bench.ready()
    assert [start[0] for start in bench.starts()] == ["high", "low"]


def test_the_words_for_an_end() -> None:
    assert outcome("running", 0) == ("finished", "") and outcome("starting", 0)[0] == "failed"
    assert [outcome(state, code)[0] for state,
    code in [("pausing", 130), ("pausing", 1), ("cancelling", 1), ("running", 130), ("running", -9),
    ("starting", UNKNOWN), ("running", 75)]] == [
        "interrupted", "failed", "interrupted", "interrupted", "lost", "lost", "failed",
    ]  # fmt: skip


def test_why_is_the_first_line_of_the_last_error_and_harmless(tmp_path: Path) -> None:
    log = tmp_path / "log"
    said = b"\njurat: old\ngrpo 1/6\njurat: what \x1b[31mhappened\x00\nmember a: 1 -> 2\n  where: /x\n  fix: y\nor z\n"
    log.write_bytes(b"x" * 20_000 + said)
    assert why(log) == "what  [31mhappened " and why(tmp_path / "none") == ""
    log.write_text("Traceback\n  File x\nMemoryError\n\n")
    assert why(log) == "MemoryError"
