"""Whose code a module is, and which distribution it came with."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import inspect
import re
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jurat.platform.identity.digests import SCHEMA, sha256_of

_BUILD_RECORDS = frozenset({"__config__.py"})
"""Written by the build of compiled wheels: they differ between wheels of one version."""


@functools.cache
def distribution_of(top: str) -> str | None:
    """The distribution that installs a top-level module; the first by name where several do."""
    return min((found.name for found in _packages().get(top, ())), default=None)


@functools.cache
def _packages() -> Mapping[str, list[importlib.metadata.Distribution]]:
    """By top-level module. As ``importlib.metadata.packages_distributions``, which reads each distribution's metadata too."""
    out: dict[str, list[importlib.metadata.Distribution]] = {}
    for found in importlib.metadata.distributions():
        tops = (found.read_text("top_level.txt") or "").split()
        if not tops:
            files = (found.read_text("RECORD") or "").splitlines() or map(str, found.files or ())
            heads = {line.partition(",")[0].strip('"').partition("/")[::2] for line in files}
            tops = [name for head, rest in heads if (name := head if rest else inspect.getmodulename(head))]
        for top in {top for top in tops if "." not in top}:
            out.setdefault(top, []).append(found)
    return out


@functools.cache
def pinned(name: str) -> tuple[str, str]:
    """(``name==version``, digest of its pure-Python files)."""
    found = importlib.metadata.distribution(name)
    rows = []
    for file in found.files or ():
        if file.suffix == ".py" and ".." not in file.parts and file.name not in _BUILD_RECORDS:
            path = Path(str(found.locate_file(file)))
            if path.is_file():
                rows.append([file.as_posix(), hashlib.sha256(path.read_bytes()).hexdigest()])
    normal = re.sub(r"[-_.]+", "-", found.name).lower()
    return f"{normal}=={found.version}", sha256_of({"schema": SCHEMA, "kind": "distribution", "files": sorted(rows)})


def kind_of(module: str) -> str:
    """``standard``, ``third`` or ``first``; jurat's own modules are always first."""
    top = module.partition(".")[0]
    if top in ("jurat", "__main__"):
        return "first"
    if top in sys.stdlib_module_names or top in sys.builtin_module_names:
        return "standard"
    loaded = sys.modules.get(module) or sys.modules.get(top)
    file = getattr(loaded, "__file__", None)
    if file is None and loaded is None:
        spec = find_spec(module)
        file = spec.origin if spec is not None else None
    if file is None:
        return "third" if distribution_of(top) else "first"
    return "third" if _installed(str(file)) else "first"


def find_spec(module: str) -> Any:
    try:
        return importlib.util.find_spec(module)
    except (ImportError, AttributeError, ValueError):
        return None


@functools.cache
def _installed(file: str) -> bool:
    parts = Path(file).parts
    if "site-packages" in parts or "dist-packages" in parts:
        return True
    paths = sysconfig.get_paths()
    return any(Path(file).is_relative_to(paths[key]) for key in ("stdlib", "platstdlib"))
