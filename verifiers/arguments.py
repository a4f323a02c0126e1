"""Values of the built-in verifiers' arguments, checked when one is built: by annotation, then by what each can use."""

from __future__ import annotations

import functools
import inspect
import math
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from jurat.platform.errors import ConfigError, nearest

Check = Callable[[Mapping[str, Any]], None]
MAX_DECIMAL_DIGITS = 1_000
MAX_SECONDS = 120.0
"""Of all programs of one completion, under the deadline of verifier ``code``."""


def check_of(name: str, target: Callable[..., Any]) -> Check:
    """What raises ConfigError for a value that built-in verifier ``name`` cannot use, naming the nearest it can."""
    if hasattr(target, "together"):
        return functools.partial(_composite, name)
    own = _OWN.get(name)
    annotated = target.__init__ if inspect.isclass(target) else target

    def check(args: Mapping[str, Any]) -> None:
        hints = _hints(annotated)
        for key, value in args.items():
            if key in hints:
                _typed(name, key, value, hints[key])
        if own is not None:
            own(args)

    return check


@functools.cache
def _hints(target: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(target)


def _typed(name: str, key: str, value: Any, hint: Any) -> None:
    if typing.get_origin(hint) is Literal:
        _one_of(name, key, value, typing.get_args(hint))
        return
    # A list from a recipe may come as a tuple; only its items' types matter.
    given = list(value) if isinstance(value, tuple) else value
    try:
        TypeAdapter(hint, config=ConfigDict(strict=True)).validate_python(given)
    except ValidationError:
        noun = {
            str: "text", bool: "true or false", int: "a whole number", float: "a number", Sequence[str]: "a list of names"
        }.get(hint, "an object")  # fmt: skip
        raise _refused(name, key, noun, value) from None


def _refused(name: str, key: str, expected: str, value: Any, more: str = "", fix: str = "") -> ConfigError:
    return ConfigError(
        f"argument {key!r} of verifier {name!r} is {expected}, got {value!r:.80}{more}",
        where=f"arguments of verifier {name!r}", fix=fix or f"give {key} as {expected}, or leave it out",
    )  # fmt: skip


def _one_of(name: str, key: str, value: Any, known: Iterable[str]) -> None:
    known = sorted(known)
    if not isinstance(value, str) or value not in known:
        raise _refused(name, key, f"one of {', '.join(known)}", value, "." + nearest(str(value), known))


def _each_of(name: str, key: str, values: Iterable[str], known: Iterable[str]) -> None:
    known = sorted(known)
    for value in values:
        if value not in known:
            more = "." + nearest(value, known)
            raise _refused(name, key, "a list of known names", value, more, fix=f"known: {', '.join(known)}")


def _within(name: str, args: Mapping[str, Any], low: float, high: float, *keys: str) -> None:
    for key in keys:
        if key in args and not low <= args[key] <= high:
            bounds = f">= {low:g}" if math.isinf(high) else f"from {low:g} to {high:g}"
            raise _refused(name, key, f"a number {bounds}", args[key])


def _math(args: Mapping[str, Any]) -> None:
    from jurat.verifiers.math.convert import TABLE
    from jurat.verifiers.math.extract import _MARKERS

    _each_of("math", "order", args.get("order", ()), ("last", *_MARKERS))
    _each_of("math", "markers", args.get("markers", ()), _MARKERS)
    _each_of("math", "off", args.get("off", ()), (conversion.name for conversion in TABLE))
    _within("math", args, 1, MAX_DECIMAL_DIGITS, "decimal_digits")


def _number(args: Mapping[str, Any]) -> None:
    tolerance = args.get("tolerance", 0)
    if not 0 <= tolerance < math.inf:
        raise _refused("number", "tolerance", "a finite number >= 0", tolerance)


def _choice(args: Mapping[str, Any]) -> None:
    letters = args.get("letters", "A")
    if not (letters.isascii() and letters.isalpha()):
        raise _refused("choice", "letters", "one letter or more from A to Z", letters)


def _length(args: Mapping[str, Any]) -> None:
    _within("length", args, 0, math.inf, "min", "max")
    if args.get("min", 0) > args.get("max", 4096):
        raise _refused("length", "min", f"at most max ({args.get('max', 4096)})", args.get("min", 0))


def _tags(args: Mapping[str, Any]) -> None:
    names = args.get("names", ("answer",))
    if not names or not all(names) or len(set(names)) < len(names):
        raise _refused("tags", "names", "a list of names, none of them empty or twice", names)


def _language(args: Mapping[str, Any]) -> None:
    if not args.get("scripts", ("latin",)):
        raise _refused("language", "scripts", "a list of names that is not empty", args["scripts"])
    _within("language", args, 0, 1, "min_share")


def _fluency(args: Mapping[str, Any]) -> None:
    _within("fluency", args, 1, 1_000, "ngram")
    _within("fluency", args, 0, 1, "max_repeated", "max_broken")
    _within("fluency", args, 1, math.inf, "max_run", "max_lines")


def _regex_format(args: Mapping[str, Any]) -> None:
    from jurat.verifiers.rules import compiled_pattern

    if "pattern" in args:
        compiled_pattern(args["pattern"], args.get("flags", "s"))


def _learned(args: Mapping[str, Any]) -> None:
    _within("reward_model", args, 1, 4096, "batch")


def _code(args: Mapping[str, Any]) -> None:
    _within("code", args, 0.05, MAX_SECONDS, "seconds", "total_seconds")
    _within("code", args, 16, 1 << 20, "memory_mb")
    _within("code", args, 1, 1 << 16, "output_kb")
    _within("code", args, 0, 10, "retries")
    for name in args.get("preload", ()):
        if not all(part.isidentifier() for part in name.split(".")):
            raise _refused("code", "preload", "a list of modules", args["preload"])


def _json_schema(args: Mapping[str, Any]) -> None:
    from jurat.verifiers.rules import check_schema

    if "schema" in args:
        check_schema(args["schema"])


_OWN: Mapping[str, Check] = {
    "math": _math, "number": _number, "choice": _choice, "length": _length, "tags": _tags, "language": _language,
    "fluency": _fluency, "code": _code, "regex_format": _regex_format, "json_schema": _json_schema,
    "reward_model": _learned, "process_reward_model": _learned,
}  # fmt: skip


def _ensemble(args: Mapping[str, Any]) -> None:
    from jurat.verifiers.ensemble import RULES

    _one_of("ensemble", "rule", args.get("rule", "median"), RULES)
    members = len(args.get("of", ()))
    for key, low, high in (("quorum", 1, members), ("trim", 0, 0.49), ("k", 0, 100), ("abstain_above", 0, 1)):
        value = args.get(key)
        if value is not None and (type(value) not in (int, float) or (key == "quorum" and type(value) is not int)):
            raise _refused("ensemble", key, "a whole number" if key == "quorum" else "a number", value)
        if value is not None:
            _within("ensemble", args, low, high, key)


def _composite(name: str, args: Mapping[str, Any]) -> None:
    """The form of ``of`` and ``weights``. Parts may be known to a worker process alone, so names are looked up there."""
    of = args.get("of", ())
    form = "a list of verifiers, each a name or {use: name, args: {...}}"
    if not isinstance(of, (list, tuple)) or not of:
        raise _refused(name, "of", form, of)
    for part in of:
        if callable(part) or (isinstance(part, str) and part):
            continue
        whole = isinstance(part, Mapping) and isinstance(part.get("use"), str) and part.keys() <= {"use", "args"}
        if not whole or not isinstance(part.get("args", {}), Mapping):
            raise _refused(name, "of", form, part)
    if name == "ensemble":
        _ensemble(args)
    weights = args.get("weights")
    if weights is None:
        return
    numbers = isinstance(weights, (list, tuple)) and len(weights) == len(of)
    numbers = numbers and all(type(w) in (int, float) and 0 <= w < math.inf for w in weights)
    if not numbers or not sum(weights) > 0:
        raise _refused(name, "weights", f"{len(of)} numbers >= 0 with a positive sum", weights)
