"""Problems made from a seed: graded levels with exact answers, worded in many ways, endless above level 2.

Three families, chosen by the source's name:

`generated`: questions in English.

| level | asks                                                                              | answer         |
|-------|-----------------------------------------------------------------------------------|----------------|
| 1     | one-digit sums and differences; three of four are bare questions, one a sentence  | 0..18          |
| 2     | sums and differences to 20 with a two-digit number, small times tables            | 0..45          |
| 3     | two-digit sums and differences, tables from 6 to 12, exact division               | 0..198         |
| 4     | two steps with small numbers, missing numbers                                     | whole          |
| 5     | parts of a whole, fractions with small denominators, percent, remainders, sharing | whole or p/q   |
| 6     | three steps, linear equations, sums of unlike fractions, negative results         | whole or p/q   |

`generated:plain`: bare arithmetic in one spelling for models that learn from nothing, every problem that exists, each
once: level 1 ``7+5=`` one digit, 2 sums and differences to 20 and tables to 5 x 9, 3 two-digit, 4 ``3+4*5=`` one digit.
Its solution is the answer alone.

`generated:chain`: several steps for models that learn from nothing, worked from left to right as a calculator does:
``3,+4,*2,-5:`` has the solution ``3+4=7;7*2=14;14-5=9``. Level k has k + 1 operations (1: two, 2: three, 3: four) by one
digit; every value lies in 0..20.

No key (below) of levels 1 to 3 is asked at two of them.

**Splits are by content.** A problem belongs to `train` or to `held_out` by a hash of its key, whatever the seed, level
or wording; one in five keys is held out. In `generated` the key is what is computed: signs and operands, the order of
the two operands of a lone sum or product left out. So a held-out operand pair never occurs in training as the same
question under another wording, nor turned round; it may occur inside a longer chain (``7 + 5`` within ``7 + 5 - 3``).
In `generated:plain` and `generated:chain` the key is the text: ``7+5=`` may be held out while ``5+7=`` is trained on.

Each problem is a function of (seed, level, split, index); ``distinct`` walks the index and leaves repeats out.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import count, product
from typing import Any

from jurat.datasets import wording
from jurat.platform.errors import ConfigError, nearest
from jurat.platform.randomness import seed_of

VERSION = 1
"""Raised when a seed gives other problems than before."""
FAMILIES = ("generated", "generated:plain", "generated:chain")
LEVELS = {"generated": (1, 2, 3, 4, 5, 6), "generated:plain": (1, 2, 3, 4), "generated:chain": (1, 2, 3)}
SPLITS = {"train": "train", "held_out": "held_out", "unseen": "held_out", "test": "held_out", "validation": "held_out"}
HELD_OUT_SHARE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Example: ``Question(text="Add 7 and 5.", answer="12", level=1, kind="add", operands=(7, 5), ...)``."""

    text: str
    answer: str
    """A whole number, or p/q in lowest terms."""
    level: int
    kind: str
    """``add``, ``sub-story``, ``two-step``, ``plain``, ..."""
    operands: tuple[int, ...]
    key: str
    """What decides the split."""
    solution: str
    """The working, and ``#### answer`` on its last line; for the plain family the answer alone,
    for the chain its equations."""
    index: int = 0

    def columns(self) -> dict[str, Any]:
        return {"level": self.level, "kind": self.kind, "operands": list(self.operands), "key": self.key,
                "solution": self.solution}  # fmt: skip


def names(source: str) -> bool:
    """True if ``source`` means a generated set. Raises ConfigError for a family that does not exist."""
    if source.partition(":")[0] != "generated":
        return False
    if source not in FAMILIES:
        raise ConfigError(f"no generated family {source!r}.{nearest(source, FAMILIES)}", where="data source",
                          fix=f"one of {', '.join(FAMILIES)}")  # fmt: skip
    return True


def countable(source: str) -> bool:
    """True where every problem can be listed, so a set without a size is all of them."""
    return source == "generated:plain"


def held_out(key: str) -> bool:
    """Whether a key is kept from training: the same for every seed."""
    return seed_of("generated split", key) % 1000 < HELD_OUT_SHARE * 1000


def question(source: str, *, seed: int, level: int, split: str, index: int) -> Question:
    """The ``index``-th problem of a stream, in which some repeat. Raises ConfigError for a bad level or split."""
    wanted = _checked(source, level, split)
    if source == "generated:plain":
        pool = _plain(level, wanted)
        return _ordered(pool, seed, level)[index % len(pool)]
    chain = source == "generated:chain"
    rng = random.Random(seed_of(source, VERSION, seed, level, wanted, index))
    while True:
        made = _chain(rng, level + 1) if chain else _LEVELS[level](rng)
        if held_out(made.key) == (wanted == "held_out"):
            return _finish(made, level, index, ";".join(made.working) if chain else None)


def distinct(source: str, *, seed: int, level: int, split: str) -> Iterator[Question]:
    """Problems of a stream without repeats of a text, in order of index; ends when no new one is to be found.

    "None": 16 repeats in a row for each text found, and 2,000; a text as likely as the others is then missed with
    probability e^-16.
    """
    wanted = _checked(source, level, split)
    if source == "generated:plain":
        yield from _ordered(_plain(level, wanted), seed, level)
        return
    seen: set[str] = set()
    repeats = 0
    for index in count():
        made = question(source, seed=seed, level=level, split=split, index=index)
        if made.text in seen:
            repeats += 1
            if repeats > 2000 + 16 * len(seen):
                return
            continue
        repeats = 0
        seen.add(made.text)
        yield made


def _checked(source: str, level: int, split: str) -> str:
    names(source)
    if level not in LEVELS[source]:
        raise ConfigError(f"{source} has levels {list(LEVELS[source])}, got {level}", where="data levels")
    if split not in SPLITS:
        raise ConfigError(f"generated problems have splits train and held_out, got {split!r}.{nearest(split, SPLITS)}",
                          where="data split")  # fmt: skip
    return SPLITS[split]


# ---- questions in English ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Made:
    text: str
    answer: Fraction
    kind: str
    operands: tuple[int, ...]
    key: str
    working: tuple[str, ...]


_Maker = Callable[[random.Random], _Made]
_KINDS = {"+": "add", "-": "sub", "*": "mul", "/": "div"}


def _finish(made: _Made, level: int, index: int, solution: str | None) -> Question:
    answer = str(made.answer)
    return Question(text=made.text, answer=answer, level=level, kind=made.kind, operands=made.operands, key=made.key,
                    solution=solution or "\n".join((*made.working, f"#### {answer}")), index=index)  # fmt: skip


def _pick(rng: random.Random, items: Sequence[Any]) -> Any:
    return items[rng.randrange(len(items))]


def _words(rng: random.Random, template: str, **given: int | str) -> str:
    """A template with its numbers, and names and things drawn for it."""
    x, y = rng.sample(wording.NAMES, 2)
    thing, things = _pick(rng, wording.THINGS)
    box, boxes = _pick(rng, wording.BOXES)
    place = _pick(rng, wording.PLACES)
    counted = {k.upper(): f"{n} {thing if n == 1 else things}" for k, n in given.items() if isinstance(n, int)}
    return template.format(x=x, y=y, things=things, box=box, boxes=boxes, p=place, **given, **counted)


def _value(sign: str, a: Fraction, b: Fraction) -> Fraction:
    return {"+": a.__add__, "-": a.__sub__, "*": a.__mul__, "/": a.__truediv__}[sign](b)


def _one_step(rng: random.Random, sign: str, a: int, b: int, story: float) -> _Made:
    """a sign b, worded as a story with probability ``story`` (never with 0 or 1 of a thing)."""
    answer = _value(sign, Fraction(a), Fraction(b))
    told = rng.random() < story and min(a, b) > 1
    text = _words(rng, _pick(rng, (wording.STORIES if told else wording.DIRECT)[sign]), a=a, b=b)
    first, second = sorted((a, b)) if sign in "+*" else (a, b)
    return _Made(text, answer, _KINDS[sign] + ("-story" if told else ""), (a, b), f"{first}{sign}{second}",
                 (f"{a} {sign} {b} = {answer}",))  # fmt: skip


def _level_1(rng: random.Random) -> _Made:
    a, b = rng.randint(1, 9), rng.randint(1, 9)
    if rng.random() < 0.5:
        return _one_step(rng, "+", a, b, 0.25)
    return _one_step(rng, "-", max(a, b), min(a, b), 0.25)


def _level_2(rng: random.Random) -> _Made:
    which = rng.random()
    if which < 0.4:
        a = rng.randint(10, 19)
        b = rng.randint(1, 20 - a)
        return _one_step(rng, "+", *((a, b) if rng.random() < 0.5 else (b, a)), 0.4)
    if which < 0.8:
        a = rng.randint(10, 20)
        return _one_step(rng, "-", a, rng.randint(1, a), 0.4)
    a, b = rng.randint(2, 5), rng.randint(2, 9)
    return _one_step(rng, "*", *((a, b) if rng.random() < 0.5 else (b, a)), 0.4)


def _level_3(rng: random.Random) -> _Made:
    which = rng.random()
    if which < 0.35:
        return _one_step(rng, "+", rng.randint(11, 99), rng.randint(11, 99), 0.5)
    if which < 0.7:
        a = rng.randint(21, 99)
        return _one_step(rng, "-", a, rng.randint(10, a), 0.5)
    a, b = rng.randint(6, 12), rng.randint(6, 12)
    return _one_step(rng, "*", a, b, 0.5) if which < 0.85 else _one_step(rng, "/", a * b, b, 0.5)


def _level_4(rng: random.Random) -> _Made:
    if rng.random() < 0.2:
        return _missing(rng)
    shape = _pick(rng, tuple(wording.TWO_STEP))
    a, b, c = _two_step_numbers(rng, shape)
    middle = _value(shape[0], Fraction(a), Fraction(b))
    answer = _value(shape[1], middle, Fraction(c))
    working = (f"{a} {shape[0]} {b} = {middle}", f"{middle} {shape[1]} {c} = {answer}")
    key = f"({a}{shape[0]}{b}){shape[1]}{c}"
    if rng.random() < 0.25:
        left = f"{a} {shape[0]} {b}" if shape in ("+-", "--", "*+", "*-") else f"({a} {shape[0]} {b})"
        asked = _pick(rng, ("What is {}?", "Compute {}.", "Calculate {}.", "Work out {}."))
        return _Made(asked.format(f"{left} {shape[1]} {c}"), answer, "expression", (a, b, c), key, working)
    text = _words(rng, _pick(rng, wording.TWO_STEP[shape]), a=a, b=b, c=c)
    return _Made(text, answer, "two-step", (a, b, c), key, working)


def _two_step_numbers(rng: random.Random, shape: str) -> tuple[int, int, int]:
    """Operands that keep every step a whole number of things, at least 0."""
    if shape == "+-":
        a, b = rng.randint(5, 40), rng.randint(2, 30)
        return a, b, rng.randint(2, a + b - 1)
    if shape == "--":
        b, c = rng.randint(2, 20), rng.randint(2, 20)
        return b + c + rng.randint(1, 30), b, c
    if shape in ("*+", "*-"):
        a, b = rng.randint(2, 9), rng.randint(2, 12)
        return a, b, rng.randint(2, 20) if shape == "*+" else rng.randint(2, a * b - 1)
    if shape == "+*":
        return rng.randint(2, 12), rng.randint(2, 12), rng.randint(2, 6)
    c, each = rng.randint(2, 8), rng.randint(2, 12)
    a = rng.randint(2, c * each - 2) if c * each > 4 else 2
    return a, c * each - a, c


def _missing(rng: random.Random) -> _Made:
    sign = _pick(rng, tuple(wording.MISSING))
    b, n = rng.randint(2, 30), rng.randint(2, 30)
    if sign == "*":
        b, n = rng.randint(2, 12), rng.randint(2, 12)
    n += b if sign == "-" else 0
    a = int(_value(sign, Fraction(n), Fraction(b)))
    back = {"+": "-", "-": "+", "*": "/"}[sign]
    text = _words(rng, _pick(rng, wording.MISSING[sign]), a=a, b=b)
    return _Made(text, Fraction(n), "missing", (a, b), f"?{sign}{b}={a}", (f"{a} {back} {b} = {n}",))


def _level_5(rng: random.Random) -> _Made:
    make: _Maker = _pick(rng, (_share_of, _fractions_like, _percent, _remainder, _quotient))
    return make(rng)


def _proper(rng: random.Random, largest: int) -> Fraction:
    q = rng.randint(2, largest)
    return Fraction(rng.randint(1, q - 1), q)


def _share_of(rng: random.Random) -> _Made:
    f = _proper(rng, 8)
    a = f.denominator * rng.randint(2, 12)
    answer = f * a
    n, q = f.as_integer_ratio()
    text = _words(rng, _pick(rng, wording.SHARE_OF), a=a, f=str(f))
    return _Made(text, answer, "share", (n, q, a), f"{f} of {a}",
                 (f"{a} / {q} = {a // q}", f"{a // q} * {n} = {answer}"))  # fmt: skip


def _fractions_like(rng: random.Random) -> _Made:
    q = rng.randint(3, 15)
    n, m = rng.randint(1, q - 1), rng.randint(1, q - 1)
    sign = _pick(rng, "+-")
    if sign == "-":
        n, m = max(n, m), min(n, m)
    return _fraction_sum(rng, sign, (n, q), (m, q))


def _fraction_sum(rng: random.Random, sign: str, one: tuple[int, int], other: tuple[int, int]) -> _Made:
    f, g = Fraction(*one), Fraction(*other)
    answer = _value(sign, f, g)
    spelled = "/".join(map(str, one)), "/".join(map(str, other))
    templates = wording.FRACTIONS[sign] if answer >= 0 and (sign != "+" or answer <= 1) else wording.FRACTIONS[sign][:3]
    text = _words(rng, _pick(rng, templates), f=spelled[0], g=spelled[1])
    working: tuple[str, ...]
    if sign == "*":
        working = (f"{one[0]} * {other[0]} = {one[0] * other[0]}", f"{one[1]} * {other[1]} = {one[1] * other[1]}")
    else:
        q = one[1] if one[1] == other[1] else one[1] * other[1]
        left, right = f * q, g * q
        working = (f"{spelled[0]} = {left}/{q}, {spelled[1]} = {right}/{q}",
                   f"{left} {sign} {right} = {_value(sign, left, right)}")  # fmt: skip
    first, second = sorted((f, g)) if sign in "+*" else (f, g)
    return _Made(text, answer, f"fraction-{_KINDS[sign]}", (*one, *other), f"[{first}]{sign}[{second}]",
                 (*working, f"{spelled[0]} {sign} {spelled[1]} = {answer}"))  # fmt: skip


def _percent(rng: random.Random) -> _Made:
    b = _pick(rng, (5, 10, 15, 20, 25, 30, 40, 50, 60, 75, 80, 90))
    step = 100 // _gcd(b, 100)
    a = step * rng.randint(1, max(1, 400 // step))
    answer = Fraction(a * b, 100)
    text = _words(rng, _pick(rng, wording.PERCENT), a=a, b=b)
    return _Made(text, answer, "percent", (b, a), f"{b}%{a}", (f"{a} * {b} = {a * b}", f"{a * b} / 100 = {answer}"))


def _gcd(a: int, b: int) -> int:
    return a if b == 0 else _gcd(b, a % b)


def _remainder(rng: random.Random) -> _Made:
    a, b = rng.randint(13, 120), rng.randint(3, 12)
    whole, rest = divmod(a, b)
    text = _words(rng, _pick(rng, wording.REMAINDER), a=a, b=b)
    return _Made(text, Fraction(rest), "remainder", (a, b), f"{a} mod {b}",
                 (f"{whole} * {b} = {whole * b}", f"{a} - {whole * b} = {rest}"))  # fmt: skip


def _quotient(rng: random.Random) -> _Made:
    """Sharing that does not come out even: the answer is a fraction."""
    b = rng.randint(3, 9)
    a = rng.randint(2, 30)
    a += a % b == 0
    answer = Fraction(a, b)
    text = _words(rng, _pick(rng, (
        "What is {a} / {b} as a fraction in lowest terms?", "Write {a} divided by {b} as a fraction in lowest terms.",
        "{x} shares {a} pies equally among {b} people. What fraction of a pie does each get?",
    )), a=a, b=b)  # fmt: skip
    return _Made(text, answer, "quotient", (a, b), f"{a}:{b}", (f"{a} / {b} = {answer}",))


def _level_6(rng: random.Random) -> _Made:
    make: _Maker = _pick(rng, (_three_step, _three_step, _linear, _fractions_unlike, _below_zero))
    return make(rng)


def _three_step(rng: random.Random) -> _Made:
    shape = _pick(rng, tuple(wording.THREE_STEP))
    a, b, c, d = rng.randint(2, 12), rng.randint(3, 15), rng.randint(2, 9), rng.randint(2, 9)
    if shape == "*-*" and a * b < c * d:
        a, b, c, d = c, d, a, b
    if shape == "*-/":
        c = 2 + (a * b - 2) % d
        c += d * rng.randint(0, max(0, (a * b - c) // d - 1))
    first = a * b
    if shape == "*-/":
        answer = Fraction(first - c, d)
        rest = first - c
        working: tuple[str, ...] = (f"{a} * {b} = {first}", f"{first} - {c} = {rest}", f"{rest} / {d} = {answer}")
    else:
        answer = _value(shape[1], Fraction(first), Fraction(c * d))
        working = (f"{a} * {b} = {first}", f"{c} * {d} = {c * d}", f"{first} {shape[1]} {c * d} = {answer}")
    text = _words(rng, _pick(rng, wording.THREE_STEP[shape]), a=a, b=b, c=c, d=d)
    return _Made(text, answer, "three-step", (a, b, c, d), f"{shape}:{a},{b},{c},{d}", working)


def _linear(rng: random.Random) -> _Made:
    a, b, n = rng.randint(2, 12), rng.randint(1, 30), rng.randint(-12, 12)
    c = a * n + b
    text = _words(rng, _pick(rng, wording.LINEAR), a=a, b=b, c=c)
    working = (f"{c} - {b} = {c - b}", f"{c - b} / {a} = {n}")
    return _Made(text, Fraction(n), "linear", (a, b, c), f"{a}x+{b}={c}", working)


def _fractions_unlike(rng: random.Random) -> _Made:
    f, g = _proper(rng, 9), _proper(rng, 12)
    return _fraction_sum(rng, _pick(rng, "+-*"), f.as_integer_ratio(), g.as_integer_ratio())


def _below_zero(rng: random.Random) -> _Made:
    a, b = rng.randint(2, 60), rng.randint(2, 60)
    low, high = min(a, b), max(a, b) + 1
    sign = _pick(rng, ("-", "+", "*"))
    if sign == "-":
        text = _words(rng, _pick(rng, (
            *wording.DIRECT["-"][:6], "It is {a} degrees and gets {b} degrees colder. How many degrees is it?",
        )), a=low, b=high)  # fmt: skip
        less = low - high
        return _Made(text, Fraction(less), "below-zero", (low, high), f"{low}-{high}", (f"{low} - {high} = {less}",))
    n, m = -low, rng.randint(2, 12)
    answer = _value(sign, Fraction(n), Fraction(m))
    text = _words(rng, _pick(rng, wording.DIRECT[sign][:6]), a=n, b=m)
    return _Made(text, answer, "below-zero", (n, m), f"{n}{sign}{m}", (f"{n} {sign} {m} = {answer}",))


_LEVELS: dict[int, _Maker] = {
    1: _level_1, 2: _level_2, 3: _level_3, 4: _level_4, 5: _level_5, 6: _level_6,
}  # fmt: skip


# ---- chains --------------------------------------------------------------------------------------------------------

CHAIN_MOST = 20
"""Values of a chain lie between 0 and this: few enough facts to be learnt, more than a short SFT learns."""


_INTEGER: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def _chain(rng: random.Random, operations: int) -> _Made:
    value = first = rng.randint(1, 9)
    text, operands, working = str(first), [first], []
    for _ in range(operations):
        possible = [
            (sign, b, result)
            for sign in "+-*"
            for b in range(2 if sign == "*" else 1, 10)
            if 0 <= (result := _INTEGER[sign](value, b)) <= CHAIN_MOST and (sign != "*" or value)
        ]
        sign = _pick(rng, sorted({each[0] for each in possible}))
        _, b, result = _pick(rng, [each for each in possible if each[0] == sign])
        text += f",{sign}{b}"
        working.append(f"{value}{sign}{b}={result}")
        operands.append(b)
        value = result
    text += ":"
    return _Made(text, Fraction(value), "chain", tuple(operands), text, tuple(working))


# ---- plain arithmetic ----------------------------------------------------------------------------------------------


def _plain(level: int, wanted: str) -> list[Question]:
    """Every plain problem of a level and split, in a fixed order."""
    made = []
    for index, (text, answer, operands) in enumerate(_plain_all(level)):
        if held_out(text) == (wanted == "held_out"):
            made.append(Question(text=text, answer=str(answer), level=level, kind="plain", operands=operands, key=text,
                                 solution=str(answer), index=index))  # fmt: skip
    return made


def _plain_all(level: int) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    def one(sign: str, a: int, b: int) -> tuple[str, int, tuple[int, ...]]:
        return f"{a}{sign}{b}=", int(_value(sign, Fraction(a), Fraction(b))), (a, b)

    digits = range(10)
    if level == 1:
        yield from (one("+", a, b) for a, b in product(digits, digits))
        yield from (one("-", a, b) for a, b in product(digits, digits) if a >= b)
    elif level == 2:
        yield from (one("+", a, b) for a, b in product(range(21), range(21)) if a + b <= 20 and max(a, b) > 9)
        yield from (one("-", a, b) for a, b in product(range(10, 21), range(21)) if a >= b)
        yield from (one("*", a, b) for a, b in product(range(2, 6), range(2, 10)))
    elif level == 3:
        yield from (one("+", a, b) for a, b in product(range(10, 100), range(10, 100)))
        yield from (one("-", a, b) for a, b in product(range(10, 100), range(10, 100)) if a >= b)
    else:
        for a, b, c in product(range(1, 10), repeat=3):
            yield f"{a}+{b}*{c}=", a + b * c, (a, b, c)
            if a + b >= c:
                yield f"{a}+{b}-{c}=", a + b - c, (a, b, c)


def _ordered(pool: list[Question], seed: int, level: int) -> list[Question]:
    """The pool shuffled by seed (Fisher-Yates of ``random.Random``)."""
    order = list(pool)
    random.Random(seed_of("generated:plain", VERSION, seed, level)).shuffle(order)
    return order
