"""The verifier ``derivation_order``: unknowns before their use, the phases that are asked for, the answer from the last step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from jurat.platform.types import Problem, Step, Verdict
from jurat.verifiers.math.engine import compare
from jurat.verifiers.math.extract import extract
from jurat.verifiers.math.verdict import CORRECT, INCORRECT
from jurat.verifiers.steps.claims import Said, said
from jurat.verifiers.steps.equation_steps import MAX_TEXT
from jurat.verifiers.steps.split import VERSION, How, split
from jurat.verifiers.steps.verdicts import step_of, whole

Phase = Literal["setup", "equation", "solve", "check"]
PHASES: tuple[Phase, ...] = ("setup", "equation", "solve", "check")
_DECLARES = re.compile(
    r"\b(?:let|suppose|say|call|denote|define|set|where|assume|make)\b(?P<names>[^.;\n]{0,200})"
    r"|\b(?P<name>[A-Za-z])\b\$?\s*(?:be|is|denotes?|represents?|stands? for|for|:=)\b",
    re.IGNORECASE,
)
_LETTER = re.compile(r"(?<![A-Za-z\\])([A-Za-z])(?![A-Za-z])")
_CHECKS = re.compile(
    r"\b(?:check|verify|verifying|checking|confirm|indeed|plug(?:ging)? (?:it )?back)\b", re.IGNORECASE
)


def derivation_order(problem: Problem, completion: str, how: How = "auto", phases: Sequence[str] = ()) -> Verdict:
    """Checks the order of a derivation: a step is wrong that uses an unknown which neither the problem nor a step up to it declares
    (``let x be``, ``where n is``, ``x = 3``); so is the last one, if the answer given is not what the claims end with.

    Args:
        how: how steps are cut; see ``split.py``.
        phases: of ``setup`` (unknowns declared), ``equation`` (a claim about one), ``solve`` (an unknown gets a value), ``check``;
        each must be there, and none may begin before the one named before it has. Missing ones make the whole wrong.
    """
    spans = split(completion, how)
    found = [said(completion, span.start, min(span.end, MAX_TEXT)) for span in spans if span.start < MAX_TEXT]
    declared = set(_LETTER.findall(" ".join(message.content for message in problem.messages))) - {"a", "A", "I"}
    steps: list[Step] = []
    for span, each in zip(spans, found, strict=False):
        text = completion[span.start : span.end]
        declared |= _declared(text) | _assigned(each)
        used = set().union(*(claim.left.names | claim.right.names for claim in each.claims))
        if unknown := sorted(used - declared):
            steps.append(step_of(span, False, f"{unknown[0]} is used before it is declared"))
            declared |= used  # told once
        else:
            steps.append(step_of(span, True if used else None, "its unknowns are declared" if used else "no unknowns"))
    last = next((each for each in reversed(found) if each.claims), None)
    if last is not None and steps[-1].status != "incorrect":
        solved = [claim.right.text for each in found for claim in each.claims if claim.left.text in claim.left.names]
        right, why = _answer(completion, last, solved)
        if right is not None:
            steps[-1] = step_of(spans[len(steps) - 1], right, why)
    missing = _missing([(completion[s.start : s.end], each) for s, each in zip(spans, found, strict=False)], phases)
    return whole(steps, fault=missing, evidence={"splitter": VERSION, "missing": missing})


def _declared(text: str) -> set[str]:
    out: set[str] = set()
    for match in _DECLARES.finditer(text):
        out |= set(_LETTER.findall(match["names"])) if match["names"] else {match["name"]}
    return out


def _assigned(each: Said) -> set[str]:
    """Names that a claim gives a value: ``x = 3``, ``T = 4 * 5``."""
    return {c.left.text for c in each.claims if c.relation == "=" and c.left.text in c.left.names and not c.right.names}


def _answer(completion: str, last: Said, solved: Sequence[str]) -> tuple[bool | None, str]:
    """Whether the answer that is given is a value of the last step, or one of an unknown that was solved."""
    given = extract(completion)
    if given is None or given.rule in ("last_expression", "whole"):
        return None, ""
    values = [claim.right.text for claim in last.claims] + [claim.left.text for claim in last.claims]
    verdicts = [compare(value, given.text).status for value in [*values, *solved]]
    if CORRECT in verdicts:
        return True, f"the answer {given.text[:40]} is what it ends with"
    if verdicts and all(status == INCORRECT for status in verdicts):
        return False, f"the answer {given.text[:40]} is not what the last step gives ({values[0][:40]})"
    return None, ""


def _missing(steps: Sequence[tuple[str, Said]], phases: Sequence[str]) -> str:
    """What is wrong about the phases; '' if nothing is."""
    at = 0
    for phase in phases:
        place = next((n for n in range(at, len(steps)) if _is(phase, *steps[n])), None)
        if place is None:
            early = any(_is(phase, *each) for each in steps)
            return f"phase {phase} {'comes too early' if early else 'is missing'}"
        at = place
    return ""


def _is(phase: str, text: str, each: Said) -> bool:
    with_names = [claim for claim in each.claims if claim.left.names or claim.right.names]
    if phase == "setup":
        return bool(_declared(text))
    if phase == "equation":
        return bool(with_names)
    if phase == "solve":
        return bool(_assigned(each))
    return bool(_CHECKS.search(text)) and bool(each.claims)
