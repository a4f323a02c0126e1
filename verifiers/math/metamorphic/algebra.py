"""Roots, polynomials, rational functions, transcendental functions, complex numbers."""

from __future__ import annotations

import random

from jurat.verifiers.math.metamorphic.drawing import (
    distinct,
    linear,
    nonzero,
    poly,
    product,
)
from jurat.verifiers.math.metamorphic.table import different, same


@same("root", "simplify")
def _(rng: random.Random) -> tuple[str, str]:
    k, r = rng.randint(2, 12), rng.choice((2, 3, 5, 6, 7, 10, 11, 13))
    return f"{k}\\sqrt{{{r}}}", rng.choice(
        [
            f"\\sqrt{{{k * k * r}}}",
            f"\\frac{{{k * r}}}{{\\sqrt{{{r}}}}}",
            f"{k}*sqrt({r})",
            f"\\sqrt{r}\\cdot{k}" if r < 10 else f"{k}\\cdot{r}^{{1/2}}",
        ]
    )


@same("root", "rationalise")
def _(rng: random.Random) -> tuple[str, str]:
    a, r = rng.randint(2, 9), rng.choice((2, 3, 5, 7))
    while a * a == r:
        a += 1
    return f"\\frac{{1}}{{{a}+\\sqrt{{{r}}}}}", f"\\frac{{{a}-\\sqrt{{{r}}}}}{{{a * a - r}}}"


@same("root", "denest")
def _(rng: random.Random) -> tuple[str, str]:
    a, b = rng.sample((2, 3, 5, 6, 7, 10, 11, 13), 2)
    return f"\\sqrt{{{a}}}+\\sqrt{{{b}}}", f"\\sqrt{{{a + b}+2\\sqrt{{{a * b}}}}}"


@different("root", "change_digit")
def _(rng: random.Random) -> tuple[str, str]:
    k, r = rng.randint(2, 12), rng.choice((2, 3, 5, 6, 7, 10, 11, 13))
    return f"{k}\\sqrt{{{r}}}", rng.choice(
        [
            f"{k + 1}\\sqrt{{{r}}}",
            f"{k}\\sqrt{{{r + 15}}}",
            f"-{k}\\sqrt{{{r}}}",
            f"\\sqrt[3]{{{k * k * r}}}",
            f"{k * r**0.5:.4f}",
            f"\\pm{k}\\sqrt{{{r}}}",
        ]
    )


# polynomials and rational functions


@same("polynomial", "expand")
def _(rng: random.Random) -> tuple[str, str]:
    a, b = nonzero(rng), nonzero(rng)
    return f"{linear(a)}{linear(b)}", poly(product([-a, 1], [-b, 1]))


@same("polynomial", "factor")
def _(rng: random.Random) -> tuple[str, str]:
    a, b, c = nonzero(rng), nonzero(rng), rng.randint(2, 5)
    return poly([c * v for v in product(product([-a, 1], [-b, 1]), [-a, 1])]), f"{c}{linear(b)}{linear(a)}^2"


@same("polynomial", "reorder")
def _(rng: random.Random) -> tuple[str, str]:
    coefficients = [nonzero(rng) for _ in range(rng.randint(3, 6))]
    order = list(range(len(coefficients)))
    rng.shuffle(order)
    return poly(coefficients), poly(coefficients, order=order)


@different("polynomial", "change_digit")
def _(rng: random.Random) -> tuple[str, str]:
    coefficients = [nonzero(rng) for _ in range(rng.randint(2, 6))]
    other = list(coefficients)
    other[rng.randrange(len(other))] += rng.choice((-30, 30, 1000))
    return poly(coefficients), poly(other)


@different("polynomial", "change_sign")
def _(rng: random.Random) -> tuple[str, str]:
    coefficients = [nonzero(rng) for _ in range(rng.randint(2, 6))]
    other = list(coefficients)
    other[rng.randrange(len(other))] *= -1
    return poly(coefficients), poly(other)


@different("polynomial", "change_exponent")
def _(rng: random.Random) -> tuple[str, str]:
    n, c = rng.randint(2, 30), nonzero(rng)
    return f"(x{c:+d})^{{{n}}}", f"(x{c:+d})^{{{n + 1}}}"


@different("polynomial", "rename")
def _(rng: random.Random) -> tuple[str, str]:
    coefficients = [nonzero(rng) for _ in range(3)]
    return poly(coefficients), poly(coefficients, "y")


@same("rational_function", "combine")
def _(rng: random.Random) -> tuple[str, str]:
    a, b = distinct(rng, 2, 1, 9)
    p, q = nonzero(rng, 5), nonzero(rng, 5)
    top = [-(p * b + q * a), p + q]
    if top[1] == 0:
        top = [-(p * b - p * a), 0]
        q = -p
    return (
        f"\\frac{{{p}}}{{x-{a}}}+\\frac{{{q}}}{{x-{b}}}",
        f"\\frac{{{poly(top)}}}{{{poly(product([-a, 1], [-b, 1]))}}}",
    )


@different("rational_function", "change_sign")
def _(rng: random.Random) -> tuple[str, str]:
    a, c = rng.randint(1, 9), nonzero(rng)
    return f"\\frac{{x{c:+d}}}{{x-{a}}}", rng.choice(
        [f"\\frac{{x{-c:+d}}}{{x-{a}}}", f"\\frac{{x{c:+d}}}{{x+{a}}}", f"-\\frac{{x{c:+d}}}{{x-{a}}}"]
    )


# transcendental functions, complex numbers


@same("trig", "identity")
def _(rng: random.Random) -> tuple[str, str]:
    k = rng.randint(2, 9)
    return rng.choice([
        (f"\\sin {2 * k}x", f"2\\sin {k}x\\cos {k}x"), (f"\\cos^2({k}x)", f"1-\\sin^2 {k}x"),
        (f"\\tan {k}x", f"\\frac{{\\sin {k}x}}{{\\cos {k}x}}"),
        (f"{k}", f"{k}\\sin^2 x+{k}\\cos^2 x"), (f"\\cos {2 * k}x", f"2\\cos^2 {k}x-1"),
        (f"\\sin(x+{k}y)", f"\\sin x\\cos {k}y+\\cos x\\sin {k}y"),
    ])  # fmt: skip


@different("trig", "change_sign")
def _(rng: random.Random) -> tuple[str, str]:
    k = rng.randint(2, 9)
    return rng.choice([
        (f"\\sin {k}x", f"\\cos {k}x"), (f"\\sin {k}x", f"\\sin {k + 1}x"), (f"\\cos {2 * k}x", f"2\\cos^2 {k}x+1"),
        (f"\\sin {k}x", f"-\\sin {k}x"),
        (f"\\tan {k}x", f"\\tan^{k} x"), (f"\\sin^2 {k}x", f"\\sin(({k}x)^2)"),
        (f"\\sin(x+{k}y)", f"\\sin x\\cos {k}y-\\cos x\\sin {k}y"),
    ])  # fmt: skip


@same("trig", "value")
def _(rng: random.Random) -> tuple[str, str]:
    n = rng.randint(1, 40)
    return f"\\cos\\frac{{{n}\\pi}}{{180}}", rng.choice(
        [f"\\cos {n}^\\circ", f"\\sin {90 - n}^\\circ", f"-\\cos {180 - n}^\\circ"]
    )


@same("log_exp", "identity")
def _(rng: random.Random) -> tuple[str, str]:
    a, b, n = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 5)
    return rng.choice([
        (f"\\ln {a * b}", f"\\ln {a}+\\ln {b}"), (f"{n}\\ln {a}", f"\\ln {a**n}"),
        (f"\\log_{{{a}}} {b}", f"\\frac{{\\ln {b}}}{{\\ln {a}}}"),
        (f"e^{{{a}x+{b}}}", f"e^{{{b}}}e^{{{a}x}}"), (f"{n}", f"\\log_{{{a}}} {a**n}"), (f"{a}^{{x+{n}}}", f"{a**n}\\cdot{a}^x"),
    ])  # fmt: skip


@different("log_exp", "change_digit")
def _(rng: random.Random) -> tuple[str, str]:
    a, b, n = rng.randint(2, 9), rng.randint(10, 99), rng.randint(20, 400)
    return rng.choice([
        (f"\\ln {b}", f"\\ln {b + 1}"), (f"e^{{-{n}}}", f"e^{{-{n + 1}}}"), (f"e^{{-{n}}}", "0"),
        (f"\\log_{{{a}}} {b}", f"\\log_{{{a + 1}}} {b}"),
        (f"10^{{{n}}}", f"10^{{{n}}}+1"), (f"e^{{{a}x}}", f"e^{{{a}x+1}}"), (f"\\frac{{1}}{{{n}!}}", f"\\frac{{1}}{{{n + 1}!}}"),
        (f"\\pi+{b}", f"{b + 3.14159}"),
    ])  # fmt: skip


@same("complex", "rewrite")
def _(rng: random.Random) -> tuple[str, str]:
    a, b, c, d = nonzero(rng), nonzero(rng), nonzero(rng), nonzero(rng)
    re, im = a * c - b * d, a * d + b * c
    if re == 0 or im == 0:
        return f"{a}{b:+d}i", f"{b}i{a:+d}"
    return f"{re}{im:+d}i", rng.choice([f"({a}{b:+d}i)({c}{d:+d}i)", f"{im}i{re:+d}", f"{re}{im:+d}\\mathrm{{i}}"])


@different("complex", "change_sign")
def _(rng: random.Random) -> tuple[str, str]:
    a, b = nonzero(rng), nonzero(rng)
    return f"{a}{b:+d}i", rng.choice(
        [f"{a}{-b:+d}i", f"{-a}{b:+d}i", f"{a}", f"{a + b}" if a + b else "1", f"{a}{b + 20:+d}i"]
    )
