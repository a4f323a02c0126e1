"""The verifiers that ship: name -> definition. The ``bounded`` ones run in the calling process, others in the pool."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jurat.platform.registry import unknown
from jurat.verifiers import answers, arguments, compose, programs, rules
from jurat.verifiers.ensemble import ensemble
from jurat.verifiers.models import folder as models
from jurat.verifiers.models.classifier import process_reward_model, reward_model
from jurat.verifiers.registry import REGISTERED, Definition
from jurat.verifiers.steps.consistency import consistency
from jurat.verifiers.steps.derivation_order import derivation_order
from jurat.verifiers.steps.equation_steps import equation_steps

_PARTS = {"catalog": "the versions of the parts", "versions": "the versions of the parts"}
"""Stands in a composite's identity for the table of all verifiers: its parts' own versions are in it instead."""

BUILT_IN: Mapping[str, Definition] = MappingProxyType({
    d.name: dataclasses.replace(d, values=arguments.check_of(d.name, d.target))
    for d in (
        Definition(name="math", target=answers.math, bounded=True),
        Definition(name="exact", target=answers.exact, bounded=True),
        Definition(name="number", target=answers.number, bounded=True),
        Definition(name="choice", target=answers.choice, bounded=True),
        Definition(
            name="code", target=programs.code, deadline=150.0, isolation="sandbox", ready=programs.ready, weights=programs.SOURCES
        ),
        Definition(name="length", target=rules.length, bounded=True),
        Definition(name="tags", target=rules.tags, bounded=True),
        Definition(name="language", target=rules.language, bounded=True),
        Definition(name="fluency", target=rules.fluency, bounded=True),
        Definition(name="json_schema", target=rules.json_schema, bounded=True),
        Definition(name="equation_steps", target=equation_steps, kind="steps", bounded=True),
        Definition(name="derivation_order", target=derivation_order, kind="steps", bounded=True),
        Definition(name="consistency", target=consistency, kind="steps", bounded=True),
        Definition(name="regex_format", target=rules.regex_format, deadline=1.0),
        Definition(name="all_of", target=compose.all_of, config=_PARTS),
        Definition(name="any_of", target=compose.any_of, config=_PARTS),
        Definition(name="gated", target=compose.gated, config=_PARTS),
        Definition(name="weighted", target=compose.weighted, config=_PARTS),
        Definition(name="first_decisive", target=compose.first_decisive, config=_PARTS),
        Definition(name="ensemble", target=ensemble, config=_PARTS),
        Definition(name="reward_model", target=reward_model, batch=True, deadline=120.0, ready=models.ready),
        Definition(
            name="process_reward_model", target=process_reward_model, kind="steps", batch=True, deadline=120.0, ready=models.ready
        ),
    )
})  # fmt: skip

_UNLESS: Mapping[str, str] = {"math": "symbolic"}
"""The argument that makes a bounded verifier unbounded: SymPy is not bounded by construction."""


def names() -> list[str]:
    """Every verifier this process knows."""
    return sorted({*BUILT_IN, *REGISTERED})


def find(name: str, *, where: str = "") -> Definition:
    """The definition of ``name``. Raises ConfigError that names the nearest known one."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    if name in REGISTERED:
        return REGISTERED[name]
    raise unknown("verifier", name, names(), where=where)


def check(name: str, args: Mapping[str, Any], *, where: str = "") -> Definition:
    """The definition, its arguments checked."""
    found = find(name, where=where)
    found.check_args(args, where=where)
    return found


def parts_of(name: str, args: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """(name, arguments) of the parts of a built-in composite; none for other verifiers."""
    target = BUILT_IN[name].target if name in BUILT_IN else None
    if not (isinstance(target, type) and issubclass(target, compose._Composite)):
        return []
    return [compose.use_of(part) for part in args.get("of", ())]


def is_bounded(name: str, args: Mapping[str, Any]) -> bool:
    """True if it may run in the calling process with these arguments; a composite if all its parts may."""
    definition = find(name)
    parts = parts_of(name, args)
    if parts:
        return all(used in BUILT_IN and is_bounded(used, inner) for used, inner in parts)
    return definition.bounded and not args.get(_UNLESS.get(name, ""))
