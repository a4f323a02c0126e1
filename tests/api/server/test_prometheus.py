"""``GET /metrics``, read by Prometheus' own client."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from jurat.api.server.prometheus import Requests, line
from jurat.platform import access
from services import Served


def read(served: Served, key: str | None = None) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    status, headers, text = served.ask("GET", "/metrics", headers={"Authorization": f"Bearer {key}"} if key else None)
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    families: Any = text_string_to_metric_families(text.decode())
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for family in families for one in family.samples}


def test_what_was_done_is_counted(each: Served) -> None:
    client = each.client()
    assert each.ask("POST", "/api/v1/runs", {"recipe": "tiny", "id": "r"})[0] == 201
    client.log("r", 0, {"a": 1.0, "b": 2.0})
    client.log("r", 1, {"a": 1.0})
    for number in range(3):
        assert each.ask("GET", f"/api/v1/runs/none-{number}")[0] == 404
    each.ask("GET", "/no/such/place")
    waits = each.service.store.runs_folder / "r" / "spool.jsonl"
    waits.parent.mkdir(parents=True, exist_ok=True)
    waits.write_bytes(b"x" * 100)
    found = read(each)
    batch, run = "/api/v1/runs/{run}/metrics:batch", "/api/v1/runs/{run}"
    answers = lambda method, route, status: found[
        "jurat_http_requests_total", (("method", method), ("route", route), ("status", status))
    ]
    assert answers("POST", batch, "200") == 2 and answers("GET", run, "404") == 3
    assert answers("GET", "unmatched", "404") == 1 and not any("none-0" in str(key) for key in found)
    assert found["jurat_ingest_rows_total", (("route", batch),)] == 3
    labels = ("method", "GET"), ("route", run)
    counts = [found["jurat_http_request_seconds_bucket", (("le", le), *labels)] for le in ("0.001", "10.0", "+Inf")]
    assert counts == sorted(counts) and counts[-1] == found["jurat_http_request_seconds_count", labels] == 3
    assert found["jurat_http_request_seconds_sum", labels] > 0
    assert found["jurat_runs", (("state", "queued"),)] == 1
    assert [found[f"jurat_{name}", ()] for name in ("leases", "leased_gpus", "runs_stalled", "writer_waiting")] == [
        0
    ] * 4
    assert found["jurat_spool_files", ()] == 1 and found["jurat_spool_bytes", ()] == 100
    assert found["jurat_writer_commits_total", ()] >= 3
    assert each.ask("POST", "/api/v1/runs/r:cancel")[0] in (200, 202)  # what is over is not looked through each time
    assert read(each)["jurat_spool_files", ()] == 0


def test_a_key_may_read_it(each: Served) -> None:
    made = [
        each.service.store.write(lambda c, s=scope: access.make_key(c, s, [s]))[1]
        for scope in ("runs:read", "data:read")
    ]
    each.service.keys.forget()  # the next request looks
    assert each.ask("GET", "/metrics")[0] == 401 and read(each, made[0])
    assert each.ask("GET", "/metrics", headers={"Authorization": f"Bearer {made[1]}"})[0] == 403


def test_methods_that_are_made_up_share_a_label() -> None:
    made = Requests()
    for number in range(20):
        made.answered(f"M{number}", "unmatched", 405, 0.0, 0)
    assert made.answers == {("other", "unmatched", 405): 20}


def test_labels_are_escaped() -> None:
    assert line("x", (("a", 'q"\\\n'),), 1.0) == 'x{a="q\\"\\\\\\n"} 1'
