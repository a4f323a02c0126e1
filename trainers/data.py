"""The problem sets of a recipe, and which of their prompts a model can take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from jurat.datasets.contamination import refuse_shared
from jurat.datasets.load import ProblemSet, load_problems
from jurat.platform.errors import ConfigError, DataError
from jurat.platform.ports import Tokenizer
from jurat.platform.recipe import SFT, Recipe, SamplingPart
from jurat.platform.types import Problem, Sampling
from jurat.trainers.offline import solution_ids


def load_sets(recipe: Recipe, *, base: Path) -> dict[str, ProblemSet]:
    """train, held_out and unseen of a recipe. Raises DataError for an empty set or one question in two of them."""
    sources = {"train": recipe.data.train, "held_out": recipe.data.held_out, "unseen": recipe.data.unseen}
    sets = {
        name: load_problems(source, recipe.prompt, base=base, split=name)
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
    for name in ("held_out", "unseen"):
        if name in sets:
            refuse_shared(sets["train"].problems, sets[name].problems, prompt=recipe.prompt)
    return sets


def short_enough(
    problems: Sequence[Problem], tokenizer: Tokenizer, recipe: Recipe, note: Callable[[str], None], name: str
) -> tuple[Problem, ...]:
    """Problems whose prompt fits ``data.max_prompt_tokens`` and the model's context with a whole completion.

    For SFT the completion is the solution, which has to fit ``algorithm.max_solution_tokens`` too.
    Raises DataError where none is left, or one is too long and ``data.long_prompts`` is ``refuse``.
    """
    context, cap = tokenizer.max_length, recipe.data.max_prompt_tokens
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
                raise DataError(said, where=f"data.{name}", fix="raise the limit, or set data.long_prompts: skip")
            note(f"skipped: {said}")
            problems = [problem for problem in problems if lengths[problem.id] <= limit]

    if isinstance(recipe.algorithm, SFT) and name == "train":
        solutions = {problem.id: len(solution_ids(problem, tokenizer)) for problem in problems}
        if recipe.algorithm.max_solution_tokens:
            within(solutions, recipe.algorithm.max_solution_tokens, "solutions", "algorithm.max_solution_tokens")
        within(prompts, cap, "prompts", "data.max_prompt_tokens")
        whole = {each: prompts[each] + solutions[each] for each in prompts}
        within(whole, context, "prompts with their solutions", "the model's context")
    else:
        room = context - recipe.sampling.max_new_tokens
        why = f"data.max_prompt_tokens, or the context of {context} less {recipe.sampling.max_new_tokens}"
        within(prompts, min(cap, room), "prompts", why)
    return tuple(problems)


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
