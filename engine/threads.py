"""How many threads compute, and the process-wide settings that must precede them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def physical_cores(sysfs: Path = Path("/sys")) -> int:
    """Physical cores this process may use: its affinity, without hyper-threads, within its control group's quota."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = set()
    for cpu in allowed:
        siblings = sysfs / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        cores.add(siblings.read_text().strip() if siblings.is_file() else str(cpu))
    return max(1, min(len(cores), _quota(sysfs) or len(cores)))


def processors(sysfs: Path = Path("/sys")) -> int:
    """Hyper-threads that this process may use, within its control group's quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, _quota(sysfs) or allowed))


def _quota(sysfs: Path) -> int | None:
    """Whole processors of the control group (version 2), at least one; None if unlimited."""
    limit = sysfs / "fs/cgroup/cpu.max"
    words = limit.read_text().split() if limit.is_file() else ["max"]
    return None if words[0] == "max" else max(1, int(words[0]) // int(words[1]))


def choose_threads(asked: int | None) -> int:
    """The recipe's number, else OMP_NUM_THREADS, else the physical cores."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return asked or (int(given) if given.isdecimal() and int(given) > 0 else physical_cores())


def set_up(threads: int) -> None:
    """Flush denormals (moments of 1e-42 made an optimiser step 7 times slower) and set torch's threads.

    Threads inherit the first setting, so call this before any tensor is computed.
    """
    import numpy as np
    import torch

    for dtype in (np.float32, np.float64):
        str(np.finfo(dtype))  # numpy keeps these; read once denormals are flushed, it would warn of its own constants
    torch.set_flush_denormal(True)
    torch.set_num_threads(threads)


def recommended_env(environ: Mapping[str, str] = os.environ) -> Mapping[str, str]:
    """Variables that must stand in the environment before the process begins; those set in ``environ`` are left out.

    glibc gives large blocks back to the system at every free; kept, a decode step needs no page faults. Blocks over 64 MiB
    are kept in its main arena alone, which the compute thread uses only if there is no other (a step was 1.15x slower).
    """
    wanted = {
        "MALLOC_MMAP_THRESHOLD_": "4294967296",
        "MALLOC_TRIM_THRESHOLD_": "8589934592",
        "MALLOC_TOP_PAD_": "268435456",
        "MALLOC_ARENA_MAX": "1",
    }
    return {name: value for name, value in wanted.items() if name not in environ}
