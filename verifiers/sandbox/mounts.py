"""Mounts, as far as a place for programs needs them."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct

from . import syscalls

RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
"""MS_*."""


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    texts = [ctypes.create_string_buffer(text.encode()) for text in (source, target, kind or "", data)]
    at = [ctypes.addressof(text) for text in texts]
    syscalls.call("mount", at[0], at[1], at[2] if kind else 0, flags, at[3] if data else 0)


def bind(source: str, target: str) -> None:
    """``source`` at ``target``, read-only; a symbolic link is made again."""
    if os.path.islink(source):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.lexists(target):
            os.symlink(os.readlink(source), target)
        return
    mode = os.stat(source).st_mode
    if stat.S_ISDIR(mode):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT, 0o644))
    mount(source, target, None, BIND | REC)
    device = stat.S_ISCHR(mode)
    try:
        _set_attributes(target, 1 | 2 | (8 if device else 4))  # RDONLY, NOSUID, NOEXEC or NODEV
    except OSError as fault:
        if fault.errno != errno.ENOSYS:
            raise
        kept = os.statvfs(target).f_flag & (NOSUID | NODEV | NOEXEC)
        mount("none", target, None, REMOUNT | BIND | RDONLY | NOSUID | kept | (0 if device else NODEV))


def _set_attributes(path: str, attributes: int) -> None:
    """mount_setattr, with all that is mounted below."""
    text = ctypes.create_string_buffer(path.encode())
    wanted = ctypes.create_string_buffer(struct.pack("=4Q", attributes, 0, 0, 0), 32)
    syscalls.call("mount_setattr", -100, ctypes.addressof(text), 0x8000, ctypes.addressof(wanted), 32)
