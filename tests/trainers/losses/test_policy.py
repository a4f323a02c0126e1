"""Policy losses: values and gradients by hand, and against reference vectors."""

import math

import pytest
import torch

from jurat.platform.types import Microbatch
from jurat.trainers.losses.cispo import CISPO
from jurat.trainers.losses.clipped import Clipped
from jurat.trainers.losses.correction import Importance, OffPolicyMask, Rejection
from jurat.trainers.losses.cross_entropy import CrossEntropy
from jurat.trainers.losses.entropy import token_entropy
from jurat.trainers.losses.gmpo import GMPO
from jurat.trainers.losses.gspo import GSPO
from jurat.trainers.losses.plain import Plain
from jurat.trainers.losses.sapo import SAPO
from jurat.trainers.losses.vespo import VESPO


def microbatch(weights, advantages, **columns):
    n = len(weights)
    columns = {"sampler_logprobs": torch.zeros(n), **columns}
    return Microbatch(
        tokens=torch.zeros(n, dtype=torch.int64),
        offsets=torch.tensor([0, n]),
        loss_mask=torch.ones(n, dtype=torch.bool),
        weights=torch.as_tensor(weights),
        advantages=torch.as_tensor(advantages),
        **{name: torch.as_tensor(column) for name, column in columns.items()},
    )


def slope(objective, current, mb):
    leaf = current.clone().requires_grad_()
    loss, metrics = objective(leaf, mb)
    loss.backward()
    return loss.item(), leaf.grad.tolist(), metrics


@pytest.mark.parametrize("objective", [Clipped(), Plain(), CISPO(), SAPO(), SAPO(positive=2.0, negative=5.0)])
def test_on_policy_gradient_is_that_of_reinforce(objective):
    current = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64)
    _, gradient, _ = slope(objective, current, microbatch([0.25, 0.25, 0.5], [1.0, -2.0, 0.0]))
    assert gradient == pytest.approx([-0.25, 0.5, 0.0])


@pytest.mark.parametrize("objective", [GSPO(), GMPO()])
def test_on_policy_gradient_of_sequence_ratios(objective):
    current = torch.tensor([-1.0, -2.0], dtype=torch.float64)
    loss, gradient, _ = slope(objective, current, microbatch([0.5, 0.5], [3.0, 3.0]))
    assert loss == pytest.approx(-3.0)
    assert gradient == pytest.approx([-1.5, -1.5])
    assert not objective.token_local


def test_clipping_stops_the_gradient_on_the_profitable_side_only():
    old = torch.log(torch.tensor([0.5, 0.5, 0.5, 0.5], dtype=torch.float64))
    now = torch.log(torch.tensor([0.8, 0.3, 0.8, 0.3], dtype=torch.float64))
    mb = microbatch([1.0] * 4, [1.0, 1.0, -1.0, -1.0], proximal_logprobs=old)
    loss, gradient, metrics = slope(Clipped(low=0.2, high=0.28), now, mb)
    assert loss == pytest.approx(-1.28 - 0.6 + 1.6 + 0.8)
    assert gradient == pytest.approx([0.0, -0.6, 1.6, 0.0])
    assert metrics["clip_fraction"].item() == 2.0


def test_dual_clip_bounds_the_loss_of_a_bad_token():
    old, now = torch.tensor([-5.0], dtype=torch.float64), torch.tensor([-1.0], dtype=torch.float64)
    mb = microbatch([1.0], [-2.0], proximal_logprobs=old)
    assert slope(Clipped(dual=3.0), now, mb)[:2] == (6.0, [0.0])
    assert slope(Clipped(), now, mb)[0] == pytest.approx(2 * math.exp(4))


def test_gspo_ratio_is_the_geometric_mean_of_the_sequence():
    old = torch.tensor([-1.0, -1.0], dtype=torch.float64)
    now = torch.tensor([-0.5, -0.9], dtype=torch.float64)  # mean log-ratio 0.3
    mb = microbatch([0.5, 0.5], [1.0, 1.0], proximal_logprobs=old)
    loss, gradient, _ = slope(GSPO(low=0.5, high=0.5), now, mb)
    assert loss == pytest.approx(-math.exp(0.3))
    assert gradient == pytest.approx([-math.exp(0.3) / 2] * 2)
    assert slope(GSPO(low=0.5, high=0.1), now, mb)[:2] == (pytest.approx(-1.1), [0.0, 0.0])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_one_lost_token_does_not_make_the_ratio_of_a_sequence(sign):
    """A log-ratio of -+1000 counts as -+20 in GMPO's geometric mean, and has no gradient."""
    old = torch.tensor([-1.0, -1.0, -1.0, -1.0], dtype=torch.float64)
    now = old - sign * torch.tensor([1000.0, 0.0, 0.0, 0.0])
    loss, gradient, _ = slope(GMPO(), now, microbatch([0.25] * 4, [sign] * 4, proximal_logprobs=old))
    ratio = math.exp(-sign * 5.0)
    assert loss == pytest.approx(-sign * ratio)
    assert gradient == pytest.approx([0.0] + [-sign * ratio / 4] * 3)


def test_cispo_keeps_the_gradient_of_a_clipped_token():
    old, now = torch.tensor([-3.0], dtype=torch.float64), torch.tensor([-1.0], dtype=torch.float64)
    mb = microbatch([1.0], [2.0], proximal_logprobs=old)
    assert slope(CISPO(high=4.0), now, mb)[:2] == (10.0, [-10.0])  # exp(2) is clipped to 5


def test_vespo_weighs_by_the_whole_sequence():
    sampler = torch.tensor([-1.0, -1.0], dtype=torch.float64)
    now = torch.tensor([-0.5, -0.9], dtype=torch.float64)  # w = exp(0.6)
    mb = microbatch([0.5, 0.5], [1.0, 1.0], sampler_logprobs=sampler)
    w = math.exp(0.6)
    phi = w**2 * math.exp(3 * (1 - w))
    assert slope(VESPO(), now, mb)[:2] == (pytest.approx(0.7 * phi), pytest.approx([-phi / 2] * 2))


def test_kl_term_is_added_and_forbids_skipping():
    current = torch.tensor([-1.0], dtype=torch.float64)
    mb = microbatch([1.0], [0.0], ref_logprobs=torch.tensor([-1.5], dtype=torch.float64))
    for kind in (Clipped, GSPO, CISPO, Plain, GMPO, SAPO, VESPO):
        loss, _, metrics = slope(kind(kl_coef=0.1, kl_estimator="k2"), current, mb)
        assert loss == pytest.approx(0.1 * 0.125)
        assert metrics["kl_ref"].item() == pytest.approx(0.125)
        assert kind().skips_zero_advantage
        assert not kind(kl_coef=0.1).skips_zero_advantage
        assert not kind(entropy_coef=0.1).skips_zero_advantage


@pytest.mark.parametrize("lag", [0.0, 0.7])
def test_entropy_term_has_the_gradient_of_the_entropy(lag):
    """On all tokens of a small vocabulary, weighted by the probability that the proximal policy draws them."""
    logits = torch.tensor([0.3, -1.2, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    proximal = (logits.detach() * (1 - lag)).log_softmax(0)
    current = logits.log_softmax(0)
    zeros = torch.zeros(4, dtype=torch.float64)
    loss, _ = Clipped(entropy_coef=0.5)(current, microbatch(proximal.exp(), zeros, proximal_logprobs=proximal))
    entropy = token_entropy(logits)
    assert loss.item() == pytest.approx(-0.5 * entropy.item())
    (got,) = torch.autograd.grad(loss, logits, retain_graph=True)
    (wanted,) = torch.autograd.grad(-0.5 * entropy, logits)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lag", [0.0, 0.7])
@pytest.mark.parametrize(("estimator", "off_policy"), [("k3", True), ("k2", False), ("k1+", False), ("k3+", False)])
def test_which_kl_terms_have_the_gradient_of_the_kl(lag, estimator, off_policy):
    """All do on policy, k1, k2 and k3 as their docstring says; with lag only rho k3."""
    logits = torch.tensor([0.3, -1.2, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.0, 0.5, -0.5, 1.0], dtype=torch.float64).log_softmax(0)
    proximal = (logits.detach() * (1 - lag)).log_softmax(0)
    current = logits.log_softmax(0)
    mb = microbatch(
        proximal.exp(), torch.zeros(4, dtype=torch.float64), proximal_logprobs=proximal, ref_logprobs=reference
    )
    loss, _ = Clipped(kl_coef=1.0, kl_estimator=estimator, kl_off_policy=off_policy)(current, mb)
    (got,) = torch.autograd.grad(loss, logits, retain_graph=True)
    (wanted,) = torch.autograd.grad((current.exp() * (current - reference)).sum(), logits)
    assert torch.allclose(got, wanted, rtol=1e-12, atol=1e-12) == (lag == 0.0 or off_policy)


def test_no_ratio_overflows():
    extreme = torch.tensor([-1e4, -1e-9, -1e4, 0.0])
    other = torch.tensor([-1e-9, -1e4, 0.0, -1e4])
    columns = {"proximal_logprobs": other, "sampler_logprobs": extreme, "ref_logprobs": other}
    mb = microbatch([0.25] * 4, [1.0, -1.0, 1.0, -1.0], **columns)
    corrections = (Importance(), Importance(level="sequence"), Rejection(high=1.0, level="mean"), OffPolicyMask(0.1))
    for kind in (Clipped, GSPO, CISPO, Plain, GMPO, SAPO, VESPO):
        objective = kind(kl_coef=0.1, entropy_coef=0.1, corrections=corrections, kl_off_policy=True)
        loss, gradient, _ = slope(objective, extreme, mb)
        assert math.isfinite(loss) and all(map(math.isfinite, gradient)), kind.__name__


def test_cross_entropy():
    current = torch.tensor([-1.0, -3.0])
    assert slope(CrossEntropy(), current, microbatch([0.5, 0.5], [0.0, 0.0]))[:2] == (2.0, [-0.5, -0.5])


GIVEN = Importance(low=1e-8, outside="zero")
"""A factor that a case gives as such; exp(-20) is as near to 0 as a log-ratio gets."""


def check(rows, case, tolerance, objective, mode, *, names=("log_prob", "old_log_prob", "response_mask"), **columns):
    now, old, mask = (rows.tensor(case["inputs"][name], case) for name in names)
    columns.setdefault("constant", mask.shape[1])
    advantages = rows.tensor(case["inputs"]["advantages"], case)
    mb = rows.microbatch(mask, mode, advantages=advantages, proximal_logprobs=old, **columns)
    loss, gradient, metrics = rows.run(objective, now, mb)
    rows.close(loss, case["outputs"]["loss"], tolerance, case["id"])
    rows.close(gradient, rows.tensor(case["outputs"]["grad_log_prob"], case), tolerance, case["id"])
    return metrics


def test_verl_clipped(rows):
    cases, tolerance = rows.load("policy_loss_ppo")
    for case in cases:
        params, given = case["params"], case["inputs"]
        extra, corrections = {}, ()
        if given.get("rollout_is_weights") is not None:  # given as weights there, as log-probs of the sampler here
            factors = rows.tensor(given["rollout_is_weights"], case)
            extra["sampler_logprobs"] = rows.tensor(given["old_log_prob"], case) - factors.log()
            corrections = (GIVEN,)
        loss = Clipped(
            low=params["clip_ratio_low"],
            high=params["clip_ratio_high"],
            dual=params["clip_ratio_c"],
            corrections=corrections,
        )
        metrics = check(rows, case, tolerance(case), loss, params["loss_agg_mode"], eps=1e-8, **extra)
        if params["loss_agg_mode"] == "token-mean":
            wanted = case["outputs"]["metrics"]["actor/pg_clipfrac"]
            assert metrics["clip_fraction"].item() == pytest.approx(wanted, abs=1e-6), case["id"]


def test_verl_gspo(rows):
    cases, tolerance = rows.load("policy_loss_gspo")
    for case in cases:
        params = case["params"]
        loss = GSPO(low=params["clip_ratio_low"], high=params["clip_ratio_high"])
        check(rows, case, tolerance(case), loss, params["loss_agg_mode"], eps=1e-8)


def test_verl_cispo(rows):
    cases, tolerance = rows.load("policy_loss_cispo")
    for case in cases:
        params = case["params"]
        loss = CISPO(low=params["clip_ratio_low"], high=params["clip_ratio_high"])
        check(rows, case, tolerance(case), loss, params["loss_agg_mode"], eps=1e-8)


def test_verl_gpg_gmpo_sapo(rows):
    """verl's GMPO is the mean over sequences whatever the aggregation is said to be."""
    cases, tolerance = rows.load("policy_loss_extra")
    for case in cases:
        params = case["params"]
        name, mode = case["id"].split("/")[0], params["loss_agg_mode"]
        if name == "geo_mean":
            loss, mode = (
                GMPO(low=params["clip_ratio_low"], high=params["clip_ratio_high"], eps=1e-8),
                "seq-mean-token-mean",
            )
        else:
            loss = {"gpg": Plain(), "sapo": SAPO()}[name]
        check(rows, case, tolerance(case), loss, mode, eps=0.0 if name == "geo_mean" else 1e-8)


def test_openrlhf_policy(rows):
    cases, tolerance = rows.load("openrlhf_losses")
    cases = [case for case in cases if not case["id"].startswith("kl_")]
    for case in cases:
        params = case["params"]
        low, high = params.get("is_correction_threshold", (0.0, math.inf))
        outside = "zero" if params.get("is_correction_mode") == "mask" else "clip"
        corrections = {
            None: (),
            "token": (Importance(low=low, high=high, outside=outside),),
            "seq": (Importance(), Rejection(-math.log(low or 1), -math.log(high), divergence="k1", level="mean")),
        }[params.get("is_correction_level")]
        clip = {"low": params.get("clip_eps_low", 0.2), "high": params.get("clip_eps_high", 0.2)}
        if params.get("policy_loss_type") == "gspo":
            loss, mode = GSPO(**clip, corrections=corrections), "seq-mean-token-mean"
        else:
            loss = Clipped(**clip, dual=params.get("dual_clip"), corrections=corrections)
            mode = "token-mean" if params.get("token_level_loss", True) else "seq-mean-token-mean"
        sampler = rows.tensor(case["inputs"]["rollout_log_prob"], case)
        names = ("log_prob", "old_log_prob", "mask")
        check(rows, case, tolerance(case), loss, mode, names=names, sampler_logprobs=sampler)


def vespo_sampler(rows, case):
    """The file does not record the importance ratios that TRL's vespo multiplies into w, so that w is not that of its
    log-probs. One number a row, found from its gradient; loss, gradients and the mean of phi must agree with it."""
    now, mask, slopes = (
        rows.tensor(values, case).double()
        for values in (case["inputs"]["log_prob"], case["inputs"]["mask"], case["outputs"]["grad_log_prob"])
    )
    advantages = rows.tensor(case["inputs"]["advantages"], case).double()
    phi = -(slopes.sum(1) / mask.sum(1) * mask.sum() / advantages)[:, None]
    assert phi.mean().item() == pytest.approx(case["outputs"]["metrics"]["vespo/phi_seq_mean"], rel=1e-5)
    power = torch.where(advantages >= 0, 2.0, 3.0)[:, None]
    decay = 5 - power
    low, high = torch.full_like(phi, -18.0), (power / decay).log()  # phi grows up to w = k / lambda
    for _ in range(100):
        middle = (low + high) / 2
        below = power * middle + decay * (1 - middle.exp()) < phi.log()
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (now - low / mask.sum(1, keepdim=True)).to(rows.tensor(0, case).dtype)


def test_trl_policy(rows):
    """TRL's names for what is a composition here: loss type -> (loss, aggregation)."""
    cases, tolerance = rows.load("trl_losses")
    for case in cases:
        params, given = case["params"], case["inputs"]
        kind = params["loss_type"]
        shared = {"kl_coef": params.get("beta", 0.0), "kl_off_policy": params.get("use_bias_correction_kl", False)}
        bounds = {"low": params["epsilon_low"], "high": params["epsilon_high"]}
        old = sampler = rows.tensor(given["old_log_prob"], case)
        if given.get("importance_sampling_ratio") is not None:
            sampler = old - rows.tensor(given["importance_sampling_ratio"], case).log()
            shared["corrections"] = (GIVEN,)
        if kind == "vespo":
            sampler = vespo_sampler(rows, case)
        if "off_policy_mask_threshold" in params:
            shared["corrections"] = (OffPolicyMask(params["off_policy_mask_threshold"]),)
        if kind == "cispo":
            loss = CISPO(high=params["epsilon_high"] - 1, **shared)
        elif kind in ("sapo", "vespo"):
            loss = {"sapo": SAPO, "vespo": VESPO}[kind](**shared)
        elif params.get("importance_sampling_level") == "sequence":
            loss = GSPO(**bounds, **shared)
        else:
            loss = Clipped(**bounds, dual=params.get("delta"), **shared)
        mode = {
            "grpo": "seq-mean-token-mean",
            "sapo": "seq-mean-token-mean",
            "luspo": "seq-mean-token-sum",
            "dr_grpo": "seq-mean-token-sum-norm",
        }.get(kind, "token-mean")
        ref = rows.tensor(given["ref_log_prob"], case)
        constant = params["max_completion_length"]
        names = ("log_prob", "old_log_prob", "mask")
        columns = {"sampler_logprobs": sampler, "ref_logprobs": ref}
        metrics = check(rows, case, tolerance(case), loss, mode, constant=constant, names=names, **columns)
        if "kl" in case["outputs"]["metrics"] and mode == "token-mean":
            assert metrics["kl_ref"].item() == pytest.approx(case["outputs"]["metrics"]["kl"], rel=1e-4), case["id"]
