"""The formulas of memory: sizes by hand, what is refused and with which key, and a run that is measured."""

import inspect
import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig

from jurat.engine import memory
from jurat.engine.llama import attention, head, sampler, weights
from jurat.engine.lora import layout
from jurat.engine.simple.learner import SimpleNetwork
from jurat.engine.sizes import Sizes
from jurat.engine.tiny import save_tiny
from jurat.platform.errors import ConfigError, ModelError
from jurat.platform.recipe import LoRA, Recipe
from jurat.trainers.presets import filled

GIB = memory.GIB


def model(**changes):
    sizes = {"family": "llama", "layers": 30, "hidden": 576, "heads": 9, "kv_heads": 3, "head_dim": 64, "ff": 1536,
             "vocab": 49152, "tied": True, "max_length": 8192}  # SmolLM2-135M  # fmt: skip
    return memory.Model(**{**sizes, **changes})


def large(**changes):
    """Llama-3.1-8B."""
    return model(layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, ff=14336, vocab=128256, tied=False,
                 max_length=131072, **changes)  # fmt: skip


def stage(**keys):
    return filled(Recipe(**{"model": "m", "data": {"train": {"source": "generated"}}, **keys}))


def part(found, name, *, process=0, where="host"):
    return sum(each.bytes for each in getattr(found[process], where) if each.name == name)


def test_parameters_by_hand():
    assert model().parameters == 134_515_008  # as the model card's 135M
    assert large().parameters == 8_030_261_248
    assert model(family="qwen2").parameters - model().parameters == 30 * (9 + 2 * 3) * 64  # biases of q, k and v
    assert model(family="qwen3").parameters - model().parameters == 30 * 2 * 64  # norms of q and k


def test_parameters_are_those_of_the_model(tmp_path):
    save_tiny(tmp_path)
    read = memory.read_model(tmp_path)
    found = layout(tmp_path, LoRA(rank=4))
    assert (read.parameters, read.adapters(LoRA(rank=4))) == (found.parameters, found.trainable)
    some = LoRA(rank=4, targets=("q_proj", "down_proj"))
    assert read.adapters(some) == layout(tmp_path, some).trainable


def test_a_model_without_formulas_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"config\.json not found"):
        memory.read_model(tmp_path)
    for config, said in (
        ("{", "not JSON"),
        (json.dumps({"model_type": "gpt2"}), "no formulas.*gpt2"),
        (json.dumps({"model_type": "llama", "quantization_config": {"bits": 4}}), "quantised"),
        (json.dumps({"model_type": "llama", "num_attention_heads": 8}), "has no 'hidden_size'"),
        ("[]", "no JSON object"),
    ):
        (tmp_path / "config.json").write_text(config)
        with pytest.raises(ModelError, match=said):
            memory.read_model(tmp_path)


@pytest.mark.parametrize("value", ["576", 576.0, 0, -1, True, [576], {"a": 1}])
@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "head_dim", "vocab_size"])
def test_a_size_that_is_none_is_named_with_its_file_and_key(tmp_path, key, value):
    save_tiny(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    if (key, value) == ("head_dim", 0):  # as good as none
        memory.read_model(tmp_path)
        return
    with pytest.raises(ConfigError) as caught:
        memory.read_model(tmp_path)
    assert caught.value.where == f"{path}: {key}"
    assert caught.value.what == f"{key} is {str(value)!r}, expected a whole number from 1 up"


def test_the_fast_path_and_the_estimate_read_the_same_sizes(tmp_path):
    save_tiny(tmp_path)
    shape, read = weights.shape_of(AutoConfig.from_pretrained(tmp_path)), memory.read_model(tmp_path)
    assert {each.name: getattr(shape, each.name) for each in fields(Sizes)} == {
        each.name: getattr(read, each.name) for each in fields(Sizes)
    }


@pytest.mark.parametrize("critic", [False, True])
@pytest.mark.parametrize("adapters", [False, True])
def test_on_ray_the_driver_holds_what_brings_a_learner_back(critic, adapters):
    """12 bytes a parameter that learns, twice while a snapshot is made; 16 updates of 40 bytes a token; the weights."""
    keys = {"lora": {"rank": 8}} if adapters else {}
    recipe = stage(
        engine={"home": "ray"}, algorithm={"name": "ppo" if critic else "grpo"}, updates_per_step=2, **keys,
        prompts_per_step=4, allocation={"samples_per_prompt": 2}, sampling={"max_new_tokens": 10},
    )  # fmt: skip
    found, size = memory.estimate(recipe, model(), 64), model().parameters
    assert found[0].name == "driver"
    learns = (model().adapters(LoRA(rank=8)) if adapters else size) + size * critic
    assert part(found, "snapshot") == part(found, "the next snapshot") == 12 * learns
    assert part(found, "updates since the snapshot") == (1 + critic) * 16 * 40 * (4 * 64 + 8 * 10) // 2
    assert part(found, "weights last published") == 2 * size
    alone = memory.estimate(
        recipe.model_copy(update={"engine": recipe.engine.model_copy(update={"home": "local"})}), model(), 64
    )
    assert part(alone, "snapshot") == 0


def test_weights_gradients_and_moments_by_hand():
    """bfloat16 on the fast path: 4 + 2 bytes of weights, 4 of the gradient, 8 of the moments, and the sampler's packed 2."""
    size = model().parameters
    found = memory.estimate(stage(), model(), 64)
    assert part(found, "weights, float32") == 4 * size
    assert part(found, "working copy") == 2 * size
    assert part(found, "gradients") == 4 * size
    assert part(found, "moments") == 8 * size
    assert part(found, "sampler's copy, packed") == pytest.approx(2 * size, rel=0.001)
    whole = memory.estimate(stage(engine={"dtype": "float32"}), model(), 64)
    assert part(whole, "working copy") == 0 and part(whole, "sampler's copy, packed") == 0
    adapted = memory.estimate(stage(lora={"rank": 8}), model(), 64)
    assert part(adapted, "moments") == 8 * model().adapters(LoRA(rank=8)) < 8 * size / 50


def test_activations_of_a_microbatch_by_hand():
    kept = 8 * 576 + 2 * (960 + 576 + 2 * 1536)
    full = memory.estimate(stage(tokens_per_microbatch=512), model(), 64)
    assert part(full, "activations") == 512 * 30 * kept
    cut = memory.estimate(stage(tokens_per_microbatch=512, engine={"activation_checkpointing": True}), model(), 64)
    assert part(cut, "activations") == 512 * (30 * 4 * 576 + kept)
    short = stage(tokens_per_microbatch=1 << 20, prompts_per_step=2, sampling={"max_new_tokens": 10})
    assert part(memory.estimate(short, model(), 64), "activations") == (2 * 64 + 16 * 10) * 30 * kept  # all there is


def test_keys_and_values_by_hand():
    """64 rows of 16 tokens, their 8 prompts of 100 stored once each; a quarter more while the caches grow."""
    recipe = stage(sampling={"max_new_tokens": 16})
    token = 2 * 30 * 3 * 64 * 2
    assert part(memory.estimate(recipe, model(), 100), "keys and values") == token * (8 * 100 + 64 * 20)
    vllm = memory.estimate(stage(engine={"sampler": "vllm", "vllm_memory": 1.5}), model(), 100)
    assert part(vllm, "vLLM's keys and values (engine.vllm_memory)") == 1.5 * GIB
    assert part(vllm, "vLLM's weights") == 2 * model().parameters


def test_other_roles():
    plain = memory.estimate(stage(), model(), 64)[0].host_bytes
    reference = memory.estimate(stage(algorithm={"kl": {"coef": 0.1}}), model(), 64)[0].host_bytes
    critic = memory.estimate(stage(algorithm="ppo"), model(), 64)
    size = model().parameters
    assert reference - plain == 6 * size + 1024 * 49152 * 2  # its weights, and its logits
    assert part(critic, "critic with gradients and moments") == 18 * size


def test_ranks_cut_weights_and_moments():
    one = memory.estimate(stage(engine={"ranks": 2, "path": "auto"}), large(), 512)
    four = memory.estimate(stage(engine={"ranks": 8, "tp": 2}), large(), 512)
    assert [process.name for process in four] == ["run", "rank"] and four[1].count == 8
    assert part(four, "moments", process=1) * 4 == part(one, "moments", process=1)
    cuda = stage(engine={"ranks": 8, "device": "cuda", "offload": True})
    offloaded = memory.estimate(cuda, large(), 512)
    assert part(offloaded, "moments", process=1, where="gpu") == 0
    assert part(offloaded, "moments", process=1) == large().parameters
    demand = {each.kind: each for each in memory.demands(cuda.engine, offloaded)}
    assert demand["host"].bytes > 8 * 16 * large().parameters / 8


def test_ranks_hold_adapters_a_critic_and_a_checkpoint_on_its_way():
    size, learns = large().parameters, large().adapters(LoRA(rank=8))
    ranks = {"ranks": 4, "device": "cuda"}
    plain = memory.estimate(stage(engine=ranks), large(), 512)
    adapted = memory.estimate(stage(engine=ranks, lora={"rank": 8}, algorithm={"kl": {"coef": 0.1}}), large(), 512)
    critic = memory.estimate(stage(engine=ranks, algorithm="ppo"), large(), 512)
    where = {"process": 1, "where": "gpu"}
    assert part(adapted, "weights, float32", **where) == 4 * (size + learns) / 4
    assert part(adapted, "moments", **where) == 8 * learns / 4
    assert part(adapted, "reference", **where) == 0  # the model without its adapters
    assert part(critic, "critic with gradients and moments", **where) == 16 * size / 4
    found = [part(each, "checkpoint", process=1) for each in (plain, adapted, critic)]
    assert found == [12 * size / 4, (4 * size + 12 * learns) / 4, 24 * size / 4]


def test_a_lag_compiled_layers_and_a_server_by_url():
    """A sampler that overlaps with the learner has weights of its own; who compiles takes the transformers model; vLLM
    elsewhere takes nothing here but the file of weights."""
    size = model().parameters
    alone, lagging = (memory.estimate(stage(engine={"max_lag": lag}), model(), 64) for lag in (0, 1))
    name = "sampler's copy, packed"
    assert part(lagging, name) - part(alone, name) == 2 * size
    given = memory.estimate(stage(engine={"max_lag": 1}, algorithm="sft"), model(), 64)
    assert part(given, name) == part(alone, name)
    simple, compiled = ({"dtype": "float32", **each} for each in ({"path": "simple"}, {"compile": True}))
    simple, compiled = (memory.estimate(stage(engine=each), model(), 64) for each in (simple, compiled))
    assert part(simple, "activations") == part(compiled, "activations") > part(alone, "activations")
    assert (part(simple, "sampler's copy"), part(compiled, "sampler's copy")) == (0, 4 * size)
    sleeping, awake = (
        memory.estimate(stage(engine={"sampler": "vllm", "device": "cuda", "offload": asleep}), model(), 64)[0]
        for asleep in (True, False)
    )
    held = 2 * size + 2 * GIB  # vLLM's weights and cache make room for the phase that takes more
    update = sum(each.bytes for each in awake.gpu if each.phase == "update")
    assert awake.gpu_bytes - sleeping.gpu_bytes == min(update, held)
    assert part([awake], "checkpoint") == 12 * size  # on the host, until it is written
    url = stage(engine={"sampler": "vllm", "vllm_url": "http://h:1", "device": "cuda"})
    found = memory.estimate(url, model(), 64)
    assert part(found, "weights on their way") == 2 * size and part(found, "vLLM", where="gpu") == 0


def test_ranks_on_a_cluster_are_beside_the_actor_of_their_role():
    engine = {"home": "ray", "ranks": 2, "pools": {"main": {}}}
    found = memory.estimate(stage(engine=engine, algorithm={"kl": {"coef": 0.1}}), model(), 64)
    assert [(process.name, process.count) for process in found] == [
        ("driver", 1), ("sampler", 1), ("learner", 1), ("learner rank", 2), ("reference", 1), ("reference rank", 2),
    ]  # fmt: skip
    home = memory.estimate(stage(engine={"ranks": 2, "path": "auto"}), model(), 64)
    assert part(found, "moments", process=3) == part(home, "moments", process=1) == 4 * model().parameters
    ppo = memory.estimate(stage(engine=engine, algorithm="ppo"), model(), 64)
    assert ppo[-1].name == "critic rank"
    assert ppo[-1].host_bytes - ppo[3].host_bytes == 8 * model().parameters  # slices of the policy beside its own


def test_pools_of_a_cluster_are_counted_apart():
    engine = {"home": "ray", "ray": "10.0.0.1:6379", "pools": {"a": {}, "b": {}}, "placement": {
        role: "a" if role == "sampler" else "b" for role in ("sampler", "learner", "critic", "reference", "judge")}}  # fmt: skip
    recipe = stage(engine=engine)
    found = memory.estimate(recipe, model(), 64)
    places = {each.place: each.processes for each in memory.demands(recipe.engine, found)}
    assert places == {"this machine": ("driver",), "pool a": ("sampler",), "pool b": ("learner",)}
    here = stage(engine={**engine, "ray": "local"})
    (only,) = memory.demands(here.engine, memory.estimate(here, model(), 64))
    assert set(only.processes) == {"driver", "sampler", "learner"}


def test_what_does_not_fit_is_refused_with_the_key_to_change():
    recipe = stage(tokens_per_microbatch=16384, prompts_per_step=64, sampling={"max_new_tokens": 64})
    memory.refuse_unfit(recipe, model(), memory.Limits(host=64 * GIB), prompt_tokens=64)
    memory.refuse_unfit(recipe, model(), memory.Limits(), prompt_tokens=64)  # nothing is known: nothing is refused
    with pytest.raises(ConfigError) as told:
        memory.refuse_unfit(recipe, model(), memory.Limits(host=6 * GIB), prompt_tokens=64, name="grpo")
    assert told.value.exit_code == 2
    assert "stage grpo: it needs 10.3 GiB on this machine" in told.value.what and "there are 6.0 GiB" in told.value.what
    assert "activations (run)" in told.value.what
    assert told.value.fix == "set tokens_per_microbatch: 4096"
    smaller = recipe.model_copy(update={"tokens_per_microbatch": 4096})
    memory.refuse_unfit(smaller, model(), memory.Limits(host=6 * GIB), prompt_tokens=64)  # as it was told
    with pytest.raises(ConfigError) as told:
        memory.refuse_unfit(stage(engine={"device": "cuda"}), large(), memory.Limits(gpu=80 * GIB), prompt_tokens=512)
    assert "the first GPU" in told.value.what and "lora" in told.value.fix
    with pytest.raises(ConfigError) as told:
        many = stage(tokens_per_microbatch=256, engine={"ranks": 64})
        memory.refuse_unfit(many, model(), memory.Limits(host=20 * GIB), prompt_tokens=64)
    assert "process (rank, 64 of them), 28.1 GiB" in told.value.what and told.value.fix == "set engine.ranks: 8"
    with pytest.raises(ConfigError, match="smaller model"):
        memory.refuse_unfit(stage(), large(), memory.Limits(host=8 * GIB), prompt_tokens=512)


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.sampled_from([256, 4096]), new=st.sampled_from([16, 200]), ranks=st.sampled_from([1, 2, 4]),
    path=st.sampled_from(["auto", "simple"]), more=st.sampled_from(["tokens", "prompt", "concurrent", "layers"]),
)  # fmt: skip
def test_more_work_or_a_larger_model_never_takes_less(tokens, new, ranks, path, more):
    def needed(tokens, new, prompt, concurrent, layers):
        recipe = stage(
            tokens_per_microbatch=tokens, sampling={"max_new_tokens": new, "max_concurrent": concurrent},
            engine={"ranks": ranks, "path": "auto" if ranks > 1 else path}, prompts_per_step=32,
        )  # fmt: skip
        found = memory.estimate(recipe, model(layers=layers), prompt)
        return sum(each.bytes for each in memory.demands(recipe.engine, found))

    base = {"tokens": tokens, "new": new, "prompt": 64, "concurrent": 32, "layers": 30}
    assert needed(**base) <= needed(**{**base, more: 2 * base[more]})


def test_sizes_of_the_engine_are_repeated_rightly():
    """The formulas import no torch, so they cannot import these."""
    found = (memory.CHUNK, memory.BLOCK, memory.SCORES, memory.OWN_STEP, memory.FAST)
    assert found == (head.CHUNK, head.BLOCK, attention.SCORES, sampler.OWN_STEP, weights.ARCHITECTURES)
    assert inspect.signature(SimpleNetwork).parameters["chunk"].default == memory.CHUNK_SIMPLE


def test_no_torch():
    code = "import sys, jurat.engine.memory; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("case", "hidden"),
    [("fast", 384), *(pytest.param(case, 512, marks=pytest.mark.soak) for case in ("fast", "simple"))],
)
def test_a_run_takes_what_was_predicted(case, hidden, tmp_path):
    """In a process of its own: every sample at its longest, full microbatches, two updates."""
    save_tiny(tmp_path / "model", hidden=hidden, layers=hidden // 96)
    command = [
        sys.executable, str(Path(__file__).parents[2] / "benchmarks/memory.py"), "--model", str(tmp_path / "model"),
        "--cases", case, "--tokens", "768", "--new", "8", "--prompt", "64", "--json", str(tmp_path / "found.json"),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    (row,) = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert 0.8 < row["ratio"] < 1.1, row


def test_batches_in_flight_are_drawn_at_once():
    def sampled(**engine):
        recipe = stage(prompts_per_step=4, allocation={"samples_per_prompt": 8}, engine=engine)
        work = memory.work_of(recipe, model(), 128)
        return work.sampled, work.prompts

    assert sampled() == (32, 4)
    assert sampled(max_lag=2) == (96, 12)
    assert sampled(max_lag=8) == (128, 36)  # sampling.max_concurrent
    assert sampled(max_lag=2, lockstep=True) == (32, 4)  # one after the other


def test_a_greedy_baseline_is_drawn_too():
    recipe = stage(algorithm={"name": "remax"}, prompts_per_step=16, allocation={"samples_per_prompt": 1})
    assert memory.work_of(recipe, model(), 128).sampled == 32
