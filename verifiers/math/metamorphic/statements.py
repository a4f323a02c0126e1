"""Assignments, equations, inequalities, sets, matrices, ratios, times, bases, words, choices, cases, sums."""

from __future__ import annotations

import random
from fractions import Fraction

from jurat.verifiers.math.metamorphic.drawing import (
    distinct,
    frac,
    nonzero,
    ratio,
)
from jurat.verifiers.math.metamorphic.table import different, same


@same("assignment", "rewrite")
def _(rng: random.Random) -> tuple[str, str]:
    n, x = nonzero(rng, 999), rng.choice("xynabk")
    return f"{x}={n}", rng.choice([f"{n}", f"{n}={x}", f"{x} = {n}.0", f"{x}={n - 3}+3"])


@same("assignment", "reorder")
def _(rng: random.Random) -> tuple[str, str]:
    a, b = nonzero(rng), nonzero(rng)
    return f"x={a},y={b}", rng.choice([f"y={b},x={a}", f"({a},{b})", f"y={b} \\text{{ and }} x={a}"])


@different("assignment", "change_digit")
def _(rng: random.Random) -> tuple[str, str]:
    a, b = distinct(rng, 2)
    return f"x={a},y={b}", rng.choice([f"x={b},y={a}", f"x={a}", f"x={a},y={b + 1}", f"({b},{a})"])


@same("equation", "scale")
def _(rng: random.Random) -> tuple[str, str]:
    a, b, c, k = nonzero(rng), nonzero(rng), nonzero(rng), nonzero(rng)
    return f"{a}x{b:+d}y={c}", rng.choice(
        [f"{a * k}x{b * k:+d}y={c * k}", f"{a}x{b:+d}y{-c:+d}=0", f"y={frac(Fraction(c, b))}-({frac(Fraction(a, b))})x"]
    )


@same("equation", "expand")
def _(rng: random.Random) -> tuple[str, str]:
    a, b, r = nonzero(rng), nonzero(rng), rng.randint(1, 9)
    return f"(x{-a:+d})^2+(y{-b:+d})^2={r * r}", f"x^2+y^2{-2 * a:+d}x{-2 * b:+d}y{a * a + b * b - r * r:+d}=0"


@different("equation", "change_sign")
def _(rng: random.Random) -> tuple[str, str]:
    a, b, c = nonzero(rng), nonzero(rng), nonzero(rng)
    return f"{a}x{b:+d}y={c}", rng.choice(
        [f"{a}x{-b:+d}y={c}", f"{a}x{b:+d}y={c + 20}", f"{a}x{b:+d}y", f"{c}", f"{a}x{b:+d}z={c}"]
    )


@same("inequality", "scale")
def _(rng: random.Random) -> tuple[str, str]:
    c, k = nonzero(rng, 50), rng.randint(2, 9)
    return rng.choice([
        (f"x<{c}", f"{c}>x"), (f"x<{c}", f"{k}x<{k * c}"), (f"x\\ge{c}", f"-{k}x\\le{-k * c}"), (f"x>{c}", f"({c},\\infty)"),
        (f"x\\le{c}", f"x\\in(-\\infty,{c}]"),
        (f"{c}\\le x<{c + k}", f"[{c},{c + k})"), (f"x\\ne{c}", f"(-\\infty,{c})\\cup({c},\\infty)"), (f"|x|<{k}", f"-{k}<x<{k}"),
        (f"x^2\\le{k * k}", f"[-{k},{k}]"),
    ])  # fmt: skip


@different("inequality", "change_bound")
def _(rng: random.Random) -> tuple[str, str]:
    c, k = nonzero(rng, 50), rng.randint(1, 9)
    return rng.choice([
        (f"x<{c}", f"x\\le{c}"), (f"x<{c}", f"x>{c}"), (f"x<{c}", f"x<{c + k}"), (f"{c}\\le x<{c + k}", f"{c}<x<{c + k}"),
        (f"x>{c}", f"[{c},\\infty)"),
        (f"-x<{c}", f"x<{-c}"), (f"x\\ge{c}", f"x={c}"), (f"x<{c}", f"y<{c}"), (f"x\\ne{c}", f"x={c}"),
    ])  # fmt: skip


@same("interval", "split")
def _(rng: random.Random) -> tuple[str, str]:
    a, b, c = sorted(distinct(rng, 3))
    return f"[{a},{c}]", rng.choice(
        [
            f"[{a},{b}]\\cup[{b},{c}]",
            f"[{a},{b})\\cup[{b},{c}]",
            f"{a}\\le x\\le{c}",
            f"[{b},{c}]\\cup[{a},{b}]",
            f"\\left[{a},{c}\\right]",
        ]
    )


@different("interval", "change_delimiter")
def _(rng: random.Random) -> tuple[str, str]:
    a, b, c = sorted(distinct(rng, 3))
    return f"[{a},{c}]", rng.choice(
        [f"[{a},{c})", f"({a},{c}]", f"({a},{c})", f"[{a},{b}]", f"[{a},{b})\\cup({b},{c}]", f"[{c},{a}]", f"[{a},{c}"]
    )


@same("tuple", "rewrite")
def _(rng: random.Random) -> tuple[str, str]:
    a, b = nonzero(rng, 99), ratio(rng)
    return f"({a},{frac(b)})", rng.choice(
        [
            f"\\left({a}, {b.numerator}/{b.denominator}\\right)",
            f"( {a} ; {frac(b)} )",
            f"(x,y)=({a},{frac(b)})",
            f"x={a}, y={frac(b)}",
        ]
    )


@different("tuple", "reorder")
def _(rng: random.Random) -> tuple[str, str]:
    a, b = distinct(rng, 2)
    return f"({a},{b})", rng.choice(
        [
            f"({b},{a})",
            f"({a},{b},{b})",
            f"({a},{b + 1})",
            f"[{a},{b}]",
            f"\\{{{a},{b}\\}}",
            f"({a}.{abs(b)})",
            f"({a},{b}",
        ]
    )


@same("set", "reorder")
def _(rng: random.Random) -> tuple[str, str]:
    values = distinct(rng, rng.randint(2, 6))
    shuffled = rng.sample(values, len(values))
    joined = ",".join(map(str, shuffled))
    listed = ", ".join(map(str, shuffled))
    gold = rng.choice([f"\\{{{','.join(map(str, values))}\\}}", ", ".join(map(str, values))])
    return gold, rng.choice(
        [
            f"\\{{{joined}\\}}",
            listed,
            " \\text{ and } ".join(map(str, shuffled)),
            "x=" + " \\text{ or } x=".join(map(str, shuffled)),
        ]
    )


@different("set", "change_element")
def _(rng: random.Random) -> tuple[str, str]:
    values = distinct(rng, rng.randint(2, 6))
    other = rng.choice([[*values[:-1], values[-1] + 50], values[:-1], [*values, 77]])
    return f"\\{{{','.join(map(str, values))}\\}}", f"\\{{{','.join(map(str, other))}\\}}"


@same("plus_minus", "expand")
def _(rng: random.Random) -> tuple[str, str]:
    a, r = nonzero(rng), rng.choice((2, 3, 5, 7))
    return f"{a}\\pm\\sqrt{{{r}}}", rng.choice(
        [
            f"{a}+\\sqrt{r},{a}-\\sqrt{r}",
            f"\\{{{a}-\\sqrt{r},{a}+\\sqrt{r}\\}}",
            f"x={a}\\pm{r}^{{1/2}}",
            f"\\frac{{{2 * a}\\pm\\sqrt{{{4 * r}}}}}{{2}}",
        ]
    )


@different("plus_minus", "change_sign")
def _(rng: random.Random) -> tuple[str, str]:
    a, r = nonzero(rng), rng.choice((2, 3, 5, 7))
    return f"{a}\\pm\\sqrt{{{r}}}", rng.choice(
        [f"{a}+\\sqrt{r}", f"{-a}\\pm\\sqrt{r}", f"{a}\\pm\\sqrt{{{r + 8}}}", f"{a}+\\sqrt{r},{a}+\\sqrt{r}"]
    )


def _matrix(cells: list[list[int]], style: str) -> str:
    return f"\\begin{{{style}}}" + "\\\\".join("&".join(map(str, row)) for row in cells) + f"\\end{{{style}}}"


@same("matrix", "rewrite")
def _(rng: random.Random) -> tuple[str, str]:
    cells = [[nonzero(rng) for _ in range(rng.choice((2,)))] for _ in range(rng.randint(2, 3))]
    left = [[rng.randint(-9, 9) for _ in row] for row in cells]
    right = [[x - y for x, y in zip(a, b, strict=True)] for a, b in zip(cells, left, strict=True)]
    forms = [
        _matrix(cells, "bmatrix"),
        f"{_matrix(left, 'pmatrix')}+{_matrix(right, 'pmatrix')}",
        _matrix([[2 * x for x in row] for row in cells], "pmatrix") + "\\cdot\\frac12",
    ]
    return _matrix(cells, "pmatrix"), rng.choice(forms)


@different("matrix", "change_digit")
def _(rng: random.Random) -> tuple[str, str]:
    a, b, c, d = distinct(rng, 4)
    return _matrix([[a, b], [c, d]], "pmatrix"), rng.choice(
        [
            _matrix([[a, c], [b, d]], "pmatrix"),
            _matrix([[a, b], [c, d + 1]], "pmatrix"),
            _matrix([[a, b, c, d]], "pmatrix"),
            _matrix([[a, b], [c, d]], "vmatrix"),
        ]
    )


@same("matrix", "determinant")
def _(rng: random.Random) -> tuple[str, str]:
    a, b, c, d = (rng.randint(-9, 9) for _ in range(4))
    return str(a * d - b * c), _matrix([[a, b], [c, d]], "vmatrix")


@same("ratio", "scale")
def _(rng: random.Random) -> tuple[str, str]:
    a, b, c, k = rng.randint(1, 9), rng.randint(1, 9), rng.randint(1, 9), rng.randint(2, 9)
    return f"{a}:{b}:{c}", f"{a * k} : {b * k} : {c * k}"


@different("ratio", "reorder")
def _(rng: random.Random) -> tuple[str, str]:
    a, b, c = distinct(rng, 3, 1, 9)
    return f"{a}:{b}:{c}", rng.choice([f"{b}:{a}:{c}", f"{a}:{b}", f"{a}:{b}:{c + 10}"])


@different("time", "change_digit")
def _(rng: random.Random) -> tuple[str, str]:
    h, m = rng.randint(1, 11), rng.randint(10, 58)
    return rng.choice(
        [
            (f"{h}:{m}", f"{h}:{m + 1}"),
            (f"\\text{{{h}:{m} p.m.}}", f"{h}:{m} a.m."),
            (f"\\text{{{h}:{m} p.m.}}", f"{h}:{m}"),
            (f"{h}:{m}", f"{h + 1}:{m}"),
            (f"{h}:{m}", f"{h}.{m}"),
        ]
    )


@same("time", "rewrite")
def _(rng: random.Random) -> tuple[str, str]:
    h, m = rng.randint(1, 11), rng.randint(10, 59)
    return rng.choice(
        [
            (f"\\text{{{h}:{m} p.m.}}", f"{h}:{m} PM"),
            (f"\\text{{{h}:{m} p.m.}}", f"{h + 12}:{m}"),
            (f"{h}:{m}", f"0{h}:{m}" if h < 10 else f"{h}:{m}"),
        ]
    )


def _digits(n: int, base: int) -> str:
    out = ""
    while n:
        n, digit = divmod(n, base)
        out = str(digit) + out
    return out or "0"


@same("base", "rewrite")
def _(rng: random.Random) -> tuple[str, str]:
    n, base = rng.randint(20, 9999), rng.randint(2, 9)
    return f"{_digits(n, base)}_{base}", rng.choice(
        [
            f"{_digits(n, base)}_{{{base}}}",
            f"({_digits(n, base)})_{base}",
            str(n),
            f"{_digits(n, base)}_{{\\text{{{['', '', 'two', 'three', 'four', 'five', 'six', 'seven', 'eight', 'nine'][base]}}}}}",
        ]
    )


@different("base", "change_digit")
def _(rng: random.Random) -> tuple[str, str]:
    n, base = rng.randint(20, 9999), rng.randint(3, 9)
    return f"{_digits(n, base)}_{base}", rng.choice(
        [
            f"{_digits(n + 1, base)}_{base}",
            f"{_digits(n, base)}_{base + 1}" if base < 9 else f"{_digits(n + 2, base)}_9",
        ]
    )


_WORDS = [
    "east",
    "Monday",
    "isosceles triangle",
    "even",
    "hyperbola",
    "Alice",
    "no solution",
    "parallelogram",
    "increasing",
    "yes",
]


@same("text", "rewrite")
def _(rng: random.Random) -> tuple[str, str]:
    word = rng.choice(_WORDS)
    return f"\\text{{{word}}}", rng.choice(
        [word, word.upper(), f"\\textbf{{{word}}}", f'"{word}"', f"{word}.", f"\\mathrm{{{word}}}".replace(" ", "\\ ")]
    )


@different("text", "change_word")
def _(rng: random.Random) -> tuple[str, str]:
    a, b = rng.sample(_WORDS, 2)
    return f"\\text{{{a}}}", rng.choice([b, f"not {a}", f"{a} or {b}", f"{rng.randint(2, 99)}"])


@same("choice", "rewrite")
def _(rng: random.Random) -> tuple[str, str]:
    letter = rng.choice("ABCDE")
    return rng.choice([letter, f"\\text{{({letter})}}"]), rng.choice(
        [
            letter,
            f"({letter})",
            f"{letter}.",
            f"\\textbf{{({letter})}}",
            f"({letter}) {rng.randint(2, 99)}",
            letter.lower(),
        ]
    )


@different("choice", "change_letter")
def _(rng: random.Random) -> tuple[str, str]:
    a, b = rng.sample("ABCDE", 2)
    return a, rng.choice([b, f"({b})", f"{a}, {b}", f"{a} or {b}", f"not {a}", f"({a}) or ({b})", "ABCDE"])


@same("piecewise", "reorder")
def _(rng: random.Random) -> tuple[str, str]:
    a, b, c = nonzero(rng), nonzero(rng), nonzero(rng)
    first, second = f"{a}x&x\\ge{c}", f"x{b:+d}&x<{c}"
    return f"\\begin{{cases}}{first}\\\\{second}\\end{{cases}}", f"\\begin{{cases}}{second}\\\\{first}\\end{{cases}}"


@different("piecewise", "change_bound")
def _(rng: random.Random) -> tuple[str, str]:
    a, b, c = rng.randint(2, 9), nonzero(rng), nonzero(rng)

    def write(a: int, b: int, c: int) -> str:
        return f"\\begin{{cases}}{a}x&x\\ge{c}\\\\x{b:+d}&x<{c}\\end{{cases}}"

    return write(a, b, c), rng.choice([write(a + 1, b, c), write(a, b + 20, c), write(a, b, c + 20)])


@different("infinity", "change_sign")
def _(rng: random.Random) -> tuple[str, str]:
    return rng.choice(
        [
            ("\\infty", "-\\infty"),
            ("\\infty", f"10^{{{rng.randint(9, 300)}}}"),
            ("-\\infty", "0"),
            ("(0,\\infty)", f"(0,{rng.randint(9, 999)})"),
        ]
    )


@same("sum", "value")
def _(rng: random.Random) -> tuple[str, str]:
    n, a = rng.randint(2, 30), rng.randint(1, 5)
    return str(
        sum(a * k + 1 for k in range(1, n + 1))
    ), f"\\sum_{{k=1}}^{{{n}}}({a}k+1)" if a > 1 else f"\\sum_{{k=1}}^{{{n}}}(k+1)"


@different("sum", "change_bound")
def _(rng: random.Random) -> tuple[str, str]:
    n = rng.randint(2, 30)
    return str(n * (n + 1) // 2), f"\\sum_{{k=1}}^{{{n + 1}}}k"


@same("combinatorics", "rewrite")
def _(rng: random.Random) -> tuple[str, str]:
    n = rng.randint(3, 12)
    k = rng.randint(1, n - 1)
    return f"\\binom{{{n}}}{{{k}}}", rng.choice(
        [f"\\binom{{{n}}}{{{n - k}}}", f"\\frac{{{n}!}}{{{k}!({n - k})!}}", f"C({n},{k})", f"{{{n} \\choose {k}}}"]
    )


@different("combinatorics", "change_digit")
def _(rng: random.Random) -> tuple[str, str]:
    n = rng.randint(5, 12)
    return f"{n}!", rng.choice([f"{n + 1}!", f"{n}", f"{n}!!", f"({n - 1})!", f"\\binom{{{n}}}{{2}}"])
