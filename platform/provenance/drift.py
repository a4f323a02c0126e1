"""Is the reward the one that the run began with? If not: what changed, for people."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from jurat.platform.db import tables as t
from jurat.platform.provenance import versions
from jurat.platform.provenance.records import Ingredients, VerifierFacts, Version

MAX_LINES = 200
"""Of a diff that is printed."""


def difference(connection: sa.Connection, before: str, now: Ingredients) -> str:
    """What differs between the reward spec with digest ``before`` and the one of ``now``: members, parts of their versions,
    and a unified diff of canonical source where the store has both."""
    m = t.reward_member.c
    rows = connection.execute(
        sa.select(m.label, m.version_digest, m.role, m.weight).where(m.reward_digest == before).order_by(m.position)
    ).all()
    then = {row.label: row for row in rows}
    lines: list[str] = []
    for facts in now.verifiers:
        old = then.pop(facts.label, None)
        if old is None:
            lines.append(f"+ member {facts.label}: {facts.digest}")
            continue
        if old.role and (old.role, old.weight) != (facts.role, facts.weight):
            lines += [f"- member {facts.label}: {old.role}, weight {old.weight:g}",
                      f"+ member {facts.label}: {facts.role}, weight {facts.weight:g}"]  # fmt: skip
        if old.version_digest != facts.digest:
            lines += _versions(connection, facts, versions.version(connection, old.version_digest))
    lines += [f"- member {label}: {row.version_digest}" for label, row in then.items()]
    if not lines:
        spec = (
            connection.execute(sa.select(t.reward_spec.c.spec).where(t.reward_spec.c.digest == before)).scalar() or {}
        )
        lines = [
            line
            for key in sorted({*spec, *now.spec})
            if spec.get(key) != now.spec.get(key)
            for line in (f"- {key}: {spec.get(key)}", f"+ {key}: {now.spec.get(key)}")
        ] or [f"- reward {before}", f"+ reward {now.reward}"]
    cut = len(lines) - MAX_LINES
    return "\n".join([*lines[:MAX_LINES], *([f"... {cut} more lines"] if cut > 0 else [])])


def _versions(connection: sa.Connection, new: VerifierFacts, old: Version) -> list[str]:
    parts = [
        part
        for part in ("code", "config", "weights")
        if getattr(old, part) and getattr(old, part) != getattr(new, part)
    ]
    pins = sorted({*old.deps.items()} ^ {*new.deps.items()}) if old.code else []
    what = ", ".join([*parts, *(["dependencies"] if pins else [])]) or "its digest"
    lines = [f"member {new.label}: {what} changed", f"- {old.digest}", f"+ {new.digest}"]
    for key in ("version", "args"):
        if old.code and getattr(old, key) != getattr(new, key):
            lines += [f"- {key}: {getattr(old, key)}", f"+ {key}: {getattr(new, key)}"]
    lines += [f"{'-' if old.deps.get(name) == pin else '+'} {name} {pin[:19]}" for name, pin in pins]
    return lines + source_diff(versions.sources(connection, old) or {}, new.sources or {})


def source_diff(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Unified diffs of canonical source by place."""
    lines: list[str] = []
    if old and new:
        for place in sorted({*old, *new}):
            one, two = old.get(place, "").splitlines(), new.get(place, "").splitlines()
            lines += difflib.unified_diff(one, two, f"then {place}", f"now {place}", lineterm="")
    return lines


def behaviour(connection: sa.Connection, now: Ingredients) -> Sequence[str]:
    """Canary cases that a version judges differently than before, one line each."""
    return [
        f"{seen.version_digest[:19]}... {line}"
        for seen in now.observations
        for line in versions.changed_behaviour(connection, seen)
    ]
