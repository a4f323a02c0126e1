"""The fast path against plain autograd, one segment at a time, in float32."""

from __future__ import annotations

import itertools

import pytest
import torch

from jurat.engine.learner import Tally
from jurat.engine.llama import attention as attention_module
from jurat.engine.llama import head as head_module
from jurat.engine.llama.learner import LlamaNetwork
from jurat.engine.llama.plan import make_plan
from jurat.engine.llama.weights import FlatWeights, shape_of

GROUPS = {
    "groups": [(7, (3, 5, 1)), (9, (4, 4, 4, 2)), (8, (2, 2))],
    "uneven": [(30, (2,)), (1, (9, 1)), (3, (1, 1)), (5, (17, 3, 20))],
    "one token each": [(4, (1, 1, 1)), (6, (1,))],
    "single": [(5, (8,))],
}


def fast(make, *, dtype=torch.float32, temperature=1.0, checkpointing=False, **shape) -> LlamaNetwork:
    model = make.llama(**shape)
    weights = FlatWeights.from_state_dict(model.config, model.state_dict(), dtype=dtype)
    return LlamaNetwork(weights, temperature=temperature, checkpointing=checkpointing)


def distinct_rows(mb) -> int:
    """Different beginnings of samples that are followed by a target; the groups here differ in their prompts."""
    beginnings = set()
    for start, end in itertools.pairwise(mb.offsets.tolist()):
        beginnings |= {tuple(mb.tokens[start:stop].tolist()) for stop in range(start + 1, end)}
    return len(beginnings)


def gradients(network: LlamaNetwork, mb, objective) -> tuple[dict[str, torch.Tensor], Tally]:
    tally = Tally()
    network.grad.zero_()
    network.backward(mb, objective, tally)
    return {name: view.clone() for name, view in network.weights.views(network.grad).items()}, tally


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS.keys())
@pytest.mark.parametrize("local", [True, False], ids=["one pass", "two passes"])
def test_equals_plain_autograd(make, groups, local):
    mb, objective = make.microbatch(groups), make.surrogate(kl=0.1, token_local=local)
    logprobs, wanted, loss = make.reference(make.llama(), mb, objective)
    network = fast(make)
    torch.testing.assert_close(network.logprobs(mb), logprobs, rtol=0, atol=2e-5)
    found, tally = gradients(network, mb, objective)
    assert make.distance(found, wanted) < 2e-5
    assert tally.loss == pytest.approx(loss, rel=1e-5)
    assert tally.targets == int(mb.loss_mask.sum())
    assert tally.forwarded == distinct_rows(mb)


@pytest.mark.parametrize(
    "shape",
    [
        {"tie_word_embeddings": False},
        {"num_attention_heads": 4, "num_key_value_heads": 4},
        {"num_attention_heads": 6, "num_key_value_heads": 1},
        {"head_dim": 16},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}},
    ],
    ids=["untied", "one kv head each", "one kv head", "wide heads", "scaled positions"],
)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_shapes(make, shape, temperature):
    mb, objective = make.microbatch(GROUPS["groups"]), make.surrogate(kl=0.1)
    logprobs, wanted, _ = make.reference(make.llama(**shape), mb, objective, temperature=temperature)
    network = fast(make, temperature=temperature, **shape)
    torch.testing.assert_close(network.logprobs(mb), logprobs, rtol=0, atol=5e-5)
    assert make.distance(gradients(network, mb, objective)[0], wanted) < 5e-5


def test_losses_of_whole_sequences(make):
    mb, objective = make.microbatch(GROUPS["uneven"]), make.sequence_ratio()
    _, wanted, _ = make.reference(make.llama(), mb, objective)
    assert make.distance(gradients(fast(make), mb, objective)[0], wanted) < 2e-5


def test_targets_with_gaps(make):
    """Several turns: tokens between targets that nobody is trained on are still read."""
    mb = make.microbatch(GROUPS["uneven"])
    mask = mb.loss_mask.clone()
    last = mb.offsets[1:] - 1
    hidden = torch.rand(len(mask), generator=torch.Generator().manual_seed(1)) < 0.5
    hidden[last] = False
    mask &= ~hidden
    for column in (mb.weights, mb.advantages, mb.sampler_logprobs):
        column.mul_(mask)
    mb.loss_mask.copy_(mask)
    objective = make.surrogate(kl=0.1)
    logprobs, wanted, _ = make.reference(make.llama(), mb, objective)
    network = fast(make)
    torch.testing.assert_close(network.logprobs(mb), logprobs, rtol=0, atol=2e-5)
    assert make.distance(gradients(network, mb, objective)[0], wanted) < 2e-5


@pytest.mark.parametrize(("scores", "rows"), [(1, 256), (40, 256), (400, 256), (10**6, 3), (400, 2)])
@pytest.mark.parametrize("checkpointing", [True, False])
def test_pieces_and_checkpointing_change_nothing(make, monkeypatch, scores, rows, checkpointing):
    mb, objective = make.microbatch(GROUPS["uneven"]), make.surrogate(kl=0.1)
    wanted, _ = gradients(fast(make), mb, objective)
    monkeypatch.setattr(attention_module, "SCORES", scores)
    monkeypatch.setattr(attention_module, "ROWS", rows)
    monkeypatch.setattr(head_module, "CHUNK", 10)
    monkeypatch.setattr(head_module, "BLOCK", 4)
    found, _ = gradients(fast(make, checkpointing=checkpointing), mb, objective)
    assert make.distance(found, wanted) < 1e-5


def test_sharing_prompts_changes_nothing(make):
    """The same samples dealt out one by one share nothing; together they run over each prompt once."""
    mb, objective = make.microbatch(GROUPS["groups"]), make.surrogate(kl=0.1)
    network = fast(make)
    together, tally = gradients(network, mb, objective)
    apart = Tally()
    network.grad.zero_()
    for segment in range(len(mb.offsets) - 1):
        network.backward(make.slice(mb, segment, segment + 1), objective, apart)
    found = network.weights.views(network.grad)
    assert make.distance(found, together) < 1e-5
    assert apart.forwarded - tally.forwarded >= 2 * 7 + 3 * 9 + 1 * 8


@pytest.mark.parametrize("local", [True, False], ids=["one pass", "two passes"])
def test_samples_that_begin_alike_share_those_rows(make, local):
    mb = make.microbatch([(4, (5, 5, 5, 2)), (3, (4, 4))])
    first, second, third, fourth, other, same = (slice(a + p, b) for (a, b), p in zip(
        itertools.pairwise(mb.offsets.tolist()), (4, 4, 4, 4, 3, 3), strict=True
    ))  # fmt: skip
    mb.tokens[second] = mb.tokens[first]  # equal throughout
    mb.tokens[third][:3] = mb.tokens[first][:3]  # part of the way
    mb.tokens[fourth] = mb.tokens[first][:2]  # a beginning
    mb.tokens[same][1:] = mb.tokens[other][1:]  # equal tokens after a different one
    mb.tokens[same][0] = (mb.tokens[other][0] + 1) % 97
    objective = make.surrogate(kl=0.1, token_local=local)
    logprobs, wanted, _ = make.reference(make.llama(), mb, objective)
    network = fast(make)
    torch.testing.assert_close(network.logprobs(mb), logprobs, rtol=0, atol=2e-5)
    found, tally = gradients(network, mb, objective)
    assert make.distance(found, wanted) < 2e-5
    assert tally.forwarded == distinct_rows(mb) == 4 + 4 + 1 + 0 + 3 + 3 + 3
    assert tally.targets == 25


def test_plan_of_the_example(make):
    shape = shape_of(make.llama().config)
    mb = make.microbatch([(2, (3, 2)), (2, (1,))])
    mb.tokens.copy_(torch.tensor([11, 12, 21, 22, 23, 11, 12, 21, 24, 13, 12, 21]))
    plan = make_plan(mb, shape)
    assert plan.tokens.tolist() == [11, 12, 21, 22, 13, 12]
    assert plan.positions.tolist() == [0, 1, 2, 3, 0, 1]
    assert plan.sources.tolist() == [1, 2, 3, 5]
    assert plan.targets.tolist() == [2, 7, 3, 8, 4, 11]
    assert plan.source_of.tolist() == [0, 0, 1, 1, 2, 3]
    assert plan.starts == (0, 2, 4, 5, 6)


def test_gradient_of_the_pad_row_is_kept(make):
    mb = make.microbatch([(5, (3,))])
    mb.tokens[1] = 2
    found, _ = gradients(fast(make, tie_word_embeddings=False), mb, make.surrogate())
    assert found["model.embed_tokens.weight"][2].norm() > 0


def test_bfloat16_is_near_float32(make):
    mb, objective = make.microbatch(GROUPS["groups"]), make.surrogate()
    exact, rough = fast(make), fast(make, dtype=torch.bfloat16)
    assert 0 < (exact.logprobs(mb) - rough.logprobs(mb)).abs().mean() < 0.05
    wanted, found = gradients(exact, mb, objective)[0], gradients(rough, mb, objective)[0]
    flat = torch.cat([tensor.flatten() for tensor in wanted.values()])
    gap = torch.cat([tensor.flatten() for tensor in found.values()]) - flat
    assert gap.norm() / flat.norm() < 0.1
