"""The engine as one: both paths from a folder, sampler and learner on the same weights."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from jurat.engine import compute, local
from jurat.engine.threads import choose_threads, physical_cores, recommended_env
from jurat.engine.tiny import save_tiny
from jurat.platform.errors import ConfigError, ModelError
from jurat.platform.recipe import Engine, Optim, SamplingPart
from jurat.platform.types import Message, Microbatch, Request, Sampling


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny(folder, hidden=64, layers=2)
    return folder


@pytest.fixture
def build(folder):
    made = []

    def build(**engine):
        made.append(local.build(folder, Engine(**engine), Optim(lr=0.05), SamplingPart(), total_steps=4))
        return made[-1]

    yield build
    for engine in made:
        engine.close()


def requests(tokenizer, count=3):
    prompts = [tokenizer.encode_prompt([Message(role="user", content=f"What is {n} + 5?")]) for n in (1, 22)]
    sampling = Sampling(max_new_tokens=8, stop_token_ids=tokenizer.eos_ids)
    return [
        Request(rollout_id=f"{g}.{n}", prompt=prompt, sampling=sampling, seed=10 * g + n)
        for g, prompt in enumerate(prompts)
        for n in range(count)
    ]


async def sample(engine):
    return await asyncio.gather(*(engine.sampler.sample(request) for request in requests(engine.tokenizer)))


def microbatch(asked, completions) -> Microbatch:
    rows = [np.concatenate([r.prompt, c.token_ids]) for r, c in zip(asked, completions, strict=True)]
    lengths = torch.tensor([len(row) for row in rows])
    mask = torch.cat([torch.arange(len(row)) >= len(r.prompt) for r, row in zip(asked, rows, strict=True)])
    found = torch.zeros(len(mask)).masked_scatter(
        mask, torch.from_numpy(np.concatenate([c.logprobs for c in completions]))
    )
    return Microbatch(
        tokens=torch.from_numpy(np.concatenate(rows)), offsets=torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]),
        loss_mask=mask, sampler_logprobs=found, weights=mask.float() / mask.sum(), advantages=mask.float(),
    )  # fmt: skip


async def test_both_paths_sample_the_same_in_float32(build):
    fast, simple = build(dtype="float32"), build(dtype="float32", path="simple")
    assert (fast.info["path"], simple.info["path"]) == ("fast", "simple")
    assert simple.info["why"] == "engine.path is simple" and fast.info["parameters"] == simple.info["parameters"]
    for a, b in zip(await sample(fast), await sample(simple), strict=True):
        assert a.token_ids.tolist() == b.token_ids.tolist() and np.abs(a.logprobs - b.logprobs).max() < 1e-4


@pytest.mark.parametrize("path", ["fast", "simple"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_after_an_update_and_a_publish_sampler_and_learner_agree(build, make, path, dtype):
    engine = build(path=path, dtype=dtype)
    reference = engine.reference()
    asked, before = requests(engine.tokenizer), await sample(engine)
    batch = microbatch(asked, before)
    report = await engine.learner.update(((batch,),), make.surrogate())
    assert not report.skipped and report.metrics["logprob_diff_mean"] < (1e-4 if dtype == "float32" else 0.05)
    await engine.link.publish(1)
    after = await sample(engine)
    assert {span.version for completion in after for span in completion.spans} == {1}
    again = microbatch(asked, after)
    (found,) = (await engine.learner.score(((again,),)))[0]
    tolerance = 1e-4 if dtype == "float32" else 0.15
    assert np.abs(found - again.sampler_logprobs.numpy()).max() < tolerance
    (old,) = (await reference.score(((batch,),)))[0]
    assert np.abs(old - batch.sampler_logprobs.numpy()).max() < tolerance
    (new,) = (await engine.learner.score(((batch,),)))[0]
    assert np.abs(new - old).max() > 0.3


def test_asking_for_the_fast_path_where_it_does_not_fit_is_an_error(tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    save_tiny(tmp_path, hidden=64, layers=1)
    (tmp_path / "model.safetensors").unlink()
    GPT2LMHeadModel(GPT2Config(vocab_size=512, n_embd=32, n_layer=1, n_head=2, n_positions=64)).save_pretrained(
        tmp_path
    )
    with pytest.raises(ConfigError, match="'gpt2' is not one of llama"):
        local.build(tmp_path, Engine(path="fast"), Optim(), SamplingPart(), total_steps=1)
    engine = local.build(tmp_path, Engine(), Optim(), SamplingPart(), total_steps=1)
    try:
        assert engine.info["path"] == "simple" and "gpt2" in engine.info["why"]
        assert len(asyncio.run(sample(engine))) == 6
    finally:
        engine.close()


def test_damaged_weights_are_an_error_for_people(tmp_path):
    save_tiny(tmp_path, hidden=64, layers=1)
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 100)
    for path in ("fast", "simple"):
        with pytest.raises(ModelError) as caught:
            local.build(tmp_path, Engine(path=path), Optim(), SamplingPart(), total_steps=1)
        assert str(tmp_path) in str(caught.value)


def test_threads_are_physical_cores_within_the_quota(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        topology = tmp_path / f"devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(siblings + "\n")
    assert physical_cores(tmp_path) == 2
    (tmp_path / "fs/cgroup").mkdir(parents=True)
    (tmp_path / "fs/cgroup/cpu.max").write_text("150000 100000\n")
    assert physical_cores(tmp_path) == 1
    (tmp_path / "fs/cgroup/cpu.max").write_text("max 100000\n")
    assert physical_cores(tmp_path) == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert choose_threads(None) == 3 and choose_threads(1) == 1


def test_settings_of_the_environment_are_left_alone(monkeypatch):
    monkeypatch.setenv("MALLOC_TOP_PAD_", "1")
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    assert "MALLOC_TOP_PAD_" not in recommended_env() and "MALLOC_TRIM_THRESHOLD_" in recommended_env()


@pytest.mark.parametrize(("threads", "lag", "each"), [(2, 0, 2), (2, 1, 2), (None, 0, 3), (None, 1, 1)])
def test_threads_mean_the_same_with_a_lag(build, monkeypatch, threads, lag, each):
    """A number is that of sampler and learner each, as on Ray; only what nobody gave is shared out."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    before = torch.get_num_threads()
    engine = build(threads=threads, max_lag=lag, dtype="float32")
    assert engine.info["threads"] == {"sampler": each, "learner": each}
    assert compute.call(torch.get_num_threads) == each
    torch.set_num_threads(before)
    compute.call(torch.set_num_threads, before)


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("cuda:63", "engine.device is cuda:63, and "),
        ("tpu", "no device 'tpu' here: "),
        ("xpu", "no device 'xpu' here: "),
    ],
)
def test_a_device_that_is_not_there_is_refused(device, said):
    with pytest.raises(ConfigError) as refused:
        local.refuse(Engine(device=device))
    assert refused.value.what.startswith(said) and refused.value.where == "engine.device"


def test_heads_that_ranks_cannot_share_are_refused_before_a_rank_starts(folder):
    local.refuse_model(Engine(ranks=3), folder)
    with pytest.raises(ConfigError, match=r"num_attention_heads is \d+, which 3 ranks cannot share evenly"):
        local.refuse_model(Engine(ranks=3, tp=3), folder)
