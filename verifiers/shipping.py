"""How a verifier registered in this process reaches a child: by module, by file, or by its source."""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import sys
import tempfile
import textwrap
import types
from pathlib import Path
from typing import Any

from jurat.platform.errors import ConfigError
from jurat.platform.identity.syntax import is_registrar
from jurat.verifiers.pool import Origin
from jurat.verifiers.registry import Definition

WAY_OUT = "move it into a file and name that in `verifiers:` (or import it from there)"


def origin_of(definition: Definition) -> Origin:
    """Where a child finds this verifier. Raises ConfigError for one that cannot travel, with the way out."""
    target = definition.target
    module = sys.modules.get(getattr(target, "__module__", "") or "")
    file = getattr(module, "__file__", None)
    is_main = module is not None and module.__name__ == "__main__"
    if is_main or file is None or "<locals>" in getattr(target, "__qualname__", ""):
        try:
            return shipped(definition)
        except ConfigError:
            if not is_main or file is None or not Path(file).is_file() or "<locals>" in target.__qualname__:
                raise
            return Origin(kind="file", value=str(Path(file).resolve()), path=import_path())
    assert module is not None
    spec = getattr(module, "__spec__", None)
    importable = spec is not None and spec.name == module.__name__ and _findable(module.__name__, file)
    return Origin(
        kind="module" if importable else "file", value=module.__name__ if importable else file, path=import_path()
    )


def shipped(definition: Definition) -> Origin:
    """A file with the source of the verifier and of what it reaches, which registers it and does nothing else."""
    where = f"verifier {definition.name!r} in {getattr(definition.target, '__module__', '?')}"
    text = source_of(definition.target, where=where)
    given = {
        "version": definition.version, "deadline": definition.deadline, "kind": definition.kind,
        "batch": definition.batch, "deterministic": definition.deterministic, "deps": definition.deps,
        "blame": definition.blame, "config": dict(definition.config), "weights": definition.weights,
    }  # fmt: skip
    arguments = ", ".join(f"{key}={value!r}" for key, value in given.items())
    called = f"_verifier({definition.name!r}, {arguments})({_name_of(definition.target)})"
    text += f"\n\nfrom jurat.verifiers.registry import verifier as _verifier\n\n{called}\n"
    return Origin(kind="file", value=str(_written(text)), path=import_path())


def import_path() -> tuple[str, ...]:
    """This process's import path, absolute, for a child to import from."""
    return tuple(str(Path(entry).resolve()) if entry else str(Path.cwd()) for entry in sys.path)


def _findable(name: str, file: str) -> bool:
    import importlib.util

    try:
        held = sys.modules.pop(name, None)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            if held is not None:
                sys.modules[name] = held
    except (ImportError, ValueError, AttributeError):
        return False
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == Path(file).resolve()


def source_of(target: Any, *, where: str) -> str:
    """A module's text that defines ``target`` and what it reaches: functions, classes, imports and plain constants.

    Raises ConfigError for a name that is anything else (an open file, a loaded model, another object).
    """
    parts: dict[str, str] = {}
    imports: dict[str, str] = {}
    _collect(target, imports, parts, where)
    head = ["from __future__ import annotations"] if _annotations_are_text(target) else []
    return "\n\n\n".join(["\n".join([*head, *sorted(imports.values())]), *parts.values()]) + "\n"


def _collect(target: Any, imports: dict[str, str], parts: dict[str, str], where: str) -> None:
    name = _name_of(target)
    if name in parts:
        return
    node = _definition_of(target, where)
    parts[name] = ""
    space = _space_of(target)
    for used in sorted({item.id for item in ast.walk(node) if isinstance(item, ast.Name)}):
        if used in space and used != name and used not in parts:
            _name(used, space[used], imports, parts, where, home=target.__module__)
    # What it uses comes before it: decorators and defaults run at once.
    del parts[name]
    parts[name] = ast.unparse(node)


def _name_of(target: Any) -> str:
    return "_lambda" if target.__name__ == "<lambda>" else str(target.__name__)


def _space_of(target: Any) -> dict[str, Any]:
    """Names that its code sees: globals, and what it closes over."""
    space = dict(getattr(target, "__globals__", None) or vars(sys.modules[target.__module__]))
    code = getattr(target, "__code__", None)
    for name, cell in zip(code.co_freevars if code else (), getattr(target, "__closure__", None) or (), strict=True):
        try:
            space[name] = cell.cell_contents
        except ValueError:
            continue
    return space


def _definition_of(target: Any, where: str) -> ast.stmt:
    """The statement that defines it, without the decorator that registers it."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(target)))
    except (OSError, TypeError, SyntaxError):
        raise ConfigError(f"the source of {target.__name__!r} is not there", where=where, fix=WAY_OUT) from None
    if target.__name__ == "<lambda>":
        found = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]
        if len(found) != 1:
            raise ConfigError(f"{len(found)} lambdas stand on one line", where=where, fix="write it as a def")
        return ast.Assign(targets=[ast.Name(id="_lambda", ctx=ast.Store())], value=found[0], lineno=1)
    node = tree.body[0]
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        space = _space_of(target)
        node.decorator_list = [item for item in node.decorator_list if not is_registrar(item, space)]
    return node


def _name(name: str, value: Any, imports: dict[str, str], parts: dict[str, str], where: str, *, home: str) -> None:
    if isinstance(value, types.ModuleType):
        imports[name] = f"import {value.__name__} as {name}" if value.__name__ != name else f"import {name}"
        return
    module, called = getattr(value, "__module__", None), getattr(value, "__name__", "")
    if isinstance(value, (types.FunctionType, type)) and module == home and value.__name__ == name:
        _collect(value, imports, parts, where)
    elif callable(value) and module and getattr(sys.modules.get(module), called, None) is value:
        imports[name] = f"from {module} import {called} as {name}"
    elif isinstance(value, re.Pattern):
        imports["_re"] = "import re as _re"
        parts[name] = f"{name} = _re.compile({value.pattern!r}, {value.flags})"
    elif _is_plain(value):
        parts[name] = f"{name} = {value!r}"
    else:
        raise ConfigError(
            f"it uses {name!r}, a {type(value).__name__}, which cannot be shipped by source", where=where, fix=WAY_OUT
        )


def _is_plain(value: Any) -> bool:
    if value is None or type(value) in (bool, int, str, bytes, complex):
        return True
    if type(value) is float:
        return value == value and value not in (float("inf"), float("-inf"))
    if type(value) in (list, tuple, set, frozenset):
        return all(_is_plain(item) for item in value)
    return type(value) is dict and all(_is_plain(k) and _is_plain(v) for k, v in value.items())


def _annotations_are_text(target: Any) -> bool:
    import __future__

    code = getattr(target, "__code__", None)
    return code is not None and bool(code.co_flags & __future__.annotations.compiler_flag)


_FOLDER: list[tempfile.TemporaryDirectory[str]] = []


def _written(text: str) -> Path:
    """A file that holds ``text``, kept until this process ends."""
    if not _FOLDER:
        _FOLDER.append(tempfile.TemporaryDirectory(prefix="jurat-verifiers-"))
    key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    path = Path(_FOLDER[0].name) / f"shipped_{key}.py"
    if not path.exists():
        path.write_text(text, encoding="utf-8")
    return path
