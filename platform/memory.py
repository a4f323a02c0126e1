"""Memory of this machine and this process, and the history of its peaks that a run keeps in its checkpoints."""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LENGTH = 512
"""Entries of a history: the last ones."""
STEP = "step"
"""The phase of a process that is asked once a step."""
PROCESS = Path("/proc/self")

Peaks = Mapping[str, int]
"""{whose: bytes}: ``host`` (resident memory of the run's process), ``gpu`` (what torch allocated there), a role elsewhere."""


@dataclass(frozen=True, slots=True)
class Peak:
    step: int
    phase: str
    bytes: Peaks


@dataclass(slots=True)
class History:
    """A ring of (step, phase, most bytes held meanwhile). What measures gives the peaks since it was last asked."""

    measure: Callable[[], Peaks]
    """Of this process."""
    elsewhere: Callable[[], Awaitable[Peaks]] | None = None
    """Of the processes of other roles."""
    ring: deque[Peak] = field(default_factory=lambda: deque(maxlen=LENGTH))

    def note(self, step: int, phase: str) -> None:
        """Of a phase that ended now; the next one begins."""
        self.ring.append(Peak(step, phase, dict(self.measure())))

    async def note_elsewhere(self, step: int) -> None:
        """Of the other processes in the whole step: each does one thing in it."""
        if self.elsewhere is not None:
            self.ring.append(Peak(step, STEP, dict(await self.elsewhere())))

    def state(self) -> list[Any]:
        """JSON: [[step, phase, {whose: bytes}], ...], oldest first."""
        return [[peak.step, peak.phase, dict(peak.bytes)] for peak in self.ring]

    def restore(self, state: Iterable[Any]) -> None:
        self.ring.clear()
        self.ring.extend(Peak(int(step), str(phase), dict(held)) for step, phase, held in state)


def highest(history: Iterable[Peak]) -> dict[str, dict[str, Peak]]:
    """{phase: {whose: the entry where it held most}}, phases in the order in which they first came."""
    found: dict[str, dict[str, Peak]] = {}
    for peak in history:
        of = found.setdefault(peak.phase, {})
        for whose, held in peak.bytes.items():
            if whose not in of or held > of[whose].bytes[whose]:
                of[whose] = peak
    return found


def recorded(checkpoint: Path) -> tuple[Peak, ...]:
    """The history in a checkpoint folder; empty where the folder, or a history in it, is not there."""
    try:
        state = json.loads((checkpoint / "state.json").read_text())["source"].get("memory", ())
    except FileNotFoundError:
        return ()
    history = History(dict)
    history.restore(state)
    return tuple(history.ring)


def host_peak(process: Path = PROCESS) -> Callable[[], int]:
    """What gives the most resident memory of this process since it was last called.

    Linux sets its own mark back (``clear_refs``); where that is refused the answer is what is held now, elsewhere the most
    since the process began.
    """
    status, mark = process / "status", process / "clear_refs"

    def reset() -> bool:
        try:
            mark.write_text("5")
        except OSError:
            return False
        return True

    resettable = reset()

    def peak() -> int:
        if not status.is_file():
            import resource

            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        held = 1024 * int(lines["VmHWM" if resettable else "VmRSS"].split()[0])
        if resettable:
            reset()
        return held

    return peak


def machine_bytes(sysfs: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that this machine may give this process: all of it, or less where its control group (1 or 2) says so."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limit = sysfs / name
        if limit.is_file() and (said := limit.read_text().strip()).isdecimal():
            total = min(total, int(said))
    return total
