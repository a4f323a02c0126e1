"""The verifiers that ship: name -> definition. The ``bounded`` ones run in the calling process, others in the pool."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from jurat.platform.registry import unknown
from jurat.platform.types import Problem, Verdict
from jurat.verifiers import rules
from jurat.verifiers.registry import REGISTERED, Definition


def math(problem: Problem, completion: str) -> Verdict:
    """Whether the final answer of ``completion`` equals the reference, as mathematics."""
    return rules.number(problem, completion)


BUILT_IN: Mapping[str, Definition] = MappingProxyType({
    d.name: d
    for d in (
        Definition(name="math", target=math, bounded=True),
        Definition(name="exact", target=rules.exact, bounded=True),
        Definition(name="number", target=rules.number, bounded=True),
        Definition(name="length", target=rules.length, bounded=True),
    )
})  # fmt: skip


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


def is_bounded(name: str, args: Mapping[str, Any]) -> bool:
    """True if it may run in the calling process with these arguments."""
    return find(name).bounded
