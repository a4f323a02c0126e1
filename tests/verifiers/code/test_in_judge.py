"""The verifier behind the judge's port: in worker processes, cached, identified, refused in time."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from jurat.platform.errors import ConfigError
from jurat.platform.recipe import Member, RewardPart
from jurat.verifiers import catalog
from jurat.verifiers.inventory import identity
from jurat.verifiers.judge import LocalJudge, build_judge
from jurat.verifiers.once import verify
from jurat.verifiers.pool import Limits
from jurat.verifiers.verdicts import problem_of

ADD = json.dumps({"mode": "func", "entry": "add", "tests": [{"args": [1, 2], "expected": 3}]})
GOOD = "```python\ndef add(a, b):\n    return a + b\n```"
PROBLEM = problem_of(ADD, prompt="Add.", verifier="code")


def judge_of(*, cache: int = 100, **args: object) -> LocalJudge:
    part = RewardPart(members=(Member(use="code", args={"seconds": 0.5, **args}),))
    return build_judge(part, spares=0, limits=Limits(memory_bytes=256 * 2**20), cache=cache)


@pytest.fixture(scope="module")
def local() -> Iterator[LocalJudge]:
    """Its workers may take less memory than programs may by default."""
    with judge_of() as made:
        yield made


def test_verdicts_come_from_a_worker_that_goes_on(local: LocalJudge) -> None:
    pids = set()
    for index in range(40):  # what the worker counts as left behind would end it
        found = local.verdict(PROBLEM, f"{GOOD}\n{index}")
        assert (found.status, found.isolation, found.attempt) == ("correct", "sandbox", 1), found.why
        pids |= set(local.pids())
    assert len(pids) == 1


def test_decided_verdicts_are_kept_and_time_outs_are_not(local: LocalJudge) -> None:
    before = local._cache.hits
    for _ in range(2):
        assert local.verdict(PROBLEM, f"{GOOD}\nkept").status == "correct"
    assert local._cache.hits == before + 1
    loop = "```python\nwhile True: pass\n```"
    for _ in range(2):
        found = local.verdict(PROBLEM, loop)
        assert (found.status, found.score, found.fault) == ("limit", 0.0, "policy")
    assert local._cache.hits == before + 1


def zygotes() -> set[int]:
    found = set()
    for process in psutil.process_iter(["cmdline"]):
        if any(word.endswith("sandbox/zygote.py") for word in process.info["cmdline"] or ()):
            found.add(process.pid)
    return found


def test_nothing_is_left_of_a_worker_that_was_killed_at_its_deadline() -> None:
    part = RewardPart(members=(Member(use="code", args={"seconds": 60.0, "total_seconds": 60.0}),))
    before = zygotes()
    with build_judge(part, spares=0, deadline=3.0) as judge:
        found = judge.verdict(PROBLEM, "```python\nimport time\ntime.sleep(50)\n```")
        assert (found.status, found.score, found.fault) == ("timeout", None, "verifier")
    assert wait_for(lambda: not mine(before))


def mine(before: set[int]) -> set[int]:
    """Zygotes that came since: others may be judging on this machine, so those of living judges do not count."""
    left = set()
    for pid in zygotes() - before:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).ppid() == 1 or os.getpid() in [p.pid for p in psutil.Process(pid).parents()]:
                left.add(pid)
    return left


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not condition():
        time.sleep(0.02)
    return condition()


def test_a_share_with_a_time_out_is_not_kept() -> None:
    tests = [{"args": [0], "expected": 0}, {"args": [1], "expected": 1}]
    problem = problem_of(json.dumps({"mode": "func", "entry": "f", "tests": tests}), verifier="code")
    with judge_of(score="share") as judge:
        for _ in range(2):
            found = judge.verdict(problem, "```python\ndef f(n):\n    while n: pass\n    return n\n```")
            assert (found.status, found.score, found.flags) == ("partial", 0.5, ("limit",))
        assert judge._cache.hits == 0


def test_bad_cases_carry_no_score(local: LocalJudge) -> None:
    found = local.verdict(problem_of("12", verifier="code"), GOOD)
    assert (found.status, found.score, found.fault) == ("bad_gold", None, "gold")
    assert found.why == "the cases are a JSON object with a mode, got int"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"level": "rlimits"}, "level rlimits limits time and memory and keeps nothing apart"),
        ({"level": "nss"}, "Did you mean 'ns'?"),
        ({"preload": ["no_such_module"]}, "no module 'no_such_module' to preload"),
        ({"preload": ["a b"]}, "a list of modules"),
        ({"seconds": 0}, "a number from 0.05 to 120"),
        ({"secnods": 1}, "Did you mean 'seconds'?"),
        ({"score": "most"}, "one of all, share"),
    ],
)
def test_refused_when_the_judge_is_built(args: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
        build_judge(RewardPart(members=(Member(use="code", args=args),)), spares=0).close()


def test_it_may_be_a_part_of_a_composite() -> None:
    args = {"of": ["code", {"use": "length", "args": {"max": 10_000}}]}
    found = verify("all_of", gold=ADD, completion=GOOD, args=args)
    assert (found.status, found.isolation) == ("correct", "process")


def test_its_version_is_that_of_its_code_and_of_the_sandbox_s_files() -> None:
    assert any(path.endswith("zygote.py") for path in catalog.find("code").weights)
    found = identity("code")
    assert found["weights"].startswith("sha256:") and any("extract" in place for place in found["sources"])
    assert found["digest"] == identity("code", args={})["digest"] != identity("code", args={"score": "share"})["digest"]
    code = "from jurat.verifiers.inventory import identity; print(identity('code')['digest'])"
    elsewhere = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "7"},
    )
    assert elsewhere.stdout.strip() == found["digest"]


def test_a_module_of_numbers_where_it_is_asked_for() -> None:
    cases = {"mode": "func", "entry": "f", "needs": ["numpy"], "tests": [{"args": [[1, 2]], "expected": 3}]}
    program = "```python\nimport numpy\ndef f(x):\n    return numpy.array(x).sum()\n```"
    assert verify("code", gold=json.dumps(cases), completion=program, args={"preload": ["numpy"]}).status == "correct"
    told = verify("code", gold=json.dumps(cases), completion=program)
    assert (told.status, told.score) == ("error", None) and "name it in preload" in told.why
