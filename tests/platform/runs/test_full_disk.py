"""A disk that fills up: rollouts stop, numbers go on, nothing is left half written, and the record says so."""

from __future__ import annotations

import dataclasses
import errno
import os
from typing import Any

import pytest

from jurat.platform.errors import ConfigError
from jurat.platform.provenance.verify import verify
from jurat.platform.runs import disk, rollouts
from jurat.platform.runs.ledger import RunLedger
from jurat.platform.runs.rollouts import Advantages
from jurat.platform.runs.store import Store


def test_below_the_floor_numbers_go_on(
    store: Store, new_run: Any, batch: Any, step_report: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run()
    ledger = RunLedger(store, run, "", store.start_segment(run, first_step=0), run.folder)
    for step, reserve in enumerate((0, 1 << 62, 1 << 62, 0)):
        monkeypatch.setenv("JURAT_RESERVE_BYTES", str(reserve))
        ledger.record_batch(batch(step))
        ledger.record_step(step_report(step, x=float(step)))
        ledger.flush_now(10)
    ledger.close()
    assert [part.step_min for part in store.parts(run)] == [0, 3]
    assert {stat.step for stat in store.verdict_stats(run)} == {0, 1, 2, 3}
    assert [point.value for point in store.metrics(run, names=["x"])] == [0.0, 1.0, 2.0, 3.0]
    told = [(event.kind, event.payload) for event in store.events(run) if event.kind.startswith("disk")]
    assert told == [("disk_low", {"step": 1}), ("disk_has_room", {"step": 3, "left_out": 2})]
    assert ledger.health().lost == 0 and verify(store, run).faults == ()


def test_a_full_disk_leaves_no_half_part(
    store: Store, new_run: Any, batch: Any, step_report: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run()
    ledger = RunLedger(store, run, "", store.start_segment(run, first_step=0), run.folder, retry_seconds=0.05)
    whole, full = os.fsync, [True]

    def fsync(descriptor: int) -> None:
        if full[0] and os.readlink(f"/proc/self/fd/{descriptor}").endswith(".tmp"):
            raise OSError(errno.ENOSPC, "No space left on device")
        whole(descriptor)

    monkeypatch.setattr(rollouts.os, "fsync", fsync)
    ledger.record_batch(batch(0))
    ledger.record_step(step_report(0, x=1.0))
    ledger.flush_now(10)
    assert [path for path in run.folder.rglob("*") if path.suffix in (".tmp", ".parquet")] == []
    assert len(store.metrics(run, names=["x"])) == 1 and ledger.health().failures > 0
    full[0] = False
    ledger.close()
    assert [part.step_min for part in store.parts(run)] == [0] and ledger.health().lost == 0
    assert verify(store, run).faults == ()


def test_the_floor(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = lambda total, free: lambda path: disk.shutil._ntuple_diskusage(total, total - free, free)
    monkeypatch.delenv("JURAT_RESERVE_BYTES", raising=False)
    monkeypatch.setattr(disk.shutil, "disk_usage", usage(1 << 40, 3 << 30))
    assert disk.spare(tmp_path / "not" / "there") == 1 << 30
    monkeypatch.setattr(disk.shutil, "disk_usage", usage(20 << 20, 1 << 20))
    assert disk.spare(tmp_path) == 0
    monkeypatch.setenv("JURAT_RESERVE_BYTES", "7")
    assert disk.spare(tmp_path) == (1 << 20) - 7
    for given in ("2G", "-1", "1e9", "\N{SUPERSCRIPT TWO}"):
        monkeypatch.setenv("JURAT_RESERVE_BYTES", given)
        with pytest.raises(ConfigError, match="no number of bytes"):
            disk.spare(tmp_path)


def test_a_floor_that_is_no_number_is_refused_before_anything_is_recorded(
    store: Store, new_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run()
    monkeypatch.setenv("JURAT_RESERVE_BYTES", "2 GiB")
    with pytest.raises(ConfigError, match="JURAT_RESERVE_BYTES is '2 GiB'"):
        RunLedger(store, run, "", store.start_segment(run, first_step=0), run.folder)


def test_what_is_lost_is_named(store: Store, new_run: Any, batch: Any) -> None:
    run = new_run()
    with RunLedger(store, run, "", store.start_segment(run, first_step=0), run.folder) as ledger:
        ledger._put(dataclasses.replace(batch(1), groups=(object(),)), 0)
        ledger.record_batch(batch(2))
        ledger._put(Advantages(step=2, of={"a": "no vector"}), 0)  # type: ignore[dict-item]
    lost = [(event.kind, event.payload["step"]) for event in store.events(run) if event.kind.endswith("_lost")]
    assert lost == [("rollouts_lost", 1), ("advantages_lost", 2)] and ledger.health().lost == 2
