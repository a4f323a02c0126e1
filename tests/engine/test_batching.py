"""The port Sampler: what one tick asks for is decoded together; each waiter gets its own answer, error or abort."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from jurat.engine.batching import BatchedSampler
from jurat.engine.decoding import Decoding
from jurat.engine.sampling import draw
from jurat.platform.errors import ConfigError
from jurat.platform.types import Request, Sampling


class Counting:
    """A decoder without a model: the next token is the last plus one; it keeps note of what it is asked."""

    max_length, refills, device = 50, True, torch.device("cpu")

    def __init__(self):
        self.admitted, self.live, self.breaks, self.refreshed = [], 0, False, 0

    def _next(self, last, draws):
        logits = torch.full((len(last), 64), -1e4)
        logits[torch.arange(len(last)), (last + 1) % 64] = 0.0
        return draw(logits, draws)

    def admit(self, prompts, draws):
        if self.breaks:
            raise ZeroDivisionError("broken")
        self.admitted.append([int(prompt[0]) for prompt in prompts])
        self.live += len(prompts)
        return self._next(torch.tensor([int(prompt[-1]) for prompt in prompts]), draws)

    def step(self, tokens, draws):
        assert len(tokens) == self.live
        return self._next(tokens, draws)

    def keep(self, rows):
        self.live = len(rows)

    def refresh(self):
        self.refreshed += 1


def ask(first: int, new: int = 5, **sampling) -> Request:
    return Request(rollout_id=f"r{first}", prompt=np.array([first]), seed=first,
                   sampling=Sampling(max_new_tokens=new, **sampling))  # fmt: skip


@pytest.fixture
def decoder():
    return Counting()


@pytest.fixture
def sampler(decoder):
    made = BatchedSampler(Decoding(decoder, max_concurrent=8))
    yield made
    made.close()


async def test_requests_of_one_tick_are_one_batch_in_order_with_equal_prompts_together(decoder, sampler):
    asked = [3, 9, 3, 7, 9, 3]
    found = await asyncio.gather(*(sampler.sample(ask(first, new=2 + i)) for i, first in enumerate(asked)))
    assert decoder.admitted == [[3, 3, 3, 9, 9, 7]]
    for i, (first, completion) in enumerate(zip(asked, found, strict=True)):
        assert completion.token_ids.tolist() == list(range(first + 1, first + 3 + i))


async def test_waiting_groups_enter_whole_as_places_become_free(decoder, sampler):
    lengths = {1: 4, 2: 9, 3: 2, 4: 2}
    await asyncio.gather(*(sampler.sample(ask(first, new=n)) for first, n in lengths.items() for _ in range(4)))
    assert decoder.admitted == [[1] * 4 + [2] * 4, [3] * 4, [4] * 4]


async def test_a_group_larger_than_the_batch_goes_in_parts(decoder, sampler):
    await asyncio.gather(*(sampler.sample(ask(5)) for _ in range(11)))
    assert decoder.admitted == [[5] * 8, [5] * 3]


async def test_completions_arrive_as_they_end(sampler):
    order = []

    async def one(first, new):
        await sampler.sample(ask(first, new=new))
        order.append(first)

    await asyncio.gather(one(1, 40), one(2, 3), one(3, 20))
    assert order == [2, 3, 1]


async def test_a_cancelled_caller_leaves_the_rest_alone(decoder, sampler):
    tasks = [asyncio.create_task(sampler.sample(ask(first, new=45))) for first in (1, 2, 3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(found[1], asyncio.CancelledError)
    assert [len(found[i].token_ids) for i in (0, 2)] == [45, 45]
    assert decoder.live == 0


async def test_an_exception_reaches_every_waiter_and_the_sampler_lives_on(decoder, sampler):
    decoder.breaks = True
    found = await asyncio.gather(*(sampler.sample(ask(first)) for first in (1, 2)), return_exceptions=True)
    assert [type(each) for each in found] == [ZeroDivisionError] * 2
    decoder.breaks = False
    assert len((await sampler.sample(ask(4))).token_ids) == 5


async def test_a_bad_request_fails_alone(sampler):
    bad = Request(rollout_id="long", prompt=np.zeros(50, dtype=np.int64), seed=0, sampling=Sampling())
    found = await asyncio.gather(sampler.sample(bad), sampler.sample(ask(1)), return_exceptions=True)
    assert isinstance(found[0], ConfigError) and "rollout long" in str(found[0])
    assert len(found[1].token_ids) == 5


async def test_interrupt_returns_what_there_is_to_callers_and_to_the_interrupter(sampler):
    tasks = [asyncio.create_task(sampler.sample(ask(first, new=49))) for first in range(1, 31)]
    await asyncio.sleep(0)
    aborted = await sampler.interrupt()
    found = await asyncio.gather(*tasks)
    assert {completion.finish for completion in found} <= {"aborted", "length"}
    assert len(aborted) == sum(completion.finish == "aborted" for completion in found)
    assert await sampler.interrupt() == ()
    assert len((await sampler.sample(ask(1))).token_ids) == 5


async def test_publish_refreshes_and_stamps_the_version(decoder, sampler):
    await sampler.publish(3)
    assert decoder.refreshed == 1
    assert [(s.start, s.end, s.version) for s in (await sampler.sample(ask(1))).spans] == [(0, 5, 3)]


async def test_several_stop_tokens(sampler):
    found = await sampler.sample(ask(1, new=40, stop_token_ids=(9, 6)))
    assert found.token_ids.tolist() == [2, 3, 4, 5, 6] and found.finish == "stop"
