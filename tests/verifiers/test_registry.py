"""Registering verifiers, giving one verdict, rebuilding from a spec, and shipping what a notebook defined."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import jurat
from jurat.platform.errors import ConfigError
from jurat.platform.types import Step
from jurat.verifiers import catalog, verdicts
from jurat.verifiers.registry import REGISTERED
from jurat.verifiers.verdicts import as_verdict, problem_from_json, problem_of, problem_to_json


@pytest.fixture
def names():
    before = set(REGISTERED)
    yield
    for name in set(REGISTERED) - before:
        REGISTERED.discard(name)


def test_the_decorator_returns_the_function_itself_and_records_it(names):
    def digit_sum(problem, completion, *, base=10):
        """Sum of digits."""
        return True

    assert jurat.verifier("digit_sum", version="3", deadline=2.0, deps=["numpy"])(digit_sum) is digit_sum
    made = catalog.find("digit_sum")
    assert (made.target, made.version, made.deadline, made.deps) == (digit_sum, "3", 2.0, ("numpy",))
    assert list(made.parameters) == ["base"] and not made.bounded
    assert made.build({"base": 2})(problem_of("7"), "x") is True


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "Digit Sum"}, "lower case"),
        ({"name": "math"}, "built in"),
        ({"name": "problem"}, "built in"),
        ({"name": "a", "deadline": 0}, "deadline is a positive number"),
        ({"name": "a", "deadline": float("nan")}, "deadline is a positive number"),
        ({"name": "a", "kind": "outcom"}, "Did you mean 'outcome'"),
        ({"name": "a", "kind": "process"}, "(?s)Did you mean 'steps'.*fix: write kind='steps'"),
        ({"name": "a", "kind": "xyz"}, "(?s)got 'xyz'\n.*fix: write one of them, or leave kind out"),
        ({"name": "a", "blame": "nobody"}, "blame is one of"),
        ({"name": "a", "version": 2}, "version is a non-empty string"),
    ],
)
def test_bad_registrations_say_what_is_wrong(names, given, said):
    with pytest.raises(ConfigError, match=said):
        jurat.verifier(**given)(lambda problem, completion: True)


def test_a_signature_that_cannot_be_called_is_refused(names):
    with pytest.raises(ConfigError, match=r"cannot be called with \(problem, completion\)"):
        jurat.verifier("one")(lambda completion: True)
    with pytest.raises(ConfigError, match="needs a name"):
        jurat.verifier(lambda problem, completion: True)


def test_duplicates_are_refused(names):
    jurat.verifier("twin")(lambda problem, completion: True)
    with pytest.raises(ConfigError, match="'twin' is registered twice") as told:
        jurat.verifier("twin")(lambda problem, completion: False)
    assert "test_registry.py" in told.value.where


# ---- what comes back ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "status", "score"),
    [
        (True, "correct", 1.0), (False, "incorrect", 0.0), (1, "correct", 1.0), (0, "incorrect", 0.0),
        (0.25, "partial", 0.25), (1.0, "correct", 1.0), (None, "abstained", None),
        (float("nan"), "error", None), (float("inf"), "error", None), (2.0, "error", None), (-0.1, "error", None),
        ("yes", "error", None), ([1.0], "error", None), ({"score": 1}, "error", None), (1j, "error", None),
        (jurat.Verdict.of("partial", 0.5), "partial", 0.5),
        (jurat.Verdict(status="fine", score=1.0), "error", None),
        (jurat.Verdict(status="incorrect", score=0.5), "error", None),
        (jurat.Verdict(status="partial", score=float("nan")), "error", None),
        (jurat.Verdict(status="undecided", score=0.0), "error", None),
        (jurat.Verdict.of("no_answer"), "no_answer", 0.0),
    ],
)  # fmt: skip
def test_only_the_four_forms_are_taken_and_nothing_is_clipped(raw, status, score):
    made = as_verdict("v", "outcome", raw)
    assert (made.status, made.score) == (status, score)
    if status == "error":
        assert made.fault == "verifier" and made.why.startswith("v returned")


def test_numpy_numbers_are_numbers():
    import numpy as np

    assert as_verdict("v", "outcome", np.float32(0.5)).score == 0.5
    assert as_verdict("v", "outcome", np.bool_(True)).status == "correct"
    assert as_verdict("v", "outcome", np.int64(1)).status == "correct"
    assert as_verdict("v", "outcome", np.array([0.5])).status == "error"


def test_steps_make_a_verdict_of_their_lowest():
    good, half = Step(start=0, end=3, status="correct", score=1.0), Step(start=3, end=5, status="partial", score=0.5)
    made = as_verdict("v", "steps", [good, half])
    assert (made.status, made.score, len(made.steps)) == ("partial", 0.5, 2)
    unknown = Step(start=5, end=6, status="undecided", score=None)
    assert as_verdict("v", "steps", [good, unknown]).status == "undecided"
    assert as_verdict("v", "outcome", [good]).status == "error"


def test_evidence_is_capped_and_kept_as_json():
    big = jurat.Verdict.of("correct", read="r" * 9000, evidence={"x": "y" * 50_000})
    made = as_verdict("v", "outcome", big)
    assert len(made.read) == 2_000 and len(json.dumps(made.evidence)) < 20_000
    odd = as_verdict("v", "outcome", jurat.Verdict.of("correct", evidence={"x": object(), "n": float("nan")}))
    json.dumps(odd.evidence, allow_nan=False)


def test_problems_and_verdicts_travel_as_json():
    problem = problem_of("\ud800x", prompt="q", verifier="exact", columns={"level": 2, "verifier": "a"})
    again = problem_from_json(json.loads(json.dumps(problem_to_json(problem))))
    assert problem_to_json(again) == problem_to_json(problem)
    verdict = jurat.Verdict.of(
        "correct", flags=("a",), certified=True, steps=(Step(start=0, end=1, status="correct", score=1.0),)
    )
    sent = json.loads(json.dumps(verdicts.verdict_to_json(verdict)))
    assert verdicts.verdict_to_json(verdicts.verdict_from_json(sent)) == verdicts.verdict_to_json(verdict)
    for bad in ({}, {"status": "correct", "score": 0.2}, {"status": "correct", "score": 1, "steps": [[1]]}):
        with pytest.raises(ValueError, match="verdict"):
            verdicts.verdict_from_json(bad)


# ---- one verdict -------------------------------------------------------------------------------------------------


def test_verify_gives_one_verdict():
    made = jurat.verify("math", gold=r"\frac{1}{2}", answer="0.5")
    assert (made.status, made.score, made.certified, made.why) == ("correct", 1.0, True, "rational_exact")
    assert jurat.verify("math", gold="42", completion=r"I think \boxed{41}").read == "41"
    with pytest.raises(ConfigError, match=r"unknown verifier 'maths'\. Did you mean 'math'"):
        jurat.verify("maths", gold="1", answer="1")
    with pytest.raises(ConfigError, match="either answer= or completion="):
        jurat.verify("math", gold="1")


def test_the_public_face_is_light():
    code = (
        "import jurat, sys\nassert 'numpy' not in sys.modules\njurat.verify('math', gold='1', answer='1')\n"
        "print(*[m for m in ('torch', 'transformers', 'sympy', 'pandas', 'sqlalchemy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


# ---- what a notebook or a script defines -------------------------------------------------------------------------

SCRIPT = """
import re
import jurat

LIMIT = 3
WORDS = {"so", "thus"}

def count(text):
    return len(re.findall(r"\\w+", text))

@jurat.verifier("short", version="1")
def short(problem, completion):
    return count(completion) <= LIMIT and completion not in WORDS
"""


def run_script(tmp_path: Path, text: str, **given) -> subprocess.CompletedProcess:
    path = tmp_path / "mine.py"
    path.write_text(text)
    return subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60, **given)


USE = """
if __name__ == "__main__":
    print(jurat.verify("short", gold="x", answer="a b c").status, jurat.verify("short", gold="x", answer="a b c d").status)
"""


def test_a_verifier_of_a_script_travels_by_its_file(tmp_path):
    done = run_script(tmp_path, SCRIPT + USE)
    assert done.stdout.split() == ["correct", "incorrect"], done.stderr


NOTEBOOK = '''
import linecache

def cell(name, text):
    """What a notebook does: code without a file, its source in linecache."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), globals())

del __file__
'''


def test_a_verifier_of_a_notebook_travels_by_its_source(tmp_path):
    text = NOTEBOOK + f"cell('<cell 1>', {SCRIPT!r})\n" + textwrap.dedent(USE)
    done = run_script(tmp_path, text)
    assert done.stdout.split() == ["correct", "incorrect"], done.stderr


def test_a_cell_run_again_replaces_its_verifier(tmp_path):
    again = SCRIPT.replace("LIMIT = 3", "LIMIT = 4")
    text = NOTEBOOK + f"cell('<cell 1>', {SCRIPT!r})\ncell('<cell 2>', {again!r})\n" + USE
    done = run_script(tmp_path, text)
    assert done.stdout.split() == ["correct", "correct"], done.stderr


def test_one_that_cannot_travel_is_refused_with_the_way_out(tmp_path):
    held = SCRIPT.replace("LIMIT = 3", "LIMIT = open('/dev/null')")
    done = run_script(tmp_path, NOTEBOOK + f"cell('<cell 1>', {held!r})\n" + USE)
    assert "it uses 'LIMIT', a TextIOWrapper, which cannot be shipped by source" in done.stderr
    assert "move it into a file" in done.stderr


def test_a_script_without_a_guard_does_not_start_itself_again_and_again(tmp_path):
    done = run_script(tmp_path, SCRIPT + "print(jurat.verify('short', gold='x', answer='a b c').status)\n")
    assert done.stdout.split() == ["correct"], done.stderr
    held = SCRIPT.replace("LIMIT = 3", "LIMIT = open('/dev/null').fileno\nLIMIT = max(3, 0 * LIMIT())\nHELD = object()")
    held = held.replace("<= LIMIT", "<= LIMIT and HELD")
    done = run_script(tmp_path, held + "print(jurat.verify('short', gold='x', answer='a b c').status)\n")
    assert "starts a judge while it is loaded" in done.stderr and "__main__" in done.stderr


def scale(text):
    return len(text) / 10


def test_one_inside_a_function_travels_with_what_it_closes_over(names):
    limit = 3

    @jurat.verifier("inner_one", deadline=5.0)
    def inner(problem, completion):
        return scale(completion) if len(completion) <= limit else json.loads("false")

    made = jurat.verify("inner_one", gold="1", answer="abc")
    assert (made.score, made.isolation) == (0.3, "process")
    assert jurat.verify("inner_one", gold="1", answer="abcd").score == 0.0
    jurat.verifier("inner_two")(lambda problem, completion: completion == problem.reference)
    assert jurat.verify("inner_two", gold="1", answer="1").score == 1.0


def test_one_that_closes_over_what_cannot_travel_is_refused(names):
    held = object()

    @jurat.verifier("inner_three")
    def inner(problem, completion):
        return held is not None

    with pytest.raises(ConfigError, match="it uses 'held', a object, which cannot be shipped") as told:
        jurat.verify("inner_three", gold="1", answer="1")
    assert "move it into a file" in told.value.fix


def test_an_installed_entry_point_loads_in_the_child_only(tmp_path, monkeypatch):
    site = tmp_path / "site-packages"
    info = site / "my_pack-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "my_pack_rules.py").write_text(
        "import jurat\n@jurat.verifier('packed')\ndef packed(problem, completion):\n    return completion == 'ok'\n"
    )
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-pack\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[jurat.verifiers]\nmy_pack = my_pack_rules\n")
    (info / "RECORD").write_text("my_pack_rules.py,,\n")
    (info / "top_level.txt").write_text("my_pack_rules\n")
    monkeypatch.syspath_prepend(str(site))
    made = jurat.verify("packed", gold="x", answer="ok", user_files=["my_pack"])
    assert made.status == "correct" and "my_pack_rules" not in sys.modules
