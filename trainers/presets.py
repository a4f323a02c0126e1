"""What each name of an algorithm stands for: one explicit table, every field of which a recipe may override.

A preset fills only what the recipe does not give. The run record keeps the recipe as filled, so that it says what was
in effect, whatever the table says later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from jurat.platform.recipe import (
    AdvantageName,
    AggregationName,
    Allocation,
    Correction,
    Critic,
    Dapo,
    LossName,
    Overlong,
    PolicyGradient,
    Recipe,
    Shaping,
    Uniform,
)

PLAIN = Shaping()
RATIOS = ("tis", "icepop", "decoupled")
"""Corrections that multiply by pi_learner / pi_sampler; the others leave samples out."""
BEHIND = (Correction(name="tis", high=2.0),)
"""With a lag, where a recipe gives no corrections: the ratio of the policy before the update to the one that drew a token, cut at
2. That is the decoupled objective (AReaL, arXiv 2505.24298, eq. 5) with the bound of truncated importance sampling (Yao et
al. 2025)."""


@dataclass(frozen=True, slots=True)
class Preset:
    advantage: AdvantageName
    loss: LossName
    aggregation: AggregationName
    clip_low: float | None = None
    clip_high: float | None = None
    allocation: Allocation | None = None
    """Samples per prompt; None: the recipe's, 8 each where it gives none."""
    updates_per_step: int | None = None
    shaping: Shaping = PLAIN
    overlong_share: float | None = None
    """Soft overlong punishment over this last share of ``sampling.max_new_tokens``."""
    critic: Critic | None = None
    """Where the advantage is left at ``gae``."""


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        # DeepSeekMath (arXiv 2402.03300), with DAPO's token mean and without KL, as most use it now
        "grpo": Preset("grpo", "clipped", "token-mean", 0.2, 0.2),
        # arXiv 2503.20783: no std, no length in the denominator
        "dr_grpo": Preset("dr_grpo", "clipped", "seq-mean-token-sum-norm", 0.2, 0.2),
        # arXiv 2503.14476: clip-higher, dynamic sampling, token-level loss, soft overlong punishment; rewards of +-1 and
        # several updates per batch (there 16, of 512 prompts)
        "dapo": Preset(
            "grpo", "clipped", "token-mean", 0.2, 0.28, Dapo(name="dapo"), 4, Shaping(scale=2.0, offset=-1.0), 0.2
        ),
        # arXiv 2310.10505: one sample against one greedy one
        "remax": Preset("remax", "plain", "prompt-mean", allocation=Uniform(samples_per_prompt=1)),
        # arXiv 1707.06347 with GAE (arXiv 1506.02438) and a critic apart. Groups are not compared, so that one sample per
        # prompt does; 4 updates per batch, as in verl's examples (mini-batches of a quarter)
        "ppo": Preset("gae", "clipped", "token-mean", 0.2, 0.2, updates_per_step=4, critic=Critic()),
        # arXiv 2402.14740
        "rloo": Preset("rloo", "clipped", "prompt-mean", 0.2, 0.2),
        # arXiv 2501.03262
        "reinforce_pp": Preset("reinforce_pp", "clipped", "token-mean", 0.2, 0.2),
        # arXiv 2507.18071
        "gspo": Preset("grpo", "gspo", "seq-mean-token-mean", 3e-4, 4e-4),
        # arXiv 2506.13585: no lower bound
        "cispo": Preset("grpo", "cispo", "token-mean", None, 4.0),
        # arXiv 2304.06767: imitate the best of each group
        "raft": Preset("best_of_n", "plain", "token-mean"),
        # arXiv 2505.23585, exactly on policy
        "opo": Preset("opo", "plain", "prompt-mean"),
        # arXiv 2602.02710
        "maxrl": Preset("maxrl", "clipped", "prompt-mean", 0.2, 0.2),
    }
)


def filled(recipe: Recipe) -> Recipe:
    """``recipe`` with what its algorithms stand for where it gives nothing. Filling twice changes nothing."""
    if not recipe.stages:
        return _filled(recipe)
    stages = []
    for stage, (_, whole) in zip(recipe.stages, recipe.staged(), strict=True):
        full = _filled(whole)
        samples = isinstance(full.algorithm, PolicyGradient)
        keys = ("algorithm", "allocation", "updates_per_step") if samples else ("algorithm",)
        given = {key: getattr(full, key) for key in keys}
        stages.append(stage.model_copy(update=given))
    return recipe.model_copy(update={"stages": tuple(stages)})


def _filled(recipe: Recipe) -> Recipe:
    part = recipe.algorithm
    if not isinstance(part, PolicyGradient):
        return recipe
    preset = PRESETS[part.name]
    clips = () if part.loss == "plain" else ("clip_low", "clip_high")  # nothing to clip
    names = ("advantage", "loss", "aggregation", *clips)
    found = {name: getattr(preset, name) for name in names if getattr(part, name) is None}
    if recipe.engine.max_lag and "corrections" not in part.model_fields_set:
        found["corrections"] = BEHIND
    if part.shaping is None:
        found["shaping"] = _shaping(preset, recipe)
    if (
        preset.critic is not None
        and "critic" not in part.model_fields_set
        and part.advantage in (None, preset.advantage)
    ):
        found["critic"] = preset.critic
    out: dict[str, object] = {"algorithm": part.model_copy(update=found)}
    if preset.allocation is not None and "name" not in recipe.allocation.model_fields_set:
        given = {key: getattr(recipe.allocation, key) for key in recipe.allocation.model_fields_set}
        out["allocation"] = type(preset.allocation)(**{**preset.allocation.model_dump(), **given})
    if preset.updates_per_step is not None and "updates_per_step" not in recipe.model_fields_set:
        out["updates_per_step"] = preset.updates_per_step
    return recipe.model_copy(update=out)


def ratio_of(part: PolicyGradient) -> Correction | None:
    """The correction that multiplies by pi_learner / pi_sampler."""
    return next((each for each in part.corrections if each.name in RATIOS), None)


def staleness(recipe: Recipe) -> list[str]:
    """What ``engine.max_lag`` and ``engine.lockstep`` do in a stage, filled; empty where both are left out."""
    engine, part = recipe.engine, recipe.algorithm
    if not engine.max_lag:
        return ["engine.lockstep does nothing at engine.max_lag 0: sampler and learner take turns"] * engine.lockstep
    if not isinstance(part, PolicyGradient):
        return [f"engine.max_lag does nothing here: algorithm.name {part.name} learns from given completions"]
    ratio = ratio_of(part)
    if ratio is None:
        said = "algorithm.corrections has no ratio, so that nothing corrects for it"
    else:
        bound = {"tis": f" up to {ratio.high:g}", "icepop": f" within [{ratio.low:g}, {ratio.high:g}]", "decoupled": ""}
        said = f"algorithm.corrections weighs each by {ratio.name}{bound[ratio.name]}"
    old = "1 step" if engine.max_lag == 1 else f"{engine.max_lag} steps"
    return [f"engine.max_lag {engine.max_lag}: tokens may be of a policy up to {old} old; {said}"]


def _shaping(preset: Preset, recipe: Recipe) -> Shaping:
    if preset.overlong_share is None:
        return preset.shaping
    cache = max(1, round(preset.overlong_share * recipe.sampling.max_new_tokens))
    return preset.shaping.model_copy(update={"overlong": Overlong(cache=cache)})
