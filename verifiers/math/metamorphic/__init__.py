"""Pairs of answers that are equal, or unequal, by construction: how often is a verifier wrong where nobody had to
label anything?

`RULES` is the table: gold type x transform -> (equal or not, a maker of pairs). A maker draws its numbers from a
seeded generator and writes both texts itself, so what it promises does not depend on any parser.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from jurat.verifiers.math.metamorphic import algebra, numbers, statements
from jurat.verifiers.math.metamorphic.table import RULES, Pair, Rule


def pairs(seed: int, count: int, kinds: frozenset[str] | None = None) -> Iterator[Pair]:
    """`count` pairs, every rule in turn."""
    rng = random.Random(seed)
    rules = [rule for rule in RULES if kinds is None or rule.kind in kinds]
    for n in range(count):
        rule = rules[n % len(rules)]
        gold, answer = rule.make(rng)
        yield Pair(gold, answer, rule.equal, rule.kind, rule.transform)


__all__ = ["RULES", "Pair", "Rule", "algebra", "numbers", "pairs", "statements"]
