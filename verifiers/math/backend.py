"""Exact rationals and balls: python-flint where it is installed, the standard library and mpmath where it is not.

`Q` is a rational type; `ball` modules ask for `FLINT`. Without python-flint a warning says once that the math
verifier is slower and that its numerical stage proves nothing.
"""

from __future__ import annotations

import os
import warnings
from fractions import Fraction
from typing import Any

try:
    if os.environ.get("JURAT_MATH_BACKEND") == "python":
        raise ImportError
    import flint

    FLINT = True
except ImportError:  # no wheel for this platform
    flint = None
    FLINT = False

Q: Any = flint.fmpq if FLINT else Fraction


def warn_once() -> None:
    """Called by the first comparison."""
    global _warned
    if not FLINT and not _warned:
        _warned = True
        warnings.warn(
            "jurat math verifier: python-flint is not installed; using the slower pure-Python arithmetic, "
            "whose numerical verdicts are not proofs "
            "(fix: pip install python-flint)",
            RuntimeWarning,
            stacklevel=3,
        )


_warned = False


def parts(q: Any) -> tuple[int, int]:
    """Numerator and denominator as Python integers."""
    if FLINT:
        return int(q.p), int(q.q)
    return q.numerator, q.denominator


def is_integer(q: Any) -> bool:
    return bool(q.q == 1) if FLINT else q.denominator == 1


def bits(q: Any) -> int:
    """Size of the larger of numerator and denominator, in bits."""
    if FLINT:
        return max(abs(q.p).bit_length(), q.q.bit_length())
    return max(q.numerator.bit_length(), q.denominator.bit_length())
