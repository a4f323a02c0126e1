"""The flat buffer: layout, reading, refusals."""

from __future__ import annotations

import shutil

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, MistralConfig, Qwen2Config

from jurat.engine.llama.weights import FlatWeights, fits, shape_of
from jurat.engine.tensorfile import write_side_files, write_tensors
from jurat.platform.errors import ModelError


@pytest.mark.parametrize("tied", [True, False])
def test_views_are_the_model_and_joined_ones_the_same_memory(make, tied):
    model = make.llama(tie_word_embeddings=tied)
    weights = FlatWeights.from_state_dict(model.config, model.state_dict())
    state = model.state_dict()
    named = weights.views(weights.master)
    assert set(state) - set(named) == ({"lm_head.weight"} if tied else set())
    assert all(torch.equal(state[name], view) for name, view in named.items())
    assert sum(view.numel() for view in named.values()) == weights.size
    assert weights.num_matrix == sum(view.numel() for view in named.values() if view.dim() == 2)
    assert torch.equal(weights.working, weights.master.bfloat16())
    seen = weights.model(weights.master)
    assert (seen.head.data_ptr() == seen.embed.data_ptr()) == tied
    for index, layer in enumerate(seen.layers):
        at = f"model.layers.{index}."
        parts = [state[f"{at}self_attn.{name}_proj.weight"] for name in "qkv"]
        assert torch.equal(layer.qkv, torch.cat(parts))
        assert torch.equal(layer.gate_up, torch.cat([state[f"{at}mlp.{name}_proj.weight"] for name in ("gate", "up")]))
        layer.down.zero_()
        assert not named[f"{at}mlp.down_proj.weight"].any()


def test_in_float32_the_working_copy_is_the_master(make):
    model = make.llama()
    weights = FlatWeights.from_state_dict(model.config, model.state_dict(), dtype=torch.float32)
    assert weights.working is weights.master
    apart = weights.copy()
    weights.master.zero_()
    assert apart.master.any() and apart.working is apart.master


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_only_drawn_from_has_a_working_copy_and_norms(make, dtype):
    model = make.llama()
    state = {name: value + 0.001 for name, value in model.state_dict().items()}
    whole = FlatWeights.from_state_dict(model.config, state, dtype=dtype)
    drawn = FlatWeights(whole.shape, dtype=dtype, drawn=True)
    norms = sum(value.numel() for value in state.values() if value.dim() == 1)
    assert len(drawn.master) == (whole.size if dtype == torch.float32 else norms)
    drawn.take(whole)
    assert torch.equal(drawn.working, whole.working)
    assert sum(map(len, drawn.norms().values())) == norms
    for name, norm in drawn.norms().items():
        assert torch.equal(norm, state[name]) and torch.equal(norm, whole.norms()[name])


@pytest.mark.parametrize("tied", [True, False])
def test_a_folder_written_from_the_views_loads_in_transformers(make, tmp_path, tied):
    from transformers import AutoModelForCausalLM

    model = make.llama(tie_word_embeddings=tied)
    model.save_pretrained(tmp_path / "a", max_shard_size="20KB")
    assert len(list((tmp_path / "a").glob("*.safetensors"))) > 1
    weights = FlatWeights.from_folder(tmp_path / "a")
    write_side_files(tmp_path / "a", tmp_path / "b", dtype=torch.float32)
    write_tensors(tmp_path / "b" / "model.safetensors", weights.views(weights.master))
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "b", dtype=torch.float32)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())


def test_tensors_that_do_not_belong_are_named(make, tmp_path):
    model = make.llama()
    model.save_pretrained(tmp_path / "whole")
    state = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}

    def refuse(change, said):
        folder = shutil.copytree(tmp_path / "whole", tmp_path / "changed", dirs_exist_ok=True)
        tensors = {name: value.clone() for name, value in state.items()}
        change(tensors)
        save_file(tensors, folder / "model.safetensors")
        with pytest.raises(ModelError, match=said) as caught:
            FlatWeights.from_folder(folder)
        assert str(folder) in str(caught.value)

    refuse(lambda t: t.pop("model.norm.weight"), "1 tensors are missing, first 'model.norm.weight'")
    refuse(lambda t: t.update(extra=torch.ones(2)), "'extra' has no place")
    refuse(lambda t: t.update({"model.norm.weight": torch.ones(3)}), r"got shape \[3\], config.json says \[48\]")


def test_what_the_fast_path_covers():
    small = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
    assert fits(LlamaConfig(**small)) == ""
    assert fits(MistralConfig(**small, sliding_window=None)) == ""
    assert "sliding window" in fits(MistralConfig(**small, sliding_window=16, max_position_embeddings=64))
    assert "qwen2" in fits(Qwen2Config(**small))
    assert "attention_bias" in fits(LlamaConfig(**small, attention_bias=True))
    assert "gelu" in fits(LlamaConfig(**small, hidden_act="gelu"))
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 64}
    assert "yarn" in fits(LlamaConfig(**small, rope_parameters=yarn))
    with pytest.raises(ModelError, match=r"fast path does not cover.*qwen2"):
        shape_of(Qwen2Config(**small))


def test_scaled_rotary_positions_are_those_of_transformers(make):
    from jurat.engine.llama.rope import rotate, tables

    scaling = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 64}  # fmt: skip
    model = make.llama(rope_parameters=scaling)
    cos, sin = tables(shape_of(model.config), 300)
    wanted_cos, wanted_sin = model.model.rotary_emb(torch.zeros(1), torch.arange(300)[None])
    assert torch.allclose(cos, wanted_cos[0, :, :4], atol=1e-5) and torch.allclose(sin, wanted_sin[0, :, :4], atol=1e-5)
    x = torch.randn(300, 8)
    assert torch.allclose(rotate(rotate(x, cos, sin), cos, -sin), x, atol=1e-5)
