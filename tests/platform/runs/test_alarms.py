"""Alarms as rows: made and closed by events, once for each rule and version, on both databases."""

from typing import Any

import pytest

from jurat.platform.errors import ConfigError
from jurat.platform.provenance.verify import verify
from jurat.platform.runs import alarms
from jurat.platform.runs.store import Store


def said(rule: str, state: str = "open", step: int = 3, **more: Any) -> dict[str, Any]:
    return {
        "rule": rule,
        "state": state,
        "severity": "warning",
        "first_step": step,
        "last_step": step,
        "evidence": {"x": step},
        **more,
    }


def test_one_open_row_for_a_rule_and_it_may_open_again(store: Store, new_run: Any) -> None:
    run = new_run()

    def rows(**how: Any) -> list[tuple[Any, ...]]:
        found = store.read(lambda c: alarms.of_run(c, run.pk, **how))
        return [(r["rule"], r["version"], r["state"], r["first_step"], r["last_step"], r["evidence"]) for r in found]

    store.add_event(run, "alarm", said("gap", step=3))
    store.add_event(run, "alarm", said("gap", step=9))  # a process that was resumed says it again
    assert rows() == [("gap", "", "open", 3, 9, {"x": 9})]
    (number,) = (r["id"] for r in store.read(lambda c: alarms.of_run(c, run.pk)))
    seen = store.write(lambda c: alarms.acknowledge(c, run.pk, number, by="ann"))
    assert (seen["state"], seen["acked_by"]) == ("acked", "ann")
    assert store.read(alarms.open_count) == 0
    store.add_event(run, "alarm", said("gap", "closed", step=15))
    store.add_event(run, "alarm", said("gap", step=30))
    assert [r[2:5] for r in rows()] == [("open", 30, 30), ("closed", 3, 15)]
    store.add_event(run, "canary_drift", {"digest": "sha256:aa", "step": 50, "verifier": "math"})
    assert rows()[0][:4] == ("canary_drift", "sha256:aa", "open", 50)
    assert rows(state="closed") == [("gap", "", "closed", 3, 15, {"x": 9})]
    assert verify(store, run).faults == ()
    with pytest.raises(ConfigError, match="no alarm 99"):
        store.write(lambda c: alarms.acknowledge(c, run.pk, 99, by="ann"))


def test_what_is_no_alarm_stays_an_event(store: Store, new_run: Any) -> None:
    run = new_run()
    for payload in ({}, {"rule": 7}, {"rule": None, "state": "open"}):
        store.add_event(run, "alarm", payload)
    assert store.read(lambda c: alarms.of_run(c, run.pk)) == []
    hostile = said("x" * 500 + "\x00", step=-5, severity="<b>", stage="s" * 500, evidence={"n": float("nan")})
    store.add_event(run, "alarm", {**hostile, "last_step": 10**30})
    (row,) = store.read(lambda c: alarms.of_run(c, run.pk))
    assert (row["rule"], row["severity"], row["first_step"], row["last_step"]) == ("x" * 64, "warning", 0, 0)


def test_alarms_of_others_and_of_other_stages_are_kept_apart(store: Store, new_run: Any) -> None:
    run = new_run()

    def rows() -> list[tuple[Any, ...]]:
        found = store.read(lambda c: alarms.of_run(c, run.pk))
        return [(r["rule"], r["stage"], r["state"], r["first_step"]) for r in found]

    store.add_event(run, "canary_drift", {"digest": "sha256:v", "step": 3})
    store.add_event(
        run, "alarm", {**said("canary_drift", "closed"), "version": "sha256:v"}
    )  # a ledger may not speak for the store
    assert rows() == [("canary_drift", "", "open", 3)]
    store.add_event(run, "alarm", said("gap", stage="sft", step=50))
    number = store.read(lambda c: alarms.of_run(c, run.pk))[0]["id"]
    store.write(lambda c: alarms.acknowledge(c, run.pk, number, by="ann"))
    store.add_event(run, "alarm", said("gap", stage="grpo", step=12))
    assert rows()[:2] == [("gap", "grpo", "open", 12), ("gap", "sft", "closed", 50)]
    store.add_event(run, "alarm", {"rule": "length", "evidence": "no object"})
    assert rows()[0] == ("length", "", "open", 0)
    for since in (1, 9):
        store.add_event(run, "stalled", {"since": since})
    assert [row[2] for row in rows() if row[0] == "stalled"] == ["open", "closed"]
