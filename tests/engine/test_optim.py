"""The flat optimiser against torch's own and against closed forms."""

from __future__ import annotations

import math

import pytest
import torch

from jurat.engine.optim import NORM_BLOCK, AdamW, global_norm, learning_rate
from jurat.platform.recipe import Optim


def test_equals_torch_with_clipping_decay_and_schedule():
    settings = Optim(lr=1e-2, schedule="cosine", warmup_steps=2, weight_decay=0.1, clip_norm=1.0)
    torch.manual_seed(0)
    master, num_matrix = torch.randn(1000), 900
    matrix = torch.nn.Parameter(master[:num_matrix].clone())
    norm = torch.nn.Parameter(master[num_matrix:].clone())
    theirs = torch.optim.AdamW(
        [{"params": [matrix], "weight_decay": 0.1}, {"params": [norm], "weight_decay": 0.0}], lr=1.0, foreach=False
    )
    grad = torch.zeros_like(master)
    ours = AdamW(master, grad, num_matrix=num_matrix, optim=settings, total=10)
    for step in range(10):
        drawn = torch.randn(1000) * (0.001 if step % 2 else 1.0)  # below and above the clip norm
        grad.copy_(drawn)
        report = ours.step()
        matrix.grad, norm.grad = drawn[:num_matrix].clone(), drawn[num_matrix:].clone()
        whole = torch.nn.utils.clip_grad_norm_([matrix, norm], 1.0)
        for group in theirs.param_groups:
            group["lr"] = learning_rate(settings, step, 10)
        theirs.step()
        assert report["grad_norm"] == pytest.approx(float(whole), rel=1e-5)
        assert not grad.any()
    torch.testing.assert_close(master, torch.cat([matrix, norm]).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("schedule", "step", "expected"),
    [
        ("constant", 0, 0.25), ("constant", 3, 1.0), ("constant", 99, 1.0),
        ("linear", 1, 0.5), ("linear", 4, 1.0), ("linear", 8, 0.5), ("linear", 12, 0.0), ("linear", 50, 0.0),
        ("cosine", 4, 1.0), ("cosine", 8, 0.5), ("cosine", 10, 0.5 - 0.5 * math.sqrt(0.5)), ("cosine", 12, 0.0),
    ],
)  # fmt: skip
def test_schedule_values(schedule, step, expected):
    settings = Optim(lr=2.0, schedule=schedule, warmup_steps=4)
    assert learning_rate(settings, step, 12) == pytest.approx(2.0 * expected, abs=1e-12)


def test_norm_of_many_elements():
    count = 900 * NORM_BLOCK + 5
    flat = torch.full((count,), 1e-3)
    assert global_norm(flat) == pytest.approx(1e-3 * math.sqrt(count), rel=1e-4)
    flat[7] = float("inf")
    assert not math.isfinite(global_norm(flat))


@pytest.mark.parametrize(("bad", "loss"), [(float("nan"), 0.0), (float("inf"), 0.0), (0.0, float("nan"))])
def test_a_non_finite_step_changes_nothing(bad, loss):
    master, grad = torch.ones(8), torch.ones(8)
    ours = AdamW(master, grad, num_matrix=8, optim=Optim(lr=0.1, weight_decay=0.1), total=4)
    ours.step()
    before = {"master": master.clone(), **{name: t.clone() for name, t in ours.tensors().items()}}
    grad[3] = bad
    report = ours.step(loss=loss)
    assert report["skipped"] == 1.0
    assert torch.equal(master, before["master"])
    assert all(torch.equal(tensor, before[name]) for name, tensor in ours.tensors().items())
    assert not grad.any()
    assert ours.counters() == {"step_count": 2, "applied": 1}
