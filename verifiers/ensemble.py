"""Several judges of one thing, of any kind: their scores into one, and how far they are apart.

A member without a score (an error, a time-out, one that abstains) is left out and told, and does not fail the whole; fewer
than ``quorum`` scores are no verdict. Disagreement is the standard deviation of the scores (n - 1; 0 of a single one).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from jurat.platform.types import Finish, Problem, Step, Verdict, status_of
from jurat.verifiers.compose import Part, _Composite, named

Rule = Literal["median", "mean", "trimmed", "min", "lcb"]
RULES: Mapping[str, Callable[[Sequence[float], float, float], float]] = {
    "median": lambda scores, trim, k: statistics.median(scores),
    "mean": lambda scores, trim, k: statistics.fmean(scores),
    "trimmed": lambda scores, trim, k: _trimmed(scores, trim),
    "min": lambda scores, trim, k: min(scores),
    "lcb": lambda scores, trim, k: max(0.0, statistics.fmean(scores) - k * disagreement(scores)),
}
"""(scores, trim, k) -> score in [0, 1]"""


def disagreement(scores: Sequence[float]) -> float:
    return statistics.stdev(scores) if len(scores) > 1 else 0.0


def _trimmed(scores: Sequence[float], trim: float) -> float:
    """The mean without the ``trim`` share of the scores at each end, rounded down."""
    cut = math.floor(trim * len(scores))
    return statistics.fmean(sorted(scores)[cut : len(scores) - cut])


class ensemble(_Composite):
    """Members' scores by ``rule``: median, mean, trimmed mean, min, or the lower confidence bound ``mean - k * std``.

    Args:
        of: names, or ``{use: name, args: {...}}``: rules, checkers of steps, reward models, judges.
        rule: ``trimmed`` leaves the ``trim`` share of the scores out at each end, ``lcb`` takes ``k`` standard deviations off.
        abstain_above: disagreement beyond which there is no verdict; None: never.
        quorum: scores that are needed; None: more than half of the members.

    Steps with the same place in the text are put together by the same rule.
    """

    together = True
    """A judge asks the members one by one, each with its own deadline and in its own batches, and puts their verdicts together."""

    def __init__(
        self,
        of: Sequence[Part],
        rule: Rule = "median",
        abstain_above: float | None = None,
        quorum: int | None = None,
        trim: float = 0.2,
        k: float = 1.0,
    ) -> None:
        super().__init__(of)
        least = len(self.of) // 2 + 1 if quorum is None else quorum
        self.rule, self.abstain_above, self.quorum, self.trim, self.k = rule, abstain_above, least, trim, k

    def __fingerprint__(self) -> list[str]:
        own = [self.rule, str(self.quorum), float(self.trim).hex(), float(self.k).hex()]
        return [*super().__fingerprint__(), *own, "" if self.abstain_above is None else float(self.abstain_above).hex()]

    def __call__(self, problem: Problem, completion: str, finish: Finish = "stop") -> Verdict:
        return self.put([self._judged(place, problem, completion, finish) for place in range(len(self.of))])

    def put(self, verdicts: Sequence[Verdict]) -> Verdict:
        """The verdict that those of the members make, in their order."""
        names = [named(part) for part in self.of]
        scores = [verdict.score for verdict in verdicts if verdict.score is not None]
        apart = disagreement(scores)
        members = [[name, v.status, v.score, v.why[:200]] for name, v in zip(names, verdicts, strict=True)]
        evidence = {"members": members, "rule": self.rule, "disagreement": apart}
        failed = tuple(f"without {name}" for name, v in zip(names, verdicts, strict=True) if v.score is None)
        flags = (*failed, *dict.fromkeys(flag for verdict in verdicts for flag in verdict.flags))
        if not scores and not any(v.status in ("abstained", "undecided") for v in verdicts):
            first = verdicts[0]  # nobody could judge: it is as one that could not
            return Verdict.of(
                first.status, why=f"no member has a score: {first.why}"[:500], evidence=evidence, flags=flags
            )
        if len(scores) < self.quorum:
            why = f"{len(scores)} of {len(verdicts)} members have a score, {self.quorum} are needed"
            return Verdict.of("undecided", why=why, evidence=evidence, flags=flags)
        steps = self._steps(verdicts)
        if self.abstain_above is not None and apart > self.abstain_above:
            why = f"members are {apart:.3g} apart, at most {self.abstain_above:g}"
            return Verdict.of("undecided", why=why, evidence=evidence, flags=flags, steps=steps)
        score = self._of(scores)
        read = next((verdict.read for verdict in verdicts if verdict.read), "")
        certified = all(verdict.certified for verdict in verdicts)
        why = f"{self.rule} of {len(scores)}, {apart:.3g} apart"
        return Verdict.of(
            status_of(score),
            score,
            why=why,
            read=read,
            evidence=evidence,
            flags=flags,
            steps=steps,
            certified=certified,
        )

    def _of(self, scores: Sequence[float]) -> float:
        return min(1.0, max(0.0, RULES[self.rule](scores, self.trim, self.k)))

    def _steps(self, verdicts: Sequence[Verdict]) -> tuple[Step, ...]:
        """Every place that a member names; its score is by the rule, of the members that have one for it."""
        places: dict[tuple[int, int], list[Step]] = {}
        for step in (step for verdict in verdicts for step in verdict.steps):
            places.setdefault((step.start, step.end), []).append(step)
        return tuple(self._step(*place, some) for place, some in sorted(places.items()))

    def _step(self, start: int, end: int, some: Sequence[Step]) -> Step:
        scores = [step.score for step in some if step.score is not None]
        why = "; ".join(dict.fromkeys(step.why for step in some if step.why))
        if not scores:
            return Step(start=start, end=end, status=some[0].status, score=None, why=why)
        score = self._of(scores)
        return Step(start=start, end=end, status=status_of(score), score=score, why=why)
