"""The source as its rules see it: every file of every room, parsed once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("api", "datasets", "engine", "migrations", "platform", "trainers", "verifiers")


@dataclass(frozen=True)
class Import:
    name: str
    """Full dotted name: ``from torch import distributed`` is ``torch.distributed``."""
    line: int
    late: bool
    """Inside a function: paid for when it runs."""


@dataclass(frozen=True)
class Source:
    path: Path
    tree: ast.Module

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def room(self) -> str:
        return self.name.split("/")[0]

    def at(self, node: ast.AST) -> str:
        return f"{self.name}:{getattr(node, 'lineno', 0)}"

    def imports(self) -> list[Import]:
        """Absolute imports, without those under ``if TYPE_CHECKING``."""
        return list(_imports(self.tree, late=False))


def _imports(node: ast.AST, *, late: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, node.lineno, late) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        yield from (Import(f"{node.module}.{alias.name}", node.lineno, late) for alias in node.names)
    elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        for child in node.orelse:
            yield from _imports(child, late=late)
    else:
        late = late or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            yield from _imports(child, late=late)


@pytest.fixture(scope="session")
def sources() -> list[Source]:
    """Every Python file of the rooms and of the public face."""
    paths = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    paths += sorted((ROOT / "src" / "jurat").glob("*.py"))
    return [Source(path, ast.parse(path.read_text(encoding="utf-8"), str(path))) for path in paths]
