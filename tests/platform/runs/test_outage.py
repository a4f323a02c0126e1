"""A database that is away between two stages is waited for, for a bounded time."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from jurat.platform.errors import FencedOut, RunFailed
from jurat.platform.runs.outage import patiently
from jurat.platform.runs.store import Store


async def test_it_waits_for_a_locked_database_and_goes_on(tmp_path: Path) -> None:
    store = Store.open(None, tmp_path, busy_seconds=0.01)
    holder = sqlite3.connect(tmp_path / "jurat.db", isolation_level=None, check_same_thread=False)
    holder.execute("begin immediate")
    said: list[str] = []
    waiting = asyncio.create_task(patiently(lambda: store.write(lambda c: 7), said.append, longest=30, pause=0.02))
    while not said:
        await asyncio.sleep(0.01)
    assert "waiting for it, 30 s at most" in said[0] and not waiting.done()
    holder.execute("rollback")
    assert await waiting == 7 and said[1:] == ["the database answers again"]
    holder.execute("begin immediate")
    with pytest.raises(RunFailed, match="does not answer"):
        await patiently(lambda: store.write(lambda c: 7), said.append, longest=0.05, pause=0.02)
    holder.close()
    store.close()


async def test_what_waiting_does_not_mend_is_raised_at_once() -> None:
    for error in (FencedOut("another has it"), RunFailed("it is finished")):

        def ask(error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error)):
            await patiently(ask, pytest.fail, longest=30)
