"""``jurat doctor`` does what it says, and says what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jurat.api import doctor


def test_every_check_on_a_sound_machine(jurat: Any, tmp_path: Path) -> None:
    done = jurat("doctor", "--json")
    assert done.code == 0, done.err + done.out
    found = {check["name"]: check for check in done.json["checks"]}
    for name in ("python", "packages", "threads", "home", "database", "verifier", "deadline", "model"):
        assert found[name]["status"] == "ok", found[name]
    assert "log-probs agree" in found["model"]["detail"] and found["model"]["seconds"] > 0
    assert "was killed at its deadline" in found["deadline"]["detail"]
    for level in ("ns", "seccomp"):
        sandbox = found[f"sandbox {level}"]
        told = "withstands its self-test" in sandbox["detail"] if sandbox["status"] == "ok" else sandbox["fix"]
        assert sandbox["status"] in ("ok", "absent") and told, sandbox
    for name in ("gpu", "nccl", "vllm", "ray"):
        assert found[name]["status"] in ("ok", "absent"), found[name]
    assert list((tmp_path / "home").iterdir()) == [], "nothing is left behind"


def test_a_failed_check_is_told_with_its_fix(jurat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def quick(home: Path) -> list[doctor.Check]:
        checks = [("home", lambda: doctor.check_home(home)), ("broken", lambda: str(1 // 0)), ("ray", lambda: absent())]
        return [doctor.attempt(name, check) for name, check in checks]

    def absent() -> str:
        raise doctor.Absent("for several machines", "pip install -e '.[ray]'")

    monkeypatch.setattr(doctor, "examine", quick)
    monkeypatch.setattr(doctor, "NEEDED_BYTES", 2**70)
    done = jurat("doctor")
    assert done.code == 1
    assert "FAILED" in done.out and "GiB free" in done.out and "--home" in done.out
    assert "ZeroDivisionError" in done.out and "absent" in done.out and "2 failed: home, broken" in done.out
    assert "\x1b" not in done.out


def test_model_check_survives_a_torch_that_crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel built for another processor dies of SIGILL: told, not suffered."""
    crash = tmp_path / "python"
    crash.write_text("#!/bin/sh\nkill -ILL $$\n")
    crash.chmod(0o755)
    monkeypatch.setattr(doctor.sys, "executable", str(crash))
    found = doctor.attempt("model", lambda: doctor.check_model(tmp_path / "home", {}))
    assert found.status == "failed" and "SIGILL" in found.detail and "install torch again" in found.fix


def test_home_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = doctor.attempt("home", lambda: doctor.check_home(tmp_path / "file" / "home"))
    assert found.status == "failed" and "--home" in found.fix
