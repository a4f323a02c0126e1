"""The program of a completion: which block it is, and why there is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jurat.verifiers.code.extract import MAX_PROGRAM, blocks, extract

ONE = "```python\nprint(1)\n```"
TWO = "```python\nprint(2)\n```"


@pytest.mark.parametrize(
    ("completion", "program", "why", "flags"),
    [
        (ONE, "print(1)\n", "python_block", ()),
        (f"First {ONE}", "print(1)\n", "python_block", ()),
        ("First ```\nprint(1)\n", None, "no fenced block", ()),
        (f"So:\n{ONE}\nThat is all.", "print(1)\n", "python_block", ()),
        (f"{ONE}\nBetter:\n{TWO}", "print(2)\n", "python_block", ("several_blocks",)),
        (f"{ONE}\nIt prints:\n```\n1\n```", "print(1)\n", "python_block", ("block_after_program",)),
        (f"{ONE}\n```bash\npython x.py\n```", "print(1)\n", "python_block", ("block_after_program",)),
        ("```\nprint(1)\n```", "print(1)\n", "untagged_block", ("untagged_block",)),
        ("```py\nprint(1)\n```", "print(1)\n", "python_block", ()),
        ("```Python3\r\nprint(1)\r\n```\r\n", "print(1)\n", "python_block", ()),
        ("```python title=x.py\nprint(1)\n```", "print(1)\n", "python_block", ()),
        ("```{.python}\nprint(1)\n```", "print(1)\n", "python_block", ()),
        ("~~~python\nprint('```')\n~~~", "print('```')\n", "python_block", ()),
        ("````python\nx = '''\n```\n'''\n````", "x = '''\n```\n'''\n", "python_block", ()),
        ("1. so\n   ```python\n   if x:\n       y()\n   ```", "if x:\n    y()\n", "python_block", ()),
        ("```python\nprint(1)", "print(1)\n", "python_block", ("unclosed_block",)),
        (f"<think>\n{TWO}\n</think>\n{ONE}", "print(1)\n", "python_block", ()),
        ("```java\nint x;\n```", None, "the last block is java, not python", ()),
        ("```pycon\n>>> 1\n```", None, "the last block is pycon, not python", ()),
        ("```\nx\n```\n```c++\nint x;\n```", None, "the last block is c++, not python", ()),
        ("```python\n\n```", None, "the program is empty", ()),
        ("print(1)", None, "no fenced block", ()),
        ("", None, "no fenced block", ()),
        ("inline ```python print(1)``` code", None, "no fenced block", ()),
        (f"<think>\nmaybe\n{ONE}", None, "the thinking never ended", ()),
        ("```python\nx = '\ud800'\n```", None, "the program holds half a surrogate pair", ()),
    ],
)  # fmt: skip
def test_the_rules(completion: str, program: str | None, why: str, flags: tuple[str, ...]) -> None:
    found = extract(completion)
    assert (found.program, found.why, found.flags) == (program, why, flags)
    assert (found.status == "correct") == (program is not None)


def test_what_was_cut_off_is_refused_and_no_earlier_block_takes_its_place() -> None:
    found = extract(f"{ONE}\nBetter:\n```python\nprint(", finish="length")
    assert (found.program, found.status, found.why) == (None, "unparseable", "cut off before the block ended")
    assert extract(f"{ONE}\nand so", finish="length").program == "print(1)\n"
    assert extract("print(1", finish="length", unfenced=True).status == "unparseable"


def test_text_without_fences_only_where_the_spec_says_so() -> None:
    assert extract("    return 1", unfenced=True).program == "    return 1"
    assert extract(ONE, unfenced=True).program == "print(1)\n"


def test_bounds() -> None:
    assert extract(f"```python\n{'x' * MAX_PROGRAM}\n```").status == "too_large"
    assert extract("x" * 1_000_001).status == "too_large"


@pytest.mark.parametrize(
    "text", ["`" * 900_000, "~" * 900_000 + "\r\r", "`" * 800_000 + "python", "<think" * 150_000, "\n" * 900_000]
)
def test_long_runs_of_anything_take_no_longer_for_it(text: str) -> None:
    """In time linear in the length: a square of it would be minutes, a verifier's time-out, and no verdict."""
    assert extract(text).program is None


@given(st.text(alphabet="`~pyx \n\r\t{<>", max_size=200), st.booleans(), st.sampled_from(["stop", "length"]))
def test_any_text_is_a_program_or_a_reason(text: str, unfenced: bool, finish) -> None:
    found = extract(text, finish=finish, unfenced=unfenced)
    assert (found.program is None) == (found.status in ("no_answer", "unparseable", "too_large"))
    assert found.why


@given(st.lists(st.text(alphabet="abc ='\"#:\t", min_size=1, max_size=20), min_size=1, max_size=10))
def test_a_fenced_program_comes_out_as_it_was(lines: list[str]) -> None:
    program = "x = 1\n" + "".join(f"{line}\n" for line in lines)
    assert [block.text for block in blocks(f"text\n```python\n{program}```\n")] == [program]
    assert extract(f"text\n```python\n{program}```\n").program == program
