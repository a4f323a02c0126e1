"""What a completion asserts: denials, corrections, bounds and choices around the answer."""

from __future__ import annotations

import pytest

from jurat.verifiers.math import judge_text


def accepted(gold: str, text: str) -> bool:
    return judge_text(gold, text).status == "correct"


@pytest.mark.parametrize(
    "text",
    [
        "not \\boxed{35}",
        "The result isn't $\\boxed{35}$.",
        "We never reach \\boxed{35}",
        "\\boxed{35} is incorrect",
        "\\boxed{35} can't be right, that was a mistake",
        "\\boxed{35}? No.",
        "\\boxed{35}. Wait, no: it is 36.",
        "\\boxed{35} but I made a mistake: the answer is 36",
        "\\boxed{35}. Scratch that, I give up.",
        "Final answer: 35. Correction: 36.",
        "The answer is 35. Oops, that is wrong.",
        "The answer is 35. Sorry, no, it's 36",
        "The answer is 35? Not at all.",
        "It is not so that the answer is 35",
        "A frequent wrong answer is 35",
        "The incorrect result would be 35",
        "answer is wrong: 35",
        "The answer is 36 instead of 35",
        "The answer is 36 rather than 35.",
        "The answer is 36 (35 is too small)",
        "The answer is 36, and 35 is wrong",
        "x = 36 (not 35)",
        "We get 36, not 35.",
        "Everything except 35",
        "Any number but 35",
        "y differs: it is far from 35",
        "We can rule out 35",
        "The candidate 35 fails",
        "35 does not work",
        "I refuse to answer 35",
        "~~35~~",
        "The value is 36 <!-- the answer is 35 -->",
        "```python\n# the answer is 35\nprint(36)\n```",
    ],
)
def test_a_denied_value_is_never_the_answer(text: str) -> None:
    assert not accepted("35", text)


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{35}. Wait, no: it is 36.",
        "Final answer: 35. Correction: 36.",
        "The answer is 35. Sorry, no, it's 36",
        "The answer is 36 instead of 35",
        "The answer is 36 rather than 35.",
        "The answer is 36 (35 is too small)",
        "The answer is 36, since 35 is too small.",
        "The answer is not 35 but 36.",
        "The answer is not 35; it is 36.",
        "x = 36 (not 35)",
        "So 36 is the answer, not 35.",
        "The final answer is 36 apples, not 35.",
        "It's not 35, it's 36.",
        "no it is not 35 it's 36 kg",
        "\\boxed{36}\n\nNote that 35 is wrong.",
        "\\boxed{36}. No other value works.",
        "Since 35 does not fit, we get 36.",
        "The number of pupils who did not vote is 50 - 14 = 36",
        "She does not need more than that.\nSo she has 36",
        "It costs $40 - $4 = $36 more than before.",
        "It rang 6 * 6 = 36 times.",
        "The answer is $\\boxed{36}$ because 35 is not possible.",
    ],
)
def test_the_asserted_value_is_the_answer(text: str) -> None:
    assert accepted("36", text)


@pytest.mark.parametrize(
    "text",
    [
        "The answer is at most 35",
        "no less than 35",
        "greater than 35",
        "The answer is roughly 35",
        "The answer is half of 35",
        "The answer is double 35",
        "The answer is the square of 35",
        "The answer is the reciprocal of 35",
        "The answer is minus 35",
        "The answer is minus $35$",
        "The answer is 35 squared",
        "The answer is 35 plus two",
        "The answer is 35!",
        "The answer is 35 less than the sum",
        "The answer is 1 more than 35",
        "The answer is either $34$ or $35$",
        "It is **34** or **35**.",
        "n is $34$ or $35$",
        "The answer is 34 (or 35)",
        "The answer is one of 33, 34, 35",
        "between 34 and 35",
        "perhaps 34, perhaps 35",
        "The answer could be 34 but might be 35",
        "The answer is unlikely to be 35",
    ],
)
def test_bounds_choices_and_changes_are_no_answer(text: str) -> None:
    assert not accepted("35", text)


@pytest.mark.parametrize(
    ("gold", "text", "right"),
    [
        ("C", "The answer is C or D", False),
        ("C", "(A) (B) (C) (D)", False),
        ("C", "Surely not C", False),
        ("C", "C is wrong", False),
        ("C", "C. Because D is too small", True),
        ("C", "The correct choice is (C).", True),
        ("at most 35", "The answer is at most 35.", True),
        ("-5", "The answer is minus 5.", True),
        ("-5", "The answer is negative five.", True),
        ("no", "No.", True),
        ("Friday", "Friday", True),
        ("\\text{odd}", "odd", True),
        ("odd", "even", False),
        ("\\emptyset", "empty set", True),
        ("\\frac12", "one half", True),
        ("3/4", "three quarters", True),
        ("no solution", "There is no solution.", True),
        ("no solution", "There is a solution.", False),
    ],
)
def test_letters_and_bare_texts(gold: str, text: str, right: bool) -> None:
    assert accepted(gold, text) == right


def test_a_commented_box_is_no_box() -> None:
    assert accepted("8", "\\boxed{8} % \\boxed{9}") and not accepted("9", "\\boxed{8} % \\boxed{9}")
    assert accepted("8", "\\boxed{8} <!-- \\boxed{9} -->") and not accepted("9", "\\boxed{8} <!-- \\boxed{9} -->")
    assert accepted("50\\%", "\\boxed{50}\\%")
