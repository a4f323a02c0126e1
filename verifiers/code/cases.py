"""The cases of a problem, as its reference holds them: one JSON object, checked at the door.

| mode       | tests                                             | a program passes a case if                               |
|------------|---------------------------------------------------|----------------------------------------------------------|
| `stdio`    | `[{"stdin": "1 2\\n", "stdout": "3\\n"}, ...]`    | it ends with status 0 and its output is the expected one |
| `func`     | `[{"args": [1, 2], "expected": 3}, ...]`, `entry` | `entry(*args)` returns the expected value                |
| `assert`   | `["assert add(1, 2) == 3", ...]`                  | the statement raises nothing                             |
| `check`    | code with `check(candidate)` in `test`, `entry`   | `check` raises nothing; of plain asserts each is a case  |
| `unittest` | code with `TestCase` classes in `test`            | the test method passes                                   |

More keys: `prompt` (code that the program and its tests both begin with: imports, helpers, the head of the function),
`entry` (`f`, or `Solution.f` for a method of a fresh instance), `compare` (`tokens` or `exact`, of `stdio`), `tol` (numbers
may differ by so much, absolutely or relative), `checker` (a trusted program that decides `stdio` cases; it reads JSON
`{input, expected, output}` and prints `true` or `false`), `needs` (modules that `preload` must name). `inputs` and `outputs`, two
lists of texts, may stand for the tests of `stdio`.

Values are JSON, with `{"$tuple": [...]}`, `{"$set": [...]}`, `{"$dict": [[k, v], ...]}`, `{"$float": "inf"}` and
`{"$int": "0x..."}` for what JSON lacks. No tests, an empty list of them, a missing `expected`, tests that assert nothing: the data's
fault, said at the door; never a pass.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, get_args

from jurat.platform.errors import nearest
from jurat.verifiers.code import asserts
from jurat.verifiers.code.asserts import Call, TestProgram
from jurat.verifiers.code.compare import Equality, Text, text_difference, value_difference
from jurat.verifiers.sandbox import typed

MAX_TESTS = 2_000
MAX_VALUES = 1_000_000
"""In one argument or expected value."""
MAX_ASKED = 32 << 20
"""Bytes of the arguments of one call."""
MODES = ("stdio", "func", "assert", "check", "unittest")
_KEYS: Mapping[str, tuple[str, ...]] = {
    "stdio": ("tests", "inputs", "outputs", "compare", "tol", "checker"),
    "func": ("tests", "tol"),
    "assert": ("tests",),
    "check": ("test",),
    "unittest": ("test",),
}
_SHARED = ("mode", "entry", "prompt", "needs")
_ENTRY = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)?\Z")


class CasesError(ValueError):
    """What is wrong with the cases of a problem, and where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stdio:
    """One run. Example: ``Stdio(stdin="1 2\\n", stdout="3\\n")``."""

    stdin: str
    stdout: str | None
    """None only where a checker decides without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """Exactly one of ``stdio``, ``calls`` and ``test`` is not empty."""

    mode: str
    prompt: str = ""
    stdio: tuple[Stdio, ...] = ()
    calls: tuple[Call, ...] = ()
    test: TestProgram | None = None
    compare: Text = "tokens"
    equality: Equality = "data"
    tol: float = 0.0
    checker: str = ""
    needs: tuple[str, ...] = ()
    output_bytes: int = 0
    """Of the longest output that is expected."""

    @property
    def count(self) -> int:
        return len(self.stdio or self.calls or (self.test.pieces if self.test else ()))


@lru_cache(maxsize=256)
def parse(reference: str) -> Cases:
    """The cases in a reference. Raises CasesError."""
    if not reference.strip():
        raise CasesError("the problem has no cases: its reference is empty")
    try:
        value = json.loads(reference, parse_constant=_no_constant, object_pairs_hook=_no_repeats)
    except RecursionError:
        raise CasesError("the cases are nested too deep") from None
    except ValueError as fault:
        more = ' (write a long int as {"$int": "0x..."})' if "integer string conversion" in str(fault) else ""
        raise CasesError(f"the cases are not JSON: {str(fault)[:200]}{more}") from None
    if not isinstance(value, dict):
        raise CasesError(f"the cases are a JSON object with a mode, got {type(value).__name__}")
    try:
        made = _cases(value)
        return replace(made, output_bytes=_check_calls(made.calls, made)) if made.calls else made
    except CasesError:
        raise
    except ValueError as fault:
        raise CasesError(str(fault)) from None


def _cases(value: dict[str, Any]) -> Cases:
    mode = value.get("mode")
    if mode not in MODES:
        near = nearest(mode, MODES) if isinstance(mode, str) else ""
        raise CasesError(f"mode is one of {', '.join(MODES)}, got {mode!r:.40}.{near}")
    known = (*_SHARED, *_KEYS[mode])
    for key in value:
        if key not in known:
            raise CasesError(f"mode {mode} has no key {key!r:.40}.{nearest(key, known)} It has: {', '.join(known)}")
    needs = value.get("needs") or []
    needs = [needs] if isinstance(needs, str) else needs
    if not isinstance(needs, list) or not all(isinstance(name, str) for name in needs):
        raise CasesError(f"needs is a list of modules, got {needs!r:.40}")
    entry = value.get("entry") or ""
    entry = entry.replace("().", ".", 1) if isinstance(entry, str) else entry
    if not isinstance(entry, str) or (entry and not _ENTRY.match(entry)):
        raise CasesError(f"entry is a name such as add or Solution.add, got {entry!r:.40}")
    shared: dict[str, Any] = {"mode": mode, "prompt": _text(value, "prompt", ""), "needs": tuple(needs)}
    match mode:
        case "stdio":
            return _stdio(value, shared)
        case "func":
            return _func(value, entry, shared)
    return _tested(value, entry, shared)


# ---- by mode -----------------------------------------------------------------------------------------------------


def _stdio(value: dict[str, Any], shared: dict[str, Any]) -> Cases:
    checker = _text(value, "checker", "")
    if checker:
        asserts.parsed(checker, "checker")
    compare = value.get("compare", "tokens")
    if compare not in get_args(Text):
        raise CasesError(f"compare is one of {', '.join(get_args(Text))}, got {compare!r:.40}")
    tol = _tol(value)
    if tol and compare == "exact":
        raise CasesError("tol is for compare: tokens; exact means byte for byte")
    made = []
    for index, test in _tests(_paired(value)):
        expected = test.get("stdout")
        if not checker and not isinstance(expected, str):
            raise CasesError(f"test {index} has no text stdout, and there is no checker")
        unknown = sorted(test.keys() - {"stdin", "stdout"})
        if unknown or not isinstance(test.get("stdin", ""), str) or not isinstance(expected, str | None):
            raise CasesError(f"test {index} is {{stdin: text, stdout: text}}, got {test!r:.80}")
        made.append(Stdio(stdin=test.get("stdin", ""), stdout=expected))
    if not checker and not any((test.stdout or "").strip() for test in made):
        raise CasesError("no test expects any output: a program that does nothing would pass them all")
    seen: dict[str, tuple[int, str | None]] = {}
    for index, one in enumerate(made, 1):
        first, before = seen.setdefault(one.stdin, (index, one.stdout))
        if not checker and text_difference(before or "", (one.stdout or "").encode("utf-8", "surrogatepass"), tol=tol):
            raise CasesError(f"tests {first} and {index} have the same input and expect different output")
    most = max(len((one.stdout or "").encode("utf-8", "surrogatepass")) for one in made)
    return Cases(**shared, stdio=tuple(made), compare=compare, tol=tol, checker=checker, output_bytes=most)


def _paired(value: dict[str, Any]) -> Any:
    if "inputs" not in value and "outputs" not in value:
        return value.get("tests")
    left, right = value.get("inputs"), value.get("outputs")
    if "tests" in value or not isinstance(left, list) or not isinstance(right, list):
        raise CasesError("give tests, or inputs and outputs as two lists")
    if len(left) != len(right):
        raise CasesError(f"{len(left)} inputs, but {len(right)} outputs")
    return [{"stdin": a, "stdout": b} for a, b in zip(left, right, strict=True)]


def _func(value: dict[str, Any], entry: str, shared: dict[str, Any]) -> Cases:
    if not entry:
        raise CasesError("mode func needs entry, the name of the function")
    made = []
    for index, test in _tests(value.get("tests")):
        if "expected" not in test:
            raise CasesError(f"test {index} has no expected value (null is one, and is written)")
        unknown = sorted(test.keys() - {"args", "kwargs", "expected"})
        args, kwargs = test.get("args"), test.get("kwargs", {})
        if unknown or not isinstance(args, list) or not isinstance(kwargs, dict):
            raise CasesError(f"test {index} is {{args: [...], expected: ...}}, got {test!r:.80}")
        decoded = [_value(item, index) for item in args]
        named = {name: _value(item, index) for name, item in kwargs.items()}
        expected = _value(test["expected"], index)
        made.append(Call(entry=entry, args=tuple(decoded), kwargs=named, expected=expected))
    return Cases(**shared, calls=tuple(made), tol=_tol(value))


def _tested(value: dict[str, Any], entry: str, shared: dict[str, Any]) -> Cases:
    prompt = asserts.parsed(asserts.stub(shared["prompt"]), "prompt")
    if unknown := asserts.names_at_once(prompt):
        raise CasesError(f"prompt runs before the program and reads {unknown[0]}, which it does not define")
    return (_asserted if shared["mode"] == "assert" else _code)(value, entry, shared, prompt)


def _asserted(value: dict[str, Any], entry: str, shared: dict[str, Any], prompt: Any) -> Cases:
    given = value.get("tests")
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, list) or not all(isinstance(test, str) and test.strip() for test in given) or not given:
        raise CasesError("mode assert has tests, a list of statements that is not empty")
    trees = [asserts.parsed(test, f"test {index}") for index, test in enumerate(given, 1)]
    for index, tree in enumerate(trees, 1):
        if fault := asserts.fault_of(tree):
            raise CasesError(f"test {index} checks nothing: {fault}")
    names = asserts.names_of(trees, prompt, entry)
    if not names:
        raise CasesError("the tests call nothing that the program defines")
    _check_names(trees, prompt, names)
    entries = {name: name for name in names}
    plain = [asserts.plain_call(tree.body[0], entries) if len(tree.body) == 1 else None for tree in trees]
    if all(plain):
        return Cases(**shared, calls=tuple(call for call in plain if call), equality="python")
    return _program(shared, "", [asserts.counted(tree) for tree in trees], names, trees)


def _code(value: dict[str, Any], entry: str, shared: dict[str, Any], prompt: Any) -> Cases:
    mode, text = shared["mode"], _text(value, "test", None)
    tree = asserts.parsed(text, "test")
    if fault := asserts.fault_of(tree):
        raise CasesError(f"the test code checks nothing: {fault}")
    if mode == "check":
        if not entry:
            raise CasesError("mode check needs entry, the name of the function that is checked")
        if not asserts.defines(tree, "check"):
            raise CasesError("the test code defines no check(candidate)")
        if "." not in entry and (calls := asserts.calls_of_check(tree, entry)):
            return Cases(**shared, calls=tuple(calls), equality="python")
        pieces = ["check(candidate)"]
        names: tuple[str, ...] = (entry,)
        _check_names([tree], prompt, names, *asserts.parameters(tree, "check"))
    else:
        methods = asserts.test_methods(tree)
        if not methods:
            raise CasesError("the test code has no method test... of a class on TestCase")
        pieces = [asserts.piece_of_method(*method) for method in methods]
        names = asserts.names_of([tree], prompt, entry)
        if not names:
            raise CasesError("the test code calls nothing that the program defines")
        _check_names([tree], prompt, names)
    return _program(shared, asserts.counted(tree), pieces, names, [tree])


def _check_names(trees: list[Any], prompt: Any, names: tuple[str, ...], *more: str) -> None:
    for index, tree in enumerate(trees, 1):
        if fault := asserts.cannot_travel(tree, prompt, (*names, *more)):
            raise CasesError(f"test {index}: {fault}" if len(trees) > 1 else fault)


def _program(shared: dict[str, Any], code: str, pieces: list[str], names: tuple[str, ...], trees: list[Any]) -> Cases:
    if len(pieces) > MAX_TESTS:
        raise CasesError(f"{len(pieces)} tests, at most {MAX_TESTS}")
    counted = not any(asserts.raises(tree) for tree in trees)
    made = TestProgram(
        prompt=asserts.stub(shared["prompt"]), code=code, pieces=tuple(pieces), names=names, counted=counted,
        raising=any(asserts.wants_exception(tree) for tree in trees),
    )  # fmt: skip
    return Cases(**shared, test=made)


# ---- values ------------------------------------------------------------------------------------------------------


def _tests(given: Any) -> list[tuple[int, dict[str, Any]]]:
    if not isinstance(given, list) or not given:
        raise CasesError(f"tests is a list that is not empty, got {given!r:.40}")
    if len(given) > MAX_TESTS:
        raise CasesError(f"{len(given)} tests, at most {MAX_TESTS}")
    for index, test in enumerate(given, 1):
        if not isinstance(test, dict):
            raise CasesError(f"test {index} is an object, got {test!r:.80}")
    return list(enumerate(given, 1))


def _value(value: Any, index: int) -> Any:
    try:
        return typed.value_of(value, nodes=MAX_VALUES)
    except (ValueError, TypeError, RecursionError) as fault:
        raise CasesError(f"test {index} holds a value that is none: {str(fault)[:120]}") from None


def _check_calls(calls: tuple[Call, ...], made: Cases) -> int:
    """Bytes of the longest answer that a right program gives. Raises CasesError."""
    most = 0
    expected: dict[bytes, tuple[int, bytes]] = {}
    for index, call in enumerate(calls, 1):
        try:
            asked = typed.encode(call.message)
        except ValueError as fault:
            raise CasesError(f"test {index} has arguments that cannot be sent: {fault}") from None
        if len(asked) > MAX_ASKED:
            raise CasesError(f"test {index} has arguments of {len(asked)} bytes, at most {MAX_ASKED}: use mode stdio")
        try:
            answer = typed.encode({"value": call.expected})
        except ValueError as fault:
            raise CasesError(f"test {index} expects what no program can answer: {fault}") from None
        first, before = expected.setdefault(asked, (index, answer))
        same = calls[first - 1].expected
        if before != answer and value_difference(same, call.expected, how=made.equality, tol=made.tol):
            raise CasesError(f"tests {first} and {index} ask the same and expect different values")
        most = max(most, len(answer))
    if all(call.expected is None for call in calls):
        raise CasesError("every test expects null: a program that does nothing would pass them all")
    return most


def _text(value: dict[str, Any], key: str, default: str | None) -> str:
    given = value.get(key, default)
    if not isinstance(given, str) or (default is None and not given.strip()):
        raise CasesError(f"{key} is text{'' if default is not None else ' that is not empty'}, got {given!r:.40}")
    return given


def _tol(value: dict[str, Any]) -> float:
    tol = value.get("tol") or 0.0
    if isinstance(tol, bool) or not isinstance(tol, (int, float)) or not 0 <= tol < math.inf:
        raise CasesError(f"tol is a finite number >= 0, got {tol!r:.40}")
    return float(tol)


def _no_constant(name: str) -> None:
    raise ValueError(f'{name} is no JSON number; write {{"$float": "inf"}}')


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} is given twice")
    return made
