"""The verifier ``equation_steps``: every equality of a solution, checked where it stands."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jurat.platform.types import Problem, Step, Verdict
from jurat.verifiers.steps import arithmetic, equations
from jurat.verifiers.steps.claims import Claim, Said, said, words_before
from jurat.verifiers.steps.split import VERSION, How, Span, split
from jurat.verifiers.steps.verdicts import Score, step_of, whole

MAX_TEXT = 32_000
"""Characters that are read; a step that begins beyond is not checkable."""
PREMISE = frozenset("let given if suppose assume denote define set call represent know has have costs".split())
CONCLUSION = frozenset(
    "so thus hence therefore then gives get gets yields subtracting adding dividing multiplying simplifying simplifies becomes means "
    "implies solving factoring squaring rearranging substituting".split()
)
_REMAINDER = re.compile(r"\b(?:remain|leftover|left over|remainder|full|whole|complete)", re.IGNORECASE)
_LET = re.compile(r"\b(?:let|set)\s*\Z", re.IGNORECASE)
REWRITES = frozenset("expand expanding simplify simplifying factor factoring expands simplifies".split())
REASONED = re.compile(
    r"\b(?:case|since|because|reject|discard|positive|negative|non-?zero|only|cannot|can't|must|must be|extraneous|check)\b|≠|!=|\\neq?\b",
    re.IGNORECASE,
)
"""Words by which a step tells why solutions go or come: what they say is not decided here."""


def equation_steps(problem: Problem, completion: str, how: How = "auto", score: Score = "all") -> Verdict:
    """Checks each step's equalities exactly: arithmetic, equivalence to an earlier equation, substitution, units, annotations.

    A step is ``correct`` (all that it claims and that can be decided is so), ``incorrect`` (something is not) or ``abstained``: not
    checkable, without a score. So are a step that claims what it need not (``5 = 5``), and one that claims only what an
    earlier one did: neither padding nor repeating earns anything. A line that begins with ``=`` goes on from the line before.

    Args:
        how: how steps are cut; see ``split.py``.
        score: of the whole. ``all``: 1 if no step is incorrect, else 0; ``share``: of the steps with a score those that are
        correct. A text in which nothing is checkable abstains.
    """
    return judged(completion, split(completion, how), score)


def judged(text: str, spans: Sequence[Span], score: Score = "all") -> Verdict:
    """The verdict on steps that are cut already."""
    known, seen, before = equations.Known(), dict[tuple[str, str, str], int](), Said((), None, "", None)
    steps: list[Step] = []
    rewriting = False
    for number, span in enumerate(spans, 1):
        if span.start >= MAX_TEXT:
            steps.append(step_of(span, None, "too far into the text"))
            continue
        found = said(text, span.start, min(span.end, MAX_TEXT))
        claims, goes_on = list(found.claims), False
        if found.first is not None and before.last is not None:  # "= 24" on a line of its own
            claims.insert(0, Claim(before.last, found.relation, found.first))
            goes_on = not before.claims or rewriting
        rewriting = goes_on
        steps.append(_of(text, span, claims, known, seen, number, goes_on))
        before = found
    return whole(steps, score=score, evidence={"splitter": VERSION})


def _of(
    text: str,
    span: Span,
    claims: list[Claim],
    known: equations.Known,
    seen: dict[tuple[str, str, str], int],
    number: int,
    goes_on: bool,
) -> Step:
    """One step, by all that it claims: wrong if anything is, right if something is and nothing is wrong. ``goes_on``: it begins
    with ``=`` and rewrites an expression, not an equation."""
    right, whys = None, []
    for group in _joined(text, claims):
        claim = group[0]
        key = (claim.left.text, claim.relation, claim.right.text)
        if claim.left.text == claim.right.text and claim.relation == "=":
            whys.append(f"{claim.left.text} = {claim.right.text} says nothing")
            continue
        if key in seen and seen[key] != number:
            whys.append(f"repeats step {seen[key]}")
            continue
        found = _decided(text, span, group, known, number, goes_on and claim is claims[0])
        seen.setdefault(key, number)
        if found.right is False:
            return step_of(span, False, found.why)
        if found.right:
            right = True
        whys.insert(0 if found.right else len(whys), found.why)
    return step_of(span, right, whys[0] if whys else "nothing is claimed that can be checked")


def _joined(text: str, claims: list[Claim]) -> list[list[Claim]]:
    """Equations with an ``or`` between them are one claim."""
    out: list[list[Claim]] = []
    for claim in claims:
        if out and claim.relation == "=" and out[-1][-1].relation == "=" and claim.left.names:
            between = text[out[-1][-1].right.end : claim.left.start].strip(" ,$\\()")
            if between.lower() in ("or", "or else", "text{ or }", "text{or}"):
                out[-1].append(claim)
                continue
        out.append([claim])
    return out


def _decided(
    text: str, span: Span, group: list[Claim], known: equations.Known, number: int, goes_on: bool
) -> arithmetic.Decided:
    claim = group[0]
    if not any(each.left.names or each.right.names for each in group):
        return arithmetic.check(claim, remainder=bool(_REMAINDER.search(text[span.start : span.end])))
    if claim.relation != "=":
        return arithmetic.Decided(None, "an inequality with unknowns")
    words = set(words_before(text, span.start, claim.left.start))
    premise = bool(words & PREMISE)
    if _LET.search(text[span.start : claim.left.start]) and claim.left.text in claim.left.names:
        known.forget(claim.left.text)
    rewrites = goes_on or (
        bool(words & REWRITES) and not known.about(claim) and claim.left.text not in claim.left.names
    )
    found = equations.check(
        group, known, concludes=bool(words & CONCLUSION), premise=premise and not rewrites, rewrites=rewrites
    )
    if (
        found.right is False
        and ("loses" in found.why or "gains" in found.why)
        and REASONED.search(text[span.start : span.end])
    ):
        found = found._replace(right=None, why=f"{found.why}; a reason is given")
    if found.right is not False and len(group) == 1 and not rewrites:
        known.learn(claim, number)
    elif len(group) > 1 and found.right is not False:
        node = equations.difference(group)
        if node is not None:
            known.equations.append((node, number))
    return found
