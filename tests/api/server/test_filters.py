"""Filters: the grammar, what it refuses and where, and that no text of a user becomes SQL."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.dialects import postgresql, sqlite

from jurat.api.server import filters, reader, search
from jurat.api.server.filters import And, Fields, Not, Operand, Or, Term, compile_filter, parse
from jurat.api.server.problems import Problem
from jurat.platform.db.keyset import Key, after, ordering
from jurat.platform.errors import ConfigError
from jurat.platform.runs import search as find
from jurat.platform.runs.store import Store

ROW = sa.table(
    "row",
    sa.column("pk", sa.Integer),
    sa.column("name", sa.Text),
    sa.column("n", sa.Float),
    sa.column("at", sa.Integer),
)
FIELDS = Fields(
    {"name": Operand(ROW.c.name, "text"), "n": Operand(ROW.c.n, "number"), "at": Operand(ROW.c.at, "time")},
    {
        "tags": lambda rest: (
            Operand(sa.func.coalesce(ROW.c.name, sa.literal(rest[0], sa.Text)), "text") if len(rest) == 1 else None
        )
    },
)
ROWS = [(1, "math", 0.5, 100), (2, "code", None, 200), (3, "Math_50%", -1.0, 300), (4, None, 2.5, 400)]


@pytest.fixture(scope="module")
def table():
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE row(pk INTEGER, name TEXT, n REAL, at INTEGER)")
    db.executemany("INSERT INTO row VALUES (?, ?, ?, ?)", ROWS)
    yield db
    db.close()


def found(db: sqlite3.Connection, text: str) -> list[int]:
    condition = compile_filter(text, FIELDS)
    query = sa.select(ROW.c.pk).order_by(ROW.c.pk)
    compiled = (query if condition is None else query.where(condition)).compile(
        dialect=sqlite.dialect(paramstyle="qmark"), compile_kwargs={"render_postcompile": True}
    )
    return [pk for (pk,) in db.execute(str(compiled), [compiled.params[k] for k in compiled.positiontup])]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("", [1, 2, 3, 4]),
        ("name = math", [1]),
        ("name = 'math' OR name = \"code\"", [1, 2]),
        ("name = math or n < 0 and at > 299", [1, 3]),
        ("(name = math or n < 0) and at > 299", [3]),
        ("NOT n > 0", [2, 3]),  # absent: the term is false, its negation true
        ("n != 0.5", [2, 3, 4]),  # absent: true
        ("not (not n = 2.5)", [4]),
        ("name IN [code, 'math', nope]", [1, 2]),
        ("name : MATH", [1, 3]),
        ("name:'50%'", [3]),
        ("name LIKE 'm%'", [1, 3]),
        (r"name LIKE '%50\%'", [3]),
        ("name = null", [4]),
        ("n != null and n >= -1e0", [1, 3, 4]),
        ('at >= "1970-01-01T00:00:00.0003Z"', [3, 4]),
        ("at = 200", [2]),
    ],
)
def test_a_filter_finds_its_rows(table: sqlite3.Connection, text: str, rows: list[int]) -> None:
    assert found(table, text) == rows


def test_the_tree() -> None:
    tree = parse("a.b = 1 AND NOT (c : 'x y' OR d IN [1.5, true])")
    assert isinstance(tree, And)
    first, second = tree.items
    assert first == Term(("a", "b"), "=", (1,), 0, 6, False)
    assert isinstance(second, Not) and isinstance(second.item, Or)
    assert second.item.items[1] == Term(("d",), "IN", (1.5, True), 30, 35, False)
    assert parse('metrics."reward/mean".max > 0.5') == Term(
        ("metrics", "reward/mean", "max"), ">", (0.5,), 0, 28, False
    )
    assert parse("metrics.reward/mean > -2") == Term(("metrics", "reward/mean"), ">", (-2,), 0, 22, False)


@pytest.mark.parametrize(
    ("text", "at", "said"),
    [
        ("nam = 1", 0, "Did you mean 'name'"),
        ("name = ", 6, "expected a value, but the filter ends"),
        ("name 5", 5, "expected one of = != < <= > >= : LIKE IN"),
        ("name = a b", 9, "expected AND, OR or the end"),
        ("(name = a", 9, "expected ')'"),
        ("name = 'a", 7, "a quote is not closed"),
        ("name = a; DROP TABLE row", 8, "an unexpected character"),
        ("n = abc", 4, "expected a number"),
        ("n : 5", 4, ": compares texts"),
        ("at = 'yesterday'", 5, "expected a time"),
        ("n < null", 4, "null is compared by"),
        ("name = 1e999", 7, "too large"),
        ("name LIKE '%%%%%%%%%'", 10, "wildcards"),
        ("name LIKE 'a\\\\'", 10, "lone backslash"),
        (" AND ".join(["n = 1"] * 65), 640, "more than 64 terms"),
        ("(" * 20 + "n = 1" + ")" * 20, 17, "nested more than 16"),
        ("NOT " * 20 + "n = 1", 68, "nested more than 16"),
        ("name IN [" + ", ".join(["a"] * 101) + "]", 310, "more than 100 values"),
        ("name = " + "x" * 5000, 0, "longer than 4096 bytes"),
        ("name = 'a\x00'", 0, "a character that no text has"),
    ],
)
def test_a_fault_is_told_with_its_place(text: str, at: int, said: str) -> None:
    with pytest.raises(Problem) as caught:
        compile_filter(text, FIELDS)
    assert (caught.value.kind, caught.value.status) == ("bad-filter", 400)
    assert said in caught.value.detail and f"at character {at + 1}\n" in caught.value.detail
    *_, shown, caret = caught.value.detail.split("\n")
    assert caret.strip() == "^" and len(caret) - 1 == min(at, 40)


MARKER = "zq"
"""In no word of ours: where it stands in SQL, a user put it there."""
texts = st.text(max_size=12).map(lambda s: MARKER + s + "'\"; DROP TABLE row --")
values = st.one_of(
    texts.map(lambda s: '"' + s.replace("\\", "\\\\").replace('"', '\\"') + '"'),
    texts.map(lambda s: "'" + s.replace("\\", "\\\\").replace("'", "\\'") + "'"),
    st.integers(-999, 999).map(str), st.floats(-9, 9).map(repr), st.just(MARKER + "word"), st.just("null"),
)  # fmt: skip
fields = st.sampled_from(["name", "n", "at", 'tags."' + MARKER + ' or 1=1"', "tags." + MARKER])
leaves = st.tuples(fields, st.sampled_from(["=", "!=", "<", ">=", ":", " LIKE "]), values).map("".join) | st.tuples(
    fields, st.lists(values, min_size=1, max_size=3)
).map(lambda t: f"{t[0]} IN [{', '.join(t[1])}]")
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        inner.map("NOT {}".format),
        inner.map("({})".format),
        st.tuples(inner, st.sampled_from([" AND ", " or "]), inner).map("".join),
    ),
    max_leaves=6,
)


def shown(text: str) -> list[str]:
    """The SQL of a filter on both databases, without its values; empty if it is refused."""
    try:
        condition = compile_filter(text, FIELDS)
    except Problem as problem:
        assert problem.status == 400
        return []
    if condition is None:
        return []
    return [
        str(condition.compile(dialect=dialect, compile_kwargs={"render_postcompile": True}))
        for dialect in (sqlite.dialect(), postgresql.dialect())
    ]


@given(trees)
@settings(max_examples=150, deadline=None)
def test_what_a_user_writes_never_reaches_sql(text: str) -> None:
    for sql in shown(text):
        assert (
            MARKER not in sql
            and "DROP" not in sql
            and "'" not in sql.replace("ESCAPE '\\'", "").replace("ESCAPE '\\\\'", "")
        )


@given(st.text(max_size=80))
@settings(max_examples=150, deadline=None)
def test_any_text_is_read_or_refused(text: str) -> None:
    shown(text)


OF_RUNS = ["name", "created", "reward_spec", "verifier", "dataset", "env.git_commit", "checkpoint", "priority",
           *(f'{kind}."{MARKER} or 1=1; --"' for kind in ("tags", "params", "metrics")), f"metrics.{MARKER}.max"]  # fmt: skip
OF_ROLLOUTS = ["id", "step", "status", "text", "reward", "baseline", "advantage", f'verdicts."{MARKER}\'".status',
               f"verdicts.{MARKER}.score"]  # fmt: skip


def _of(names: list[str]) -> st.SearchStrategy[str]:
    signs = st.sampled_from(["=", "!=", "<", ">=", ":", " LIKE "])
    term = st.tuples(st.sampled_from(names), signs, values).map("".join)
    listed = st.tuples(st.sampled_from(names), values, values).map(lambda t: f"{t[0]} IN [{t[1]}, {t[2]}]")
    return st.lists(term | listed | (term | listed).map("NOT ({})".format), min_size=1, max_size=3).map(" OR ".join)


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory):
    store = Store.open(None, tmp_path_factory.mktemp("home"))
    with store.engine.connect() as connection:
        yield connection
    store.close()


@given(_of(OF_RUNS), _of(OF_ROLLOUTS), st.lists(st.sampled_from(OF_RUNS + OF_ROLLOUTS), max_size=4).map(",".join))
@settings(max_examples=100, deadline=None)
def test_nor_in_the_filters_and_orders_of_runs_and_rollouts(
    connection: sa.Connection, of_runs: str, of_rollouts: str, order: str
) -> None:
    """As the routes compile them; on SQLite and PostgreSQL, and as DuckDB reads PostgreSQL's."""

    def runs() -> list[sa.ClauseElement]:
        tree = parse(of_runs)
        assert tree is not None
        return [find.compiled(connection, search._where(tree, of_runs))]

    def rollouts() -> list[sa.ClauseElement]:
        condition = compile_filter(of_rollouts, reader.FIELDS)
        return [] if condition is None else [condition]

    def ordered() -> list[sa.ClauseElement]:
        return ordering(filters.compile_order(order, reader.FIELDS, default=[], last=Key(sa.column("row"), False)))

    def ordered_runs() -> list[sa.ClauseElement]:
        return ordering(find._keys(connection, search._order(order) or [find.Order()])[0])

    for make in (runs, rollouts, ordered, ordered_runs):
        try:
            made = make()
        except Problem as problem:
            assert problem.status == 400
            continue
        except ConfigError:  # which the route tells as a bad filter or order
            continue
        for dialect in (sqlite.dialect(), postgresql.dialect()):
            for clause in made:
                sql = str(clause.compile(dialect=dialect, compile_kwargs={"render_postcompile": True}))
                assert MARKER not in sql and "DROP" not in sql and "1=1" not in sql


def test_a_statement_that_takes_too_long_is_ended(database_url: str, tmp_path: Path) -> None:
    store = Store.open(database_url, tmp_path)
    many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000000) SELECT count(*) FROM n"
    for ask in (
        lambda c: c.execute(sa.text(many)),
        lambda c: c.connection.driver_connection.execute(many).fetchall(),  # as a page of values is read
    ):
        with pytest.raises(Problem) as caught, search.bounded(store, 0.1) as connection:
            ask(connection)
        assert (caught.value.kind, caught.value.status) == ("query-too-slow", 503)
        assert "0.1 s" in caught.value.detail and "SELECT" not in caught.value.detail
    with search.bounded(store, 5) as connection:  # the limit went with its statement
        assert connection.execute(sa.text(many.replace("100000000", "50000"))).scalar_one() == 50000
    store.close()


def test_without_a_value_the_sql_is_the_same_whatever_the_value() -> None:
    assert shown("name = 'a' AND n > 1") == shown("name = '); DELETE FROM row' AND n > 2e3")


# ---- order and pages ----


@given(
    st.lists(st.tuples(st.sampled_from([None, "a", "b", "c"]), st.sampled_from([None, 0.5, 1.5])), max_size=12),
    st.booleans(), st.booleans(), st.integers(1, 5),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_pages_by_keys_are_the_whole_in_order(rows: list, down_name: bool, down_n: bool, size: int) -> None:
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE row(pk INTEGER, name TEXT, n REAL, at INTEGER)")
    db.executemany("INSERT INTO row VALUES (?, ?, ?, 0)", [(pk, *row) for pk, row in enumerate(rows)])
    keys = [Key(ROW.c.name, down_name), Key(ROW.c.n, down_n), Key(ROW.c.pk, False)]

    def page(mark: list | None, limit: int) -> list:
        query = sa.select(ROW.c.name, ROW.c.n, ROW.c.pk).order_by(*ordering(keys)).limit(limit)
        query = query if mark is None else query.where(after(keys, mark))
        compiled = query.compile(
            dialect=sqlite.dialect(paramstyle="qmark"), compile_kwargs={"render_postcompile": True}
        )
        return db.execute(str(compiled), [compiled.params[k] for k in compiled.positiontup]).fetchall()

    seen: list = []
    while got := page(list(seen[-1]) if seen else None, size):
        seen += got
    assert seen == page(None, 100) and len(seen) == len(rows)
    names = [name for name, _, _ in seen]
    assert names == sorted((n for n in names if n is not None), reverse=down_name) + [None] * names.count(None)
    db.close()


def test_an_order_is_read_or_refused() -> None:
    last = Key(ROW.c.pk, True)
    keys = filters.compile_order("name desc, n", FIELDS, default=[], last=last)
    assert [(k.column.key, k.descending) for k in keys] == [("name", True), ("n", False), ("pk", True)]
    assert filters.compile_order("", FIELDS, default=[Key(ROW.c.at, True)], last=last)[0].column.key == "at"
    for text in ("nope", "name desc desc", "name,,n", "name; n", "name, n, at, name, n"):
        with pytest.raises(Problem) as caught:
            filters.compile_order(text, FIELDS, default=[], last=last)
        assert caught.value.kind == "bad-order"
