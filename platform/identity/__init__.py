"""The version digest of code: equal for code that reads the same, new for any change reading sees.

Hashed: the canonical syntax tree of a function or class (no comments, docstrings, white space, positions, file or
module names), its default values, closure cells, the globals it names, and the same for everything first-party that
these reach; for a first-party module reached by name, the whole module. Third-party code counts as distribution,
version and the digest of its pure-Python files. A wrapper that only passes its arguments on (``functools.wraps``) is
transparent. Of jurat's own code, data is read by the statements that make it, as its tables hold compiled objects.

Of a class, members that its statement does not spell (set later, computed, made in a function) count by value, and so
do the values that code takes from first-party modules by attribute.

Holes: a standard-library, third-party or jurat object replaced after import (``math.floor = ...``): these count by
name, distribution and source. A logger's level and handlers; ``__doc__`` and ``__name__``; a first-party module as a
value, of which only the source counts (``getattr(module, name)``); dunder data set on a class after its statement.

Not seen, because no reading can see it: imports and attributes by computed name, environment variables, clock, random
numbers, network, files read while working, what compiled code does. Canary sets and double scoring are for these.

The tree's text is written here and not by ``ast.dump``, whose output differs between Python versions.
"""

from __future__ import annotations

import ast
import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jurat.platform.errors import ConfigError
from jurat.platform.identity.digests import SCHEMA, sha256_of, weights_digest
from jurat.platform.identity.reading import Reading
from jurat.platform.identity.syntax import shown, stripped

_SOURCES: dict[str, dict[str, str]] = {}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a version digest is made of. Equal on every supported Python; ``abi`` is an attribute outside it."""

    code: str
    config: str
    deps: Mapping[str, str]
    """``name==version`` -> digest of the distribution's pure-Python files."""
    weights: str
    """'' where there are none."""
    nodes: Mapping[str, ast.AST]
    """Syntax tree by place; not hashed themselves."""
    values: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The data that the code reaches and what the config stands in for, a line by place; not hashed themselves."""

    @property
    def sources(self) -> dict[str, str]:
        """Canonical source and values by place, for people and for diffs; source is written once for each code."""
        if self.code not in _SOURCES:
            _SOURCES[self.code] = {place: ast.unparse(stripped(node)) for place, node in self.nodes.items()}
        return {**self.values, **_SOURCES[self.code]}

    @property
    def digest(self) -> str:
        """The version id."""
        whole = {"code": self.code, "config": self.config, "deps": dict(self.deps), "weights": self.weights}
        return sha256_of({"schema": SCHEMA, "kind": "verifier_version", **whole})

    @property
    def abi(self) -> str:
        """Python's major.minor."""
        return f"{sys.version_info.major}.{sys.version_info.minor}"


def identify(
    target: Any,
    *,
    config: Mapping[str, Any],
    stand_ins: Mapping[str, Any] | None = None,
    deps: tuple[str, ...] = (),
    weights: tuple[str | Path, ...] = (),
) -> Identity:
    """The identity of a function, class or callable object.

    ``config`` is JSON; ``stand_ins`` maps names of globals, closure variables or attributes to JSON that is hashed in
    place of their values; ``deps`` names distributions to count beside those reached; ``weights`` are files or folders.
    Raises ConfigError for what cannot be hashed, with the path to it and the ways out.
    """
    reading = Reading(dict(stand_ins or {}))
    code = sha256_of(
        {"schema": SCHEMA, "kind": "code", "root": reading.value(target, getattr(target, "__name__", "verifier"))}
    )
    for name in deps:
        reading.distribution(name, where="deps")
    held = {"config": dict(config), "stand_ins": dict(stand_ins or {})}
    try:
        config_digest = sha256_of({"schema": SCHEMA, "kind": "config", **held})
    except (TypeError, ValueError) as fault:
        raise ConfigError(
            f"config is not JSON: {fault}", where="config", fix="use strings, numbers, lists, dicts"
        ) from None
    named = {f"config.{key}": f"{key} = {shown(value)}" for key, value in (stand_ins or {}).items()}
    return Identity(
        code=code, config=config_digest, deps=dict(sorted(reading.deps.items())),
        weights=weights_digest(weights) if weights else "", nodes=dict(reading.nodes),
        values={**reading.values, **named},
    )  # fmt: skip
