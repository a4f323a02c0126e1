"""What a run was made of, as records. Everything but a run and a segment is named by its digest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from jurat.platform.types import VerifierSpec

Kind = Literal[
    "verifier_version", "reward_spec", "dataset_version", "model_version", "environment", "run", "segment", "checkpoint",
    "export", "rescore", "data_part",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Node:
    """A thing that an edge joins. Example: ``Node(kind="segment", id="r-20261130-ab12/0")``."""

    kind: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """``dst`` was made of, or by, ``src``. Example: reward_spec -> segment, role "reward"; segment -> checkpoint."""

    src: Node
    dst: Node
    role: str
    run_id: str = ""
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VerifierFacts:
    """One verifier of a reward, with all that its version digest is made of."""

    label: str
    """Of the member in the reward."""
    name: str
    digest: str
    kind: str = "outcome"
    version: str = "1"
    """As its author calls it."""
    code: str = ""
    config: str = ""
    deps: Mapping[str, str] = field(default_factory=dict)
    weights: str = ""
    abi: str = ""
    args: Mapping[str, Any] = field(default_factory=dict)
    deterministic: bool = True
    role: str = "outcome"
    weight: float = 1.0
    sources: Mapping[str, str] | None = None
    """Canonical source by place; None where the store has it already."""

    @classmethod
    def of(cls, spec: VerifierSpec, identity: Mapping[str, Any], *, label: str = "", **more: Any) -> VerifierFacts:
        """A bound verifier with the parts of its digest, as ``LocalJudge.identity`` gives them; ``more``: fields that it has not."""
        parts = {key: identity[key] for key in ("kind", "version", "code", "config", "deps", "weights", "abi")}
        sure = identity.get("deterministic", True)
        return cls(label=label, name=spec.name, digest=spec.digest, args=spec.args, deterministic=sure, **parts, **more)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observation:
    """What a verifier said of the canary cases: its behaviour, for what no reading of code can see."""

    version_digest: str
    canary_digest: str
    """Of the cases."""
    vector: Sequence[tuple[str, str, float | None]]
    """(case id, status, score); what timed out or failed is counted and left out of the digest."""
    errors: int = 0
    timeouts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EnvironmentFacts:
    digest: str
    attrs: Mapping[str, Any]
    git_commit: str
    patch: bytes = b""
    """Of what the commit does not hold; empty for a clean tree, or no repository."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ingredients:
    """All that a segment is made of."""

    reward: str
    """Digest of the reward spec."""
    spec: Mapping[str, Any]
    """What that digest is over, without the verifiers' parts."""
    verifiers: tuple[VerifierFacts, ...]
    datasets: Mapping[str, Mapping[str, Any]]
    """Part of the recipe's data -> manifest, with ``digest``, ``source``, ``split`` and ``rows``."""
    model: str
    """Digest of the base model's files."""
    model_name: str
    model_files: Mapping[str, str] = field(default_factory=dict)
    """Relative path -> sha256."""
    environment: EnvironmentFacts | None = None
    from_checkpoint: str = ""
    """Digest of the checkpoint that the segment goes on from; '' where it begins with the model."""
    observations: tuple[Observation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Version:
    """A verifier's version as the store has it."""

    digest: str
    names: tuple[str, ...]
    """``name@ordinal`` of each verifier that has it."""
    version: str
    code: str
    config: str
    deps: Mapping[str, str]
    weights: str
    abi: str
    args: Mapping[str, Any]
    source: str | None
    """Digest of the blob of its canonical source."""
    deterministic: bool
    status: str
    """active, deprecated or quarantined."""
    status_reason: str
    created: int

    @property
    def name(self) -> str:
        """The verifier that it is a version of, the first of them; '' if none."""
        return (self.names[0].rpartition("@")[0] or self.names[0]) if self.names else ""
