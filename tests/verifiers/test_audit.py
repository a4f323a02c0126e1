"""Auditing a verifier: counts, groups, gates, and the commands that print them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from jurat.api import cli
from jurat.platform.errors import ConfigError, DataError, GateFailed
from jurat.verifiers.audit import audit, case_of, gate, read_cases

HOSTILE = Path(__file__).parent / "rules_files" / "hostile.py"
CASES = Path(os.environ.get("JURAT_CASES", Path(__file__).parents[2] / ".." / "shared" / "cases")) / "math"

ROWS = [
    {"id": "a", "gold": "7", "pred": "7", "expected": True, "category": "easy"},
    {"id": "b", "gold": "7", "pred": "8", "expected": False, "category": "easy"},
    {"id": "c", "gold": "7", "pred": "seven: 7", "expected": False, "category": "hard"},
    {"id": "d", "gold": "7", "pred": "VII", "expected": True, "category": "hard"},
    {"id": "e", "gold": "x", "pred": "7", "expected": True, "category": "hard"},
    {"id": "p", "gold": "7", "pred": "7.0 apples", "expected": False, "policy": True},
    {"id": "q", "gold": "7", "pred": "7, I think", "expected": True, "adaptive": True},
    {"id": "r", "gold": "7", "pred": "6", "expected": True, "disputed": "label"},
]


def cases_of(rows):
    return [case_of(row, where="here") for row in rows]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "cases.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def run(capsys, *args: object) -> tuple[int, str, str]:
    code = cli.run([str(arg) for arg in args])
    out, err = capsys.readouterr()
    return code, out, err


def test_counts_by_hand():
    made = audit("number", cases_of(ROWS), by="category")
    core = made.core
    assert (core.n, core.false_positives, core.false_negatives, core.undecided) == (5, 1, 1, 1)
    assert core.wrong == ("c", "d", "e") and core.accuracy == pytest.approx(2 / 5)
    assert (made.policy.n, made.policy.wrong) == (1, ("p",))
    assert (made.adaptive.n, made.adaptive.accuracy, made.disputed.n) == (1, 1.0, 1)
    assert {key: tally.n for key, tally in made.groups.items()} == {"easy": 2, "hard": 3}
    assert 0 < core.p50_ms <= core.p90_ms <= core.p99_ms and core.per_second > 100
    assert [case.id for case, _ in made.wrong] == ["c", "d", "e", "p", "r"]
    assert made.digest.startswith("sha256:")


def test_a_refused_gold_accepts_nothing():
    rows = [{"id": "1", "gold": "x", "pred": "7", "expected": False}]
    assert audit("number", cases_of(rows)).core.accuracy == 1.0


def test_a_user_s_verifier_with_time_outs():
    rows = [
        {"id": "1", "gold": "7", "pred": "7", "expected": True},
        {"id": "2", "gold": "7", "pred": "!sleep", "expected": False},
        {"id": "3", "gold": "7", "pred": "!exit", "expected": False},
    ]
    made = audit("hostile", cases_of(rows), user_files=[HOSTILE])
    assert (made.core.undecided, made.core.timeouts, made.core.wrong) == (2, 1, ("2", "3"))
    assert made.core.p99_ms > 900


def test_gates():
    made = audit("number", cases_of(ROWS))
    gate(made, min_accuracy=0.4, max_fp=1)
    with pytest.raises(GateFailed, match=r"accuracy 0.4000 < --min-accuracy 0.9: 3 of 5 wrong"):
        gate(made, min_accuracy=0.9)
    with pytest.raises(GateFailed, match="1 false positives of 5 rows, --max-fp allows 0") as told:
        gate(made, max_fp=0)
    assert told.value.fix == "accepted though wrong: c" and told.value.exit_code == 3
    gate(made, max_fp=0.2)
    with pytest.raises(GateFailed):
        gate(made, max_fp=0.19)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not JSON"),
        ("[]", "a row is an object, got list"),
        ('{"gold": "7", "expected": true}', "'pred' must be a str: it is missing"),
        ('{"gold": 7, "pred": "7", "expected": true}', "'gold' must be a str: got 7"),
        ('{"gold": "7", "pred": "7", "expected": 1}', "'expected' must be a bool: got 1"),
        ('{"gold": "7", "pred": "7", "expected": true, "form": "box"}', "'form' is answer or text"),
        ('{"gold": "7", "pred_parts": [[1]], "expected": true}', "'pred_parts' must be"),
        ('{"id": "a", "gold": "7", "pred": "7", "expected": true}', "id 'a' is given twice"),
        ("", ""),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(file, line, said):
    file.write_text(file.read_text() + line + "\n")
    if not said:
        assert len(read_cases(file)) == len(ROWS)
        return
    with pytest.raises(DataError, match=said) as told:
        read_cases(file)
    assert told.value.where == f"{file}:{len(ROWS) + 1}"


def test_long_answers_in_parts():
    assert case_of({"gold": "1", "pred_parts": [["9", 3], ["x", 1]], "expected": False}, where="here").pred == "999x"


def test_any_verdict_will_do_if_it_is_in_time():
    rows = [
        {"id": "any", "gold": "7", "pred": "x", "expected": None, "max_ms": 10_000},
        {"id": "slow", "gold": "7", "pred": "7", "expected": True, "max_ms": 0},
    ]
    core = audit("number", cases_of(rows)).core
    assert (core.n, core.wrong, core.late) == (2, (), ("slow",))


def test_no_cases_and_no_column(file, tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    with pytest.raises(DataError, match="no cases"):
        read_cases(empty)
    with pytest.raises(ConfigError, match="cannot read the cases"):
        read_cases(tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match="no row has a column 'kind'") as told:
        audit("number", read_cases(file), by="kind")
    assert "category" in told.value.fix


@pytest.mark.skipif(not CASES.is_dir(), reason="no shared cases here")
def test_math_on_the_designed_cases():
    made = audit("math", read_cases(CASES / "designed.jsonl"), by="category")
    assert made.core.accuracy >= 0.97 and made.core.false_positives <= 0.005 * made.core.n
    assert made.core.p50_ms < 2 and len(made.groups) > 20


# ---- the commands ------------------------------------------------------------------------------------------------


def test_audit_command(capsys, file):
    code, out, _ = run(capsys, "audit", "number", file, "--by", "category")
    assert code == 0 and out.splitlines()[0].split()[:4] == ["ROWS", "N", "ACCURACY", "FP"]
    assert any(line.split()[:3] == ["core", "5", "0.4000"] for line in out.splitlines())
    code, out, _ = run(capsys, "audit", "number", file, "--json")
    told = json.loads(out)
    assert code == 0 and told["n"] == 5 and told["wrong"] == ["c", "d", "e"] and told["policy"]["n"] == 1
    wanted = {
        "n",
        "accuracy",
        "false_positives",
        "false_negatives",
        "undecided",
        "p50_ms",
        "p99_ms",
        "per_second",
        "wrong",
    }
    assert wanted <= set(told) and wanted <= set(told["adaptive"])


def test_audit_gates_exit_with_3(capsys, file):
    code, out, err = run(capsys, "audit", "number", file, "--json", "--min-accuracy", "0.9")
    assert code == 3 and json.loads(out.splitlines()[0])["n"] == 5 and "--min-accuracy 0.9" in err
    assert run(capsys, "audit", "number", file, "--max-fp", "0")[0] == 3
    assert run(capsys, "audit", "number", file, "--max-fp", "1", "--min-accuracy", "0.4")[0] == 0


def test_audit_of_pairs_by_construction(capsys):
    code, out, _ = run(capsys, "audit", "math", "--metamorphic", "--pairs", "60", "--json")
    told = json.loads(out)
    assert code == 0 and told["n"] == 60 and told["wrong"] == []


def test_wrong_usage_is_told(capsys, file):
    code, _, err = run(capsys, "audit", "nmber", file)
    assert code == 2 and "Did you mean 'number'" in err
    assert run(capsys, "audit", "number")[0] == 2
    assert run(capsys, "audit", "number", file, "--metamorphic")[0] == 2
    code, _, err = run(capsys, "audit", "number", file, "--arg", "tolerance")
    assert code == 2 and "--arg needs key=value" in err


def test_verify_command(capsys):
    code, out, _ = run(capsys, "verify", "math", "--gold", r"\frac12", "--answer", "0.5", "--json")
    told = json.loads(out)
    assert code == 0 and told["status"] == "correct" and told["certified"] is True and told["why"] == "rational_exact"
    code, out, _ = run(capsys, "verify", "number", "--gold", "1", "--answer", "1.05", "--arg", "tolerance=0.1")
    assert code == 0 and "within_tolerance" in out
    code, out, _ = run(capsys, "verify", "hostile", "--file", HOSTILE, "--gold", "7", "--answer", "!raise")
    assert code == 0 and "no such luck" in out
    assert run(capsys, "verify", "math", "--gold", "1")[0] == 2


def test_verifiers_commands(capsys, tmp_path):
    code, out, _ = run(capsys, "verifiers", "ls", "--file", HOSTILE, "--json")
    rows = {row["name"]: row for row in json.loads(out)["verifiers"]}
    assert code == 0 and rows["math"]["runs"] == "in process" and rows["hostile_policy"]["runs"] == "pool"
    code, out, _ = run(capsys, "verifiers", "show", "told", "--file", HOSTILE)
    assert code == 0 and "sha256:" in out and "return scale if finish == 'stop' else 0.0" in out
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    text = "import jurat\n\nLIMIT = 3\n\ndef few(text):\n    return len(text.split()) < LIMIT\n\n"
    text += '@jurat.verifier("short")\ndef short(problem, completion):\n    return few(completion)\n'
    one.write_text(text)
    two.write_text(text.replace("split()", "splitlines()").replace("# x", ""))
    code, out, _ = run(capsys, "verifiers", "diff", f"{one}::short", f"{two}::short")
    assert code == 0 and "differ in: code" in out and "+    return len(text.splitlines()) < LIMIT" in out
    two.write_text("# moved\n" + text)
    code, out, _ = run(capsys, "verifiers", "diff", f"{one}::short", f"{two}::short", "--json")
    assert code == 0 and json.loads(out)["same"] is True


@pytest.mark.parametrize(
    ("config", "part"),
    [
        ({"precision": 2}, "configured"),
        ({"strict": False}, "configured"),
        ({"string_extraction": True}, "configured"),
        ({"precision": 6, "match_types": ["latex"]}, "core"),
        ({}, "core"),
    ],
)
def test_rows_for_a_grader_that_is_set_otherwise_are_counted_apart(config, part):
    row = {"id": "c", "gold": "1", "pred": "1", "expected": True, "config": config}
    assert case_of(row, where="test", default_id="1").part == part
