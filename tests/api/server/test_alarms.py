"""Alarms over HTTP: listed, acknowledged, counted."""

import pytest

from jurat.client import ServiceError


def told(each):
    return each.ask("GET", "/metrics")[2].decode()


def test_alarms_are_listed_and_acknowledged(each):
    client = each.client()
    run = client.create_run("tiny")["id"]
    store = each.service.store
    said = {"rule": "gap", "state": "open", "severity": "critical", "first_step": 3, "last_step": 3, "evidence": {"samples": ["a"]}}
    store.add_event(store.run(run), "alarm", said)
    (alarm,) = client.alarms(run)
    assert (alarm["rule"], alarm["state"], alarm["severity"], alarm["evidence"]) == ("gap", "open", "critical", {"samples": ["a"]})
    assert "jurat_alarms_open 1" in told(each)
    assert client.acknowledge(run, alarm["id"])["state"] == "acked"
    assert client.alarms(run, "open") == [] and len(client.alarms(run, "acked")) == 1
    assert "jurat_alarms_open 0" in told(each)
    with pytest.raises(ServiceError, match="no alarm 999"):
        client.acknowledge(run, 999)
    assert each.ask("GET", f"/api/v1/runs/{run}/alarms?state=loud")[0] == 422
