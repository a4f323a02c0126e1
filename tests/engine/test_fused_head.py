"""The fused head of liger-kernel against the chunked one: which is taken, and that both give the same numbers.

Its Triton kernels run on a CPU under Triton's interpreter, so the values are those of the kernels themselves; speed, and
bfloat16 as a GPU rounds it, are for ``benchmarks/device.sh``.
"""

from __future__ import annotations

import os
from dataclasses import fields, replace
from importlib.util import find_spec

import pytest
import torch

from jurat.engine.learner import Tally
from jurat.engine.logprobs import chunked_logprobs, fused_logprobs, why_chunked
from jurat.engine.simple.learner import SimpleNetwork

CUDA = torch.cuda.is_available()
needs_liger = pytest.mark.skipif(
    find_spec("liger_kernel") is None or find_spec("triton") is None, reason="liger-kernel is not installed (extra liger)"
)
if not CUDA:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when the kernels are imported
DEVICE = "cuda" if CUDA else "cpu"


@pytest.mark.parametrize(
    ("device", "liger", "but", "why"),
    [
        ("cuda", "0.8.5", {}, ""),
        ("cuda", "0.10.0", {}, ""),
        ("cpu", "0.8.5", {}, "liger's kernels are for GPUs, this is cpu"),
        ("cuda", "", {}, "liger-kernel is not installed (the extra liger)"),
        ("cuda", "0.8.4", {}, "liger-kernel 0.8.4 takes one slope for all tokens, 0.8.5 one for each"),
        ("cuda", "0.8.5", {"wanted": False}, "engine.kernels is torch"),
        ("cuda", "0.8.5", {"whole": False}, "the vocabulary is cut over ranks (engine.tp)"),
        ("cuda", "0.8.5", {"plain": False}, "the head of this model is more than a matrix"),
    ],
)
def test_which_head_is_taken(device, liger, but, why):
    assert why_chunked(device, liger, **but) == why


@pytest.mark.parametrize(("tied", "capped"), [(True, False), (False, False), (True, True)])
def test_a_network_says_why_it_takes_the_chunked_one(make, monkeypatch, tied, capped):
    """Asked as on a GPU: only a head that is a plain matrix is fused."""
    asked = {}
    monkeypatch.setattr("jurat.engine.simple.learner.why_chunked", lambda device, liger, **rest: asked.update(rest) or "")
    model = make.llama(tie_word_embeddings=tied)
    if capped:
        model.config.final_logit_softcapping = 30.0
    network = SimpleNetwork(model, dtype=torch.float32, fused=True)
    assert asked == {"wanted": True, "whole": True, "plain": not capped} and network.chunked == ""


@needs_liger
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("frozen", [False, True])
def test_the_same_values_and_gradients(temperature, frozen):
    """[37, 24] states, 131 words, a slope of its own for each token; with adapters the head is frozen."""
    torch.manual_seed(0)
    hidden = torch.randn(37, 24, device=DEVICE, requires_grad=True)
    weight = torch.randn(131, 24, device=DEVICE).div(4).requires_grad_(not frozen)
    targets, slopes = torch.randint(131, (37,), device=DEVICE), torch.randn(37, device=DEVICE)
    inputs, found = [hidden] if frozen else [hidden, weight], []
    for made in (
        fused_logprobs(weight, hidden, targets, temperature=temperature, chunk=8),
        chunked_logprobs(lambda rows: rows @ weight.T, hidden, targets, temperature=temperature, chunk=8),
    ):
        logprobs, entropy = made
        assert not entropy.requires_grad
        found.append((logprobs.detach(), entropy, *torch.autograd.grad(logprobs, inputs, slopes)))
    for fused, chunked in zip(*found, strict=True):
        assert fused.dtype == torch.float32 and chunked.abs().max() > 0.1
        assert (fused - chunked).abs().max() <= 1e-5 * chunked.abs().max()


@needs_liger
@pytest.mark.parametrize("tied", [True, False])
def test_a_network_with_the_fused_head_has_the_same_gradients(make, tied):
    """Of every parameter, the embedding that is also the head among them, by 1e-5 of the norm."""
    mb, objective, found = make.microbatch([(7, (3, 5, 1)), (12, (2, 2))]), make.surrogate(kl=0.1), []
    mb = replace(mb, **{each.name: move(getattr(mb, each.name)) for each in fields(mb)})
    for fused in (True, False):
        model = make.llama(tie_word_embeddings=tied).to(DEVICE)
        network, tally = SimpleNetwork(model, dtype=torch.float32, temperature=0.7, fused=fused), Tally()
        network.chunked = "" if fused else "compared"  # on a GPU it is so already
        network.backward(mb, objective, tally)
        gradients = {name: parameter.grad.cpu() for name, parameter in model.named_parameters()}
        found.append((network.logprobs(mb).cpu(), tally, gradients))
    (logprobs, tally, gradients), (wanted, expected, exact) = found
    torch.testing.assert_close(logprobs, wanted, rtol=0, atol=1e-5)
    assert make.distance(gradients, exact) < 1e-5
    assert (tally.loss, tally.entropy) == (pytest.approx(expected.loss, rel=1e-5), pytest.approx(expected.entropy, rel=1e-5))


@needs_liger
@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
def test_on_a_gpu_it_is_taken_by_itself(make):
    assert SimpleNetwork(make.llama().to("cuda"), fused=True).chunked == ""


def move(column):
    return column.to(DEVICE) if isinstance(column, torch.Tensor) else column
