"""House rules on the source itself: nothing unpickles, evaluates, or turns a fault into a number."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

BANNED = {
    "pickle": "JSON, safetensors or Parquet",
    "cPickle": "JSON, safetensors or Parquet",
    "_pickle": "JSON, safetensors or Parquet",
    "cloudpickle": "JSON, safetensors or Parquet",
    "dill": "JSON, safetensors or Parquet",
    "joblib": "JSON, safetensors or Parquet",
    "marshal": "JSON",
    "shelve": "the store",
    "torch.load": "safetensors",
    "torch.save": "safetensors",
    "torch.distributed.checkpoint": "sharded safetensors + JSON: torch's own pickles its metadata",
    "numpy.load": "safetensors or Parquet: .npy may hold pickles",
    "signal.alarm": "killing a process: verifiers run in threads too",
    "signal.setitimer": "killing a process: verifiers run in threads too",
    "os.system": "subprocess with a list",
    "os.popen": "subprocess with a list",
    "yaml.unsafe_load": "yaml.safe_load",
    "yaml.full_load": "yaml.safe_load",
    "pandas.read_pickle": "Parquet",
}
"""Dotted name: what to use instead."""
CALLS = {
    "eval": "ast.literal_eval or a parser",
    "exec": "a killable process",
    "__import__": "importlib",
}
WORKERS = {"verifiers/workers/", "verifiers/sandbox/", "verifiers/code/"}
"""Folders whose child processes run a user's own files, which is their purpose."""


def dotted(node: ast.AST) -> str:
    """``a.b.c`` for a chain of names, else ''."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


def names(tree: ast.Module) -> dict[str, str]:
    """Local name to full dotted name, from the imports."""
    out = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                out[alias.asname or alias.name.split(".")[0]] = alias.name if alias.asname else alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                out[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return out


def full(node: ast.AST, known: dict[str, str]) -> str:
    name = dotted(node)
    head, _, rest = name.partition(".")
    return ".".join(part for part in (known.get(head, head), rest) if part)


def banned(name: str) -> str | None:
    return next((why for bad, why in BANNED.items() if name == bad or name.startswith(bad + ".")), None)


def faults(source: Any) -> list[str]:
    known = names(source.tree)
    safe = {
        node.name
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef) and "SafeLoader" in " ".join(map(dotted, node.bases))
    }
    out = []
    for found in source.imports():
        if banned(found.name):
            out.append(f"{source.name}:{found.line} imports {found.name}: use {banned(found.name)}")
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and banned(full(node, known)):
            out.append(f"{source.at(node)} {full(node, known)}: use {banned(full(node, known))}")
        if not isinstance(node, ast.Call):
            continue
        name = full(node.func, known)
        arguments = {keyword.arg: keyword.value for keyword in node.keywords}
        if name in CALLS and not any(folder in source.name for folder in WORKERS):
            out.append(f"{source.at(node)} {name}(): use {CALLS[name]}")
        if name == "yaml.load":
            loader = arguments.get("Loader") or (node.args[1] if len(node.args) > 1 else None)
            if loader is None or not (dotted(loader) in safe or dotted(loader).endswith("SafeLoader")):
                out.append(f"{source.at(node)} yaml.load without a SafeLoader")
        if arguments.get("shell") is not None and ast.unparse(arguments["shell"]) != "False":
            out.append(f"{source.at(node)} a shell: give a list of arguments")
        if (
            isinstance(arguments.get("trust_remote_code"), ast.Constant)
            and arguments["trust_remote_code"].value is True
        ):  # type: ignore[union-attr]
            out.append(f"{source.at(node)} trust_remote_code=True runs code from a model folder")
    return out


def swallowed(source: Any) -> list[str]:
    """Handlers of everything that pass silently or answer with a constant."""
    out = []
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        broad = node.type is None or any(dotted(part) in {"Exception", "BaseException"} for part in ast.walk(node.type))
        (*before, last) = node.body
        constant = isinstance(last, ast.Return) and isinstance(last.value, (ast.Constant, type(None)))
        if broad and not before and (isinstance(last, (ast.Pass, ast.Continue)) or constant):
            out.append(f"{source.at(node)} except {ast.unparse(node.type) if node.type else ''}: {ast.unparse(last)}")
    return out


def test_nothing_unpickles_or_evaluates(sources: list[Any]) -> None:
    assert [fault for source in sources for fault in faults(source)] == []


def test_no_fault_is_swallowed(sources: list[Any]) -> None:
    assert [fault for source in sources for fault in swallowed(source)] == []


def test_the_rules_see_what_they_forbid(root: Path, sources: list[Any]) -> None:
    kind = type(sources[0])

    def told(text: str) -> int:
        source = kind(root / "verifiers" / "planted.py", ast.parse(text))
        return len(faults(source)) + len(swallowed(source))

    assert told("import pickle") >= 1
    assert told("from torch import load as get\nget('x')") >= 1
    assert told("import torch as t\nt.load('x')") == 1
    assert told("eval(text)") == 1
    assert told("import yaml\nyaml.load(text)") == 1
    assert told("import yaml\nyaml.load(text, Loader=yaml.Loader)") == 1
    assert told("import yaml\nyaml.load(text, Loader=yaml.SafeLoader)") == 0
    assert told("import subprocess\nsubprocess.run(text, shell=True)") == 1
    assert told("try:\n    f()\nexcept Exception:\n    return 0.0") == 1
    assert told("try:\n    f()\nexcept Exception as error:\n    raise RuntimeError from error") == 0
    assert told("import re, torch\nre.compile('x'); torch.compile(f); model.eval(); model.load(f)") == 0
