"""A run carried away and taken in: a stream each way, under caps, and no second copy of it in memory."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Query, Request, Response
from starlette.responses import StreamingResponse

from jurat.api.server import bodies, search, shapes, strict
from jurat.api.server.access import Principal
from jurat.api.server.problems import Problem, responses
from jurat.api.server.service import CanRead, Here, Service, denied, etag, once, principal_of, run_named
from jurat.api.server.shapes import tell
from jurat.platform.errors import NameTaken
from jurat.platform.provenance import bundle, points, prov
from jurat.platform.runs.disk import spare
from jurat.platform.runs.records import RunInfo

router = strict.routes("provenance")

_PIECE = 1 << 20
WAIT_SECONDS = 5.0
"""For others that are exporting."""
_MEDIA = {"bundle": "application/x-tar", "prov-json": "application/json", "parquet": "application/vnd.apache.parquet",
          "csv": "text/csv; charset=utf-8"}  # fmt: skip
_ENDING = {"bundle": "tar", "prov-json": "prov.json", "parquet": "parquet", "csv": "csv"}
_importing = threading.Lock()
_exporting = threading.BoundedSemaphore(2)
"""Each may hold all points of a run in memory until its first piece is sent."""


@router.get(
    "/runs/{run}:export",
    summary="A run as one file",
    responses={
        **responses("too-many-requests"),
        200: {"description": "The file", "content": {each.partition(";")[0]: {} for each in _MEDIA.values()}},
    },
)
def export(
    run: str,
    request: Request,
    service: Here,
    who: CanRead,
    format: Literal["bundle", "prov-json", "parquet", "csv"] = "prov-json",
    weights: Annotated[bool, Query(description="Of a bundle: the checkpoints' tensors too.")] = True,
) -> Response:
    """`bundle` is all of it, for `POST /runs:import`, and needs the scope `data:read` too; `parquet` and `csv` are the metrics."""
    found = run_named(service, run)
    if format == "bundle" and not who.may("data:read"):
        denied(request, who, "a bundle holds rollouts: the key has no scope data:read")
    headers = {
        "Content-Disposition": f'attachment; filename="{found.id}.{_ENDING[format]}"',
        "Content-Security-Policy": "sandbox; default-src 'none'",
    }
    made = _exported(service, found, format, weights)
    if not _exporting.acquire(timeout=WAIT_SECONDS):
        raise Problem("too-many-requests", "two other exports are being made", headers={"Retry-After": "5"})
    try:
        first = next(made, b"")  # what cannot be read at all is a problem, not a file that ends early
    finally:
        _exporting.release()
    return StreamingResponse(chain([first], made), headers=headers, media_type=_MEDIA[format])


def _exported(service: Service, run: RunInfo, form: str, weights: bool) -> Iterator[bytes]:
    if form == "bundle":
        yield from bundle.pieces(service.store, run, weights=weights)
    elif form == "prov-json":
        yield json.dumps(service.store.read(lambda c: prov.document(c, run)), separators=(",", ":")).encode()
    else:
        write = points.write_parquet if form == "parquet" else points.write_csv
        with tempfile.TemporaryDirectory(prefix="jurat-") as folder:
            path = Path(folder) / "metrics"
            write(service.store.read(lambda c: points.table(c, run.pk)), path)
            with path.open("rb") as file:
                while piece := file.read(_PIECE):
                    yield piece


@router.post(
    "/runs:import",
    status_code=201,
    response_model=shapes.Run,
    summary="Take in a run's bundle: all of it or nothing",
    responses=responses(
        "conflict", "too-large", "unsupported-media-type", "no-room", "too-many-requests", "in-flight", "key-reused"
    ),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def import_run(request: Request, service: Here) -> Response:
    """The body is what `GET /runs/{run}:export?format=bundle` gave. It is believed as far as its digests go, so this is for
    the operator (scope `admin`). The run is over, whatever it was, and is neither resumed nor forked over HTTP."""

    def admitted() -> Principal:
        who = principal_of(request)
        if not who.may("admin"):
            denied(request, who, "a bundle is taken in by who has the scope admin")
        return who

    who = await asyncio.to_thread(admitted)
    if not _importing.acquire(blocking=False):
        raise Problem("too-many-requests", "another bundle is being taken in", headers={"Retry-After": "5"})
    draft = service.store.runs_folder / f".upload-{secrets.token_hex(6)}.tar"
    try:
        request.scope["state"]["body"] = await _received(request, draft, service.settings.import_bytes)
        return await asyncio.to_thread(once, request, who, lambda: _taken(request, service, who, draft))
    finally:
        draft.unlink(missing_ok=True)
        _importing.release()


def _taken(request: Request, service: Service, who: Principal, draft: Path) -> Response:
    try:
        run = bundle.take_in(service.store, draft)
    except NameTaken as error:
        raise Problem("conflict", error.what) from None
    service.audit(who.name, "import run", run.id, request.scope["state"]["request_id"], "done")
    body: dict[str, Any] = search.whole(service.store, run)
    return tell(body, 201, {"Location": f"/api/v1/runs/{run.id}", "ETag": etag(body["version"])})


async def _received(request: Request, draft: Path, most: int) -> bytes:
    """The body is in the file; its sha256. Raises Problem, at the first byte that is too much or too late."""
    declared = request.headers.get("content-length", "0")
    if not declared.isdigit() or int(declared) > most:
        raise bodies.too_large(most)
    _refuse_full(draft.parent, int(declared))
    hashed, size, held = hashlib.sha256(), 0, bytearray()
    with draft.open("xb") as file:
        async for chunk in _chunks(request):
            size += len(chunk)
            if size > most:
                raise bodies.too_large(most)
            held += chunk
            if len(held) >= _PIECE:
                await asyncio.to_thread(_keep, file, hashed, bytes(held))
                held.clear()
                _refuse_full(draft.parent, 0)
        _keep(file, hashed, bytes(held))
    return hashed.hexdigest().encode()


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(bodies.READ_SECONDS):
                chunk = await anext(stream)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise Problem(
                "bad-request",
                f"nothing of the body came for {bodies.READ_SECONDS:g} s",
                headers={"Connection": "close"},
            ) from None
        yield chunk


def _keep(file: Any, hashed: Any, data: bytes) -> None:
    hashed.update(data)
    file.write(data)


def _refuse_full(folder: Path, needed: int) -> None:
    """A bundle is on the disk twice while it is taken in."""
    if spare(folder) < 2 * needed:
        raise Problem("no-room", "the disk of this service has no room for it", headers={"Connection": "close"})
