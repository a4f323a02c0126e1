"""The process that ``jurat serve`` is: one server, one launcher, one lock on the home folder."""

from __future__ import annotations

import asyncio
import ctypes
import json
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import uvicorn

from jurat.api.server.app import create_app
from jurat.api.server.connections import Connection
from jurat.api.server.executor import LocalExecutor
from jurat.api.server.launcher import Launcher
from jurat.api.server.ray_jobs import RayJobs
from jurat.api.server.service import Service, Settings
from jurat.platform.db.engine import connect
from jurat.platform.errors import ConfigError, FencedOut
from jurat.platform.runs.lock import exclusive
from jurat.platform.runs.states import Limits

KEEP_SECONDS = 15
"""Of a connection on which nothing goes on."""


def run(settings: Settings, note: Callable[[str], None], listens: Callable[[Mapping[str, Any]], None]) -> None:
    """Serve until a signal comes; ``listens`` hears of the address. Raises JuratError before anything is served."""
    _give_memory_back()
    sys.setswitchinterval(0.001)  # else a search holds the writer back for 5 ms at a time
    folder = settings.home / "service"
    with ExitStack() as leaving:
        for held, where in (("home folder", folder), ("database file", _beside_file(settings))):
            if where is None:
                continue
            where.mkdir(parents=True, exist_ok=True)
            try:
                leaving.enter_context(exclusive(where))
            except FencedOut as error:
                raise FencedOut(
                    f"another service holds this {held}: {error.what}", where=str(where.parent), fix="stop it first"
                ) from None
        service = leaving.enter_context(closing(Service.start(settings)))
        service.forget_open()
        listening = leaving.enter_context(closing(_socket(settings)))
        if settings.slots:
            limits = Limits(lease=settings.lease_seconds)
            executor = RayJobs(settings.ray) if settings.ray else LocalExecutor()
            service.launcher = Launcher(
                service.store, executor, slots=settings.slots, gpus=settings.gpus, limits=limits, service=settings.url
            )
            service.launcher.start()
        database = service.store.engine.url.render_as_string(hide_password=True)
        (folder / "url.json").write_text(json.dumps({"url": settings.url, "database": database}), "utf-8")
        config = uvicorn.Config(
            create_app(service), log_level="warning", server_header=False, date_header=False, access_log=False,
            ws="none", lifespan="off", http=Connection,
            timeout_keep_alive=KEEP_SECONDS, h11_max_incomplete_event_size=65_536, limit_concurrency=1000,
            timeout_graceful_shutdown=5, proxy_headers=False,
        )  # fmt: skip
        open_to = " without a key" if service.open else ""
        note(f"jurat serves {settings.home} at {settings.url}{open_to} (Ctrl-C stops it; runs go on)")
        if settings.everywhere and not settings.host_names:
            note(
                "  it answers to IP addresses and localhost: other names by which clients call it are given with --host-name NAME"
            )
        listens({"url": settings.url, "home": str(settings.home), "open": service.open})
        try:
            asyncio.run(uvicorn.Server(config).serve(sockets=[listening]))
        except KeyboardInterrupt:
            pass
        finally:
            (folder / "url.json").unlink(missing_ok=True)


def _beside_file(settings: Settings) -> Path | None:
    """The folder whose lock stands for a SQLite file, wherever it lies; None for any other database."""
    url = connect(settings.database).url if settings.database else None
    file = settings.home / "jurat.db" if url is None else url.database
    if not file or (url is not None and url.get_backend_name() != "sqlite"):
        return None
    return Path(f"{Path(file).resolve()}.service")


def _give_memory_back() -> None:
    """Let glibc keep little of what was freed: else each of forty threads has an arena of its own that holds the most it ever
    used, and the process grows for hours. Elsewhere than on glibc nothing is done."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for what, value in ((_M_ARENA_MAX, 2), (_M_MMAP_THRESHOLD, 128 << 10), (_M_TRIM_THRESHOLD, 128 << 10)):
            mallopt(what, value)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""Of malloc.h."""


def _socket(settings: Settings) -> socket.socket:
    """Raises ConfigError where the address is taken or not this machine's."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # Without the protocol's name asyncio leaves Nagle's delay on: 40 ms each.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((settings.host.strip("[]"), settings.port))
    except OSError as error:
        made.close()
        raise ConfigError(
            f"cannot listen: {error.strerror}",
            where=f"{settings.host}:{settings.port}",
            fix="choose another with --host and --port",
        ) from None
    return made
