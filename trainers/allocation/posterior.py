"""What a run has seen of each prompt: a Beta posterior of its success, its mean reward, its length. Past only.

Sums are exact (``fsum``), so that they do not depend on the order in which a checkpoint lists the prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum, prod
from typing import Any

from jurat.platform.recipe import RewardPart
from jurat.platform.types import Group, Scored

FEWEST_PROMPTS = 8
"""Below this many seen prompts the prior is flat."""
STRENGTH = (0.1, 100.0)
"""Bounds of the fitted prior's a + b."""


@dataclass(frozen=True, slots=True)
class Beta:
    """Success probability p ~ Beta(a, b), a and b > 0."""

    a: float
    b: float

    @property
    def mean(self) -> float:
        """``E[p] = a / (a + b)``."""
        return self.a / (self.a + self.b)

    @property
    def variance(self) -> float:
        """``E[p (1 - p)] = a b / ((a + b)(a + b + 1))``: expected variance of one 0/1 reward. Never 0."""
        total = self.a + self.b
        return self.a * self.b / (total * (total + 1.0))

    def after(self, successes: float, failures: float) -> Beta:
        """The posterior. Counts may be fractions: decayed, or partial scores."""
        return Beta(self.a + successes, self.b + failures)

    def mixed(self, n: int) -> float:
        """P(n samples are neither all right nor all wrong), beta-binomial."""
        total = self.a + self.b
        right = prod((self.a + k) / (total + k) for k in range(n))
        wrong = prod((self.b + k) / (total + k) for k in range(n))
        return 1.0 - right - wrong


FLAT = Beta(1.0, 1.0)


def fit_prior(counts: Sequence[tuple[float, float]]) -> Beta:
    """Empirical Bayes by moments over prompts, from (successes, failures) of each; flat for fewer than 8 prompts.

    ``mu = (S + 1)/(N + 2)``; with p_i = s_i/n_i, w_i = n_i/N, g = sum w_i (1 - w_i)/n_i, h = sum w_i (1 - w_i)
    (Kleinman 1973, JASA 68:46):
    ``1/(a + b + 1) = (sum w_i (p_i - mu)^2 - mu (1 - mu) g) / (mu (1 - mu)(h - g))``, a = mu (a + b).
    """
    sizes = [s + f for s, f in counts]
    if len(counts) < FEWEST_PROMPTS:
        return FLAT
    total = fsum(sizes)
    mu = (fsum(s for s, _ in counts) + 1.0) / (total + 2.0)
    spread = fsum(n / total * (s / n - mu) ** 2 for (s, _), n in zip(counts, sizes, strict=True))
    g = (len(counts) - 1) / total
    h = fsum(n / total * (1.0 - n / total) for n in sizes)
    if h - g <= 1e-9 * h:  # one sample each says nothing of how prompts differ
        return Beta(2.0 * mu, 2.0 * (1.0 - mu))
    share = (spread - mu * (1.0 - mu) * g) / (mu * (1.0 - mu) * (h - g))
    low, high = STRENGTH
    strength = min(high, max(low, 1.0 / share - 1.0)) if share > 0 else high
    return Beta(strength * mu, strength * (1.0 - mu))


@dataclass(frozen=True, slots=True)
class Correctness:
    """Reads how right a sample is from its verdicts, whatever style or length rewards add."""

    members: tuple[int, ...]
    """Places of the outcome members in the reward spec."""

    @classmethod
    def by(cls, reward: RewardPart) -> Correctness:
        return cls(tuple(place for place, member in enumerate(reward.members) if member.role == "outcome"))

    def of(self, scored: Scored) -> float | None:
        """Lowest score of the outcome members, an undecided one (which trained as zero) being 0; None if excluded."""
        if scored.judgement.reward.value is None:
            return None
        verdicts = list(scored.judgement.verdicts.values())
        return min(verdicts[place].score or 0.0 for place in self.members)

    def scores(self, group: Group) -> list[float]:
        """Of the samples that count."""
        return [score for scored in group.scored if (score := self.of(scored)) is not None]


@dataclass(slots=True)
class Seen:
    """Of one prompt, decayed per visit."""

    successes: float = 0.0
    failures: float = 0.0
    rewards: float = 0.0
    """Sum of raw rewards over the same samples."""
    tokens: float = 0.0
    """Moving average over visits of the mean completion length."""

    @property
    def count(self) -> float:
        return self.successes + self.failures


@dataclass(slots=True)
class Past:
    """Every prompt seen so far. ``decay`` multiplies a prompt's counts at each visit, since the policy moves."""

    correctness: Correctness
    decay: float
    seen: dict[str, Seen] = field(default_factory=dict)
    _prior: Beta | None = None

    def observe(self, groups: Iterable[Group]) -> None:
        """Samples that count (reward not None), greedy baselines apart, as the loop takes a batch."""
        self._prior = None
        for group in groups:
            counted = [s for s in group.scored if self.correctness.of(s) is not None]
            if not counted:
                continue
            scores, name = self.correctness.scores(group), group.visit.problem.id
            length = fsum(s.rollout.num_completion_tokens for s in counted) / len(counted)
            old, keep = self.seen.get(name), self.decay
            was = old or Seen(tokens=length)
            self.seen[name] = Seen(
                successes=keep * was.successes + fsum(scores),
                failures=keep * was.failures + fsum(1.0 - score for score in scores),
                rewards=keep * was.rewards + fsum(s.judgement.reward.value or 0.0 for s in counted),
                tokens=keep * was.tokens + (1.0 - keep) * length,
            )

    @property
    def prior(self) -> Beta:
        if self._prior is None:
            self._prior = fit_prior([(seen.successes, seen.failures) for seen in self.seen.values()])
        return self._prior

    def posterior(self, problem: str) -> Beta:
        seen = self.seen.get(problem)
        return self.prior.after(seen.successes, seen.failures) if seen else self.prior

    def tokens(self, problem: str) -> float:
        """Expected completion length; of an unseen prompt the mean over prompts, 1 where none was seen."""
        if problem in self.seen:
            return max(1.0, self.seen[problem].tokens)
        return max(1.0, fsum(seen.tokens for seen in self.seen.values()) / max(1, len(self.seen)))

    def reward(self, problem: str) -> float | None:
        """Expected raw reward, shrunk to the mean of all as strongly as the prior; None where nothing was seen.

        It knows the past only, so it is a baseline that biases nothing, even for a single sample.
        """
        if not self.seen:
            return None
        mean = fsum(seen.rewards for seen in self.seen.values()) / fsum(seen.count for seen in self.seen.values())
        strength, own = self.prior.a + self.prior.b, self.seen.get(problem, Seen())
        return (strength * mean + own.rewards) / (strength + own.count)

    def evidence(self, problem: str) -> dict[str, Any]:
        """What a decision goes by: posterior, samples behind it (decayed), expected tokens, and the baseline."""
        beta, seen = self.posterior(problem), self.seen.get(problem, Seen())
        found = {"a": beta.a, "b": beta.b, "seen": seen.count, "tokens": self.tokens(problem)}
        baseline = self.reward(problem)
        return found if baseline is None else {**found, "baseline": baseline}

    def state(self) -> dict[str, Any]:
        """JSON; [successes, failures, rewards, tokens] of each prompt seen."""
        return {name: [s.successes, s.failures, s.rewards, s.tokens] for name, s in self.seen.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._prior = None
        self.seen = {name: Seen(*row) for name, row in state.items()}
