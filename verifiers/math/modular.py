"""Values of expressions modulo a prime at a random point (Schwartz-Zippel): no expansion, whatever the degree.

Whatever is not rational arithmetic (sin x, sqrt(x), f(x), a sum with symbolic bounds) becomes an atom: a
pseudo-random residue keyed by its name and the residues of its arguments, so equal arguments give equal atoms. Equal
residues at two primes: the expressions are equal as rational functions of their atoms but for a chance below degree /
2^120. Different residues prove inequality where there are no atoms.
"""

from __future__ import annotations

from hashlib import blake2b

from jurat.verifiers.math.backend import parts
from jurat.verifiers.math.exact import rational
from jurat.verifiers.math.limits import Steps, TooLarge, Undefined
from jurat.verifiers.math.tree import Node

PRIMES = ((1 << 61) - 1, (1 << 61) - 31)


class Pole(Exception):
    """A denominator vanishes at the point: draw another."""


class Point:
    """One random point modulo one prime. `atoms` tells afterwards whether any atom was met."""

    __slots__ = ("atoms", "bound", "p", "seed", "steps")

    def __init__(self, p: int, seed: str, steps: Steps) -> None:
        self.p, self.seed, self.steps = p, seed, steps
        self.atoms = False
        self.bound: dict[str, int] = {}

    def random(self, *key: object) -> int:
        digest = blake2b(
            "\x1f".join(map(str, (self.p, self.seed, *key))).encode("utf-8", "replace"), digest_size=8
        ).digest()
        return int.from_bytes(digest, "big") % self.p

    def __call__(self, node: Node) -> int:
        self.steps.spend()
        kind, args, p = node.kind, node.args, self.p
        if kind == "num":
            top, bottom, _ = node.value
            return top % p if bottom == 1 else top * pow(bottom, -1, p) % p
        if kind == "sym":
            return self.bound.get(node.value) or self.random("sym", node.value)
        if kind == "add":
            return sum(map(self, args)) % p
        if kind == "mul":
            product = 1
            for arg in args:
                product = product * self(arg) % p
            return product
        if kind == "neg":
            return -self(args[0]) % p
        if kind == "div":
            return self(args[0]) * self.inverse(self(args[1])) % p
        if kind == "percent":
            return self(args[0]) * pow(100, -1, p) % p
        if kind == "pow":
            return self.power(node)
        if kind == "big":
            return self.big(node)
        self.atoms = True
        return self.random(kind, node.value, *map(self, args))

    def power(self, node: Node) -> int:
        base, exponent = node.args
        value = None
        try:
            value = rational(exponent, self.steps)
        except TooLarge:
            pass
        if value is None:
            self.atoms = True
            return self.random("pow", self(base), self(exponent))
        top, bottom = parts(value)
        residue = self(base)
        if bottom != 1:
            self.atoms = True
            residue = self.random("root", bottom, residue)
        if top < 0:
            residue, top = self.inverse(residue), -top
        return pow(residue, top, self.p)

    def big(self, node: Node) -> int:
        variable, low, high, body = node.args
        self.atoms = True
        if variable.kind != "sym":
            return self.random("big", node.value, *map(self, node.args))
        saved = self.bound.get(variable.value)
        self.bound[variable.value] = self.random("bound", len(self.bound))
        inner = self(body)
        if saved is None:
            del self.bound[variable.value]
        else:
            self.bound[variable.value] = saved
        return self.random("big", node.value, self(low), self(high), inner)

    def inverse(self, value: int) -> int:
        if value % self.p == 0:
            raise Pole
        return pow(value, -1, self.p)


def difference(a: Node, b: Node, seed: str, steps: Steps) -> tuple[bool | None, bool]:
    """(equal, pure): whether residues agree at both primes, and whether there were no atoms. None: poles at every
    try."""
    pure, decided = True, False
    for p in PRIMES:
        for attempt in range(3):
            point = Point(p, f"{seed}{attempt}", steps)
            try:
                left, right = point(a), point(b)
            except Pole:
                continue
            pure &= not point.atoms
            decided = True
            if left != right:
                return False, pure
            break
    if not decided:
        raise Undefined("division_by_zero")
    return True, pure


def proportional(f: Node, g: Node, seed: str, steps: Steps) -> tuple[bool | None, bool]:
    """(f / g is one constant other than zero, pure), by residues at five points."""
    pure = True
    for p in PRIMES:
        ratios: set[int] = set()
        for attempt in range(6):
            point = Point(p, f"{seed}{attempt}", steps)
            try:
                left, right = point(f), point(g)
            except Pole:
                continue
            pure &= not point.atoms
            if (left == 0) != (right == 0):
                return False, pure
            if left:
                ratios.add(left * pow(right, -1, p) % p)
            if len(ratios) > 1:
                return False, pure
        if not ratios:
            return None, pure
    return True, pure
