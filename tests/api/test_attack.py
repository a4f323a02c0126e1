"""``jurat sandbox attack`` sees what gets through: at a level that holds nothing, each kind of breach is told by its name."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from jurat.api import attack
from jurat.platform.errors import ConfigError
from jurat.verifiers.sandbox.levels import probe

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandbox is Linux's")

RIGHT = "def add(a, b): return a + b\n"
TASK = {
    "entry": "add",
    "func_tests": [{"args": [1, 2], "expected": 3}, {"args": [5, 6], "expected": 11}],
    "stdio_tests": [{"stdin": "1 2\n", "stdout": "3\n"}],
}
ATTACKS = {
    "says_so": ("leak", "import os\nos.write(1, b'PWNED says_so\\n')"),
    "writes": ("effect", "open({evidence!r} + '/writes', 'w').write('PWNED by a file')"),
    "is_right": ("reward", RIGHT),
    "kills_the_judge": ("effect", "import os\nstat = open(f'/proc/{os.getppid()}/stat').read()\nos.kill(int(stat.split()[3]), 9)"),
    "outlives": (
        "survive",
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    os.closerange(0, 99)\n    time.sleep(1)\n"
        "    open({evidence!r} + '/outlives', 'w').write('PWNED late')\n    os._exit(0)\ntime.sleep(0.2)",
    ),
    "leaves_a_process": (
        "effect",
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(6)\n    os._exit(0)\ntime.sleep(0.2)",
    ),
    "finds_its_file": (
        "leftover", "import os\np = {canary!r} + '-left'\n"
        "print('PWNED again' if os.path.exists(p) else '', flush=True)\nopen(p, 'w').close()",
    ),
    "changes_a_file": ("effect", "import os\nos.chmod({canary!r} + '/secret.txt', 0)"),
    "tells_the_secret": ("judge-leak", "raise ValueError(open({canary!r} + '/secret.txt').read())"),
    "calls_home": ("leak", "import socket\nsocket.socket(socket.AF_UNIX).connect({canary!r} + '/sock')"),
    "harmless": ("leak", "pass"),
    "unsafe": ("effect", "raise SystemExit"),
}  # fmt: skip


@pytest.fixture
def places(tmp_path: Path) -> attack.Places:
    """Canaries that get in nobody's way."""
    (tmp_path / "outside").mkdir()
    return attack.Places(
        canary=tmp_path / "canary", evidence=tmp_path / "evidence", outside=tmp_path / "outside", droppings=(),
        tcp=("127.0.0.1", 0), udp=("127.0.0.1", 0), abstract=f"\0{tmp_path.name}-{id(tmp_path)}",
    )  # fmt: skip


@pytest.fixture
def manifest(tmp_path: Path, places: attack.Places) -> Path:
    folder = tmp_path / "cases"
    for name in ("attacks", "benign"):
        (folder / name).mkdir(parents=True)
    rows = []
    for name, (kind, text) in ATTACKS.items():
        text = text.replace("{evidence!r}", repr(str(places.evidence))).replace("{canary!r}", repr(str(places.canary)))
        (folder / "attacks" / f"{name}.py").write_text(text)
        rows.append({"id": name, "kind": kind, "task": "func", "naive": "unsafe" if name == "unsafe" else "run"})
    for name, text in (("honest", RIGHT), ("broken", "def add(a, b): return a - b\n")):
        (folder / "benign" / f"{name}.py").write_text(text)
        (folder / "benign" / f"{name}.json").write_text(
            json.dumps({"mode": "func", "entry": "add", "tests": TASK["func_tests"]})
        )
    (folder / "manifest.json").write_text(json.dumps({"task": TASK, "attacks": rows}))
    return folder / "manifest.json"


def test_every_kind_of_breach_is_seen(manifest: Path, places: attack.Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attack, "SURVIVOR_SECONDS", 2.0)
    monkeypatch.setattr(attack, "SETTLE_SECONDS", 0.3)
    (found,) = attack.conduct(attack.read_manifest(manifest), ["rlimits"], places=places)
    told: dict[str, list[str]] = {}
    for breach in found.breaches:
        told.setdefault(breach.id, []).append(breach.what)
    expected = {
        "is_right": "score 1.0 (correct: all 2 cases pass), expected 0",
        "says_so": "printed PWNED says_so",
        "writes": "left evidence: PWNED by a file",
        "kills_the_judge": "the judge died: it ended with SIGKILL",
        "outlives": "left evidence: PWNED late",
        "leaves_a_process": "left processes: ",
        "finds_its_file": "printed PWNED again",
        "changes_a_file": f"changed {places.canary}/secret.txt",
        "tells_the_secret": "the report holds a secret",
        "calls_home": f"reached the socket '{places.canary}/sock'",
    }
    missing = {name for name, said in expected.items() if not any(what.startswith(said) for what in told.get(name, ()))}
    assert missing == set() and told.keys() == expected.keys(), told
    assert list(found.skipped) == ["unsafe"] and found.attacks == len(ATTACKS) - 1
    assert found.passed == ["honest"] and "expected 3, got -1" in found.failed["broken"] and found.broken


@pytest.mark.skipif(not probe("ns").works, reason=f"level ns: {probe('ns').missing}")
def test_the_same_programs_get_nothing_at_level_ns(
    manifest: Path, places: attack.Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attack, "SURVIVOR_SECONDS", 1.5)
    (found,) = attack.conduct(attack.read_manifest(manifest), ["ns"], places=places)
    told = {(breach.id, breach.what) for breach in found.breaches}
    assert told == {
        ("is_right", "score 1.0 (correct: all 2 cases pass), expected 0"),
        ("says_so", "printed PWNED says_so"),
    }
    assert found.skipped == {} and found.attacks == len(ATTACKS)
    assert not places.canary.exists() and not places.evidence.exists(), "the canaries are gone"


def test_bad_usage_is_told(jurat: Any, manifest: Path, tmp_path: Path) -> None:
    for words, said in (
        ([str(manifest), "--level", "nss"], "no level 'nss'"),
        ([str(manifest), "--only", "zz"], "no program's id begins with 'zz'"),
        ([str(manifest), "--user", "no-such-user"], "no user 'no-such-user'"),
        ([str(tmp_path / "none.json")], "cannot read"),
        ([str(manifest.parent / "benign" / "honest.json")], "no manifest of attacks"),
    ):
        done = jurat("sandbox", "attack", *words, "--json")
        assert done.code == 2 and said in done.json["error"]["what"], (words, done.out)


def test_control_characters_are_found_wherever_they_are() -> None:
    assert attack._raw_controls({"a": ["fine\n", {"b\x1b": 1}]}) and attack._raw_controls(("\x9b",))
    assert not attack._raw_controls({"a": ["é\n\t", 1, None, "\\x1b"]})


def test_nothing_is_left_when_it_is_told_to_end(places: attack.Places) -> None:
    with pytest.raises(SystemExit) as ended, attack._stopped_by_sigterm(), attack.Canaries(places, None) as canaries:
        victim = canaries._victim
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 143 and victim.poll() is not None
    assert not places.canary.exists() and not places.evidence.exists()


def test_an_interpreter_that_may_not_be_run_is_told(
    places: attack.Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python").write_text("")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ConfigError, match="that user may not run"), attack.Canaries(places, None):
        pass
    assert not places.canary.exists()


@pytest.mark.parametrize(
    ("took", "load", "late"),
    [
        ([3.1, 3.4, 5.9], 2.1, True),
        ([3.1, 3.4, 5.9], 2.0, False),  # the machine was not busy
        ([3.1, 3.4, 6.1], 9.0, False),  # too long for any excuse
        ([3.1, 2.9], 9.0, False),  # in time when tried again: neither late nor a breach
        ([0.0], 9.0, False),
    ],
)
def test_late_on_a_busy_machine_is_told_apart(took: list[float], load: float, late: bool) -> None:
    assert attack.only_late(took, load, 2) is late
