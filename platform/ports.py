"""The seams between rooms. Async even in-process, so that in-process objects and Ray actors implement them alike."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from jurat.platform.types import (
    Allocation,
    Batch,
    CheckpointRef,
    Completion,
    Evaluation,
    Finish,
    FloatArray,
    Group,
    IntArray,
    Judgement,
    Message,
    Microbatch,
    Problem,
    Request,
    Rounds,
    StepReport,
    UpdateReport,
    Visit,
)

if TYPE_CHECKING:
    from asyncio import Future

    from torch import Tensor

    from jurat.platform.recipe import Recipe

State = Mapping[str, Any]
"""JSON values only."""


class Tokenizer(Protocol):
    eos_ids: tuple[int, ...]
    """Ids that end a turn: the model's own eos and the chat template's end mark."""
    max_length: int
    """Longest sequence the model takes, in tokens."""

    def encode_prompt(self, messages: Sequence[Message]) -> IntArray:
        """[L0] ids of the conversation by the model's chat template, up to where the assistant's text begins."""
        ...

    def encode(self, text: str) -> IntArray:
        """[N] ids of plain text, no special tokens added."""
        ...

    def decode(self, token_ids: IntArray) -> tuple[str, IntArray]:
        """Text without special tokens, and [N] the offset in it after each token."""
        ...


class Sampler(Protocol):
    async def sample(self, request: Request) -> Completion:
        """Equal prompts share a prefill; requests made in one tick of the event loop are batched in the order made."""
        ...

    async def interrupt(self) -> tuple[Completion, ...]:
        """Stop what is running; pending ``sample`` calls return what they have with finish "aborted"."""
        ...


class Scorer(Protocol):
    ranks: int

    async def score(self, rounds: Rounds) -> Sequence[Sequence[FloatArray]]:
        """[round][rank] -> [T] natural-log probability of each target, 0 off the mask."""
        ...


class Objective(Protocol):
    """A loss as a pure function of the log-probs (or values) of the current model."""

    @property
    def skips_zero_advantage(self) -> bool:
        """True if a sample whose advantages are all 0 has no gradient."""
        ...

    @property
    def token_local(self) -> bool:
        """True if the loss is a sum over tokens of functions of that token alone; a learner may call it on pieces."""
        ...

    @property
    def sampled(self) -> bool:
        """True if ``current`` are log-probs of what the sampler drew: a learner then reports how far it is from the sampler."""
        ...

    def __call__(self, current: Tensor, mb: Microbatch) -> tuple[Tensor, Mapping[str, Tensor]]:
        """current [T] -> scalar loss to be summed over microbatches, and metrics to be summed (weights already in)."""
        ...


class Learner(Scorer, Protocol):
    async def update(self, rounds: Rounds, objective: Objective, *, clip_norm: float | None = None) -> UpdateReport:
        """One optimiser step on the sum of the gradients of all microbatches; ``clip_norm`` in place of the recipe's."""
        ...

    async def save(self, folder: Path) -> None:
        """Weights, optimiser and schedule as safetensors + JSON."""
        ...

    async def load(self, folder: Path, *, weights_only: bool = False) -> None: ...

    @property
    def checkpoint_bytes(self) -> int:
        """About what ``save`` writes, so that a full disk is seen before it is full."""
        ...


@runtime_checkable
class Stages(Protocol):
    """A ``Learner`` that can write while it goes on learning."""

    async def stage(self, folder: Path) -> Awaitable[None]:
        """As ``save``, but return as soon as later updates cannot change what is written; what comes back ends when all
        is on the disk."""
        ...


class WeightLink(Protocol):
    async def rest(self) -> None:
        """Nothing is drawn until the next ``publish``, if nothing is in flight: a sampler may give its memory away until then."""
        ...

    async def publish(self, version: int) -> None:
        """On return every new token is drawn by this version."""
        ...


class Judge(Protocol):
    async def judge(self, problem: Problem, text: str, *, finish: Finish) -> Judgement:
        """Never raises for a bad completion or a bad verifier: those are verdicts."""
        ...


class ProblemSource(Protocol):
    def draw(self, count: int) -> tuple[Visit, ...]:
        """The next ``count`` visits; fewer only at the end of a finite order."""
        ...

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


class Allocator(Protocol):
    def plan(self, visits: Sequence[Visit]) -> tuple[Allocation, ...]:
        """Sample counts for a whole batch, from the past only."""
        ...

    def draws(self, wanted: int, kept: int, refills: int) -> int:
        """Visits to draw now for a batch of ``wanted`` groups of which ``kept`` are there; 0 = the batch is done.

        ``refills`` is 0 when the batch is planned, then counts the draws after that.
        """
        ...

    def extend(self, group: Group) -> int:
        """More samples wanted for a finished group (0 = done)."""
        ...

    def keep(self, group: Group) -> str:
        """'' to keep, else the reason to discard."""
        ...

    def observe(self, groups: Sequence[Group]) -> None: ...

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


class GroupSource(Protocol):
    def plan(self, step: int) -> None:
        """Fix what the batch of ``step`` will hold; called in order of steps."""
        ...

    async def batch(self, step: int) -> Batch: ...

    def observe(self, batch: Batch) -> None:
        """The loop took this batch: allocators and curricula learn now, in batch order."""
        ...

    async def interrupt(self, keep: Collection[int]) -> State:
        """Stop what is in flight and return a state from which nothing is lost or asked twice; it stays the source's own
        until a batch is begun again. Of the steps in ``keep`` finished rows and begun ones are kept; batches of others are
        drawn anew, from the same seeds. Calls of ``batch`` do not return any more: cancel them."""
        ...

    def restore(self, state: State) -> None: ...


@runtime_checkable
class Ledger(Protocol):
    """Records a run. Never blocks and never raises: a tracking failure is an event, not the end of training."""

    def record_batch(self, batch: Batch) -> None: ...

    def record_advantages(
        self, step: int, advantages: Mapping[str, FloatArray], optimised: Mapping[str, float]
    ) -> None:
        """Of the samples of a batch that was recorded, by rollout id: [M], one for each token that learns; and the reward
        that they were made of."""
        ...

    def record_step(self, report: StepReport) -> None: ...

    def record_checkpoint(self, ref: CheckpointRef) -> None: ...

    def record_evaluation(self, result: Evaluation) -> None: ...

    def record_event(self, kind: str, payload: Mapping[str, Any]) -> None: ...

    async def flush(self) -> None:
        """Return when everything recorded so far is durable (or known to be lost, which is logged)."""
        ...


class Checkpoints(Protocol):
    async def begin(self, *, step: int, learners: Mapping[str, Learner], source: State) -> Future[CheckpointRef]:
        """Return once later steps cannot change what is written; the reference comes when all of it is durable."""
        ...


class Reporter(Protocol):
    """Tells a person how a run goes; called from the loop's thread, must return at once."""

    def start(self, *, run_id: str, stage: str, recipe: Recipe, first_step: int, last_step: int) -> None: ...

    def step(self, report: StepReport) -> None: ...

    def evaluation(self, result: Evaluation) -> None: ...

    def note(self, text: str) -> None:
        """One line a person should read (an alarm, a checkpoint, an interrupt)."""
        ...
