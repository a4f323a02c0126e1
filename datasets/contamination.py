"""How much of one set is in another: questions that are the same, and word n-grams they share.

Questions are compared as words: case, accents' encoding and punctuation are left out, numbers and arithmetic signs are
kept (``7 + 5`` is not ``7 - 5``). A question shorter than n words counts only if it is the whole of another one.

Formulaic questions share n-grams without being the same problem (``how many apples are there in all``), so each finding
says which part of its n-grams was found: near 1 is a copy, near 0 a phrase.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jurat.platform.errors import DataError
from jurat.platform.recipe import Prompt
from jurat.platform.types import Problem

NGRAM = 8
_WORDS = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+|[-+*/=^<>%]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """One problem that shares words with the other set."""

    id: str
    where: str
    against_id: str
    """The first problem of the other set that holds ``gram``."""
    against_where: str
    same: bool
    """The whole question is the same."""
    covered: float
    """Part of its n-grams that occur in the other set, in (0, 1]."""
    gram: str
    """The first shared n-gram."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contamination:
    """Findings, the worst first. Example: 3 of 7,473 problems share an 8-gram with 2 of 1,319."""

    n: int
    rows: int
    against_rows: int
    overlaps: tuple[Overlap, ...]

    @property
    def share(self) -> float:
        """Share of problems that share an n-gram."""
        return len(self.overlaps) / self.rows if self.rows else 0.0

    @property
    def num_same(self) -> int:
        return sum(o.same for o in self.overlaps)

    def ids(self, covered: float = 0.0) -> tuple[str, ...]:
        """Ids of problems with at least this part of their n-grams found."""
        return tuple(o.id for o in self.overlaps if o.covered >= covered)

    def to_json(self) -> dict[str, Any]:
        return {
            "n": self.n, "rows": self.rows, "against_rows": self.against_rows, "overlapping": len(self.overlaps),
            "share": self.share, "same": self.num_same, "half_covered": len(self.ids(0.5)),
            "against_touched": len({o.against_id for o in self.overlaps}),
            "overlaps": [{name: getattr(o, name) for name in Overlap.__slots__} for o in self.overlaps],
        }  # fmt: skip


def words(text: str) -> tuple[str, ...]:
    """The words of a text as they are compared."""
    return tuple(_WORDS.findall(unicodedata.normalize("NFKC", text).casefold()))


def question_of(problem: Problem, prompt: Prompt) -> str:
    """What was asked, without system text and without the template's prefix and suffix."""
    asked = "\n".join(m.content for m in problem.messages if m.role == "user")
    return asked.removeprefix(prompt.prefix).removesuffix(prompt.suffix)


def contamination(
    problems: Sequence[Problem], against: Sequence[Problem], *, n: int = NGRAM, prompt: Prompt = Prompt()
) -> Contamination:
    """What ``problems`` share with ``against``; both were asked as ``prompt`` says."""
    whole: dict[tuple[str, ...], Problem] = {}
    grams: dict[tuple[str, ...], Problem] = {}
    for other in against:
        text = words(question_of(other, prompt))
        whole.setdefault(text, other)
        for at in range(len(text) - n + 1):
            grams.setdefault(text[at : at + n], other)
    found = []
    for problem in problems:
        text = words(question_of(problem, prompt))
        mine = [text[at : at + n] for at in range(len(text) - n + 1)]
        shared = [gram for gram in mine if gram in grams]
        same = whole.get(text)
        if same is None and not shared:
            continue
        other = same or grams[shared[0]]
        found.append(Overlap(
            id=problem.id, where=problem.source, against_id=other.id, against_where=other.source, same=same is not None,
            covered=len(shared) / len(mine) if mine else 1.0, gram=" ".join(shared[0] if shared else text),
        ))  # fmt: skip
    found.sort(key=lambda o: (not o.same, -o.covered))
    return Contamination(n=n, rows=len(problems), against_rows=len(against), overlaps=tuple(found))


def refuse_shared(problems: Sequence[Problem], held_out: Sequence[Problem], *, prompt: Prompt = Prompt()) -> None:
    """Raises DataError if a question is asked in both sets: a held-out score would be no held-out score."""
    asked = {words(question_of(p, prompt)): p for p in problems}
    both = [(asked[w], p) for p in held_out if (w := words(question_of(p, prompt))) in asked]
    if both:
        one, other = both[0]
        raise DataError(
            f"{len(both)} of {len(held_out)} held-out problems are trained on; first {other.id}: "
            f"{question_of(other, prompt)[:80]!r}", where=f"{one.source} and {other.source}",
            fix="give disjoint fractions, for example fraction: [0, 0.9] and [0.9, 1], or another split",
        )  # fmt: skip
