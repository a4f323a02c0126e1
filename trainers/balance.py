"""Sampler, judge and learner in balance: how busy each is, how much waits for it, and a controller that moves limits between
bounds when one is the bottleneck and another stands about.

The rule is pure (``decide``): utilisations in, at most one move out. What it moves has to be asked for with its bounds
(``engine.balance``), since a run whose limits follow the clock is no longer the same at any speed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from jurat.platform import recipe as parts
from jurat.platform.errors import ConfigError
from jurat.platform.ports import Judge, Ledger, Sampler, State
from jurat.platform.types import Completion, Finish, Judgement, Problem, Request

BUSY, IDLE = 0.95, 0.40
"""A role that is busy for at least, and one that is busy for at most, this share of a step: between them nothing moves."""
PATIENCE = 3
"""Steps in a row with the same bottleneck before a move, and again before the next one."""
FACTOR = 1.5
"""What a move multiplies or divides by; by one at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """A limit that may be moved. ``relieves`` says in which direction it takes load off a role: +1 up, -1 down."""

    name: str
    value: int
    low: int
    high: int
    relieves: Mapping[str, int]
    owner: str = ""
    """The role that it belongs to: it goes down for another's sake only while that role is idle."""
    last: int = 0
    """Direction of the last move; 0 before the first."""
    turns: int = 0
    """How often the direction has changed: each change doubles the patience for the next."""

    def moved(self, direction: int) -> Knob:
        up, down = max(self.value + 1, round(self.value * FACTOR)), min(self.value - 1, round(self.value / FACTOR))
        value = min(self.high, up) if direction > 0 else max(self.low, down)
        return replace(self, value=value, last=direction, turns=self.turns + (self.last not in (0, direction)))


@dataclass(frozen=True, slots=True)
class Streak:
    """For how many steps in a row ``busy`` has been the bottleneck while some role was idle."""

    busy: str = ""
    steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    knob: Knob
    """As it is from now on."""
    before: int
    evidence: Mapping[str, Any]


def decide(utilisation: Mapping[str, float], knobs: Sequence[Knob], streak: Streak) -> tuple[Move | None, Streak]:
    """The move after a step in which each role was busy for that share of the time, if there is one, and the new streak.

    Nothing moves unless one role is at ``BUSY`` or above and another at ``IDLE`` or below, for ``PATIENCE`` steps in a row.
    Then the first knob that takes load off the bottleneck and is not at its bound moves once. A knob that would turn back has
    to wait 2, 4, 8, ... times as long, so that it cannot swing.
    """
    busy = max(utilisation, key=lambda role: utilisation[role], default="")
    idle = min(utilisation, key=lambda role: utilisation[role], default="")
    if not busy or utilisation[busy] < BUSY or utilisation[idle] > IDLE:
        return None, Streak()
    streak = Streak(busy, streak.steps + 1 if streak.busy == busy else 1)
    for knob in knobs:
        direction = knob.relieves.get(busy, 0)
        needed = direction < 0 and knob.owner and utilisation[knob.owner] > IDLE
        moved = knob.moved(direction) if direction and not needed else knob
        if moved.value == knob.value:
            continue
        if streak.steps < PATIENCE * 2**moved.turns:
            return None, streak
        evidence = {
            "knob": knob.name, "from": knob.value, "to": moved.value, "busy": busy, "idle": idle, "steps": streak.steps,
            **{f"utilisation/{role}": round(share, 3) for role, share in utilisation.items()},
        }  # fmt: skip
        return Move(knob=moved, before=knob.value, evidence=evidence), Streak()
    return None, streak


class Gauge:
    """How many are inside, over time. ``read`` gives what was since it was last read."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._inside = 0
        self._since = self._last = clock()
        self._busy = self._area = 0.0

    @contextmanager
    def inside(self) -> Iterator[None]:
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        now = self._clock()
        self._area += self._inside * (now - self._last)
        self._busy += (now - self._last) * (self._inside > 0)
        self._inside, self._last = self._inside + change, now

    def read(self) -> tuple[float, float, float]:
        """(seconds, share of them with any inside, mean number inside)."""
        self._count(0)
        seconds = self._last - self._since
        found = (seconds, self._busy / seconds, self._area / seconds) if seconds > 0 else (0.0, 0.0, 0.0)
        self._since, self._busy, self._area = self._last, 0.0, 0.0
        return found


@dataclass(frozen=True, slots=True)
class WatchedSampler:
    """``inner``, with its rows in flight counted."""

    inner: Sampler
    gauge: Gauge

    async def sample(self, request: Request) -> Completion:
        with self.gauge.inside():
            return await self.inner.sample(request)

    async def interrupt(self) -> tuple[Completion, ...]:
        return await self.inner.interrupt()


@dataclass(frozen=True, slots=True)
class WatchedJudge:
    """``inner``, with its completions in flight counted."""

    inner: Judge
    gauge: Gauge

    async def judge(self, problem: Problem, text: str, *, finish: Finish) -> Judgement:
        with self.gauge.inside():
            return await self.inner.judge(problem, text, finish=finish)


RELIEVES: Mapping[str, tuple[str, Mapping[str, int]]] = MappingProxyType(
    {
        "judge_workers": ("judge", {"judge": 1, "sampler": -1, "learner": -1}),
        "judge_rows": ("judge", {"judge": 1}),
        "sampler_rows": ("sampler", {"sampler": 1}),
        "samples": ("", {"sampler": -1, "judge": -1, "learner": 1}),
    }
)
"""{knob: (the role that it belongs to, where it takes load off)}, in the order in which they are tried. More samples relieve
a learner: its optimiser's step costs the same for any number of them."""


def knobs_of(recipe: parts.Recipe) -> list[Knob]:
    """Those of ``engine.balance`` as the recipe sets them. Raises ConfigError for one that nothing here could move."""
    engine, bounds = recipe.engine, recipe.engine.balance
    if not bounds or not isinstance(
        recipe.algorithm, parts.PolicyGradient
    ):  # who learns from given completions asks nobody
        return []
    uniform = isinstance(recipe.allocation, parts.Uniform)
    values = {
        "judge_workers": (recipe.reward.workers, True, ""),
        "judge_rows": (parts.JUDGE_ROWS, engine.home == "ray", "the judges of engine.home ray"),
        "sampler_rows": (recipe.sampling.max_concurrent, True, ""),
        "samples": (recipe.allocation.samples_per_prompt, uniform, "allocation.name uniform"),
    }  # fmt: skip
    made = []
    for name, (owner, relieves) in RELIEVES.items():
        if name not in bounds:
            continue
        (low, high), (value, there, whose) = bounds[name], values[name]  # type: ignore[index]
        where = f"engine.balance.{name}"
        if not there:
            raise ConfigError(
                f"{name} is a limit of {whose}, which this recipe has not", where=where, fix="leave it out"
            )
        if not low <= value <= high or (name == "samples" and low < 2):
            raise ConfigError(
                f"the run begins with {value}, and the bounds are [{low}, {high}]"
                + ("; a group has two samples at least" if name == "samples" else ""),
                where=where, fix="give bounds around what the recipe says",
            )  # fmt: skip
        made.append(Knob(name=name, value=value, low=low, high=high, relieves=relieves, owner=owner))
    return made


@dataclass(slots=True, kw_only=True)
class Balance:
    """What the loop calls after each step. Without knobs it only measures."""

    knobs: list[Knob] = field(default_factory=list)
    apply: Mapping[str, Callable[[int], None]] = field(default_factory=dict)
    """{knob: what sets it}"""
    sampler: Gauge = field(default_factory=Gauge)
    judge: Gauge = field(default_factory=Gauge)
    streak: Streak = Streak()

    def begin(self) -> None:
        """A step begins: what was before, evaluation and checkpoints, does not count."""
        self.sampler.read(), self.judge.read()

    def after(self, step: int, laps: Mapping[str, float], ledger: Ledger) -> dict[str, float]:
        """``utilisation/<role>``, ``queue/<role>`` (mean number in flight) and the knobs of the step that ends; what is
        decided holds for what is planned from now on, and is recorded as an event ``balance``."""
        seconds, sampling, rows = self.sampler.read()
        _, judging, waiting = self.judge.read()
        if seconds <= 0:
            return {}
        learning = min(1.0, sum(laps.get(phase, 0.0) for phase in ("score", "update")) / seconds)
        shares = {"sampler": sampling, "judge": judging, "learner": learning}
        found = {f"utilisation/{role}": share for role, share in shares.items()}
        found |= {"queue/sampler": rows, "queue/judge": waiting}
        found |= {f"balance/{knob.name}": float(knob.value) for knob in self.knobs}
        if self.knobs:
            move, self.streak = decide(shares, self.knobs, self.streak)
            if move is not None:
                self.knobs = [move.knob if knob.name == move.knob.name else knob for knob in self.knobs]
                self.apply[move.knob.name](move.knob.value)
                ledger.record_event("balance", {"step": step, **move.evidence})
        return found

    def state(self) -> State:
        knobs = {knob.name: [knob.value, knob.last, knob.turns] for knob in self.knobs}
        return {"knobs": knobs, "streak": [self.streak.busy, self.streak.steps]}

    def restore(self, state: State | None) -> None:
        """Go on from a checkpoint; a knob that is not in it stays where the recipe has it, and bounds are the recipe's."""
        if state is None:
            return
        self.streak = Streak(*state["streak"])
        for place, knob in enumerate(self.knobs):
            if knob.name in state["knobs"]:
                value, last, turns = state["knobs"][knob.name]
                value = min(knob.high, max(knob.low, value))
                self.knobs[place] = replace(knob, value=value, last=last, turns=turns)
                self.apply[knob.name](value)
