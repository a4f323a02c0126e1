"""Corrections between sampler and trainer, and the numbers that say how far apart they are."""

import math

import pytest
import torch

from jurat.trainers.losses.clipped import Clipped
from jurat.trainers.losses.correction import Importance, OffPolicyMask, Rejection, self_normalised
from jurat.trainers.losses.mismatch import effective_samples, mismatch

LOG2 = math.log(2.0)
TRAINER = torch.tensor([[-1.0, -1.0], [-1.0, -9.0]], dtype=torch.float64)
SAMPLER = TRAINER - torch.tensor([[LOG2, 2 * LOG2], [-LOG2, 0.0]], dtype=torch.float64)  # r = 2, 4 and 1/2, -
MASK = torch.tensor([[1.0, 1.0], [1.0, 0.0]], dtype=torch.float64)


def factors(rows, correction, trainer=TRAINER, sampler=SAMPLER, mask=MASK, **columns):
    mb = rows.microbatch(mask, sampler_logprobs=sampler, **columns)
    proximal = rows.flat(torch.where(mask > 0, trainer, 0.0))
    return rows.unflat(correction(proximal, proximal, mb), mask) * mask


@pytest.mark.parametrize(
    ("correction", "wanted"),
    [
        (Importance(), [[2, 4], [0.5, 0]]),
        (Importance(high=3.0), [[2, 3], [0.5, 0]]),
        (Importance(low=1.0, high=3.0, outside="zero"), [[2, 0], [0, 0]]),
        (Importance(level="sequence"), [[8, 8], [0.5, 0]]),
        (Importance(high=2.0, level="sequence"), [[2, 2], [0.5, 0]]),
        (Rejection(high=0.0, low=-LOG2 - 1e-9, divergence="k1"), [[1, 0], [0, 0]]),
        (Rejection(high=LOG2**2 / 2 + 1e-9, divergence="k2"), [[1, 0], [1, 0]]),
        (Rejection(high=1.0 - LOG2 + 1e-9, divergence="k3"), [[1, 0], [1, 0]]),  # k3 = r - 1 - log r
        (Rejection(high=1.0, level="mean"), [[1, 1], [1, 0]]),
        (Rejection(high=1.0, level="sum"), [[0, 0], [1, 0]]),
        (Rejection(high=1.0, level="max"), [[0, 0], [1, 0]]),
    ],
)
def test_by_hand(rows, correction, wanted):
    torch.testing.assert_close(factors(rows, correction), torch.tensor(wanted, dtype=torch.float64))


def test_off_policy_mask_spares_good_sequences(rows):
    """The policy has left row 1 by log 2 nats; row 0 it draws more often than the sampler."""
    for advantages, wanted in (([1.0, 1.0], [[1, 1], [1, 0]]), ([-1.0, -1.0], [[1, 1], [0, 0]])):
        got = factors(rows, OffPolicyMask(0.5), advantages=torch.tensor(advantages, dtype=torch.float64))
        assert got.tolist() == wanted


def test_decoupled_ppo(rows):
    """(pi_prox / pi_behaviour) min(u A, clip(u) A): the factor scales value and gradient, and not the KL."""
    now = TRAINER + math.log(1.1)
    columns = {"advantages": torch.tensor([1.0, -1.0]).double(), "proximal_logprobs": TRAINER, "ref_logprobs": TRAINER}
    mb = rows.microbatch(MASK, sampler_logprobs=SAMPLER, **columns)
    loss, gradient, _ = rows.run(Clipped(corrections=(Importance(),), kl_coef=1.0, kl_estimator="k1"), now, mb)
    assert loss.item() == pytest.approx((-2 * 1.1 - 4 * 1.1 + 0.5 * 1.1) / 3 + math.log(1.1))
    wanted = torch.tensor([[-2.2, -4.4], [0.55, 0.0]]) / 3 + MASK / 3
    rows.close(gradient, wanted, 1e-7, "gradient")


def test_on_policy_changes_nothing_and_missing_log_probs_count_as_one(rows):
    ones = MASK.tolist()
    for correction in (
        Importance(),
        Importance(level="sequence"),
        Rejection(high=0.0),
        Rejection(high=0.0, level="max"),
    ):
        assert factors(rows, correction, sampler=TRAINER).tolist() == ones
        assert factors(rows, correction, sampler=torch.full_like(TRAINER, math.nan)).tolist() == ones


def test_extremes_are_finite(rows):
    for apart in (-1e30, 1e30, math.inf, -math.inf):
        for correction in (Importance(), Importance(level="sequence", mean=0.5), Rejection(high=1.0, level="sum")):
            assert factors(rows, correction, sampler=TRAINER + apart).isfinite().all()


def test_self_normalised_of_nothing_kept_divides_by_nothing(rows):
    none = Importance(low=10.0, high=11.0, outside="zero")
    mb = rows.microbatch(MASK, sampler_logprobs=SAMPLER)
    assert self_normalised(none, rows.flat(TRAINER * MASK), mb).mean == 1.0


def test_token_local():
    assert Clipped(corrections=(Importance(), Rejection(high=1.0))).token_local
    for correction in (Importance(level="sequence"), Rejection(high=1.0, level="sum"), OffPolicyMask(0.1)):
        assert not Clipped(corrections=(Importance(), correction)).token_local


def bounds(threshold):
    """verl's "low_high", or one number."""
    low, _, high = str(threshold).rpartition("_")
    return float(low) if low else None, float(high)


def test_verl_weights(rows):
    cases, tolerance = rows.load("tis_weights")
    for case in cases:
        params, given = case["params"], case["inputs"]
        trainer, sampler, mask = (
            rows.tensor(given[name], case) for name in ("old_log_prob", "rollout_log_prob", "response_mask")
        )
        low, high = bounds(params["rollout_is_threshold"])
        importance = Importance(low or 0.0, high, params["rollout_is"], "clip" if low is None else "zero")
        mb = rows.microbatch(mask, sampler_logprobs=sampler)
        proximal = rows.flat(trainer * mask)
        mean, share = effective_samples(importance(proximal, proximal, mb), mb)
        rows.close(mean, case["outputs"]["mean"], tolerance(case), case["id"])
        rows.close(share, case["outputs"]["ess"], tolerance(case), case["id"])
        if params["rollout_is_batch_normalize"]:
            importance = self_normalised(importance, proximal, mb, eps=1e-8)
        got = factors(rows, importance, trainer, sampler, mask)
        rows.close(got, rows.tensor(case["outputs"]["weights"], case), tolerance(case), case["id"])


def test_verl_rejection(rows):
    cases, tolerance = rows.load("rollout_rejection")
    for case in cases:
        if case["id"].startswith("offpolicy_metrics"):
            continue
        log_ratio, mask = (rows.tensor(case["inputs"][name], case) for name in ("log_ratio", "response_mask"))
        kept = mask
        names, thresholds = case["params"]["rollout_rs"], str(case["params"]["rollout_rs_threshold"])
        for name, threshold in zip(names.split(","), thresholds.split(","), strict=True):
            level, _, divergence = name.removeprefix("seq_").rpartition("_")
            low, high = bounds(threshold)
            if divergence == "k1":  # bounds on the ratio there, in nats here; one number bounds both sides alike
                low, high = math.log(low if low is not None else 1 / high), math.log(high)
            rejection = Rejection(high, -math.inf if low is None else low, divergence, level)
            kept = kept * factors(rows, rejection, log_ratio, torch.zeros_like(log_ratio), mask)
        rows.close(kept, rows.tensor(case["outputs"]["mask"], case), 0.0, case["id"])
        masked = 1 - kept.sum() / mask.sum()
        rows.close(masked, case["outputs"]["masked_fraction"], tolerance(case), case["id"])
        lost = ((mask - kept).sum(1) > 0).float().mean()  # in float32 there too
        rows.close(lost, case["outputs"]["seq_masked_fraction"], tolerance(case), case["id"])


def test_verl_metrics(rows):
    cases, tolerance = rows.load("rollout_rejection")
    for case in cases:
        if not case["id"].startswith("offpolicy_metrics"):
            continue
        trainer, sampler, mask = (
            rows.tensor(case["inputs"][name], case) for name in ("old_log_prob", "rollout_log_prob", "response_mask")
        )
        got = mismatch(rows.flat(trainer * mask), rows.microbatch(mask, sampler_logprobs=sampler), eps=1e-8)
        for name, wanted in case["outputs"].items():
            rows.close(got[name], wanted, tolerance(case), f"{case['id']} {name}")


def test_mismatch_of_nothing(rows):
    assert mismatch(rows.flat(MASK * 0), rows.microbatch(MASK * 0)) == {}


def test_trl_weights(rows):
    """TRL calls clipping "truncate" and zeroing "mask"."""
    cases, tolerance = rows.load("trl_vllm_is")
    for case in cases:
        params, given = case["params"], case["inputs"]
        trainer, sampler, mask = (
            rows.tensor(given[name], case) for name in ("old_log_prob", "sampling_log_prob", "mask")
        )
        level, _, outside = params["mode"].partition("_")
        outside = {"truncate": "clip", "mask": "zero"}[outside]
        importance = Importance(params["clip_min"] or 0.0, params["clip_max"], level, outside)
        wanted = rows.tensor(case["outputs"]["ratio"], case).expand_as(mask)
        got = factors(rows, importance, trainer, sampler, mask)
        rows.close(got, wanted * mask, tolerance(case), case["id"])
        if level == "token":  # off the mask both log-probs are 0
            assert (wanted[mask == 0] == 1).all()
