"""Syntax trees as text that is equal for equal code on every supported Python."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import inspect
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from jurat.platform.identity.origin import find_spec, kind_of

_SKIPPED = {"lineno", "col_offset", "end_lineno", "end_col_offset", "ctx", "type_comment", "kind", "type_ignores"}

SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def canonical_tree(node: ast.AST, *, without: frozenset[str] = frozenset()) -> Any:
    """A syntax tree as nested lists of names and constants, equal for equal code on every Python from 3.11 on.

    Docstrings (of attributes too) and positions are left out, and so are fields that are empty, since newer Pythons add such. ``without``
    are fields of ``node`` itself to leave out.
    """
    out: list[Any] = [type(node).__name__]
    for field, value in ast.iter_fields(node):
        if field in _SKIPPED or field in without:
            continue
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            value = without_strings(value) or ([] if isinstance(node, ast.Module) else [ast.Pass()])
        if field == "values" and isinstance(node, ast.JoinedStr):
            value = _joined(value)
        item = _canonical_field(value)
        if item not in (None, []):
            out.append([field, item])
    if isinstance(node, ast.Constant):
        return ["Constant", spelled_constant(node.value)]
    return out


def _joined(values: list[ast.expr]) -> list[ast.expr]:
    """Parts of an f-string with neighbouring texts as one and empty ones dropped, as some Pythons split them."""
    out: list[ast.expr] = []
    for value in values:
        last = out[-1] if out else None
        if isinstance(value, ast.Constant) and isinstance(last, ast.Constant):
            out[-1] = ast.Constant(value=str(last.value) + str(value.value))
        elif not (isinstance(value, ast.Constant) and value.value == ""):
            out.append(value)
    return out


_TREES: dict[int, tuple[ast.AST, frozenset[str], str]] = {}


def tree_digest(node: ast.AST, *, without: frozenset[str] = frozenset()) -> str:
    """sha256 of the canonical tree; each node of a module that is held is read once."""
    held = _TREES.get(id(node))
    if held is None or held[0] is not node or held[1] != without:
        text = json.dumps(canonical_tree(node, without=without), separators=(",", ":"), ensure_ascii=True)
        held = (node, without, hashlib.sha256(text.encode("ascii")).hexdigest())
        _TREES[id(node)] = held
    return held[2]


def _canonical_field(value: Any) -> Any:
    if isinstance(value, ast.AST):
        return canonical_tree(value)
    if isinstance(value, list):
        return [_canonical_field(item) for item in value]
    return value


def without_strings(body: list[ast.stmt]) -> list[ast.stmt]:
    """A body without docstrings and other strings that stand alone: such a statement does nothing."""
    return [
        item for item in body
        if not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) and isinstance(item.value.value, str))
    ]  # fmt: skip


def spelled_constant(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return repr(value)
    if value is Ellipsis:
        return "..."
    if isinstance(value, int):
        return ["int", str(value) if abs(value) < 10**600 else hex(value)]
    if isinstance(value, float):
        return ["float", _hex(value)]
    if isinstance(value, complex):
        return ["complex", _hex(value.real), _hex(value.imag)]
    if isinstance(value, str):
        return ["str", value]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    raise TypeError(type(value).__name__)


def _hex(value: float) -> str:
    return "-nan" if math.isnan(value) and math.copysign(1, value) < 0 else value.hex()


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a body and of the compound statements in it, not of the functions and classes in it."""
    for node in body:
        yield node
        if not isinstance(node, SCOPES):
            for field in ("body", "orelse", "finalbody", "handlers"):
                inner = getattr(node, field, [])
                yield from statements([x for item in inner for x in (item.body if field == "handlers" else [item])])


def sorted_key(item: Any) -> Any:
    if item is None or type(item) in (bool, int, float, complex, str, bytes):
        return spelled_constant(item)
    if type(item) in (tuple, frozenset):
        inner = [sorted_key(part) for part in item]
        if all(part is not None for part in inner):
            ordered = sorted(inner, key=json.dumps) if type(item) is frozenset else inner
            return [type(item).__name__, ordered]
    return None


_SHOWN = 400
"""Characters of a value that people see whole; of a longer one they see its beginning and a digest."""
_BARE = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))


def shown(value: Any) -> str | None:
    """Plain data as Python writes it, the same in every process; None for what is no plain data."""
    try:
        text = _written(value)
    except RecursionError:  # it holds itself
        return None
    if text is None or len(text) <= _SHOWN:
        return text
    named = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{text[:_SHOWN]}...  # {len(text)} characters, sha256 {named}"


def _written(value: Any) -> str | None:
    kind = type(value)
    if kind is int and abs(value) >= 10**600:
        return hex(value)
    if kind in _BARE or kind.__module__ in ("decimal", "fractions", "datetime"):
        return repr(value)
    if isinstance(value, re.Pattern):
        return f"re.compile({value.pattern!r}, {value.flags})"
    if kind is dict:
        pairs = [(_written(k), _written(v)) for k, v in value.items()]
        return None if any(None in pair for pair in pairs) else "{" + ", ".join(f"{k}: {v}" for k, v in pairs) + "}"
    if kind not in (tuple, list, set, frozenset):
        return None
    parts = [_written(item) for item in value]
    texts = [part for part in parts if part is not None]
    if len(texts) < len(parts):
        return None
    if kind in (set, frozenset):
        return f"{kind.__name__}([{', '.join(sorted(texts))}])"
    inner = ", ".join(texts)
    return f"[{inner}]" if kind is list else f"({inner}{',' * (len(texts) == 1)})"


def assigned(node: ast.ClassDef) -> dict[str, ast.expr | None]:
    """What the body of a class assigns to names; None where it does so more than once."""
    out: dict[str, ast.expr | None] = {}
    for item in statements(node.body):
        targets = (
            item.targets if isinstance(item, ast.Assign) else [item.target] if isinstance(item, ast.AnnAssign) else []
        )
        for target in targets:
            if isinstance(target, ast.Name) and item.value is not None:  # type: ignore[attr-defined]
                out[target.id] = None if target.id in out else item.value  # type: ignore[attr-defined]
    return out


def is_literal(node: ast.expr | None, value: Any) -> bool:
    """True if the expression is a literal that spells exactly this value."""
    if node is None:
        return False
    if isinstance(node, (ast.Tuple, ast.List)):
        kind = tuple if isinstance(node, ast.Tuple) else list
        return type(value) is kind and len(value) == len(node.elts) and all(map(is_literal, node.elts, value))
    if isinstance(node, ast.Dict):
        pairs = list(value.items()) if type(value) is dict else []
        if type(value) is not dict or len(pairs) != len(node.keys):
            return False
        rows = zip(node.keys, node.values, pairs, strict=True)
        return all(is_literal(k, pair[0]) and is_literal(v, pair[1]) for k, v, pair in rows)
    try:
        spelled = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return False
    key = sorted_key(frozenset(spelled) if type(spelled) is set else spelled)
    mine = sorted_key(frozenset(value) if type(value) is set else value)
    return type(spelled) is type(value) and key is not None and key == mine


def is_registrar(node: ast.expr, space: Mapping[str, Any]) -> bool:
    """True for the decorator ``@jurat.verifier(...)``: its arguments are config, not code."""
    called = node.func if isinstance(node, ast.Call) else node
    if isinstance(called, ast.Name):
        found = space.get(called.id)
    elif isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
        found = getattr(space.get(called.value.id), called.attr, None)
    else:
        found = None
    return bool(getattr(found, "__registers__", False))


def with_names(node: ast.Import | ast.ImportFrom, names: list[ast.alias]) -> ast.stmt:
    """The import statement for some of its names only."""
    if isinstance(node, ast.Import):
        return ast.Import(names=names)
    return ast.ImportFrom(module=node.module, names=names, level=node.level)


@dataclasses.dataclass(frozen=True, slots=True)
class Contents:
    """What the walk asks of a syntax tree, found in one pass."""

    imports: tuple[ast.Import | ast.ImportFrom, ...]
    """In order; not those under ``if TYPE_CHECKING``, which never run."""
    modules: tuple[ast.Import, ...]
    """In order, all of them."""
    attributes: tuple[ast.Attribute, ...]
    """Outer before inner."""


_CONTENTS: dict[int, tuple[ast.AST, Contents]] = {}


def contents_of(node: ast.AST) -> Contents:
    """Each node of a module that is held is read once."""
    held = _CONTENTS.get(id(node))
    if held is None or held[0] is not node:
        held = _CONTENTS[id(node)] = (node, _contents(node))
    return held[1]


def _contents(node: ast.AST) -> Contents:
    imports, modules, attributes = [], [], []
    stack: list[tuple[ast.AST, int, bool]] = [(node, 0, True)]
    while stack:
        here, depth, runs = stack.pop()
        if isinstance(here, (ast.Import, ast.ImportFrom)):
            imports += [here] if runs else []
            modules += [here] if isinstance(here, ast.Import) else []
        elif isinstance(here, ast.Attribute):
            attributes.append((depth, here))
        typed = depth and isinstance(here, ast.If) and _is_type_checking(here.test)
        children: list[tuple[ast.AST, int, bool]] = []
        for field in here._fields:
            value = getattr(here, field, None)
            inner = runs and (not typed or field == "orelse")
            if isinstance(value, list):
                children += [(item, depth + 1, inner) for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST) and value._fields:
                children.append((value, depth + 1, inner))
        stack += reversed(children)
    attributes.sort(key=lambda item: item[0])
    return Contents(tuple(imports), tuple(modules), tuple(item for _, item in attributes))


def _is_type_checking(test: ast.expr) -> bool:
    return (getattr(test, "id", "") or getattr(test, "attr", "")) == "TYPE_CHECKING"


def imports_of(node: ast.Import | ast.ImportFrom, package: str) -> list[tuple[str, str | None]]:
    """(module, name taken from it or None for the module itself) of an import statement, absolute."""
    if isinstance(node, ast.Import):
        return [(alias.name, None) for alias in node.names]
    base = node.module or ""
    if node.level:
        parts = package.split(".")
        base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
    out: list[tuple[str, str | None]] = []
    for alias in node.names:
        inner = f"{base}.{alias.name}"
        if alias.name == "*":
            out.append((base, None))
        elif kind_of(base) == "first" and (inner in sys.modules or find_spec(inner) is not None):
            out.append((inner, None))
        else:
            out.append((base, alias.name))
    return out


def stripped(node: ast.AST) -> Any:
    """A copy without docstrings, for people. Written out, as ``copy.deepcopy`` takes ten times as long for a package."""
    made = type(node).__new__(type(node))
    for name, value in vars(node).items():
        if isinstance(node, SCOPES) and name == "body":
            value = without_strings(value) or [ast.Pass()]
        if isinstance(value, list):
            value = [stripped(item) if isinstance(item, ast.AST) else item for item in value]
        elif isinstance(value, ast.AST) and vars(value):  # operators and contexts are shared as they are
            value = stripped(value)
        setattr(made, name, value)
    return made


def signature_text(target: Any) -> str:
    """``(problem, completion, *, tolerance=0.0)`` for listings."""
    try:
        return str(inspect.signature(target))
    except (TypeError, ValueError):
        return "(...)"
