"""A ledger that others listen to: what is recorded is heard by them too, in the loop's thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from jurat.platform.ports import Ledger
from jurat.platform.types import Batch, CheckpointRef, Evaluation, FloatArray, StepReport


class Listener(Protocol):
    """Returns at once and never raises, as a ledger."""

    def seen(self, batch: Batch) -> None: ...

    def stepped(self, report: StepReport) -> None: ...

    def evaluated(self, result: Evaluation) -> None: ...


class Heard:
    """Implements the port ``Ledger``: ``inner``, then each of ``listeners``."""

    def __init__(self, inner: Ledger, *listeners: Listener) -> None:
        self._inner, self._listeners = inner, listeners

    def record_batch(self, batch: Batch) -> None:
        self._inner.record_batch(batch)
        for each in self._listeners:
            each.seen(batch)

    def record_advantages(
        self, step: int, advantages: Mapping[str, FloatArray], optimised: Mapping[str, float]
    ) -> None:
        self._inner.record_advantages(step, advantages, optimised)

    def record_step(self, report: StepReport) -> None:
        self._inner.record_step(report)
        for each in self._listeners:
            each.stepped(report)

    def record_checkpoint(self, ref: CheckpointRef) -> None:
        self._inner.record_checkpoint(ref)

    def record_evaluation(self, result: Evaluation) -> None:
        self._inner.record_evaluation(result)
        for each in self._listeners:
            each.evaluated(result)

    def record_event(self, kind: str, payload: Mapping[str, Any]) -> None:
        self._inner.record_event(kind, payload)

    async def flush(self) -> None:
        await self._inner.flush()
