"""Shared questions and n-grams between sets, and gold against its own verifier."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jurat.datasets.check import check_gold, refuse_failed
from jurat.datasets.contamination import contamination, refuse_shared, words
from jurat.datasets.load import messages_of
from jurat.platform.errors import DataError
from jurat.platform.recipe import Prompt
from jurat.platform.types import Problem, Verdict, VerifierSpec

TEMPLATE = Prompt(system="one two three four five six seven eight nine", prefix="Question: ",
                  suffix=" Think step by step and then give the answer as a single number.")  # fmt: skip


def asked(*texts, prompt=Prompt(), name="a"):
    return [
        Problem(id=f"{name}{i}", messages=messages_of(text, prompt), reference="1", verifier=VerifierSpec(name="math"),
                source=f"{name}.jsonl:{i + 1}")
        for i, text in enumerate(texts)
    ]  # fmt: skip


LONG = "Tom buys 7 red apples at the old market and gives 2 of them to Ana."


def test_a_copy_a_phrase_and_a_stranger():
    train = asked(LONG.upper().replace(".", " !"), "Yesterday Tom buys 7 red apples at the old shop", "How old is Zoe?",
                  "Tom buys 7 red apples at the new market", name="t")  # fmt: skip
    found = contamination(train, asked(LONG, name="h"))
    assert [(o.id, o.same, o.against_id) for o in found.overlaps] == [("t0", True, "h0"), ("t1", False, "h0")]
    assert found.overlaps[0].covered == 1.0
    assert found.overlaps[1].covered == pytest.approx(1 / 3)
    assert found.overlaps[1].gram == "tom buys 7 red apples at the old"
    assert (found.share, found.num_same, found.ids(0.9)) == (0.5, 1, ("t0",))
    assert found.to_json()["against_touched"] == 1


def test_short_questions_count_only_whole_and_signs_matter():
    train = asked("What is 7 + 5?", "what is 7 - 5", "What is 7 + 5 + 1?")
    found = contamination(train, asked("What is 7 - 5?", name="h"))
    assert [(o.id, o.same) for o in found.overlaps] == [("a1", True)]


def test_the_template_is_no_contamination():
    train, held = asked("How old is Zoe?", prompt=TEMPLATE), asked("Where is Tom?", prompt=TEMPLATE, name="h")
    assert not contamination(train, held, prompt=TEMPLATE).overlaps
    assert contamination(train, held).overlaps


def test_words_are_compared_without_case_form_or_punctuation():
    assert words("Café, №\u00a07.50—x") == words("cafe\u0301 no 7.50 x")


@given(st.lists(st.text(max_size=40), max_size=6), st.integers(1, 9))
def test_a_set_against_itself_is_wholly_the_same(texts, n):
    found = contamination(asked(*texts), asked(*texts), n=n)
    assert found.num_same == len(texts)
    assert all(o.covered == 1.0 for o in found.overlaps)


def test_training_on_a_held_out_question_is_refused():
    refuse_shared(asked("a b", "c"), asked("d"))
    with pytest.raises(DataError, match="1 of 2 held-out problems are trained on; first h1: 'C!'") as caught:
        refuse_shared(asked("a b", "c"), asked("d", "C!", name="h"))
    assert caught.value.where == "a.jsonl:2 and h.jsonl:2"


def test_gold_that_fails_its_verifier_is_listed_with_its_row():
    def verify(problem, text):
        good = text == r"\boxed{1}" and problem.id != "a1"
        return Verdict.of("correct") if good else Verdict.of("bad_gold", why="no parse")

    problems = asked("x", "y", "z")
    failed = check_gold(problems, verify)
    assert [(p.id, v.status) for p, v in failed] == [("a1", "bad_gold")]
    assert len(check_gold(problems, verify, present=lambda p: p.reference)) == 3
    with pytest.raises(DataError, match=r"(?s)1 of 3 gold answers.*a.jsonl:2: bad_gold by math: no parse; gold '1'"):
        refuse_failed(failed, 3)
    refuse_failed([], 3)
