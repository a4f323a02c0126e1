"""Ctrl-C once: stop at a checkpoint. Twice: stop now."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable

from jurat.platform.ports import Reporter


class StopOnSignals:
    """Ctrl-C or SIGTERM once asks the loop to stop at a checkpoint; twice calls ``last`` and ends the process, whatever
    its threads are doing; three times ends it even if ``last`` hangs. Main thread only."""

    def __init__(
        self, stop: asyncio.Event, reporter: Reporter, *, says: Callable[[], str], last: Callable[[], None]
    ) -> None:
        self._stop, self._reporter, self._says, self._last = stop, reporter, says, last
        self._here = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> None:
        if self._here:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self._asked, number)

    def __exit__(self, *exc: object) -> None:
        if self._here:
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().remove_signal_handler(number)

    def _asked(self, number: int) -> None:
        self._reporter.note(f"{self._says()}; once more to stop now")
        self._stop.set()
        signal.signal(number, self._now)

    def _now(self, number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        try:
            self._last()
            sys.stderr.flush()
        finally:
            os._exit(128 + number)
