"""A vLLM server as its client sees it: what is asked over HTTP, and how an answer must look to be believed.

Nothing that arrives is trusted: its length, its shape, its numbers are checked here. ``Lost`` may be asked again;
JuratErrors are final.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from typing import Any, Literal

import httpx2
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, TypeAdapter, ValidationError, model_validator

from jurat.platform.errors import ConfigError, RunFailed

MODULE = "jurat.engine.vllm.serve"
"""Starts a server as it has to be."""
KEY = "VLLM_API_KEY"
"""The environment variable in which a server started with --api-key and its client have the key."""
GENERATE = "/inference/v1/generate"
LARGEST = 1 << 20
"""Bytes of an answer, or of one line of a stream."""
CONNECT_SECONDS = 10.0
DRAIN_SECONDS = 1.0
"""For the end of a stream after its last part, so that the connection can be used again."""
SAID = 300
"""Characters of a server's words in an error."""
OBJECT = TypeAdapter(dict[str, Any])


class Lost(Exception):
    """No answer, or none to the end. ``answered``: the server did speak, and said that it failed."""

    def __init__(self, what: str, *, answered: bool = False) -> None:
        super().__init__(what)
        self.answered = answered


class _Wire(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class LogProb(_Wire):
    token_id: NonNegativeInt
    logprob: float = Field(gt=-9999.0, le=1e-4, allow_inf_nan=False)
    """-9999 is what vLLM sends for not-a-number."""


class LogProbs(_Wire):
    content: list[LogProb]


class Held(_Wire):
    """Tokens start to end of an answer were drawn by these weights."""

    version: str = Field(max_length=200)
    start: NonNegativeInt
    end: NonNegativeInt


class Part(_Wire):
    """Tokens of one answer; the last part has ``finish_reason`` and the spans of the whole answer."""

    index: Literal[0]
    token_ids: list[NonNegativeInt]
    logprobs: LogProbs
    finish_reason: Literal["stop", "length", "abort"] | None = None
    weight_versions: list[Held] | None = None

    @model_validator(mode="after")
    def _paired(self) -> Part:
        if self.token_ids != [each.token_id for each in self.logprobs.content]:
            raise ValueError(f"{len(self.token_ids)} tokens and the log-probs of others")
        if self.finish_reason and self.weight_versions is None:
            raise ValueError("the last part does not say which weights drew the tokens")
        return self


class _Chunk(_Wire):
    choices: list[Part] = Field(max_length=1)


class Hello(_Wire):
    """``Extension.jurat_hello`` of one worker."""

    vllm: str = Field(max_length=100)
    model: dict[str, Any]
    dtype: str = Field(max_length=100)
    max_length: int = Field(ge=1)
    workers: int
    async_scheduling: bool
    runner_v1: bool


class Server:
    """``seconds``: how long one answer may take, and a stream may be silent at its beginning (a longer silence is for the
    caller to end: a request may wait for others). To be used and closed in one event loop."""

    def __init__(self, url: str, *, seconds: float, limit: int) -> None:
        self.url = url.rstrip("/")
        headers = {"Accept-Encoding": "identity"}
        if os.environ.get(KEY):
            headers["Authorization"] = f"Bearer {os.environ[KEY]}"
        self._client = httpx2.AsyncClient(
            base_url=self.url, headers=headers, trust_env=False, limits=httpx2.Limits(max_connections=limit + 8),
            timeout=httpx2.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS), pool=None),
            verify=self.url.startswith("https:"),  # else nothing is verified, and reading certificates takes its time
        )  # fmt: skip

    async def close(self) -> None:
        await self._client.aclose()

    async def hello(self) -> Hello:
        """Raises ConfigError where there is no server, or one that was not started for jurat."""
        try:
            found = await self.rpc("jurat_hello")
            status = (await self._call("POST", GENERATE, {}, raises=False))[0]
        except (RunFailed, Lost) as error:
            if isinstance(error, Lost) and not error.answered:
                raise
            raise self._unfit(str(error).splitlines()[0]) from error
        if status not in (400, 422):  # what an empty request deserves where requests are taken at all
            raise self._unfit(f"{GENERATE} answers HTTP {status}")
        try:
            told = [Hello.model_validate(each) for each in found]
        except ValidationError as error:
            raise self._unfit(f"it says of itself {_first(error)}") from error
        if not told or any(each != told[0] for each in told):
            raise self._unfit(f"its {len(told)} workers are not alike")
        return told[0]

    async def rpc(self, method: str, *args: Any) -> list[Any]:
        """What each worker's extension answered."""
        found = await self.post("/collective_rpc", {"method": method, "args": args})
        results = found.get("results")
        if not isinstance(results, list):
            raise self.odd(f"no results of {method}", found)
        return results

    async def post(self, path: str, body: Mapping[str, Any] | None = None, **query: str) -> Mapping[str, Any]:
        """A JSON object. Raises Lost, or RunFailed for what will not get better by asking again."""
        return (await self._call("POST", path, body, query=query))[1]

    async def held(self) -> str:
        """The name of the weights that the server says it holds."""
        found = (await self._call("GET", "/weight_info", None))[1].get("weight_version")
        if not isinstance(found, str) or len(found) > 200:
            raise self.odd("no name of the weights", found)
        return found

    async def generate(self, body: Mapping[str, Any]) -> AsyncGenerator[Part, None]:
        """Parts of one answer as they come, up to the one with a finish reason. Closing it ends the request there."""
        with self._losses():
            async with self._client.stream("POST", GENERATE, json=body, timeout=self._patient) as response:
                if response.status_code != 200:
                    raise self._refusal(GENERATE, response.status_code, await self._read(response))
                async with aclosing(self._lines(response)) as lines:
                    async for line in lines:
                        part = self._part(line)
                        if part is not None:
                            yield part
                            if part.finish_reason:
                                with suppress(TimeoutError):
                                    async with asyncio.timeout(DRAIN_SECONDS):
                                        async for _ in lines:
                                            pass
                                return
        raise Lost("the answer broke off before its last part")

    @property
    def _patient(self) -> httpx2.Timeout:
        return httpx2.Timeout(self._client.timeout.write, connect=self._client.timeout.connect, read=None, pool=None)

    def _part(self, line: bytes) -> Part | None:
        """What a line of the stream says of tokens, if anything."""
        kind, _, data = line.partition(b":")
        if kind != b"data" or data.strip() == b"[DONE]":
            return None
        try:
            chunk = _Chunk.model_validate_json(data)
        except ValidationError as error:
            with suppress(ValidationError):
                said = OBJECT.validate_json(data)
                if "error" in said:
                    raise Lost(f"the server says {_short(said['error'])}", answered=True) from None
            raise self.odd(_first(error), data) from error
        return chunk.choices[0] if chunk.choices else None

    async def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None, *, query: Mapping[str, str] | None = None,
        raises: bool = True,
    ) -> tuple[int, Mapping[str, Any]]:  # fmt: skip
        with self._losses():
            async with self._client.stream(method, path, json=body, params=query or None) as response:
                said = await self._read(response)
        if not raises:
            return response.status_code, {}
        if response.status_code != 200:
            raise self._refusal(path, response.status_code, said)
        try:
            return 200, OBJECT.validate_json(said or b"{}")
        except ValidationError as error:
            raise self.odd("no JSON object", said) from error

    async def _read(self, response: httpx2.Response) -> bytes:
        said = bytearray()
        async for block in response.aiter_raw():
            said += block
            if len(said) > LARGEST:
                raise self.odd(f"more than {LARGEST} bytes", said[:SAID])
        return bytes(said)

    async def _lines(self, response: httpx2.Response) -> AsyncGenerator[bytes, None]:
        rest = b""
        async for block in response.aiter_raw():
            *whole, rest = (rest + block).split(b"\n")
            for line in whole:
                yield line
            if len(rest) > LARGEST:
                raise self.odd(f"a line of more than {LARGEST} bytes", rest[:SAID])

    @contextmanager
    def _losses(self) -> Iterator[None]:
        try:
            yield
        except httpx2.TransportError as error:
            raise Lost(f"{type(error).__name__}: {str(error) or 'no answer'}") from error

    def _refusal(self, path: str, status: int, said: bytes) -> Exception:
        if status >= 500 or status == 429:
            return Lost(f"{path} answers HTTP {status}: {_short(said)}", answered=True)
        fix = f"set {KEY} to the server's key" if status in (401, 403) else "see the server's log"
        return RunFailed(f"the vLLM server refuses {path} with HTTP {status}: {_short(said)}", where=self.url, fix=fix)

    def odd(self, what: str, said: object) -> RunFailed:
        """For an answer that no vLLM server gives."""
        return RunFailed(
            f"the answer of the vLLM server cannot be used: {what}; it says {_short(said)}",
            where=self.url, fix=f"see that vLLM 0.32 answers there, started by python -m {MODULE}",
        )  # fmt: skip

    def _unfit(self, why: str) -> ConfigError:
        return ConfigError(f"the server was not started for jurat: {why}", where=f"engine.vllm_url: {self.url}",
                           fix=f"start it by python -m {MODULE} MODEL (docs/vllm.md)")  # fmt: skip


def _short(said: object) -> str:
    """A server's words, safe to print."""
    text = bytes(said[:SAID]).decode(errors="replace") if isinstance(said, bytes | bytearray) else str(said)
    return ascii(text[:SAID])


def _first(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, found['loc']))}: {found['msg']}"
