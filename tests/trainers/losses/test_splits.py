"""What must not matter: how an update is split into microbatches, the order of its samples, padding, pieces of tokens."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jurat.platform.types import COLUMNS, Microbatch
from jurat.trainers.aggregation import AGGREGATIONS
from jurat.trainers.losses.cispo import CISPO
from jurat.trainers.losses.clipped import Clipped
from jurat.trainers.losses.correction import Importance, OffPolicyMask, Rejection
from jurat.trainers.losses.cross_entropy import CrossEntropy
from jurat.trainers.losses.gmpo import GMPO
from jurat.trainers.losses.gspo import GSPO
from jurat.trainers.losses.plain import Plain
from jurat.trainers.losses.preference import DPO, KTO
from jurat.trainers.losses.sapo import SAPO
from jurat.trainers.losses.value import ValueLoss
from jurat.trainers.losses.vespo import VESPO

EXTRAS = {
    "kl_coef": 0.1,
    "kl_off_policy": True,
    "entropy_coef": 0.01,
    "corrections": (Importance(high=2.0), Rejection(high=1.0, level="mean"), OffPolicyMask(0.05)),
}
OBJECTIVES = [
    Clipped(dual=3.0),
    Clipped(**EXTRAS),
    GSPO(low=0.2, high=0.2),
    GSPO(low=0.2, high=0.2, **EXTRAS),
    CISPO(high=0.2),
    Plain(kl_coef=0.1, kl_estimator="k3+", corrections=(Importance(level="sequence", high=2.0),)),
    GMPO(),
    SAPO(),
    VESPO(),
    CrossEntropy(),
    ValueLoss(clip=0.2),
    DPO(),
    DPO(kind="ipo", per_token=True),
    KTO(),
]
names = [f"{n}-{type(objective).__name__}" for n, objective in enumerate(OBJECTIVES)]


def made(seed, lengths, mode, dtype):
    """Samples as {column: [L]}, in pairs of one atom, of log-probs about 0.3 apart; every third token is masked."""
    rng = np.random.default_rng(seed)
    weights, samples = [], []
    for j, length in enumerate(lengths):
        mask = (np.arange(length) % 3 != 0) & (np.arange(length) > 0)
        now = -rng.exponential(1.0, length)
        sample = {"loss_mask": mask, "current": now * mask}
        for name in ("sampler_logprobs", "proximal_logprobs", "ref_logprobs"):
            sample[name] = np.minimum(now + 0.3 * rng.standard_normal(length), 0) * mask
        for name in ("values", "returns"):
            sample[name] = rng.standard_normal(length) * mask
        sample["values"] = sample["values"] * 0 + 0.2 * mask
        sample["advantages"] = mask * rng.standard_normal()
        sample["labels"] = mask * float(j % 2)
        samples.append(sample)
        weights.append(mask.astype(dtype))
    atoms = [j // 2 for j in range(len(lengths))]
    for sample, row in zip(samples, AGGREGATIONS[mode](weights, atoms, 7), strict=True):
        sample["weights"] = row
    return samples


def gradients(objective, samples, dtype):
    """(loss, gradient [L] of each sample) of one microbatch."""
    columns = {
        name: torch.from_numpy(np.concatenate([s[name] for s in samples]).astype(dtype))
        for name in ("current", *COLUMNS)
    }
    lengths = [len(s["loss_mask"]) for s in samples]
    current = columns.pop("current").requires_grad_()
    mb = Microbatch(
        tokens=torch.zeros(len(current), dtype=torch.int64),
        offsets=torch.tensor([0, *np.cumsum(lengths)]),
        loss_mask=torch.from_numpy(np.concatenate([s["loss_mask"] for s in samples])),
        **columns,
    )
    loss, _ = objective(current, mb)
    (slope,) = torch.autograd.grad(loss, current)
    return loss.item(), list(slope.split(lengths))


@pytest.mark.parametrize("objective", OBJECTIVES, ids=names)
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    lengths=st.lists(st.integers(2, 9), min_size=3, max_size=5).map(lambda ls: [n for n in ls for _ in range(2)]),
    parts=st.integers(1, 3),
    mode=st.sampled_from(sorted(AGGREGATIONS)),
    double=st.booleans(),
)
def test_splits_order_and_padding(objective, seed, lengths, parts, mode, double):
    dtype, tolerance = (np.float64, 1e-12) if double else (np.float32, 1e-6)
    samples = made(seed, lengths, mode, dtype)
    whole, wanted = gradients(objective, samples, dtype)
    pairs = np.random.default_rng(seed).permutation(len(samples) // 2)
    total, got = 0.0, {}
    for part in np.array_split(pairs, parts):
        order = [j for pair in part for j in (2 * pair + 1, 2 * pair)]
        padded = [{name: np.append(column, [0, 0]) for name, column in samples[j].items()} for j in order]
        padded = [{**sample, "loss_mask": sample["loss_mask"].astype(bool)} for sample in padded]
        loss, slopes = gradients(objective, padded, dtype)
        total += loss
        got.update({j: slope[:-2] for j, slope in zip(order, slopes, strict=True)})
    assert total == pytest.approx(whole, rel=tolerance, abs=tolerance)
    for j, slope in enumerate(wanted):
        torch.testing.assert_close(got[j], slope, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("objective", [o for o in OBJECTIVES if o.token_local])
def test_token_local_losses_may_be_called_on_pieces(objective):
    samples = made(3, [5, 5, 8, 8], "token-mean", np.float64)
    wanted = torch.cat(gradients(objective, samples, np.float64)[1])
    flat = {name: np.concatenate([sample[name] for sample in samples]) for name in samples[0]}
    targets = flat["loss_mask"].nonzero()[0]
    for piece in np.array_split(targets, 5):
        part = {name: column[piece] for name, column in flat.items()}
        torch.testing.assert_close(
            gradients(objective, [part], np.float64)[1][0], wanted[piece], rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("objective", [o for o in OBJECTIVES if o.skips_zero_advantage])
def test_zero_advantage_has_no_gradient_where_the_loss_says_so(objective):
    samples = [
        {**sample, "advantages": 0 * sample["advantages"]} for sample in made(3, [5, 5], "token-mean", np.float64)
    ]
    assert not torch.cat(gradients(objective, samples, np.float64)[1]).any()
