"""Of the walk: values that are data, by what they hold."""

from __future__ import annotations

import collections
import datetime
import decimal
import hashlib
import io
import json
import re
import types
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from jurat.platform.errors import ConfigError
from jurat.platform.identity.digests import as_json
from jurat.platform.identity.members import label_of, written_in_python
from jurat.platform.identity.origin import kind_of
from jurat.platform.identity.syntax import sorted_key, spelled_constant

WAYS_OUT = (
    "give its class a method __fingerprint__() that returns a string, or name it in config={...} with a JSON value "
    "that stands for it"
)

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


class Data(ABC):
    """How each kind of data is spelled; what it reaches in its turn is read by ``value``."""

    @abstractmethod
    def value(self, value: Any, path: str) -> Any:
        """``value`` as JSON that is equal for equal values. Raises ConfigError where it has no such form."""

    @abstractmethod
    def _named(self, name: str, value: Any, path: str) -> Any:
        """The same of what goes by a name, for which the config may have a stand-in."""

    def _own(self, cls: type, path: str) -> Any:
        return self.value(cls, f"{path}({cls.__qualname__})")

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
                return ["sub", self._own(kind, path), spelled_constant(exactly(value)), *self._extra_state(value, path)]
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
        if array is not None and kind_of(kind.__module__) == "first":
            return self._with_state(self._array(value.view(array), path), value, array, path)
        if kind.__module__ == "numpy" and hasattr(value, "dtype") and hasattr(value, "tobytes"):
            if getattr(value, "shape", ()):
                return ["numpy", kind.__name__, self._array(value, path)]
            return ["numpy", str(value.dtype), value.tobytes().hex()]
        return self._instance(value, path)

    def _container(self, value: Any, base: type, path: str) -> Any:
        kind = type(value)
        if base is dict:
            out: Any = ["dict", self._pairs(value, path)]
            factory = getattr(value, "default_factory", None)
            if factory is not None:
                out.append(self.value(factory, f"{path}.default_factory"))
        elif base in (set, frozenset):
            plain = [sorted_key(item) for item in value]
            if all(key is not None for key in plain):
                out = [base.__name__, sorted(json.dumps(as_json(key)) for key in plain)]
            else:
                shown = [
                    self.value(item, f"{path}{{}}") for item in sorted(value, key=lambda item: str(label_of(item)))
                ]
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
        if kind_of(type(value).__module__) != "first":
            return made
        return ["sub", self._own(type(value), path), made, *self._extra_state(value, path)]

    def _extra_state(self, value: Any, path: str) -> list[Any]:
        state = self._state(value, path)
        return [["state", state]] if state else []

    def _state(self, value: Any, path: str, *, every_slot: bool = False) -> list[Any]:
        """Attributes of an object: its ``__dict__`` and the slots of first-party classes, or of all its classes."""
        state: dict[str, Any] = dict(getattr(value, "__dict__", {}))
        for cls in type(value).__mro__:
            if not every_slot and kind_of(cls.__module__) != "first":
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
        if isinstance(value, io.IOBase) or kind.__module__ == "builtins" or kind_of(kind.__module__) != "first":
            raise ConfigError(
                f"cannot identify {path}: a {kind.__module__}.{kind.__qualname__} has no content that can be hashed",
                where=path, fix=WAYS_OUT,
            )  # fmt: skip
        held: list[Any] = []
        for cls in kind.__mro__:
            if kind_of(cls.__module__) == "first" or cls is object or written_in_python(cls):
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
