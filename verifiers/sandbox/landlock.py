"""Landlock: which files a process may reach, whatever it is. Built once in the zygote, entered by each worker."""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct
from collections.abc import Iterable

from . import syscalls

_EXECUTE, _WRITE, _READ, _READ_DIR, _TRUNCATE, _IOCTL = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
LOOK = _EXECUTE | _READ | _READ_DIR


def abi() -> int:
    """The version that the kernel speaks, 0 for none."""
    try:
        return syscalls.call("landlock_create_ruleset", 0, 0, 1)
    except OSError:
        return 0


def all_rights(version: int) -> int:
    """Every right on files that this version knows, as bits."""
    return (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)) - 1


def attributes(version: int) -> bytes:
    """What a ruleset takes away: all on files, TCP, abstract sockets and signals, as far as this version knows it."""
    made = struct.pack("=Q", all_rights(version))
    if version >= 4:
        made += struct.pack("=Q", 3)
    if version >= 6:
        made += struct.pack("=Q", 3)
    return made


def ruleset(version: int, *, readable: Iterable[str], writable: Iterable[str], listed: Iterable[str]) -> int:
    """A descriptor. What lies below these paths may be read, written, or only listed; missing paths are left out."""
    text = ctypes.create_string_buffer(attributes(version), len(attributes(version)))
    made = syscalls.call("landlock_create_ruleset", ctypes.addressof(text), len(text), 0)
    everything = all_rights(version)
    for paths, rights in ((readable, LOOK), (writable, everything & ~_EXECUTE & ~_IOCTL), (listed, _READ_DIR)):
        for path in paths:
            with contextlib.suppress(FileNotFoundError, PermissionError):
                _add(made, path, rights & everything)
    return made


def _add(ruleset: int, path: str, rights: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _OF_FILES
        rule = struct.pack("=Qi", rights, fd)
        text = ctypes.create_string_buffer(rule, len(rule))
        syscalls.call("landlock_add_rule", ruleset, 1, ctypes.addressof(text), 0)
    finally:
        os.close(fd)


def enter(ruleset: int) -> None:
    """This thread and what it starts, for good. Wants no_new_privs. Raises OSError."""
    syscalls.call("landlock_restrict_self", ruleset, 0)
