"""English around answers: what a word after or inside an answer may mean.

Whatever is not listed here, or is not a plural noun after a number, makes the answer text. So no word is ever
silently dropped.
"""

from __future__ import annotations

from jurat.verifiers.math.tree import EMPTY, INF, Node

SCALES = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "lakh": 10**5,
    "crore": 10**7,
    "quadrillion": 10**15, "quintillion": 10**18, "lakhs": 10**5, "crores": 10**7,
    "dozen": 12, "hundreds": 10**2, "thousands": 10**3, "millions": 10**6, "billions": 10**9, "trillions": 10**12,
}  # fmt: skip

NUMBER_WORDS = {
    "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10,
    "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16, "seventeen": 17,
    "eighteen": 18,
    "nineteen": 19, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80,
    "ninety": 90,
}  # fmt: skip

TENS = frozenset(word for word, value in NUMBER_WORDS.items() if value >= 20)

_ENDINGS = {
    "one": "",
    "two": "",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}


def _ordinal(word: str) -> str:
    return _ENDINGS.get(word, (word[:-1] + "ie" if word.endswith("y") else word) + "th")


PARTS = {"half": 2, "quarter": 4} | {
    _ordinal(word): value
    for word, value in (NUMBER_WORDS | SCALES).items()
    if value > 2 and _ordinal(word) and not word.endswith("s") and word not in ("dozen", "lakh", "crore")
}
"""Words of fractions in the singular: "third" is a third part. Never units, like all words for numbers."""
PLURAL_PARTS = {"halves": 2} | {word + "s": value for word, value in PARTS.items()}
COUNTS = frozenset(
    {word + ("es" if word.endswith("x") else "s") for word in NUMBER_WORDS if not word.endswith("y")}
    | {word[:-1] + "ies" for word in NUMBER_WORDS if word.endswith("y")}
    | {"googol", "googols", "zeroes", "scores", "couple", "couples"}
)
"""Plurals of numbers ("five twos"): no units either."""
OPERATORS = {"plus": "+", "minus": "-", "times": "*"}
SIGNS = {"minus": "-", "negative": "-", "plus": "+", "positive": "+"}
POWERS = {"squared": 2, "cubed": 3}
MULTIPLES = {"twice": (2, 1), "double": (2, 1), "triple": (3, 1), "thrice": (3, 1), "half": (1, 2)}
"""Words before a value, with or without "of": "half of 9"."""

PERCENT = frozenset(("percent", "pct", "percentage"))
DEGREE = frozenset(("degree", "degrees", "deg", "degs"))
ORDINAL = frozenset(("st", "nd", "rd", "th"))
HALF_DAYS = {"am": "am", "a.m.": "am", "a.m": "am", "pm": "pm", "p.m.": "pm", "p.m": "pm", "noon": "pm"}

JOINS = {"and": ",", "or": "or", "und": ",", "et": ","}

ARTICLES = frozenset(("a", "an", "the"))

# Words that may follow a number and leave its value alone, whatever the noun: "12 apples left in all", "26/36 when
# simplified".
NEUTRAL = frozenset(
    "in of total all altogether each left remaining old tall long wide high deep away ago when simplified simplest "
    "form exactly "
    "per every a an the overall together now today to on at for from".split()
)

# Words that change, deny or hedge a number: never nouns, even where they look like plurals.
CHANGING = frozenset(
    "is was are were be has have had does do not no nor never none wrong incorrect false true correct right or and "
    "but if then than more "
    "less fewer greater most least about around approximately roughly almost nearly maybe perhaps possibly probably "
    "likely plus minus times "
    "over squared cubed factorial modulo mod base negative positive half halves third thirds quarter quarters "
    "fourths fifths sixths sevenths "
    "eighths ninths tenth tenths hundredth hundredths thousandth thousandths millionth millionths tens ones "
    "hundreds dozens double triple "
    "twice thrice guess guesses always sometimes less minuses pluses etc percents points otherwise yes this means "
    "equals unless besides "
    "plusminus up down except excluding without anything everything nothing far different instead rather refutes "
    "contradicts exceeds disagrees denies rejects negates nots nopes wrongs falsehoods contradictions reciprocals "
    "inverses opposites negations negatives doubles triples quadruples quintuples exponents "
    "misreads below above under beyond between ish sums digits bits others else versus vs excludes misses "
    "fails divides powers "
    "logs roots squares cubes factors multiples as its his hers ours yours theirs us".split()
)

# Synonyms of values and of statements.
CONSTANTS: dict[str, Node] = {
    "infinity": INF,
    "positive infinity": INF,
    "infinite": Node("text", "infinite"),
    "empty set": EMPTY,
    "the empty set": EMPTY,
    "all real numbers": Node("space", "R"),
    "all reals": Node("space", "R"),
    "the real numbers": Node("space", "R"),
    "real numbers": Node("space", "R"),
    "the integers": Node("space", "Z"),
    "integers": Node("space", "Z"),
    "all integers": Node("space", "Z"),
    "the rational numbers": Node("space", "Q"),
    "dne": Node("text", "undefined"),
    "does not exist": Node("text", "undefined"),
    "the limit does not exist": Node("text", "undefined"),
    "undefined": Node("text", "undefined"),
    "no solutions": Node("text", "no solution"),
    "no real solution": Node("text", "no real solution"),
    "no real solutions": Node("text", "no real solution"),
    "there are no solutions": Node("text", "no solution"),
    "there is no solution": Node("text", "no solution"),
}

VOCABULARY = (
    NEUTRAL
    | CHANGING
    | ORDINAL
    | PERCENT
    | DEGREE
    | frozenset(SCALES)
    | frozenset(NUMBER_WORDS)
    | frozenset(PARTS)
    | frozenset(PLURAL_PARTS)
    | COUNTS
    | frozenset(MULTIPLES)
    | frozenset(SIGNS)
    | frozenset(JOINS)
    | frozenset("odd even yes no am pm by so we it he she they thus hence then therefore get have".split())
)
"""Letter runs that are read as words even without `\\text`."""

# Function words of two letters or fewer are read as products in mathematics ("at", "is" could be a*t); these are not.
SHORT_WORDS = frozenset("or and am pm st nd rd th of is in to no so we it he".split())


def number(words: list[str]) -> int | None:
    """The integer that number words spell: ["twenty", "one"] is 21, ["three", "hundred"] is 300."""
    total = current = 0
    seen = False
    for raw in words:
        word = raw.lower()
        if word in NUMBER_WORDS:
            value = NUMBER_WORDS[word]
            if seen and current % 100 and not (current % 100 >= 20 and current % 10 == 0 and 0 < value < 10):
                return None
            current += value
        elif word == "hundred" and 0 < current < 10:
            current *= 100
        elif word in ("thousand", "million", "billion") and current:
            total, current = total + current * SCALES[word], 0
        elif word == "and" and seen and (total or current) and not (total + current) % 100:
            continue
        else:
            return None
        seen = True
    return total + current if seen else None
