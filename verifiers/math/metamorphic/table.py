"""The table of metamorphic rules: gold type x transform -> a maker of pairs, equal or unequal by construction."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

Maker = Callable[[random.Random], tuple[str, str]]


class Pair(NamedTuple):
    gold: str
    answer: str
    equal: bool
    kind: str
    """Gold type."""
    transform: str


class Rule(NamedTuple):
    kind: str
    transform: str
    equal: bool
    make: Maker


RULES: list[Rule] = []


def _rule(kind: str, transform: str, equal: bool) -> Callable[[Maker], Maker]:
    def register(make: Maker) -> Maker:
        RULES.append(Rule(kind, transform, equal, make))
        return make

    return register


def same(kind: str, transform: str) -> Callable[[Maker], Maker]:
    return _rule(kind, transform, True)


def different(kind: str, transform: str) -> Callable[[Maker], Maker]:
    return _rule(kind, transform, False)
