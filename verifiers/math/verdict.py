"""What a comparison returns, and what may be switched."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from jurat.verifiers.math.limits import Steps

CORRECT, INCORRECT = "correct", "incorrect"
NO_ANSWER, UNPARSEABLE, TOO_LARGE = "no_answer", "unparseable", "too_large"
BAD_GOLD, UNDECIDED = "bad_gold", "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class MathVerdict:
    """Verdict on one answer.

    Example: `compare("\\\\frac12", "0.5")` is status "correct", reason "rational_exact", certified True.
    """

    status: str
    """correct, incorrect, no_answer, unparseable, too_large, bad_gold or undecided."""
    reason: str
    """Rule that decided: `rational_exact`, `ball_disjoint_64`, `unknown_macro:\\foo`."""
    certified: bool = False
    """A proof, rather than numerical or probabilistic agreement."""
    gold_norm: str = ""
    answer_norm: str = ""
    """Normal forms: equal for texts that differ in markup only."""
    gold_type: str = ""
    answer_type: str = ""
    """Kinds of `tree.py`."""
    conversions: tuple[str, ...] = ()
    """Names of `convert.py` that were needed, in order."""
    flags: tuple[str, ...] = ()
    """Among multiple_boxes, hedge, not_asserted, unevaluated, inconsistent_chain, positive_domain, last_number, unclosed_thinking,
    log_base."""
    extracted: str | None = None
    """The text that was judged, when it was taken out of a completion."""
    span: tuple[int, int] | None = None
    """Where `extracted` lies in the completion, in characters."""
    seconds: float = 0.0
    """Time of the decision; of the first one, when the verdict was remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What counts as equal beyond mathematics. Part of a verifier's identity."""

    off: frozenset[str] = frozenset()
    """Conversions of `convert.py` that are switched off, by name."""
    reject_flags: frozenset[str] = frozenset()
    """Flags that make a correct answer incorrect: a strict run may refuse "unevaluated", "multiple_boxes" or
    "hedge"."""
    decimal_digits: int = 10
    """A decimal of at least so many significant digits may stand for an exact value that it rounds."""
    accept_uncertified: bool = True
    """Whether numerical agreement without a proof is correct; if False it is undecided."""
    symbolic: bool = False
    """Whether SymPy, in a killable child process, may be asked last."""


DEFAULT = Policy()


class Outcome(NamedTuple):
    """Equality of two trees: True, False or None (not decided), the rule, and whether that is a proof."""

    equal: bool | None
    reason: str
    certified: bool = True
    conversions: tuple[str, ...] = ()


@dataclass(slots=True)
class Context:
    """State of one comparison."""

    policy: Policy
    start: float = 0.0
    steps: Steps = field(default_factory=Steps)
    flags: list[str] = field(default_factory=list)
    seed: str = ""
    kinds: frozenset[str] = frozenset()
    """Kinds of node in either tree: stages that none of them needs are skipped."""

    def flag(self, name: str) -> None:
        if name not in self.flags:
            self.flags.append(name)
