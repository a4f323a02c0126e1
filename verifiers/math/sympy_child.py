"""The child process of `symbolic.py`: reads trees as JSON lines, answers whether SymPy shows them equal.

Run as a script by path, so it imports nothing but the standard library and SymPy. Expressions are built node by node
from data; no string ever reaches `sympify` or `parse_expr`.
"""

from __future__ import annotations

import json
import sys

MEMORY = 1 << 30
MAX_NODES = 400


def limit_memory() -> None:
    try:
        import resource
    except ImportError:  # no such limits on this platform
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def build(tree, sp, integers, count):
    """A SymPy expression of `[kind, value, args]`. Raises ValueError for what has no counterpart."""
    count[0] += 1
    if count[0] > MAX_NODES:
        raise ValueError("size")
    kind, value, args = tree
    inner = lambda i: build(args[i], sp, integers, count)
    every = lambda: [build(arg, sp, integers, count) for arg in args]
    if kind == "num":
        if abs(value[0]) > 10**60 or value[1] > 10**60:
            raise ValueError("digits")
        return sp.Rational(value[0], value[1])
    if kind == "const":
        return {"pi": sp.pi, "e": sp.E, "i": sp.I, "inf": sp.oo}[value]
    if kind == "sym":
        return sp.Symbol(value, integer=True, positive=True) if value in integers else sp.Symbol(value, real=True)
    if kind == "add":
        return sp.Add(*every())
    if kind == "mul":
        return sp.Mul(*every())
    if kind == "neg":
        return -inner(0)
    if kind == "div":
        return inner(0) / inner(1)
    if kind == "pow":
        base, exponent = inner(0), inner(1)
        if exponent.is_number and base.is_number and abs(sp.N(exponent)) > 200:
            raise ValueError("power")
        return base**exponent
    if kind == "percent":
        return inner(0) / 100
    if kind == "degree":
        return inner(0) * sp.pi / 180
    if kind == "big":
        variable, low, high, body = args
        if variable[0] != "sym":
            raise ValueError("variable")
        name = variable[1]
        symbol = sp.Symbol(name, integer=True) if value in ("sum", "prod") else sp.Symbol(name, real=True)
        expression = build(body, sp, integers | ({name} if value in ("sum", "prod") else set()), count)
        expression = expression.subs(sp.Symbol(name, integer=True, positive=True), symbol)
        start = build(low, sp, integers, count)
        if value == "lim":
            return sp.limit(expression, symbol, start)
        stop = build(high, sp, integers, count)
        if value == "int":
            return sp.Integral(expression, (symbol, start, stop)).doit()
        return (sp.Sum if value == "sum" else sp.Product)(expression, (symbol, start, stop)).doit()
    if kind == "fn":
        functions = {
            "sin": sp.sin, "cos": sp.cos, "tan": sp.tan, "cot": sp.cot, "sec": sp.sec, "csc": sp.csc, "sinh": sp.sinh,
            "cosh": sp.cosh,
            "tanh": sp.tanh, "coth": sp.coth, "arcsin": sp.asin, "arccos": sp.acos, "arctan": sp.atan, "ln": sp.log,
            "abs": sp.Abs,
            "floor": sp.floor, "ceil": sp.ceiling, "fact": sp.factorial, "binom": sp.binomial, "gamma": sp.gamma,
            "Re": sp.re, "Im": sp.im,
            "conj": sp.conjugate, "max": sp.Max, "min": sp.Min, "erf": sp.erf, "arsinh": sp.asinh, "arcosh": sp.acosh,
            "artanh": sp.atanh,
        }  # fmt: skip
        if value == "root":
            index, radicand = every()
            return sp.real_root(radicand, index) if index.is_odd else radicand ** (1 / index)
        if value == "logb":
            base, x = every()
            return sp.log(x) / sp.log(base)
        if value in functions:
            arguments = every()
            if value in ("fact", "binom") and any(a.is_number and abs(a) > 500 for a in arguments):
                raise ValueError("factorial")
            return functions[value](*arguments)
    raise ValueError(kind)


def equal(request, sp) -> bool:
    integers = set(request["integers"])
    a, b = build(request["a"], sp, integers, [0]), build(request["b"], sp, integers, [0])
    if a == b and a.is_finite is not False and a is not sp.nan:
        return True
    difference = a - b
    if difference.has(sp.nan, sp.zoo, sp.oo, -sp.oo):
        return bool(a == b and a in (sp.oo, -sp.oo))
    if difference.has(sp.Sum, sp.Integral, sp.Limit, sp.Product):
        return False
    return bool(sp.simplify(difference) == 0)


def warm(sp) -> None:
    """One question of each sort, so that SymPy's lazy imports and caches are not paid under a deadline."""
    k, x = sp.Symbol("k", integer=True), sp.Symbol("x", real=True)
    sp.Sum(sp.Integer(3) ** -k, (k, 0, sp.oo)).doit()
    sp.Sum(k, (k, 1, sp.Symbol("n", integer=True, positive=True))).doit()
    sp.limit(sp.tan(x) / x, x, 0)
    sp.integrate(x * sp.exp(-2 * x), (x, 0, sp.oo))
    sp.simplify(sp.sin(x) ** 2 + sp.cos(x) ** 2 - 1)


def main() -> None:
    limit_memory()
    import sympy as sp

    warm(sp)
    answer = sys.stdout
    sys.stdout = sys.stderr
    answer.write('{"ready": true}\n')
    answer.flush()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            same = equal(request, sp)
        except Exception:  # whatever SymPy raises, the parent hears "unknown"; the worker lives on
            same = False
        answer.write(json.dumps({"id": request["id"], "equal": same}) + "\n")
        answer.flush()


if __name__ == "__main__":
    main()
