"""The critic's loss, and the exact entropy."""

import pytest
import torch

from jurat.trainers.losses.entropy import token_entropy
from jurat.trainers.losses.value import ValueLoss


def test_by_hand(rows):
    """v = 1 from 0 is clipped to 0.2; for R = 2 the clipped error is larger, for R = 0 the plain one."""
    ones = torch.ones(1, 2, dtype=torch.float64)
    columns = {"values": 0 * ones, "returns": torch.tensor([[2.0, 0.0]], dtype=torch.float64)}
    mb = rows.microbatch(ones, "token-sum", **columns)
    loss, gradient, metrics = rows.run(ValueLoss(clip=0.2), ones, mb)
    assert loss.item() == pytest.approx((1.8**2 + 1.0) / 2)
    assert gradient.tolist() == [[0.0, 1.0]]
    assert metrics["value_clip_fraction"].item() == 1.0
    loss, gradient, _ = rows.run(ValueLoss(), ones, mb)
    assert (loss.item(), gradient.tolist()) == (1.0, [[-1.0, 1.0]])
    assert not ValueLoss().skips_zero_advantage


def test_verl(rows):
    cases, tolerance = rows.load("value_and_entropy")
    for case in cases:
        given, mask = case["inputs"], rows.tensor(case["inputs"]["response_mask"], case)
        if case["id"].startswith("entropy"):
            entropy = token_entropy(rows.tensor(given["logits"], case))
            got = (entropy * mask).sum() / mask.sum()
            rows.close(got, case["outputs"]["entropy"], tolerance(case), case["id"])
            continue
        now, values, returns = (rows.tensor(given[name], case) for name in ("vpreds", "values", "returns"))
        mode = case["params"]["loss_agg_mode"]
        mb = rows.microbatch(mask, mode, mask.shape[1], eps=1e-8, values=values, returns=returns)
        loss, gradient, metrics = rows.run(ValueLoss(clip=case["params"]["cliprange_value"]), now, mb)
        rows.close(loss, case["outputs"]["loss"], tolerance(case), case["id"])
        rows.close(gradient, rows.tensor(case["outputs"]["grad_vpreds"], case), tolerance(case), case["id"])
        if mode == "token-mean":  # always one there
            rows.close(metrics["value_clip_fraction"], case["outputs"]["clipfrac"], tolerance(case), case["id"])
