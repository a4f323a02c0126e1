"""Outcome verifiers that measure the text itself. Each is linear in the completion and exact about what it measures."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from jurat.platform.errors import ConfigError, nearest
from jurat.platform.types import Finish, Problem, Verdict

MAX_CHARACTERS = 1_000_000


def _over(completion: str) -> Verdict | None:
    if len(completion) > MAX_CHARACTERS:
        return Verdict.of("too_large", why=f"{len(completion)} characters, over {MAX_CHARACTERS}")
    return None


def length(
    problem: Problem,
    completion: str,
    *,
    min: int = 0,
    max: int = 4096,
    unit: Literal["characters", "words", "lines"] = "characters",
    finish: Finish = "stop",
) -> Verdict:
    """Whether the completion ended by itself and holds between ``min`` and ``max`` characters, words or lines."""
    if unit not in ("characters", "words", "lines"):
        raise ConfigError(f"unit is characters, words or lines, got {unit!r}", where="length")
    held = {"characters": completion, "words": completion.split(), "lines": completion.splitlines()}[unit]
    count = len(held)
    if finish == "length":
        return Verdict.of("incorrect", read=str(count), why="cut_at_limit", certified=True)
    why = "too_short" if count < min else "too_long" if count > max else "length_within"
    return Verdict.of("correct" if why == "length_within" else "incorrect", read=str(count), why=why, certified=True)


# ---- structure ---------------------------------------------------------------------------------------------------


def tags(
    problem: Problem, completion: str, *, names: Sequence[str] = ("think", "answer"), only: bool = True
) -> Verdict:
    """Whether each tag of ``names`` opens and closes exactly once, in this order, unnested and not empty.

    ``only``: nothing but white space stands outside them. ``why`` names the first thing that is wrong.
    """
    at = 0
    for name in names:
        opens, closes = f"<{name}>", f"</{name}>"
        for tag in (opens, closes):
            count = completion.count(tag)
            if count != 1:
                return _structure(f"{tag} occurs {count} times")
        start, end = completion.find(opens), completion.find(closes)
        if start < at or end < start:
            return _structure(f"{opens} or {closes} is out of order")
        if only and completion[at:start].strip():
            return _structure(f"text before {opens}")
        if not completion[start + len(opens) : end].strip():
            return _structure(f"{opens} is empty")
        at = end + len(closes)
    if only and completion[at:].strip():
        return _structure(f"text after </{names[-1]}>")
    return _structure("")


def _structure(fault: str) -> Verdict:
    return Verdict.of("incorrect" if fault else "correct", why=fault or "tags_in_order", certified=True)


def regex_format(
    problem: Problem, completion: str, *, pattern: str, match: Literal["whole", "anywhere"] = "whole", flags: str = "s"
) -> Verdict:
    """Whether ``pattern`` (Python's ``re``) matches the whole completion, or anywhere in it.

    ``flags`` are letters: s (dot matches newline), i (ignore case), m (multi-line), x (verbose). Patterns can take
    exponential time, so this one always runs in a killable process.
    """
    compiled = compiled_pattern(pattern, flags)
    found = compiled.fullmatch(completion) if match == "whole" else compiled.search(completion)
    return Verdict.of("correct" if found else "incorrect", why="matches" if found else "no_match", certified=True)


def compiled_pattern(pattern: str, flags: str = "s") -> re.Pattern[str]:
    """Raises ConfigError for what is no regular expression, or unknown flags."""
    try:
        return re.compile(pattern, _flags(flags))
    except (re.error, RecursionError, OverflowError, ValueError) as fault:
        raise ConfigError(
            f"pattern {pattern!r:.80} is no regular expression: {fault}", where="regex_format",
            fix="write one that Python's re.compile takes",
        ) from None  # fmt: skip


def _flags(letters: str) -> int:
    known = {"s": re.DOTALL, "i": re.IGNORECASE, "m": re.MULTILINE, "x": re.VERBOSE}
    out = 0
    for letter in letters:
        if letter not in known:
            raise ConfigError(
                f"flags are letters of {''.join(known)}, got {letter!r}", where="regex_format", fix='like flags="si"'
            )
        out |= known[letter]
    return out


# ---- language ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=65_536)
def _script(char: str) -> str:
    """The first word of a letter's Unicode name, lower case (latin, greek, cjk, hiragana); '' for no letter."""
    if not char.isalpha():
        return ""
    return unicodedata.name(char, "unknown").partition(" ")[0].partition("-")[0].lower()


def language(
    problem: Problem,
    completion: str,
    *,
    scripts: Sequence[str] = ("latin",),
    also: Sequence[str] = ("greek", "mathematical"),
    min_share: float = 0.98,
) -> Verdict:
    """Whether at least ``min_share`` of the letters are of ``scripts``. It measures the script of each letter, not the
    language of the words; scripts in ``also`` (mathematics is full of Greek) count neither way.
    """
    if (over := _over(completion)) is not None:
        return over
    counts: Counter[str] = Counter()
    for char, times in Counter(completion).items():
        counts[_script(char)] += times
    counts.pop("", None)
    for name in also:
        counts.pop(name, None)
    total = sum(counts.values())
    if total == 0:
        return Verdict.of("correct", why="no_letters", certified=True)
    share = sum(counts[name] for name in scripts) / total
    top = {name: count for name, count in counts.most_common(5)}
    return Verdict.of(
        "correct" if share >= min_share else "incorrect", read=f"{share:.4f}", certified=True,
        why="script_share" if share >= min_share else "other_scripts", evidence={"letters": top},
    )  # fmt: skip


# ---- fluency -----------------------------------------------------------------------------------------------------

_WORD = re.compile(r"\w+|[^\w\s]")


def fluency(
    problem: Problem,
    completion: str,
    *,
    ngram: int = 4,
    max_repeated: float = 0.5,
    max_run: int = 30,
    max_lines: int = 8,
    max_broken: float = 0.005,
) -> Verdict:
    """Whether the text neither repeats itself nor is broken. Four measures, each with its limit:

    the share of ``ngram``-word windows that occurred before (``max_repeated``); the longest run of one character other
    than white space and of one word (``max_run``); how often one non-empty line of 20 characters or more occurs
    (``max_lines``); and the share of characters that no text holds: U+FFFD, lone surrogates, controls, unassigned and
    private-use ones (``max_broken``). ``why`` names the first that is passed.
    """
    if (over := _over(completion)) is not None:
        return over
    words = _WORD.findall(completion)
    windows = [tuple(words[i : i + ngram]) for i in range(len(words) - ngram + 1)]
    repeated = 1 - len(set(windows)) / len(windows) if windows else 0.0
    lines = Counter(line.strip() for line in completion.splitlines() if len(line.strip()) >= 20)
    broken = sum(times for char, times in Counter(completion).items() if _is_broken(char)) / max(len(completion), 1)
    measured: dict[str, tuple[float, float]] = {
        "broken_characters": (broken, max_broken),
        "character_run": (_longest_run([c for c in completion if not c.isspace()]), max_run),
        "word_run": (_longest_run(words), max_run),
        "repeated_lines": (max(lines.values(), default=0), max_lines),
        "repeated_words": (repeated if len(windows) >= 20 else 0.0, max_repeated),
    }
    passed = [name for name, (value, limit) in measured.items() if value > limit]
    return Verdict.of(
        "incorrect" if passed else "correct", why=passed[0] if passed else "fluent", certified=True,
        evidence={name: round(value, 6) for name, (value, _) in measured.items()},
    )  # fmt: skip


def _is_broken(char: str) -> bool:
    return char == "\ufffd" or (unicodedata.category(char) in ("Cc", "Cs", "Cn", "Co") and char not in "\t\n\r")


def _longest_run(items: Sequence[str]) -> int:
    longest = run = 0
    last = None
    for item in items:
        run = run + 1 if item == last else 1
        last = item
        longest = run if run > longest else longest
    return longest


# ---- JSON --------------------------------------------------------------------------------------------------------

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "number": (int, float), "integer": (int,),
    "boolean": (bool,), "null": (type(None),),
}  # fmt: skip
_KEYWORDS = frozenset({
    "type", "enum", "const", "properties", "required", "additionalProperties", "items", "minItems", "maxItems",
    "uniqueItems", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "anyOf",
    "allOf", "oneOf", "not", "title", "description", "$schema", "default", "examples",
})  # fmt: skip
_FENCE = "```"
MAX_DEPTH = 100


def json_schema(problem: Problem, completion: str, *, schema: Mapping[str, Any], fenced: bool = True) -> Verdict:
    """Whether the completion is one JSON value that ``schema`` allows; ``fenced`` also accepts one fenced block of it.

    A subset of JSON Schema 2020-12: types, enum, const, object, array, string and number limits, anyOf, allOf, oneOf,
    not. ``pattern``, ``format`` and ``$ref`` are refused, as their cost is not bounded. ``why`` gives the first fault's
    path.
    """
    check_schema(schema)
    if (over := _over(completion)) is not None:
        return over
    text = completion.strip()
    if fenced and text.count(_FENCE) == 2:
        text = text.partition(_FENCE)[2].partition(_FENCE)[0].removeprefix("json").strip()
    if not text:
        return Verdict.of("no_answer", why="no JSON")
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return Verdict.of("unparseable", why=f"not JSON: {error}"[:200])
    fault = _violation(value, schema, "$", 0)
    return Verdict.of("incorrect" if fault else "correct", read=text[:200], why=fault or "schema_valid", certified=True)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def check_schema(schema: Any, path: str = "schema") -> None:
    """Raises ConfigError for a keyword that is not supported, or has a value it cannot have."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise _bad_schema(f"{path} must be an object or a boolean, got {type(schema).__name__}")
    if path.count(".") + path.count("[") > MAX_DEPTH:
        raise _bad_schema(f"the schema is nested deeper than {MAX_DEPTH}")
    for key, value in schema.items():
        if key not in _KEYWORDS:
            raise ConfigError(
                f"{path}.{key} is not supported", where="json_schema", fix=f"supported: {', '.join(sorted(_KEYWORDS))}"
            )
        expected = _SHAPES.get(key)
        if expected is not None and not expected[1](value):
            raise _bad_schema(f"{path}.{key} must be {expected[0]}, got {value!r:.60}")
        if key == "properties":
            for name, inner in value.items():
                check_schema(inner, f"{path}.properties.{name}")
        elif key in ("items", "additionalProperties", "not"):
            check_schema(value, f"{path}.{key}")
        elif key in ("anyOf", "allOf", "oneOf"):
            for i, inner in enumerate(value):
                check_schema(inner, f"{path}.{key}[{i}]")
        elif key == "type":
            for name in [value] if isinstance(value, str) else value:
                if name not in _TYPES:
                    raise _bad_schema(f"{path}.type: unknown type {name!r}.{nearest(name, _TYPES)}")


def _bad_schema(what: str) -> ConfigError:
    return ConfigError(what, where="json_schema", fix='like schema={"type": "object", "required": ["answer"]}')


def _is_text_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


_LIST = ("a list that is not empty", lambda value: isinstance(value, (list, tuple)) and len(value) > 0)
_COUNT = ("a whole number >= 0", lambda value: type(value) is int and value >= 0)
_NUMBER = ("a number", _is_number)
_SHAPES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "type": ("a name or a list of names", lambda value: isinstance(value, str) or (bool(value) and _is_text_list(value))),
    "properties": ("an object", lambda value: isinstance(value, Mapping)),
    "required": ("a list of names", _is_text_list),
    "enum": _LIST, "anyOf": _LIST, "allOf": _LIST, "oneOf": _LIST,
    "uniqueItems": ("true or false", lambda value: isinstance(value, bool)),
    "minItems": _COUNT, "maxItems": _COUNT, "minLength": _COUNT, "maxLength": _COUNT,
    "minimum": _NUMBER, "maximum": _NUMBER, "exclusiveMinimum": _NUMBER, "exclusiveMaximum": _NUMBER,
}  # fmt: skip


def _violation(value: Any, schema: Any, path: str, depth: int) -> str:
    """'' if allowed, else the first fault with its path."""
    if isinstance(schema, bool):
        return "" if schema else f"{path}: not allowed"
    if depth > MAX_DEPTH:
        return f"{path}: nested deeper than {MAX_DEPTH}"
    given = schema.get("type")
    if given is not None:
        wanted = [given] if isinstance(given, str) else list(given)
        if not any(_is_type(value, name) for name in wanted):
            return f"{path}: expected {' or '.join(wanted)}, got {type(value).__name__}"
    if "enum" in schema and not any(_same(value, item) for item in schema["enum"]):
        return f"{path}: none of the allowed values"
    if "const" in schema and not _same(value, schema["const"]):
        return f"{path}: not the expected value"
    if isinstance(value, dict):
        fault = _object(value, schema, path, depth)
    elif isinstance(value, list):
        fault = _array(value, schema, path, depth)
    elif isinstance(value, str):
        fault = _limits(len(value), schema, path, "minLength", "maxLength", "length")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        fault = _limits(value, schema, path, "minimum", "maximum", "value")
        low, high = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        if not fault and ((low is not None and value <= low) or (high is not None and value >= high)):
            fault = f"{path}: value {value} out of bounds"
    else:
        fault = ""
    return fault or _combined(value, schema, path, depth)


def _is_type(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[name])


def _same(a: Any, b: Any) -> bool:
    return isinstance(a, bool) == isinstance(b, bool) and a == b


def _object(value: dict[str, Any], schema: Mapping[str, Any], path: str, depth: int) -> str:
    for name in schema.get("required", ()):
        if name not in value:
            return f"{path}: {name!r} is missing"
    known = schema.get("properties", {})
    for name, item in value.items():
        inner = known.get(name, schema.get("additionalProperties", True))
        fault = _violation(item, inner, f"{path}.{name[:40]}", depth + 1)
        if fault:
            return fault
    return ""


def _array(value: list[Any], schema: Mapping[str, Any], path: str, depth: int) -> str:
    fault = _limits(len(value), schema, path, "minItems", "maxItems", "number of items")
    if fault:
        return fault
    if schema.get("uniqueItems") and len({json.dumps(item, sort_keys=True) for item in value}) < len(value):
        return f"{path}: items are not unique"
    for i, item in enumerate(value):
        fault = _violation(item, schema.get("items", True), f"{path}[{i}]", depth + 1)
        if fault:
            return fault
    return ""


def _limits(value: float, schema: Mapping[str, Any], path: str, low: str, high: str, noun: str) -> str:
    if low in schema and value < schema[low]:
        return f"{path}: {noun} {value} is below {low} {schema[low]}"
    if high in schema and value > schema[high]:
        return f"{path}: {noun} {value} is above {high} {schema[high]}"
    return ""


def _combined(value: Any, schema: Mapping[str, Any], path: str, depth: int) -> str:
    for inner in schema.get("allOf", ()):
        if fault := _violation(value, inner, path, depth + 1):
            return fault
    if "anyOf" in schema and all(_violation(value, inner, path, depth + 1) for inner in schema["anyOf"]):
        return f"{path}: matches none of anyOf"
    if "oneOf" in schema:
        count = sum(not _violation(value, inner, path, depth + 1) for inner in schema["oneOf"])
        if count != 1:
            return f"{path}: matches {count} of oneOf, expected 1"
    if "not" in schema and not _violation(value, schema["not"], path, depth + 1):
        return f"{path}: matches what it must not"
    return ""
