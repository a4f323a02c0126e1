"""Routes that take what they name and nothing else: JSON as the guard has read it, and the query parameters of the operation."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.dependencies.utils import get_flat_dependant
from fastapi.routing import APIRoute

from jurat.api.server.problems import Problem
from jurat.platform.errors import nearest


class StrictRequest(Request):
    """Its JSON is what the guard has parsed, strictly and once."""

    async def json(self) -> Any:
        return self.scope["state"].get("json")


class StrictRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        known = [field.alias for field in get_flat_dependant(self.dependant).query_params]

        async def strictly(request: Request) -> Response:
            refuse_unknown(request, known)
            refuse_unwritable(request)
            return await handle(StrictRequest(request.scope, request.receive))

        return strictly


def routes(tag: str) -> APIRouter:
    """Every router of the API is made here: one of another class would let misspelt parameters through."""
    return APIRouter(tags=[tag], route_class=StrictRoute)


def refuse_unwritable(request: Request) -> None:
    """Raises Problem for a NUL in path or query: no name has one, and PostgreSQL has no text for it."""
    for where, given in (("path", request.path_params), ("query", request.query_params)):
        for name, value in given.items():
            if isinstance(value, str) and "\x00" in value:
                errors = [{"pointer": name[:80], "code": "bad-request", "message": "a NUL character"}]
                raise Problem("not-found" if where == "path" else "bad-request", f"{name[:80]} holds a NUL character",
                              errors=errors)  # fmt: skip


def refuse_unknown(request: Request, known: list[str]) -> None:
    """Raises Problem for a query parameter that is not ``known``: a misspelt filter would let everything through."""
    for name in request.query_params if request.scope["query_string"] else ():
        if name not in known:
            there = f"There are {', '.join(known)}." if known else "It takes none."
            said = f"there is no parameter {name[:80]!r}.{nearest(name[:80], known)} {there}"
            errors = [{"pointer": name[:80], "code": "unknown-parameter", "message": said}]
            raise Problem("bad-request", said, errors=errors)
