"""Literals: digits to exact rationals."""

from __future__ import annotations

from math import gcd

from jurat.verifiers.math.limits import MAX_DIGITS, TooLarge, Unparseable
from jurat.verifiers.math.tree import Node, num

_BASE_WORDS = {
    "two": 2,
    "three": 3,
    "four": 4,
    "five": 5,
    "six": 6,
    "seven": 7,
    "eight": 8,
    "nine": 9,
    "ten": 10,
    "eleven": 11,
    "twelve": 12,
    "sixteen": 16,
}
_MAX_EXPONENT = 4000


def integer(text: str) -> Node:
    return num(int(text))


def decimal(text: str) -> Node:
    """ "12", "3.50", ".5", "2.", "1.2e-5" as p/q with the number of places shown."""
    mantissa, _, exponent = text.lower().partition("e")
    if mantissa.isdigit() and not exponent:
        return num(int(mantissa))
    whole, _, fraction = mantissa.partition(".")
    shift = int(exponent) if exponent else 0
    if abs(shift) > _MAX_EXPONENT or len(text) > MAX_DIGITS:
        raise TooLarge("exponent")
    p, q = int((whole + fraction) or "0"), 10 ** len(fraction)
    if shift >= 0:
        p *= 10**shift
    else:
        q *= 10**-shift
    common = gcd(p, q)
    return num(p // common, q // common, max(0, len(fraction) - shift) if fraction or exponent else None)


def recurring(lead: str, block: str) -> Node:
    """`lead` ("0.1") followed by `block` ("6") for ever."""
    whole, _, fraction = lead.partition(".")
    if not block.isdigit() or len(block) > 200 or len(fraction) > 200:
        raise Unparseable("recurring_digits")
    nines = 10 ** len(block) - 1
    p = (int(whole or "0") * 10 ** len(fraction) + int(fraction or "0")) * nines + int(block)
    q = nines * 10 ** len(fraction)
    common = gcd(p, q)
    return num(p // common, q // common)


def based(digits: str, base: str) -> Node:
    """1011_2: the digits as written (without leading zeros) and the base."""
    text = base.replace(" ", "").lower()
    value = _BASE_WORDS.get(text) or (int(text) if text.isdigit() and len(text) < 3 else 0)
    if not 2 <= value <= 36:
        raise Unparseable("base")
    whole, _, fraction = digits.partition(".")
    if (
        not whole.isalnum()
        or (fraction and not fraction.isalnum())
        or any(int(d, 36) >= value for d in whole + fraction)
    ):
        raise Unparseable("digit_of_base")
    whole = whole.lstrip("0") or "0"
    return Node("based", (f"{whole}.{fraction}" if fraction else whole, value))


def based_value(node: Node) -> tuple[int, int]:
    """The rational value of a based literal."""
    digits, base = node.value
    whole, _, fraction = digits.partition(".")
    if not fraction:
        return int(whole, base), 1
    p, q = int(whole + fraction, base), base ** len(fraction)
    common = gcd(p, q)
    return p // common, q // common
