"""Aggregations: weights by hand, and against reference vectors."""

import json
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from jurat.trainers.aggregation import AGGREGATIONS

PARITY = Path(os.environ.get("JURAT_PARITY", Path(__file__).parents[3] / "shared" / "parity"))
ROWS = [np.array(row, dtype=np.float32) for row in ([0, 1, 1], [0, 1, 1, 1, 1], [0, 0])]
"""Two answers of 2 and 4 tokens, of one prompt; one of another, fully masked."""


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("token-mean", (1 / 6, 1 / 6)),
        ("token-sum", (1, 1)),
        ("seq-mean-token-mean", (1 / 4, 1 / 8)),
        ("seq-mean-token-sum", (1 / 2, 1 / 2)),
        ("seq-mean-token-sum-norm", (1 / 20, 1 / 20)),
        ("prompt-mean", (1 / 40, 1 / 40)),
    ],
)
def test_by_hand(mode, wanted):
    got = AGGREGATIONS[mode](ROWS, [0, 0, 1], 10)
    for row, weights, value in zip(ROWS, got, (*wanted, 0.0), strict=True):
        assert weights.dtype == row.dtype
        np.testing.assert_allclose(weights, row * value, rtol=1e-6)


@pytest.mark.parametrize("mode", sorted(AGGREGATIONS))
def test_nothing_to_learn_from_is_all_zero(mode):
    assert AGGREGATIONS[mode]([], [], 1) == []
    assert [w.tolist() for w in AGGREGATIONS[mode]([np.zeros(2, np.float32)], [0], 1)] == [[0.0, 0.0]]


@pytest.mark.parametrize("mode", sorted(AGGREGATIONS))
def test_order_and_relative_weights(mode):
    """Weights follow their samples, and those of half weight have half the say."""
    rng = np.random.default_rng(0)
    rows, atoms = [rng.random(n) for n in (3, 5, 2, 4)], [0, 0, 0, 1]
    got = AGGREGATIONS[mode](rows, atoms, 7)
    back = AGGREGATIONS[mode](rows[::-1], atoms[::-1], 7)[::-1]
    for there, again, row in zip(got, back, rows, strict=True):
        np.testing.assert_allclose(there, again, rtol=1e-12)
        np.testing.assert_allclose(there / row, there[0] / row[0], rtol=1e-12)


def test_verl():
    """verl averages gradients over ranks, so a rank multiplies by their number: here the update's other rows are made
    up to its global counts, and ranks sum."""
    path = PARITY / "loss_agg.json"
    if not path.exists():
        pytest.skip(f"no reference vectors at {PARITY} (set JURAT_PARITY)")
    document = json.loads(path.read_text())
    for case in document["cases"]:
        params, mode, dtype = case["params"], case["params"]["loss_agg_mode"], np.dtype(case["dtype"])
        losses, mask = (np.array(case["inputs"][name], dtype=dtype) for name in ("loss_mat", "loss_mask"))
        rows = list(mask)
        if "global_batch_size" in params:
            missing = params["global_batch_size"] - int(mask.any(1).sum())
            tokens = params["batch_num_tokens"] - int(mask.sum())
            lengths = [tokens - missing + 1] + [1] * (missing - 1)
            rows += [np.ones(length, dtype=dtype) for length in lengths]
        constant = params.get("loss_scale_factor", mask.shape[1])
        aggregation = AGGREGATIONS[mode]
        if mode == "seq-mean-token-mean":
            aggregation = partial(aggregation, eps=1e-8)
        weights = np.stack(aggregation(rows, range(len(rows)), constant)[: len(mask)]) * params.get("dp_size", 1)
        tolerance = document["tolerance"][case["dtype"]]
        for got, wanted in (
            ((weights * losses).sum(), case["outputs"]["loss"]),
            (weights, case["outputs"]["grad_loss_mat"]),
        ):
            np.testing.assert_allclose(got, np.array(wanted), rtol=tolerance, atol=tolerance, err_msg=case["id"])
