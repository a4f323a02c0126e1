"""Answers in words: signs, case, articles, plurals, number words, modifiers and units."""

from __future__ import annotations

import pytest

from jurat.verifiers.math import compare


def same(gold: str, answer: str) -> bool:
    forward, backward = compare(gold, answer), compare(answer, gold)
    assert (forward.status == "correct") == (backward.status == "correct"), (gold, answer, forward, backward)
    return forward.status == "correct"


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("no fewer than -12", "no fewer than 12"),
        ("rises by .5 each day", "rises by 5 each day"),
        ("ratio of about 2/9", "ratio of about 2:9"),
        ("ratio of about 2/9", "ratio of about 2.9"),
        ("drops by 6-2", "drops by 6+2"),
        ("drops by 6-2", "drops by 6*2"),
        ("gain of $8", "gain of 8%"),
        ("gain of $8", "gain of 8"),
        ("focus (-4, 1), width 2", "focus (4, -1), width 2"),
        ("focus (-4, 1), width 2", "focus 4 1 width 2"),
        ("the gradient is -9", "the gradient is 9"),
        ("y-intercept -6", "y-intercept 6"),
        ("only at t=-1", "only at t=1"),
        ("leaves at 6:15", "leaves at 6.15"),
        ("runner a", "runner"),
        ("side B wins", "side wins"),
        ("squad A leads", "squad leads"),
        ("Athens", "Athen"),
        ("both a and c", "both and c"),
    ],
)
def test_texts_differ_by_one_sign_or_letter(gold: str, answer: str) -> None:
    assert not same(gold, answer)
    assert same(gold, gold) and same(answer, answer)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("slope -2 at the origin", "Slope \\(-2\\) at the origin."),
        ("\\text{x-intercept }4", "x intercept 4"),
        ("gain of 1,250 dollars", "gain of 1250 dollars"),
        ("it is an isosceles triangle", "it is isosceles triangle"),
        ("two right triangles", "two right triangle"),
        ("the parabola opens down", "The parabola opens down!"),
        ("focus (-4, 1)", "\\text{focus }(-4,1)"),
        ("Athens", "athens"),
    ],
)
def test_texts_are_equal_but_for_markup(gold: str, answer: str) -> None:
    assert same(gold, answer)


@pytest.mark.parametrize(
    ("gold", "answer", "equal"),
    [
        ("t<2 or t>5", "t<2 and t>5", False),
        ("t<2 \\text{ or } t>5", "t<2 \\land t>5", False),
        ("t<2 \\lor t>5", "(-\\infty,2)\\cup(5,\\infty)", True),
        ("t<2 or t>5", "t>5 or t<2", True),
        ("t<2 or t>5", "t<2, t>5", True),
        ("2<t<5", "t>2 and t<5", True),
        ("2<t<5", "t>2 or t<5", False),
        ("\\emptyset", "t<2 and t>5", True),
        ("0<t<1 or t>5", "t>0 and t<1 or t>5", True),
        ("0<t<1 or t>5", "t>0 and t<1 and t>5", False),
        ("a>b and c>d", "a>b or c>d", False),
        ("r\\land s", "r\\lor s", False),
        ("r\\land s", "s\\wedge r", True),
        ("u=3 and v=4", "u=3 or v=4", False),
        ("u=3 or u=4", "u=3 and u=4", True),
        ("3 or 4", "3 and 4", True),
    ],
)
def test_and_is_not_or(gold: str, answer: str, equal: bool) -> None:
    assert same(gold, answer) == equal


@pytest.mark.parametrize(
    ("value", "spelled"),
    [
        ("54", "fifty-four"),
        ("54", "Fifty Four"),
        ("707", "seven hundred and seven"),
        ("230", "two hundred thirty"),
        ("2600", "two thousand six hundred"),
        ("1/2", "one half"),
        ("1/2", "a half"),
        ("1/3", "\\text{one-third}"),
        ("5/8", "five eighths"),
        ("7/12", "7 twelfths"),
        ("9/20", "nine twentieths"),
        ("3/100", "three hundredths"),
        ("5/2", "two and a half"),
        ("11/4", "2 and three quarters"),
        ("-9", "minus nine"),
        ("-9", "negative 9"),
        ("-\\infty", "negative infinity"),
        ("36", "6 squared"),
        ("27", "three cubed"),
        ("24", "4 factorial"),
        ("31", "forty minus nine"),
        ("18", "twice 9"),
        ("9/2", "half of 9"),
        ("11", "nine plus two"),
        ("3\\times10^{15}", "3 quadrillion"),
        ("\\frac{3}{8}", "3 \\over 8"),
    ],
)
def test_numbers_in_words(value: str, spelled: str) -> None:
    assert same(value, spelled)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("46", "fifty-four"),
        ("50", "fifty-four"),
        ("-1", "three-four"),
        ("2", "six-four"),
        ("199", "two hundred-one"),
        ("46", "fifty - four"),
        ("9", "9 thirteenths"),
        ("9", "9 millionths"),
        ("9", "9 septillions"),
        ("9", "9 billionths"),
        ("9", "9 fives"),
        ("9", "9 halves"),
        ("9", "9 googols"),
        ("9", "9 quarters"),
        ("9", "minus 9"),
        ("9", "9 squared"),
        ("9", "half of 9"),
        ("9", "9 plus two"),
        ("9", "9 factorial"),
        ("9", "9 reciprocals"),
        ("9", "at most 9"),
        ("1/2", "2 half"),
    ],
)
def test_words_that_change_a_number_are_read_or_refused(gold: str, answer: str) -> None:
    assert not same(gold, answer)


@pytest.mark.parametrize("answer", ["9 seconds", "9 months", "9 red marbles", "9 paths", "9 square feet", "9 quarts"])
def test_units_and_counted_things_stay_units(answer: str) -> None:
    assert same("9", answer)


@pytest.mark.parametrize(
    ("gold", "answer", "equal"),
    [
        ("9", "n=8=9", False),
        ("9", "n=4=5=9", False),
        ("9", "n=2*4=9", False),
        ("9", "n=2*4+1=9", True),
        ("\\frac{1}{7}", "n=\\frac{2}{14}\\approx 0.1", True),
        ("(5,-2)", "y=5, x=-2", False),
        ("(5,-2)", "y=-2, x=5", True),
        ("(5,-2)", "x=5, y=-2", True),
        ("(1,4,9)", "c=9, a=1, b=4", True),
        ("(5,-2)", "v=5, a=-2", True),
        ("0.3", "0.3%", False),
        ("0.3", "30%", True),
        ("30", "30%", True),
        ("1", "1%", False),
    ],
)
def test_chains_names_and_percent(gold: str, answer: str, equal: bool) -> None:
    assert same(gold, answer) == equal


@pytest.mark.parametrize(
    ("gold", "answer", "equal"),
    [
        ("ABD", "DBA", False),
        ("ABD", "A, B, D", True),
        ("ABD", "ABBD", False),
        ("AD", "ADA", False),
        ("C, A, B", "C, A, B", True),
        ("CADB", "ABCD", False),
        ("\\frac{du}{dv}", "\\frac{u}{v}", False),
        ("\\frac{du}{dv}", "du/dv", True),
        ("\\frac{\\partial g}{\\partial y}", "\\frac{g}{y}", False),
        ("\\frac{d^2u}{dv^2}", "\\frac{du}{v^2}", False),
        ("\\frac{d}{dx}", "\\frac{1}{x}", False),
        ("\\frac{dy}{dx}=2x", "\\frac{dy}{dx}=x+x", True),
        ("\\frac{dy}{dx}=2x", "y'=2x", False),
        ("w=4\\text{ or }w=-6", "w_1=4, w_2=-6", True),
        ("w=4\\text{ or }w=-6", "w_1=4, w_2=6", False),
        ("w=4, u=-6", "w_1=4, w_2=-6", False),
        ("\\frac{d+1}{d}", "\\frac{1+d}{d}", True),
        ("\\frac{2d}{d}", "2", True),
    ],
)
def test_order_of_letters_derivatives_and_indexed_roots(gold: str, answer: str, equal: bool) -> None:
    assert same(gold, answer) == equal


def test_a_gold_out_of_alphabetical_order_is_a_ranking() -> None:
    assert compare("A, B, D", "D, A and B").status == "correct"
    assert compare("C, A, B", "A, B, C").status == "incorrect"
