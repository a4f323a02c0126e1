"""Value networks of both paths: transformers' values, one another's gradients, and what a learner promises."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from jurat.engine import checkpoint as checkpointing
from jurat.engine import local
from jurat.engine.learner import LocalLearner, Tally, worth_training
from jurat.engine.llama.learner import LlamaNetwork
from jurat.engine.llama.weights import FlatWeights, shape_of
from jurat.engine.simple.learner import SimpleValueNetwork
from jurat.engine.tiny import save_tiny
from jurat.platform.recipe import Engine, Optim, SamplingPart
from jurat.platform.types import Microbatch
from jurat.trainers.losses.value import ValueLoss

GROUPS = [(7, (3, 5, 1)), (1, (4,)), (12, (2, 2))]
OPTIM = Optim(lr=1e-3)


def fast(make, *, checkpointing=False, **shape) -> LlamaNetwork:
    model = make.llama(**shape)
    weights = FlatWeights(dataclasses.replace(shape_of(model.config), values=True), dtype=torch.float32)
    state, views = model.state_dict(), weights.views(weights.master)
    for name in views.keys() - {"score.weight"}:
        views[name].copy_(state[name])
    return LlamaNetwork(weights, checkpointing=checkpointing)


def simple(make, *, checkpointing=False, **shape) -> SimpleValueNetwork:
    return SimpleValueNetwork(make.llama(**shape), dtype=torch.float32, checkpointing=checkpointing)


def with_head(network, seed=1):
    score = network.views()["score.weight"]
    score.copy_(0.1 * torch.randn(score.shape, generator=torch.Generator().manual_seed(seed)))
    network.refresh()
    return network


def microbatch(make, **options):
    mb = make.microbatch(GROUPS, **options)
    draw = torch.Generator().manual_seed(5)
    on = mb.loss_mask.float()
    return dataclasses.replace(
        mb, values=torch.randn(len(on), generator=draw) * on, returns=torch.randn(len(on), generator=draw) * on
    )


def gradients(network, mb, objective):
    tally = Tally()
    network.grad.zero_()
    network.backward(mb, objective, tally)
    if isinstance(network, LlamaNetwork):
        return {name: view.clone() for name, view in network.weights.views(network.grad).items()}, tally
    return {name: p.grad.clone() for name, p in network.model.named_parameters()}, tally


@pytest.fixture(params=[fast, simple])
def value_network(request, make):
    return lambda **shape: request.param(make, **shape)


@pytest.mark.parametrize("tied", [True, False])
def test_values_and_gradients_are_those_of_transformers(make, value_network, tied):
    """LlamaForTokenClassification with one label, one segment at a time; a target's value is that of the row before."""
    from transformers import LlamaForTokenClassification

    model = make.llama(tie_word_embeddings=tied)
    config = model.config
    config.num_labels = 1
    reference = LlamaForTokenClassification(config).eval()
    reference.model.load_state_dict(model.model.state_dict())
    reference.get_input_embeddings().padding_idx = None
    network, mb = with_head(value_network(tie_word_embeddings=tied)), microbatch(make)
    with torch.no_grad():
        reference.score.weight.copy_(network.views()["score.weight"])
        reference.score.bias.zero_()
    found = []
    for start, end in zip(mb.offsets[:-1].tolist(), mb.offsets[1:].tolist(), strict=True):
        values = reference(input_ids=mb.tokens[None, start:end]).logits[0, :-1, 0]
        found.append(torch.cat([values.new_zeros(1), values]) * mb.loss_mask[start:end])
    current = torch.cat(found)
    torch.testing.assert_close(network.logprobs(mb), current.detach(), rtol=0, atol=2e-5)
    loss, _ = ValueLoss(0.5)(current, mb)
    loss.backward()
    wanted = {name: p.grad for name, p in reference.named_parameters() if name != "score.bias"}
    mine, tally = gradients(network, mb, ValueLoss(0.5))
    assert make.distance(mine, wanted) < 2e-5
    assert tally.loss == pytest.approx(float(loss.detach()), rel=1e-5)
    assert (tally.targets, tally.entropy) == (int(mb.loss_mask.sum()), 0.0)


def test_both_paths_have_the_same_gradients(make):
    mb = microbatch(make)
    wanted, _ = gradients(with_head(simple(make)), mb, ValueLoss(0.5))
    for checkpointing_ in (False, True):
        found, _ = gradients(with_head(fast(make, checkpointing=checkpointing_)), mb, ValueLoss(0.5))
        assert make.distance(found, wanted) < 1e-5
    checkpointed, _ = gradients(with_head(simple(make, checkpointing=True)), mb, ValueLoss(0.5))
    assert make.distance(checkpointed, wanted) < 1e-5


def test_a_new_head_says_nothing(make, value_network):
    network, mb = value_network(), microbatch(make)
    assert not network.logprobs(mb).any()
    found, _ = gradients(network, mb, ValueLoss())
    assert {name for name, gradient in found.items() if gradient.any()} == {"score.weight"}


def test_sharing_prompts_changes_nothing(make, value_network):
    network, mb = with_head(value_network()), microbatch(make)
    together, tally = gradients(network, mb, ValueLoss(0.5))
    values = network.logprobs(mb)
    network.grad.zero_()
    alone = []
    apart = Tally()
    for segment in range(len(mb.offsets) - 1):
        part = make.slice(mb, segment, segment + 1)
        alone.append(network.logprobs(part))
        network.backward(part, ValueLoss(0.5), apart)
    torch.testing.assert_close(torch.cat(alone), values, rtol=0, atol=1e-5)
    views = network.weights.views(network.grad) if isinstance(network, LlamaNetwork) else None
    found = views or {name: p.grad for name, p in network.model.named_parameters()}
    assert make.distance(found, together) < 1e-5
    assert apart.loss == pytest.approx(tally.loss, rel=1e-5)


def test_no_advantage_is_no_reason_to_skip(make):
    mb = microbatch(make)
    silent = dataclasses.replace(mb, advantages=torch.zeros_like(mb.advantages))
    assert len(worth_training(silent, ValueLoss()).tokens) == len(mb.tokens)


@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "opt"])
def test_other_architectures(kind):
    """The head sees the last hidden states as they are: no capping, whatever the language model does to its logits."""
    from transformers import AutoConfig, AutoModelForCausalLM

    narrow = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    small = {
        "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64},
        "gemma2": {**narrow, "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 48},
        "opt": {**narrow, "ffn_dim": 48, "word_embed_proj_dim": 16},
    }[kind]
    config = AutoConfig.for_model(kind, vocab_size=97, pad_token_id=0, bos_token_id=1, eos_token_id=2, **small)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    tokens = torch.arange(1, 8)
    with torch.no_grad():
        states = model.base_model(input_ids=tokens[None]).last_hidden_state[0]
    network = with_head(SimpleValueNetwork(model, dtype=torch.float32))
    mask = torch.arange(7) >= 3
    one = torch.ones(7)
    mb = Microbatch(
        tokens=tokens, offsets=torch.tensor([0, 7]), loss_mask=mask, sampler_logprobs=one, weights=one, advantages=one
    )
    wanted = states[2:6] @ network.views()["score.weight"][0]
    torch.testing.assert_close(network.logprobs(mb)[mask], wanted, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny(folder, hidden=64, layers=2)
    return folder


@pytest.fixture(params=["fast", "simple"])
def engine(request, folder):
    made = local.build(
        folder, Engine(dtype="float32", path=request.param), Optim(lr=0.05), SamplingPart(), total_steps=4
    )
    yield made
    made.close()


async def test_a_critic_begins_with_the_policy_as_it_is_and_goes_its_own_way(engine, make):
    mb = microbatch(make)
    await engine.learner.update(((mb,),), make.surrogate())
    policy = {name: view.clone() for name, view in engine.learner.network.views().items()}
    critic = engine.critic(OPTIM, 8)
    own = critic.network.views()
    assert own.keys() - policy.keys() == {"score.weight"}
    assert all(torch.equal(own[name], policy[name]) for name in own.keys() & policy.keys())
    assert own["score.weight"].shape == (1, 64)
    (values,) = (await critic.score(((mb,),)))[0]
    assert not values.any()
    reports = [await critic.update(((mb,),), ValueLoss(0.5)) for _ in range(3)]
    assert reports[2].metrics["loss"] < reports[0].metrics["loss"]
    assert reports[0].role == "critic"
    assert set(reports[0].metrics) == {"loss", "value_clip_fraction", "grad_norm", "lr"}
    assert all(torch.equal(view, policy[name]) for name, view in engine.learner.network.views().items())


async def test_resume_is_bit_equal(engine, make, tmp_path):
    batches = [microbatch(make, seed=seed) for seed in range(3)]

    async def learn(critic: LocalLearner, *mbs):
        for mb in mbs:
            await critic.update(((mb,),), ValueLoss(0.5))
        return critic

    straight = await learn(engine.critic(OPTIM, 8), *batches)
    first = await learn(engine.critic(OPTIM, 8), batches[0])
    await checkpointing.FolderCheckpoints(tmp_path).save(step=1, learners={"critic": first}, source={})
    second = engine.critic(OPTIM, 8)
    found = checkpointing.latest(tmp_path)
    await checkpointing.load_into(tmp_path / "step-000001", {"critic": second})
    await learn(second, *batches[1:])
    assert found is not None and second.optimizer.counters() == straight.optimizer.counters()
    assert torch.equal(straight.network.master, second.network.master)
    for name, tensor in straight.optimizer.tensors().items():
        assert torch.equal(tensor, second.optimizer.tensors()[name])
    (a,), (b,) = (await straight.score(((batches[0],),)))[0], (await second.score(((batches[0],),)))[0]
    assert np.array_equal(a, b) and a.any()


async def test_bfloat16_is_near_float32(folder, make):
    mb, found = microbatch(make), []
    for dtype in ("float32", "bfloat16"):
        for path in ("fast", "simple"):
            engine = local.build(folder, Engine(dtype=dtype, path=path), OPTIM, SamplingPart(), total_steps=1)
            critic = engine.critic(OPTIM, 1)
            with_head(critic.network)
            found.append((await critic.score(((mb,),)))[0][0])
            engine.close()
    exact, same, *rough = found
    np.testing.assert_allclose(exact, same, atol=1e-4)
    for values in rough:
        assert 0 < np.abs(values - exact).mean() < 0.05 * np.abs(exact).mean()
