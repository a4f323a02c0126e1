"""The walk over everything that a function or class reaches."""

from __future__ import annotations

import abc
import ast
import dataclasses
import enum
import functools
import importlib.metadata
import logging
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any

from jurat.platform.errors import ConfigError
from jurat.platform.identity.data import Data
from jurat.platform.identity.digests import sha256_of
from jurat.platform.identity.members import (
    NAMED_TUPLE,
    SLOT,
    content_of,
    file_of_class,
    functions_of,
    is_inside,
    is_made_by_library,
    is_own_module,
    own_attributes,
    own_fingerprint,
    passes_on,
)
from jurat.platform.identity.modules import module_of
from jurat.platform.identity.origin import distribution_of, find_spec, kind_of, pinned
from jurat.platform.identity.syntax import (
    assigned,
    contents_of,
    imports_of,
    is_literal,
    is_registrar,
    shown,
    spelled_constant,
    tree_digest,
    with_names,
)

_INERT = (logging.Logger, logging.LoggerAdapter)


class Reading(Data):
    """One walk over everything that a target reaches. Each object is read once; met again, it is a back reference."""

    def __init__(self, stand_ins: dict[str, Any]) -> None:
        self._stand_ins = stand_ins
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []
        self._inside: list[int] = []
        self._modules: dict[str, Any] = {}
        self.deps: dict[str, str] = {}
        self.nodes: dict[str, ast.AST] = {}
        self.values: dict[str, str] = {}
        """What was hashed as data, a line of Python by place; for people, not hashed itself."""

    # -- dispatch --

    def value(self, value: Any, path: str) -> Any:
        """``value`` as JSON that is equal for equal values. Raises ConfigError where it has no such form."""
        if value is None or isinstance(value, bool) or value is Ellipsis:
            return spelled_constant(value)
        if type(value) in (int, float, complex, str, bytes):
            return spelled_constant(value)
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
            return ["fingerprint", self._own(type(value), path), own_fingerprint(value, path)]
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

    # -- code --

    def _function(self, function: types.FunctionType, path: str) -> Any:
        # functools.wraps copies __module__, so the globals say whose code it is.
        kind = kind_of(function.__globals__.get("__name__") or "")
        if kind != "first":
            return self._foreign_function(function, kind, path)
        code = function.__code__
        module = module_of(code.co_filename, path)
        columns = {c for _, _, c, _ in code.co_positions() if c is not None} - {0}
        node = module.node(code.co_name, code.co_firstlineno, columns)
        if node is None or not module.compiles_to(code):
            raise ConfigError(
                f"the source of {path} is not what is loaded", where=f"{code.co_filename}:{code.co_firstlineno}",
                fix="the file has changed since it was imported: start again",
            )  # fmt: skip
        inner = getattr(function, "__wrapped__", None)
        if inner is not None and passes_on(node, function, inner) and not own_attributes(function, inner):
            return self.value(inner, path)
        self.nodes.setdefault(path, node)
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        out: list[Any] = ["function", tree_digest(node, without=frozenset({"name", "decorator_list"}))]
        out.append(
            ["closure", [[name, self._named(name, content_of(cell), path)] for name, cell in sorted(cells.items())]]
        )
        out.append(["defaults", self.value(function.__defaults__ or (), f"{path}.__defaults__")])
        if function.__defaults__:
            self._show(f"{path}.__defaults__", "__defaults__", function.__defaults__)
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
        taken = self._taken(node, {**space, **{n: content_of(c) for n, c in cells.items()}}, path)
        out += [["taken", taken]] if taken else []
        own = {k: v for k, v in vars(function).items() if k != "__wrapped__"}
        out.append(["attributes", [[k, self._named(k, v, path)] for k, v in sorted(own.items())]])
        if inner is not None and not any(content_of(cell) is inner for cell in cells.values()):
            out.append(["wrapped", self.value(inner, f"{path}.__wrapped__")])
        return out

    def _class(self, cls: type, path: str) -> Any:
        if cls.__module__ == "builtins":
            return ["builtin", cls.__qualname__]
        kind = kind_of(cls.__module__)
        if kind != "first":
            return self._foreign(cls, kind, path)
        loaded = sys.modules.get(cls.__module__)
        file = getattr(loaded, "__file__", None) or file_of_class(cls)
        if file is None:
            raise ConfigError(
                f"the source of class {path} is not there", where=cls.__module__, fix="define it in a file"
            )
        module = module_of(file, path)
        node = module.class_node(cls.__qualname__)
        if node is None:
            if any(kind_of(base.__module__) == "third" for base in (*cls.__mro__, type(cls))):
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
                cells += [
                    [name, n, self._named(n, content_of(c), f"{path}.{name}")] for n, c in held if n != "__class__"
                ]
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
            for item in contents_of(node).modules for alias in item.names
        }  # fmt: skip
        out: dict[str, Any] = {}
        for outer in contents_of(node).attributes:
            item: ast.expr = outer
            attributes: list[str] = []
            while isinstance(item, ast.Attribute):
                attributes.insert(0, item.attr)
                item = item.value
            if not isinstance(item, ast.Name) or item.id in self._stand_ins:
                continue
            held, place = local.get(item.id) or space.get(item.id), item.id
            for name in attributes:
                if not is_own_module(held) or not hasattr(held, name):
                    break
                held, place = getattr(held, name), f"{place}.{name}"
                if is_own_module(held):
                    out[place] = self._module(held.__name__, f"{path}.{place}")
                elif not isinstance(held, types.ModuleType) and place not in out:
                    out[place] = self._named(name, held, f"{path}.{place}"[: -len(name) - 1])
        return sorted(map(list, out.items()), key=lambda row: str(row[0]))

    def _members(self, cls: type, node: ast.ClassDef | None, file: str, path: str) -> list[Any]:
        """Members of a class whose value its statement does not spell: set later, computed, or made in a function."""
        if cls.__module__.partition(".")[0] == "jurat":
            return []
        spelled = assigned(node) if node is not None else {}
        foreign = any(kind_of(base.__module__) == "third" for base in (*cls.__mro__, type(cls)))
        local = node is None or "<locals>" in cls.__qualname__
        out: list[Any] = []
        members = getattr(cls, "__members__", {}) if issubclass(cls, enum.Enum) else {}
        for name, member in sorted(vars(cls).items()):
            hidden = name.startswith("__") and name.endswith("__")
            functions = functions_of(member)
            if name in members or name in NAMED_TUPLE or isinstance(member, SLOT):
                continue
            if functions:
                if all(is_made_by_library(f) for f in functions) and (hidden or issubclass(cls, (tuple, enum.Enum))):
                    continue
                inside = node is not None and all(is_inside(f, name, node, file) for f in functions)
                if inside and not (local and any(f.__defaults__ or f.__kwdefaults__ for f in functions)):
                    own = [v for f in functions for k, v in vars(f).items() if not k.startswith("__")]
                    if not own and module_of(file, path).compiles_to(functions[0].__code__):
                        continue
            elif hidden or (foreign and name not in spelled and (name.startswith("_") or name.startswith("model_"))):
                continue
            elif issubclass(cls, enum.Enum) and name.startswith("_"):
                continue
            elif name in spelled and is_literal(spelled[name], member):
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
        source = module_of(str(loaded.__file__), path)
        made: list[Any] = []
        said = source.statements_of(name)
        if said:
            self.nodes.setdefault(f"{module}.{name}", ast.Module(body=said, type_ignores=[]))
        for node in said:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                bound = [alias for alias in node.names if (alias.asname or alias.name) == name]
                made.append(self._imports(with_names(node, bound), loaded.__package__ or "", path))
            else:
                used = {item.id for item in ast.walk(node) if isinstance(item, ast.Name)} - {name}
                made.append([tree_digest(node), self._globals(sorted(used), vars(loaded), f"{path}.{name}")])
        self._modules[key] = ["declared", made] if made else self._named(name, value, path)
        return self._modules[key]

    def _named(self, name: str, value: Any, path: str) -> Any:
        if name in self._stand_ins:
            return ["config"]
        place = f"{path}.{name}" if path else name
        if not self._inside:
            self._show(place, name, value)
        return self.value(value, place)

    def _show(self, place: str, name: str, value: Any) -> None:
        text = shown(value)
        if text is not None:
            self.values.setdefault(place, f"{name} = {text}")

    def _imports(self, node: ast.AST, package: str, path: str) -> Any:
        """What the code imports: first-party names by value, first-party modules whole, others as dependencies."""
        out = {}
        for item in contents_of(node).imports:
            for module, name in imports_of(item, package):
                kind = kind_of(module)
                key = module.rpartition(".")[2] if name is None else name
                if (module == "jurat" and name is None) or kind == "standard":
                    continue
                if key in self._stand_ins:
                    out[key] = "config"
                    continue
                if module not in sys.modules and find_spec(module) is None:
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
            for item in contents_of(node).modules for alias in item.names if alias.name == "jurat"
        }  # fmt: skip
        taken = {
            item.attr
            for item in contents_of(node).attributes
            if isinstance(item.value, ast.Name) and item.value.id in names
        }
        found = [name for name in sorted(taken) if hasattr(jurat, name)]
        return [[name, self._named(name, getattr(jurat, name), f"{path}.jurat")] for name in found]

    def _module(self, name: str, path: str) -> Any:
        """A module by name: the standard library's by name alone, third-party as a dependency, first-party whole."""
        kind = kind_of(name)
        if kind == "standard":
            return ["module", name]
        if kind == "third":
            self._depend(name, path)
            return ["dependency"]
        if name in self._modules:
            return self._modules[name]
        self._modules[name] = ["seen module", len(self._modules)]
        loaded = sys.modules.get(name)
        spec = getattr(loaded, "__spec__", None) or find_spec(name)
        file = getattr(loaded, "__file__", None) or (spec.origin if spec is not None else None)
        if file is None and spec is not None and spec.submodule_search_locations is not None:
            return ["namespace"]
        if file is None:
            raise ConfigError(
                f"module {name!r} has no source", where=path, fix="install it, or put its file on the path"
            )
        module = module_of(file, path)
        package = (spec.parent if spec is not None else getattr(loaded, "__package__", "")) or ""
        self.nodes[name] = module.tree
        out = ["module source", tree_digest(module.tree), self._imports(module.tree, package, path)]
        out.append(self._face(module.tree, set(), path))
        self._modules[name] = ["module digest", sha256_of(out)]
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
            (name, content_of(cell))
            for name, cell in cells
            if kind == "third" or isinstance(content_of(cell), types.FunctionType)
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

    def _builtin(self, value: Any, path: str) -> Any:
        owner = getattr(value, "__self__", None)
        module = getattr(value, "__module__", None) or getattr(getattr(value, "__objclass__", None), "__module__", "")
        if owner is not None and not isinstance(owner, (types.ModuleType, type)):
            return ["bound", value.__name__, self.value(owner, f"{path}.__self__")]
        if module and kind_of(module) == "third":
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
        first = kind_of(kind.__module__) == "first"
        return ([["class", self._own(kind, path)]] if first else []) + ([["state", own]] if own else [])

    # -- dependencies --

    def _depend(self, module: str, path: str) -> None:
        name = distribution_of(module.partition(".")[0])
        if name is None:
            raise ConfigError(
                f"{path} reaches module {module!r}, which belongs to no installed distribution", where=path,
                fix="install it as a package, or put its source beside the verifier",
            )  # fmt: skip
        self.distribution(name, where=path)

    def distribution(self, name: str, *, where: str) -> None:
        """Count a distribution. Raises ConfigError if it is not installed."""
        try:
            pin, files = pinned(name)
        except importlib.metadata.PackageNotFoundError:
            raise ConfigError(
                f"distribution {name!r} is not installed", where=where, fix=f"pip install {name}"
            ) from None
        self.deps[pin] = files
