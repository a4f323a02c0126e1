"""What every allocation rule does where it says nothing else. A rule states only what is its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from jurat.platform.types import Allocation, Group, Visit
from jurat.trainers.allocation.posterior import Past


class Rule(ABC):
    """An Allocator that draws once, extends nothing, keeps every group and remembers nothing."""

    @abstractmethod
    def plan(self, visits: Sequence[Visit]) -> tuple[Allocation, ...]: ...

    def draws(self, wanted: int, kept: int, refills: int) -> int:
        return 0 if refills else wanted

    def extend(self, group: Group) -> int:
        return 0

    def keep(self, group: Group) -> str:
        return ""

    def observe(self, groups: Sequence[Group]) -> None:
        return None

    def state(self) -> Mapping[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        return None


class Remembering(Rule):
    """A rule that goes by the past of each prompt."""

    past: Past

    def observe(self, groups: Sequence[Group]) -> None:
        self.past.observe(groups)

    def state(self) -> Mapping[str, Any]:
        return {"seen": self.past.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.past.restore(state["seen"])
