"""The controller of balance: bounds, the dead band, convergence, no swinging; and a run that it moves."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jurat.platform.config import validate
from jurat.platform.errors import ConfigError
from jurat.trainers.allocate import UniformAllocator
from jurat.trainers.balance import BUSY, IDLE, PATIENCE, Balance, Gauge, Knob, Streak, decide, knobs_of

ROLES = ("sampler", "judge", "learner")
share = st.floats(0, 1)
utilisations = st.fixed_dictionaries({role: share for role in ROLES})


def workers(value=4, low=1, high=16):
    relieves = {"judge": 1, "sampler": -1, "learner": -1}
    return Knob(name="judge_workers", value=value, low=low, high=high, relieves=relieves, owner="judge")


def samples(value=8, low=2, high=16):
    return Knob(name="samples", value=value, low=low, high=high, relieves={"sampler": -1, "judge": -1, "learner": 1})


def play(seen, knobs):
    """Every move over a sequence of utilisations, and the knobs after it."""
    streak, moves = Streak(), []
    for utilisation in seen:
        move, streak = decide(utilisation, knobs, streak)
        if move:
            knobs = [move.knob if knob.name == move.knob.name else knob for knob in knobs]
            moves.append(move)
    return moves, knobs


def test_the_bottleneck_is_relieved_once_in_three_steps():
    stuck = {"sampler": 0.3, "judge": 1.0, "learner": 0.1}
    moves, (knob,) = play([stuck] * 7, [workers()])
    assert [(move.before, move.knob.value) for move in moves] == [(4, 6), (6, 9)]
    assert moves[0].evidence == {
        "knob": "judge_workers", "from": 4, "to": 6, "busy": "judge", "idle": "learner", "steps": PATIENCE,
        "utilisation/sampler": 0.3, "utilisation/judge": 1.0, "utilisation/learner": 0.1,
    }  # fmt: skip
    assert knob.value == 9
    broken = [stuck, stuck, {**stuck, "judge": 0.9}] * 5  # never three in a row
    assert play(broken, [workers()])[0] == []


def test_a_limit_goes_down_for_others_only_while_its_own_role_is_idle():
    busy = {"sampler": 1.0, "judge": 0.7, "learner": 0.2}
    assert play([busy] * 9, [workers()])[0] == []
    (move,) = play([{**busy, "judge": 0.3}] * 3, [workers()])[0]
    assert (move.before, move.knob.value) == (4, 3)


def test_at_its_bound_the_next_one_moves():
    stuck = {"sampler": 0.3, "judge": 1.0, "learner": 0.1}
    moves, _ = play([stuck] * 6, [workers(16), samples()])
    assert [(move.knob.name, move.knob.value) for move in moves] == [("samples", 5), ("samples", 3)]
    assert play([stuck] * 99, [workers(16)])[0] == []


@given(st.lists(utilisations, max_size=200), st.integers(1, 16), st.integers(2, 16))
@settings(max_examples=60, deadline=None)
def test_bounds_and_the_dead_band(seen, count, n):
    moves, knobs = play(seen, [workers(count), samples(n)])
    for move in moves:
        assert move.knob.low <= move.knob.value <= move.knob.high and move.knob.value != move.before
        shares = [move.evidence[f"utilisation/{role}"] for role in ROLES]
        assert max(shares) >= BUSY - 1e-3 and min(shares) <= IDLE + 1e-3
    assert len(moves) <= len(seen) / PATIENCE
    assert play([{role: max(IDLE + 0.01, each[role]) for role in ROLES} for each in seen], knobs)[0] == []
    assert play([{role: min(BUSY - 0.01, each[role]) for role in ROLES} for each in seen], knobs)[0] == []


@given(st.integers(1, 64), st.floats(0.05, 60.0))
@settings(max_examples=60, deadline=None)
def test_it_converges_on_a_queue_of_two_and_stays(start, load):
    """A sampler that could give ``load`` completions a second to judges that take a second each: the slower one is busy
    all the time, the other the ratio of the two."""

    def seen(count):
        return {"sampler": min(1.0, count / load), "judge": min(1.0, load / count), "learner": 0.6}

    knobs, streak, values = [workers(start, 1, 64)], Streak(), [start]
    for _ in range(200):
        move, streak = decide(seen(values[-1]), knobs, streak)
        if move:
            knobs = [move.knob]
            values.append(move.knob.value)
    final = seen(values[-1])
    assert values == sorted(values) or values == sorted(values, reverse=True)  # one direction
    assert final["sampler"] > IDLE or values[-1] == 64
    assert final["judge"] > IDLE or values[-1] == 1 or final["sampler"] < BUSY
    assert len(values) - 1 <= math.log(64) / math.log(1.5) + 6


@given(st.integers(1, 9))
@settings(max_examples=9, deadline=None)
def test_it_cannot_swing(period):
    """Whatever the load does, the k-th change of direction comes 2^k times PATIENCE steps after the one before, or later."""
    up, down = {"sampler": 0.1, "judge": 1.0, "learner": 0.1}, {"sampler": 1.0, "judge": 0.1, "learner": 0.1}
    moves, _ = play(([up] * PATIENCE * period + [down] * PATIENCE * period) * 100, [workers()])
    signs = [move.knob.value > move.before for move in moves]
    turns = sum(a != b for a, b in pairwise(signs))
    assert turns <= math.log2(period) + 1


def test_a_gauge_counts_time_and_depth():
    now = [0.0]
    gauge = Gauge(lambda: now[0])
    with gauge.inside():
        now[0] = 2.0
        with gauge.inside():
            now[0] = 3.0
    now[0] = 4.0
    assert gauge.read() == (4.0, 0.75, 1.0)  # one for 2 s, two for 1 s, none for 1 s
    now[0] = 5.0
    assert gauge.read() == (1.0, 0.0, 0.0)


class Events:
    def __init__(self):
        self.told = []

    def record_event(self, kind, payload):
        self.told.append((kind, payload))


def test_a_decision_is_applied_recorded_and_kept():
    now = [0.0]
    rule, events = UniformAllocator(8), Events()
    balance = Balance(
        knobs=[samples()], apply={"samples": rule.limit}, sampler=Gauge(lambda: now[0]), judge=Gauge(lambda: now[0])
    )  # fmt: skip
    for step in range(3):
        with balance.sampler.inside():
            now[0] += 10.0
        found = balance.after(step, {"score": 0.1, "update": 0.4}, events)
    assert found["utilisation/sampler"] == 1.0 and found["utilisation/learner"] == pytest.approx(0.05)
    assert found["queue/sampler"] == 1.0 and found["balance/samples"] == 8  # that of the step that ended
    assert rule.samples_per_prompt == 5
    ((kind, said),) = events.told
    assert kind == "balance" and (said["step"], said["from"], said["to"], said["busy"]) == (2, 8, 5, "sampler")
    again = UniformAllocator(8)
    other = Balance(knobs=[samples()], apply={"samples": again.limit})
    other.restore(balance.state())
    assert other.state() == balance.state() and again.samples_per_prompt == 5


def recipe(**keys):
    return validate({"model": "m", "data": {"train": {"source": "generated"}}, **keys}, where="test")


def test_what_could_not_be_moved_is_refused():
    assert knobs_of(recipe()) == []
    found = knobs_of(recipe(engine={"balance": {"samples": [4, 16], "judge_workers": [1, 4]}}))
    assert [(knob.name, knob.value, knob.low, knob.high) for knob in found] == [
        ("judge_workers", 1, 1, 4), ("samples", 8, 4, 16)]  # fmt: skip
    moved = {"judge_workers": [1, 4], "sampler_rows": [16, 512]}
    for engine in ({"home": "ray"}, {"sampler": "vllm"}, {"sampler": "vllm", "vllm_url": "http://h:1"}):
        assert [knob.value for knob in knobs_of(recipe(engine={"balance": moved, **engine}))] == [1, 128]
    for keys, said in (
        ({"engine": {"balance": {"samples": [10, 16]}}}, r"begins with 8, and the bounds are \[10, 16\]"),
        ({"engine": {"balance": {"samples": [1, 16]}}}, "two samples at least"),
        ({"engine": {"balance": {"judge_rows": [16, 512]}}}, "engine.home ray"),
        ({"engine": {"balance": {"samples": [2, 16]}}, "allocation": "neyman"}, "allocation.name uniform"),
        ({"engine": {"balance": {"samples": [9, 4]}}}, "lowest <= highest"),
        ({"engine": {"balance": {"speed": [1, 4]}}}, "judge_workers"),
    ):
        with pytest.raises(ConfigError, match=said):
            knobs_of(recipe(**keys))
