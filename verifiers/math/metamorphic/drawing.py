"""Random numbers, and LaTeX written from them without any parser."""

from __future__ import annotations

import random
from fractions import Fraction


def nonzero(rng: random.Random, top: int = 9) -> int:
    return rng.choice((1, -1)) * rng.randint(1, top)


def ratio(rng: random.Random, top: int = 30) -> Fraction:
    """A proper or improper fraction that is no integer."""
    while True:
        value = Fraction(nonzero(rng, top), rng.randint(2, top))
        if value.denominator > 1:
            return value


def distinct(rng: random.Random, count: int, low: int = -20, high: int = 20) -> list[int]:
    return rng.sample(range(low, high + 1), count)


def changed_digit(rng: random.Random, text: str) -> str:
    """The text with one digit changed (never to a leading zero)."""
    at = rng.choice([i for i, c in enumerate(text) if c.isdigit()])
    start = at == 0 or not (text[at - 1].isdigit() or text[at - 1] == ".")
    return (
        text[:at] + rng.choice([d for d in ("123456789" if start else "0123456789") if d != text[at]]) + text[at + 1 :]
    )


def frac(value: Fraction | int) -> str:
    value = Fraction(value)
    if value.denominator == 1:
        return str(value.numerator)
    return f"{'-' if value < 0 else ''}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def term(coefficient: int, power: int, x: str = "x") -> str:
    """With a leading sign: "+3x^2", "-x", "+5"."""
    sign, size = ("-" if coefficient < 0 else "+"), abs(coefficient)
    if power == 0:
        return f"{sign}{size}"
    name = x if power == 1 else f"{x}^{{{power}}}" if power > 9 else f"{x}^{power}"
    return f"{sign}{'' if size == 1 else size}{name}"


def poly(coefficients: list[int], x: str = "x", order: list[int] | None = None) -> str:
    """Terms by falling power, or in the given order of powers."""
    powers = order if order is not None else list(range(len(coefficients) - 1, -1, -1))
    text = "".join(term(coefficients[p], p, x) for p in powers if coefficients[p])
    return text.removeprefix("+") or "0"


def product(a: list[int], b: list[int]) -> list[int]:
    out = [0] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            out[i + j] += x * y
    return out


def linear(root: int, x: str = "x") -> str:
    return x if root == 0 else f"({x}{-root:+d})"


def grouped(n: int, separator: str) -> str:
    return f"{n:,}".replace(",", separator)
