"""Root separation: the precision at which overlapping enclosures of algebraic numbers prove them equal.

Burnikel, Funke, Mehlhorn, Schirra, Schmitt, "A separation bound for real algebraic expressions", ESA 2001: a non-zero E has
|E| >= 1 / (l(E) u(E)^(D-1)), D the product of the root indices; u and l bound all conjugates of numerator and denominator.
"""

from __future__ import annotations

import math
from typing import Any

from jurat.verifiers.math.backend import parts
from jurat.verifiers.math.exact import rational
from jurat.verifiers.math.limits import Steps
from jurat.verifiers.math.tree import Node, num, replace


def separation(node: Node, steps: Steps) -> int | None:
    """Bits b such that a value below 2^-b is zero; None where the expression is not algebraic in this stage's sense."""
    radicals: dict[Node, int] = {}
    bound = _separation(node, radicals, steps)
    if bound is None:
        return None
    degree = math.prod(radicals.values())
    if degree > 4096:
        return None
    upper, lower = bound
    return int(lower + (degree - 1) * upper) + 8


def _separation(node: Node, radicals: dict[Node, int], steps: Steps) -> tuple[float, float] | None:
    """(log2 u, log2 l): bounds of all conjugates of numerator and denominator, both algebraic integers."""
    steps.spend()
    kind, args = node.kind, node.args
    if kind == "num":
        p, q, _ = node.value
        return math.log2(max(1, abs(p))), math.log2(q)
    if kind == "const" and node.value == "i":
        radicals[node] = 2
        return 0.0, 0.0
    if kind in ("add", "mul"):
        total = _separation(args[0], radicals, steps)
        for arg in args[1:]:
            other = _separation(arg, radicals, steps)
            if total is None or other is None:
                return None
            (u1, l1), (u2, l2) = total, other
            total = (u1 + u2, l1 + l2) if kind == "mul" else (max(u1 + l2, u2 + l1) + 1, l1 + l2)
        return total
    if kind == "neg":
        return _separation(args[0], radicals, steps)
    if kind == "percent":
        inner = _separation(args[0], radicals, steps)
        return None if inner is None else (inner[0], inner[1] + 7)
    if kind == "div":
        top, bottom = _separation(args[0], radicals, steps), _separation(args[1], radicals, steps)
        if top is None or bottom is None:
            return None
        return top[0] + bottom[1], top[1] + bottom[0]
    if kind == "pow":
        exponent = rational(args[1], steps)
        if exponent is None:
            return None
        p, q = parts(exponent)
        inner = _separation(args[0], radicals, steps)
        if inner is None or abs(p) > 1000 or q > 64:
            return None
        if q != 1:
            inner = _root(inner, q)
            radicals[Node("fn", "root", (num(q), args[0]))] = q
        u, low = inner if p >= 0 else (inner[1], inner[0])
        return u * abs(p), low * abs(p)
    if kind == "fn" and node.value == "root":
        index = rational(args[0], steps)
        inner = _separation(args[1], radicals, steps)
        if index is None or inner is None or parts(index)[0] > 64:
            return None
        radicals[node] = parts(index)[0]
        return _root(inner, parts(index)[0])
    if kind == "fn" and node.value in ("sin", "cos", "tan", "cot", "sec", "csc"):
        turns = _rational_angle(args[0], steps)
        if turns is None:
            return None
        order = parts(turns)[1] * 2
        if order > 400:
            return None
        radicals[Node("text", f"zeta{math.lcm(order, 4)}")] = _totient(math.lcm(order, 4))
        return (1.0, 1.0)
    if kind == "fn" and (value := rational(node, steps)) is not None:
        p, q = parts(value)
        return math.log2(max(1, abs(p))), math.log2(q)
    return None


def _root(inner: tuple[float, float], k: int) -> tuple[float, float]:
    u, low = inner
    return ((u + low * (k - 1)) / k, low) if u >= low else (u, (u * (k - 1) + low) / k)


def _rational_angle(node: Node, steps: Steps) -> Any | None:
    """The argument as a rational multiple of pi."""
    if node.kind == "degree":
        value = rational(node.args[0], steps)
        return None if value is None else value / 180
    return rational(replace(node, {Node("const", "pi"): num(1)}), steps) if _linear_in_pi(node) else None


def _linear_in_pi(node: Node) -> bool:
    if node.kind == "const":
        return node.value == "pi"
    if node.kind == "neg":
        return _linear_in_pi(node.args[0])
    if node.kind == "mul":
        return sum(_linear_in_pi(a) for a in node.args) == 1 and all(
            _linear_in_pi(a) or not _has_pi(a) for a in node.args
        )
    if node.kind == "div":
        return _linear_in_pi(node.args[0]) and not _has_pi(node.args[1])
    if node.kind == "add":
        return all(_linear_in_pi(a) for a in node.args)
    return False


def _has_pi(node: Node) -> bool:
    return node.kind == "const" or any(_has_pi(a) for a in node.args)


def _totient(n: int) -> int:
    result, p = n, 2
    while p * p <= n:
        if n % p == 0:
            while n % p == 0:
                n //= p
            result -= result // p
        p += 1
    return result - result // n if n > 1 else result
