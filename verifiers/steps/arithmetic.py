"""Closed claims: both sides are numbers. Exact, with what people mean by shares, units and rounded decimals."""

from __future__ import annotations

from typing import Any, NamedTuple

from jurat.verifiers.math.backend import Q, parts
from jurat.verifiers.math.engine import compare
from jurat.verifiers.math.exact import rational
from jurat.verifiers.math.limits import MAX_STEPS, Steps, TooLarge, Undefined
from jurat.verifiers.math.numerals import decimal
from jurat.verifiers.math.reading import read
from jurat.verifiers.math.tree import Node, add, mul, neg
from jurat.verifiers.math.verdict import CORRECT, INCORRECT
from jurat.verifiers.steps.claims import UNITS, Claim, Run

LEAST_PLACES = 1
"""Decimals that a rounded value shows at least: 10/3 = 3.3 is a rounding, 10/3 = 3 is wrong."""


class Decided(NamedTuple):
    right: bool | None
    """None: not checkable."""
    why: str


def tree(run: Run) -> Node | None:
    """The expression, parsed; None where it is none."""
    if run.plain:
        return _Plain(run.text).whole()
    return read(run.text).node


def value(run: Run) -> Any | None:
    """Its rational value, or None. Raises Undefined for a division by zero."""
    node = tree(run)
    if node is None:
        return None
    try:
        return rational(node, Steps(MAX_STEPS))
    except (TooLarge, RecursionError):
        return None


def check(claim: Claim, *, remainder: bool = False) -> Decided:
    """A claim without names. ``remainder``: the step says that something is left over.

    Right are equal values; a percentage called by its number (``1/4 * 100 = 25%``); by the units of both sides, equal amounts (``2
    hours = 120 minutes``); a decimal that the left side rounds to; with a remainder, the whole part.
    """
    left, right = claim.left, claim.right
    try:
        a, b = value(left), value(right)
    except Undefined:
        return Decided(False, f"{_shown(claim)}: a division by zero")
    if a is None or b is None:
        return _by_engine(claim)
    if claim.relation in ("<", ">", "<=", ">="):
        holds = {"<": a < b, ">": a > b, "<=": a <= b, ">=": a >= b}[claim.relation]
        return Decided(holds, _shown(claim) if holds else f"{_shown(claim)} is false")
    if (amounts := _amounts(left, right)) is not None:
        x, y = amounts
        return (
            Decided(True, _shown(claim)) if x == y else Decided(False, f"{_shown(claim)}: the units make them differ")
        )
    if a == b:
        return Decided(True, _shown(claim))
    if ("%" in right.text) != ("%" in left.text) and b * 100 == a and right.text.endswith("%"):
        return Decided(True, f"{_shown(claim)}, in percent")
    places = _places(right.text)
    if remainder and places == 0 and 0 < a - b < 1:
        return Decided(True, f"{_shown(claim)}, with a remainder")
    if places is not None and (places >= LEAST_PLACES or claim.relation == "~"):
        unit = Q(1, 10**places)
        share = 100 if right.text.endswith("%") else 1
        off = (a - b) * share
        if abs(off) * 2 <= unit:
            return Decided(True, f"{_shown(claim)}, rounded to {places} places")
        if claim.relation == "~" and abs(off) <= unit:
            return Decided(True, f"{_shown(claim)}, about")
    return Decided(False, f"{left.text} is {_number(a)}, not {right.text}")


def _places(text: str) -> int | None:
    """Decimals of a single number; None for anything else."""
    bare = text.removeprefix("-").removesuffix("%")
    if not bare.replace(".", "", 1).isdigit():
        return None
    return len(bare.partition(".")[2])


def _amounts(left: Run, right: Run) -> tuple[Any, Any] | None:
    """Both sides in the smallest unit of their dimension, where the units of both are known, of one dimension, and not all the
    same; None elsewhere."""
    units = {unit for unit in (*left.units, *right.units) if unit}
    if len(units) < 2 or not all(unit in UNITS for unit in units) or len({UNITS[unit][0] for unit in units}) > 1:
        return None
    if len({UNITS[unit][1] for unit in units}) < 2:  # hour, hours
        return None
    a, b = _in_units(left), _in_units(right)
    return None if a is None or b is None else (a, b)


def _in_units(run: Run) -> Any | None:
    """Of a sum of numbers with units, or of a product with one unit; None for anything else."""
    node = tree(run)
    if node is None or not run.plain or set(run.text) & set("^%("):
        return None
    terms = node.args if node.kind == "add" else (node,)
    if len(terms) == 1 and sum(map(bool, run.units)) == 1:
        units: tuple[str, ...] = tuple(filter(None, run.units))
    elif set(run.text) & set("*/") or len(terms) != len(run.units) or not all(run.units):
        return None
    else:
        units = run.units
    steps, total = Steps(MAX_STEPS), Q(0)
    for term, unit in zip(terms, units, strict=True):
        if (found := rational(term, steps)) is None:
            return None
        total += found * UNITS[unit][1]
    return total


def _by_engine(claim: Claim) -> Decided:
    """Roots, pi and the like: the math verifier's word, where it is a proof."""
    if claim.relation != "=":
        return Decided(None, f"{_shown(claim)}: neither side is a rational number")
    found = compare(claim.left.text, claim.right.text)
    if found.status == CORRECT:
        return Decided(True, f"{_shown(claim)} ({found.reason})")
    if found.status == INCORRECT and found.certified:
        return Decided(False, f"{_shown(claim)} is false ({found.reason})")
    return Decided(None, f"{_shown(claim)}: {found.reason or 'not decided'}")


def _shown(claim: Claim) -> str:
    sign = {"~": "≈"}.get(claim.relation, claim.relation)
    return f"{claim.left.shown} {sign} {claim.right.shown}"[:200]


def _number(q: Any) -> str:
    p, d = parts(q)
    return str(p) if d == 1 else f"{p}/{d}"


class _Plain:
    """Precedence climbing over ``0-9 . + - * / ^ % ( )``; a run that is plain holds nothing else."""

    __slots__ = ("at", "text")

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def whole(self) -> Node | None:
        try:
            node = self.sum()
        except (IndexError, ValueError):
            return None
        return node if self.at == len(self.text) else None

    def sign(self) -> str:
        return self.text[self.at] if self.at < len(self.text) else ""

    def sum(self) -> Node:
        terms = [self.product()]
        while (sign := self.sign()) in ("+", "-") and sign:
            self.at += 1
            term = self.product()
            terms.append(term if sign == "+" else neg(term))
        return terms[0] if len(terms) == 1 else add(*terms)

    def product(self) -> Node:
        node = self.signed()
        while (sign := self.sign()) in ("*", "/") and sign:
            self.at += 1
            other = self.signed()
            node = mul(node, other) if sign == "*" else Node("div", None, (node, other))
        return node

    def signed(self) -> Node:
        if self.sign() == "-":
            self.at += 1
            return neg(self.signed())
        base = self.atom()
        if self.sign() == "^":
            self.at += 1
            return Node("pow", None, (base, self.signed()))
        return base

    def atom(self) -> Node:
        if self.sign() == "(":
            self.at += 1
            node = self.sum()
            if self.sign() != ")":
                raise ValueError
            self.at += 1
        else:
            start = self.at
            while (sign := self.sign()) and (sign.isdigit() or sign == "."):
                self.at += 1
            if start == self.at or self.at - start > 300:
                raise ValueError
            node = decimal(self.text[start : self.at])
        while self.sign() == "%":
            self.at += 1
            node = Node("percent", None, (node,))
        return node
