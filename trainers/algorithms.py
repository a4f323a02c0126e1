"""The explicit table of algorithms: recipe part -> Algorithm. A new one is one line here and one small file."""

from __future__ import annotations

from jurat.platform.errors import ConfigError
from jurat.platform.recipe import SFT, Recipe
from jurat.trainers.advantages import ADVANTAGES
from jurat.trainers.aggregation import AGGREGATIONS
from jurat.trainers.losses.clipped import Clipped
from jurat.trainers.losses.cross_entropy import CrossEntropy
from jurat.trainers.samples import Algorithm


def build_algorithm(recipe: Recipe) -> Algorithm:
    """Flat arguments from a recipe. Raises ConfigError where keys contradict each other."""
    part = recipe.algorithm
    if isinstance(part, SFT):
        if recipe.data.curriculum is not None:
            raise ConfigError(
                "a curriculum goes by the reward of what was sampled, and supervised fine-tuning samples nothing",
                where="data.curriculum",
                fix="give the stage its own data: without curriculum",
            )
        return Algorithm(
            name="sft",
            advantage=None,
            objectives={"policy": CrossEntropy()},
            aggregation=AGGREGATIONS["token-mean"],
            constant=1,
            needs={},
        )
    if recipe.allocation.samples_per_prompt < 2:
        raise ConfigError(
            f"algorithm.name {part.name!r} compares the samples of a group, but allocation.samples_per_prompt is "
            f"{recipe.allocation.samples_per_prompt}: every advantage would be 0",
            where="allocation.samples_per_prompt",
            fix="set it to 2 or more",
        )
    needs = {}
    if part.kl.coef > 0:
        needs["ref_logprobs"] = "reference"
    if recipe.updates_per_step * recipe.epochs > 1:
        needs["proximal_logprobs"] = "policy"
    loss = Clipped(
        low=part.clip_low,
        high=part.clip_high,
        dual=part.dual_clip,
        kl_coef=part.kl.coef,
        kl_estimator=part.kl.estimator,
    )
    return Algorithm(
        name=part.name,
        advantage=ADVANTAGES[part.advantage or part.name],
        objectives={"policy": loss},
        aggregation=AGGREGATIONS[part.aggregation],
        constant=recipe.sampling.max_new_tokens,
        needs=needs,
    )
