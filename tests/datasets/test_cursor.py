"""Orders, visits, resume: the same remaining visits from any point, and a plain refusal of other data."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jurat.datasets.curriculum import LevelState
from jurat.datasets.cursor import ShuffledSource
from jurat.platform.errors import DataError
from jurat.platform.recipe import Curriculum
from jurat.platform.types import Message, Problem, VerifierSpec


def make(count, *, levels=1, name="a.jsonl", start=0):
    return [
        Problem(id=f"p{i:04d}", messages=(Message(role="user", content=f"{i}?"),), reference=str(i),
                verifier=VerifierSpec(name="math"), source=f"{name}:{i + 1}", columns={"level": 1 + i % levels})
        for i in range(start, start + count)
    ]  # fmt: skip


def told(visits):
    return [(v.problem.id, v.visit, v.position) for v in visits]


def reward_of(visit):
    """A deterministic stand-in for what a policy earns."""
    return ((visit.position * 7919) % 100) / 100


def walk(source, draws):
    out = []
    for count in draws:
        visits = source.draw(count)
        out += told(visits)
        for visit in visits:
            source.observe(visit.problem.columns["level"], reward_of(visit))
    return out


@given(count=st.integers(1, 40), seed=st.integers(0, 2**32), epochs=st.integers(1, 4))
def test_each_epoch_is_a_permutation_and_positions_count_up(count, seed, epochs):
    visits = ShuffledSource(make(count), seed).draw(count * epochs)
    assert [v.position for v in visits] == list(range(count * epochs))
    for epoch in range(epochs):
        part = visits[epoch * count : (epoch + 1) * count]
        assert sorted(v.problem.id for v in part) == [f"p{i:04d}" for i in range(count)]
        assert {v.visit for v in part} == {epoch}


def test_epochs_and_seeds_differ():
    visits = told(ShuffledSource(make(50), 0).draw(100))
    other = told(ShuffledSource(make(50), 1).draw(50))
    orders = [[i for i, _, _ in part] for part in (visits[:50], visits[50:], other)]
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_order_does_not_depend_on_how_the_problems_were_listed():
    assert told(ShuffledSource(make(30), 3).draw(75)) == told(ShuffledSource(make(30)[::-1], 3).draw(75))


@settings(max_examples=60)
@given(count=st.integers(1, 30), seed=st.integers(0, 99), before=st.lists(st.integers(0, 9), max_size=8),
       after=st.lists(st.integers(0, 9), max_size=8), levels=st.integers(1, 4), curriculum=st.booleans())  # fmt: skip
def test_resume_anywhere_gives_the_same_remaining_visits(count, seed, before, after, levels, curriculum):
    part = Curriculum(target=0.4, window=3) if curriculum else None
    problems = make(count, levels=levels)
    whole = ShuffledSource(problems, seed, curriculum=part)
    walk(whole, before)
    state = json.loads(json.dumps(whole.state()))
    resumed = ShuffledSource(problems, seed, curriculum=part)
    resumed.restore(state)
    assert resumed.state() == whole.state()
    assert walk(resumed, after) == walk(whole, after)


@given(drawn=st.integers(0, 25), added=st.integers(0, 10), removed=st.integers(0, 10))
def test_a_changed_set_neither_repeats_nor_skips_what_is_still_there(drawn, added, removed):
    old, new = make(25), make(25 + added - removed, start=removed)
    source = ShuffledSource(old, 5)
    seen = {v.problem.id for v in source.draw(drawn)}
    state = source.state()
    resumed = ShuffledSource(new, 5)
    if (added or removed) and new:
        with pytest.raises(DataError, match=r"25 problems then"):
            resumed.restore(state)
    resumed.restore(state, allow_changed=True)
    rest = []
    while (visit := resumed.draw(1)[0]).visit == 0:
        rest.append(visit.problem.id)
    kept = {p.id for p in old} & {p.id for p in new}
    assert len(rest) == len(set(rest))
    assert not set(rest) & seen
    assert kept - seen <= set(rest)


def test_refusal_names_the_file_that_changed():
    x, y, z = make(5, name="a/x.jsonl"), make(5, name="a/y.jsonl", start=5), make(1, name="a/z.jsonl", start=90)
    source = ShuffledSource(x + y, 0)
    now = ShuffledSource(x + y[:4] + z, 0)
    with pytest.raises(DataError) as caught:
        now.restore(source.state())
    assert "a/y.jsonl: 5 problems then, 4 now" in caught.value.what
    assert "a/z.jsonl: 1 problems are new" in caught.value.what
    assert "a/x.jsonl" not in caught.value.what


def test_refuses_another_seed_an_empty_set_repeated_ids_and_a_set_without_levels():
    state = ShuffledSource(make(3), 0).state()
    with pytest.raises(DataError, match="seed 0, now 1"):
        ShuffledSource(make(3), 1).restore(state)
    with pytest.raises(DataError, match="empty"):
        ShuffledSource([], 0)
    with pytest.raises(DataError, match="repeated, first p0000"):
        ShuffledSource([*make(2), *make(1)], 0)
    bare = Problem(id="p", messages=(), reference="1", verifier=VerifierSpec(name="math"), source="f.jsonl:9")
    with pytest.raises(DataError, match="level") as caught:
        ShuffledSource([bare], 0, curriculum=Curriculum())
    assert caught.value.where == "f.jsonl:9"


def test_state_of_100k_problems_is_small():
    source = ShuffledSource(make(100_000), 0)
    source.draw(1000)
    assert len(json.dumps(source.state())) < 1000


def test_a_level_opens_when_the_one_below_is_solved_and_never_on_its_own_reward():
    source = ShuffledSource(make(30, levels=3), 0, curriculum=Curriculum(target=0.5, window=4))
    assert source.open_levels() == {1: 1.0}
    first = source.draw(12)
    assert {v.problem.columns["level"] for v in first} == {1}
    assert [v.visit for v in first] == [0] * 10 + [1] * 2
    for _ in range(3):
        source.observe(1, 1.0)
    assert source.open_levels() == {1: 1.0}
    source.observe(1, 1.0)
    assert source.open_levels() == pytest.approx({1: 0.1 / 1.2, 2: 1.1 / 1.2})
    levels = [v.problem.columns["level"] for v in source.draw(600)]
    assert levels.count(2) / 600 == pytest.approx(11 / 12, abs=0.05)
    with pytest.raises(DataError, match="level 9"):
        source.observe(9, 1.0)


@given(st.lists(st.tuples(st.sampled_from([1, 2, 3]), st.floats(0, 1)), max_size=40), st.integers(1, 5))
def test_curriculum_state_round_trips_and_stays_within_its_window(seen, window):
    state = LevelState.start((1, 2, 3), target=0.6, window=window)
    opened = []
    for level, mean in seen:
        state = state.observe(level, mean)
        opened.append(state.num_open)
    assert opened == sorted(opened)
    assert all(len(means) <= window for means in state.recent.values())
    assert sum(state.weights().values()) == pytest.approx(1)
    assert LevelState.from_json(json.loads(json.dumps(state.to_json()))) == state
