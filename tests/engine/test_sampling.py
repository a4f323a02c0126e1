"""Exact sampling: the right distribution, from (seed, position) alone."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jurat.engine.sampling import Draws, draw, uniforms

CPU = torch.device("cpu")


def draws(numbers, temperature=1.0) -> Draws:
    numbers = np.atleast_1d(np.asarray(numbers, dtype=np.float64))
    return Draws.of(numbers, [temperature] * len(numbers), CPU)


def test_uniforms_are_fixed_numbers_of_seed_and_position():
    found = uniforms([0, 0, 1, 2**64 - 1], [0, 1, 0, 5])
    assert found.tolist() == uniforms([0, 0, 1, 2**64 - 1], [0, 1, 0, 5]).tolist()
    assert len(set(found.tolist())) == 4
    assert uniforms([7], [3])[0] == uniforms([9, 7, 8], [1, 3, 2])[1]
    assert uniforms([-1], [0])[0] == uniforms([2**64 - 1], [0])[0]


def test_uniforms_fill_the_interval_evenly_along_seeds_and_along_positions():
    for sample in (uniforms(range(20000), [3] * 20000), uniforms([3] * 20000, range(20000))):
        assert sample.min() > 0 and sample.max() < 1
        counts = np.histogram(sample, bins=50, range=(0, 1))[0]
        assert ((counts - 400) ** 2 / 400).sum() < 95  # chi-square, 49 degrees: p < 1e-4 beyond
    pairs = uniforms(np.repeat(np.arange(10000), 2), np.tile([0, 1], 10000)).reshape(-1, 2)
    assert abs(np.corrcoef(pairs.T)[0, 1]) < 0.04


def test_draws_follow_the_softmax():
    torch.manual_seed(0)
    logits = 2 * torch.randn(1, 301)  # not a multiple of the block
    for temperature in (1.0, 0.7):
        count = 40000
        chance = draws(uniforms(range(count), [0] * count), temperature)
        tokens, logprobs = draw(logits.expand(count, -1), chance)
        expected = (logits[0] / temperature).softmax(-1).double()
        seen = torch.bincount(tokens, minlength=301).double()
        common = expected * count > 8
        rest = ~common
        gaps = ((seen - expected * count) ** 2 / (expected * count))[common].sum()
        gaps += (seen[rest].sum() - expected[rest].sum() * count) ** 2 / (expected[rest].sum() * count)
        degrees = int(common.sum())
        assert gaps < degrees + 4.5 * (2 * degrees) ** 0.5
        wanted = (logits[0] / temperature).log_softmax(-1)[tokens]
        assert (logprobs - wanted).abs().max() < 1e-5


def test_the_whole_interval_maps_onto_tokens_in_order():
    logits = torch.tensor([[0.25, 0.5, 0.0, 0.25]]).log()
    numbers = [1e-12, 0.2499, 0.2501, 0.7499, 0.7501, 1 - 1e-12]
    tokens, logprobs = draw(logits.expand(6, -1), draws(numbers))
    assert tokens.tolist() == [0, 0, 1, 1, 3, 3]
    assert torch.allclose(logprobs.exp(), torch.tensor([0.25, 0.25, 0.5, 0.5, 0.25, 0.25]))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([-1e4, -80.0, -3.0, 0.0, 3.0, 80.0]), min_size=1, max_size=300),
    st.lists(st.sampled_from([1e-16, 0.1, 0.5, 0.9, 1 - 2.0**-53]), min_size=1, max_size=4),
)
def test_a_token_without_probability_is_never_drawn(row, numbers):
    logits = torch.tensor([row])
    tokens, logprobs = draw(logits.expand(len(numbers), -1), draws(numbers))
    wanted = logits.log_softmax(-1)[0, tokens]
    assert torch.isfinite(logprobs).all() and (logprobs - wanted).abs().max() < 1e-4
    assert (logits.softmax(-1)[0, tokens] > 0).all()


def test_greedy_rows_take_the_argmax_with_the_log_prob_at_temperature_1_beside_sampled_ones():
    torch.manual_seed(1)
    logits = torch.randn(3, 200)
    mixed = Draws.of(np.array([0.3, 0.3, 0.3]), [0.0, 1.0, 0.5], CPU)
    tokens, logprobs = draw(logits, mixed)
    assert tokens[0] == logits[0].argmax()
    assert torch.isclose(logprobs[0], logits[0].log_softmax(-1).max())
    alone = [draw(logits[i : i + 1], Draws.of(np.array([0.3]), [t], CPU)) for i, t in ((1, 1.0), (2, 0.5))]
    assert tokens[1:].tolist() == [int(token) for token, _ in alone]
    assert torch.allclose(logprobs[1:], torch.cat([logprob for _, logprob in alone]))


def test_bfloat16_logits_are_read_as_float32():
    logits = torch.randn(2, 500).bfloat16()
    found = draw(logits, draws([0.4, 0.6]))
    wanted = draw(logits.float(), draws([0.4, 0.6]))
    assert found[0].tolist() == wanted[0].tolist() and torch.allclose(found[1], wanted[1], atol=1e-6)
