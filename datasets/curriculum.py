"""Easy first, harder as it is solved: which levels are open, and how often each is drawn.

Pure, and past only: the state after step s depends on rewards of steps < s, so what is drawn never depends on its own
reward. Level k + 1 opens when the last ``window`` groups of level k have a mean reward of at least ``target``. An open
level is drawn in proportion to 0.1 + (1 - its recent mean reward): solved ones are rehearsed, not dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jurat.platform.errors import DataError

REHEARSAL = 0.1
"""Weight that a wholly solved level keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelState:
    """What the past says of each level. Example: ``LevelState.start((1, 2, 3), target=0.7, window=64)``."""

    levels: tuple[int, ...]
    """Ascending."""
    target: float
    window: int
    recent: Mapping[int, tuple[float, ...]]
    """Last ``window`` mean rewards of groups, oldest first."""
    num_open: int = 1

    @classmethod
    def start(cls, levels: tuple[int, ...], *, target: float, window: int) -> LevelState:
        return cls(levels=tuple(sorted(set(levels))), target=target, window=window, recent={})

    def observe(self, level: int, mean_reward: float) -> LevelState:
        """The state after one more group. Raises DataError for a level that is not among ``levels``."""
        if level not in self.levels:
            raise DataError(f"level {level} is none of {list(self.levels)}", where="curriculum")
        kept = (*self.recent.get(level, ()), float(mean_reward))[-self.window :]
        after = replace(self, recent={**self.recent, level: kept})
        num_open = self.num_open
        while num_open < len(self.levels) and after._solved(self.levels[num_open - 1]):
            num_open += 1
        return replace(after, num_open=num_open)

    def weights(self) -> dict[int, float]:
        """{open level: share of draws}, summing to 1."""
        raw = {level: REHEARSAL + 1 - min(max(self._mean(level), 0.0), 1.0) for level in self.levels[: self.num_open]}
        total = sum(raw.values())
        return {level: weight / total for level, weight in raw.items()}

    def to_json(self) -> dict[str, Any]:
        return {
            "levels": list(self.levels), "target": self.target, "window": self.window, "num_open": self.num_open,
            "recent": {str(level): list(means) for level, means in sorted(self.recent.items())},
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LevelState:
        recent = {int(level): tuple(means) for level, means in value["recent"].items()}
        return cls(levels=tuple(value["levels"]), target=value["target"], window=value["window"], recent=recent,
                   num_open=value["num_open"])  # fmt: skip

    def _mean(self, level: int) -> float:
        means = self.recent.get(level, ())
        return sum(means) / len(means) if means else 0.0

    def _solved(self, level: int) -> bool:
        return len(self.recent.get(level, ())) >= self.window and self._mean(level) >= self.target
