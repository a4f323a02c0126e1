"""Where a text is cut, and that the cuts meet the tokens."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jurat.platform.types import Step
from jurat.trainers.credit import step_ends
from jurat.verifiers.steps.split import MAX_STEPS, split


def cut(text, how="auto"):
    return [text[a:b] for a, b in split(text, how)]


def test_tags_numbers_lines_and_sentences():
    assert cut("<step>a</step> between <step n=2>b\nc</step><step>open") == ["a", "b\nc", "open"]
    assert cut("First.\nStep 1: a\nb\nStep 2) c") == ["First.", "Step 1: a\nb", "Step 2) c"]
    assert cut("1. a\n2. b\n3.5 = c") == ["1. a", "2. b\n3.5 = c"]  # a decimal is no number of a step
    assert cut("a\n\n  b  \n") == ["a", "b"]
    assert cut("1. only one\nand more") == ["1. only one", "and more"]
    assert cut("3 + 4 = 7. Then 7 - 2 = 5, so 5 * 2 = 10", "equations") == [
        "3 + 4 = 7.",
        "Then 7 - 2 = 5,",
        "so 5 * 2 = 10",
    ]
    assert cut("x = 2.5 and y = 3.5", "equations") == ["x = 2.5 and y = 3.5"]
    assert cut("") == cut(" \n\t ") == []
    assert len(cut("a\n" * 5_000)) == MAX_STEPS


@given(st.text(max_size=200), st.sampled_from(["auto", "tags", "numbered", "lines", "equations"]))
def test_steps_are_in_order_and_none_is_empty_or_over_another(text, how):
    at = 0
    for start, end in split(text, how):
        assert at <= start < end <= len(text) and not text[start].isspace() and not text[end - 1].isspace()
        at = end


@given(
    st.lists(st.sampled_from(["3 + 4", " = 7", "\n", "é", "🙂", "Step 2: ", "x"]), min_size=1, max_size=20), st.data()
)
def test_a_step_ends_in_the_token_that_holds_its_last_character(pieces, data):
    """Whatever the tokens are: here the text is cut at random."""
    text = "".join(pieces)
    ends = np.array(sorted({*data.draw(st.lists(st.integers(1, len(text)), max_size=8)), len(text)}), dtype=np.int64)
    spans = split(text, "lines")
    found = step_ends([Step(start=a, end=b, status="correct", score=1.0, why="") for a, b in spans], ends)
    for (_, end), token in zip(spans, found, strict=True):
        assert ends[token] >= end and (token == 0 or ends[token - 1] < end)
