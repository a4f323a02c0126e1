"""The Python example of docs/sandbox.md runs and prints what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def test_the_example() -> None:
    page = Path(__file__).parents[3] / "docs" / "sandbox.md"
    (example,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=60, check=True)
    level, first, *batch = done.stdout.splitlines()
    assert level in ("ns", "seccomp") and first == r"finished b'42\n'"
    assert sorted(line.rpartition(" ")[0] for line in batch) == [rf"{n} finished b'{n * n}\n'" for n in range(5)]
