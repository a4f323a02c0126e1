"""Files of a Hugging Face model folder; imports nothing heavy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from jurat.platform.errors import ModelError

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json", ".h5", ".msgpack", ".onnx")


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of an HF folder, in order. Raises ModelError naming what is missing; refuses pickles."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    else:
        names = ["model.safetensors"]
    missing = [name for name in names if not (folder / name).is_file()]
    if not missing:
        return [folder / name for name in names]
    if (folder / "pytorch_model.bin").exists() or (folder / "pytorch_model.bin.index.json").exists():
        raise ModelError(
            "the weights are a pickle (pytorch_model.bin), which could run code when read",
            where=str(folder),
            fix="convert them to safetensors: load with transformers and save_pretrained again",
        )
    raise ModelError(
        f"no weights: {', '.join(missing)} not found",
        where=str(folder),
        fix="the folder needs model.safetensors (or model.safetensors.index.json and its shards)",
    )


def copy_side_files(source: Path, folder: Path) -> None:
    """Copy what is not a weight (tokenizer, chat template, generation config) from one HF folder to another."""
    for path in sorted(source.iterdir()):
        if path.is_file() and path.name != "config.json" and not path.name.endswith(WEIGHT_SUFFIXES):
            shutil.copyfile(path, folder / path.name)
