"""Rollouts: pages by filter and order, one sample whole, and counts. They are read by a process of their own."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response

from jurat.api.server import reader, strict
from jurat.api.server.problems import Problem, responses
from jurat.api.server.routes_runs import FieldMask, PageToken, RunId
from jurat.api.server.service import CanReadData, Here, masked, run_named
from jurat.api.server.shapes import tell
from jurat.platform.runs.records import Part, RunInfo

router = strict.routes("rollouts")

Step = Annotated[int | None, Query(ge=0, le=1 << 53)]
Where = Annotated[
    str,
    Query(
        max_length=8192,
        alias="filter",
        description="For example `status = incorrect AND completion_tokens > 100 AND verdicts.problem.why : boxed`.",
    ),
]


def _parts(
    service: Here, run: RunInfo, step: int | None, first: int | None = None, last: int | None = None
) -> tuple[list[Part], list[Part]]:
    """Of the rollouts, and of the advantages."""
    rollouts, advantages = (
        [
            part
            for part in service.store.parts(run, kind=kind, step=step)
            if (first is None or part.step_max >= first) and (last is None or part.step_min <= last)
        ]
        for kind in ("rollout", "advantage")
    )
    return rollouts, advantages


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
    parts, advantages = _parts(service, found, step, first, last)
    return tell(
        reader.page(
            found, parts, service.secret, _reader(service), advantages=advantages, asked=f"{step} {first} {last}",
            filter_=filter_, order_by=order_by, page_size=page_size, page_token=page_token, fields=frozenset(wanted),
        )
    )  # fmt: skip


@router.get("/runs/{run}/rollouts/{rollout}", summary="One sample: text, tokens, log-probabilities, verdicts, reward, advantages",
            responses=responses("query-too-slow", "unavailable"))  # fmt: skip
def get_rollout(run: RunId, rollout: str, service: Here, who: CanReadData) -> Response:
    """`advantages` has one number for each token of the completion, where they differ; else `advantage` is that of all.
    Both are null where nothing was learnt from it."""
    found = run_named(service, run)
    parts = service.store.parts(found, holding=rollout)
    steps = {(part.segment, part.step_min) for part in parts}
    beside = [part for part in service.store.parts(found, kind="advantage") if (part.segment, part.step_min) in steps]
    return tell(reader.sample(found, parts, _reader(service), rollout, advantages=beside))


@router.get(
    "/runs/{run}/rollouts:count",
    summary="How many, by status",
    responses=responses("bad-filter", "query-too-slow", "unavailable"),
)
def count_rollouts(run: RunId, service: Here, who: CanReadData, step: Step = None, filter_: Where = "") -> Response:
    found = run_named(service, run)
    parts, advantages = _parts(service, found, step)
    indexed = service.store.part_statuses(found)
    counted = reader.counts(found, parts, _reader(service), filter_, advantages=advantages, indexed=indexed)
    return tell({"counts": counted, "total": sum(counted.values())})
