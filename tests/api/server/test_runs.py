"""Runs over HTTP, on both databases: made once, found, changed by version, asked; metrics in and out; the stream."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from jurat.api.server import routes_stream
from jurat.api.server.service import Service
from jurat.client import Client, ServiceError
from jurat.platform.db.writer import Busy
from jurat.platform.errors import ConfigError
from jurat.platform.provenance import versions
from jurat.platform.provenance.records import VerifierFacts
from jurat.platform.recipe import Member, RewardPart
from jurat.platform.runs import events, leases
from jurat.verifiers.judge import LocalJudge
from services import Served

TINY = {"recipe": "tiny", "config": {"seed": 7}}


def test_a_run_is_made_found_changed_and_hidden(each: Served) -> None:
    status, headers, run = each.ask(
        "POST", "/api/v1/runs", {**TINY, "id": "a-run", "project": "math", "tags": {"owner": "ada", "size": "3"}}
    )
    assert (status, headers["location"], headers["etag"]) == (201, "/api/v1/runs/a-run", '"1"')
    assert (run["state"], run["name"], run["project"], run["tags"]) == (
        "queued",
        "tiny",
        "math",
        {"owner": "ada", "size": "3"},
    )
    assert "recipe" not in run and "metrics" not in run
    assert each.ask("POST", "/api/v1/runs", {**TINY, "id": "a-run"})[0] == 409

    whole = each.ask("GET", "/api/v1/runs/a-run?fields=recipe,state")[2]
    assert (
        set(whole) == {"id", "recipe", "state"}
        and whole["recipe"]["seed"] == 7
        and whole["recipe"]["tracking"]["database"] is None
    )
    assert each.ask("GET", "/api/v1/runs/a-run", headers={"If-None-Match": 'W/"1"'})[0] == 304
    assert each.ask("GET", "/api/v1/runs/a-ru")[0] == 404  # over HTTP an id is whole

    assert each.ask("PATCH", "/api/v1/runs/a-run", {"priority": 5})[2]["type"] == "/problems/version-required"
    status, _, changed = each.ask(
        "PATCH", "/api/v1/runs/a-run", {"priority": 5, "tags": {"owner": None, "good": "yes"}}, {"If-Match": '"1"'}
    )
    assert (status, changed["version"], changed["priority"], changed["tags"]) == (
        200,
        2,
        5,
        {"good": "yes", "size": "3"},
    )
    status, headers, problem = each.ask("PATCH", "/api/v1/runs/a-run", {"priority": 6}, {"If-Match": '"1"'})
    assert (status, problem["type"], headers["etag"]) == (412, "/problems/stale-version", '"2"')
    assert each.ask("PATCH", "/api/v1/runs/a-run", {"state": "finished"}, {"If-Match": '"2"'})[0] == 422

    assert each.ask("DELETE", "/api/v1/runs/a-run", headers={"If-Match": '"2"'})[0] == 409  # it is queued
    status, headers, cancelled = each.ask("POST", "/api/v1/runs/a-run:cancel")
    assert (status, cancelled["state"]) == (200, "cancelled")
    assert each.ask("POST", "/api/v1/runs/a-run:cancel")[0] == 200  # once more changes nothing
    assert each.ask("POST", "/api/v1/runs/a-run:resume")[2]["type"] == "/problems/conflict"  # it is over for good
    assert each.ask("DELETE", "/api/v1/runs/a-run", headers={"If-Match": headers["etag"]})[0] == 204
    assert each.ask("GET", "/api/v1/runs/a-run")[0] == 404 and each.ask("GET", "/api/v1/runs")[2]["runs"] == []


def test_an_empty_body_is_none(served: Served) -> None:
    run = served.ask("POST", "/api/v1/runs", TINY)[2]["id"]
    for kind in ("application/json", "application/x-www-form-urlencoded"):  # as curl -d '' has it
        assert served.ask("POST", f"/api/v1/runs/{run}:cancel", raw=b"", headers={"Content-Type": kind})[0] == 200
    status, _, problem = served.ask("POST", "/api/v1/runs", raw=b"")
    assert (status, problem["detail"]) == (422, "the body: Field required")


def test_what_is_misspelt_is_told(served: Served) -> None:
    """A parameter that is not there, and a value that its field never has, would else find all or nothing."""
    run = served.ask("POST", "/api/v1/runs", TINY)[2]["id"]
    for query, said in (
        ("?filtre=state=running", "no parameter 'filtre'. Did you mean 'filter'?"),
        (f"/{run}?metrics=x&field=state", "no parameter 'field'. Did you mean 'fields'?"),
        (f"/{run}/commands?page=2", "no parameter 'page'. It takes none."),
        ("?filter=state=finnished", "Did you mean 'finished'?"),
        ("?filter=state%20IN%20[failed,%20runing]", "Did you mean 'running'?"),
        (f"/{run}/rollouts?filter=status=corect", "Did you mean 'correct'?"),
        (f"/{run}/rollouts?filter=verdicts.math.status!=timeuot", "Did you mean 'timeout'?"),
        (f"/{run}/rollouts?filter=finish=lenght", "Did you mean 'length'?"),
    ):
        status, _, problem = served.ask("GET", f"/api/v1/runs{query}")
        assert status == 400 and said in problem["detail"], (query, problem)
    assert served.ask("GET", "/api/v1/runs?filter=state:runn")[0] == 200  # a part of a value may be any
    assert served.ask("POST", f"/api/v1/runs/{run}:cancel?force=1")[0] == 400
    assert served.ask("GET", f"/api/v1/runs/{run}")[2]["state"] == "queued"


def test_a_quarantined_verifier_is_not_launched(each: Served) -> None:
    """Refused at the door: by what is installed here, whatever else of its name is quarantined."""
    with LocalJudge(RewardPart(members=(Member(use="math"),)), spares=0, cache=0) as judge:
        bound = judge.bind()["math"]
        said = judge.identity("math", {}, sources=False)
    parts = {key: said[key] for key in ("version", "code", "config", "deps", "weights", "abi", "kind")}
    facts = VerifierFacts(label="math", name="math", digest=bound.digest, args={}, **parts)
    old = replace(facts, digest="sha256:" + "0" * 64)
    store = each.service.store
    for one in (facts, old):
        store.write(lambda c, f=one: versions.register(c, f))
    store.write(lambda c: versions.set_status(c, old.digest, "quarantined", "it was mended since"))
    assert each.ask("POST", "/api/v1/runs", TINY)[0] == 201
    store.write(lambda c: versions.set_status(c, facts.digest, "quarantined", "accepts a wrong answer"))
    for asked in (TINY, {"recipe": "tiny", "config": {"reward.members": [{"use": "math"}]}}):
        status, _, problem = each.ask("POST", "/api/v1/runs", asked)
        assert (status, problem["type"]) == (409, "/problems/quarantined-verifier"), problem
        assert "math is installed here as version" in problem["detail"] and "accepts a wrong" in problem["detail"]
    client = each.client()
    assert (tainted := client.affected(facts.digest))["runs"] == [] and tainted["roots"][0]["id"] == facts.digest
    assert client.provenance("verifier_version", facts.digest, direction="forward")["roots"] == tainted["roots"]
    run = next(client.runs())["id"]
    assert client.segments(run) == [] and client.diff(run, run) and client.verify_run(run)["whole"]
    assert each.ask("GET", "/api/v1/runs?count=exact")[2]["total"] == 1
    store.write(lambda c: versions.set_status(c, facts.digest, "active", ""))
    assert [v["ordinal"] for v in client.verifier_versions("math")] == [2, 1]
    assert client.verify("math@1", [{"gold": "2", "completion": "It is 2"}])[0]["status"] == "correct"
    with pytest.raises(ConfigError, match="no version 'math@3'") as caught:
        client.verify("math@3", [])
    assert "math@2, math@1" in caught.value.fix
    with pytest.raises(ServiceError, match="quarantined"):
        client.verify("math", [{"gold": "2", "completion": "It is 2"}])  # the newest, which was left quarantined
    assert each.ask("POST", "/api/v1/runs", TINY)[0] == 201


def test_of_those_who_read_one_version_one_changes_it(each: Served) -> None:
    store, answers = each.service.store, list[int]()

    def change(method: str, body: Any, path: str, version: dict[str, str], ready: threading.Barrier) -> None:
        ready.wait(20)
        answers.append(each.ask(method, path, body, version)[0])

    for turn in range(4):
        path = f"/api/v1/runs/r{turn}"
        each.ask("POST", "/api/v1/runs", {**TINY, "id": f"r{turn}"})
        assert each.ask("POST", f"{path}:cancel")[0] == 200
        version, ready = {"If-Match": each.ask("GET", path)[1]["etag"]}, threading.Barrier(3)
        asked = [("DELETE", None), ("DELETE", None), ("PATCH", {"priority": 1})]
        racing = [threading.Thread(target=change, args=(*each_, path, version, ready)) for each_ in asked]
        answers.clear()
        [thread.start() for thread in racing]
        [thread.join() for thread in racing]
        first, *others = sorted(answers)
        assert first in (200, 204) and set(others) <= {404, 412}, answers
        said = [event.kind for event in store.events(store.run(f"r{turn}"))]
        assert said.count("deleted") == answers.count(204)


def test_an_idempotency_key_makes_one_run(each: Served) -> None:
    key = {"Idempotency-Key": "k-1"}
    first = each.ask("POST", "/api/v1/runs", TINY, key)
    again = each.ask("POST", "/api/v1/runs", TINY, key)
    assert first[0] == again[0] == 201 and first[2] == again[2]
    assert (
        "idempotent-replayed" not in first[1]
        and again[1]["idempotent-replayed"] == "true"
        and again[1]["etag"] == first[1]["etag"]
    )
    assert each.ask("POST", "/api/v1/runs", {**TINY, "priority": 1}, key)[2]["type"] == "/problems/key-reused"
    assert each.ask("POST", f"/api/v1/runs/{first[2]['id']}:pause", None, key)[0] == 422  # another route
    assert each.ask("POST", "/api/v1/runs", TINY, {"Idempotency-Key": "x" * 256})[0] == 422
    bad = {"Idempotency-Key": "k-2"}
    assert each.ask("POST", "/api/v1/runs", {"recipe": "nope"}, bad)[0] == 422
    assert each.ask("POST", "/api/v1/runs", {"recipe": "nope"}, bad)[0] == 422  # a refusal is not kept
    answers: list[int] = []
    racing = [
        threading.Thread(
            target=lambda: answers.append(each.ask("POST", "/api/v1/runs", TINY, {"Idempotency-Key": "k-3"})[0])
        )
        for _ in range(4)
    ]
    [thread.start() for thread in racing]
    [thread.join() for thread in racing]
    assert set(answers) <= {201, 409} and 201 in answers
    assert each.ask("GET", "/api/v1/runs?count=exact")[2]["total"] == 2


def test_a_run_whose_answer_was_lost_is_not_made_twice(each: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    key = {"Idempotency-Key": "k"}
    with monkeypatch.context() as patch:  # after the run was made, before its answer is kept
        patch.setattr(Service, "audit", lambda *_: (_ for _ in ()).throw(Busy("full", where="writer", fix="")))
        assert each.ask("POST", "/api/v1/runs", TINY, key)[0] == 429
    each.service.forget_open()  # as at the start of its next process
    again = each.ask("POST", "/api/v1/runs", TINY, key)
    assert again[0] == 201 and again[1]["idempotent-replayed"] == "true" and again[1]["etag"] == '"1"'
    assert [run["id"] for run in each.ask("GET", "/api/v1/runs")[2]["runs"]] == [again[2]["id"]]


def test_runs_are_found_by_filter_order_and_page(each: Served) -> None:
    client = each.client()
    for place in range(7):
        client.create_run(
            "tiny", {"seed": place}, id=f"r{place}", project="odd" if place % 2 else "even", tags={"n": str(place)}
        )
        client.log(f"r{place}", 0, {"reward/mean": place / 10, "kl": float("nan")})
        client.log(f"r{place}", 1, {"reward/mean": (7 - place) / 10})

    def ids(filter: str = "", **more: Any) -> list[str]:
        return [run["id"] for run in client.runs(filter, page_size=2, **more)]

    assert ids() == ["r6", "r5", "r4", "r3", "r2", "r1", "r0"]
    assert ids("project = odd AND NOT (tags.n = 3 OR params.seed = 5)") == ["r1"]
    assert ids("tags.n >= 5 or tags.n < 1") == ["r6", "r5", "r0"]
    assert ids(
        'metrics."reward/mean" > 0.45 AND metrics.reward/mean.max >= 0.6', order_by="metrics.reward/mean desc"
    ) == ["r0", "r1"]
    assert ids(order_by='metrics."reward/mean"') == ["r6", "r5", "r4", "r3", "r2", "r1", "r0"]
    assert ids("state IN [queued] and name : TIN and created > '2020-01-01'", order_by="id") == [
        f"r{n}" for n in range(7)
    ]
    assert ids(order_by="project desc, metrics.reward/mean, id desc") == ["r5", "r3", "r1", "r6", "r4", "r2", "r0"]
    client.log("r3", 2, {"reward/mean": float("inf")})
    client.log("r1", 2, {"reward/mean": float("-inf")})
    assert ids(order_by="project desc, metrics.reward/mean desc") == ["r3", "r5", "r1", "r0", "r2", "r4", "r6"]
    shown = next(client.runs("id IN [r1, r3]", order_by="id", metrics=["*"]))
    assert shown["metrics"] == {"kl": "NaN", "reward/mean": "-Infinity"}
    shown = next(client.runs("id = r2", fields=["state"], metrics=["reward/mean", "kl", "nope"]))
    assert shown == {"id": "r2", "state": "queued", "metrics": {"kl": "NaN", "reward/mean": 0.5}}
    assert each.ask("GET", "/api/v1/runs?filter=project%20=%20odd&count=exact&page_size=1")[2]["total"] == 3

    token = each.ask("GET", "/api/v1/runs?page_size=2")[2]["next_page_token"]
    client.create_run("tiny", id="r7")  # a page goes on where it was, whatever comes in
    assert [run["id"] for run in each.ask("GET", f"/api/v1/runs?page_size=2&page_token={token}")[2]["runs"]] == [
        "r4",
        "r3",
    ]
    for query in (
        f"page_size=3&page_token={token}",
        f"page_size=2&order_by=id&page_token={token}",
        f"page_size=2&page_token={token[:-2]}AA",
    ):
        assert each.ask("GET", f"/api/v1/runs?{query}")[2]["type"] == "/problems/bad-page-token"
    for query, kind in (("filter=nope=1", "bad-filter"), ("filter=created='never'", "bad-filter"),
    ("order_by=verifier", "bad-order"), ("order_by=id,nope", "bad-order"),
                        ("fields=secret", "invalid"), ("page_size=1001", "invalid"),
                        ("filter=metrics.x='a'", "bad-filter"), ("page_token=%00", "bad-request"),
                        ("filter=name='%00'", "bad-request")):  # fmt: skip
        assert each.ask("GET", f"/api/v1/runs?{query}")[2]["type"] == f"/problems/{kind}", query


def test_metrics_come_back_as_they_were_sent(each: Served) -> None:
    client = each.client()
    run = client.create_run("tiny")["id"]
    assert client.log_rows(run, [("loss", step, step / 2) for step in range(2500)]) == 2500
    assert client.log_rows(run, [("loss", step, -1.0) for step in range(2500)]) == 2500  # again: what is there stays
    assert [point["value"] for point in client.history(run, "loss")] == [step / 2 for step in range(2500)]
    page = each.ask("GET", f"/api/v1/runs/{run}/metrics/loss?from=10&to=12")[2]
    assert [(p["step"], p["value"]) for p in page["points"]] == [(10, 5.0), (11, 5.5), (12, 6.0)] and page[
        "next_page_token"
    ] is None
    buckets = client.history(run, "loss", max_points=10)
    assert (
        len(buckets) == 10
        and buckets[0]["min"] == 0.0
        and buckets[-1]["max"] == 1249.5
        and sum(b["count"] for b in buckets) == 2500
    )
    client.log(run, 0, {"a/b c": float("inf"), "nan": float("nan")})
    assert client.metrics(run)["a/b c"]["value"] == "Infinity" and client.history(run, "nan")[0]["value"] == "NaN"
    assert client.history(run, "a/b c")[0]["value"] == "Infinity" and client.history(run, "unknown") == []

    def post(body: Any, **more: Any) -> tuple[int, str]:
        status, _, answer = each.ask("POST", f"/api/v1/runs/{run}/metrics:batch", body, **more)
        return status, answer["type"].rpartition("/")[2]

    rows = [{"name": "x", "step": 0, "value": 1.0}]
    assert post({"rows": [*rows, {"name": "x", "step": -1, "value": 1.0}]}) == (422, "invalid")  # none of it
    assert post({"rows": [*rows, {"name": "", "step": 1, "value": 1.0}]}) == (422, "invalid")
    assert post({"rows": rows, "names": ["x"]}) == (422, "invalid")
    assert post({"names": ["x"], "steps": [0, 1], "values": [1.0]}) == (422, "invalid")
    assert post({"rows": rows, "segment": 9}) == (422, "invalid")
    assert post({"rows": [{"name": "x", "step": 0, "value": "high"}]}) == (422, "invalid")
    assert post({"rows": [{"name": "x", "step": 0, "value": True}]}) == (422, "invalid")
    assert post({"names": ["x"] * 10_001, "steps": list(range(10_001)), "values": [0.0] * 10_001}) == (422, "invalid")
    assert post({"names": [f"n{i}" for i in range(5001)], "steps": [0] * 5001, "values": [0.0] * 5001}) == (
        422,
        "invalid",
    )
    assert post(None, raw=b'{"rows":[{"name":"x","step":0,"value":NaN}]}') == (400, "bad-json")
    assert "x" not in client.metrics(run) and "n0" not in client.metrics(run)


def test_a_stream_is_resumed_where_it_was(each: Served) -> None:
    client, store = each.client(), each.service.store
    run = client.create_run("tiny")["id"]
    lease = store.write(lambda c: leases.claim(c, "me"))
    assert lease is not None and lease.run == run
    store.write(lambda c: leases.take(c, lease.run_pk, "me", epoch=lease.epoch))
    client.log(run, 0, {"x": 0.0, "y": 0.5})
    stream = client.stream(run, after="1--1--1")  # all that followed the making
    heard = [next(stream) for _ in range(3)]
    assert [(m.kind, m.data.get("values")) for m in heard if m.kind == "metrics"] == [("metrics", {"x": 0.0, "y": 0.5})]
    assert [m.data["payload"]["to"] for m in heard if m.kind == "state"] == ["starting", "running"]
    client.log(run, 1, {"x": 1.0})
    fourth = next(stream)
    assert (fourth.kind, fourth.data["step"], fourth.id) == ("metrics", 1, "3-0-1")
    stream.close()
    client.log(run, 2, {"x": 2.0})
    store.write(lambda c: leases.end(c, lease.run_pk, "finished", epoch=lease.epoch))
    rest = [(m.kind, m.data.get("step"), m.data.get("state")) for m in each.client().stream(run, after=fourth.id)]
    assert rest == [("metrics", 2, None), ("state", None, None), ("end", None, "finished")]
    assert [m.kind for m in each.client().stream(run)] == ["state", "end"]  # no history for who did not ask for it
    assert next(each.client().stream(run, after="999999-0-0")).kind == "resync"
    with pytest.raises(ServiceError, match="not an id"):
        next(each.client().stream(run, after="yesterday"))


def test_who_was_away_too_long_or_is_too_slow_reads_the_rest_itself(
    each: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_stream, "BACKLOG", 3)
    client = each.client()
    run = client.create_run("tiny")["id"]
    stream = client.stream(run)
    first = next(stream)
    assert (first.kind, first.data) == ("state", {"to": "queued"})
    for step in range(3):
        client.log(run, step, {"x": float(step)})
        assert next(stream).data["step"] == step
    assert [m.data["step"] for m in islice(client.stream(run, after="1-0-0"), 2)] == [1, 2]  # not older, not doubled
    client.log(run, 4, {"x": 4.0})
    assert next(stream).data["step"] == 4
    told = client.stream(run, after="1-0-0")  # step 4 is more than 3 after 0
    message = next(told)
    assert message.kind == "resync" and message.data["state"] == "queued"
    client.log(run, 5, {"x": 5.0})
    assert [m.data.get("step") for m in islice(told, 1)] == [5]  # and goes on from there
    stream.close(), told.close()
    assert next(client.stream(run, after="0--1--1")).kind == "resync"  # and so for who says that nothing was heard
    monkeypatch.setattr(routes_stream, "BACKLOG", 1000)
    client.log(run, 6, {f"y{i}": 0.0 for i in range(9)})
    monkeypatch.setattr(routes_stream, "POINTS", 8)
    assert next(client.stream(run, after="1-0-5")).kind == "resync"
    monkeypatch.setattr(routes_stream, "POINTS", 9)
    assert next(client.stream(run, after="1-0-5")).kind == "metrics"


def test_points_that_come_late_are_not_lost(each: Served) -> None:
    client = each.client()
    run = client.create_run("tiny")["id"]
    client.log(run, 9, {"before": 0.0})
    stream = client.stream(run)
    assert next(stream).kind == "state"
    client.log(run, 10, {"a": 1.0})
    assert next(stream).data == {"segment": 0, "step": 10, "values": {"a": 1.0}}
    client.log(run, 10, {"kl": 2.0, "a": 7.0})  # a is there
    assert next(stream).data == {"segment": 0, "step": 10, "values": {"kl": 2.0}}
    client.log(run, 5, {"loss": 3.0})
    late = next(stream)
    assert (late.kind, late.data) == ("resync", {"why": "points of earlier steps came"})
    client.log(run, 11, {"a": 2.0})
    assert next(stream).data["step"] == 11
    client.log(run, 11, {"b": 2.0})
    client.log(run, 12, {"a": 3.0})
    heard: dict[int, set[str]] = {}
    while 12 not in heard:
        message = next(stream)
        assert message.kind == "metrics"
        heard.setdefault(message.data["step"], set()).update(message.data["values"])
    assert heard == {11: {"b"}, 12: {"a"}}
    stream.close()


@pytest.mark.parametrize("payload", ["x", [1], {"to": ["finished"]}, {"to": {"a": 1}}, {}, None])
def test_a_stream_survives_what_a_record_holds(served: Served, payload: Any) -> None:
    client, store = served.client(), served.service.store
    run = store.run(client.create_run("tiny")["id"])
    stream = client.stream(run.id)
    next(stream)
    row = {"uid": "u", "segment": None, "at": 1, "kind": "state", "payload": payload or {"to": None}}
    store.write(lambda c: events.insert(c, run.pk, [row]))
    assert next(stream).data["payload"] == row["payload"]
    client.log(run.id, 0, {"x": 0.0})
    assert next(stream).kind == "metrics"
    stream.close()


def test_every_client_hears_the_same(served: Served) -> None:
    run = served.client().create_run("tiny")["id"]
    heard: list[list[str]] = []
    ready = threading.Barrier(21)

    def listen() -> None:
        ids = []
        for message in served.client().stream(run):
            if not ids:
                ready.wait(20)
            ids.append(message.id + message.kind)
        heard.append(ids)

    threads = [threading.Thread(target=listen) for _ in range(20)]
    [thread.start() for thread in threads]
    ready.wait(20)
    for step in range(5):
        served.client().log(run, step, {"x": float(step)})
    served.client().command(run, "cancel")
    [thread.join(20) for thread in threads]
    assert len(heard) == 20 and all(ids[0].endswith("state") and ids[-1].endswith("end") for ids in heard)
    assert {tuple(ids[1:]) for ids in heard} == {tuple(heard[0][1:])} and len(heard[0]) == 8


def test_what_the_client_raises(served: Served) -> None:
    client = served.client()
    with pytest.raises(ServiceError) as caught:
        client.run("nope")
    assert (caught.value.status, caught.value.kind) == (404, "not-found") and caught.value.problem["request_id"]
    with pytest.raises(OSError, match="no answer"):
        Client("http://127.0.0.1:9", tries=2).run("x")
