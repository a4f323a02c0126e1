"""Rollouts: pages by filter and order, one sample whole, and counts. They are read by a process of their own."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from jurat.api.server import reader
from jurat.api.server.problems import Problem, responses
from jurat.api.server.routes_runs import FieldMask, PageToken, RunId
from jurat.api.server.service import CanReadData, Here, masked, run_named
from jurat.api.server.shapes import tell
from jurat.platform.runs.records import Part, RunInfo

router = APIRouter(tags=["rollouts"])

Step = Annotated[int | None, Query(ge=0, le=1 << 53)]
Where = Annotated[
    str,
    Query(
        max_length=8192,
        alias="filter",
        description="For example `status = incorrect AND completion_tokens > 100 AND verdicts.problem.why : boxed`.",
    ),
]


def _parts(service: Here, run: RunInfo, step: int | None, first: int | None, last: int | None) -> list[Part]:
    found = service.store.parts(run, step=step)
    return [
        part for part in found if (first is None or part.step_max >= first) and (last is None or part.step_min <= last)
    ]


def _reader(service: Here) -> reader.Reader:
    if service.reader is None:
        raise Problem("unavailable", "this service reads no rollouts")
    return service.reader


@router.get("/runs/{run}/rollouts", summary="What the policy wrote, and how it was judged",
            responses=responses("bad-filter", "bad-order", "bad-page-token", "query-too-slow",
            "unavailable"))  # fmt: skip
def list_rollouts(
    run: RunId,
    service: Here,
    who: CanReadData,
    step: Step = None,
    first: Annotated[int | None, Query(alias="first_step", ge=0, le=1 << 53)] = None,
    last: Annotated[int | None, Query(alias="last_step", ge=0, le=1 << 53)] = None,
    filter_: Where = "",
    order_by: Annotated[
        str, Query(max_length=1024, description="`trained`, `worst`, or fields as of runs.")
    ] = "trained",
    page_size: Annotated[int, Query(ge=1, le=200)] = 50,
    page_token: PageToken = None,
    fields: FieldMask = None,
) -> Response:
    """In the order of training, or the worst first. Tokens and texts come where `fields` names them."""
    found = run_named(service, run)
    wanted = masked(dict.fromkeys(reader.KNOWN), fields, default=reader.SHORT, known=reader.KNOWN)
    return tell(
        reader.page(
            found, _parts(service, found, step, first, last), service.secret, _reader(service), filter_=filter_,
            order_by=order_by,
            page_size=page_size, page_token=page_token, fields=frozenset(wanted),
        )
    )  # fmt: skip


@router.get("/runs/{run}/rollouts/{rollout}", summary="One sample: text, tokens, log-probabilities, verdicts, reward",
            responses=responses("query-too-slow", "unavailable"))  # fmt: skip
def get_rollout(run: RunId, rollout: str, service: Here, who: CanReadData) -> Response:
    found = run_named(service, run)
    return tell(reader.sample(found, _parts(service, found, None, None, None), _reader(service), rollout))


@router.get(
    "/runs/{run}/rollouts:count",
    summary="How many, by status",
    responses=responses("bad-filter", "query-too-slow", "unavailable"),
)
def count_rollouts(run: RunId, service: Here, who: CanReadData, step: Step = None, filter_: Where = "") -> Response:
    found = run_named(service, run)
    rows = reader.counts(found, _parts(service, found, step, None, None), _reader(service), filter_)
    return tell(
        {
            "counts": {row["status"] or "unjudged": row["count"] for row in rows},
            "total": sum(row["count"] for row in rows),
        }
    )
