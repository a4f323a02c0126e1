"""Advantages against hand-made numbers, reference vectors and their own identities."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jurat.trainers.advantages import ADVANTAGES, dr_grpo, grpo, rloo

PARITY = Path(os.environ.get("JURAT_PARITY", Path(__file__).parents[3] / "shared" / "parity"))


def test_by_hand():
    rewards = np.array([1.0, 0.0, 0.0, 1.0])
    np.testing.assert_allclose(dr_grpo(rewards), [0.5, -0.5, -0.5, 0.5])
    np.testing.assert_allclose(rloo(rewards), [2 / 3, -2 / 3, -2 / 3, 2 / 3])
    np.testing.assert_allclose(grpo(rewards), np.array([0.5, -0.5, -0.5, 0.5]) / (np.sqrt(1 / 3) + 1e-6))


@pytest.mark.parametrize("rule", ADVANTAGES)
def test_a_group_of_one_has_no_advantage(rule):
    assert ADVANTAGES[rule](np.array([1.0])).tolist() == [0.0]
    assert ADVANTAGES[rule](np.array([])).tolist() == []


@given(st.lists(st.floats(0, 1), min_size=2, max_size=16), st.randoms())
def test_sum_is_zero_and_order_does_not_matter(values, random):
    order = list(range(len(values)))
    random.shuffle(order)
    for rule in ADVANTAGES.values():
        advantages = rule(np.array(values))
        assert abs(advantages.sum()) < 1e-6 * max(1.0, np.abs(advantages).max())
        np.testing.assert_allclose(rule(np.array(values)[order]), advantages[order], atol=1e-9)


def test_leave_one_out_is_what_it_says():
    rewards = np.array([0.3, 0.9, 0.1])
    others = [(0.9 + 0.1) / 2, (0.3 + 0.1) / 2, (0.3 + 0.9) / 2]
    np.testing.assert_allclose(rloo(rewards), rewards - others)


@pytest.mark.parametrize(("file", "rule"), [("adv_grpo", "grpo"), ("adv_dr_grpo", "dr_grpo"), ("adv_rloo", "rloo")])
def test_reference_vectors(file, rule):
    """Groups of one are ours (0), where verl keeps the raw reward."""
    path = PARITY / f"{file}.json"
    if not path.exists():
        pytest.skip(f"no reference vectors at {PARITY} (set JURAT_PARITY)")
    document = json.loads(path.read_text())
    checked = 0
    for case in document["cases"]:
        dtype = case["dtype"]
        rewards = np.array(case["inputs"]["token_level_rewards"], dtype=dtype).sum(axis=1).astype(np.float64)
        mask = np.array(case["inputs"]["response_mask"], dtype=bool)
        wanted = np.array(case["outputs"]["advantages"], dtype=np.float64)
        index = np.array(case["inputs"]["index"])
        for name in dict.fromkeys(index.tolist()):
            rows = np.flatnonzero(index == name)
            if len(rows) < 2:
                continue
            got = ADVANTAGES[rule](rewards[rows])[:, None] * mask[rows]
            np.testing.assert_allclose(
                got,
                wanted[rows],
                rtol=document["tolerance"][dtype],
                atol=document["tolerance"][dtype],
                err_msg=case["id"],
            )
            checked += 1
    assert checked >= 30
