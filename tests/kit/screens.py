"""A Reporter for tests of whole runs."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import Any

from jurat.platform.types import Evaluation, StepReport

Stop = int | Callable[[str, int], bool] | None


def interrupt() -> None:
    """Ctrl-C, as if pressed now: the handler runs before the loop's next turn."""
    signal.raise_signal(signal.SIGINT)


class Screen:
    """Keeps what it hears. ``stop``: the version at which it presses Ctrl-C, or a function of (stage, version) that says so,
    asked with 0 when a stage begins. ``after``: {version or note: what is done then}."""

    def __init__(self, stop: Stop = None, *, after: Mapping[int | str, Callable[[], object]] | None = None) -> None:
        self.starts: list[Mapping[str, Any]] = []
        self.steps: list[StepReport] = []
        self.evaluations: list[Evaluation] = []
        self.notes: list[str] = []
        self._stop, self._after = stop, after or {}

    @property
    def stage(self) -> str:
        return self.starts[-1]["stage"]

    def start(self, **said: Any) -> None:
        self.starts.append(said)
        self._reached(0)

    def step(self, report: StepReport) -> None:
        self.steps.append(report)
        self._reached(report.version)

    def evaluation(self, result: Evaluation) -> None:
        self.evaluations.append(result)

    def note(self, text: str) -> None:
        self.notes.append(text)
        self._after.get(text, lambda: None)()

    def _reached(self, version: int) -> None:
        if version in self._after:
            self._after[version]()
        if self._stop(self.stage, version) if callable(self._stop) else version == self._stop:
            interrupt()
