"""How many samples each prompt gets: the table from a recipe's ``allocation`` to a rule. ``docs/allocation.md`` compares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jurat.platform import recipe as parts
from jurat.platform.errors import ConfigError
from jurat.platform.types import Allocation, Visit
from jurat.trainers.aggregation import prompt_mean
from jurat.trainers.allocation.difficulty import DifficultyAllocator
from jurat.trainers.allocation.mixed import DapoAllocator, UntilMixedAllocator
from jurat.trainers.allocation.neyman import NeymanAllocator
from jurat.trainers.allocation.posterior import Correctness, Past
from jurat.trainers.allocation.rule import Rule

if TYPE_CHECKING:
    from jurat.trainers.samples import Algorithm


@dataclass(slots=True)
class UniformAllocator(Rule):
    """The same count for every prompt, which may be set between two plans."""

    samples_per_prompt: int

    def limit(self, samples: int) -> None:
        self.samples_per_prompt = samples

    def plan(self, visits: Sequence[Visit]) -> tuple[Allocation, ...]:
        return tuple(Allocation(samples=self.samples_per_prompt, reason="uniform") for _ in visits)


def build_allocator(recipe: parts.Recipe) -> Rule:
    """The rule that ``recipe.allocation`` names. Raises ConfigError where it goes by outcomes and the reward has none."""
    part = recipe.allocation
    if isinstance(part, parts.Uniform):
        return UniformAllocator(part.samples_per_prompt)
    correctness = Correctness.by(recipe.reward)
    if not correctness.members:
        raise ConfigError(
            f"allocation.name {part.name!r} goes by correctness, but no member of reward.members has role outcome",
            where="reward.members",
            fix="give the member that says what is correct role: outcome, or set allocation.name: uniform",
        )
    match part:
        case parts.Neyman():
            return NeymanAllocator(
                Past(correctness, part.decay),
                samples_per_prompt=part.samples_per_prompt,
                min_samples=part.min_samples,
                max_samples=part.max_samples,
                cost=part.cost,
                gradient=part.gradient,
            )
        case parts.Difficulty():
            return DifficultyAllocator(
                Past(correctness, part.decay), samples=part.samples, thresholds=part.thresholds, single=part.single
            )
        case parts.Dapo():
            return DapoAllocator(correctness, part.samples_per_prompt, part.oversample, part.max_refills)
        case parts.UntilMixed():
            return UntilMixedAllocator(correctness, part.samples_per_prompt, part.max_samples)


def bias(recipe: parts.Recipe, algorithm: Algorithm) -> list[str]:
    """One line for each way in which sample counts move the objective away from the mean over prompts, or from ``dapo``."""
    part, said = recipe.allocation, list[str]()
    if recipe.algorithm.name == "dapo" and not isinstance(part, parts.Dapo):
        said.append(
            f"algorithm.name dapo without its dynamic sampling: allocation.name is {part.name}. "
            "Write allocation: {name: dapo, ...}, or leave allocation out"
        )
    if isinstance(part, parts.Uniform) or algorithm.estimator is None:
        return said
    if isinstance(part, parts.UntilMixed | parts.Dapo):
        said.append(f"allocation.name {part.name} goes by this step's own outcomes: a curriculum, not the plain mean")
    if isinstance(part, parts.Dapo):
        return said
    if algorithm.aggregation is not prompt_mean:
        said.append(
            f"allocation.name {part.name} gives prompts unequal sample counts, and algorithm.aggregation weighs a prompt "
            "by them: a curriculum. algorithm.aggregation: prompt-mean counts each prompt once"
        )
    if algorithm.estimator not in ("rloo", "gae"):
        said.append(
            f"allocation.name {part.name} gives prompts unequal sample counts, and the scale of algorithm.advantage "
            "depends on the count. algorithm.advantage: rloo does not"
        )
    return said
