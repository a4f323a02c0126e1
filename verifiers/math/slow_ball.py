"""A stand-in for python-flint's balls where it is not installed: mpmath values with an error estimate.

The radius follows the arithmetic and, through functions, the change of the value over the radius. It is an estimate
and no enclosure, so whatever is decided with it is not certified. Only what `ball.py`, `points.py` and `values.py`
ask of `acb` is here.
"""

from __future__ import annotations

from typing import Any

from mpmath import mp, mpc, mpf

_HUGE = mpf(2) ** 60
_GUARD = 12


class _Context:
    @property
    def prec(self) -> int:
        return int(mp.prec) - _GUARD

    @prec.setter
    def prec(self, bits: int) -> None:
        mp.prec = bits + _GUARD


ctx = _Context()
fmpz = int


def fmpq(p: int, q: int = 1) -> Any:
    return mpf(p) / q


class acb:
    """value and radius; reals have imaginary part 0."""

    __slots__ = ("r", "v")

    def __init__(self, re: Any = 0, im: Any = 0, r: Any = None) -> None:
        if isinstance(re, acb):
            self.v, self.r = re.v, re.r  # type: ignore[has-type]
            return
        self.v = mpc(re, im)
        self.r = abs(self.v) * mpf(2) ** (-ctx.prec) if r is None else r
        if r is None and self.v.imag == 0 and self.v.real == int(mp.nint(self.v.real)) and abs(self.v.real) < _HUGE:
            self.r = mpf(0)

    @staticmethod
    def pi() -> acb:
        return acb(+mp.pi)

    # arithmetic

    def __add__(self, other: Any) -> acb:
        other = _ball(other)
        return _made(self.v + other.v, self.r + other.r)

    def __sub__(self, other: Any) -> acb:
        other = _ball(other)
        return _made(self.v - other.v, self.r + other.r)

    def __mul__(self, other: Any) -> acb:
        other = _ball(other)
        return _made(self.v * other.v, abs(self.v) * other.r + abs(other.v) * self.r + self.r * other.r)

    def __truediv__(self, other: Any) -> acb:
        other = _ball(other)
        size = abs(other.v) - other.r
        if size <= 0:
            return _infinite()
        return _made(self.v / other.v, (self.r + abs(self.v / other.v) * other.r) / size)

    def __pow__(self, other: Any) -> acb:
        if isinstance(other, int):
            if other < 0:
                return acb(1) / self ** (-other)
            if other * max(1, abs(mp.log(abs(self.v) + 1))) > _HUGE:
                return _infinite()
            grown = other * abs(self.v) ** max(other - 1, 0) * self.r if other else mpf(0)
            return _made(self.v**other, grown * 2)
        other = _ball(other)
        return (self.log() * other).exp()

    def __neg__(self) -> acb:
        return acb(-self.v.real, -self.v.imag, self.r)

    def __abs__(self) -> acb:
        return acb(abs(self.v), 0, self.r)

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: Any) -> acb:
        return _ball(other) - self

    def __rtruediv__(self, other: Any) -> acb:
        return _ball(other) / self

    # order, of reals: certain or False

    def __gt__(self, other: Any) -> bool:
        gap = self - other
        return bool(mp.isfinite(gap.v) and gap.v.real > gap.r)

    def __lt__(self, other: Any) -> bool:
        gap = self - other
        return bool(mp.isfinite(gap.v) and -gap.v.real > gap.r)

    # parts and predicates

    @property
    def real(self) -> acb:
        return acb(self.v.real, 0, self.r)

    @property
    def imag(self) -> acb:
        return acb(self.v.imag, 0, mpf(0) if self.v.imag == 0 else self.r)

    def is_finite(self) -> bool:
        return bool(mp.isfinite(self.v) and mp.isfinite(self.r))

    def is_zero(self) -> bool:
        return bool(self.v == 0 and self.r == 0)

    def contains(self, value: Any) -> bool:
        return self.overlaps(_ball(value))

    def overlaps(self, other: acb) -> bool:
        return bool(abs(self.v - other.v) <= self.r + other.r)

    def mid(self) -> Any:
        return self.v.real

    def rad(self) -> acb:
        return acb(self.r, 0, mpf(0))

    def upper(self) -> _Upper:
        return _Upper(self.v.real + self.r)

    def rel_accuracy_bits(self) -> int:
        if self.r == 0:
            return ctx.prec
        return int(mp.log(abs(self.v) / self.r, 2)) if self.v else -ctx.prec

    def integer(self) -> int | None:
        whole = int(mp.nint(self.v.real)) if self.is_finite() else 0
        return whole if self.v == whole and self.r < 0.5 else None

    def floor(self) -> acb:
        return self._step(mp.floor)

    def ceil(self) -> acb:
        return self._step(mp.ceil)

    def _step(self, function: Any) -> acb:
        low, high = function(self.v.real - self.r), function(self.v.real + self.r)
        return acb(low, 0, mpf(0)) if low == high else acb((low + high) / 2, 0, (high - low) / 2)

    def max(self, other: acb) -> acb:
        return self if self.v.real >= other.v.real else other

    def min(self, other: acb) -> acb:
        return self if self.v.real <= other.v.real else other

    # functions

    def conjugate(self) -> acb:
        return acb(self.v.real, -self.v.imag, self.r)

    def arg(self) -> acb:
        return self._apply(mp.arg)

    def exp(self) -> acb:
        return _infinite() if abs(self.v) > _HUGE else self._apply(mp.exp)

    def log(self) -> acb:
        return _infinite() if abs(self.v) <= self.r else self._apply(mp.log)

    def gamma(self) -> acb:
        near = mp.nint(self.v.real)
        pole = self.v.imag == 0 and near <= 0 and abs(self.v.real - near) <= self.r
        return _infinite() if pole or abs(self.v) > 1e9 else self._apply(mp.gamma)

    def rgamma(self) -> acb:
        return _infinite() if abs(self.v) > 1e9 else self._apply(mp.rgamma)

    def _apply(self, function: Any) -> acb:
        if not self.is_finite():
            return _infinite()
        try:
            value = function(self.v)
            spread = abs(function(self.v + self.r) - value) * 4 if self.r else mpf(0)
        except (ValueError, ZeroDivisionError, OverflowError):
            return _infinite()
        return _made(mpc(value), spread)


class _Upper:
    def __init__(self, value: Any) -> None:
        self.value = value

    def is_finite(self) -> bool:
        return bool(mp.isfinite(self.value))

    def man_exp(self) -> tuple[int, int]:
        return self.value.man_exp if self.value else (0, 0)


def _ball(value: Any) -> acb:
    return value if isinstance(value, acb) else acb(value)


def _made(value: Any, radius: Any) -> acb:
    if value.imag == 0 or abs(value.imag) > 0:
        return acb(value.real, value.imag, radius + abs(value) * mpf(2) ** (-ctx.prec))
    return _infinite()


def _infinite() -> acb:
    return acb(mp.inf, 0, mp.inf)


def _bounded_function(name: str) -> Any:
    def method(self: acb) -> acb:
        if abs(self.v) > mpf(2) ** 200:
            return acb(0, 0, mpf(2)) if name in ("sin", "cos") else _infinite()
        return self._apply(getattr(mp, name))

    return method


_FUNCTIONS = "sin cos tan cot sec csc sinh cosh tanh coth sech csch asin acos atan asinh acosh atanh erf sqrt"
for _name in _FUNCTIONS.split():
    setattr(acb, _name, _bounded_function(_name))
