"""How many samples each prompt gets, from the past only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jurat.platform.types import Allocation, Group, Visit


@dataclass(frozen=True, slots=True)
class UniformAllocator:
    """The same count for every prompt."""

    samples_per_prompt: int

    def plan(self, visits: Sequence[Visit]) -> tuple[Allocation, ...]:
        return tuple(Allocation(samples=self.samples_per_prompt, reason="uniform") for _ in visits)

    def extend(self, group: Group) -> int:
        return 0

    def keep(self, group: Group) -> str:
        return ""

    def observe(self, groups: Sequence[Group]) -> None:
        pass

    def state(self) -> Mapping[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass
