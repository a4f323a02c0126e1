"""A verifier's version digest: its code, config, dependencies and weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jurat.platform.canonical import digest
from jurat.verifiers.registry import Definition


def describe(definition: Definition, args: Mapping[str, Any]) -> dict[str, Any]:
    """``digest`` and the parts that it is made of."""
    return {"digest": digest({"name": definition.name, "version": definition.version, "args": dict(args)})}
