"""What became of one case, and whose doing it was: endings of the sandbox as statuses of a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jurat.platform.types import Status
from jurat.verifiers.sandbox.program import Ending, Outcome

STATUS: Mapping[Ending, Status] = {
    "finished": "correct",
    "exception": "incorrect",
    "compile_error": "incorrect",
    "timeout": "limit",
    "cpu_limit": "limit",
    "memory_limit": "limit",
    "output_limit": "limit",
    "crash": "crash",
    "forbidden": "forbidden",
    "infra_error": "infra",
}
"""Status of a case whose run ended so. All but ``finished`` and ``infra_error`` are the program's own doing."""
UNDECIDED: frozenset[Status] = frozenset({"infra", "error"})
"""Of a case: no fault of the program, so that its verdict has no score."""
STREAM = 1_000
"""Characters of a stream kept as evidence, half from its beginning and half from its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One case. Example: ``Result(status="incorrect", why="token 1: expected '3', got '4'", outcome=outcome)``."""

    status: Status
    why: str = ""
    outcome: Outcome | None = None
    """Of the run that decided; None where the run went on to other cases."""
    seconds: float = 0.0
    """Of a case without a run of its own."""
    flags: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return self.status == "correct"

    @property
    def took(self) -> float:
        """Seconds of the run that decided, or of the case within one."""
        return self.outcome.seconds if self.outcome is not None else self.seconds

    def to_json(self, case: int) -> dict[str, Any]:
        made: dict[str, Any] = {"case": case, "status": self.status, "why": self.why}
        if self.outcome is not None:
            return made | described(self.outcome)
        return made | ({"seconds": round(self.seconds, 4)} if self.seconds else {})


def ended(outcome: Outcome) -> Result:
    """The case whose run ended before it was decided: whatever the ending, it is not passed."""
    status = STATUS[outcome.ending]
    if status == "correct":
        return Result(status="incorrect", why="it left before the case was decided", outcome=outcome)
    return Result(status=status, why=said_of(outcome), outcome=outcome)


def said_of(outcome: Outcome) -> str:
    """An ending in a few words. ``detail`` is text of the sandbox, but may quote the program: escaped."""
    more = f": {escaped(outcome.detail, 200)}" if outcome.detail else ""
    match outcome.ending:
        case "crash":
            return f"crash (signal {outcome.signal})"  # the detail says the same
        case "exception" if outcome.exit_code is not None and not more:
            return f"exception (exit code {outcome.exit_code})"
    return f"{outcome.ending}{more}"


def described(outcome: Outcome) -> dict[str, Any]:
    """A run as evidence: streams escaped and cut, time and memory, where they are known."""
    made: dict[str, Any] = {
        "ending": outcome.ending, "seconds": round(outcome.seconds, 4),
    }  # fmt: skip
    if outcome.measured:
        made["cpu_seconds"] = round(outcome.cpu_seconds, 4)
        made["memory_mb"] = round(outcome.memory_bytes / 2**20, 1)
    for name in ("stdout", "stderr"):
        if text := escaped(getattr(outcome, name), STREAM):
            made[name] = text
    if outcome.cut:
        made["cut"] = list(outcome.cut)
    return made


def escaped(text: bytes | str, limit: int) -> str:
    """Hostile text made harmless: what is not UTF-8, not printable or half a surrogate pair becomes a visible escape. At most
    about ``limit`` characters, from its beginning and its end."""
    if isinstance(text, str):
        text = text.encode("utf-8", "backslashreplace")
    if len(text) > limit:
        half = limit // 2
        left, right = _visible(text[:half]), _visible(text[-half:])
        return f"{left[:half]}\n… {len(text) - 2 * half} bytes left out …\n{right[-half:]}"
    return _visible(text)[: 2 * limit]


def _visible(text: bytes) -> str:
    return "".join(
        char
        if char == "\n" or char.isprintable()
        else f"\\x{ord(char):02x}"
        if ord(char) < 256
        else f"\\u{{{ord(char):x}}}"
        for char in text.decode("utf-8", "backslashreplace")
    )
