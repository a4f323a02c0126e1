"""Stands for ``jurat train --resume RUN`` where tests kill it: no tensors, the rest is real (lease, heart, ledger through the
service, checkpoints by rename). A step's number follows from all before it, so one that is lost or done twice shows.

    python counter.py --home HOME train --resume RUN
"""

import asyncio
import json
import os
import sys
import threading
import time
from pathlib import Path

from jurat.platform.errors import FencedOut
from jurat.platform.faults import point
from jurat.platform.runs.heart import Heart
from jurat.platform.runs.ledger import RunLedger
from jurat.platform.runs.lock import exclusive
from jurat.platform.runs.remote import facts_through
from jurat.platform.runs.states import Limits
from jurat.platform.runs.store import Store
from jurat.platform.types import StepReport

STEPS, EVERY = 30, 5


def after(state: float) -> float:
    return 3.9 * state * (1.0 - state)  # chaotic: a last bit that differs is seen soon


def numbers() -> list[float]:
    """What an uninterrupted run records."""
    made, state = [], 0.5
    for _ in range(STEPS):
        state = after(state)
        made.append(state)
    return made


async def main(home: Path, name: str) -> None:
    seconds = float(os.environ["JURAT_LEASE_SECONDS"])
    limits, epoch = Limits(lease=seconds), int(os.environ["JURAT_RUN_EPOCH"])
    store = Store.open(os.environ.get("JURAT_DATABASE"), home)
    run = store.run(name)
    kept = run.folder / "state.json"
    with exclusive(run.folder):
        lease = store.take(run, epoch=epoch, limits=limits)
        first, state = json.loads(kept.read_text()) if kept.exists() else (0, 0.5)
        segment = store.start_segment(run, first_step=first, lease=lease)
        asked = threading.Event()
        heard = lambda beat: beat.desired == "run" or asked.set()
        with Heart(store, lease, heard=heard, fenced=lambda _: os._exit(1), limits=limits):
            ledger = RunLedger(
                store,
                run,
                "",
                segment,
                run.folder,
                lease=lease,
                through=facts_through(store, lease),
                retry_seconds=0.05,
            )
            for step in range(first, STEPS):
                if asked.is_set():
                    ledger.close()
                    store.end(lease, "interrupted")
                    sys.exit(130)
                time.sleep(float(os.environ.get("JURAT_COUNTER_SECONDS", "0.01")))
                state = after(state)
                ledger.record_step(StepReport(step=step, version=step + 1, metrics={"x": state}, updates=()))
                if (step + 1) % EVERY == 0:
                    await ledger.flush()
                    draft = kept.with_suffix(".tmp")
                    draft.write_text(json.dumps([step + 1, state]))
                    point("checkpoint.before_rename")
                    os.replace(draft, kept)
                    point("checkpoint.after_rename")
            ledger.close()
            store.end(lease, "finished")
    store.close()


if __name__ == "__main__":
    try:
        asyncio.run(main(Path(sys.argv[2]), sys.argv[5]))
    except FencedOut as error:
        sys.exit(f"{error}")
