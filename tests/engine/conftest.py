"""Tiny random models, grouped microbatches and objectives for the engine's tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from jurat.platform.types import COLUMNS, Microbatch


@dataclass(frozen=True)
class Surrogate:
    """sum_t w_t (-A_t exp(c_t - p_t) + kl c_t^2): uses weights, advantages and proximal log-probs."""

    kl: float = 0.0
    token_local: bool = True
    sampled: bool = True

    @property
    def skips_zero_advantage(self) -> bool:
        return self.kl == 0.0

    def __call__(self, current: Tensor, mb: Microbatch) -> tuple[Tensor, Mapping[str, Tensor]]:
        ratio = torch.exp(current - current.detach())
        loss = (mb.weights * (-mb.advantages * ratio + self.kl * current**2)).sum()
        return loss, {"ratio": (mb.weights * ratio).sum().detach()}


@dataclass(frozen=True)
class SequenceRatio:
    """sum over segments of -A exp(mean log-prob of the segment): not a sum of functions of single tokens."""

    skips_zero_advantage: bool = True
    token_local: bool = False
    sampled: bool = True

    def __call__(self, current: Tensor, mb: Microbatch) -> tuple[Tensor, Mapping[str, Tensor]]:
        loss = current.new_zeros(())
        for start, end in zip(mb.offsets[:-1].tolist(), mb.offsets[1:].tolist(), strict=True):
            mask = mb.loss_mask[start:end]
            mean = current[start:end][mask].mean()
            loss = loss - mb.advantages[start:end][mask][0] * mb.weights[start:end][mask].sum() * torch.exp(mean)
        return loss, {}


def make_llama(**changes):
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = {
        "vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512, "tie_word_embeddings": True,
        "pad_token_id": 2, "eos_token_id": 2, "bos_token_id": 1, "initializer_range": 0.3, **changes,
    }  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**settings))
    with torch.no_grad():  # norms of ones hide mistakes
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def make_microbatch(groups: Sequence[tuple[int, Sequence[int]]], *, vocab: int = 97, seed: int = 0) -> Microbatch:
    """Groups of (prompt length, completion lengths): random tokens, the prompt shared within a group."""
    draw = torch.Generator().manual_seed(seed)
    tokens, mask, lengths = [], [], []
    for prompt_length, completions in groups:
        prompt = torch.randint(0, vocab, (prompt_length,), generator=draw)
        for n in completions:
            tokens += [prompt, torch.randint(0, vocab, (n,), generator=draw)]
            mask += [torch.zeros(prompt_length, dtype=torch.bool), torch.ones(n, dtype=torch.bool)]
            lengths.append(prompt_length + n)
    loss_mask = torch.cat(mask)
    on = loss_mask.float()
    advantages = torch.cat([torch.randn((), generator=draw).expand(n) for n in lengths]) * on
    return Microbatch(
        tokens=torch.cat(tokens), offsets=torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()]),
        loss_mask=loss_mask, sampler_logprobs=-3.0 * on, weights=on / on.sum(), advantages=advantages,
    )  # fmt: skip


def make_slice(mb: Microbatch, first: int, last: int) -> Microbatch:
    """Segments [first, last) as a microbatch of their own."""
    offsets = mb.offsets[first : last + 1]
    index = torch.arange(int(offsets[0]), int(offsets[-1]))
    return dataclasses.replace(mb.select(index), offsets=offsets - offsets[0])


def make_reference(model, mb: Microbatch, objective, *, temperature: float = 1.0):
    """(log-probs [T], {name: gradient}) by plain autograd, one segment at a time, padding_idx off."""
    model.get_input_embeddings().padding_idx = None
    model.zero_grad(set_to_none=True)
    parts = []
    for start, end in zip(mb.offsets[:-1].tolist(), mb.offsets[1:].tolist(), strict=True):
        logits = model(input_ids=mb.tokens[None, start:end], use_cache=False).logits[0, :-1].float() / temperature
        found = logits.log_softmax(-1).gather(1, mb.tokens[start + 1 : end, None]).squeeze(1)
        parts.append(torch.cat([found.new_zeros(1), found]) * mb.loss_mask[start:end])
    current = torch.cat(parts)
    loss, _ = objective(current, mb)
    loss.backward()
    return current.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}, float(loss.detach())


def make_distance(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """Largest relative difference of a tensor, norm against norm, in float64."""
    assert set(found) == set(wanted)
    worst = 0.0
    for name, tensor in wanted.items():
        gap = (found[name].double() - tensor.double()).norm()
        worst = max(worst, float(gap / tensor.double().norm().clamp_min(1e-12)))
    return worst


@pytest.fixture
def make():
    """The makers above by name (tests are no package, so they cannot import one another)."""

    class Make:
        llama = staticmethod(make_llama)
        microbatch = staticmethod(make_microbatch)
        slice = staticmethod(make_slice)
        reference = staticmethod(make_reference)
        distance = staticmethod(make_distance)
        surrogate = Surrogate
        sequence_ratio = SequenceRatio
        columns = COLUMNS

    return Make
