"""From a recipe to an Algorithm: tables of rules and losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from jurat.platform.ports import Objective
from jurat.platform.recipe import DPO as DPOPart
from jurat.platform.recipe import KTO as KTOPart
from jurat.platform.recipe import SFT, PolicyGradient, Recipe
from jurat.platform.recipe import Correction as CorrectionPart
from jurat.trainers.aggregation import AGGREGATIONS
from jurat.trainers.allocation.posterior import Correctness
from jurat.trainers.contradictions import refuse_offline, refuse_sampling
from jurat.trainers.losses.cispo import CISPO
from jurat.trainers.losses.clipped import Clipped
from jurat.trainers.losses.correction import Importance, OffPolicyMask, Rejection
from jurat.trainers.losses.cross_entropy import CrossEntropy
from jurat.trainers.losses.gspo import GSPO
from jurat.trainers.losses.plain import Plain
from jurat.trainers.losses.policy import Correction, PolicyLoss
from jurat.trainers.losses.preference import DPO, KTO
from jurat.trainers.losses.value import ValueLoss
from jurat.trainers.presets import filled
from jurat.trainers.samples import Algorithm, credit_rule
from jurat.trainers.shaping import LengthPenalty, Shaping, SoftOverlong

CORRECTIONS: Mapping[str, Callable[[CorrectionPart], Correction]] = MappingProxyType(
    {
        "tis": lambda part: Importance(high=part.high, level=part.level),
        "icepop": lambda part: Importance(low=part.low, high=part.high, level=part.level, outside="zero"),
        "decoupled": lambda part: Importance(level=part.level),
        "reject": lambda part: Rejection(
            part.limit,
            low=-part.limit if part.divergence == "k1" else -math.inf,  # k1 has a sign, the others none
            divergence=part.divergence,
            level="token" if part.level == "token" else "mean",
        ),
        "off_policy_mask": lambda part: OffPolicyMask(part.limit),
    }
)


def build_algorithm(recipe: Recipe) -> Algorithm:
    """Raises ConfigError where keys contradict each other."""
    recipe = filled(recipe)
    part = recipe.algorithm
    if not isinstance(part, PolicyGradient):
        return _offline(part, recipe)
    refuse_sampling(part, recipe)
    assert part.advantage and part.aggregation and part.shaping
    needs = {}
    if part.kl.coef > 0:
        needs["ref_logprobs"] = "reference"
    if recipe.updates_per_step * recipe.epochs > 1:
        needs["proximal_logprobs"] = "policy"
    objectives: dict[str, Objective] = {"policy": _loss(part)}
    if part.critic is not None:
        needs["values"] = "critic"
        objectives["critic"] = ValueLoss(part.critic.clip)
    return Algorithm(
        name=part.name,
        estimator=part.advantage,
        shaping=_shaping(part, recipe),
        kl_in_reward=part.kl.coef if part.kl.place == "reward" else 0.0,
        credit=None if part.credit.name == "outcome" else credit_rule(part.credit, Correctness.by(recipe.reward)),
        critic=part.critic,
        objectives=objectives,
        aggregation=AGGREGATIONS[part.aggregation],
        constant=recipe.sampling.max_new_tokens,
        needs=needs,
    )


def _offline(part: SFT | DPOPart | KTOPart, recipe: Recipe) -> Algorithm:
    """An algorithm on given completions. Raises ConfigError."""
    refuse_offline(part, recipe)
    if isinstance(part, SFT):
        return Algorithm(
            name="sft",
            objectives={"policy": CrossEntropy()},
            aggregation=AGGREGATIONS["token-mean"],
            constant=1,
            needs={},
        )
    common: dict[str, Any] = {
        "aggregation": AGGREGATIONS["seq-mean-token-mean"],
        "constant": 1,
        "needs": {"ref_logprobs": "reference"},
        "labels": True,
    }
    if isinstance(part, DPOPart):
        name = "ipo" if part.kind == "ipo" else "dpo"
        return Algorithm(
            name=name, objectives={"policy": DPO(beta=part.beta, kind=part.kind)}, whole_atoms=True, **common
        )
    return Algorithm(
        name="kto",
        objectives={"policy": KTO(beta=part.beta, desirable=part.desirable, undesirable=part.undesirable)},
        point_needs={"ref_logprobs": "reference", "proximal_logprobs": "policy"},
        **common,
    )


def _loss(part: PolicyGradient) -> PolicyLoss:
    shared: dict[str, Any] = {
        "kl_coef": part.kl.coef if part.kl.place == "loss" else 0.0,
        "kl_estimator": part.kl.estimator,
        "entropy_coef": part.entropy_coef,
        "corrections": tuple(CORRECTIONS[each.name](each) for each in part.corrections),
    }
    low = math.inf if part.clip_low is None else part.clip_low
    high = math.inf if part.clip_high is None else part.clip_high
    match part.loss:
        case "clipped":
            return Clipped(low=low, high=high, dual=part.dual_clip, **shared)
        case "gspo":
            return GSPO(low=low, high=high, **shared)
        case "cispo":
            return CISPO(low=low, high=high, **shared)
        case _:
            return Plain(**shared)


def _shaping(part: PolicyGradient, recipe: Recipe) -> Shaping:
    given = part.shaping
    assert given is not None
    overlong, limit = given.overlong, recipe.sampling.max_new_tokens
    return Shaping(
        scale=given.scale,
        offset=given.offset,
        length=LengthPenalty(per_token=given.per_token, free=given.free_tokens) if given.per_token else None,
        overlong=SoftOverlong(limit=limit, cache=overlong.cache, factor=overlong.factor) if overlong else None,
        clip=given.clip,
    )
