"""What verifiers there are, what each is made of, and how two differ: for ``jurat verifiers ls|show|diff``.

A user's files are read in a child process, never here.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jurat.platform.recipe import Member, RewardPart
from jurat.verifiers import catalog, versions
from jurat.verifiers.judge import LocalJudge, origin_named
from jurat.verifiers.registry import Definition


def listing(user_files: Sequence[Path | str] = ()) -> list[dict[str, Any]]:
    """One row a verifier: name, version, kind, source, runs (in process, pool, sandbox), deadline (s), doc (first sentence)."""
    rows = [_row(catalog.find(name), "built in") for name in catalog.BUILT_IN]
    if user_files:
        with LocalJudge(RewardPart(), origins=[origin_named(f) for f in user_files], spares=0) as judge:
            given = judge.described.values()
            rows += [{**{key: entry[key] for key in ("name", "version", "kind", "deadline", "doc")}, "runs": "pool",
                      "source": ", ".join(str(f) for f in user_files)} for entry in given]  # fmt: skip
    return sorted(rows, key=lambda row: str(row["name"]))


def _row(definition: Definition, source: str) -> dict[str, Any]:
    doc = (inspect.getdoc(definition.target) or "").split("\n\n")[0].replace("\n", " ")
    return {
        "name": definition.name, "version": definition.version, "kind": definition.kind, "source": source,
        "runs": "in process" if definition.bounded else {"process": "pool"}.get(definition.isolation, definition.isolation),
        "deadline": definition.deadline, "doc": doc,
    }  # fmt: skip


def identity(name: str, user_files: Sequence[Path | str] = (), args: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Everything of one verifier's version. Raises ConfigError for an unknown name or what cannot be hashed."""
    if name in catalog.BUILT_IN:
        definition = catalog.check(name, args or {})
        return {**_row(definition, "built in"), **versions.describe(definition, args or {}, sources=True)}
    part = RewardPart(members=(Member(use=name, args=dict(args or {})),))
    with LocalJudge(part, origins=[origin_named(f) for f in user_files], spares=0) as judge:
        entry = judge.described.get(name, {})
        return {**entry, **judge.identity(name, args or {})}


def difference(left: str, right: str) -> dict[str, Any]:
    """What differs between two verifiers, each ``NAME`` or ``FILE.py::NAME``: parts, and a diff of canonical source."""
    a, b = (_named(item) for item in (left, right))
    differ = [key for key in ("code", "config", "deps", "weights") if a[key] != b[key]]
    lines: list[str] = []
    for key in ("version", "kind", "args", "takes"):
        if a[key] != b[key]:
            lines += [f"- {key}: {a[key]}", f"+ {key}: {b[key]}"]
    for pin in sorted({*a["deps"].items()} ^ {*b["deps"].items()}):
        lines.append(f"{'-' if pin[0] in a['deps'] and a['deps'][pin[0]] == pin[1] else '+'} {pin[0]} {pin[1][:19]}")
    # Places begin with the verifier's own name, which is no part of it.
    one, two = ({_place(k, given): v for k, v in given["sources"].items()} for given in (a, b))
    for place in sorted({*one, *two}):
        old, new = one.get(place, "").splitlines(), two.get(place, "").splitlines()
        lines += list(difflib.unified_diff(old, new, f"{left} {place}", f"{right} {place}", lineterm=""))
    return {
        "same": a["digest"] == b["digest"], "differ": differ, "left": a["digest"], "right": b["digest"],
        "text": "\n".join(lines),
    }  # fmt: skip


def _place(path: str, given: Mapping[str, Any]) -> str:
    root = min((place for place in given["sources"] if not place.startswith("config.")), key=len).partition(".")[0]
    return path.removeprefix(root).lstrip(".") or "verifier"


def _named(item: str) -> dict[str, Any]:
    file, sign, name = item.rpartition("::")
    return identity(name, [file] if sign else [])
