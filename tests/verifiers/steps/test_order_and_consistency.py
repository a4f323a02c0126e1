"""Unknowns before their use, phases, the answer from the last claims; and no step that denies another."""

import pytest

from jurat.verifiers.steps.consistency import consistency
from jurat.verifiers.steps.derivation_order import derivation_order
from jurat.verifiers.verdicts import problem_of

ASKED = problem_of("4", prompt="A number doubled plus three is eleven. Which?")
ALL = ("setup", "equation", "solve", "check")
WHOLE = "Let x be the number.\n2x + 3 = 11\nx = 4\nCheck: 2 * 4 + 3 = 11\n#### 4"


def signs(verdict):
    return "".join({"correct": "+", "incorrect": "-", "abstained": "?"}[step.status] for step in verdict.steps)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (WHOLE, "?++?+"), ("2x + 3 = 11\nx = 4", "-+"), ("x = 4\n2x = 8", "++"), ("2n + 1 = 9, where n is the count", "+"),
        ("Let x be the number.\n2x + 3 = 11\nx = 4\n#### 5", "?++-"), ("Let x be it.\nx = 4\n#### 4", "?++"), ("3 + 4 = 7", "?"),
        ("Suppose a and b are sides.\na + b = c", "?-"),
    ],
)  # fmt: skip
def test_unknowns_are_declared_and_the_answer_follows(text, expected):
    assert signs(derivation_order(ASKED, text)) == expected


def test_unknowns_of_the_problem_are_declared():
    asked = problem_of("2", prompt="Solve 2x + 3 = 7 for x.")
    assert signs(derivation_order(asked, "2x = 4\nx = 2")) == "++"


def test_phases_in_their_order():
    assert derivation_order(ASKED, WHOLE, phases=ALL).status == "correct"
    for phase, text in (
        ("setup", "x = 4\n2 * 4 + 3 = 11"), ("check", WHOLE.replace("Check: ", "")),
        ("solve", WHOLE.replace("x = 4", "so it is four")),
    ):  # fmt: skip
        found = derivation_order(ASKED, text, phases=ALL)
        assert (found.status, found.evidence["missing"]) == ("incorrect", f"phase {phase} is missing")
    late = derivation_order(ASKED, "x = 4\nLet y be something.", phases=("setup", "solve"))
    assert late.evidence["missing"] == "phase solve comes too early"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 3\ny = 4\nx = 4", "??-"), ("x = 3\nLet x = 4", "??"), ("x = 1/2\nx = 0.5", "?+"), ("x = 2 or x = 3\nx = 2", "??"),
        ("The total cost is 12\nSo the total cost is 15", "?-"), ("The total cost is $12.\nNow the total cost is $15.", "??"),
        ("n is even.\nSo n is not even.", "?-"), ("3 < 5\n3 >= 5", "?-"), ("Ann's share is 4\nBob's share is 5", "??"),
        ("Case 1: x = 2\nCase 2: x = 3", "??"), ("nothing", "?"), ("", ""),
    ],
)  # fmt: skip
def test_no_step_denies_another(text, expected):
    assert signs(consistency(ASKED, text)) == expected


def test_what_contradicts_is_named():
    found = consistency(ASKED, "x = 3\nThen more.\nSo x = 4")
    assert found.why == "step 3: x was 3 in step 1, here it is 4"
    assert consistency(ASKED, "Fine.").status == "correct"  # nothing is denied
    assert consistency(ASKED, "").status == "abstained"
