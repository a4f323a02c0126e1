"""The outermost layer: every request gets an id, every response the headers, and what must not come further is refused.

Refused: a Host this service does not have (421: a rebound DNS name), an Origin or Sec-Fetch-Site of another site (403),
bodies that are too large or no JSON (``bodies.py``), and more failed keys from one address than a minute may have (429).
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import math
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from jurat.api.server import bodies
from jurat.api.server.bodies import Message, Receive, Scope, Send
from jurat.api.server.problems import MEDIA_TYPE, Problem, of_error
from jurat.api.server.prometheus import Requests
from jurat.platform.errors import JuratError

log = logging.getLogger(__name__)

FAULT = "the service failed; its log has more by this request's id"
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy",
     b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
     b"frame-ancestors 'none'; base-uri 'none'; form-action 'self'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]  # fmt: skip
STREAMED = {("POST", "/api/v1/runs:import"): b"application/x-tar"}
"""Bodies that their routes read, piece by piece and under caps of their own."""
LONG = 1 << 18
"""Bytes of a body that is parsed in a thread, so that others are answered meanwhile."""
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}\Z")

App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guard:
    """ASGI middleware."""

    def __init__(
        self,
        app: App,
        *,
        hosts: Iterable[str],
        requests: Requests,
        admit: Callable[[Scope], Awaitable[object]],
        addresses: bool = False,
        max_bytes: int = bodies.MAX_BYTES,
    ) -> None:
        """``hosts``: names and addresses, without a port, by which this service may be called; ``addresses``: and by any IP
        address, which no DNS name can be rebound to. ``requests``: counts them. ``admit``: raises Problem for who has no
        good key, before anything of a body is read."""
        self._addresses, self._requests, self._admit = addresses, requests, admit
        self._app, self._hosts, self._max_bytes = app, frozenset(host.lower() for host in hosts), max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given.decode() if _REQUEST_ID.match(given) else f"req_{secrets.token_hex(8)}"
        scope.setdefault("state", {})["request_id"] = request_id
        begun, came = False, time.perf_counter()

        async def sending(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                route = getattr(scope.get("route"), "path", "unmatched")
                seconds, rows = time.perf_counter() - came, scope["state"].get("rows", 0)
                self._requests.answered(scope["method"], route, message["status"], seconds, rows)
                there = {name.lower() for name, _ in message.get("headers", [])}
                extra = [pair for pair in HEADERS if pair[0] not in there]
                message["headers"] = [*message.get("headers", []), *extra, (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            self._refuse(scope, headers)
            if scope["method"] not in SAFE:
                await self._admit(scope)
            if (scope["method"], scope["path"]) in STREAMED:
                if headers.get(b"content-type", b"").lower() != STREAMED[scope["method"], scope["path"]]:
                    raise Problem("unsupported-media-type", "send application/x-tar")
                if b"content-encoding" in headers:
                    raise Problem("unsupported-media-type", "a bundle is sent as it is")
            elif scope["method"] not in SAFE:
                receive = await self._with_body(scope, headers, receive)
            await self._app(scope, receive, sending)
        except Problem as problem:
            await answer(problem, request_id, scope["path"], sending)
        except JuratError as error:  # of a store that was asked for the key
            await answer(of_error(error), request_id, scope["path"], sending)
        except Exception:  # the frame of the service: told by an id alone, kept whole in the log
            log.exception(
                "request %s failed: %s %s", request_id, scope["method"], scope["path"].encode("unicode_escape").decode()
            )
            if not begun:
                await answer(Problem("internal", FAULT), request_id, scope["path"], sending)
        finally:
            for left in scope["state"].get("leaving", ()):
                left()

    def _refuse(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        if sum(len(name) + len(value) for name, value in scope["headers"]) > 32_768 or len(scope["headers"]) > 100:
            raise Problem("headers-too-large", "the headers may have 32 KiB and be 100")
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        host = host_of(hosts[0].decode("latin-1")) if len(hosts) == 1 else ""
        if host not in self._hosts and not (self._addresses and is_address(host)):
            raise Problem(
                "misdirected", "this service is not called by that name; jurat serve --host-name allows another"
            )
        origin = headers.get(b"origin")
        site = headers.get(b"sec-fetch-site", b"none")
        if origin is not None and origin.decode("latin-1") != f"{scope['scheme']}://{hosts[0].decode('latin-1')}":
            raise Problem("foreign-origin", "pages of another origin may not call this service")
        if site not in (b"none", b"same-origin") and not (
            site in (b"cross-site", b"same-site")
            and scope["method"] == "GET"
            and headers.get(b"sec-fetch-mode") == b"navigate"
        ):
            raise Problem("foreign-origin", "pages of another site may not call this service")

    async def _with_body(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> Receive:
        """Read the body and check it; a receiver that gives it again."""
        data = await bodies.read_body(scope, receive, max_bytes=self._max_bytes)
        scope["state"]["body"] = data
        if data:
            kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
            if kind not in (b"application/json", b"application/merge-patch+json"):
                raise Problem("unsupported-media-type", "send application/json")
            parse = partial(bodies.parse, data)
            scope["state"]["json"] = await asyncio.to_thread(parse) if len(data) > LONG else parse()
        sent = False

        async def again() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": data, "more_body": False}

        return again


def host_of(value: str) -> str:
    """``Host`` without its port: lower case, an IPv6 address in brackets."""
    try:
        found = urlsplit(f"//{value}")
        if found.username or found.password or found.path or found.query or found.fragment or not found.hostname:
            return ""
        _ = found.port
    except ValueError:
        return ""
    name = found.hostname.lower()
    return f"[{name}]" if ":" in name else name


def is_address(host: str) -> bool:
    """An IPv4 address, or one of IPv6 in brackets: a browser sends it only to that address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).version == (6 if host.startswith("[") else 4)
    except ValueError:
        return False


async def answer(problem: Problem, request_id: str, path: str, send: Send) -> None:
    data = json.dumps(problem.body(request_id, path)).encode()
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(data)).encode())]
    headers += [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in problem.headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": data})


class Failures:
    """Failed keys by address: ten a minute, then a pause that doubles with each further one."""

    def __init__(
        self,
        *,
        free: int = 10,
        window: float = 60.0,
        longest: float = 900.0,
        addresses: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._free, self._window, self._longest, self._addresses, self._clock = free, window, longest, addresses, clock
        self._seen: OrderedDict[str, tuple[int, float]] = OrderedDict()  # address -> (failures, of the last)

    def refuse(self, address: str) -> None:
        """Raises Problem while the address must wait."""
        count, last = self._seen.get(address, (0, 0.0))
        if count >= self._free:
            wait = last + min(self._longest, self._window * 2.0 ** (count - self._free)) - self._clock()
            if wait > 0:
                raise Problem(
                    "too-many-requests",
                    "too many failed keys from this address",
                    headers={"Retry-After": str(int(wait) + 1)},
                )

    def failed(self, address: str) -> None:
        count, last = self._seen.pop(address, (0, 0.0))
        now = self._clock()
        if count < self._free and now - last > self._window:
            count = 0
        self._seen[address] = (count + 1, now)
        while len(self._seen) > self._addresses:
            self._seen.popitem(last=False)


@dataclass(slots=True)
class _Bucket:
    """Of one key."""

    left: float
    """Requests that it may send now."""
    at: float
    """When ``left`` was so."""
    going: int = 0
    told: float = -math.inf
    """When a refusal was last the first of a minute."""


class Rates:
    """Requests by key: a bucket that fills at a rate, and a count of those that go on. Safe to use from several threads."""

    def __init__(
        self, rate: float, at_once: int, *, keys: int = 10_000, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate, self._most, self._at_once, self._keys, self._clock = rate, 4 * rate, at_once, keys, clock
        self._lock = threading.Lock()
        self._seen: OrderedDict[str, _Bucket] = OrderedDict()

    def enter(self, key: str) -> tuple[Callable[[], None], Problem | None, bool]:
        """(to be called at the request's end, the refusal if there is one, whether it is the first in a minute)."""
        with self._lock:
            now = self._clock()
            mine = self._seen.setdefault(key, _Bucket(self._most, now))
            self._seen.move_to_end(key)
            if len(self._seen) > self._keys:
                self._seen.popitem(last=False)
            mine.left, mine.at = min(self._most, mine.left + (now - mine.at) * self._rate), now
            if mine.left >= 1 and mine.going < self._at_once:
                mine.left -= 1
                mine.going += 1
                return lambda: self._leave(mine), None, False
            what = "this key has sent too many requests" if mine.left < 1 else "too many requests of this key go on"
            wait = max(1, math.ceil((1 - mine.left) / self._rate))
            if first := now - mine.told > 60:
                mine.told = now
            return lambda: None, Problem("too-many-requests", what, headers={"Retry-After": str(wait)}), first

    def _leave(self, mine: _Bucket) -> None:
        with self._lock:
            mine.going -= 1


def json_of(scope: Scope) -> Any:
    return scope["state"].get("json")
