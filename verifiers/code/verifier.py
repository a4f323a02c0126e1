"""Completion in, one verdict out: what verifier ``code`` (``verifiers/programs.py``) does."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, TypeVar

from jurat.platform.errors import ConfigError
from jurat.platform.types import Finish, Problem, Status, Verdict
from jurat.verifiers.code import asserts
from jurat.verifiers.code.cases import Cases, CasesError, parse
from jurat.verifiers.code.extract import extract
from jurat.verifiers.code.results import UNDECIDED, Result
from jurat.verifiers.code.running import Bench, checker_fault, results_of
from jurat.verifiers.sandbox import Limits, Program, Sandbox, SandboxUnavailable
from jurat.verifiers.sandbox.levels import choose

SLOTS = 2
"""Programs of one process at once: tests, and the program that they call."""
MAX_EVIDENCE = 12_000
"""Characters of JSON; under the cap of every verdict's evidence."""
SHOWN_CASES = 3
"""Cases that are not passed, kept with their streams."""
MARKS: Mapping[Status, str] = {
    "correct": ".", "incorrect": "F", "limit": "L", "crash": "C", "forbidden": "X", "infra": "I", "error": "E",
    "bad_gold": "G",
}  # fmt: skip
_FUTURE = re.compile(r"^from __future__ import [^\n()]+\n", re.MULTILINE)
_BODY = re.compile(r"(?:[ \t]*+(?:#[^\n]*+)?\r?\n)*+[ \t]")
"""The beginning of a program whose first line of code is indented."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a recipe may say of verifier ``code``; ``programs.code`` explains each."""

    score: str = "all"
    seconds: float = 5.0
    total_seconds: float = 30.0
    memory_mb: int = 1024
    output_kb: int = 1024
    level: str = "auto"
    strict: bool = True
    preload: tuple[str, ...] = ()
    retries: int = 2

    @property
    def limits(self) -> Limits:
        return Limits(
            wall_seconds=self.seconds, cpu_seconds=self.seconds, memory_bytes=self.memory_mb << 20,
            output_bytes=self.output_kb << 10,
        )  # fmt: skip

    def limits_at(self, level: str) -> Limits:
        """As a run has them at ``level``: only level ``ns`` bounds what is written."""
        return self.limits if level in ("ns", "rlimits") else replace(self.limits, writable=False)


def judge_completion(problem: Problem, completion: str, options: Options, *, finish: Finish, unfenced: bool) -> Verdict:
    """The verdict on the program in a completion. Raises SandboxUnavailable where programs may not or cannot run so."""
    found = extract(completion, finish=finish, unfenced=unfenced)
    if found.program is None:
        # Data that cannot judge anything are told first, so that they are not mistaken for a bad answer.
        fault = _fault(problem.reference, options) or _checker_fault(problem.reference, options)
        return fault or Verdict.of(found.status, why=found.why, isolation="sandbox")
    verdict = judge_program(found.program, problem.reference, options)
    evidence = {"extracted": found.why, **verdict.evidence}
    return replace(verdict, evidence=evidence, flags=(*found.flags, *verdict.flags))


def judge_program(program: str, reference: str, options: Options) -> Verdict:
    """The verdict on a program as it is. Raises SandboxUnavailable where programs may not or cannot run so."""
    fault = _fault(reference, options) or _checker_fault(reference, options)
    if fault is not None:
        return fault
    cases = parse(reference)
    session = _session()
    sandbox = session.sandbox(options)
    level = sandbox.isolation.level
    started = time.monotonic()
    bench = Bench(
        runner=sandbox, limits=options.limits, deadline=started + options.total_seconds, retries=options.retries,
        stop=options.score == "all",
    )  # fmt: skip
    try:
        results = session.wait(results_of(bench, whole(cases.prompt, program), cases))
    except SandboxUnavailable as trouble:
        # Whether the level can be had was asked when the judge was built: this is trouble of the moment.
        return Verdict.of("infra", why=f"{trouble.what} {trouble.fix}"[:500], isolation="sandbox")
    verdict = verdict_of(results, cases, options.score)
    isolation = sandbox.isolation_of(options.limits_at(level))
    evidence = {
        **verdict.evidence,
        "isolation": {"level": isolation.level, "fingerprint": isolation.fingerprint},
    }
    if bench.memory_bytes:
        evidence["memory_mb"] = round(bench.memory_bytes / 2**20, 1)
    if bench.attempts > 1:
        evidence["attempts"] = bench.attempts
    return replace(
        verdict,
        evidence=_fitting(evidence),
        read=program[:1_000],
        isolation="sandbox",
        seconds=time.monotonic() - started,
    )


def whole(prompt: str, program: str) -> str:
    """What the problem gives and what the model wrote, as one text: the latter may be the body of a function that the former
    begins, or a whole program, whose ``from __future__`` must then come first."""
    if not prompt:
        return program
    future = "".join(_FUTURE.findall(program))
    if future:
        program = _FUTURE.sub("\n", program)
    if not _BODY.match(program):
        prompt = asserts.stub(prompt)
    return f"{future}{prompt}{program}" if prompt.endswith("\n") else f"{future}{prompt}\n{program}"


def _fault(reference: str, options: Options) -> Verdict | None:
    """The verdict that no program can change: cases that are none, or need what is not there."""
    try:
        cases = parse(reference)
    except CasesError as fault:
        return Verdict.of("bad_gold", why=str(fault)[:500])
    if cases.output_bytes + len("\r\n") > options.output_kb << 10:
        why = f"the cases expect {cases.output_bytes} bytes of output, over {options.output_kb} KiB: raise output_kb"
        return Verdict.of("error", why=why)
    lacks = [name for name in cases.needs if name not in options.preload]
    if lacks:
        why = f"the cases need {', '.join(lacks)}: name it in preload of the verifier's arguments"
        return Verdict.of("error", why=why[:500])
    return None


def _checker_fault(reference: str, options: Options) -> Verdict | None:
    """The same of a checker, which is tried once in each process."""
    cases = parse(reference)
    key = (reference, options.level, options.strict, options.preload)
    if not cases.checker or _VETTED.get(key, key) is None:
        return None
    session = _session()
    try:
        bench = Bench(
            runner=session.sandbox(options), limits=options.limits, deadline=time.monotonic(), retries=options.retries
        )
        found = session.wait(checker_fault(bench, cases))
    except SandboxUnavailable as trouble:
        return Verdict.of("infra", why=f"{trouble.what} {trouble.fix}"[:500], isolation="sandbox")
    if found is None:
        _VETTED[key] = None
        return None
    return Verdict.of(found.status, why=found.why[:500], isolation="sandbox")


_VETTED: dict[tuple[Any, ...], None] = {}
"""Of checkers that are fit to judge."""


def verdict_of(results: Sequence[Result], cases: Cases, score: str) -> Verdict:
    """One verdict of the cases' results. What is no fault of the program (the data's, the sandbox's) leaves it without a
    score, unless an earlier case has decided already."""
    total, passed = cases.count, sum(result.passed for result in results)
    failed = [(index, result) for index, result in enumerate(results) if not result.passed]
    undecided = [item for item in failed if item[1].status in UNDECIDED or item[1].status == "bad_gold"]
    whole = len(results) == total or (score == "all" and failed)
    first = (undecided or failed)[:1] if score == "share" else failed[:1]
    evidence: dict[str, Any] = {
        "cases": total, "passed": passed, "marks": "".join(MARKS[result.status] for result in results)[:500],
        "ms": [round(1e3 * result.took, 1) for result in results[:100]],
        "failed": [result.to_json(index + 1) for index, result in failed[:SHOWN_CASES]],
    }  # fmt: skip
    flags = tuple(dict.fromkeys(flag for result in results for flag in result.flags))
    if any(result.status == "limit" for result in results):
        flags = (*flags, "limit")
    if not whole or total == 0:
        return Verdict.of("error", why=f"{len(results)} results for {total} cases", evidence=evidence, flags=flags)
    if not first:
        return Verdict.of("correct", why=f"all {total} cases pass", evidence=evidence, flags=flags)
    index, decisive = first[0]
    why = f"case {index + 1} of {total}: {decisive.why}"[:500]
    if score == "share" and passed and not undecided:
        why = f"{passed} of {total} cases pass; {why}"[:500]
        return Verdict.of("partial", passed / total, why=why, evidence=evidence, flags=flags)
    return Verdict.of(decisive.status, why=why, evidence=evidence, flags=flags)


def _fitting(evidence: dict[str, Any]) -> dict[str, Any]:
    """With streams, then cases left out from the end until it is short enough to be kept whole."""
    kept = dict(evidence, failed=[dict(case) for case in evidence["failed"]])
    while len(json.dumps(kept)) > MAX_EVIDENCE and kept["failed"]:
        last = next((case for case in reversed(kept["failed"]) if case.keys() & {"stdout", "stderr"}), None)
        if last is None:
            kept["failed"].pop()
        else:
            last.pop("stdout", None) or last.pop("stderr")
    return kept


def check_ready(args: Mapping[str, Any]) -> None:
    """Raises ConfigError where programs may not or cannot run here as these arguments say: before anything is judged."""
    where = "verifier 'code'"
    try:
        choose(args.get("level", "auto"), strict=args.get("strict", True))
    except SandboxUnavailable as fault:
        raise ConfigError(fault.what, where=where, fix=fault.fix) from None
    lacks = [name for name in args.get("preload", ()) if find_spec(name.partition(".")[0]) is None]
    if lacks:
        raise ConfigError(
            f"no module {lacks[0]!r} to preload for programs", where=where, fix="install it where jurat is installed"
        )


# ---- one event loop and few sandboxes for each process -----------------------------------------------------------


class _Session:
    """The sandboxes of this process, by what they are told, and the thread that tends them: verifiers are called without an
    event loop, or inside of somebody else's."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._sandboxes: dict[tuple[Any, ...], Sandbox] = {}
        self._lock = threading.Lock()
        self._turn = asyncio.Lock()
        threading.Thread(target=self._loop.run_forever, name="jurat-code", daemon=True).start()

    def sandbox(self, options: Options) -> Sandbox:
        """Raises SandboxUnavailable."""
        key = (options.level, options.strict, options.preload)
        with self._lock:
            if key not in self._sandboxes:
                made = Sandbox(level=options.level, strict=options.strict, slots=SLOTS, preload=options.preload)
                self.wait(made.run(Program(text="")))  # what starting takes is no time of the first program
                self._sandboxes[key] = made
            return self._sandboxes[key]

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(self._one_at_a_time(work), self._loop).result()

    async def _one_at_a_time(self, work: Coroutine[Any, Any, T]) -> T:
        # Two programs that each hold a slot and wait for a second one would wait for ever.
        async with self._turn:
            return await work


_SESSIONS: dict[int, _Session] = {}
_STARTING = threading.Lock()


def _session() -> _Session:
    """That of this process: a forked child begins anew."""
    with _STARTING:
        if os.getpid() not in _SESSIONS:
            _SESSIONS.clear()
            _SESSIONS[os.getpid()] = _Session()
        return _SESSIONS[os.getpid()]
