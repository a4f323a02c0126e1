"""From judged groups to samples: whole-batch mathematics. An algorithm is data: a rule, objectives, an aggregation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jurat.platform.ports import Objective, Scorer
from jurat.platform.types import FloatArray, Group, Rollout, Sample, Scored
from jurat.trainers.advantages import Rewards
from jurat.trainers.aggregation import Aggregation, token_mean
from jurat.trainers.packing import pack

Scores = Mapping[str, Mapping[str, FloatArray]]
"""column name -> rollout id -> [L]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """What a run optimises. Built from the recipe by ``trainers/algorithms.py``."""

    name: str
    advantage: Callable[[Rewards], Rewards] | None
    """None: every token has weight 1 and no advantage (SFT)."""
    objectives: Mapping[str, Objective]
    """role -> loss; ``policy`` always."""
    aggregation: Aggregation
    constant: int
    """K of the aggregations with a constant length."""
    needs: Mapping[str, str]
    """column -> the scorer that makes it: ``{"ref_logprobs": "reference"}``."""

    def samples(self, groups: Sequence[Group], scores: Scores) -> tuple[Sample, ...]:
        """Samples of all groups, in order; excluded ones (no reward) are left out of baseline, weights and samples."""
        made: list[Sample] = []
        for atom, group in enumerate(groups):
            trained = [scored for scored in group.scored if scored.judgement.reward.value is not None]
            rewards = np.array([scored.judgement.reward.value for scored in trained], dtype=np.float64)
            advantages = np.zeros(len(trained)) if self.advantage is None else self.advantage(rewards)
            made += [
                self._sample(scored, float(advantage), atom, scores)
                for scored, advantage in zip(trained, advantages, strict=True)
            ]
        return tuple(made)

    def _sample(self, scored: Scored, advantage: float, atom: int, scores: Scores) -> Sample:
        rollout = scored.rollout
        mask = rollout.loss_mask.astype(np.float32)
        columns = {name: scores[name][rollout.id] for name in self.needs}
        return Sample(
            tokens=rollout.tokens,
            loss_mask=rollout.loss_mask,
            sampler_logprobs=rollout.sampler_logprobs,
            weights=mask,
            advantages=mask * np.float32(advantage),
            atom=atom,
            rollout_id=rollout.id,
            **columns,
        )


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
    groups: Sequence[Group], needs: Mapping[str, str], scorers: Mapping[str, Scorer], *, tokens: int
) -> Scores:
    """Log-probs of every trained rollout under the scorers that the algorithm needs."""
    samples = [
        _for_scoring(scored.rollout, atom)
        for atom, group in enumerate(groups)
        for scored in group.scored
        if scored.judgement.reward.value is not None
    ]
    scores: dict[str, dict[str, FloatArray]] = {}
    for column, role in needs.items():
        packed = pack(samples, None, token_mean, ranks=scorers[role].ranks, tokens=tokens)
        arrays = await scorers[role].score(packed.rounds)
        found = packed.unpack(arrays, samples)
        scores[column] = {
            sample.rollout_id: array for sample, array in zip(samples, found, strict=True) if array is not None
        }
    return scores
