"""Sampling by a vLLM server elsewhere: the ports ``Sampler`` and ``WeightLink`` over HTTP.

A request is one stream. The server says with its last part which weights drew which tokens; weights carry names of this
run's (``session.version``), so that those of a server that began anew, or of another run, are never taken for ours. What
breaks off is asked again from its last whole state: a draw depends on (seed, position) alone.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import math
import os
import secrets
import tempfile
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from jurat.engine import compute
from jurat.engine.decoding import Row, refused
from jurat.engine.tensorfile import map_tensors
from jurat.engine.vllm.extension import in_memory
from jurat.engine.vllm.server import Held, Hello, Lost, Server
from jurat.platform import faults
from jurat.platform.errors import ConfigError, JuratError, ModelError, RunFailed
from jurat.platform.types import Completion, Finish, Request

T = TypeVar("T")
log = logging.getLogger("jurat")

STREAM_TOKENS = 16
"""Tokens of a request in one message."""
BUCKET_BYTES = 1 << 24
"""Weights in one message to a server on another machine."""
RETRIES = 3
"""Times in a row that a server may fail, having answered, before the run does."""
PAUSES = (0.2, 0.5, 1.0, 2.0)
"""Seconds between tries; the last one again and again."""
ABORT_SECONDS = 5.0
"""For answers to what was interrupted; what is not there by then is drawn again later."""
PREFIX = "jurat-"
SIZES = frozenset({"model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"})
"""Keys that a server must say of its model, where the recipe's has them."""
NOT_THE_MODEL = frozenset(
    {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache", "initializer_range",
     "bos_token_id", "eos_token_id", "pad_token_id", "attention_dropout", "max_position_embeddings"}
)  # fmt: skip
"""Keys of a model's configuration that do not say what it computes; its longest sequence is the server's own to choose."""


class Weights:
    """A file of all weights in the sampler's dtype, in memory where there is room, for a server to read.

    ``fill`` copies the learner's weights into tensors of these names and shapes. The file keeps what was last published: a
    server that began anew gets it again, whatever the learner has become. It has no name in any folder, so that nothing is
    left of it, however this process ends. Raises ConfigError where there is no room.
    """

    def __init__(
        self, shapes: Mapping[str, Sequence[int]], dtype: torch.dtype, fill: Callable[[Mapping[str, Tensor]], object]
    ) -> None:
        self._fill, self.mark = fill, secrets.token_hex(16)
        try:
            self._tensors = self._lay_out(in_memory(), shapes, dtype)
        except OSError:
            try:
                self._tensors = self._lay_out(None, shapes, dtype)
            except OSError as error:
                size = sum(math.prod(shape) for shape in shapes.values()) * dtype.itemsize
                raise ConfigError(
                    f"no room for {size / 2**30:.2f} GiB of weights on their way to the vLLM server: {error}",
                    where="engine.vllm_url", fix="make room in /dev/shm, or in the folder that TMPDIR names",
                ) from error  # fmt: skip

    def _lay_out(
        self, folder: str | None, shapes: Mapping[str, Sequence[int]], dtype: torch.dtype
    ) -> Mapping[str, Tensor]:
        with tempfile.NamedTemporaryFile(dir=folder, prefix="jurat-weights-") as named:
            tensors = map_tensors(Path(named.name), shapes, dtype=dtype, mark=self.mark)
            self._file = open(named.name, "rb")  # noqa: SIM115
        self.path = f"/proc/{os.getpid()}/fd/{self._file.fileno()}"
        """Where a process of this user on this machine finds it."""
        self.bytes = os.fstat(self._file.fileno()).st_size
        return tensors

    def take(self) -> None:
        """The learner's weights as they are now."""
        with torch.no_grad():
            self._fill(self._tensors)

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._file.fileno(), size, offset)

    def close(self) -> None:
        self._tensors = {}
        self._file.close()


class Places:
    """A semaphore, first come first served, whose size may change."""

    def __init__(self, size: int) -> None:
        self._size, self._taken = size, 0
        self._queue: deque[asyncio.Future[None]] = deque()

    def resize(self, size: int) -> None:
        self._size = size
        self._let_in()

    def _let_in(self) -> None:
        while self._queue and self._taken < self._size:
            turn = self._queue.popleft()
            if not turn.done():
                self._taken += 1
                turn.set_result(None)

    async def __aenter__(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # let in, and called away at the same moment
                await self.__aexit__()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._taken -= 1
        self._let_in()


class ServedSampler:
    """``max_concurrent`` requests are with the server at a time, in the order asked. ``seconds`` without any progress, or
    without a server, end the run (RunFailed). HTTP is done in a thread with an event loop of its own.

    ``model`` is the configuration that the server's must equal. Raises ConfigError or ModelError for a server that cannot
    sample for this run.
    """

    def __init__(
        self, url: str, weights: Weights, *, model: Mapping[str, Any], dtype: str, max_length: int, max_concurrent: int,
        seconds: float,
    ) -> None:  # fmt: skip
        self.url, self.max_length, self.turns = url, max_length, 0
        self._weights, self._model, self._dtype, self._seconds = weights, model, dtype, seconds
        self._vocab: int = model["vocab_size"]
        self._session = PREFIX + secrets.token_hex(8)
        self._held = f"{self._session}.0"
        """The name of the weights last published."""
        self._ours = {self._held: 0}
        self._names = count()
        self._asked: dict[Row, asyncio.Task[Completion]] = {}
        self._streams: dict[str, asyncio.Timeout] = {}
        self._moved = time.monotonic()
        self._stopping = False
        self._meetings = self._failures = 0
        self._failed: JuratError | None = None
        self.lost = False
        """Whether the server did not come back in time."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm-client", daemon=True)
        self._thread.start()
        try:
            compute.call(weights.take)
            self.hello = self._there(self._open(max_concurrent)).result()
        except BaseException:
            self.close()
            raise

    # ---- the ports ----

    async def sample(self, request: Request) -> Completion:
        return await asyncio.wrap_future(self._there(self._sample(request)))

    async def interrupt(self) -> tuple[Completion, ...]:
        return await compute.ended(self._there(self._interrupt()))

    async def publish(self, version: int, load: Callable[[], None] = lambda: None) -> None:
        """``load`` puts the learner's weights in their place first. Requests in flight go on with the new weights."""
        await compute.ended(self._there(self._publish(version, load)))

    def limit(self, rows: int) -> None:
        """From now on so many requests are with the server at a time at most; those that are there go on."""
        self._loop.call_soon_threadsafe(self._places.resize, rows)

    async def rest(self) -> None:
        """Nothing: a server's memory is its own."""

    def close(self) -> None:
        if not self._loop.is_closed():
            with suppress(Exception):
                self._there(self._end()).result(timeout=self._seconds)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        self._weights.close()

    def _there(self, work: Coroutine[Any, Any, T]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    # ---- in the client's thread: one request ----

    async def _sample(self, request: Request) -> Completion:
        refusal = refused(request, self.max_length) or self._too_long(request)
        if refusal is not None:
            raise refusal
        row = Row(request, _nobody)
        task = asyncio.current_task()
        assert task is not None
        self._asked[row] = task
        try:
            finish = row.ended(self.max_length)  # an interrupted attempt that was in fact complete
            async with self._places:
                while finish is None:
                    finish = await self._try(row)
        except asyncio.CancelledError:
            if not self._stopping:
                raise
            finish = "aborted"
        finally:
            del self._asked[row]
        self._failures = 0
        return row.completion(finish)

    async def _try(self, row: Row) -> Finish | None:
        """One request to the server; None if it must be made again."""
        if self._failed:
            raise self._failed
        if self._stopping:
            return "aborted"
        met = self._meetings
        row.enter("prefill")  # and what it waits inside vLLM
        try:
            return await self._draw(row)
        except Lost as error:
            row.enter("queued")
            await self._meet_again(met, error)
            return None

    async def _draw(self, row: Row) -> Finish:
        request, sampling = row.request, row.request.sampling
        start, limit = len(row.tokens), min(len(request.prompt) + sampling.max_new_tokens, self.max_length)
        name = f"{self._session}-{next(self._names)}"
        room = limit - len(request.prompt) - start
        body = {
            "request_id": name,
            "token_ids": [*request.prompt.tolist(), *row.tokens],
            "sampling_params": {
                "max_tokens": room,
                "stop_token_ids": list(sampling.stop_token_ids),
                "ignore_eos": True,  # the recipe's stops are all there are
                "logprobs": 0,  # of the token drawn
                "detokenize": False,
                "stream_interval": STREAM_TOKENS,
                "extra_args": {"seed": request.seed, "start": start, "temperature": sampling.temperature},
            },
            "stream": True,
        }
        drawn = Row(request, _nobody)  # taken once it is whole
        tokens: list[tuple[int, float]] = []
        said: str | None = None
        held: Sequence[Held] = ()
        async with self._watched(name), aclosing(self._server.generate(body)) as parts:
            async for part in parts:
                faults.point("sampler.mid_decode")
                if row.phase == "prefill":
                    row.enter("decode")
                if part.token_ids or part.finish_reason:  # a part that says nothing is no progress
                    self._moved = time.monotonic()
                    self.turns += 1
                tokens += [(each.token_id, each.logprob) for each in part.logprobs.content]
                if len(tokens) > room or any(t >= self._vocab for t in part.token_ids):
                    raise self._server.odd(f"tokens that were not asked for, rollout {request.rollout_id}", tokens[-5:])
                said, held = part.finish_reason, part.weight_versions or ()
        drawn.tokens, drawn.logprobs, drawn.spans = list(row.tokens), list(row.logprobs), list(row.spans)
        for (token, logprob), version in zip(tokens, self._versions(held, len(tokens)), strict=True):
            if drawn.ended(self.max_length):
                raise self._server.odd(f"tokens after the end, rollout {request.rollout_id}", tokens[-5:])
            drawn.add(token, logprob, version)
        finish = drawn.ended(self.max_length)
        if said != finish and not (said == "abort" and finish is None):
            raise self._server.odd(
                f"{said!r} after {len(drawn.tokens)} tokens where the request says {finish!r}, rollout {request.rollout_id}", "",
            )  # fmt: skip
        row.tokens, row.logprobs, row.spans = drawn.tokens, drawn.logprobs, drawn.spans
        if finish is None and not self._stopping:
            raise Lost("the server gave a request up", answered=True)
        return finish or "aborted"

    def _versions(self, held: Sequence[Held], size: int) -> list[int]:
        """The version of each token. Raises Lost if a token is not by this run's weights."""
        found: list[int] = []
        for each in held:
            if each.start != len(found) or each.end < each.start or each.end > size:
                raise self._server.odd(f"spans of weights that do not join up over {size} tokens", held)
            if each.end > each.start and each.version not in self._ours:
                raise Lost(
                    f"tokens were drawn by weights {each.version[:80]!r}, not published by this run", answered=True
                )
            found += [self._ours.get(each.version, 0)] * (each.end - each.start)
        if len(found) != size:
            raise self._server.odd(f"spans of weights for {len(found)} of {size} tokens", held)
        return found

    def _too_long(self, request: Request) -> ConfigError | None:
        length = min(len(request.prompt) + request.sampling.max_new_tokens, self.max_length)
        if length <= self.hello.max_length:
            return None
        return ConfigError(
            f"a sequence may grow to {length} tokens, the vLLM server takes {self.hello.max_length}",
            where=f"rollout {request.rollout_id}", fix="start it with a larger --kv-cache-memory-bytes or --max-model-len",
        )  # fmt: skip

    @asynccontextmanager
    async def _watched(self, name: str) -> AsyncIterator[None]:
        """Raises Lost once no stream at all has moved for too long."""
        if not self._streams:
            self._moved = time.monotonic()
        try:
            async with asyncio.timeout(None) as limit:
                self._streams[name] = limit
                yield
        except TimeoutError:
            raise Lost(f"no token for {self._seconds:g} s") from None
        finally:
            self._streams.pop(name, None)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._seconds / 10)
            if self._streams and time.monotonic() > self._moved + self._seconds:
                for limit in self._streams.values():
                    limit.reschedule(self._loop.time())
                self._streams = {}

    async def _interrupt(self) -> tuple[Completion, ...]:
        """End what runs: by the server, which says what it had, else by letting go of it."""
        self._stopping = True
        try:
            tasks = tuple(self._asked.values())
            end = time.monotonic() + ABORT_SECONDS
            pending = set(tasks)
            while pending and time.monotonic() < end:
                names = [f"generate-tokens-{name}" for name in self._streams]
                if names:  # none would be all
                    with suppress(Lost, TimeoutError):
                        async with asyncio.timeout(ABORT_SECONDS):
                            await self._server.post("/abort_requests", {"request_ids": names})
                # One that had not arrived there yet is told again.
                _, pending = await asyncio.wait(pending, timeout=0.5)
            for task in pending:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            self._stopping = False
        return tuple(each for each in done if isinstance(each, Completion) and each.finish == "aborted")

    # ---- in the client's thread: the server and its weights ----

    async def _open(self, max_concurrent: int) -> Hello:
        self._server = Server(self.url, seconds=self._seconds, limit=max_concurrent)
        self._places = Places(max_concurrent)
        self._lock = asyncio.Lock()
        self._watcher = asyncio.create_task(self._watch())
        try:
            async with asyncio.timeout(self._seconds):
                self._check(await self._server.hello())
        except (Lost, TimeoutError) as error:
            raise ConfigError(f"no vLLM server answers: {str(error) or f'within {self._seconds:g} s'}",
                              where=f"engine.vllm_url: {self.url}",
                              fix="start one by python -m jurat.engine.vllm.serve MODEL (docs/vllm.md)") from error  # fmt: skip
        await self._hand_over()
        return self.hello

    async def _end(self) -> None:
        if self._asked:
            await self._interrupt()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if hasattr(self, "_server"):
            await self._server.close()

    async def hold(self) -> None:
        """Once nobody gives the server weights, nobody begins to until ``renew`` or ``let_go``."""
        await compute.ended(self._there(self._lock.acquire()))

    def let_go(self) -> None:
        self._loop.call_soon_threadsafe(self._lock.release)

    async def renew(self, version: int) -> None:
        """After ``hold``: the weights as they lie in their place now are ``version``, and the server is given them."""
        await compute.ended(self._there(self._renew(version)))

    async def _renew(self, version: int) -> None:
        try:
            await self._give(version)
        finally:
            self._lock.release()

    async def _publish(self, version: int, load: Callable[[], None]) -> None:
        async with self._lock:
            if self._failed:
                raise self._failed
            await compute.run(load)
            await compute.run(self._weights.take)
            await self._give(version)

    async def _give(self, version: int) -> None:
        if self._failed:
            raise self._failed
        self._held = f"{self._session}.{version}"
        self._ours[self._held] = version
        await self._hand_over()

    async def _meet_again(self, met: int, error: Lost) -> None:
        """After a loss: see that the server is there and holds what was last published. For all who lost it, once."""
        async with self._lock:
            if self._failed is None and met == self._meetings:
                log.warning("the vLLM server at %s is lost (%s); trying for %g s", self.url, error, self._seconds)
                self._failures += 1
                if self._failures > RETRIES:
                    self._fail(error)
                await self._hand_over(unless_held=True)
                self._meetings += 1
        if self._failed:
            raise self._failed

    async def _hand_over(self, *, unless_held: bool = False) -> None:
        """Have the server hold this run's weights, trying for as long as a server may take to come back."""
        end, failures = time.monotonic() + self._seconds, 0
        for attempt in count():
            try:
                async with asyncio.timeout(self._seconds):
                    return await self._load(unless_held=unless_held)
            except (Lost, TimeoutError) as error:
                lost = error if isinstance(error, Lost) else Lost(f"no answer for {self._seconds:g} s")
                failures += lost.answered
                if failures > RETRIES or time.monotonic() > end:
                    self._fail(lost)
            except JuratError as error:
                self._failed = error
                raise
            await asyncio.sleep(PAUSES[min(attempt, len(PAUSES) - 1)])

    def _fail(self, error: Lost) -> None:
        self.lost = True
        self._failed = RunFailed(
            f"the vLLM server is lost: {error}", where=f"engine.vllm_url: {self.url}",
            fix="start it again, then jurat train --resume RUN",
        )  # fmt: skip
        raise self._failed from error

    async def _load(self, *, unless_held: bool) -> None:
        """Between two steps of the server: new weights, no keys and values of old ones, a new name."""
        server, name = self._server, self._held
        self._check(await server.hello())
        held = await server.held()
        if held.startswith(PREFIX) and not held.startswith(self._session) and self._meetings + self._failures:
            raise RunFailed(f"another run has put its weights into this server: {held!r}", where=f"engine.vllm_url: {self.url}",
                            fix="give each run a server of its own, then jurat train --resume RUN")  # fmt: skip
        if not (unless_held and held == name):
            await server.post("/pause", mode="keep", clear_cache="false")
            await self._carry()
            await server.post("/reset_prefix_cache", reset_running_requests="true")
            await server.post("/update_weight_version", {"new_version": name})
        await server.post("/resume")
        self._moved = time.monotonic()

    async def _carry(self) -> None:
        """By the file, where the server sees it; else as a stream of its bytes, a bucket at a time."""
        weights, server = self._weights, self._server
        found = await server.rpc("jurat_sees", weights.path, weights.mark)
        if found and all(each == {"sees": True} for each in found):
            await server.rpc("jurat_load", weights.path)
            return
        for offset in [*range(0, weights.bytes, BUCKET_BYTES), weights.bytes]:
            data = base64.b64encode(weights.read(offset, BUCKET_BYTES)).decode()
            await server.rpc("jurat_receive", offset, data)

    def _check(self, hello: Hello) -> None:
        """Raises ConfigError or ModelError if tokens drawn there would not be those that this run asks for."""
        self.hello = hello
        where = f"engine.vllm_url: {self.url}"
        if hello.dtype != self._dtype:
            raise ConfigError(f"the vLLM server computes in {hello.dtype}, engine.dtype is {self._dtype}", where=where,
                              fix=f"start it with --dtype {self._dtype}, or set engine.dtype: {hello.dtype}")  # fmt: skip
        for wrong, what in (
            (hello.async_scheduling, "it schedules ahead of the draws (--no-async-scheduling)"),
            (not hello.runner_v1, "its model runner draws by itself (VLLM_USE_V2_MODEL_RUNNER=0)"),
        ):
            if wrong:
                raise ConfigError(f"the vLLM server was not started for jurat: {what}", where=where,
                                  fix="start it by python -m jurat.engine.vllm.serve MODEL (docs/vllm.md)")  # fmt: skip
        unsaid = sorted((SIZES & self._model.keys()) - hello.model.keys())
        if unsaid:
            expected = ", ".join(f"{key} {str(self._model[key])[:100]}" for key in unsaid)
            raise ModelError(f"the vLLM server has a model of which it does not say {', '.join(unsaid)}; here it is {expected}",
                             where=where, fix="start it by python -m jurat.engine.vllm.serve MODEL (docs/vllm.md)")  # fmt: skip
        for key in sorted((self._model.keys() & hello.model.keys()) - NOT_THE_MODEL):
            if self._model[key] != hello.model[key]:
                raise ModelError(
                    f"the vLLM server has another model: {key} is {str(hello.model[key])[:100]}, here it is "
                    f"{str(self._model[key])[:100]}", where=where, fix="start it with the model of the recipe",
                )  # fmt: skip


def _nobody(result: Completion | Exception) -> None:
    """Rows here are answered by the task that waits for them."""
