"""A trainer's record through the service: the same facts as without it; spooled while it is away, and refused once fenced."""

from __future__ import annotations

import asyncio
import http.client
import json
import math
import re
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jurat.api.server.service import Settings
from jurat.platform import access
from jurat.platform.recipe import Recipe
from jurat.platform.runs import events, leases
from jurat.platform.runs.ledger import RunLedger
from jurat.platform.runs.records import Lease, RunInfo
from jurat.platform.runs.remote import ServiceFacts, facts_through
from jurat.platform.runs.spool import Spool
from jurat.platform.runs.store import Store
from jurat.platform.types import Evaluation, StepReport
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
    of = {"segment": 0, "at": 1}
    digest = "sha256:" + "0" * 64
    kept = str(run.folder / "checkpoints" / "main" / "step-1")
    estimate = {"value": 0.5, "low": 0.1, "high": "inf"}
    result = {name: None for name in Evaluation.__slots__} | {
        "name": "e",
        "step": 0,
        "pass_at": {"1": estimate},
        "members": {},
        "losses": {},
    }
    good: dict[str, dict[str, Any]] = {
        "metric": {**of, "step": 1, "name": "x", "value": 1.0},
        "event": {**of, "uid": "u", "kind": "noted", "payload": {}},
        "part": {**of, "step_min": 0, "step_max": 0, "rows": 1, "bytes": 1, "schema_version": 1, "kind": "rollout",
                 "path": "rollouts/main/a.parquet", "digest": digest},
        "index": {"path": "rollouts/main/a.parquet", "statuses": {"": 1}, "ids": "A" * 43 + "="},
        "verdicts": {**of, "step": 0, "member": "m", "verifier": "v", "version_digest": "", "n": 1, "scored": 1,
                     "score_sum": 1.0, "seconds_sum": 0, "seconds_max": 0.5, "statuses": {"correct": 1}},
        "checkpoint": {**of, "step": 1, "digest": digest, "parent": "", "path": kept, "meta": {}},
        "evaluation": {**of, "step": 0, "name": "e", "accuracy": None, "result": result},
        "end": {**of, "ending": "ended"},
    }  # fmt: skip
    del good["verdicts"]["at"]
    wrong: list[dict[str, Any]] = [{"op": "drop"}, {}, {"op": 5}, {"op": ["metric"]}]
    for kind, fact in good.items():
        wrong += [{"op": kind}, {"op": kind, **fact, "run_pk": 1}, {"op": kind, **fact, "x; DROP TABLE run": 1}]
        for name in fact:
            values: list[Any] = [[], {"a": []}, True, 1.5, "\ud800"]
            if name in ("payload", "meta", "accuracy"):
                values = [[], True, "x"]
            elif (kind == "metric" and name == "value") or (name.endswith(("_sum", "_max")) and kind == "verdicts"):
                values = [[], {}, True, None, "many"]
            wrong += [{"op": kind, **fact, name: value} for value in values]
            wrong += [{"op": kind, **{n: v for n, v in fact.items() if n != name}}]
    for kind, name, values in (
        ("metric", "segment", [5]), ("metric", "step", [-1, 1 << 62]), ("metric", "name", ["", "x" * 300]),
        ("event", "kind", sorted(events.OWN)), ("event", "uid", ["", "x" * 300]), ("event", "payload", ["x", [1]]),
        ("part", "path", ["../../etc/passwd", "/etc/passwd", "a/./b", "a//b", "a/..b"]), ("part", "digest", ["md5:1"]),
        ("part", "kind", ["x"]), ("index", "ids", ["", "AA==", "?"]), ("index", "statuses", [{"": -1}, {"": "1"}]),
        ("checkpoint", "path", ["/etc", f"{kept}/../../../../x", str(run.folder), "checkpoints/x", "\x00"]),
        ("checkpoint", "digest", ["sha256:x"]), ("evaluation", "result", [{}, {"pass_at": 1}]),
    ):  # fmt: skip
        wrong += [{"op": kind, **good[kind], name: value} for value in values]
    client = http.client.HTTPConnection("127.0.0.1", each.port, timeout=20)
    for op in wrong:
        client.request(
            "POST", "/api/v1/runs/r/facts", json.dumps({"ops": [op]}), {**mine, "Content-Type": "application/json"}
        )
        answer = client.getresponse()
        body = answer.read()
        assert answer.status == 422, (op, body)
        assert b"INSERT" not in body and b"run_pk" not in body
    client.close()
    assert len(wrong) > 250 and store.metrics(run) == [] and store.evaluations(run) == [] and store.parts(run) == []
    ops = [{"op": kind, **fact} for kind, fact in good.items()]
    assert each.ask("POST", "/api/v1/runs/r/facts", {"ops": ops}, mine)[0] == 200
    assert (
        each.ask("POST", "/api/v1/runs/r/facts", {"ops": []})[0] == 403
    )  # also where the service is open: who holds it?
    assert [part.path for part in store.parts(run)] == ["rollouts/main/a.parquet"]
    assert [saved.ref.path for saved in store.checkpoints(run)] == [kept]


def test_the_store_owns_what_it_adds() -> None:
    root = Path(events.__file__).parents[2]
    said = "".join(path.read_text() for room in ("platform", "api", "trainers") for path in (root / room).rglob("*.py"))
    added = set(re.findall(r'events\.add\(\s*\w+, [\w.\["\]]+, "(\w+)"', said))
    assert added == events.OWN - {"sealing", "sealed", "canary_drift", "nondeterministic"}  # which are named elsewhere


def test_a_process_finds_the_service_of_its_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
