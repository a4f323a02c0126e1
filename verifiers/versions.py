"""A verifier's version: its code, config, dependencies and weights (``platform/identity.py``)."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from jurat.platform.identity import Identity, identify, signature_text
from jurat.verifiers.registry import Definition


def identity_of(definition: Definition, args: Mapping[str, Any]) -> Identity:
    """The identity of a verifier with these arguments; its name stays out. Raises ConfigError if it has none."""
    config = {
        "version": definition.version, "kind": definition.kind, "batch": definition.batch, "args": dict(args),
        "deadline": definition.deadline, "deterministic": definition.deterministic, "blame": definition.blame,
    }  # fmt: skip
    composed = inspect.isclass(definition.target) and hasattr(definition.target, "__fingerprint__")
    return identify(
        definition.build(args) if composed else definition.target,
        config=config,
        stand_ins=definition.config,
        deps=definition.deps,
        weights=definition.weights,
    )


def describe(definition: Definition, args: Mapping[str, Any]) -> dict[str, Any]:
    """Everything of an identity as JSON: ``digest``, its parts, and the canonical source by place."""
    found = identity_of(definition, args)
    return {
        "name": definition.name, "version": definition.version, "kind": definition.kind, "digest": found.digest,
        "code": found.code, "config": found.config, "deps": dict(found.deps), "weights": found.weights,
        "abi": found.abi, "args": dict(args), "takes": signature_text(definition.target), "sources": found.sources,
    }  # fmt: skip
