"""Test code and the program under test in two sandboxes: what the tests call travels between them as plain data.

The program under test sees arguments and nothing else: no expected value, no assert, no test. The test program sees
plain data that came back: it can be told wrong values, but nothing in it can be changed. Changes of list, dict and set arguments in
place and built-in exception types are carried over; what an assert says then is what it says of these values.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

from jurat.platform.types import Status
from jurat.verifiers.code.asserts import Report, TestProgram, reports
from jurat.verifiers.code.cases import Cases
from jurat.verifiers.code.results import Result, ended, escaped
from jurat.verifiers.code.running import OVER, Bench, asked, last_of, said_by
from jurat.verifiers.sandbox.program import Limits, Outcome, Program, Running

SLACK = 5.0
"""Wall seconds that tests have beyond those of the program which they call."""
_DATA_FAULTS = frozenset({"NameError", "ImportError", "ModuleNotFoundError", "SyntaxError", "SkipTest"})
"""Exceptions of test code that are its own fault where it had no value of the program yet. Later a value may bring them
about (``eval(result)``, a loop over nothing that binds no name, a test that skips itself): else a program could choose to be
left out of training."""
_UNSENDABLE = "a value of type"
"""How the channel refuses what is no plain data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pumped:
    """One go over the pieces that are left."""

    said: tuple[Report, ...]
    calls: int
    """Calls that the program was asked for."""
    test: Outcome
    program: Result | None
    """How the program ended, if it did before the tests had."""


async def tested(bench: Bench, text: str, cases: Cases) -> AsyncGenerator[Result, None]:
    """One result for each piece; where the program dies the next piece gets a new one."""
    test = cases.test
    assert test is not None
    done = infra = 0
    while done < len(test.pieces):
        limits = bench.left()
        if limits is None:
            yield OVER
            done += 1
            continue
        pumped = await _pumped(bench, text, test, done, limits)
        if "infra_error" in (
            pumped.test.ending,
            pumped.program and pumped.program.outcome and pumped.program.outcome.ending,
        ):
            if infra < bench.retries:
                infra += 1
                bench.attempts = max(bench.attempts, infra + 1)
                continue
        infra = 0
        first = done
        for report in pumped.said:
            yield _reported(report, test)
            done += 1
        if done == len(test.pieces):
            return
        result = pumped.program or _broken(pumped)
        outcome = result.outcome
        same = done == first and outcome is not None and outcome.ending in ("compile_error", "exception")
        for _ in test.pieces[done:] if same else test.pieces[done : done + 1]:
            yield result
            done += 1


async def _pumped(bench: Bench, text: str, test: TestProgram, start: int, limits: Limits) -> _Pumped:
    mark = secrets.token_hex(16)
    tests = Program(text=test.text(mark, start), role="test", entry=test.entry)
    longer = replace(limits, wall_seconds=limits.wall_seconds + SLACK, cpu_seconds=limits.cpu_seconds + SLACK)
    calls, program = 0, None
    asking = await bench.runner.start(tests, longer)
    answering: Running | None = None
    try:
        while program is None:
            try:
                call = await asking.receive()
            except EOFError:
                break
            except ValueError as fault:
                # Made of what the program returned, if it returned anything.
                status: Status = "incorrect" if calls else "bad_gold"
                program = Result(status=status, why=f"the tests call it with what cannot be sent: {str(fault)[:200]}")
                break
            calls += 1
            if answering is None:  # not before, as its time runs from then on
                answering = await bench.runner.start(Program(text=text, role="serve", entry=test.names[0]), limits)
            answer = await asked(answering, call)
            if answer is None:
                program = await last_of(answering, left=True)
            elif not answer.keys() & {"value", "error"}:
                program = Result(status="incorrect", why=said_by(answer))
            else:
                try:
                    await asking.send(answer)
                except ValueError as fault:
                    program = Result(
                        status="incorrect", why=f"the program returned what cannot be sent: {str(fault)[:200]}"
                    )
        if program is not None:
            asking.kill()
        outcome = await asking.wait()
    finally:
        asking.kill()
        if answering is not None:
            answering.kill()
            bench.saw(await answering.wait())
    said: list[Report] = []
    for report in reports(outcome.stdout, mark):
        if report.index != start + len(said):
            break
        said.append(report)
    return _Pumped(said=tuple(said), calls=calls, test=outcome, program=program)


def _reported(report: Report, test: TestProgram) -> Result:
    text = escaped(report.text, 300)
    match report.said:
        case "ok" if report.calls == 0:
            return Result(status="bad_gold", why="the test never calls the program")
        case "ok" if test.counted and report.asserted == 0:
            # What the program returned may have led around the asserts: neither a pass, nor a way out of being judged.
            return Result(
                status="incorrect", why="nothing was asserted of what it returned", flags=("nothing_asserted",)
            )
        case "ok":
            return Result(status="correct")
        case "wrong":
            return Result(status="incorrect", why=f"assert failed: {text}" if text else "assert failed")
        case "unsent":
            # What a program gives is plain data, so that it is not to blame for what is none; for what is too large it may be.
            own = report.calls == 1 or report.text.startswith(_UNSENDABLE)
            return Result(
                status="bad_gold" if own else "incorrect", why=f"the tests call it with what cannot be sent: {text}"
            )
        case "raised":
            return Result(status="incorrect", why=f"the program raised {escaped(report.kind, 60)}: {text}")
    if report.kind in _DATA_FAULTS and report.calls == 0:
        return Result(status="bad_gold", why=f"the test is at fault: {report.kind}: {text}")
    return Result(status="incorrect", why=f"the test could not use what it got: {escaped(report.kind, 60)}: {text}")


def _broken(pumped: _Pumped) -> Result:
    """Test code that ended before its pieces had. Once it had values of the program, these are to blame."""
    found = ended(pumped.test)
    if found.status == "infra":
        return found
    if pumped.calls == 0:
        told = escaped(pumped.test.stderr[-300:], 300).strip().rpartition("\n")[2]
        return Result(
            status="bad_gold", why=f"the test code does not run: {found.why} {told}".strip(), outcome=pumped.test
        )
    return replace(found, why=f"in the tests: {found.why}")
