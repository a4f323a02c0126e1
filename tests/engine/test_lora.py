"""Low-rank adapters on both paths, against peft: gradients, merging, files; what learns, and going on from a checkpoint."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from jurat.engine import local, lora
from jurat.engine.learner import Tally
from jurat.engine.llama.learner import LlamaNetwork
from jurat.engine.llama.lora import LlamaLoRA
from jurat.engine.llama.weights import FlatWeights
from jurat.engine.simple.lora import BareScorer, SimpleLoRA
from jurat.engine.tensorfile import load_tensors
from jurat.engine.tiny import save_tiny
from jurat.platform.errors import ConfigError, ModelError, RunFailed
from jurat.platform.recipe import Engine, LoRA, Optim, SamplingPart
from jurat.platform.types import Message, Request, Sampling

GROUPS = [(7, (3, 5, 1)), (1, (4,)), (12, (2, 2))]
ADAPTERS = LoRA(rank=3, alpha=7.5)


def calm(make, **changes):
    return make.llama(initializer_range=0.1, **changes)


def layout_of(model, tmp_path, adapters=ADAPTERS):
    model.config.save_pretrained(tmp_path)
    return lora.layout(tmp_path, adapters)


def perturbed(network, seed=0):
    """Adapters that are nowhere zero."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for pair in network.pairs().values():
            for tensor in pair:
                tensor.copy_(0.1 * torch.randn(tensor.shape, generator=draw))
    network.refresh()
    return network


def fast(model, layout, dtype=torch.float32, **settings):
    weights = FlatWeights.from_state_dict(model.config, model.state_dict(), dtype=dtype)
    return perturbed(LlamaLoRA(weights, layout, **settings))


def simple(model, layout, dtype=torch.float32, **settings):
    return perturbed(SimpleLoRA(model, layout, dtype=dtype, **settings))


def by_peft(model, network):
    """The same model and adapters, wrapped by peft itself; all of it has gradients."""
    from peft import get_peft_model

    wrapped = get_peft_model(model, network.layout.peft(), autocast_adapter_dtype=False)
    for name, (a, b) in network.pairs().items():
        layer = wrapped.get_submodule("base_model.model." + name)
        layer.lora_A["default"].weight.data.copy_(a)
        layer.lora_B["default"].weight.data.copy_(b)
    return wrapped.eval().requires_grad_(True)


def gradients(network):
    return {
        f"{name}.{which}": gradient.clone()
        for name, pair in network.layout.views(network.grad).items()
        for which, gradient in zip("AB", pair, strict=True)
    }


def of_simple(network):
    return {
        f"{name}.{which}": parameter.grad.clone()
        for name, pair in network.pairs().items()
        for which, parameter in zip("AB", pair, strict=True)
    }


def of_peft(found, layout):
    at = "base_model.model.{}.lora_{}.default.weight"
    return {f"{name}.{which}": found[at.format(name, which)] for name in layout.layers for which in "AB"}


@pytest.mark.parametrize("path", ["fast", "simple"])
@pytest.mark.parametrize(
    ("settings", "targets", "tied"),
    [
        ({}, (), True),
        ({"temperature": 0.7}, ("q_proj", "v_proj"), False),
        ({"checkpointing": True}, ("layers.1.mlp.up_proj", "k_proj", "o_proj"), True),
    ],
)
def test_gradients_are_those_of_peft(make, tmp_path, path, settings, targets, tied):
    model = calm(make, tie_word_embeddings=tied)
    layout = layout_of(model, tmp_path, LoRA(rank=3, alpha=7.5, targets=targets))
    network = {"fast": fast, "simple": simple}[path](model, layout, **settings)
    before = {name: tensor.clone() for name, tensor in network.base().items()}
    mb, objective = make.microbatch(GROUPS), make.surrogate(kl=0.1)
    reference = by_peft(calm(make, tie_word_embeddings=tied), network)
    logprobs, wanted, loss = make.reference(reference, mb, objective, temperature=settings.get("temperature", 1.0))
    torch.testing.assert_close(network.logprobs(mb), logprobs, rtol=0, atol=2e-5)
    tally = Tally()
    network.backward(mb, objective, tally)
    found = gradients(network) if path == "fast" else of_simple(network)
    assert len(found) == 2 * len(layout.layers) and make.distance(found, of_peft(wanted, layout)) < 2e-5
    assert tally.loss == pytest.approx(loss, rel=1e-5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.base().items())
    assert len(network.master) == layout.trainable == network.num_matrix


def test_a_loss_of_whole_sequences_too(make, tmp_path):
    layout = layout_of(calm(make), tmp_path)
    mb, objective = make.microbatch(GROUPS), make.sequence_ratio()
    network = fast(calm(make), layout)
    _, wanted, _ = make.reference(by_peft(calm(make), network), mb, objective)
    network.backward(mb, objective, Tally())
    assert make.distance(gradients(network), of_peft(wanted, layout)) < 2e-5


def test_the_fast_path_in_bfloat16_computes_with_the_merged_weights_rounded(make, tmp_path):
    """Bit for bit what a plain network of the merged model computes: learner and sampler agree as they do without LoRA."""
    layout, mb = layout_of(calm(make), tmp_path), make.microbatch(GROUPS)
    network = fast(calm(make), layout, dtype=torch.bfloat16)
    merged = FlatWeights.from_state_dict(calm(make).config, dict(network.views()))
    assert torch.equal(network.weights.working, merged.working)
    assert torch.equal(network.logprobs(mb), LlamaNetwork(merged).logprobs(mb))
    network.backward(mb, make.surrogate(), Tally())
    exact = fast(calm(make), layout)
    exact.backward(mb, make.surrogate(), Tally())
    apart = (network.grad - exact.grad).norm() / exact.grad.norm()
    assert apart < 0.05, apart


@pytest.mark.parametrize("path", ["fast", "simple"])
def test_merging_is_that_of_peft(make, tmp_path, path):
    layout = layout_of(make.llama(), tmp_path)
    network = {"fast": fast, "simple": simple}[path](make.llama(), layout)
    wanted = by_peft(make.llama(), network).merge_and_unload().state_dict()
    found = network.views()
    assert set(found) == set(wanted) - {"lm_head.weight"}  # tied
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, wanted[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["gpt2", "qwen3", "bloom"])
def test_other_architectures(make, tmp_path, kind):
    """Weights that lie transposed, query norms, segments that cannot be packed: what peft reads from the files is what was merged."""
    from peft import PeftModel
    from transformers import AutoConfig, AutoModelForCausalLM

    narrow = {"hidden_size": 32, "num_hidden_layers": 2}
    attention = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 48}
    small = {
        "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64},
        "qwen3": {**narrow, **attention},
        "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 2},
    }[kind]
    config = AutoConfig.for_model(kind, vocab_size=97, pad_token_id=0, bos_token_id=1, eos_token_id=2, **small)

    def built():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()

    layout = layout_of(built(), tmp_path)
    assert layout.transposed == (kind == "gpt2") and not any("head" in name for name in layout.layers)
    network = simple(built(), layout)
    mb, objective = make.microbatch([(6, (3, 4)), (2, (5,))]), make.surrogate(kl=0.1)
    logprobs, wanted, _ = make.reference(by_peft(built(), network), mb, objective)
    torch.testing.assert_close(network.logprobs(mb), logprobs, rtol=0, atol=2e-5)
    network.backward(mb, objective, Tally())
    assert make.distance(of_simple(network), of_peft(wanted, layout)) < 2e-5

    learner = lora.LoRALearner(network, Optim(), total=1, source=tmp_path, layout=layout, seed=1)
    perturbed(network, seed=2)
    learner._save(tmp_path / "saved")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32).eval()
    adapted = PeftModel.from_pretrained(built(), tmp_path / "saved" / "adapter").eval()
    tokens = mb.tokens[None, :9]
    assert (adapted(input_ids=tokens).logits - built()(input_ids=tokens).logits).abs().max() > 1e-3
    torch.testing.assert_close(merged(input_ids=tokens).logits, adapted(input_ids=tokens).logits, rtol=0, atol=1e-5)


# ---- what the config can get wrong ----


def test_a_layer_that_is_not_there(make, tmp_path):
    with pytest.raises(ConfigError, match=r"'q_prog'.* Did you mean 'q_proj'") as caught:
        layout_of(make.llama(), tmp_path, LoRA(targets=("v_proj", "q_prog")))
    assert "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj" in str(caught.value)
    for never in ("lm_head", "embed_tokens", "norm", "proj"):
        with pytest.raises(ConfigError, match=r"no linear layer is named"):
            layout_of(make.llama(tie_word_embeddings=False), tmp_path, LoRA(targets=(never,)))


def test_a_layer_that_peft_refuses(tmp_path):
    """Mamba's kernels read the weight of out_proj past the module."""
    from transformers import AutoConfig

    config = AutoConfig.for_model("mamba", vocab_size=97, hidden_size=32, num_hidden_layers=2, state_size=4)
    config.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"out_proj.*incompatible"):
        lora.layout(tmp_path, ADAPTERS)
    assert len(lora.layout(tmp_path, LoRA(targets=("in_proj", "x_proj"))).layers) == 4


def test_a_layout_is_made_once_for_a_model_as_it_is(make, tmp_path):
    first = layout_of(make.llama(), tmp_path)
    assert lora.layout(tmp_path, LoRA(rank=3, alpha=7.5)) is first is not lora.layout(tmp_path, LoRA(rank=4))
    config = tmp_path / "config.json"
    make.llama(num_hidden_layers=1).config.save_pretrained(tmp_path)
    os.utime(config, ns=(0, config.stat().st_mtime_ns + 1))
    assert len(lora.layout(tmp_path, ADAPTERS).layers) < len(first.layers)


def test_without_peft(make, tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "peft" else find(name))
    with pytest.raises(ConfigError, match=r"pip install -e '.\[lora\]'"):
        layout_of(make.llama(), tmp_path)


def test_peft_is_imported_for_lora_alone():
    code = "import sys, jurat.trainers.launch, jurat.engine.lora; print('peft' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


# ---- the engine as one ----


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny(folder, hidden=64, layers=2)
    return folder


@pytest.fixture
def build(folder):
    made = []

    def build(source=folder, lora=ADAPTERS, seed=5, **engine):
        engine = {"dtype": "float32", "threads": 1, **engine}
        made.append(
            local.build(source, Engine(**engine), Optim(lr=0.05), SamplingPart(), total_steps=4, lora=lora, seed=seed)
        )
        return made[-1]

    yield build
    for engine in made:
        engine.close()


async def sample(engine):
    prompt = engine.tokenizer.encode_prompt([Message(role="user", content="What is 3 + 5?")])
    sampling = Sampling(max_new_tokens=8, stop_token_ids=engine.tokenizer.eos_ids)
    asked = [Request(rollout_id=str(n), prompt=prompt, sampling=sampling, seed=n) for n in range(4)]
    return await asyncio.gather(*(engine.sampler.sample(request) for request in asked))


def merged(engine):
    return {name: tensor.clone() for name, tensor in engine.learner.network.views().items()}


async def score(scorer, mb):
    return torch.from_numpy((await scorer.score(((mb,),)))[0][0])


BOTH = pytest.mark.parametrize("path", ["fast", "simple"])


@BOTH
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_the_sampler_is_the_exported_model(build, make, tmp_path, path, dtype):
    engine, mb = build(path=path, dtype=dtype), make.microbatch(GROUPS)
    plain = build(path=path, dtype=dtype, lora=None)
    untouched = [c.token_ids.tolist() for c in await sample(engine)]
    assert untouched == [c.token_ids.tolist() for c in await sample(plain)]
    assert engine.info["parameters"] == plain.info["trainable"] and engine.info["lora"]["rank"] == 3
    reference, first = engine.reference(), await score(engine.learner, mb)
    for _ in range(2):
        assert not (await engine.learner.update(((mb,),), make.surrogate())).skipped
    await engine.link.publish(1)
    assert torch.equal(await score(reference, mb), first)
    assert (await score(engine.learner, mb) - first).abs().max() > 0.1
    await engine.learner.save(tmp_path / "saved")
    exported = build(tmp_path / "saved", path=path, dtype=dtype, lora=None)
    found, wanted = await sample(engine), await sample(exported)
    assert [c.token_ids.tolist() for c in found] != untouched
    exact = path == "fast" or dtype == "bfloat16"  # in float32 the simple path samples with adapters beside the base
    for a, b in zip(found, wanted, strict=True):
        assert a.token_ids.tolist() == b.token_ids.tolist()
        assert np.abs(a.logprobs - b.logprobs).max() <= (0 if exact else 1e-5)


@BOTH
async def test_going_on_is_bit_equal(build, make, tmp_path, path):
    mb, objective = make.microbatch(GROUPS), make.surrogate()
    whole, begun = build(path=path), build(path=path)
    for engine in (whole, begun):
        await engine.learner.update(((mb,),), objective)
    await begun.learner.save(tmp_path / "saved")
    again = build(path=path, seed=6)
    await again.learner.load(tmp_path / "saved")
    for engine in (whole, again):
        await engine.learner.update(((mb,),), objective)
        await engine.link.publish(2)
    assert torch.equal(whole.learner.network.master, again.learner.network.master)
    assert [c.logprobs.tolist() for c in await sample(whole)] == [c.logprobs.tolist() for c in await sample(again)]
    found, wanted = merged(again), merged(whole)
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    written = sum((tmp_path / "saved" / f"{name}.safetensors").stat().st_size for name in ("model", "optimizer"))
    written += (tmp_path / "saved" / "adapter" / "adapter_model.safetensors").stat().st_size
    assert 0 < written - begun.learner.checkpoint_bytes < 20_000


@BOTH
async def test_weights_only_begins_anew_from_the_merged_model(build, make, tmp_path, path):
    mb, objective = make.microbatch(GROUPS), make.surrogate()
    engine, again = build(path=path), build(path=path)
    fresh = engine.learner.network.master.clone()
    await engine.learner.update(((mb,),), objective)
    await engine.learner.save(tmp_path / "one")
    await again.learner.load(tmp_path / "one", weights_only=True)
    base, wanted = again.learner.network.base(), load_tensors(tmp_path / "one/model.safetensors", dtype=torch.float32)
    assert all(torch.equal(base[name], tensor) for name, tensor in wanted.items()) and len(base) == len(wanted)
    assert torch.equal(again.learner.network.master, fresh)
    torch.testing.assert_close(await score(again.learner, mb), await score(engine.learner, mb), rtol=0, atol=1e-5)
    reference = again.reference()
    torch.testing.assert_close(await score(reference, mb), await score(engine.learner, mb), rtol=0, atol=1e-5)

    await again.learner.update(((mb,),), objective)
    await again.learner.save(tmp_path / "two")
    later = build(path=path)
    with pytest.raises(RunFailed, match="belongs to another model"):
        await later.learner.load(tmp_path / "two")
    await later.learner.load(tmp_path / "one", weights_only=True)
    await later.learner.load(tmp_path / "two")
    assert torch.equal(later.learner.network.master, again.learner.network.master)
    whole = build(path=path, lora=None)  # a stage without adapters may follow
    await whole.learner.load(tmp_path / "two", weights_only=True)
    torch.testing.assert_close(await score(whole.learner, mb), await score(again.learner, mb), rtol=0, atol=1e-5)


async def test_a_checkpoint_of_another_kind_is_refused(build, tmp_path):
    whole, adapted, wider = build(lora=None), build(), build(lora=LoRA(rank=4))
    await whole.learner.save(tmp_path / "whole")
    with pytest.raises(RunFailed, match="belongs to another model"):
        await adapted.learner.load(tmp_path / "whole")
    await adapted.learner.save(tmp_path / "adapted")
    with pytest.raises(ModelError, match="shape"):
        await wider.learner.load(tmp_path / "adapted")


def test_both_paths_begin_with_the_same_adapters(build):
    a, b = build(path="fast").learner.network.pairs(), build(path="simple").learner.network.pairs()
    assert list(a) == list(b)
    for name, pair in a.items():
        assert torch.equal(pair[0], b[name][0]) and pair[0].std() > 0 and not pair[1].any() and not b[name][1].any()
    assert isinstance(build(path="simple").reference(), BareScorer)
