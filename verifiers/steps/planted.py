"""Derivations made by rule, right ones and ones with an error in one step: what a checker of steps is measured on.

Each kind knows its mathematics and its mistakes; what follows a mistake is worked out from the wrong value, as a solver would. The
checker is not consulted, and nothing here was tuned to it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

ERRORS = ("arithmetic", "sign", "algebra", "unit", "condition")


@dataclass(frozen=True, slots=True)
class Derivation:
    steps: tuple[str, ...]
    error: str
    """Of ``ERRORS``; '' for a right one."""
    at: int | None
    """Number of the wrong step, from 1; None for a right one."""

    def text(self, form: str) -> str:
        """``lines``, ``numbered``, ``tags`` or ``latex``."""
        if form == "tags":
            return "\n".join(f"<step>{step}</step>" for step in self.steps)
        if form == "numbered":
            return "\n".join(f"Step {number}: {step}" for number, step in enumerate(self.steps, 1))
        if form == "latex":
            return "\n".join(step.replace(" * ", r" \times ").replace(" / ", r" \div ") for step in self.steps)
        return "\n".join(self.steps)


FORMS = ("lines", "numbered", "tags", "latex")
HOW = {"lines": "lines", "numbered": "numbered", "tags": "tags", "latex": "lines"}
"""How ``split`` cuts each form."""


def derivation(drawn: random.Random, error: str = "") -> Derivation:
    """One of a kind in which ``error`` can be made; '' for a right one of any kind."""
    return drawn.choice(_KINDS[error] if error else _ANY)(drawn, error)


def _off(drawn: random.Random, value: int) -> int:
    """A slip: a digit or two away."""
    return value + drawn.choice([-10, -2, -1, 1, 2, 3, 10])


_NAMES = ("Ann", "Bilal", "Chen", "Dora", "Emeka", "Farid")
_GOODS = ("apples", "books", "tickets", "pens", "stickers", "marbles")


def _shopping(drawn: random.Random, error: str) -> Derivation:
    """A word problem: products, a sum, a difference."""
    name, goods = drawn.choice(_NAMES), drawn.choice(_GOODS)
    packs, each, more, gone = drawn.randint(3, 19), drawn.randint(4, 29), drawn.randint(5, 60), drawn.randint(2, 11)
    wrong = drawn.randint(1, 3) if error else 0
    first = packs * each if wrong != 1 else _off(drawn, packs * each)
    second = first + more if wrong != 2 else _off(drawn, first + more)
    third = second - gone if wrong != 3 else _off(drawn, second - gone)
    steps = (
        drawn.choice(
            [f"{name} buys {packs} * {each} = {first} {goods}.", f"So {name} has {packs} x {each} = {first} {goods}"]
        ),
        drawn.choice(
            [f"With {more} more that makes {first} + {more} = {second} {goods}.", f"{first} + {more} = {second}"]
        ),
        drawn.choice(
            [
                f"After giving {gone} away there are {second} - {gone} = {third} {goods} left.",
                f"{second} - {gone} = {third}",
            ]
        ),
    )
    return Derivation(steps, error, wrong or None)


def _shares(drawn: random.Random, error: str) -> Derivation:
    """Percentages, fractions and a quotient."""
    base, percent, people = 20 * drawn.randint(2, 30), 5 * drawn.randint(1, 15), drawn.choice([2, 4, 5])
    wrong = drawn.randint(1, 3) if error else 0
    cut = Fraction(base * percent, 100)
    if wrong == 1:
        cut += drawn.choice([-2, -1, 1, 2])
    left = base - cut
    if wrong == 2:
        left += drawn.choice([-10, -1, 1, 10])
    part = left / people
    if wrong == 3:
        part += drawn.choice([-1, 1, 2])
    steps = (
        f"The discount is {percent}% of ${base} = ${_decimal(cut)}.",
        f"So the price is ${base} - ${_decimal(cut)} = ${_decimal(left)}.",
        f"Each of the {people} friends pays ${_decimal(left)} / {people} = ${_decimal(part)}.",
    )
    return Derivation(steps, error, wrong or None)


def _decimal(value: Fraction) -> str:
    return f"{float(value):.10g}"


def _term(value: int, name: str = "") -> str:
    """`` + 3x``, `` - 4``"""
    return f" {'-' if value < 0 else '+'} {abs(value) if abs(value) != 1 or not name else ''}{name}"


def _linear(drawn: random.Random, error: str) -> Derivation:
    """a x + b = c x + d, solved."""
    name, x = drawn.choice("xyzn"), drawn.randint(-9, 9)
    c = drawn.randint(2, 6)
    a = c + drawn.randint(2, 7)
    b = drawn.choice([-1, 1]) * drawn.randint(1, 20)
    d = a * x + b - c * x
    wrong = {"": 0, "sign": drawn.randint(2, 3), "arithmetic": drawn.randint(2, 4)}[error]
    k = a - c  # k x + b = d
    if wrong == 2:
        k = a + c if error == "sign" else _off(drawn, k) or 1
    e = d - b  # k x = e
    if wrong == 3:
        e = d + b if error == "sign" else _off(drawn, e)
    value = Fraction(e, k)
    if wrong == 4:
        value += drawn.choice([-2, -1, 1, 2])
    steps = (
        f"{a}{name}{_term(b)} = {c}{name}{_term(d)}",
        drawn.choice(["", "Subtracting, ", "So "]) + f"{k}{name}{_term(b)} = {d}",
        drawn.choice(["", "Then ", "Hence "]) + f"{k}{name} = {e}",
        drawn.choice(["", "Therefore ", "Dividing, "]) + f"{name} = {value}",
    )
    return Derivation(steps, error, wrong or None)


def _expansion(drawn: random.Random, error: str) -> Derivation:
    """(x + p)(x + q) multiplied out, and a multiple of it."""
    p, q, k = drawn.randint(1, 9), drawn.choice([-1, 1]) * drawn.randint(1, 9), drawn.randint(2, 5)
    wrong = drawn.randint(1, 2) if error else 0
    b, c = p + q, p * q
    if wrong == 1:
        b, c = (b, c) if error == "sign" else (drawn.choice([v for v in (p * q, p, q, 0) if v != b]), c)
        b, c = (b, -c) if error == "sign" else (b, c)
    bb, cc = k * b, k * c
    if wrong == 2:
        bb, cc = (bb, -cc) if error == "sign" else (b, cc) if b else (bb, cc + 1)
    shape = f"(x{_term(p)})(x{_term(q)})"
    steps = (
        drawn.choice(["Expanding, ", "We expand: "]) + f"{shape} = x^2{_term(b, 'x') if b else ''}{_term(c)}",
        f"Simplifying, {k}(x^2{_term(b, 'x') if b else ''}{_term(c)}) = {k}x^2{_term(bb, 'x') if bb else ''}{_term(cc)}",
    )
    return Derivation(steps, error, wrong or None)


def _rewriting(drawn: random.Random, error: str) -> Derivation:
    """An expression, line by line."""
    a, b, c = drawn.randint(2, 6), drawn.randint(1, 9), drawn.choice([-1, 1]) * drawn.randint(1, 9)
    wrong = drawn.randint(2, 3) if error else 0
    ab = a * b
    if wrong == 2:
        ab = -ab if error == "sign" else b
    total = ab + c
    if wrong == 3:
        total = ab - c if error == "sign" else total + drawn.choice([-2, -1, 1, 2])
    steps = (f"{a}(x + {b}){_term(c)}", f"= {a}x{_term(ab)}{_term(c)}", f"= {a}x{_term(total)}")
    return Derivation(steps, error, wrong or None)


def _quadratic(drawn: random.Random, error: str) -> Derivation:
    """A quadratic by its factors; an error loses a root, or has the sign of one wrong."""
    p, q = drawn.sample(range(1, 10), 2)
    p, q = drawn.choice([(p, q), (p, -q), (-p, q), (-p, -q)])
    b, c = -(p + q), p * q
    head = f"x^2{_term(b, 'x') if b else ''}{_term(c)} = 0"
    factors = f"(x{_term(-p)})(x{_term(-q)}) = 0"
    if error == "condition":
        return Derivation((head, factors, f"So x = {p}"), error, 3)
    if error == "sign":
        return Derivation((head, factors, f"So x = {p} or x = {-q}"), error, 3)
    if error == "algebra":
        worse = q + drawn.choice([-2, -1, 1, 2])
        return Derivation(
            (head, f"(x{_term(-p)})(x{_term(-worse) if worse else ''}) = 0", f"So x = {p} or x = {worse}"), error, 2
        )
    return Derivation((head, factors, f"So x = {p} or x = {q}"), "", None)


def _cancelling(drawn: random.Random, error: str) -> Derivation:
    """x^2 = k x: dividing by x loses 0."""
    k, m = drawn.randint(2, 12), drawn.randint(2, 5)
    head, clean = f"{m}x^2 = {m * k}x", f"x^2 = {k}x"
    if error == "condition":
        return Derivation((head, clean, drawn.choice(["Dividing by x, ", "So "]) + f"x = {k}"), error, 3)
    return Derivation((head, clean, f"x(x - {k}) = 0", f"x = 0 or x = {k}"), "", None)


def _common_factor(drawn: random.Random, error: str) -> Derivation:
    """a b = a c is not b = c where a may be 0."""
    first, second, third = drawn.sample("abcdpqrs", 3)
    k = drawn.randint(2, 9)
    head = f"{k}*{first}*{second} = {k}*{first}*{third}"
    if error == "condition":
        return Derivation((head, f"{first}*{second} = {first}*{third}", f"{second} = {third}"), error, 3)
    return Derivation((head, f"{first}*{second} = {first}*{third}", f"{first}*({second} - {third}) = 0"), "", None)


_UNITS = (("hours", "minutes", 60), ("minutes", "seconds", 60), ("days", "hours", 24), ("kilograms", "grams", 1000),
          ("feet", "inches", 12), ("weeks", "days", 7), ("dollars", "cents", 100))  # fmt: skip


def _conversion(drawn: random.Random, error: str) -> Derivation:
    """A conversion, and a sum in the smaller unit."""
    big, small, factor = drawn.choice(_UNITS)
    n, more = drawn.randint(2, 12), drawn.randint(5, 50)
    wrong = {"": 0, "unit": drawn.choice([1, 3]), "arithmetic": 2}[error]
    first = n * factor
    if wrong == 1:
        first = n * drawn.choice([f for f in (10, 12, 24, 60, 100, 1000) if f != factor])
    second = first + more if wrong != 2 else _off(drawn, first + more)
    total = f"{n} {big} + {more} {small} = {n + more} {drawn.choice([big, small])}" if wrong == 3 else (
        f"{n} {big} + {more} {small} = {second} {small}"
    )  # fmt: skip
    if wrong in (1, 2):
        steps: Sequence[str] = (f"{n} {big} = {first} {small}", f"{first} {small} + {more} {small} = {second} {small}")
    else:
        steps = (f"{n} {big} = {first} {small}", f"{first} {small} + {more} {small} = {second} {small}", total)
    return Derivation(tuple(steps), error, wrong or None)


def _system(drawn: random.Random, error: str) -> Derivation:
    """x + y = s and x - y = d, added."""
    y, d = drawn.randint(1, 12), drawn.randint(1, 12)
    x = y + d
    s = x + y
    wrong = {"": 0, "arithmetic": drawn.randint(3, 5), "sign": 3}[error]
    twice = s + d
    if wrong == 3:
        twice = s - d if error == "sign" else _off(drawn, twice)
    value = Fraction(twice, 2) + (drawn.choice([-1, 1]) if wrong == 4 else 0)
    other = s - value + (drawn.choice([-2, -1, 1, 2]) if wrong == 5 else 0)
    steps = (
        f"Let x and y be the numbers: x + y = {s}",
        f"We also know x - y = {d}",
        f"Adding both gives 2x = {twice}",
        f"So x = {value}",
        f"Then y = {s} - {value} = {other}",
    )
    return Derivation(steps, error, wrong or None)


Kind = Callable[[random.Random, str], Derivation]
_KINDS: dict[str, tuple[Kind, ...]] = {
    "arithmetic": (_shopping, _shares, _linear, _conversion, _system),
    "sign": (_linear, _expansion, _rewriting, _quadratic, _system),
    "algebra": (_expansion, _rewriting, _quadratic),
    "unit": (_conversion,),
    "condition": (_quadratic, _cancelling, _common_factor),
}
_ANY = tuple(dict.fromkeys(kind for kinds in _KINDS.values() for kind in kinds))
