"""Rows with preferences: pairs and labelled completions, as texts or conversations, and every way in which one is bad."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jurat.api import cli
from jurat.datasets.contamination import refuse_shared
from jurat.datasets.load import holds, load_problems, problem_id
from jurat.platform.errors import DataError
from jurat.platform.recipe import DPO, KTO, SFT, PolicyGradient, Prompt, Source

PAIR = {"question": "2+2=", "chosen": "4", "rejected": "5"}
LABEL = {"question": "2+2=", "completion": "4", "label": True}


def said(role, content):
    return {"role": role, "content": content}


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def load(path, kind, *, prompt=Prompt(), split="train", **keys):
    return load_problems(Source(source=str(path), **keys), prompt, split=split, holds=kind)


def columns(path, kind, **keys):
    return [dict(p.columns) for p in load(path, kind, **keys).problems]


def test_what_a_stage_reads():
    assert [holds(part, "held_out") for part in (DPO(name="dpo"), KTO(name="kto"), SFT(name="sft"), PolicyGradient())] == [
        "pairs", "labels", "solutions", "answers",
    ]  # fmt: skip
    assert holds(DPO(name="dpo"), "unseen") == "answers"


def test_texts_and_conversations_make_the_same_pair(tmp_path):
    asks, right, wrong = said("user", "2+2="), said("assistant", "4"), said("assistant", "5")
    path = write(
        tmp_path / "a.jsonl",
        {"question": "2+2=", "chosen": [right], "rejected": [wrong]},
        {"question": [asks], "chosen": [said("system", "Add."), asks, right], "rejected": "5"},
        {"question": "2+2=", "chosen": [asks, right], "rejected": [asks, wrong]},
        {"question": "2+2=", "chosen": 4, "rejected": 5, "extra": 1},
    )
    made = load(path, "pairs", bad_rows="skip")
    assert [b.reason for b in made.skipped] == [f"duplicate of {tmp_path.name}/a.jsonl:1"] * 3
    (one,) = made.problems
    assert dict(one.columns) == {"chosen": "4", "rejected": "5"}
    assert [(m.role, m.content) for m in one.messages] == [("user", "2+2=")]
    assert one.reference == ""


def test_the_prompt_of_two_conversations_is_what_both_begin_with(tmp_path):
    system, asks, right, wrong = (
        said("system", "Add."),
        said("user", "2+2="),
        said("assistant", "4"),
        said("assistant", "5"),
    )
    path = write(tmp_path / "a.jsonl", {"chosen": [system, asks, right], "rejected": [system, asks, wrong]})
    (one,) = load(path, "pairs").problems
    assert [(m.role, m.content) for m in one.messages] == [("system", "Add."), ("user", "2+2=")]
    assert dict(one.columns) == {"chosen": "4", "rejected": "5"}
    more = said("user", "sure?")
    for chosen, rejected, reason in (
        ([asks, right], [asks, right], "the conversation does not end with a user's message"),
        ([asks, right, more, right], [asks, wrong, more, right], "is not about the question of its row"),
        ([right], [wrong], "field 'question' is missing"),
        ("2+2= 4", "2+2= 5", "field 'question' is missing"),
    ):
        fine = {"chosen": [asks, right], "rejected": [asks, wrong]}
        path = write(tmp_path / "b.jsonl", fine, {"chosen": chosen, "rejected": rejected})
        (bad,) = load(path, "pairs", bad_rows="skip").skipped
        assert reason in bad.reason
    path = write(tmp_path / "c.jsonl", {"chosen": "2+2= 4", "rejected": "2+2= 5"})
    with pytest.raises(DataError, match="'question' is in none of 1 rows") as caught:
        load(path, "pairs")
    assert "pairs need none where chosen and rejected are whole conversations that begin alike" in caught.value.fix


@pytest.mark.parametrize(
    ("row", "kind", "said"),
    [
        (PAIR, "labels", "rows with chosen and rejected are for algorithm.name: dpo, not for algorithm.name: kto"),
        (PAIR, "answers", "rows with chosen and rejected are for algorithm.name: dpo"),
        (LABEL, "pairs", "rows with completion and label are for algorithm.name: kto, not for algorithm.name: dpo"),
        ({"question": "2+2=", "answer": "4"}, "pairs", "rows with answer are for algorithms that sample, and sft"),
    ],
)
def test_rows_of_another_kind_name_the_algorithm_that_they_are_for(tmp_path, row, kind, said):
    with pytest.raises(DataError, match="is in none of 1 rows") as caught:
        load(write(tmp_path / "a.jsonl", row), kind)
    assert said in caught.value.fix


def test_the_field_map_and_the_template(tmp_path):
    path = write(tmp_path / "a.jsonl", {"prompt": [said("user", "a"), said("assistant", "b"), said("user", "c")],
                                        "good": "x", "bad": "y", "chosen": 7})  # fmt: skip
    fields = {"question": "prompt", "chosen": "good", "rejected": "bad"}
    (one,) = load(path, "pairs", fields=fields, prompt=Prompt(suffix="!")).problems
    assert dict(one.columns) == {"chosen": "x", "rejected": "y"}
    assert [m.content for m in one.messages] == ["a", "b", "c!"]


@pytest.mark.parametrize(
    ("value", "label"), [(True, True), (0, False), (1.0, True), ("true", True), (" False ", False), (1, True)]
)
def test_labels(tmp_path, value, label):
    assert columns(write(tmp_path / "a.jsonl", {**LABEL, "label": value}), "labels")[0] == {
        "completion": "4",
        "label": label,
    }


def test_a_question_may_come_again_and_its_ids_differ(tmp_path):
    pairs = write(tmp_path / "a.jsonl", PAIR, {**PAIR, "rejected": "6"}, {**PAIR, "chosen": "four"})
    assert len({p.id for p in load(pairs, "pairs").problems}) == 3
    labels = write(tmp_path / "b.jsonl", LABEL, {**LABEL, "completion": "5", "label": False})
    assert len({p.id for p in load(labels, "labels").problems}) == 2


def test_ids_of_problems_with_answers_stay_what_they_were(tmp_path):
    (one,) = load(write(tmp_path / "a.jsonl", {"question": "2+2=", "answer": "4"}), "answers").problems
    assert one.id == problem_id(one.messages, "4") == problem_id(one.messages, "4", {})
    assert one.id == "p9c51e1bdaf2b80b309c2d5cd"


@pytest.mark.parametrize(
    ("kind", "row", "reason"),
    [
        ("pairs", {"question": "2+2=", "chosen": "4"}, "field 'rejected' is missing"),
        ("pairs", {**PAIR, "chosen": None}, "field 'chosen' is null"),
        ("pairs", {**PAIR, "chosen": " "}, "field 'chosen' is empty"),
        ("pairs", {**PAIR, "rejected": "4"}, "fields 'chosen' and 'rejected' are the same: nothing is preferred"),
        ("pairs", {**PAIR, "chosen": "4\0"}, "field 'chosen' holds a NUL character"),
        ("pairs", {**PAIR, "chosen": "\ud800"}, "holds half a surrogate pair"),
        ("pairs", {**PAIR, "chosen": {"text": "4"}}, "field 'chosen' holds dict, expected text or a number"),
        ("pairs", {**PAIR, "chosen": []}, "field 'chosen' does not end with an assistant's message"),
        ("pairs", {**PAIR, "chosen": [said("user", "2+2=")]}, "does not end with an assistant's message"),
        ("pairs", {**PAIR, "chosen": [said("tool", "4")]}, "the conversation holds"),
        (
            "pairs",
            {**PAIR, "chosen": [said("user", "3+3="), said("assistant", "6")]},
            "field 'chosen' is not about the question of its row",
        ),
        ("pairs", {**PAIR, "question": ""}, "field 'question' is empty"),
        ("pairs", {**PAIR, "chosen": "9", "rejected": "8", "answer": "it is a long story"}, "the answer is prose"),
        ("labels", {**LABEL, "label": "yes"}, "field 'label' holds 'yes', expected true or false"),
        ("labels", {**LABEL, "label": 2}, "field 'label' holds '2'"),
        ("labels", {**LABEL, "label": [True]}, "field 'label' holds"),
        ("labels", {**LABEL, "completion": ""}, "field 'completion' is empty"),
        ("labels", {"question": "2+2=", "label": True}, "field 'completion' is missing"),
    ],
)
def test_a_bad_row_is_named_with_its_line(tmp_path, kind, row, reason):
    good = {"pairs": {**PAIR, "question": "1+1="}, "labels": {**LABEL, "question": "1+1="}}[kind]
    path = write(tmp_path / "a.jsonl", good, row)
    with pytest.raises(DataError) as caught:
        load(path, kind)
    assert f"{tmp_path.name}/a.jsonl:2: " in str(caught.value) and reason in str(caught.value)
    assert len(load(path, kind, bad_rows="skip").problems) == 1


def test_rows_that_contradict_one_another(tmp_path):
    path = write(tmp_path / "a.jsonl", PAIR, {**PAIR, "chosen": "5", "rejected": "4"})
    (bad,) = load(path, "pairs", bad_rows="skip").skipped
    assert bad.reason == f"same pair as {tmp_path.name}/a.jsonl:1 the other way round"
    path = write(tmp_path / "b.jsonl", LABEL, {**LABEL, "label": False})
    (bad,) = load(path, "labels", bad_rows="skip").skipped
    assert bad.reason == f"same completion as {tmp_path.name}/b.jsonl:1 with another label"


def test_an_answer_is_kept_where_there_is_one(tmp_path):
    path = write(tmp_path / "a.jsonl", {**PAIR, "answer": "so #### 4"}, {**PAIR, "question": "3+3="})
    assert [p.reference for p in load(path, "pairs").problems] == ["4", ""]
    with pytest.raises(DataError, match="field 'gold' is in none of 2 rows"):
        load(path, "pairs", fields={"answer": "gold"})


def test_a_field_in_no_row_is_one_error(tmp_path):
    path = write(tmp_path / "a.jsonl", PAIR)
    with pytest.raises(
        DataError, match=r"field 'completion' is in none of 1 rows; columns: chosen, question, rejected"
    ):
        load(path, "labels")


def test_generated_problems_have_no_preferences():
    with pytest.raises(DataError, match="no chosen and no rejected"):
        load("generated:plain", "pairs")


def test_fractions_go_by_the_question(tmp_path):
    rows = [{"question": f"{n}+1=", "chosen": str(n + 1), "rejected": str(n + k)} for n in range(20) for k in (2, 3)]
    path = write(tmp_path / "a.jsonl", *rows)
    train = load(path, "pairs", fraction=(0.0, 0.5)).problems
    held_out = load(path, "pairs", fraction=(0.5, 1.0)).problems
    assert len(train) + len(held_out) == 40 and len(train) % 2 == 0
    refuse_shared(train, held_out)
    with pytest.raises(DataError, match="held-out problems are trained on"):
        refuse_shared(train, load(path, "pairs", fraction=(0.0, 0.1)).problems)


def test_parquet_keeps_conversations_and_booleans(tmp_path):
    table = pa.Table.from_pylist([{"question": "2+2=", "completion": [said("assistant", "4")], "label": False}])
    pq.write_table(table, tmp_path / "a.parquet")
    assert columns(tmp_path / "a.parquet", "labels") == [{"completion": "4", "label": False}]


# ---- the commands --------------------------------------------------------------------------------------------------


@pytest.fixture
def jurat(capsys):
    def call(*args):
        code = cli.run(["datasets", *map(str, args)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_show_and_check_guess_preferences(jurat, tmp_path):
    pairs = write(tmp_path / "a.jsonl", {"prompt": "2+2=", "chosen": "4", "rejected": "5"},
                  {"prompt": "3+3=", "chosen": "6", "rejected": "6"})  # fmt: skip
    code, out, _ = jurat("show", pairs)
    assert code == 0 and "1 pairs (for DPO), 1 bad rows" in out and "4  rather than  5" in out
    assert "question: prompt" in out
    code, out, _ = jurat("check", pairs)
    assert (
        code == 3
        and "nothing is preferred" in out
        and "pairs without a gold answer, which no verifier can check: 1" in out
    )
    labels = write(tmp_path / "b.jsonl", {"prompt": "2+2=", "completion": "5", "label": "false", "answer": "4"})
    (shown,) = json.loads(jurat("show", labels, "--json")[1])
    assert (shown["holds"], shown["sample"][0]["reference"]) == ("labels", "4")
    assert "5  (bad)" in jurat("show", labels)[1]
    assert jurat("check", labels)[0] == 0
    row = {"prompt": "2+2=", "completion": "4", "label": True}
    other = {**row, "prompt": "3+3="}
    mixed = write(tmp_path / "c.jsonl", row, other, {**row, "prompt": "1+1=", "label": "maybe"})
    code, out, _ = jurat("check", mixed)
    assert code == 3 and "field 'label' holds 'maybe', expected true or false" in out and "bad rows: 1" in out


def test_check_reads_a_recipe_by_its_stages(jurat, tmp_path):
    write(tmp_path / "pairs.jsonl", PAIR)
    write(tmp_path / "held.jsonl", {**PAIR, "question": "4+4="})
    (tmp_path / "r.yaml").write_text(
        "model: tiny-random\ndata: {train: {source: 'generated:plain', size: 9}}\nstages:\n"
        "  - {name: sft, steps: 1, algorithm: {name: sft}}\n"
        "  - {name: dpo, steps: 1, algorithm: {name: dpo}, data: {train: {source: pairs.jsonl}, held_out: {source: held.jsonl}}}\n"
    )
    found = json.loads(jurat("check", tmp_path / "r.yaml", "--json")[1])
    assert found["ok"] and [(s["set"], s["holds"], s["without_gold"]) for s in found["sets"]] == [
        ("sft.train", "solutions", 0), ("dpo.train", "pairs", 1), ("dpo.held_out", "pairs", 1),
    ]  # fmt: skip
