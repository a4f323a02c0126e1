"""Bounds which make every stage finite, and the two ways of giving up.

Nothing here is timed: a bound is a count of characters, nodes, bits or operations, so the same input takes the same
path on any machine.
"""

from __future__ import annotations

MAX_ANSWER_CHARS = 4096
"""Longest bare answer that is read."""
MAX_TAIL_CHARS = 65536
"""Answers are looked for in the last so many characters of a completion."""
MAX_TOKENS = 2000
MAX_DEPTH = 56
"""Nesting of brackets, groups and exponents. Python's own recursion limit is 1,000 frames, and a level costs up to
seven."""
MAX_DIGITS = 2000
MAX_ITEMS = 256
"""Elements of a list, set or tuple."""
MAX_MATRIX = 12
MAX_SIGNS = 6
"""Plus-minus signs of one answer: 2^6 values."""
MAX_BITS = 1 << 16
"""Exact numbers are refused beyond this size; larger powers are compared as balls."""
MAX_TERMS = 400
"""Terms of a polynomial that is expanded, and of a finite sum that is added up."""
MAX_DEGREE = 80
MAX_STEPS = 20_000
"""Node evaluations of one comparison, all stages together."""
PRECISIONS = (64, 192, 512)
"""Bits of the balls, in order of trial."""
MAX_PROOF_BITS = 6000
"""A root separation bound is used only up to this precision."""


class Unparseable(Exception):
    """The text is not an answer. `str(error)` names the rule, such as `unknown_macro:\\foo`."""


class TooLarge(Exception):
    """A bound of this module was passed."""


class Undefined(Exception):
    """The expression has no value: 1/0, log 0, nan."""


class Steps:
    """Counts node evaluations of one comparison; raises TooLarge beyond the bound."""

    __slots__ = ("left",)

    def __init__(self, left: int = MAX_STEPS) -> None:
        self.left = left

    def spend(self, amount: int = 1) -> None:
        self.left -= amount
        if self.left < 0:
            raise TooLarge("steps")
