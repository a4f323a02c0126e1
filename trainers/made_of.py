"""What a segment of a run is made of, for its record; and what is asked of a run while it goes on."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from jurat.platform.provenance import environment, folders
from jurat.platform.provenance.records import EnvironmentFacts, Ingredients
from jurat.platform.runs.records import Command
from jurat.platform.types import CheckpointRef

if TYPE_CHECKING:
    from jurat.trainers.prepare import Prepared


def ingredients(stage: Prepared) -> Ingredients:
    """Reward and data of a stage."""
    return Ingredients(
        reward=stage.reward,
        spec=stage.spec,
        verifiers=stage.facts,
        datasets={part: each.manifest.to_json() for part, each in stage.sets.items()},
        model="",
        model_name="",
        observations=stage.observed,
    )


@dataclass(kw_only=True)
class MadeOf:
    """What all segments of this process have in common: found once, when the first begins."""

    home: Path
    base: Path
    model: Path
    argv: tuple[str, ...]

    @cached_property
    def _model(self) -> tuple[str, dict[str, str]]:
        digest, files = folders.manifest(self.model, self.home / "cache" / "digests.json")
        return digest, dict(files)

    @cached_property
    def _environment(self) -> EnvironmentFacts:
        return environment.describe(self.base, argv=self.argv)

    def of(self, stage: Prepared, *, from_checkpoint: str) -> Ingredients:
        return replace(
            ingredients(stage), model=self._model[0], model_files=self._model[1],
            model_name=stage.recipe.model, environment=self._environment, from_checkpoint=from_checkpoint,
        )  # fmt: skip


class Asked:
    """Checkpoints that were asked for: heard in the heart's thread, made in the loop's, answered in the heart's again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, Command] = {}
        self._answers: list[tuple[Command, str]] = []
        self._seen: set[int] = set()

    def hear(self, commands: Sequence[Command]) -> None:
        with self._lock:
            for each in commands:
                if each.kind == "checkpoint" and each.pk not in self._seen:
                    self._seen.add(each.pk)
                    self._open[each.pk] = each

    def checkpoint(self) -> bool:
        """Whether one is asked for that is not begun: asked once, said once."""
        return bool(self._open)

    def answer(self, ref: CheckpointRef) -> None:
        """A checkpoint is whole and recorded."""
        with self._lock:
            self._answers += [(each, f"checkpoint {ref.digest} at step {ref.step}") for each in self._open.values()]
            self._open.clear()

    def answers(self) -> list[tuple[Command, str]]:
        """What is to be acknowledged, once."""
        with self._lock:
            out, self._answers = self._answers, []
        return out
