"""A folder with a model: what it must hold, its digest, its temperature."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jurat.platform.errors import ConfigError
from jurat.platform.identity.digests import weights_digest

TEMPERATURE = "temperature.json"
"""File beside the weights: ``{"temperature": 1.3}``, fitted by ``calibrate``; logits are divided by it."""


def checked(model: str, *, where: str) -> Path:
    """The folder. Raises ConfigError for one that is not there, or that holds no config, no tokenizer or no safetensors."""
    folder = Path(model).expanduser()
    for name, what in (
        ("config.json", "a config.json"),
        ("tokenizer.json", "a tokenizer.json"),
        ("*.safetensors", "safetensors"),
    ):
        if not any(folder.glob(name)):
            raise ConfigError(
                f"{model!r} holds no {name.removeprefix('*.')}" if folder.is_dir() else f"there is no folder {model!r}",
                where=where, fix=f"give a folder with a model as transformers saves it, with {what}; pickled weights are not read",
            )  # fmt: skip
    return folder


def ready(args: Mapping[str, Any]) -> None:
    """Raises ConfigError where this machine cannot run a model, or has it not."""
    for name in ("torch", "transformers"):
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"reward models need {name}", where="reward.members", fix="pip install 'jurat[train]'")
    checked(str(args.get("model", "")), where="argument 'model'")


def identity(folder: Path) -> str:
    """Over every file of the folder, the temperature's among them."""
    return weights_digest((folder,))


def temperature(folder: Path) -> float:
    """1 where it was never calibrated. Raises ConfigError for a file that says something else than a number above 0."""
    path = folder / TEMPERATURE
    if not path.is_file():
        return 1.0
    try:
        found = float(json.loads(path.read_text("utf-8"))["temperature"])
    except (ValueError, KeyError, TypeError):
        found = 0.0
    if not 0.0 < found < 1e6:
        raise ConfigError(
            "no temperature above 0", where=str(path), fix='write {"temperature": 1.0}, or remove the file'
        )
    return found
