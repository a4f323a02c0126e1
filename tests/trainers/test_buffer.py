"""The buffer plans by published version, drops what is in flight at a stop, and never loses a plan."""

import asyncio

import pytest

from jurat.platform.types import Batch
from jurat.trainers.buffer import Buffer


class Source:
    """A group source that records what it is asked."""

    def __init__(self):
        self.said, self.gate = [], asyncio.Event()
        self.gate.set()

    def plan(self, step):
        self.said.append(f"plan {step}")

    async def batch(self, step):
        self.said.append(f"begin {step}")
        await self.gate.wait()
        return Batch(step=step, groups=())

    def observe(self, batch):
        self.said.append(f"observe {batch.step}")

    async def interrupt(self):
        self.said.append("interrupt")
        return {"plans": [s for s in self.said if s.startswith("plan")]}


def make(source, max_lag=0, last_step=4):
    return Buffer(source=source, max_lag=max_lag, first_step=0, last_step=last_step, stop=asyncio.Event())


async def test_lag_0_takes_turns():
    source = Source()
    buffer = make(source)
    for step in range(2):
        buffer.published(step)
        assert (await buffer.take(step)).step == step
    assert source.said == ["plan 0", "begin 0", "observe 0", "plan 1", "begin 1", "observe 1"]


@pytest.mark.parametrize("lag", [1, 2])
async def test_at_most_lag_plus_one_batches_are_in_flight_and_none_past_the_end(lag):
    source = Source()
    buffer = make(source, max_lag=lag, last_step=3)
    buffer.published(0)
    await buffer.take(0)
    await asyncio.sleep(0)
    begun = [s for s in source.said if s.startswith("begin")]
    assert begun == [f"begin {s}" for s in range(lag + 1)]
    for version in range(1, 3):
        buffer.published(version)
        await buffer.take(version)
    assert [s for s in source.said if s.startswith("plan")] == ["plan 0", "plan 1", "plan 2"]
    assert [s for s in source.said if s.startswith("observe")] == ["observe 0", "observe 1", "observe 2"]


async def test_a_stop_while_waiting_drops_the_batch_and_keeps_the_plan():
    source = Source()
    source.gate.clear()
    buffer = make(source)
    buffer.published(0)
    waiting = asyncio.create_task(buffer.take(0))
    await asyncio.sleep(0.01)
    buffer.stop.set()
    assert await waiting is None
    assert buffer.tasks == {}
    assert await buffer.checkpoint() == {"planned": 1, "source": {"plans": ["plan 0"]}}


async def test_a_failing_batch_is_raised_where_it_is_taken():
    class Broken(Source):
        async def batch(self, step):
            raise RuntimeError("sampler died")

    buffer = make(Broken())
    buffer.published(0)
    with pytest.raises(RuntimeError, match="sampler died"):
        await buffer.take(0)


async def test_restored_plans_are_not_made_again():
    source = Source()
    buffer = make(source)
    buffer.restored(1)
    buffer.published(0)
    assert source.said == []
