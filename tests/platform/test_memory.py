"""Peaks of this process, and the ring of them that a checkpoint holds."""

import json

from hypothesis import given
from hypothesis import strategies as st

from jurat.platform.memory import LENGTH, History, Peak, highest, host_peak, machine_bytes, recorded

MIB = 1 << 20


def test_the_peak_is_that_since_the_last_call():
    peak = host_peak()
    before = peak()
    block = bytearray(64 * MIB)
    block[:: 1 << 12] = b"x" * len(block[:: 1 << 12])  # touch every page
    assert peak() >= before + 60 * MIB
    del block
    assert peak() >= before  # the block was there when this began
    assert peak() < before + 30 * MIB


def test_where_the_mark_cannot_be_set_back_it_is_what_is_held_now(tmp_path):
    (tmp_path / "status").write_text("Name:\tx\nVmHWM:\t  900 kB\nVmRSS:\t  500 kB\n")
    (tmp_path / "clear_refs").mkdir()  # writing to it fails
    assert host_peak(tmp_path)() == 500 * 1024
    (tmp_path / "clear_refs").rmdir()
    assert host_peak(tmp_path)() == 900 * 1024


def test_a_control_group_limits_the_machine(tmp_path):
    whole = machine_bytes(tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    assert machine_bytes(tmp_path) == whole > 0
    (tmp_path / "memory.max").write_text(f"{32 * MIB}\n")
    assert machine_bytes(tmp_path) == 32 * MIB


@given(st.lists(st.tuples(st.sampled_from(["wait", "update"]), st.integers(1, 1 << 40)), max_size=40))
def test_a_history_comes_back_as_it_was(notes):
    held = iter([size for _, size in notes])
    history = History(lambda: {"host": next(held)})
    for step, (phase, _) in enumerate(notes):
        history.note(step, phase)
    again = History(dict)
    again.restore(json.loads(json.dumps(history.state())))
    assert list(again.ring) == list(history.ring)
    for phase, found in highest(history.ring).items():
        assert found["host"].bytes["host"] == max(size for name, size in notes if name == phase)


async def test_it_is_bounded_and_asks_the_others_once_a_step():
    async def elsewhere():
        return {"sampler": 7}

    history = History(lambda: {"host": 1}, elsewhere)
    for step in range(LENGTH):
        history.note(step, "wait")
        await history.note_elsewhere(step)
    assert len(history.ring) == LENGTH
    assert history.ring[0].step == LENGTH // 2
    assert history.ring[-1] == Peak(LENGTH - 1, "step", {"sampler": 7})


def test_a_checkpoint_without_a_history_has_none(tmp_path):
    assert recorded(tmp_path) == ()
    (tmp_path / "state.json").write_text(json.dumps({"source": {"planned": 3}}))
    assert recorded(tmp_path) == ()
    (tmp_path / "state.json").write_text(json.dumps({"source": {"memory": [[2, "update", {"host": 5}]]}}))
    assert recorded(tmp_path) == (Peak(2, "update", {"host": 5}),)
