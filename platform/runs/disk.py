"""How much room a disk has. Below a reserve floor what is large stops, so that what is small can go on."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path
from typing import BinaryIO

from jurat.platform.errors import ConfigError

RESERVE = 2 << 30
"""Bytes that stay free; a twentieth of a disk that is smaller than forty times that. JURAT_RESERVE_BYTES sets another."""


def reserve() -> int | None:
    """What JURAT_RESERVE_BYTES sets; None: nothing. Raises ConfigError."""
    given = os.environ.get("JURAT_RESERVE_BYTES", "")
    if not given:
        return None
    if not (given.isascii() and given.isdigit()):
        raise ConfigError(f"JURAT_RESERVE_BYTES is {given[:80]!r}, which is no number of bytes", where="environment",
                          fix="give a whole number, as in 2147483648, or unset it")  # fmt: skip
    return int(given)


def spare(folder: Path) -> int:
    """Bytes above the floor, which may be negative, on the disk of a folder or of the nearest above it that is there.
    Raises ConfigError as ``reserve``."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    found = shutil.disk_usage(folder)
    floor = reserve()
    return found.free - (min(RESERVE, found.total // 20) if floor is None else floor)


def opened(path: Path) -> BinaryIO:
    """A regular file, to be read: a pipe that somebody put into a folder of ours would keep its reader waiting for ever.
    Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")
