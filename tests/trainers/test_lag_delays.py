"""Whatever the speed of sampler, judge and learner, and wherever a run is stopped: the real Buffer, Rollouts and batched
decoding over a toy model whose tokens say which version drew them."""

import asyncio
import json
import random
import time
from collections import Counter

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jurat.datasets.cursor import ShuffledSource
from jurat.engine.batching import BatchedSampler
from jurat.engine.decoding import Decoding
from jurat.engine.sampling import draw
from jurat.platform.config import validate
from jurat.platform.types import Judgement, Message, Problem, Reward, Sampling, Step, Verdict, VerifierSpec
from jurat.trainers.allocate import build_allocator
from jurat.trainers.buffer import Buffer
from jurat.trainers.rollouts import Rollouts

STEPS = 4
PROBLEMS = [
    Problem(id=name, messages=(Message(role="user", content=name),), reference="1", verifier=VerifierSpec(name="math"))
    for name in "abcdefghijkl"
]


class Letters:
    """A Tokenizer of bytes."""

    eos_ids, max_length = (0,), 64

    def encode_prompt(self, messages):
        return np.frombuffer(messages[0].content.encode(), dtype=np.uint8).astype(np.int64)

    def decode(self, ids):
        return bytes(ids.tolist()).decode(), np.arange(1, len(ids) + 1)


class Versions:
    """A decoder that draws the letter of its version, or with one chance in four the end."""

    max_length, refills, device, kernels = 64, True, torch.device("cpu"), "torch"

    def __init__(self, speeds):
        self.version, self.speeds = 0, speeds

    def admit(self, prompts, draws):
        return self._next(len(prompts), draws)

    def step(self, tokens, draws):
        return self._next(len(tokens), draws)

    def _next(self, rows, draws):
        time.sleep(self.speeds.decode * self.speeds.random.random())
        logits = torch.full((rows, 128), -torch.inf)
        logits[:, 0], logits[:, 65 + self.version] = np.log(0.25), np.log(0.75)
        return draw(logits, draws)

    def keep(self, rows):
        pass

    def refresh(self):
        pass


class Parity:
    """A Judge with a verdict that has everything in it."""

    def __init__(self, speeds):
        self.speeds, self.asked = speeds, Counter()

    async def judge(self, problem, text, *, finish):
        await self.speeds.pause(self.speeds.judge)
        odd = len(text) % 2
        verdict = Verdict.of(
            "correct" if odd else "incorrect", read=text[:3] + "\ud800", why="parity", evidence={"n": [len(text), 0.1, None]},
            flags=("toy",), steps=(Step(start=0, end=1, status="correct", score=1.0),), seconds=0.1,
            verifier=VerifierSpec(name="parity", args={"k": [1]}, digest="sha256:0"), isolation="process",
        )  # fmt: skip
        return Judgement(
            verdicts={"z": verdict, "a": verdict}, reward=Reward(value=float(odd), parts={"z": 1.0, "a": None})
        )


class Speeds:
    def __init__(self, seed=0, decode=0.0, judge=0.0, update=0.0):
        self.random, self.decode, self.judge, self.update = random.Random(seed), decode, judge, update

    def pause(self, most):
        return asyncio.sleep(most * self.random.random())


def compose(speeds, allocation, lag, lockstep, state=None, version=0):
    recipe = validate({"model": "m", "data": {"train": {"source": "generated"}}, "allocation": allocation}, where="t")
    decoder = Versions(speeds)
    decoder.version = version
    sampler = BatchedSampler(Decoding(decoder, max_concurrent=6, version=version))
    source = Rollouts(
        run="r", stage="", seed=0, problems=ShuffledSource(PROBLEMS, 0), by_id={each.id: each for each in PROBLEMS},
        allocator=build_allocator(recipe), sampler=sampler, judge=Parity(speeds), tokenizer=Letters(),
        sampling=Sampling(temperature=1.0, max_new_tokens=12, stop_token_ids=(0,)), prompts_per_step=2,
    )  # fmt: skip
    stop = asyncio.Event()
    buffer = Buffer(source=source, max_lag=lag, first_step=version, last_step=STEPS, stop=stop, lockstep=lockstep)
    if state is not None:
        buffer.restored(state)
    return decoder, sampler, source, buffer


async def run(speeds, allocation, lag, lockstep, saves=(), stops=(), killed=()):
    """{step: batch}. A checkpoint follows the steps of ``saves``; in those of ``stops`` one interrupts the wait for the batch;
    where the step is in ``killed`` another process goes on from it."""
    decoder, sampler, source, buffer = compose(speeds, allocation, lag, lockstep)
    buffer.published(0)

    async def checkpoint(version):
        nonlocal decoder, sampler, source, buffer
        state = json.loads(json.dumps(await buffer.checkpoint(), sort_keys=True, allow_nan=False))
        if version in killed:
            sampler.close()
            decoder, sampler, source, buffer = compose(speeds, allocation, lag, lockstep, state, version)
            buffer.published(version)
        assert source.state() == state["source"]

    async def take(step):
        if step not in stops:
            return await buffer.take(step)
        waiting = asyncio.create_task(buffer.take(step))
        await speeds.pause(0.02)
        buffer.stop.set()
        batch = await waiting
        buffer.stop.clear()
        if batch is None:
            await checkpoint(step)
            return await buffer.take(step)
        return batch

    taken = {}
    try:
        for step in range(STEPS):
            taken[step] = await take(step)
            await speeds.pause(speeds.update)
            if buffer.lockstep:
                await buffer.settle()
            version = step + 1

            def load(version=version):
                decoder.version = version

            await sampler.publish(version, load)
            buffer.published(version)
            if step in saves:
                await checkpoint(version)
    finally:
        await buffer.cancel()
        sampler.close()
    return taken


def drawn(taken):
    """{(problem, visit, index): (step, text, spans)} of every rollout, discarded ones too."""
    found = {}
    for step, batch in taken.items():
        assert [g.visit.position for g in batch.groups] == sorted(g.visit.position for g in batch.groups)
        for group in (*batch.groups, *(group for group, _ in batch.discarded)):
            assert [s.rollout.index for s in group.scored] == list(range(len(group.scored)))
            for scored in group.scored:
                r = scored.rollout
                key = (r.problem.id, r.visit, r.index)
                assert key not in found
                found[key] = (step, r.text, [(s.start, s.end, s.version) for s in r.spans])
                assert list(scored.judgement.verdicts) == ["z", "a"]
    return found


ALLOCATIONS = [
    {"name": "uniform", "samples_per_prompt": 3},
    {"name": "dapo", "samples_per_prompt": 2, "max_refills": 2},
    {"name": "until_mixed", "samples_per_prompt": 2, "max_samples": 6},
]
steps = st.sets(st.integers(0, STEPS - 1))
few = st.sampled_from([0.0, 0.002, 0.01])


@settings(max_examples=20)
@given(
    lag=st.integers(0, 3), lockstep=st.booleans(), allocation=st.sampled_from(ALLOCATIONS), seed=st.integers(0, 99),
    decode=st.sampled_from([0.0, 0.002]), judge=few, update=few, saves=steps, stops=steps, killed=steps,
)  # fmt: skip
def test_each_sample_once_by_the_versions_of_its_spans(
    lag, lockstep, allocation, seed, decode, judge, update, saves, stops, killed
):
    speeds = Speeds(seed, decode, judge, update)
    found = drawn(asyncio.run(run(speeds, allocation, lag, lockstep, saves, stops, killed)))
    for step, text, spans in found.values():
        assert all(max(0, step - lag) <= version <= step for _, _, version in spans)
        said = "".join(chr(65 + version) * (end - start) for start, end, version in spans)
        assert text.rstrip("\0") == said[: len(text.rstrip("\0"))]
        assert len(said) == len(text)
    positions = Counter(key[:2] for key in found)
    assert len(positions) >= 2 * STEPS
    if lockstep or not lag:
        assert found == drawn(asyncio.run(run(Speeds(), allocation, lag, lockstep)))
    if lockstep:
        assert all(spans[0][2] == max(0, step - lag) and len(spans) == 1 for step, _, spans in found.values())
