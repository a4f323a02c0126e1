"""Honest programs pass: all at level ns, at level seccomp all but those that write files."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from jurat.verifiers.sandbox import Limits, Program, Sandbox, typed

CASES = Path(os.environ.get("JURAT_CASES", "../shared/cases")) / "sandbox" / "benign"
if not CASES.is_dir():
    pytest.skip(f"no sandbox cases at {CASES}: set JURAT_CASES", allow_module_level=True)
WRITES = {"11_tempfile"}


def same(a: Any, b: Any, tol: float) -> bool:
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same(x, y, tol) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, (int, float)) and tol:
        return math.isclose(a, b, rel_tol=tol, abs_tol=tol)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key], tol) for key in a)
    return type(a) is type(b) and a == b


async def passed(sandbox: Sandbox, name: str) -> bool:
    case = json.loads((CASES / f"{name}.json").read_text())
    text = (CASES / f"{name}.py").read_text()
    limits = Limits(wall_seconds=20.0)
    if case["mode"] == "stdio":
        for test in case["tests"]:
            outcome = await sandbox.run(Program(text=text, stdin=test["stdin"].encode()), limits)
            if outcome.ending != "finished" or outcome.stdout.split() != test["stdout"].encode().split():
                return False
        return True
    run = await sandbox.start(Program(text=text, role="serve", entry=case["entry"]), limits)
    ok = True
    for test in case["tests"]:
        await run.send({"args": test["args"]})
        answer = await run.receive()
        ok = ok and same(answer.get("value"), typed.value_of(test["expected"]), case.get("tol", 0.0))
    run.end()
    return ok and (await run.wait()).ending == "finished"


@pytest.mark.parametrize("name", sorted(path.stem for path in CASES.glob("*.py")))
async def test_benign(sandbox: Sandbox, name: str) -> None:
    assert await passed(sandbox, name) == (sandbox.isolation.level == "ns" or name not in WRITES)
