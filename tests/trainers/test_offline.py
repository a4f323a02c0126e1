"""Given completions as groups and samples: pairs in order and whole, labels, the reference point of a batch."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jurat.engine import local, models
from jurat.engine.learner import Tally, worth_training
from jurat.platform.config import validate
from jurat.platform.errors import ConfigError, DataError
from jurat.platform.recipe import Engine, Optim, SamplingPart
from jurat.platform.types import COLUMNS, Message, Problem, VerifierSpec, Visit
from jurat.trainers.aggregation import seq_mean_token_mean
from jurat.trainers.algorithms import build_algorithm
from jurat.trainers.contradictions import refuse_idle
from jurat.trainers.data import short_enough
from jurat.trainers.evaluate import loss_of
from jurat.trainers.losses.preference import DPO, KTO
from jurat.trainers.offline import KINDS, Given, RolloutMaker
from jurat.trainers.packing import pack
from jurat.trainers.presets import filled
from jurat.trainers.samples import annotate


class Tokenizer:
    """One token a character, 1 the end mark."""

    eos_ids = (1,)
    max_length = 64

    def encode_prompt(self, messages):
        return np.array([2, *self.encode(messages[-1].content)])

    def encode(self, text):
        return np.array([ord(c) for c in text], dtype=np.int64)

    def decode(self, ids):
        return "".join(chr(i) for i in ids[ids > 2]), np.minimum(np.arange(1, len(ids) + 1), (ids > 2).sum())


class Scorer:
    """Log-prob of a token: minus itself times ``scale``."""

    ranks = 1

    def __init__(self, scale):
        self.scale, self.tokens = scale, 0

    async def score(self, rounds):
        self.tokens += sum(len(mb.tokens) for row in rounds for mb in row)
        return [[(mb.tokens * mb.loss_mask * -self.scale).float().numpy() for mb in row] for row in rounds]


def visits(*columns, ask="{n}="):
    made = []
    for n, given_ in enumerate(columns):
        messages = (Message(role="user", content=ask.format(n=n)),)
        spec = VerifierSpec(name="math")
        problem = Problem(id=f"p{n}", messages=messages, reference="", verifier=spec, columns=given_)
        made.append(Visit(problem=problem, visit=0, position=n))
    return made


def pair(chosen, rejected):
    return {"chosen": chosen, "rejected": rejected}


def labelled(completion, label):
    return {"completion": completion, "label": label}


def recipe(name, **more):
    keys = {"algorithm": {"name": name}, **more}
    return validate({"model": "m", "data": {"train": {"source": "a.jsonl"}}, **keys}, where="test")


def groups_of(name, *columns, **more):
    return KINDS[name].groups(visits(*columns, **more), RolloutMaker("run", "stage", Tokenizer()))


def text(scored):
    return Tokenizer().decode(scored.rollout.tokens)[0]


async def test_a_pair_is_two_samples_of_one_atom():
    groups = groups_of("dpo", pair("ab", "c"), pair("d", "ef"))
    assert [[text(s) for s in g.scored] for g in groups] == [["0=ab", "0=c"], ["1=d", "1=ef"]]
    assert [[s.judgement.reward.value for s in g.scored] for g in groups] == [[1.0, 0.0]] * 2
    assert len({s.rollout.id for g in groups for s in g.scored}) == 4
    algorithm = build_algorithm(recipe("dpo"))
    scores = await annotate(groups, algorithm.needs, {"reference": Scorer(0.5)}, tokens=8)
    samples = algorithm.samples(groups, scores)
    assert [s.atom for s in samples] == [0, 0, 1, 1]
    assert samples[0].labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert samples[1].labels.tolist() == [0] * 5
    np.testing.assert_array_equal(samples[2].ref_logprobs, -0.5 * samples[2].tokens * samples[2].loss_mask)
    assert samples[0].values is None


async def test_the_reference_point_is_of_this_prompt_with_the_next_completion():
    groups = groups_of("kto", labelled("a", True), labelled("bcd", False), labelled("e", True))
    assert [text(g.scored[0]) for g in groups] == ["0=a", "1=bcd", "2=e"]
    assert [text(g.baseline) for g in groups] == ["0=bcd", "1=e", "2=a"]
    assert all(g.baseline.judgement.reward.value is None for g in groups)
    algorithm = build_algorithm(recipe("kto"))
    policy, reference = Scorer(0.25), Scorer(0.5)
    scorers = {"policy": policy, "reference": reference}
    scores = await annotate(groups, algorithm.needs, scorers, tokens=9, baselines=algorithm.point_needs)
    samples = algorithm.samples(groups, scores)
    z0 = 0.25 * (sum(map(ord, "bcdea")) + 3) / 3
    for sample in samples:
        np.testing.assert_allclose(sample.values, z0 * sample.loss_mask, rtol=1e-6)
    assert [s.labels.max() for s in samples] == [1, 0, 1]
    lengths = sum(len(g.baseline.rollout.tokens) for g in groups)
    assert (policy.tokens, reference.tokens) == (lengths, 2 * lengths)


async def test_a_reference_point_below_zero_is_zero():
    groups = groups_of("kto", labelled("a", True), labelled("b", False))
    algorithm = build_algorithm(recipe("kto"))
    scorers = {"policy": Scorer(0.5), "reference": Scorer(0.25)}
    scores = await annotate(groups, algorithm.needs, scorers, tokens=9, baselines=algorithm.point_needs)
    assert not any(sample.values.any() for sample in algorithm.samples(groups, scores))


def test_what_is_no_mismatch_makes_no_baseline():
    same = groups_of("kto", labelled("a", True), labelled("b", False), ask="2+2=")
    assert [g.baseline for g in same] == [None, None]
    (alone,) = groups_of("kto", labelled("a", True))
    assert alone.baseline is None
    short, long = groups_of("kto", labelled("a", True), labelled("b" * 58, False), ask="{n}" * 4)
    assert (short.baseline is None, long.baseline is None) == (False, False)
    short, long = groups_of("kto", labelled("a", True), labelled("b" * 59, False), ask="{n}" * 4)
    assert (short.baseline is None, long.baseline is None) == (True, False)


class Order:
    def __init__(self, problems):
        self.visits, self.at = problems, 0

    def draw(self, count):
        self.at += count
        return tuple(self.visits[self.at - count : self.at])

    def state(self):
        return {"at": self.at}

    def restore(self, state):
        self.at = state["at"]


@pytest.mark.parametrize("name", ["sft", "dpo", "kto"])
async def test_a_source_goes_on_where_it_was(name):
    drawn = visits(*({**pair("a", "b"), **labelled("c", True), "solution": "d"} for _ in range(6)))

    def source():
        by_id = {visit.problem.id: visit.problem for visit in drawn}
        maker = RolloutMaker("run", "s", Tokenizer())
        return Given(problems=Order(drawn), by_id=by_id, groups=KINDS[name].groups, maker=maker, prompts_per_step=2)

    def ids(batch):
        return [scored.rollout.id for group in batch.groups for scored in group.scored]

    one = source()
    one.plan(0)
    one.observe(await one.batch(0))
    one.plan(1)
    two = source()
    two.restore(await one.interrupt())
    for each in (one, two):
        each.plan(2)
    assert [ids(await one.batch(step)) for step in (1, 2)] == [ids(await two.batch(step)) for step in (1, 2)]
    assert set(two.plans) == {1, 2}


# ---- pairs stay whole ----------------------------------------------------------------------------------------------


async def samples_of(name, *columns, **more):
    algorithm = build_algorithm(recipe(name, **more))
    groups = groups_of(name, *columns)
    scorers = {"policy": Scorer(0.011), "reference": Scorer(0.01)}
    scores = await annotate(groups, algorithm.needs, scorers, tokens=30, baselines=algorithm.point_needs)
    return algorithm, algorithm.samples(groups, scores)


words = st.text("abc", min_size=1, max_size=9)
PAIRS = st.lists(st.tuples(words, words), min_size=1, max_size=6)


def slopes(algorithm, samples, tokens, ranks):
    """(loss, d loss / d log-prob of each sample) over all microbatches, in float64."""
    packed = pack(
        samples, algorithm.objectives["policy"], algorithm.aggregation, ranks=ranks, tokens=tokens,
        whole_atoms=algorithm.whole_atoms,
    )  # fmt: skip
    total, found = 0.0, []
    for row in packed.rounds:
        found.append([])
        for mb in row:
            double = {name: None if (c := getattr(mb, name)) is None else c.double() for name in COLUMNS}
            current = (-0.012 * mb.tokens * mb.loss_mask).double().requires_grad_()
            loss, _ = algorithm.objectives["policy"](current, dataclasses.replace(mb, **double))
            total += loss.item()
            found[-1].append(torch.autograd.grad(loss, current)[0].numpy() if len(mb.tokens) else np.zeros(0))
    return total, packed.unpack(found, samples)


@pytest.mark.parametrize("given_", [{"name": "dpo"}, {"name": "dpo", "kind": "ipo"}, {"name": "kto"}])
@settings(max_examples=30, deadline=None)
@given(pairs=PAIRS, tokens=st.integers(1, 80), ranks=st.integers(1, 3))
async def test_any_split_gives_equal_gradients(given_, pairs, tokens, ranks):
    name = given_["name"]
    rows = [pair(*p) if name == "dpo" else labelled(p[0], len(p[1]) % 2 == 0) for p in pairs]
    algorithm, samples = await samples_of(name, *rows, algorithm=given_)
    whole, wanted = slopes(algorithm, samples, 10**9, 1)
    total, got = slopes(algorithm, samples, tokens, ranks)
    assert total == pytest.approx(whole, rel=1e-12, abs=1e-12)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15)


@settings(max_examples=40, deadline=None)
@given(pairs=PAIRS, tokens=st.integers(1, 80))
async def test_pairs_lie_side_by_side(pairs, tokens):
    algorithm, samples = await samples_of("dpo", *(pair(*p) for p in pairs))
    packed = pack(samples, None, seq_mean_token_mean, ranks=1, tokens=tokens, whole_atoms=True)
    for place, sample in zip(packed.places, samples, strict=True):
        mb = packed.rounds[place[0]][0]
        segment = mb.offsets.tolist().index(place[2])
        assert segment % 2 == (0 if sample.labels.any() else 1)
    for (mb,) in packed.rounds:
        assert len(mb.offsets) % 2 == 1
        prompt = [int(mask.logical_not().sum()) for mask in mb.loss_mask.tensor_split(mb.offsets[1:-1])]
        forwarded = int(mb.loss_mask.sum()) + sum(prompt[::2])
        assert forwarded <= tokens or len(mb.offsets) == 3, "only a pair alone may be longer"
        kept = worth_training(mb, DPO())
        assert len(kept.offsets) == len(mb.offsets)
        torch.testing.assert_close(kept.loss_mask.sum(), mb.loss_mask.sum())


async def test_updates_of_one_batch_keep_the_reference_point():
    rows = [labelled("ab", True), labelled("c", False), labelled("d", True), labelled("e", False)]
    _, samples = await samples_of("kto", *rows, updates_per_step=2)
    assert len({float(sample.values.max()) for sample in samples}) == 1


async def test_the_loss_of_a_policy_that_is_the_reference():
    scorers = {"policy": Scorer(0.5), "reference": Scorer(0.5)}
    for name, rows, wanted in (
        ("dpo", [pair("ab", "c"), pair("d", "ef")], np.log(2)),
        ("kto", [labelled("ab", True), labelled("c", False)], 0.5),
    ):
        algorithm = build_algorithm(recipe(name))
        assert await loss_of(groups_of(name, *rows), algorithm, scorers, tokens=4) == pytest.approx(wanted, rel=1e-6)
    taught = [{"solution": "ab"}, {"solution": "c"}]
    tokens = [*map(ord, "abc"), 1, 1]
    found = await loss_of(groups_of("sft", *taught), build_algorithm(recipe("sft")), scorers, tokens=4)
    assert found == pytest.approx(0.5 * np.mean(tokens), rel=1e-6)


# ---- through a model -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["fast", "simple"])
def test_any_split_moves_a_model_alike(path, tmp_path):
    folder = models.resolve("tiny-random", tmp_path)
    engine = local.build(
        folder, Engine(dtype="float32", threads=1, path=path), Optim(), SamplingPart(max_new_tokens=4), total_steps=1
    )
    network, maker = engine.learner.network, RolloutMaker("", "", engine.tokenizer)
    rows = {
        "dpo": [pair("12", "345"), pair("6", "78"), pair("910", "1"), pair("2", "3")],
        "kto": [labelled("12", True), labelled("345", False), labelled("6", True)],
    }
    try:
        for name, objective in (("dpo", DPO(beta=0.5)), ("dpo", DPO(kind="ipo")), ("kto", KTO())):
            algorithm = build_algorithm(recipe(name))
            groups = KINDS[name].groups(visits(*rows[name]), maker)
            ids = [s.rollout for g in groups for s in g.scored]
            scores = {"ref_logprobs": {r.id: -2.0 * r.loss_mask.astype(np.float32) for r in ids}}
            samples = dataclasses.replace(algorithm, point_needs={}).samples(groups, scores)
            found = []
            for tokens in (10**9, 20, 1):
                network.grad.zero_()
                packed = pack(samples, objective, algorithm.aggregation, ranks=1, tokens=tokens,
                              whole_atoms=algorithm.whole_atoms)  # fmt: skip
                for (mb,) in packed.rounds:
                    network.backward(worth_training(mb, objective), objective, Tally())
                found.append((len(packed.rounds), network.grad.clone()))
            assert found[0][0] == 1 and found[2][0] == len(groups)
            for _, grad in found[1:]:
                assert float((grad - found[0][1]).norm() / found[0][1].norm()) < 1e-5
    finally:
        engine.close()


# ---- what is refused -----------------------------------------------------------------------------------------------


def test_kto_needs_other_prompts():
    with pytest.raises(ConfigError, match="prompts_per_step is 1"):
        build_algorithm(recipe("kto", prompts_per_step=1))


def test_a_curriculum_needs_samples():
    data = {"train": {"source": "a.jsonl"}, "curriculum": {}}
    with pytest.raises(ConfigError, match=r"algorithm.name 'dpo' samples nothing"):
        build_algorithm(recipe("dpo", data=data))


RL = {"allocation": {"samples_per_prompt": 4}}


@pytest.mark.parametrize("name", ["sft", "dpo", "kto"])
def test_an_allocation_of_a_stage_that_samples_nothing_is_refused(name):
    with pytest.raises(ConfigError, match=f"allocation is about samples .*'{name}' learns from given completions"):
        refuse_idle(recipe(name, **RL))
    offline, sampled = {"name": "one", "steps": 1, "algorithm": {"name": name}}, {"name": "two", "steps": 1}
    with pytest.raises(ConfigError) as caught:
        refuse_idle(recipe("grpo", stages=[{**offline, **RL}, sampled]))
    assert (caught.value.where, caught.value.fix) == ("stages.0.allocation", "leave it out")
    refuse_idle(recipe(name, **RL | {"allocation": {}}))  # as the error of a recipe without stages says
    shared = recipe("grpo", **RL, stages=[offline, sampled])
    refuse_idle(shared)
    refuse_idle(filled(shared))
    refuse_idle(recipe(name))
    refuse_idle(validate(filled(recipe(name)).model_dump(mode="json"), where="test"))


def test_what_is_given_has_to_fit():
    problems = [v.problem for v in visits(pair("a" * 10, "b"), pair("a", "b" * 20), pair("a", "b"))]
    notes = []

    def kept(**keys):
        part = recipe("dpo", **keys)
        return [p.id for p in short_enough(problems, Tokenizer(), part, notes.append, "train", given=True)]

    assert kept(algorithm={"name": "dpo", "max_completion_tokens": 11}) == ["p0", "p2"]
    assert "1 of 3 completions of data.train are longer than 11 tokens (algorithm.max_completion_tokens)" in notes[0]
    assert kept() == ["p0", "p1", "p2"]
    refuse = {"train": {"source": "a.jsonl"}, "long_prompts": "refuse"}
    with pytest.raises(DataError, match="2 of 3 completions"):
        kept(algorithm={"name": "dpo", "max_completion_tokens": 5}, data=refuse)
