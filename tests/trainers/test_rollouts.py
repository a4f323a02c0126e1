"""Visits to groups: extension, refills, discards, greedy baselines; a plan outlives an interrupt and a checkpoint."""

import asyncio
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from jurat.datasets.cursor import ShuffledSource
from jurat.platform.config import validate
from jurat.platform.errors import DataError
from jurat.platform.runs.rollouts import read
from jurat.platform.runs.store import Store
from jurat.platform.types import (
    Completion,
    Judgement,
    Message,
    Problem,
    Reward,
    Sampling,
    Span,
    Verdict,
    VerifierSpec,
)
from jurat.trainers import launch
from jurat.trainers.allocate import build_allocator
from jurat.trainers.metrics import step_metrics
from jurat.trainers.rollouts import Rollouts
from screens import Screen

PROBLEMS = [
    Problem(id=name, messages=(Message(role="user", content=name),), reference="1", verifier=VerifierSpec(name="math"))
    for name in "abcdefgh"
]


class Letters:
    """A Tokenizer of bytes."""

    eos_ids, max_length = (0,), 64

    def encode_prompt(self, messages):
        return self.encode(messages[0].content)

    def encode(self, text):
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)

    def decode(self, ids):
        return bytes(ids.tolist()).decode(), np.arange(1, len(ids) + 1)


class Dice:
    """A Sampler that says 1 with the probability of its prompt, by the request's seed alone; greedily its likelier one."""

    def __init__(self, success):
        self.success, self.asked, self.gate = success, [], asyncio.Event()
        self.gate.set()

    async def sample(self, request):
        self.asked.append(request)
        await self.gate.wait()
        await asyncio.sleep(0)
        p = self.success[bytes(request.prompt.tolist()).decode()]
        if request.sampling.temperature == 0.0:
            right = p > 0.5
        else:
            right = np.random.default_rng(request.seed).random() < p
        return Completion(
            token_ids=np.array([49 if right else 48]),
            logprobs=np.zeros(1, dtype=np.float32),
            finish="stop",
            spans=(Span(start=0, end=1, version=0),),
        )

    async def interrupt(self):
        return ()


class Digit:
    """A Judge: the text is the score; ``mute`` problems get none."""

    def __init__(self, mute=()):
        self.mute = mute

    async def judge(self, problem, text, *, finish):
        if problem.id in self.mute:
            return Judgement(verdicts={"problem": Verdict.of("error")}, reward=Reward(value=None))
        verdict = Verdict.of("correct" if text == "1" else "incorrect")
        return Judgement(verdicts={"problem": verdict}, reward=Reward(value=verdict.score))


def make(allocation, success=0.5, *, mute=(), prompts=2, **options):
    """Rollouts over eight problems; ``success`` of all, or of each by name."""
    recipe = validate({"model": "m", "data": {"train": {"source": "generated"}}, "allocation": allocation}, where="t")
    chances = success if isinstance(success, dict) else {problem.id: success for problem in PROBLEMS}
    return Rollouts(
        run="r",
        stage="",
        seed=0,
        problems=ShuffledSource(PROBLEMS, 0),
        by_id={problem.id: problem for problem in PROBLEMS},
        allocator=build_allocator(recipe),
        sampler=Dice(chances),
        judge=Digit(mute),
        tokenizer=Letters(),
        sampling=Sampling(temperature=1.0, max_new_tokens=4),
        prompts_per_step=prompts,
        **options,
    )


async def take(source, step=0):
    source.plan(step)
    batch = await source.batch(step)
    source.observe(batch)
    return batch


def shape(batch):
    """Everything that was decided and drawn."""

    def one(group):
        allocation = group.allocation
        return (
            group.visit.position,
            [(s.rollout.id, s.rollout.index, s.rollout.text) for s in group.scored],
            (allocation.samples, allocation.reason, allocation.greedy_baseline, dict(allocation.evidence)),
            group.baseline and group.baseline.rollout.text,
        )

    return [one(g) for g in batch.groups], [(one(g), why) for g, why in batch.discarded]


async def test_uniform_groups_are_ordered_and_complete():
    batch = await take(make({"samples_per_prompt": 3}))
    assert [group.visit.position for group in batch.groups] == [0, 1]
    assert [[s.rollout.index for s in group.scored] for group in batch.groups] == [[0, 1, 2]] * 2
    assert batch.discarded == ()


async def test_a_greedy_baseline_is_one_argmax_rollout_of_its_own():
    source = make({"samples_per_prompt": 2}, 0.9, greedy_baseline=True)
    batch = await take(source)
    for group in batch.groups:
        assert group.allocation.greedy_baseline
        assert (group.baseline.rollout.index, group.baseline.rollout.text) == (-1, "1")
        assert group.baseline.judgement.reward.value == 1.0
        assert len({group.baseline.rollout.id, *(s.rollout.id for s in group.scored)}) == 3
    assert sum(request.sampling.temperature == 0.0 for request in source.sampler.asked) == 2
    assert step_metrics(batch, [])["tokens/generated"] == 6.0
    assert step_metrics(batch, [])["tokens/sampled"] == 4.0


async def test_a_baseline_without_a_score_drops_its_group():
    batch = await take(make({"samples_per_prompt": 2}, greedy_baseline=True, mute="abcdefgh"))
    assert batch.groups == ()
    assert {why for _, why in batch.discarded} == {"its greedy baseline has no score"}


async def test_greedy_baselines_do_not_enter_the_past():
    source = make({"name": "neyman", "samples_per_prompt": 2}, 0.9, greedy_baseline=True)
    await take(source)
    assert {seen.count for seen in source.allocator.past.seen.values()} == {2.0}


async def test_dapo_refills_until_enough_groups_are_mixed():
    chances = {name: 0.5 if name in "ah" else 0.0 for name in "abcdefgh"}
    source = make({"name": "dapo", "samples_per_prompt": 8, "oversample": 1, "max_refills": 20}, chances)
    batch = await take(source)
    assert sorted(group.visit.problem.id for group in batch.groups) == ["a", "h"]
    assert {why for _, why in batch.discarded} == {"not mixed: none correct"}
    positions = [group.visit.position for group in (*batch.groups, *(group for group, _ in batch.discarded))]
    assert sorted(positions) == list(range(len(positions)))
    metrics = step_metrics(batch, [])
    assert metrics["group/discarded"] == len(positions) - 2
    assert metrics["group/refills"] == max(g.allocation.evidence.get("refill", 0) for g in batch.groups) > 0
    assert metrics["tokens/generated"] == 8 * len(positions)


async def test_dapo_ends_with_a_short_or_an_empty_batch():
    source = make({"name": "dapo", "samples_per_prompt": 4, "oversample": 1.5, "max_refills": 3}, 0.0)
    batch = await take(source)
    assert batch.groups == ()
    assert len(batch.discarded) == 3 * 4
    assert step_metrics(batch, [])["tokens/generated"] == 48.0
    assert (await take(source, 1)).groups == ()


async def test_dapo_discards_what_it_drew_too_much_in_order():
    batch = await take(make({"name": "dapo", "samples_per_prompt": 16, "oversample": 2}, 0.5))
    assert [group.visit.position for group in batch.groups] == [0, 1]
    assert [(g.visit.position, why) for g, why in batch.discarded] == [
        (2, "more groups than prompts_per_step"),
        (3, "more groups than prompts_per_step"),
    ]


async def test_until_mixed_extends_and_records_its_rounds():
    chances = {name: 0.0 if name in "abcd" else 0.5 for name in "abcdefgh"}
    source = make({"name": "until_mixed", "samples_per_prompt": 4, "max_samples": 10}, chances, prompts=8)
    batch = await take(source)
    for group in batch.groups:
        scores = [s.judgement.reward.value for s in group.scored]
        assert [s.rollout.index for s in group.scored] == list(range(len(scores)))
        assert group.allocation.samples == len(scores)
        if group.visit.problem.id in "abcd":
            assert group.allocation.evidence["rounds"] == [4, 4, 2]
        else:
            assert 0 < sum(scores) < len(scores)


async def test_excluded_groups_do_not_move_the_allocator():
    source = make({"name": "neyman"}, mute="abcdefgh")
    await take(source)
    assert source.allocator.state() == {"seen": {}}


RULES = [
    {"name": "uniform", "samples_per_prompt": 3},
    {"name": "neyman", "samples_per_prompt": 4, "max_samples": 9},
    {"name": "difficulty"},
    {"name": "dapo", "samples_per_prompt": 4, "max_refills": 3},
    {"name": "until_mixed", "samples_per_prompt": 2, "max_samples": 8},
]
CHANCES = {name: p for name, p in zip("abcdefgh", np.linspace(0.05, 0.95, 8), strict=True)}


@pytest.mark.parametrize("allocation", RULES, ids=lambda part: part["name"])
async def test_a_restored_source_goes_on_as_the_uninterrupted_one(allocation):
    """State through sorted JSON, as a checkpoint stores it, with a batch half sampled when it was taken."""
    whole = make(allocation, CHANCES, prompts=3)
    wanted = [shape(await take(whole, step)) for step in range(6)]
    first = make(allocation, CHANCES, prompts=3)
    found = [shape(await take(first, step)) for step in range(3)]
    first.plan(3)
    running = asyncio.create_task(first.batch(3))
    await asyncio.sleep(0.003)  # into some round or refill of it
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    state = json.loads(json.dumps(await first.interrupt(), sort_keys=True, allow_nan=False))
    second = make(allocation, CHANCES, prompts=3)
    second.restore(state)
    assert second.state() == state
    batch = await second.batch(3)
    second.observe(batch)
    found += [shape(batch), *[shape(await take(second, step)) for step in (4, 5)]]
    assert found == wanted


async def test_a_refill_drawn_before_an_interrupt_is_drawn_again_not_twice():
    source = make({"name": "dapo", "samples_per_prompt": 4, "oversample": 1, "max_refills": 2}, 0.0)
    source.plan(0)
    while len(source.plans[0]) < 2:  # until the first refill is planned, then stop within it
        source.sampler.gate.set()
        running = asyncio.create_task(source.batch(0))
        while len(source.plans[0]) < 2 and not running.done():
            await asyncio.sleep(0)
        source.sampler.gate.clear()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    source.sampler.gate.set()
    drawn = [visit.position for planned in source.plans[0] for visit, _ in planned]
    batch = await source.batch(0)
    assert drawn == [0, 1, 2, 3]
    assert [group.visit.position for group, _ in batch.discarded] == [0, 1, 2, 3, 4, 5]


async def test_a_planned_problem_that_is_gone_is_named():
    source = make({"samples_per_prompt": 2})
    source.plan(0)
    state = source.state()
    del source.by_id[state["plans"]["0"][0][0]["problem"]]
    with pytest.raises(DataError, match=r"plans problem ., which the data set no longer has"):
        source.restore(state)


# ---- whole runs --------------------------------------------------------------------------------------------------------

TINY = {
    "model": "tiny-random",
    "data": {"train": {"source": "generated:plain", "levels": [1], "size": 12}},
    "algorithm": {"name": "grpo", "advantage": "rloo", "aggregation": "prompt-mean"},
    "optim": {"lr": 1e-3},
    "sampling": {"max_new_tokens": 6},
    "engine": {"dtype": "float32", "threads": 1},
    "checkpoint": {"every": 3},
    "steps": 6,
    "prompts_per_step": 4,
    "verifiers": ["rules.py"],
    "reward": {"members": [{"use": "even"}]},
}
RULE = """import jurat

@jurat.verifier('even', version='1')
def even(problem, completion):
    return len(completion) % 2 == 0 and len(problem.messages[0].content) % 3 > 0
"""


def result(home, run):
    store = Store.open(None, home)
    page = read(store, store.run(run), limit=None)
    rows = sorted(
        (r.step, r.scored.rollout.index, r.position, r.discarded or "", r.baseline, r.allocation.samples,
         r.allocation.reason, json.dumps(dict(r.allocation.evidence), sort_keys=True),
         tuple(r.scored.rollout.tokens.tolist()))
        for r in page.records
    )  # fmt: skip
    store.close()
    return rows


def weights(outcome):
    files = sorted((Path(outcome.checkpoint) / "policy").glob("*.safetensors"))
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]


@pytest.mark.parametrize("allocation", [RULES[1], RULES[3]], ids=lambda part: part["name"])
def test_a_stopped_run_resumes_equal(allocation, tmp_path):
    """Weights bit for bit, and every recorded decision with its evidence."""
    (tmp_path / "rules.py").write_text(RULE)
    recipe = validate({**TINY, "allocation": allocation}, where="test")
    whole = launch.train(recipe, home=tmp_path / "a", base=tmp_path, reporter=Screen())
    first = launch.train(recipe, home=tmp_path / "b", base=tmp_path, reporter=Screen(stop=4), run_id=whole.run)
    again = launch.train(None, home=tmp_path / "b", base=tmp_path, reporter=Screen(), resume=first.run)
    assert (first.state, first.step, again.step) == ("interrupted", 4, 6)
    assert result(tmp_path / "b", first.run) == result(tmp_path / "a", whole.run)
    assert weights(again) == weights(whole)


def test_dapo_never_dies_of_a_hopeless_data_set(tmp_path):
    """A model that solves nothing: empty batches, their cost reported, weights as they were, the curriculum named."""
    recipe = validate(
        {**TINY, "verifiers": [], "reward": {}, "steps": 2, "allocation": {"name": "dapo", "max_refills": 1}},
        where="test",
    )
    screen = Screen()
    outcome = launch.train(recipe, home=tmp_path, base=tmp_path, reporter=screen)
    assert outcome.state == "finished"
    assert [report.metrics["group/count"] for report in screen.steps] == [0.0, 0.0]
    assert [report.metrics["group/discarded"] for report in screen.steps] == [12.0, 12.0]
    assert all(report.metrics["tokens/generated"] > 0 for report in screen.steps)
    assert any("curriculum" in note for note in screen.notes)
