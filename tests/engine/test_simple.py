"""The simple path against plain autograd, one segment at a time."""

from __future__ import annotations

import pytest
import torch

from jurat.engine.learner import Tally
from jurat.engine.simple.learner import SimpleNetwork, compile_layers, layers_of

GROUPS = [(7, (3, 5, 1)), (1, (4,)), (12, (2, 2))]


def gradients(network: SimpleNetwork, mb, objective) -> tuple[dict[str, torch.Tensor], Tally]:
    tally = Tally()
    network.backward(mb, objective, tally)
    return {name: p.grad.clone() for name, p in network.model.named_parameters()}, tally


@pytest.mark.parametrize(("temperature", "chunk", "checkpointing"), [(1, 512, False), (0.7, 4, False), (1, 4, True)])
def test_equals_plain_autograd(make, temperature, chunk, checkpointing):
    mb, objective = make.microbatch(GROUPS), make.surrogate(kl=0.1)
    logprobs, wanted, loss = make.reference(make.llama(), mb, objective, temperature=temperature)
    network = SimpleNetwork(
        make.llama(), dtype=torch.float32, temperature=temperature, chunk=chunk, checkpointing=checkpointing
    )
    assert network.packs
    torch.testing.assert_close(network.logprobs(mb), logprobs, rtol=0, atol=2e-5)
    found, tally = gradients(network, mb, objective)
    assert make.distance(found, wanted) < 1e-5
    assert tally.loss == pytest.approx(loss, rel=1e-5)
    assert tally.targets == int(mb.loss_mask.sum())
    assert 0 < tally.entropy / tally.targets < torch.tensor(97.0).log()


@pytest.mark.soak
@pytest.mark.parametrize("checkpointing", [False, True])
def test_compiled_layers_have_the_same_gradients(make, checkpointing):
    """For several counts of tokens; compiling takes most of a minute."""
    network = SimpleNetwork(make.llama(), dtype=torch.float32, checkpointing=checkpointing)
    plain = SimpleNetwork(make.llama(), dtype=torch.float32)
    compile_layers(network.model)
    for seed in range(4):
        mb, objective = make.microbatch([*GROUPS, (3 + seed, (4,))], seed=seed), make.surrogate()
        wanted, _ = gradients(plain, mb, objective)
        found, _ = gradients(network, mb, objective)
        assert make.distance(found, wanted) < 2e-5
        network.grad.zero_()
        plain.grad.zero_()
    assert all("forward" in vars(layer) for layer in layers_of(network.model))


def test_gradient_of_the_pad_row_is_kept(make):
    mb = make.microbatch([(5, (3,))])
    mb.tokens[1] = 2  # pad = eos = 2 in the tiny config, where transformers drops the row's gradient
    network = SimpleNetwork(make.llama(tie_word_embeddings=False), dtype=torch.float32)
    gradients(network, mb, make.surrogate())
    assert network.model.get_input_embeddings().weight.grad[2].norm() > 0


@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "qwen3", "bloom", "mamba"])
def test_other_architectures(make, kind):
    """Learned positions, capped logits, query norms, ALiBi, no attention: packed where that is exact, else alone."""
    from transformers import AutoConfig, AutoModelForCausalLM

    narrow = {"hidden_size": 32, "num_hidden_layers": 2}
    attention = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 48}
    small = {
        "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64},
        "gemma2": {**narrow, **attention, "final_logit_softcapping": 5.0},
        "qwen3": {**narrow, **attention},
        "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 2},
        "mamba": {**narrow, "state_size": 4},
    }[kind]

    def built():
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, vocab_size=97, pad_token_id=0, bos_token_id=1, eos_token_id=2, **small)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()

    mb, objective = make.microbatch([(6, (3, 4)), (2, (5,))]), make.surrogate(kl=0.1)
    logprobs, wanted, _ = make.reference(built(), mb, objective)
    network = SimpleNetwork(built(), dtype=torch.float32)
    assert network.packs == (kind not in ("bloom", "mamba"))
    torch.testing.assert_close(network.logprobs(mb), logprobs, rtol=0, atol=2e-5)
    assert make.distance(gradients(network, mb, objective)[0], wanted) < 2e-5


def test_bfloat16_is_near_float32(make):
    mb = make.microbatch(GROUPS)
    exact = SimpleNetwork(make.llama(), dtype=torch.float32).logprobs(mb)
    rough = SimpleNetwork(make.llama(), dtype=torch.bfloat16).logprobs(mb)
    assert 0 < (exact - rough).abs().mean() < 0.05
