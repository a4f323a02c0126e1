"""What cannot go together in a recipe, and what would do nothing, by keys alone: known before torch is imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from jurat.platform.errors import ConfigError
from jurat.platform.recipe import (
    DPO,
    KL,
    KTO,
    SFT,
    Correction,
    Difficulty,
    Engine,
    LoRA,
    Placement,
    PolicyGradient,
    Recipe,
    Stage,
    Uniform,
)
from jurat.trainers.allocate import build_allocator
from jurat.trainers.balance import knobs_of
from jurat.trainers.controllers import build_controllers
from jurat.trainers.presets import RATIOS, filled, ratio_of

ALONE = ("remax", "reinforce_pp")
"""Advantages of which a sample alone, without a baseline of the past, tells something."""
IMITATES = ("best_of_n",)
"""Advantages with which the loss 'plain' is the likelihood of chosen samples, whoever drew them."""
READ: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "tis": ("high", "level"),
        "icepop": ("low", "high", "level"),
        "decoupled": ("level",),
        "reject": ("limit", "divergence", "level"),
        "off_policy_mask": ("limit",),
    }
)
"""Which keys of a correction each of them reads."""


def refuse_contradictions(recipe: Recipe) -> None:
    """All that a run would refuse without data or a model. Raises ConfigError whose ``where`` is the key, from the top."""
    refuse_idle(recipe)
    for place, (name, stage) in enumerate(filled(recipe).staged()):
        refuse_engine(stage.engine, stage.lora)
        try:
            part = stage.algorithm
            if isinstance(part, PolicyGradient):
                refuse_sampling(part, stage)
            else:
                refuse_offline(part, stage)
            build_allocator(stage)
            build_controllers(stage)
            knobs_of(stage)
        except ConfigError as error:
            where = f"stages.{place}.{error.where}" if name else error.where
            raise ConfigError(error.what, where=where, fix=error.fix) from None


def refuse_idle(recipe: Recipe) -> None:
    """Raises ConfigError for an allocation that a stage on given completions gives itself, where it would do nothing.

    What a recipe gives at the top is for its other stages, so it is refused only where there is one stage.
    """
    stages: Sequence[Stage | Recipe] = recipe.stages or (recipe,)
    for place, (own, (name, whole)) in enumerate(zip(stages, recipe.staged(), strict=True)):
        if own.allocation not in (None, Uniform()) and not isinstance(whole.algorithm, PolicyGradient):
            raise ConfigError(
                f"allocation is about samples of a prompt, of which there are none: algorithm.name {whole.algorithm.name!r} "
                "learns from given completions",
                where=f"stages.{place}.allocation" if name else "allocation",
                fix="leave it out" if name else "leave it out, or --set allocation={}",
            )


def refuse_engine(engine: Engine, lora: LoRA | None) -> None:
    """Raises ConfigError for keys of the engine that do not go together, wherever it is built.

    A value that is the default is as good as none: the record of a run gives every key.
    """
    several, own = engine.ranks > 1, Engine()
    pool, idle = engine.pool_of("learner"), idle_pools(engine)
    cpus = engine.pools[pool].cpus
    refused: list[tuple[bool, str, str, str]] = [
        (
            engine.ranks % engine.tp > 0,
            "engine.tp",
            f"{engine.ranks} ranks cannot be cut into groups of {engine.tp}",
            "make engine.ranks a multiple of engine.tp",
        ),
        (
            several and engine.path == "fast",
            "engine.path",
            "engine.path: fast learns in one process; several ranks learn with the transformers model, cut by FSDP",
            "set engine.path: auto (the sampler is then still the fast one), or engine.ranks: 1",
        ),
        (
            several and engine.compile,  # measured: gradients of compiled layers over ranks were off by half
            "engine.compile",
            f"compiled layers learn in one process, not over engine.ranks {engine.ranks}",
            "leave it out, or set engine.ranks: 1",
        ),
        (
            engine.compile and engine.path == "fast",
            "engine.compile",
            "engine.compile compiles the transformers model, which engine.path: fast does not use",
            "leave it out, or set engine.path: auto or simple",
        ),
        (
            engine.tp > 1 and lora is not None,
            "engine.tp",
            f"adapters (lora) are cut over ranks by FSDP, not within layers, and engine.tp is {engine.tp}",
            "set engine.tp: 1",
        ),
        (
            engine.offload and (engine.device == "cpu" or not (several or engine.sleeps)),
            "engine.offload",
            "engine.offload moves slices of several ranks from their GPUs to the CPU, and lets a vLLM in this process sleep while "
            "the learner learns, at engine.max_lag 0",
            "set engine.device: cuda, with engine.ranks above 1 or engine.sampler: vllm; or leave it out",
        ),
        (
            engine.home == "ray" and several and cpus is not None and cpus < engine.ranks,
            f"engine.pools.{pool}.cpus",
            f"the learner's {engine.ranks} ranks need a CPU each, pool {pool} has {cpus}",
            "raise it, lower engine.ranks, or give the learner a larger pool of its own (engine.placement.learner)",
        ),
        (
            engine.home == "ray" and bool(idle),
            f"engine.pools.{', '.join(idle)}",
            f"no role is placed in pool {', '.join(idle)}, which would stand idle",
            f"place one there, as in engine.placement.judge: {', '.join(idle[:1])}; or make it spare: true, or leave it out",
        ),
        (
            engine.home == "local" and engine.judges != own.judges,
            "engine.judges",
            f"engine.judges {engine.judges} are processes of a cluster, of which engine.home: local has none",
            "leave it out, or set engine.home: ray; processes that judge here are reward.workers",
        ),
        (
            engine.vllm_memory != own.vllm_memory and engine.vllm_url is not None,
            "engine.vllm_memory",
            "engine.vllm_memory is of a vLLM in this process, and engine.vllm_url names a server, whose cache is its own",
            "leave it out; the server takes --kv-cache-memory-bytes when it is started",
        ),
        (
            engine.vllm_memory != own.vllm_memory and engine.sampler != "vllm",
            "engine.vllm_memory",
            f"engine.vllm_memory is read by engine.sampler: vllm, and this one is {engine.sampler!r}",
            "leave it out, or set engine.sampler: vllm",
        ),
    ]
    for found, where, what, fix in refused:
        if found:
            raise ConfigError(what, where=where, fix=fix)


def idle_pools(engine: Engine) -> list[str]:
    """Pools in which no role is placed, and which stand in for none."""
    used = {engine.pool_of(role) for role in Placement.model_fields}
    return [name for name, pool in engine.pools.items() if not pool.spare and name not in used]


def unread(engine: Engine, cores: int) -> list[str]:
    """Says what of an engine does nothing, or little good, on a machine where this process may use ``cores`` processors."""
    said, own = [], Engine()
    if engine.home == "local" and (engine.pools != own.pools or engine.placement != own.placement):
        names = [name for name in ("pools", "placement") if getattr(engine, name) != getattr(own, name)]
        said.append(
            f"engine.{' and engine.'.join(names)}: of a cluster, and not read with engine.home: local, where all roles share "
            "this process; for a cluster --ray ADDRESS, or engine.home: ray"
        )
    threads = engine.threads or 0
    pools = {role: engine.pools[engine.pool_of(role)].cpus for role in ("sampler", "learner")}
    if engine.home == "local":
        pools = dict.fromkeys(pools, cores)
    few = {role: count for role, count in pools.items() if count is not None and threads > count}
    if few:
        role, count = min(few.items(), key=lambda each: each[1])
        there = "this process may use" if engine.home == "local" else f"the pool of the {role} has"
        said.append(
            f"engine.threads is {threads}, and {there} {count} processors, for which the threads wait in turn; set engine.threads: "
            f"{count}, or leave it out (numbers depend on it: keep it where they are to equal another run's)"
        )
    return said


def refuse_slow(deadlines: Mapping[str, float], hang_seconds: float) -> None:
    """Raises ConfigError where a judge of a cluster, waiting for a verdict as long as its verifiers may take, would be taken
    for one that hangs. ``deadlines``: {member: seconds}; one completion may wait for all of them, one after the other."""
    longest = sum(deadlines.values())
    if longest >= hang_seconds:
        each = ", ".join(f"{name} {seconds:g}" for name, seconds in deadlines.items())
        raise ConfigError(
            f"a judgement may take {longest:g} s (deadline of each verifier: {each}), but a judge without a verdict for "
            f"engine.hang_seconds {hang_seconds:g} counts as dead",
            where="engine.hang_seconds",
            fix=f"set it above {longest:g}, or lower deadline= in @jurat.verifier of {max(deadlines, key=deadlines.__getitem__)}",
        )


def refuse_offline(part: SFT | DPO | KTO, recipe: Recipe) -> None:
    """Raises ConfigError for what does not go with an algorithm on given completions."""
    if recipe.data.curriculum is not None:
        raise ConfigError(
            f"a curriculum goes by the reward of what was sampled, and algorithm.name {part.name!r} samples nothing",
            where="data.curriculum",
            fix="give the stage its own data: without curriculum",
        )
    if isinstance(part, KTO) and recipe.prompts_per_step < 2:
        raise ConfigError(
            "algorithm.name 'kto' makes its reference point of completions after the prompts of others, but "
            f"prompts_per_step is {recipe.prompts_per_step}",
            where="prompts_per_step",
            fix="set it to 2 or more: better 16, since one number is estimated from them",
        )


def refuse_sampling(part: PolicyGradient, recipe: Recipe) -> None:
    """Raises ConfigError naming both keys of a pair that makes no sense."""
    name = f"algorithm.name {part.name!r}"
    assert part.advantage and part.shaping
    _refuse_critic(part, recipe)
    _refuse_unread(part)
    single = recipe.allocation.name == "uniform" and recipe.allocation.samples_per_prompt < 2
    if single and part.critic is None and part.advantage not in ALONE:
        raise ConfigError(
            f"{name} compares the samples of a group, but allocation.samples_per_prompt is "
            f"{recipe.allocation.samples_per_prompt}: every advantage would be 0",
            where="allocation.samples_per_prompt",
            fix="set it to 2 or more",
        )
    if part.loss == "plain" and recipe.updates_per_step * recipe.epochs > 1:
        raise ConfigError(
            f"{name} with algorithm.loss 'plain' has no ratio to correct for updates_per_step x epochs = "
            f"{recipe.updates_per_step * recipe.epochs} updates of one batch",
            where="updates_per_step",
            fix="set updates_per_step and epochs to 1, or algorithm.loss: clipped",
        )
    if part.loss == "plain" and part.advantage not in IMITATES and recipe.engine.max_lag and ratio_of(part) is None:
        raise ConfigError(
            f"{name} with algorithm.loss 'plain' is a gradient of the policy that drew, which engine.max_lag "
            f"{recipe.engine.max_lag} leaves behind, and algorithm.corrections has no ratio that makes up for it",
            where="algorithm.corrections",
            fix="leave it out, which is [{name: tis, high: 2.0}] with a lag; or set engine.max_lag: 0",
        )
    if part.loss in ("clipped", "gspo") and (part.clip_low is None or part.clip_high is None):
        raise ConfigError(
            f"algorithm.loss {part.loss!r} needs algorithm.clip_low and algorithm.clip_high; {name} gives none",
            where="algorithm.clip_low",
            fix="set both, as in clip_low: 0.2, clip_high: 0.2",
        )
    if part.dual_clip is not None and part.loss != "clipped":
        raise ConfigError(
            f"algorithm.dual_clip bounds the loss 'clipped', but algorithm.loss is {part.loss!r}",
            where="algorithm.dual_clip",
            fix="leave it out, or set algorithm.loss: clipped",
        )
    if part.advantage == "maxrl" and (part.shaping.offset < 0 or part.shaping.scale < 0):
        raise ConfigError(
            "algorithm.advantage 'maxrl' divides by the mean reward, which algorithm.shaping makes negative",
            where="algorithm.shaping",
            fix="use rewards from 0 up: offset 0",
        )
    if part.shaping.overlong and part.shaping.overlong.cache > recipe.sampling.max_new_tokens:
        raise ConfigError(
            f"algorithm.shaping.overlong.cache {part.shaping.overlong.cache} exceeds sampling.max_new_tokens "
            f"{recipe.sampling.max_new_tokens}",
            where="algorithm.shaping.overlong.cache",
            fix="set it to a fifth of sampling.max_new_tokens, as DAPO does",
        )
    if part.credit.name != "outcome" and not any(member.role == "process" for member in recipe.reward.members):
        raise ConfigError(
            f"algorithm.credit.name {part.credit.name!r} reads rewards of steps, but no member of reward.members has role process",
            where="algorithm.credit",
            fix="add the verifier that judges steps to reward.members with role: process",
        )
    ratios = [each.name for each in part.corrections if each.name in RATIOS]
    if len(ratios) > 1:
        raise ConfigError(
            f"algorithm.corrections has {' and '.join(map(repr, ratios))}: each multiplies by pi_learner / pi_sampler, "
            "which would count more than once",
            where="algorithm.corrections",
            fix="keep one of them; reject and off_policy_mask go with any",
        )
    for place, each in enumerate(part.corrections):
        if each.name == "icepop" and each.low >= each.high:
            raise ConfigError(
                f"algorithm.corrections.{place}.low {each.low} is not below its high {each.high}",
                where=f"algorithm.corrections.{place}.low",
                fix="bounds of a ratio around 1, as in low: 0.5, high: 2",
            )


def _refuse_unread(part: PolicyGradient) -> None:
    """Raises ConfigError naming both keys where the one makes the other do nothing.

    A value that is the default is as good as none: the record of a run gives every key.
    """
    shaping, credit, kl = part.shaping, part.credit, part.kl
    assert shaping is not None
    unread: list[tuple[bool, str, str, str]] = [
        (
            part.loss == "plain" and (part.clip_low, part.clip_high) != (None, None),
            "algorithm.clip_low" if part.clip_low is not None else "algorithm.clip_high",
            "bounds a ratio, of which algorithm.loss 'plain' has none",
            "leave it out, or set algorithm.loss: clipped",
        ),
        (
            shaping.free_tokens > 0 and shaping.per_token == 0,
            "algorithm.shaping.free_tokens",
            "are free of algorithm.shaping.per_token, which is 0",
            "set algorithm.shaping.per_token, or leave it out",
        ),
        (
            shaping.scale == 0,
            "algorithm.shaping.scale",
            "0 makes every reward algorithm.shaping.offset, whatever was judged",
            "set it to 1, or leave it out",
        ),
        (
            credit.name == "outcome" and (credit.weight != 1.0 or not credit.gate),
            "algorithm.credit.weight" if credit.weight != 1.0 else "algorithm.credit.gate",
            "is about rewards of steps, which algorithm.credit.name 'outcome' does not read",
            "set algorithm.credit.name: sum, min, shaped or function; or leave it out",
        ),
        (
            credit.name != "shaped" and credit.lam != 1.0,
            "algorithm.credit.lam",
            f"is read by algorithm.credit.name 'shaped', which is {credit.name!r}",
            "set algorithm.credit.name: shaped, or leave it out",
        ),
        (
            credit.name == "shaped" and not credit.gate,
            "algorithm.credit.gate",
            "is not read by algorithm.credit.name 'shaped', whose steps are potentials: nothing is gated there",
            "leave it out",
        ),
        (
            kl.coef > 0 and kl.place == "loss" and kl.estimator == "k1",
            "algorithm.kl.estimator",
            "'k1' has no gradient in expectation with algorithm.kl.place 'loss': noise, and no KL",
            "set it to k1+, which has the value of k1 and the gradient of the KL; or algorithm.kl.place: reward",
        ),
        (
            kl.coef > 0 and kl.place == "reward" and kl.estimator not in ("k1", KL().estimator),
            "algorithm.kl.estimator",
            f"{kl.estimator!r} is not read with algorithm.kl.place 'reward', which takes k1 of each token",
            "leave it out, or set algorithm.kl.place: loss",
        ),
    ]
    for place, each in enumerate(part.corrections):
        at, fields = f"algorithm.corrections.{place}", Correction.model_fields
        for key in [key for key in fields if key not in ("name", *READ[each.name])]:
            why = f"is not read by {at}.name {each.name!r}"
            reads = f"leave it out: {each.name} reads {', '.join(READ[each.name])}"
            unread.append((getattr(each, key) != fields[key].default, f"{at}.{key}", why, reads))
    for found, key, why, fix in unread:
        if found:
            raise ConfigError(f"{key} {why}", where=key, fix=fix)


def _refuse_critic(part: PolicyGradient, recipe: Recipe) -> None:
    """Raises ConfigError naming both keys where a critic does not go with the rest."""
    critic = part.critic
    if critic is None and part.advantage == "gae":
        raise ConfigError(
            "algorithm.advantage 'gae' is made of a critic's values, but algorithm.critic is not given",
            where="algorithm.critic",
            fix="give one, as in critic: {lr: 1e-5}; or algorithm.name: ppo, which has one",
        )
    if critic is None:
        return
    if part.advantage != "gae":
        raise ConfigError(
            f"algorithm.critic is read by advantage 'gae' alone, but algorithm.advantage is {part.advantage!r}",
            where="algorithm.critic",
            fix="leave it out, or set algorithm.advantage: gae",
        )
    if critic.warmup_steps >= recipe.steps:
        raise ConfigError(
            f"algorithm.critic.warmup_steps {critic.warmup_steps} leaves the policy none of steps {recipe.steps}",
            where="algorithm.critic.warmup_steps",
            fix="set it below steps",
        )
    if part.credit.name != "outcome":
        raise ConfigError(
            f"algorithm.credit.name {part.credit.name!r} makes advantages of the rewards of steps, which "
            "algorithm.advantage 'gae' takes from its critic: the critic would learn other returns than are optimised",
            where="algorithm.credit",
            fix="leave credit out, or take an advantage without a critic, as in algorithm.advantage: rloo",
        )
    if isinstance(recipe.allocation, Difficulty) and recipe.allocation.single == "greedy":
        raise ConfigError(
            "allocation.single 'greedy' draws a baseline that algorithm.advantage 'gae' does not read",
            where="allocation.single",
            fix="set it to posterior, which costs nothing",
        )
