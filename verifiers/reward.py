"""Verdicts -> Reward: pure, and what a reward is.

Order: scores of the members -> members without one (``on_undecided``) -> gates -> combination by weights. Normalisation
and shaping are ``trainers/``'s, in batch order; what they are is part of the spec all the same.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jurat.platform.canonical import canonical_json, digest
from jurat.platform.errors import RunFailed
from jurat.platform.identity import rewards
from jurat.platform.recipe import Member, RewardPart
from jurat.platform.types import Reward, Step, Verdict, VerifierSpec

Weighted = Sequence[tuple[float, float]]
"""(weight, score) of each member."""
COMBINERS: Mapping[str, Callable[[Weighted], float]] = {
    "sum": lambda pairs: sum(weight * score for weight, score in pairs),
    "mean": lambda pairs: sum(weight * score for weight, score in pairs) / sum(weight for weight, _ in pairs),
    "min": lambda pairs: min(score for weight, score in pairs if weight),
    "product": lambda pairs: math.prod(score**weight for weight, score in pairs if weight),
}
"""As ``reward.combine`` of a recipe says; it refuses weights for which one is not defined."""


def labels(members: Sequence[Member]) -> tuple[str, ...]:
    """A name for each member, as verdicts are kept by it."""
    return rewards.labels([member.use for member in members])


def combine(part: RewardPart, verdicts: Mapping[str, Verdict]) -> Reward:
    """The raw reward of one completion. ``verdicts`` holds one verdict for each label of ``part.members``.

    A member without a score excludes the sample or counts as 0, as ``on_undecided`` says, unless it counts for nothing; a gate that
    is closed settles the reward at 0 all the same. Raises RunFailed where a verdict has no score and ``on_undecided`` is "raise".
    """
    parts: dict[str, float | None] = {}
    steps: list[Step] = []
    gate, known = "", True
    for label, member in zip(labels(part.members), part.members, strict=True):
        verdict = verdicts[label]
        score = parts[label] = verdict.score
        if member.role == "process":
            steps += verdict.steps
        if score is None and not member.weight and member.gate is None:
            continue  # it counts for nothing
        if score is None and part.on_undecided == "raise":
            raise RunFailed(
                f"no score: {verdict.status} ({verdict.why})",
                where=f"reward member {label!r}",
                fix="set reward.on_undecided to exclude or zero, or mend the verifier",
            )
        if score is None and part.on_undecided == "exclude":
            known = False
        elif member.gate is not None and (score or 0.0) < member.gate:
            gate = gate or label
    if gate:
        none = [s if s.score is None else dataclasses.replace(s, score=0.0) for s in steps]
        return Reward(value=0.0, parts=parts, steps=tuple(none), gate=gate)
    pairs = [(member.weight, score or 0.0) for member, score in zip(part.members, parts.values(), strict=True)]
    value = COMBINERS[part.combine](pairs) if known else None
    return Reward(value=value, parts=parts, steps=tuple(steps), trainable=known)


def spec_of(
    part: RewardPart, *, normalise: Mapping[str, Any] | None = None, shaping: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What a reward is, as JSON, without the versions of its verifiers; the last two as a recipe's algorithm has them."""
    return {
        "schema": rewards.SCHEMA,
        "members": [member.model_dump(mode="json") for member in part.members],
        "combine": part.combine,
        "on_undecided": part.on_undecided,
        "normalise": normalise,
        "shaping": shaping,
    }


def versions_of(bound: Mapping[str, VerifierSpec]) -> list[tuple[str, str, str]]:
    """(label, verifier, version digest), as ``reward_digest`` takes them."""
    return [(label, spec.name, spec.digest) for label, spec in bound.items()]


def digest_of_before(part: RewardPart, bound: Mapping[str, VerifierSpec]) -> str:
    """That of schema 1, by which runs that began with an older jurat are recorded; '' for what it had no words for."""
    if part.combine != "sum" or any(member.gate is not None for member in part.members):
        return ""
    of_problems = [spec for label, spec in bound.items() if label not in labels(part.members)]
    uses = any(member.use == "problem" for member in part.members)
    own = sorted(([s.name, dict(s.args), s.digest] for s in of_problems if uses), key=canonical_json)
    members = []
    for label, member in zip(labels(part.members), part.members, strict=True):
        spec = bound.get(label)
        using = ["problem", dict(member.args), own] if spec is None else [spec.name, dict(spec.args), spec.digest]
        members.append({"use": using, "role": member.role, "weight": float(member.weight)})
    return digest({"schema": 1, "kind": "reward_spec", "members": members, "on_undecided": part.on_undecided})
