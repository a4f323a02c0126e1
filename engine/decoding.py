"""Batched decoding, whatever the model: who runs, who waits, when a completion ends. Runs in one thread.

A ``Decoder`` is a model with a cache for the rows in flight. Rows finish at a stop token, at their length limit or at
the end of the context; they are dropped at once and waiting ones take their place: at most ``max_concurrent`` run.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from jurat.engine.sampling import Draws, uniforms
from jurat.platform import faults
from jurat.platform.errors import ConfigError
from jurat.platform.types import Completion, Finish, IntArray, Request, Span


class Decoder(Protocol):
    """A model and the cache of its rows in flight, in order."""

    max_length: int
    """Longest sequence, prompt and completion."""
    refills: bool
    """Whether rows may be admitted while others run."""
    device: torch.device
    kernels: str
    """Who does the small operations, ``native`` or ``torch``: for the record."""

    def admit(self, prompts: Sequence[IntArray], draws: Draws) -> tuple[Tensor, Tensor]:
        """Add rows at the end; (first token [R], its log-prob [R]) of each. Equal neighbours share one prefill."""
        ...

    def step(self, tokens: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Feed each row its last token [B]; (next token [B], its log-prob [B])."""
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these, in order."""
        ...

    def refresh(self) -> None:
        """The weights changed."""
        ...


@dataclass(slots=True, eq=False)
class Row:
    """One completion in the making."""

    request: Request
    deliver: Callable[[Completion | Exception], None]
    """Called once, from the decoding thread, unless the row was cancelled."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    cancelled: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    """By phase: queued, prefill, decode."""
    phase: str = "queued"
    since: float = field(default_factory=time.perf_counter)
    """When the phase began."""

    def __post_init__(self) -> None:
        prefix = self.request.prefix
        if prefix is not None:
            self.tokens = prefix.token_ids.tolist()
            self.logprobs = prefix.logprobs.tolist()
            self.spans = list(prefix.spans)
            self.seconds = dict(prefix.seconds)

    def enter(self, phase: str) -> None:
        """The time since the last change is that of the phase that ends."""
        now = time.perf_counter()
        self.seconds[self.phase] = self.seconds.get(self.phase, 0.0) + now - self.since
        self.phase, self.since = phase, now

    def add(self, token: int, logprob: float, version: int) -> None:
        end = len(self.tokens)
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if self.spans and self.spans[-1].version == version:
            end = self.spans.pop().start
        self.spans.append(Span(start=end, end=len(self.tokens), version=version))

    def ended(self, max_length: int) -> Finish | None:
        sampling = self.request.sampling
        if self.tokens and self.tokens[-1] in sampling.stop_token_ids:
            return "stop"
        full = len(self.request.prompt) + len(self.tokens) >= max_length
        return "length" if full or len(self.tokens) >= sampling.max_new_tokens else None

    def completion(self, finish: Finish) -> Completion:
        self.enter(self.phase)
        return Completion(
            token_ids=np.asarray(self.tokens, dtype=np.int64),
            logprobs=np.asarray(self.logprobs, dtype=np.float32),
            finish=finish,
            spans=tuple(self.spans),
            seconds=dict(self.seconds),
        )


class Rows:
    """Rows on their way through some machine. ``submit``, ``call`` and ``interrupt`` may come from any thread; ``run``
    from one. A machine says how a turn goes (``_turn``), what runs (``_running``) and how all of it ends (``_clear``)."""

    sleeps = False
    """Whether ``rest`` does anything."""

    def __init__(self, *, max_length: int, version: int) -> None:
        self.max_length, self.version = max_length, version
        self.max_concurrent = 0
        """Rows at once at most, where this is ours to say."""
        self._inbox: deque[Sequence[Row]] = deque()
        self._calls: deque[tuple[Callable[[], None], Future[None]]] = deque()
        self._interrupted = False
        self._aborted: list[Completion] = []
        self.turns = 0
        """Rounds so far."""

    def submit(self, rows: Sequence[Row]) -> None:
        """Rows asked for together; those with equal prompts are brought together, else in order."""
        self._inbox.append(rows)

    def call(self, action: Callable[[], None]) -> Future[None]:
        """Have ``run`` do ``action`` between two steps."""
        done: Future[None] = Future()
        self._calls.append((action, done))
        return done

    def publish(self, version: int) -> None:
        """Every token drawn from now on has this version. To be done between steps."""
        self.refresh()
        self.version = version

    def interrupt(self) -> None:
        """Make ``run`` deliver every row as it is."""
        self._interrupted = True

    def aborted(self) -> tuple[Completion, ...]:
        """What the last interrupt delivered; running rows are taken again from now on."""
        taken, self._aborted, self._interrupted = tuple(self._aborted), [], False
        return taken

    @torch.no_grad()
    def run(self) -> None:
        """Decode until nothing runs or waits. An exception goes to every row that was on its way."""
        try:
            while self._messages() and self._turn():
                self.turns += 1
        except Exception as error:
            self._collect()
            rows = self._running()
            try:
                self._clear()
            finally:
                for row in rows:
                    deliver(row, error)

    def rest(self) -> None:
        """Between steps: give memory away until the next ``publish``, if nothing runs."""

    def close(self) -> None:
        """Let go of what the machine holds; nothing is asked of it any more."""

    def refresh(self) -> None:
        """The weights changed."""
        raise NotImplementedError

    def _turn(self) -> bool:
        """Drops, admissions, one step. False when there is nothing left to do."""
        raise NotImplementedError

    def _enter(self, row: Row) -> None:
        """Take a row in."""
        raise NotImplementedError

    def _running(self) -> list[Row]:
        """Rows that were taken in and have not ended, in order."""
        raise NotImplementedError

    def _clear(self) -> None:
        """Forget them."""
        raise NotImplementedError

    def _messages(self) -> bool:
        """Calls, new rows, and an interrupt: False after one."""
        while self._calls:
            action, done = self._calls.popleft()
            try:
                done.set_result(action())
            except Exception as error:
                done.set_exception(error)
        self._collect()
        if self._interrupted:
            self._abort()
        return not self._interrupted

    def _asked(self) -> bool:
        return bool(self._inbox or self._calls)

    def _collect(self) -> None:
        while self._inbox:
            groups: dict[bytes, list[Row]] = {}
            for row in self._inbox.popleft():
                groups.setdefault(row.request.prompt.tobytes(), []).append(row)
            for group in groups.values():
                for row in group:
                    if self._acceptable(row):
                        try:
                            self._enter(row)
                        except Exception as error:  # it is in no list yet: nobody else would answer it
                            deliver(row, error)

    def _acceptable(self, row: Row) -> bool:
        """False if the row needs no decoding: it is answered here."""
        refusal = refused(row.request, self.max_length)
        if refusal is not None:
            deliver(row, refusal)
            return False
        finish = row.ended(self.max_length)
        if finish is not None:  # an interrupted attempt that was in fact complete
            deliver(row, row.completion(finish))
        return finish is None

    def _abort(self) -> None:
        for row in self._running():
            if not row.cancelled:
                self._aborted.append(row.completion("aborted"))
                deliver(row, self._aborted[-1])
        self._clear()


class Decoding(Rows):
    """The rows of one decoder."""

    def __init__(self, decoder: Decoder, *, max_concurrent: int, version: int = 0) -> None:
        super().__init__(max_length=decoder.max_length, version=version)
        self.decoder, self.max_concurrent = decoder, max_concurrent
        self._waiting: deque[Row] = deque()
        self._live: list[Row] = []

    def refresh(self) -> None:
        """Keys and values in the cache are of the weights before: rows in flight are prefilled again, before others."""
        self.decoder.refresh()
        if self._live:
            for row in self._live:
                row.enter("queued")
            self._waiting.extendleft(reversed(self._live))
            self._live = []
            self.decoder.keep(())

    def _turn(self) -> bool:
        self._drop({row for row in self._live if row.cancelled})
        self._admit()
        if self._live:
            faults.point("sampler.mid_decode")
            last = torch.tensor([row.tokens[-1] for row in self._live], device=self.decoder.device)
            self._add(self._live, *self.decoder.step(last, self._draws(self._live)))
        return bool(self._live or self._waiting or self._asked())

    def _enter(self, row: Row) -> None:
        self._waiting.append(row)

    def _running(self) -> list[Row]:
        return [*self._live, *self._waiting]

    def _clear(self) -> None:
        self._live.clear()
        self._waiting.clear()
        self.decoder.keep(())

    def _drop(self, gone: set[Row]) -> None:
        if gone:
            kept = [place for place, row in enumerate(self._live) if row not in gone]
            self.decoder.keep(kept)
            self._live = [self._live[place] for place in kept]

    def _admit(self) -> None:
        """Let whole groups in while they fit; a group larger than the batch goes in parts."""
        if self._live and not self.decoder.refills:
            return
        free, entering = self.max_concurrent - len(self._live), list[Row]()
        while len(entering) < min(free, len(self._waiting)):
            group = self._group_after(len(entering))
            if len(entering) + len(group) > free and (self._live or entering):
                break
            entering += group[: free - len(entering)]
        taken = [row for row in entering if not row.cancelled]
        if taken:
            for row in taken:
                row.enter("prefill")
            found = self.decoder.admit([_so_far(row) for row in taken], self._draws(taken))
        for _ in entering:  # only now: had the model raised, they would still be waiting for an answer
            self._waiting.popleft()
        if taken:
            for row in taken:
                row.enter("decode")
            self._live += taken
            self._add(taken, *found)

    def _group_after(self, count: int) -> list[Row]:
        """The waiting rows after the first ``count`` that have one prompt."""
        rows = islice(self._waiting, count, None)
        group = [next(rows)]
        prompt = group[0].request.prompt
        group += takewhile(lambda row: np.array_equal(row.request.prompt, prompt), rows)
        return group

    def _draws(self, rows: Sequence[Row]) -> Draws:
        random = uniforms([row.request.seed for row in rows], [len(row.tokens) for row in rows])
        return Draws.of(random, [row.request.sampling.temperature for row in rows], self.decoder.device)

    def _add(self, rows: Sequence[Row], tokens: Tensor, logprobs: Tensor) -> None:
        """Append a token to each row; deliver and drop those that end with it."""
        ended: dict[Row, Finish] = {}
        for row, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
            row.add(token, logprob, self.version)
            finish = row.ended(self.decoder.max_length)
            if finish is not None:
                ended[row] = finish
        self._drop(set(ended))
        for row, finish in ended.items():
            deliver(row, row.completion(finish))


class PullingDecoder:
    """A decoder whose weights come from elsewhere: each ``refresh`` pulls them first."""

    def __init__(self, inner: Decoder, pull: Callable[[], object]) -> None:
        self._inner, self._pull = inner, pull
        self.max_length, self.refills, self.device, self.kernels = (
            inner.max_length, inner.refills, inner.device, inner.kernels,
        )  # fmt: skip
        self.refresh()

    def admit(self, prompts: Sequence[IntArray], draws: Draws) -> tuple[Tensor, Tensor]:
        return self._inner.admit(prompts, draws)

    def step(self, tokens: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        return self._inner.step(tokens, draws)

    def keep(self, rows: Sequence[int]) -> None:
        self._inner.keep(rows)

    def refresh(self) -> None:
        self._pull()
        self._inner.refresh()


def _so_far(row: Row) -> IntArray:
    return np.concatenate([row.request.prompt, np.asarray(row.tokens, dtype=np.int64)])


def refused(request: Request, max_length: int) -> ConfigError | None:
    """Why a prompt cannot be sampled from, if it cannot."""
    if 0 < len(request.prompt) < max_length:
        return None
    return ConfigError(
        f"cannot sample from a prompt of {len(request.prompt)} tokens: the model's context is {max_length} tokens",
        where=f"rollout {request.rollout_id}", fix="lower data.max_prompt_tokens",
    )  # fmt: skip


def deliver(row: Row, result: Completion | Exception) -> None:
    """Answer a row's caller, if it still waits."""
    if not row.cancelled:
        row.deliver(result)
