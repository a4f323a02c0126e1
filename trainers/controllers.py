"""The controllers of one stage as the recipe asks for them, where the loop feeds and reads them, and their common state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from jurat.platform import recipe as parts
from jurat.platform.errors import ConfigError
from jurat.platform.types import Group, Scored, UpdateReport
from jurat.trainers.presets import filled
from jurat.trainers.stability import AdaptiveKL, KLClip, Moments, ResumeGuard, RewardNormaliser, State


@dataclass(slots=True, kw_only=True)
class Controllers:
    """Fed in batch order by the loop. Those that a recipe does not ask for change nothing."""

    kl: AdaptiveKL | None = None
    """Moves the coefficient of the algorithm's KL; None: it stays as it is."""
    normaliser: RewardNormaliser = field(default_factory=RewardNormaliser)
    norm: float = 1.0
    """``optim.clip_norm``"""
    clip: KLClip | None = None
    guard: ResumeGuard | None = None
    reward: str = ""
    """Version digest of the reward: its moments are kept apart from any other's."""

    def normalised(self, groups: Sequence[Group]) -> tuple[Group, ...]:
        """The groups of one batch with the rewards that shaping takes; what they were judged stays as it is elsewhere.

        A greedy sample, and the reward that an allocation expects, are put on the scale of the samples beside them.
        """
        if self.normaliser.over == "none":
            return tuple(groups)
        rewards = [np.array([value for s in group.scored if (value := _reward(s)) is not None]) for group in groups]
        moments = self.normaliser.moments(rewards, [self.reward] * len(rewards))
        return tuple(_rescaled(group, found) for group, found in zip(groups, moments, strict=True))

    @property
    def clip_norm(self) -> float | None:
        """What to clip the next gradient of the policy at; None: where the recipe says, always."""
        if self.clip is None and self.guard is None:
            return None
        limit = self.norm if self.clip is None else self.clip.limit
        return limit if self.guard is None else min(limit, self.guard.limit)

    def observe(self, report: UpdateReport) -> None:
        """Of each update of the policy; one that was skipped, or had nothing to learn from, says nothing."""
        if report.role != "policy" or report.skipped or not report.tokens:
            return
        if self.clip is not None:
            self.clip.observe(report.metrics["kl_sampler"])
        if self.guard is not None:
            self.guard.observe(report.metrics["grad_norm"])

    def steer(self, kl: float | None, samples: int) -> dict[str, float]:
        """After a step: ``kl`` to the reference in nats per completion, of so many samples -> what there is to log."""
        said = {} if kl is None else {"kl/reference": kl}
        if self.kl is not None:
            said["policy/kl_coef"] = self.kl.coef  # that of this step
            if kl is not None:
                self.kl.update(kl, samples)
        return said

    def state(self) -> State:
        return {name: each.state() for name, each in self._named().items()}

    def restore(self, state: State | None, note: Callable[[str], None]) -> None:
        """Go on from a checkpoint; a controller whose state is not in it (None: none at all) begins anew."""
        for name, each in self._named().items():
            if state is not None and name in state:
                each.restore(state[name])
        if self.guard is not None and self.guard.limit < np.inf:
            note(
                f"optim.resume_guard: gradients are clipped at {self.guard.limit:.3g} at most for the first {self.guard.left} "
                "updates, so that this run is no longer what it would have been without the stop"
            )

    def _named(self) -> dict[str, AdaptiveKL | RewardNormaliser | KLClip | ResumeGuard]:
        named = {"kl": self.kl, "normaliser": self.normaliser, "clip": self.clip, "guard": self.guard}
        return {name: each for name, each in named.items() if each is not None}


def _reward(scored: Scored) -> float | None:
    return scored.judgement.reward.value


def _rescaled(group: Group, moments: Moments) -> Group:
    def one(scored: Scored) -> Scored:
        if (value := _reward(scored)) is None:
            return scored
        reward = replace(scored.judgement.reward, value=float(moments.standard(np.array(value))))
        return replace(scored, judgement=replace(scored.judgement, reward=reward))

    evidence = dict(group.allocation.evidence)
    if evidence.get("baseline") is not None:
        evidence["baseline"] = float(moments.standard(np.array(evidence["baseline"], dtype=np.float64)))
    return replace(
        group,
        scored=tuple(one(scored) for scored in group.scored),
        baseline=None if group.baseline is None else one(group.baseline),
        allocation=replace(group.allocation, evidence=evidence),
    )


def build_controllers(recipe: parts.Recipe, *, reward: str = "") -> Controllers:
    """Those of one stage, whose reward has the version digest ``reward``. Raises ConfigError where one has nothing to go by
    or to act on."""
    recipe = filled(recipe)
    optim, part = recipe.optim, recipe.algorithm
    _refuse(recipe)
    made = Controllers(norm=optim.clip_norm, reward=reward)
    if isinstance(part, parts.PolicyGradient):
        made.normaliser = RewardNormaliser(part.normalise.over, part.normalise.window)
        if part.kl.target is not None:
            made.kl = AdaptiveKL(part.kl.coef, part.kl.target, part.kl.horizon)
    if optim.kl_clip is not None:
        made.clip = KLClip(optim.clip_norm, **optim.kl_clip.model_dump())
    if optim.resume_guard is not None:
        made.guard = ResumeGuard(**optim.resume_guard.model_dump())
    return made


def _refuse(recipe: parts.Recipe) -> None:
    clip, part = recipe.optim.kl_clip, recipe.algorithm
    if clip is not None and clip.low > clip.high:
        raise ConfigError(
            f"optim.kl_clip.low {clip.low} exceeds optim.kl_clip.high {clip.high}",
            where="optim.kl_clip",
            fix="bounds of a factor on optim.clip_norm, as in low: 0.1, high: 1",
        )
    if not isinstance(part, parts.PolicyGradient):
        if clip is not None:
            raise ConfigError(
                f"optim.kl_clip goes by how far the policy is from the one that sampled, and algorithm.name {part.name!r} "
                "samples nothing",
                where="optim.kl_clip",
                fix="leave it out, or give the stage an optim: of its own",
            )
        return
    if clip is not None and recipe.updates_per_step * recipe.epochs == 1 and not recipe.engine.max_lag:
        raise ConfigError(
            "optim.kl_clip goes by how far the policy is from the one that sampled, and with updates_per_step x epochs = 1 "
            "each update begins there: it would do nothing",
            where="optim.kl_clip",
            fix="leave it out, or set updates_per_step or epochs to 2 or more",
        )
    if part.kl.target is not None and part.kl.coef == 0:
        raise ConfigError(
            f"algorithm.kl.target {part.kl.target} steers algorithm.kl.coef, which is 0 and would stay 0",
            where="algorithm.kl.target",
            fix="give the coefficient to begin with, as in coef: 0.01",
        )
    if part.kl.target is None and part.kl.horizon != parts.KL().horizon:
        raise ConfigError(
            f"algorithm.kl.horizon {part.kl.horizon} is how slowly algorithm.kl.target is followed, and no target is given",
            where="algorithm.kl.horizon",
            fix="give algorithm.kl.target in nats per completion, or leave the horizon out",
        )
    over = part.normalise.over
    if over != "window" and part.normalise.window != parts.Normalise().window:
        raise ConfigError(
            f"algorithm.normalise.window {part.normalise.window} is read with algorithm.normalise.over window, which is {over!r}",
            where="algorithm.normalise.window",
            fix="set algorithm.normalise.over: window, or leave the window out",
        )
    if over != "none" and part.advantage == "maxrl":
        raise ConfigError(
            f"algorithm.advantage 'maxrl' divides by the mean reward, which algorithm.normalise.over {over!r} makes 0",
            where="algorithm.normalise",
            fix="leave it out",
        )
    if over != "none" and part.credit.name == "shaped":
        raise ConfigError(
            "algorithm.credit.name 'shaped' subtracts chances of success from rewards, which algorithm.normalise.over "
            f"{over!r} puts on another scale",
            where="algorithm.normalise",
            fix="leave it out",
        )
    if over != "none" and part.advantage in ("grpo", "best_of_n") and not _felt(recipe, part):
        raise ConfigError(
            f"algorithm.normalise.over {over!r} does nothing with algorithm.advantage {part.advantage!r} alone: one affine map "
            "within a group cancels",
            where="algorithm.normalise",
            fix="leave it out, or set algorithm.advantage: rloo, or another that does not divide by the spread",
        )


def _felt(recipe: parts.Recipe, part: parts.PolicyGradient) -> bool:
    """Whether something beside the judged reward goes into the advantages of a group: then their scale matters."""
    shaping = part.shaping or parts.Shaping()
    alone = isinstance(recipe.allocation, parts.Difficulty)  # single samples, compared with what the past expects
    in_reward = part.kl.place == "reward" and part.kl.coef > 0
    return bool(shaping.per_token or shaping.overlong or shaping.clip) or in_reward or alone
