"""How a verifier registered in this process reaches a child: by module, by file, or, from a notebook, by its source."""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import tempfile
import textwrap
import types
from pathlib import Path
from typing import Any

from jurat.platform.errors import ConfigError
from jurat.verifiers.pool import Origin
from jurat.verifiers.registry import Definition

WAY_OUT = "move it into a file and name that in `verifiers:` (or import it from there)"


def origin_of(definition: Definition) -> Origin:
    """Where a child finds this verifier. Raises ConfigError for one that cannot travel, with the way out."""
    target = definition.target
    module = sys.modules.get(getattr(target, "__module__", "") or "")
    where = f"verifier {definition.name!r} in {getattr(target, '__module__', '?')}"
    if "<locals>" in getattr(target, "__qualname__", ""):
        raise ConfigError(
            f"verifier {definition.name!r} is defined inside a function, so a child process cannot find it",
            where=where, fix="define it at the top of a file",
        )  # fmt: skip
    file = getattr(module, "__file__", None)
    if module is not None and module.__name__ == "__main__":
        if file is not None and Path(file).is_file():
            return Origin(kind="file", value=str(Path(file).resolve()), path=import_path())
        return Origin(kind="file", value=str(_written(source_of(target, where=where))), path=import_path())
    if module is None or file is None:
        raise ConfigError(f"verifier {definition.name!r} has no file that a child could load", where=where, fix=WAY_OUT)
    spec = getattr(module, "__spec__", None)
    importable = spec is not None and spec.name == module.__name__ and _findable(module.__name__, file)
    return Origin(
        kind="module" if importable else "file", value=module.__name__ if importable else file, path=import_path()
    )


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
    name = target.__name__
    if name in parts:
        return
    try:
        text = textwrap.dedent(inspect.getsource(target))
    except (OSError, TypeError):
        raise ConfigError(f"the source of {name!r} is not there", where=where, fix=WAY_OUT) from None
    parts[name] = ""
    space = getattr(target, "__globals__", None) or vars(sys.modules["__main__"])
    for used in sorted({node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}):
        if used in space and used != name and used not in parts:
            _name(used, space[used], imports, parts, where)
    # What it uses comes before it: decorators and defaults run at once.
    del parts[name]
    parts[name] = text


def _name(name: str, value: Any, imports: dict[str, str], parts: dict[str, str], where: str) -> None:
    if isinstance(value, types.ModuleType):
        imports[name] = f"import {value.__name__} as {name}" if value.__name__ != name else f"import {name}"
        return
    home = getattr(value, "__module__", None)
    if isinstance(value, (types.FunctionType, type)) and home == "__main__":
        _collect(value, imports, parts, where)
    elif (
        callable(value) and home and getattr(value, "__name__", None) and hasattr(sys.modules.get(home), value.__name__)
    ):
        imports[name] = f"from {home} import {value.__name__} as {name}"
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
