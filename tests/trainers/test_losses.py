"""Losses: values and gradients by hand, against reference vectors, and their invariances."""

import json
import os
from pathlib import Path

import pytest
import torch

from jurat.platform.types import Microbatch
from jurat.trainers.losses.clipped import Clipped
from jurat.trainers.losses.cross_entropy import CrossEntropy
from jurat.trainers.losses.kl import KL_ESTIMATORS

PARITY = Path(os.environ.get("JURAT_PARITY", Path(__file__).parents[3] / "shared" / "parity"))


def microbatch(weights, advantages, **columns):
    n = len(weights)
    return Microbatch(
        tokens=torch.zeros(n, dtype=torch.int64),
        offsets=torch.tensor([0, n]),
        loss_mask=torch.ones(n, dtype=torch.bool),
        sampler_logprobs=torch.zeros(n),
        weights=torch.as_tensor(weights),
        advantages=torch.as_tensor(advantages),
        **{name: torch.as_tensor(column) for name, column in columns.items()},
    )


def load(name):
    path = PARITY / f"{name}.json"
    if not path.exists():
        pytest.skip(f"no reference vectors at {PARITY} (set JURAT_PARITY)")
    return json.loads(path.read_text())


def test_on_policy_gradient_is_that_of_reinforce():
    current = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64, requires_grad=True)
    mb = microbatch([0.25, 0.25, 0.5], [1.0, -2.0, 0.0])
    loss, metrics = Clipped()(current, mb)
    loss.backward()
    assert loss.item() == pytest.approx(-0.25 * 1.0 + 0.25 * 2.0)
    assert current.grad.tolist() == pytest.approx([-0.25, 0.5, 0.0])
    assert metrics["clip_fraction"].item() == 0.0


def test_clipping_stops_the_gradient_on_the_profitable_side_only():
    old = torch.log(torch.tensor([0.5, 0.5, 0.5, 0.5], dtype=torch.float64))
    now = torch.log(torch.tensor([0.8, 0.3, 0.8, 0.3], dtype=torch.float64)).requires_grad_()
    mb = microbatch([1.0] * 4, [1.0, 1.0, -1.0, -1.0], proximal_logprobs=old)
    loss, metrics = Clipped(low=0.2, high=0.28)(now, mb)
    loss.backward()
    assert loss.item() == pytest.approx(-1.28 - 0.6 + 1.6 + 0.8)
    assert now.grad.tolist() == pytest.approx([0.0, -0.6, 1.6, 0.0])
    assert metrics["clip_fraction"].item() == 2.0


def test_kl_term_is_added_and_forbids_skipping():
    current = torch.tensor([-1.0], dtype=torch.float64)
    mb = microbatch([1.0], [0.0], ref_logprobs=torch.tensor([-1.5], dtype=torch.float64))
    loss, metrics = Clipped(kl_coef=0.1, kl_estimator="k2")(current, mb)
    assert loss.item() == pytest.approx(0.1 * 0.125)
    assert metrics["kl_ref"].item() == pytest.approx(0.125)
    assert Clipped().skips_zero_advantage
    assert not Clipped(kl_coef=0.1).skips_zero_advantage


def test_cross_entropy():
    current = torch.tensor([-1.0, -3.0], requires_grad=True)
    loss, _ = CrossEntropy()(current, microbatch([0.5, 0.5], [0.0, 0.0]))
    loss.backward()
    assert loss.item() == 2.0
    assert current.grad.tolist() == [-0.5, -0.5]


def test_clipped_against_reference_vectors():
    document = load("policy_loss_ppo")
    checked = 0
    for case in document["cases"]:
        given, params = case["inputs"], case["params"]
        dual = params["clip_ratio_c"]
        if given.get("rollout_is_weights") is not None or params.get("loss_agg_mode", "token-mean") != "token-mean":
            continue
        dtype = getattr(torch, case["dtype"])
        old, now, advantages, mask = (
            torch.tensor(given[key], dtype=dtype) for key in ("old_log_prob", "log_prob", "advantages", "response_mask")
        )
        now.requires_grad_()
        low, high = (
            params.get("clip_ratio_low") or params["clip_ratio"],
            params.get("clip_ratio_high") or params["clip_ratio"],
        )
        mb = microbatch((mask / mask.sum()).flatten(), advantages.flatten(), proximal_logprobs=old.flatten())
        loss, _ = Clipped(low=low, high=high, dual=dual)(now.flatten(), mb)
        loss.backward()
        tolerance = document["tolerance"][case["dtype"]]
        assert loss.item() == pytest.approx(
            float(next(v for k, v in case["outputs"].items() if k in ("loss", "pg_loss"))), rel=tolerance, abs=tolerance
        ), case["id"]
        gradient = next(v for k, v in case["outputs"].items() if k.startswith("grad"))
        torch.testing.assert_close(now.grad, torch.tensor(gradient, dtype=dtype), rtol=tolerance, atol=tolerance)
        checked += 1
    assert checked >= 4


def test_kl_against_reference_vectors():
    """verl clamps k3 to [-10, 10]; ours only clamps the log-ratio, so rows beyond are left out."""
    document = load("kl_penalty")
    checked = 0
    for case in document["cases"]:
        name = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}.get(
            case["params"]["kl_penalty"]
        )
        if name is None:
            continue
        dtype = getattr(torch, case["dtype"])
        d = torch.tensor(case["inputs"]["logprob"], dtype=dtype) - torch.tensor(
            case["inputs"]["ref_logprob"], dtype=dtype
        )
        got, wanted = KL_ESTIMATORS[name](d), torch.tensor(case["outputs"]["kl"], dtype=dtype)
        inside = wanted.abs() < 10 if name == "k3" else torch.ones_like(wanted, dtype=torch.bool)
        tolerance = document["tolerance"][case["dtype"]]
        torch.testing.assert_close(got[inside], wanted[inside], rtol=tolerance, atol=tolerance)
        checked += 1
    assert checked >= 6
