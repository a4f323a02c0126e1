"""The nouns that travel between rooms. All frozen; arrays are numpy until whole-batch mathematics and packing, torch after.

Axes: P prompts, n_i samples of prompt i, N tokens of a completion, L tokens of one sequence (prompt + completion),
T packed tokens of a microbatch, S segments of a microbatch.

Status and fault of a verdict decide what training does with a sample:

| status                                                             | fault    | score        | training                        |
|--------------------------------------------------------------------|----------|--------------|---------------------------------|
| correct, incorrect, partial                                        | -        | 1, 0, between| trains                          |
| no_answer, unparseable, too_large, limit, crash, forbidden         | policy   | 0            | trains                          |
| bad_gold                                                           | gold     | none         | excluded, reported with the row |
| abstained, undecided                                               | -        | none         | excluded                        |
| timeout, error                                                     | verifier | none         | excluded, counted               |
| infra                                                              | infra    | none         | retried, then excluded          |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]

Status = Literal[
    "correct",
    "incorrect",
    "partial",
    "no_answer",
    "unparseable",
    "too_large",
    "limit",
    "crash",
    "forbidden",
    "bad_gold",
    "abstained",
    "undecided",
    "timeout",
    "error",
    "infra",
]
Fault = Literal["policy", "gold", "verifier", "infra"]
Finish = Literal["stop", "length", "aborted"]

FAULTS: Mapping[Status, Fault | None] = MappingProxyType(
    {
        "correct": None,
        "incorrect": None,
        "partial": None,
        "no_answer": "policy",
        "unparseable": "policy",
        "too_large": "policy",
        "limit": "policy",
        "crash": "policy",
        "forbidden": "policy",
        "bad_gold": "gold",
        "abstained": None,
        "undecided": None,
        "timeout": "verifier",
        "error": "verifier",
        "infra": "infra",
    }
)
"""Who is to blame for each status, unless a verifier declares otherwise for its own time-outs."""

UNSCORED: frozenset[Status] = frozenset({"bad_gold", "abstained", "undecided", "timeout", "error", "infra"})
"""Statuses that carry no score (a time-out or error blamed on the policy carries 0)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Message:
    """One turn of a prompt. Example: ``Message(role="user", content="What is 7 + 5?")``."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VerifierSpec:
    """Enough to rebuild a verifier. Example: ``VerifierSpec(name="math", args={}, digest="sha256:9f…")``."""

    name: str
    args: Mapping[str, Any] = field(default_factory=dict)
    """JSON values only."""
    digest: str = ""
    """Version digest, bound by launch; empty while unbound."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """One question with its reference.

    Example: ``Problem(id="p1f0…", messages=(Message(role="user", content="7+5?"),), reference="12", verifier=VerifierSpec(name="math"))``
    """

    id: str
    """Content hash of messages + reference + given completions (not of the verifier)."""
    messages: tuple[Message, ...]
    reference: str
    """Gold answer, '' where there is none; for demonstrations (SFT) the whole solution text is in ``columns["solution"]``,
    for preferences the completions are in ``chosen`` and ``rejected``, or ``completion`` and ``label``."""
    verifier: VerifierSpec
    source: str = ""
    """File or generator it came from, with the row: ``gsm8k/train.jsonl:17``."""
    split: str = "train"
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Extra JSON columns of the row (``level``, ``solution``, ...)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Visit:
    """The k-th time a problem is asked in a run. Example: ``Visit(problem=p, visit=0, position=17)``."""

    problem: Problem
    visit: int
    """0 the first time the problem is drawn in this run."""
    position: int
    """Place in the run's order of draws; orders batches."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sampling:
    """How a completion is drawn; from the recipe alone. Example: ``Sampling(temperature=1.0, max_new_tokens=16)``."""

    temperature: float = 1.0
    """0 means greedy (argmax); log-probs are then those at temperature 1."""
    max_new_tokens: int = 256
    stop_token_ids: tuple[int, ...] = ()
    """Each ends the completion and is its last token."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Span:
    """Tokens [start, end) of a completion were drawn by policy ``version``. Example: ``Span(start=0, end=16, version=3)``."""

    start: int
    end: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """What a sampler returns.

    Example: 3 tokens, ``Completion(token_ids=[216, 33, 2], logprobs=[-.1, -.3, 0.], finish="stop", spans=(Span(0, 3, 4),))``."""

    token_ids: IntArray
    """[N], the stop token included when finish is "stop"."""
    logprobs: FloatArray
    """[N], natural log, of the distribution that was sampled (after temperature)."""
    finish: Finish
    spans: tuple[Span, ...]
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall seconds that it was ``queued``, in ``prefill`` and in ``decode``, those of interrupted attempts included."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """One completion to draw. Equal ``prompt`` arrays share a prefill."""

    rollout_id: str
    prompt: IntArray
    """[L0] token ids."""
    sampling: Sampling
    seed: int
    """64-bit; token t of the completion uses only (seed, t)."""
    prefix: Completion | None = None
    """Tokens of an interrupted attempt, kept with their spans."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rollout:
    """A sampled answer to one visit. ``tokens[L] = prompt[L-N] + completion[N]``; mask and log-probs are 0 on the prompt."""

    id: str
    """Hash of (run, stage, problem id, visit, index): equal after a resume."""
    problem: Problem
    visit: int
    index: int
    """0..n_i-1 within its group; -1 for a greedy baseline."""
    tokens: IntArray
    """[L]"""
    loss_mask: BoolArray
    """[L], True where the policy chose the token."""
    sampler_logprobs: FloatArray
    """[L], 0 where loss_mask is False."""
    spans: tuple[Span, ...]
    text: str
    """The completion decoded, special tokens left out."""
    char_ends: IntArray
    """[N], offset in ``text`` after each completion token."""
    finish: Finish

    @property
    def num_completion_tokens(self) -> int:
        """N."""
        return len(self.char_ends)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """One step of a solution. Example: ``Step(start=0, end=14, status="correct", score=1.0, why="48/2=24")``."""

    start: int
    """First character of the step in the completion."""
    end: int
    status: Status
    score: float | None
    why: str = ""


def status_of(score: float) -> Status:
    """What a score in [0, 1] says."""
    return "correct" if score == 1 else "incorrect" if score == 0 else "partial"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Verdict:
    """What one verifier said of one completion, and why. See the table in the module docstring."""

    status: Status
    score: float | None
    """In [0, 1]; None exactly where nothing may be learnt."""
    fault: Fault | None = None
    read: str = ""
    """What was read as the answer."""
    why: str = ""
    """The rule that decided (``rational_exact``) or the error."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """Capped JSON: normal forms, conversions, streams, case results."""
    certified: bool = False
    """True if the rule is a proof."""
    flags: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    seconds: float = 0.0
    """Work time, queueing excluded."""
    verifier: VerifierSpec | None = None
    attempt: int = 1
    isolation: Literal["inline", "process", "sandbox"] = "inline"

    @classmethod
    def of(cls, status: Status, score: float | None = None, **fields: Any) -> Verdict:
        """A verdict with the score and fault its status implies; ``score`` is needed only for ``partial``."""
        implied = {"correct": 1.0, "partial": score}.get(status, None if status in UNSCORED else 0.0)
        fields.setdefault("fault", FAULTS[status])
        return cls(status=status, score=implied, **fields)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reward:
    """The judged reward of one rollout, raw. Normalisation and shaping happen in ``trainers/``, in batch order."""

    value: float | None
    """None if excluded."""
    parts: Mapping[str, float | None] = field(default_factory=dict)
    """{member name: unweighted score}."""
    steps: tuple[Step, ...] = ()
    """Of the members of role process."""
    gate: str = ""
    """The member whose gate made the whole 0; '' where none did."""
    trainable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judgement:
    """Verdicts of every member of the reward spec, in order, with the raw reward they make."""

    verdicts: Mapping[str, Verdict]
    reward: Reward


PHASES = ("queued", "prefill", "decode", "score", "wait")
"""What a sample goes through before the step that takes it: waiting for the sampler, its two kinds of work, the verifiers, and
ready until the loop takes its batch."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scored:
    """A rollout with its judgement."""

    rollout: Rollout
    judgement: Judgement
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall seconds by ``PHASES``; empty where nothing was sampled."""
    ready: float = 0.0
    """``time.perf_counter()`` of this process when its verdicts came."""


GIVEN = "given"
"""Reason of an allocation whose completions are in the data: no policy wrote them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Allocation:
    """How many samples a visit gets and why. Example: ``Allocation(samples=8, reason="uniform")``."""

    samples: int
    reason: str
    greedy_baseline: bool = False
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """All samples of one visit. Offline sources (SFT, DPO) yield Groups with given completions and labels as rewards."""

    visit: Visit
    scored: tuple[Scored, ...]
    """[n_i], ordered by index; excluded samples are among them with ``reward.value is None``."""
    allocation: Allocation
    baseline: Scored | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """What one step learns from."""

    step: int
    groups: tuple[Group, ...]
    """Ordered by (position, index)."""
    discarded: tuple[tuple[Group, str], ...] = ()
    """Groups left out, with the reason."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall seconds until its last token was drawn (``sample``; 0 where all were there), and from then on (``judge``)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One sequence to learn from. Columns are [L] float32, 0 off the mask; None where the algorithm does not declare one.

    Example: prompt of 2, completion of 1: ``Sample(tokens=[1, 5, 9], loss_mask=[F, F, T], sampler_logprobs=[0, 0, -.4],
    weights=[0, 0, 1], advantages=[0, 0, .5], atom=0)``
    """

    tokens: IntArray
    """[L]"""
    loss_mask: BoolArray
    """[L]; True at targets. Position 0 is never a target."""
    sampler_logprobs: FloatArray
    """[L]; zeros for offline data."""
    weights: FloatArray
    """[L]; relative, 1 at an ordinary target. Packing turns them into a microbatch's, which carry the update's normaliser."""
    advantages: FloatArray
    """[L]"""
    proximal_logprobs: FloatArray | None = None
    ref_logprobs: FloatArray | None = None
    values: FloatArray | None = None
    """A critic's, before the step; of KTO the reference point of the batch, at every target."""
    returns: FloatArray | None = None
    labels: FloatArray | None = None
    """1 at the targets of a good completion, 0 at those of a bad one."""
    atom: int
    """Samples of one atom (a pair, a group) are never split over updates; a group shares a prompt."""
    rollout_id: str = ""


COLUMNS = (
    "sampler_logprobs",
    "weights",
    "advantages",
    "proximal_logprobs",
    "ref_logprobs",
    "values",
    "returns",
    "labels",
)
"""The per-token columns of Sample and Microbatch, in order."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Microbatch:
    """Flat tensors of S sequences laid end to end, no padding. Segment s is [offsets[s], offsets[s+1]).

    Segments of one atom are adjacent, so a learner can forward their common prompt once.
    """

    tokens: Tensor
    """[T] int64"""
    offsets: Tensor
    """[S+1] int64, offsets[0] = 0, offsets[S] = T."""
    loss_mask: Tensor
    """[T] bool; True at targets; the first token of a segment never is."""
    sampler_logprobs: Tensor
    """[T] float32, as are all columns; 0 off the mask."""
    weights: Tensor
    """The update's global normaliser is in them: the loss of an update is ``sum_t weights[t] * L_t``."""
    advantages: Tensor
    proximal_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    values: Tensor | None = None
    returns: Tensor | None = None
    labels: Tensor | None = None

    def select(self, index: Tensor) -> Microbatch:
        """The tokens at ``index`` [K] as a microbatch of one segment, for objectives that look at each token alone."""
        picked: dict[str, Any] = {name: None if (c := getattr(self, name)) is None else c[index] for name in COLUMNS}
        offsets = self.offsets.new_tensor([0, len(index)])
        return Microbatch(tokens=self.tokens[index], offsets=offsets, loss_mask=self.loss_mask[index], **picked)


Rounds = tuple[tuple[Microbatch, ...], ...]
"""rounds[round][rank]: one optimiser update; gradients sum over rounds and ranks. A rank without work has a microbatch of T = 0."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UpdateReport:
    """One optimiser step of one learner."""

    role: str
    metrics: Mapping[str, float]
    """``loss``, ``grad_norm``, ``lr``, ``entropy``, ``kl_sampler``, ... (sums are already normalised)."""
    tokens: int
    """Loss tokens."""
    forwarded_tokens: int
    """Tokens the model ran over (after prompt sharing and skipping)."""
    skipped: bool = False
    """True if the step was not applied (non-finite gradient)."""
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepReport:
    """What the loop hands the ledger after a step."""

    step: int
    version: int
    """Policy version after the step: ``step + 1``."""
    metrics: Mapping[str, float]
    updates: tuple[UpdateReport, ...]
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CheckpointRef:
    """A finished checkpoint."""

    path: str
    digest: str
    """sha256 of the manifest, which names the digest of each file."""
    step: int
    """Steps taken = policy version."""
    parent: str = ""
    """Digest of the checkpoint this run or stage began from."""
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Estimate:
    """A mean over problems with its 95 % interval. Example: ``Estimate(value=.84, low=.80, high=.88)``."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluation:
    """One model on one set of problems. Intervals are over problems, not over samples."""

    name: str
    """``held_out`` or ``unseen``."""
    stage: str
    step: int
    """Policy version."""
    problems: int
    samples: int
    """Samples per problem at temperature 1; 0 where only losses were measured: everything about samples is None then."""
    accuracy: Estimate | None = None
    """Mean score at temperature 1."""
    pass_at: Mapping[int, Estimate] = field(default_factory=dict)
    """Unbiased pass@k (Chen et al. 2021, eq. 1) for each k."""
    answer_rate: Estimate | None = None
    """Share of samples from which an answer was read."""
    accuracy_given_answer: Estimate | None = None
    mean_tokens: float | None = None
    truncated: float | None = None
    """Share of samples that ended at the length limit."""
    undecided: float | None = None
    """Share of samples without a score; they are left out of the means."""
    greedy: Estimate | None = None
    """Accuracy of the argmax completion; None where it was not asked for."""
    seconds: float
    final: bool = False
    """Before a stage's first step or after its last: on all problems that are measured at all."""
    members: Mapping[str, float] = field(default_factory=dict)
    """Mean score of each member of the reward at temperature 1, where it has several; samples without one are left out."""
    losses: Mapping[str, float] = field(default_factory=dict)
    """Loss of a stage that learns from given completions, on those of this set: ``sft`` in nats per token, ``dpo``, ``ipo``,
    ``kto`` per pair or completion."""
