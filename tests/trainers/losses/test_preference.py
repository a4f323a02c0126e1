"""DPO, IPO and KTO by hand, and what their gradients must do."""

import math

import pytest
import torch

from jurat.trainers.losses.preference import DPO, KTO, reference_point

REF = torch.tensor([[-1.0, -2.0], [-1.0, 0.0]], dtype=torch.float64)
NOW = torch.tensor([[-0.5, -1.0], [-0.8, 0.0]], dtype=torch.float64)  # h = 1.5 and 0.2
MASK = torch.tensor([[1.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
LABELS = torch.tensor([1.0, 0.0], dtype=torch.float64)


def pairs(rows, mask=MASK, ref=REF, labels=LABELS, **columns):
    return rows.microbatch(mask, "seq-mean-token-mean", ref_logprobs=ref, labels=labels, **columns)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def test_dpo_by_hand(rows):
    loss, gradient, metrics = rows.run(DPO(beta=0.5), NOW, pairs(rows))
    assert loss.item() == pytest.approx(-math.log(sigmoid(0.5 * 1.3)))
    slope = -0.5 * sigmoid(-0.5 * 1.3)
    rows.close(gradient, [[slope, slope], [-slope, 0.0]], 1e-12, "gradient")
    assert metrics["margin"].item() == pytest.approx(0.65)
    assert metrics["preferred"].item() == 1.0


def test_ipo_by_hand(rows):
    loss, gradient, _ = rows.run(DPO(beta=0.5, kind="ipo"), NOW, pairs(rows))
    assert loss.item() == pytest.approx((1.3 - 1.0) ** 2)
    rows.close(gradient, [[0.6, 0.6], [-0.6, 0.0]], 1e-12, "gradient")
    loss, gradient, _ = rows.run(DPO(beta=0.5, kind="ipo", per_token=True), NOW, pairs(rows))
    assert loss.item() == pytest.approx((0.75 - 0.2 - 1.0) ** 2)
    rows.close(gradient, [[-0.45, -0.45], [0.9, 0.0]], 1e-12, "gradient")


def test_pairs_may_come_in_either_order(rows):
    turned = pairs(rows, MASK.flip(0), REF.flip(0), LABELS.flip(0))
    for objective in (DPO(), DPO(kind="ipo")):
        there, back = rows.run(objective, NOW, pairs(rows)), rows.run(objective, NOW.flip(0), turned)
        assert there[0] == back[0]
        assert torch.equal(there[1], back[1].flip(0))


def test_a_pair_is_never_split(rows):
    one = rows.microbatch(MASK[:1], ref_logprobs=REF[:1], labels=LABELS[:1])
    with pytest.raises(AssertionError, match="pair was split"):
        DPO()(rows.flat(NOW[:1]), one)


def test_dpo_of_the_reference_is_log_two_and_stays_finite_far_away(rows):
    assert rows.run(DPO(), REF, pairs(rows))[0].item() == pytest.approx(math.log(2))
    for far in (-1e6, 1e6):
        loss, gradient, _ = rows.run(DPO(), REF + far * LABELS[:, None], pairs(rows))
        assert loss.isfinite() and gradient.isfinite().all()


def test_kto_by_hand(rows):
    z0 = torch.full_like(MASK, 0.3)
    objective = KTO(beta=0.5, desirable=1.0, undesirable=1.2)
    loss, gradient, _ = rows.run(objective, NOW, pairs(rows, values=z0))
    good, bad = sigmoid(0.5 * (1.5 - 0.3)), sigmoid(0.5 * (0.3 - 0.2))
    assert loss.item() == pytest.approx((1 - good + 1.2 * (1 - bad)) / 2)
    up, down = -0.5 * good * (1 - good) / 2, 0.5 * 1.2 * bad * (1 - bad) / 2
    rows.close(gradient, [[up, up], [down, 0.0]], 1e-12, "gradient")


def test_kto_without_a_reference_point_takes_zero(rows):
    zero = pairs(rows, values=torch.zeros_like(MASK))
    assert rows.run(KTO(), NOW, pairs(rows))[0] == rows.run(KTO(), NOW, zero)[0]


def test_reference_point():
    policy, reference = torch.tensor([-1.0, -4.0]), torch.tensor([-2.0, -4.5])
    assert reference_point(policy, reference) == 0.75
    assert reference_point(reference, policy) == 0.0
    assert reference_point(policy[:0], reference[:0]) == 0.0


@pytest.mark.parametrize("objective", [DPO(), DPO(kind="ipo"), KTO()])
def test_descent_prefers_the_good(rows, objective):
    mb, now, losses = pairs(rows), REF.clone(), []
    for _ in range(50):
        loss, gradient, _ = rows.run(objective, now, mb)
        losses.append(loss.item())
        now = now - 0.005 * gradient
    assert losses == sorted(losses, reverse=True)
    moved = ((now - REF) * MASK).sum(1)
    assert moved[0] > 0 > moved[1]
    assert not objective.token_local and not objective.skips_zero_advantage
