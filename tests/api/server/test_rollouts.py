"""Rollouts over HTTP: pages, look-ups and counts against the same rows in Python; what the worker refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jurat.api.server import reader
from jurat.api.server.problems import Problem
from jurat.platform.recipe import Recipe
from jurat.platform.runs import ledger, rollouts
from jurat.platform.runs.records import RunInfo
from services import Served

STEPS, ROWS = 6, 7
Row = dict[str, Any]


def _row(segment: int, step: int, index: int) -> Row:
    drawn = np.random.default_rng([segment, step, index])
    reward = [None, 0.0, 0.5, 1.0][int(drawn.integers(4))]
    return {
        "rollout_id": f"{step}-{index}-{segment}", "run_id": "r", "stage": "grpo", "segment": segment, "step": step,
        "position": step, "problem_id": "p", "visit": 0, "index": index, "baseline": False, "trainable": True,
        "prompt_tokens": 2, "completion_tokens": int(drawn.integers(1, 9)), "finish": "stop", "reward": reward,
        "status": [None, "correct", "incorrect"][int(drawn.integers(3))], "text": f"it's {step}",
    }  # fmt: skip


@pytest.fixture
def recorded(each: Served) -> tuple[RunInfo, list[Row]]:
    """Steps 0 to 5 in segment 0, taken up again at 3 by segment 1. The part of step 1 has no index, that of step 2 lacks a
    column, as parts of before; nothing was learnt in step 4."""
    store = each.service.store
    value = {"name": "t", "model": "tiny-random", "data": {"train": {"source": "generated"}}}
    made = Recipe.model_validate(value)
    run = store.create_run(recipe=made, recipe_digest="", reward_digest="", meta={}, run_id="r")
    rows, ops = [], []
    for segment, first in ((0, 0), (1, 3)):
        store.start_segment(run, stage="grpo", first_step=first)
        for step in range(first, STEPS):
            some = [_row(segment, step, index) for index in range(ROWS)]
            table = pa.Table.from_pylist(some, schema=rollouts.SCHEMA)
            table = table.drop_columns(["seconds"]) if step == 2 else table
            place = {"segment": segment, "step": step, "at": 0}
            path, digest, size = rollouts.write_part(run.folder, table, rollouts.part_name("grpo", step, segment))
            ops.append({"op": "part", **rollouts.part_row(path, digest, size, rows=ROWS, **place)})
            if step != 1:
                ids, said = [row["rollout_id"] for row in some], [row["status"] for row in some]
                ops.append({"op": "index", **rollouts.index_row(path, ids, said)})
            if step != 4:
                of = {row["rollout_id"]: np.full(3, row["index"] - 3, np.float32) for row in some if row["reward"]}
                of[some[0]["rollout_id"]] = np.array([0.5, -1.0], np.float32)  # credit by token
                table = rollouts.advantage_table(rollouts.Advantages(step=step, of=of), segment=segment)
                name = rollouts.part_name("grpo", step, segment, "advantage")
                path, digest, size = rollouts.write_part(run.folder, table, name)
                part = rollouts.part_row(path, digest, size, rows=len(of), kind="advantage", **place)
                ops.append({"op": "part", **part})
                for row in some:
                    row["advantage"] = float(of[row["rollout_id"]].mean()) if row["rollout_id"] in of else None
            if segment == 1 or step < 3:
                rows += some
    store.write(lambda connection: ledger.insert(connection, run.pk, ops, epoch=None))
    return run, rows


def _pages(each: Served, **asked: Any) -> list[Row]:
    found: list[Row] = []
    token = ""
    while token is not None:
        status, _, said = each.ask(
            "GET", f"/api/v1/runs/r/rollouts?{urlencode(asked | ({'page_token': token} if token else {}))}"
        )
        assert status == 200 and said["faults"] == [], said
        assert len(said["rollouts"]) <= int(asked["page_size"])
        found += said["rollouts"]
        token = said["next_page_token"]
    return found


def _last(value: float | None, sign: int) -> tuple[bool, float]:
    return value is None, sign * (value or 0)


ORDERS = {
    "trained": lambda row: 0,
    "worst": lambda row: (_last(row["reward"], 1), -row["step"], row["position"], row["index"]),
    "completion_tokens desc, reward": lambda row: (-row["completion_tokens"], _last(row["reward"], 1)),
    "advantage desc": lambda row: _last(row.get("advantage"), -1),
}
FILTERS = {
    "": lambda row: True,
    "status = correct AND step >= 2": lambda row: row["status"] == "correct" and row["step"] >= 2,
    'step > 0 AND (step < 3 AND text : "IT\'S")': lambda row: 0 < row["step"] < 3,
    "NOT step = 1 AND status = null": lambda row: row["step"] != 1 and row["status"] is None,
    "advantage > -2.5 AND step != 0": lambda row: (
        row.get("advantage") is not None and row["advantage"] > -2.5 and row["step"] != 0
    ),
}


def test_pages_and_counts_are_the_rows(each: Served, recorded: tuple[RunInfo, list[Row]]) -> None:
    _, rows = recorded
    for place, (text, keeps) in enumerate(FILTERS.items()):
        kept = [row for row in rows if keeps(row)]
        for order, key in ORDERS.items():
            found = _pages(each, order_by=order, filter=text, page_size=4 + 9 * place)
            expected = sorted(kept, key=key)
            assert [row["id"] for row in found] == [row["rollout_id"] for row in expected], (text, order)
            assert [row["advantage"] for row in found] == [row.get("advantage") for row in expected]
        status, _, said = each.ask("GET", f"/api/v1/runs/r/rollouts:count?{urlencode({'filter': text})}")
        told = [row["status"] or "unjudged" for row in kept]
        assert (status, said) == (
            200, {"counts": {name: told.count(name) for name in sorted(set(told), key=lambda n: (n != "unjudged", n))},
                  "total": len(kept)},
        )  # fmt: skip
    only = _pages(each, step=3, page_size=200, fields="text,reward")
    assert only[0].keys() == {"id", "text", "reward"} and [row["id"][0] for row in only] == ["3"] * ROWS
    token = each.ask("GET", "/api/v1/runs/r/rollouts?page_size=2&step=3")[2]["next_page_token"]
    status, _, said = each.ask("GET", f"/api/v1/runs/r/rollouts?page_size=2&step=2&page_token={token}")
    assert (status, said["type"]) == (400, "/problems/bad-page-token")


def test_only_parts_that_can_match_are_opened(each: Served, recorded: tuple[RunInfo, list[Row]]) -> None:
    run, rows = recorded
    row = next(row for row in rows if row["step"] == 5 and row["index"] == 0)
    status, _, whole = each.ask("GET", f"/api/v1/runs/r/rollouts/{row['rollout_id']}")
    assert (status, whole["text"], whole["advantage"], whole["advantages"]) == (200, "it's 5", -0.25, [0.5, -1.0])
    flat = next(row for row in rows if row["step"] == 5 and row.get("advantage") and row["index"])
    found = each.ask("GET", f"/api/v1/runs/r/rollouts/{flat['rollout_id']}")[2]
    assert (found["advantage"], found["advantages"]) == (flat["advantage"], None)
    assert each.ask("GET", "/api/v1/runs/r/rollouts/5-0-0")[0] == 404  # of the attempt that was superseded
    assert [part.step_min for part in each.service.store.parts(run, holding=row["rollout_id"])] == [1, 5]
    for path in (run.folder / "rollouts/grpo").iterdir():
        if "step-000005-seg1" not in path.name:
            path.write_bytes(b"damaged")
    assert each.ask("GET", f"/api/v1/runs/r/rollouts?{urlencode({'filter': 'step >= 5 and step < 9'})}")[0] == 200
    assert each.ask("GET", "/api/v1/runs/r/rollouts?step=5")[0] == 200
    said = each.ask("GET", "/api/v1/runs/r/rollouts?page_size=1")[2]
    assert said["type"] == "/problems/unavailable" and str(run.folder) not in str(said)
    (run.folder / "rollouts/grpo/step-000001-seg0.parquet").unlink()  # it has no index: it is opened if it is there
    assert each.ask("GET", f"/api/v1/runs/r/rollouts/{row['rollout_id']}")[2] == whole
    assert each.ask("GET", "/api/v1/runs/r/rollouts:count")[2]["total"] == len(rows) - ROWS


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('/etc/passwd')", "SELECT * FROM read_text('{outside}')", "FROM '{outside}'",
        "SELECT * FROM read_parquet('{folder}/../other/rollouts/x.parquet')", "SELECT * FROM glob('/etc/*')",
        "COPY (SELECT 1) TO '{folder}/rollouts/x.csv'", "ATTACH '{folder}/rollouts/x.db'", "INSTALL httpfs",
        "LOAD httpfs", "SET threads = 8", "SELECT 1; COPY (SELECT 1) TO '{folder}/rollouts/x.csv'",
        "PRAGMA database_list", "CREATE TABLE x AS SELECT 1", "EXPORT DATABASE '{folder}/rollouts'",
        "SELECT * FROM read_parquet('https://127.0.0.1/x.parquet')", "SELECT getenv('HOME')",
    ],
)  # fmt: skip
def test_the_worker_refuses_all_but_parts(tmp_path: Path, sql: str) -> None:
    outside, folder = tmp_path / "other" / "rollouts" / "x.parquet", tmp_path / "run"
    outside.parent.mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), outside)
    (folder / "rollouts").mkdir(parents=True)
    asked = {"sql": sql.format(outside=outside, folder=folder), "parameters": [], "files": [], "advantages": []}
    connection = reader.opened(str(folder), "100MB")
    said = reader.answer(asked, connection)
    connection.close()
    assert said.keys() == {"error"}
    assert list((folder / "rollouts").iterdir()) == []


def test_a_query_that_takes_too_long_or_too_much_ends_with_its_worker(tmp_path: Path) -> None:
    asked = {"parameters": [], "folder": str(tmp_path), "files": [], "advantages": []}
    slow = reader.Reader(workers=1, memory="50MB")
    try:
        assert slow.send({**asked, "sql": "SELECT 1 AS one"}) == [{"one": 1}]
        for sql, kind, status in (
            ("SELECT count(*) FROM range(1000000000000) a", "query-too-slow", 503),
            ("SELECT list(range) FROM range(100000000)", "unavailable", 503),
        ):
            with pytest.raises(Problem) as caught:
                slow.send({**asked, "sql": sql}, 0.3 if kind == "query-too-slow" else None)
            assert (caught.value.kind, caught.value.status) == (kind, status)
            assert slow.send({**asked, "sql": "SELECT 2 AS two"}) == [{"two": 2}]  # the next one has a worker
    finally:
        slow.close()
