"""Quotients of expanded polynomials (python-flint `fmpq_mpoly`): proofs for small rational functions."""

from __future__ import annotations

from typing import Any

from jurat.verifiers.math.backend import FLINT, parts
from jurat.verifiers.math.exact import rational
from jurat.verifiers.math.limits import MAX_DEGREE, MAX_TERMS, Steps, TooLarge
from jurat.verifiers.math.tree import Node, num, symbols

if FLINT:
    from flint import Ordering, fmpq, fmpq_mpoly_ctx

Fraction = tuple[Any, Any]


def fractions(nodes: list[Node], steps: Steps) -> list[Fraction] | None:
    """(numerator, denominator) of each node over the same generators, or None: not rational functions, or too large
    to expand."""
    if not FLINT:
        return None
    names = sorted(frozenset[str]().union(*map(symbols, nodes)))
    if not 0 < len(names) <= 12:
        return None
    context = fmpq_mpoly_ctx.get([f"v{i}" for i in range(len(names))], Ordering.lex)
    generators = dict(zip(names, context.gens(), strict=True))
    try:
        return [_fraction(node, generators, context, steps) for node in nodes]
    except (TooLarge, _NotRationalFunction):
        return None


class _NotRationalFunction(Exception):
    pass


def _fraction(node: Node, generators: dict[str, Any], context: Any, steps: Steps) -> Fraction:
    steps.spend(2)
    kind, args = node.kind, node.args
    one = context.constant(1)
    if kind == "num":
        p, q, _ = node.value
        return context.constant(fmpq(p, q)), one
    if kind == "sym":
        return generators[node.value], one
    if kind == "neg":
        top, bottom = _fraction(args[0], generators, context, steps)
        return -top, bottom
    if kind == "add":
        top, bottom = _fraction(args[0], generators, context, steps)
        for arg in args[1:]:
            t, b = _fraction(arg, generators, context, steps)
            top, bottom = (top + t, bottom) if b == bottom else (_times(top, b) + _times(t, bottom), _times(bottom, b))
        return top, bottom
    if kind == "mul":
        top, bottom = one, one
        for arg in args:
            t, b = _fraction(arg, generators, context, steps)
            top, bottom = _times(top, t), _times(bottom, b)
        return top, bottom
    if kind == "div":
        (t1, b1), (t2, b2) = (_fraction(arg, generators, context, steps) for arg in args)
        if t2 == 0:
            raise _NotRationalFunction
        return _times(t1, b2), _times(b1, t2)
    if kind == "percent":
        top, bottom = _fraction(args[0], generators, context, steps)
        return top, bottom * 100
    if kind == "pow":
        exponent = rational(args[1], steps)
        if exponent is None:
            raise _NotRationalFunction
        p, q = parts(exponent)
        if q != 1:
            raise _NotRationalFunction
        top, bottom = _fraction(args[0], generators, context, steps)
        if p < 0:
            top, bottom, p = bottom, top, -p
        if bottom == 0:
            raise _NotRationalFunction
        return _raised(top, p), _raised(bottom, p)
    raise _NotRationalFunction


def _times(a: Any, b: Any) -> Any:
    if len(a) * len(b) > 40 * MAX_TERMS:
        raise TooLarge("terms")
    product = a * b
    if len(product) > MAX_TERMS:
        raise TooLarge("terms")
    return product


def _raised(a: Any, n: int) -> Any:
    if n == 0:
        return a**0
    if len(a) > 1 and (
        n > MAX_DEGREE or n * max(a.degrees() or (0,)) > MAX_DEGREE * 2 or len(a) ** min(n, 4) > 40 * MAX_TERMS
    ):
        raise TooLarge("degree")
    if n * max(max(a.degrees(), default=0), 1) > 10**6:
        raise TooLarge("degree")
    out = a
    for bit in bin(n)[3:]:
        out = _times(out, out)
        if bit == "1":
            out = _times(out, a)
    return out


def real_roots(poly: Any, steps: Steps) -> list[Any]:
    """Certified enclosures of the real roots of a polynomial in one generator; [] for constants."""
    from flint import fmpq_poly

    degrees = poly.degrees()
    if not degrees or max(degrees) == 0:
        return []
    if len(degrees) > 1 or degrees[0] > 24:
        raise TooLarge("degree")
    steps.spend(200)
    coefficients = [fmpq(0)] * (degrees[0] + 1)
    for (power,), coefficient in poly.to_dict().items():
        coefficients[int(power)] = coefficient
    roots = fmpq_poly(coefficients).complex_roots()
    return [root.real for root, _ in roots if root.imag.is_zero()]


def rational_near(ball: Any, poly: Any) -> Node | None:
    """The rational root inside an enclosure, if there is one with a small denominator."""
    from fractions import Fraction as Rational

    guess = Rational(float(ball.mid())).limit_denominator(10_000)
    value = fmpq(guess.numerator, guess.denominator)
    return num(guess.numerator, guess.denominator) if poly.subs({0: value}) == 0 else None


def distinct_roots(poly: Any) -> int:
    """Number of distinct complex roots of a polynomial in one generator: degree of f / gcd(f, f')."""
    common = poly.gcd(poly.derivative(0))
    return int(poly.total_degree()) - int(common.total_degree())
