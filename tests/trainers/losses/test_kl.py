"""Estimators of the KL divergence: values and gradients."""

import math

import pytest
import torch

from jurat.trainers.losses.kl import KL_ESTIMATORS, straight_through


def value_and_slope(estimator, d, **options):
    leaf = torch.tensor(d, dtype=torch.float64, requires_grad=True)
    value = estimator(leaf, **options)
    value.sum().backward()
    return value.tolist(), leaf.grad.tolist()


def test_by_hand():
    half = math.exp(-0.5) - 0.5
    assert value_and_slope(KL_ESTIMATORS["k1"], [0.5, -0.5]) == ([0.5, -0.5], [1.0, 1.0])
    assert value_and_slope(KL_ESTIMATORS["k2"], [0.5, -0.5]) == ([0.125, 0.125], [0.5, -0.5])
    assert value_and_slope(KL_ESTIMATORS["k3"], [0.5])[0] == pytest.approx([half])
    assert value_and_slope(KL_ESTIMATORS["k3"], [0.5])[1] == pytest.approx([1 - math.exp(-0.5)])
    assert value_and_slope(KL_ESTIMATORS["k1+"], [0.5, -0.5]) == ([0.5, -0.5], [0.5, -0.5])
    value, slope = value_and_slope(KL_ESTIMATORS["k3+"], [0.5])
    assert (value, slope) == (pytest.approx([half]), [0.5])


def test_unbiased_values_on_an_enumerable_policy():
    policy = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    reference = torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64)
    d = (policy / reference).log()
    exact = (policy * d).sum().item()
    for name in ("k1", "k3", "k1+", "k3+"):
        assert (policy * KL_ESTIMATORS[name](d)).sum().item() == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("name", ["k1", "k2", "k3", "k1+", "k3+"])
def test_limit(name):
    value, _ = value_and_slope(KL_ESTIMATORS[name], [-30.0, 0.1, 30.0], limit=10.0)
    assert max(map(abs, value)) <= 10.0
    assert value[1] == value_and_slope(KL_ESTIMATORS[name], [0.1])[0][0]
    assert all(map(math.isfinite, value_and_slope(KL_ESTIMATORS[name], [-1e4, 1e4])[0]))


def test_verl(rows):
    """verl limits k3 alone."""
    cases, tolerance = rows.load("kl_penalty")
    for case in cases:
        name = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}.get(
            case["params"]["kl_penalty"], case["params"]["kl_penalty"]
        )
        now = rows.tensor(case["inputs"]["logprob"], case).requires_grad_()
        d = now - rows.tensor(case["inputs"]["ref_logprob"], case)
        got = KL_ESTIMATORS[name](d, **({"limit": 10.0} if name.startswith("k3") else {}))
        got.sum().backward()
        rows.close(got, rows.tensor(case["outputs"]["kl"], case), tolerance(case), case["id"])
        wanted = rows.tensor(case["outputs"]["grad_logprob_of_sum"], case)
        rows.close(now.grad, wanted, tolerance(case), case["id"])


def test_openrlhf(rows):
    """OpenRLHF limits every estimator; its unbiased gradient is that of k2 times the importance ratio."""
    cases, tolerance = rows.load("openrlhf_losses")
    for case in cases:
        if not case["id"].startswith("kl_"):
            continue
        now, base, old = (
            rows.tensor(case["inputs"][name], case) for name in ("log_probs", "log_probs_base", "log_probs_old")
        )
        now.requires_grad_()
        d = now - base
        got = KL_ESTIMATORS[case["params"]["kl_estimator"]](d, limit=10.0)
        if case["params"]["unbiased_gradient"]:
            got = straight_through(got, d, torch.exp(now.detach() - old))
        got.sum().backward()
        rows.close(got, rows.tensor(case["outputs"]["kl"], case), tolerance(case), case["id"])
        wanted = rows.tensor(case["outputs"]["grad_log_probs_of_sum"], case)
        rows.close(now.grad, wanted, tolerance(case), case["id"])
