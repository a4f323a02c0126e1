"""What the store answers: one frozen record per fact. Times are UTC epoch microseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jurat.platform.runs.states import State
from jurat.platform.types import CheckpointRef, Evaluation


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunInfo:
    """One run. Example: ``RunInfo(id="r-20261130-ab12", state="running", folder=Path(".jurat/runs/..."), ...)``."""

    pk: int
    id: str
    name: str
    """The recipe's name."""
    state: State
    detail: str
    """Why it is in this state: an error, a signal."""
    recipe: Mapping[str, Any]
    """Complete, after overrides and defaults; ``Recipe.model_validate`` reads it back."""
    recipe_digest: str
    reward_digest: str
    meta: Mapping[str, Any]
    created: int
    started: int | None
    ended: int | None
    folder: Path
    version: int = 1
    """Grows with every change: the ETag of the service."""
    project: str = ""
    parent_run: str | None = None
    """Id of the run that this one was forked from."""
    from_checkpoint: str | None = None
    """Digest of the checkpoint that it begins from."""
    priority: int = 0
    max_restarts: int = 0
    restarts: int = 0
    max_runtime: float | None = None
    """Seconds in state ``running``."""
    lease_owner: str | None = None
    lease_epoch: int = 0
    """Fencing token: every write of a process that holds the run carries the one it got."""
    lease_until: int | None = None
    heartbeat_at: int | None = None
    last_step_at: int | None = None
    desired: str = "run"
    """run, pause or cancel: what was asked of the process that holds it."""
    deadline: int | None = None
    """When its state ends by itself; see ``states.Limits``."""
    exit_code: int | None = None
    deleted_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to work on a run until ``until``, and the token that proves it."""

    run: str
    run_pk: int
    epoch: int
    owner: str
    until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Something asked of the process that holds a run."""

    pk: int
    kind: str
    """pause, resume, cancel or checkpoint."""
    args: Mapping[str, Any]
    at: int
    by: str
    acked_at: int | None
    result: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What a heartbeat learns."""

    state: State
    desired: str
    until: int
    commands: tuple[Command, ...]
    """Not yet acknowledged, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """One process's stretch of one stage of a run."""

    no: int
    """0, 1, ... within the run."""
    stage: str
    stage_index: int
    first_step: int
    started: int
    ended: int | None
    ending: str
    """How it ended; empty while it goes on and after a kill."""
    host: str
    pid: int
    reward_digest: str
    versions: Mapping[str, Any]
    """Libraries, Python, git commit, verifiers: what this process ran."""
    epoch: int = 0
    """Of the lease it ran under; 0 for records of before there were leases."""
    owner: str = ""
    environment_digest: str | None = None
    model_digest: str | None = None
    from_checkpoint: str | None = None
    """Digest of the checkpoint it went on from."""
    to_step: int | None = None
    """The first step that it did not take; set with its end."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Event:
    seq: int
    at: int
    kind: str
    segment: int | None
    payload: Mapping[str, Any]
    uid: str = ""
    digest: str = ""
    """Over this event and the digest of the one before: see ``events.link``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Point:
    """One metric of one step. ``value`` is NaN where the trainer said NaN."""

    stage: str
    segment: int
    step: int
    at: int
    name: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Saved:
    """A checkpoint as recorded."""

    ref: CheckpointRef
    stage: str
    segment: int
    at: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """An evaluation as recorded."""

    result: Evaluation
    segment: int
    at: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """One immutable Parquet file in the catalogue."""

    kind: str
    stage: str
    segment: int
    step_min: int
    step_max: int
    path: str
    """Relative to the run's folder."""
    digest: str
    rows: int
    bytes: int
    schema_version: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VerdictStat:
    """What one version of one verifier said in one step."""

    stage: str
    segment: int
    step: int
    member: str
    """Name in the reward spec."""
    verifier: str
    version_digest: str
    n: int
    scored: int
    score_sum: float
    seconds_sum: float
    seconds_max: float
    statuses: Mapping[str, int]
