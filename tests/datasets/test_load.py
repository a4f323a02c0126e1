"""Files to problems: field maps, gold rules, hostile rows with their lines, splits by content, manifests."""

import hashlib
import json
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jurat.datasets import rows as rows_module
from jurat.datasets.gold import read_gold
from jurat.datasets.guess import guess_fields
from jurat.datasets.load import load_problems, problem_id, unit_interval
from jurat.datasets.manifest import Manifest, ids_digest
from jurat.platform.errors import DataError
from jurat.platform.recipe import Fields, Prompt, Source
from jurat.platform.types import Message

DATA = Path("../shared/data")


def write(path, *lines):
    path.write_bytes(b"\n".join(x if isinstance(x, bytes) else json.dumps(x).encode() for x in lines) + b"\n")
    return path


def load(path, *, prompt=Prompt(), split="train", base=None, **keys):
    return load_problems(Source(source=str(path), **keys), prompt, split=split, base=base)


def row(n, **more):
    return {"question": f"What is {n} + 1?", "answer": str(n + 1), **more}


# ---- the field map and the template --------------------------------------------------------------------------------


def test_a_row_becomes_a_problem(tmp_path):
    path = write(tmp_path / "a.jsonl", row(1, level=2, extra=[1, None]), b"", row(2))
    made = load(path, prompt=Prompt(system="Be brief.", prefix="Q: ", suffix=" A:"), verifier_args={"strict": True})
    one, two = made.problems
    assert [(m.role, m.content) for m in one.messages] == [("system", "Be brief."), ("user", "Q: What is 1 + 1? A:")]
    assert (one.reference, one.source, one.split) == ("2", f"{tmp_path.name}/a.jsonl:1", "train")
    assert two.source == f"{tmp_path.name}/a.jsonl:3"
    assert dict(one.columns) == {"level": 2, "extra": [1, None]}
    assert (one.verifier.name, one.verifier.args) == ("math", {"strict": True})
    assert made.manifest.levels == {"2": 1}


def test_ids_are_of_messages_and_reference_alone(tmp_path):
    plain = load(write(tmp_path / "a.jsonl", row(1)))
    other = load(write(tmp_path / "b.jsonl", row(5), row(1, level=3)), verifier="other", split="held_out")
    assert plain.problems[0].id == other.problems[1].id
    assert plain.problems[0].id != load(tmp_path / "a.jsonl", prompt=Prompt(suffix=" ")).problems[0].id
    spelled = b'{"messages":[["user","7+5?"]],"reference":"12"}'
    assert problem_id((Message(role="user", content="7+5?"),), "12") == "p" + hashlib.sha256(spelled).hexdigest()[:24]


def test_field_map_dotted_paths_numbers_and_conversations(tmp_path):
    turns = [{"role": "system", "content": "S"}, {"role": "user", "content": "How many?"}]
    path = write(
        tmp_path / "a.jsonl",
        {"prompt": turns, "reward_model": {"ground_truth": 12.0}, "why": "w"},
        {"prompt": "Two?", "reward_model": {"ground_truth": 0.5}, "why": "v"},
    )
    fields = Fields(question="prompt", answer="reward_model.ground_truth", solution="why")
    one, two = load(path, fields=fields, prompt=Prompt(suffix="!")).problems
    assert [(m.role, m.content) for m in one.messages] == [("system", "S"), ("user", "How many?!")]
    assert (one.reference, two.reference) == ("12", "0.5")
    assert one.columns["solution"] == "w"


def test_a_field_in_no_row_is_one_error_that_names_the_columns(tmp_path):
    path = write(tmp_path / "a.jsonl", {"qestion": "?", "answer": "1"}, {"qestion": "!", "answer": "2"})
    said = r"field 'question' is in none of 2 rows; columns: answer, qestion. Did you mean 'qestion'\?"
    with pytest.raises(DataError, match=said):
        load(path)


# ---- gold ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rule", "gold"),
    [
        ("18", "auto", "18"),
        (" p - q ", "auto", "p - q"),
        (r"10\text{ square inches in all}", "auto", r"10\text{ square inches in all}"),
        ("June 20", "auto", "June 20"),
        ("She has 3+4=<<3+4=7>>7 eggs.\n#### 7", "auto", "7"),
        ("x #### 1 #### 1,234,000", "hashes", "1234000"),
        ("#### (1,2)", "hashes", "(1,2)"),
        ("#### 5 \nthanks", "hashes", "5"),
        (r"so \boxed{1} or \boxed{\frac{1}{2}}.", "auto", r"\frac{1}{2}"),
        (r"\boxed {\{1, 2\}}", "boxed", r"\{1, 2\}"),
        (r"\fbox{7}", "auto", "7"),
        ("The answer is seven of them", "plain", "The answer is seven of them"),
    ],
)
def test_gold_is_read_by_a_stated_rule(text, rule, gold):
    assert read_gold(text, rule)[0] == gold


@pytest.mark.parametrize(
    ("text", "rule", "said"),
    [
        ("The answer is 7", "auto", "prose without"),
        ("7\nbecause", "auto", "prose without"),
        ("  ", "auto", "empty"),
        ("steps ####  ", "auto", "empty"),
        ("7", "hashes", "no ####"),
        ("7", "boxed", r"no \\boxed"),
        (r"\boxed{7", "auto", "not closed"),
        (r"\boxed{}", "auto", "empty"),
    ],
)
def test_gold_that_no_rule_reads_is_refused(text, rule, said):
    with pytest.raises(ValueError, match=said):
        read_gold(text, rule)


def test_the_text_around_the_gold_is_the_solution(tmp_path):
    path = write(tmp_path / "a.jsonl", {"question": "?", "answer": "3 + 4 = 7\n#### 7"})
    (problem,) = load(path).problems
    assert (problem.reference, problem.columns["solution"]) == ("7", "3 + 4 = 7\n#### 7")


def test_calculator_notes_are_dropped_where_asked(tmp_path):
    path = write(tmp_path / "a.jsonl", {"question": "?", "answer": "48/2 = <<48/2=24>>24, 1 << 2 >> 3\n#### 24"})
    kept, dropped = (load(path, fields=Fields(calculator=c)).problems[0].columns["solution"] for c in ("keep", "drop"))
    assert "<<48/2=24>>" in kept and dropped == "48/2 = 24, 1 << 2 >> 3\n#### 24"


def test_a_reference_of_another_verifier_may_be_prose(tmp_path):
    path = write(tmp_path / "a.jsonl", {"question": "Sort a list.", "answer": "assert f([2, 1]) == [1, 2]\nassert f"})
    assert "assert f" in load(path, verifier="code").problems[0].reference


# ---- bad rows ------------------------------------------------------------------------------------------------------

HOSTILE = [
    (b'{"question": "a", "answer"', "not JSON"),
    (b"\xff\xfe{}", "not UTF-8: byte 0xff at 0"),
    (b"[1, 2]", "a row is a JSON object, got list"),
    (b"[" * 200_000, "not"),
    (b'{"a":' * 100_000, "not"),
    (b'{"question": "a", "answer": NaN}', "NaN is no JSON number"),
    (b'{"question": "a", "question": "b", "answer": "1"}', "key 'question' is given twice"),
    (b'{"question": "a", "answer": ' + b"9" * 5000 + b"}", ""),
    ({"question": "a"}, "field 'answer' is missing"),
    ({"question": "a", "answer": None}, "field 'answer' is null"),
    ({"question": "a", "answer": True}, "field 'answer' holds bool"),
    ({"question": "a", "answer": ["1"]}, "field 'answer' holds list"),
    ({"question": "a", "answer": "  "}, "the gold answer is empty"),
    ({"question": "a", "answer": "it is about seven or so"}, "prose"),
    ({"question": " \n", "answer": "1"}, "field 'question' is empty"),
    ({"question": "a\0b", "answer": "1"}, "NUL"),
    ({"question": "a", "answer": "\ud800"}, "half a surrogate pair at character 0"),
    ({"question": [{"role": "robot", "content": "a"}], "answer": "1"}, "robot"),
    ({"question": [], "answer": "1"}, "does not end with a user's message"),
    (row(1), "duplicate of"),
    ({"question": "What  is 1 + 1?", "answer": "3"}, "same question as"),
]  # fmt: skip


def test_each_hostile_row_is_named_with_its_line_and_the_good_ones_stay(tmp_path):
    path = write(tmp_path / "bad.jsonl", row(1), *[line for line, _ in HOSTILE], row(2))
    made = load(path, bad_rows="skip")
    assert [p.reference for p in made.problems] == ["2", "3"]
    assert [b.where for b in made.skipped] == [f"{tmp_path.name}/bad.jsonl:{i}" for i in range(2, 2 + len(HOSTILE))]
    for bad, (_, said) in zip(made.skipped, HOSTILE, strict=True):
        assert said in bad.reason
        assert len(bad.reason) < 300
    assert made.manifest.skipped == len(HOSTILE)


def test_refuse_lists_the_first_with_their_lines_and_the_count(tmp_path):
    path = write(tmp_path / "bad.jsonl", row(1), *[b"{"] * 8)
    with pytest.raises(DataError) as caught:
        load(path)
    said = str(caught.value)
    assert said.startswith("8 of 9 rows are bad:")
    assert "bad.jsonl:2: not JSON" in said and "bad.jsonl:6" in said and "bad.jsonl:7" not in said
    assert "and 3 more" in said and "bad_rows: skip" in said


@pytest.mark.parametrize(
    "answer",
    [{"mode": "stdio", "tests": [{"stdin": "", "stdout": "3"}]}, '{"mode": "func", "tests": []}', ["assert f(1) == 2"],
     "def check(candidate):\n    assert candidate(1)"],
)  # fmt: skip
def test_where_no_row_can_be_taken_their_reasons_are_told_and_cases_of_programs_are_recognized(tmp_path, answer):
    path = write(
        tmp_path / "p.jsonl", *[json.dumps({"question": f"Q{i}", "answer": answer}).encode() for i in range(7)]
    )
    with pytest.raises(DataError, match=r"(?s)7 of 7 rows are bad:\n  \S+p.jsonl:1: .*and 2 more") as caught:
        load(path, bad_rows="skip")
    assert "--verifier code" in caught.value.fix


def test_rows_that_are_bad_for_another_reason_are_no_cases_of_programs(tmp_path):
    with pytest.raises(DataError, match="1 of 1 rows are bad") as caught:
        load(write(tmp_path / "p.jsonl", b'{"question": "", "answer": "3"}'), bad_rows="skip")
    assert "code" not in caught.value.fix


def test_a_huge_line_is_a_bad_row_and_the_next_lines_keep_their_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(rows_module, "MAX_LINE_BYTES", 1000)
    path = write(tmp_path / "a.jsonl", {"question": "x" * 5000, "answer": "1"}, row(1))
    made = load(path, bad_rows="skip")
    assert [b.where[-8:] for b in made.skipped] == [".jsonl:1"]
    assert made.problems[0].source.endswith("a.jsonl:2")


def test_a_byte_order_mark_line_separators_and_crlf_are_no_trouble(tmp_path):
    text = json.dumps({"question": "a\u2028b?", "answer": "1"}, ensure_ascii=False)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode() + b"\r\n" + json.dumps(row(1)).encode())
    assert [p.messages[0].content for p in load(path).problems] == ["a\u2028b?", "What is 1 + 1?"]


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_any_bytes_make_a_row_or_a_reason(line):
    try:
        assert isinstance(rows_module.parse_object(line), dict)
    except ValueError as error:
        assert str(error)


# ---- files ---------------------------------------------------------------------------------------------------------


def test_parquet_reads_as_jsonl_does_and_leaves_out_what_json_cannot_hold(tmp_path):
    rows = [row(i) for i in range(5)]
    write(tmp_path / "a.jsonl", *rows)
    table = pa.Table.from_pylist([{**r, "image": b"\x00"} for r in rows])
    pq.write_table(table, tmp_path / "b.parquet", row_group_size=2)
    lines, made = load(tmp_path / "a.jsonl"), load(tmp_path / "b.parquet")
    assert [p.id for p in lines.problems] == [p.id for p in made.problems]
    assert made.problems[4].source.endswith("b.parquet:5")
    assert made.manifest.left_out_columns == ("image",)
    assert lines.manifest.digest == made.manifest.digest


def test_a_broken_parquet_file_says_so(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        load(tmp_path / "a.parquet")


def test_a_folder_is_its_files_in_order_and_duplicates_are_found_across_them(tmp_path):
    write(tmp_path / "b.jsonl", row(1), row(3))
    write(tmp_path / "a.jsonl", row(1), row(2))
    (tmp_path / "notes.txt").write_text("no data")
    (tmp_path / "LICENSE").write_text("\n# MIT License\nmore")
    made = load(tmp_path, bad_rows="skip")
    assert [p.reference for p in made.problems] == ["2", "3", "4"]
    assert str(made.skipped[0]).endswith(f"b.jsonl:1: duplicate of {tmp_path.name}/a.jsonl:1")
    assert made.manifest.licence == "MIT License"
    assert made.manifest.files[0].sha256 == "sha256:" + hashlib.sha256((tmp_path / "a.jsonl").read_bytes()).hexdigest()


def test_relative_paths_start_at_the_recipe_then_here(tmp_path, monkeypatch):
    (tmp_path / "recipes").mkdir()
    write(tmp_path / "recipes" / "a.jsonl", row(1))
    write(tmp_path / "a.jsonl", row(2))
    write(tmp_path / "b.jsonl", row(3))
    monkeypatch.chdir(tmp_path)
    assert load("a.jsonl", base=tmp_path / "recipes").problems[0].reference == "2"
    assert load("b.jsonl", base=tmp_path / "recipes").problems[0].reference == "4"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none.jsonl", "no such data file"),
        ("./none", "no such data file"),
        ("a b", "neither a file"),
        ("x.csv", "cannot read .csv"),
    ],
)
def test_a_source_that_is_nothing_says_what_could_be(tmp_path, monkeypatch, name, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.csv").write_text("a,b")
    with pytest.raises(DataError, match=said):
        load(name)


def test_a_hub_id_without_the_library_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match="needs the library 'datasets'") as caught:
        load("owner/name")
    assert ".[hub]" in caught.value.fix


class HubLibrary(ModuleType):
    """The few functions of the library ``datasets`` that are called, over sets in memory."""

    exceptions = SimpleNamespace(DatasetsError=type("DatasetsError", (Exception,), {}))
    sets = {
        ("a/one", "default"): [row(1)],
        ("a/many", "x"): [row(2)],
        ("a/many", "y"): [row(3), row(4)],
    }

    def get_dataset_config_names(self, path, revision):
        found = [config for name, config in self.sets if name == path]
        if not found:
            raise FileNotFoundError(f"no {path}")
        return found

    def load_dataset(self, path, config, *, split, revision):
        if split != "train":
            raise ValueError(f"Unknown split {split!r}")

        class Rows(list):
            info = SimpleNamespace(license="MIT")

        return Rows(self.sets[path, config or "default"])


def test_the_hub_is_read_by_id_config_and_split(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", HubLibrary("datasets"))
    made = load("a/one")
    assert (made.problems[0].source, made.manifest.licence) == ("a/one/train:1", "MIT")
    assert [p.source for p in load("a/many:y@main").problems] == ["a/many:y/train:1", "a/many:y/train:2"]
    assert [p.reference for p in load("a/many:*").problems] == ["3", "4", "5"]
    with pytest.raises(DataError, match="several configs: x, y") as caught:
        load("a/many")
    assert "a/many:x" in caught.value.fix
    with pytest.raises(DataError, match="no a/none"):
        load("a/none")
    with pytest.raises(DataError, match="Unknown split 'test'"):
        load_problems(Source(source="a/one", split="test"), Prompt(), split="held_out")


def test_an_empty_file_and_an_empty_fraction_are_errors(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n\n")
    with pytest.raises(DataError, match="no problem is left of 0 rows"):
        load(tmp_path / "a.jsonl")
    write(tmp_path / "b.jsonl", row(1))
    at = unit_interval("What is 1 + 1?")
    low, high = (0.0, at / 2) if at > 0.5 else (0.9, 1.0)
    with pytest.raises(DataError, match="no problem is left of 1 rows"):
        load(tmp_path / "b.jsonl", fraction=(low, high))


# ---- selection -----------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(1, 99), min_size=1, max_size=4, unique=True), count=st.integers(1, 60))
def test_fractions_are_disjoint_whole_and_do_not_move_with_template_order_or_neighbours(tmp_path_factory, cuts, count):
    folder = tmp_path_factory.mktemp("f")
    write(folder / "a.jsonl", *[row(i) for i in range(count)])
    write(folder / "b.jsonl", *[row(i) for i in reversed(range(count + 7))])
    edges = [0.0, *[c / 100 for c in sorted(cuts)], 1.0]

    def asked(path, low, high, prompt):
        try:
            problems = load(path, fraction=(low, high), prompt=prompt).problems
        except DataError:
            return set()
        return {p.messages[0].content.removesuffix(prompt.suffix) for p in problems}

    parts = [asked(folder / "a.jsonl", low, high, Prompt()) for low, high in pairwise(edges)]
    assert sum(map(len, parts)) == len(set().union(*parts)) == count
    for part, (low, high) in zip(parts, pairwise(edges), strict=True):
        assert part <= asked(folder / "b.jsonl", low, high, Prompt(suffix=" Think."))


def test_case_and_spaces_do_not_move_a_question_between_splits():
    assert unit_interval("What is  1 + 1?\n") == unit_interval("what is 1 + 1?")


def test_size_takes_that_many_by_the_seed_and_all_if_there_are_fewer(tmp_path):
    path = write(tmp_path / "a.jsonl", *[row(i) for i in range(40)])
    taken = [[p.id for p in load(path, size=10, seed=seed).problems] for seed in (0, 0, 1)]
    assert len(taken[0]) == 10 and taken[0] == taken[1] != taken[2]
    assert len(load(path, size=100).problems) == 40


# ---- manifests -----------------------------------------------------------------------------------------------------


def test_manifest_round_trips_and_refuses_what_it_does_not_know(tmp_path):
    made = load(write(tmp_path / "a.jsonl", row(1), row(2)), prompt=Prompt(suffix="!"))
    value = json.loads(json.dumps(made.manifest.to_json()))
    assert Manifest.from_json(value) == made.manifest
    assert value["template"] == {"system": None, "prefix": "", "suffix": "!"}
    with pytest.raises(DataError, match="'colour'"):
        Manifest.from_json({**value, "colour": 1})
    with pytest.raises(DataError, match="'digest'"):
        Manifest.from_json({k: v for k, v in value.items() if k != "digest"})


@given(st.lists(st.text(alphabet="0123456789abcdef", min_size=1), unique=True), st.randoms())
def test_the_digest_of_a_set_does_not_depend_on_order(ids, rng):
    shuffled = list(ids)
    rng.shuffle(shuffled)
    assert ids_digest(ids) == ids_digest(shuffled)
    assert not ids or ids_digest(ids[1:]) != ids_digest(ids)


# ---- guesses, and public sets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        ([{"question": "a", "answer": "b\n#### 1"}], Fields(gold="hashes")),
        ([{"problem": "a", "solution": r"so \boxed{1}"}], Fields(question="problem", answer="solution", gold="boxed")),
        ([{"Question": "a", "Answer": 1.0, "id": 3}], Fields(question="Question", answer="Answer", gold="plain")),
        ([{"prompt": "a", "reward_model": {"ground_truth": "1"}}],
         Fields(question="prompt", answer="reward_model.ground_truth", gold="plain")),
        ([{"question": "a", "answer": "1", "solution": "s"}], Fields(solution="solution", gold="plain")),
        ([{"question": "a", "answer": "", "final_answer": "7"}], Fields(answer="final_answer", gold="plain")),
    ],
)  # fmt: skip
def test_field_maps_are_guessed(rows, fields):
    assert guess_fields(rows, where="x") == fields


def test_no_guess_lists_the_columns():
    with pytest.raises(DataError, match="no column looks like the answer; columns: question, blob"):
        guess_fields([{"question": "a", "blob": 1}], where="x")
    assert guess_fields([{"question": "a", "blob": "1"}], where="x", answer="blob") == Fields(
        answer="blob", gold="plain"
    )


@pytest.mark.parametrize(
    ("name", "kept", "skipped"),
    [("gsm8k/train", 7473, 0), ("gsm8k/test", 1319, 0), ("svamp/test", 1000, 0), ("multiarith/test", 580, 20),
     ("math500/test", 500, 0), ("aime24/test", 30, 0), ("aime25/test", 30, 0), ("amc23/test", 40, 0)],
)  # fmt: skip
def test_public_sets_load(name, kept, skipped):
    path = DATA / f"{name}.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    first = [r.value for r in list(rows_module.read_rows(path))[:50]]
    made = load(path, fields=guess_fields(first, where=name), bad_rows="skip")
    assert (made.manifest.rows, len(made.skipped)) == (kept, skipped)
    assert all("duplicate of" in b.reason for b in made.skipped)
    if name.startswith("gsm8k"):
        assert all(p.columns["solution"].replace(",", "").endswith(f"#### {p.reference}") for p in made.problems)


@pytest.mark.parametrize(
    ("row", "fields", "shown", "reference"),
    [
        ({"q": "hi", "sol": "good day to you"}, {"question": "q", "solution": "sol"}, "good day to you", ""),
        ({"question": "hi", "solution": "good day"}, {}, "good day", ""),
        ({"question": "hi", "answer": "a good day to you"}, {}, "a good day to you", ""),
        ({"question": "1+1", "answer": "2", "solution": "1 and 1 make 2"}, {}, "1 and 1 make 2", "2"),
        ({"question": "1+1", "answer": "so it is #### 2"}, {}, "so it is #### 2", "2"),
        ({"question": "1+1", "answer": "2", "solution": ["2"]}, {}, ["2"], "2"),
        ({"question": "1+1", "answer": "2"}, {}, None, "2"),
    ],
)
def test_a_demonstration_needs_a_solution_or_an_answer(tmp_path, row, fields, shown, reference):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row) + "\n")
    source = Source(source=str(path), fields=Fields(**fields))
    (problem,) = load_problems(source, Prompt(), split="train", holds="solutions").problems
    assert (problem.columns.get("solution"), problem.reference) == (shown, reference)


def test_a_demonstration_of_nothing_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"question": "hi", "solution": " "}\n')
    with pytest.raises(DataError, match="field 'solution' is empty"):
        load_problems(Source(source=str(path)), Prompt(), split="train", holds="solutions")
    path.write_text('{"question": "hi"}\n')
    with pytest.raises(DataError, match="field 'answer' is in none of 1 rows") as caught:
        load_problems(Source(source=str(path)), Prompt(), split="train", holds="solutions")
    assert "sft needs a solution (fields.solution) or an answer" in caught.value.fix
