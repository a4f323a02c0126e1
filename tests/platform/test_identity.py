"""The version digest: what keeps it, what changes it, what is refused; the same on every Python, in any environment."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jurat.platform.errors import ConfigError
from jurat.platform.identity import identify, reading

ROOT = Path(__file__).resolve().parents[2]

BASE = '''
import functools
import re

TOLERANCE = 0.5
TABLE = {"a": 1, "b": 2}
WORD = re.compile("x+", re.I)
UNUSED = 1


def helper(x):
    return x + 1


def make(k):
    def inner(problem, completion, strict=True):
        """Score it."""
        return helper(len(completion)) * k > TOLERANCE and bool(WORD.search(completion)) and TABLE["a"]
    return inner


score = make(3)
'''

_count = 0


def load(folder: Path, text: str, name: str = "", **more: str):
    """The module of ``text`` (and of others beside it), freshly imported from a file of its own."""
    global _count
    _count += 1
    home = folder / f"v{_count}"
    home.mkdir(parents=True)
    for other, source in more.items():
        (home / f"{other}.py").write_text(source)
        sys.modules.pop(other, None)
    path = home / f"{name or 'rules'}.py"
    path.write_text(text)
    sys.path.insert(0, str(home))
    try:
        spec = importlib.util.spec_from_file_location(f"{path.stem}_{_count}", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(home))


def digest(module, name: str = "score", **given) -> str:
    return identify(getattr(module, name), config=given.pop("config", {}), **given).digest


@pytest.fixture
def base(tmp_path):
    return digest(load(tmp_path, BASE))


def changed(tmp_path, old: str, new: str) -> str:
    assert old in BASE
    return digest(load(tmp_path, BASE.replace(old, new)))


# ---- same id -----------------------------------------------------------------------------------------------------


def test_the_same_text_in_another_file_keeps_the_id(base, tmp_path):
    assert digest(load(tmp_path / "moved", BASE, name="renamed")) == base


def test_comments_docstrings_and_white_space_keep_the_id(base, tmp_path):
    text = BASE.replace('"""Score it."""', '"""Other words."""').replace(
        "    return x + 1", "    # why\n\n    return (x  +  1)"
    )
    assert digest(load(tmp_path, "# a header\n" + text)) == base


def test_an_unused_global_keeps_the_id(base, tmp_path):
    assert changed(tmp_path, "UNUSED = 1", "UNUSED = 2\nANOTHER = object()") == base


WRAPPED = (
    BASE
    + '''
def plain(f):
    @functools.wraps(f)
    def wrapper(*args, **kwargs):
        """Passes on."""
        return f(*args, **kwargs)
    return wrapper


def turned(f):
    @functools.wraps(f)
    def wrapper(*args, **kwargs):
        return 1 - f(*args, **kwargs)
    return wrapper


def swapped(f):
    @functools.wraps(f)
    def wrapper(*args, **kwargs):
        return f(*args[::-1], **kwargs)
    return wrapper


through = plain(plain(score))
flipped = turned(score)
backwards = swapped(score)
'''
)


def test_a_decorator_that_only_passes_on_keeps_the_id(base, tmp_path):
    assert digest(load(tmp_path, WRAPPED), "through") == base


# ---- new id ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return x + 1", "return x + 2"),
        ("TOLERANCE = 0.5", "TOLERANCE = 0.25"),
        ('"a": 1', '"a": 7'),
        ("re.I)", "re.I | re.S)"),
        ("make(3)", "make(4)"),
        ("make(3)", "make(3.0)"),
        ("make(3)", "make(True)"),
        ("strict=True", "strict=False"),
        ('"x+"', '"y+"'),
        ("0.5", "5e-324"),
        ("TOLERANCE and", "TOLERANCE or"),
    ],
    ids=[
        "helper",
        "global",
        "dict-value",
        "flags",
        "closure",
        "int-float",
        "int-bool",
        "default",
        "regex",
        "tiny",
        "operator",
    ],
)
def test_a_change_that_is_reached_gives_a_new_id(base, tmp_path, old, new):
    assert changed(tmp_path, old, new) != base


def test_what_is_hashed_as_data_can_be_read_under_its_place(tmp_path):
    made = load(tmp_path, BASE.replace("make(3)", "make(4)")).score
    found = identify(made, config={}, stand_ins={"helper": {"b": 1}})
    place = next(p for p in found.sources if p.endswith(".TOLERANCE")).removesuffix(".TOLERANCE")
    held = {name: found.sources[f"{place}.{name}"] for name in ("TOLERANCE", "k", "TABLE", "__defaults__")}
    assert held == {
        "TOLERANCE": "TOLERANCE = 0.5", "k": "k = 4", "TABLE": "TABLE = {'a': 1, 'b': 2}",
        "__defaults__": "__defaults__ = (True,)",
    }  # fmt: skip
    assert found.sources["config.helper"] == "helper = {'b': 1}"
    assert f"{place}.UNUSED" not in found.sources
    long = identify(load(tmp_path, BASE.replace("0.5", repr("x" * 5000))).score, config={}).sources[
        f"{place}.TOLERANCE"
    ]
    assert len(long) < 520 and "5002 characters, sha256 " in long


def test_config_gives_a_new_id(base, tmp_path):
    module = load(tmp_path, BASE)
    assert len({base, digest(module, config={"deadline": 2.0}), digest(module, config={"deadline": 3.0})}) == 3


def test_a_dependency_s_pin_gives_a_new_id(base, tmp_path, monkeypatch):
    module = load(tmp_path, BASE)
    pinned = digest(module, deps=("pytest",))
    monkeypatch.setattr(reading, "pinned", lambda name: ("pytest==0.0.1", "sha256:0"))
    assert len({base, pinned, digest(module, deps=("pytest",))}) == 3


def test_weights_give_a_new_id(base, tmp_path):
    module = load(tmp_path, BASE)
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "model.bin").write_bytes(b"one")
    one = digest(module, weights=(folder,))
    moved = tmp_path / "elsewhere"
    shutil.copytree(folder, moved)
    assert digest(module, weights=(moved,)) == one
    (folder / "model.bin").write_bytes(b"two")
    assert len({base, one, digest(module, weights=(folder,))}) == 3


# ---- two holes of a first design ---------------------------------------------------------------------------------


def test_a_decorator_that_changes_the_result_is_seen_though_it_wraps(base, tmp_path):
    module = load(tmp_path, WRAPPED)
    assert len({base, digest(module, "flipped"), digest(module, "backwards")}) == 3


def test_a_first_party_module_reached_by_name_is_read_whole(tmp_path):
    text = "import other\n\ndef score(problem, completion):\n    return other.rate(completion)\n"
    one = digest(load(tmp_path, text, other="def rate(text):\n    return len(text)\n"))
    same = digest(load(tmp_path, text, other="# said\ndef rate(text):\n    return len(text)  # so\n"))
    two = digest(load(tmp_path, text, other="def rate(text):\n    return len(text) + 1\n"))
    deeper = "import deepest\n\ndef rate(text):\n    return deepest.RATE\n"
    three = digest(load(tmp_path, text, other=deeper, deepest="RATE = 1\n"))
    four = digest(load(tmp_path, text, other=deeper, deepest="RATE = 2\n"))
    assert one == same and len({one, two, three, four}) == 4


def test_an_import_inside_the_function_is_followed(tmp_path):
    text = "def score(problem, completion):\n    from other import rate\n    return rate(completion)\n"
    one = digest(load(tmp_path, text, other="def rate(text):\n    return 1\n"))
    sys.modules.pop("other", None)
    module = load(tmp_path, text, other="def rate(text):\n    return 2\n")
    sys.path.insert(0, str(Path(module.__file__).parent))
    try:
        assert digest(module) != one
    finally:
        sys.path.pop(0)


# ---- refused -----------------------------------------------------------------------------------------------------

HANDLE = """
def make(handle):
    def score(problem, completion):
        return handle.read() == completion
    return score
"""


def test_a_closed_over_file_is_refused_with_its_path_and_the_ways_out(tmp_path):
    module = load(tmp_path, HANDLE)
    with (tmp_path / "rules_0").open("w+") as handle, pytest.raises(ConfigError) as said:
        identify(module.make(handle), config={})
    assert "score.handle" in said.value.what and "TextIOWrapper" in said.value.what
    assert "__fingerprint__" in said.value.fix and "config" in said.value.fix


@pytest.mark.parametrize(
    "made", ["threading.Lock()", "open('/dev/null')", "socket.socket()", "random.Random(3)", "iter([1])", "object()"]
)
def test_globals_without_content_are_refused(tmp_path, made):
    text = f"import threading, socket, random\nTHING = {made}\n\ndef score(p, c):\n    return {{'k': [THING]}}\n"
    with pytest.raises(ConfigError, match=r"cannot identify score\.THING"):
        digest(load(tmp_path, text))


def test_a_fingerprint_or_config_stands_for_what_cannot_be_hashed(tmp_path):
    text = (
        "import threading\nLOCK = threading.Lock()\n\n"
        "class Model:\n    def __init__(self, n):\n        self.lock, self.n = LOCK, n\n"
        "    def __fingerprint__(self):\n        return f'model {self.n}'\n\nMODEL = Model(NUMBER)\n\n"
        "def score(problem, completion):\n    return MODEL.n\n\n"
        "def locked(problem, completion):\n    with LOCK:\n        return 1\n"
    )
    one, two = (load(tmp_path, text.replace("NUMBER", n)) for n in "12")
    stand_in = {"LOCK": "a lock"}
    assert digest(one, stand_ins=stand_in) != digest(two, stand_ins=stand_in)
    assert digest(one, "locked", stand_ins=stand_in) != digest(one, "locked", stand_ins={"LOCK": "another"})


def test_code_without_source_is_refused():
    space: dict = {"__name__": "typed"}
    exec("def score(problem, completion):\n    return 1\n", space)
    with pytest.raises(ConfigError, match="source"):
        identify(space["score"], config={})


def test_a_file_changed_since_import_is_refused(tmp_path):
    import linecache

    module = load(tmp_path, BASE)
    path = Path(module.__file__)
    path.write_text(BASE.replace("return x + 1", "return x - 1").replace("bool(WORD", "not (WORD"))
    linecache.checkcache(str(path))
    with pytest.raises(ConfigError, match="not what is loaded"):
        digest(module)


# ---- more of what code holds -------------------------------------------------------------------------------------

CLASSES = """
import dataclasses
import enum

from collections.abc import Mapping


class Mode(enum.Enum):
    STRICT = 1
    LOOSE = 2


@dataclasses.dataclass(frozen=True)
class Rule:
    word: str
    weight: float = 1.0

    def worth(self, text: str) -> float:
        return self.weight * text.count(self.word)


class Base:
    scale = 2

    def rate(self, text):
        return RULE.worth(text) / self.scale


RULE = Rule("so")


class Score(Base):
    def __init__(self, mode: Mode = Mode.STRICT) -> None:
        self.mode = mode

    def __call__(self, problem, completion):
        return super().rate(completion) if self.mode is Mode.STRICT else 0
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("scale = 2", "scale = 3"),
        ('Rule("so")', 'Rule("and so")'),
        ("text.count(self.word)", "text.count(self.word + ' ')"),
        ("STRICT = 1", "STRICT = 3"),
        ("mode: Mode = Mode.STRICT", "mode: Mode = Mode.LOOSE"),
        ("frozen=True", "frozen=False"),
        ("weight: float = 1.0", "weight: float = 1.5"),
    ],
)
def test_classes_are_read_with_bases_state_and_members(tmp_path, old, new):
    one, two = load(tmp_path, CLASSES), load(tmp_path, CLASSES.replace(old, new))
    assert digest(one, "Score") == digest(load(tmp_path, CLASSES, name="elsewhere"), "Score")
    assert digest(one, "Score") != digest(two, "Score")


def test_recursion_shared_and_cyclic_values_end(tmp_path):
    text = (
        "LOOP = []\nLOOP.append(LOOP)\n\ndef even(n):\n    return n == 0 or odd(n - 1)\n\n"
        "def odd(n):\n    return n != 0 and even(n - 1)\n\n"
        "def score(problem, completion):\n    return even(len(completion)) and score and LOOP\n"
    )
    assert digest(load(tmp_path, text)) == digest(load(tmp_path, text))


def test_two_lambdas_of_one_line_are_told_apart(tmp_path):
    text = "A, B = (lambda p, c: len(c) > 1), (lambda p, c: len(c) > 2)\n"
    module = load(tmp_path, text)
    assert digest(module, "A") != digest(module, "B")
    assert digest(module, "A") == digest(load(tmp_path, "A = lambda p, c: len(c) > 1\n"), "A")


def test_sets_do_not_depend_on_the_hash_seed(tmp_path):
    path = tmp_path / "sets.py"
    path.write_text("S = {'a', 'b', 'c', ('d', 1), frozenset({'x', 'y'})}\n\ndef score(p, c):\n    return c in S\n")
    made = {_in_child(sys.executable, path, ["score"], PYTHONHASHSEED=str(seed))["score"] for seed in (1, 2, 3)}
    assert len(made) == 1


# ---- values that the source does not give -------------------------------------------------------------------------

HEAD = "import collections, dataclasses, datetime, decimal, enum, functools, logging, math, pathlib, types\n"


def of(tmp_path, text: str, body: str = "return K", **more: str) -> str:
    return digest(load(tmp_path, f"{HEAD}{text}\n\ndef score(problem, completion):\n    {body}\n", **more))


@pytest.mark.parametrize(
    ("base", "made"),
    [
        ("list", "[1]"), ("dict", "{1: 2}"), ("set", "{1}"), ("tuple", "(1,)"), ("str", "'a'"), ("int", "1"),
        ("float", "1.5"), ("bytes", "b'a'"), ("bytearray", "b'a'"), ("pathlib.PurePosixPath", "'a'"),
        ("collections.deque", "[1]"), ("decimal.Decimal", "'1'"), ("collections.UserDict", "{1: 2}"),
        ("functools.partial", "int"), ("types.SimpleNamespace", ""), ("ValueError", "'a'"),
    ],
)  # fmt: skip
def test_attributes_of_an_object_of_a_subclass_count(tmp_path, base, made):
    text = f"class C({base}): pass\nK = C({made})\nK.k = "
    one, two = of(tmp_path, text + "True"), of(tmp_path, text + "False")
    assert one == of(tmp_path, text + "True") != two


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("class C(decimal.Decimal): pass\nK = C('1')", "class C(decimal.Decimal): pass\nK = C('2')"),
        ("class C(collections.deque): pass\nK = C('1')", "class C(collections.deque): pass\nK = C('2')"),
        ("class C(Exception): pass\nK = C('1')", "class C(Exception): pass\nK = C('2')"),
        ("K = types.SimpleNamespace(a=1)", "K = types.SimpleNamespace(a=2)"),
        ("K = collections.ChainMap({'a': 1})", "K = collections.ChainMap({'a': 2})"),
        ("K = collections.UserList([1])", "K = collections.UserList([2])"),
        ("K = float('nan')", "K = -float('nan')"),
        ("K = datetime.datetime(2020, 1, 1)", "K = datetime.datetime(2020, 1, 1, fold=1)"),
        ("K = logging.getLogger('a')", "K = logging.getLogger('a')\nK.k = 1"),
        ("class C:\n    __slots__ = ('__k',)\nK = C()\nK._C__k = 1",
         "class C:\n    __slots__ = ('__k',)\nK = C()\nK._C__k = 2"),
        ("@functools.singledispatch\ndef K(x): return 1",
         "@functools.singledispatch\ndef K(x): return 1\n@K.register(int)\ndef _(x): return 2"),
        ("def d(g):\n    @functools.wraps(g)\n    def w(*a, **k): return g(*a, **k)\n    w.k = 1\n    return w\n@d\ndef K(): 1",
         "def d(g):\n    @functools.wraps(g)\n    def w(*a, **k): return g(*a, **k)\n    w.k = 2\n    return w\n@d\ndef K(): 1"),
    ],
)  # fmt: skip
def test_what_an_object_holds_counts(tmp_path, one, two):
    assert of(tmp_path, one) == of(tmp_path, one) != of(tmp_path, two)
    logging.getLogger("a").__dict__.pop("k", None)


def test_what_a_compiled_base_holds_unseen_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot identify score\.K.*random.*compiled base"):
        of(tmp_path, "import random\nclass C(random.Random): pass\nK = C(1)")


def test_strings_that_stand_alone_keep_the_id(tmp_path):
    plain = of(tmp_path, "class C:\n    k = 1\nclass E: pass\nK = C, E")
    assert of(tmp_path, "class C:\n    'c'\n    k = 1\n    'about k'\nclass E:\n    'e'\nK = C, E\n'about K'") == plain
    text = "import other\n"
    one = of(tmp_path, text, "return other.K", other="K = 1\n")
    assert of(tmp_path, text, "return other.K", other="'other'\nK = 1\n'about K'\n") == one


def test_a_package_with_an_empty_init_is_read(tmp_path):
    made = []
    for k, n in enumerate("121"):
        home = tmp_path / f"p{k}" / "emptied"
        home.mkdir(parents=True)
        (home / "__init__.py").touch()
        (home / "part.py").write_text(f"def f():\n    return {n}\n")
        for name in ("emptied", "emptied.part"):
            sys.modules.pop(name, None)
        sys.path.insert(0, str(home.parent))
        try:
            made.append(of(tmp_path, "import emptied.part", "return emptied.part.f()"))
        finally:
            sys.path.remove(str(home.parent))
    assert made[0] == made[2] != made[1]


@pytest.mark.parametrize(
    ("text", "later", "body"),
    [
        ("class C: k = True", "C.k = False", "return C.k"),
        ("class B: k = True\nclass C(B): pass", "B.k = False", "return C.k"),
        ("class E(enum.Enum): A = 1", "E.A.k = 1", "return E.A"),
        ("def mk(x):\n    class C: k = x\n    return C\nC = mk(1)", "C = mk(2)", "return C.k"),
        ("N = collections.namedtuple('N', 'a b')", "N = collections.namedtuple('N', 'b a')", "return N(1, 2)"),
        ("E = enum.Enum('E', {'A': 1})", "E = enum.Enum('E', {'A': 2})", "return E.A"),
        ("import other", "other.K = False", "return other.K"),
        ("import other", "other.f = lambda: 2", "return other.f()"),
    ],
)
def test_what_is_set_after_the_statement_counts(tmp_path, text, later, body):
    given = {"other": "K = True\ndef f(): return 1\n"}
    one = of(tmp_path, text, body, **given)
    assert one == of(tmp_path, text, body, **given) != of(tmp_path, f"{text}\n{later}", body, **given)


# ---- every Python, any environment -------------------------------------------------------------------------------

SYNTAX = '''
from __future__ import annotations
import collections, functools, logging, pathlib, re, json
from typing import Any, Literal

log = logging.getLogger(__name__)
Kind = Literal["a", "b"]
NAMES = frozenset({"x", "y"})
PAIRS = [(1, 2.5), (None, b"q"), (1j, ...)]
COUNT = collections.Counter("abca")
ROOT = pathlib.PurePosixPath("a/b")
ADD = functools.partial(int, base=16)


class Node:
    __slots__ = ("left", "right")
    kinds: dict[str, Kind] = {"a": "b"}

    def __init__(self, left, right=None, *rest, key=1, **more):
        self.left, self.right = left, right

    @property
    def both(self):
        return [self.left, *([] if self.right is None else [self.right])]

    @staticmethod
    def join(*parts: str) -> str:
        return f"{parts[0]!r:>{len(parts)}}" + "".join(p for p in parts if p)

    @functools.lru_cache(maxsize=None)
    def deep(self, n: int = 2) -> int:
        return max((lambda k: k + n)(i) for i in range(n)) if n else 0


@functools.cache
def table(n):
    return {i: {j for j in range(i) if j % 2} for i in range(n)}


def score(problem, completion, /, *, kind: Kind = "a", tolerance=1e-9):
    """Everything at once."""
    global log
    total = 0
    for i, (a, b) in enumerate(PAIRS):
        try:
            with open(ROOT / str(i)) as handle, handle as again:
                total += len(again.read())
        except (OSError, ValueError) as fault:
            log.debug("%s", fault)
        else:
            continue
        finally:
            total -= ~i
    match completion:
        case {"k": [x, *_], **rest} if x:
            total += x
        case str() | bytes():
            total <<= 1
        case Node(left=None):
            pass
    while (n := total) > 10 and not isinstance(problem, Node):
        total = n // 2 if n not in NAMES else -n ** 2
    del n
    assert total is not None, "none"
    return json.dumps([table(total)[1:2:3], Node.join("a"), COUNT["a"], ADD("f"), re.sub("a", "b", completion)])


async def later(problem, completion):
    async with problem as p:
        return [x async for x in p if await x] or (yield_ := (lambda *a, **k: (a, k))(1, *[2], **{"z": 3}))
'''

GOLDEN = {  # a change here means that every recorded version changes: raise SCHEMA, and say so in the changelog
    "score": "sha256:beb63c6398cb23344814d12fd8deaaaf2f9e71cc03ad80284fb59c8a7e0c2096",
    "later": "sha256:17ddb022aa89c76ecb64df7ef4d19fc2eac584208867da791d28a9d584a85bff",
    "Node": "sha256:19fade1d3440426816e71a26d975c8b24edc647c8904804dd0f5fad0dfe30e23",
}

CHILD = """
import importlib.util, json, sys
from jurat.platform.identity import identify
spec = importlib.util.spec_from_file_location("rules", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["rules"] = module
spec.loader.exec_module(module)
print(json.dumps({name: identify(getattr(module, name), config={"deadline": 1.5}).digest for name in sys.argv[2:]}))
"""


def _in_child(python: str, path: Path, names: list[str], **env: str) -> dict[str, str]:
    given = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **env}
    done = subprocess.run(
        [python, "-P", "-c", CHILD, str(path), *names], capture_output=True, text=True, env=given, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _python(version: str) -> str | None:
    """A working interpreter of that version, if the machine has one."""
    found = [shutil.which(f"python{version}")]
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found += [str(p) for p in sorted(home.glob(f"{version}.*/bin/python"))] if home.is_dir() else []
    for candidate in found:
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
            return candidate
    return None


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_digest_is_the_same_on_every_python(tmp_path, version):
    python = sys.executable if sys.version.startswith(version + ".") else _python(version)
    if python is None:
        pytest.skip(f"no Python {version} here; the golden digests stand for it")
    path = tmp_path / "syntax.py"
    path.write_text(SYNTAX)
    assert _in_child(python, path, list(GOLDEN)) == GOLDEN


def test_two_fresh_environments_agree(tmp_path):
    """Each has an install of one package of its own, at another place, in another order of files."""
    made = []
    for name in ("one", "two"):
        site = tmp_path / name / "site-packages"
        info = site / "gauge-1.2.dist-info"
        info.mkdir(parents=True)
        (site / "gauge.py").write_text("def rate(text):\n    return len(text)\n")
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gauge\nVersion: 1.2\n")
        (info / "top_level.txt").write_text("gauge\n")
        rows = ["gauge.py,,", "gauge-1.2.dist-info/METADATA,,", "gauge-1.2.dist-info/RECORD,,", "../../bin/gauge,,"]
        (info / "RECORD").write_text("\n".join(rows if name == "one" else rows[::-1]) + "\n")
        path = tmp_path / name / "rules.py"
        path.write_text("from gauge import rate\n\ndef score(problem, completion):\n    return rate(completion)\n")
        made.append(
            _in_child(sys.executable, path, ["score"], PYTHONPATH=os.pathsep.join([str(ROOT / "src"), str(site)]))
        )
    assert made[0] == made[1]
    (tmp_path / "two" / "site-packages" / "gauge.py").write_text("def rate(text):\n    return 1\n")
    changed = _in_child(sys.executable, path, ["score"], PYTHONPATH=os.pathsep.join([str(ROOT / "src"), str(site)]))
    assert changed != made[0]


READ_BY_VALUE = """
import abc, collections, dataclasses, enum, functools, types

Point = collections.namedtuple("Point", "x y", defaults=(1,))
Kind = enum.Enum("Kind", {"A": 1, "B": 2})
Level = enum.IntFlag("Level", "LOW HIGH")
SPACE = types.SimpleNamespace(limit=3, names=["a"])

class Table(dict):
    pass

TABLE = Table(a=1)
TABLE.extra = 2

class Base(abc.ABC):
    scale = 1
    @abc.abstractmethod
    def of(self): ...

class Own(Base):
    def of(self): return self.scale

Base.scale = 3

def made(k):
    @dataclasses.dataclass(frozen=True)
    class Made:
        weight: float = k
        def of(self): return self.weight * k
    return Made

MADE = made(2.5)

@functools.singledispatch
def read(value): return 0

@read.register
def _(value: str): return len(value)

def tuples(problem, completion): return Point(1).y + len(Kind) + Level.LOW.value
def spaces(problem, completion): return SPACE.limit + TABLE.extra
def classes(problem, completion): return Own().of() + MADE().of()
def dispatch(problem, completion): return read(completion)
"""


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_what_is_read_by_value_is_read_alike_on_every_python(tmp_path, version):
    python = _python(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    path = tmp_path / "values.py"
    path.write_text(READ_BY_VALUE)
    names = ["tuples", "spaces", "classes", "dispatch"]
    assert _in_child(python, path, names) == _in_child(sys.executable, path, names)
