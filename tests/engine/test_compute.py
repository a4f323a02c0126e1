"""One thread computes; what has begun is ended."""

from __future__ import annotations

import asyncio
import threading

import pytest

from jurat.engine import compute


async def test_all_work_runs_in_one_thread_in_order():
    seen: list[int] = []

    def work(number: int) -> int:
        seen.append(number)
        return threading.get_ident()

    idents = await asyncio.gather(*(compute.run(work, number) for number in range(20)))
    assert set(idents) == {compute.call(threading.get_ident)} != {threading.get_ident()}
    assert seen == list(range(20))


async def test_errors_come_back():
    with pytest.raises(ZeroDivisionError):
        await compute.run(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        compute.call(lambda: 1 / 0)


async def test_a_cancelled_caller_waits_for_work_that_has_begun():
    started, release, ended = threading.Event(), threading.Event(), []

    def work() -> None:
        started.set()
        release.wait(10)
        ended.append(True)

    task = asyncio.create_task(compute.run(work))
    while not started.is_set():
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.sleep(0.01)
    assert not task.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]
