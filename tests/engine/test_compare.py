"""Two models, tensor by tensor, by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from jurat.engine.compare import compare
from jurat.platform.errors import ModelError


def saved(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_by_hand(tmp_path):
    """a = (3, 4) and (1), b is off by 0.5 and 0.25 in two places of four; one tensor is only here, one has another shape."""
    a = {"w": torch.tensor([3.0, 4.0]), "v": torch.tensor([[1.0, 2.0]]), "same": torch.ones(2), "mine": torch.ones(1),
         "s": torch.ones(2, 3)}  # fmt: skip
    b = {"w": torch.tensor([3.0, 4.5]), "v": torch.tensor([[1.25, 2.0]]), "same": torch.ones(2), "s": torch.ones(3, 2)}
    found = compare(saved(tmp_path / "a", a), saved(tmp_path / "b", b))
    assert (found.tensors, found.numbers, found.equal_tensors, found.different_numbers) == (3, 6, 1, 2)
    assert (found.largest, found.at) == (0.5, "w")
    assert found.distance == pytest.approx(((0.25 + 0.0625) / (9 + 16 + 1 + 4 + 2)) ** 0.5)
    assert (found.only_a, found.only_b, found.shapes) == (("mine",), (), {"s": ([2, 3], [3, 2])})
    assert not found.same_bytes


def test_equal_numbers_need_not_be_equal_bytes(tmp_path):
    """0 and -0, float32 and bfloat16 are the same numbers; no number is one with itself, and infinitely far from others."""
    nan, inf = float("nan"), float("inf")
    one = saved(tmp_path / "a", {"z": torch.tensor([0.0, nan, inf]), "h": torch.tensor([1.5])})
    two = saved(tmp_path / "b", {"z": torch.tensor([-0.0, nan, inf]), "h": torch.tensor([1.5]).bfloat16()})
    found = compare(one, two)
    assert (found.largest, found.different_numbers, found.same_bytes) == (0.0, 0, False)
    assert found.dtypes == {"h": ("float32", "bfloat16")}
    assert compare(one, one).same_bytes
    far = compare(one, saved(tmp_path / "c", {"z": torch.tensor([0.0, 1.0, inf]), "h": torch.tensor([1.5])}))
    assert (far.largest, far.different_numbers) == (inf, 1)


def test_shards_are_read_together(tmp_path):
    whole = {"a": torch.arange(4.0), "b": torch.arange(6.0).view(2, 3)}
    folder = tmp_path / "cut"
    folder.mkdir()
    for name, tensor in whole.items():
        save_file({name: tensor}, folder / f"{name}.safetensors")
    index = {"weight_map": {name: f"{name}.safetensors" for name in whole}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert compare(saved(tmp_path / "whole", whole), folder).same_bytes
    with pytest.raises(ModelError, match="no weights"):
        compare(folder, tmp_path)
