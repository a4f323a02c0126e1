"""When a run must stop or warn: too many undecided verdicts, steps without a finite gradient, answers cut at the limit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from jurat.platform.errors import RunFailed
from jurat.platform.ports import Reporter
from jurat.platform.types import Batch, UpdateReport


@dataclass(slots=True)
class Limits:
    max_undecided: float
    """Share of a step's samples without a score above which the run stops."""
    max_skipped: int
    """Non-finite updates in a row after which the run stops."""
    max_new_tokens: int
    skipped_in_a_row: Counter[str] = field(default_factory=Counter)
    """By role."""
    warned: set[str] = field(default_factory=set)

    def check(self, batch: Batch, reporter: Reporter) -> None:
        """Raises RunFailed naming the statuses and one example; warns once when most answers are cut."""
        scored = [s for g in (*batch.groups, *(g for g, _ in batch.discarded)) for s in g.scored]
        for s in scored:
            if (value := s.judgement.reward.value) is not None and not math.isfinite(value):
                raise RunFailed(
                    f"the reward of sample {s.rollout.id} of step {batch.step + 1} is {value}",
                    where="reward.members", fix="a weight is not finite, or a verifier's scores overflow: mend it",
                )  # fmt: skip
        without = [s for s in scored if s.judgement.reward.value is None]
        if scored and len(without) / len(scored) > self.max_undecided:
            statuses = Counter(v.status for s in without for v in s.judgement.verdicts.values() if v.score is None)
            example = next(
                (
                    f"{name}: {v.status}, {v.why}"
                    for s in without
                    for name, v in s.judgement.verdicts.items()
                    if v.score is None
                ),
                "no verdict",
            )
            raise RunFailed(
                f"{len(without)} of {len(scored)} samples of step {batch.step + 1} got no score "
                f"({dict(statuses)}; limit {self.max_undecided:.0%}). First: {example}",
                where="reward.max_undecided",
                fix="jurat rollouts RUN --worst 10 shows them; mend the verifier or the data",
            )
        cut = sum(s.rollout.finish == "length" for s in scored)
        if "cut" not in self.warned and scored and cut / len(scored) > 0.5:
            self.warned.add("cut")
            reporter.note(
                f"warning: {cut} of {len(scored)} answers of step {batch.step + 1} were cut at sampling.max_new_tokens = "
                f"{self.max_new_tokens}; they seldom hold an answer. Raise it, or ask for shorter answers in prompt.suffix"
            )

    def check_updates(self, reports: Sequence[UpdateReport], reporter: Reporter) -> None:
        """Raises RunFailed after ``max_skipped`` non-finite updates of one role in a row, over steps."""
        for report in reports:
            skipped = self.skipped_in_a_row[report.role] + 1 if report.skipped else 0
            self.skipped_in_a_row[report.role] = skipped
            if skipped:
                reporter.note(
                    f"warning: {report.role} update skipped, its gradient is not finite "
                    f"({skipped} in a row, stop at {self.max_skipped})"
                )
            if skipped >= self.max_skipped:
                raise RunFailed(
                    f"{skipped} updates in a row had a non-finite loss or gradient",
                    where="optim.max_skipped",
                    fix="lower optim.lr, or resume from the last checkpoint with another seed",
                )
