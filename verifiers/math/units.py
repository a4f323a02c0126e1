"""Units of measure: one table from spelling to (dimension, factor to the base unit).

A unit key is a sorted tuple of (base name, exponent) with a rational factor, so `km/h`, `kilometres per hour` and
`m/s` can be compared. Nouns that are counted ("apples") are units of their own name.
"""

from __future__ import annotations

from fractions import Fraction

Key = tuple[tuple[tuple[str, int], ...], int, int]
"""((base, exponent), ...), numerator and denominator of the factor."""

_LENGTH, _MASS, _TIME = "m", "g", "s"
F = Fraction

_TABLE: list[tuple[str, str, Fraction]] = [
    ("m meter metre", _LENGTH, F(1)),
    ("cm centimeter centimetre", _LENGTH, F(1, 100)),
    ("mm millimeter millimetre", _LENGTH, F(1, 1000)),
    ("km kilometer kilometre", _LENGTH, F(1000)),
    ("dm decimeter decimetre", _LENGTH, F(1, 10)),
    ("nm nanometer nanometre", _LENGTH, F(1, 10**9)),
    ("inch inches in", _LENGTH, F(254, 10000)),
    ("ft foot feet", _LENGTH, F(3048, 10000)),
    ("yd yard", _LENGTH, F(9144, 10000)),
    ("mi mile", _LENGTH, F(1609344, 1000)),
    ("g gram gramme", _MASS, F(1)),
    ("kg kilogram kilo", _MASS, F(1000)),
    ("mg milligram", _MASS, F(1, 1000)),
    ("t tonne ton", _MASS, F(10**6)),
    ("lb lbs pound", "lb", F(1)),
    ("oz ounce", "lb", F(1, 16)),
    ("s sec second", _TIME, F(1)),
    ("ms millisecond", _TIME, F(1, 1000)),
    ("min minute", _TIME, F(60)),
    ("h hr hrs hour", _TIME, F(3600)),
    ("day", _TIME, F(86400)),
    ("week wk", _TIME, F(7 * 86400)),
    ("month", "month", F(1)),
    ("year yr yrs", "month", F(12)),
    ("decade", "month", F(120)),
    ("century centuries", "month", F(1200)),
    ("L l liter litre", "L", F(1)),
    ("mL ml milliliter millilitre", "L", F(1, 1000)),
    ("gal gallon", "gal", F(1)),
    ("quart qt", "gal", F(1, 4)),
    ("pint pt", "gal", F(1, 8)),
    ("cup", "cup", F(1)),
    ("dollar $ usd USD buck", "dollar", F(1)),
    ("cent", "dollar", F(1, 100)),
    ("penny pennies", "dollar", F(1, 100)),
    ("euro eur EUR", "euro", F(1)),
    ("gbp GBP", "gbp", F(1)),
    ("yen JPY", "yen", F(1)),
    ("rupee INR", "rupee", F(1)),
    ("yuan RMB CNY", "yuan", F(1)),
    ("rad radian", "rad", F(1)),
    ("N newton", "N", F(1)),
    ("J joule", "J", F(1)),
    ("kJ kilojoule", "J", F(1000)),
    ("W watt", "W", F(1)),
    ("kW kilowatt", "W", F(1000)),
    ("V volt", "V", F(1)),
    ("A amp ampere", "A", F(1)),
    ("Hz hertz", "Hz", F(1)),
    ("Pa pascal", "Pa", F(1)),
    ("mol mole", "mol", F(1)),
    ("K kelvin", "K", F(1)),
    ("celsius", "celsius", F(1)),
    ("fahrenheit", "fahrenheit", F(1)),
    ("unit", "unit", F(1)),
    ("person people persons", "person", F(1)),
    ("child children", "child", F(1)),
    ("man men", "man", F(1)),
    ("woman women", "woman", F(1)),
    ("calorie", "calorie", F(1)),
    ("acre", "acre", F(1)),
    ("point pts", "point", F(1)),
]
_SPEEDS: dict[str, tuple[tuple[tuple[str, int], ...], Fraction]] = {
    "mph": ((("m", 1), ("s", -1)), F(1609344, 3600 * 1000)),
    "kph": ((("m", 1), ("s", -1)), F(1000, 3600)),
    "kmh": ((("m", 1), ("s", -1)), F(1000, 3600)),
}

UNITS: dict[str, tuple[tuple[tuple[str, int], ...], Fraction]] = dict(_SPEEDS)
for _names, _base, _factor in _TABLE:
    for _name in _names.split():
        UNITS[_name] = (((_base, 1),), _factor)
        if len(_name) > 2:
            UNITS[_name + "s"] = (((_base, 1),), _factor)

LONG_UNITS = frozenset(name for name in UNITS if len(name) > 2)
SHORT_UNITS = frozenset(("cm", "mm", "km", "kg", "mg", "ft", "mL", "ml", "Hz", "sq", "cu", "lb", "oz", "hr", "yd"))
"""Two-letter runs that are units rather than products, when they follow a number."""

DOLLAR: Key = ((("dollar", 1),), 1, 1)
NO_UNIT: Key = ((), 1, 1)


def lookup(word: str) -> tuple[tuple[tuple[str, int], ...], Fraction] | None:
    """Base units and factor of one word, by its exact case first."""
    return UNITS.get(word) or UNITS.get(word.lower())


def noun(word: str) -> tuple[tuple[tuple[str, int], ...], Fraction]:
    """A counted thing: its own unit, singular and plural alike."""
    stem = word.lower()
    if stem.endswith("ies") and len(stem) > 4:
        stem = stem[:-3] + "y"
    elif stem.endswith("s") and not stem.endswith("ss"):
        stem = stem[:-1]
    return ((f"#{stem}", 1),), F(1)


def combine(parts: list[tuple[tuple[tuple[str, int], ...], Fraction, int]]) -> Key:
    """The key of a product of units, each raised to a power."""
    powers: dict[str, int] = {}
    factor = F(1)
    for bases, scale, power in parts:
        for base, exponent in bases:
            powers[base] = powers.get(base, 0) + exponent * power
        factor *= scale**power
    return tuple(sorted((b, e) for b, e in powers.items() if e)), factor.numerator, factor.denominator
