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

    def restore(self, state):
        self.said.append(f"restore {state}")

    async def interrupt(self, keep):
        self.said.append(f"interrupt, keep {sorted(keep)}")
        return {"plans": [s for s in self.said if s.startswith("plan")]}


def make(source, max_lag=0, last_step=4, lockstep=False):
    stop = asyncio.Event()
    return Buffer(
        source=source, max_lag=max_lag, first_step=0, last_step=last_step, stop=stop, lockstep=lockstep
    )  # fmt: skip


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
    assert await buffer.checkpoint() == {"planned": 1, "settled": [], "source": {"plans": ["plan 0"]}}
    assert source.said[-1] == "interrupt, keep []"
    assert buffer.tasks == {}


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
    buffer.restored({"planned": 1, "settled": [], "source": "s"})
    buffer.published(0)
    assert source.said == ["restore s"]


async def test_in_lockstep_batches_follow_one_another_and_the_next_version_waits_for_them():
    source = Source()
    buffer = make(source, max_lag=2, lockstep=True)
    buffer.published(0)
    await buffer.take(0)
    assert source.said == ["plan 0", "plan 1", "plan 2", "begin 0", "observe 0"]
    await buffer.settle()
    assert source.said[5:] == ["begin 1", "begin 2"]
    assert all(task.done() for task in buffer.tasks.values())
    buffer.published(1)
    state = await buffer.checkpoint()
    assert (state["planned"], state["settled"]) == (4, [1, 2])
    assert source.said[-1] == "interrupt, keep [1, 2]"


@pytest.mark.parametrize("already", [True, False])
async def test_a_stop_does_not_cut_what_lockstep_waits_for_and_says_so(already):
    source, told = Source(), []
    buffer = make(source, max_lag=1, lockstep=True)
    buffer.published(0)
    await buffer.take(0)
    source.gate.clear()
    if already:
        buffer.stop.set()
    settling = asyncio.create_task(buffer.settle(lambda: told.append("waits")))
    for _ in range(5):
        await asyncio.sleep(0)
    assert told == ["waits"] * already
    buffer.stop.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert told == ["waits"] and not settling.done()
    source.gate.set()
    await settling
    assert buffer.settled == {1}


@pytest.mark.parametrize(("lag", "kept"), [(0, []), (1, [0, 1])])
async def test_a_lag_keeps_the_rows_of_every_step_in_flight(lag, kept):
    source = Source()
    source.gate.clear()
    buffer = make(source, max_lag=lag)
    buffer.published(0)
    waiting = asyncio.create_task(buffer.take(0))
    await asyncio.sleep(0.01)
    buffer.stop.set()
    assert await waiting is None
    await buffer.checkpoint()
    assert source.said[-1] == f"interrupt, keep {kept}"


async def test_a_batch_that_failed_ahead_of_its_time_is_not_begun_again_by_a_checkpoint():
    class Broken(Source):
        async def batch(self, step):
            if step:
                raise RuntimeError("sampler died")
            return Batch(step=step, groups=())

    buffer = make(Broken(), max_lag=1)
    buffer.published(0)
    await buffer.take(0)
    with pytest.raises(RuntimeError, match="sampler died"):
        await buffer.checkpoint()
