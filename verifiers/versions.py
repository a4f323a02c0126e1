"""A verifier's version: its code, config, dependencies and weights (``platform/identity/``)."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Mapping
from typing import Any

from jurat.platform.canonical import canonical_json
from jurat.platform.identity import Identity, identify
from jurat.platform.identity.syntax import signature_text
from jurat.verifiers.registry import Definition


def identity_of(definition: Definition, args: Mapping[str, Any]) -> Identity:
    """The identity of a verifier with these arguments; its name stays out. Raises ConfigError if it has none.

    Worked out once a process: loaded code does not change, and a large verifier takes a second to walk. Weights may
    change, so one that has them is worked out again (files are hashed anew only if their times or sizes differ).
    """
    make = _identity.__wrapped__ if definition.weights else _identity
    return make(definition, canonical_json(args))


@functools.lru_cache(maxsize=256)
def _identity(definition: Definition, arguments: str) -> Identity:
    args = json.loads(arguments)
    config = {
        "version": definition.version, "kind": definition.kind, "batch": definition.batch, "args": args,
        "deadline": definition.deadline, "deterministic": definition.deterministic, "blame": definition.blame,
    }  # fmt: skip
    composed = inspect.isclass(definition.target) and hasattr(definition.target, "__fingerprint__")
    target = definition.build(args) if composed else definition.target
    return identify(
        target, config=config, stand_ins=definition.config, deps=definition.deps, weights=definition.weights
    )


def describe(definition: Definition, args: Mapping[str, Any], *, sources: bool = False) -> dict[str, Any]:
    """An identity as JSON: ``digest`` and its parts; with ``sources`` the canonical source by place too."""
    found = identity_of(definition, args)
    out = {
        "name": definition.name, "version": definition.version, "kind": definition.kind, "digest": found.digest,
        "code": found.code, "config": found.config, "deps": dict(found.deps), "weights": found.weights,
        "abi": found.abi, "args": dict(args), "takes": signature_text(definition.target),
        "deterministic": definition.deterministic,
    }  # fmt: skip
    return {**out, "sources": found.sources} if sources else out
