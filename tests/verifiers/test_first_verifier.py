"""docs/first-verifier.md: its files are written, its commands run, and what it shows is what they print."""

from __future__ import annotations

import doctest
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from jurat.api import cli

PAGE = Path(__file__).parents[2] / "docs" / "first-verifier.md"
BLOCK = re.compile(r"^```(\w+) ?([\w.]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHORTER = [
    "--set", "stages.0.steps=2", "--set", "stages.1.steps=2", "--set", "evaluate.problems=2",
    "--set", "evaluate.final_problems=2", "--set", "evaluate.samples=1",
]  # fmt: skip
"""For the page's training command: two steps a stage show that it works."""


def test_the_page_does_what_it_says(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JURAT_HOME", str(tmp_path / ".jurat"))
    checker = doctest.OutputChecker()
    ran = []
    for kind, name, text in BLOCK.findall(PAGE.read_text()):
        if name:
            (tmp_path / name).write_text(text)
        elif kind == "console":
            for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
                got = run(command, capfd)
                assert checker.check_output(shown, got, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE), (
                    f"$ {command}\nthe page says:\n{shown}\nbut it printed:\n{got}"
                )
                ran.append(command.split()[1])
    assert ran.count("audit") == 2 and {"verify", "verifiers", "train", "rollouts"} <= set(ran)
    run("python -m pytest -q -p no:cacheprovider test_my_rules.py", capfd)


def run(command: str, capfd: pytest.CaptureFixture[str]) -> str:
    """What a command of the page prints; each must succeed."""
    words = shlex.split(command)
    if words[:2] == ["jurat", "train"]:
        pytest.importorskip("torch", reason="the page's training needs the extra `train`")
        words += SHORTER * ("--dry-run" not in words)
    capfd.readouterr()
    code = cli.run(words[1:]) if words[0] == "jurat" else subprocess.run([sys.executable, *words[1:]]).returncode
    out, err = capfd.readouterr()
    assert code == 0, f"$ {command}\n{out}\n{err}"
    return out
