"""The Python example of docs/code.md writes a row whose solution passes its own cases."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from jurat.verifiers.code.verifier import Options, judge_program


def test_the_example(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "code.md"
    (example,) = re.findall(r"```python\n(import json.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    subprocess.run([sys.executable, "-c", example], cwd=tmp_path, timeout=60, check=True)
    (row,) = map(json.loads, (tmp_path / "problems.jsonl").read_text().splitlines())
    cases = (tmp_path / "cases.json").read_text()
    assert json.loads(cases) == row["answer"]
    assert judge_program(row["solution"], cases, Options()).why == "all 2 cases pass"
