"""What is sent and received: one model a resource, each with an example. Times are UTC epoch microseconds, steps count from
0 as in the records: step s begins with policy version s and makes version s + 1. Numbers that are not finite are the
strings ``NaN``, ``Infinity`` and ``-Infinity``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
Digest = Annotated[str, StringConstraints(pattern=rf"^{DIGEST.pattern}$")]
_PATH = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}(/[A-Za-z0-9][A-Za-z0-9._-]{0,127}){0,7}$"
RelativePath = Annotated[str, StringConstraints(pattern=_PATH)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Key = Annotated[str, StringConstraints(min_length=1, max_length=200)]
MAX_ROWS = 10_000
"""Of a list in a body. It ends at the first item that is wrong: a message for each of a million is a flood of its own."""
_NAMED = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _number(value: Any) -> Any:
    return _NAMED.get(value, value) if isinstance(value, str) else value


Number = Annotated[float, BeforeValidator(_number), Field(strict=True)]


def number(value: float | None) -> float | str | None:
    """A number as it is sent."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def numbers(values: Mapping[str, float | None]) -> dict[str, float | str | None]:
    """Numbers by name as they are sent; None is NaN."""
    told: dict[str, float | str | None] = {name: "NaN" if value is None else value for name, value in values.items()}
    if not math.isfinite(sum(filter(None, values.values()))):
        told = {name: number(value) if isinstance(value, float) else value for name, value in told.items()}
    return told


def tell(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None, *, long: str | None = None
) -> Response:
    """A JSON response of plain values. ``long``: a list in it that is encoded item by item, so that other threads get their
    turn in between; an encoder lets nobody in before it is done."""
    if long is None:
        data = _encoded(value)
    else:
        rest = _encoded({name: item for name, item in value.items() if name != long})
        data = b'%s,"%s":[%s]}' % (rest[:-1], long.encode(), b",".join(map(_encoded, value[long])))
    return Response(data, status, dict(headers or {}), media_type="application/json")


def _encoded(value: Any) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode("utf-8")
    except (ValueError, UnicodeEncodeError):
        return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False).encode("ascii")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return number(value)
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


class Shape(BaseModel):
    """What is received: an unknown key is refused."""

    model_config = ConfigDict(extra="forbid")


RUN: dict[str, Any] = {
    "id": "r-20261130-k3xp", "name": "tiny", "project": "math", "state": "running", "detail": "", "version": 4,
    "recipe_digest": "sha256:" + "4f" * 32, "reward_spec": "sha256:" + "a1" * 32, "created": 1_796_000_000_000_000,
    "started": 1_796_000_001_000_000, "ended": None, "desired": "run", "lease_epoch": 1, "restarts": 0,
    "tags": {"owner": "ada"},
}  # fmt: skip


class Run(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [RUN]})

    id: str
    name: str = Field(description="Of its recipe.")
    project: str
    state: str
    detail: str
    version: int = Field(description="Also the ETag.")
    recipe_digest: str
    reward_spec: str
    created: int
    started: int | None
    ended: int | None
    desired: Literal["run", "pause", "cancel"]
    lease_epoch: int
    lease_until: int | None = None
    heartbeat_at: int | None = None
    last_step_at: int | None = None
    parent_run: str | None = None
    from_checkpoint: str | None = None
    priority: int = 0
    restarts: int = 0
    max_restarts: int = 0
    exit_code: int | None = None
    tags: dict[str, str] = {}
    recipe: dict[str, Any] | None = Field(None, description="Whole, as it was filled; only where `fields` names it.")
    metrics: dict[str, Any] | None = Field(None, description="The last values; only those that `metrics` names.")


class Runs(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"runs": [RUN], "next_page_token": None}]})

    runs: list[Run]
    next_page_token: str | None
    total: int | None = Field(None, description="Only where `count=exact` asks for it.")


class NewRun(Shape):
    """A run of a registered recipe. ``config`` overrides keys of the recipe, nested or dotted."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"recipe": "tiny", "config": {"steps": 20, "seed": 7}, "project": "math", "tags": {"owner": "ada"}}
            ]
        },
    )

    recipe: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
    config: dict[str, Any] = {}
    id: Name | None = Field(None, description="Of the new run; made up if not given.")
    project: Annotated[str, StringConstraints(max_length=64)] = ""
    tags: dict[Key, Annotated[str, StringConstraints(max_length=500)]] = Field({}, max_length=64)
    reward_spec: Digest | None = Field(None, description="Refused if the recipe's reward is not this one.")
    verifiers: dict[Key, Digest] = Field(
        {}, max_length=64, description="Member of the reward -> registered version it must be."
    )
    priority: int = Field(0, ge=-1000, le=1000)
    max_restarts: int = Field(0, ge=0, le=100)
    max_runtime: float | None = Field(None, gt=0, le=1e8, description="Seconds.")


class Fork(Shape):
    """A run that begins with the weights of a checkpoint of another, by that run's recipe from the checkpoint's stage on.
    ``config`` overrides keys of it, nested or dotted; stages count as in the parent's recipe."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"checkpoint": "sha256:" + "c4" * 32, "config": {"seed": 8}}]},
    )

    checkpoint: Digest | None = Field(None, description="None: the newest.")
    config: dict[str, Any] = {}
    id: Name | None = Field(None, description="Of the new run; made up if not given.")
    project: Annotated[str, StringConstraints(max_length=64)] | None = Field(None, description="None: the parent's.")
    tags: dict[Key, Annotated[str, StringConstraints(max_length=500)]] = Field({}, max_length=64)
    priority: int = Field(0, ge=-1000, le=1000)
    max_restarts: int = Field(0, ge=0, le=100)
    max_runtime: float | None = Field(None, gt=0, le=1e8, description="Seconds.")


class NewDataset(Shape):
    """A version of a data set, as its loader describes it (``jurat datasets show NAME --json`` tells the manifest)."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"manifest": {"digest": "sha256:" + "aa" * 32, "rows": 7473, "skipped": 0, "split": "train",
                                       "source": "gsm8k", "template": {}}}]
        },
    )  # fmt: skip

    manifest: dict[str, Any] = Field(max_length=32)


class NewModel(Shape):
    """A model by its files: relative path -> sha256. Its digest is worked out here."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"name": "smollm2", "files": {"model.safetensors": "sha256:" + "0f" * 32}}]},
    )

    name: RelativePath
    files: dict[RelativePath, Digest] = Field(min_length=1, max_length=10_000)


class RunChange(Shape):
    """What a person may change of a run. A tag set to null is removed."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"tags": {"good": "yes", "owner": None}}]}
    )

    project: Annotated[str, StringConstraints(max_length=64)] | None = None
    tags: dict[Key, Annotated[str, StringConstraints(max_length=500)] | None] | None = Field(None, max_length=64)
    priority: int | None = Field(None, ge=-1000, le=1000)
    max_restarts: int | None = Field(None, ge=0, le=100)


class Command(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": 3,
                    "kind": "cancel",
                    "at": 1_796_000_002_000_000,
                    "by": "local",
                    "acked_at": None,
                    "result": None,
                }
            ]
        }
    )

    id: int
    kind: Literal["pause", "resume", "cancel", "checkpoint"]
    at: int
    by: str
    acked_at: int | None
    result: str | None


class MetricRow(Shape):
    name: Key
    step: int = Field(ge=0, le=1 << 53)
    value: Number


class MetricBatch(Shape):
    """``rows``, or the same by column: ``names``, ``steps`` and ``values`` of equal length. All or nothing."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"rows": [{"name": "reward/mean", "step": 0, "value": 0.25}, {"name": "kl", "step": 0, "value": "NaN"}]}
            ]
        },
    )

    rows: list[MetricRow] | None = Field(None, max_length=MAX_ROWS, fail_fast=True)
    names: list[Key] | None = Field(None, max_length=MAX_ROWS, fail_fast=True)
    steps: list[int] | None = Field(None, max_length=MAX_ROWS, fail_fast=True)
    values: list[Number] | None = Field(None, max_length=MAX_ROWS, fail_fast=True)
    segment: int | None = Field(None, ge=0, description="None: the newest.")


class Facts(Shape):
    """What a process that trains records: as its spool keeps it. All or nothing, and harmless when sent again."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "ops": [
                        {
                            "op": "metric",
                            "segment": 0,
                            "step": 3,
                            "at": 1_796_000_003_000_000,
                            "name": "kl",
                            "value": 0.01,
                        }
                    ]
                }
            ]
        },
    )

    ops: list[dict[str, Any]] = Field(max_length=MAX_ROWS, fail_fast=True)


class Verify(Shape):
    """Completions to be judged by a registered version."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"verifier": "sha256:" + "9f" * 32, "items": [{"gold": "1/2", "completion": "So it is \\boxed{0.5}."}]}
            ]
        },
    )

    class Item(Shape):
        gold: Annotated[str, StringConstraints(max_length=100_000)]
        completion: Annotated[str, StringConstraints(max_length=1_000_000)]
        prompt: Annotated[str, StringConstraints(max_length=100_000)] = ""

    verifier: Digest
    items: list[Item] = Field(min_length=1, max_length=256, fail_fast=True)


VersionName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:@-]{1,100}$")]


class NewRescore(Shape):
    """Stored rollouts to be judged by another version."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"from_version": "math@1", "to_version": "math@2", "runs": ["r-20261130-k3xp"], "filter": "step >= 20"}
            ]
        },
    )

    from_version: VersionName = Field(description="NAME@NUMBER or a digest: the one whose verdicts are stored.")
    to_version: VersionName
    runs: list[Name] = Field(min_length=1, max_length=100, fail_fast=True)
    filter: Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00]*$")] = ""
    sample: int | None = Field(None, ge=1, le=10**9, description="About so many rollouts, in whole groups.")
    stratify: list[Literal["source", "length", "step", "difficulty"]] = Field(["source", "length"], max_length=4)
    seed: int = Field(0, ge=0, le=2**31)
    threshold: Number = Field(0.5, ge=0, le=1, description="Scores from it on pass.")
    again: bool = Field(False, description="Ask the old version too, to tell the environment's doing from the code's.")


class NewKey(Shape):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"name": "ci", "scopes": ["runs:read"], "seconds": 86400}]}
    )

    name: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    scopes: list[str] = Field(min_length=1, max_length=10, fail_fast=True)
    seconds: float | None = Field(None, gt=0, le=1e9, description="How long it is good; None: until it is revoked.")


class StatusChange(Shape):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"status": "quarantined", "reason": "accepts an empty \\boxed{}"}]},
    )

    status: Literal["active", "deprecated", "quarantined"]
    reason: Annotated[str, StringConstraints(max_length=1000)] = ""
