"""Small readings of functions, classes and their members."""

from __future__ import annotations

import ast
import collections
import functools
import types
from typing import Any

from jurat.platform.errors import ConfigError
from jurat.platform.identity.digests import as_json
from jurat.platform.identity.origin import kind_of
from jurat.platform.identity.syntax import statements, without_strings


def content_of(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def own_fingerprint(value: Any, path: str) -> Any:
    made = value.__fingerprint__()
    if isinstance(made, bytes):
        return made.hex()
    try:
        return as_json(made)
    except TypeError as fault:
        raise ConfigError(f"{path}.__fingerprint__() returned what JSON cannot hold: {fault}", where=path) from None


def written_in_python(cls: type) -> bool:
    """True for a class whose objects hold nothing but attributes, as no compiled code made it."""
    return any(isinstance(v, types.FunctionType) for v in vars(cls).values()) or bool(
        {"__dict__", "__slots__"} & {*vars(cls)}
    )


NAMED_TUPLE = frozenset({"_fields", "_field_defaults"})

SLOT = (types.MemberDescriptorType, types.GetSetDescriptorType, type(collections.namedtuple("_N", "a").a))  # type: ignore[misc, attr-defined]


def is_own_module(value: Any) -> bool:
    return (
        isinstance(value, types.ModuleType)
        and value.__name__.partition(".")[0] != "jurat"
        and kind_of(value.__name__) == "first"
    )


def functions_of(member: Any) -> list[types.FunctionType]:
    """The functions in a method, property or cached method; none for other things."""
    if isinstance(member, types.FunctionType):
        return [member]
    if isinstance(member, property):
        return [f for f in (member.fget, member.fset, member.fdel) if isinstance(f, types.FunctionType)]
    if isinstance(member, functools.cached_property):
        return functions_of(member.func)
    inner = getattr(member, "__func__", None) if isinstance(member, (staticmethod, classmethod)) else None
    if type(member).__module__ == "functools":
        inner = inner or getattr(member, "__wrapped__", None)
    return functions_of(inner) if inner is not None else []


def is_made_by_library(function: types.FunctionType) -> bool:
    space = str(function.__globals__.get("__name__", ""))
    return function.__code__.co_filename == "<string>" or space.startswith("namedtuple_") or kind_of(space) != "first"


def is_inside(function: types.FunctionType, name: str, node: ast.ClassDef, file: str) -> bool:
    """True for a function that the statement of a class defines under this name, once."""
    code = function.__code__
    defs = [n for n in statements(node.body) if getattr(n, "name", None) == name and not isinstance(n, ast.ClassDef)]
    setters = [n for n in defs if getattr(n, "decorator_list", [])]
    if code.co_filename != file or not defs or (len(defs) > 1 and len(setters) < len(defs)):
        return False
    lines = {line for n in defs for line in (n.lineno, *(d.lineno for d in getattr(n, "decorator_list", [])))}
    return code.co_name == name and code.co_firstlineno in lines


def label_of(item: Any) -> Any:
    return (type(item).__qualname__, getattr(item, "__qualname__", None) or getattr(item, "name", None) or item)


def file_of_class(cls: type) -> str | None:
    for member in vars(cls).values():
        plain = getattr(member, "__func__", member)
        if isinstance(plain, types.FunctionType) and plain.__qualname__.startswith(cls.__qualname__ + "."):
            return plain.__code__.co_filename
    return None


def own_attributes(wrapper: types.FunctionType, inner: Any) -> bool:
    """True if ``wrapper`` holds an attribute that ``functools.wraps`` did not copy from ``inner``."""
    copied = getattr(inner, "__dict__", {})
    return any(k != "__wrapped__" and copied.get(k, wrapper) is not v for k, v in vars(wrapper).items())


def passes_on(node: ast.AST, wrapper: types.FunctionType, inner: Any) -> bool:
    """True if ``wrapper`` is ``def w(*args, **kwargs): return inner(*args, **kwargs)`` and nothing else."""
    if not isinstance(node, ast.FunctionDef) or len(body := without_strings(node.body)) != 1:
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
    return called is not None and content_of(called) is inner and given == wanted and len(cells) == 1
