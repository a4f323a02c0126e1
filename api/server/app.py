"""The application: routes under /api/v1, problems for whatever goes wrong, and the guard around all of it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from starlette.exceptions import HTTPException

from jurat import __version__
from jurat.api.server import guard, problems
from jurat.api.server.access import Principal
from jurat.api.server.bodies import Scope
from jurat.api.server.problems import KINDS, MEDIA_TYPE, Problem
from jurat.api.server.service import Service, caller
from jurat.platform.errors import JuratError

log = logging.getLogger(__name__)
BASE = "/api/v1"


def create_app(service: Service) -> guard.Guard:
    """An ASGI application over a service that has been started."""
    from jurat.api.server import (
        routes_admin,
        routes_bundles,
        routes_data,
        routes_lineage,
        routes_records,
        routes_registry,
        routes_rescores,
        routes_runs,
        routes_stream,
        routes_verifiers,
    )

    app = FastAPI(
        title="jurat", version=__version__, openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False,
        summary="Runs, reward versions, rollouts and where every number came from",
    )  # fmt: skip
    app.state.service, app.state.hub = service, routes_stream.Hub(service)
    for routes in (
        routes_records,  # first, as it is asked most: routes are tried in their order
        routes_lineage,
        routes_bundles,
        routes_registry,
        routes_runs,
        routes_stream,
        routes_data,
        routes_verifiers,
        routes_rescores,
        routes_admin,
    ):
        app.include_router(routes.router, prefix=BASE)
    app.include_router(routes_admin.outside)
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)

    async def admit(scope: Scope) -> Principal:
        return await caller(Request({**scope, "app": app}))

    return guard.Guard(
        app, hosts=service.settings.hosts, addresses=service.settings.everywhere, requests=service.requests, admit=admit
    )


def _answer(request: Request, problem: Problem) -> Response:
    body = problem.body(request.scope["state"]["request_id"], request.url.path)
    return Response(json.dumps(body), problem.status, problem.headers, media_type=MEDIA_TYPE)


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return _answer(request, error)


async def _invalid(request: Request, error: Exception) -> Response:
    """What pydantic says, without the value that was sent."""
    assert isinstance(error, RequestValidationError)
    errors = []
    for each in error.errors()[:20]:
        where, *rest = each["loc"]
        pointer = (
            "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in rest)
            if where == "body"
            else ".".join(map(str, rest))
        )
        errors.append({"pointer": pointer[:200], "code": each["type"], "message": each["msg"][:300]})
    first = errors[0] if errors else {"pointer": "", "message": "not valid"}
    return _answer(request, Problem("invalid", f"{first['pointer'] or 'the body'}: {first['message']}", errors=errors))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "bad-request")
    detail = "there is nothing at this address" if kind == "not-found" else KINDS[kind].title
    return _answer(request, Problem(kind, detail, headers=error.headers))


async def _ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, JuratError)
    log.info("request %s: %s", request.scope["state"]["request_id"], error)
    return _answer(request, problems.of_error(error))


async def _database(request: Request, error: Exception) -> Response:
    log.error("request %s: %s", request.scope["state"]["request_id"], error)
    if (
        isinstance(error, DBAPIError)
        and not error.connection_invalidated
        and type(error).__name__ not in ("OperationalError", "InterfaceError")
    ):
        raise error  # a fault of ours: 500, by the guard
    return _answer(request, Problem("unavailable", "the store does not answer", headers={"Retry-After": "5"}))


async def _ours_alone(request: Request, error: Exception) -> Response:
    """A fault of ours; the guard logs it."""
    return _answer(request, Problem("internal", guard.FAULT))


_HANDLERS: dict[type[Exception], Callable[[Request, Exception], Coroutine[Any, Any, Response]]] = {
    Problem: _problem,
    RequestValidationError: _invalid,
    HTTPException: _http,
    JuratError: _ours,
    SQLAlchemyError: _database,
    Exception: _ours_alone,
}
