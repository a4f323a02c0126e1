"""A new run that begins with the weights of another's checkpoint, by that run's recipe: over HTTP and on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jurat.platform.canonical import digest
from jurat.platform.errors import ConfigError
from jurat.platform.provenance import lineage
from jurat.platform.recipe import Recipe
from jurat.platform.runs.records import RunInfo, Saved
from jurat.platform.runs.states import State
from jurat.platform.runs.store import Store


def fork(
    store: Store,
    parent: RunInfo,
    *,
    checkpoint: str | None = None,
    config: Mapping[str, Any] | None = None,
    check: Callable[[Recipe, Recipe], None] = lambda before, made: None,
    run_id: str | None = None,
    state: State = "created",
    meta: Mapping[str, Any] | None = None,
    **more: Any,
) -> RunInfo:
    """The new run, which nobody works on yet. It takes the stages of its parent's recipe from that of the checkpoint on, and
    begins the first of them at step 0 with the checkpoint's weights; optimiser and data begin anew.

    ``checkpoint``: a digest, or the beginning of one; None: the newest. ``config``: dotted keys of the parent's recipe and
    new values. ``check`` hears of both recipes, and raises. ``more``: as of ``Store.create_run``. Raises ConfigError, and
    DataError where the checkpoint is not there whole.
    """
    saved = _chosen(store, parent, checkpoint)
    before, made = Recipe.model_validate(parent.recipe), _recipe(parent, config or {})
    if made.stages:
        first = [stage.name for stage in made.stages].index(saved.stage)
        made = made.model_copy(update={"stages": made.stages[first:]})
    check(before, made)
    store.read(lambda connection: lineage.whole_checkpoint(connection, saved.ref.digest))
    return store.create_run(
        recipe=made, recipe_digest=digest(made), reward_digest="", run_id=run_id, state=state, parent_run=parent.id,
        from_checkpoint=saved.ref.digest, meta={"base": parent.meta.get("base", ""), **(meta or {})},
        **{"project": parent.project, **more},
    )  # fmt: skip


def _chosen(store: Store, parent: RunInfo, named: str | None) -> Saved:
    found = [saved for saved in store.checkpoints(parent) if named is None or saved.ref.digest.startswith(named)]
    if not found or (named is not None and len({saved.ref.digest for saved in found}) > 1):
        what = (
            "has no checkpoint" if named is None else f"has {len(found) or 'no'} checkpoints of digest {named[:80]!r}"
        )
        raise ConfigError(f"run {parent.id} {what}", where="checkpoint", fix="jurat runs show RUN lists them")
    return found[-1]


def _recipe(parent: RunInfo, config: Mapping[str, Any]) -> Recipe:
    from jurat.platform.config import override, validate
    from jurat.trainers.contradictions import refuse_contradictions
    from jurat.trainers.presets import filled

    made = validate(override(dict(parent.recipe), config), where=f"run {parent.id}", given=config)
    refuse_contradictions(made)
    names = [stage.name for stage in made.stages]
    if names != [stage["name"] for stage in parent.recipe.get("stages") or ()]:
        raise ConfigError("a fork has the stages of its parent", where="stages", fix="change keys of a stage instead")
    return filled(made)
