"""How much room a disk has. Below a reserve floor what is large stops, so that what is small can go on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

RESERVE = 2 << 30
"""Bytes that stay free; a twentieth of a disk that is smaller than forty times that. JURAT_RESERVE_BYTES sets another."""


def spare(folder: Path) -> int:
    """Bytes above the floor, which may be negative, on the disk of a folder or of the nearest above it that is there."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    found = shutil.disk_usage(folder)
    given = os.environ.get("JURAT_RESERVE_BYTES", "")
    return found.free - (int(given) if given.isdigit() else min(RESERVE, found.total // 20))
