"""The rules of ``alarms.py`` over a stage as it goes: what they find becomes events, notes and, where asked, a pause."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from jurat.platform.identity.rewards import labels
from jurat.platform.recipe import Recipe
from jurat.platform.types import Batch, Evaluation, StepReport
from jurat.trainers.alarms import Alarm, Seen, Watch, seen

log = logging.getLogger(__name__)


class Watching:
    """One stage's. ``tell`` records an event, ``pause`` stops the run at a checkpoint."""

    def __init__(
        self,
        recipe: Recipe,
        stage: str,
        *,
        tell: Callable[[str, Mapping[str, Any]], None],
        note: Callable[[str], None],
        pause: Callable[[], None],
    ) -> None:
        members = recipe.reward.members
        self._roles = {name: (m.role, m.weight) for name, m in zip(labels([m.use for m in members]), members, strict=True)}
        self._top = sum(max(0.0, m.weight) for m in members) if recipe.reward.combine == "sum" else 1.0
        self._watch = Watch(frozenset(recipe.alarms.off))
        self._pause_on = frozenset(recipe.alarms.pause_on)
        self._stage, self._tell, self._note, self._pause = stage, tell, note, pause
        self._step: Seen | None = None

    def seen(self, batch: Batch) -> None:
        try:
            self._step = seen(batch, self._roles, top=self._top)
        except Exception:  # an alarm is no reason to end a run
            log.exception("the numbers for alarms could not be made")
            self._step = None

    def stepped(self, report: StepReport) -> None:
        if self._step is None:
            return
        entropy = report.metrics.get("policy/entropy", math.nan)
        for alarm in self._watch.stepped(replace(self._step, entropy=entropy)):
            self._said(alarm)

    def evaluated(self, result: Evaluation) -> None:
        if result.name == "held_out" and result.accuracy is not None:
            self._watch.evaluated(result.step, result.accuracy.value)

    def _said(self, alarm: Alarm) -> None:
        said = {
            "rule": alarm.rule, "state": alarm.state, "severity": alarm.severity, "stage": self._stage, "version": "",
            "first_step": alarm.first_step, "last_step": alarm.last_step, "evidence": dict(alarm.evidence),
        }  # fmt: skip
        self._tell("alarm", said)
        if alarm.state == "closed":
            return
        shown = ", ".join(f"{key} {_short(value)}" for key, value in alarm.evidence.items() if key != "samples")
        self._note(
            f"alarm: {alarm.rule} at step {alarm.last_step + 1}: {shown}; jurat runs alarms RUN shows the samples"
        )
        if alarm.rule in self._pause_on:
            self._note(f"alarms.pause_on: {alarm.rule}: the run stops at a checkpoint")
            self._pause()


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)[:80]
