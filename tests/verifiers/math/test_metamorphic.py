"""Pairs equal or unequal by construction: none may be judged wrongly, and they must catch bugs that are planted in a copy of the engine."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import jurat.verifiers.math as engine
from jurat.verifiers.math.metamorphic import RULES, Pair, pairs

ROOT = Path(engine.__file__).parent


def wrong(compare: Callable, found: list[Pair]) -> list[tuple]:
    return [
        (p, v.status, v.reason) for p in found if ((v := compare(p.gold, p.answer)).status == "correct") is not p.equal
    ]


def test_ten_thousand_pairs() -> None:
    assert wrong(engine.compare, list(pairs(seed=20, count=10_000))) == []


def test_the_table_has_equal_and_unequal_pairs_of_most_kinds() -> None:
    equal = {rule.kind for rule in RULES if rule.equal}
    unequal = {rule.kind for rule in RULES if not rule.equal}
    assert len(equal & unequal) >= 25
    assert len({rule.transform for rule in RULES}) >= 15


def test_every_gold_equals_itself() -> None:
    golds = {pair.gold for pair in pairs(seed=3, count=3000)}
    assert [gold for gold in golds if engine.compare(gold, gold).status != "correct"] == []


# (module, text, bug in its place, kinds of pairs that can see it)
BUGS = [
    ("exact", "return top / bottom", "return bottom / top", "fraction"),
    ("exact", "det = -det", "pass", "matrix"),
    ("numerals", "p *= 10**shift", "p *= 10 ** (shift - 1)", "scientific"),
    ("numerals", "nines = 10 ** len(block) - 1", "nines = 10 ** len(block)", "recurring"),
    ("numerals", "return int(whole, base), 1", "return int(whole, 36), 1", "base"),
    ("digits", r'_LEADING = re.compile(r"[1-9]\d{0,2}\Z")', r'_LEADING = re.compile(r"[1-9]\d?\Z")', "thousands"),
    (
        "literals",
        'return add(whole, Node("div", None, (top, bottom)))',
        'return Node("mul", None, (whole, Node("div", None, (top, bottom))))',
        "mixed",
    ),
    ("suffix", "return mul(left, num(words.SCALES[word]))", "return left", "integer"),
    ("suffix", "self.pos = start\n                    return None\n                elif self.is_noun",
     "return left\n                elif self.is_noun", "integer"),
    ("ball", "return bool(a.is_finite() and b.is_finite() and not a.overlaps(b))", "return False", "log_exp"),
    ("modular", "return -self(args[0]) % p", "return self(args[0]) % p", "polynomial"),
    ("modular", "return pow(residue, top, self.p)", "return pow(residue, min(top, 2), self.p)", "polynomial"),
    ("points", "if disjoint(x, y):\n                    return Outcome(False",
     "if False:\n                    return Outcome(False", "trig"),
    ("sets", '"<": (True, False, False)', '"<": (True, True, False)', "inequality interval"),
    ("sets", '_FLIP = {"<": ">", ">": "<"', '_FLIP = {"<": "<", ">": ">"', "inequality"),
    ("compare", 'if a.value != b.value:\n        return Outcome(False, "delimiters")', "if False:\n        pass", "interval tuple"),
    ("compare", 'return Outcome(False, "number_of_elements")', "ys = ys[: len(xs)]", "set"),
    ("compare", "if outcome.equal is False:\n            return Outcome(False, f\"element",
     "if False:\n            return Outcome(False, f\"element", "tuple"),
    ("compare", "return Outcome((h1, m1, s1, half1) == (h2, m2, s2, half2)", "return Outcome((h1, s1) == (h2, s2)", "time"),
    ("relations", "f, g = sub(*a.args), sub(*b.args)", "f, g = a.args[0], b.args[0]", "equation"),
    ("relations", 'if other.name != name and (name.kind != "app" or stem(other.name) != stem(name)):', "if False:", "assignment"),
    ("signs", "for c in product((1, -1), repeat=len(marks))]", "for c in product((1,), repeat=len(marks))]", "plus_minus"),
    ("convert", 'yield Node("div", None, (a.args[0], num(100))), b', 'yield Node("div", None, (a.args[0], num(1000))), b', "percent"),
    ("units", '"cm centimeter centimetre", _LENGTH, F(1, 100)', '"cm centimeter centimetre", _LENGTH, F(1, 10)', "units"),
    ("linear", "tuple(add(*cells) for cells in", "tuple(cells[0] for cells in", "matrix"),
    ("reading", "if any((a or b).upper() != letter for a, b in _OTHER_LABEL.findall(rest)) or _DENIAL.search(rest):",
     "if False:", "choice"),
    ("engine", 'if g.key and g.key == a.key and', 'if g.key and g.key[:2] in a.key and', "text"),
]  # fmt: skip


class _Planted(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Serves one module from changed source."""

    def __init__(self, module: str, old: str, new: str) -> None:
        self.name = f"jurat.verifiers.math.{module}"
        self.path = ROOT / f"{module}.py"
        source = self.path.read_text(encoding="utf-8")
        assert old in source, f"{module}.py no longer holds {old!r}; plant this bug elsewhere"
        self.source = source.replace(old, new)

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, origin=str(self.path)) if name == self.name else None

    def get_filename(self, name):
        return f"<planted {name}>"

    def get_data(self, path):
        return self.source.encode()

    def path_stats(self, path):
        raise OSError


def mutant(module: str, old: str, new: str) -> Callable:
    """`compare` of a fresh copy of the engine with one text changed; the real modules are put back."""
    mine = [name for name in sys.modules if name.startswith("jurat.verifiers.math")]
    saved = {name: sys.modules.pop(name) for name in mine}
    finder = _Planted(module, old, new)
    sys.meta_path.insert(0, finder)
    try:
        return importlib.import_module("jurat.verifiers.math").compare
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.startswith("jurat.verifiers.math")]:
            del sys.modules[name]
        sys.modules.update(saved)
        sys.modules["jurat.verifiers"].math = saved["jurat.verifiers.math"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("module", "old", "new", "kinds"), BUGS)
def test_planted_bug_is_caught(module: str, old: str, new: str, kinds: str) -> None:
    compare = mutant(module, old, new)
    found = list(pairs(seed=5, count=800, kinds=frozenset(kinds.split())))
    assert wrong(engine.compare, found) == []
    try:
        assert wrong(compare, found), "no pair told the copy with the bug from the engine"
    except (ValueError, TypeError, ArithmeticError, AssertionError) as error:
        if isinstance(error, AssertionError) and "no pair" in str(error):
            raise


def test_at_least_twenty_bugs_are_planted() -> None:
    assert len(BUGS) >= 20
