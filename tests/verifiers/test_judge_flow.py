"""Items that arrive at a bad moment: at close, in a forked child, from many threads, cancelled, or that cannot travel."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import os
import signal
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import psutil
import pytest

from jurat.platform.errors import RunFailed
from jurat.platform.recipe import Member, RewardPart
from jurat.verifiers.judge import LocalJudge, build_judge
from jurat.verifiers.pool import Pool, Task
from jurat.verifiers.registry import REGISTERED
from jurat.verifiers.verdicts import problem_of

TIMED = Path(__file__).parent / "rules_files" / "timed.py"
GOOD = problem_of("7", verifier="timed")
LONG = 90.0
"""Seconds after which a test has failed."""


def judge_of(*uses: str, workers: int = 1, **given) -> LocalJudge:
    part = RewardPart(members=tuple(Member(use=use) for use in uses), workers=workers)
    return build_judge(part, user_files=[TIMED], cache=0, **given)


def submit(judge: LocalJudge, text: str, problem=GOOD) -> Future:
    return judge._submit(problem, text, "stop")[judge._labels[0]]


@pytest.fixture(scope="module")
def here():
    """The module of timed verifiers, registered in this process."""
    spec = importlib.util.spec_from_file_location("jurat_test_timed", TIMED)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]
    for name in ("timed", "timed_too", "timed_batch"):
        REGISTERED.discard(name)


def test_closing_just_after_a_submit_resolves_every_item():
    judge = judge_of("timed_batch")
    held = [submit(judge, "7") for _ in range(5)]
    judge.close()
    assert {item.result(LONG).status for item in held} <= {"infra", "correct"}
    with pytest.raises(RunFailed, match="this judge is closed"):
        judge.verdict(GOOD, "7")


@pytest.mark.parametrize("value", [float("nan"), b"x", {1, 2}, object(), {1: 2}])
@pytest.mark.parametrize("cache", [0, 10])
def test_a_problem_that_cannot_travel_costs_its_own_verdict(value, cache):
    bad = dataclasses.replace(GOOD, columns={"x": value})
    part = RewardPart(members=(Member(use="timed_batch"), Member(use="timed"), Member(use="exact")))
    with build_judge(part, user_files=[TIMED], cache=cache, spares=0) as judge:
        made = dict(judge.judge_many([(GOOD, "7"), (bad, "7"), (GOOD, "7")]))
        verdicts = [made[i].verdicts for i in range(3)]
    assert [v["timed_batch"].status for v in verdicts] == ["correct", "bad_gold", "correct"]
    assert [v["timed"].status for v in verdicts] == ["correct", "bad_gold", "correct"]
    assert verdicts[1]["exact"].status == "correct"
    assert "cannot be sent" in verdicts[1]["timed"].why


def test_a_forked_child_judges_with_processes_of_its_own():
    with judge_of("timed") as judge, Pool() as pool:
        assert judge.verdict(GOOD, "7").status == "correct"
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                said = judge.verdict(GOOD, "7").status
                try:
                    pool.submit(Task(request={"op": "judge"}, deadline=1.0))
                except RunFailed as fault:
                    said += " " + fault.what
                judge.close()
                os.write(write, said.encode())
            finally:
                os._exit(0)
        os.close(write)
        end = time.monotonic() + LONG
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            if time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.02)
        said = os.read(read, 4096).decode()
        os.close(read)
        assert said.startswith("correct this pool belongs to process")
        assert judge.verdict(GOOD, "8").status == "incorrect"


def test_verifiers_of_this_process_first_used_from_eight_threads(here):
    part = RewardPart(members=(Member(use="problem"),), workers=2)
    with LocalJudge(part, cache=0, spares=0) as judge:
        made, gate = [], threading.Barrier(8)

        def first(name: str) -> None:
            gate.wait()
            try:
                made.append(judge.verdict(problem_of("7", verifier=name), "7").status)
            except Exception as fault:
                made.append(repr(fault))

        threads = [threading.Thread(target=first, args=(name,)) for name in ["timed", "timed_too"] * 4]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
    assert made == ["correct"] * 8


def test_a_verifier_met_for_the_first_time_loses_nothing_in_flight(here, tmp_path):
    other = tmp_path / "other_rules.py"
    other.write_text("import jurat\n@jurat.verifier('met_late')\ndef met_late(problem, completion): return True\n")
    spec = importlib.util.spec_from_file_location("other_rules", other)
    module = importlib.util.module_from_spec(spec)
    sys.modules["other_rules"] = module
    try:
        spec.loader.exec_module(module)
        with LocalJudge(RewardPart(members=(Member(use="problem"),)), cache=0, spares=0) as judge:
            judge.verdict(GOOD, "7")
            held = [submit(judge, f"sleep {i}") for i in range(3)]
            assert judge.verdict(problem_of("7", verifier="met_late"), "x").status == "correct"
            assert [item.result(LONG).status for item in held] == ["incorrect"] * 3
    finally:
        del sys.modules["other_rules"]
        REGISTERED.discard("met_late")


async def test_cancelled_judgements_do_not_hold_up_the_next():
    with judge_of("timed") as judge:
        await judge.judge(GOOD, "7")
        tasks = [asyncio.create_task(judge.judge(GOOD, f"sleep {i}")) for i in range(600)]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # All of them together would be 180 s of work.
        made = await asyncio.wait_for(judge.judge(GOOD, "7"), LONG)
        assert made.verdicts["timed"].status == "correct"


def test_a_stream_that_is_left_early_drops_what_waits():
    with judge_of("timed") as judge:
        stream = judge.judge_many((GOOD, "7" if i == 0 else f"sleep {i}") for i in range(200))
        assert next(stream)[0] == 0
        stream.close()
        assert submit(judge, "7").result(LONG).status == "correct"


def test_a_call_whose_process_is_killed_from_outside_is_made_again(tmp_path):
    with judge_of("timed", spares=0) as judge:
        once = submit(judge, f"once {tmp_path / 'a'}")
        assert once.result(LONG).status == "correct" and once.result().attempt == 2
        twice = submit(judge, "kill").result(LONG)
        assert (twice.status, twice.fault, twice.score, twice.attempt) == ("infra", "infra", None, 2)
        assert "SIGKILL" in twice.why


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux alone")
@pytest.mark.parametrize(
    ("how", "status", "said"),
    [
        ("exit", "error", "exit code 3"),
        ("kill", "infra", "SIGKILL"),
        ("crash", "error", "SIGABRT"),
        ("hang", "timeout", "deadline"),
    ],
)
def test_processes_in_sessions_of_their_own_end_with_a_worker_that_dies(how, status, said):
    mark = f"{7_700_000 + os.getpid()}.{['exit', 'kill', 'crash', 'hang'].index(how)}"
    with judge_of("timed", spares=0, deadline=1.0 if how == "hang" else LONG) as judge:
        made = judge.verdict(GOOD, f"leave {how} {mark}")
        assert (made.status, said in made.why) == (status, True), made.why
        assert judge.verdict(GOOD, "7").status == "correct"
        end = time.monotonic() + LONG
        while running(mark) and time.monotonic() < end:
            time.sleep(0.02)
        assert not running(mark)


def test_a_killed_guard_takes_its_worker_along():
    with judge_of("timed", spares=0) as judge:
        judge.verdict(GOOD, "7")
        (guard,) = judge.pids()
        below = psutil.Process(guard).children(recursive=True)
        os.kill(guard, signal.SIGKILL)
        assert judge.verdict(GOOD, "8").status == "incorrect"
        _, alive = psutil.wait_procs(below, LONG)
        assert not alive


def running(mark: str) -> list[int]:
    return [p.pid for p in psutil.process_iter(["cmdline"]) if mark in (p.info["cmdline"] or [])]


def test_workers_follow_while_items_wait():
    """Three at once need three processes; one at a time, two of them stand by and are not replaced when they end."""
    with judge_of("timed", spares=0) as judge:
        assert judge.verdict(GOOD, "7").status == "correct"
        assert len(judge.pids()) == 1
        held = [submit(judge, "sleep") for _ in range(3)]
        judge.resize(3)
        assert {item.result(LONG).status for item in held} == {"incorrect"}
        assert len(judge.pids()) == 3
        judge.resize(1)
        held = [submit(judge, text) for text in ("kill", "kill", "7")]
        assert [item.result(LONG).status for item in held] == ["infra", "infra", "correct"]
        end = time.monotonic() + LONG
        while len(judge.pids()) > 1:
            assert time.monotonic() < end
            time.sleep(0.02)
