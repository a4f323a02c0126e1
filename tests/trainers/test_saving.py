"""A checkpoint in writing outlives whatever else ends the run."""

from __future__ import annotations

import asyncio

import pytest

from jurat.platform.errors import RunFailed
from jurat.platform.types import CheckpointRef
from jurat.trainers.saving import Saving


class Places:
    """Checkpoints whose writing ends when told; the ledger and the reporter that hear of them."""

    def __init__(self):
        self.recorded, self.notes = [], []
        self.written = None

    async def begin(self, *, step, learners, source):
        self.source, self.step = source, step
        self.written = asyncio.get_running_loop().create_future()
        return self.written

    def end(self, error=None):
        ref = CheckpointRef(path=f"step-{self.step}", digest="d", step=self.step, parent="", meta={})
        self.written.set_exception(error) if error else self.written.set_result(ref)

    async def flush(self):
        pass

    def record_checkpoint(self, ref):
        self.recorded.append(ref.step)

    def note(self, text):
        self.notes.append(text)


async def state():
    return {"cursor": 3}


async def test_what_else_fails_waits_for_the_writing():
    places = Places()

    async def run():
        async with Saving(places, places, places) as saving:
            await saving.begin(5, {}, state)
            raise RunFailed("a reward limit")

    running = asyncio.create_task(run())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not running.done() and places.recorded == [] and places.source == {"cursor": 3}
    places.end()
    with pytest.raises(RunFailed, match="a reward limit"):
        await running
    assert places.recorded == [5] and places.notes[0].startswith("checkpoint at step 5: step-5")


async def test_a_failed_writing_ends_the_run_at_the_next_step_and_hides_no_other_failure():
    places = Places()
    with pytest.raises(RunFailed, match="disk"):
        async with Saving(places, places, places) as saving:
            assert await saving.last() is None
            await saving.begin(5, {}, state)
            saving.check()
            places.end(RunFailed("disk"))
            for _ in range(10):
                await asyncio.sleep(0)
            saving.check()
    with pytest.raises(RunFailed, match="other"):
        async with Saving(places, places, places) as saving:
            await saving.begin(6, {}, state)
            places.end(RunFailed("disk"))
            raise RunFailed("other")
    assert places.recorded == []
