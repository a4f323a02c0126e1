"""Reward shaping by hand and against three code bases."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jurat.trainers.shaping import LengthPenalty, Shaping, SoftOverlong, token_rewards


@pytest.mark.vectors("overlong_penalty")
def test_overlong_like_verl_trl_and_openrlhf(case, tolerance):
    limit, cache, *factor = case["params"].values()
    penalty = SoftOverlong(limit=limit, cache=cache, factor=factor[0] if factor else 1.0)
    lengths = np.array(case["inputs"]["lengths"])
    outputs = case["outputs"]
    wanted = outputs.get("penalties") or [row["penalty"] for row in outputs["rows"]]
    np.testing.assert_allclose(penalty(lengths), wanted, rtol=tolerance, atol=tolerance)
    if "rows" in outputs:
        assert [row["length"] for row in outputs["rows"]] == lengths.tolist()
        shaped = Shaping(overlong=penalty)(np.ones(len(lengths)), lengths)
        wanted = [row["reward_with_base_1"] for row in outputs["rows"]]
        np.testing.assert_allclose(shaped, wanted, rtol=tolerance, atol=tolerance)


def test_overlong_by_hand():
    """DAPO, equation 13: 0 up to 16, a line, -1 from 20 on."""
    penalty = SoftOverlong(limit=20, cache=4)
    np.testing.assert_array_equal(penalty(np.array([0, 16, 18, 20, 25])), [0, 0, -0.5, -1, -1])


def test_length_penalty_by_hand():
    penalty = LengthPenalty(per_token=0.1, free=5)
    np.testing.assert_allclose(penalty(np.array([3, 5, 7])), [0, 0, -0.2])


def test_the_order_is_scale_offset_penalties_clip():
    rewards, lengths = np.array([1.0, 0.0]), np.array([20, 20])
    dapo = Shaping(scale=2, offset=-1, overlong=SoftOverlong(limit=20, cache=4))
    assert dapo(rewards, lengths).tolist() == [0, -2]
    both = Shaping(scale=2, offset=-1, overlong=SoftOverlong(limit=20, cache=4), length=LengthPenalty(per_token=0.05))
    assert both(rewards, lengths).tolist() == [-1, -3]
    clipped = Shaping(scale=2, offset=-1, overlong=SoftOverlong(limit=20, cache=4), clip=(-1, 1))
    assert clipped(rewards, lengths).tolist() == [0, -1]
    assert Shaping()(rewards, lengths).tolist() == [1, 0]


@given(st.integers(1, 100), st.data())
def test_penalties_fall_with_length_within_their_bounds(limit, data):
    cache = data.draw(st.integers(1, limit))
    factor = data.draw(st.floats(0, 3))
    values = SoftOverlong(limit=limit, cache=cache, factor=factor)(np.arange(2 * limit))
    assert (np.diff(values) <= 0).all() and values.max() <= 0 and values.min() >= -factor
    assert (values[: limit - cache + 1] == 0).all() and (values[limit:] == -factor).all()


def test_token_rewards_by_hand():
    assert token_rewards(1.0, 3).tolist() == [0, 0, 1]
    kl = np.array([0.5, 9.0, -1.0])
    np.testing.assert_allclose(token_rewards(1.0, 3, kl=kl, coef=0.1), [-0.05, -0.9, 1.1])
    mask = np.array([True, False, True, False])
    got = token_rewards(1.0, 4, kl=np.append(kl, 7.0), coef=0.1, mask=mask)
    np.testing.assert_allclose(got, [-0.05, 0, 1.1, 0])
    assert token_rewards(1.0, 0).tolist() == []
