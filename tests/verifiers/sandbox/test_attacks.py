"""Each attack of the manifest at both levels: no reward, no leak, no harm, nothing left, and the next run is honest."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from jurat.verifiers.sandbox import Limits, Outcome, Program, Sandbox, typed

CASES = Path(os.environ.get("JURAT_CASES", "../shared/cases")) / "sandbox"
if not CASES.is_dir():
    pytest.skip(f"no sandbox cases at {CASES}: set JURAT_CASES", allow_module_level=True)
MANIFEST = json.loads((CASES / "manifest.json").read_text())
TASK = MANIFEST["task"]
LIMITS = Limits(wall_seconds=0.5, cpu_seconds=5.0)
HONEST = "a, b = map(int, input().split())\nprint(a + b)\n"
# What they must be told, where the ending is part of what makes them safe.
ENDINGS = {
    "30_ignore_signals": {"timeout"}, "80_swallow_timeout": {"timeout"}, "40_recursion_segv": {"crash", "timeout"},
    "41_ctypes_segv": {"crash"}, "43_ptrace_parent": {"forbidden"}, "54_stdout_flood": {"output_limit"},
    "55_stderr_flood": {"output_limit"}, "87_nul_source": {"compile_error"}, "37_int_bomb": {"timeout"},
    "51_unshare_chroot": {"forbidden"}, "53_kernel_surface": {"forbidden"},
}  # fmt: skip


async def calls(sandbox: Sandbox, text: str) -> tuple[int, Outcome]:
    """How many of the task's calls the program answers rightly."""
    run = await sandbox.start(Program(text=text, role="serve", entry=TASK["entry"]), LIMITS)
    right = 0
    for test in TASK["func_tests"]:
        await run.send({"args": test["args"]})
        try:
            answer = await run.receive()
        except EOFError:
            break
        except typed.Untyped:
            continue
        right += type(answer) is dict and type(answer.get("value")) is int and answer["value"] == test["expected"]
    run.end()
    return right, await run.wait()


@pytest.mark.parametrize("attack", MANIFEST["attacks"], ids=lambda attack: attack["id"])
async def test_attack(sandbox: Sandbox, scene: Any, attack: dict) -> None:
    text = (CASES / "attacks" / f"{attack['id']}.py").read_text()
    outcomes, rewards = [], []
    if attack["id"] == "91_sibling_memory":
        await sandbox.run(Program(text="#" * 9_000 + "\n# SBX_SIBLING" + "_MARK_7731\n"), LIMITS)
    for _ in range(2 if attack["kind"] == "leftover" else 1):
        if attack["task"] in ("func", "any"):
            right, outcome = await calls(sandbox, text)
            outcomes.append(outcome)
            rewards.append(right == len(TASK["func_tests"]))
        if attack["task"] in ("stdio", "any"):
            test = TASK["stdio_tests"][0]
            outcome = await sandbox.run(Program(text=text, stdin=test["stdin"].encode()), LIMITS)
            outcomes.append(outcome)
            rewards.append(outcome.ending == "finished" and outcome.stdout.split() == test["stdout"].encode().split())
    assert not any(rewards)
    assert scene.harm() == []
    for outcome in outcomes:
        assert b"PWNED" not in outcome.stdout + outcome.stderr
        assert b"SBX_CANARY" not in outcome.stdout + outcome.stderr
        assert outcome.ending != "infra_error", outcome.detail
        assert outcome.ending in ENDINGS.get(attack["id"], {outcome.ending}), outcome
        assert outcome.seconds <= LIMITS.wall_seconds + 1.0
        assert len(outcome.stdout) <= LIMITS.output_bytes and len(outcome.stderr) <= (64 << 10) + 16
        json.dumps({"out": outcome.stdout.decode("utf-8", "backslashreplace"), "detail": outcome.detail})
    after = await sandbox.run(Program(text=HONEST, stdin=b"1 2\n"))
    assert (after.ending, after.stdout) == ("finished", b"3\n")
    slot = sandbox._all[0]
    assert slot.zygote is not None and children(slot.zygote.pid) == []


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
