"""The problem sets of a recipe, and which of their prompts a model can take."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jurat.datasets.contamination import refuse_shared
from jurat.datasets.load import ProblemSet, holds, load_problems
from jurat.platform.errors import ConfigError, DataError
from jurat.platform.ports import Tokenizer
from jurat.platform.recipe import KTO, SFT, PolicyGradient, Recipe, SamplingPart
from jurat.platform.types import Problem, Sampling
from jurat.trainers.offline import KINDS

LONGEST = 32
"""Prompts with most characters, among which the one with most tokens is looked for."""


def load_sets(recipe: Recipe, *, base: Path) -> dict[str, ProblemSet]:
    """train, held_out and unseen of a recipe. Raises DataError for an empty set or one question in two of them."""
    sources = {"train": recipe.data.train, "held_out": recipe.data.held_out, "unseen": recipe.data.unseen}
    sets = {
        name: load_problems(source, recipe.prompt, base=base, split=name, holds=holds(recipe.algorithm, name))
        for name, source in sources.items()
        if source is not None
    }
    for name, each in sets.items():
        if not each.problems:
            raise DataError(
                f"data.{name} has no problems",
                where=source.source if (source := sources[name]) else name,
                fix="jurat datasets check SOURCE says why rows were skipped",
            )
    if isinstance(recipe.algorithm, KTO):
        _refuse_one_question(sets["train"].problems)
    for name in ("held_out", "unseen"):
        if name in sets:
            refuse_shared(sets["train"].problems, sets[name].problems, prompt=recipe.prompt)
    return sets


def _refuse_one_question(problems: Sequence[Problem]) -> None:
    """Raises DataError where KTO's reference point has nothing to be made of."""
    if len({tuple((m.role, m.content) for m in problem.messages) for problem in problems}) < 2:
        raise DataError(
            "algorithm.name 'kto' makes its reference point of completions after the prompts of others, but all "
            f"{len(problems)} rows of data.train ask the same: it would always be 0",
            where="data.train",
            fix="add rows with other questions",
        )


def short_enough(
    problems: Sequence[Problem],
    tokenizer: Tokenizer,
    recipe: Recipe,
    note: Callable[[str], None],
    name: str,
    *,
    given: bool = False,
) -> tuple[Problem, ...]:
    """Problems whose prompt fits ``data.max_prompt_tokens`` and the model's context with a whole completion.

    That is a sampled one, or the longest that the problem is ``given`` with, which has to fit the limit of the algorithm too.
    Raises DataError where none is left, or one is too long and ``data.long_prompts`` is ``refuse``.
    """
    context, cap = tokenizer.max_length, recipe.data.max_prompt_tokens
    new = recipe.sampling.max_new_tokens
    if new >= context and isinstance(recipe.algorithm, PolicyGradient):
        raise DataError(
            f"sampling.max_new_tokens is {new}, and prompt and completion together have {context} tokens of this model's context",
            where="sampling.max_new_tokens", fix=f"set it below {context}, so that prompts have room",
        )  # fmt: skip
    prompts = {problem.id: len(tokenizer.encode_prompt(problem.messages)) for problem in problems}

    def within(lengths: Mapping[str, int], limit: int, what: str, why: str) -> None:
        nonlocal problems
        long = [problem for problem in problems if lengths[problem.id] > limit]
        if long:
            said = (
                f"{len(long)} of {len(problems)} {what} of data.{name} are longer than {limit} tokens ({why}); "
                f"first: {long[0].source}, {lengths[long[0].id]} tokens"
            )
            if recipe.data.long_prompts == "refuse" or len(long) == len(problems):
                raise DataError(said, where=f"data.{name}", fix="raise the limit" + (
                    ", or set data.long_prompts: skip" if recipe.data.long_prompts == "refuse" else " or shorten the prompts"))  # fmt: skip
            note(f"skipped: {said}")
            problems = [problem for problem in problems if lengths[problem.id] <= limit]

    if given and not isinstance(recipe.algorithm, PolicyGradient):
        part, texts = recipe.algorithm, KINDS[recipe.algorithm.name].texts
        what, key = (
            ("solutions", "max_solution_tokens") if isinstance(part, SFT) else ("completions", "max_completion_tokens")
        )
        longest = {each.id: 1 + max(len(tokenizer.encode(text)) for text in texts(each)) for each in problems}
        if limit := getattr(part, key):
            within(longest, limit, what, f"algorithm.{key}")
        within(prompts, cap, "prompts", "data.max_prompt_tokens")
        whole = {each: prompts[each] + longest[each] for each in prompts}
        within(whole, context, f"prompts with their {what}", "the model's context")
    else:
        room = context - recipe.sampling.max_new_tokens
        why = f"data.max_prompt_tokens, or the context of {context} less {recipe.sampling.max_new_tokens}"
        within(prompts, min(cap, room), "prompts", why)
    return tuple(problems)


def longest_prompt(problems: Sequence[Problem], tokenizer: Tokenizer) -> int:
    """Tokens of the longest prompt, from those with most characters."""

    def characters(problem: Problem) -> int:
        return sum(len(message.content) for message in problem.messages)

    longest = heapq.nlargest(LONGEST, problems, key=characters)
    return max((len(tokenizer.encode_prompt(problem.messages)) for problem in longest), default=1)


@dataclass(frozen=True, slots=True)
class Kept:
    """What of the sets of a stage its model can take."""

    train: tuple[Problem, ...]
    asked: Mapping[str, tuple[Problem, ...]]
    """held_out and unseen: problems to answer. One without a reference is none: no verifier could say what is right."""
    given: tuple[Problem, ...]
    """Held-out problems with completions, whose loss is measured; empty where the stage samples."""

    @property
    def measured(self) -> Mapping[str, int]:
        """Problems of the sets of which something is measured."""
        asked = {name: len(problems) for name, problems in self.asked.items()}
        return {"held_out": len(self.given), **asked} if self.given else asked


def keep(sets: Mapping[str, ProblemSet], tokenizer: Tokenizer, recipe: Recipe, note: Callable[[str], None]) -> Kept:
    """Leave out what is too long or, of sets that are to be answered, has no reference. Raises as ``short_enough``."""
    offline = not isinstance(recipe.algorithm, PolicyGradient)
    asked = {
        name: [problem for problem in each.problems if problem.reference]
        for name, each in sets.items()
        if name != "train"
    }
    held_out = sets["held_out"].problems if offline and "held_out" in sets else ()
    train = short_enough(sets["train"].problems, tokenizer, recipe, note, "train", given=offline)
    if isinstance(recipe.algorithm, KTO) and len({bool(problem.columns["label"]) for problem in train}) < 2:
        note(
            f"every completion of data.train is labelled {'good' if train[0].columns['label'] else 'bad'}: KTO learns "
            f"{'to make all of them likelier' if train[0].columns['label'] else 'only what to avoid'}, with nothing to tell them from"
        )
    return Kept(
        train=train,
        asked={name: short_enough(each, tokenizer, recipe, note, name) for name, each in asked.items() if each},
        given=short_enough(held_out, tokenizer, recipe, note, "held_out", given=True) if held_out else (),
    )


def sampling_of(part: SamplingPart, tokenizer: Tokenizer) -> Sampling:
    """The recipe's sampling with the model's end marks and the recipe's extra stops as ids."""
    extra = []
    for name in part.stop:
        ids = tokenizer.encode(name)
        if len(ids) != 1:
            raise ConfigError(
                f"stop {name!r} is {len(ids)} tokens in this model, a stop is one",
                where="sampling.stop",
                fix="name a single token of the model's vocabulary",
            )
        extra.append(int(ids[0]))
    stops = tuple(dict.fromkeys((*tokenizer.eos_ids, *extra)))
    return Sampling(temperature=part.temperature, max_new_tokens=part.max_new_tokens, stop_token_ids=stops)
