"""Rules about text and answers: what they accept, what they refuse, and what they say."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jurat
from jurat.platform.errors import ConfigError
from jurat.platform.types import FAULTS
from jurat.verifiers import answers, catalog, compose, rules, verdicts
from jurat.verifiers.verdicts import problem_of


def run(name: str, completion: str, gold: str = "7", **args):
    return catalog.find(name).build(args)(problem_of(gold, verifier=name), completion)


def why(name: str, completion: str, gold: str = "7", **args) -> tuple[str, str]:
    verdict = run(name, completion, gold, **args)
    return verdict.status, verdict.why


def test_exact():
    assert why("exact", " 7\n") == ("correct", "text_equal")
    assert why("exact", "7 ") == ("correct", "text_equal")
    assert run("exact", " 7", strip=False).status == "incorrect"
    assert run("exact", "paris", "Paris").status == "incorrect"
    assert run("exact", "paris", "Paris", case=False).status == "correct"
    assert run("exact", "  ").status == "no_answer"
    assert run("exact", "x", " ").status == "bad_gold"


@pytest.mark.parametrize(
    ("text", "gold", "status"),
    [
        ("the answer is 7.", "7", "correct"),
        ("7 is wrong, 8", "7", "incorrect"),
        ("0.1", "1/10", "correct"),
        ("1,234.50", "1234.5", "correct"),
        ("−3", "-3", "correct"),
        ("2e3", "2000", "correct"),
        ("3/4", "0.75", "correct"),
        ("1/0", "1", "unparseable"),
        ("none", "7", "no_answer"),
        ("7", "seven", "bad_gold"),
        ("123456789123456789", "123456789123456788", "incorrect"),
        ("9" * 500, "7", "too_large"),
        ("1e999", "7", "incorrect"),
    ],
)
def test_number(text, gold, status):
    assert run("number", text, gold).status == status


def test_number_tolerances_are_exact_at_the_edge():
    assert run("number", "1.01", "1", tolerance=0.01).status == "correct"
    assert run("number", "1.0100000000000001", "1", tolerance=0.01).status == "incorrect"
    assert run("number", "101", "100", tolerance=0.01, relative=True).status == "correct"
    assert run("number", "-101.001", "-100", tolerance=0.01, relative=True).status == "incorrect"


@pytest.mark.parametrize(
    ("text", "status", "read"),
    [
        ("B", "correct", "B"),
        ("(b)", "correct", "B"),
        ("B. because of that", "correct", "B"),
        ("Answer: B", "correct", "B"),
        ("The answer is (B).", "correct", "B"),
        (r"so \boxed{B}", "correct", "B"),
        (r"\boxed{\text{B}}", "correct", "B"),
        ("**Answer: B**", "correct", "B"),
        ("Answer: A. No, answer: B", "correct", "B"),
        ("Answer: B\nAnswer: C", "incorrect", "C"),
        ("A man walks", "no_answer", ""),
        ("the answer is Blue", "no_answer", ""),
        ("answer: Z", "no_answer", ""),
        ("A, B, C", "no_answer", ""),
        ("", "no_answer", ""),
    ],
)
def test_choice(text, status, read):
    verdict = run("choice", text, "(B)")
    assert (verdict.status, verdict.read) == (status, read)


def test_choice_flags_several_answers_and_refuses_a_gold_that_is_no_letter():
    assert run("choice", "Answer: A. No, answer: B", "B").flags == ("several_answers",)
    assert run("choice", "B", "F").status == "bad_gold"
    assert run("choice", "F", "F", letters="ABCDEF").status == "correct"


def test_length_counts_what_it_says_and_sees_a_cut():
    assert why("length", "abc", max=3) == ("correct", "length_within")
    assert why("length", "abcd", max=3) == ("incorrect", "too_long")
    assert why("length", "a b c d", max=3, unit="words") == ("incorrect", "too_long")
    assert why("length", "a", min=2) == ("incorrect", "too_short")
    assert rules.length(problem_of("7"), "a", finish="length").why == "cut_at_limit"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<think>a</think> <answer>b</answer>\n", "tags_in_order"),
        ("<think>a</think>", "<answer> occurs 0 times"),
        ("<think>a</think><answer>b</answer><answer>c</answer>", "<answer> occurs 2 times"),
        ("<answer>b</answer><think>a</think>", "text before <think>"),
        ("<think>a<answer>b</think></answer>", "<answer> or </answer> is out of order"),
        ("hm <think>a</think><answer>b</answer>", "text before <think>"),
        ("<think>a</think><answer>b</answer> and", "text after </answer>"),
        ("<think> </think><answer>b</answer>", "<think> is empty"),
        ("</think>a<think><answer>b</answer>", "<think> or </think> is out of order"),
    ],
)
def test_tags(text, said):
    assert why("tags", text) == ("correct" if said == "tags_in_order" else "incorrect", said)


def test_language_measures_scripts():
    assert run("language", "plain English, \u03b1 + \u03b2").status == "correct"
    mixed = run("language", "half \u4e2d\u6587\u4e2d\u6587")
    assert (mixed.status, mixed.read) == ("incorrect", "0.5000")
    assert run("language", "\u041f\u0440\u0438\u0432\u0435\u0442", scripts=["cyrillic"]).status == "correct"
    assert why("language", "12 + 3") == ("correct", "no_letters")


def test_fluency_names_what_is_wrong():
    good = "We add the two numbers and find that the sum is twelve, which answers the question as it was asked."
    assert why("fluency", good) == ("correct", "fluent")
    assert why("fluency", "so " * 31)[1] == "word_run"
    assert why("fluency", "a" * 31)[1] == "character_run"
    assert why("fluency", (good + "\n") * 9)[1] == "repeated_lines"
    assert why("fluency", "one two three four five. " * 8)[1] == "repeated_words"
    assert why("fluency", "\ufffd" + "ab " * 10)[1] == "broken_characters"
    assert why("fluency", "\ud800ab")[1] == "broken_characters"
    assert run("fluency", good).evidence["repeated_words"] == 0.0


SCHEMA = {
    "type": "object",
    "required": ["answer"],
    "additionalProperties": False,
    "properties": {"answer": {"type": "integer", "minimum": 0}, "tags": {"type": "array", "items": {"type": "string"}}},
}


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ('{"answer": 3}', "correct", "schema_valid"),
        ('```json\n{"answer": 3}\n```', "correct", "schema_valid"),
        ('{"answer": 3.0}', "correct", "schema_valid"),
        ('{"answer": true}', "incorrect", "$.answer: expected integer, got bool"),
        ('{"answer": -1}', "incorrect", "$.answer: value -1 is below minimum 0"),
        ('{"answer": 1, "x": 2}', "incorrect", "$.x: not allowed"),
        ('{"tags": []}', "incorrect", "$: 'answer' is missing"),
        ('{"answer": 1, "tags": ["a", 2]}', "incorrect", "$.tags[1]: expected string, got int"),
        ("[]", "incorrect", "$: expected object, got list"),
        ("{", "unparseable", "not JSON"),
        ('{"answer": NaN}', "unparseable", "not JSON: NaN"),
        ("[" * 100_000, "unparseable", "not JSON"),
        ("", "no_answer", "no JSON"),
    ],
)
def test_json_schema(text, status, said):
    got = why("json_schema", text, schema=SCHEMA)
    assert got[0] == status and said in got[1]


def test_a_schema_it_cannot_keep_its_promise_for_is_refused():
    with pytest.raises(ConfigError, match="pattern is not supported"):
        run("json_schema", "{}", schema={"properties": {"a": {"pattern": "(a+)+"}}})


def test_a_regex_that_never_ends_is_killed():
    bad = {"pattern": "(a+)+b"}
    verdict = jurat.verify("regex_format", gold="x", completion="a" * 64, **bad)
    assert (verdict.status, verdict.fault, verdict.isolation) == ("timeout", "verifier", "process")
    assert jurat.verify("regex_format", gold="x", completion="aab", **bad).status == "correct"
    with pytest.raises(ConfigError, match="is no regular expression"):
        jurat.verify("regex_format", gold="x", completion="aab", pattern="(")


@given(st.text(), st.text(min_size=1))
def test_every_bounded_verifier_answers_every_text(completion, gold):
    for name, definition in catalog.BUILT_IN.items():
        if not definition.bounded or name in ("math", "json_schema"):
            continue
        verdict = definition.build({})(problem_of(gold, verifier=name), completion)
        assert verdicts.problem_with(verdict) == "" and verdict.status in FAULTS


@pytest.mark.parametrize(
    "unit", ["A: ", "answer: B ", "\\boxed{", "1,111", "<think>", "/", "a\u0301", "[[", "9" * 50 + " "]
)
def test_long_texts_take_linear_time(unit):
    text = unit * (400_000 // len(unit))
    for name in ("choice", "number", "tags", "language", "fluency", "exact", "length"):
        started = time.process_time()
        run(name, text, "A" if name == "choice" else "7")
        assert time.process_time() - started < 3.0, name


# ---- composition -------------------------------------------------------------------------------------------------


def score_of(value):
    def part(problem, completion):
        return value

    part.__name__ = f"gives_{value}"
    return part


def broken(problem, completion):
    raise AssertionError("behind a closed gate")


UNKNOWN = score_of(None)


@pytest.mark.parametrize(
    ("kind", "parts", "score"),
    [
        (compose.all_of, (1.0, 0.5), 0.5),
        (compose.all_of, (1.0, 1.0), 1.0),
        (compose.all_of, (None, 0.0), 0.0),
        (compose.all_of, (None, 1.0), None),
        (compose.any_of, (0.0, 0.5), 0.5),
        (compose.any_of, (None, 1.0), 1.0),
        (compose.any_of, (None, 0.0), None),
        (compose.gated, (1.0, 0.25), 0.25),
        (compose.gated, (0.5, 1.0), 0.0),
        (compose.gated, (None, 1.0), None),
        (compose.first_decisive, (None, 0.5), 0.5),
        (compose.first_decisive, (0.0, 1.0), 0.0),
        (compose.first_decisive, (None, None), None),
    ],
)
def test_composition(kind, parts, score):
    verdict = kind([score_of(part) for part in parts])(problem_of("7"), "x")
    assert verdict.score == score and verdicts.problem_with(verdict) == ""


def test_weighted_is_a_mean_and_weights_are_checked():
    made = compose.weighted([score_of(1.0), score_of(0.0)], weights=[3, 1])(problem_of("7"), "x")
    assert made.score == 0.75
    assert compose.weighted([score_of(1.0), UNKNOWN], weights=[3, 1])(problem_of("7"), "x").score is None
    with pytest.raises(ConfigError, match="weights must be 2 numbers"):
        compose.weighted([score_of(1.0), score_of(0.0)], weights=[1])


def test_a_closed_gate_runs_nothing_behind_it():
    assert compose.gated([score_of(0.0), broken])(problem_of("7"), "x").why.startswith("gate closed: gives_0.0")


def test_composites_by_name_can_be_rebuilt_from_a_log():
    args = {"of": ["tags", {"use": "exact", "args": {"strip": False}}]}
    made = jurat.verify("gated", gold="<think>a</think><answer>7</answer>", completion="<answer>7</answer>", **args)
    assert made.status == "incorrect" and "<think> occurs 0 times" in made.why and made.isolation == "inline"
    assert not catalog.is_bounded("all_of", {"of": ["tags", {"use": "regex_format", "args": {"pattern": "a"}}]})
    with pytest.raises(ConfigError, match=r"unknown verifier 'tag'\. Did you mean 'tags'"):
        jurat.verify("all_of", gold="7", completion="7", of=["tag"])


def test_the_version_of_a_composite_is_made_of_its_parts():
    from jurat.verifiers.versions import identity_of

    def digest(*of):
        return identity_of(catalog.find("all_of"), {"of": list(of)}).digest

    one = digest("exact", "tags")
    assert one == digest("exact", {"use": "tags"}) or one != digest("exact", "length")
    assert (
        len({one, digest("tags", "exact"), digest("exact"), digest("exact", {"use": "tags", "args": {"only": False}})})
        == 4
    )


def test_answers_names_are_the_catalog_s():
    assert catalog.find("math").target is answers.math
