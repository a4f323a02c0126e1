"""Groups to samples, and the numbers of a step: excluded samples leave baseline, weights and means."""

from dataclasses import replace

import numpy as np
import pytest

from jurat.platform.config import validate
from jurat.platform.errors import ConfigError, RunFailed
from jurat.platform.recipe import Member, RewardPart
from jurat.platform.types import (
    Allocation,
    Batch,
    Group,
    Judgement,
    Message,
    Problem,
    Reward,
    Rollout,
    Scored,
    UpdateReport,
    Verdict,
    VerifierSpec,
    Visit,
)
from jurat.trainers.algorithms import build_algorithm
from jurat.trainers.limits import Limits
from jurat.trainers.metrics import step_metrics
from jurat.trainers.samples import annotate
from jurat.verifiers.reward import combine


class Notes(list):
    def note(self, text):
        self.append(text)


def problem(name):
    return Problem(
        id=name, messages=(Message(role="user", content=name),), reference="1", verifier=VerifierSpec(name="math")
    )


def scored(name, index, status, *, n=3, finish="stop"):
    mask = np.array([False, False] + [True] * n)
    rollout = Rollout(
        id=f"{name}-{index}",
        problem=problem(name),
        visit=0,
        index=index,
        tokens=np.arange(2 + n),
        loss_mask=mask,
        sampler_logprobs=mask * np.float32(-0.5),
        spans=(),
        text="x" * n,
        char_ends=np.arange(1, n + 1),
        finish=finish,
    )
    verdict = Verdict.of(status)
    reward = Reward(value=verdict.score, parts={"problem": verdict.score}, trainable=verdict.score is not None)
    return Scored(rollout=rollout, judgement=Judgement(verdicts={"problem": verdict}, reward=reward))


def group(name, *statuses, position=0, **options):
    return Group(
        visit=Visit(problem=problem(name), visit=0, position=position),
        scored=tuple(scored(name, index, status, **options) for index, status in enumerate(statuses)),
        allocation=Allocation(samples=len(statuses), reason="uniform"),
    )


def algorithm(**overrides):
    value = {"model": "m", "data": {"train": {"source": "generated"}}, **overrides}
    return build_algorithm(validate(value, where="test"))


def test_excluded_samples_are_in_no_baseline_and_no_sample():
    rule = algorithm(algorithm={"name": "rloo"})
    samples = rule.samples([group("a", "correct", "timeout", "incorrect", "incorrect"), group("b", "correct")], {})
    assert [s.rollout_id for s in samples] == ["a-0", "a-2", "a-3", "b-0"]
    assert [s.advantages[-1] for s in samples] == pytest.approx([1.0, -0.5, -0.5, 0.0])
    assert [s.atom for s in samples] == [0, 0, 0, 1]
    assert samples[0].advantages.tolist()[:2] == [0.0, 0.0]
    assert samples[0].weights.tolist() == [0.0, 0.0, 1.0, 1.0, 1.0]


def test_policy_faults_train_as_zero():
    samples = algorithm(algorithm={"name": "grpo", "advantage": "dr_grpo"}).samples(
        [group("a", "correct", "no_answer", "too_large", "limit")], {}
    )
    assert [s.advantages[-1] for s in samples] == pytest.approx([0.75, -0.25, -0.25, -0.25])


def test_needs_follow_from_the_recipe():
    assert algorithm().needs == {}
    assert algorithm(algorithm={"name": "grpo", "kl": {"coef": 0.1}}).needs == {"ref_logprobs": "reference"}
    assert algorithm(updates_per_step=2).needs == {"proximal_logprobs": "policy"}
    assert algorithm(epochs=2).needs == {"proximal_logprobs": "policy"}


def test_one_sample_per_prompt_is_refused_before_anything_loads():
    with pytest.raises(ConfigError, match=r"algorithm.name 'grpo'.*allocation.samples_per_prompt is 1"):
        algorithm(allocation={"name": "uniform", "samples_per_prompt": 1})


async def test_annotated_columns_reach_their_samples():
    class Scorer:
        ranks = 2

        async def score(self, rounds):
            return [[mb.tokens.numpy() * np.float32(-1) for mb in row] for row in rounds]

    rule = algorithm(algorithm={"name": "grpo", "kl": {"coef": 0.1}})
    groups = [group("a", "correct", "incorrect"), group("b", "error", "correct", n=5)]
    scores = await annotate(groups, rule.needs, {"reference": Scorer()}, tokens=8)
    samples = rule.samples(groups, scores)
    assert [s.rollout_id for s in samples] == ["a-0", "a-1", "b-1"]
    for sample in samples:
        np.testing.assert_array_equal(sample.ref_logprobs, -sample.tokens)


def test_metrics_by_hand():
    batch = Batch(
        step=0,
        groups=(group("a", "correct", "incorrect", finish="length"), group("b", "correct", "correct", n=5)),
        discarded=((group("c", "incorrect"), "all alike"),),
    )
    report = UpdateReport(role="policy", metrics={"loss": 2.0}, tokens=16, forwarded_tokens=20)
    metrics = step_metrics(
        batch, [report, UpdateReport(role="policy", metrics={"loss": 4.0}, tokens=4, forwarded_tokens=4)]
    )
    assert metrics["reward/mean"] == 0.75
    assert metrics["group/zero_variance"] == 0.5
    assert metrics["tokens/mean_length"] == 4.0
    assert metrics["tokens/truncated"] == 0.5
    assert metrics["group/discarded"] == 1.0
    assert metrics["verifier/problem/mean"] == 0.75
    assert metrics["policy/loss"] == 3.0
    assert metrics["policy/forwarded_tokens"] == 24.0


def test_too_many_undecided_stop_the_run_and_are_named():
    limits = Limits(max_undecided=0.25, max_skipped=3, max_new_tokens=16)
    limits.check(Batch(step=3, groups=(group("a", "correct", "correct", "correct", "timeout"),)), Notes())
    with pytest.raises(RunFailed, match=r"2 of 4 samples of step 5.*'timeout': 1, 'error': 1.*First: problem: timeout"):
        limits.check(Batch(step=4, groups=(group("a", "correct", "correct", "timeout", "error"),)), Notes())


def test_most_answers_cut_is_an_alarm_once():
    limits, notes = Limits(max_undecided=1.0, max_skipped=3, max_new_tokens=16), Notes()
    for step in range(2):
        limits.check(Batch(step=step, groups=(group("a", "correct", "incorrect", finish="length"),)), notes)
    assert len(notes) == 1
    assert "2 of 2 answers of step 1 were cut at sampling.max_new_tokens = 16" in notes[0]


def test_steps_without_a_finite_gradient_are_counted_in_a_row():
    limits, notes = Limits(max_undecided=1.0, max_skipped=2, max_new_tokens=16), Notes()
    bad = UpdateReport(role="policy", metrics={}, tokens=1, forwarded_tokens=1, skipped=True)
    good = UpdateReport(role="policy", metrics={}, tokens=1, forwarded_tokens=1)
    limits.check_updates([bad, good, bad], notes)
    assert len(notes) == 2
    with pytest.raises(RunFailed, match="2 updates in a row"):
        limits.check_updates([bad], notes)


def test_a_role_that_learns_does_not_hide_one_that_does_not():
    limits, notes = Limits(max_undecided=1.0, max_skipped=3, max_new_tokens=16), Notes()
    bad = UpdateReport(role="policy", metrics={}, tokens=1, forwarded_tokens=1, skipped=True)
    good = UpdateReport(role="critic", metrics={}, tokens=1, forwarded_tokens=1)
    limits.check_updates([bad, good, bad, good], notes)
    with pytest.raises(RunFailed, match="3 updates in a row"):
        limits.check_updates([bad, good], notes)
    assert [note.split(" update")[0] for note in notes] == ["warning: policy"] * 3


def test_a_greedy_sample_makes_a_signal():
    """ReMax: one sample a prompt, right where the greedy one is wrong, then both right."""
    right, wrong = group("a", "correct").scored[0], group("b", "incorrect").scored[0]
    groups = [replace(group(name, "correct"), baseline=greedy) for name, greedy in (("c", wrong), ("d", right))]
    assert step_metrics(Batch(step=0, groups=tuple(groups)), [])["group/zero_variance"] == 0.5


def test_the_order_of_operations_by_hand():
    """score -> status -> combine -> scale -> length -> clip -> KL in the reward -> baseline -> mask (design note of rewards:
    what is optimised is logged). Worked by hand: two members, weights 1 and 0.5, shaping 2 r - 1 - 0.1 a token beyond 2,
    clip to [-1, 1.9], 0.1 KL at each token, leave-one-out."""
    part = RewardPart(
        members=(Member(use="a"), Member(use="b", role="style", weight=0.5), Member(use="c", gate=1.0, weight=0.0))
    )
    said = [  # (a, b, c), tokens
        ((1.0, 1.0, 1.0), 3),  # 1.5 -> 2 - 0.1 -> clipped to 1.9
        ((1.0, 0.0, 1.0), 2),  # 1 -> 1
        ((1.0, 1.0, 0.0), 4),  # gate: 0 -> -1 - 0.2 -> clipped to -1
        ((0.0, None, 1.0), 3),  # no score of b: in no baseline
    ]

    def one(index, scores, n):
        made = {
            label: Verdict.of("abstained") if score is None else Verdict.of("correct" if score else "incorrect")
            for label, score in zip("abc", scores, strict=True)
        }
        bare = scored("p", index, "correct", n=n)
        return replace(bare, judgement=Judgement(verdicts=made, reward=combine(part, made)))

    group_ = replace(group("p", *["correct"] * 4), scored=tuple(one(i, *each) for i, each in enumerate(said)))
    rule = algorithm(
        algorithm={
            "name": "grpo", "advantage": "rloo", "kl": {"coef": 0.1, "place": "reward"},
            "shaping": {"scale": 2.0, "offset": -1.0, "per_token": 0.1, "free_tokens": 2, "clip": [-1.0, 1.9]},
        }
    )  # fmt: skip
    moved = 0.25  # log pi(sampler) - log pi_ref at every token
    ref = {s.rollout.id: s.rollout.sampler_logprobs - moved * s.rollout.loss_mask for s in group_.scored}
    assert rule.optimised([group_]) == pytest.approx({"p-0": 1.9, "p-1": 1.0, "p-2": -1.0})
    samples = rule.samples([group_], {"ref_logprobs": ref})
    totals = np.array([1.9 - 0.1 * 0.25 * 3, 1.0 - 0.1 * 0.25 * 2, -1.0 - 0.1 * 0.25 * 4])  # 1.825, 0.95, -1.1
    others = (totals.sum() - totals) / 2
    assert [s.rollout_id for s in samples] == ["p-0", "p-1", "p-2"]
    for sample, total, other in zip(samples, totals, others, strict=True):
        np.testing.assert_allclose(sample.advantages[sample.loss_mask], total - other, atol=1e-6)
        assert not sample.advantages[~sample.loss_mask].any()
    assert totals[0] - others[0] == pytest.approx(1.9)  # 1.825 - (0.95 - 1.1) / 2
