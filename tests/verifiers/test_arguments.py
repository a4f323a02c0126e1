"""What is refused before a verifier runs: arguments by value, thresholds, case files, files that do not load; and what
a verifier returned that is no verdict."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import jurat
from jurat.api.cli import app
from jurat.platform.errors import ConfigError, RunFailed
from jurat.platform.recipe import Member, RewardPart
from jurat.platform.types import Step, Verdict
from jurat.verifiers import audit, catalog, verdicts
from jurat.verifiers.judge import LocalJudge, build_judge


@pytest.mark.parametrize(
    ("name", "args", "said"),
    [
        ("math", {"form": "txt"}, "Did you mean 'text'"),
        ("math", {"form": [1]}, "one of answer, text"),
        ("math", {"off": "chain_value"}, "a list of names"),
        ("math", {"off": ["chain_values"]}, "Did you mean 'chain_value'"),
        ("math", {"order": ["answer_iz"]}, "Did you mean 'answer_is'"),
        ("math", {"markers": ["box"]}, "Did you mean 'boxed'"),
        ("math", {"decimal_digits": -5}, "from 1 to 1000"),
        ("math", {"decimal_digits": "x"}, "a whole number"),
        ("math", {"symbolic": "maybe"}, "true or false"),
        ("math", {"reject_flags": 5}, "a list of names"),
        ("math", {"foo": 1}, "takes no argument"),
        ("number", {"tolerance": float("nan")}, "no JSON"),
        ("number", {"tolerance": -1}, "finite number"),
        ("choice", {"letters": ""}, "one letter"),
        ("length", {"min": "a"}, "a whole number"),
        ("length", {"min": 9, "max": 3}, r"at most max \(3\)"),
        ("length", {"unit": "word"}, "Did you mean 'words'"),
        ("tags", {"names": 5}, "a list of names"),
        ("tags", {"names": []}, "none of them empty"),
        ("language", {"scripts": 5}, "a list of names"),
        ("language", {"min_share": 2}, "from 0 to 1"),
        ("fluency", {"ngram": -3}, "from 1 to 1000"),
        ("regex_format", {"pattern": "("}, "no regular expression"),
        ("regex_format", {"pattern": "a", "match": "any"}, "Did you mean 'anywhere'"),
        ("regex_format", {"pattern": "a", "flags": "z"}, "flags are letters"),
        ("json_schema", {"schema": 5}, "an object"),
        ("json_schema", {"schema": {"required": 5}}, "required must be a list of names"),
        ("json_schema", {"schema": {"type": "objekt"}}, "Did you mean 'object'"),
        ("json_schema", {"schema": {"type": 5}}, "type must be a name"),
        ("json_schema", {"schema": {"properties": 5}}, "properties must be an object"),
        ("json_schema", {"schema": {"items": {"enum": 5}}}, r"schema\.items\.enum must be a list"),
        ("json_schema", {"schema": {"minimum": "a"}}, "minimum must be a number"),
        ("json_schema", {"schema": {"anyOf": []}}, "not empty"),
        ("all_of", {"of": []}, "a list of verifiers"),
        ("all_of", {"of": [5]}, "a list of verifiers"),
        ("all_of", {"of": [{"name": "math"}]}, "a list of verifiers"),
        ("all_of", {"of": [{"use": "math", "args": {"form": "x"}}]}, "one of answer, text"),
        ("weighted", {"of": ["math"], "weights": [0]}, "a positive sum"),
    ],
)
def test_an_argument_s_value_is_refused_when_the_verifier_is_built(name, args, said):
    with pytest.raises(ConfigError, match=said) as told:
        LocalJudge(RewardPart(members=(Member(use=name, args=args),)))
    assert told.value.fix and told.value.where


@pytest.mark.parametrize(
    ("name", "args"),
    [
        (
            "math",
            {"form": "answer", "off": ["chain_value"], "order": ("last",), "decimal_digits": 3, "symbolic": False},
        ),
        ("number", {"tolerance": 1, "relative": True}),
        ("length", {"max": 10, "unit": "words"}),
        (
            "json_schema",
            {"schema": {"type": ["object", "null"], "properties": {"a": {"minimum": 1.5}}, "enum": [None]}},
        ),
        ("weighted", {"of": ["math", {"use": "exact"}], "weights": [1, 0.5]}),
    ],
)
def test_good_values_pass(name, args):
    assert catalog.check(name, args).name == name


def test_an_argument_may_have_any_name(tmp_path):
    rules = tmp_path / "rules.py"
    rules.write_text(
        "import jurat\n@jurat.verifier('own')\n"
        "def own(problem, completion, *, name, gold=0, args=0): return name == completion and gold == args == 5\n"
    )
    given = {"name": "y", "gold": 5, "args": 5}
    assert jurat.verify("own", gold="1", answer="y", user_files=[rules], args=given).status == "correct"
    with pytest.raises(ConfigError, match="takes no argument 'name'"):
        jurat.verify("math", gold="1", answer="1", name=3)
    told = CliRunner().invoke(app, ["verify", "math", "--gold", "1", "--answer", "1", "--arg", "user_files=3"])
    assert isinstance(told.exception, ConfigError) or told.exit_code == 2
    with pytest.raises(ConfigError, match="gold is text"):
        jurat.verify("math", gold=1, answer="1")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "said", "line", "fix"),
    [
        ("x = 1\ndef broken(:\n", "SyntaxError: ", 2, "syntax"),
        ("\nraise ValueError('boom')\n", "ValueError: boom", 2, "python"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3", 2, "__main__"),
        ("import jurat\n@jurat.verifier('A b')\ndef f(p, c): ...\n", "a verifier's name is", 2, "rename it"),
        ("import jurat\n@jurat.verifier('a', version=1)\ndef f(p, c): ...\n", "version is a non-empty", 2, "version="),
    ],
)
def test_a_file_that_does_not_load_says_so_without_a_traceback(tmp_path, text, said, line, fix):
    path = tmp_path / "rules.py"
    path.write_text(text)
    with pytest.raises(ConfigError) as told:
        build_judge(RewardPart(), user_files=[path])
    assert said in told.value.what and told.value.where == f"{path}:{line}" and fix in told.value.fix
    assert "Traceback" not in str(told.value)


def test_a_file_that_ends_the_process_is_named(tmp_path):
    path = tmp_path / "rules.py"
    path.write_text("import os\nos._exit(0)\n")
    with pytest.raises(RunFailed, match="exit code 0 while it started") as told:
        build_judge(RewardPart(), user_files=[path])
    assert told.value.where == str(path)


def test_a_folder_and_a_link_to_nothing_are_called_that(tmp_path):
    (tmp_path / "d.py").mkdir()
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    with pytest.raises(ConfigError, match=r"'d\.py' is a folder"):
        build_judge(RewardPart(), user_files=[tmp_path / "d.py"])
    with pytest.raises(ConfigError, match=r"'loop\.py' is a link that leads to no file"):
        build_judge(RewardPart(), user_files=[tmp_path / "loop.py"])


def test_cases_that_are_no_file_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    for name, said in (("pipe.jsonl", "no regular file"), (".", "a folder"), ("none.jsonl", "No such file")):
        with pytest.raises(ConfigError, match=said) as told:
            audit.read_cases(tmp_path / name)
        assert told.value.fix


@pytest.mark.parametrize("option", ["--min-accuracy=nan", "--min-accuracy=2", "--max-fp=nan", "--max-fp=-1"])
def test_a_threshold_that_nothing_can_miss_is_refused(tmp_path, option):
    path = tmp_path / "cases.jsonl"
    path.write_text(json.dumps({"gold": "1", "pred": "2", "expected": True}) + "\n")
    told = CliRunner().invoke(app, ["audit", "math", str(path), option])
    assert isinstance(told.exception, ConfigError) or told.exit_code == 2
    number = float(option.partition("=")[2])
    with pytest.raises(ConfigError):
        audit.check_gate(*((number, None) if "accuracy" in option else (None, number)))


class bool_:
    def __bool__(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (bool_(), "returned bool_"),
        (Verdict(status="correct", score=1.0, fault="nobody"), "fault str 'nobody'"),
        (Verdict(status="correct", score=1.0, flags="abc"), "flags str 'abc'"),
        (Verdict(status="correct", score=1.0, flags=(object(),)), "flags tuple"),
        (Verdict(status=["correct"], score=1.0), "status list"),
        (Verdict(status="correct", score=1.0, evidence=5), "evidence int"),
        (Verdict(status="correct", score=1.0, steps=(1,)), "steps tuple"),
        (
            Verdict(status="correct", score=1.0, steps=(Step(start=0, end=1, status="correct", score=1.0),) * 5000),
            "5000",
        ),
    ],
)
def test_what_is_no_verdict_is_an_error(raw, said):
    made = verdicts.as_verdict("mine", "outcome", raw)
    assert made.status == "error" and made.score is None and said in made.why


def test_a_verdict_is_capped_and_travels():
    given = Verdict(status="correct", score=1.0, flags=("x" * 5_000_000,) * 100, seconds=float("nan"), certified="yes")
    made = verdicts.as_verdict("mine", "outcome", given)
    assert made.status == "correct" and made.flags == ("x" * 100,) * 32
    assert made.seconds == 0.0 and made.certified is False
    assert len(json.dumps(verdicts.verdict_to_json(made), allow_nan=False)) < 5_000
    assert verdicts.as_verdict("mine", "outcome", np.bool_(True)).status == "correct"


def test_hints_name_no_missing_file(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"no verifier file 'rule\.py'\.\n"):
        build_judge(RewardPart(), user_files=[tmp_path / "rule.py"])
