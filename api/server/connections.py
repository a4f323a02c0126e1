"""Connections that ask for nothing make room: else a thousand of them, which cost their owner nothing, shut everybody out."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """Closed where the headers of a request are not whole ``patience`` seconds after it began, or after nothing was said.

    One too many, of an address or of all, costs the one its place that has waited longest without a request that goes on;
    where every other one of the address is busy, itself.
    """

    patience: ClassVar[float] = 10.0
    """Seconds."""
    of_address: ClassVar[int] = 500
    """Connections of one address: below ``limit_concurrency``, so that one address does not take it all."""

    _deadline: asyncio.TimerHandle | None = None
    _waits_since: float | None = None
    """None while a request goes on."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._waits()
        if len(self.connections) > self.of_address:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._busy():
            self._waits_since = None
            self._stop()
        elif self._deadline is None:
            self._waits()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._busy():
            self._waits_since = self.loop.time()  # uvicorn's own time for a kept connection runs

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _waits(self) -> None:
        self._waits_since = self.loop.time()
        self._deadline = self.loop.call_later(self.patience, self.transport.close)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _make_room(self) -> None:
        there = [each for each in self.connections if isinstance(each, Connection) and not each.transport.is_closing()]
        mine = [each for each in there if each.client and self.client and each.client[0] == self.client[0]]
        if len(mine) > self.of_address:
            crowd = mine
        elif self.limit_concurrency is not None and len(there) >= self.limit_concurrency:
            crowd = [each for each in there if each is not self]
        else:
            return
        waiting = [(each._waits_since, each) for each in crowd if each._waits_since is not None]
        if waiting:
            min(waiting, key=lambda pair: pair[0])[1].transport.abort()
