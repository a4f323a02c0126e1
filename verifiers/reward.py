"""Verdicts -> Reward: pure, and the identity of the whole.

value = sum over members of weight * score. A member without a score excludes the sample, counts as zero, or raises,
as ``on_undecided`` says. Normalisation and shaping are ``trainers/``'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jurat.platform.canonical import canonical_json, digest
from jurat.platform.errors import RunFailed
from jurat.platform.recipe import Member, RewardPart
from jurat.platform.types import Reward, Step, Verdict, VerifierSpec


def labels(members: Sequence[Member]) -> tuple[str, ...]:
    """A name for each member: what it uses, numbered from the second use on (``tags``, ``tags#2``)."""
    seen: dict[str, int] = {}
    out = []
    for member in members:
        seen[member.use] = seen.get(member.use, 0) + 1
        out.append(member.use if seen[member.use] == 1 else f"{member.use}#{seen[member.use]}")
    return tuple(out)


def combine(part: RewardPart, verdicts: Mapping[str, Verdict]) -> Reward:
    """The raw reward of one completion. ``verdicts`` holds one verdict for each label of ``part.members``.

    Raises RunFailed where a verdict has no score and ``on_undecided`` is "raise".
    """
    value: float | None = 0.0
    parts: dict[str, float | None] = {}
    steps: list[Step] = []
    for label, member in zip(labels(part.members), part.members, strict=True):
        verdict = verdicts[label]
        parts[label] = verdict.score
        steps += verdict.steps
        if verdict.score is None:
            if part.on_undecided == "raise":
                raise RunFailed(
                    f"no score: {verdict.status} ({verdict.why})",
                    where=f"reward member {label!r}",
                    fix="set reward.on_undecided to exclude or zero, or mend the verifier",
                )
            value = value if part.on_undecided == "zero" else None
        elif value is not None:
            value += member.weight * verdict.score
    return Reward(value=value, parts=parts, steps=tuple(steps), trainable=value is not None)


def spec_digest(part: RewardPart, bound: Mapping[str, VerifierSpec], problem_verifiers: Sequence[VerifierSpec]) -> str:
    """Identity of a reward: ordered members with role, weight and verifier version, and what undecided is worth.

    ``bound`` maps the label of each member but ``problem`` to its verifier; those of the problems are given apart.
    """
    own = (
        sorted(([s.name, dict(s.args), s.digest] for s in problem_verifiers), key=canonical_json)
        if _uses_problem(part)
        else []
    )
    members = []
    for label, member in zip(labels(part.members), part.members, strict=True):
        spec = bound.get(label)
        using = ["problem", dict(member.args), own] if spec is None else [spec.name, dict(spec.args), spec.digest]
        members.append({"use": using, "role": member.role, "weight": float(member.weight)})
    return digest({"schema": 1, "kind": "reward_spec", "members": members, "on_undecided": part.on_undecided})


def _uses_problem(part: RewardPart) -> bool:
    return any(member.use == "problem" for member in part.members)
