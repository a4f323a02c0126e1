"""Rows on their way through a vLLM engine in this process: continuous batching and paged attention are its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import torch
from torch import Tensor

from jurat.engine.decoding import Row, Rows, deliver
from jurat.engine.vllm import settings
from jurat.platform import faults
from jurat.platform.errors import ConfigError, RunFailed


class VllmRows(Rows):
    """``Rows`` of a vLLM engine (``settings.start``). Requests join the running batch at the next step.

    ``source`` gives the learner's weights by their Hugging Face names; ``publish`` hands them over in ``dtype``
    and has the cached keys and values of running requests computed anew. With ``sleeps`` the engine's weights and cache are
    discarded by ``rest`` and are there again once new weights are published.
    """

    def __init__(
        self, engine: Any, *, max_length: int, dtype: torch.dtype, source: Callable[[], Mapping[str, Tensor]],
        sleeps: bool = False, version: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(max_length=max_length, version=version)
        self.sleeps, self._asleep = sleeps, False
        self._engine, self._dtype, self._source = engine, dtype, source
        self._fits: int = engine.vllm_config.model_config.max_model_len
        self._live: dict[str, Row] = {}
        self._waiting: deque[Row] = deque()
        """For a place, where ``max_concurrent`` was set; else vLLM's own queue has them."""
        self._names = map(str, count())

    def rest(self) -> None:
        if self.sleeps and not self._running() and not self._asleep:
            self._engine.sleep(level=2)  # weights too: the next ones are new
            self._asleep = True

    def refresh(self) -> None:
        if self._asleep:
            self._engine.wake_up(tags=["weights"])
        weights = ((name, tensor.to(self._dtype)) for name, tensor in self._source().items())
        self._engine.collective_rpc("jurat_take", args=(weights,))  # one tensor at a time: no second copy of the model
        if self._asleep:
            self._engine.wake_up(tags=["kv_cache"])  # after the weights, which may need the room meanwhile
            self._asleep = False
        self._engine.reset_prefix_cache(reset_running_requests=True)

    def close(self) -> None:
        settings.stop(self._engine)
        self._engine = None  # its memory goes with the last reference

    def _turn(self) -> bool:
        gone = [name for name, row in self._live.items() if row.cancelled]
        if gone:
            self._engine.abort_request(gone)
            for name in gone:
                del self._live[name]
        self._waiting = deque(row for row in self._waiting if not row.cancelled)
        while self._waiting and (not self.max_concurrent or len(self._live) < self.max_concurrent):
            self._add(self._waiting[0])
            self._waiting.popleft()  # only now: had the engine raised, it would still be waiting for an answer
        if self._live:
            faults.point("sampler.mid_decode")
            for output in self._engine.step():
                self._take(output)
        return bool(self._live or self._waiting or self._asked())

    def _take(self, output: Any) -> None:
        """Append what a step drew for one request; deliver it if it ended."""
        name, (part,) = output.request_id, output.outputs
        row = self._live[name]
        if row.phase != "decode":
            row.enter("decode")
        for token, found in zip(part.token_ids, part.logprobs, strict=True):
            row.add(token, found[token].logprob, self.version)
        finish = row.ended(self.max_length)
        if output.finished != (finish is not None):
            raise RuntimeError(
                f"vllm says {part.finish_reason!r} after {len(row.tokens)} tokens, the request says {finish!r}"
            )
        if finish is not None:
            del self._live[name]
            deliver(row, row.completion(finish))

    def _enter(self, row: Row) -> None:
        if self._asleep:  # it has no weights: a token drawn now would be no version's
            deliver(row, RunFailed(
                "vllm sleeps until new weights are published", where=f"rollout {row.request.rollout_id}",
                fix="set engine.offload: false, and report this",
            ))  # fmt: skip
            return
        request, sampling = row.request, row.request.sampling
        length = min(len(request.prompt) + sampling.max_new_tokens, self.max_length)
        if length > self._fits:
            deliver(row, ConfigError(
                f"a sequence may grow to {length} tokens, vllm's cache holds {self._fits}",
                where=f"rollout {request.rollout_id}", fix="raise engine.vllm_memory",
            ))  # fmt: skip
            return
        self._waiting.append(row)

    def _add(self, row: Row) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        request, sampling = row.request, row.request.sampling
        length = min(len(request.prompt) + sampling.max_new_tokens, self.max_length)
        name = next(self._names)
        prompt = [*request.prompt.tolist(), *row.tokens]
        params = SamplingParams(
            max_tokens=length - len(prompt),
            stop_token_ids=list(sampling.stop_token_ids),
            ignore_eos=True,  # the recipe's stops are all there are
            logprobs=0,  # of the token drawn
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            extra_args={"seed": request.seed, "start": len(row.tokens), "temperature": sampling.temperature},
        )
        self._engine.add_request(name, {"prompt_token_ids": prompt}, params)
        row.enter("prefill")  # and what it waits inside vLLM
        self._live[name] = row

    def _running(self) -> list[Row]:
        return [*self._live.values(), *self._waiting]

    def _clear(self) -> None:
        names = list(self._live)
        self._live.clear()
        self._waiting.clear()
        self._engine.abort_request(names)
