"""Killable worker processes for verifiers: one task per process at a time, SIGKILL at the deadline, a warm spare."""

from jurat.verifiers.pool.pool import Answered, Broken, Limits, Origin, Outcome, Pool, Task

__all__ = ["Answered", "Broken", "Limits", "Origin", "Outcome", "Pool", "Task"]
