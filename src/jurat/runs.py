"""Runs from Python: ``jurat.train`` does what the command line does; a ``Run`` reads what was recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jurat.api import recipes, terminal

if TYPE_CHECKING:
    from jurat.platform.ports import Reporter
    from jurat.platform.recipe import Recipe
    from jurat.platform.runs.records import RunInfo
    from jurat.platform.runs.rollouts import Record
    from jurat.platform.runs.store import Store
    from jurat.platform.types import Evaluation


class Run:
    """A run as recorded. Everything is read when it is asked for, so a handle also follows a run that goes on."""

    def __init__(self, name: str = "latest", *, home: str | Path | None = None, database: str | None = None) -> None:
        """``name``: an id, the beginning of one, or ``latest``. Raises ConfigError naming the nearest."""
        self._home = terminal.home() if home is None else Path(home).expanduser().absolute()
        self._database = database
        with self._store() as store:
            self.id = store.run(name).id

    def __repr__(self) -> str:
        return f"Run({self.id!r}, state={self.state!r})"

    @contextmanager
    def _store(self) -> Iterator[Store]:
        from jurat.platform.runs.store import Store

        store = Store.open(self._database, self._home)
        try:
            yield store
        finally:
            store.close()

    @property
    def info(self) -> RunInfo:
        """Recipe, digests, times, folder."""
        with self._store() as store:
            return store.run(self.id)

    @property
    def state(self) -> str:
        """created, running, interrupted, failed or finished."""
        return self.info.state

    @property
    def recipe(self) -> Recipe:
        from jurat.platform.recipe import Recipe

        return Recipe.model_validate(self.info.recipe)

    @property
    def metrics(self) -> dict[str, float]:
        """Of the newest step: ``reward/mean``, ``policy/entropy``, ..."""
        with self._store() as store:
            return {point.name: point.value for point in store.last_metrics(store.run(self.id))}

    def history(self, name: str, *, stage: str | None = None) -> list[tuple[str, int, float]]:
        """(stage, step, value) of one metric, in order. Steps count from 0: step s is the log's s + 1 and makes version s + 1."""
        with self._store() as store:
            points = store.metrics(store.run(self.id), names=[name], stage=stage)
        return [(point.stage, point.step, point.value) for point in points]

    @property
    def evaluations(self) -> list[Evaluation]:
        with self._store() as store:
            return [measured.result for measured in store.evaluations(store.run(self.id))]

    def rollouts(self, *, worst: int | None = None, step: int | None = None, limit: int | None = 50) -> list[Record]:
        """What the model wrote and how each answer was judged; the ``worst`` N first where asked for. Steps from 0."""
        from jurat.platform.runs import rollouts

        with self._store() as store:
            return list(rollouts.read(store, store.run(self.id), worst=worst, step=step, limit=limit).records)

    @property
    def checkpoint(self) -> Path:
        """Folder of the newest checkpoint; its ``policy`` folder is a model. Raises ConfigError if there is none."""
        from jurat.api.cli_models import trained_model

        with self._store() as store:
            return trained_model(store.run(self.id), store)

    def export(self, out: str | Path) -> Path:
        """Write the model as a Hugging Face folder, in bfloat16. Raises ConfigError if ``out`` holds something."""
        from jurat.api.cli_models import export_model

        with self._store() as store:
            export_model(store.run(self.id), store, Path(out))
        return Path(out).absolute()


def train(
    recipe: str | Path | Recipe | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    home: str | Path | None = None,
    run_id: str | None = None,
    resume: str | None = None,
    database: str | None = None,
    reporter: Reporter | None = None,
    over_memory: bool = False,
) -> Run:
    """Train by a recipe and return a handle of the run; the same as ``jurat train`` on the command line.

    ``recipe``: the name of one that ships, a YAML file, or a Recipe. ``overrides``: dotted keys, as in
    ``{"algorithm.name": "rloo", "optim.lr": 1e-5}``. ``resume``: a run to go on with, in place of a recipe; it is looked
    for in ``database`` (a SQLAlchemy URL) where its recipe's ``tracking.database`` is not the default.
    ``reporter``: who is told of each step; one line a step on stderr where None. ``over_memory``: train also where the
    estimate of memory, which is a bound, says that it does not fit.

    Raises JuratError: ConfigError before anything is loaded, RunFailed when the run cannot go on. Ctrl-C once makes a
    checkpoint and returns a run in state ``interrupted``. Works in a notebook, where an event loop runs already.
    """
    from jurat.api.screen import LineScreen
    from jurat.platform.config import override, validate
    from jurat.platform.errors import ConfigError
    from jurat.platform.recipe import Recipe
    from jurat.trainers import launch

    if (recipe is None) == (resume is None):
        raise ConfigError(
            "give a recipe or a run to resume, one of the two", where="jurat.train", fix='jurat.train("tiny")'
        )
    base, given = Path.cwd(), None
    if isinstance(recipe, Recipe):
        value = override(recipe.model_dump(mode="json"), overrides or {})
        given = validate(value, where="jurat.train", given=overrides or {})
    elif recipe is not None:
        given, base = recipes.load(str(recipe), overrides or {})
    elif overrides:
        raise ConfigError(
            "a run is resumed by its own recipe, without overrides", where="jurat.train", fix="leave them out"
        )
    place = terminal.home() if home is None else Path(home).expanduser().absolute()
    told = reporter or LineScreen()

    def go() -> launch.Outcome:
        return launch.train(
            given, home=place, base=base, reporter=told, run_id=run_id, resume=resume, database=database,
            over_memory=over_memory,
        )  # fmt: skip

    if _loop_runs():
        with ThreadPoolExecutor(1, thread_name_prefix="jurat-train") as pool:
            outcome = pool.submit(go).result()
    else:
        outcome = go()
    return Run(outcome.run, home=place, database=given.tracking.database if given else database)


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
