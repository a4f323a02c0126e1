"""Sources of modules, parsed once."""

from __future__ import annotations

import ast
import hashlib
import linecache
import symtable
import sys
import types
from collections.abc import Iterator
from pathlib import Path

from jurat.platform.errors import ConfigError
from jurat.platform.identity.syntax import statements


class ModuleSource:
    """A module's source, parsed once: its nodes by line, and which names each of its scopes takes from the globals."""

    def __init__(self, file: str, text: str) -> None:
        self.file, self.text = file, text
        self.tree = ast.parse(text)
        self._compiled: set[tuple[str, int, bytes]] | None = None
        self._functions: dict[tuple[str, int], ast.AST] = {}
        self._lambdas: dict[int, list[ast.Lambda]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
                self._functions[node.name, first] = self._functions[node.name, node.lineno] = node
            elif isinstance(node, ast.Lambda):
                self._lambdas.setdefault(node.lineno, []).append(node)
        self._statements: list[tuple[ast.stmt, frozenset[str]]] | None = None
        self._tables: dict[tuple[str, int], list[symtable.SymbolTable]] = {}
        top = symtable.symtable(text, file, "exec")
        for table in _tables(top):
            self._tables.setdefault((table.get_name(), table.get_lineno()), []).append(table)

    def compiles_to(self, code: types.CodeType) -> bool:
        """True if ``code`` is what the source gives, and not what an older text gave."""
        if self._compiled is None:
            self._compiled = set()
            stack = [compile(self.text, self.file, "exec", dont_inherit=True)]
            while stack:
                here = stack.pop()
                self._compiled.add((here.co_name, here.co_firstlineno, here.co_code))
                stack += [const for const in here.co_consts if isinstance(const, types.CodeType)]
        # Test runners rewrite asserts, so that what they loaded never equals its source.
        rewritten = "pytest" in sys.modules and "assert" in self.text
        return rewritten or (code.co_name, code.co_firstlineno, code.co_code) in self._compiled

    def node(self, name: str, line: int, columns: set[int]) -> ast.AST | None:
        """The function, lambda or class that begins at ``line``; lambdas of one line are told apart by columns."""
        if name != "<lambda>":
            return self._functions.get((name, line))
        found = self._lambdas.get(line, [])
        if len(found) <= 1:
            return found[0] if found else None
        inside = [
            node
            for node in found
            if node.body.col_offset in columns
            and node.body.end_lineno == node.lineno
            and all(node.col_offset <= c < (node.end_col_offset or 0) for c in columns)
        ]
        return min(inside, key=lambda n: (n.end_col_offset or 0) - n.col_offset) if inside else None

    def class_node(self, qualname: str) -> ast.ClassDef | None:
        """The class of that qualified name; the last one, as a later definition replaces an earlier."""
        here: list[ast.stmt] = self.tree.body
        node: ast.ClassDef | None = None
        for part in [part for part in qualname.split(".") if part != "<locals>"]:
            inner = [
                n for n in statements(here)
                if isinstance(n, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and n.name == part
            ]  # fmt: skip
            if not inner:
                return None
            last = inner[-1]
            here = last.body
            node = last if isinstance(last, ast.ClassDef) else None
        return node

    def statements_of(self, name: str) -> list[ast.stmt]:
        """Module-level statements, but definitions, that mention ``name`` or import it."""
        if self._statements is None:
            self._statements = []
            for node in statements(self.tree.body):
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    names = frozenset(alias.asname or alias.name for alias in node.names)
                elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Delete)):
                    names = frozenset(item.id for item in ast.walk(node) if isinstance(item, ast.Name))
                else:
                    continue
                self._statements.append((node, names))
        return [node for node, names in self._statements if name in names]

    def globals_of(self, node: ast.AST) -> list[str]:
        """Names that ``node`` and the scopes in it take from the module's globals, sorted."""
        name = "lambda" if isinstance(node, ast.Lambda) else getattr(node, "name", "top")
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])  # type: ignore[attr-defined]
        tables = self._tables.get((name, node.lineno), []) or self._tables.get((name, first), [])  # type: ignore[attr-defined]
        names: set[str] = set()
        for table in tables:
            for inner in _tables(table):
                names |= {s.get_name() for s in inner.get_symbols() if s.is_global() and s.is_referenced()}
        return sorted(names)


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


_MODULES: dict[tuple[str, str], ModuleSource] = {}


def module_of(file: str, where: str) -> ModuleSource:
    text = "".join(linecache.getlines(file))
    if not text and not (Path(file).is_file() and Path(file).stat().st_size == 0):
        raise ConfigError(
            f"the source of {where} is not there", where=file,
            fix="define it in a file; code typed at a prompt or made by exec has no source to identify",
        )  # fmt: skip
    key = (file, hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest())
    if key not in _MODULES:
        _MODULES[key] = ModuleSource(file, text)
    return _MODULES[key]
