"""The client of a vLLM server, against a small server that speaks its protocol, well or badly. No vLLM, no model."""

from __future__ import annotations

import asyncio
import base64
import http.server
import json
import math
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load

from jurat.engine.vllm import remote, serve
from jurat.engine.vllm.remote import ServedSampler, Weights
from jurat.engine.vllm.several import TOGETHER, ServedSamplers
from jurat.platform.errors import ConfigError, JuratError, ModelError, RunFailed
from jurat.platform.recipe import Engine
from jurat.platform.types import Request, Sampling

VOCAB = 50
MODEL = {"vocab_size": VOCAB, "hidden_size": 8, "rope_parameters": {"rope_theta": 1.0}}
HELLO = {"vllm": "0.32.0", "model": MODEL, "dtype": "float32", "max_length": 64, "workers": 1, "async_scheduling": False,
         "runner_v1": True}  # fmt: skip
CUT = object()
"""In an answer: the connection ends here."""


def part(tokens, *, finish=None, held=None, **changes):
    content = [{"token_id": token, "logprob": -token / 10, "rank": 1} for token in tokens]
    choice = {"index": 0, "token_ids": list(tokens), "logprobs": {"content": content}, "finish_reason": finish,
              "weight_versions": held}  # fmt: skip
    return {"request_id": "r", "choices": [{**choice, **changes}]}


def tokens_of(body) -> list[int]:
    """What the weights of this server draw: each token is known from the seed and its place alone."""
    asked = body["sampling_params"]
    start = asked["extra_args"]["start"]
    return [(asked["extra_args"]["seed"] + 7 * place) % VOCAB for place in range(start, start + asked["max_tokens"])]


class Fake(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """Clients that go are part of the tests."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.hello, self.held, self.sees = dict(HELLO), "default", True
        self.answer = self.honest
        self.statuses: dict[str, list[int]] = {}
        self.calls: list[str] = []
        self.asked: list[dict] = []
        self.loaded: list[dict[str, torch.Tensor]] = []
        self.received = bytearray()
        self.keys: set[str | None] = set()
        self.stopped: set[str] = set()
        self.gone = threading.Event()

    def honest(self, body):
        tokens = tokens_of(body)
        yield part(tokens[:1])
        yield part(tokens[1:], finish="length", held=self.spans(len(tokens)))

    def spans(self, size, start=0):
        return [{"version": self.held, "start": start, "end": size}]

    def rpc(self, method, args):
        if method == "jurat_hello":
            return self.hello
        if method == "jurat_sees":
            return {"sees": self.sees and args[1].encode() in Path(args[0]).read_bytes()[:4096]}
        if method == "jurat_load":
            self.loaded.append(load(Path(args[0]).read_bytes()))
        elif method == "jurat_receive":
            offset, data = args
            self.received = bytearray() if offset == 0 else self.received
            assert offset == len(self.received)
            self.received += base64.b64decode(data)
            if not data:
                self.loaded.append(load(bytes(self.received)))
        return None


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # heads and bodies go apart: 40 ms each otherwise
    server: Fake

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.do_POST()

    def do_POST(self):
        fake, path = self.server, self.path.partition("?")[0]
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        fake.keys.add(self.headers.get("Authorization"))
        if path == "/inference/v1/generate" and not body:
            self.say(400, {"error": {"message": "token_ids: Field required"}})
            return
        fake.calls.append(body.get("method") or path)
        for status in fake.statuses.get(path, [])[:1]:
            fake.statuses[path].pop(0)
            self.say(status, {"error": {"message": "no \x1b[31mroom"}})
            return
        if path == "/inference/v1/generate":
            fake.asked.append(body)
            self.stream(fake.answer(body))
        elif path == "/collective_rpc":
            self.say(200, {"results": [fake.rpc(body["method"], body["args"])]})
        elif path == "/weight_info":
            self.say(200, {"weight_version": fake.held})
        elif path in ("/pause", "/resume", "/reset_prefix_cache", "/update_weight_version", "/abort_requests"):
            fake.held = body.get("new_version", fake.held)
            fake.stopped |= set(body.get("request_ids", ()))
            self.say(200, {})
        else:
            self.say(404, {"detail": "Not Found"})

    def say(self, status, found):
        data = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def stream(self, parts):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for each in [*parts] if isinstance(parts, list) else parts:
                if each is CUT:
                    self.close_connection = True
                    self.connection.close()
                    return
                data = each if isinstance(each, bytes) else b"data: " + json.dumps(each).encode() + b"\n\n"
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            self.server.gone.set()


@pytest.fixture
def fake():
    fake = Fake()
    thread = threading.Thread(target=fake.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield fake
    fake.shutdown()
    fake.server_close()
    thread.join()


LEARNER = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(3)}


@pytest.fixture
def sampler(fake):
    """Makes clients."""
    made = []

    def make(*, seconds=5.0, max_concurrent=8, dtype="float32", url=None, model=MODEL):
        def fill(into):
            for name, tensor in LEARNER.items():
                into[name].copy_(tensor)

        shapes = {name: tuple(tensor.shape) for name, tensor in LEARNER.items()}
        weights = Weights(shapes, getattr(torch, dtype), fill)
        made.append(ServedSampler(url or fake.url, weights, model=model, dtype=dtype, max_length=48,
                                  max_concurrent=max_concurrent, seconds=seconds))  # fmt: skip
        return made[-1]

    yield make
    for each in made:
        each.close()


def request(*, seed=3, new=5, prompt=4, name="p.0", stop=(), prefix=None):
    return Request(rollout_id=name, prompt=np.arange(prompt), seed=seed, prefix=prefix,
                   sampling=Sampling(temperature=1.0, max_new_tokens=new, stop_token_ids=stop))  # fmt: skip


def drawn(asked, size=None):
    size = asked.sampling.max_new_tokens if size is None else size
    return [(asked.seed + 7 * place) % VOCAB for place in range(size)]


async def failure(client, asked=None) -> RunFailed:
    async with asyncio.timeout(120):
        with pytest.raises(RunFailed) as caught:
            await client.sample(asked or request())
    return caught.value


# ---- what is asked, and what comes back ----


async def test_an_answer_and_what_was_asked_for(fake, sampler):
    client = sampler()
    asked = request(seed=(1 << 64) - 1, stop=(49,))
    found = await client.sample(asked)
    assert found.token_ids.tolist() == drawn(asked) and found.finish == "length"
    assert np.allclose(found.logprobs, -np.array(drawn(asked)) / 10)
    assert [(span.start, span.end, span.version) for span in found.spans] == [(0, 5, 0)]
    assert set(found.seconds) == {"queued", "prefill", "decode"}
    (body,) = fake.asked
    assert body["token_ids"] == [0, 1, 2, 3] and body["stream"] is True
    wanted = {"max_tokens": 5, "stop_token_ids": [49], "ignore_eos": True, "logprobs": 0, "detokenize": False,
              "stream_interval": 16, "extra_args": {"seed": (1 << 64) - 1, "start": 0, "temperature": 1.0}}  # fmt: skip
    assert body["sampling_params"] == wanted


def answer_slowly(fake):
    """From now on; how many requests went on as each began."""
    running, most = set(), []

    def slow(body):
        running.add(body["request_id"])
        most.append(len(running))
        time.sleep(0.02)
        first, last = fake.honest(body)
        yield first
        running.discard(body["request_id"])
        yield last

    fake.answer = slow
    return most


@pytest.mark.parametrize("allowed", [1, 3])
async def test_many_at_once_no_more_than_allowed_in_the_order_asked(fake, sampler, allowed):
    client = sampler(max_concurrent=allowed)
    most = answer_slowly(fake)
    asked = [request(seed=seed) for seed in range(20)]
    found = await asyncio.gather(*map(client.sample, asked))
    assert [each.token_ids.tolist() for each in found] == [drawn(each) for each in asked]
    assert max(most) <= allowed
    seeds = [body["sampling_params"]["extra_args"]["seed"] for body in fake.asked]
    assert sorted(seeds) == list(range(20)) and (allowed > 1 or seeds == list(range(20)))


@pytest.mark.parametrize("sees", [True, False])
async def test_an_update_is_made_between_two_steps(fake, sampler, sees, monkeypatch):
    monkeypatch.setattr(remote, "BUCKET_BYTES", 50)
    fake.sees = sees
    client = sampler()
    first = fake.held
    fake.calls.clear()
    monkeypatch.setitem(LEARNER, "b", torch.zeros(3))
    await client.publish(7, lambda: LEARNER["b"].add_(2))
    steps = [call for call in fake.calls if call != "jurat_receive"]
    assert steps == [
        "jurat_hello", "/weight_info", "/pause", "jurat_sees", *(["jurat_load"] if sees else []), "/reset_prefix_cache",
        "/update_weight_version", "/resume",
    ]  # fmt: skip
    assert fake.calls.count("jurat_receive") == (0 if sees else math.ceil(client._weights.bytes / 50) + 1)
    assert fake.loaded[-1]["b"].tolist() == [2, 2, 2] and fake.loaded[0]["b"].tolist() == [1, 1, 1]
    assert fake.loaded[-1]["a"].equal(LEARNER["a"])
    assert fake.held != first and fake.held.endswith(".7")
    found = await client.sample(request())
    assert [(span.start, span.end, span.version) for span in found.spans] == [(0, 5, 7)]


async def test_weights_on_their_way_leave_nothing_behind(sampler):
    before = {path.name for path in Path("/dev/shm").glob("jurat-weights-*")}
    client = sampler()
    assert {path.name for path in Path("/dev/shm").glob("jurat-weights-*")} <= before
    assert load(Path(client._weights.path).read_bytes())["a"].equal(LEARNER["a"])


def test_no_room_for_weights():
    with pytest.raises(ConfigError, match=r"no room for \d+\.\d+ GiB of weights") as caught:
        Weights({"a": (1 << 50,)}, torch.float32, lambda into: None)
    assert "TMPDIR" in str(caught.value)


async def test_spans_of_several_versions(fake, sampler):
    client = sampler()
    names = [fake.held]
    for version in (4, 9):
        await client.publish(version)
        names.append(fake.held)
    held = [{"version": name, "start": a, "end": b} for name, a, b in zip(names, (0, 2, 2), (2, 2, 5), strict=True)]
    fake.answer = lambda body: [part(tokens_of(body), finish="length", held=held)]
    found = await client.sample(request())
    assert [(span.start, span.end, span.version) for span in found.spans] == [(0, 2, 0), (2, 5, 9)]


async def test_what_was_interrupted_goes_on_from_its_tokens(fake, sampler):
    client = sampler(max_concurrent=2)

    def until_told(body):
        tokens = tokens_of(body)[:3]
        yield part(tokens)
        while f"generate-tokens-{body['request_id']}" not in fake.stopped:
            time.sleep(0.01)
        yield part([], finish="abort", held=fake.spans(3))

    fake.answer = until_told
    asked = [request(seed=seed) for seed in range(3)]  # the third has not been sent when it is interrupted
    tasks = [asyncio.create_task(client.sample(each)) for each in asked]
    while client.turns < 2:
        await asyncio.sleep(0.01)
    aborted = await client.interrupt()
    found = await asyncio.gather(*tasks)
    assert len(aborted) == 3 and {each.finish for each in found} == {"aborted"}
    assert [each.token_ids.tolist() for each in found] == [drawn(asked[0], 3), drawn(asked[1], 3), []]
    fake.answer = fake.honest
    again = await client.sample(request(seed=1, prefix=found[1]))
    assert again.token_ids.tolist() == drawn(asked[1]) and again.finish == "length"
    assert fake.asked[-1]["token_ids"] == [0, 1, 2, 3, *drawn(asked[1], 3)]
    assert fake.asked[-1]["sampling_params"]["extra_args"]["start"] == 3
    assert fake.asked[-1]["sampling_params"]["max_tokens"] == 2
    assert await client.interrupt() == ()


async def test_a_server_deaf_to_aborts_does_not_hold_an_interrupt(fake, sampler, monkeypatch):
    monkeypatch.setattr(remote, "ABORT_SECONDS", 0.3)
    client = sampler()

    def deaf(body):
        yield part(tokens_of(body)[:3])
        fake.gone.wait(5)
        yield part([])

    fake.answer = deaf
    task = asyncio.create_task(client.sample(request()))
    while not client.turns:
        await asyncio.sleep(0.01)
    (aborted,) = await client.interrupt()
    assert aborted.finish == (await task).finish == "aborted" and len(aborted.token_ids) == 0


async def test_a_cancelled_caller_ends_its_request_there(fake, sampler):
    client = sampler()

    def endless(body):
        while True:
            yield b": alive\n\n"
            time.sleep(0.01)

    fake.answer = endless
    task = asyncio.create_task(client.sample(request()))
    while not fake.asked:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(fake.gone.wait, 120)
    fake.answer = fake.honest
    assert (await client.sample(request())).finish == "length"


def test_one_client_in_several_event_loops(fake, sampler):
    client = sampler()
    for _ in range(2):
        assert len(asyncio.run(client.sample(request())).token_ids) == 5


async def test_prompts_that_cannot_be_sampled_from(fake, sampler):
    fake.hello["max_length"] = 20
    client = sampler()
    with pytest.raises(ConfigError, match="may grow to 24 tokens, the vLLM server takes 20"):
        await client.sample(request(new=20))
    with pytest.raises(ConfigError, match="prompt of 48 tokens: the model's context is 48"):
        await client.sample(request(prompt=48))
    assert fake.asked == []


async def test_the_key_is_sent(fake, sampler, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "a-key")
    await sampler().sample(request())
    assert fake.keys == {"Bearer a-key"}


# ---- what is lost is asked again, so often ----


@pytest.mark.parametrize("how", ["cut", "silent end", "503", "error", "abort"])
async def test_what_breaks_off_is_asked_again(fake, sampler, how):
    client = sampler()
    bad = [part(drawn(request())[:2])]
    tries = []

    def answer(body):
        tries.append(body["token_ids"])
        if len(tries) > 2:
            return fake.honest(body)
        if how == "abort":
            return [*bad, part([], finish="abort", held=fake.spans(2))] if len(tries) == 1 else fake.honest(body)
        return [*bad, *{"cut": [CUT], "error": [{"error": {"message": "out of memory"}}]}.get(how, [])]

    fake.answer = fake.honest if how == "503" else answer
    fake.statuses["/inference/v1/generate"] = [503, 429] if how == "503" else []
    found = await client.sample(request())
    assert found.token_ids.tolist() == drawn(request())
    if how != "503":
        assert tries[1] == ([0, 1, 2, 3, *drawn(request())[:2]] if how == "abort" else [0, 1, 2, 3])


@pytest.mark.parametrize("how", ["cut", "500", "error", "foreign"])
async def test_not_for_ever(fake, sampler, how):
    client = sampler()
    fake.statuses["/inference/v1/generate"] = [500] * 100 if how == "500" else []
    foreign = {"version": "default", "start": 0, "end": 5}
    fake.answer = lambda body: {
        "cut": [CUT], "error": [{"error": "out of memory"}], "500": [],
        "foreign": [part(tokens_of(body), finish="length", held=[foreign])],
    }[how]  # fmt: skip
    error = await failure(client)
    assert "the vLLM server is lost" in str(error) and fake.url in str(error) and "--resume" in str(error)
    assert 2 <= len(fake.asked) + fake.calls.count("/inference/v1/generate") <= 20
    assert str(await failure(client)) == str(error)  # at once, without asking
    with pytest.raises(RunFailed):
        await client.publish(1)


async def test_a_server_that_began_anew_gets_what_was_published(fake, sampler, monkeypatch):
    client = sampler()
    await client.publish(2)
    fake.held = "default"
    monkeypatch.setitem(LEARNER, "b", torch.full((3,), 9.0))  # the learner goes on
    found = await asyncio.gather(*(client.sample(request(seed=seed)) for seed in range(4)))
    assert [each.token_ids.tolist() for each in found] == [drawn(request(seed=seed)) for seed in range(4)]
    assert {span.version for each in found for span in each.spans} == {2}
    assert len(fake.loaded) == 3 and fake.loaded[-1]["b"].tolist() == [1, 1, 1]


async def test_a_server_of_another_run_is_left_to_it(fake, sampler):
    client = sampler()
    await sampler().publish(1)
    assert "another run has put its weights" in str(await failure(client))
    assert len(fake.loaded) == 3


class Clock:
    """The client's: it stands still unless the server moves it, which it does once the client has heard of a token."""

    def __init__(self, client):
        self.now, self.client = 0.0, client

    def monotonic(self):
        return self.now

    def after(self, turns, seconds):
        while self.client.turns < turns:
            time.sleep(0.01)
        self.now += seconds


@pytest.fixture
def clocked(sampler, monkeypatch):
    """A client that gives the server 5 seconds of ``clock``, one retry, and the clock."""
    client = sampler(seconds=5.0)
    clock = Clock(client)
    monkeypatch.setattr(remote, "RETRIES", 1)
    monkeypatch.setattr(remote, "time", clock)
    return client, clock


async def test_silence_is_no_answer(fake, clocked):
    client, clock = clocked

    def silent(body):
        yield part(tokens_of(body)[:1])
        clock.after(len(fake.asked), 6.0)
        fake.gone.wait(120)

    fake.answer = silent
    assert "no token for 5 s" in str(await failure(client))
    assert len(fake.asked) == 2
    fake.gone.set()


async def test_parts_without_a_token_are_silence_too(fake, clocked):
    (client, clock), enough = clocked, threading.Event()

    def empty(body):
        yield part(tokens_of(body)[:1])
        clock.after(len(fake.asked), 6.0)
        while not enough.wait(0.02):
            yield part([])

    fake.answer = empty
    assert "no token for 5 s" in str(await failure(client))
    assert client.turns == 2  # or a watcher elsewhere would take it for progress
    enough.set()


async def test_one_that_waits_for_others_is_not_lost(fake, clocked):
    """It says nothing for 20 times as long as it may while another gets on."""
    (client, clock), ended = clocked, threading.Event()

    def answer(body):
        tokens = tokens_of(body)
        if body["sampling_params"]["extra_args"]["seed"] == 1:
            for turn, token in enumerate(tokens[:-1], 1):
                yield part([token])
                clock.after(turn, 4.0)
                time.sleep(0.05)  # in which the client looks at its clock, or not
            ended.set()
            yield part(tokens[-1:], finish="length", held=fake.spans(len(tokens)))
        else:
            ended.wait(120)
            yield from fake.honest(body)

    fake.answer = answer
    found = await asyncio.gather(client.sample(request(seed=1, new=25)), client.sample(request(seed=2)))
    assert [len(each.token_ids) for each in found] == [25, 5] and len(fake.asked) == 2


# ---- answers that are not believed ----

GOOD = drawn(request())


def whole(**changes):
    """A last part with all five tokens; ``held`` without a version has the server's own."""
    return lambda fake: [part(GOOD, **{"finish": "length", "held": fake.spans(5), **changes})]


def with_logprob(value):
    content = [{"token_id": token, "logprob": value} for token in GOOD]
    return whole(logprobs={"content": content})


HOSTILE = {
    "a token that is not in the vocabulary": lambda fake: [part([VOCAB])],
    "a negative token": lambda fake: [part([-1])],
    "a token as text": lambda fake: [part([7], token_ids=["7"])],
    "a token as a float": lambda fake: [part([7.0])],
    "not a number": with_logprob(float("nan")),
    "minus infinity": with_logprob(float("-inf")),
    "vllm's mark for it": with_logprob(-9999.0),
    "a positive log-prob": with_logprob(0.5),
    "log-probs as text": with_logprob("-1"),
    "log-probs of other tokens": whole(logprobs={"content": [{"token_id": 1, "logprob": -1.0}] * 5}),
    "no log-probs": whole(logprobs=None),
    "too few log-probs": whole(logprobs={"content": []}),
    "too many tokens": lambda fake: [part([1, 1, 1, 1, 1, 1])],
    "too few tokens": lambda fake: [part([1], finish="length", held=fake.spans(1))],
    "a stop that is none": whole(finish="stop"),
    "an unknown end": whole(finish="tired"),
    "two answers": lambda fake: [{"choices": part(GOOD)["choices"] * 2}],
    "the answer of another": whole(index=1),
    "no spans": whole(held=None),
    "spans that leave a gap": lambda fake: whole(held=fake.spans(5, start=1))(fake),
    "spans of too few tokens": lambda fake: whole(held=fake.spans(4))(fake),
    "spans of too many tokens": lambda fake: whole(held=fake.spans(6))(fake),
    "no JSON": lambda fake: [b"data: {\n\n"],
    "a list": lambda fake: [b"data: []\n\n"],
    "deep nesting": lambda fake: [b"data: " + b"[" * 100_000 + b"\n\n"],
    "a line without an end": lambda fake: [b"data: " + b"1" * 1_200_000],
}


@pytest.mark.parametrize("how", HOSTILE)
async def test_an_answer_that_is_not_believed(fake, sampler, how):
    client = sampler()
    fake.answer = lambda body: HOSTILE[how](fake)
    error = await failure(client)
    assert "cannot be used" in error.what and error.where == fake.url and "0.32" in error.fix
    assert len(str(error)) < 1500 and "\x1b" not in str(error)
    assert len(fake.asked) == 1


async def test_tokens_after_the_end(fake, sampler):
    client = sampler()
    fake.answer = lambda body: [part(GOOD, finish="length", held=fake.spans(5))]
    error = await failure(client, request(stop=(GOOD[1],)))
    assert "tokens after the end, rollout p.0" in str(error)


async def test_an_endless_stream_after_the_end_is_let_go(fake, sampler, monkeypatch):
    client = sampler()

    def endless(body):
        yield from fake.honest(body)
        while True:
            yield b": more\n\n"
            time.sleep(0.01)

    fake.answer = endless
    assert (await client.sample(request())).token_ids.tolist() == GOOD


@pytest.mark.parametrize("status, fix", [(400, "the server's log"), (401, "VLLM_API_KEY"), (404, "the server's log")])
async def test_a_refusal_is_final(fake, sampler, status, fix):
    client = sampler()
    fake.statuses["/inference/v1/generate"] = [status]
    error = await failure(client)
    assert f"HTTP {status}" in error.what and "no \\\\x1b" not in error.what and "\x1b" not in error.what
    assert fix in error.fix


# ---- servers that a run does not begin with ----


@pytest.mark.parametrize(
    "changes, error, what",
    [
        ({"async_scheduling": True}, ConfigError, "--no-async-scheduling"),
        ({"runner_v1": False}, ConfigError, "VLLM_USE_V2_MODEL_RUNNER=0"),
        ({"dtype": "bfloat16"}, ConfigError, "computes in bfloat16, engine.dtype is float32"),
        ({"model": {**MODEL, "hidden_size": 16}}, ModelError, "hidden_size is 16, here it is 8"),
        ({"model": {**MODEL, "rope_parameters": {"rope_theta": 2.0}}}, ModelError, "rope_parameters"),
        ({"model": {}}, ModelError, "does not say hidden_size, vocab_size; here it is hidden_size 8, vocab_size 50"),
        ({"model": {"vocab_size": VOCAB}}, ModelError, "does not say hidden_size; here it is hidden_size 8"),
        ({"max_length": "64"}, ConfigError, "max_length"),
        ({"model": None}, ConfigError, "was not started for jurat"),
    ],
)
def test_a_server_that_does_not_fit(fake, sampler, changes, error, what):
    fake.hello.update(changes)
    with pytest.raises(error, match=r"server (has|was|computes)") as caught:
        sampler()
    assert what in str(caught.value) and fake.url in str(caught.value) and caught.value.fix
    assert fake.loaded == []


@pytest.mark.parametrize("path", ["/collective_rpc", "/weight_info"])
@pytest.mark.parametrize("status", [404, 500])
def test_a_server_without_what_is_needed(fake, sampler, path, status):
    fake.statuses[path] = [status] * 50
    with pytest.raises(JuratError) as caught:
        sampler()
    assert f"HTTP {status}" in str(caught.value) and fake.url in str(caught.value)


def test_no_server(sampler):
    with pytest.raises(ConfigError, match="no vLLM server answers") as caught:
        sampler(url="http://127.0.0.1:9", seconds=120.0)
    assert "within" not in str(caught.value) and "jurat.engine.vllm.serve" in str(caught.value)  # it did not wait


def test_a_server_that_accepts_and_says_nothing(sampler):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as deaf:
        with pytest.raises(ConfigError, match="no vLLM server answers"):
            sampler(url=f"http://127.0.0.1:{deaf.getsockname()[1]}", seconds=0.5)


def test_a_server_that_says_one_byte_at_a_time(sampler):
    import socket

    def dribble(listening, done):
        asked, _ = listening.accept()
        with asked:
            asked.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            while not done.wait(0.1):
                try:
                    asked.sendall(b" ")
                except OSError:
                    return

    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=dribble, args=(listening, done), daemon=True)
        thread.start()
        late = threading.Timer(60, done.set)  # so that a client that waits for ever is found out
        late.start()
        with pytest.raises(ConfigError, match="no vLLM server answers"):
            sampler(url=f"http://127.0.0.1:{listening.getsockname()[1]}", seconds=0.5)
        assert not done.is_set()
        late.cancel()
        done.set()
        thread.join()


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "ftp://a", "http://user:secret@a", "http:// a", "http://", "file:///a"]
)
def test_urls_of_a_recipe(url):
    with pytest.raises(ValidationError, match="vllm_url"):
        Engine(sampler="vllm", vllm_url=url)


def test_a_url_goes_with_vllm():
    assert Engine(sampler="vllm", vllm_url="https://a.b:8000/c").vllm_url == "https://a.b:8000/c"
    with pytest.raises(ValidationError, match=r"a server goes with engine\.sampler: vllm"):
        Engine(vllm_url="http://a")


def test_options_given_to_the_server_win():
    found = serve.arguments(["folder", "--host", "0.0.0.0"], cpu=True)
    assert found[:4] == ["--model", "folder", "--host", "127.0.0.1"] and found[-2:] == ["--host", "0.0.0.0"]
    assert found[found.index("--kv-cache-memory-bytes") + 1] == str(2 << 30)  # as in this process
    assert "--kv-cache-memory-bytes" not in serve.arguments(["folder", "--gpu-memory-utilization=0.1"], cpu=True)
    assert "--enforce-eager" in found and "--enforce-eager" not in serve.arguments(["folder"], cpu=False)


# ---- several servers ----


@pytest.fixture
def three():
    fakes = [Fake() for _ in range(3)]
    threads = [threading.Thread(target=fake.serve_forever, kwargs={"poll_interval": 0.01}) for fake in fakes]
    for thread in threads:
        thread.start()
    yield fakes
    for fake, thread in zip(fakes, threads, strict=True):
        fake.shutdown()
        fake.server_close()
        thread.join()


@pytest.fixture
def group(three):
    weights = Weights({name: tuple(t.shape) for name, t in LEARNER.items()}, torch.float32, fill_learner)
    made = [
        ServedSampler(each.url, weights, model=MODEL, dtype="float32", max_length=48, max_concurrent=8, seconds=2.0)
        for each in three
    ]
    group = ServedSamplers(made, weights)
    yield group
    group.close()


def fill_learner(into):
    for name, tensor in LEARNER.items():
        into[name].copy_(tensor)


async def test_requests_are_spread_over_servers_and_prompts_kept_together(three, group):
    """12 prompts of 4 requests: 16 each, all four of a prompt on one server; tokens are those of one server."""
    asked = [request(seed=4 * prompt + n, prompt=prompt + 1) for prompt in range(12) for n in range(4)]
    found = await asyncio.gather(*map(group.sample, asked))
    assert [each.token_ids.tolist() for each in found] == [drawn(each) for each in asked]
    assert [len(each.asked) for each in three] == [16, 16, 16]
    prompts = [{len(body["token_ids"]) for body in each.asked} for each in three]
    assert sum(map(len, prompts)) == 12
    assert not group._reading and not +group._load


async def test_one_prompt_alone_does_not_wait_for_one_server(three, group):
    await asyncio.gather(*(group.sample(request(seed=seed)) for seed in range(3 * TOGETHER)))
    assert all(len(each.asked) >= TOGETHER - 1 for each in three)


async def test_all_servers_have_the_weights_each_under_a_name_of_its_own(three, group, monkeypatch):
    monkeypatch.setitem(LEARNER, "b", torch.zeros(3))
    await group.publish(7, lambda: LEARNER["b"].add_(2))
    assert [each.loaded[-1]["b"].tolist() for each in three] == [[2.0] * 3] * 3
    assert len({each.held for each in three}) == 3 and all(each.held.endswith(".7") for each in three)
    found = await asyncio.gather(*(group.sample(request(seed=seed, prompt=seed + 1)) for seed in range(6)))
    assert {(span.start, span.end, span.version) for each in found for span in each.spans} == {(0, 5, 7)}


async def test_a_server_that_is_lost_is_done_without(three, group):
    """What it had is drawn by the others, to the same tokens, and weights go to them; the loss of all is the run's end."""
    gone = three[1]
    gone.answer = lambda body: [CUT]
    asked = [request(seed=seed, prompt=seed + 1) for seed in range(9)]
    found = await asyncio.gather(*map(group.sample, asked))
    assert [each.token_ids.tolist() for each in found] == [drawn(each) for each in asked]
    assert [member.lost for member in group.members] == [False, True, False]
    before = len(gone.asked)
    await group.publish(3)
    found = await asyncio.gather(*(group.sample(each) for each in asked))
    assert {span.version for each in found for span in each.spans} == {3} and len(gone.asked) == before
    for each in three:
        each.statuses["/inference/v1/generate"] = [503] * 99
    with pytest.raises(RunFailed, match="the vLLM server is lost"):
        await asyncio.gather(*(group.sample(each) for each in asked))


async def test_an_interrupt_reaches_all(three, group):
    def until_told(fake, body):
        yield part(tokens_of(body)[:3])
        while f"generate-tokens-{body['request_id']}" not in fake.stopped:
            time.sleep(0.01)
        yield part([], finish="abort", held=fake.spans(3))

    for each in three:
        each.answer = partial(until_told, each)
    tasks = [asyncio.create_task(group.sample(request(seed=seed, prompt=seed + 1))) for seed in range(3)]
    while group.turns < 3:
        await asyncio.sleep(0.01)
    aborted = await group.interrupt()
    await asyncio.gather(*tasks)
    assert [len(each.token_ids) for each in aborted] == [3, 3, 3]


def test_a_list_of_servers_names_each_once():
    both = Engine(sampler="vllm", vllm_url=["http://a:1", "http://b:1"])
    assert both.vllm_urls == ("http://a:1", "http://b:1") and Engine(sampler="vllm", vllm_url="http://a").vllm_urls == (
        "http://a",
    )
    for urls, said in (
        (["http://a:1"] * 2, "names a server twice"),
        ([], "names no server"),
        (["ftp://a"], "vllm_url"),
    ):
        with pytest.raises(ValidationError, match=said):
            Engine(sampler="vllm", vllm_url=urls)


async def test_places_are_taken_in_order_however_many_there_are():
    """Two, then one, then three; who is called away while waiting takes none."""
    places, inside, most = remote.Places(2), [], []

    async def take(name, until):
        async with places:
            inside.append(name)
            most.append(len(inside))
            await until.wait()
            inside.remove(name)

    gates = [asyncio.Event() for _ in range(7)]
    tasks = [asyncio.create_task(take(name, gate)) for name, gate in enumerate(gates)]
    await asyncio.sleep(0)
    assert inside == [0, 1]
    places.resize(1)
    gates[0].set()
    await asyncio.sleep(0.01)
    assert inside == [1]
    tasks[2].cancel()
    places.resize(3)
    await asyncio.sleep(0.01)
    assert inside == [1, 3, 4]
    for gate in gates:
        gate.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not inside and places._taken == 0 and max(most) == 3


async def test_a_limit_holds_from_the_next_request(fake, sampler):
    client, most = sampler(max_concurrent=1), answer_slowly(fake)
    client.limit(4)
    asked = [request(seed=seed) for seed in range(12)]
    found = await asyncio.gather(*map(client.sample, asked))
    assert [each.token_ids.tolist() for each in found] == [drawn(each) for each in asked]
    assert 1 < max(most) <= 4
