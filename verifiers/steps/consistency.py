"""The verifier ``consistency``: no step says what another one denies."""

from __future__ import annotations

import re

from jurat.platform.types import Problem, Step, Verdict
from jurat.verifiers.math.engine import compare
from jurat.verifiers.math.verdict import CORRECT, INCORRECT
from jurat.verifiers.steps.claims import Run, said
from jurat.verifiers.steps.equation_steps import MAX_TEXT
from jurat.verifiers.steps.split import VERSION, How, split
from jurat.verifiers.steps.verdicts import step_of, whole

_STATED = re.compile(
    r"\b(?P<whose>[Tt]he|[Hh]is|[Hh]er|[Tt]heir|[Ii]ts|[A-Z][a-z]+'s) (?P<what>(?:[a-z]+ ){0,5}[a-z]+) (?:is|was|are|were|equals|=) "
    r"(?:now |exactly )?[$€£]?(?P<value>-?\d[\d,]*(?:\.\d+)?(?:/\d+)?%?)(?![\w/])",
)
_SENTENCE = re.compile(r"[^.;\n]{3,200}")
_NOT = re.compile(r"\b(?:not|never)\b|n't\b", re.IGNORECASE)
_LET = re.compile(r"\b(?:let|set|now|suppose|case|if)\b", re.IGNORECASE)
_OPPOSITE = {"<": ">=", ">": "<=", "<=": ">", ">=": "<"}


def consistency(problem: Problem, completion: str, how: How = "auto") -> Verdict:
    """Checks that no step contradicts an earlier one: an unknown or a named quantity with two values (``x = 3`` ... ``x = 4``, ``the
    total cost is 12`` ... ``the total cost is 15``), a relation and its opposite, a sentence and its negation.

    ``let``, ``now``, ``suppose``, ``if`` and ``case`` begin anew. A step that repeats or adds to nothing said is not checkable.
    """
    values: dict[str, tuple[str, int]] = {}
    relations: dict[tuple[str, str, str], int] = {}
    sentences: dict[str, tuple[bool, int]] = {}
    steps: list[Step] = []
    for number, span in enumerate(split(completion, how), 1):
        if span.start >= MAX_TEXT:
            steps.append(step_of(span, None, "too far into the text"))
            continue
        text = completion[span.start : span.end]
        anew = bool(_LET.search(text))
        wrong, agreed = "", ""
        found = said(completion, span.start, min(span.end, MAX_TEXT))
        named = [(c.left.text, c.right.text) for c in found.claims if c.relation == "=" and _is_value(c.left, c.right)]
        twice = {name for name, _ in named if sum(name == other for other, _ in named) > 1}  # x = 2 or x = 3
        named = [(name, value) for name, value in named if name not in twice]
        named += [
            (f"{match['whose']} {match['what']}".lower(), match["value"].replace(",", ""))
            for match in _STATED.finditer(text)
        ]
        for name, value in named:
            if name in values and not anew:
                before, step = values[name]
                status = compare(before, value).status
                if status == INCORRECT:
                    wrong = wrong or f"{name} was {before} in step {step}, here it is {value}"
                elif status == CORRECT:
                    agreed = agreed or f"{name} is {value}, as in step {step}"
            values[name] = (value, number)
        for claim in found.claims:
            if claim.relation in _OPPOSITE:
                key = (claim.left.text, claim.relation, claim.right.text)
                denied = relations.get((key[0], _OPPOSITE[key[1]], key[2]))
                if denied is not None and not anew:
                    wrong = wrong or f"{key[0]} {key[1]} {key[2]}: step {denied} says the opposite"
                relations.setdefault(key, number)
        for match in _SENTENCE.finditer(text):
            bare, denies = _bare(match.group())
            if bare in sentences and sentences[bare][0] != denies and not anew:
                wrong = wrong or f"step {sentences[bare][1]} says the opposite of {match.group().strip()[:80]!r}"
            sentences.setdefault(bare, (denies, number))
        steps.append(
            step_of(span, False if wrong else True if agreed else None, wrong or agreed or "nothing said before")
        )
    return whole(steps, undecided="correct", evidence={"splitter": VERSION})


def _is_value(left: Run, right: Run) -> bool:
    """``x = 3``"""
    return left.text in left.names and not right.names


def _bare(sentence: str) -> tuple[str, bool]:
    """A sentence without what denies it, and whether something did."""
    denies = len(_NOT.findall(sentence)) % 2 == 1
    plain = re.sub(r"\b(?:do|does|did|so|then|therefore|thus|hence)\b", " ", _NOT.sub(" ", sentence.lower()))
    return " ".join(re.findall(r"[^\W_]+|[<>=+*/-]", plain)), denies
