"""Exact rational values, every operation under a bit bound that is checked before the work is done."""

from __future__ import annotations

import math
from typing import Any

from jurat.verifiers.math.backend import Q, bits, is_integer, parts
from jurat.verifiers.math.limits import MAX_BITS, MAX_TERMS, Steps, TooLarge, Undefined
from jurat.verifiers.math.numerals import based_value
from jurat.verifiers.math.tree import Node, num, replace

ZERO, ONE = Q(0), Q(1)


class _NotRational(Exception):
    """Internal: the value is not a rational that this stage can compute."""


def rational(node: Node, steps: Steps) -> Any | None:
    """The rational value of a closed expression, or None where it has none (or none this stage finds).

    Raises:
        Undefined: division by zero. TooLarge: bounds of `limits.py`.
    """
    try:
        return _value(node, steps)
    except _NotRational:
        return None


def _value(node: Node, steps: Steps) -> Any:
    kind = node.kind
    if kind == "num":
        p, q, _ = node.value
        return Q(p, q)
    steps.spend()
    args = node.args
    if kind == "neg":
        return -_value(args[0], steps)
    if kind == "add":
        total = _value(args[0], steps)
        for arg in args[1:]:
            total = total + _value(arg, steps)
        return _bounded(total)
    if kind == "mul":
        product = _value(args[0], steps)
        for arg in args[1:]:
            product = _bounded(product * _value(arg, steps))
        return product
    if kind == "div":
        top, bottom = _value(args[0], steps), _value(args[1], steps)
        if bottom == 0:
            raise Undefined("division_by_zero")
        return top / bottom
    if kind == "pow":
        return power(_value(args[0], steps), _value(args[1], steps))
    if kind == "percent":
        return _value(args[0], steps) / 100
    if kind == "fn":
        return _function(node.value, args, steps)
    if kind == "big":
        return _big(node, steps)
    if kind == "based":
        return Q(*based_value(node))
    raise _NotRational


def _bounded(q: Any) -> Any:
    if bits(q) > MAX_BITS:
        raise TooLarge("bits")
    return q


def power(base: Any, exponent: Any) -> Any:
    """base ** exponent, exactly; a fractional exponent only where the root is rational."""
    p, q = parts(exponent)
    if base == 0:
        if p < 0:
            raise Undefined("zero_to_negative_power")
        return ONE if p == 0 else ZERO
    if q != 1:
        base = exact_root(base, q)
    if abs(p) * bits(base) > MAX_BITS and base not in (1, -1):
        raise _NotRational
    if base == 1 or base == -1:
        return ONE if base == 1 or p % 2 == 0 else -ONE
    return base**p


def exact_root(base: Any, index: int) -> Any:
    p, q = parts(base)
    if index < 1 or index > 10_000:
        raise _NotRational
    if p < 0 and index % 2 == 0:
        raise _NotRational
    top, bottom = _integer_root(abs(p), index), _integer_root(q, index)
    if top is None or bottom is None:
        raise _NotRational
    return Q(top if p >= 0 else -top, bottom)


def _integer_root(n: int, k: int) -> int | None:
    if n < 2 or k == 1:
        return n
    if k == 2:
        r = math.isqrt(n)
        return r if r * r == n else None
    if n.bit_length() <= k:
        return None
    r = 1 << -(-n.bit_length() // k)
    while True:  # Newton from above
        step = ((k - 1) * r + n // r ** (k - 1)) // k
        if step >= r:
            break
        r = step
    return r if r**k == n else None


def _natural(q: Any) -> int:
    p, d = parts(q)
    if d != 1 or p < 0:
        raise _NotRational
    return p


def _function(name: str, args: tuple[Node, ...], steps: Steps) -> Any:
    if name in ("det",):
        return _determinant(args[0], steps)
    values = [_value(arg, steps) for arg in args]
    if name == "root":
        index = _natural(values[0])
        if index == 0:
            raise Undefined("zeroth_root")
        return exact_root(values[1], index)
    first = values[0]
    if name in ("abs", "norm"):
        return -first if first < 0 else first
    if name == "floor":
        p, q = parts(first)
        return Q(p // q)
    if name == "ceil":
        p, q = parts(first)
        return Q(-(-p // q))
    if name == "fact":
        n = _natural(first)
        if n > 3000:
            raise _NotRational
        return Q(math.factorial(n))
    if name == "fact2":
        n = _natural(first)
        if n > 3000:
            raise _NotRational
        return Q(math.prod(range(n, 0, -2)))
    if name == "binom":
        n, k = _natural(values[0]), _natural(values[1])
        if n > 10_000:
            raise _NotRational
        return Q(math.comb(n, k))
    if name == "perm":
        return Q(math.perm(_natural(values[0]), _natural(values[1])))
    if name in ("gcd", "lcm"):
        if not all(is_integer(v) for v in values):
            raise _NotRational
        integers = [parts(v)[0] for v in values]
        return Q(math.gcd(*integers) if name == "gcd" else math.lcm(*integers))
    if name in ("max", "min"):
        return max(values) if name == "max" else min(values)
    if name == "mod":
        if values[1] == 0:
            raise Undefined("modulo_zero")
        p, q = parts(values[0] / values[1])
        return values[0] - values[1] * Q(p // q)
    if name == "sgn":
        return Q((first > 0) - (first < 0))
    if name == "conj" or name == "Re":
        return first
    if name == "Im":
        return ZERO
    if name in ("ln", "log", "logb"):
        return _logarithm(values)
    if name in ("sin", "tan", "arcsin", "arctan", "sinh", "tanh") and first == 0:
        return ZERO
    if name in ("cos", "cosh", "sec", "sech") and first == 0:
        return ONE
    raise _NotRational


def _logarithm(values: list[Any]) -> Any:
    """log_b x where both are powers of one integer."""
    x = values[-1]
    if x <= 0:
        raise Undefined("logarithm")
    if x == 1:
        return ZERO
    if len(values) == 1:
        raise _NotRational
    base = values[0]
    if base <= 0 or base == 1:
        raise Undefined("logarithm_base")
    (p, q), (bp, bq) = parts(x), parts(base)
    sign = 1
    if bp == 1:
        bp, sign = bq, -sign
    elif bq != 1:
        raise _NotRational
    if p == 1:
        p, sign = q, -sign
    elif q != 1:
        raise _NotRational
    exponent = 0
    while p % bp == 0:
        p //= bp
        exponent += 1
        if exponent > 5000:
            raise _NotRational
    if p != 1:
        raise _NotRational
    return Q(sign * exponent)


def _big(node: Node, steps: Steps) -> Any:
    """A finite sum or product over an integer range."""
    if node.value not in ("sum", "prod") or node.args[0].kind != "sym":
        raise _NotRational
    variable, low, high, body = node.args
    start, stop = _value(low, steps), _value(high, steps)
    if not (is_integer(start) and is_integer(stop)):
        raise _NotRational
    first, last = parts(start)[0], parts(stop)[0]
    if last - first >= MAX_TERMS:
        raise _NotRational
    total = ZERO if node.value == "sum" else ONE
    for k in range(first, last + 1):
        term = _value(replace(body, {variable: num(k)}), steps)
        total = _bounded(total + term if node.value == "sum" else total * term)
    return total


def _determinant(matrix: Node, steps: Steps) -> Any:
    if matrix.kind != "matrix" or matrix.value[0] != matrix.value[1]:
        raise _NotRational
    size = matrix.value[0]
    rows = [[_value(matrix.args[i * size + j], steps) for j in range(size)] for i in range(size)]
    det = ONE
    for column in range(size):
        pivot = next((r for r in range(column, size) if rows[r][column] != 0), None)
        if pivot is None:
            return ZERO
        if pivot != column:
            rows[column], rows[pivot] = rows[pivot], rows[column]
            det = -det
        det = _bounded(det * rows[column][column])
        for r in range(column + 1, size):
            factor = rows[r][column] / rows[column][column]
            if factor != 0:
                rows[r] = [_bounded(a - factor * b) for a, b in zip(rows[r], rows[column], strict=True)]
    return det
