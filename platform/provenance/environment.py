"""What a process runs on: Python, packages, machine, and the state of the user's own code.

The digest leaves out what a repetition need not share: host, folder, command line. Secrets stay out: of the environment's
variables nothing is read; a patch that holds a private key is not kept, and what looks like a secret in one is blotted
(``secrets.py``).
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jurat
from jurat.platform.canonical import digest
from jurat.platform.provenance import secrets
from jurat.platform.provenance.records import EnvironmentFacts

MAX_PATCH = 1 << 20
"""Bytes of a patch that are kept."""
_OWN = (".py", ".yaml", ".yml", ".toml", ".jsonl", ".sh")
"""Untracked files that belong to the code of a run."""


_SOURCE = (".py", ".yaml", ".json", ".jsonl", ".cpp", ".cu", ".h")


def describe(
    base: Path,
    *,
    argv: Sequence[str] = (),
    more: Mapping[str, Any] | None = None,
    package: Path = Path(jurat.__file__).parent,
) -> EnvironmentFacts:
    """Of this process, with user code under ``base`` and jurat's own in the folder ``package``. ``more``: JSON that belongs
    to it, such as devices.

    jurat's code is known by the digest of its files, however it was installed. Commit and patch are those of ``base``;
    where the checkout that holds ``package`` is another one its patch comes after, and ``attrs["jurat"]`` has its commit.
    """
    commit, patch, why = _code(base)
    own, checkout = {"files": _files(package), "git_commit": ""}, _checkout(package)
    if checkout is not None:
        own["git_commit"], its_patch, its_why = _code(checkout)
        if checkout != _top(base):
            patch, why = patch + its_patch, why or its_why
    commit = commit or own["git_commit"]
    shared = {
        "python": platform.python_version(), "implementation": platform.python_implementation(),
        "system": platform.system(), "machine": platform.machine(), "packages": _packages(), "git_commit": commit,
        "patch": digest(patch) if patch else "", "jurat": own, "devices": dict(more or {}),
    }  # fmt: skip
    beside = {
        "release": platform.release(), "host": platform.node(), "cpus": os.cpu_count(), "base": str(base),
        "argv": secrets.words(argv), "prefix": sys.prefix, **({"patch_left_out": why} if why else {}),
    }  # fmt: skip
    return EnvironmentFacts(digest=named(shared), attrs={**shared, **beside}, git_commit=commit, patch=patch)


_NAMED = ("python", "implementation", "system", "machine", "packages", "git_commit", "patch", "devices")


def named(attrs: Mapping[str, Any]) -> str:
    """The digest of an environment: over what it may have in common with another machine's."""
    return digest({"schema": 1, "kind": "environment", **{key: attrs[key] for key in _NAMED}})


def _files(package: Path) -> str:
    """The digest of a package's source files, links followed: a checkout's rooms are links."""
    found = {
        path.relative_to(package).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for folder, _, names in os.walk(package, followlinks=True)
        for name in names
        if (path := Path(folder) / name).suffix in _SOURCE and path.is_file()
    }
    return digest({"schema": 1, "kind": "package", "files": found})


def _top(folder: Path) -> Path | None:
    found = _git(folder, "rev-parse", "--show-toplevel")
    return None if found is None else Path(os.fsdecode(found.rstrip(b"\n")))


def _checkout(package: Path) -> Path | None:
    """The checkout that a package is a part of; None for an installed one, though it lies in some project's folder."""
    tracked = _git(package.resolve(), "ls-files", "--error-unmatch", "--", "__init__.py")
    return None if tracked is None else _top(package.resolve())


@functools.cache
def _packages() -> Mapping[str, str]:
    found: dict[str, str] = {}
    for each in importlib.metadata.distributions():
        name = each.metadata["Name"]
        if name:
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), each.version)
    return dict(sorted(found.items()))


def _code(base: Path) -> tuple[str, bytes, str]:
    """(commit, patch of what it does not hold, why the patch was left out)."""
    commit = _git(base, "rev-parse", "HEAD")
    if commit is None:
        return "", b"", ""
    parts = [_git(base, "diff", "HEAD", "--no-ext-diff", "--no-color", "--", ".") or b""]
    untracked = _git(base, "ls-files", "--others", "--exclude-standard", "-z", "--", ".") or b""
    for name in sorted(untracked.decode("utf-8", "surrogateescape").split("\0")):
        path = base / name
        if name.endswith(_OWN) and path.is_file() and not path.is_symlink() and path.stat().st_size <= MAX_PATCH:
            body = path.read_bytes()
            parts.append(b"\n--- /dev/null\n+++ b/" + name.encode("utf-8", "surrogateescape") + b"\n" + body)
        if sum(map(len, parts)) > MAX_PATCH:
            break
    patch = b"".join(parts)
    if len(patch) > MAX_PATCH:
        return commit.decode().strip(), b"", f"more than {MAX_PATCH >> 10} KiB"
    text = patch.decode("utf-8", "surrogateescape")
    if secrets.PRIVATE_KEY.search(text) and not secrets.kept():
        return commit.decode().strip(), b"", "it holds a private key"
    return commit.decode().strip(), secrets.blotted_code(text).encode("utf-8", "surrogateescape"), ""


def _git(base: Path, *words: str) -> bytes | None:
    """What git says; None where it says nothing: no git, no repository, or it takes too long."""
    try:
        done = subprocess.run(
            ["git", "-C", str(base), *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, timeout=20, env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
