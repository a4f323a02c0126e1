"""Integers, fractions, decimals, percentages, units, money, angles."""

from __future__ import annotations

import random
from fractions import Fraction

from jurat.verifiers.math.metamorphic.drawing import (
    changed_digit,
    frac,
    grouped,
    nonzero,
    ratio,
)
from jurat.verifiers.math.metamorphic.table import different, same


@same("integer", "rewrite")
def _(rng: random.Random) -> tuple[str, str]:
    n = nonzero(rng, 10**6)
    k = rng.randint(2, 9)
    forms = [
        f" {n} ",
        f"{n}.",
        f"{n}.0",
        f"${n}$",
        f"\\boxed{{{n}}}",
        f"({n})",
        f"\\frac{{{n * k}}}{{{k}}}",
        f"{n - k}+{k}",
        f"x={n}",
        f"\\text{{{n}}}",
    ]
    return str(n), rng.choice(forms)


@different("integer", "change_digit")
def _(rng: random.Random) -> tuple[str, str]:
    n = str(nonzero(rng, 10**12))
    return n, changed_digit(rng, n)


@different("integer", "change_sign")
def _(rng: random.Random) -> tuple[str, str]:
    n = nonzero(rng, 10**6)
    return str(n), str(-n)


@different("integer", "append_words")
def _(rng: random.Random) -> tuple[str, str]:
    n, m = rng.randint(2, 999), rng.randint(2, 999)
    tails = [
        "is wrong",
        "or more",
        "million",
        "factorial",
        "or so",
        "and counting",
        "at most",
        "squared",
        "(incorrect)",
        "minus one",
        "dozen",
    ]
    tails += [f"or {n + m}", f"and {n + m}", f"times {m}", f"to {n + m}"]
    tail = rng.choice(tails)
    return str(n), rng.choice([f"{n}\\text{{ {tail}}}", f"{n} {tail}"])


@different("integer", "list_several")
def _(rng: random.Random) -> tuple[str, str]:
    n = rng.randint(2, 999)
    return str(n), rng.choice(
        [
            f"{n}, {n + 1}",
            f"{n} \\text{{ or }} {n + 2}",
            f"\\{{{n - 1},{n}\\}}",
            f"{n};{n + 1}",
            f"[{n},{n + 1}]",
            f"{n} {n + 1}",
        ]
    )


# fractions and decimals


@same("fraction", "scale")
def _(rng: random.Random) -> tuple[str, str]:
    value, k = ratio(rng), rng.randint(2, 12) * rng.choice((1, -1))
    return frac(value), f"\\dfrac{{{value.numerator * k}}}{{{value.denominator * k}}}"


@same("fraction", "rewrite")
def _(rng: random.Random) -> tuple[str, str]:
    value = ratio(rng)
    p, q = value.numerator, value.denominator
    forms = [
        f"{p}/{q}",
        f"\\frac{{{-p}}}{{{-q}}}",
        f"\\left(\\frac{{{p}}}{{{q}}}\\right)",
        f"{p} \\div {q}",
        f"\\frac{{{p}}}{{{q}}}\\text{{ cm}}",
    ]
    if 0 < p < 10 and q < 10:
        forms.append(f"\\frac{p}{q}")
    return frac(value), rng.choice(forms)


@different("fraction", "change_digit")
def _(rng: random.Random) -> tuple[str, str]:
    value = ratio(rng)
    while True:
        p, q = value.numerator, value.denominator
        other = (p + rng.choice((-1, 1)), q) if rng.random() < 0.5 else (p, q + 1)
        if Fraction(*other) not in (value, value * 100, value / 100):
            return frac(value), f"\\frac{{{other[0]}}}{{{other[1]}}}"


@different("fraction", "invert")
def _(rng: random.Random) -> tuple[str, str]:
    value = ratio(rng)
    return frac(value), f"\\frac{{{value.denominator}}}{{{value.numerator}}}"


@same("decimal", "rewrite")
def _(rng: random.Random) -> tuple[str, str]:
    n, places = rng.randint(1, 99999), rng.randint(1, 4)
    text = (
        f"{Fraction(n, 10**places).limit_denominator():f}"
        if False
        else f"{n // 10**places}.{n % 10**places:0{places}d}"
    )
    forms = [
        text + "0",
        f"\\frac{{{n}}}{{{10**places}}}",
        text.removeprefix("0") if text.startswith("0.") else text,
        f"{n}\\times 10^{{-{places}}}",
    ]
    forms += [f"{n}e-{places}", text.replace(".", "{,}") if places != 3 else text]
    return text, rng.choice(forms)


@different("decimal", "change_digit")
def _(rng: random.Random) -> tuple[str, str]:
    text = f"{rng.randint(0, 999)}.{rng.randint(1, 9999):04d}"
    return text, changed_digit(rng, text)


@different("decimal", "truncate")
def _(rng: random.Random) -> tuple[str, str]:
    text = f"{rng.randint(0, 999)}.{rng.randint(1, 999):03d}{rng.randint(1, 9)}"
    return text, text[:-1]


@same("recurring", "rewrite")
def _(rng: random.Random) -> tuple[str, str]:
    block = "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 3)))
    lead = "".join(rng.choice("0123456789") for _ in range(rng.randint(0, 2)))
    nines = 10 ** len(block) - 1
    value = Fraction(int(lead or "0") * nines + int(block), nines * 10 ** len(lead))
    return frac(value), f"0.{lead}\\overline{{{block}}}"


@different("recurring", "truncate")
def _(rng: random.Random) -> tuple[str, str]:
    q = rng.choice((3, 7, 9, 11, 13))
    p = rng.randint(1, q - 1)
    return frac(Fraction(p, q)), f"{p / q:.{rng.randint(1, 6)}f}"


@same("mixed", "rewrite")
def _(rng: random.Random) -> tuple[str, str]:
    whole, q = rng.randint(1, 20), rng.randint(2, 12)
    p = rng.randint(1, q - 1)
    sign = rng.choice(("", "-"))
    value = Fraction(whole * q + p, q) * (-1 if sign else 1)
    return frac(value), rng.choice(
        [f"{sign}{whole}\\frac{{{p}}}{{{q}}}", f"{sign}{whole} {p}/{q}", f"{sign}{whole} \\tfrac{{{p}}}{{{q}}}"]
    )


@different("mixed", "change_digit")
def _(rng: random.Random) -> tuple[str, str]:
    whole, q = rng.randint(2, 20), rng.randint(2, 12)
    p = rng.randint(1, q - 1)
    return f"{whole}\\frac{{{p}}}{{{q}}}", rng.choice(
        [f"{whole + 1}\\frac{{{p}}}{{{q}}}", f"{whole}\\cdot\\frac{{{p}}}{{{q}}}", str(whole), f"\\frac{{{p}}}{{{q}}}"]
    )


@same("thousands", "rewrite")
def _(rng: random.Random) -> tuple[str, str]:
    n = rng.randint(1000, 10**9)
    return str(n), grouped(n, rng.choice([",", "{,}", "\\,", " ", ",\\!", "\\;"]))


@different("thousands", "change_delimiter")
def _(rng: random.Random) -> tuple[str, str]:
    n = rng.randint(10**6, 10**9)
    return str(n), grouped(n, rng.choice([", ", ";", ". ", " , "]))


@same("scientific", "rewrite")
def _(rng: random.Random) -> tuple[str, str]:
    m, e = rng.randint(10, 99), rng.randint(-12, 20)
    return f"{m / 10}\\times 10^{{{e}}}", rng.choice(
        [f"{m}\\cdot10^{{{e - 1}}}", f"{m / 10}e{e}", f"{m / 10} x 10^{{{e}}}", f"{m / 10}*10^({e})"]
    )


@different("scientific", "change_exponent")
def _(rng: random.Random) -> tuple[str, str]:
    m, e = rng.randint(10, 99), rng.randint(-40, 40)
    return f"{m / 10}\\times 10^{{{e}}}", f"{m / 10}\\times 10^{{{e + rng.choice((-1, 1))}}}"


# percent, units, money, angles


@same("percent", "rewrite")
def _(rng: random.Random) -> tuple[str, str]:
    n = rng.randint(1, 400)
    return f"{n}\\%", rng.choice(
        [f"{n}%", f"{n} percent", f"\\frac{{{n}}}{{100}}", f"{n}\\text{{ percent}}", f"{n / 100}", f"{2 * n}/200"]
    )


@different("percent", "change_digit")
def _(rng: random.Random) -> tuple[str, str]:
    n = str(rng.randint(11, 499))
    return f"{n}\\%", rng.choice([f"{changed_digit(rng, n)}\\%", f"{n}0\\%", f"{int(n) / 1000}", f"{int(n) / 10}"])


_UNITS = [
    ("cm", "centimeters", "m"),
    ("kg", "kilograms", "g"),
    ("m", "meters", "km"),
    ("hours", "hours", "minutes"),
    ("miles", "miles", "feet"),
]


@same("units", "rewrite")
def _(rng: random.Random) -> tuple[str, str]:
    n, (short, long, _) = rng.randint(2, 999), rng.choice(_UNITS)
    return f"{n}\\text{{ {short}}}", rng.choice(
        [f"{n} {long}", f"{n}\\ \\mathrm{{{short}}}", f"{n}", f"{n}\\text{{ {long}}}", f"{n}.0\\,\\text{{{short}}}"]
    )


@same("units", "change_unit")
def _(rng: random.Random) -> tuple[str, str]:
    n = rng.randint(2, 99)
    a, b, factor = rng.choice(
        [
            ("m", "cm", 100),
            ("km", "m", 1000),
            ("hours", "minutes", 60),
            ("kg", "g", 1000),
            ("days", "hours", 24),
            ("feet", "inches", 12),
        ]
    )
    return f"{n}\\text{{ {a}}}", f"{n * factor}\\text{{ {b}}}"


@different("units", "change_unit")
def _(rng: random.Random) -> tuple[str, str]:
    n, (short, _, other) = rng.randint(2, 999), rng.choice(_UNITS)
    return f"{n}\\text{{ {short}}}", rng.choice(
        [f"{n}\\text{{ {other}}}", f"{n}\\text{{ {short}}}^2", f"{n}\\text{{ dollars}}", f"{n + 1}\\text{{ {short}}}"]
    )


@same("units", "counted_noun")
def _(rng: random.Random) -> tuple[str, str]:
    n = rng.randint(2, 999)
    nouns = (
        "apples",
        "students",
        "marbles",
        "pages",
        "red balls",
        "cookies left",
        "dollars",
        "square feet",
        "miles per hour",
    )
    return str(n), f"{n} {rng.choice(nouns)}"


@same("currency", "rewrite")
def _(rng: random.Random) -> tuple[str, str]:
    n, c = rng.randint(1, 9999), rng.randint(10, 99)
    return f"\\${n}.{c}", rng.choice([f"{n}.{c}", f"${n}.{c}", f"{n}.{c} dollars", f"\\${n:,}.{c}"])


@different("currency", "change_unit")
def _(rng: random.Random) -> tuple[str, str]:
    n = rng.randint(2, 999)
    return f"\\${n}", rng.choice([f"€{n}", f"{n} cents", f"£{n}", f"\\${n}0", f"\\${n}.01"])


@same("degree", "rewrite")
def _(rng: random.Random) -> tuple[str, str]:
    n = rng.randint(1, 359)
    return f"{n}^\\circ", rng.choice([f"{n}°", f"{n} degrees", f"{n}^{{\\circ}}", f"\\frac{{{n}\\pi}}{{180}}", f"{n}"])


@different("degree", "change_digit")
def _(rng: random.Random) -> tuple[str, str]:
    n = str(rng.randint(11, 359))
    return f"{n}^\\circ", f"{changed_digit(rng, n)}^\\circ"
