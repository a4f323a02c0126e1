"""A run as it goes: server-sent events, resumed by ``Last-Event-ID``.

One look at the database serves every client of a run. An id is ``EVENT-SEGMENT-STEP``: the last event and the last step
whose metrics were sent. A client that comes back hears what followed; one that was away too long hears ``resync`` and
reads the rest itself. So does one that watches, where points were recorded of a step before the last one that was sent; of
that very step they are sent as they come. Who was away hears of neither: an id is a step, and knows no order of insertion.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from fastapi import Request, Response
from starlette.responses import StreamingResponse

from jurat.api.server import strict
from jurat.api.server.problems import Problem, responses
from jurat.api.server.routes_runs import RunId
from jurat.api.server.service import Here, Service, denied, principal_of, run_named, still
from jurat.api.server.shapes import number
from jurat.platform.db import tables as t
from jurat.platform.errors import JuratError
from jurat.platform.runs import events
from jurat.platform.runs.states import ENDED

log = logging.getLogger(__name__)
router = strict.routes("runs")

LOOK_SECONDS = 0.2
PING_SECONDS = 15.0
BACKLOG = 1000
"""Events, or steps of metrics, that a client may have missed."""
POINTS = 50_000
"""Metric points that a client may have missed."""
WAITING = 2000
"""Messages that may wait for a slow client; then it hears ``resync``."""
CLIENTS = 200
_ID = re.compile(r"(\d{1,15})-(-?\d{1,9})-(-?\d{1,16})\Z")


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """What was sent last."""

    seq: int = 0
    segment: int = -1
    step: int = -1

    def __str__(self) -> str:
        return f"{self.seq}-{self.segment}-{self.step}"


def read_mark(text: str) -> Mark | None:
    found = _ID.match(text)
    return None if found is None else Mark(*map(int, found.groups()))


@dataclass(frozen=True, slots=True)
class Message:
    kind: str
    data: Any
    mark: Mark

    def encode(self) -> bytes:
        said = json.dumps(self.data, separators=(",", ":"), allow_nan=False)  # ASCII, so without a line end of any kind
        return f"id: {self.mark}\nevent: {self.kind}\ndata: {said}\n\n".encode("ascii")


def newest(connection: sa.Connection, run_pk: int) -> Mark:
    """What is there now."""
    e = t.run_event.c
    seq = connection.execute(sa.select(sa.func.max(e.seq)).where(e.run_pk == run_pk)).scalar() or 0
    last = connection.execute(sa.select(t.metric_latest.c.segment,
    t.metric_latest.c.step).where(t.metric_latest.c.run_pk == run_pk)
                              .order_by(t.metric_latest.c.segment.desc(),
                              t.metric_latest.c.step.desc()).limit(1)).first()  # fmt: skip
    return Mark(int(seq), *((int(last.segment), int(last.step)) if last else (-1, -1)))


def _following(run_pk: int, mark: Mark, *, too: bool = False) -> sa.ColumnElement[bool]:
    """``too``: and its own step."""
    p = t.metric_point.c
    keys = sa.select(t.metric_latest.c.key_pk).where(t.metric_latest.c.run_pk == run_pk)
    place, last = sa.tuple_(p.segment, p.step), sa.tuple_(sa.literal(mark.segment), sa.literal(mark.step))
    return sa.and_(p.run_pk == run_pk, p.key_pk.in_(keys), place >= last if too else place > last)


def missed(connection: sa.Connection, run_pk: int, mark: Mark) -> int:
    """Points after a mark, as far as they are told: no more than one above ``POINTS`` is counted."""
    some = sa.select(sa.literal(1)).select_from(t.metric_point).where(_following(run_pk, mark)).limit(POINTS + 1)
    return int(connection.execute(sa.select(sa.func.count()).select_from(some.subquery())).scalar_one())


@dataclass(slots=True)
class _Sent:
    """What a channel knows to be there, so that it sees what comes behind its mark."""

    points: int
    """Of the whole run."""
    names: set[str]
    """Metrics of the step that the mark names."""


def _points(connection: sa.Connection, run_pk: int) -> int:
    total = sa.select(sa.func.coalesce(sa.func.sum(t.metric_series.c.points), 0))
    return int(connection.execute(total.where(t.metric_series.c.run_pk == run_pk)).scalar_one())


def begin(connection: sa.Connection, run_pk: int) -> tuple[Mark, _Sent]:
    """What is there now. Points are counted first: one too few is heard of as ``resync``, one too many never."""
    points, mark, p = _points(connection, run_pk), newest(connection, run_pk), t.metric_point.c
    names = sa.select(t.metric_key.c.name).join(t.metric_point, t.metric_key.c.pk == p.key_pk)
    keys = sa.select(t.metric_latest.c.key_pk).where(t.metric_latest.c.run_pk == run_pk)
    here = (p.run_pk == run_pk, p.key_pk.in_(keys), p.segment == mark.segment, p.step == mark.step)
    return mark, _Sent(points, set(connection.execute(names.where(*here)).scalars()))


def since(connection: sa.Connection, run_pk: int, mark: Mark, sent: _Sent | None = None) -> list[Message]:
    """What followed, metrics before the events of the same look. ``sent``, which is brought up to date: what also came of the
    mark's own step follows too, and what came before it is told by ``resync``."""
    made, at = [], mark
    steps: dict[tuple[int, int], dict[str, Any]] = {}
    points, fresh = 0 if sent is None else _points(connection, run_pk), 0
    now = newest(connection, run_pk)
    if (now.segment, now.step) > (mark.segment, mark.step) or (sent is not None and points > sent.points):
        p, k = t.metric_point.c, t.metric_key.c
        query = (
            sa.select(p.segment, p.step, k.name, p.value)
            .join(t.metric_key, k.pk == p.key_pk)
            .where(_following(run_pk, mark, too=sent is not None))
            .order_by(p.segment, p.step, k.name)
        )
        for segment, step, name, value in connection.execute(query):
            if sent is None or (segment, step) > (mark.segment, mark.step) or name not in sent.names:
                steps.setdefault((segment, step), {})[name] = number(math.nan if value is None else value)
        for (segment, step), values in steps.items():
            at = Mark(at.seq, segment, step)
            made.append(Message("metrics", {"segment": segment, "step": step, "values": values}, at))
        fresh = sum(map(len, steps.values()))
        if sent is not None and points > sent.points + fresh:
            made.append(Message("resync", {"why": "points of earlier steps came"}, at))
    for event in events.read(connection, run_pk, after=mark.seq, limit=BACKLOG):
        at = Mark(event.seq, at.segment, at.step)
        kind = "state" if event.kind == "state" else "event"
        made.append(Message(kind, {"seq": event.seq, "at": event.at, "kind": event.kind, "payload": event.payload}, at))
        if event.kind == "tracking_outage":  # records of earlier steps came later than those after them
            made.append(Message("resync", {"why": "records came late"}, at))
    if sent is not None:  # last, as what raises is looked at again
        before = sent.names if (at.segment, at.step) == (mark.segment, mark.step) else set()
        sent.names = before | steps.get((at.segment, at.step), {}).keys()
        sent.points = max(points, sent.points + fresh)
    return made


def _ending(message: Message) -> str:
    """The state that a run ended in; '' for a message that does not say so. A payload is what somebody wrote."""
    said = message.data["payload"] if message.kind == "state" else None
    state = said.get("to") if isinstance(said, dict) else None
    return state if isinstance(state, str) and state in ENDED else ""


@dataclass(slots=True)
class _Client:
    queue: asyncio.Queue[Message | None]
    lost: bool = False


@dataclass(slots=True)
class _Channel:
    """Everybody who watches one run."""

    run_pk: int
    mark: Mark
    sent: _Sent
    clients: list[_Client] = field(default_factory=list)
    task: asyncio.Task[None] | None = None


class Hub:
    """Channels by run. Used from the event loop alone."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._channels: dict[int, _Channel] = {}

    def count(self) -> int:
        return sum(len(channel.clients) for channel in self._channels.values())

    async def watch(self, run: str, run_pk: int, mark: Mark | None) -> AsyncGenerator[bytes]:
        """Bytes of a stream. ``mark`` None: from now on, with the state it is in."""
        store = self._service.store
        channel = self._channels.get(run_pk)
        client = _Client(asyncio.Queue(WAITING))
        here, sent = await asyncio.to_thread(store.read, lambda c: begin(c, run_pk))
        if channel is None or channel.task is None or channel.task.done():
            channel = self._channels[run_pk] = _Channel(run_pk, here, sent)
            channel.clients.append(client)
            channel.task = asyncio.create_task(self._look(channel))
        else:
            channel.clients.append(client)
        try:
            begun = channel.mark  # what comes through the queue follows this
            state = await asyncio.to_thread(lambda: store.run(run).state)
            if mark is None:
                yield Message("state", {"to": state}, begun).encode()
            elif (
                mark.seq > here.seq
                or here.seq - mark.seq > BACKLOG
                or here.step - mark.step > BACKLOG
                or await asyncio.to_thread(store.read, lambda c: missed(c, run_pk, mark)) > POINTS
            ):
                yield Message("resync", {"why": "too much was missed", "state": state}, begun).encode()
            else:
                for message in await asyncio.to_thread(store.read, lambda c: since(c, run_pk, mark)):
                    if not (
                        message.mark.seq > begun.seq
                        or (message.mark.segment, message.mark.step) > (begun.segment, begun.step)
                    ):
                        yield message.encode()
            if state in ENDED and (mark is None or here == begun):
                yield Message("end", {"state": state}, begun).encode()
                return
            async for data in self._queued(client):
                yield data
        finally:
            channel.clients.remove(client)

    async def _queued(self, client: _Client) -> AsyncIterator[bytes]:
        while True:
            try:
                message = await asyncio.wait_for(client.queue.get(), PING_SECONDS)
            except TimeoutError:
                yield b": ping\n\n"
                continue
            if message is None:
                return
            yield message.encode()
            if client.lost and client.queue.empty():
                client.lost = False
                yield Message("resync", {"why": "the client was too slow"}, message.mark).encode()

    async def _look(self, channel: _Channel) -> None:
        """Look again and again, until nobody watches or the run is over."""
        try:
            await self._look_on(channel)
        except Exception:  # the clients come again, and look at what went wrong by a request of their own
            log.exception("the stream of run %d failed", channel.run_pk)
            self._send(channel, None)
        finally:
            if self._channels.get(channel.run_pk) is channel:
                del self._channels[channel.run_pk]

    async def _look_on(self, channel: _Channel) -> None:
        store = self._service.store
        idle = time.monotonic()
        while channel.clients or time.monotonic() - idle < 1.0:
            if channel.clients:
                idle = time.monotonic()
            try:
                made = await asyncio.to_thread(
                    store.read, lambda c: since(c, channel.run_pk, channel.mark, channel.sent)
                )
            except JuratError:
                await asyncio.sleep(1.0)  # a store that does not answer: the clients wait with us
                continue
            for message in made:
                self._send(channel, message)
                channel.mark = message.mark
            if state := next(filter(None, map(_ending, reversed(made))), ""):
                self._send(channel, Message("end", {"state": state}, channel.mark))
                self._send(channel, None)
                return
            await asyncio.sleep(LOOK_SECONDS)

    def _send(self, channel: _Channel, message: Message | None) -> None:
        for client in channel.clients:
            if client.queue.full():
                client.lost = True
                if message is None:
                    client.queue.get_nowait()
                else:
                    continue
            client.queue.put_nowait(message)


EXAMPLE = 'id: 4-0-12\nevent: metrics\ndata: {"segment":0,"step":12,"values":{"reward/mean":0.5}}\n\n'
TOLD = {
    "description": "Server-sent events: state, metrics, event, resync, end",
    "content": {"text/event-stream": {"example": EXAMPLE}},
}


@router.get(
    "/runs/{run}/stream",
    summary="Follow a run",
    response_class=StreamingResponse,
    responses={**responses("too-many-requests"), 200: TOLD},
)
async def stream(run: RunId, request: Request, service: Here) -> Response:
    """`Last-Event-ID` goes on from there. A comment every 15 s keeps the connection. The stream ends with the run."""
    who = await asyncio.to_thread(principal_of, request)
    if not (who.may("runs:read") or who.holds(run)):
        denied(request, who, "the key may not read runs")
    found = await asyncio.to_thread(run_named, service, run)
    given = request.headers.get("last-event-id")
    mark = None if given is None else read_mark(given)
    if given is not None and mark is None:
        raise Problem(
            "bad-request",
            "Last-Event-ID is not an id of this stream",
            errors=[{"pointer": "Last-Event-ID", "code": "bad-request", "message": "not an id"}],
        )
    hub: Hub = request.app.state.hub
    if hub.count() >= CLIENTS:
        raise Problem("too-many-requests", f"{CLIENTS} clients watch already", headers={"Retry-After": "5"})

    async def told() -> AsyncIterator[bytes]:
        async with aclosing(hub.watch(run, found.pk, mark)) as watched:
            async for data in watched:
                if not await still(request, who):
                    return
                yield data

    return StreamingResponse(
        told(),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no", "Cache-Control": "no-store"},
    )
