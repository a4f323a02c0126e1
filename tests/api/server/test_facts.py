"""A trainer's record through the service: the same facts as without it; spooled while it is away, and refused once fenced."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jurat.api.server.service import Settings
from jurat.platform import access
from jurat.platform.recipe import Recipe
from jurat.platform.runs import leases
from jurat.platform.runs.ledger import RunLedger
from jurat.platform.runs.records import Lease, RunInfo
from jurat.platform.runs.remote import ServiceFacts, facts_through
from jurat.platform.runs.spool import Spool
from jurat.platform.runs.store import Store
from jurat.platform.types import StepReport
from services import Served, listening


@pytest.fixture
def begun(each: Served) -> Callable[[], tuple[Store, RunInfo, Lease, str]]:
    """A run that is held, and its token."""

    def make() -> tuple[Store, RunInfo, Lease, str]:
        store = each.service.store
        value = {"name": "t", "model": "tiny-random", "data": {"train": {"source": "generated"}}}
        run = store.create_run(
            recipe=Recipe.model_validate(value), recipe_digest="", reward_digest="", meta={}, run_id="r"
        )
        lease = store.write(lambda c: leases.take(c, run.pk, "me"))
        token = store.write(lambda c: access.make_key(c, "t", [], run_id="r", epoch=lease.epoch))[1]
        return store, store.run("r"), lease, token

    return make


def report(step: int) -> StepReport:
    return StepReport(
        step=step, version=step + 1, metrics={"x": float(step), "nan": math.nan, "inf": math.inf}, updates=()
    )


def test_facts_arrive_by_the_service(each: Served, begun: Any) -> None:
    store, run, lease, token = begun()
    segment = store.start_segment(run, first_step=0)
    commits = each.service.writer.commits
    ledger = RunLedger(store, run, "", segment, run.folder, lease=lease, through=ServiceFacts(each.url, token, "r"))
    for step in range(3):
        ledger.record_step(report(step))
    ledger.record_event("noted", {"why": "so \ud800", "x": math.nan})
    asyncio.run(ledger.flush())
    assert each.service.writer.commits > commits
    values = {(p.step, p.name): p.value for p in store.metrics(run)}
    assert values[2, "x"] == 2.0 and math.isnan(values[0, "nan"]) and values[1, "inf"] == math.inf
    assert store.events(run)[-1].payload == {"why": "so \\ud800", "x": "nan"}
    store.write(lambda c: leases.move(c, run.pk, "lost"))
    ledger.record_step(report(3))
    ledger.flush_now(10)
    assert ledger.health().fenced > 0 and ledger.health().lost == 0
    ledger.close()
    assert (3, "x") not in {(p.step, p.name) for p in store.metrics(run)}


def test_a_service_that_is_away_costs_nothing(tmp_path: Path) -> None:
    store = Store.open(None, tmp_path)
    value = {"name": "t", "model": "tiny-random", "data": {"train": {"source": "generated"}}}
    run = store.create_run(recipe=Recipe.model_validate(value), recipe_digest="", reward_digest="", meta={}, run_id="r")
    lease = store.write(lambda c: leases.take(c, run.pk, "me"))
    token = store.write(lambda c: access.make_key(c, "t", [], run_id="r", epoch=lease.epoch))[1]
    segment = store.start_segment(run, first_step=0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nowhere = f"http://127.0.0.1:{taken.getsockname()[1]}"
    facts = ServiceFacts(nowhere, token, "r")
    ledger = RunLedger(store, run, "", segment, run.folder, lease=lease, through=facts, retry_seconds=0.05)
    for step in range(5):
        ledger.record_step(report(step))
    ledger.flush_now(10)
    assert ledger.health().spooled == 15 and store.metrics(run) == []  # kept beside the run
    with listening(Settings(home=tmp_path)) as served:
        facts._netloc = f"127.0.0.1:{served.port}"
        ledger.record_step(report(5))
        while not ledger.health().spooled or not Spool.of(run.folder).empty():
            ledger.flush_now(10)  # asks the spool alone until the service is to be tried again
        ledger.flush_now(10)
        assert [p.step for p in store.metrics(run, names=["x"])] == list(range(6))
        outage = store.events(run)[-1]
        assert outage.kind == "tracking_outage" and outage.payload["lost"] == 0
        assert outage.payload["spooled"] == ledger.health().spooled
    ledger.record_step(report(6))
    ledger.close()  # it is away again, and this was the last chance: the process writes itself
    assert len(store.metrics(run, names=["x"])) == 7 and ledger.health().lost == 0
    assert store.segments(run)[0].ended is not None
    store.close()


def test_what_is_no_fact_is_refused(each: Served, begun: Any) -> None:
    store, run, _, token = begun()
    store.start_segment(run, first_step=0)
    mine = {"Authorization": f"Bearer {token}"}
    place = {
        "segment": 0,
        "step_min": 0,
        "step_max": 0,
        "rows": 1,
        "bytes": 1,
        "schema_version": 1,
        "at": 1,
        "kind": "rollout",
    }
    good = {"op": "part", **place, "path": "rollouts/main/a.parquet", "digest": "sha256:" + "0" * 64}
    for op in (
        {"op": "drop"}, {}, {"op": "metric"},
        {"op": "metric", "segment": 5, "step": 0, "at": 1, "name": "x", "value": 1.0}, {"op": "event", "uid": []},
        *({"op": "index", "path": "x", "statuses": {}, "ids": ids} for ids in ("", "AA==", "?", None)),
        *({"op": "index", "path": "x", "statuses": n, "ids": "A" * 43 + "="} for n in ([], {"": -1}, {"": "1"}, {"": True})),
        {"op": "part", "x": 1}, {**good, "path": "../../etc/passwd"}, {**good, "path": "/etc/passwd"},
        {**good, "path": "a/./b"}, {**good, "path": "a//b"},
        {**good, "digest": "md5:1"}, {**good, "run_pk": 99, "extra; DROP TABLE run": 1},
        {"op": "metric", "segment": 0, "step": 0, "at": 1, "name": "x", "value": "many"},
        {"op": "end", "segment": 0}, {"op": 5}, {**good, "run_pk": 1}, {**good, "path": None},
        {**good, "path": "a/..b"},
        {"op": "event", "uid": "u", "segment": 0, "at": 1, "kind": "k", "payload": {}, "run_pk": 1},
    ):  # fmt: skip
        status, _, body = each.ask("POST", "/api/v1/runs/r/facts", {"ops": [op]}, mine)
        assert status == 422, (op, body)
        assert "INSERT" not in str(body) and "run_pk" not in str(body)
    assert each.ask("POST", "/api/v1/runs/r/facts", {"ops": [good]}, mine)[0] == 200
    assert (
        each.ask("POST", "/api/v1/runs/r/facts", {"ops": []})[0] == 403
    )  # also where the service is open: who holds it?
    assert [part.path for part in store.parts(run)] == ["rollouts/main/a.parquet"]


def test_a_process_finds_the_service_of_its_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    from jurat.platform.runs.lock import exclusive

    with closing(Store.open(None, tmp_path)) as store:
        value = {"name": "t", "model": "tiny-random", "data": {"train": {"source": "generated"}}}
        run = store.create_run(
            recipe=Recipe.model_validate(value), recipe_digest="", reward_digest="", meta={}, run_id="r"
        )
        lease = store.write(lambda c: leases.take(c, run.pk, "me"))
        assert facts_through(store, lease) is None
        folder = tmp_path / "service"
        folder.mkdir()
        said = {"url": "http://127.0.0.1:1", "database": str(store.engine.url)}
        (folder / "url.json").write_text(json.dumps(said))
        assert facts_through(store, lease) is None  # nobody holds it: the file is a leftover
        with exclusive(folder):
            assert isinstance(facts_through(store, lease), ServiceFacts)
            (folder / "url.json").write_text(json.dumps({**said, "database": "sqlite:////elsewhere"}))
            assert facts_through(store, lease) is None
        monkeypatch.setenv("JURAT_SERVICE", "http://127.0.0.1:1")
        monkeypatch.setenv("JURAT_RUN_TOKEN", "t")
        assert isinstance(facts_through(store, lease), ServiceFacts)
