"""What every learner promises, whatever network is in it."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from jurat.engine.learner import LocalLearner, Tally, worth_training
from jurat.engine.llama.learner import LlamaNetwork
from jurat.engine.llama.weights import FlatWeights
from jurat.engine.simple.learner import SimpleNetwork
from jurat.platform.errors import ModelError
from jurat.platform.recipe import Optim

GROUPS = [(9, (3, 5, 1)), (4, (4, 2)), (12, (2, 6))]
OPTIM = Optim(lr=1e-2, schedule="linear", warmup_steps=1, weight_decay=0.01)


def simple(make, dtype, **shape):
    return SimpleNetwork(make.llama(**shape), dtype=dtype)


def llama(make, dtype, **shape):
    model = make.llama(**shape)
    return LlamaNetwork(FlatWeights.from_state_dict(model.config, model.state_dict(), dtype=dtype))


@pytest.fixture(params=[simple, llama])
def build(request, make, tmp_path_factory):
    """A new learner of the same tiny model, by either path."""
    source = tmp_path_factory.mktemp("model")
    make.llama().save_pretrained(source)

    def built(*, dtype=torch.float32, **shape) -> LocalLearner:
        return LocalLearner(request.param(make, dtype, **shape), OPTIM, total=8, source=source)

    return built


def rounds(*microbatches):
    return tuple((mb,) for mb in microbatches)


@pytest.mark.parametrize("cuts", [(0, 7), (0, 3, 7), (0, 2, 4, 7)])
async def test_splitting_an_update_does_not_change_it(build, make, cuts):
    mb, objective = make.microbatch(GROUPS), make.surrogate(kl=0.1)
    whole, split = build(), build()
    one = await whole.update(rounds(mb), objective)
    parts = [make.slice(mb, first, last) for first, last in itertools.pairwise(cuts)]
    many = await split.update(rounds(*parts), objective)
    moved = (whole.network.master - build().network.master).norm()
    assert (whole.network.master - split.network.master).norm() / moved < 1e-3  # Adam's first step is the sign of noise
    assert one.tokens == many.tokens == int(mb.loss_mask.sum())
    for name in ("loss", "grad_norm", "entropy", "logprob_diff_mean", "logprob_diff_max", "ratio"):
        assert one.metrics[name] == pytest.approx(many.metrics[name], rel=1e-5), name
    assert one.metrics["lr"] == pytest.approx(1e-2)
    assert one.metrics["ratio"] == pytest.approx(1.0)


def gradient(learner, mb, objective, *, skipping: bool):
    learner.network.grad.zero_()
    tally = Tally()
    learner.network.backward(worth_training(mb, objective) if skipping else mb, objective, tally)
    return learner.network.grad.clone(), tally


def test_zero_advantage_samples_are_skipped_at_equal_gradients(build, make):
    mb, learner = make.microbatch(GROUPS), build()
    silent = torch.zeros(len(mb.tokens), dtype=torch.bool)
    for segment in (0, 3, 4):
        silent[mb.offsets[segment] : mb.offsets[segment + 1]] = True
    mb = dataclasses.replace(mb, advantages=mb.advantages.masked_fill(silent, 0.0))
    full, all_of_it = gradient(learner, mb, make.surrogate(), skipping=False)
    less, part = gradient(learner, mb, make.surrogate(), skipping=True)
    assert (full - less).norm() / full.norm() < 1e-6
    assert part.forwarded < all_of_it.forwarded
    assert part.loss == pytest.approx(all_of_it.loss, rel=1e-5)
    with_kl, _ = gradient(learner, mb, make.surrogate(kl=0.1), skipping=True)
    without, _ = gradient(learner, mb, make.surrogate(kl=0.1), skipping=False)
    assert torch.equal(with_kl, without)  # a KL term has a gradient everywhere: nothing was left out


def test_worth_training_cuts_and_keeps(make):
    mb = make.microbatch([(3, (4, 4)), (2, (3,))])
    mask = mb.loss_mask.clone()
    mask[5:7] = False  # the first completion's last two tokens are no targets
    mb = dataclasses.replace(mb, loss_mask=mask, weights=mb.weights * mask, advantages=mb.advantages * mask)
    mb.weights[7:14] = 0.0  # the second sample has no weight
    kept = worth_training(mb, make.surrogate(kl=1.0))
    assert kept.offsets.tolist() == [0, 5, 10]
    assert torch.equal(kept.tokens, torch.cat([mb.tokens[:5], mb.tokens[14:19]]))
    assert torch.equal(kept.advantages, torch.cat([mb.advantages[:5], mb.advantages[14:19]]))
    nothing = worth_training(dataclasses.replace(mb, weights=torch.zeros_like(mb.weights)), make.surrogate())
    assert len(nothing.tokens) == 0 and nothing.offsets.tolist() == [0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
async def test_resume_is_bit_equal(build, make, tmp_path, dtype):
    batches = [make.microbatch(GROUPS, seed=seed) for seed in range(3)]
    straight = build(dtype=dtype)
    for mb in batches:
        await straight.update(rounds(mb), make.surrogate())
    first = build(dtype=dtype)
    await first.update(rounds(batches[0]), make.surrogate())
    await first.save(tmp_path / "policy")
    second = build(dtype=dtype)
    await second.load(tmp_path / "policy")
    for mb in batches[1:]:
        report = await second.update(rounds(mb), make.surrogate())
    assert torch.equal(straight.network.master, second.network.master)
    for name, tensor in straight.optimizer.tensors().items():
        assert torch.equal(tensor, second.optimizer.tensors()[name])
    assert report.metrics["lr"] == pytest.approx(1e-2 * (1 - 1 / 7))


async def test_a_snapshot_is_the_state_and_nothing_later_moves_it(build, make):
    """Two learners go on from it to the same place; a checkpoint of either would hold as many bytes."""
    first, second = build(), build()
    await first.update(rounds(make.microbatch(GROUPS, seed=0)), make.surrogate())
    snapshot = first.snapshot()
    assert snapshot.nbytes == first.checkpoint_bytes
    await second.update(rounds(make.microbatch(GROUPS, seed=2)), make.surrogate())
    reports = []
    for learner in (first, second, first):
        if reports:
            learner.restore(snapshot)
        reports.append(await learner.update(rounds(make.microbatch(GROUPS, seed=1)), make.surrogate()))
    assert reports[0].metrics == reports[1].metrics == reports[2].metrics
    assert torch.equal(first.network.master, second.network.master)


async def test_saved_folder_loads_in_transformers(build, make, tmp_path):
    from transformers import AutoModelForCausalLM

    learner = build()
    await learner.update(rounds(make.microbatch(GROUPS)), make.surrogate())
    await learner.save(tmp_path / "policy")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "policy")
    assert theirs.dtype == torch.float32
    wanted = learner.network.views()
    for name, tensor in theirs.named_parameters():
        assert torch.equal(tensor, wanted[name])


async def test_weights_only_starts_the_schedule_anew(build, make, tmp_path):
    learner = build()
    await learner.update(rounds(make.microbatch(GROUPS)), make.surrogate())
    await learner.save(tmp_path / "policy")
    fresh = build()
    await fresh.load(tmp_path / "policy", weights_only=True)
    assert torch.equal(fresh.network.master, learner.network.master)
    assert fresh.optimizer.counters()["step_count"] == 0
    assert not fresh.optimizer.tensors()["exp_avg"].any()


async def test_another_model_is_refused(build, make, tmp_path):
    learner = build()
    await learner.save(tmp_path / "policy")
    other = build(intermediate_size=64)
    with pytest.raises(ModelError, match=r"got shape \[80, 48\], this model has \[64, 48\]"):
        await other.load(tmp_path / "policy")


async def test_non_finite_steps_are_skipped_and_reported(build, make):
    learner, mb = build(), make.microbatch(GROUPS)
    before = learner.network.master.clone()
    poisoned = dataclasses.replace(mb, advantages=mb.advantages * float("nan"))
    report = await learner.update(rounds(poisoned), make.surrogate())
    assert report.skipped
    assert torch.equal(learner.network.master, before)
    assert not (await learner.update(rounds(mb), make.surrogate())).skipped
    assert not torch.equal(learner.network.master, before)


async def test_scores_and_empty_microbatches(build, make):
    learner, mb = build(), make.microbatch(GROUPS)
    empty = make.slice(mb, 0, 0)
    scores = await learner.score(((mb, empty),))
    wanted, _, _ = make.reference(make.llama(), mb, make.surrogate())
    torch.testing.assert_close(torch.from_numpy(scores[0][0]), wanted, rtol=0, atol=3e-5)
    assert len(scores[0][1]) == 0
    before = learner.network.master.clone()
    report = await learner.update(((empty,),), make.surrogate())
    assert report.tokens == report.forwarded_tokens == 0 and not report.skipped
    before[: learner.network.num_matrix] *= 1 - 1e-2 * 0.01  # decay alone
    torch.testing.assert_close(learner.network.master, before)
