"""The version digest of code: equal for code that reads the same, new for any change reading sees.

Hashed: the canonical syntax tree of a function or class (no comments, docstrings, white space, positions, file or
module names), its default values, closure cells, the globals it names, and the same for everything first-party that
these reach; for a first-party module reached by name, the whole module. Third-party code counts as distribution,
version and the digest of its pure-Python files. A wrapper that only passes its arguments on (``functools.wraps``) is
transparent. Of jurat's own code, data is read by the statements that make it, as its tables hold compiled objects.

Of a class, members that its statement does not spell (set later, computed, made in a function) count by value, and so
do the values that code takes from first-party modules by attribute.

Holes: a standard-library, third-party or jurat object replaced after import (``math.floor = ...``): these count by
name, distribution and source. A logger's level and handlers; ``__doc__`` and ``__name__``; a first-party module as a
value, of which only the source counts (``getattr(module, name)``); dunder data set on a class after its statement.

Not seen, because no reading can see it: imports and attributes by computed name, environment variables, clock, random
numbers, network, files read while working, what compiled code does. Canary sets and double scoring are for these.

The tree's text is written here and not by ``ast.dump``, whose output differs between Python versions.
"""

from __future__ import annotations

import abc
import ast
import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import hashlib
import importlib.metadata
import importlib.util
import inspect
import io
import json
import linecache
import logging
import math
import re
import symtable
import sys
import sysconfig
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

from jurat.platform.errors import ConfigError

SCHEMA = 1
WAYS_OUT = (
    "give its class a method __fingerprint__() that returns a string, or name it in config={...} with a JSON value "
    "that stands for it"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a version digest is made of. Equal on every supported Python; ``abi`` is an attribute outside it."""

    code: str
    config: str
    deps: Mapping[str, str]
    """``name==version`` -> digest of the distribution's pure-Python files."""
    weights: str
    """'' where there are none."""
    nodes: Mapping[str, ast.AST]
    """Syntax tree by place; not hashed themselves."""

    @property
    def sources(self) -> dict[str, str]:
        """Canonical source by place, for people and for diffs."""
        return {place: ast.unparse(_stripped(node)) for place, node in self.nodes.items()}

    @property
    def digest(self) -> str:
        """The version id."""
        whole = {"code": self.code, "config": self.config, "deps": dict(self.deps), "weights": self.weights}
        return _sha({"schema": SCHEMA, "kind": "verifier_version", **whole})

    @property
    def abi(self) -> str:
        """Python's major.minor."""
        return f"{sys.version_info.major}.{sys.version_info.minor}"


def identify(
    target: Any,
    *,
    config: Mapping[str, Any],
    stand_ins: Mapping[str, Any] | None = None,
    deps: tuple[str, ...] = (),
    weights: tuple[str | Path, ...] = (),
) -> Identity:
    """The identity of a function, class or callable object.

    ``config`` is JSON; ``stand_ins`` maps names of globals, closure variables or attributes to JSON that is hashed in
    place of their values; ``deps`` names distributions to count beside those reached; ``weights`` are files or folders.
    Raises ConfigError for what cannot be hashed, with the path to it and the ways out.
    """
    reading = _Reading(dict(stand_ins or {}))
    code = _sha(
        {"schema": SCHEMA, "kind": "code", "root": reading.value(target, getattr(target, "__name__", "verifier"))}
    )
    for name in deps:
        reading.distribution(name, where="deps")
    held = {"config": dict(config), "stand_ins": dict(stand_ins or {})}
    try:
        config_digest = _sha({"schema": SCHEMA, "kind": "config", **held})
    except (TypeError, ValueError) as fault:
        raise ConfigError(
            f"config is not JSON: {fault}", where="config", fix="use strings, numbers, lists, dicts"
        ) from None
    return Identity(
        code=code, config=config_digest, deps=dict(sorted(reading.deps.items())),
        weights=weights_digest(weights) if weights else "", nodes=dict(reading.nodes),
    )  # fmt: skip


def _sha(value: Any) -> str:
    """sha256 of canonical JSON. Floats are refused inside: code values carry them as hexadecimal text."""
    text = json.dumps(_jcs(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return "sha256:" + hashlib.sha256(text.encode("ascii")).hexdigest()


def _jcs(value: Any) -> Any:
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"keys are strings, got {next(key for key in value if not isinstance(key, str))!r}")
        return {key: _jcs(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jcs(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    raise TypeError(f"JSON cannot hold {type(value).__name__} {value!r:.80}")


# ---- weights -----------------------------------------------------------------------------------------------------

_WEIGHED: dict[tuple[int, int, int, int, int], str] = {}


def weights_digest(paths: tuple[str | Path, ...]) -> str:
    """Digest of the manifest (relative path, size, sha256) of every file. Raises ConfigError for a missing path."""
    manifest = []
    for given in paths:
        root = Path(given)
        if not root.exists():
            raise ConfigError(f"weights {str(given)!r} do not exist", where="weights", fix="give a file or folder")
        files = sorted(p for p in root.rglob("*") if p.is_file()) if root.is_dir() else [root]
        manifest += [
            [p.relative_to(root if root.is_dir() else root.parent).as_posix(), p.stat().st_size, _file(p)]
            for p in files
        ]
    return _sha({"schema": SCHEMA, "kind": "weights", "files": manifest})


def _file(path: Path) -> str:
    """sha256 of a file; hashed once for as long as its inode, size and times stay."""
    stat = path.stat()
    key = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    if key not in _WEIGHED:
        with path.open("rb") as stream:
            _WEIGHED[key] = hashlib.file_digest(stream, "sha256").hexdigest()
    return _WEIGHED[key]


# ---- distributions -----------------------------------------------------------------------------------------------


_BUILD_RECORDS = frozenset({"__config__.py"})
"""Written by the build of compiled wheels: they differ between wheels of one version."""


@functools.cache
def _distribution_of(top: str) -> str | None:
    names = _packages().get(top)
    return names[0] if names else None


@functools.cache
def _packages() -> Mapping[str, list[str]]:
    return {top: sorted(set(names)) for top, names in importlib.metadata.packages_distributions().items()}


@functools.cache
def _pinned(name: str) -> tuple[str, str]:
    """(``name==version``, digest of its pure-Python files)."""
    found = importlib.metadata.distribution(name)
    rows = []
    for file in found.files or ():
        if file.suffix == ".py" and ".." not in file.parts and file.name not in _BUILD_RECORDS:
            path = Path(str(found.locate_file(file)))
            if path.is_file():
                rows.append([file.as_posix(), hashlib.sha256(path.read_bytes()).hexdigest()])
    normal = re.sub(r"[-_.]+", "-", found.name).lower()
    return f"{normal}=={found.version}", _sha({"schema": SCHEMA, "kind": "distribution", "files": sorted(rows)})


# ---- whose code is it --------------------------------------------------------------------------------------------


def _kind_of(module: str) -> str:
    """``standard``, ``third`` or ``first``; jurat's own modules are always first."""
    top = module.partition(".")[0]
    if top in ("jurat", "__main__"):
        return "first"
    if top in sys.stdlib_module_names or top in sys.builtin_module_names:
        return "standard"
    loaded = sys.modules.get(module) or sys.modules.get(top)
    file = getattr(loaded, "__file__", None)
    if file is None and loaded is None:
        spec = _spec(module)
        file = spec.origin if spec is not None else None
    if file is None:
        return "third" if _distribution_of(top) else "first"
    return "third" if _installed(str(file)) else "first"


def _spec(module: str) -> Any:
    try:
        return importlib.util.find_spec(module)
    except (ImportError, AttributeError, ValueError):
        return None


@functools.cache
def _installed(file: str) -> bool:
    parts = Path(file).parts
    if "site-packages" in parts or "dist-packages" in parts:
        return True
    paths = sysconfig.get_paths()
    return any(Path(file).is_relative_to(paths[key]) for key in ("stdlib", "platstdlib"))


# ---- syntax ------------------------------------------------------------------------------------------------------

_SKIPPED = {"lineno", "col_offset", "end_lineno", "end_col_offset", "ctx", "type_comment", "kind", "type_ignores"}
_SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


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
            value = _without_strings(value) or ([] if isinstance(node, ast.Module) else [ast.Pass()])
        if field == "values" and isinstance(node, ast.JoinedStr):
            value = _joined(value)
        item = _canonical_field(value)
        if item not in (None, []):
            out.append([field, item])
    if isinstance(node, ast.Constant):
        return ["Constant", _constant(node.value)]
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


def _without_strings(body: list[ast.stmt]) -> list[ast.stmt]:
    """A body without docstrings and other strings that stand alone: such a statement does nothing."""
    return [
        item for item in body
        if not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) and isinstance(item.value.value, str))
    ]  # fmt: skip


def _constant(value: Any) -> Any:
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


class _Module:
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
                n for n in _statements(here)
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
            for node in _statements(self.tree.body):
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


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a body and of the compound statements in it, not of the functions and classes in it."""
    for node in body:
        yield node
        if not isinstance(node, _SCOPES):
            for field in ("body", "orelse", "finalbody", "handlers"):
                inner = getattr(node, field, [])
                yield from _statements([x for item in inner for x in (item.body if field == "handlers" else [item])])


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


_MODULES: dict[tuple[str, str], _Module] = {}


def _module_of(file: str, where: str) -> _Module:
    text = "".join(linecache.getlines(file))
    if not text and not (Path(file).is_file() and Path(file).stat().st_size == 0):
        raise ConfigError(
            f"the source of {where} is not there", where=file,
            fix="define it in a file; code typed at a prompt or made by exec has no source to identify",
        )  # fmt: skip
    key = (file, hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest())
    if key not in _MODULES:
        _MODULES[key] = _Module(file, text)
    return _MODULES[key]


# ---- values ------------------------------------------------------------------------------------------------------

_INERT = (logging.Logger, logging.LoggerAdapter)
EXACT_NUMBERS = frozenset(
    {
        ("fractions", "Fraction"),
        ("decimal", "Decimal"),
        ("flint.types.fmpz", "fmpz"),
        ("flint.types.fmpq", "fmpq"),
    }
)
"""(module, name) of types that ``str`` spells exactly."""
_PLAIN: dict[type, Any] = {
    int: int.__index__, float: float.__float__, complex: complex.__complex__, str: str.__str__, bytes: bytes.__bytes__
}  # fmt: skip
"""How the base itself reads one of its objects: a class may redefine ``__str__`` or ``__int__``."""
_OPEN_OBJECTS = frozenset(
    {
        ("types", "SimpleNamespace"),
        ("collections", "UserDict"),
        ("collections", "UserList"),
        ("collections", "UserString"),
        ("collections", "ChainMap"),
    }
)
"""Classes of the standard library whose objects are their attributes."""
_CONTAINERS = (list, tuple, set, frozenset, dict)


class _Reading:
    """One walk over everything that a target reaches. Each object is read once; met again, it is a back reference."""

    def __init__(self, stand_ins: dict[str, Any]) -> None:
        self._stand_ins = stand_ins
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []
        self._inside: list[int] = []
        self._modules: dict[str, Any] = {}
        self.deps: dict[str, str] = {}
        self.nodes: dict[str, ast.AST] = {}

    # -- dispatch --

    def value(self, value: Any, path: str) -> Any:
        """``value`` as JSON that is equal for equal values. Raises ConfigError where it has no such form."""
        if value is None or isinstance(value, bool) or value is Ellipsis:
            return _constant(value)
        if type(value) in (int, float, complex, str, bytes):
            return _constant(value)
        if value is NotImplemented:
            return "NotImplemented"
        if isinstance(value, types.FunctionType) and getattr(value, "__registers__", False):
            # The decorator that registers: its arguments are config.
            return "registrar"
        if type(value) in (tuple, list, dict, set, frozenset):
            # Plain data has no identity: whether equal constants are one object differs between Pythons.
            if id(value) in self._inside:
                return ["cycle", len(self._inside) - self._inside.index(id(value))]
            self._inside.append(id(value))
            try:
                return self._container(value, type(value), path)
            finally:
                self._inside.pop()
        mark = self._seen.get(id(value))
        if mark is not None:
            return ["seen", mark]
        if isinstance(value, (types.FunctionType, type)) or hasattr(value, "__dict__"):
            self._seen[id(value)] = len(self._seen)
            self._kept.append(value)
        return self._value(value, path)

    def _value(self, value: Any, path: str) -> Any:
        fingerprint = getattr(type(value), "__fingerprint__", None)
        if fingerprint is not None and not isinstance(value, type):
            return ["fingerprint", self._own(type(value), path), _fingerprint(value, path)]
        if isinstance(value, type):
            return self._class(value, path)
        if isinstance(value, enum.Enum):
            return ["enum", self._own(type(value), path), value.name, self.value(value.value, f"{path}.value")]
        if isinstance(value, types.ModuleType):
            return ["jurat"] if value.__name__ == "jurat" else self._module(value.__name__, path)
        if isinstance(value, types.FunctionType):
            return self._function(value, path)
        if isinstance(value, types.MethodType):
            return ["method", self.value(value.__func__, path), self.value(value.__self__, f"{path}.__self__")]
        if isinstance(value, (staticmethod, classmethod)):
            return [type(value).__name__, self.value(value.__func__, path)]
        if isinstance(value, property):
            parts = [(name, getattr(value, name)) for name in ("fget", "fset", "fdel")]
            return ["property", [self.value(part, f"{path}.{name}") for name, part in parts]]
        if isinstance(value, (functools.partial, functools.partialmethod)):
            given = [value.func, list(value.args), dict(value.keywords)]
            made = [self.value(v, f"{path}.{n}") for n, v in zip(("func", "args", "keywords"), given, strict=True)]
            return self._with_state(["partial", made], value, functools.partial, path)
        if isinstance(value, (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)):
            return self._builtin(value, path)
        if hasattr(value, "__wrapped__") and callable(value):
            return self._wrapper_object(value, path)
        if typing.get_origin(value) is not None or isinstance(value, (types.GenericAlias, types.UnionType)):
            parts = [typing.get_origin(value), *typing.get_args(value)]
            return ["generic", [self.value(part, f"{path}[{i}]") for i, part in enumerate(parts)]]
        if isinstance(value, (typing.TypeVar, typing.ParamSpec)) or type(value).__module__ == "typing":
            return ["typing", getattr(value, "__name__", None) or str(value)]
        if isinstance(value, _INERT):
            return ["logger", *self._logger(value, path)]
        return self._data(value, path)

    def _data(self, value: Any, path: str) -> Any:
        kind = type(value)
        if isinstance(value, re.Pattern):
            return ["regex", self.value(value.pattern, path), value.flags]
        if kind is range or kind is slice:
            return [kind.__name__, [self.value(getattr(value, n), path) for n in ("start", "stop", "step")]]
        if isinstance(value, PurePath):
            return self._with_state(["path", value.as_posix()], value, PurePath, path)
        if isinstance(value, types.MappingProxyType):
            return ["dict", self._pairs(value, path)]
        if isinstance(value, bytearray):
            return self._with_state(["bytearray", value.hex()], value, bytearray, path)
        base = next((b for b in _CONTAINERS if isinstance(value, b)), None)
        if base is not None:
            return self._container(value, base, path)
        for plain, exactly in _PLAIN.items():
            if isinstance(value, plain):
                return ["sub", self._own(kind, path), _constant(exactly(value)), *self._extra_state(value, path)]
        if kind.__module__ in ("decimal", "fractions", "datetime", "uuid", "zoneinfo", "ipaddress"):
            return [f"{kind.__module__}.{kind.__qualname__}", str(value), *self._time(value, path)]
        if isinstance(value, collections.deque):
            held = ["deque", [self.value(item, f"{path}[{i}]") for i, item in enumerate(value)], value.maxlen]
            return self._with_state(held, value, collections.deque, path)
        if (kind.__module__, kind.__qualname__) in _OPEN_OBJECTS:
            return ["standard object", kind.__qualname__, self._state(value, path)]
        if kind.__module__ in ("operator",):
            return ["operator", kind.__name__, repr(value)]
        array = next((b for b in kind.__mro__ if (b.__module__, b.__name__) == ("numpy", "ndarray")), None)
        if array is kind:
            return self._array(value, path)
        if array is not None and _kind_of(kind.__module__) == "first":
            return self._with_state(self._array(value.view(array), path), value, array, path)
        if kind.__module__ == "numpy" and hasattr(value, "dtype") and hasattr(value, "tobytes"):
            if getattr(value, "shape", ()):
                return ["numpy", kind.__name__, self._array(value, path)]
            return ["numpy", str(value.dtype), value.tobytes().hex()]
        return self._instance(value, path)

    # -- code --

    def _function(self, function: types.FunctionType, path: str) -> Any:
        # functools.wraps copies __module__, so the globals say whose code it is.
        kind = _kind_of(function.__globals__.get("__name__") or "")
        if kind != "first":
            return self._foreign_function(function, kind, path)
        code = function.__code__
        module = _module_of(code.co_filename, path)
        columns = {c for _, _, c, _ in code.co_positions() if c is not None} - {0}
        node = module.node(code.co_name, code.co_firstlineno, columns)
        if node is None or not module.compiles_to(code):
            raise ConfigError(
                f"the source of {path} is not what is loaded", where=f"{code.co_filename}:{code.co_firstlineno}",
                fix="the file has changed since it was imported: start again",
            )  # fmt: skip
        inner = getattr(function, "__wrapped__", None)
        if inner is not None and _passes_on(node, function, inner) and not _own_attributes(function, inner):
            return self.value(inner, path)
        self.nodes.setdefault(path, node)
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        out: list[Any] = ["function", tree_digest(node, without=frozenset({"name", "decorator_list"}))]
        out.append(["closure", [[name, self._named(name, _cell(cell), path)] for name, cell in sorted(cells.items())]])
        out.append(["defaults", self.value(function.__defaults__ or (), f"{path}.__defaults__")])
        kwdefaults = function.__kwdefaults__ or {}
        out.append(["kwdefaults", [[k, self._named(k, v, path)] for k, v in sorted(kwdefaults.items())]])
        space = function.__globals__
        out.append(["globals", self._globals(module.globals_of(node), space, path)])
        out.append(
            [
                "jurat",
                self._face(node, {name for name, item in space.items() if item is sys.modules.get("jurat")}, path),
            ]
        )
        out.append(["imports", self._imports(node, space.get("__package__") or "", path)])
        taken = self._taken(node, {**space, **{n: _cell(c) for n, c in cells.items()}}, path)
        out += [["taken", taken]] if taken else []
        own = {k: v for k, v in vars(function).items() if k != "__wrapped__"}
        out.append(["attributes", [[k, self._named(k, v, path)] for k, v in sorted(own.items())]])
        if inner is not None and not any(_cell(cell) is inner for cell in cells.values()):
            out.append(["wrapped", self.value(inner, f"{path}.__wrapped__")])
        return out

    def _class(self, cls: type, path: str) -> Any:
        if cls.__module__ == "builtins":
            return ["builtin", cls.__qualname__]
        kind = _kind_of(cls.__module__)
        if kind != "first":
            return self._foreign(cls, kind, path)
        loaded = sys.modules.get(cls.__module__)
        file = getattr(loaded, "__file__", None) or _file_of_class(cls)
        if file is None:
            raise ConfigError(
                f"the source of class {path} is not there", where=cls.__module__, fix="define it in a file"
            )
        module = _module_of(file, path)
        node = module.class_node(cls.__qualname__)
        if node is None:
            if any(_kind_of(base.__module__) == "third" for base in (*cls.__mro__, type(cls))):
                raise ConfigError(
                    f"class {path} is not found in its source", where=file, fix="write it as a class statement"
                )
            bases = [self.value(base, f"{path}({base.__name__})") for base in cls.__bases__]
            params = str(vars(cls).get("__dataclass_params__", ""))
            return ["made class", bases, self.value(type(cls), f"{path}(metaclass)"), params,
                    self._members(cls, None, file, path)]  # fmt: skip
        self.nodes.setdefault(path, node)
        space = vars(loaded) if loaded is not None else {}
        decorators = [item for item in node.decorator_list if not is_registrar(item, space)]
        out: list[Any] = ["class", tree_digest(node, without=frozenset({"name", "decorator_list"}))]
        out.append(["decorators", [tree_digest(item) for item in decorators]])
        out.append(
            ["bases", [self.value(base, f"{path}({base.__name__})") for base in cls.__bases__ if base is not object]]
        )
        if type(cls) is not type:
            out.append(["metaclass", self.value(type(cls), f"{path}(metaclass)")])
        named = {item.id for given in decorators for item in ast.walk(given) if isinstance(item, ast.Name)}
        out.append(["globals", self._globals(sorted({*module.globals_of(node), *named}), space, path)])
        out.append(
            [
                "jurat",
                self._face(node, {name for name, item in space.items() if item is sys.modules.get("jurat")}, path),
            ]
        )
        out.append(["imports", self._imports(node, getattr(loaded, "__package__", "") or "", path)])
        cells = []
        for name, member in sorted(vars(cls).items()):
            plain = getattr(member, "__func__", member)
            if isinstance(plain, types.FunctionType) and plain.__closure__ and plain.__code__.co_filename == file:
                held = zip(plain.__code__.co_freevars, plain.__closure__, strict=True)
                cells += [[name, n, self._named(n, _cell(c), f"{path}.{name}")] for n, c in held if n != "__class__"]
        out.append(["closures", cells])
        taken = self._taken(node, space, path) if cls.__module__.partition(".")[0] != "jurat" else []
        out += [["taken", taken]] if taken else []
        members = self._members(cls, node, file, path)
        out += [["members", members]] if members else []
        return out

    def _taken(self, node: ast.AST, space: Mapping[str, Any], path: str) -> list[Any]:
        """Values taken from first-party modules (``rules.LIMIT``, ``package.part.f``), as they may be set after import.

        jurat's own modules count by their source.
        """
        local = {
            alias.asname or alias.name.partition(".")[0]: sys.modules.get(
                alias.name if alias.asname else alias.name.partition(".")[0]
            )
            for item in ast.walk(node) if isinstance(item, ast.Import) for alias in item.names
        }  # fmt: skip
        out: dict[str, Any] = {}
        for item in ast.walk(node):
            attributes: list[str] = []
            while isinstance(item, ast.Attribute):
                attributes.insert(0, item.attr)
                item = item.value
            if not attributes or not isinstance(item, ast.Name) or item.id in self._stand_ins:
                continue
            held, place = local.get(item.id) or space.get(item.id), item.id
            for name in attributes:
                if not _is_own_module(held) or not hasattr(held, name):
                    break
                held, place = getattr(held, name), f"{place}.{name}"
                if _is_own_module(held):
                    out[place] = self._module(held.__name__, f"{path}.{place}")
                elif not isinstance(held, types.ModuleType) and place not in out:
                    out[place] = self._named(name, held, f"{path}.{place}"[: -len(name) - 1])
        return sorted(map(list, out.items()), key=lambda row: str(row[0]))

    def _members(self, cls: type, node: ast.ClassDef | None, file: str, path: str) -> list[Any]:
        """Members of a class whose value its statement does not spell: set later, computed, or made in a function."""
        if cls.__module__.partition(".")[0] == "jurat":
            return []
        spelled = _spelled(node) if node is not None else {}
        foreign = any(_kind_of(base.__module__) == "third" for base in (*cls.__mro__, type(cls)))
        local = node is None or "<locals>" in cls.__qualname__
        out: list[Any] = []
        members = getattr(cls, "__members__", {}) if issubclass(cls, enum.Enum) else {}
        for name, member in sorted(vars(cls).items()):
            hidden = name.startswith("__") and name.endswith("__")
            functions = _functions_of(member)
            if name in members or name in _NAMED_TUPLE or isinstance(member, _SLOT):
                continue
            if functions:
                if all(_is_made_by_library(f) for f in functions) and (hidden or issubclass(cls, (tuple, enum.Enum))):
                    continue
                inside = node is not None and all(_is_inside(f, name, node, file) for f in functions)
                if inside and not (local and any(f.__defaults__ or f.__kwdefaults__ for f in functions)):
                    own = [v for f in functions for k, v in vars(f).items() if not k.startswith("__")]
                    if not own and _module_of(file, path).compiles_to(functions[0].__code__):
                        continue
            elif hidden or (foreign and name not in spelled and (name.startswith("_") or name.startswith("model_"))):
                continue
            elif issubclass(cls, enum.Enum) and name.startswith("_"):
                continue
            elif name in spelled and _is_literal(spelled[name], member):
                continue
            elif name == "_abc_impl" or name.startswith("_is_protocol") or name == "_is_runtime_protocol":
                continue
            out.append([name, self._named(name, member, path)])
        for name, member in members.items():
            extra = {k: v for k, v in vars(member).items() if not k.startswith("_") or (node and not k.endswith("_"))}
            extra = {k: v for k, v in extra.items() if not k.startswith("__")}
            if extra or local:
                self._seen.setdefault(id(member), len(self._seen))
                self._kept.append(member)
                held = [[k, self._named(k, v, f"{path}.{name}")] for k, v in sorted(extra.items())]
                out.append(["member", name, self.value(member.value, f"{path}.{name}.value"), held])
        for field in vars(cls).get("__dataclass_fields__", {}).values() if local else ():
            given = [v for v in (field.default, field.default_factory) if v is not dataclasses.MISSING]
            out.append(["field", field.name, [self.value(v, f"{path}.{field.name}") for v in given]])
        if node is None and issubclass(cls, tuple) and hasattr(cls, "_field_defaults"):
            out.append(["fields", list(cls._fields), self.value(cls._field_defaults, f"{path}._field_defaults")])  # type: ignore[attr-defined]
        registered = abc._get_dump(cls)[0] if "_abc_impl" in vars(cls) else ()  # type: ignore[attr-defined]
        known = sorted((item() for item in registered if item() is not None), key=lambda c: c.__qualname__)
        if known:
            out.append(["registered", [self.value(item, f"{path}.register") for item in known]])
        return out

    def _globals(self, names: list[str], space: Mapping[str, Any], path: str) -> Any:
        module = str(space.get("__name__", ""))
        return [[name, self._global(module, name, space[name], path)] for name in names if name in space]

    def _global(self, module: str, name: str, value: Any, path: str) -> Any:
        """A global by its value; one of jurat's own that is data, by the statements that make it."""
        if module.startswith("jurat.") and not isinstance(value, (type, types.FunctionType, types.ModuleType)):
            return self._declared(module, name, value, path)
        return self._named(name, value, path)

    def _declared(self, module: str, name: str, value: Any, path: str) -> Any:
        """jurat's own tables and caches hold compiled objects and change with use; their source says what they are."""
        key = f"{module}:{name}"
        if key in self._modules:
            return self._modules[key]
        self._modules[key] = ["seen", len(self._modules)]
        loaded = sys.modules.get(module) or importlib.import_module(module)
        source = _module_of(str(loaded.__file__), path)
        made: list[Any] = []
        for node in source.statements_of(name):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                bound = [alias for alias in node.names if (alias.asname or alias.name) == name]
                made.append(self._imports(_with_names(node, bound), loaded.__package__ or "", path))
            else:
                used = {item.id for item in ast.walk(node) if isinstance(item, ast.Name)} - {name}
                made.append([tree_digest(node), self._globals(sorted(used), vars(loaded), f"{path}.{name}")])
        self._modules[key] = ["declared", made] if made else self._named(name, value, path)
        return self._modules[key]

    def _named(self, name: str, value: Any, path: str) -> Any:
        if name in self._stand_ins:
            return ["config"]
        return self.value(value, f"{path}.{name}" if path else name)

    def _imports(self, node: ast.AST, package: str, path: str) -> Any:
        """What the code imports: first-party names by value, first-party modules whole, others as dependencies."""
        out = {}
        for item in _executed(node):
            for module, name in _imported(item, package):
                kind = _kind_of(module)
                key = module.rpartition(".")[2] if name is None else name
                if (module == "jurat" and name is None) or kind == "standard":
                    continue
                if key in self._stand_ins:
                    out[key] = "config"
                    continue
                if module not in sys.modules and _spec(module) is None:
                    out[key] = "absent"
                elif kind == "third":
                    self._depend(module, path)
                elif name is None:
                    out[key] = self._module(module, f"{path}: import {module}")
                else:
                    value = getattr(importlib.import_module(module), name)
                    out[key] = self._global(module, name, value, path)
        return [[key, made] for key, made in sorted(out.items())]

    def _face(self, node: ast.AST, names: set[str], path: str) -> Any:
        """What the code takes from jurat's public face (``jurat.Verdict``): these things, not the whole of jurat."""
        import jurat

        names = names | {
            alias.asname or alias.name
            for item in ast.walk(node) if isinstance(item, ast.Import)
            for alias in item.names if alias.name == "jurat"
        }  # fmt: skip
        taken = {
            item.attr
            for item in ast.walk(node)
            if isinstance(item, ast.Attribute) and isinstance(item.value, ast.Name) and item.value.id in names
        }
        found = [name for name in sorted(taken) if hasattr(jurat, name)]
        return [[name, self._named(name, getattr(jurat, name), f"{path}.jurat")] for name in found]

    def _module(self, name: str, path: str) -> Any:
        """A module by name: the standard library's by name alone, third-party as a dependency, first-party whole."""
        kind = _kind_of(name)
        if kind == "standard":
            return ["module", name]
        if kind == "third":
            self._depend(name, path)
            return ["dependency"]
        if name in self._modules:
            return self._modules[name]
        self._modules[name] = ["seen module", len(self._modules)]
        loaded = sys.modules.get(name)
        spec = getattr(loaded, "__spec__", None) or _spec(name)
        file = getattr(loaded, "__file__", None) or (spec.origin if spec is not None else None)
        if file is None and spec is not None and spec.submodule_search_locations is not None:
            return ["namespace"]
        if file is None:
            raise ConfigError(
                f"module {name!r} has no source", where=path, fix="install it, or put its file on the path"
            )
        module = _module_of(file, path)
        package = (spec.parent if spec is not None else getattr(loaded, "__package__", "")) or ""
        self.nodes[name] = module.tree
        out = ["module source", tree_digest(module.tree), self._imports(module.tree, package, path)]
        out.append(self._face(module.tree, set(), path))
        self._modules[name] = ["module digest", _sha(out)]
        return self._modules[name]

    def _foreign_function(self, function: types.FunctionType, kind: str, path: str) -> Any:
        """Another's function: its name; and where a decorator made it, what it wraps and closes over."""
        module = (function.__globals__.get("__name__") or "").partition(".")[0]
        if kind == "third":
            self._depend(module, path)
        out: list[Any] = ["standard" if kind == "standard" else "dependency", module, function.__code__.co_qualname]
        inner = getattr(function, "__wrapped__", None)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        held = [
            (name, _cell(cell))
            for name, cell in cells
            if kind == "third" or isinstance(_cell(cell), types.FunctionType)
        ]
        out += [[name, self._named(name, item, path)] for name, item in held]
        registry = getattr(function, "registry", None)
        if kind == "standard" and isinstance(registry, types.MappingProxyType) and len(registry) > 1:
            out.append(["registry", self._registry(registry, f"{path}.registry")])
        if inner is not None and not any(item is inner for _, item in held):
            out.append(["wrapped", self.value(inner, f"{path}.__wrapped__")])
        return out

    def _registry(self, registry: Mapping[type, Any], path: str) -> Any:
        """What ``functools.singledispatch`` calls for each class."""
        found = sorted(registry.items(), key=lambda item: (item[0].__module__, item[0].__qualname__))
        return [[self.value(cls, f"{path}[{cls.__qualname__}]"), self.value(f, f"{path}[{cls.__qualname__}]")]
                for cls, f in found]  # fmt: skip

    def _foreign(self, item: Any, kind: str, path: str) -> Any:
        # The module by its first name only: the standard library moves things inside packages between versions.
        top = item.__module__.partition(".")[0].lstrip("_")
        name = f"{top}.{item.__qualname__}"
        if kind == "standard":
            return ["standard", name]
        self._depend(item.__module__, path)
        return ["dependency", name]

    def _own(self, cls: type, path: str) -> Any:
        return self.value(cls, f"{path}({cls.__qualname__})")

    def _builtin(self, value: Any, path: str) -> Any:
        owner = getattr(value, "__self__", None)
        module = getattr(value, "__module__", None) or getattr(getattr(value, "__objclass__", None), "__module__", "")
        if owner is not None and not isinstance(owner, (types.ModuleType, type)):
            return ["bound", value.__name__, self.value(owner, f"{path}.__self__")]
        if module and _kind_of(module) == "third":
            self._depend(module, path)
            return ["dependency", value.__qualname__]
        return ["builtin", f"{(module or '').partition('.')[0].lstrip('_')}.{value.__qualname__}"]

    def _wrapper_object(self, value: Any, path: str) -> Any:
        """A compiled wrapper such as ``functools.lru_cache``: its kind and what it wraps."""
        kind = type(value)
        if kind.__module__ == "functools":
            return ["wrapper", kind.__qualname__.strip("_"), self.value(value.__wrapped__, path)]
        return self._instance(value, path)

    def _logger(self, value: Any, path: str) -> list[Any]:
        """What a logger has beyond the standard library's: its first-party class and attributes set on it."""
        kind = type(value)
        known = {*vars(logging.getLogger("jurat")), "extra", "logger"} | (
            {"manager"} if kind is logging.RootLogger else set()
        )
        own = [[k, self._named(k, v, path)] for k, v in sorted(vars(value).items()) if k not in known]
        first = _kind_of(kind.__module__) == "first"
        return ([["class", self._own(kind, path)]] if first else []) + ([["state", own]] if own else [])

    # -- data --

    def _container(self, value: Any, base: type, path: str) -> Any:
        kind = type(value)
        if base is dict:
            out: Any = ["dict", self._pairs(value, path)]
            factory = getattr(value, "default_factory", None)
            if factory is not None:
                out.append(self.value(factory, f"{path}.default_factory"))
        elif base in (set, frozenset):
            plain = [_sorted_key(item) for item in value]
            if all(key is not None for key in plain):
                out = [base.__name__, sorted(json.dumps(_jcs(key)) for key in plain)]
            else:
                shown = [self.value(item, f"{path}{{}}") for item in sorted(value, key=lambda item: str(_label(item)))]
                out = [base.__name__, shown]
        else:
            out = [base.__name__, [self.value(item, f"{path}[{i}]") for i, item in enumerate(value)]]
        if kind is base:
            return out
        if kind.__module__ == "collections":
            return [kind.__name__, out, *self._extra_state(value, path)]
        return ["sub", self._own(kind, path), out, *self._extra_state(value, path)]

    def _with_state(self, made: Any, value: Any, base: type, path: str) -> Any:
        """``made`` for a value of the library's own class; with class and attributes for one of a first-party class."""
        if _kind_of(type(value).__module__) != "first":
            return made
        return ["sub", self._own(type(value), path), made, *self._extra_state(value, path)]

    def _extra_state(self, value: Any, path: str) -> list[Any]:
        state = self._state(value, path)
        return [["state", state]] if state else []

    def _state(self, value: Any, path: str, *, every_slot: bool = False) -> list[Any]:
        """Attributes of an object: its ``__dict__`` and the slots of first-party classes, or of all its classes."""
        state: dict[str, Any] = dict(getattr(value, "__dict__", {}))
        for cls in type(value).__mro__:
            if not every_slot and _kind_of(cls.__module__) != "first":
                continue
            slots = cls.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                held = name
                if name.startswith("__") and not name.endswith("__"):
                    held = f"_{cls.__name__.lstrip('_')}{name}"
                if name not in ("__dict__", "__weakref__") and hasattr(value, held):
                    state[held] = getattr(value, held)
        return [[k, self._named(k, v, path)] for k, v in sorted(state.items())]

    def _time(self, value: Any, path: str) -> list[Any]:
        """What ``str`` does not tell of a time: which of two equal hours, and the rules of its zone."""
        if isinstance(value, datetime.timezone):
            return [] if repr(value).count(",") == 0 or "'" not in repr(value) else [repr(value)]
        if not isinstance(value, (datetime.datetime, datetime.time)) or (not value.fold and value.tzinfo is None):
            return []
        return [value.fold, self.value(value.tzinfo, f"{path}.tzinfo")]

    def _pairs(self, value: Mapping[Any, Any], path: str) -> Any:
        return [
            [
                self.value(key, f"{path}.keys()"),
                self._named(str(key), item, path) if isinstance(key, str) else self.value(item, f"{path}[{key!r:.40}]"),
            ]
            for key, item in value.items()
        ]

    def _array(self, value: Any, path: str) -> Any:
        if value.dtype.hasobject:
            return ["array", "object", list(value.shape), [self.value(item, path) for item in value.ravel().tolist()]]
        data = hashlib.sha256(value.astype(value.dtype.newbyteorder("<")).tobytes()).hexdigest()
        if value.dtype.names:
            return ["array", str(value.dtype.newbyteorder("<").descr), list(value.shape), data]
        return ["array", value.dtype.newbyteorder("<").str, list(value.shape), data]

    def _instance(self, value: Any, path: str) -> Any:
        """An object of a first-party class by its class and state; others are refused."""
        kind = type(value)
        if (kind.__module__, kind.__qualname__) in EXACT_NUMBERS:
            return [kind.__qualname__, str(value)]
        if isinstance(value, io.IOBase) or kind.__module__ == "builtins" or _kind_of(kind.__module__) != "first":
            raise ConfigError(
                f"cannot identify {path}: a {kind.__module__}.{kind.__qualname__} has no content that can be hashed",
                where=path, fix=WAYS_OUT,
            )  # fmt: skip
        held: list[Any] = []
        for cls in kind.__mro__:
            if _kind_of(cls.__module__) == "first" or cls is object or _written_in_python(cls):
                continue
            if issubclass(cls, BaseException):
                held = [["args", self.value(value.args, f"{path}.args")]]
            elif (cls.__module__, cls.__name__) in EXACT_NUMBERS or issubclass(
                cls, (decimal.Decimal, datetime.date, datetime.time, datetime.timedelta)
            ):
                held = [["value", f"{cls.__module__}.{cls.__name__}", cls.__str__(value), *self._time(value, path)]]
                break
            elif (cls.__module__, cls.__name__) not in _OPEN_OBJECTS:
                raise ConfigError(
                    f"cannot identify {path}: what a {cls.__module__}.{cls.__qualname__} holds inside its compiled "
                    f"base of {kind.__qualname__} cannot be read", where=path, fix=WAYS_OUT,
                )  # fmt: skip
        return ["object", self._own(kind, path), self._state(value, path, every_slot=True), *held]

    # -- dependencies --

    def _depend(self, module: str, path: str) -> None:
        name = _distribution_of(module.partition(".")[0])
        if name is None:
            raise ConfigError(
                f"{path} reaches module {module!r}, which belongs to no installed distribution", where=path,
                fix="install it as a package, or put its source beside the verifier",
            )  # fmt: skip
        self.distribution(name, where=path)

    def distribution(self, name: str, *, where: str) -> None:
        """Count a distribution. Raises ConfigError if it is not installed."""
        try:
            pin, files = _pinned(name)
        except importlib.metadata.PackageNotFoundError:
            raise ConfigError(
                f"distribution {name!r} is not installed", where=where, fix=f"pip install {name}"
            ) from None
        self.deps[pin] = files


# ---- small readings ----------------------------------------------------------------------------------------------


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _fingerprint(value: Any, path: str) -> Any:
    made = value.__fingerprint__()
    if isinstance(made, bytes):
        return made.hex()
    try:
        return _jcs(made)
    except TypeError as fault:
        raise ConfigError(f"{path}.__fingerprint__() returned what JSON cannot hold: {fault}", where=path) from None


def _sorted_key(item: Any) -> Any:
    if item is None or type(item) in (bool, int, float, complex, str, bytes):
        return _constant(item)
    if type(item) in (tuple, frozenset):
        inner = [_sorted_key(part) for part in item]
        if all(part is not None for part in inner):
            ordered = sorted(inner, key=json.dumps) if type(item) is frozenset else inner
            return [type(item).__name__, ordered]
    return None


def _written_in_python(cls: type) -> bool:
    """True for a class whose objects hold nothing but attributes, as no compiled code made it."""
    return any(isinstance(v, types.FunctionType) for v in vars(cls).values()) or bool(
        {"__dict__", "__slots__"} & {*vars(cls)}
    )


_NAMED_TUPLE = frozenset({"_fields", "_field_defaults"})
_SLOT = (types.MemberDescriptorType, types.GetSetDescriptorType, type(collections.namedtuple("_N", "a").a))  # type: ignore[misc, attr-defined]


def _is_own_module(value: Any) -> bool:
    return (
        isinstance(value, types.ModuleType)
        and value.__name__.partition(".")[0] != "jurat"
        and _kind_of(value.__name__) == "first"
    )


def _functions_of(member: Any) -> list[types.FunctionType]:
    """The functions in a method, property or cached method; none for other things."""
    if isinstance(member, types.FunctionType):
        return [member]
    if isinstance(member, property):
        return [f for f in (member.fget, member.fset, member.fdel) if isinstance(f, types.FunctionType)]
    if isinstance(member, functools.cached_property):
        return _functions_of(member.func)
    inner = getattr(member, "__func__", None) if isinstance(member, (staticmethod, classmethod)) else None
    if type(member).__module__ == "functools":
        inner = inner or getattr(member, "__wrapped__", None)
    return _functions_of(inner) if inner is not None else []


def _is_made_by_library(function: types.FunctionType) -> bool:
    space = str(function.__globals__.get("__name__", ""))
    return function.__code__.co_filename == "<string>" or space.startswith("namedtuple_") or _kind_of(space) != "first"


def _is_inside(function: types.FunctionType, name: str, node: ast.ClassDef, file: str) -> bool:
    """True for a function that the statement of a class defines under this name, once."""
    code = function.__code__
    defs = [n for n in _statements(node.body) if getattr(n, "name", None) == name and not isinstance(n, ast.ClassDef)]
    setters = [n for n in defs if getattr(n, "decorator_list", [])]
    if code.co_filename != file or not defs or (len(defs) > 1 and len(setters) < len(defs)):
        return False
    lines = {line for n in defs for line in (n.lineno, *(d.lineno for d in getattr(n, "decorator_list", [])))}
    return code.co_name == name and code.co_firstlineno in lines


def _spelled(node: ast.ClassDef) -> dict[str, ast.expr | None]:
    """What the body of a class assigns to names; None where it does so more than once."""
    out: dict[str, ast.expr | None] = {}
    for item in _statements(node.body):
        targets = (
            item.targets if isinstance(item, ast.Assign) else [item.target] if isinstance(item, ast.AnnAssign) else []
        )
        for target in targets:
            if isinstance(target, ast.Name) and item.value is not None:  # type: ignore[attr-defined]
                out[target.id] = None if target.id in out else item.value  # type: ignore[attr-defined]
    return out


def _is_literal(node: ast.expr | None, value: Any) -> bool:
    """True if the expression is a literal that spells exactly this value."""
    if node is None:
        return False
    if isinstance(node, (ast.Tuple, ast.List)):
        kind = tuple if isinstance(node, ast.Tuple) else list
        return type(value) is kind and len(value) == len(node.elts) and all(map(_is_literal, node.elts, value))
    if isinstance(node, ast.Dict):
        pairs = list(value.items()) if type(value) is dict else []
        if type(value) is not dict or len(pairs) != len(node.keys):
            return False
        rows = zip(node.keys, node.values, pairs, strict=True)
        return all(_is_literal(k, pair[0]) and _is_literal(v, pair[1]) for k, v, pair in rows)
    try:
        spelled = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return False
    key = _sorted_key(frozenset(spelled) if type(spelled) is set else spelled)
    mine = _sorted_key(frozenset(value) if type(value) is set else value)
    return type(spelled) is type(value) and key is not None and key == mine


def _label(item: Any) -> Any:
    return (type(item).__qualname__, getattr(item, "__qualname__", None) or getattr(item, "name", None) or item)


def _file_of_class(cls: type) -> str | None:
    for member in vars(cls).values():
        plain = getattr(member, "__func__", member)
        if isinstance(plain, types.FunctionType) and plain.__qualname__.startswith(cls.__qualname__ + "."):
            return plain.__code__.co_filename
    return None


def _own_attributes(wrapper: types.FunctionType, inner: Any) -> bool:
    """True if ``wrapper`` holds an attribute that ``functools.wraps`` did not copy from ``inner``."""
    copied = getattr(inner, "__dict__", {})
    return any(k != "__wrapped__" and copied.get(k, wrapper) is not v for k, v in vars(wrapper).items())


def _passes_on(node: ast.AST, wrapper: types.FunctionType, inner: Any) -> bool:
    """True if ``wrapper`` is ``def w(*args, **kwargs): return inner(*args, **kwargs)`` and nothing else."""
    if not isinstance(node, ast.FunctionDef) or len(body := _without_strings(node.body)) != 1:
        return False
    a = node.args
    plain = not (a.posonlyargs or a.args or a.kwonlyargs) and a.vararg is not None and a.kwarg is not None
    made = body[0].value if isinstance(body[0], ast.Return) else None
    if not plain or not isinstance(made, ast.Call) or not isinstance(made.func, ast.Name):
        return False
    assert a.vararg is not None and a.kwarg is not None
    cells = dict(zip(wrapper.__code__.co_freevars, wrapper.__closure__ or (), strict=True))
    called = cells.get(made.func.id)
    given = ast.dump(ast.Tuple(elts=made.args, ctx=ast.Load())), [(k.arg, ast.dump(k.value)) for k in made.keywords]
    star = ast.Starred(value=ast.Name(id=a.vararg.arg, ctx=ast.Load()), ctx=ast.Load())
    wanted = (
        ast.dump(ast.Tuple(elts=[star], ctx=ast.Load())),
        [(None, ast.dump(ast.Name(id=a.kwarg.arg, ctx=ast.Load())))],
    )
    return called is not None and _cell(called) is inner and given == wanted and len(cells) == 1


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


def _with_names(node: ast.Import | ast.ImportFrom, names: list[ast.alias]) -> ast.stmt:
    """The import statement for some of its names only."""
    if isinstance(node, ast.Import):
        return ast.Import(names=names)
    return ast.ImportFrom(module=node.module, names=names, level=node.level)


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Every node but those under ``if TYPE_CHECKING``, which never run."""
    yield node
    for child in ast.iter_child_nodes(node):
        if (
            isinstance(child, ast.If)
            and (getattr(child.test, "id", "") or getattr(child.test, "attr", "")) == "TYPE_CHECKING"
        ):
            for other in child.orelse:
                yield from _executed(other)
        else:
            yield from _executed(child)


def _imported(node: ast.AST, package: str) -> list[tuple[str, str | None]]:
    """(module, name taken from it or None for the module itself) of an import statement, absolute."""
    if isinstance(node, ast.Import):
        return [(alias.name, None) for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:
        parts = package.split(".")
        base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
    out: list[tuple[str, str | None]] = []
    for alias in node.names:
        inner = f"{base}.{alias.name}"
        if alias.name == "*":
            out.append((base, None))
        elif _kind_of(base) == "first" and (inner in sys.modules or _spec(inner) is not None):
            out.append((inner, None))
        else:
            out.append((base, alias.name))
    return out


class _Strip(ast.NodeTransformer):
    def visit(self, node: ast.AST) -> Any:
        self.generic_visit(node)
        if isinstance(node, _SCOPES):
            node.body = _without_strings(node.body) or [ast.Pass()]
        return node


def _stripped(node: ast.AST) -> Any:
    """A copy without docstrings, for people."""
    import copy

    return ast.fix_missing_locations(_Strip().visit(copy.deepcopy(node)))


def signature_text(target: Any) -> str:
    """``(problem, completion, *, tolerance=0.0)`` for listings."""
    try:
        return str(inspect.signature(target))
    except (TypeError, ValueError):
        return "(...)"
