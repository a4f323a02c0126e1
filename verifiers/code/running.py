"""A program on its cases: standard streams, one run each, and calls, all in one run as long as it lives.

Nothing expected is in any of these processes; what comes out is compared here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from jurat.verifiers.code.asserts import Call
from jurat.verifiers.code.cases import Cases, Stdio
from jurat.verifiers.code.compare import shown, text_difference, value_difference
from jurat.verifiers.code.results import Result, ended, escaped
from jurat.verifiers.sandbox.program import Limits, Outcome, Program, Runner, Running

CHECKER_WALL = 5.0
"""Seconds that a checker may take, whatever the program may."""
VETTED = 3
"""Tests on whose expected output a checker is tried before it judges anybody."""
GRACE = 2.0
"""Seconds for the end of a program that answers no more to become known."""


@dataclass(kw_only=True)
class Bench:
    """Where programs run, what each run may use, and how long all runs of one program together may take."""

    runner: Runner
    limits: Limits
    deadline: float
    """``time.monotonic()`` after which no run is started, and a running one is cut short."""
    retries: int = 2
    """Runs again after trouble that is the sandbox's own."""
    stop: bool = False
    """Whether the first case that is not passed ends the work."""
    attempts: int = 1
    """Most runs that one result took."""
    memory_bytes: int = 0
    """The most that a run of the program had resident."""

    def left(self) -> Limits | None:
        """The limits of the next run; None if the time of all runs is over."""
        left = self.deadline - time.monotonic()
        # Whole seconds: limits are part of what a sandbox remembers and fingerprints.
        return replace(self.limits, wall_seconds=min(self.limits.wall_seconds, math.ceil(left))) if left > 0 else None

    def saw(self, outcome: Outcome) -> None:
        if outcome.measured:
            self.memory_bytes = max(self.memory_bytes, outcome.memory_bytes)

    async def tried(self, run: Callable[[], Awaitable[Outcome]]) -> Outcome:
        """The outcome of a run, tried again where the sandbox failed."""
        outcome = await run()
        for attempt in range(2, self.retries + 2):
            if outcome.ending != "infra_error":
                break
            outcome = await run()
            self.attempts = max(self.attempts, attempt)
        return outcome


OVER = Result(status="limit", why="the time of all cases together is over")


async def results_of(bench: Bench, text: str, cases: Cases) -> list[Result]:
    """One result for each case, in order, or up to the first that is not passed where the bench stops there."""
    from jurat.verifiers.code.split import tested

    made: list[Result] = []
    work = _stdio if cases.stdio else _called if cases.calls else tested
    async with contextlib.aclosing(work(bench, text, cases)) as found:
        async for result in found:
            made.append(result)
            if bench.stop and not result.passed:
                break
    return made


# ---- standard streams --------------------------------------------------------------------------------------------


async def _stdio(bench: Bench, text: str, cases: Cases) -> AsyncGenerator[Result, None]:
    for test in cases.stdio:
        limits = bench.left()
        if limits is None:
            yield OVER
            continue
        program = Program(text=text, stdin=test.stdin.encode("utf-8", "surrogatepass"))
        outcome = await bench.tried(lambda: bench.runner.run(program, limits))  # noqa: B023
        bench.saw(outcome)
        yield await _judged(bench, test, outcome, cases) if outcome.ending == "finished" else ended(outcome)


async def _judged(bench: Bench, test: Stdio, outcome: Outcome, cases: Cases) -> Result:
    if cases.checker:
        return await _checked(bench, test, outcome, cases.checker)
    assert test.stdout is not None
    difference = text_difference(test.stdout, outcome.stdout, how=cases.compare, tol=cases.tol)
    return Result(status="incorrect" if difference else "correct", why=difference, outcome=outcome)


async def _checked(bench: Bench, test: Stdio, outcome: Outcome, checker: str) -> Result:
    """By a trusted program in a sandbox of its own. If it fails on this output, it is tried on the expected one: where it
    answers there, the output is what broke it, and wrong. Where none is expected nobody can tell, and the output is wrong too,
    as programs would else print what breaks a checker to be left out of training; the flag says that it may be the checker."""
    try:
        output = outcome.stdout.decode("utf-8")
    except UnicodeDecodeError:
        return Result(status="incorrect", why="the output is not UTF-8", outcome=outcome)
    good, said = await _asked(bench, test, output, checker)
    if good is None and said.status != "infra":
        if test.stdout is None or (await _asked(bench, test, test.stdout, checker))[0] is not None:
            flags = ("checker_failed",) if test.stdout is None else ()
            return Result(status="incorrect", why=f"the checker fails on it: {said.why}", outcome=outcome, flags=flags)
    if good is None:
        return replace(said, outcome=outcome)
    return Result(status="correct" if good else "incorrect", why=said.why, outcome=outcome)


async def checker_fault(bench: Bench, cases: Cases) -> Result | None:
    """Why the checker can judge nobody, whatever a program prints: it fails on outputs that are expected or refuses them, or
    takes a program for right that prints nothing. None for a checker that may be one."""
    for index, test in enumerate(cases.stdio[:VETTED], 1):
        if test.stdout is not None:
            good, said = await _asked(bench, test, test.stdout, cases.checker)
            if good is None:
                return replace(said, why=f"test {index}: {said.why}")
            if not good:
                return Result(status="bad_gold", why=f"test {index}: the checker refuses the expected output")
    for test in cases.stdio:
        good, said = await _asked(bench, test, "", cases.checker)
        if not good:
            return said if said.status == "infra" else None
    return Result(status="bad_gold", why="the checker takes an empty output for right, in every test")


async def _asked(bench: Bench, test: Stdio, output: str, checker: str) -> tuple[bool | None, Result]:
    """Whether the checker accepts ``output``; None, and the fault, where it does not say."""
    asked = json.dumps({"input": test.stdin, "expected": test.stdout, "output": output})
    program = Program(text=checker, stdin=asked.encode())
    outcome = await bench.tried(lambda: bench.runner.run(program, replace(bench.limits, wall_seconds=CHECKER_WALL)))
    if outcome.ending == "infra_error":
        return None, ended(outcome)
    if outcome.ending != "finished":
        return None, Result(
            status="error", why=f"the checker ended with {outcome.ending}: {escaped(outcome.stderr[-300:], 300)}"
        )
    first, _, rest = outcome.stdout.decode("utf-8", "backslashreplace").strip().partition("\n")
    answer = {"true": True, "1": True, "false": False, "0": False}.get(first.strip().lower())
    if answer is None:
        return None, Result(status="error", why=f"the checker printed {escaped(first, 80)!r}, expected true or false")
    why = escaped(rest, 200) or ("" if answer else "the checker refuses it")
    return answer, Result(status="correct", why=why)


# ---- calls -------------------------------------------------------------------------------------------------------


async def _called(bench: Bench, text: str, cases: Cases) -> AsyncGenerator[Result, None]:
    """Calls in one process; where it dies the next call gets a new one."""
    done = infra = 0
    while done < len(cases.calls):
        limits = bench.left()
        if limits is None:
            yield OVER
            done += 1
            continue
        first = done
        running = await bench.runner.start(Program(text=text, role="serve", entry=cases.calls[0].entry), limits)
        try:
            for call in cases.calls[first:]:
                started = time.perf_counter()
                answer = await asked(running, call.message)
                if answer is None:
                    break
                yield replace(_valued(answer, call, cases), seconds=time.perf_counter() - started)
                done += 1
            died = await last_of(running, left=done < len(cases.calls))
        finally:
            running.kill()
            bench.saw(await running.wait())
        if done == len(cases.calls):
            return
        if died.status == "infra" and infra < bench.retries:
            infra += 1
            bench.attempts = max(bench.attempts, infra + 1)
            continue
        infra = 0
        # A program that does not compile, or raises before it has defined anything, does so every time.
        ending = died.outcome.ending if died.outcome else ""
        same = done == first and ending in ("compile_error", "exception")
        for _ in cases.calls[done:] if same else cases.calls[done : done + 1]:
            yield died
            done += 1


async def last_of(running: Running, *, left: bool) -> Result:
    """How a run ended that answers no more. One that lives on (``left``: though it was asked) closed the channel itself."""
    if not left:
        running.kill()
        return Result(status="correct", outcome=await running.wait())
    waiting = asyncio.ensure_future(running.wait())
    await asyncio.wait({waiting}, timeout=GRACE)
    if waiting.done():
        return ended(waiting.result())
    running.kill()
    return Result(status="incorrect", why="it closed the channel", outcome=await waiting)


async def asked(running: Running, message: Any) -> dict[str, Any] | None:
    """What the program answers to a call; None if it ended."""
    try:
        await running.send(message)
        answer = await running.receive()
    except (EOFError, OSError):
        return None
    except ValueError as fault:
        return {"unsendable": str(fault)[:200]}
    return answer if isinstance(answer, dict) else {"unsendable": "what is no answer"}


def _valued(answer: dict[str, Any], call: Call, cases: Cases) -> Result:
    if "value" in answer:
        difference = value_difference(call.expected, answer["value"], how=cases.equality, tol=cases.tol)
        return Result(
            status="incorrect" if difference else "correct", why=difference and f"{_spelled(call)}: {difference}"
        )
    return Result(status="incorrect", why=f"{_spelled(call)}: {said_by(answer)}")


def said_by(answer: dict[str, Any]) -> str:
    """An answer without a value, in a few words."""
    if "missing" in answer:
        return f"the program does not define {_told(answer['missing'])}"
    if "error" in answer:
        message = answer.get("message")
        more = f": {shown(message[0])}" if isinstance(message, list) and message else ""
        return f"raised {_told(answer.get('type') or answer['error'])}{more}"
    return f"returned {_told(answer.get('unsendable', 'nothing'))}, which is no plain data"


def _told(value: Any) -> str:
    """What should be text, and may be anything: ``str`` of a long int is an error."""
    return escaped(value, 120) if isinstance(value, str) else shown(value)


def _spelled(call: Call) -> str:
    given = [shown(item) for item in call.args] + [f"{name}={shown(item)}" for name, item in call.kwargs.items()]
    return f"{call.entry}({', '.join(given)})"[:200]
