"""Connections that say nothing, or half of something: they make room, and they end."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn

from jurat.api.server.bodies import Receive, Scope, Send
from jurat.api.server.connections import Connection

HALF = b"GET / HTTP/1.1\r\nHost: x\r\nX-Half: "


waits: list[str] = []
"""Requests that go on until another comes to ``/go``."""


class Short(Connection):
    patience = 0.4
    of_address = 20


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    go_on = threading.Event()
    waits.clear()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/waits":
            waits.append(scope["path"])
            await asyncio.to_thread(go_on.wait, 20)
        elif scope["path"] == "/go":
            go_on.set()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    config = uvicorn.Config(app, http=Short, log_level="error", lifespan="off", ws="none", limit_concurrency=40)  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield sock.getsockname()[1]
    server.should_exit = True
    thread.join()
    sock.close()


def reach(port: int, address: str, said: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=20, source_address=(address, 0))
    made.sendall(said)
    return made


def ask(port: int, path: str = "/", address: str = "127.0.0.1") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20, source_address=(address, 0))
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def over(connection: socket.socket) -> bool:
    """Waits for its end."""
    try:
        while connection.recv(64):
            pass
        return True
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    finally:
        connection.close()


def test_who_says_nothing_shuts_nobody_out(port: int) -> None:
    idle = [
        reach(port, f"127.0.0.{2 + i % 3}", HALF if i % 2 else b"") for i in range(90)
    ]  # thrice more than there is room
    for address in ("127.0.0.1", "127.0.0.2", "127.0.0.9"):
        assert ask(port, address=address) == 200
    assert all(over(connection) for connection in idle)


def test_a_kept_connection_may_not_say_half(port: int) -> None:
    connection = reach(port, "127.0.0.1", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
    connection.sendall(HALF)
    assert over(connection)


def test_who_is_busy_keeps_his_place(port: int) -> None:
    answers: list[int] = []
    busy = [threading.Thread(target=lambda: answers.append(ask(port, "/waits"))) for _ in range(20)]
    [thread.start() for thread in busy]
    while len(waits) < 20:
        time.sleep(0.01)
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        ask(port)
    assert ask(port, address="127.0.0.2") == 200  # another address has its own places
    time.sleep(2 * Short.patience)
    assert ask(port, "/go", address="127.0.0.2") == 200
    [thread.join() for thread in busy]
    assert answers == [200] * 20
