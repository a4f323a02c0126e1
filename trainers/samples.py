"""From judged groups to samples: whole-batch mathematics. An algorithm is data: rules, objectives, an aggregation.

Order: reward as judged -> online normalisation (``controllers.py``) -> shaping -> KL in the reward -> baseline and
normalisation -> credit of steps -> mask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
import torch

from jurat.platform.ports import Objective, Scorer
from jurat.platform.recipe import Credit as CreditPart
from jurat.platform.recipe import Critic
from jurat.platform.types import FloatArray, Group, IntArray, Rollout, Sample, Scored
from jurat.trainers.advantages import (
    ADVANTAGES,
    GroupRule,
    Rewards,
    gae,
    opo,
    reinforce_pp,
    reinforce_pp_baseline,
    remax,
    whiten,
)
from jurat.trainers.aggregation import Aggregation, token_mean
from jurat.trainers.allocation.posterior import Correctness
from jurat.trainers.credit import CREDITS, Solution, gated, shaped
from jurat.trainers.losses.policy import PolicyLoss
from jurat.trainers.losses.preference import reference_point
from jurat.trainers.packing import pack
from jurat.trainers.shaping import Shaping, token_rewards

Scores = Mapping[str, Mapping[str, FloatArray]]
"""column name -> rollout id -> [L]"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Optimised:
    """The samples of one group that learn, with the rewards that are optimised."""

    scored: tuple[Scored, ...]
    """[n] with a reward"""
    rewards: Rewards
    """[n] shaped"""
    lengths: IntArray
    """[n] completion tokens"""
    penalties: tuple[Rewards, ...]
    """n times [N]: what the KL takes off the reward of each token; zeros without one."""
    baseline: float | None
    """Shaped reward of a greedy sample, or what the past leads to expect; None where none was brought."""
    values: tuple[Rewards, ...] = ()
    """n times [N]: the critic's, of the state before each token; none without a critic."""

    @property
    def by_token(self) -> list[Rewards]:
        """n times [N]: the outcome at the last token, less the KL of each"""
        parts = zip(self.rewards, self.lengths, self.penalties, strict=True)
        return [token_rewards(float(reward), int(length)) - penalty for reward, length, penalty in parts]

    @property
    def totals(self) -> Rewards:
        """[n] rewards less the KL of the whole completion"""
        return self.rewards - np.array([float(penalty.sum()) for penalty in self.penalties], dtype=np.float64)


Estimate = Callable[[Sequence[Optimised]], list[list[Rewards]]]
"""All groups of a batch -> advantages [N] of each sample of each group."""


@dataclass(frozen=True, slots=True)
class Estimator:
    estimate: Estimate


def over_groups(rule: Callable[[Optimised], Rewards]) -> Estimate:
    """A rule that gives each sample of one group one number."""
    return lambda batch: [_spread(rule(group), group) for group in batch]


def _spread(values: Rewards, group: Optimised) -> list[Rewards]:
    return [np.full(length, value) for value, length in zip(values, group.lengths, strict=True)]


def _simple(rule: GroupRule) -> Estimator:
    return Estimator(over_groups(lambda group: rule(group.totals, group.baseline)))


def _remax(group: Optimised) -> Rewards:
    assert group.baseline is not None, "a group of ReMax without its greedy sample"
    return remax(group.totals, group.baseline)


def _reinforce_pp(batch: Sequence[Optimised]) -> list[list[Rewards]]:
    found = iter(reinforce_pp([rewards for group in batch for rewards in group.by_token]))
    return [[next(found) for _ in group.scored] for group in batch]


def _gae(batch: Sequence[Optimised], critic: Critic) -> tuple[list[list[Rewards]], list[list[Rewards]]]:
    """(advantages, returns) [N] of each sample of each group: GAE on the critic's values.

    Advantages are whitened over all tokens of the batch, mean and variance, as PPO implementations do (arXiv 2403.17031;
    ``whiten`` is verl's ``masked_whiten``); the returns that the critic learns are those before it,
    ``A + V``. A completion ends with its last token also where the length limit cut it: V is 0 after it, and nothing is
    bootstrapped, since the reward it got is all that it will ever get.
    """
    found = [
        [
            gae(rewards, values, critic.gamma, critic.lam)
            for rewards, values in zip(group.by_token, group.values, strict=True)
        ]
        for group in batch
    ]
    white = iter(whiten([advantages for group in found for advantages, _ in group]))
    return [[next(white) for _ in group] for group in found], [[returns for _, returns in group] for group in found]


def _reinforce_pp_baseline(batch: Sequence[Optimised]) -> list[list[Rewards]]:
    found = reinforce_pp_baseline(
        [group.totals for group in batch], [group.lengths for group in batch], [group.baseline for group in batch]
    )
    return [_spread(values, group) for values, group in zip(found, batch, strict=True)]


ESTIMATORS: Mapping[str, Estimator] = MappingProxyType(
    {
        **{name: _simple(rule) for name, rule in ADVANTAGES.items()},
        "opo": Estimator(over_groups(lambda group: opo(group.totals, group.lengths, group.baseline))),
        "remax": Estimator(over_groups(_remax)),
        "reinforce_pp": Estimator(_reinforce_pp),
        "reinforce_pp_baseline": Estimator(_reinforce_pp_baseline),
    }
)


CreditRule = Callable[[Optimised, list[Rewards]], list[Rewards]]
"""(a group, advantages [N] of its samples from outcomes) -> advantages [N]."""


def credit_rule(part: CreditPart, correctness: Correctness) -> CreditRule:
    """Rewards of steps into advantages: ``shaped`` takes the outcomes' place, the other rules are added to it."""

    def solution(scored: Scored, reward: float) -> Solution:
        made = Solution.of(scored.judgement.reward.steps, scored.rollout.char_ends, reward)
        right = (correctness.of(scored) or 0.0) >= 1.0
        return gated(made, right=right) if part.gate and part.name != "shaped" else made

    def rule(group: Optimised, outcomes: list[Rewards]) -> list[Rewards]:
        solutions = [solution(scored, float(reward)) for scored, reward in zip(group.scored, group.totals, strict=True)]
        found = shaped(solutions, part.lam) if part.name == "shaped" else CREDITS[part.name](solutions)
        kept = 0.0 if part.name == "shaped" else 1.0
        return [kept * outcome + part.weight * steps for outcome, steps in zip(outcomes, found, strict=True)]

    return rule


UNSHAPED = Shaping()


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """What a run optimises. Built from the recipe by ``trainers/algorithms.py``."""

    name: str
    estimator: str | None = None
    """Of ``ESTIMATORS``, or ``gae`` by the critic; None: every token has weight 1 and no advantage (SFT)."""
    shaping: Shaping = UNSHAPED
    kl_in_reward: float = 0.0
    """Coefficient of ``log pi(sampler) - log pi_ref`` taken off each token's reward."""
    credit: CreditRule | None = None
    critic: Critic | None = None
    """How the critic is used, where there is one."""
    objectives: Mapping[str, Objective]
    """role -> loss; ``policy`` always."""
    aggregation: Aggregation
    constant: int
    """K of the aggregations with a constant length."""
    needs: Mapping[str, str]
    """column -> the scorer that makes it: ``{"ref_logprobs": "reference"}``."""
    labels: bool = False
    """Whether samples have the column of that name: the reward as judged, at every target."""
    whole_atoms: bool = False
    """Whether the loss compares the samples of an atom: they stay together, in order."""
    point_needs: Mapping[str, str] = field(default_factory=dict)
    """As ``needs``, of the mismatched baselines that KTO's reference point is made of; its column is ``values``. It is that
    of the whole batch, by the policy before the first of its updates."""

    @property
    def has_advantages(self) -> bool:
        """Whether the loss weighs tokens by an advantage."""
        return self.estimator is not None or self.critic is not None

    def learns(self, role: str, step: int) -> bool:
        """Whether ``role`` is updated in ``step``: the policy waits for its critic."""
        return role != "policy" or self.critic is None or step >= self.critic.warmup_steps

    def samples(self, groups: Sequence[Group], scores: Scores) -> tuple[Sample, ...]:
        """Samples of all groups, in order; excluded ones (no reward) are left out of baseline, weights and samples."""
        batch = [self._optimised(group, scores) for group in groups]
        returns: list[list[Rewards]] | None = None
        if self.critic is not None:
            advantages, returns = _gae(batch, self.critic)
        elif self.estimator is None:
            advantages = [[np.zeros(length) for length in group.lengths] for group in batch]
        else:
            advantages = ESTIMATORS[self.estimator].estimate(batch)
        if self.credit is not None:
            advantages = [self.credit(group, found) for group, found in zip(batch, advantages, strict=True)]
        point = self._reference_point(groups, scores) if self.point_needs else None
        return tuple(
            self._sample(scored, advantage, atom, scores, None if returns is None else returns[atom][place], point)
            for atom, (group, found) in enumerate(zip(batch, advantages, strict=True))
            for place, (scored, advantage) in enumerate(zip(group.scored, found, strict=True))
        )

    def outcomes(self, groups: Sequence[Group]) -> list[dict[str, float]]:
        """{rollout id: mean advantage of its tokens} of each group, by shaped rewards alone: no KL, critic or credit of steps.

        For rewards that no model is at hand for; needs an estimator.
        """
        assert self.estimator is not None, "advantages without an estimator"
        alone = replace(self, kl_in_reward=0.0, critic=None, credit=None)
        batch = [alone._optimised(group, {}) for group in groups]
        return [
            {each.rollout.id: float(values.mean()) for each, values in zip(group.scored, found, strict=True) if len(values)}
            for group, found in zip(batch, ESTIMATORS[self.estimator].estimate(batch), strict=True)
        ]

    def with_kl(self, coef: float) -> Algorithm:
        """The same with another coefficient of the KL, in the reward or in the loss, wherever it has one."""
        loss = self.objectives["policy"]
        if self.kl_in_reward:
            return replace(self, kl_in_reward=coef)
        if isinstance(loss, PolicyLoss) and loss.kl_coef:
            return replace(self, objectives={**self.objectives, "policy": replace(loss, kl_coef=coef)})
        return self

    def reference_kl(self, samples: Sequence[Sample]) -> float | None:
        """Mean over samples of ``sum_t log pi(sampler) - log pi_ref``, nats per completion; None where nothing tells."""
        if not self.objectives["policy"].sampled or "ref_logprobs" not in self.needs or not samples:
            return None
        moved = [_reference_kl(sample) for sample in samples]
        return float(np.mean(moved))

    def optimised(self, groups: Sequence[Group]) -> dict[str, float]:
        """Rollout id -> shaped reward of all samples that learn: what is optimised, but for the KL."""
        return {
            each.rollout.id: float(reward)
            for scored in map(_learning, groups)
            for each, reward in zip(scored, self._shaped(scored), strict=True)
        }

    def _optimised(self, group: Group, scores: Scores) -> Optimised:
        scored = _learning(group)
        penalties = tuple(self._penalty(each.rollout, scores) for each in scored)
        return Optimised(
            scored=scored,
            rewards=self._shaped(scored),
            lengths=_lengths(scored),
            penalties=penalties,
            baseline=self._baseline(group),
            values=tuple(_completion(scores["values"], each.rollout) for each in scored) if self.critic else (),
        )

    def _shaped(self, scored: Sequence[Scored]) -> Rewards:
        values = np.array([each.judgement.reward.value for each in scored], dtype=np.float64)
        return self.shaping(values, _lengths(scored))

    def _penalty(self, rollout: Rollout, scores: Scores) -> Rewards:
        if not self.kl_in_reward:
            return np.zeros(rollout.num_completion_tokens)
        moved = rollout.sampler_logprobs - scores["ref_logprobs"][rollout.id]
        return self.kl_in_reward * moved[rollout.loss_mask].astype(np.float64)

    def _reference_point(self, groups: Sequence[Group], scores: Scores) -> float:
        crossed = [group.baseline.rollout.id for group in groups if group.baseline is not None]
        sums = [
            torch.tensor([float(scores[column][id].sum(dtype=np.float64)) for id in crossed], dtype=torch.float64)
            for column in ("proximal_logprobs", "ref_logprobs")
        ]
        return reference_point(*sums)

    def _baseline(self, group: Group) -> float | None:
        if self.estimator is None:
            return None
        if group.baseline is not None:
            return float(self._shaped([group.baseline])[0])
        expected = group.allocation.evidence.get("baseline")
        return None if expected is None else self.shaping.scale * float(expected) + self.shaping.offset

    def _sample(
        self,
        scored: Scored,
        advantage: Rewards,
        atom: int,
        scores: Scores,
        returns: Rewards | None,
        point: float | None,
    ) -> Sample:
        rollout = scored.rollout
        columns = {name: scores[name][rollout.id] for name in self.needs}
        if self.labels:
            columns["labels"] = rollout.loss_mask * np.float32(scored.judgement.reward.value)
        if point is not None:
            columns["values"] = rollout.loss_mask * np.float32(point)
        return Sample(
            tokens=rollout.tokens,
            loss_mask=rollout.loss_mask,
            sampler_logprobs=rollout.sampler_logprobs,
            weights=rollout.loss_mask.astype(np.float32),
            advantages=_column(advantage, rollout),
            returns=None if returns is None else _column(returns, rollout),
            atom=atom,
            rollout_id=rollout.id,
            **columns,
        )


def _reference_kl(sample: Sample) -> float:
    assert sample.ref_logprobs is not None
    return float((sample.sampler_logprobs - sample.ref_logprobs)[sample.loss_mask].sum(dtype=np.float64))


def _learning(group: Group) -> tuple[Scored, ...]:
    """Its samples with a reward."""
    return tuple(each for each in group.scored if each.judgement.reward.value is not None)


def _lengths(scored: Sequence[Scored]) -> IntArray:
    return np.array([each.rollout.num_completion_tokens for each in scored], dtype=np.int64)


def _completion(column: Mapping[str, FloatArray], rollout: Rollout) -> Rewards:
    """[L] of a column -> [N] at the completion's tokens."""
    return column[rollout.id][rollout.loss_mask].astype(np.float64)


def _column(values: Rewards, rollout: Rollout) -> FloatArray:
    """[N] -> [L], 0 off the mask."""
    column = np.zeros(len(rollout.tokens), dtype=np.float32)
    column[rollout.loss_mask] = values
    return column


def _for_scoring(rollout: Rollout, atom: int) -> Sample:
    mask = rollout.loss_mask.astype(np.float32)
    return Sample(
        tokens=rollout.tokens,
        loss_mask=rollout.loss_mask,
        sampler_logprobs=rollout.sampler_logprobs,
        weights=mask,
        advantages=mask,
        atom=atom,
        rollout_id=rollout.id,
    )


async def annotate(
    groups: Sequence[Group],
    needs: Mapping[str, str],
    scorers: Mapping[str, Scorer],
    *,
    tokens: int,
    baselines: Mapping[str, str] = MappingProxyType({}),
) -> Scores:
    """Log-probs of every trained rollout under the scorers that the algorithm needs; of the groups' baselines under theirs."""
    samples = [_for_scoring(scored.rollout, atom) for atom, group in enumerate(groups) for scored in _learning(group)]
    crossed = [_for_scoring(g.baseline.rollout, atom) for atom, g in enumerate(groups) if g.baseline is not None]
    scores: dict[str, dict[str, FloatArray]] = {}
    for columns, wanted in ((needs, samples), (baselines, crossed)):
        for column, role in columns.items():
            packed = pack(wanted, None, token_mean, ranks=scorers[role].ranks, tokens=tokens)
            found = packed.unpack(await scorers[role].score(packed.rounds), wanted)
            made = scores.setdefault(column, {})
            made |= {s.rollout_id: array for s, array in zip(wanted, found, strict=True) if array is not None}
    return scores
