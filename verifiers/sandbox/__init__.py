"""Runs programs that nobody trusts, apart from the machine and from each other. Linux only.

What it does not protect from: faults of the kernel and of the processor (side channels among them); a program that
guesses what it should compute. At level ``seccomp`` a program can also see which names exist in the file system and
how many CPUs the machine has, and there is no quota on a disk, so it may write nothing.
"""

from jurat.verifiers.sandbox.program import Ending, Isolation, Level, Limits, Outcome, Program, Role, Runner, Running
from jurat.verifiers.sandbox.sandbox import Sandbox
from jurat.verifiers.sandbox.slot import SandboxUnavailable

__all__ = [
    "Ending", "Isolation", "Level", "Limits", "Outcome", "Program", "Role", "Runner", "Running", "Sandbox", "SandboxUnavailable",
]  # fmt: skip
