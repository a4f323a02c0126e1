"""Prints the ten longest functions and the ten longest files of the rooms: for conversation, no gate."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("api", "datasets", "engine", "migrations", "platform", "trainers", "verifiers")


def main() -> None:
    functions, files = [], []
    for path in (path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(ROOT)
        files.append((text.count("\n"), str(name)))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno:
                functions.append((node.end_lineno - node.lineno + 1, f"{name}:{node.lineno} {node.name}"))
    for title, rows in (("longest functions", functions), ("longest files", files)):
        print(f"{title} (lines)")
        for lines, what in sorted(rows, reverse=True)[:10]:
            print(f"{lines:6d}  {what}")
    print(f"{sum(lines for lines, _ in files):6d}  lines in {len(files)} files")


if __name__ == "__main__":
    main()
