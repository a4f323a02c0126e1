"""A service that listens, over each database, and what to ask it with."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from jurat.api.server.app import create_app
from jurat.api.server.service import Service, Settings
from jurat.client import Client

Replies = tuple[int, dict[str, str], Any]


@dataclass
class Served:
    service: Service
    port: int
    key: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, key: str | None = None) -> Client:
        return Client(self.url, key or self.key, tries=1)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        *,
        raw: bytes | None = None,
    ) -> Replies:
        """(status, headers in lower case, body as JSON where it is)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        sent = {**({"Authorization": f"Bearer {self.key}"} if self.key else {}), **(headers or {})}
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        if data is not None:
            sent.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, data, sent)
            answer = connection.getresponse()
            found = answer.read()
        finally:
            connection.close()
        told = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, told, json.loads(found) if found and "json" in told.get("content-type", "") else found


@contextmanager
def listening(settings: Settings, *, prepare: Callable[[Service], None] = lambda service: None) -> Iterator[Served]:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.bind(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    service = Service.start(settings)
    prepare(service)
    server = uvicorn.Server(
        uvicorn.Config(create_app(service), log_level="error", lifespan="off", ws="none", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield Served(service, port)
    finally:
        server.should_exit = True
        thread.join()
        service.close()
        sock.close()
