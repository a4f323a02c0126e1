"""What goes into a sandbox and what comes out of it. Data only: nothing here starts a process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

from jurat.platform.errors import ConfigError

Level = Literal["ns", "seccomp", "rlimits"]
"""How a program is kept apart, strongest first; ``rlimits`` is never chosen silently."""
Ending = Literal[
    "finished", "exception", "timeout", "cpu_limit", "memory_limit", "output_limit", "crash", "forbidden", "compile_error",
    "infra_error",
]  # fmt: skip
"""How a run ended. All but ``finished`` (exit status 0) and ``infra_error`` (ours, worth a retry) are the program's doing."""
Role = Literal["script", "serve", "test"]
"""``script``: run the text as ``__main__``, stdin and stdout are all there is. ``serve``: run the text as ``__main__``, then
answer calls of what it defines, one JSON line each. ``test``: run the text with a ``candidate`` whose calls travel over
the channel to whoever serves it, so that test code and the code under test share no process."""


_ENDLESS = 1 << 60


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one run may use. Example: ``Limits(wall_seconds=5.0, memory_bytes=1 << 29)``. Raises ConfigError for a limit
    that is none: not above 0, or endless."""

    wall_seconds: float = 10.0
    cpu_seconds: float = 10.0
    memory_bytes: int = 1 << 30
    """Address space beyond the interpreter's own."""
    output_bytes: int = 1 << 20
    """Of standard output and of the channel, each; of standard error 64 KiB are kept, the first and the last part."""
    file_bytes: int = 16 << 20
    """Of all that it writes to its own folder."""
    open_files: int = 64
    processes: int = 32
    """Threads, its own included."""
    writable: bool = True
    """Whether it has a folder of its own to write to (level ``ns``; below it never has)."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name != "writable" and not 0 < value < _ENDLESS:
                raise ConfigError(f"{name} {value!r}", where="limits of a program", fix="a number above 0")


@dataclass(frozen=True, kw_only=True)
class Program:
    """One program to run. Example: ``Program(text="print(int(input()) + 1)", stdin=b"41\\n")``."""

    text: str
    role: Role = "script"
    stdin: bytes = b""
    entry: str = ""
    """What ``serve`` calls where a call names nothing: ``add``, or ``Solution.add`` for a method of a fresh instance. For
    ``test``, the names under which it finds the program's functions beside ``candidate``, which is the first: ``a,b``."""


@dataclass(frozen=True, kw_only=True)
class Isolation:
    """What kept the program apart."""

    level: Level
    probes: Mapping[str, str] = field(default_factory=dict)
    """Mechanism to what was found: ``{"landlock": "ABI 7", "cgroup": "none", ...}``."""
    fingerprint: str = ""
    """Digest of level, probes, filter, limits, interpreter and preloaded modules: equal fingerprints, equal conditions."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run did. Every run has exactly one."""

    ending: Ending
    isolation: Isolation
    exit_code: int | None = None
    signal: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    cut: tuple[str, ...] = ()
    """Streams of which a part was thrown away: ``stdout``, ``stderr``, ``channel``."""
    seconds: float = 0.0
    """Wall time, measured by the judge."""
    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    """Peak resident size."""
    detail: str = ""
    """What exactly: the forbidden system call, the exception's type, what failed of the infrastructure."""

    @property
    def measured(self) -> bool:
        """Whether ``cpu_seconds`` and ``memory_bytes`` are the program's: at level ns a run ends from outside by the death of
        its pid 1, and the kernel then counts nothing of what it takes along."""
        return self.isolation.level != "ns" or self.ending not in ("timeout", "output_limit")


class Running(Protocol):
    """A program under way."""

    async def send(self, message: Any) -> None:
        """One typed JSON value into the channel (``typed.py``)."""

    async def receive(self) -> Any:
        """The next typed JSON value out of the channel, decoded under caps; raises EOFError when there is none to come,
        ValueError for a line that is none."""

    def end(self) -> None:
        """Nothing more will be sent: a program that serves then ends by itself, ``finished`` if all went well."""

    def kill(self) -> None:
        """At once, with all that it started."""

    async def wait(self) -> Outcome:
        """When it has ended."""


class Runner(Protocol):
    """What ``sandbox.Sandbox`` is to its users."""

    @property
    def isolation(self) -> Isolation: ...

    async def start(self, program: Program, limits: Limits = ...) -> Running:
        """When a slot is free. Raises SandboxUnavailable."""

    async def run(self, program: Program, limits: Limits = ...) -> Outcome:
        """To its end. Cancelling kills it."""
