"""Claims with unknowns: does an equation follow from those before it?

Each is a polynomial (the numerator of left - right). Two equations say the same where their polynomials are proportional, or
have the same real roots; of linear ones a combination follows too. One that divides an earlier one loses solutions: somebody
divided by what may be 0, or took one root of two. One that an earlier one divides gains some: somebody squared.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jurat.verifiers.math import polynomials
from jurat.verifiers.math.exact import rational
from jurat.verifiers.math.limits import MAX_STEPS, Steps, TooLarge, Undefined
from jurat.verifiers.math.tree import Node, mul, replace, sub, symbols
from jurat.verifiers.steps.arithmetic import Decided, tree
from jurat.verifiers.steps.claims import Claim

MAX_KNOWN = 24
"""Equations that a new one is held against: the newest."""


@dataclass(slots=True)
class Known:
    """What the steps so far have said of the unknowns."""

    equations: list[tuple[Node, int]] = field(default_factory=list)
    """(left - right, step) of each, oldest first."""
    values: dict[str, tuple[Node, int]] = field(default_factory=dict)
    """name -> (its value, step)"""

    def forget(self, name: str) -> None:
        """``Let x be ...``: another one from here on."""
        self.values.pop(name, None)
        self.equations = [each for each in self.equations if name not in symbols(each[0])]

    def about(self, claim: Claim) -> bool:
        """Whether an equation with one of its names came before."""
        names = claim.left.names | claim.right.names
        return any(names & symbols(node) for node, _ in self.equations)

    def learn(self, claim: Claim, step: int) -> None:
        left, right = tree(claim.left), tree(claim.right)
        if left is None or right is None:
            return
        for name, other in ((left, right), (right, left)):
            if name.kind == "sym" and not symbols(other):
                self.values.setdefault(name.value, (other, step))
        self.equations.append((sub(left, right), step))
        del self.equations[:-MAX_KNOWN]


def difference(claims: Sequence[Claim]) -> Node | None:
    """left - right; of several that an ``or`` joins, the product; of ``x = ±3``, both."""
    made = None
    for claim in claims:
        left, right = tree(claim.left), tree(claim.right)
        if left is None or right is None:
            return None
        each = sub(left, right)
        if right.kind == "pm" and len(right.args) == 1:
            each = mul(sub(left, right.args[0]), sub(left, Node("neg", None, (right.args[0],))))
        made = each if made is None else mul(made, each)
    return made


def substituted(node: Node, known: Known) -> Node:
    return replace(node, {Node("sym", name): value for name, (value, _) in known.values.items()})


def check(claims: Sequence[Claim], known: Known, *, concludes: bool, premise: bool, rewrites: bool = False) -> Decided:
    """``concludes``: the step says that this follows; ``premise``: that it is given; ``rewrites``: that it holds for every value."""
    said = " or ".join(f"{claim.left.text} = {claim.right.text}" for claim in claims)[:200]
    new = difference(claims)
    if new is None:
        return Decided(None, f"{said}: not read")
    try:
        if (zero := rational(substituted(new, known), Steps(MAX_STEPS))) is not None:
            if zero == 0:
                return Decided(True, f"{said}, by the values known")
            if premise:  # the same letters, of something else
                for name in symbols(new):
                    known.forget(name)
                return Decided(None, f"{said}: given")
            own = [f"{name} (step {step})" for name, (_, step) in known.values.items() if name in symbols(new)]
            return Decided(False, f"{said} is false with {', '.join(own)}")
    except Undefined:
        return Decided(False, f"{said}: a division by zero")
    except TooLarge:
        return Decided(None, f"{said}: too large")
    names = symbols(new)
    earlier = _related(names, known.equations)
    made = polynomials.fractions([new, *(node for node, _ in earlier)], Steps(MAX_STEPS))
    if made is None:
        return Decided(None, f"{said}: no polynomial")
    top, spelt = made[0][0], sorted(names.union(*(symbols(node) for node, _ in earlier)))
    others = [(t, b, step) for (t, b), (_, step) in zip(made[1:], earlier, strict=True) if t != 0]
    if top == 0:
        return Decided(True, f"{said} for every {', '.join(sorted(names))}")
    if rewrites:
        return Decided(False, f"{said} does not hold for every {', '.join(sorted(names))}")
    if premise or not others:
        return Decided(None, f"{said}: given")
    for other, _, step in reversed(others):
        if _same(top, other):
            return Decided(True, f"{said}, as step {step}")
    rest = _rest(top, [other for other, _, _ in others])
    if rest is not None and rest == 0:
        return Decided(True, f"{said}, from the equations before")
    for other, bottom, step in reversed(others):
        if (why := _lost_or_gained(top, other, bottom)) is not None:
            right, words = why
            named = re.sub(r"\bv(\d+)\b", lambda match: spelt[int(match.group(1))], words)
            return Decided(right, f"{said}: {named} step {step}")
    alone = [(other, step) for other, _, step in others if _names_in(other) == _names_in(top)]
    if len(_names_in(top)) == 1 and alone:
        return Decided(False, f"{said} does not follow from step {alone[-1][1]}")
    if rest is not None and int(rest.total_degree()) == 0:
        return Decided(False, f"{said} contradicts the equations before")
    if concludes and all(_is_linear(each) for each in (top, *(other for other, _, _ in others))):
        if _names_in(top) <= set().union(*(_names_in(other) for other, _, _ in others)):
            return Decided(False, f"{said} does not follow from the equations before")
    return Decided(None, f"{said}: not decided")


def _related(names: frozenset[str], equations: list[tuple[Node, int]]) -> list[tuple[Node, int]]:
    """Those that share a name with the new one, or with one that does."""
    reached = set(names)
    while more := {name for node, _ in equations if reached & symbols(node) for name in symbols(node)} - reached:
        reached |= more
    return [(node, step) for node, step in equations if reached & symbols(node)]


def _names_in(poly: Any) -> set[int]:
    return {place for place, degree in enumerate(poly.degrees()) if degree > 0}


def _is_linear(poly: Any) -> bool:
    return int(poly.total_degree()) <= 1


def _same(a: Any, b: Any) -> bool:
    """Proportional."""
    return b != 0 and a * b.leading_coefficient() == b * a.leading_coefficient()


def _rest(new: Any, others: list[Any]) -> Any | None:
    """What the linear ones leave of a linear one: 0 if they imply it, another constant if they contradict it."""
    if not _is_linear(new):
        return None
    for row in _reduced([other for other in others if _is_linear(other)]):
        new = _eliminated(new, row)
    return new


def _reduced(rows: list[Any]) -> list[Any]:
    """Row echelon form."""
    out: list[Any] = []
    for row in rows:
        for done in out:
            row = _eliminated(row, done)
        if row != 0:
            out = [_eliminated(done, row) for done in out]
            out.append(row)
    return out


def _eliminated(poly: Any, row: Any) -> Any:
    """``poly`` without the leading monomial of ``row``."""
    exponent = next(iter(row.to_dict()))
    own = poly.to_dict().get(exponent)
    return poly if own is None else poly - row * (own / row.to_dict()[exponent])


def _lost_or_gained(new: Any, old: Any, old_bottom: Any) -> tuple[bool, str] | None:
    """Whether two equations that share solutions have the same; None where neither divides the other."""
    common = new.gcd(old)
    if int(common.total_degree()) == 0:
        return None
    lost, gained = _roots(old, common, old_bottom), _roots(new, common, old_bottom)
    if lost is None or gained is None:
        return None
    if lost and gained:
        return False, f"loses the solutions of {lost} = 0 and gains those of {gained} = 0 of"
    if lost:
        return False, f"loses the solutions of {lost} = 0 of"
    if gained:
        return False, f"gains the solutions of {gained} = 0 over"
    return True, "has the same solutions as"


def _roots(poly: Any, common: Any, bottom: Any) -> str | None:
    """What of ``poly`` is 0 where ``common`` is not, '' if nothing real is; None where this is not known."""
    rest = poly
    for factor in (common, bottom):  # what divides the denominator is no solution
        while int((shared := rest.gcd(factor)).total_degree()) > 0:
            rest = rest / shared
    if int(rest.total_degree()) == 0:
        return ""
    if len(_names_in(rest)) > 1:
        return str(rest)
    try:
        return str(rest) if _has_real_root(rest) else ""
    except TooLarge:
        return None


def _has_real_root(poly: Any) -> bool:
    from flint import fmpq_poly

    (place,) = _names_in(poly)
    degree = int(poly.degrees()[place])
    if degree > 24:
        raise TooLarge("degree")
    if degree % 2:
        return True
    coefficients = [0] * (degree + 1)
    for powers, coefficient in poly.to_dict().items():
        coefficients[int(powers[place])] = coefficient
    return any(root.imag.is_zero() for root, _ in fmpq_poly(coefficients).complex_roots())
