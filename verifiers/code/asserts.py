"""Test code as it is read before anything runs: what it calls, whether it checks at all, and which of it are plain calls.

Test code is the data set's and trusted: it is parsed here, in the judge. A candidate's text never is.

A test program for the sandbox is the test code with every assert counted, in pieces that report one line each. What a
piece says of itself is believed because the candidate runs in another process and only its plain data come here.
"""

from __future__ import annotations

import ast
import builtins
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

PLAIN = (type(None), bool, int, float, str, list, tuple, set, frozenset, dict, bytes, complex)
"""Types that cross the channel."""
_CHECKS = ("assert", "fail")
"""What names of checking functions begin with (``assertEqual``, ``assert_allclose``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of what the program defines, and the value that it must return."""

    entry: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    expected: Any = None

    @property
    def message(self) -> dict[str, Any]:
        """As the sandbox's role ``serve`` reads it."""
        return {"entry": self.entry, "args": list(self.args), "kwargs": self.kwargs}


def parsed(text: str, what: str) -> ast.Module:
    """The syntax tree of trusted code. Raises ValueError naming ``what`` and the line."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as fault:
        line = f" in line {fault.lineno}" if isinstance(fault, SyntaxError) and fault.lineno else ""
        said = fault.msg if isinstance(fault, SyntaxError) else str(fault)
        raise ValueError(f"{what} is not Python: {said}{line}") from None


def stub(prompt: str) -> str:
    """The code that a problem gives, as code of its own: where it ends with the head of a function, that does nothing."""
    heads = _HEAD.findall(prompt)
    return f"{prompt.rstrip()}\n{heads[-1]}    pass\n" if heads and prompt.rstrip().endswith(":") else prompt


_HEAD = re.compile(r"^([ \t]*)(?:async +)?def ", re.MULTILINE)


# ---- what it calls, and whether it checks ------------------------------------------------------------------------


def unknown_names(trees: Iterable[ast.AST]) -> list[str]:
    """Names that are read but neither built in nor bound anywhere in ``trees``: what the program must define."""
    read: dict[str, None] = {}
    bound = {*dir(builtins), "__name__", "__file__"}
    for tree in trees:
        for node in ast.walk(tree):
            match node:
                case ast.Name(id=name, ctx=ast.Load()):
                    read[name] = None
                case ast.Name(id=name) | ast.arg(arg=name):
                    bound.add(name)
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    bound.add(name)
                case ast.Import(names=names) | ast.ImportFrom(names=names):
                    bound.update(alias.asname or alias.name.partition(".")[0] for alias in names)
                case ast.ExceptHandler(name=str(name)):
                    bound.add(name)
    return [name for name in read if name not in bound]


def names_at_once(tree: ast.Module) -> list[str]:
    """Unknown names that are read while the code itself runs: outside of functions and classes."""
    if _any_name(tree):
        return []
    own = [node for node in tree.body if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
    known = {*_bound(tree), *dir(builtins)}
    return [name for name in unknown_names(own) if name not in known]


def cannot_travel(tree: ast.Module, prompt: ast.Module, names: Sequence[str]) -> str:
    """Why a test of a program in another process cannot be what it seems, or ''. ``names`` are the program's."""
    tree = ast.Module([node for node in tree.body if not _runs_tests(node)], [])
    called = {"candidate", *(name.partition(".")[0] for name in names)}
    unknown = set(unknown_names([tree, prompt])) - called
    if unknown and not _any_name(tree) and not _any_name(prompt):
        return f"it reads {min(unknown)}, which neither it nor the prompt defines, and which is not the entry"
    operands = {id(part) for node in ast.walk(tree) for part in _operands(node)}
    objects, made, used = set(), {}, set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()) if name in called and id(node) in operands:
                return f"it reads {name} of the program and does not call it: only calls can be made from here"
            case ast.Call(func=ast.Name(id=name)) if name in called:
                for item in [*node.args, *(word.value for word in node.keywords)]:
                    lazy = isinstance(item, ast.Call) and isinstance(item.func, ast.Name) and item.func.id in _LAZY
                    if lazy or isinstance(item, (ast.Lambda, ast.GeneratorExp)):
                        return f"it calls {name} with {ast.unparse(item)[:60]}, which cannot be sent to another process"
        match node:  # as well
            case ast.Attribute(value=ast.Call(func=ast.Name(id=name)), attr=attr) if name in called - {"candidate"}:
                objects |= {name} if attr not in _PLAIN_NAMES else set()
            case ast.Attribute(value=ast.Name(id=name), attr=attr) if attr not in _PLAIN_NAMES:
                used.add(name)
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.Call(func=ast.Name(id=name))) if name in called:
                made[target] = name
    objects |= {name for target, name in made.items() if target in used}
    if objects:
        name = min(objects)
        return f"it makes an object of {name}, which cannot leave the program: name the entry {name}.method, and call candidate"
    return ""


_PLAIN_NAMES = frozenset(name for kind in PLAIN for name in dir(kind))
_LAZY = frozenset({"range", "iter", "map", "filter", "zip", "reversed", "enumerate", "object", "open"})
"""Built-in functions that give no plain data."""


def _operands(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.Compare(left=left, comparators=rest):
            return [left, *rest]
        case ast.BinOp(left=left, right=right):
            return [left, right]
        case ast.Subscript(value=value):
            return [value]
    return []


def _any_name(tree: ast.AST) -> bool:
    """Whether it imports all that a module has, so that nobody can say what it defines."""
    return any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree))


def _bound(tree: ast.Module) -> set[str]:
    everything = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return everything - set(unknown_names([tree]))


def fault_of(tree: ast.AST) -> str:
    """Why the code cannot find anything wrong, or ''."""
    checks = False
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            if isinstance(node.test, ast.Tuple) and node.test.elts:
                return f"the assert in line {node.lineno} is always true: it asserts a tuple"
            checks |= not isinstance(node.test, ast.Constant) or not node.test.value
        checks |= isinstance(node, ast.Raise) or _is_check(node)
    return "" if checks else "it asserts nothing"


def raises(tree: ast.AST) -> bool:
    """Whether it may check by ``raise``, which cannot be counted when all is well."""
    return any(isinstance(node, ast.Raise) for node in ast.walk(tree))


def wants_exception(tree: ast.AST) -> bool:
    """Whether it holds an assert of what is false, or ``fail()``: right is what raises before that is reached."""
    return any(
        (isinstance(node, ast.Assert) and isinstance(node.test, ast.Constant) and not node.test.value)
        or (isinstance(node, ast.Call) and _called_name(node) == "fail")
        for node in ast.walk(tree)
    )


def _is_check(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _called_name(node).startswith(_CHECKS)


def _called_name(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def defines(tree: ast.Module, name: str) -> bool:
    return any(isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name for node in tree.body)


def parameters(tree: ast.Module, name: str) -> list[str]:
    """Of the function ``name``."""
    return [
        arg.arg
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == name
        for arg in node.args.args
    ]


def test_methods(tree: ast.Module) -> list[tuple[str, str]]:
    """(class, method) of each ``test...`` of a class that names a TestCase as its base, in order."""
    found = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and any("TestCase" in ast.unparse(base) for base in node.bases):
            found += [
                (node.name, item.name)
                for item in node.body
                if isinstance(item, ast.FunctionDef) and item.name.startswith("test")
            ]
    return found


# ---- plain calls -------------------------------------------------------------------------------------------------


def calls_of_check(tree: ast.Module, entry: str) -> list[Call] | None:
    """``check(candidate)`` as plain calls, if it only asserts ``candidate(literals) == literal``; else None."""
    check: ast.FunctionDef | None = None
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "check" and check is None and not node.decorator_list:
            check = node
        elif not (_is_nothing(node) or (isinstance(node, ast.Assign) and _literal(node.value)[0])):
            return None
    if check is None or len(check.args.args) != 1 or check.args.defaults:
        return None
    bound = check.args.args[0].arg
    found = [plain_call(node, {bound: entry}) for node in check.body if not _is_nothing(node)]
    calls = [call for call in found if call is not None]
    return calls if calls and len(calls) == len(found) else None


def plain_call(node: ast.stmt, entries: dict[str, str]) -> Call | None:
    """``assert f(literals) == literal`` (either way round) as a call of ``entries["f"]``; None for anything else."""
    if not isinstance(node, ast.Assert) or not isinstance(node.test, ast.Compare) or len(node.test.ops) != 1:
        return None
    if not isinstance(node.test.ops[0], ast.Eq):
        return None
    left, right = node.test.left, node.test.comparators[0]
    call, value = (left, right) if isinstance(left, ast.Call) else (right, left)
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id not in entries:
        return None
    args = [_literal(item) for item in call.args]
    kwargs = [(item.arg, _literal(item.value)) for item in call.keywords]
    known, expected = _literal(value)
    if not known or not all(ok for ok, _ in args) or not all(name and ok for name, (ok, _) in kwargs):
        return None
    given = {str(name): item for name, (_, item) in kwargs}
    return Call(entry=entries[call.func.id], args=tuple(item for _, item in args), kwargs=given, expected=expected)


def _is_nothing(node: ast.stmt) -> bool:
    """Says nothing of the candidate: a docstring, ``pass``, an assert of a true constant."""
    if isinstance(node, ast.Assert):
        return isinstance(node.test, ast.Constant) and bool(node.test.value)
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def _literal(node: ast.expr) -> tuple[bool, Any]:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False, None
    return _is_plain(value), value


def _is_plain(value: Any) -> bool:
    if type(value) not in PLAIN:
        return False
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(item) for key, item in value.items())
    return all(map(_is_plain, value)) if isinstance(value, (list, tuple, set, frozenset)) else True


# ---- the test program --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TestProgram:
    """Trusted code in pieces, each of which is one case."""

    __test__ = False

    prompt: str
    """Runs first: imports and helpers, and perhaps a stub of what is tested, which the candidate then takes the place of."""
    code: str
    """``check``, classes of tests; its asserts are counted."""
    pieces: tuple[str, ...]
    """Statements, each list of them one case."""
    names: tuple[str, ...]
    """What of the program it calls; ``candidate`` is the first of them."""
    counted: bool = True
    """Whether a piece that counts no assert checked nothing."""
    raising: bool = False
    """Whether an exception of the program counts as an assert that holds: some tests fail where there is none."""

    def text(self, mark: str, start: int = 0) -> str:
        """The program whose pieces from ``start`` on report lines that begin with ``mark``."""
        names = ["candidate", *(name for name in self.names if "." not in name)]
        raw = f"_jurat_raw = {{{', '.join(f'{name!r}: {name}' for name in names)}}}\n"
        bound = "".join(f"{name} = _jurat_candidate({name!r})\n" for name in names)
        made = []
        for index, piece in enumerate(self.pieces[start:], start):
            made.append(f"def _jurat_piece_{index}():\n{_indented(piece)}\n_jurat_run({index}, _jurat_piece_{index})\n")
        return f"_jurat_mark, _jurat_raising = {mark!r}, {self.raising:d}\n{raw}{_RUNNER}{self.prompt}\n{bound}{self.code}\n{''.join(made)}"

    @property
    def entry(self) -> str:
        """As the sandbox's role ``test`` wants it: the first name is also what ``candidate`` calls."""
        return ",".join(self.names)


def counted(tree: ast.Module) -> str:
    """The code with every assert that holds and every checking call that returns counted, and without what would run the
    tests a second time: ``check(f)`` and ``unittest.main()`` of the module itself, the ``__main__`` block."""
    tree.body = [node for node in tree.body if not _runs_tests(node)]
    return ast.unparse(ast.fix_missing_locations(_Count().visit(tree)))


def _runs_tests(node: ast.stmt) -> bool:
    if isinstance(node, ast.If):
        return "__name__" in ast.unparse(node.test)
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in (
        "check", "unittest.main", "main",
    )  # fmt: skip


class _Count(ast.NodeTransformer):
    def visit_Assert(self, node: ast.Assert) -> Any:
        if isinstance(node.test, ast.Constant):
            return node
        node.msg = node.msg or ast.Constant(ast.unparse(node.test)[:200])
        self.generic_visit(node)
        tick = ast.Expr(ast.Call(ast.Name("_jurat_counted", ast.Load()), [], []))
        return [node, tick]

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        return ast.Call(ast.Name("_jurat_counted", ast.Load()), [node], []) if _is_check(node) else node


@lru_cache(maxsize=4096)
def _indented(piece: str) -> str:
    """A piece as the body of a function; through the syntax tree, as text in it may not be indented."""
    tree = ast.parse("def f(): pass")
    body = ast.parse(piece).body
    assert isinstance(tree.body[0], ast.FunctionDef)
    tree.body[0].body = body or [ast.Pass()]
    return ast.unparse(tree).partition("\n")[2]


def piece_of_method(cls: str, method: str) -> str:
    return f"_jurat_unit({cls}, {method!r})"


_RUNNER = """\
def _jurat_setup():
    import json, os
    asserted, calls, caught, unsent, before = [0], [0], [None], [None], []

    def run(index, piece):
        before.append(calls[0])  # the first: calls of the module itself, for all pieces
        asserted[0], calls[0] = 0, before[0]
        caught[0] = unsent[0] = None
        try:
            piece()
            said = ["ok", "", ""]
        except AssertionError as fault:
            said = ["raised" if fault is caught[0] else "wrong", "AssertionError", str(fault)[:300]]
        except BaseException as fault:
            said = ["raised" if fault is caught[0] else "failed", type(fault).__name__, str(fault)[:300]]
        if unsent[0] is not None:  # even where the test took it for an exception of the program
            said = ["unsent", "Untyped", str(unsent[0])[:300]]
        line = "\\n" + _jurat_mark + json.dumps([index, *said, calls[0], asserted[0]]) + "\\n"
        os.write(1, line.encode())

    def count(value=None):
        asserted[0] += 1
        return value

    def named(name):
        raw = _jurat_raw[name]

        def call(*args, **kwargs):
            calls[0] += 1
            try:
                return raw(*args, **kwargs)
            except BaseException as fault:
                caught[0] = fault
                if type(fault).__name__ == "Untyped":
                    unsent[0] = fault
                asserted[0] += _jurat_raising
                raise
        call.__name__ = name
        return call

    def unit(cls, method):
        import unittest

        class Result(unittest.TestResult):
            fault = None
            def addError(self, test, fault):
                self.fault = fault[1]
            addFailure = addError
            def addSubTest(self, test, sub, fault):
                self.fault = fault[1] if fault else self.fault
            def addSkip(self, test, reason):
                self.fault = unittest.SkipTest(reason)

        result = Result()
        unittest.TestSuite([cls(method)]).run(result)
        if result.fault is not None:
            raise result.fault
        if result.testsRun != 1:
            raise unittest.SkipTest("it did not run")

    return run, count, named, unit


_jurat_run, _jurat_counted, _jurat_candidate, _jurat_unit = _jurat_setup()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one piece said: ``ok``, ``wrong`` (an assert of the test failed), ``raised`` (the candidate's own exception),
    ``failed`` (another exception of the test)."""

    index: int
    said: str
    kind: str
    """The exception's type."""
    text: str
    calls: int
    asserted: int


def reports(stdout: bytes, mark: str) -> list[Report]:
    """The reports in what a test program wrote. Raises ValueError for a line with the mark that is none."""
    found = []
    for line in stdout.split(b"\n"):
        if line.startswith(mark.encode()):
            index, said, kind, text, calls, asserted = json.loads(line[len(mark) :])
            found.append(Report(index=index, said=said, kind=kind, text=text, calls=calls, asserted=asserted))
    return found


def names_of(tests: Sequence[ast.Module], prompt: ast.Module, entry: str) -> tuple[str, ...]:
    """What the tests call of the program: ``entry``, if it is given; else all that they read and do not define."""
    if entry:
        return (entry,)
    return tuple(unknown_names([*tests, prompt]))
