"""Whole runs with low-rank adapters: after full fine-tuning, interrupted and resumed, exported, and on both paths."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from jurat.engine import checkpoint as checkpointing
from jurat.engine.tensorfile import load_tensors
from jurat.platform.config import override, validate
from jurat.platform.errors import ConfigError
from jurat.platform.runs.store import Store
from jurat.trainers import launch
from screens import Screen

CHAIN = {
    "model": "tiny-random",
    "data": {
        "train": {"source": "generated:plain", "levels": [1], "size": 60},
        "held_out": {"source": "generated:plain", "levels": [1], "size": 8, "split": "held_out"},
    },
    "sampling": {"max_new_tokens": 6},
    "engine": {"dtype": "float32", "threads": 1},
    "evaluate": {"problems": 4, "final_problems": 4, "samples": 2},
    "checkpoint": {"every": 1, "keep": 9},
    "prompts_per_step": 4,
    "allocation": {"samples_per_prompt": 4},
    "stages": [
        {"name": "sft", "steps": 4, "algorithm": {"name": "sft"}, "optim": {"lr": 1e-3}},
        {
            "name": "grpo",
            "steps": 4,
            "algorithm": {"name": "grpo", "kl": {"coef": 0.1}},
            "lora": {"rank": 4, "alpha": 16, "targets": ["q_proj", "v_proj"]},
            "optim": {"lr": 1e-2},
            "updates_per_step": 2,
        },
    ],
}


def train(home: Path, overrides=None, *, stop=None):
    screen = Screen(stop)
    recipe = validate(override(CHAIN, overrides or {}), where="test")
    return launch.train(recipe, home=home, base=home, reporter=screen), screen


def weights(checkpoint: Path, file="model.safetensors"):
    return load_tensors(checkpoint / "policy" / file, dtype=torch.float32)


@pytest.mark.parametrize("path", ["fast", "simple"])
def test_full_fine_tuning_then_adapters_and_a_resume(tmp_path, path):
    whole, screen = train(tmp_path / "whole", {"engine.path": path})
    said = next(note for note in screen.notes if note.startswith("LoRA"))
    adapted = screen.steps[CHAIN["stages"][0]["steps"] :]
    assert adapted[0].updates[0].metrics["kl_ref"] == pytest.approx(0.0, abs=1e-9)
    for report in adapted:
        assert report.updates[0].metrics["logprob_diff_mean"] < 1e-5

    stopped, _ = train(
        tmp_path / "cut", {"engine.path": path}, stop=lambda stage, version: (stage, version) == ("grpo", 2)
    )
    assert (stopped.state, stopped.step) == ("interrupted", 2)
    again = launch.train(None, home=tmp_path / "cut", base=tmp_path / "cut", reporter=Screen(), resume=stopped.run)
    for file in ("model.safetensors", "optimizer.safetensors", "adapter/adapter_model.safetensors"):
        found, wanted = weights(Path(again.checkpoint), file), weights(Path(whole.checkpoint), file)
        assert set(found) == set(wanted) and all(torch.equal(found[name], each) for name, each in wanted.items())

    before = weights(whole.folder / "checkpoints" / "sft" / "step-000004")
    after = weights(Path(whole.checkpoint))
    changed = {name.split(".")[-2] for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert changed == {"q_proj", "v_proj"}
    learnt = sum(each.numel() for each in weights(Path(whole.checkpoint), "adapter/adapter_model.safetensors").values())
    assert f"of rank 4: {learnt:,} parameters learn" in said

    store = Store.open(None, tmp_path / "whole")
    engines = [segment.versions["engine"] for segment in store.segments(store.run(whole.run))]
    assert [engine["lora"] and engine["lora"]["rank"] for engine in engines] == [None, 4]
    assert engines[1]["trainable"] == learnt and engines[1]["parameters"] == engines[0]["trainable"]

    checkpointing.export(Path(whole.checkpoint), tmp_path / "out", dtype=torch.float32)
    assert not (tmp_path / "out" / "adapter").exists()
    exported = load_tensors(tmp_path / "out" / "model.safetensors", dtype=torch.float32)
    assert all(torch.equal(exported[name], tensor) for name, tensor in after.items())
    assert checkpointing.damage(Path(whole.checkpoint)) == ""
    manifest = json.loads((Path(whole.checkpoint) / "manifest.json").read_text())
    assert "policy/adapter/adapter_config.json" in manifest["files"]


def test_adapters_learn(tmp_path):
    """Supervised, on a random model: the loss falls, by adapters alone."""
    changes = {"lora": {"rank": 16, "alpha": 64}, "optim.lr": 5e-3, "prompts_per_step": 16, "steps": 30}
    changes |= {"stages": [], "algorithm": {"name": "sft"}, "allocation": {}, "checkpoint": {}}
    _, screen = train(tmp_path, changes)
    losses = [report.metrics["policy/loss"] for report in screen.steps]
    assert np.mean(losses[-5:]) < losses[0] - 1.0  # nats per token


def test_unknown_layers_of_a_later_stage_stop_the_run_before_the_first(tmp_path):
    stages = [*CHAIN["stages"][:1], {**CHAIN["stages"][1], "lora": {"targets": ["query"]}}]
    with pytest.raises(ConfigError, match="no linear layer is named 'query'"):
        train(tmp_path, {"stages": stages})
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").iterdir())


def test_a_dry_run_says_what_learns(tmp_path):
    plan = launch.dry_run(validate(CHAIN, where="test"), home=tmp_path, base=tmp_path)
    assert "grpo: LoRA of rank 4: 7,168 parameters learn, 0.84% of the model's 853,120" in plan["notes"]
