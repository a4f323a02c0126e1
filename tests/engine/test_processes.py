"""Ranks that die, stop, hang, refuse: each is told from the others, and nobody waits for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from jurat.engine.fsdp import processes as module
from jurat.engine.fsdp.processes import Host, Processes, RanksLost
from jurat.platform.errors import ModelError, RunFailed

HOST = """
import time
from types import SimpleNamespace
from jurat.platform.errors import ModelError

class Host:
    progress = 0
    def add(self, a, b):
        return a + b
    def refuse(self):
        raise ModelError("no such weights", where="here", fix="other weights")
    def fail(self, bad):
        if bad:
            print("the words before the end")
            raise ValueError("a bad day")
        time.sleep(60)
    def sleep(self, seconds, moving):
        for _ in range(int(10 * seconds)):
            time.sleep(0.1)
            self.progress += moving
        return "rested"
"""


@pytest.fixture
def start(tmp_path):
    (tmp_path / "light_host.py").write_text(HOST)
    made = []

    def start(count=2, **settings):
        env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
        made.append(Processes(count, host="light_host:Host", preload=False, env=env, **settings))
        return made[-1]

    yield start
    for processes in made:
        processes.close()


def moved(processes: Processes, begun: int) -> None:
    """Wait until a rank has got further."""
    while processes.moves == begun:
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_answers_come_in_order_and_refusals_as_they_are(start):
    processes = start()
    assert processes.call("add", [(1, 2), (3, 4)]) == [3, 7]
    with pytest.raises(ModelError, match="no such weights") as refused:
        processes.call("refuse", [(), ()])
    assert refused.value.fix == "other weights"
    assert processes.call("add", [(5, 6)]) == [11]  # the first rank alone: the group goes on
    processes.close()
    assert not any(alive(pid) for pid in processes.pids) and not processes.folder.exists()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV])
def test_a_rank_that_dies_is_named_with_its_signal(start, how):
    processes = start()
    processes.call("add", [(1, 2), (3, 4)])
    begun = processes.moves
    threading.Thread(target=lambda: (moved(processes, begun), os.kill(processes.pids[1], how))).start()
    with pytest.raises(RanksLost, match=f"rank 1 was killed by {how.name} during sleep"):
        processes.call("sleep", [(60, True), (60, True)])
    assert not any(alive(pid) for pid in processes.pids)
    with pytest.raises(RunFailed, match="the learner's ranks have ended: rank 1 was killed"):
        processes.call("add", [(1, 2), (3, 4)])


def test_a_rank_that_raises_is_named_with_its_last_words(start):
    """It would raise again: the ranks are not lost."""
    processes = start()
    processes.grace = 0.5
    said = r"rank 1 failed in fail: ValueError: a bad day; its last words: .*a bad day"
    with pytest.raises(RunFailed, match=said) as failed:
        processes.call("fail", [(False,), (True,)])
    assert not isinstance(failed.value, RanksLost)


def test_a_stopped_rank_is_told_from_a_group_that_stands_still(start):
    processes = start(silence=1.5)
    processes.call("add", [(1, 2), (3, 4)])
    os.kill(processes.pids[0], signal.SIGSTOP)
    with pytest.raises(RanksLost, match=r"rank 0 has given no sign of life for 1\.5 s in sleep"):
        processes.call("sleep", [(60, True), (60, True)])
    still = start(patience=1.2)
    with pytest.raises(RanksLost, match=r"no rank has got any further for 1\.2 s in sleep"):
        still.call("sleep", [(60, False), (60, False)])


def test_a_group_that_gets_on_may_take_as_long_as_it_likes(start, monkeypatch):
    """The clock stands still but for 3 seconds at each sign that a rank got further, of which there are at least two."""
    group = start(patience=5.0)
    group.call("add", [(1, 2), (3, 4)])
    now, ended = [0.0], threading.Event()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def turn():
        seen = group.moves
        while not ended.wait(0.01):
            if group.moves != seen:
                seen, now[0] = group.moves, now[0] + 3.0

    clock = threading.Thread(target=turn)
    clock.start()
    assert group.call("sleep", [(3, True), (3, True)]) == ["rested"] * 2
    ended.set()
    clock.join()
    assert now[0] > group.patience


def test_a_large_message_to_a_stopped_rank_does_not_block(start):
    processes = start(silence=1.5)
    processes.call("add", [(1, 2), (3, 4)])
    os.kill(processes.pids[1], signal.SIGSTOP)
    with pytest.raises(RunFailed, match="rank 1 has given no sign of life"):
        processes.call("add", [(b"a", b"b"), (bytes(1 << 24), b"")])


def test_a_fault_strikes_the_rank_that_it_names(start, monkeypatch):
    monkeypatch.setenv("JURAT_FAULT", "rank1@rank.before_answer:2")
    processes = start()
    assert processes.call("add", [(1, 2), (3, 4)]) == [3, 7]
    with pytest.raises(RanksLost, match="rank 1 was killed by SIGKILL during add"):
        processes.call("add", [(1, 2), (3, 4)])
    assert start().call("add", [(5, 6)]) == [11]  # the first one visits the point too, and lives


def test_ranks_end_with_their_driver(tmp_path):
    (tmp_path / "light_host.py").write_text(HOST)
    code = (
        "import os\nfrom jurat.engine.fsdp.processes import Processes\n"
        "p = Processes(2, host='light_host:Host', preload=False)\np.call('add', [(1, 2)] * 2)\nprint(*p.pids, p.folder, flush=True)\n"
        "p.call('sleep', [(60, True)] * 2)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    driver = subprocess.Popen([sys.executable, "-P", "-c", code], env=env, stdout=subprocess.PIPE, text=True)
    *words, folder = driver.stdout.readline().split()
    pids = [int(word) for word in words]
    assert len(pids) == 2 and all(map(alive, pids))
    os.kill(pids[1], signal.SIGSTOP)  # it does not read that the other end is gone
    driver.kill()
    driver.wait()
    for _ in range(1200):
        if not any(map(alive, pids)) and not os.path.exists(folder):
            break
        time.sleep(0.1)
    assert not any(map(alive, pids)) and not os.path.exists(folder)


def test_the_policy_of_a_host_is_closed_last():
    closed = []

    class Opened:
        def __init__(self, role):
            self.role = role

        def close(self):
            closed.append(self.role)

    host = Host()
    host.ranks |= {role: Opened(role) for role in ("", "critic")}
    host.shut()
    assert closed == ["critic", ""] and host.ranks == {}
