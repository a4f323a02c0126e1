"""The commands ``jurat datasets ls|show|check``: what they print, as text and as JSON, and their exit codes."""

import json

import pytest

from jurat.api import cli


@pytest.fixture
def jurat(capsys):
    def call(*args):
        code = cli.run(["datasets", *map(str, args)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def write(path, *rows):
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


GOOD = [{"problem": f"What is {n} + {n}?", "gold": str(2 * n)} for n in range(1, 6)]


def test_ls_shows_every_family_and_level_with_an_example(jurat):
    code, out, _ = jurat("ls")
    assert code == 0 and "generated:plain" in out
    rows = json.loads(jurat("ls", "--json")[1])
    assert [(r["source"], r["level"]) for r in rows] == [("generated", n) for n in range(1, 7)] + [
        ("generated:plain", n) for n in range(1, 5)
    ] + [("generated:chain", n) for n in range(1, 4)]
    assert all(r["example"] and r["answer"] for r in rows)


def test_show_guesses_the_columns_and_prints_a_part_that_loads(jurat, tmp_path):
    path = write(tmp_path / "a.jsonl", *GOOD, GOOD[0])
    (shown,) = json.loads(jurat("show", path, "--json", "--rows", "2")[1])
    assert shown["part"] == {
        "source": str(path), "fields": {"question": "problem", "answer": "gold", "gold": "plain"}, "bad_rows": "skip",
    }  # fmt: skip
    assert shown["manifest"]["rows"] == 5 and len(shown["bad_rows"]) == 1
    assert [p["reference"] for p in shown["sample"]] == ["2", "4"]
    code, out, _ = jurat("show", path)
    assert code == 0 and "a.jsonl:6: duplicate of" in out and "question: problem" in out


def test_show_and_check_read_a_recipe(jurat, tmp_path):
    write(tmp_path / "a.jsonl", *GOOD)
    fields = "{question: problem, answer: gold}"
    (tmp_path / "r.yaml").write_text(
        f"model: tiny-random\ndata:\n  train: {{source: a.jsonl, fields: {fields}}}\n"
        f"  held_out: {{source: a.jsonl, fields: {fields}}}\nprompt: {{suffix: ' one two three four five six seven'}}\n"
    )
    assert [one["set"] for one in json.loads(jurat("ls", tmp_path / "r.yaml", "--json")[1])] == ["train", "held_out"]
    shown = json.loads(jurat("show", tmp_path / "r.yaml", "--json")[1])
    assert shown[0]["sample"][0]["messages"][0]["content"].endswith("six seven")
    code, out, _ = jurat("check", tmp_path / "r.yaml", "--json")
    assert (code, json.loads(out)["faults"]) == (3, ["train: 5 questions are also in held_out"])


def test_check_passes_a_good_set_and_names_the_faults_of_a_bad_one(jurat, tmp_path):
    good, bad = write(tmp_path / "g.jsonl", *GOOD), write(tmp_path / "b.jsonl", *GOOD, GOOD[0], {"problem": "?"})
    assert jurat("check", good)[0] == 0
    code, out, err = jurat("check", bad)
    assert code == 3
    assert "or skip them (--bad-rows skip)" in err and "whose gold fails" not in err
    assert "2 bad rows" in err and "b.jsonl:7: field 'gold' is missing" in out
    assert jurat("check", bad, "--bad-rows", "skip")[0] == 0


def test_check_puts_each_gold_through_its_verifier(jurat, tmp_path):
    path = write(tmp_path / "a.jsonl", *GOOD, {"problem": "Which?", "gold": "left of"})
    code, out, _ = jurat("check", path, "--verifier", "number", "--json")
    report = json.loads(out)
    assert (code, report["faults"]) == (3, [f"{path}: 1 gold answers fail number"])
    assert report["sets"][0]["gold_failed"][0]["status"] == "bad_gold"
    assert report["sets"][0]["gold_failed"][0]["where"].endswith("a.jsonl:6")


def test_the_reason_of_a_failed_gold_is_not_cut_off_by_a_long_gold(jurat, tmp_path):
    rows = [{"problem": f"Which {i}?", "gold": "left of " * 60 + str(i)} for i in range(7)]
    path = write(tmp_path / "a.jsonl", *GOOD, *rows)
    out = jurat("check", path, "--verifier", "number")[1]
    lines = out.split("gold that fails its verifier: 7\n")[1].splitlines()
    assert "a.jsonl:6: bad_gold: " in lines[0]
    err = jurat("check", path, "--verifier", "number", "--bad-rows", "skip")[2]
    assert "take them out (nothing skips them)" in err and "--bad-rows" not in err and "split" not in err
    assert lines[0].endswith("; gold 'left of left of left of left of left of '…") and lines[5] == "    and 2 more"


def test_cases_without_a_solution_are_told_as_checked_for_form_only(jurat, tmp_path):
    rows = [{"question": f"Print {i}.", "answer": {"mode": "stdio", "tests": [{"stdin": "", "stdout": f"{i}\n"}]}}
            for i in range(3)]  # fmt: skip
    rows[0]["solution"] = "print(0)"
    path = write(tmp_path / "p.jsonl", *rows)
    code, out, _ = jurat("check", path, "--verifier", "code")
    assert code == 0 and "solutions run on their own cases: 1; rows without a solution, checked for form only: 2" in out
    (found,) = json.loads(jurat("check", path, "--verifier", "code", "--json")[1])["sets"]
    assert (found["gold_run"], found["gold_form_only"], found["gold_failed"]) == (1, 2, [])


def test_check_against_reports_shared_questions_and_n_grams(jurat, tmp_path):
    long = "Tom buys 7 red apples at the old market and gives 2 to Ana."
    train = write(tmp_path / "t.jsonl", *GOOD, {"problem": long, "gold": "5"})
    held = write(tmp_path / "h.jsonl", GOOD[2], {"problem": long.replace("Ana", "Bo"), "gold": "5"})
    code, out, _ = jurat("check", train, "--against", held, "--json")
    report = json.loads(out)["sets"][0]["contamination"][0]
    assert code == 3
    assert (report["same"], report["overlapping"], report["against_touched"]) == (1, 2, 2)
    assert [round(o["covered"], 2) for o in report["overlaps"]] == [1.0, 0.86]
    assert jurat("check", train, "--against", "generated:plain", "--max-share", "0")[0] == 0


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["show", "nosuch.jsonl"], "no such data file"),
        (["show", "generated", "--levels", "9"], "has levels [1, 2, 3, 4, 5, 6], got 9"),
        (["show", "generated", "--levels", "a"], "--levels needs numbers"),
        (["show", "generated", "--fraction", "0.9,0.1"], "fraction needs 0 <= low < high <= 1"),
        (["check", "nosuch.yaml"], "no recipe file"),
        (["show", "generated:plian"], "Did you mean 'generated:plain'"),
    ],
)
def test_mistakes_are_usage_errors_that_say_what_to_do(jurat, args, said):
    code, _, err = jurat(*args)
    assert code == 2 and said in err


def test_what_a_file_says_reaches_the_terminal_harmless(jurat, tmp_path):
    path = write(tmp_path / "a.jsonl", {"question": "red \x1b[31m \u202e?", "answer": "1"})
    assert "\x1b" not in jurat("show", path)[1] and "\u202e" not in jurat("show", path)[1]
