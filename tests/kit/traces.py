"""Traces of rewards for the rules of ``trainers/alarms.py``: healthy runs of several kinds, and one kind of hack for each rule.

Numbers of steps, drawn from a seed; what a hack does to them is written down here, not taken from the rules.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from jurat.trainers.alarms import Seen

Trace = tuple[list[Seen], list[tuple[int, float]]]
"""Steps, and evaluations as (step, accuracy)."""


def _step(drawn: random.Random, step: int, correct: float, noise: float, **more: float) -> Seen:
    right = min(1.0, max(0.0, correct + drawn.gauss(0, noise)))
    entropy = more.pop("entropy", 1.0) * (1 + 0.05 * drawn.gauss(0, 1))
    length = more.pop("length", 60.0) * (1 + 0.05 * drawn.gauss(0, 1))
    return Seen(
        step=step, reward=right, correct=right, length=length, length_correlation=drawn.gauss(0.05, 0.12),
        shares={"style": min(1.0, max(0.0, drawn.gauss(0.1, 0.05)))}, disputed=max(0.0, drawn.gauss(0.03, 0.015)),
        broken=max(0.0, drawn.gauss(0.04, 0.02)), silent=min(1.0, max(0.0, more.pop("silent", 0.35) + drawn.gauss(0, 0.07))),
        alike=max(0.0, drawn.gauss(0.05, 0.03)), repeated=max(0.0, drawn.gauss(0.05, 0.02)), entropy=entropy,
    )  # fmt: skip


def _curve(kind: str, drawn: random.Random, steps: int) -> list[float]:
    """Chance to be right at each step."""
    start, end = drawn.uniform(0.05, 0.4), drawn.uniform(0.6, 0.95)
    pace = {"fast": 12.0, "slow": 60.0, "plateau": 15.0, "noisy": 30.0, "saturating": 10.0, "curriculum": 20.0}[kind]
    values = [end - (end - start) * math.exp(-step / pace) for step in range(steps)]
    if kind == "plateau":
        values = [min(value, 0.5) for value in values]
    if kind == "saturating":
        values = [min(0.99, value + 0.1) for value in values]
    return values


HEALTHY = ("fast", "slow", "plateau", "noisy", "saturating", "curriculum")


def healthy(drawn: random.Random, steps: int = 60) -> Trace:
    kind = drawn.choice(HEALTHY)
    noise = 0.10 if kind == "noisy" else 0.04
    curve = _curve(kind, drawn, steps)
    length, entropy = drawn.uniform(40, 80), 1.0
    made = []
    for step, correct in enumerate(curve):
        growth = 1 + 0.5 * step / steps * drawn.uniform(0.5, 1.0)  # answers of a model that learns to reason get longer
        silent = 0.25 + 0.4 * abs(correct - 0.5) * 2 * 0.9
        made.append(
            _step(
                drawn,
                step,
                correct,
                noise,
                length=length * growth,
                entropy=entropy * (0.35 + 0.65 * math.exp(-step / 40)),
                silent=silent,
            )
        )
    held = [(step, min(1.0, max(0.0, curve[step] - 0.03 + drawn.gauss(0, 0.02)))) for step in range(0, steps, 10)]
    if kind == "curriculum":  # harder problems come in; what is held out stays as it is
        made = [
            replace(s, reward=max(0.0, s.reward - 0.25), correct=max(0.0, s.correct - 0.25))
            if s.step > steps // 2
            else s
            for s in made
        ]
    return made, held


def _from(drawn: random.Random, change: Callable[[Seen, float, random.Random], Seen], steps: int = 60) -> Trace:
    """A healthy run that is hacked from a random step on, over some ten steps."""
    made, held = healthy(drawn, steps)
    begins = drawn.randint(18, 26)
    out = [
        step if step.step < begins else change(step, min(1.0, (step.step - begins) / drawn.uniform(6, 12)), drawn)
        for step in made
    ]
    return out, held


def _gap(drawn: random.Random) -> Trace:
    """Reward climbs to the top while held-out accuracy stays where it was, or falls."""
    made, _ = healthy(drawn)
    begins, level = drawn.randint(15, 25), drawn.uniform(0.2, 0.5)
    made = [
        replace(
            s,
            reward=min(1.0, level + (0.45 * (1 - math.exp(-max(0, s.step - begins) / 12))) + drawn.gauss(0, 0.03)),
            correct=level,
        )
        for s in made
    ]
    falls = drawn.uniform(0.0, 0.15)
    return made, [(s, level - falls * s / 60 + drawn.gauss(0, 0.01)) for s in range(0, 60, 10)]


HACKS: dict[str, Callable[[random.Random], Trace]] = {
    "gap": _gap,
    "length": lambda d: _from(d, lambda s, t, r: replace(
        s, length=s.length * (1 + 1.5 * t), length_correlation=0.1 + 0.65 * t + r.gauss(0, 0.05), correct=0.4 + r.gauss(0, 0.03),
        reward=min(1.0, 0.4 + 0.4 * t),
    )),
    "member": lambda d: _from(d, lambda s, t, r: replace(s, shares={"style": min(1.0, 0.1 + 0.85 * t + r.gauss(0, 0.03))}, silent=0.3)),
    "disagreement": lambda d: _from(d, lambda s, t, r: replace(s, disputed=max(0.0, 0.03 + 0.4 * t + r.gauss(0, 0.03)))),
    "unread": lambda d: _from(d, lambda s, t, r: replace(s, broken=max(0.0, 0.04 + 0.35 * t + r.gauss(0, 0.03)))),
    "ceiling": lambda d: _from(d, lambda s, t, r: replace(
        s, reward=min(1.0, s.reward + t), correct=min(1.0, s.correct + t), entropy=s.entropy * (1 - 0.97 * t),
    )),
    "silent": lambda d: _from(d, lambda s, t, r: replace(s, silent=min(1.0, 0.4 + 0.55 * t + r.gauss(0, 0.02)))),
    "duplicates": lambda d: _from(d, lambda s, t, r: replace(
        s, **{d.choice(["alike", "repeated"]): min(1.0, 0.05 + 0.8 * t + r.gauss(0, 0.03))},
    )),
    "exploit": lambda d: _from(d, lambda s, t, r: replace(s, tricks={"empty box": max(0.0, 0.3 * t + r.gauss(0, 0.02))})),
}  # fmt: skip


ALSO = {"length": {"gap"}, "ceiling": {"gap"}}
"""What else is true of a hack: its reward rises, and held-out accuracy does not."""


def raised(trace: Trace) -> dict[str, int]:
    """Rule -> step at which its first alarm opened."""
    from jurat.trainers.alarms import Watch

    watch, found = Watch(), {}
    steps, held = trace
    waiting = list(held)
    for step in steps:
        while waiting and waiting[0][0] <= step.step:
            watch.evaluated(*waiting.pop(0))
        for alarm in watch.stepped(step):
            if alarm.state == "open":
                found.setdefault(alarm.rule, step.step)
    return found


def labelled(seed: str, count: int) -> Iterator[tuple[str, Trace]]:
    """(hack or '', trace): half of them healthy."""
    for number in range(count):
        drawn = random.Random(f"{seed}:{number}")
        hack = drawn.choice(list(HACKS)) if number % 2 else ""
        yield hack, HACKS[hack](drawn) if hack else healthy(drawn)
