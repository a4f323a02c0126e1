"""Each equality where it stands: what is right, what is wrong and why, what nobody can check; and how not to be fooled."""

import random

import pytest

from jurat.verifiers.steps import planted
from jurat.verifiers.steps.equation_steps import equation_steps, judged
from jurat.verifiers.steps.split import split
from jurat.verifiers.verdicts import problem_of

SIGNS = {"correct": "+", "incorrect": "-", "abstained": "?"}


def signs(text, how="auto"):
    """One sign a step: + right, - wrong, ? not checkable."""
    return "".join(SIGNS[step.status] for step in judged(text, split(text, how)).steps)


@pytest.mark.parametrize(
    "text",
    [
        "48/2 = 24", "Natalia sold 48/2 = <<48/2=24>>24 clips in May.", "He pays $5 * 3 = $15.", "1,200 + 300 = 1,500",
        "50% of 80 = 40", "1/2 of 60 = 30", "80 * 25% = 20", "1/4 * 100 = 25%", "3 1/2 + 1/2 = 4", "1 and 1/4 + 1/4 = 1 1/2",
        "0.2 x 50 = 10", "12 × 3 = 36", "12 ÷ 3 = 4", "7 − 9 = −2", "2^10 = 1024", "2**3 = 8", "560//10 = 56",
        "3 apples + 2 apples = 5 apples", "2 hours = 120 minutes", "2 hours + 30 minutes = 150 minutes", "$1 / 2 = 50 cents",
        "4.5 gallons = 36 pints", "100/3 = 33.33", "2/3 = 0.667", "10/3 ≈ 3", "22/7 \\approx 3.14", "\\frac{48}{2} = 24",
        "3 \\cdot 4 = 12", "$\\frac{1}{2} + \\frac{1}{3} = \\frac{5}{6}$", "\\sqrt{16} = 4", "\\left(2 + 3\\right) \\times 4 = 20",
        "2(3 + 4) = 14", "3 < 4", "5 \\geq 5", "(x + 1)^2 = x^2 + 2x + 1", "- 3 + 4 = 7", "Step 2: 3 + 4 = 7",
        "100 / 3 = 33 boxes, with 1 remaining", "16 - 3 - 4 = 9 and 9 * 2 = 18", "2 + 3 = 5 = 10 / 2",
    ],
)  # fmt: skip
def test_right(text):
    assert signs(text, "lines") == "+", judged(text, split(text, "lines")).steps


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("48/2 = 25", "48/2 is 24, not 25"), ("48/2 = <<48/2=24>>23", "48/2 is 24, not 23"), ("<<48/2=23>>", "48/2 is 24, not 23"),
        ("100/3 = 33.34", "100/3 is 100/3, not 33.34"), ("10/3 = 3", "10/3 is 10/3, not 3"),
        ("2 hours = 100 minutes", "the units make them differ"), ("2 hours + 30 minutes = 32 hours", "the units make them differ"),
        ("50% of 80 = 45", "50%*80 is 40, not 45"), ("5/0 = 5", "a division by zero"), ("5 > 7", "5 > 7 is false"),
        ("\\sqrt{2} = 1.5", "is false"), ("2 + 3 = 5 = 6", "5 is 5, not 6"), ("3 + 4 = 7, so 7 * 2 = 15", "7*2 is 14, not 15"),
        ("Expanding, (x + 1)^2 = x^2 + 1", "does not hold for every x"),
    ],
)  # fmt: skip
def test_wrong(text, why):
    (step,) = judged(text, split(text, "lines")).steps
    assert (step.status, step.score) == ("incorrect", 0.0) and why in step.why, step


@pytest.mark.parametrize(
    "text",
    [
        "Weng earns money.", "14 pieces/house * 60 houses = 840 pieces", "From 8:00 to 11:00 she spends 11:00 - 8:00 = 3 hours.",
        "Caleb's 7 gallons + Cynthia's 8 gallons = 15 gallons", "20 total gnomes – 12 gnomes = 8 gnomes", "5 meters at the 1st turn = 13",
        "Total = 5", "f(x = 3", "2x + 3 = 7", "5 = 5", "x = x", "(1/2) 1956 = 978", "16,0000/10 = 16000",
        "(" * 3000 + "1" + ")" * 3000 + " = 1", "1+" * 5000 + "1 = 2", "\ud800 = \x00", "= = = <<>> << = >>",
    ],
)  # fmt: skip
def test_not_checkable_is_not_wrong(text):
    assert set(signs(text, "lines")) <= {"?"}, judged(text, split(text, "lines")).steps


def test_towers_of_powers_are_bounded():
    assert "+" not in signs("9^9^9^9^9 = 1\n2^(2^(2^(2^(2^2)))) = 3 + 4\n7 * (3^1000000000) = 5", "lines")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2x + 3 = 7\n2x = 4\nx = 2\nCheck: 2 * 2 + 3 = 7", "?+++"), ("2x + 3 = 7\n2x = 10\nx = 5", "?--"),
        ("x^2 - 5x + 6 = 0\n(x - 2)(x - 3) = 0\nx = 2 or x = 3", "?++"), ("x^2 = 9\nx = ±3", "?+"), ("x^2 = 9\nx = 3", "?-"),
        ("x^2 = 9\nSince x is positive, x = 3", "??"), ("x^2 = 3x\nx = 3", "?-"), ("x*y = 2*x\ny = 2", "?-"),
        ("a*b = a*c\na*(b - c) = 0", "?+"),
        ("(x + 2)/(x - 1) = 3\nx + 2 = 3(x - 1)\n5 = 2x\nx = 2.5", "?+++"), ("x = 3\nx^2 = 9", "?+"), 
        ("x^3 = x\nx(x - 1)(x + 1) = 0", "?+"),
        ("x^3 = 8\nx = 2", "?+"), ("x + y = 10\nx - y = 2\n2x = 12\nx = 6\ny = 4", "??+++"), 
        ("x + y = 10\nx - y = 2\nAdding gives 2x = 14", "??-"),
        ("We know that p + j = 70 and j = p + 12\nSo p + 12 + p = 70\n2p = 58\np = 29\nj = 29 + 12 = 41", "?++++"),
        ("x = 5\ny = 2x + 1 = 11\ny = 12", "?+-"), ("x = 2\nx + 3 = 6", "?-"), ("x = 2\nLet x = 7\nx + 1 = 8", "??+"),
        ("2(x + 3) - x\n= 2x + 6 - x\n= x + 6\n= x + 5", "?++-"), ("48/2\n= 24", "?+"),
    ],
)  # fmt: skip
def test_with_unknowns(text, expected):
    assert signs(text, "lines") == expected, judged(text, split(text, "lines")).steps


def test_how_a_wrong_solution_is_told():
    text = "2x + 3 = 7\nSo 2x = 10\nx = 5"
    verdict = equation_steps(problem_of("2"), text)
    assert (verdict.status, verdict.score, verdict.evidence["first_error"]) == ("incorrect", 0.0, 2)
    assert verdict.why == "step 2: 2x = 10 does not follow from step 1"
    assert text[verdict.steps[1].start : verdict.steps[1].end] == "So 2x = 10"
    half = equation_steps(problem_of("2"), "3 + 4 = 7\n7 + 1 = 9", score="share")
    assert (half.status, half.score) == ("partial", 0.5)
    assert equation_steps(problem_of("2"), "No numbers here.").status == "abstained"
    lost = equation_steps(problem_of("3"), "x^2 = 3x\nx = 3").steps[1]
    assert lost.why == "x = 3: loses the solutions of x = 0 of step 1"


# ---- ways to earn without work -----------------------------------------------------------------------------------


def test_padding_with_what_needs_no_saying_earns_nothing():
    plain = equation_steps(problem_of("14"), "3 + 4 = 7\n7 * 2 = 15", score="share")
    padded = equation_steps(problem_of("14"), "1 = 1\nx = x\n7 = 7\n3 + 4 = 7\n5 = 5\n7 * 2 = 15\n2 = 2", score="share")
    assert padded.score == plain.score == 0.5


def test_repeating_a_right_step_earns_nothing():
    said = "3 + 4 = 7\n" * 20
    assert signs(said + "7 * 2 = 15") == "+" + "?" * 19 + "-"
    assert signs("3 + 4 = 7\n3+4=7\n3 + 4 = <<3+4=7>>7") == "+??"  # in other words


def test_a_single_answer_has_no_step_to_be_paid_for():
    assert equation_steps(problem_of("14"), "#### 14").status == "abstained"
    assert equation_steps(problem_of("14"), "The answer is 14.").status == "abstained"


def test_a_wrong_step_cut_in_pieces_stays_wrong():
    assert signs("2x = 10\n2x\n= 8", "lines") == "??-"
    assert signs("3 + 4\n= 8", "lines") == "?-"
    assert signs("3 + 4\n= 7\n= 8", "lines") == "?+-"


# ---- planted errors ----------------------------------------------------------------------------------------------


def test_planted_errors_are_named_where_they_are():
    """Held-out seeds of ``benchmarks/steps.py planted``; all forms, all kinds."""
    hits = {kind: [0, 0] for kind in ("", *planted.ERRORS)}
    for number in range(1_200):
        drawn = random.Random(f"test:{number}")
        error = drawn.choice(planted.ERRORS) if number % 2 else ""
        made, form = planted.derivation(drawn, error), drawn.choice(planted.FORMS)
        text = made.text(form)
        at = judged(text, split(text, planted.HOW[form])).evidence.get("first_error")
        hits[error][0] += at == made.at
        hits[error][1] += 1
    shares = {kind: hit / count for kind, (hit, count) in hits.items()}
    assert shares[""] >= 0.99 and min(shares.values()) >= 0.95, shares
