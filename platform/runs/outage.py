"""Waiting for a database that is away, where a run cannot go on without an answer: between two stages, and at its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import InterfaceError, OperationalError

from jurat.platform.errors import RunFailed

T = TypeVar("T")
LONGEST, PAUSE = 600.0, 1.0
"""Seconds that are waited at most, and between two attempts."""


async def patiently(
    ask: Callable[[], T], note: Callable[[str], None], *, longest: float = LONGEST, pause: float = PAUSE
) -> T:
    """The answer of a call of a ``Store``, asked again while the database is locked or away; ``note`` hears that it waits.

    Raises what the call raises: RunFailed after ``longest`` seconds, anything else (FencedOut too) at once. A call whose
    answer alone was lost is made twice: a segment begun so has no rows.
    """
    until, told = time.monotonic() + longest, False
    while True:
        try:
            answer = ask()
        except RunFailed as error:
            if not isinstance(error.__cause__, (OperationalError, InterfaceError)) or time.monotonic() >= until:
                raise
            if not told:
                note(f"{error.what}: waiting for it, {longest:g} s at most")
            told = True
            await asyncio.sleep(pause)
            continue
        if told:
            note("the database answers again")
        return answer
