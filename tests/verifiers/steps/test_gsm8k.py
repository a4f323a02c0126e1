"""The annotated calculations of real solutions: each decided, and one changed digit named. ``benchmarks/steps.py`` has all of them."""

import json
import os
import random
import re
from itertools import islice
from pathlib import Path

import pytest

from jurat.verifiers.steps.arithmetic import check
from jurat.verifiers.steps.claims import said
from jurat.verifiers.steps.equation_steps import judged
from jurat.verifiers.steps.split import split

DATA = Path(os.environ.get("JURAT_DATA", Path(__file__).parents[4] / "shared" / "data")) / "gsm8k" / "train.jsonl"
ANNOTATION = re.compile(r"<<([^<>]*)>>")


@pytest.fixture(scope="module")
def solutions():
    if not DATA.exists():
        pytest.skip(f"no GSM8K at {DATA} (set JURAT_DATA)")
    with DATA.open(encoding="utf-8") as lines:
        return [json.loads(line)["solution"].rpartition("####")[0] for line in islice(lines, 1_500)]


def test_every_annotation_is_decided_and_right(solutions):
    every = [text for solution in solutions for text in ANNOTATION.findall(solution)]
    found = {text: [check(claim).right for claim in said(f"<<{text}>>", 0, len(text) + 4).claims] for text in every}
    assert len(every) > 4_000 and {text: each for text, each in found.items() if each != [True]} == {}


def test_a_changed_digit_is_named_in_its_step(solutions):
    drawn, named, asked = random.Random(0), 0, 0
    for text in solutions:
        places = [match.span(1) for match in ANNOTATION.finditer(text)]
        if not places or any(step.status == "incorrect" for step in judged(text, split(text, "lines")).steps):
            continue
        start, end = drawn.choice(places)
        at = drawn.choice([place for place in range(start, end) if text[place].isdigit()])
        changed = text[:at] + drawn.choice([d for d in "0123456789" if d != text[at]]) + text[at + 1 :]
        steps = judged(changed, split(changed, "lines")).steps
        asked += 1
        named += any(step.status == "incorrect" and step.start <= at < step.end for step in steps)
    assert asked > 1_300 and named / asked >= 0.99
