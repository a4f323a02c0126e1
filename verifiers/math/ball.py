"""Ball arithmetic: enclosures of closed expressions and of expressions at a point.

Disjoint enclosures prove two values different. Overlap proves nothing by itself: `separation.py` tells, for
algebraic numbers, at which precision it does.

The working precision of python-flint is a process-wide setting, so evaluation holds a lock and restores the caller's
precision.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from jurat.verifiers.math.backend import FLINT, parts
from jurat.verifiers.math.exact import rational
from jurat.verifiers.math.limits import MAX_TERMS, Steps, Undefined
from jurat.verifiers.math.tree import Node, num, replace, walk

if FLINT:
    from flint import acb, ctx, fmpq, fmpz
else:
    from jurat.verifiers.math.slow_ball import acb, ctx, fmpq, fmpz

LOCK = threading.RLock()

_UNARY = {
    "sin": "sin", "cos": "cos", "tan": "tan", "cot": "cot", "sec": "sec", "csc": "csc", "sinh": "sinh",
    "cosh": "cosh", "tanh": "tanh",
    "coth": "coth", "sech": "sech", "csch": "csch", "arcsin": "asin", "arccos": "acos", "arctan": "atan",
    "arsinh": "asinh",
    "arcosh": "acosh", "artanh": "atanh", "gamma": "gamma", "erf": "erf", "ln": "log",
}  # fmt: skip


class NoValue(Exception):
    """The expression holds something that has no numerical value here: a name, an unknown function, a set."""


class Precision:
    """with Precision(192): ... evaluates at that many bits."""

    def __init__(self, bits: int) -> None:
        self.bits = bits

    def __enter__(self) -> None:
        LOCK.acquire()
        self.saved = ctx.prec
        ctx.prec = self.bits

    def __exit__(self, *_: object) -> None:
        ctx.prec = self.saved
        LOCK.release()


class Evaluator:
    """Enclosures at the current precision. `log_base` is what a bare `log` means: "e" or "10". With `real`, roots and
    logarithms of negative numbers are undefined."""

    def __init__(
        self, steps: Steps, at: Mapping[str, Any] | None = None, log_base: str = "10", real: bool = False
    ) -> None:
        self.steps, self.at, self.log_base, self.real = steps, at or {}, log_base, real

    def __call__(self, node: Node) -> Any:
        self.steps.spend()
        kind, args = node.kind, node.args
        if kind == "num":
            p, q, _ = node.value
            return acb(p) if q == 1 else acb(fmpq(p, q))
        if kind == "sym":
            if node.value in self.at:
                return self.at[node.value]
            raise NoValue(node.value)
        if kind == "const":
            if node.value == "pi":
                return acb.pi()
            if node.value == "e":
                return acb(1).exp()
            if node.value == "i":
                return acb(0, 1)
            raise NoValue("inf")
        if kind == "add":
            total = self(args[0])
            for arg in args[1:]:
                total = total + self(arg)
            return total
        if kind == "mul":
            product = self(args[0])
            for arg in args[1:]:
                product = product * self(arg)
            return product
        if kind == "neg":
            return -self(args[0])
        if kind == "div":
            bottom = self(args[1])
            if bottom.is_zero():
                raise Undefined("division_by_zero")
            return self(args[0]) / bottom
        if kind == "pow":
            return self.power(args[0], args[1])
        if kind == "percent":
            return self(args[0]) / 100
        if kind == "degree":
            return self(args[0]) * acb.pi() / 180
        if kind == "fn":
            return self.function(node.value, args)
        if kind == "big":
            return self.big(node)
        if kind == "cases":
            return self.cases(node)
        raise NoValue(kind)

    def power(self, base_node: Node, exponent_node: Node) -> Any:
        exponent = (
            rational(exponent_node, self.steps) if not self.at or exponent_node.kind in ("num", "div", "neg") else None
        )
        if base_node.kind == "const" and base_node.value == "e" and exponent is None:
            return self(exponent_node).exp()
        base = self(base_node)
        if exponent is not None:
            p, q = parts(exponent)
            if base.is_zero():
                if p < 0:
                    raise Undefined("zero_to_negative_power")
                return acb(1) if p == 0 else acb(0)
            if q == 1:
                return base ** fmpz(p)
            if q % 2 and is_negative(base):  # the real root of a negative number
                root = -((-base) ** acb(fmpq(abs(p), q)))
                root = root if p % 2 else -root
                return root if p > 0 else 1 / root
            if self.real and q % 2 == 0 and is_negative(base):
                raise Undefined("even_root")
            if q == 2 and abs(p) < 1000:
                root = base.sqrt()
                return root ** fmpz(p)
            return base ** acb(fmpq(p, q))
        power = self(exponent_node)
        if base.is_zero():
            if power.real > 0:
                return acb(0)
            raise Undefined("zero_power")
        return base**power

    def function(self, name: str, args: tuple[Node, ...]) -> Any:
        if name == "det":
            return self.determinant(args[0])
        if name == "norm" and args[0].kind in ("tuple", "matrix"):
            total = acb(0)
            for arg in args[0].args:
                total += self(arg) ** 2
            return total.sqrt()
        if name in ("ln", "log", "logb"):
            x = self(args[-1])
            if x.is_zero():
                raise Undefined("logarithm")
            if self.real and is_negative(x):
                raise Undefined("logarithm")
            top = x.log()
            if name == "ln" or (name == "log" and self.log_base == "e"):
                return top
            bottom = self(args[0]).log() if name == "logb" else acb(10).log()
            if bottom.is_zero():
                raise Undefined("logarithm_base")
            return top / bottom
        values = [self(arg) for arg in args]
        x = values[0]
        if name in _UNARY:
            return getattr(x, _UNARY[name])()
        if name == "root":
            index = rational(args[0], self.steps)
            x = values[1]
            if index is None:
                return x ** (1 / values[0])
            p, q = parts(index)
            if q != 1 or p < 1:
                raise Undefined("root_index")
            if self.real and p % 2 == 0 and is_negative(x):
                raise Undefined("even_root")
            if p == 2:
                return x.sqrt()
            if p % 2 and is_negative(x):
                return -((-x) ** acb(fmpq(1, p)))
            return x ** acb(fmpq(1, p)) if not x.is_zero() else x
        if name in ("abs", "norm"):
            return acb(abs(x))
        if name == "conj":
            return x.conjugate()
        if name == "Re":
            return acb(x.real)
        if name == "Im":
            return acb(x.imag)
        if name == "arg":
            return acb(x.arg())
        if name == "cis":
            return (acb(0, 1) * x).exp()
        if name == "fact":
            return (x + 1).gamma()
        if name == "binom":
            n, k = values
            return (n + 1).gamma() * (k + 1).rgamma() * (n - k + 1).rgamma()
        if name in ("floor", "ceil"):
            real = _real(x)
            return acb(real.floor() if name == "floor" else real.ceil())
        if name in ("max", "min"):
            best = _real(x)
            for value in values[1:]:
                best = best.max(_real(value)) if name == "max" else best.min(_real(value))
            return acb(best)
        if name == "sgn":
            real = _real(x)
            if real > 0 or real < 0:
                return acb(1 if real > 0 else -1)
            raise NoValue("sgn")
        if name == "arccot":
            return acb.pi() / 2 - x.atan()
        if name == "arcsec":
            return (1 / x).acos()
        if name == "arccsc":
            return (1 / x).asin()
        raise NoValue(name)

    def cases(self, node: Node) -> Any:
        """The branch whose condition certainly holds."""
        for value, condition in (pair.args for pair in node.args):
            if condition == Node("text", "otherwise") or self.holds(condition):
                return self(value)
        raise Undefined("no_case")

    def holds(self, condition: Node) -> bool:
        if condition.kind != "rel":
            raise NoValue("condition")
        for left, operator, right in zip(condition.args, condition.value, condition.args[1:], strict=False):
            gap = _real(self(left) - self(right))
            if gap.is_zero():
                if operator in ("<", ">", "!="):
                    return False
            elif gap > 0 or gap < 0:
                if (operator in ("<", "<=", "=") and gap > 0) or (operator in (">", ">=", "=") and gap < 0):
                    return False
            else:
                raise NoValue("condition")
            if operator not in ("<", ">", "<=", ">=", "=", "!="):
                raise NoValue("condition")
        return True

    def determinant(self, matrix: Node) -> Any:
        if matrix.kind != "matrix" or matrix.value[0] != matrix.value[1]:
            raise NoValue("det")
        size = matrix.value[0]
        rows = [[self(matrix.args[i * size + j]) for j in range(size)] for i in range(size)]
        det = acb(1)
        for column in range(size):
            pivot = max(range(column, size), key=lambda r: float(abs(rows[r][column]).mid()))
            if pivot != column:
                rows[column], rows[pivot] = rows[pivot], rows[column]
                det = -det
            head = rows[column][column]
            if head.is_zero():
                return acb(0)
            det *= head
            for r in range(column + 1, size):
                factor = rows[r][column] / head
                rows[r] = [a - factor * b for a, b in zip(rows[r], rows[column], strict=True)]
        return det

    def big(self, node: Node) -> Any:
        variable, low, high, body = node.args
        if node.value == "int" and FLINT and not self.at:
            return self.integral(variable, low, high, body)
        if node.value not in ("sum", "prod") or variable.kind != "sym":
            raise NoValue(node.value)
        bounds = []
        for bound in (low, high):
            value = rational(_at(bound, self.at), self.steps)
            if value is None or parts(value)[1] != 1:
                raise NoValue(node.value)
            bounds.append(parts(value)[0])
        if bounds[1] - bounds[0] >= MAX_TERMS:
            raise NoValue(node.value)
        total = acb(0 if node.value == "sum" else 1)
        for k in range(bounds[0], bounds[1] + 1):
            term = self(replace(body, {variable: num(k)}))
            total = total + term if node.value == "sum" else total * term
        return total

    def integral(self, variable: Node, low: Node, high: Node, body: Node) -> Any:
        """A definite integral of an entire integrand between finite bounds (python-flint's rigorous quadrature)."""
        if any(
            n.kind not in _ENTIRE and not (n.kind == "fn" and n.value in ("sin", "cos", "sinh", "cosh"))
            for n in walk(body)
        ):
            raise NoValue("int")
        if any(n.kind == "pow" and not _entire_power(n, variable) for n in walk(body)) or any(
            n.kind == "div" and variable in walk(n.args[1]) for n in walk(body)
        ):
            raise NoValue("int")
        bounds = self(low), self(high)

        def integrand(t: Any, _: bool) -> Any:
            return Evaluator(self.steps, {variable.value: t}, self.log_base)(body)

        return acb.integral(integrand, *bounds, eval_limit=400)


_ENTIRE = frozenset(("num", "sym", "const", "add", "mul", "neg", "div", "pow"))


def _entire_power(node: Node, variable: Node) -> bool:
    base, exponent = node.args
    if exponent.kind == "num" and exponent.value[1] == 1 and exponent.value[0] >= 0:
        return True
    return variable not in walk(base) and base.kind in ("num", "const")


def _at(node: Node, at: Mapping[str, Any]) -> Node:
    """Integer points put back as numbers, so that bounds of sums become exact."""
    table = {}
    for name, value in at.items():
        whole = value.unique_fmpz() if FLINT else value.integer()
        if whole is not None:
            table[Node("sym", name)] = num(int(whole))
    return replace(node, table) if table else node


def is_negative(x: Any) -> bool:
    return bool(x.imag.is_zero() and x.real < 0)


def _real(x: Any) -> Any:
    if not x.imag.contains(0):
        raise NoValue("complex")
    return x.real


def disjoint(a: Any, b: Any) -> bool:
    """A proof of a != b: both enclosures are finite and do not meet."""
    return bool(a.is_finite() and b.is_finite() and not a.overlaps(b))
