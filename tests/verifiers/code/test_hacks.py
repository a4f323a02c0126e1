"""Programs that want the reward and not the task: none of them gets any, however the task is posed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jurat.platform.types import Verdict

Judge = Callable[..., Verdict]
LEVELS = ("ns", "seccomp")

OURS = {
    "equal to everything": """
class Any(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = None
    __lt__ = __gt__ = __le__ = __ge__ = __eq__
    def __sub__(self, other): return Any()
    __rsub__ = __sub__
    def __bool__(self): return True
def add(a, b): return Any()
""",
    "a list that holds everything": "class L(list):\n    __contains__ = __eq__ = lambda *a: True\ndef add(a, b): return L()",
    "nothing": "",
    "a comment": "# def add(a, b): return a + b",
    "names that are not its own": "from math import *\nfrom itertools import *\nfrom json import *",
    "the name of the harness, left undefined": "candidate = check = _jurat_run = None",
    "leaves at once": "import sys; sys.exit(0)",
    "leaves when it is called": "import os\ndef add(a, b): os._exit(0)",
    "leaves with status 0 by a hook": "import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b): raise RuntimeError",
    "answers before it is asked": """
import os
for line in ('{"value": 3}', '[0, "ok", "", "", 1, 1]', '{"passed": true}', '{"value": true}'):
    for fd in range(0, 12):
        try: os.write(fd, (line + chr(10)).encode())
        except OSError: pass
def add(a, b): return None
""",
    "answers what is no value": "import os\ndef add(a, b):\n    os.write(0, b'{\"missing\": []}' + bytes([10]))\n    return None",
    "answers that something long is missing": """
import os
line = b'{"missing": {"$int": "0x' + b'f' * 9999 + b'"}}'
def add(a, b): os.write(0, line + bytes([10]))
""",
    "an int too long to be written": "def add(a, b): return 7 ** 99999",
    "an exception too long to be written": "def add(a, b): raise ValueError(7 ** 99999)",
    "a complex number": "def add(a, b): return 3j",
    "closes the channel": "import os\ndef add(a, b):\n    os.close(0)\n    return 3",
    "takes the exception for its own": "def add(a, b): raise AssertionError",
    "an exception that ends a test well": "import unittest\ndef add(a, b): raise unittest.SkipTest('later')",
    "system exit from a call": "def add(a, b): raise SystemExit(0)",
    "patches what compares": "import builtins\nbuiltins.all = lambda *a: True\nbuiltins.abs = lambda *a: 0\ndef add(a, b): return 0",
    "patches what tests": "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\ndef add(a, b): return 0",
    "looks for the expected value": """
def add(a, b):
    import gc, sys
    frame = sys._getframe()
    while frame:
        for name, value in {**frame.f_globals, **frame.f_locals}.items():
            if isinstance(value, dict) and 'expected' in value: return value['expected']
        frame = frame.f_back
    for item in gc.get_objects():
        if isinstance(item, dict) and 'expected' in item: return item['expected']
""",
    "changes its arguments": "def add(*args):\n    return args.__class__()",
    "negative zero and not a number": "def add(a, b): return float('nan')",
    "true": "def add(a, b): return True",
    "text": "def add(a, b): return str(a + b)",
}


@pytest.mark.parametrize("mode", ["func", "check"])
@pytest.mark.parametrize("name", OURS)
def test_ours(judge: Judge, name: str, mode: str) -> None:
    found = judge(OURS[name], mode, seconds=2.0)
    assert found.score == 0.0, found.why


@pytest.mark.parametrize("mode", ["assert", "unittest"])
@pytest.mark.parametrize(
    "name", [name for name in OURS if any(word in name for word in ("equal", "test", "exception", "answers"))]
)
def test_ours_in_other_test_code(judge: Judge, name: str, mode: str) -> None:
    assert judge(OURS[name], mode, seconds=2.0).score == 0.0


@pytest.mark.parametrize("entry", ["len", "sum", "gcd", "comb", "json", "candidate", "__builtins__", "__name__"])
def test_nothing_answers_for_a_program_that_defines_nothing(judge: Judge, entry: str) -> None:
    found = judge("", {"mode": "func", "entry": entry, "tests": [{"args": [[]], "expected": 0}]})
    assert (found.score, found.why) == (0.0, f"case 1 of 1: {entry}([]): the program does not define {entry}")


@pytest.mark.parametrize(
    "program",
    [
        "print(3, end='')",  # a prefix of what both cases expect is no answer to both
        "print('3\\n6')",
        "print('3'); print('6')",
        "print('')",
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "import atexit, os; atexit.register(os._exit, 0); raise RuntimeError",
        "import sys; print(open(sys.argv[0]).read())",
        "import glob; print(*(open(f).read() for f in glob.glob('*')))",
    ],
)
def test_ours_of_standard_streams(judge: Judge, program: str) -> None:
    assert judge(program, "stdio").score == 0.0


def test_values_made_to_collide_cost_no_more_than_others(judge: Judge) -> None:
    """A set of n such values takes n * n steps to fill, in the judge."""
    program = "class S(set): pass\ndef f():\n    import json\n    return {'$': 1}\n"
    program += (
        "import os\nline = '{\"value\": {\"$set\": [' + ','.join(str(i * (2**61 - 1)) for i in range(40000)) + ']}}'\n"
    )
    program += "os.write(0, line.encode() + bytes([10]))"
    found = judge(program, {"mode": "func", "entry": "f", "tests": [{"args": [], "expected": 3}]})
    assert (found.score, found.why) == (
        0.0,
        "case 1 of 1: f(): returned keys that were made to collide, which is no plain data",
    )


def test_an_output_that_is_only_the_beginning_is_wrong(judge: Judge) -> None:
    cases = {"mode": "stdio", "tests": [{"stdin": "", "stdout": "1\n2\n3\n"}]}
    for compare in ("tokens", "exact"):
        assert judge("print(1); print(2)", {**cases, "compare": compare}).score == 0.0
        assert judge("print(1); print(2); print(3)", {**cases, "compare": compare}).score == 1.0


def test_expected_values_and_tests_are_nowhere_in_its_process(judge: Judge) -> None:
    """A program that prints all it can find of its process finds its arguments, and no value or name of the tests."""
    cases = {
        "mode": "check",
        "entry": "f",
        "test": "SECRET = 'expected-7713'\ndef check(c):\n    assert c('argument-7713') == SECRET",
    }
    program = """
import gc
def f(x):
    found = []
    for item in gc.get_objects():
        if isinstance(item, (list, tuple, dict)):
            parts = item.values() if isinstance(item, dict) else item
            found += [part for part in parts if isinstance(part, str)]
    sought = '-'.join(['expected', x[-4:]])
    raise ValueError([part for part in found if part == sought][:3])
"""
    assert judge(program, cases).why == "case 1 of 1: the program raised ValueError: []"


# ---- those of the manifest ---------------------------------------------------------------------------------------


def attacks() -> list[dict[str, Any]]:
    import os

    folder = (
        Path(os.environ.get("JURAT_CASES", Path(__file__).resolve().parents[3].parent / "shared" / "cases")) / "sandbox"
    )
    if not (folder / "manifest.json").is_file():
        return []
    found = json.loads((folder / "manifest.json").read_text())["attacks"]
    wanted = [one for one in found if one["kind"] in ("reward", "verdict") or one["kind"].startswith("judge")]
    return [
        {**one, "text": (folder / "attacks" / f"{one['id']}.py").read_text("utf-8", "surrogateescape")}
        for one in wanted
    ]


@pytest.mark.parametrize("level", ["ns", pytest.param("seccomp", marks=pytest.mark.soak)])
def test_attacks_on_the_reward(judge: Judge, cases: Path, level: str) -> None:
    """All attacks that forge a reward or a verdict, or aim at the judge, in each way the task may be posed."""
    task = json.loads((cases / "sandbox" / "manifest.json").read_text())["task"]
    posed = {
        "stdio": {"mode": "stdio", "tests": task["stdio_tests"]},
        "func": {"mode": "func", "entry": "add", "tests": task["func_tests"]},
        "assert": {
            "mode": "assert",
            "tests": [f"assert add(*{t['args']}) == {t['expected']}" for t in task["func_tests"]],
        },
    }
    got = {}
    for attack in attacks():
        for name, one in posed.items():
            if attack["task"] == "any" or (attack["task"] == "stdio") == (name == "stdio"):
                found = judge(attack["text"], one, level=level, seconds=1.5)
                if found.score != 0.0 or "PWNED" in json.dumps(found.evidence) or found.fault == "infra":
                    got[attack["id"], name] = (found.status, found.score, found.why)
    assert len(attacks()) > 15 and got == {}


@pytest.mark.parametrize("level", LEVELS)
def test_benign_programs_pass(judge: Judge, cases: Path, level: str) -> None:
    """All at level ns; below it there is no folder to write to."""
    failed = {}
    files = sorted((cases / "sandbox" / "benign").glob("*.json"))
    for file in files:
        one = json.loads(file.read_text())
        needs = one.get("needs") or []
        found = judge(
            file.with_suffix(".py").read_text(),
            one,
            level=level,
            preload=(needs,) if isinstance(needs, str) else tuple(needs),
        )
        if found.status != "correct":
            failed[file.stem] = found.why
    assert len(files) > 15 and set(failed) == ({"11_tempfile"} if level == "seccomp" else set()), failed
