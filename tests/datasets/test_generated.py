"""Generated problems: exact answers, reproducible, disjoint splits, and clear ends."""

import re
from fractions import Fraction
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jurat.datasets import generated, wording
from jurat.datasets.check import check_gold
from jurat.datasets.load import load_problems
from jurat.platform.errors import ConfigError, DataError
from jurat.platform.recipe import Prompt, RewardPart, Source
from jurat.verifiers.judge import build_judge

EVERY = [(family, level) for family, levels in generated.LEVELS.items() for level in levels]
BARE = re.compile(r"(?:What is|Compute|Calculate|Work out|Find|Solve:)? ?([-\d(][-+*/() \d]*[\d)]) ?=?[?.]?")


def take(count, level, split, *, seed=0, family="generated"):
    return list(islice(generated.distinct(family, seed=seed, level=level, split=split), count))


def value_of(expression):
    """Exact value of + - * / over whole numbers, fractions and brackets, by precedence; no eval."""
    tokens = re.findall(r"\d+|[-+*/()]", expression)

    def atom():
        token = tokens.pop(0)
        if token == "-":
            return -atom()
        if token == "(":
            found = sum_()
            assert tokens.pop(0) == ")"
            return found
        return Fraction(token)

    def term():
        found = atom()
        while tokens and tokens[0] in "*/":
            found = found * atom() if tokens.pop(0) == "*" else found / atom()
        return found

    def sum_():
        found = term()
        while tokens and tokens[0] in "+-":
            found = found + term() if tokens.pop(0) == "+" else found - term()
        return found

    found = sum_()
    assert not tokens, expression
    return found


@pytest.mark.parametrize(("family", "level"), EVERY)
def test_every_line_of_working_is_true_and_ends_in_the_answer(family, level):
    for q in islice(generated.distinct(family, seed=1, level=level, split="train"), 1500):
        chain = family == "generated:chain"
        assert Fraction(q.answer) == Fraction(q.solution.rpartition("=" if chain else "####")[2].strip())
        assert str(Fraction(q.answer)) == q.answer
        for line in q.solution.split(";" if chain else "\n"):
            for equation in [] if line.startswith("####") or "=" not in line else line.split(", "):
                left, right = equation.split("=")
                assert value_of(left) == value_of(right), (q.text, line)
        if found := BARE.fullmatch(q.text):
            assert value_of(found[1].replace("=", "")) == Fraction(q.answer), q.text


@pytest.mark.parametrize(("family", "level"), EVERY)
def test_texts_are_short_whole_and_worded_well(family, level):
    for q in islice(generated.distinct(family, seed=2, level=level, split="held_out"), 1500):
        assert len(q.text.split()) <= 25
        assert "{" not in q.text and "  " not in q.text
        assert not [things for _, things in wording.THINGS if re.search(rf"(?<![/-])\b1 {things}\b", q.text)], q.text
        assert all(str(n) in q.text.replace("-", "") or str(-n) in q.text for n in q.operands), q
        if level <= 2:
            assert 0 <= int(q.answer) <= 45


@pytest.mark.parametrize("level", generated.LEVELS["generated"])
def test_thousands_of_each_split_share_no_text_and_no_key(level):
    size = 20_000 if level == 4 else 4000
    train = take(size, level, "train")
    held = take(size, level, "held_out", seed=77)
    assert len({q.text for q in train}) == len({q.text for q in held}) == size
    assert not {q.text for q in train} & {q.text for q in held}
    assert not {q.key for q in train} & {q.key for q in held}


def test_a_held_out_pair_is_held_out_turned_round_and_at_every_level():
    held = {q.key for level in (1, 2, 3) for q in take(3000, level, "test")}
    for level in (1, 2, 3):
        for q in take(3000, level, "train", seed=5):
            sign = {"add": "+", "sub": "-", "mul": "*", "div": "/"}[q.kind[:3]]
            for a, b in (q.operands, q.operands[::-1] if sign in "+*" else q.operands):
                assert f"{a}{sign}{b}" not in held


def test_levels_1_to_3_share_no_key():
    keys = [{q.key for q in take(4000, level, "train")} for level in (1, 2, 3)]
    assert not keys[0] & keys[1] | keys[0] & keys[2] | keys[1] & keys[2]


def test_levels_1_and_2_hold_300_distinct_held_out_problems_over_many_operands():
    made = load_problems(Source(source="generated", levels=(1, 2), size=300), Prompt(), split="held_out")
    assert len({p.messages[0].content for p in made.problems}) == 300
    assert made.manifest.levels == {"1": 150, "2": 150}
    assert len({p.columns["key"] for p in made.problems}) >= 45


def test_level_1_is_mostly_bare_one_digit_questions():
    made = take(1000, 1, "train")
    assert sum("story" in q.kind for q in made) / 1000 < 0.35
    assert max(n for q in made for n in q.operands) == 9
    assert sum(len(q.text.split()) for q in made) / 1000 < 9


def test_plain_family_is_every_problem_once():
    both = [q for split in ("train", "held_out") for q in take(None, 1, split, family="generated:plain")]
    assert len(both) == len({q.text for q in both}) == 155
    assert all(re.fullmatch(r"\d[+-]\d=", q.text) for q in both)
    assert all(q.solution == q.answer for q in both)
    whole = load_problems(Source(source="generated:plain", levels=(1, 2)), Prompt(), split="train")
    assert whole.manifest.rows == 121 + 273


@settings(max_examples=40)
@given(st.sampled_from(EVERY), st.integers(0, 2**40), st.sampled_from(["train", "held_out"]), st.integers(0, 10**9))
def test_a_problem_is_a_function_of_seed_level_split_and_index(which, seed, split, index):
    family, level = which
    one, two = (generated.question(family, seed=seed, level=level, split=split, index=index) for _ in range(2))
    assert one == two
    assert generated.held_out(one.key) == (split == "held_out")


def test_gold_and_worked_solutions_pass_the_math_verifier():
    source = Source(source="generated", levels=generated.LEVELS["generated"], size=900)
    problems = load_problems(source, Prompt(), split="train").problems
    with build_judge(RewardPart()) as judge:
        assert not check_gold(problems, judge.verdict)
        assert not check_gold(problems, judge.verdict, present=lambda p: p.columns["solution"])


def test_a_chain_is_worked_from_left_to_right_and_stays_small():
    for level in generated.LEVELS["generated:chain"]:
        for q in islice(generated.distinct("generated:chain", seed=3, level=level, split="train"), 500):
            first, *asked = re.findall(r"[-+*]?\d+", q.text.removesuffix(":"))
            value, steps = int(first), []
            for sign, number in ((each[0], int(each[1:])) for each in asked):
                after = {"+": value + number, "-": value - number, "*": value * number}[sign]
                steps.append(f"{value}{sign}{number}={after}")
                value = after
                assert 0 <= value <= generated.CHAIN_MOST
            assert (len(asked), q.solution, q.answer) == (level + 1, ";".join(steps), str(value))


GOLDEN = [
    (1, "How many brushes are 2 brushes and 8 brushes? 10"),
    (2, "Subtract 8 from 10. 2"),
    (3, "Lin has 84 books and gets 83 more. How many books does Lin have? 167"),
    (4, "Compute 9 * 12 - 46. 62"),
    (5, "Find 15 percent of 320. 48"),
    (6, "Vera walks 9 miles a day for 7 days, then 5 miles a day for 2 days. How many miles in all? 73"),
]


@pytest.mark.parametrize(("level", "expected"), GOLDEN)
def test_problems_of_this_version_never_change(level, expected):
    q = generated.question("generated", seed=0, level=level, split="train", index=7)
    assert f"{q.text} {q.answer}" == expected


def test_asking_for_more_than_exists_says_how_many_exist():
    with pytest.raises(DataError, match=r"level 1 .* 'train', has 121 distinct problems, asked for 122"):
        load_problems(Source(source="generated:plain", size=122), Prompt(), split="train")


@pytest.mark.parametrize(
    ("source", "split", "said"),
    [
        (Source(source="generated:plian"), "train", r"Did you mean 'generated:plain'"),
        (Source(source="generated", levels=(1, 7), size=4), "train", r"levels \[1, 2, 3, 4, 5, 6\], got 7"),
        (Source(source="generated", split="trian", size=4), "train", r"Did you mean 'train'"),
    ],
)
def test_bad_family_level_and_split_are_named(source, split, said):
    with pytest.raises(ConfigError, match=said):
        load_problems(source, Prompt(), split=split)


def test_split_of_the_role_unless_the_source_names_one():
    def keys(source, split):
        return {p.columns["key"] for p in load_problems(source, Prompt(), split=split).problems}

    plain = Source(source="generated:plain")
    assert not keys(plain, "train") & keys(plain, "held_out")
    assert keys(plain, "unseen") == keys(plain, "held_out")
    recorded = Source.model_validate(plain.model_dump(mode="json"))  # as a run keeps it, and --resume reads it
    assert keys(recorded, "held_out") == keys(plain, "held_out")
    assert keys(Source(source="generated:plain", split="train"), "held_out") == keys(plain, "train")
