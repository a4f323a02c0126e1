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
