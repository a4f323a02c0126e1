"""Before a model is loaded: data, reward, algorithm and memory of each stage are found good, or the run is refused."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jurat.datasets.check import check_gold, form_only, refuse_failed
from jurat.datasets.load import ProblemSet, holds
from jurat.engine import local, lora, memory, models, threads
from jurat.engine.probe import gpu_bytes
from jurat.engine.tokenizer import HFTokenizer
from jurat.platform.canonical import digest
from jurat.platform.errors import ConfigError, ModelError
from jurat.platform.identity.rewards import reward_digest
from jurat.platform.memory import machine_bytes
from jurat.platform.provenance.records import Observation, VerifierFacts
from jurat.platform.recipe import Dapo, Engine, Neyman, PolicyGradient, Recipe, RewardPart
from jurat.platform.types import VerifierSpec
from jurat.trainers.algorithms import build_algorithm
from jurat.trainers.allocate import bias, build_allocator
from jurat.trainers.balance import knobs_of
from jurat.trainers.contradictions import refuse_engine, refuse_idle, refuse_slow, unread
from jurat.trainers.controllers import build_controllers
from jurat.trainers.data import keep, load_sets, longest_prompt
from jurat.trainers.presets import filled, staleness
from jurat.verifiers import canary
from jurat.verifiers.judge import LocalJudge, build_judge
from jurat.verifiers.reward import digest_of_before, labels, spec_of, versions_of

MEASURED = frozenset({"held_out", "unseen"})
"""Sets that are evaluated, not trained on."""
SAMPLED = ("allocation", "updates_per_step")
"""What a preset fills beside its algorithm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A stage whose data, reward and algorithm were found good before any model was loaded."""

    name: str
    recipe: Recipe
    sets: Mapping[str, ProblemSet]
    spec: Mapping[str, Any]
    """What the reward is, without the versions of its verifiers."""
    reward: str
    """Digest of that and of the versions."""
    judged: str
    """That of the part which judges see: without normalisation and shaping."""
    before: str
    """Digest of the reward as an older jurat made it."""
    verifiers: Mapping[str, str]
    """Member -> version digest."""
    facts: tuple[VerifierFacts, ...] = ()
    """What those digests are made of, without canonical source."""
    observed: tuple[Observation, ...] = ()
    """What they say of the canary cases, if they were asked."""

    @property
    def same_as(self) -> tuple[str, ...]:
        """Digests by which a run may be recorded whose reward is this."""
        return (self.reward, self.before) if self.before else (self.reward,)


def prepare(recipe: Recipe, *, base: Path, name: str = "", observe: bool = False) -> Prepared:
    """Load the problems of a stage, bind its verifiers, and see every reference pass its own. ``observe``: ask them about
    the canary cases too. Raises JuratError."""
    refuse_engine(recipe.engine, recipe.lora)
    build_algorithm(recipe)  # all refuse what makes no sense
    build_allocator(recipe)
    build_controllers(recipe)
    knobs_of(recipe)
    sets = load_sets(recipe, base=base)
    problems = [problem for each in sets.values() for problem in each.problems]
    with closing(judge_for(recipe, base)) as judge:
        bound = judge.bind([problem.verifier for problem in problems])
        judged = judge.spec_digest
        facts = tuple(_facts(recipe.reward, label, spec, judge) for label, spec in bound.items())
        if recipe.engine.home == "ray":
            refuse_slow(judge.deadlines(), recipe.engine.hang_seconds)
    workers = recipe.reward.workers
    with closing(judge_for(recipe.model_copy(update={"reward": RewardPart(workers=workers)}), base)) as own:
        for part, each in sets.items():
            golds = [problem for problem in each.problems if problem.reference]  # preferences may have none
            refuse_failed(check_gold(golds, own.verdict, at_once=workers), len(golds), where=f"data.{part}")
        observed = _observed(facts, own) if observe else ()
    spec = spec_of(recipe.reward, **_applied_later(recipe))
    return Prepared(
        name=name,
        recipe=recipe,
        sets=sets,
        spec=spec,
        reward=reward_digest(spec, versions_of(bound)),
        judged=judged,
        before=digest_of_before(recipe.reward, bound),
        verifiers={member: spec.digest for member, spec in bound.items()},
        facts=facts,
        observed=observed,
    )


def _applied_later(recipe: Recipe) -> dict[str, Mapping[str, Any]]:
    """Normalisation and shaping: what ``trainers/`` does to the judged reward of a stage."""
    part = filled(recipe).algorithm
    if not isinstance(part, PolicyGradient) or part.shaping is None:
        return {}
    shaping = part.shaping.model_dump(mode="json")
    if part.shaping.overlong:
        shaping["overlong"]["limit"] = recipe.sampling.max_new_tokens
    return {"normalise": part.normalise.model_dump(mode="json"), "shaping": shaping}


def _facts(part: RewardPart, label: str, spec: VerifierSpec, judge: LocalJudge) -> VerifierFacts:
    found = judge.identity(spec.name, spec.args, sources=False)
    own = dict(zip(labels(part.members), part.members, strict=True))
    member = own.get(label) or next(member for member in part.members if member.use == "problem")
    return VerifierFacts.of(spec, found, label=label, role=member.role, weight=float(member.weight))


def with_sources(prepared: Prepared, digests: Collection[str], base: Path) -> Prepared:
    """The canonical source of these versions too."""
    if not any(facts.digest in digests for facts in prepared.facts):
        return prepared
    with closing(judge_for(prepared.recipe, base)) as judge:
        facts = tuple(
            replace(each, sources=judge.identity(each.name, each.args)["sources"]) if each.digest in digests else each
            for each in prepared.facts
        )
    return replace(prepared, facts=facts)


def _observed(facts: Sequence[VerifierFacts], judge: LocalJudge) -> tuple[Observation, ...]:
    """What each verifier says of the canary cases, in at most ``canary.SECONDS`` each: its behaviour, for what no reading of
    code sees. Judges that ask a model, and verifiers that say they are not deterministic, are not asked."""
    by_digest = {each.digest: each for each in askable(facts)}
    return tuple(canary.observe(judge, each.name, each.args, each.digest) for each in by_digest.values())


def askable(facts: Sequence[VerifierFacts]) -> list[VerifierFacts]:
    return [each for each in facts if each.deterministic and each.kind != "judge" and each.name not in canary.UNASKED]


def judge_for(recipe: Recipe, base: Path) -> LocalJudge:
    return build_judge(recipe.reward, user_files=[base / file for file in recipe.verifiers])


def what_learns(recipe: Recipe, folder: Path) -> str:
    """What share of a stage's model learns, '' if all of it does."""
    if recipe.lora is None:
        return ""
    found = lora.layout(folder, recipe.lora)
    share = found.trainable / found.parameters
    return f"LoRA of rank {found.rank}: {found.trainable:,} parameters learn, {share:.2%} of the model's {found.parameters:,}"


def memory_needed(
    stages: Sequence[Prepared], folder: Path, note: Callable[[str], None], *, over_memory: bool = False
) -> Mapping[str, int]:
    """{stage: the most bytes that one place needs}; empty where the model has no formulas.

    Raises ConfigError for a stage that cannot fit; with ``over_memory`` it is only said. Prompts are those of the data; what
    machines of a cluster have is theirs.
    """
    engine = stages[0].recipe.engine
    here = engine.home == "local" or engine.ray == "local"
    if here:  # a cluster's machines see for themselves
        local.refuse(engine)
    local.refuse_model(engine, folder)
    try:
        model = memory.read_model(folder)
    except ModelError as error:
        note(f"memory is not checked: {error.what}")
        return {}
    limits = memory.Limits(host=machine_bytes(), gpu=gpu_bytes(engine.device)) if here else memory.Limits()
    tokenizer, needed = HFTokenizer(folder), {}
    for each in stages:
        prompt = longest_prompt([problem for found in each.sets.values() for problem in found.problems], tokenizer)
        try:
            memory.refuse_unfit(each.recipe, model, limits, prompt_tokens=prompt, name=each.name)
        except ConfigError as error:
            if not over_memory:
                fix = f"{error.fix}; or --over-memory, to train all the same: the sum is a bound"
                raise ConfigError(error.what, where=error.where, fix=fix) from None
            note(f"{error.what} (a bound; --over-memory trains all the same)")
        needs = memory.demands(engine, memory.estimate(each.recipe, model, prompt))
        needed[each.name] = max(demand.bytes for demand in needs)
    return needed


def bad_rows(sets: Mapping[str, ProblemSet]) -> list[str]:
    """Each row that was skipped, once, though two sets may read one file."""
    return list(dict.fromkeys(str(row) for each in sets.values() for row in each.skipped))


def _samples_at_most(stage: Recipe) -> int:
    """Samples of a step, ReMax's greedy one of every prompt that is drawn among them."""
    part = stage.allocation
    most = part.most(stage.prompts_per_step)
    if not (isinstance(stage.algorithm, PolicyGradient) and stage.algorithm.advantage == "remax"):
        return most
    return most + (most // part.samples_per_prompt if isinstance(part, Dapo) else stage.prompts_per_step)


def _budget(stage: Recipe) -> int | None:
    """Samples that a step takes where prompts have answers of one length; None where the allocation has no such budget."""
    part = stage.allocation
    return stage.prompts_per_step * part.samples_per_prompt if isinstance(part, Neyman) and not part.fixed else None


def _replaced(recipe: Recipe) -> list[str]:
    """Says of stages with data of their own what of the recipe's they go without: a stage's ``data`` replaces it whole."""
    lost = []
    for stage in recipe.stages:
        if stage.data is not None:
            without = [
                name for name in sorted(MEASURED) if getattr(recipe.data, name) and not getattr(stage.data, name)
            ]
            said = f"{stage.name}: its data replaces the recipe's whole, so it has no {' and no '.join(without)}"
            lost += [said] if without else []
    return lost


def _unchecked(engine: Engine) -> list[str]:
    """Says what of a run only a cluster or a server can tell."""
    asked = []
    if engine.home == "ray":
        absent = "" if importlib.util.find_spec("ray") else "; Ray is not installed here, without which it cannot train"
        asked.append(f"the Ray cluster ({engine.ray}: whether it answers, and has room for engine.pools{absent})")
    if engine.vllm_urls:
        asked.append(f"the vLLM server{'s' * (len(engine.vllm_urls) > 1)} ({', '.join(engine.vllm_urls)})")
    return [f"not checked: {' and '.join(asked)}"] if asked else []


def dry_run(recipe: Recipe, *, home: Path, base: Path, over_memory: bool = False) -> Mapping[str, Any]:
    """What a run would do, without loading weights: stages, data, prompts, tokens. Raises what ``train`` would."""
    out = []
    refuse_idle(recipe)
    recipe = filled(recipe)
    folder = models.resolve(recipe.model, home, base)
    tokenizer, notes = HFTokenizer(folder), list[str]()
    prepared = [prepare(stage, base=base, name=name) for name, stage in recipe.staged()]
    needed = memory_needed(prepared, folder, notes.append, over_memory=over_memory)
    notes += _replaced(recipe) + _unchecked(recipe.engine) + unread(recipe.engine, threads.processors())
    for each_stage in prepared:
        name, stage, sets = each_stage.name, each_stage.recipe, each_stage.sets
        kept = keep(sets, tokenizer, stage, notes.append)
        given = not isinstance(stage.algorithm, PolicyGradient)
        samples = stage.prompts_per_step if given else _samples_at_most(stage)
        notes += [*bias(stage, build_algorithm(stage)), *staleness(stage)]
        learns = what_learns(stage, folder)
        notes += [f"{name}: {learns}" if name else learns] if learns else []
        out.append(
            {
                "stage": name,
                "algorithm": stage.algorithm.name,
                "steps": stage.steps,
                "filled": stage.model_dump(mode="json", include={"algorithm", *(() if given else SAMPLED)}),
                "problems": {"train": len(kept.train), **kept.measured},
                "holds": holds(stage.algorithm, "train"),
                "gold_answers": sum(bool(problem.reference) for each in sets.values() for problem in each.problems),
                "gold_form_only": sum(form_only(each.problems) for each in sets.values()),
                "bad_rows": bad_rows(sets),
                "memory_bytes": needed.get(name),
                "samples_per_step": samples if given or stage.allocation.fixed else None,
                "samples_per_step_at_most": samples,
                "samples_per_step_budget": None if given else _budget(stage),
                "max_new_tokens_per_step": 0 if given else samples * stage.sampling.max_new_tokens,
                "example": kept.train[0].messages[-1].content,
            }
        )
    return {
        "recipe": recipe.name,
        "digest": digest(recipe),
        "model": str(folder),
        "notes": notes,
        "stages": out,
    }
