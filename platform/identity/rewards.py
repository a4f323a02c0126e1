"""The digest of a reward: its members with the versions of their verifiers, and all that is done to their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jurat.platform.canonical import digest

SCHEMA = 2
"""Of the specs that are made now; those of schema 1 say nothing of normalisation and shaping, and have no ``schema``."""


def labels(uses: Sequence[str]) -> tuple[str, ...]:
    """A name for each member: what it uses, numbered from the second use on (``tags``, ``tags#2``)."""
    seen: dict[str, int] = {}
    out = []
    for use in uses:
        seen[use] = seen.get(use, 0) + 1
        out.append(use if seen[use] == 1 else f"{use}#{seen[use]}")
    return tuple(out)


def reward_digest(spec: Mapping[str, Any], verifiers: Sequence[tuple[str, str, str]]) -> str:
    """``verifiers``: (label, verifier, version digest) in order; those of the problems come after the members'.

    Computed again from what a database holds of a reward it is the same: numbers count by value, 1 as 1.0.
    """
    whole = {"kind": "reward_spec", "spec": _by_value(spec), "verifiers": [list(each) for each in verifiers]}
    return digest(whole)


def _by_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _by_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_by_value(item) for item in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
