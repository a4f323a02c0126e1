"""What every actor does with what it is asked, without Ray."""

from __future__ import annotations

import asyncio

from jurat.engine.ray.actor import Actor


class Echo(Actor):
    """Answers "go" once it may, and anything else at once."""

    def __init__(self):
        super().__init__()
        self.may = asyncio.Event()

    async def one(self, item):
        if item == "go":
            await self.may.wait()
        return item.upper()


async def answers(actor, items):
    return [each async for found in actor.work(items) for each in found]


async def turns(count):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_is_cancelled_before_it_began_ends_the_call_too():
    """A process that slept finds a call and its cancelling at once."""
    actor = Echo()
    asked = asyncio.create_task(answers(actor, [(1, "go"), (2, "go")]))
    while not actor._running:
        await turns(1)
    await actor.cancel([1, 2])
    async with asyncio.timeout(60):
        assert sorted(await asked) == [(1, None), (2, None)]
    assert actor._running == {}


async def test_what_is_cancelled_at_work_leaves_the_others():
    actor = Echo()
    asked = asyncio.create_task(answers(actor, [(1, "go"), (2, "a"), (3, "go")]))
    await turns(10)
    assert sorted(actor._running) == [1, 3]
    await actor.cancel([1, 2])
    await turns(5)
    actor.may.set()
    async with asyncio.timeout(60):
        assert sorted(await asked) == [(1, None), (2, "A"), (3, "GO")]
