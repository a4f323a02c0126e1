"""Named fault points, so that tests can kill a real process at an exact moment. Without ``JURAT_FAULT`` they do nothing.

``JURAT_FAULT=name`` kills the process (SIGKILL) at the first visit of the point, ``name:3`` at the third,
``name:3:STOP`` sends SIGSTOP instead (any signal's name). ``role@name`` is for one role of a Ray run: the driver leaves
``role@`` out where it starts an actor of that role for the first time, and elsewhere it names no point; so does who starts
ranks with ``rank1@``, as in ``learner@rank1@rank.mid_update``; a launcher leaves ``trainer@`` out for the first process of a
run, and gives no point to any other.
"""

from __future__ import annotations

import os
import signal

POINTS = (
    "rollouts.mid_write",
    "spool.before_forget",
    "ledger.mid_commit",
    "sampler.mid_decode",
    "actor.mid_start",
    "actor.asked",
    "actor.mid_work",
    "actor.before_answer",
    "actor.after_answer",
    "actor.mid_weights",
    "actor.mid_snapshot",
    "learner.mid_save",
    "rank.asked",
    "rank.mid_update",
    "rank.mid_weights",
    "rank.mid_save",
    "rank.before_answer",
    "loop.between_update_and_publish",
    "checkpoint.mid_write",
    "checkpoint.before_rename",
    "checkpoint.after_rename",
    "launcher.claimed",
    "launcher.spawned",
    "launcher.started",
    "launcher.before_end",
    "rescore.before_write",
    "rescore.after_write",
    "service.before_commit",
    "service.before_answer",
)
"""Every point in the code; a test holds this list against the source."""

_visits: dict[str, int] = {}


def point(name: str) -> None:
    """Die here if the environment asks for it."""
    wanted = os.environ.get("JURAT_FAULT")
    if not wanted:
        return
    wanted_name, _, rest = wanted.partition(":")
    if wanted_name != name:
        return
    nth, _, signal_name = rest.partition(":")
    _visits[name] = _visits.get(name, 0) + 1
    if _visits[name] == int(nth or 1):
        os.kill(os.getpid(), getattr(signal, f"SIG{signal_name or 'KILL'}"))
