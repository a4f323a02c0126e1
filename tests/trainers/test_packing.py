"""Packing loses nothing, splits nothing that belongs together, and never changes a gradient."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jurat.platform.randomness import generator
from jurat.platform.types import Sample
from jurat.trainers.aggregation import AGGREGATIONS, prompt_mean, token_mean
from jurat.trainers.losses.clipped import Clipped
from jurat.trainers.packing import pack, updates


def make(shape, seed=0):
    """Samples from [(prompt length, [(completion length, advantage)...])...], one atom per prompt."""
    rng = generator("packing", seed)
    samples = []
    for atom, (prompt, completions) in enumerate(shape):
        head = rng.integers(0, 50, prompt)
        for length, advantage in completions:
            mask = np.array([False] * prompt + [True] * length)
            samples.append(
                Sample(
                    tokens=np.concatenate([head, rng.integers(0, 50, length)]),
                    loss_mask=mask,
                    sampler_logprobs=mask * np.float32(-1),
                    weights=mask.astype(np.float32),
                    advantages=mask * np.float32(advantage),
                    atom=atom,
                    rollout_id=f"{atom}-{len(samples)}",
                )
            )
    return samples


shapes = st.lists(
    st.tuples(
        st.integers(1, 6),
        st.lists(st.tuples(st.integers(1, 7), st.sampled_from([-1.0, 0.0, 0.5])), min_size=1, max_size=5),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(shapes, st.integers(1, 3), st.integers(4, 60), st.sampled_from(sorted(AGGREGATIONS)))
def test_places_invert_packing_and_weights_do_not_depend_on_it(shape, ranks, tokens, aggregation):
    samples = make(shape)
    packed = pack(samples, None, AGGREGATIONS[aggregation], ranks=ranks, tokens=tokens, constant=7)
    assert all(len(row) == ranks for row in packed.rounds)
    back = packed.unpack([[mb.tokens.numpy() for mb in row] for row in packed.rounds], samples)
    for sample, tokens_back in zip(samples, back, strict=True):
        np.testing.assert_array_equal(sample.tokens, tokens_back)
    weights = packed.unpack([[mb.weights.numpy() for mb in row] for row in packed.rounds], samples)
    whole = AGGREGATIONS[aggregation]([s.weights for s in samples], [s.atom for s in samples], 7)
    for got, wanted in zip(weights, whole, strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert sum(len(mb.tokens) for row in packed.rounds for mb in row) == sum(len(s.tokens) for s in samples)


@settings(max_examples=40, deadline=None)
@given(shapes, st.integers(4, 60))
def test_loss_is_the_same_under_any_split_and_with_skipping(shape, tokens):
    samples = make(shape)

    def total(objective, limit, ranks):
        packed = pack(samples, objective, token_mean, ranks=ranks, tokens=limit)
        return sum(Clipped()(mb.sampler_logprobs.double(), mb)[0].item() for row in packed.rounds for mb in row)

    whole = total(None, 10**9, 1)
    assert abs(total(None, tokens, 2) - whole) < 1e-6
    assert abs(total(Clipped(), tokens, 1) - whole) < 1e-6


def test_microbatches_respect_the_limit_counting_a_common_prompt_once():
    samples = make([(10, [(5, 1.0)] * 4), (10, [(5, 1.0)] * 4)])
    packed = pack(samples, None, token_mean, ranks=1, tokens=30)
    assert [len(row[0].offsets) - 1 for row in packed.rounds] == [4, 4]
    assert pack(samples, None, token_mean, ranks=1, tokens=60).rounds[0][0].offsets.tolist()[-1] == 120


def test_a_sample_longer_than_the_limit_goes_alone():
    samples = make([(3, [(50, 1.0)]), (3, [(2, 1.0)])])
    assert [len(row[0].tokens) for row in pack(samples, None, token_mean, ranks=1, tokens=10).rounds] == [53, 5]


def test_zero_advantage_is_skipped_only_where_the_objective_allows():
    samples = make([(2, [(3, 0.0), (3, 1.0)]), (2, [(3, 0.0)])])
    packed = pack(samples, Clipped(), token_mean, ranks=1, tokens=100)
    assert packed.places == (None, (0, 0, 0), None)
    np.testing.assert_allclose(packed.rounds[0][0].weights.numpy()[2:], 1 / 9)
    assert None not in pack(samples, Clipped(kl_coef=0.1), token_mean, ranks=1, tokens=100).places


def test_no_gradient_at_all_makes_no_rounds():
    assert pack(make([(2, [(3, 0.0)])]), Clipped(), token_mean, ranks=1, tokens=100).rounds == ()


def test_prompt_mean_counts_each_prompt_once():
    weights = prompt_mean([np.ones(2, np.float32)] * 3, [0, 0, 1], 10)
    np.testing.assert_allclose([w[0] for w in weights], [1 / 40, 1 / 40, 1 / 20])


def test_updates_are_whole_groups_and_every_epoch_sees_each_once():
    samples = make([(2, [(1, 1.0)] * (1 + atom % 3)) for atom in range(7)])
    parts = list(updates(samples, epochs=2, per_epoch=3, rng=generator("u")))
    assert len(parts) == 6
    for epoch in (parts[:3], parts[3:]):
        assert sorted(s.rollout_id for part in epoch for s in part) == sorted(s.rollout_id for s in samples)
        atoms = [{s.atom for s in part} for part in epoch]
        assert sum(map(len, atoms)) == 7
    assert [s.rollout_id for s in parts[0]] != [s.rollout_id for s in parts[3]]
    assert next(updates(samples, epochs=1, per_epoch=1, rng=generator("u"))) == tuple(samples)


def test_an_empty_rank_has_an_empty_microbatch():
    packed = pack(make([(2, [(3, 1.0)])]), None, token_mean, ranks=3, tokens=100)
    assert [len(mb.tokens) for mb in packed.rounds[0]] == [5, 0, 0]
    assert packed.rounds[0][1].weights.dtype == torch.float32
