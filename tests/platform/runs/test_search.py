"""Metrics in and out, and runs found by them: canonical points, pages, buckets, conditions, labels."""

from __future__ import annotations

import math
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jurat.platform.db import tables as t
from jurat.platform.errors import ConfigError, DataError
from jurat.platform.recipe import Recipe
from jurat.platform.runs import ingest, metrics, rollups, search
from jurat.platform.runs.metrics import Span, spans
from jurat.platform.runs.records import RunInfo, Segment
from jurat.platform.runs.search import And, Not, Or, Order, Term
from jurat.platform.runs.store import Store


def _log(store: Store, run: RunInfo, segment: Segment, values: dict[str, list[float]], first: int = 0) -> None:
    points = [
        (segment.no, first + step, 1000 + step, name, None if math.isnan(v) else v)
        for name, row in values.items()
        for step, v in enumerate(row)
    ]
    store.write(lambda c: ingest.insert_points(c, run.pk, points))


def _segment(no: int, stage_index: int, first: int) -> Segment:
    return Segment(no=no, stage=f"s{stage_index}", stage_index=stage_index, first_step=first, started=0, ended=None,
                   ending="", host="", pid=0, reward_digest="", versions={})  # fmt: skip


def test_spans() -> None:
    taken_up = [_segment(0, 0, 0), _segment(1, 0, 4), _segment(2, 1, 0), _segment(3, 1, 2)]
    assert [(s.segment, s.last) for s in spans(taken_up)] == [(0, 4), (1, None), (2, 2), (3, None)]
    began_again = [*taken_up, _segment(4, 0, 2)]
    assert [(s.segment, s.last) for s in spans(began_again)] == [(0, 2), (1, 2), (4, None)]
    assert spans([_segment(0, 0, 0), _segment(1, 0, 0)]) == [
        Span(segment=1, stage="s0", stage_index=0, first=0, last=None)
    ]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), min_size=1, max_size=5))
def test_pages_are_what_the_views_say(store: Store, recipe: Recipe, began: list[tuple[int, int]]) -> None:
    run = store.create_run(recipe=recipe, recipe_digest="", reward_digest="", meta={})
    for stage, first in began:
        segment = store.start_segment(run, stage=f"s{stage}", stage_index=stage, first_step=first)
        _log(store, run, segment, {"x": [10.0 * segment.no + n for n in range(4)]}, first)
    expected = [(p.stage, p.segment, p.step, p.value) for p in store.metrics(run, names=["x"])]
    found, after = [], None
    index = {f"s{stage}": stage for stage, _ in began}
    while page := store.read(lambda c, a=after: metrics.history(c, run.pk, "x", after=a, limit=3)):
        found += page
        after = (index[page[-1].stage], page[-1].step)
    assert [(p.stage, p.segment, p.step, p.value) for p in found] == expected
    latest = store.read(lambda c: metrics.latest(c, [run.pk], None))[run.pk]
    assert ("x" in latest) == bool(expected)
    if expected:
        assert (latest["x"].step, latest["x"].value) == expected[-1][2:]


def test_a_batch_comes_twice_and_a_bad_one_leaves_nothing(store: Store, new_run: Any) -> None:
    run = new_run()
    segment = store.start_segment(run, first_step=0)
    values = {"a": [1.0, math.nan, 3.0], "b": [2.0, -5.0, math.inf]}
    _log(store, run, segment, values)
    _log(store, run, segment, values)
    assert len(store.metrics(run)) == 6
    latest = store.read(lambda c: metrics.latest(c, [run.pk], ["a", "b", "none"]))[run.pk]
    assert {name: (x.step, x.value, x.least, x.most) for name, x in latest.items()} == {
        "a": (2, 3.0, 1.0, 3.0), "b": (2, math.inf, -5.0, math.inf),
    }  # fmt: skip
    _log(store, run, segment, {"a": [9.0]})  # the point is there: the first one stands, and is not the newest
    assert store.read(lambda c: metrics.latest(c, [run.pk], ["a"]))[run.pk]["a"].value == 3.0
    for bad, why in (
        ([(segment.no, 7, 1, "new", 1.0), (5, 7, 1, "new", 1.0)], "no segment 5"),
        ([(segment.no, 7, 1, "", 1.0)], "1 to 250 characters"),
        ([(segment.no, 7, 1, "n" * 251, 1.0)], "1 to 250 characters"),
    ):
        with pytest.raises(DataError, match=why):
            store.write(lambda c, b=bad: ingest.insert_points(c, run.pk, b))
    assert store.read(lambda c: metrics.names_of(c, run.pk)) == ["a", "b"]


def test_fewer_rows_lose_no_spike(store: Store, new_run: Any) -> None:
    run = new_run()
    first = store.start_segment(run, first_step=0)
    _log(store, run, first, {"x": [float(n) for n in range(100)]})
    second = store.start_segment(run, first_step=50)
    _log(store, run, second, {"x": [-1.0] * 30 + [1e9] + [-1.0] * 19}, 50)
    rows = store.read(lambda c: rollups.downsampled(c, run.pk, "x", buckets=10))
    assert [(r.first_step, r.last_step) for r in rows] == [(n, n + 9) for n in range(0, 100, 10)]
    assert (rows[1].mean, rows[1].least, rows[1].most, rows[1].last, rows[1].count) == (14.5, 10.0, 19.0, 19.0, 10)
    assert [r.most for r in rows[5:]] == [-1.0, -1.0, -1.0, 1e9, -1.0]
    part = store.read(lambda c: rollups.downsampled(c, run.pk, "x", first=95, last=96, buckets=10))
    assert [(r.first_step, r.count) for r in part] == [(95, 1), (96, 1)]
    assert store.read(lambda c: rollups.downsampled(c, run.pk, "none")) == []


@pytest.fixture
def many(store: Store, recipe: Recipe) -> list[RunInfo]:
    made = []
    for n in range(7):
        run = store.create_run(
            recipe=recipe.model_copy(update={"seed": n}), recipe_digest="", reward_digest="", meta={}, run_id=f"run{n}",
            project="p" if n % 2 else "", tags={"owner": "ann" if n < 3 else "bo", "n": n},
        )  # fmt: skip
        segment = store.start_segment(run, first_step=0, reward_digest=f"sha256:{n % 2}")
        if n != 4:
            _log(store, run, segment, {"loss": [5.0, 1.0 + n], "acc": [0.1 * n]})
        made.append(run)
    return made


def _found(store: Store, where: search.Where | None = None, **more: Any) -> list[str]:
    found = store.read(lambda c: search.find(c, store.runs_folder, where=where, **more))
    return [run.id.removeprefix("run") for run in found.runs]


def test_runs_are_found(store: Store, many: list[RunInfo]) -> None:
    def of(field: str, op: Any, value: Any) -> str:
        return "".join(sorted(_found(store, Term(field, op, value))))

    assert of("id", "=", "run3") == "3"
    assert of("id", "!=", "run3") == "012456"
    assert of("id", ":", "UN3") == "3"
    assert of("id", "LIKE", "run_") == "0123456"
    assert of("id", "LIKE", r"run\_") == ""
    assert of("id", ":", "%") == ""
    assert of("project", "=", "p") == "135"
    assert of("parent", "!=", "x") == "0123456"
    assert of("parent", "=", "x") == ""
    assert of("params.seed", ">", 4) == "56"
    assert of("params.seed", "IN", (1, 2)) == "12"
    assert of("params.model", "=", "tiny-random") == "0123456"
    assert of("params.none", "!=", 1) == "0123456"
    assert of("tags.owner", "=", "bo") == "3456"
    assert of("tags.n", "<=", 1.5) == "01"
    assert of("metrics.loss", ">=", 6) == "56"
    assert of("metrics.loss.min", "<", 2.5) == "01"
    assert of("metrics.loss.max", "=", 5) == "0123"
    assert of("metrics.loss", "!=", 1.0) == "123456"
    assert of("metrics.nothing", ">", 0) == ""
    assert of("reward", "=", "sha256:1") == "135"
    both = And((Term("tags.owner", "=", "bo"), Or((Term("metrics.acc", ">", 0.55), Not(Term("project", "=", ""))))))
    assert sorted(_found(store, both)) == ["3", "5", "6"]
    assert store.read(lambda c: search.count(c, both)) == 3
    for wrong, why in (
        (Term("stat", "=", "x"), "no field 'stat'. Did you mean 'state'"),
        (Term("created", "=", "x"), "created is a number"),
        (Term("created", ":", 5), "is for text"),
        (Term("id", "=", ("a", "b")), "takes one value"),
        (Term("metrics.loss", "=", math.inf), "is a number"),
    ):
        with pytest.raises(ConfigError, match=why):
            _found(store, wrong)


def test_pages_are_stable_while_runs_come(store: Store, recipe: Recipe, many: list[RunInfo]) -> None:
    first = store.read(lambda c: search.find(c, store.runs_folder, limit=3, columns=["acc"], bodies=False))
    store.create_run(recipe=recipe, recipe_digest="", reward_digest="", meta={})
    assert first.next is not None
    assert _found(store, after=first.next) == ["3", "2", "1", "0"]
    assert (first.runs[0].recipe, first.metrics[many[6].pk]) == ({}, {"acc": pytest.approx(0.6)})
    for bad in (["x"], ["x", "y"], [[], 1], [{}, 1]):
        with pytest.raises(ConfigError, match="no position of a page"):
            _found(store, after=bad)
    with pytest.raises(ConfigError, match=r"not ordered by 'nme'\. Did you mean 'name'"):
        _found(store, order=[Order(field="nme")])


_KEYS = {"project": lambda run: run[0], "priority": lambda run: run[1], "restarts": lambda run: 0, "started": lambda run: None,
         "metrics.a": lambda run: run[2], "metrics.b.max": lambda run: run[3], "metrics.none": lambda run: None}  # fmt: skip
_NUMBERS = st.sampled_from([None, math.nan, -math.inf, -1.5, 0.0, 0.1, 0.3, math.inf])


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    runs=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1), _NUMBERS, _NUMBERS), min_size=1, max_size=9),
    orders=st.lists(st.lists(st.tuples(st.sampled_from(sorted(_KEYS)), st.booleans()), max_size=4), min_size=6, max_size=6),
    size=st.integers(1, 4),
)  # fmt: skip
def test_an_order_of_several_keys_is_that_of_python(
    store: Store, recipe: Recipe, runs: list[Any], orders: list[list[tuple[str, bool]]], size: int
) -> None:
    store.write(lambda c: c.execute(sa.update(t.run).values(deleted_at=1)))
    made: list[tuple[int, Any]] = []
    for project, priority, a, b in runs:
        more = {"project": project, "priority": priority}
        run = store.create_run(recipe=recipe, recipe_digest="", reward_digest="", meta={}, **more)
        segment = store.start_segment(run, first_step=0)
        _log(store, run, segment, {name: [value] for name, value in (("a", a), ("b", b)) if value is not None})
        made.append((run.pk, (project, priority, *(None if x is None or math.isnan(x) else x for x in (a, b)))))
    for order in orders:
        keys = [Order(field=field, descending=down) for field, down in order]
        expected = sorted(made, key=lambda run: run[0], reverse=not order or order[-1][1])
        for field, down in reversed(order):  # sorts are stable: the last key first
            there = [run for run in expected if _KEYS[field](run[1]) is not None]
            none = [run for run in expected if _KEYS[field](run[1]) is None]
            expected = sorted(there, key=lambda run, f=field: _KEYS[f](run[1]), reverse=down) + none
        found: list[int] = []
        after = None
        while True:
            page = store.read(
                lambda c, a=after, k=keys: search.find(c, store.runs_folder, order=k, after=a, limit=size)
            )
            found += [run.pk for run in page.runs]
            after = page.next
            if after is None:
                break
        assert found == [pk for pk, _ in expected], order


_texts = st.text(max_size=12) | st.sampled_from(
    ["'; DROP TABLE run; --", "%", "_", "\\", "\x00", "\ud800", ":x", "%(x)s"]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    field=st.sampled_from(["id", "name", "verifier", "dataset", "env.git_commit", "model"]) | _texts.map("params.{}".format)
    | _texts.map("metrics.{}".format) | _texts.map("tags.{}".format),
    op=st.sampled_from(["=", "!=", "<", ":", "LIKE", "IN"]), value=_texts | st.floats(-10, 10),
)  # fmt: skip
def test_no_text_of_a_user_is_sql(store: Store, field: str, op: Any, value: Any) -> None:
    said: list[str] = []
    term = Term(field, op, (value,) if op == "IN" else value)

    def look(connection: sa.Connection) -> None:
        made = search.compiled(connection, term)
        said.append(str(sa.select(t.run.c.pk).where(made).compile(connection)))
        connection.execute(sa.select(t.run.c.pk).where(made)).all()

    try:
        store.read(look)
    except ConfigError:
        return
    for text in (str(value), field.partition(".")[2]):
        if len(text) > 4 and text not in ("git_commit",):
            assert text not in said[0]


def test_labels_of_a_recipe() -> None:
    flat = search.flattened({"a": {"b": 1, "c": [True, {"d": None, "e": "x"}]}, "f": 1.5})
    assert flat == {"a.b": 1, "a.c.0": True, "a.c.1.e": "x", "f": 1.5}
