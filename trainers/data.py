"""The problem sets of a recipe, and which of their prompts a model can take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jurat.datasets.contamination import refuse_shared
from jurat.datasets.load import ProblemSet, load_problems
from jurat.platform.errors import ConfigError, DataError
from jurat.platform.ports import Reporter, Tokenizer
from jurat.platform.recipe import Recipe, SamplingPart
from jurat.platform.types import Problem, Sampling


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
    problems: Sequence[Problem], tokenizer: Tokenizer, recipe: Recipe, reporter: Reporter, name: str
) -> tuple[Problem, ...]:
    """Problems whose prompt fits ``data.max_prompt_tokens`` and the model's context with a whole completion."""
    limit = min(recipe.data.max_prompt_tokens, tokenizer.max_length - recipe.sampling.max_new_tokens)
    lengths = {problem.id: len(tokenizer.encode_prompt(problem.messages)) for problem in problems}
    long = [problem for problem in problems if lengths[problem.id] > limit]
    if long:
        said = (
            f"{len(long)} of {len(problems)} prompts of data.{name} are longer than {limit} tokens "
            f"(data.max_prompt_tokens, or the context of {tokenizer.max_length} less {recipe.sampling.max_new_tokens}); "
            f"first: {long[0].source}, {lengths[long[0].id]} tokens"
        )
        if recipe.data.long_prompts == "refuse" or len(long) == len(problems):
            raise DataError(said, where=f"data.{name}", fix="raise the limit, or set data.long_prompts: skip")
        reporter.note(f"skipped: {said}")
    return tuple(problem for problem in problems if lengths[problem.id] <= limit)


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
